"""
Three exercises: a prediction about pages and slots, keys written to their slots, and from a blank page the holders of
pages counted. `hint("predict_pages")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are T rows of K heads with D numbers each; n events, with growths of at most so many tokens.
