"""From a blank page: pack the positive elements

`x` has up to 128 int32 elements, and one block of 128 threads runs. Move the positive elements to the beginning of
`out`, in their order. `out` is as long as `x` and full of −1 when the kernel starts; the rest of it keeps that value.
For example, `[5, -2, 0, 7]` becomes `[5, 7, -1, -1]`. Write `pack_positive(x, out)` from the decorator down.
"""

HINTS = ("How many positive elements come before element 5, and what does that say about where it goes?",
         "Let each thread write a flag, 1 or 0, into shared memory, and scan the flags in seven steps. An inclusive "
         "scan counts the element itself, so its place is one less.",
         "Load value once (0 beyond the end). places[i] = 1 if value > 0 else 0; seven steps with two barriers each; "
         "then if value > 0: out[places[i] - 1] = value.")
POINTS = 4
NEEDS = ("sums_since",)

from numba import int32

from labkit import cuda

# %%
pack_positive = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def pack_positive(x, out):
    places = cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    value = x[i] if i < x.size else 0
    places[i] = 1 if value > 0 else 0
    cuda.syncthreads()
    distance = 1
    while distance < 128:
        before = places[i - distance] if i >= distance else 0
        cuda.syncthreads()
        places[i] += before
        cuda.syncthreads()
        distance *= 2
    if value > 0:
        out[places[i] - 1] = value  # inclusive: the element itself was counted


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import ODD_INTEGERS, Edit, KernelExercise, Reach, of
from labkit.course.exercises.scan import SCANNED, in_steps


@cuda.jit
def pack_in_any_order(x, out):
    count = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        count[0] = 0
    cuda.syncthreads()
    j = cuda.blockDim.x - 1 - i  # as likely as any other order of the threads
    if j < x.size and x[j] > 0:
        out[cuda.atomic.add(count, 0, 1)] = x[j]


@cuda.jit
def pack_counts_alone(x, out):
    flags = cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    flags[i] = 1 if i < x.size and x[i] > 0 else 0
    cuda.syncthreads()
    if flags[i] == 1:
        place = 0
        for j in range(i):
            place += flags[j]
        out[place] = x[i]


@cuda.jit
def pack_by_one_thread(x, out):
    if cuda.threadIdx.x == 0:
        place = 0
        for i in range(x.size):
            if x[i] > 0:
                out[place] = x[i]
                place += 1


def _packed(x):
    kept = x[x > 0]
    return np.concatenate([kept, np.full(x.size - kept.size, -1, np.int32)])


def _kept(where):
    return lambda rng, x: (np.where(where(np.arange(x.size)), 1 + np.arange(x.size), -5).astype(np.int32),)


EXERCISE = KernelExercise(
    name="pack_positive",
    reference=_packed,
    inputs=lambda rng, n: (rng.integers(-99, 100, n).astype(np.int32),),
    shape=lambda n: (n,),
    dtype=np.int32,
    start=lambda x: np.full(x.size, -1, np.int32),
    sizes=tuple({"n": n} for n in (1, 2, 31, 33, 100, 128)),
    random_size=lambda rng: {"n": int(rng.integers(40, 128))},
    observe_sizes=({"n": 33}, {"n": 128}),
    launch=lambda n: (1, SCANNED),
    demand=in_steps(4),
    domain=(Reach("all elements are positive", _kept(lambda i: i >= 0), {"n": 128}),
            Reach("no element is positive", _kept(lambda i: i < 0)),
            Reach("some elements are 0, which is not positive",
                  lambda rng, x: (rng.integers(0, 2, x.size).astype(np.int32),)),
            Reach("only the last element is positive", _kept(lambda i: i == i.size - 1), {"n": 128}),
            Reach("every second element is positive", _kept(lambda i: i % 2 == 1), {"n": 100}),
            *of(0, ODD_INTEGERS, at={"n": 100})),
    wrong={
        "places come from an atomic, and the order is lost": pack_in_any_order,
        "each thread counts all flags before its own": pack_counts_alone,
        "one thread does everything": pack_by_one_thread,
        "the inclusive sum is used as the place: every element lands one too far":
            Edit("out[places[i] - 1] = value", "out[places[i]] = value"),
        "0 is kept": Edit("places[i] = 1 if value > 0 else 0", "places[i] = 1 if value >= 0 else 0",
                          "if value > 0:", "if value >= 0:"),
        "a barrier is missing after the reads":
            Edit("cuda.syncthreads()\nplaces[i] += before", "places[i] += before"),
        "one step too few: flags of the first 64 never reach the last 64": Edit("while distance < 128:",
                                                                        "while distance < 64:"),
    },
)

EQUIVALENT = {
    "barrier moved: pack_positive -> cuda.syncthreads() behind distance = 1":
        "distance is private to a thread: the barrier separates the same reads and writes.",
    "barrier moved: while distance < 128: ... -> cuda.syncthreads() behind distance *= 2":
        "distance is private to a thread: the barrier separates the same reads and writes.",
    "guard: distance < 128 -> distance < 129":
        "In a step with distance 128 no thread has an element that far before it; the end of a longer shared array is "
        "not used.",
    "number: 128 -> 256":
        "In a step with distance 128 no thread has an element that far before it; the end of a longer shared array is "
        "not used.",
    "type: places[i] += before -> places[i] += int32(before)":
        "All values here are int32, or are stored as int32: the conversion changes nothing.",
}

AFTER = """
With `cuda.ballot_sync` and `cuda.popc` a warp finds the places of its elements without a loop: each lane counts the set
bits below its own.
"""
