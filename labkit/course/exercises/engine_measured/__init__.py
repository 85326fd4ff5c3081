"""Three exercises: a prediction about pages and steps, the empty seats of a run, and from a blank page the steps of a
static and of a continuous batch. `hint("predict_engine")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import numpy as np

from labkit import check, hint
"""

# Sizes are n requests, or stays in a seat.
