"""Four exercises: a prediction of what is sampled, the threshold of top-p without a sort, sampling with whole numbers,
and from a blank page a stateless random generator. `hint("predict_sampling")` gives a hint, and a second call a
better one.
"""

import numpy as np

FIRST_CELL = """import numpy as np
from numba import int32, int64, uint32, uint64

from labkit import check, cuda, hint
"""

# Sizes are R rows of V tokens; n counters.

HIGHEST = 2**31  # weights are below it


def random_weights(rng, R, V):
    weights = rng.integers(0, 1 << rng.integers(3, 22, (R, 1)), (R, V)).astype(np.int32)
    weights[:, rng.integers(V)] += 1  # none is a row of zeros
    return weights


def only(place):
    """Of all weights one is more than 0, at this place of each row."""
    def make(rng, R, V):
        weights = np.zeros((R, V))
        weights[:, place] = 77
        return weights

    return make


def drawn(weights, at):
    through = np.cumsum(weights.astype(np.int64), axis=1)
    return np.array([np.searchsorted(row, place, side="right") for row, place in zip(through, at, strict=True)],
                    np.int32)
