"""
Three exercises. Predict when an update vanishes in bfloat16 and what an optimiser's state costs, write SGD with
Nesterov's momentum from a blank page, and round to bfloat16 at random. `hint("predict_vanished")` gives a hint, and a
second call a better one.
"""

FIRST_CELL = """import numpy as np
from numba import float32

from labkit import check, cuda, hint
"""

# Sizes: n weights.
