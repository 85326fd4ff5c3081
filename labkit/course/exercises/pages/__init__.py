"""
Three exercises: predict pages and slots, write keys to their slots, and from a blank page count who holds which page.
`hint("predict_pages")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are T rows of K heads with D numbers each; n events, with growths of at most so many tokens.
