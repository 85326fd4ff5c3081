"""Six exercises about one question: which thread does which part of the work? Each goes one small step beyond what the
lesson showed.

Write your answer, run its cell, then run the `check` below it. It uses fresh inputs every time and blocks of many
sizes, and if something is wrong, it says what. A wrong answer costs nothing, and is the quickest way to learn what a
launch does. If you are stuck, `hint("count_down")` gives a first hint, and a better one when you ask again.
"""

from labkit.course.exercises import at

FIRST_CELL = """import numpy as np

from labkit import check, cuda, hint
from labkit.kernels.positions import positions
from labkit.measure.plots import drawings as pictures
"""

# Sizes name the threads of a block beside the elements: a kernel must be right under any block.


def launch(n, threads):
    return -(-n // threads), threads


SIZES = (
    {"n": 1, "threads": 32},
    {"n": 33, "threads": 32},
    {"n": 64, "threads": 32},
    {"n": 65, "threads": 64},
    {"n": 100, "threads": 256},  # one block that is mostly idle
    {"n": 1000, "threads": 96},
    {"n": 4099, "threads": 128},
)

BLOCKS = (  # of any size: nothing in these exercises says that a block is whole warps
    at("a block is no multiple of 32 threads", n=150, threads=48),
    at("a block is smaller than a warp", n=50, threads=7),
)
