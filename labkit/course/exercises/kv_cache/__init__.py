"""Four exercises: what a cache saves, keys and values of new tokens put into their slots, buffers placed by first fit,
and from a blank page attention of one query over a slot. `hint("append_rotated")` gives a hint, and a second call a
better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are B slots of N places, H heads of queries and K of keys and values, 64 numbers each; n buffers.

WIDE, HALF = 64, 32
