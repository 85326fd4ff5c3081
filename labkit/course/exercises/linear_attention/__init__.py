"""
Three exercises: a prediction about states and caches, a token added to the states of all heads, and from a blank page a
kernel that reads from the states. `hint("predict_state")` gives a hint, and a second call a better one.
"""

import numpy as np

from labkit.course.exercises import uniform
from labkit.kernels.attention.linear_attention import phi_reference

FIRST_CELL = """import math

from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are H heads of D numbers each. A state is (H, D + 1, D): S, and z in its last row.

SIZES = tuple({"H": H, "D": D} for H, D in ((1, 1), (2, 3), (3, 8), (2, 33), (1, 64)))


def random_state(rng, H, D, tokens=5) -> np.ndarray:
    """What `tokens` random tokens leave."""
    k, v = phi_reference(uniform(rng, H, tokens, D)), uniform(rng, H, tokens, D)
    z = k.sum(axis=1, keepdims=True)
    return np.concatenate([k.transpose(0, 2, 1) @ v, z], axis=1).astype(np.float32)
