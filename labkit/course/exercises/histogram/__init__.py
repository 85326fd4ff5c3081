"""Two exercises: private bins for another key, and a prediction. `hint("count_bits")` gives a hint, and a second call a
better one.
"""

FIRST_CELL = """from numba import int32

from labkit import check, cuda, hint
"""
