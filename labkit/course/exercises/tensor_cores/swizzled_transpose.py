"""A tile without padding

`a` is (32 T, 32), `out` is its transpose, (32, 32 T). A block is one warp, and transposes 32 rows of `a` through a tile
of 1,024 elements in shared memory. It writes rows into the tile and reads columns from it. For now, each column is in a
single bank. Swizzle the tile, so that neither the writes nor the reads have bank conflicts. The tile stays as large as
it is.
"""

HINTS = ("Element n of shared memory is in bank n % 32. In which banks are tile[0], tile[32], tile[64] and so on, "
         "which the lanes read for col = 0?",
         "Let row r of the tile hold its 32 elements in a different order: element c at position c ^ r. For one r "
         "these are still 32 different positions; for one c they are 32 different banks.",
         "Write tile[row * 32 + (lane ^ row)], and read tile[lane * 32 + (col ^ lane)]: there the lane is the row of "
         "the tile.")
POINTS = 2

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def swizzled_transpose(a, out):
    tile = cuda.shared.array(1024, float32)
    lane = cuda.threadIdx.x
    left = cuda.blockIdx.x * 32  # the first of this block's rows of a
    for row in range(32):
        tile[row * 32 + lane] = a[left + row, lane]
    cuda.syncwarp()
    for col in range(32):
        out[col, left + lane] = tile[lane * 32 + col]


### BEGIN SOLUTION
@cuda.jit
def swizzled_transpose(a, out):
    tile = cuda.shared.array(1024, float32)
    lane = cuda.threadIdx.x
    left = cuda.blockIdx.x * 32  # the first of this block's rows of a
    for row in range(32):
        tile[row * 32 + (lane ^ row)] = a[left + row, lane]
    cuda.syncwarp()
    for col in range(32):
        out[col, left + lane] = tile[lane * 32 + (col ^ lane)]


### END SOLUTION

# %% [check]
from labkit.course.exercises import SUMMED, Edit, KernelExercise, asks, of, uniform

WRITE = "tile[row * 32 + (lane ^ row)] = a[left + row, lane]"
READ = "out[col, left + lane] = tile[lane * 32 + (col ^ lane)]"


@asks("The tile has no bank conflicts, and no padding: all 1,024 values go through its 1,024 elements.")
def _no_conflicts(report) -> str | None:
    conflicts = report.counts["bank_conflicts"]
    if conflicts:
        return (f"Bank conflicts in `tile` cost {conflicts:,} extra steps, and there should be none: "
                "store element `col` of row `row` at position `col ^ row` of its row, and read it from there.")
    stored = len({address for (_, space), cells in report.touched.items() if space == "shared"
                  for (thread, address), kinds in cells.items() if thread < 32 and "store" in kinds})
    if stored < 32 * 32:
        return (f"There are no bank conflicts, but {stored:,} values are stored in shared memory, but all 1,024 of a "
                "block have to go through `tile`: rows into it, columns out of it.")
    places = [address for (_, space), cells in report.touched.items() if space == "shared" for _, address in cells]
    if places and max(places) - min(places) > 4 * (32 * 32 - 1):
        return "There are no bank conflicts, but only thanks to padding: `tile` has 32 elements per row, 1,024 in all."
    return None


EXERCISE = KernelExercise(
    name="swizzled_transpose",
    reference=lambda a: a.T,
    inputs=lambda rng, T: (uniform(rng, 32 * T, 32),),
    shape=lambda T: (32, 32 * T),
    sizes=({"T": 1}, {"T": 3}),
    observe_sizes=({"T": 1},),
    demand=_no_conflicts,
    launch=lambda T: (T, 32),
    domain=of(0, *SUMMED),
    wrong={
        "written in order and read swizzled": Edit(WRITE, WRITE.replace("(lane ^ row)", "lane")),
        "written swizzled and read in order": Edit(READ, READ.replace("(col ^ lane)", "col")),
        "not swizzled at all: a column is in one bank":
            Edit("row * 32 + (lane ^ row)", "row * 32 + lane", "lane * 32 + (col ^ lane)", "lane * 32 + col"),
        "one element of padding per row instead":
            Edit("array(1024, float32)",
                 "array(1056, float32)",
                 "row * 32 + (lane ^ row)",
                 "row * 33 + lane",
                 "lane * 32 + (col ^ lane)",
                 "lane * 33 + col"),
        "no barrier between the writes and the reads": Edit("cuda.syncwarp()", ""),
        "it reads rows, and so copies without transposing":
            Edit(READ, "out[col, left + lane] = tile[col * 32 + (col ^ lane)]"),
    },
)
