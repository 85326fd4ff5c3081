"""Two exercises: a prediction about what fits on an SM, and a bug in the second lap of a ring that TMA fills.
`hint("predict_stages")` gives a hint, and a second call a better one.

They run without a GPU: the CPU device has mbarriers and TMA, and delivers the bytes of a box when a thread waits for
them.
"""

FIRST_CELL = """from numba import float32, uint64

from labkit import check, cuda, hint, ptx
"""
