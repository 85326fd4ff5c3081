"""Layer normalisation of each row, with its weight and bias; and the same with a residual added first.

Shapes  layernorm: x, out (R, C), weight, bias (C,).  add_layernorm: also residual (R, C).  residual_layernorm: out
        (2, R, C), the normalised rows and the sums.  float32, C-contiguous. A kernel is compiled for each epsilon
Work    about 8 flops an element; 8*R*C bytes: each row read once, written once
Source  Ba, Kiros, Hinton: Layer Normalization (2016), https://arxiv.org/abs/1607.06450

The variance is that of the differences from the mean: the mean of the squares less the square of the mean needs one
pass, but loses all its digits where the mean is large compared with the spread. One file has both ladders, which share
their kernels, and is longer than others.
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device import gpus
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import check_array
from labkit.kernels.norm.rows import (
    EPSILON,
    FOUR,
    WHOLE,
    block_sum_once,
    check_rows,
    fitting,
    flat,
    kind_of,
    make_row,
    put_four,
    small,
)
from labkit.kernels.op import rung
from labkit.kernels.reduce import block_reduce_sum, warp_sum
from labkit.kernels.residual_add import residual_add_vectorized, residual_add_vectorized_kernel

ZERO, ONE = float32(0.0), float32(1.0)
ALL_LANES = 0xFFFFFFFF
THREADS = 256


def layernorm_reference(x, weight, bias, epsilon=EPSILON):
    x, weight, bias = (array.astype(np.float64) for array in (x, weight, bias))
    mean = x.mean(axis=1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * weight + bias


# --- One thread per row --------------------------------------------------------------------------------------------


@kernel_factory
def make_layernorm_naive(epsilon: float):
    EPS = small(epsilon)

    @cuda.jit
    def layernorm_naive_kernel(x, weight, bias, out):
        row = u32.grid(1)
        if row < x.shape[0]:
            columns = u32.shape(x)[1]
            inv_cols = ONE / float32(columns)
            total = ZERO
            for col in u32.range(columns):
                total += x[row, col]
            mean = total * inv_cols
            squares = ZERO
            for col in u32.range(columns):
                difference = x[row, col] - mean
                squares += difference * difference
            rstd = cuda.rsqrt(squares * inv_cols + EPS)
            for col in u32.range(columns):
                out[row, col] = (x[row, col] - mean) * rstd * weight[col] + bias[col]

    return layernorm_naive_kernel


@rung(kernel=make_layernorm_naive(EPSILON), idea="one thread a row: neighbours read a row apart")
def layernorm_naive(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """One thread normalises one row and walks along it three times: for the mean, for the variance, for the result."""
    rows, _ = check_rows(x, weight, bias, out)
    make_layernorm_naive(epsilon)[-(-rows // 32), 32, stream](x, weight, bias, out)


# --- One block per row ---------------------------------------------------------------------------------------------


@kernel_factory
def make_layernorm_block_tree(epsilon: float):
    EPS = small(epsilon)

    @cuda.jit
    def layernorm_block_tree_kernel(x, weight, bias, out):
        shared = cuda.shared.array(THREADS, float32)
        row, thread = u32.blockIdx.x, u32.threadIdx.x
        columns = u32.shape(x)[1]
        inv_cols = ONE / float32(columns)

        total = ZERO
        for col in u32.range(thread, columns, THREADS):
            total += x[row, col]
        mean = block_reduce_sum(total, shared) * inv_cols

        squares = ZERO
        for col in u32.range(thread, columns, THREADS):
            difference = x[row, col] - mean
            squares += difference * difference
        rstd = cuda.rsqrt(block_reduce_sum(squares, shared) * inv_cols + EPS)

        for col in u32.range(thread, columns, THREADS):
            out[row, col] = (x[row, col] - mean) * rstd * weight[col] + bias[col]

    return layernorm_block_tree_kernel


layernorm_block_tree_kernel = make_layernorm_block_tree(EPSILON)


@rung(kernel=layernorm_block_tree_kernel, idea="one block a row, two trees in shared memory")
def layernorm_block_tree(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """As naive, but 256 threads share a row, so that neighbours read neighbours; a tree in shared memory adds up their
    sums. Each of the two sums costs ten barriers, and the row is still read three times."""
    rows, _ = check_rows(x, weight, bias, out)
    make_layernorm_block_tree(epsilon)[rows, THREADS, stream](x, weight, bias, out)


# --- Mean and variance in one pass -----------------------------------------------------------------------------------

WARPS = 4  # per block, a row each


@kernel_factory
def make_layernorm_one_pass(epsilon: float):
    EPS = small(epsilon)

    @cuda.jit
    def layernorm_one_pass_kernel(x, weight, bias, out):
        lane = u32.threadIdx.x
        row = u32.blockIdx.x * WARPS + u32.threadIdx.y
        if row < x.shape[0]:
            columns = u32.shape(x)[1]
            inv_cols = ONE / float32(columns)
            total, squares = ZERO, ZERO
            for col in u32.range(lane, columns, 32):
                value = x[row, col]
                total += value
                squares += value * value
            mean = warp_sum(total) * inv_cols
            variance = warp_sum(squares) * inv_cols - mean * mean  # a small difference of large numbers
            rstd = cuda.rsqrt(variance + EPS)
            for col in u32.range(lane, columns, 32):
                out[row, col] = (x[row, col] - mean) * rstd * weight[col] + bias[col]

    return layernorm_one_pass_kernel


@rung(kernel=make_layernorm_one_pass(EPSILON), idea="one warp a row; variance = mean of squares - square of mean",
      failed="wrong in the first digit where a row's mean is 1,000 times its spread, NaN in 11 of 64 rows at 3,000 "
             "times: the variance is the small difference of two large numbers")
def layernorm_one_pass(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """As block_tree, but a warp shares a row and adds up values and squares in the same pass: two reads, no barrier."""
    rows, _ = check_rows(x, weight, bias, out)
    make_layernorm_one_pass(epsilon)[-(-rows // WARPS), (32, WARPS), stream](x, weight, bias, out)


@kernel_factory
def make_layernorm_welford(epsilon: float):
    EPS = small(epsilon)

    @cuda.jit
    def layernorm_welford_kernel(x, weight, bias, out):
        lane = u32.threadIdx.x
        row = u32.blockIdx.x * WARPS + u32.threadIdx.y
        if row < x.shape[0]:
            columns = u32.shape(x)[1]
            count, mean, squares = ZERO, ZERO, ZERO  # of this lane's columns; squared differences from mean
            for col in u32.range(lane, columns, 32):
                value = x[row, col]
                count += ONE
                delta = value - mean
                mean += delta / count
                squares += delta * (value - mean)
            distance = 16
            while distance > 0:  # merge with another lane, five times
                other_count = cuda.shfl_xor_sync(ALL_LANES, count, distance)
                mean_delta = cuda.shfl_xor_sync(ALL_LANES, mean, distance) - mean
                other_squares = cuda.shfl_xor_sync(ALL_LANES, squares, distance)
                total_count = count + other_count
                other_weight = other_count / max(total_count, ONE)
                mean += mean_delta * other_weight
                squares += other_squares + mean_delta * mean_delta * count * other_weight
                count = total_count
                distance >>= 1
            rstd = cuda.rsqrt(squares / float32(columns) + EPS)
            for col in u32.range(lane, columns, 32):
                out[row, col] = (x[row, col] - mean) * rstd * weight[col] + bias[col]

    return layernorm_welford_kernel


layernorm_welford_kernel = make_layernorm_welford(EPSILON)


@rung(kernel=layernorm_welford_kernel, idea="one warp a row; Welford's running mean and variance")
def layernorm_welford(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """As one_pass, but each lane keeps the mean of its columns so far and the squared differences from that mean, and
    updates both with every element. Two reads, rows of any length, and nothing cancels."""
    rows, _ = check_rows(x, weight, bias, out)
    make_layernorm_welford(epsilon)[-(-rows // WARPS), (32, WARPS), stream](x, weight, bias, out)


# --- One warp per row ----------------------------------------------------------------------------------------------

WARP_QUADS = {128: 1, 384: 3, 768: 6, 1024: 8, 2048: 16, 4096: 32}  # most columns -> quads per lane


@kernel_factory
def make_layernorm_warp(quads: int, kind: str, epsilon: float):
    """Make a kernel for rows of up to 128 * quads columns."""
    load_four, store_four = FOUR[kind]
    elements, EPS = 4 * quads, small(epsilon)
    centre, store_normalised = make_row(quads, 128, load_four, store_four, full=kind == WHOLE)

    @cuda.jit
    def layernorm_warp_kernel(x, weight, bias, out):  # x and out are flat
        lane = u32.threadIdx.x
        row = u32.blockIdx.x * WARPS + u32.threadIdx.y
        columns = u32.size(weight)
        row_offset = row * columns
        if row_offset < x.size:  # the same for the whole warp
            inv_cols = ONE / float32(columns)
            offset, remaining = row_offset + 4 * lane, int32(columns) - int32(4) * int32(lane)
            v = cuda.local.array(elements, float32)
            total = ZERO
            for q in u32.range(quads):
                a, b, c, d = load_four(x, offset + 128 * q, remaining - int32(128 * q))
                v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3] = a, b, c, d
                total += (a + b) + (c + d)
            mean = warp_sum(total) * inv_cols
            rstd = cuda.rsqrt(warp_sum(centre(v, mean, remaining)) * inv_cols + EPS)
            store_normalised(v, rstd, weight, bias, out, offset, 4 * lane, remaining)

    return layernorm_warp_kernel


@rung(kernel=(make_layernorm_warp(6, WHOLE, EPSILON), make_layernorm_warp(32, WHOLE, EPSILON)),
      idea="one warp a row, kept in registers: one read, shuffles",
      sizes="rows of at most 4,096 columns")
def layernorm_warp_per_row(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """As block_tree, but the 32 lanes of a warp share a row. Each keeps its part in registers, loaded 128 bits at a
    time, so that memory is read once; the sums go through shuffles, without shared memory and without a barrier."""
    rows, columns = check_rows(x, weight, bias, out)
    capacity, quads = fitting(columns, WARP_QUADS, "a warp")
    kernel = make_layernorm_warp(quads, kind_of(columns, capacity, x, weight, bias, out), epsilon)
    kernel[-(-rows // WARPS), (32, WARPS), stream](flat(x), weight, bias, flat(out))


# --- Wide rows: one block per row, in registers --------------------------------------------------------------------

BLOCK_QUADS = {1024: (256, 1), 2048: (256, 2), 4096: (512, 2), 8192: (512, 4), 16384: (1024, 4)}  # -> threads, quads


@kernel_factory
def make_layernorm_registers(threads: int, quads: int, kind: str, epsilon: float):
    """Make a kernel for rows of up to 4 * threads * quads columns."""
    load_four, store_four = FOUR[kind]
    elements, step, warps, EPS = 4 * quads, 4 * threads, threads // 32, small(epsilon)
    centre, store_normalised = make_row(quads, step, load_four, store_four, full=kind == WHOLE)

    @cuda.jit
    def layernorm_registers_kernel(x, weight, bias, out):
        partial = cuda.shared.array((2, 32), float32)  # a row for each sum: no barrier between the two
        thread = u32.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        columns = u32.size(weight)
        inv_cols = ONE / float32(columns)
        offset, remaining = u32.blockIdx.x * columns + 4 * thread, int32(columns) - int32(4) * int32(thread)
        v = cuda.local.array(elements, float32)
        total = ZERO
        for q in u32.range(quads):
            a, b, c, d = load_four(x, offset + step * q, remaining - int32(step * q))
            v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3] = a, b, c, d
            total += (a + b) + (c + d)
        mean = block_sum_once(total, partial[0], lane, warp, warps) * inv_cols
        squares = block_sum_once(centre(v, mean, remaining), partial[1], lane, warp, warps)
        rstd = cuda.rsqrt(squares * inv_cols + EPS)
        store_normalised(v, rstd, weight, bias, out, offset, 4 * thread, remaining)

    return layernorm_registers_kernel


@rung(kernel=make_layernorm_registers(512, 2, WHOLE, EPSILON), idea="one block a row, kept in registers",
      sizes="rows of at most 16,384 columns")
def layernorm_registers(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """As warp_per_row, but a block shares a row, so that wide rows fit into registers. A sum takes two levels: over a
    warp by shuffles, then over the warps through shared memory, with one barrier."""
    rows, columns = check_rows(x, weight, bias, out)
    capacity, (threads, quads) = fitting(columns, BLOCK_QUADS, "a block")
    kernel = make_layernorm_registers(threads, quads, kind_of(columns, capacity, x, weight, bias, out), epsilon)
    kernel[rows, threads, stream](flat(x), weight, bias, flat(out))


@kernel_factory
def make_layernorm_persistent(threads: int, quads: int, kind: str, epsilon: float):
    """As make_layernorm_registers, for a grid that is smaller than the number of rows."""
    load_four, store_four = FOUR[kind]
    elements, step, warps, EPS = 4 * quads, 4 * threads, threads // 32, small(epsilon)
    centre, _ = make_row(quads, step, load_four, store_four, full=kind == WHOLE)

    @cuda.jit
    def layernorm_persistent_kernel(x, weight, bias, out):
        partial = cuda.shared.array((2, 32), float32)
        thread = u32.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        columns = u32.size(weight)
        rows = u32.size(x) // columns
        inv_cols = ONE / float32(columns)
        col, remaining = 4 * thread, int32(columns) - int32(4) * int32(thread)
        w, b, v = (cuda.local.array(elements, float32), cuda.local.array(elements, float32),
                   cuda.local.array(elements, float32))
        next_v = cuda.local.array(elements, float32)
        row = u32.blockIdx.x
        for q in u32.range(quads):
            quad_col, valid = col + step * q, remaining - int32(step * q)
            put_four(w, 4 * q, load_four(weight, quad_col, valid))
            put_four(b, 4 * q, load_four(bias, quad_col, valid))
            put_four(next_v, 4 * q, load_four(x, row * columns + quad_col, valid))
        while row < rows:
            total = ZERO
            for e in range(elements):
                v[e] = next_v[e]
                total += v[e]
            next_row = row + u32.gridDim.x
            next_offset = min(next_row, uint32(rows - 1)) * columns  # no branch: it would wait for the loads
            for q in u32.range(quads):  # in flight until this row is done
                put_four(next_v, 4 * q, load_four(x, next_offset + col + step * q, remaining - int32(step * q)))
            mean = block_sum_once(total, partial[0], lane, warp, warps) * inv_cols
            squares = block_sum_once(centre(v, mean, remaining), partial[1], lane, warp, warps)
            rstd = cuda.rsqrt(squares * inv_cols + EPS)
            for q in u32.range(quads):
                store_four(out, row * columns + col + step * q, remaining - int32(step * q),
                           (v[4 * q] * rstd * w[4 * q] + b[4 * q], v[4 * q + 1] * rstd * w[4 * q + 1] + b[4 * q + 1],
                            v[4 * q + 2] * rstd * w[4 * q + 2] + b[4 * q + 2],
                            v[4 * q + 3] * rstd * w[4 * q + 3] + b[4 * q + 3]))
            row = next_row

    return layernorm_persistent_kernel


@rung(kernel=make_layernorm_persistent(512, 2, WHOLE, EPSILON),
      idea="a fixed grid: weights kept, the next row in flight",
      sizes="rows of at most 16,384 columns",
      failed="3,924 GB/s where registers reaches 4,124 (65536 x 4096, H200): with several blocks on a multiprocessor, "
             "one loads while another adds up, without any of this")
def layernorm_persistent(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """As registers, but the grid is as large as the GPU can run at once. A block goes from row to row, keeps weight and
    bias in registers, and loads its next row before it adds up the current one."""
    rows, columns = check_rows(x, weight, bias, out)
    capacity, (threads, quads) = fitting(columns, BLOCK_QUADS, "a block")
    kernel = make_layernorm_persistent(threads, quads, kind_of(columns, capacity, x, weight, bias, out), epsilon)
    sms = gpus.sm_count() if gpus.chosen_on_gpu() else 1  # few, so that a block has several rows of a small input
    blocks = sms * max(1, 1024 // threads)
    kernel[min(rows, blocks), threads, stream](flat(x), weight, bias, flat(out))


# --- With a residual -----------------------------------------------------------------------------------------------


@kernel_factory
def make_residual_layernorm(warps: int, quads: int, kind: str, keep: bool, epsilon: float):
    """As make_layernorm_warp (warps = 1) and make_layernorm_registers. keep: also store the sum."""
    load_four, store_four = FOUR[kind]
    elements, step, EPS = 4 * quads, 128 * warps, small(epsilon)
    centre, store_normalised = make_row(quads, step, load_four, store_four, full=kind == WHOLE)

    @cuda.jit(device=True)
    def row_sum(value, partial, lane, warp):
        return warp_sum(value) if warps == 1 else block_sum_once(value, partial, lane, warp, warps)

    @cuda.jit
    def residual_layernorm_kernel(x, residual, weight, bias, total, out):
        partial = cuda.shared.array((2, 32), float32)
        thread = u32.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        columns = u32.size(weight)
        row_offset = (u32.blockIdx.x * u32.blockDim.y + u32.threadIdx.y) * columns
        if row_offset < x.size:
            inv_cols = ONE / float32(columns)
            offset, remaining = row_offset + 4 * thread, int32(columns) - int32(4) * int32(thread)
            v = cuda.local.array(elements, float32)
            thread_sum = ZERO
            for q in u32.range(quads):
                i, valid = offset + step * q, remaining - int32(step * q)
                a, b, c, d = load_four(x, i, valid)
                e, f, g, h = load_four(residual, i, valid)
                a, b, c, d = a + e, b + f, c + g, d + h
                if keep:
                    store_four(total, i, valid, (a, b, c, d))
                v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3] = a, b, c, d
                thread_sum += (a + b) + (c + d)
            mean = row_sum(thread_sum, partial[0], lane, warp) * inv_cols
            squares = row_sum(centre(v, mean, remaining), partial[1], lane, warp)
            rstd = cuda.rsqrt(squares * inv_cols + EPS)
            store_normalised(v, rstd, weight, bias, out, offset, 4 * thread, remaining)

    return residual_layernorm_kernel


def _launch_residual(x, residual, weight, bias, total, out, epsilon, stream, *, keep):
    rows, columns = x.shape
    if columns <= 1024:
        capacity, quads = fitting(columns, WARP_QUADS, "a warp")
        warps, rows_per_block = 1, WARPS
    else:
        capacity, (threads, quads) = fitting(columns, BLOCK_QUADS, "a block")
        warps, rows_per_block = threads // 32, 1
    kind = kind_of(columns, capacity, x, residual, weight, bias, total, out)
    kernel = make_residual_layernorm(warps, quads, kind, keep, epsilon)
    kernel[-(-rows // rows_per_block), (32 * warps, rows_per_block), stream](
        flat(x), flat(residual), weight, bias, flat(total), flat(out))


def layernorm(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """The fastest rung that takes these rows. `out` may be `x`."""
    columns = x.shape[-1]
    pick = (layernorm_warp_per_row if columns <= 1024 else
            layernorm_registers if columns <= max(BLOCK_QUADS) else layernorm_block_tree)
    pick(x, weight, bias, out, epsilon=epsilon, stream=stream)


def residual_layernorm(x, residual, weight, bias, total, out, epsilon=EPSILON, stream=0):
    """total = x + residual and out = layernorm(total), in one kernel. `total` may be `x` or `residual`."""
    check_rows(x, weight, bias, out)
    check_array("residual", residual, shape=x.shape)
    check_array("total", total, shape=x.shape)
    _launch_residual(x, residual, weight, bias, total, out, epsilon, stream, keep=True)


@rung(kernel=(residual_add_vectorized_kernel, make_layernorm_warp(6, WHOLE, EPSILON)),
      idea="two kernels: add, then normalise")
def residual_layernorm_unfused(x, residual, weight, bias, out, epsilon=EPSILON, stream=0):
    """The addition writes the sum, LayerNorm reads it again: 20 bytes an element and two launches."""
    residual_add_vectorized(x, residual, out[1], stream=stream)
    layernorm(out[1], weight, bias, out[0], epsilon=epsilon, stream=stream)


@rung(kernel=make_residual_layernorm(1, 6, WHOLE, True, EPSILON), idea="one kernel: the sum stays in registers",
      sizes="rows of at most 16,384 columns")
def residual_layernorm_fused(x, residual, weight, bias, out, epsilon=EPSILON, stream=0):
    """As unfused, but the sum is normalised in the registers in which it was made: 16 bytes an element, one launch."""
    residual_layernorm(x, residual, weight, bias, out[1], out[0], epsilon=epsilon, stream=stream)


@rung(kernel=(residual_add_vectorized_kernel, make_layernorm_warp(6, WHOLE, EPSILON)),
      idea="two kernels: add, then normalise")
def add_layernorm_unfused(x, residual, weight, bias, out, epsilon=EPSILON, stream=0):
    """The sum is written into out and normalised there, in place: 20 bytes an element and two launches."""
    residual_add_vectorized(x, residual, out, stream=stream)
    layernorm(out, weight, bias, out, epsilon=epsilon, stream=stream)


@rung(kernel=make_residual_layernorm(1, 6, WHOLE, False, EPSILON), idea="one kernel: the sum stays in registers",
      sizes="rows of at most 16,384 columns")
def add_layernorm_fused(x, residual, weight, bias, out, epsilon=EPSILON, stream=0):
    """As unfused, but the sum never leaves the registers: 12 bytes an element, one launch."""
    check_rows(x, weight, bias, out)
    check_array("residual", residual, shape=x.shape)
    _launch_residual(x, residual, weight, bias, out, out, epsilon, stream, keep=False)


def residual_layernorm_reference(x, residual, weight, bias):
    total = x.astype(np.float64) + residual
    return np.stack([layernorm_reference(total, weight, bias), total])
