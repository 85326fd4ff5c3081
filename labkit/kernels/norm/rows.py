"""What the LayerNorm kernels share: access to four neighbours of a row of any length; a sum over a block; the choice
among kernels for different widths; epsilon; and the tolerance.
"""

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.reduce import warp_sum
from labkit.kernels.tolerance import EPS32

EPSILON = 1e-5  # GPT-2's, and PyTorch's default; BERT has 1e-12
ZERO = float32(0.0)

WHOLE, QUADS, SINGLES = "whole", "quads", "singles"


@cuda.jit(device=True)
def load_whole(array, i, remaining):
    return ptx.load_global4(array, i)


@cuda.jit(device=True)
def store_whole(array, i, remaining, four):
    ptx.store_global4(array, i, four[0], four[1], four[2], four[3])


@cuda.jit(device=True)
def load_quads(array, i, remaining):
    a, b, c, d = ZERO, ZERO, ZERO, ZERO
    if remaining > 0:
        a, b, c, d = ptx.load_global4(array, i)
    return a, b, c, d


@cuda.jit(device=True)
def store_quads(array, i, remaining, four):
    if remaining > 0:
        ptx.store_global4(array, i, four[0], four[1], four[2], four[3])


@cuda.jit(device=True)
def load_singles(array, i, remaining):
    a, b, c, d = ZERO, ZERO, ZERO, ZERO
    if remaining > 0:
        a = array[i]
    if remaining > 1:
        b = array[i + 1]
    if remaining > 2:
        c = array[i + 2]
    if remaining > 3:
        d = array[i + 3]
    return a, b, c, d


@cuda.jit(device=True)
def store_singles(array, i, remaining, four):
    for n in u32.range(4):
        if remaining > int32(n):
            array[i + n] = four[n]


# `remaining` of the four neighbours from flat index i on are in the row; the others load as zero and are not stored.
# WHOLE: rows fill all lanes. QUADS: all four neighbours are inside or none. SINGLES: any number may be inside.
FOUR = {WHOLE: (load_whole, store_whole), QUADS: (load_quads, store_quads), SINGLES: (load_singles, store_singles)}


def kind_of(columns: int, capacity: int, *arrays) -> str:
    if columns % 4 or not aligned(*arrays):
        return SINGLES
    return WHOLE if columns == capacity else QUADS


@cuda.jit(device=True)
def put_four(local, i, values):
    local[i], local[i + 1], local[i + 2], local[i + 3] = values[0], values[1], values[2], values[3]


@cuda.jit(device=True)
def normalised_four(v, i, scale, w, b):
    return (v[i] * scale * w[0] + b[0], v[i + 1] * scale * w[1] + b[1], v[i + 2] * scale * w[2] + b[2],
            v[i + 3] * scale * w[3] + b[3])


@cuda.jit(device=True)
def normalised_eight(v, i, scale, w, b):
    return (v[i] * scale * w[0] + b[0], v[i + 1] * scale * w[1] + b[1], v[i + 2] * scale * w[2] + b[2],
            v[i + 3] * scale * w[3] + b[3], v[i + 4] * scale * w[4] + b[4], v[i + 5] * scale * w[5] + b[5],
            v[i + 6] * scale * w[6] + b[6], v[i + 7] * scale * w[7] + b[7])


def make_row(pieces: int, step: int, load, store, vec: int = 4, full: bool = False):
    """Two device functions for a row in registers: a thread holds `pieces` times `vec` neighbours in v, from one piece
    to the next `step` columns; `remaining` columns lie from its first to the row's end. full: all are in the row."""
    normalised = normalised_four if vec == 4 else normalised_eight

    @cuda.jit(device=True)
    def centre(v, mean, remaining):
        """Subtract the mean, and return the thread's sum of squares."""
        squares = ZERO
        for e in range(vec * pieces):
            v[e] -= mean
            if full or remaining > int32(step * (e // vec) + e % vec):
                squares += v[e] * v[e]
        return squares

    @cuda.jit(device=True)
    def store_normalised(v, scale, weight, bias, out, offset, col, remaining):
        """Store v * scale * weight + bias. offset, col: of the thread's first column, in out and in the row."""
        for p in u32.range(pieces):
            piece_col, valid = col + step * p, remaining - int32(step * p)
            store(out, offset + step * p, valid,
                  normalised(v, vec * p, scale, load(weight, piece_col, valid), load(bias, piece_col, valid)))

    return centre, store_normalised


@cuda.jit(device=True)
def block_sum_once(value, partial, lane, warp, warps):
    """Return the sum over a block with a single barrier: shuffles in each warp, then every thread adds the warps' sums.

    `partial` is shared memory, one element per warp. It must not be written again before another barrier.
    """
    value = warp_sum(value)
    if lane == 0:
        partial[warp] = value
    cuda.syncthreads()
    total = ZERO
    for w in u32.range(warps):
        total += partial[w]
    return total


def fitting(columns: int, capacities: dict, holder: str):
    """Return (capacity, value) for the smallest of `capacities` (most columns -> what to compile) that holds a row."""
    for capacity, value in capacities.items():
        if columns <= capacity:
            return capacity, value
    raise ValueError(f"x has {columns:,} columns; {holder} keeps at most {max(capacities):,} in registers")


def flat(array):
    return array.reshape(array.size)


def small(epsilon: float):
    """Return epsilon as the kernels add it to the variance: a float32 that is compiled into them."""
    value = float32(epsilon)
    if not 0 < value < np.inf:
        raise ValueError(f"epsilon is {epsilon}; in float32 it must be above 0 and finite")
    return value


def check_rows(x, weight, bias, out):
    check_array("x", x, ndim=2)
    check_array("weight", weight, shape=x.shape[1:])
    check_array("bias", bias, shape=x.shape[1:])
    check_array("out", out, shape=x.shape)
    return x.shape


def scale_of(x, weight, bias, epsilon):
    """Return what an element's rounding errors are relative to, for rows of any mean and spread."""
    mean, std = x.mean(axis=1, keepdims=True), np.sqrt(x.var(axis=1, keepdims=True) + epsilon)
    magnitude = np.abs(x).mean(axis=1, keepdims=True) + np.abs(x - mean)
    return magnitude / std * np.abs(weight) + np.abs(bias)


def tolerance(x, weight, bias, epsilon=EPSILON):
    """Return the allowed error. The two sums have C terms: as for dot products, rounding errors grow like sqrt(C)."""
    return EPS32 * (2 * np.sqrt(x.shape[1]) + 8) * scale_of(x, weight, bias, epsilon)
