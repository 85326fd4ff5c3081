"""Find the bug: where each sentence begins

In a packed batch, a sentence begins where the one before it ends: `begins[b]` is the sum of all lengths before
`lengths[b]`. Such sums are called an *exclusive scan*. Here one block of 128 threads computes it for up to 128
sentences; both arrays are (B,) int32. In each round, a thread adds to its sum that of the thread `distance` before it,
and the distance doubles. After seven rounds every thread has the sum of all lengths up to its own. For three sentences
the result is right; for a hundred it may be wrong.
"""

HINTS = ("One warp may be a line ahead of another. Whose sum does thread 32 read in the first round, and could that "
         "sum have changed by then?",
         "Reading and writing in one round are two steps: no thread may write before all have read. A barrier "
         "separates two steps of a block.",
         "cuda.syncthreads() also between before = ... and sums[i] += before.")
POINTS = 2
NEEDS = ("pack_ids",)

from numba import int32

from labkit import cuda


# %%
@cuda.jit
def sentence_begins(lengths, begins):
    sums = cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    sums[i] = lengths[i] if i < lengths.size else 0
    cuda.syncthreads()
    distance = 1
    while distance < 128:
        before = sums[i - distance] if i >= distance else 0
        sums[i] += before
        cuda.syncthreads()
        distance *= 2
    if i < lengths.size:
        begins[i] = sums[i] - lengths[i]


### BEGIN SOLUTION
@cuda.jit
def sentence_begins(lengths, begins):
    sums = cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    sums[i] = lengths[i] if i < lengths.size else 0
    cuda.syncthreads()
    distance = 1
    while distance < 128:
        before = sums[i - distance] if i >= distance else 0
        cuda.syncthreads()  # everyone has read; only now may a sum change
        sums[i] += before
        cuda.syncthreads()
        distance *= 2
    if i < lengths.size:
        begins[i] = sums[i] - lengths[i]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, elements_of_argument, one_reads_for_all

SCANNED = 128  # sentences of a block, a thread each


@asks("Each length is loaded from global memory at most twice; sums are built from sums, in seven rounds, with at most "
      "four loads from shared memory per thread and round.")
def _scan_loads(report) -> str | None:
    """Not every thread over all lengths before its own, be they in global or in shared memory."""
    lengths, enough = elements_of_argument(report, 0), 4 * 7 * SCANNED
    loads, shared = report.counts["global_loads"], report.counts["shared_loads"]
    if loads > 2 * lengths:
        return (f"It loads {loads:,} lengths from global memory, and {2 * lengths:,} are enough: each thread loads its "
                f"own. It finds the others in shared memory, as sums.")
    if shared > enough:
        return (f"It loads {shared:,} values from shared memory; seven rounds with up to four loads per thread make "
                f"{enough:,} at most. Add sums of sums, with twice the distance in each round.")
    return one_reads_for_all(report, 4 * 7)


@cuda.jit
def begins_each_alone(lengths, begins):
    i = cuda.threadIdx.x
    if i < lengths.size:
        total = 0
        for before in range(i):
            total += lengths[before]
        begins[i] = total


@cuda.jit
def begins_each_alone_in_shared(lengths, begins):
    own = cuda.shared.array(128, np.int32)
    i = cuda.threadIdx.x
    own[i] = lengths[i] if i < lengths.size else 0
    cuda.syncthreads()
    if i < lengths.size:
        total = 0
        for before in range(i):
            total += own[before]
        begins[i] = total


EXERCISE = KernelExercise(
    name="sentence_begins",
    reference=lambda lengths: (np.cumsum(lengths) - lengths).astype(np.int32),
    inputs=lambda rng, B: rng.integers(0, 200, B).astype(np.int32),
    shape=lambda B: (B,),
    dtype=np.int32,
    sizes=tuple({"B": B} for B in (1, 3, 32, 33, 100, 128)),
    random_size=lambda rng: {"B": int(rng.integers(40, 128))},
    observe_sizes=({"B": 100},),
    launch=lambda B: (1, SCANNED),
    demand=_scan_loads,
    domain=(Reach("all sentences are empty", lambda rng, lengths: (0 * lengths,)),
            Reach("every sentence has a single token", lambda rng, lengths: (0 * lengths + 1,)),
            Reach("only the first sentence has tokens", lambda rng, lengths: (
                np.where(np.arange(lengths.size) == 0, np.int32(77), np.int32(0)),)),
            Reach("there are millions of tokens", lambda rng, lengths: (10_000_000 + lengths,), {"B": 128})),
    wrong={
        "a sum is changed while others read it: a barrier is missing after the reading":
            Edit("cuda.syncthreads()\nsums[i] += before", "sums[i] += before"),
        "the next round reads sums that are not yet written: a barrier is missing after the writing":
            Edit("sums[i] += before\ncuda.syncthreads()", "sums[i] += before"),
        "a sentence's own length is in the sum: that is where it ends": Edit("sums[i] - lengths[i]", "sums[i]"),
        "the distance grows by one in each round: far lengths are added many times":
            Edit("distance *= 2", "distance += 1"),
        "a round too few: the first 64 lengths never reach the last 64": Edit("while distance < 128:",
                                                                         "while distance < 64:"),
        "only one round: a sentence begins where the one before it began, plus its length":
            Edit("while distance < 128:", "while distance < 2:"),
        "every thread adds up all lengths before its own, from global memory": begins_each_alone,
        "every thread adds up all lengths before its own, from shared memory": begins_each_alone_in_shared,
    },
)

EQUIVALENT = {
    "barrier moved: sentence_begins -> cuda.syncthreads() behind distance = 1":
        "distance is a thread's own: nothing shared lies between the two places.",
    "barrier moved: while distance < 128: ... -> cuda.syncthreads() behind distance *= 2":
        "distance is a thread's own: nothing shared lies between the two places.",
    "guard: distance < 128 -> distance < 129": "In one more round, at distance 128, no thread has a neighbour to add.",
    "number: 0 -> 1": "These are threads after the last sentence, and their values reach no thread before them.",
    "number: 128 -> 256":
        "In one more round, at distance 128, no thread has a neighbour to add; and a longer array does no harm.",
    "type: sums[i] += before -> sums[i] += int32(before)": "It is an int32 already.",
}
