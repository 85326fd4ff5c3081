"""
A prediction about warps, a calculation that you will repeat for every kernel of the course, and a kernel from a blank
page whose warps must not split. Write your answer, run its cell, then run the `check` under it.
`hint("predict_branches")` gives a hint, and a better one when you ask again.
"""

FIRST_CELL = """import numpy as np

from labkit import check, cuda, hint, observe
"""
