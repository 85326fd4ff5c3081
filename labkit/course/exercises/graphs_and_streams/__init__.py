"""Two predictions, a bug, a kernel, and a function from a blank page. Write your answer, run its cell, then run the
`check` under it. `hint("predict_launches")` gives a hint, and more when you ask again.
"""

FIRST_CELL = """import numpy as np
from numba import float32

from labkit import check, cuda, graphs, hint
"""

BLOCK = 128


def blocks_of(n: int, block: int = BLOCK) -> int:
    return -(-n // block)
