"""Layer normalisation of float16 rows, alone or with a residual added first; the arithmetic is float32.

Shapes  x, residual, out (R, C), weight, bias (C,); float16, C-contiguous
Work    about 8 flops an element; 4*R*C bytes, 6*R*C with a residual
Source  as labkit.kernels.norm.layernorm; MiniLM and BERT use this form

A lane loads eight neighbours at once: 128 bits are four words of two float16 values each. A row of 768 is three such
octets in each lane of a warp.
"""

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.norm import layernorm as full
from labkit.kernels.norm.layernorm import EPSILON, ONE, ZERO
from labkit.kernels.norm.rows import fitting, flat, make_row, small
from labkit.kernels.op import rung
from labkit.kernels.reduce import block_reduce_sum, warp_sum

ROWS = 4  # per block, one per warp
OCTETS = {256: 1, 512: 2, 768: 3, 1024: 4, 2048: 8}  # most columns -> octets per lane


def layernorm_half_reference(x, weight, bias, epsilon=EPSILON):
    return full.layernorm_reference(x, weight, bias, epsilon)


def add_layernorm_half_reference(x, residual, weight, bias, epsilon=EPSILON):
    return full.layernorm_reference(x.astype(np.float64) + residual, weight, bias, epsilon)


# --- One block per row: where MiniLM's ladder begins ------------------------------------------------------------------

BLOCK_THREADS = 128


@kernel_factory
def make_layernorm_half_block(epsilon: float):
    EPS = small(epsilon)

    @cuda.jit
    def layernorm_half_block_kernel(x, weight, bias, out):
        shared = cuda.shared.array(BLOCK_THREADS, float32)
        row, thread = u32.blockIdx.x, u32.threadIdx.x
        columns = u32.shape(x)[1]
        inv_cols = ONE / float32(columns)

        total = ZERO
        for col in u32.range(thread, columns, BLOCK_THREADS):
            total += float32(x[row, col])
        mean = block_reduce_sum(total, shared) * inv_cols

        squares = ZERO
        for col in u32.range(thread, columns, BLOCK_THREADS):
            difference = float32(x[row, col]) - mean
            squares += difference * difference
        rstd = cuda.rsqrt(block_reduce_sum(squares, shared) * inv_cols + EPS)

        for col in u32.range(thread, columns, BLOCK_THREADS):
            out[row, col] = (float32(x[row, col]) - mean) * rstd * float32(weight[col]) + float32(bias[col])

    return layernorm_half_block_kernel


