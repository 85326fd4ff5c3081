"""How many bits are set?

`x` is an array of uint32, and `out`, 33 elements of int32, is full of zeros when the kernel starts. Afterwards `out[k]`
is the number of elements of `x` with exactly k bits set; `cuda.popc(x[i])` counts the bits of one. For example,
`[0, 3, 5]` gives `out[0] == 1` and `out[2] == 2`. There are two blocks of 64 threads, and `x` may be longer than that.
"""

HINTS = ("How many atomics on global memory does a block need if it knows its 33 counts?",
         "Three parts with a barrier between them: clear the 33 counts in shared memory, count there, add them to out. "
         "A thread counts the elements grid(1), grid(1) + gridsize(1), and so on.",
         "if thread < 33 clears and, at the end, adds: cuda.atomic.add(out, thread, counts[thread]). In between: for i "
         "in range(cuda.grid(1), x.size, cuda.gridsize(1)), cuda.atomic.add(counts, cuda.popc(x[i]), 1).")
POINTS = 2

from numba import int32

from labkit import cuda


# %%
@cuda.jit
def count_bits(x, out):
    counts = cuda.shared.array(33, int32)
    thread = cuda.threadIdx.x
    ### BEGIN SOLUTION
    if thread < 33:
        counts[thread] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, cuda.popc(x[i]), 1)
    cuda.syncthreads()  # all threads of the block have counted
    if thread < 33:
        cuda.atomic.add(out, thread, counts[thread])
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, whole_grid

BINS = 33


@asks("A block makes at most one atomic on global memory per bin.", whole_grid)
def _private_bins(report) -> str | None:
    made, blocks = report.counts["global_atomics"], int(np.prod(report.grid))
    if made > BINS * blocks:
        return (f"It makes {made:,} atomics on global memory. {blocks} blocks with {BINS} bins need {BINS * blocks} at "
                f"most: count in shared memory, and add each bin once.")
    return None


@cuda.jit
def count_bits_in_global_memory(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(out, cuda.popc(x[i]), 1)


def _numbers(value):
    return lambda rng, x: (np.full(x.shape, value, np.uint32),)


def _any_bits(rng, n):
    """Numbers with few bits and with many: a mask of as many bits as a random number says, and of random places."""
    kept = rng.integers(0, 2**32, n, dtype=np.uint32)
    return (kept >> rng.integers(0, 32, n).astype(np.uint32),)


EXERCISE = KernelExercise(
    name="count_bits",
    reference=lambda x: np.bincount([int(number).bit_count() for number in x], minlength=BINS).astype(np.int32),
    inputs=_any_bits,
    shape=lambda n: (BINS,),
    dtype=np.int32,
    start=lambda x: np.zeros(BINS, np.int32),
    sizes=tuple({"n": n} for n in (1, 5, 63, 64, 129, 300)),
    observe_sizes=({"n": 5}, {"n": 300}),
    launch=lambda n: (2, 64),
    demand=_private_bins,
    domain=(Reach("all elements are 0, and no bit is set", _numbers(0)),
            Reach("all elements have all 32 bits set", _numbers(2**32 - 1)),
            Reach("all elements have the same bits", _numbers(0x80000001), {"n": 300})),
    wrong={
        "the bins are not cleared: shared memory holds whatever was there":
            Edit("if thread < 33:\n    counts[thread] = 0\ncuda.syncthreads()", "cuda.syncthreads()"),
        "a thread counts before another one has cleared the bin":
            Edit("cuda.syncthreads()\n"
                 "for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):",
                 "for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):"),
        "the bins are added before all threads have counted":
            Edit("cuda.syncthreads()\nif thread < 33:", "if thread < 33:"),
        "threads of a block add to a bin without an atomic": Edit("cuda.atomic.add(counts, cuda.popc(x[i]), 1)",
                                                                  "counts[cuda.popc(x[i])] += 1"),
        "blocks add to global memory without an atomic": Edit("cuda.atomic.add(out, thread, counts[thread])",
                                                              "out[thread] += counts[thread]"),
        "one atomic on global memory per element": count_bits_in_global_memory,
        "each thread counts one element, and those from the 129th on are left out":
            Edit("for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):",
                 "i = cuda.grid(1)\n"
                 "if i < x.size:"),
        "the element itself is the bin": Edit("cuda.popc(x[i])", "x[i] % 33"),
    },
)
