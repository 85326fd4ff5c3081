"""Three exercises: predict what a batch is worth, refill slots in the order of a queue, and from a blank page write the
rows of a step. `hint("refill_slots")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are n requests in so many slots, or B sequences that bring at most `most` rows each.
