"""Six exercises about one question: which element of the small array belongs to this thread? They go from a single line
to a kernel from a blank page. Write your answer, run its cell, then run the `check` below it. If you are stuck,
`hint("add_row")` gives a hint, and a better one when you ask again.
"""

FIRST_CELL = """import numpy as np

from labkit import check, cuda, hint, plots
"""

# Matrices have the shape (R, C) and volumes (X, Y, Z), as NumPy writes them: C and Z run fastest in memory.

WIDE = (32, 8)  # threads along the columns and the rows of a matrix
LONG = (32, 4, 2)  # threads along z, y, x of a volume: a grid of them overhangs every axis
GRID_TRANSPOSED = "`row, col = cuda.grid(2)`, but the grid's x runs along the columns"


def over_matrix(R, C):
    return (-(-C // WIDE[0]), -(-R // WIDE[1])), WIDE


def over_volume(X, Y, Z, **_):
    return (-(-Z // LONG[0]), -(-Y // LONG[1]), -(-X // LONG[2])), LONG


def flat(array):
    return array.reshape(array.size)


def matrices(*sizes):
    return tuple({"R": R, "C": C} for R, C in sizes)


def volumes(*sizes):
    return tuple({"X": X, "Y": Y, "Z": Z} for X, Y, Z in sizes)
