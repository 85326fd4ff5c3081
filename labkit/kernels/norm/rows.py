"""What the LayerNorm kernels share: four neighbours of a row, whatever its length; a sum over a block; and which of the
kernels made for different widths a row fits.
"""

from numba import float32, uint32

from labkit import cuda
from labkit.device import ptx
from labkit.kernels.arguments import aligned
from labkit.kernels.reduce import warp_sum

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
        b = array[i + uint32(1)]
    if left > 2:
        c = array[i + uint32(2)]
    if left > 3:
        d = array[i + uint32(3)]
    return a, b, c, d


@cuda.jit(device=True)
def store_singles(array, i, left, a, b, c, d):
    if left > 0:
        array[i] = a
    if left > 1:
        array[i + uint32(1)] = b
    if left > 2:
        array[i + uint32(2)] = c
    if left > 3:
        array[i + uint32(3)] = d


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
    w = uint32(0)
    while w < warps:
        total += partial[w]
        w += uint32(1)
    return total


def fitting(columns: int, capacities: dict, what: str):
    """The smallest of `capacities` (columns at most -> what to compile) that holds a row: (capacity, value)."""
    for capacity, value in capacities.items():
        if columns <= capacity:
            return capacity, value
    raise ValueError(f"x has {columns:,} columns; {what} keeps at most {max(capacities):,} in registers")


def flat(array):
    return array.reshape(array.size)
