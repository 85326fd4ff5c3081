"""From a blank page: an array in chunks

Write `waves_in_chunks(x, chunks)`. It runs `wave_kernel` over the host's array `x` in `chunks` equal chunks and returns
the result as a NumPy array. The last chunk may be shorter, and if there are more chunks than elements, some are empty:
10 elements in 4 chunks are 3, 3, 3 and 1, and 3 elements in 5 chunks are 1, 1 and 1.

Each chunk needs a copy to the device, a launch in blocks of 128, and a copy back, all three on the chunk's stream. Use
three streams in turn.

`cuda.device_array` allocates on the device and `cuda.pinned_array` on the host, `array[a:b]` is a part of either,
`there.copy_to_device(part, stream)` and `back.copy_to_host(part, stream)` copy.
"""

HINTS = ("Which three things does a chunk need, and what do all three have in common? Look at `in_chunks` in the "
         "lesson.",
         "Round the size of a chunk up, so that no elements at the end are left out. Then fewer chunks may be enough: "
         "how many of that size cover the array?",
         "size = -(-x.size // chunks); for chunk in range(-(-x.size // size)): slice the arrays, "
         "copy_to_device(x[part], stream), wave_kernel[-(-there.size // 128), 128, stream](there, back), "
         "copy_to_host(out[part], stream). At the end cuda.synchronize().")
POINTS = 3
NEEDS = ("predict_overlap",)

import numpy as np
from numba import float32

from labkit import cuda


# %%
@cuda.jit
def wave_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(8):
            value = float32(0.5) * value + x[i]
        out[i] = value

# %%
waves_in_chunks = None  # write the function here: def waves_in_chunks(x, chunks)
### BEGIN SOLUTION
def waves_in_chunks(x, chunks):
    streams = [cuda.stream() for _ in range(3)]
    on_device = [cuda.device_array(x.size, dtype=np.float32) for _ in range(2)]
    out = cuda.pinned_array(x.size, dtype=np.float32)
    size = -(-x.size // chunks)
    for chunk in range(-(-x.size // size)):
        part, stream = slice(chunk * size, (chunk + 1) * size), streams[chunk % 3]
        there, back = on_device[0][part], on_device[1][part]
        there.copy_to_device(x[part], stream)
        wave_kernel[-(-there.size // 128), 128, stream](there, back)
        back.copy_to_host(out[part], stream)
    cuda.synchronize()
    return out


### END SOLUTION

# %% [check]
from labkit.course.exercises import SUMMED, Edit, FunctionExercise, Reach, asks, of, on_the_device, relative_to, uniform
from labkit.course.exercises.graphs_and_streams import BLOCK, blocks_of


@asks("Each chunk that is not empty gets one launch, in blocks of 128. Launches and copies are on the chunk's "
      "stream, never on the default one, and chunks are on more than one; the function waits before it returns.")
def _on_streams(run):
    """A launch for each chunk, copies and launches on streams, and a wait at the end."""
    if missing := on_the_device(run):
        return missing
    n, chunks = run.size["n"], run.size["chunks"]
    wanted = blocks_of(n, blocks_of(n, chunks))
    launches = [stream for what, stream in run.order if what == "launch"]
    if len(launches) != wanted:
        return (f"{n:,} elements in {chunks} chunks leave {wanted} that are not empty. There should be one launch for "
                f"each of these, not {len(launches)}.")
    for one, start in zip(run.launches, range(0, n, blocks_of(n, chunks)), strict=True):
        held = min(blocks_of(n, chunks), n - start)
        if one.block != (BLOCK, 1, 1) or one.grid != (blocks_of(held), 1, 1):
            return (f"A chunk of {held:,} elements was launched with a grid of {one.grid[0]} and blocks of "
                    f"{one.block[0]}; it should be {blocks_of(held)} blocks of {BLOCK}.")
    for what, stream in run.order:
        if stream == 0 and what != "wait":
            return (f"A {what} was made on the default stream, which waits for all others: pass the chunk's stream to "
                    "the launch and to both copies.")
    if wanted > 1 and len(set(launches)) < 2:
        return "All chunks are on one stream, and in a stream nothing overlaps: use the streams in turn."
    back = [stream for what, stream in run.order if what == "copy back"]
    if back and len(back) == len(launches) and back != launches:
        return "A chunk is copied back on a different stream from its kernel's: it may be copied before it is computed."
    if run.order[-1][0] != "wait":
        return ("The function returns while the copies may still be under way: wait for the streams, or for the whole "
                "device, before it does.")
    waited = [stream for what, stream in run.order if what == "wait"]
    if 0 not in waited and not set(launches) <= set(waited):
        return "The function waits for some of its streams, but not for all that it used."
    return None


EXERCISE = FunctionExercise(
    name="waves_in_chunks",
    reference=lambda x, chunks: x.astype(np.float64) * (2 - 0.5**8),
    inputs=lambda rng, n, chunks: (uniform(rng, n), chunks),
    sizes=({"n": 1, "chunks": 1}, {"n": 3, "chunks": 5}, {"n": 1000, "chunks": 4}, {"n": 1001, "chunks": 4},
           {"n": 257, "chunks": 3}, {"n": 10, "chunks": 4}),
    random_size=lambda rng: {"n": int(rng.integers(1, 2000)), "chunks": int(rng.integers(1, 9))},
    tolerance=relative_to(lambda x, chunks: 2 * np.abs(x), roundings=10),
    domain=(Reach("there are more chunks than elements", lambda rng, x, chunks: (x, x.size + 2)), *of(0, *SUMMED)),
    demand=_on_streams,
    wrong={
        "the size of a chunk is rounded down, and the last elements are left out":
            Edit("size = -(-x.size // chunks)", "size = max(1, x.size // chunks)"),
        "the launch is made on the default stream":
            Edit("-(-there.size // 128), 128, stream]", "-(-there.size // 128), 128]"),
        "it returns before the work is done": Edit("cuda.synchronize()", "pass"),
        "all chunks are on one stream": Edit("streams[chunk % 3]", "streams[0]"),
        "the copy back is made on the default stream": Edit("(out[part], stream)", "(out[part])"),
        "the copy to the device is made on the default stream": Edit("(x[part], stream)", "(x[part])"),
        "the blocks are rounded down": Edit("[-(-there.size // 128), 128", "[max(1, there.size // 128), 128"),
        "the copy back is on another stream than the kernel":
            Edit("(out[part], stream)", "(out[part], streams[(chunk + 1) % 3])"),
        "the input is copied back, not the output": Edit("back.copy_to_host", "there.copy_to_host"),
    },
)

EQUIVALENT = {
    "index: on_device[0] -> on_device[1]":
        "The kernel works in place: each thread reads its element before it writes it, and no other thread touches it.",
    "index: on_device[1] -> on_device[0]":
        "The kernel works in place: each thread reads its element before it writes it, and no other thread touches it.",
    "index: streams[chunk % 3] -> streams[-(chunk % 3)]":
        "A negative index counts from the end: the same three streams in another order.",
}

AFTER = """
On a GPU the copy to the device overlaps with nothing if `x` is in pageable memory, and that is up to the caller. Which
of the two copies can overlap in any case?

Next: the exercises of **14 · Libraries**.
"""
