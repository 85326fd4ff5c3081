"""Three exercises: write a gated product in one pass, predict the size of a cache, and from a blank page write
grouped-query attention. `hint("gated_product")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are T tokens, H heads of queries, K of keys and values, and N keys. Of the gated product x is (T, K) and the
# weights are (N, K).
