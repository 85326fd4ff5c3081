"""RMSNorm of each row, alone or with the residual stream updated first: out = x / sqrt(mean(x^2) + eps) * weight.

Shapes  x, residual, out (T, C), weight (C,); all float32, all float16, or all uint16, which holds bfloat16
        `out` may be `x`. eps is a constant of the kernel: one is compiled for each
Work    4 flops an element, 4*T*C bytes in 16 bits, 8*T*C in float32; add_rmsnorm: 5 flops, twice the bytes
Source  Zhang, Sennrich: Root Mean Square Layer Normalization (2019), https://arxiv.org/abs/1910.07467

In 16 bits the normalised row is rounded before it is multiplied by the weight, the product again, and the residual
sum before it is normalised: where transformers' modules round. A row has the same bits in any batch.
"""

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import check_array
from labkit.kernels.dtypes import bfloat16_of, float64_of
from labkit.kernels.eights import ACCESS, in_eights, rounded_as
from labkit.kernels.elements import BFLOAT16, Element, element_of
from labkit.kernels.norm.rows import block_sum_once, flat, small
from labkit.kernels.op import rung
from labkit.kernels.pdl import uses_pdl
from labkit.kernels.reduce import block_reduce_sum, warp_sum

EPS = 1e-5  # Llama's; Qwen3 has 1e-6
ZERO, ONE = float32(0.0), float32(1.0)
THREADS = 256
ROWS = 4  # per block, where each warp has a row
OCTET_THREADS = 256  # up to this many threads share a row, eight columns each; beyond, they take sixteen
MAX_COLUMNS = 16384


def rmsnorm_reference(x, weight, eps=EPS):
    rounded, x = rounded_as(x), float64_of(x)
    return rounded(rounded(x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps)) * float64_of(weight))


def add_rmsnorm_reference(x, residual, weight, eps=EPS):
    """Return out[0], the normalised rows, and out[1], the exact sums rounded once."""
    total = bfloat16_of(float64_of(x) + float64_of(residual)) if x.dtype == np.uint16 else x + residual
    return np.stack([rmsnorm_reference(total, weight, eps), float64_of(total)])


# --- One thread, block or warp per row --------------------------------------------------------------------------------


@kernel_factory
def make_rmsnorm_naive(element: Element, eps: float):
    (load, store, rounded, _, _), EPSILON = ACCESS[element], small(eps)

    @cuda.jit
    def rmsnorm_naive_kernel(x, weight, out):  # x and out are flat, here and below
        columns = u32.size(weight)
        row_offset = u32.grid(1) * columns
        if row_offset < x.size:
            inv_cols = ONE / float32(columns)
            squares = ZERO
            for col in u32.range(columns):
                value = load(x, row_offset + col)
                squares += value * value
            rstd = cuda.rsqrt(squares * inv_cols + EPSILON)
            for col in u32.range(columns):
                store(out, row_offset + col, rounded(load(x, row_offset + col) * rstd) * load(weight, col))

    return rmsnorm_naive_kernel


