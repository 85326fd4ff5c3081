"""Three exercises: private bins for another key, a prediction, and another atomic from a blank page.
`hint("count_bits")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """from numba import int32

from labkit import check, cuda, hint
"""