def layernorm_half_block(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """128 threads share a row; a tree in shared memory adds up their sums, with a barrier for each of its levels.
    `out` may be `x`."""
    _check(x, weight, bias, out)
    make_layernorm_half_block(epsilon)[x.shape[0], BLOCK_THREADS, stream](x, weight, bias, out)


# --- Eight neighbours of a row; `remaining` of them are inside, the others load as zero and are not stored ----------


@cuda.jit(device=True)
def load_eight(array, i, remaining):
    a, b, c, d = 0, 0, 0, 0
    if remaining > 0:  # all eight or none
        a, b, c, d = ptx.load_global4(array, i)
    e0, e1 = ptx.unpack_half2(a)
    e2, e3 = ptx.unpack_half2(b)
    e4, e5 = ptx.unpack_half2(c)
    e6, e7 = ptx.unpack_half2(d)
    return e0, e1, e2, e3, e4, e5, e6, e7


@cuda.jit(device=True)
def store_eight(array, i, remaining, e):
    if remaining > 0:
        ptx.store_global4(array, i, ptx.pack_half2(e[0], e[1]), ptx.pack_half2(e[2], e[3]), ptx.pack_half2(e[4], e[5]),
                          ptx.pack_half2(e[6], e[7]))


@cuda.jit(device=True)
def load_one(array, i, remaining):
    return float32(array[i]) if remaining > 0 else ZERO


@cuda.jit(device=True)
def load_singles(array, i, remaining):
    return (load_one(array, i, remaining), load_one(array, i + 1, remaining - 1),
            load_one(array, i + 2, remaining - 2), load_one(array, i + 3, remaining - 3),
            load_one(array, i + 4, remaining - 4), load_one(array, i + 5, remaining - 5),
            load_one(array, i + 6, remaining - 6), load_one(array, i + 7, remaining - 7))


@cuda.jit(device=True)
def store_singles(array, i, remaining, e):
    for n in u32.range(8):
        if remaining > int32(n):
            array[i + n] = e[n]


@cuda.jit(device=True)
def put_eight(local, i, values):
    local[i], local[i + 1], local[i + 2], local[i + 3] = values[0], values[1], values[2], values[3]
    local[i + 4], local[i + 5], local[i + 6], local[i + 7] = values[4], values[5], values[6], values[7]


@kernel_factory
def make_layernorm_half(octets: int, vectorized: bool, with_residual: bool, epsilon: float):
    """Make a kernel for rows of up to 256 * octets columns. vectorized: whole octets, at multiples of 16 bytes."""
    load, store = (load_eight, store_eight) if vectorized else (load_singles, store_singles)
    elements, EPS = 8 * octets, small(epsilon)
    centre, store_normalised = make_row(octets, 256, load, store, vec=8)

    @cuda.jit
    def layernorm_half_kernel(x, residual, weight, bias, out):
        lane = u32.threadIdx.x
        columns = u32.size(weight)
        row_offset = (u32.blockIdx.x * ROWS + u32.threadIdx.y) * columns
        if row_offset < x.size:
            inv_cols = ONE / float32(columns)
            offset, remaining = row_offset + 8 * lane, int32(columns) - int32(8) * int32(lane)
            v = cuda.local.array(elements, float32)
            for o in u32.range(octets):
                put_eight(v, 8 * o, load(x, offset + 256 * o, remaining - int32(256 * o)))
            if with_residual:
                r = cuda.local.array(elements, float32)
                for o in u32.range(octets):
                    put_eight(r, 8 * o, load(residual, offset + 256 * o, remaining - int32(256 * o)))
                for e in range(elements):
                    v[e] += r[e]
            total = ZERO
            for e in range(elements):
                total += v[e]
            mean = warp_sum(total) * inv_cols
            rstd = cuda.rsqrt(warp_sum(centre(v, mean, remaining)) * inv_cols + EPS)
            store_normalised(v, rstd, weight, bias, out, offset, 8 * lane, remaining)

    return layernorm_half_kernel


@rung(kernel=make_layernorm_half(3, False, False, EPSILON), idea="one warp a row, float16 values loaded one by one",
      sizes="rows of at most 2,048 columns")
def layernorm_half_singles(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """One warp normalises one row, which stays in registers. A lane takes eight neighbours, loaded one by one."""
    _check(x, weight, bias, out)
    _launch(x, x, weight, bias, out, epsilon, stream, with_residual=False, vectorized=False)


@rung(kernel=make_layernorm_half(3, True, False, EPSILON), idea="eight float16 values in one load",
      sizes="rows of at most 2,048 columns")
def layernorm_half_warp(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """As singles, but the eight neighbours are one load of 128 bits, if columns are a multiple of eight. `out` may
    be `x`."""
    _check(x, weight, bias, out)
    _launch(x, x, weight, bias, out, epsilon, stream, with_residual=False)


@rung(kernel=make_layernorm_half(3, False, True, EPSILON), idea="one warp a row, float16 values loaded one by one",
      sizes="rows of at most 2,048 columns")
def add_layernorm_half_singles(x, residual, weight, bias, out, epsilon=EPSILON, stream=0):
    """One warp adds and normalises one row; the sum stays in registers, in float32. Values are loaded one by one."""
    _check(x, weight, bias, out, residual)
    _launch(x, residual, weight, bias, out, epsilon, stream, with_residual=True, vectorized=False)


@rung(kernel=make_layernorm_half(3, True, True, EPSILON), idea="eight float16 values in one load",
      sizes="rows of at most 2,048 columns")
def add_layernorm_half_warp(x, residual, weight, bias, out, epsilon=EPSILON, stream=0):
    """As singles, but eight neighbours are one load of 128 bits, if columns are a multiple of eight. `out` may be
    `x` or `residual`."""
    _check(x, weight, bias, out, residual)
    _launch(x, residual, weight, bias, out, epsilon, stream, with_residual=True)


def _launch(x, residual, weight, bias, out, epsilon, stream, *, with_residual, vectorized=True):
    rows, columns = x.shape
    _, octets = fitting(columns, OCTETS, "a warp")
    vectorized = vectorized and columns % 8 == 0 and aligned(x, residual, weight, bias, out)
    kernel = make_layernorm_half(octets, vectorized, with_residual, epsilon)
    kernel[-(-rows // ROWS), (32, ROWS), stream](flat(x), flat(residual), weight, bias, flat(out))


def _check(x, weight, bias, out, residual=None):
    check_array("x", x, ndim=2, dtype=np.float16)
    check_array("weight", weight, shape=x.shape[1:], dtype=np.float16)
    check_array("bias", bias, shape=x.shape[1:], dtype=np.float16)
    check_array("out", out, shape=x.shape, dtype=np.float16)
    if residual is not None:
        check_array("residual", residual, shape=x.shape, dtype=np.float16)
