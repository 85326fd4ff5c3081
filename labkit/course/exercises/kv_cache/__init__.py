"""Four exercises: predict what a cache saves, write keys and values of new tokens to the cache, plan memory by first
fit, and from a blank page write attention of one query over a slot. `hint("append_rotated")` gives a hint, and a second
call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are B slots for N tokens, H heads of queries and K of keys and values, 64 values each; n buffers.

WIDE, HALF = 64, 32
