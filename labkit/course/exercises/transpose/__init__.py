"""Two exercises: a prediction about banks, and from a blank page a transpose of many matrices. `hint("predict_banks")`
gives a hint, and a second call a better one.
"""

FIRST_CELL = """from numba import float32

from labkit import check, cuda, hint
"""
