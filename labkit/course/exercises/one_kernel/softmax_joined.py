r"""From a blank page: a softmax with two joins

`out` should be the softmax of a long vector `x` (n,), float32, in one launch of three blocks of 64 threads:

$$\text{out}_i = \frac{e^{x_i - m}}{\sum_k e^{x_k - m}}, \qquad m = \max_k x_k$$

Each block processes its share of the elements, and all blocks need the maximum and the sum of the whole vector. So
there are three phases, with a join after the first and another after the second. `largest` and `sums` (3,), float32,
have one element per block. `counters` (1,), uint32, is 0 when the kernel starts. Do not reset it between the joins:
wait for a larger value at the second one. The parameters are `x`, `largest`, `sums`, `counters` and `out`.
"""

HINTS = ("A join begins and ends with a barrier of the block. In between one thread calls cuda.threadfence(), adds 1 "
         "to counters[0] with an atomic, waits in a loop that reads it with cuda.atomic.add(counters, 0, 0), and calls "
         "cuda.threadfence() again. What has to be in memory before the join, and which blocks read it after the join?",
         "Within a block, put the threads' maxima into an array of 64 in shared memory, and let thread 0 write the "
         "largest of them to largest[blockIdx.x]. After the join each thread reads the three elements of `largest`. "
         "Do the same for the sums. The second join waits until the counter is 2 * gridDim.x.",
         "Write the join as a device function, join(counters, target), and call it with cuda.gridDim.x and with "
         "2 * cuda.gridDim.x. The phases: the maximum of for i in range(cuda.grid(1), x.size, cuda.gridsize(1)); the "
         "sum of math.exp(x[i] - m) over the same elements; and out[i] = math.exp(x[i] - m) / total.")
POINTS = 3
NEEDS = ("predict_joins",)

import math

from numba import float32

from labkit import cuda

# %%
softmax_joined = None  # write the kernel here: def softmax_joined(x, largest, sums, counters, out)
### BEGIN SOLUTION
@cuda.jit(device=True)
def join(counters, target):
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        cuda.atomic.add(counters, 0, 1)
        while cuda.atomic.add(counters, 0, 0) < target:
            pass
        cuda.threadfence()
    cuda.syncthreads()


@cuda.jit
def softmax_joined(x, largest, sums, counters, out):
    of_threads = cuda.shared.array(64, float32)
    thread, block = cuda.threadIdx.x, cuda.blockIdx.x
    m = float32(-math.inf)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        m = max(m, x[i])
    of_threads[thread] = m
    cuda.syncthreads()
    if thread == 0:
        for other in range(64):
            m = max(m, of_threads[other])
        largest[block] = m
    join(counters, cuda.gridDim.x)

    m = max(largest[0], max(largest[1], largest[2]))
    total = float32(0.0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += math.exp(x[i] - m)
    of_threads[thread] = total
    cuda.syncthreads()
    if thread == 0:
        for other in range(1, 64):
            total += of_threads[other]
        sums[block] = total
    join(counters, 2 * cuda.gridDim.x)

    total = sums[0] + sums[1] + sums[2]
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = math.exp(x[i] - m) / total


### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, EXPONENTIALS, Edit, KernelExercise, asks, largest_at, of, uniform, whole_grid


def _softmax(x):
    exponentials = np.exp(x.astype(np.float64) - x.max())
    return exponentials / exponentials.sum()


def _tolerance(x):
    """Each exponent is rounded, relative to itself, and so is a sum of x.size terms."""
    return EPS32 * _softmax(x) * (8 + x.size / 8 + 2 * np.abs(x - x.max())) + 1e-30


@asks("Blocks wait for one another inside the kernel: it counts arrivals with atomics.", whole_grid)
def _counted(report) -> str | None:
    """At least an arrival and a look at each join, by each of three blocks."""
    if report.counts["global_atomics"] >= 12:
        return None
    return (f"It makes {report.counts['global_atomics']:,} atomics on global memory. Two joins of three blocks need at "
            "least 12: at each join, each block adds its arrival to the counter, and then reads the counter.")


EXERCISE = KernelExercise(
    name="softmax_joined",
    reference=_softmax,
    inputs=lambda rng, n: (4 * uniform(rng, n),),
    shape=lambda n: (n,),
    sizes=tuple({"n": n} for n in (1, 5, 65, 200, 450)),
    random_size=lambda rng: {"n": int(rng.integers(1, 500))},
    arguments=lambda inputs, out, size: (*inputs, np.full(3, np.nan, np.float32), np.full(3, np.nan, np.float32),
                                         np.zeros(1, np.uint32), out),
    launch=lambda n: (3, 64),
    tolerance=_tolerance,
    observe_sizes=({"n": 65}, {"n": 200}),
    demand=_counted,
    benign_races=False,
    domain=(*of(0, *EXPONENTIALS), *of(0, largest_at(192), at={"n": 450})),
    wrong={
        "the first fence is missing: other blocks may read the old values":
            Edit("cuda.threadfence()\ncuda.atomic.add(counters, 0, 1)", "cuda.atomic.add(counters, 0, 1)"),
        "the second fence is missing: the block may read what its SM has kept in L1":
            Edit("while cuda.atomic.add(counters, 0, 0) < target:\n    pass\ncuda.threadfence()",
                 "while cuda.atomic.add(counters, 0, 0) < target:\n    pass"),
        "a block arrives but does not wait": Edit("while cuda.atomic.add(counters, 0, 0) < target:\n    pass", "pass"),
        "the second join waits for the same count as the first":
            Edit("join(counters, 2 * cuda.gridDim.x)", "join(counters, cuda.gridDim.x)"),
        "the first join waits for one block too many":
            Edit("join(counters, cuda.gridDim.x)", "join(counters, cuda.gridDim.x + 1)"),
        "the first join waits for one block too few":
            Edit("join(counters, cuda.gridDim.x)", "join(counters, cuda.gridDim.x - 1)"),
        "only one join: blocks add up sums that others have not written yet":
            Edit("join(counters, 2 * cuda.gridDim.x)", "cuda.syncthreads()"),
        "the other threads of the block do not wait for thread 0":
            Edit("if cuda.threadIdx.x == 0:\n"
                 "    cuda.threadfence()\n"
                 "    cuda.atomic.add(counters, 0, 1)\n"
                 "    while cuda.atomic.add(counters, 0, 0) < target:\n"
                 "        pass\n"
                 "    cuda.threadfence()\n"
                 "cuda.syncthreads()",
                 "if cuda.threadIdx.x == 0:\n"
                 "    cuda.threadfence()\n"
                 "    cuda.atomic.add(counters, 0, 1)\n"
                 "    while cuda.atomic.add(counters, 0, 0) < target:\n"
                 "        pass\n"
                 "    cuda.threadfence()"),
        "each block subtracts its own maximum, not the maximum of all":
            Edit("m = max(largest[0], max(largest[1], largest[2]))", "m = largest[block]"),
        "each block divides by its own sum": Edit("total = sums[0] + sums[1] + sums[2]", "total = sums[block]"),
        "a plain addition counts the blocks": Edit("cuda.atomic.add(counters, 0, 1)", "counters[0] += 1"),
        "the maximum is not subtracted": Edit("m = max(largest[0], max(largest[1], largest[2]))", "m = float32(0.0)"),
    },
)

EQUIVALENT = {
    "barrier: cuda.syncthreads() -> left out":
        "The barrier at the start of the join: here thread 0 itself writes what the other blocks read.",
}
