"""
A prediction, the calculation behind every occupancy in this course, a kernel that takes up too much of an SM, and one
from a blank page that needs only as many blocks as fit. Write your answer, run its cell, then run the `check` under it.
`hint("predict_waves")` gives a hint, and a better one when you ask again.
"""

FIRST_CELL = """import numpy as np
from numba import float32, float64

from labkit import check, cuda, hint
"""
