"""The exercises of lesson 38: a state beside a cache, a token added to it, and a query answered from it.

Sizes are H heads of D numbers each. A state is (H, D + 1, D): S, and z in its last row.
"""

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise
from labkit.course.exercises.domains import (
    FAR_ABOVE_ZERO,
    FAR_BELOW_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    POSITIVE,
    ZEROS,
    of,
)
from labkit.kernels.attention.linear_attention import phi, phi_reference
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32, relative_to

SIZES = tuple({"H": H, "D": D} for H, D in ((1, 1), (2, 3), (3, 8), (2, 33), (1, 64)))


def _state(rng, H, D, tokens=5) -> np.ndarray:
    """What `tokens` random tokens leave."""
    k, v = phi_reference(uniform(rng, H, tokens, D)), uniform(rng, H, tokens, D)
    z = k.sum(axis=1, keepdims=True)
    return np.concatenate([k.transpose(0, 2, 1) @ v, z], axis=1).astype(np.float32)


# --- Predict: a state and a cache -------------------------------------------------------------------------------------

PREDICT_STATE = PredictionExercise(
    name="predict_state",
    truth=lambda: {"state_numbers": 64 * 65, "cache_numbers": 2 * 1000 * 64,
                   "cache_larger_from": 64 * 65 // (2 * 64) + 1, "equal_flops_at": 2 * 64 - 1},
    how={"state_numbers": "S has 64 rows of 64 numbers, and z has 64.",
         "cache_numbers": "Each token has a key and a value of 64 numbers.",
         "cache_larger_from": "A token adds 128 numbers to the cache: 32 tokens have 4,096 of them, and 33 have 4,224.",
         "equal_flops_at": "4 * 64 * n(n + 1) / 2 against 4 * 64 * 64 * n: both are equal where n + 1 is 128."},
    wrong={"z is left out": {"state_numbers": 4096},
           "the cache has keys or values, not both": {"cache_numbers": 64_000, "cache_larger_from": 66},
           "z is left out of the comparison": {"cache_larger_from": 32},
           "all n * n pairs are weighed": {"equal_flops_at": 64},
           "the scores are counted, and the weighted values are not": {"equal_flops_at": 255},
           "n * n / 2 pairs, without the diagonal's half": {"equal_flops_at": 128}},
)

# --- A token more -----------------------------------------------------------------------------------------------------


def _added(state, k, v):
    weights = phi_reference(k)
    more = np.concatenate([weights[:, :, None] * v[:, None, :], weights[:, None, :]], axis=1)
    return state.astype(np.float64) + more


def _added_scale(state, k, v):
    return np.abs(state) + _added(np.zeros_like(state), k, np.maximum(np.abs(v), 1e-30))


ADD_TOKEN = KernelExercise(
    name="add_token",
    reference=_added,
    inputs=lambda rng, H, D: (_state(rng, H, D), 2 * uniform(rng, H, D), uniform(rng, H, D)),
    shape=lambda H, D: (H, D + 1, D),
    sizes=SIZES,
    launch=lambda H, D: ((-(-D // 32), -(-(D + 1) // 8), H), (32, 8, 1)),
    tolerance=relative_to(_added_scale, roundings=8),
    domain=(*of((0, 1), ZEROS), *of(1, NEGATIVE, POSITIVE, FAR_BELOW_ZERO, FAR_ABOVE_ZERO), *of(2, HUGE_AND_TINY)),
    wrong={
        "z is not added to": Edit("if row < size:", "if True:",
                                  "phi(k[head, row]) * v[head, col]", "phi(k[head, row % size]) * v[head, col]"),
        "key and value are exchanged": Edit("phi(k[head, row]) * v[head, col]", "phi(k[head, col]) * v[head, row]"),
        "the key without phi": Edit("phi(k[head, row]) *", "k[head, row] *"),
        "z gets the key without phi": Edit("phi(k[head, col])", "k[head, col]"),
        "the new token replaces the state": Edit("state[head, row, col] + phi(k[head, row])", "phi(k[head, row])"),
        "the last row is left out": Edit("row <= size and", "row < size and"),
        "all heads get the first one's token": Edit("phi(k[head, row]) * v[head, col]", "phi(k[0, row]) * v[0, col]"),
        "no guard for the columns": Edit("if row <= size and col < size:", "if row <= size:"),
    },
)

# --- Read from the state ----------------------------------------------------------------------------------------------


def _read(q, state):
    weights, state = phi_reference(q)[:, None, :], state.astype(np.float64)
    return (weights @ state[:, :-1])[:, 0] / (weights @ state[:, -1, :, None])[:, 0]


def _read_tolerance(q, state):
    weights = phi_reference(q)[:, None, :]
    mean = (weights @ np.abs(state[:, :-1]))[:, 0] / (weights @ state[:, -1, :, None])[:, 0]
    return 2 * EPS32 * (4 + np.sqrt(q.shape[1])) * mean


@cuda.jit
def read_state_first_columns(q, state, out):
    head, size, col = cuda.blockIdx.x, q.shape[1], cuda.threadIdx.x
    if col < size:
        above, below = float32(0.0), float32(0.0)
        for row in range(size):
            weight = phi(q[head, row])
            above += weight * state[head, row, col]
            below += weight * state[head, size, row]
        out[head, col] = above / below


READ_STATE = KernelExercise(
    name="read_state",
    reference=_read,
    inputs=lambda rng, H, D: (2 * uniform(rng, H, D), _state(rng, H, D)),
    shape=lambda H, D: (H, D),
    sizes=SIZES,
    launch=lambda H, D: (H, 32),
    tolerance=_read_tolerance,
    benign_races=False,  # each number is computed by one thread
    domain=of(0, NEGATIVE, POSITIVE, ZEROS, FAR_ABOVE_ZERO),
    wrong={
        "not divided by the sum of the weights": Edit("above / below", "above"),
        "divided by the sum of phi(q), without z": Edit("weight * state[head, size, row]", "weight"),
        "z is read at the column": Edit("state[head, size, row]", "state[head, size, col]"),
        "the query without phi": Edit("phi(q[head, row])", "q[head, row]"),
        "S is read transposed": Edit("state[head, row, col]", "state[head, col, row]"),
        "all heads read the first one's state": Edit("state[head, row, col]", "state[0, row, col]"),
        "only the first 32 columns": read_state_first_columns,
    },
)

EXERCISES = (PREDICT_STATE, ADD_TOKEN, READ_STATE)
