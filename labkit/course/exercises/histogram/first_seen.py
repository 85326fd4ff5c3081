"""From a blank page: where each value comes first

The elements of `x` are uint8 below 16, and `out` has 16 elements of int32, all equal to `x.size` when the kernel
starts. Afterwards `out[v]` is the index of the first element that equals v; for values that never occur it stays
`x.size`. For example, `[5, 2, 5]` gives `out[5] == 0`, `out[2] == 1` and 3 everywhere else.

Write `first_seen(x, out)` from the decorator down, for two blocks of 64 threads and any length of `x`.
"""

HINTS = ("Many threads may find the same value. Which index must remain in the end, whatever order they run in?",
         "Besides cuda.atomic.add there is cuda.atomic.min(array, index, value): it stores the smaller of the two.",
         "for i in range(cuda.grid(1), x.size, cuda.gridsize(1)): cuda.atomic.min(out, x[i], i).")
POINTS = 3
NEEDS = ("count_bits",)

from labkit import cuda

# %%
first_seen = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def first_seen(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.min(out, x[i], i)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, elements_of_argument, whole_grid

VALUES = 16


@cuda.jit
def first_by_comparison(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        if i < out[x[i]]:
            out[x[i]] = i


def _first(x):
    found = np.full(VALUES, x.size, np.int32)
    values, first = np.unique(x, return_index=True)
    found[values] = first
    return found


def _alone(place: int):
    return lambda rng, x: (np.where(np.arange(x.size) == place, 15, 0).astype(np.uint8),)


@asks("There is at most one atomic per element.", whole_grid)
def _one_atomic_each(report) -> str | None:
    made, enough = report.counts["global_atomics"], elements_of_argument(report, 0)
    if made <= enough:
        return None
    return f"It makes {made:,} atomics for {enough:,} elements. It is enough if one thread looks at each element."


EXERCISE = KernelExercise(
    name="first_seen",
    reference=_first,
    inputs=lambda rng, n: (rng.integers(0, VALUES, n).astype(np.uint8),),
    shape=lambda n: (VALUES,),
    dtype=np.int32,
    start=lambda x: np.full(VALUES, x.size, np.int32),
    sizes=tuple({"n": n} for n in (1, 5, 64, 129, 300)),
    observe_sizes=({"n": 5}, {"n": 300}),
    launch=lambda n: (2, 64),
    demand=_one_atomic_each,
    domain=(Reach("all elements are equal", lambda rng, x: (np.full_like(x, 7),)),
            *(Reach(f"only element {place} has its value", _alone(place), {"n": 300}) for place in (100, 128, 299)),
            Reach("every value occurs again and again",
                  lambda rng, x: ((np.arange(x.size) % VALUES).astype(np.uint8),), {"n": 300})),
    wrong={
        "compared and stored in two steps: another thread may store in between": first_by_comparison,
        "the last index, not the first": Edit("cuda.atomic.min(out, x[i], i)", "cuda.atomic.max(out, x[i], i)"),
        "each thread looks at one element, and those from the 129th on are left out":
            Edit("for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):",
                 "i = cuda.grid(1)\n"
                 "if i < x.size:"),
        "the index of the thread in its block, not in the grid":
            Edit("cuda.atomic.min(out, x[i], i)", "cuda.atomic.min(out, x[i], cuda.threadIdx.x)"),
        "every thread goes through all elements from its own on":
            Edit("range(cuda.grid(1), x.size, cuda.gridsize(1))", "range(cuda.grid(1), x.size)"),
        "index and value are swapped": Edit("cuda.atomic.min(out, x[i], i)", "cuda.atomic.min(out, i % 16, x[i])"),
    },
)
