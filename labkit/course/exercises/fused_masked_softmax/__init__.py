"""Five exercises: another mask, a bug, two predictions, and from a blank page the derivative of softmax.
`hint("left_padding")` gives a hint, and a second call a better one.
"""

import numpy as np

from labkit.course.exercises import FAR, Reach

FIRST_CELL = """import math

from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are B (sequences) and S (queries and keys); R and C for plain rows.


def matrices(*sizes):
    return tuple({"B": B, "S": S} for B, S in sizes)


def probabilities(x, seen):
    x = np.where(seen, x.astype(np.float64), -np.inf)
    largest = x.max(axis=-1, keepdims=True)
    exponentials = np.exp(x - np.where(np.isinf(largest), 0.0, largest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0.0, 1.0, total)


def few_roundings(x, seen):
    """For rows of a hundred elements or so; a score far from 0 may be rounded before the largest is subtracted."""
    x, seen = np.broadcast_arrays(x, seen)
    far = np.where(seen, np.abs(x), 0.0).max(axis=-1, keepdims=True)
    return 2.0**-23 * (60 + 4 * far * probabilities(x, seen))


def hidden_above(seen_of):
    """What the mask hides lies far above what it leaves."""
    def turn(rng, scores, *others):
        hidden = np.broadcast_to(~seen_of(scores, *others), scores.shape)
        return (np.where(hidden, np.float32(FAR), scores), *others)

    return Reach("hidden scores are far larger than the visible ones", turn)