@rung(kernel=make_rmsnorm_naive(BFLOAT16, EPS), idea="one thread a row: neighbours read a row apart")
def rmsnorm_naive(x, weight, out, eps=EPS, stream=0):
    """One thread walks along one row twice: for its squares, and for the result."""
    element = _check(x, weight, out)
    make_rmsnorm_naive(element, eps)[-(-x.shape[0] // 32), 32, stream](flat(x), weight, flat(out))


@kernel_factory
def make_rmsnorm_block_tree(element: Element, eps: float):
    (load, store, rounded, _, _), EPSILON = ACCESS[element], small(eps)

    @cuda.jit
    def rmsnorm_block_tree_kernel(x, weight, out):
        shared = cuda.shared.array(THREADS, float32)
        thread, columns = u32.threadIdx.x, u32.size(weight)
        row_offset, inv_cols = u32.blockIdx.x * columns, ONE / float32(columns)
        squares = ZERO
        for col in u32.range(thread, columns, THREADS):
            value = load(x, row_offset + col)
            squares += value * value
        rstd = cuda.rsqrt(block_reduce_sum(squares, shared) * inv_cols + EPSILON)
        for col in u32.range(thread, columns, THREADS):
            store(out, row_offset + col, rounded(load(x, row_offset + col) * rstd) * load(weight, col))

    return rmsnorm_block_tree_kernel


@rung(kernel=make_rmsnorm_block_tree(BFLOAT16, EPS), idea="one block a row, a tree in shared memory")
def rmsnorm_block_tree(x, weight, out, eps=EPS, stream=0):
    """As naive, but 256 threads share a row, so that neighbours read neighbours; a tree in shared memory adds up their
    squares, with a barrier for each of its levels. The row is still read twice."""
    element = _check(x, weight, out)
    make_rmsnorm_block_tree(element, eps)[x.shape[0], THREADS, stream](flat(x), weight, flat(out))


@kernel_factory
def make_rmsnorm_warp(element: Element, eps: float):
    (load, store, rounded, _, _), EPSILON = ACCESS[element], small(eps)

    @cuda.jit
    def rmsnorm_warp_kernel(x, weight, out):
        thread, columns = u32.grid(1), u32.size(weight)
        lane, row_offset = thread & 31, (thread >> 5) * columns
        if row_offset < x.size:  # the same for the whole warp
            inv_cols = ONE / float32(columns)
            squares = ZERO
            for col in range(lane, columns, 32):
                value = load(x, row_offset + col)
                squares += value * value
            rstd = cuda.rsqrt(warp_sum(squares) * inv_cols + EPSILON)
            for col in range(lane, columns, 32):
                store(out, row_offset + col, rounded(load(x, row_offset + col) * rstd) * load(weight, col))

    return rmsnorm_warp_kernel


@rung(kernel=make_rmsnorm_warp(BFLOAT16, EPS), idea="one warp a row, shuffles; the second pass finds it in the cache")
def rmsnorm_warp(x, weight, out, eps=EPS, stream=0):
    """As block_tree, but the 32 lanes of a warp share a row, and five shuffles add up their squares: no barrier. Any
    width."""
    element = _check(x, weight, out)
    make_rmsnorm_warp(element, eps)[-(-x.shape[0] // ROWS), 32 * ROWS, stream](flat(x), weight, flat(out))


# --- Rows in registers, eight neighbours at once ----------------------------------------------------------------------


@kernel_factory
def make_rmsnorm(element: Element, warp_per_row: bool, octets: int, vectorized: bool, with_residual: bool, eps: float,
                 early: bool = False):
    """Make a kernel for rows of up to 8 * octets columns per thread. warp_per_row: a warp has a row, not a block.
    vectorized: whole octets, at multiples of 16 bytes. with_residual: total = x + residual is normalised. early: as in
    kernels/pdl.py, the weights first."""
    (load, store), rounded = ACCESS[element].neighbours(vectorized), ACCESS[element].rounded
    elements, EPSILON, EARLY = 8 * octets, small(eps), early

    @cuda.jit
    def rmsnorm_registers_kernel(x, residual, weight, total, out):
        partial = cuda.shared.array(32, float32)
        row, thread, threads = u32.blockIdx.x, u32.threadIdx.x, u32.blockDim.x
        if warp_per_row:
            row, thread, threads = u32.grid(1) >> 5, thread & 31, 32
        columns = u32.size(weight)
        row_offset, step, inv_cols = row * columns, 8 * threads, ONE / float32(columns)
        col, remaining = 8 * thread, int32(columns) - int32(8) * int32(thread)
        v, w = cuda.local.array(elements, float32), cuda.local.array(elements, float32)
        weights = cuda.local.array(elements, float32)
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            for o in u32.range(octets):
                load(weights, 8 * o, weight, col + o * step, remaining - int32(o * step))
            ptx.griddepcontrol_wait()
        if row_offset < x.size:  # the same for a whole warp, and for a block with barriers
            offset = row_offset + col
            for o in u32.range(octets):
                load(v, 8 * o, x, offset + o * step, remaining - int32(o * step))
            if with_residual:
                for o in u32.range(octets):
                    load(w, 8 * o, residual, offset + o * step, remaining - int32(o * step))
                for e in range(elements):
                    v[e] = rounded(v[e] + w[e])
                for o in u32.range(octets):
                    store(total, offset + o * step, remaining - int32(o * step), v, 8 * o)
            if not EARLY:
                for o in u32.range(octets):  # in flight while the squares are added
                    load(weights, 8 * o, weight, col + o * step, remaining - int32(o * step))
            squares = ZERO
            for e in range(elements):
                squares += v[e] * v[e]
            if warp_per_row:
                squares = warp_sum(squares)
            else:
                squares = block_sum_once(squares, partial, thread & 31, thread >> 5, threads >> 5)
            rstd = cuda.rsqrt(squares * inv_cols + EPSILON)
            for e in range(elements):
                v[e] = rounded(v[e] * rstd) * weights[e]
            for o in u32.range(octets):
                store(out, offset + o * step, remaining - int32(o * step), v, 8 * o)

    rmsnorm_registers_kernel.uses_pdl = early
    return rmsnorm_registers_kernel


def _launch(element, x, residual, weight, total, out, eps, stream, *, with_residual, vectorized=True):
    rows, columns = x.shape
    if columns > MAX_COLUMNS:
        raise ValueError(f"x has {columns:,} columns; a block keeps at most {MAX_COLUMNS:,} in registers")
    octets = 1 if columns <= 8 * OCTET_THREADS else 2
    warps = -(-columns // (256 * octets))
    vectorized = vectorized and in_eights(columns, x, residual, weight, total, out)
    rows_per_block = min(ROWS, rows) if warps == 1 else 1
    kernel = make_rmsnorm(element, warps == 1, octets, vectorized, with_residual, eps, uses_pdl(rows))
    kernel[-(-rows // rows_per_block), 32 * warps * rows_per_block, stream](
        flat(x), flat(residual), weight, flat(total), flat(out))


def rmsnorm(x, weight, out, eps=EPS, stream=0):
    """The launcher to use: rmsnorm_registers. `out` may be `x`."""
    element = _check(x, weight, out)
    _launch(element, x, x, weight, out, out, eps, stream, with_residual=False)


@rung(kernel=make_rmsnorm(BFLOAT16, False, 1, True, False, EPS),
      idea="the row in registers: one read, 128 bits at a time",
      sizes=f"rows of at most {MAX_COLUMNS:,} columns")
def rmsnorm_registers(x, weight, out, eps=EPS, stream=0):
    """As warp, but a thread keeps eight neighbours, loaded 128 bits at a time, so that memory is read once; as many
    warps share a row as that takes, with a single barrier. The weights are in flight while the squares are added. If
    columns are not a multiple of eight, or a view begins at an odd address, the same threads load one element at a
    time."""
    rmsnorm(x, weight, out, eps=eps, stream=stream)


# --- The residual stream, then the norm -------------------------------------------------------------------------------


@kernel_factory
def make_residual_sum(element: Element, vectorized: bool):
    (load, store) = ACCESS[element].neighbours(vectorized)

    @cuda.jit
    def residual_sum_kernel(x, residual, total):
        i = 8 * u32.grid(1)
        remaining = int32(u32.size(x) - i) if i < x.size else int32(0)
        a, b = cuda.local.array(8, float32), cuda.local.array(8, float32)
        load(a, 0, x, i, remaining)
        load(b, 0, residual, i, remaining)
        for e in range(8):
            a[e] += b[e]
        store(total, i, remaining, a, 0)

    return residual_sum_kernel


def residual_sum(x, residual, total, stream=0) -> None:
    """total = x + residual, arrays of one type and shape; total may be either."""
    element = element_of("x", x)
    for name, array in (("residual", residual), ("total", total)):
        check_array(name, array, shape=x.shape, dtype=element.dtype)
    kernel = make_residual_sum(element, in_eights(x.size, x, residual, total))
    kernel[-(-x.size // (8 * THREADS)), THREADS, stream](flat(x), flat(residual), flat(total))


@rung(kernel=(make_residual_sum(BFLOAT16, True), make_rmsnorm(BFLOAT16, False, 1, True, False, EPS)),
      idea="two kernels: add, then normalise", sizes=f"rows of at most {MAX_COLUMNS:,} columns")
def add_rmsnorm_unfused(x, residual, weight, out, eps=EPS, stream=0):
    """The addition writes the sum, RMSNorm reads it again: five rows through memory and two launches."""
    _check_op(x, residual, weight, out)
    residual_sum(x, residual, out[1], stream)
    rmsnorm(out[1], weight, out[0], eps=eps, stream=stream)


@rung(kernel=make_rmsnorm(BFLOAT16, False, 1, True, True, EPS), idea="one kernel: the sum stays in registers",
      sizes=f"rows of at most {MAX_COLUMNS:,} columns")
def add_rmsnorm_fused(x, residual, weight, out, eps=EPS, stream=0):
    """As unfused, but the sum is normalised in the registers in which it was made: four rows, one launch."""
    element = _check_op(x, residual, weight, out)
    _launch(element, x, residual, weight, out[1], out[0], eps, stream, with_residual=True)


def add_rmsnorm(x, residual, weight, out, eps=EPS, stream=0):
    """The launcher to use: residual += x, then out = rmsnorm(residual), in one kernel. `out` may be `x`."""
    element = _check(x, weight, out)
    check_array("residual", residual, shape=x.shape, dtype=element.dtype)
    _launch(element, x, residual, weight, residual, out, eps, stream, with_residual=True)


def _check(x, weight, out) -> Element:
    element = element_of("x", x)
    check_array("x", x, ndim=2, dtype=element.dtype)
    check_array("weight", weight, shape=x.shape[1:], dtype=element.dtype)
    check_array("out", out, shape=x.shape, dtype=element.dtype)
    return element


def _check_op(x, residual, weight, out) -> Element:
    """For the rungs of ADD_RMSNORM, whose out (2, T, C) holds the normalised rows and the sums."""
    element = element_of("x", x)
    check_array("out", out, shape=(2, *x.shape), dtype=element.dtype)
    check_array("residual", residual, shape=x.shape, dtype=element.dtype)
    return _check(x, weight, out[0])
