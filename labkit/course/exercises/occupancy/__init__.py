"""
A prediction, a calculation that is behind every occupancy in this course, and a kernel from a blank page that needs
only as many blocks as fit. Write your answer, run its cell, then run the `check` under it. `hint("predict_waves")`
gives a hint, and a better one when you ask again.
"""

FIRST_CELL = """import numpy as np

from labkit import check, cuda, hint
"""
