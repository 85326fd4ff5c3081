"""The index of the largest element of each row: which token a language model finds most likely.

Shapes  x (R, C) float32, out (R,) int32; C-contiguous; any sizes
Work    R*C comparisons; 4*R*C bytes read
Source  numpy.argmax, with its rules: of equal elements the first wins, and NaN is larger than any number

Threads finish in no order, so "the first" has to be part of what they compare: a pair of value and index, where of
equal values the smaller index is the larger pair. -0.0 equals 0.0.
"""

import numpy as np
from numba import float32, int32, int64, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import check_array
from labkit.kernels.op import rung

BLOCK = 512
ALL_LANES = 0xFFFFFFFF
LEAST = int64(-(2**63))  # less than the key of any element
NEG_INF, NO_INDEX = float32(-np.inf), int32(0x7FFFFFFF)


def argmax_reference(x):
    return np.argmax(x, axis=1).astype(np.int32)


@cuda.jit(device=True)
def beats(value, index, other, other_index):
    """Whether the first pair is the larger one. NaN is the only value that is not equal to itself."""
    if value != value:
        return other == other or index < other_index
    return value > other or (value == other and index < other_index)


# --- A thread for each row -----------------------------------------------------------------------------------------


@cuda.jit
def argmax_sequential_kernel(x, out):
    row = u32.grid(1)
    if row < x.shape[0]:
        cols = u32.shape(x)[1]
        largest, index = NEG_INF, NO_INDEX  # less than any element: of equal values the smaller index wins
        for col in u32.range(cols):
            value = x[row, col]
            if beats(value, int32(col), largest, index):
                largest, index = value, int32(col)
        out[row] = index


@rung(kernel=argmax_sequential_kernel, idea="one thread a row")
def argmax_sequential(x, out, stream=0):
    """One thread walks along a row."""
    rows, _ = _check(x, out)
    argmax_sequential_kernel[-(-rows // 32), 32, stream](x, out)


# --- A block for each row ------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_largest(value, index):
    """The largest pair over the lanes of a warp, in every lane: five times two shuffles."""
    for distance in (16, 8, 4, 2, 1):
        other = cuda.shfl_xor_sync(ALL_LANES, value, distance)
        other_index = cuda.shfl_xor_sync(ALL_LANES, index, distance)
        if beats(other, other_index, value, index):
            value, index = other, other_index
    return value, index


@cuda.jit
def argmax_pairs_kernel(x, out):
    values, indices = cuda.shared.array(32, float32), cuda.shared.array(32, int32)
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    cols = u32.shape(x)[1]
    largest, index = NEG_INF, NO_INDEX
    for col in u32.range(thread, cols, BLOCK):
        value = x[row, col]
        if beats(value, int32(col), largest, index):
            largest, index = value, int32(col)
    largest, index = warp_largest(largest, index)
    if lane == 0:
        values[warp], indices[warp] = largest, index
    cuda.syncthreads()
    valid = lane < BLOCK // 32
    largest, index = warp_largest(values[lane] if valid else NEG_INF, indices[lane] if valid else NO_INDEX)
    if thread == 0:
        out[row] = index


@rung(kernel=argmax_pairs_kernel, idea="one block a row; pairs of value and index by shuffles")
def argmax_pairs(x, out, stream=0):
    """As sequential, but 512 threads share a row, and exchange pairs in two levels of shuffles."""
    rows, _ = _check(x, out)
    argmax_pairs_kernel[rows, BLOCK, stream](x, out)


# --- Value and index in one integer ----------------------------------------------------------------------------------


@cuda.jit(device=True)
def key_of(value, index):
    """A 64-bit key that orders as the pairs do: the value's bits in the high word, the index's complement in the low.

    The bits of floats are ordered as signed integers are, except that negative ones run backwards; flipping all bits
    but the sign corrects that.
    """
    bits = int32(ptx.float_bits(value + float32(0.0)))  # -0.0 + 0.0 is 0.0
    if bits < int32(0):
        bits = int32(bits ^ int32(0x7FFFFFFF))
    if value != value:
        bits = int32(0x7FFFFFFF)  # whatever bits the NaN had
    return (int64(bits) << int64(32)) | int64(uint32(~index))


@cuda.jit(device=True)
def warp_largest_key(key):
    for distance in (16, 8, 4, 2, 1):
        key = max(key, cuda.shfl_xor_sync(ALL_LANES, key, distance))
    return key


@cuda.jit
def argmax_packed_kernel(x, out):
    keys = cuda.shared.array(32, int64)
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    cols = u32.shape(x)[1]
    largest = LEAST
    for col in u32.range(thread, cols, BLOCK):
        largest = max(largest, key_of(x[row, col], col))
    largest = warp_largest_key(largest)
    if lane == 0:
        keys[warp] = largest
    cuda.syncthreads()
    largest = warp_largest_key(keys[lane] if lane < BLOCK // 32 else LEAST)
    if thread == 0:
        out[row] = int32(~uint32(largest))


@rung(kernel=argmax_packed_kernel, idea="value and index packed into 64 bits: a plain maximum")
def argmax_packed(x, out, stream=0):
    """As pairs, but a pair is packed into one 64-bit integer, so that the larger integer is the larger pair: no branch
    in the loop, and a shuffle moves both halves."""
    rows, _ = _check(x, out)
    argmax_packed_kernel[rows, BLOCK, stream](x, out)


# --- Loads before comparisons ----------------------------------------------------------------------------------------

WIDE_BLOCK, IN_FLIGHT = 1024, 16


@cuda.jit(launch_bounds=(WIDE_BLOCK, 2))
def argmax_in_flight_kernel(x, out):
    keys = cuda.shared.array(32, int64)
    values = cuda.local.array(IN_FLIGHT, float32)
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    cols = u32.shape(x)[1]
    largest, index = NEG_INF, thread
    for begin in u32.range(thread, cols, WIDE_BLOCK * IN_FLIGHT):
        for i in u32.range(IN_FLIGHT):
            col = begin + WIDE_BLOCK * i
            values[i] = x[row, col] if col < cols else NEG_INF
        for i in u32.range(IN_FLIGHT):
            if values[i] > largest or (values[i] != values[i] and largest == largest):  # a thread's columns ascend
                largest, index = values[i], begin + WIDE_BLOCK * i
    key = warp_largest_key(key_of(largest, index))
    if lane == 0:
        keys[warp] = key
    cuda.syncthreads()
    if warp == 0:
        key = warp_largest_key(keys[lane])
        if lane == 0:
            out[row] = int32(~uint32(key))


@rung(kernel=argmax_in_flight_kernel, idea="sixteen loads of a thread in flight, and one key for all that it has read")
def argmax_in_flight(x, out, stream=0):
    """As packed, but a thread issues sixteen loads before it compares, and compares floats: it reads in the order of
    indices, so only the threads' results have to be pairs."""
    rows, _ = _check(x, out)
    argmax_in_flight_kernel[rows, WIDE_BLOCK, stream](x, out)


def argmax(x, out, stream=0):
    """The rung to use."""
    argmax_in_flight(x, out, stream=stream)


def _check(x, out) -> tuple:
    check_array("x", x, ndim=2)
    check_array("out", out, shape=x.shape[:1], dtype=np.int32)
    return x.shape
