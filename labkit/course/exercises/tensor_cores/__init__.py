"""Four exercises: two products on the tensor cores, a swizzled tile, and a prediction to work out on paper.
`hint("one_mma")` gives a hint, and a second call a better one.

They run without a GPU: the CPU device does what the instruction does, lane by lane.
"""

import numpy as np
from numba import float32

from labkit.course.exercises import asks, times_used, uniform

FIRST_CELL = """from numba import float32, uint32

from labkit import check, cuda, hint, ptx
"""

# In kernels T, C and K count tiles: 16 rows of the output, 8 of its columns, 16 steps along the dot products.

ZERO = float32(0.0)


def float16(rng, *shape):
    return uniform(rng, *shape).astype(np.float16)


def products_in_float16(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def products_of_warps(steps: int):
    """mma.sync `steps` times in each warp, of values that are loaded once, or twice, for it."""
    @asks("The tensor cores compute the product, and a lane loads only what it passes to them.")
    def demand(report) -> str | None:
        warps = int(np.prod(report.grid))
        found, asked = times_used(report, "ptx.mma_") // 32, steps * warps
        loads, enough = report.counts["global_loads"], asked * (16 * 16 + 16 * 8)
        if found >= asked and loads > 2 * enough:
            return (f"It makes {loads:,} loads, and {enough:,} are enough for all products on the tensor cores: is "
                    "something computed without them?")
        if found >= asked:
            return None
        return (f"{warps} warps make {found} products on the tensor cores, and {asked} are needed: each 16 x 8 x 16 of "
                "the product is one `ptx.mma_m16n8k16_f32_f16`.")

    return demand
