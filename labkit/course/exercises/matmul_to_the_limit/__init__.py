"""Four exercises: two thread tiles in registers, and two predictions to work out on paper.
`hint("linear_patch")` gives a hint, and a second call a better one.
"""

from numba import float32

FIRST_CELL = """from numba import float32, uint32

from labkit import check, cuda, hint, ptx
"""

# Sizes are M (rows of the output), N (its columns) and K (the length of the dot products), as in
# labkit.kernels.matmul.float32.

ZERO = float32(0.0)
