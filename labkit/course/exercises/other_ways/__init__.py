"""Seven exercises: masks on paper, a program of Triton's kind written by hand in Numba, a bug in the padding, a
product in tiles, a reduction from a blank page, and two bugs that the reductions of a Fortran library invite. None
needs a GPU, Triton or cuTile: they teach how such programs are built.
"""

import numpy as np

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.kernels.libraries import cutile_model as ct
from labkit.kernels.libraries.column_major import isamax, sasum
"""


def wide(*arrays):
    return (array.astype(np.float64) for array in arrays)
