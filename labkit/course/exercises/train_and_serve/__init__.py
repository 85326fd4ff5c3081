"""
Three exercises. Predict what a training run needs and sends, write a schedule of learning rates from a blank page, and
average the gradients of several workers. `hint("predict_training")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import numpy as np
from numba import float32

from labkit import check, cuda, hint
"""

# Sizes: n steps; W workers with n gradients each.
