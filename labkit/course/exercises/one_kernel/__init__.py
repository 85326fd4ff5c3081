"""
Four exercises. Predict what a ring covers and which launches hang, compute a softmax with two joins in one launch, let
blocks wait only for their neighbours, and write the copying warp of a ring. `hint("predict_joins")` gives a hint, and a
second call a better one.

They run without a GPU: on the CPU device, blocks that wait for one another take turns, and a wait that no block can end
is an error.
"""

FIRST_CELL = """import math

from numba import float32, uint64

from labkit import check, cuda, hint, ptx
"""
