"""What sampling should draw, in NumPy and Python's integers: the truth that the kernels are held to, token by token.

sample_reference follows labkit.kernels.token_weights to the last bit. probabilities_reference computes in float64 what
the parameters mean, without weights; the two differ by no more than the weights' error.
"""

import math

import numpy as np

from labkit.kernels.philox import philox_reference
from labkit.kernels.sampling_search import EMPTY_ROW, NAN_ROW
from labkit.kernels.token_weights import COEFFICIENTS, FADED, FRACTION_BITS, LARGEST, LOG2_E, ONE, UNIT


def sample_reference(logits, temperature, top_k, top_p, min_p, seeds, steps):
    tokens = np.empty(len(logits), np.int32)
    for row, x in enumerate(logits):
        if np.isnan(x).any():
            tokens[row] = NAN_ROW
        elif x.max() == -np.inf:
            tokens[row] = EMPTY_ROW
        elif temperature[row] == 0:
            tokens[row] = np.argmax(x)
        else:
            kept = kept_reference(x, temperature[row], int(top_k[row]), top_p[row], min_p[row])
            tokens[row] = drawn_reference(kept, philox_reference((int(steps[row]) & 0xFFFFFFFF, 0, 0, 0), seeds[row]))
    return tokens


def probabilities_reference(x, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The probability of each token of a row, in float64, by the definitions above and not by weights."""
    x = np.asarray(x, np.float64)
    order = np.argsort(-x, kind="stable")
    if temperature == 0:
        return np.where(np.arange(x.size) == order[0], 1.0, 0.0)
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(np.where(x == x.max(), 0.0, x - x.max()) / temperature)[order]
    exponentials[exponentials < min_p] = 0
    if 0 < top_k < x.size:
        exponentials[top_k:] = 0
    if top_p < 1:
        exponentials[np.searchsorted(np.cumsum(exponentials), top_p * exponentials.sum()) + 1:] = 0
    result = np.empty(x.size)
    result[order] = exponentials / exponentials.sum()
    return result


def weights_reference(x: np.ndarray, temperature) -> np.ndarray:
    """The weights, int64, of a row of float32 logits without NaN, bit for bit as the kernels compute them."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        below = np.where(x == x.max(), np.float32(0), x.max() - x).astype(np.float32)
        z = below * np.minimum(np.float32(LOG2_E) / np.float32(temperature), LARGEST)
    counted = z < FADED
    fixed = (np.where(counted, z, np.float32(0)) * np.float32(UNIT)).astype(np.uint64)
    u = (fixed << np.uint64(32 - FRACTION_BITS)) & np.uint64(0xFFFFFFFF)
    inner = np.full(x.shape, COEFFICIENTS[-1], np.uint64)
    for coefficient in COEFFICIENTS[-2::-1]:
        inner = np.uint64(coefficient) - ((u * inner) >> np.uint64(32))
    mantissa = np.uint64(2**32) - ((u * inner) >> np.uint64(32))
    weights = (mantissa << np.uint64(ONE - 32)) >> (fixed >> np.uint64(FRACTION_BITS))
    return np.where(counted, weights.astype(np.int64), 0)


def least_weight_reference(min_p) -> int:
    """The weight below which min_p keeps no token: at least 1, since a token of weight 0 is never drawn."""
    return max(1, math.ceil(float(np.float32(min_p)) * 2**ONE))


def reaching_reference(share, mass: int) -> int:
    """ceil(share * mass), share to multiples of 2**-32, in Python's integers."""
    part = math.floor(float(np.float32(share)) * 2**32)
    return max(1, -(-mass * part // 2**32))


def kept_reference(x: np.ndarray, temperature, top_k: int, top_p, min_p) -> np.ndarray:
    """Return the weights of a row after the three filters, int64; 0 for tokens filtered out.

    min_p first, then top_k of those left, then top_p of their mass, as in vLLM.
    """
    weights = weights_reference(x, temperature)
    weights[weights < least_weight_reference(min_p)] = 0
    order = np.argsort(-x, kind="stable")  # the larger first, of equal ones the lower index
    order = order[weights[order] > 0]
    if 0 < top_k < x.size:
        order = order[:top_k]
    if top_p < 1:
        through = np.cumsum(weights[order])
        order = order[:np.searchsorted(through, reaching_reference(top_p, int(through[-1]))) + 1]
    kept = np.zeros_like(weights)
    kept[order] = weights[order]
    return kept


def drawn_reference(kept: np.ndarray, words: tuple) -> int:
    """The token for a draw's random words: the first whose sum of weights, in the order of tokens, exceeds the share
    that the 64-bit number (words[1], words[0]) is of 2**64."""
    through = np.cumsum(kept)
    at = (int(words[0]) | int(words[1]) << 32) * int(through[-1]) >> 64
    return int(np.searchsorted(through, at, side="right"))
