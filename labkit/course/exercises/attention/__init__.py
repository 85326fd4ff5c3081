"""Five exercises: the values of one head, the scores of one query, a prediction about bytes and threads, scores by a
warp per key, and from a blank page attention within a window of keys.
`hint("head_values")` gives a hint, and a second call a better one.
"""

FIRST_CELL = """import math

from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are S (tokens), H (heads) and D (numbers of a head); N (keys) and W (of a window).


def sizes_of(names: str, *sizes):
    return tuple(dict(zip(names, size, strict=True)) for size in sizes)


WIDE = 64  # numbers of a head, in this exercise and the next
