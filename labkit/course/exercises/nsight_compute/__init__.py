"""A prediction and a function, about the counter that shows wasted memory traffic. Write your answer, run its cell,
then run the `check` under it. `hint("predict_requests")` gives a hint, and another when you call it again.
"""

FIRST_CELL = """import numpy as np

from labkit import check, hint
"""
