"""What the LayerNorm kernels share: four neighbours of a row, whatever its length; a sum over a block; which of the
kernels made for different widths a row fits; epsilon; and how right is right.
"""

import numpy as np
from numba import float32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.reduce import warp_sum
from labkit.kernels.tolerance import EPS32

EPSILON = 1e-5  # GPT-2's, and PyTorch's default; BERT has 1e-12
ZERO = float32(0.0)

WHOLE, QUADS, SINGLES = "whole", "quads", "singles"


@cuda.jit(device=True)
def load_whole(array, i, left):
    return ptx.load_global4(array, i)


@cuda.jit(device=True)
def store_whole(array, i, left, a, b, c, d):
    ptx.store_global4(array, i, a, b, c, d)


@cuda.jit(device=True)
def load_quads(array, i, left):
    a, b, c, d = ZERO, ZERO, ZERO, ZERO
    if left > 0:
        a, b, c, d = ptx.load_global4(array, i)
    return a, b, c, d


@cuda.jit(device=True)
def store_quads(array, i, left, a, b, c, d):
    if left > 0:
        ptx.store_global4(array, i, a, b, c, d)


@cuda.jit(device=True)
def load_singles(array, i, left):
    a, b, c, d = ZERO, ZERO, ZERO, ZERO
    if left > 0:
        a = array[i]
    if left > 1:
        b = array[i + 1]
    if left > 2:
        c = array[i + 2]
    if left > 3:
        d = array[i + 3]
    return a, b, c, d


@cuda.jit(device=True)
def store_singles(array, i, left, a, b, c, d):
    if left > 0:
        array[i] = a
    if left > 1:
        array[i + 1] = b
    if left > 2:
        array[i + 2] = c
    if left > 3:
        array[i + 3] = d


# `left` of the four neighbours from flat index i on are inside the row; the others load as zero and are not stored.
# WHOLE: all rows fill all lanes. QUADS: all four neighbours are inside or none. SINGLES: nothing is known.
FOUR = {WHOLE: (load_whole, store_whole), QUADS: (load_quads, store_quads), SINGLES: (load_singles, store_singles)}


def kind_of(columns: int, capacity: int, *arrays) -> str:
    if columns % 4 or not aligned(*arrays):
        return SINGLES
    return WHOLE if columns == capacity else QUADS


@cuda.jit(device=True)
def put_four(local, e, four):
    local[e], local[e + 1], local[e + 2], local[e + 3] = four[0], four[1], four[2], four[3]


@cuda.jit(device=True)
def block_sum_once(value, partial, lane, warp, warps):
    """The sum over a block with a single barrier: each warp by shuffles, then every thread adds up the warps' sums.

    `partial` is shared, one place a warp. One more barrier has to pass before it may be written again.
    """
    value = warp_sum(value)
    if lane == 0:
        partial[warp] = value
    cuda.syncthreads()
    total = ZERO
    for w in u32.range(warps):
        total += partial[w]
    return total


def fitting(columns: int, capacities: dict, what: str):
    """The smallest of `capacities` (columns at most -> what to compile) that holds a row: (capacity, value)."""
    for capacity, value in capacities.items():
        if columns <= capacity:
            return capacity, value
    raise ValueError(f"x has {columns:,} columns; {what} keeps at most {max(capacities):,} in registers")


def flat(array):
    return array.reshape(array.size)


def small(epsilon: float):
    """epsilon as a kernel adds it to the variance: a constant that is compiled into it."""
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
    """What an element's roundings are relative to, for rows of any mean and spread."""
    mean, spread = x.mean(axis=1, keepdims=True), np.sqrt(x.var(axis=1, keepdims=True) + epsilon)
    size = np.abs(x).mean(axis=1, keepdims=True) + np.abs(x - mean)
    return size / spread * np.abs(weight) + np.abs(bias)


def tolerance(x, weight, bias, epsilon=EPSILON):
    """The two sums go over C terms: as for dot products, roundings grow like sqrt(C)."""
    return EPS32 * (2 * np.sqrt(x.shape[1]) + 8) * scale_of(x, weight, bias, epsilon)
