"""From a blank page: an outer product, four at a time

`out[i, j] = x[i] * y[j]`. `x` has M elements and `y` has N, both multiples of 4, and `out` is (M, N). Blocks are 8 × 8
threads, and a thread computes the tile of 4 × 4 elements that begins at four times its row and four times its column of
the grid. Load with `ptx.load_nc4(array, i)`, which returns the four elements from flat index `i` on, and store with
`ptx.store_global4(array, i, p, q, r, s)`.
"""

HINTS = ("Which four elements of x and which four of y does the thread tile need? How often is each of them used?",
         "As M and N are multiples of 4, a thread tile is either inside as a whole or not at all: one guard, around "
         "everything, is enough. The flat index of out[row, col] is row * out.shape[1] + col.",
         "a = ptx.load_nc4(x, row) and b0, b1, b2, b3 = ptx.load_nc4(y, col); for i in range(4): "
         "ptx.store_global4(out, uint32((row + i) * out.shape[1] + col), a[i] * b0, ...).")
POINTS = 3
NEEDS = ("linear_patch",)

from labkit import cuda, ptx

# %%
outer_tiles = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def outer_tiles(x, y, out):
    col, row = cuda.grid(2)
    row, col = row * 4, col * 4
    if row < out.shape[0] and col < out.shape[1]:
        a = ptx.load_nc4(x, row)
        b0, b1, b2, b3 = ptx.load_nc4(y, col)
        for i in range(4):
            at = (row + i) * out.shape[1] + col
            ptx.store_global4(out, at, a[i] * b0, a[i] * b1, a[i] * b2, a[i] * b3)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, KernelExercise, asks, dot_products, of, uniform


def _make_outer_tiles(swapped=False, guarded=True, apart=4, rows=4):
    @cuda.jit
    def outer_tiles(x, y, out):
        col, row = cuda.grid(2)
        row, col = row * apart, col * apart
        if not guarded or (row < out.shape[0] and col < out.shape[1]):
            a = ptx.load_nc4(x, row)
            b = ptx.load_nc4(y, col)
            for i in range(rows):
                at = (row + i) * out.shape[1] + col
                if swapped:
                    ptx.store_global4(out, at, a[0] * b[i], a[1] * b[i], a[2] * b[i], a[3] * b[i])
                else:
                    ptx.store_global4(out, at, a[i] * b[0], a[i] * b[1], a[i] * b[2], a[i] * b[3])

    return outer_tiles


@cuda.jit
def outer_by_elements(x, y, out):
    col, row = cuda.grid(2)
    for i in range(4):
        for j in range(4):
            if row * 4 + i < out.shape[0] and col * 4 + j < out.shape[1]:
                out[row * 4 + i, col * 4 + j] = x[row * 4 + i] * y[col * 4 + j]


OUTER_OBSERVED = {"M": 8, "N": 12}


@asks("A thread makes two loads and four stores, of 128 bits each, and no others.")
def _four_at_a_time(report):
    """8 x 12 elements are 6 thread tiles: two loads of 128 bits each, and four stores."""
    loads, stores = report.counts["global_loads"], report.counts["global_stores"]
    if loads <= 12 and stores <= 24:
        return None
    return (f"At M = 8, N = 12 the threads make {loads} loads and {stores} stores. With 128 bits at a time, the 6 "
            "thread tiles need 2 loads and 4 stores each: 12 and 24.")


EXERCISE = KernelExercise(
    name="outer_tiles",
    reference=lambda x, y: np.outer(x.astype(np.float64), y.astype(np.float64)),
    inputs=lambda rng, M, N: (uniform(rng, M), uniform(rng, N)),
    shape=lambda M, N: (M, N),
    sizes=({"M": 4, "N": 4}, OUTER_OBSERVED, {"M": 36, "N": 20}, {"M": 32, "N": 64}),
    random_size=lambda rng: {"M": 4 * int(rng.integers(1, 20)), "N": 4 * int(rng.integers(1, 20))},
    observe_sizes=(OUTER_OBSERVED,),
    demand=_four_at_a_time,
    launch=lambda M, N: ((-(-N // 32), -(-M // 32)), (8, 8)),
    tolerance=dot_products(lambda x, y: np.abs(np.outer(x, y)), length=lambda x, y: 1),
    domain=of((0, 1), *SUMMED),
    wrong={"rows and columns of a thread tile are swapped": _make_outer_tiles(swapped=True),
           "no guard: threads beyond the edges load and store": _make_outer_tiles(guarded=False),
           "thread tiles begin one element apart": _make_outer_tiles(apart=1),
           "only three of four rows are stored": _make_outer_tiles(rows=3),
           "one element at a time": outer_by_elements},
)
