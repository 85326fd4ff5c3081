"""A function and two predictions, about the time around a kernel and what a kernel's own time depends on. Write your
answer, run its cell, then run the `check` under it. `hint("own_time")` gives a hint, and more when you ask again.
"""

FIRST_CELL = """import numpy as np

from labkit import check, hint
"""
