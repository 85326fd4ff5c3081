"""Predict, then observe: reads and sectors

The repaired kernel of exercise 4 runs on X = 6, Y = 10, Z = 8 in blocks of 8 × 2 × 2: eight threads along z, two along
y, two along x. Work out on paper:

- `reads_b`, `reads_c`: how many times is each element of `b` read, and each element of `c`?
- `sectors_a`, `sectors_b`: the first warp of the first block loads its 32 elements of `a`. How many sectors of 32
  bytes is that? And how many when it loads from `b`?
"""

HINTS = ("Each thread reads one element of b, the one at its own y and z. Which threads share y and z? And what are x, "
         "y and z of lane 0, of lane 8 and of lane 16?",
         "Reads: multiply the lengths of the axes that the small array lacks. Sectors: write down the index of each "
         "lane; eight consecutive elements that start at a multiple of eight are one sector.",
         "In a the lanes touch the elements 0 to 15 and 80 to 95. In b all 32 of them touch the elements 0 to 15. A "
         "sector holds eight.")
POINTS = 2
NEEDS = ("add_aligned",)

# %%
reads_b = None  # times each element of b is read
reads_c = None  # times each element of c is read
sectors_a = None  # of one warp, in a
sectors_b = None  # of one warp, in b
### BEGIN SOLUTION
reads_b = 6  # once for each x
reads_c = 60  # once for each pair of x and y
sectors_a = 4  # two runs of 16 elements: the two x lie a whole Y * Z apart
sectors_b = 2  # one run of 16: both x want the same
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise

COUNTED = {"X": 6, "Y": 10, "Z": 8}


def _reads_counted() -> dict:
    """By listing what each thread of out = a + b + c reads, with b (Y, Z) and c (Z,)."""
    X, Y, Z = COUNTED.values()
    x, y, z = np.indices((X, Y, Z))
    lane = np.arange(32)
    lane_z, lane_y, lane_x = lane % 8, lane // 8 % 2, lane // 16
    return {"reads_b": int(np.bincount((y * Z + z).ravel()).max()), "reads_c": int(np.bincount(z.ravel()).max()),
            "sectors_a": len(np.unique(((lane_x * Y + lane_y) * Z + lane_z) // 8)),
            "sectors_b": len(np.unique((lane_y * Z + lane_z) // 8))}


EXERCISE = PredictionExercise(
    name="predict_reads",
    truth=_reads_counted,
    how={"reads_b": "One element of `b` belongs to one pair (y, z). How many elements of `out` have that y and that z?",
         "reads_c": "One element of `c` belongs to one z. Along which axes can you walk without changing z?",
         "sectors_a": "Write down x, y and z of lanes 0, 8, 16 and 24, and the index of each in `a`. Eight elements "
                      "make a sector.",
         "sectors_b": "Lanes 0 and 16 differ in x only. Do they need different elements of `b`?"},
    wrong={"the elements of `b` were counted, not the reads of one": {"reads_b": 80},
           "only one of the two axes that `c` lacks was counted": {"reads_c": 10},
           "the lanes that differ in x were given sectors of their own": {"sectors_b": 4},
           "elements were counted, not sectors": {"sectors_b": 16}},
)

AFTER = """
Then observe. The next kernel has the same indices, but instead of reading an element it counts the read, with an atomic
addition, because many threads add to the same count. The picture shows what the warp touches.

# %%
@cuda.jit
def count_reads(count_b, count_c, nx, ny, nz):
    z, y, x = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        cuda.atomic.add(count_b, y * nz + z, 1)
        cuda.atomic.add(count_c, z, 1)


X, Y, Z = 6, 10, 8
count_b, count_c = (cuda.to_device(np.zeros(size, np.int32)) for size in (Y * Z, Z))
count_reads[(1, 5, 3), (8, 2, 2)](count_b, count_c, X, Y, Z)
print("reads of each element of b:", np.unique(count_b.copy_to_host()))
print("reads of each element of c:", np.unique(count_c.copy_to_host()))

lane = np.arange(32)
z, y, x = lane % 8, lane // 8 % 2, lane // 16
plots.warp_addresses({"a[x, y, z]": (x * Y + y) * Z + z, "b[y, z]": y * Z + z, "c[z]": z})
"""
