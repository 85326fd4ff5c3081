"""Eight exercises: three products with one thread per element, two kernels that use shared memory, two bugs and a
prediction. In two of them you write the kernel from a blank page. `hint("matvec")` gives a hint, and a second call a
better one.

One thing to keep in mind. `check` runs your kernel under several orders of the threads, and even so a right result does
not prove that the barriers are right. For each barrier, say which write it separates from which read.
"""

from collections.abc import Callable

import numpy as np

from labkit.course.exercises import Demand, asks, elements_of_warps

FIRST_CELL = """from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are M (rows of the output), N (its columns) and K (the length of the dot products), as in
# labkit.kernels.matmul.float32.
#
# The compiled CPU device takes all threads of a block through a loop together, round by round. A barrier that is
# missing between two rounds leaves its numbers right: only observe sees it.

TILE = (16, 16)


def over(cols, rows):
    return (-(-cols // 16), -(-rows // 16)), TILE


def products(*sizes):
    return tuple({"M": M, "N": N, "K": K} for M, N, K in sizes)


AWKWARD = products((1, 1, 1), (3, 5, 2), (5, 3, 4), (16, 16, 16), (1, 33, 17), (33, 1, 31), (17, 18, 1), (37, 23, 19),
                   (20, 35, 50))


def through_tiles(loads: Callable, staged: Callable) -> Demand:
    """loads(shape of the first array, blocks): so many loads are enough if the threads of a block share them.
    staged(shape): so many places of shared memory the data needs in the first block."""

    @asks("The data goes through shared memory: what several threads of a block need is loaded by one of them.")
    def demand(report) -> str | None:
        if not report.counts["shared_loads"]:
            return ("Nothing is read from shared memory, which this exercise is about: stage the data in "
                    "`cuda.shared.array((16, 16), float32)`.")
        _, shape, _ = next(iter(report.arrays.values()))
        enough, made = loads(shape, int(np.prod(report.grid))), report.counts["global_loads"]
        if made > enough:
            return (f"It makes {made:,} loads from global memory, and with tiles of 16 x 16 {enough:,} are enough: a "
                    "thread loads one element of each tile, and reads the others from shared memory.")
        first = elements_of_warps(report, "store", "shared").values()
        stored = len(set().union(*(elements for lanes in first for elements in lanes.values())))
        if stored < staged(shape):
            return (f"{stored:,} elements are stored in shared memory at the same time, but the tile of a block has "
                    f"{staged(shape):,}: stage the data there, for all threads of the block.")
        return None

    return demand


def two_tiles_a_step(depth: int) -> Demand:
    """For a product, whose length is axis `depth` of the first array. Two tiles for each 16 numbers of it, and two
    more, where they are loaded ahead."""
    return through_tiles(lambda shape, blocks: blocks * (-(-shape[depth] // 16) + 1) * 2 * 16 * 16,
                         lambda shape: min(shape[0], 16) * min(shape[1], 16))


def wide(*arrays):
    return (array.astype(np.float64) for array in arrays)
