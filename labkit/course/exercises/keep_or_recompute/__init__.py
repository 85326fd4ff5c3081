"""
Three exercises. Predict what attention keeps for its backward pass, compute the gradients of scores from the
log-sum-exp, and write the gradient of rows of length 1 from a blank page. `hint("predict_kept")` gives a hint, and a
second call a better one.
"""

FIRST_CELL = """import math

from numba import float32

from labkit import check, cuda, hint
"""
