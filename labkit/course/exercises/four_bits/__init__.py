"""
Four exercises: unpack the codes of AWQ's words, find the scale of each group with a warp, multiply by codes without
unpacking them first, and predict what four bits lose. `hint("unpack_awq")` gives a hint, and a second call a better
one.
"""

FIRST_CELL = """import numpy as np
from numba import float32, int32

from labkit import check, cuda, hint
"""

# Sizes: R rows of weights, W words of eight codes each; or R rows of G groups of 64 weights.
ALL_LANES = 0xFFFFFFFF
GROUP = 64
