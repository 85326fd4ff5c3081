"""Predict: three engines

Copying an array to the device takes 8 ms, the kernel 12 ms, the copy back 4 ms. The array is cut into four equal
chunks. The GPU's three engines (copies to the device, kernels, copies back) work at the same time, each on one chunk
after another. How many milliseconds does it all take

- if all chunks are on one stream,
- if they are on three streams, used in turn,
- at best, with as many chunks and streams as you like, if starting a copy or a kernel costs nothing,
- again in four chunks on three streams, once the kernel has been improved to 4 ms for the whole array?
"""

HINTS = ("Draw three rows, one per engine, and fill in the first chunk's three parts. When can the second chunk's copy "
         "begin?",
         "On one stream nothing overlaps. On three, the engine with the most work never waits once it has begun: what "
         "comes before its first chunk, and what after its last?",
         "8 + 12 + 4; 2 + 12 + 1; 12; and with the faster kernel the copies to the device set the pace: 8 + 1 + 1.")
POINTS = 2
NEEDS = ("predict_launches",)

# %%
one_stream_ms = None
four_chunks_ms = None
at_best_ms = None  # the limit for many chunks
faster_kernel_ms = None  # four chunks, three streams, a kernel of 4 ms
### BEGIN SOLUTION
one_stream_ms = 8 + 12 + 4
four_chunks_ms = 2 + 12 + 1  # the first chunk's copy, then kernels without a gap, then the last chunk's copy back
at_best_ms = 12  # the longest of the three
faster_kernel_ms = 8 + 1 + 1  # now the copies there have no gap
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise
from labkit.measure.series.streams import ENGINES, makespan


def overlap_truth() -> dict[str, int]:
    parts = dict(zip(ENGINES, (8, 12, 4), strict=True))
    faster = {**parts, "kernel": 4}
    return {
        "one_stream_ms": round(makespan(parts, 4, 1)),
        "four_chunks_ms": round(makespan(parts, 4, 3)),
        "at_best_ms": max(parts.values()),
        "faster_kernel_ms": round(makespan(faster, 4, 3)),
    }


EXERCISE = PredictionExercise(
    name="predict_overlap",
    truth=overlap_truth,
    how={
        "one_stream_ms": "a stream is a queue: nothing in it overlaps.",
        "four_chunks_ms": "a chunk takes 2, 3 and 1 ms. The kernels are the slowest part. When does the first one "
                          "start, when does the last one end, and what comes after it?",
        "at_best_ms": "the engine with the most work needs all of its time, however small the chunks are.",
        "faster_kernel_ms": "a chunk now takes 2, 1 and 1 ms. Which engine never waits? What is left to do when it has "
                            "finished?",
    },
    wrong={
        "chunks were taken to overlap on one stream": {"one_stream_ms": 15},
        "the first copy to the device and the last copy back were left out": {"four_chunks_ms": 12},
        "the first copy was taken to be of the whole array, not of a chunk": {"four_chunks_ms": 21},
        "the parts were added up as if nothing overlapped": {"four_chunks_ms": 24},
        "this is a third of the total, which holds for parts of equal length": {"at_best_ms": 8},
        "the kernel was taken to set the pace, but now the copy to the device takes longer": {"faster_kernel_ms": 7},
    },
)

AFTER = """
A kernel three times as fast made the whole program 1.5 times as fast. Which part would you improve next?
"""
