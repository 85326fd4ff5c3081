"""Five exercises: masks on paper, a program of Triton's kind written by hand in Numba, a bug in the padding, a product
in tiles, and a reduction from a blank page. None needs a GPU, and none needs Triton or cuTile: what they teach is the
shape of such programs.
"""

import numpy as np

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.kernels.libraries import cutile_model as ct
"""

# Two are in Numba and take a program's shape by hand; one is a tile program, which runs on the model of cuTile.


def wide(*arrays):
    return (array.astype(np.float64) for array in arrays)
