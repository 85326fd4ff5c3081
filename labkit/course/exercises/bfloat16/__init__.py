"""
Four exercises. Round to bfloat16 with integers, predict what survives rounding, repair a sum that loses what is added
to it, and write a kernel with 128-bit loads from a blank page. `hint("pack_bfloat16")` gives a hint, and a second call
a better one.
"""

FIRST_CELL = """import numpy as np
from numba import float32

from labkit import check, cuda, hint, ptx
from labkit.kernels.elements import bfloat16_number, bfloat16_rounded
"""

# Sizes: n numbers; R rows of C columns.
