"""A sum that starts over

One block of 128 threads computes the inclusive running sums of up to 128 int32 elements, but `heads` (int32) marks
where a sum starts over: `out[i]` runs from the last head at or before i, that is, the last j ≤ i with `heads[j] == 1`,
up to i. If there is none, it runs from the beginning. This is called a *segmented scan*. For example,
`x = [1, 2, 3, 4]` with `heads = [0, 0, 1, 0]` gives `[1, 3, 3, 7]`.

Seven steps of Hillis and Steele are enough. The sum of an element stops growing once a head is in it.
"""

HINTS = ("When element i adds the sum that ends at i - distance, there may be a head in that sum. May the sum "
         "of element i still grow afterwards?",
         "Carry two values per element: its sum, and whether a head is in it. If there is one already, the element "
         "adds nothing. Otherwise it adds both values of the element at that distance.",
         "if i >= distance and headed[i] == 0: read sums[i - distance] and headed[i - distance] into variables that "
         "are 0 otherwise; barrier; add both; barrier.")
POINTS = 3

from numba import int32

from labkit import cuda


# %%
@cuda.jit
def sums_since(x, heads, out):
    sums, headed = cuda.shared.array(128, int32), cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    sums[i] = x[i] if i < x.size else 0
    headed[i] = heads[i] if i < x.size else 0  # 1 where the sum of this element has a head in it
    cuda.syncthreads()
    distance = 1
    while distance < 128:
        ### BEGIN SOLUTION
        before, head_before = 0, 0
        if i >= distance and headed[i] == 0:
            before, head_before = sums[i - distance], headed[i - distance]
        cuda.syncthreads()
        sums[i] += before
        headed[i] += head_before
        cuda.syncthreads()
        ### END SOLUTION
        distance *= 2
    if i < x.size:
        out[i] = sums[i]

# %% [check]
import numpy as np

from labkit.course.exercises import ODD_SUMS, Edit, KernelExercise, Reach, of
from labkit.course.exercises.scan import SCANNED, in_steps


@cuda.jit
def sums_since_each_alone(x, heads, out):
    values, headed = cuda.shared.array(128, int32), cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    values[i] = x[i] if i < x.size else 0
    headed[i] = heads[i] if i < x.size else 0
    cuda.syncthreads()
    if i < x.size:
        total = 0
        for j in range(i + 1):
            if headed[j] == 1:
                total = 0
            total += values[j]
        out[i] = total


@cuda.jit
def sums_since_from_global_memory(x, heads, out):
    i = cuda.threadIdx.x
    if i < x.size:
        total, j = 0, i
        while j >= 0:
            total += x[j]
            if heads[j] == 1:
                break
            j -= 1
        out[i] = total


def _since_reference(x, heads):
    sums, running = np.zeros_like(x), 0
    for i in range(x.size):
        running = int(x[i]) + (0 if heads[i] else running)
        sums[i] = running
    return sums


def _since_inputs(rng, n):
    return rng.integers(-99, 100, n).astype(np.int32), (rng.random(n) < 0.15).astype(np.int32)


def _heads(flags):
    return lambda rng, x, heads: (x, flags(np.arange(heads.size)).astype(np.int32))


EXERCISE = KernelExercise(
    name="sums_since",
    reference=_since_reference,
    inputs=_since_inputs,
    shape=lambda n: (n,),
    dtype=np.int32,
    sizes=tuple({"n": n} for n in (1, 2, 31, 33, 100, 128)),
    random_size=lambda rng: {"n": int(rng.integers(40, 128))},
    observe_sizes=({"n": 33}, {"n": 100}),
    launch=lambda n: (1, SCANNED),
    demand=in_steps(8),
    domain=(Reach("there is no head", _heads(lambda i: i < 0), {"n": 128}),
            Reach("every element is a head", _heads(lambda i: i >= 0)),
            Reach("only the first element is a head", _heads(lambda i: i == 0), {"n": 128}),
            Reach("one element in the middle is a head", _heads(lambda i: i == 64), {"n": 128}),
            Reach("two elements next to each other are heads", _heads(lambda i: (i == 20) | (i == 21)), {"n": 100}),
            *of(0, ODD_SUMS, at={"n": 128})),
    wrong={
        "a sum is changed while others read it: a barrier is missing after the reads":
            Edit("cuda.syncthreads()\nsums[i] += before", "sums[i] += before"),
        "the next step reads sums that are not yet written: a barrier is missing after the writes":
            Edit("headed[i] += head_before\ncuda.syncthreads()", "headed[i] += head_before"),
        "heads are ignored: a plain running sum": Edit("if i >= distance and headed[i] == 0:", "if i >= distance:"),
        "a head stops only its own sum: that a sum now has a head in it is not recorded":
            Edit("headed[i] += head_before\n", ""),
        "the sum stops before it includes the head":
            Edit("if i >= distance and headed[i] == 0:",
                 "if i >= distance and headed[i] == 0 and headed[i - distance] == 0:"),
        "every thread adds up all elements before its own, from shared memory": sums_since_each_alone,
        "every thread goes back to its head, in global memory": sums_since_from_global_memory,
    },
)

EQUIVALENT = {
    "barrier moved: sums_since -> cuda.syncthreads() behind distance = 1":
        "distance is private to a thread: the barrier separates the same reads and writes.",
    "barrier moved: while distance < 128: ... -> cuda.syncthreads() behind distance *= 2":
        "distance is private to a thread: the barrier separates the same reads and writes.",
    "guard: distance < 128 -> distance < 129":
        "In a step with distance 128 no thread has an element that far before it; the end of a longer shared array is "
        "not used.",
    "name: (sums, headed) -> (headed, sums)": "Two arrays of the same shape and type swap their names.",
    "number: 128 -> 256":
        "In a step with distance 128 no thread has an element that far before it; the end of a longer shared array is "
        "not used.",
    "type: headed[i] += head_before -> headed[i] += int32(head_before)":
        "All values here are int32, or are stored as int32: the conversion changes nothing.",
    "type: sums[i] += before -> sums[i] += int32(before)":
        "All values here are int32, or are stored as int32: the conversion changes nothing.",
}
