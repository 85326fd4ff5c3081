"""A function and a prediction, about the time around a kernel. Write your answer, run its cell, then run the `check`
under it. `hint("own_time")` gives a hint, and another when you call it again.
"""

FIRST_CELL = """import numpy as np

from labkit import check, hint
"""
