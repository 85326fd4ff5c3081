"""GPT-2's linear layers with their epilogues, in one kernel: out = x @ weights + bias, then GELU, then a residual.

Shapes  x (M, K), weights (K, N), bias (N,), residual and out (M, N); all float32, or (tiled only) all float16
Sizes   any. pipelined moves 128 bits at a time where N is a multiple of 128 and K of 16, as in every GPT-2
Work    2*M*N*K flop; 4*(M*K + K*N + N + M*N) bytes, and 4*M*N more with a residual
Source  torch.nn.functional.linear; NVIDIA CUTLASS, "Efficient GEMM in CUDA", for the epilogue and for split-K

gelu: False, True for the tanh form of GPT-2, "erf" for the exact one of BERT. residual may be `out`: each element is
read by the thread that writes it. The epilogue runs while the accumulators are in registers, and saves M*N accesses.
"""

import functools

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, graphs, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import (
    aligned,
    blocks_for,
    check_array,
    dynamic_shared,
    product_sizes,
    resident,
    unsigned,
)
from labkit.kernels.elements import unchanged
from labkit.kernels.gelu import gelu_erf, gelu_erf_reference, gelu_sigmoid, gelu_tanh_reference
from labkit.kernels.matmul.float32_tiles import (
    A_STRIDE,
    BLOCK_K,
    BLOCK_TILE,
    RING,
    STRIDE,
    copy_pair_guarded,
    make_pipeline,
)

TILE = 16
ZERO = float32(0.0)
BLOCK = 256


def fused_reference(x, weights, bias, residual=None, *, gelu=False):
    value = x.astype(np.float64) @ weights.astype(np.float64) + bias.astype(np.float64)
    if gelu:
        value = gelu_erf_reference(value) if gelu == "erf" else gelu_tanh_reference(value)
    return value if residual is None else value + residual.astype(np.float64)


GELUS = {False: None, True: gelu_sigmoid, "erf": gelu_erf}


def gelu_of(gelu: bool | str):
    """Return the device function for `gelu`, or None."""
    if gelu not in GELUS:
        raise ValueError(f"gelu is {gelu!r}; False, True (its tanh form) and 'erf' (the exact one) are allowed")
    return GELUS[gelu]


@functools.cache
def epilogue_for(gelu: bool | str, residual: bool, bias: bool = True):
    """Return a device function: turn a sum of products into an element of out."""
    activation = gelu_of(gelu) or unchanged

    @cuda.jit(device=True)
    def epilogue(total, bias_of, residual_of, row, col):
        value = activation(total + float32(bias_of[col]) if bias else total)
        if residual:
            value += float32(residual_of[row, col])
        return value

    return epilogue


# --- A thread for each element ----------------------------------------------------------------------------------------


@kernel_factory
def make_fused_naive(gelu: bool | str, residual: bool):
    epilogue = epilogue_for(gelu, residual)

    @cuda.jit
    def fused_naive_kernel(x, weights, bias, residual_of, out):
        i = u32.grid(1)
        if i < u32.size(out):
            depth, cols = u32.shape(x)[1], u32.shape(weights)[1]
            row = i // cols
            col = i - row * cols
            total = ZERO
            for k in u32.range(depth):
                total += float32(x[row, k]) * float32(weights[k, col])
            out[row, col] = epilogue(total, bias, residual_of, row, col)

    return fused_naive_kernel


def fused_naive(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
    """One thread computes one element and its epilogue. Neighbours read neighbouring weights."""
    check_fused(x, weights, bias, residual, out)
    kernel = make_fused_naive(gelu, residual is not None)
    kernel[-(-out.size // BLOCK), BLOCK, stream](x, weights, bias, out if residual is None else residual, out)


# --- 16 x 16 tiles ----------------------------------------------------------------------------------------------------


@kernel_factory
def make_fused_tiled(gelu: bool | str, residual: bool):
    epilogue = epilogue_for(gelu, residual)

    @cuda.jit
    def fused_tiled_kernel(x, weights, bias, residual_of, out):
        x_tile = cuda.shared.array((TILE, TILE), float32)
        w_tile = cuda.shared.array((TILE, TILE), float32)
        tx, ty = u32.threadIdx.x, u32.threadIdx.y
        col = u32.blockIdx.y * TILE + tx
        row = u32.blockIdx.x * TILE + ty
        rows, depth, cols = u32.shape(x)[0], u32.shape(x)[1], u32.shape(weights)[1]
        total = ZERO
        for start in u32.range(0, depth, TILE):
            x_tile[ty, tx] = float32(x[row, start + tx]) if row < rows and start + tx < depth else ZERO
            w_tile[ty, tx] = float32(weights[start + ty, col]) if start + ty < depth and col < cols else ZERO
            cuda.syncthreads()  # both tiles are complete
            for k in range(TILE):
                total += x_tile[ty, k] * w_tile[k, tx]
            cuda.syncthreads()  # both tiles are free to overwrite
        if row < rows and col < cols:
            out[row, col] = epilogue(total, bias, residual_of, row, col)

    return fused_tiled_kernel


def fused_tiled(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
    """As naive, but from 16 x 16 tiles in shared memory: an element is fetched once for 16 uses."""
    rows, cols, _ = check_fused(x, weights, bias, residual, out)
    kernel = make_fused_tiled(gelu, residual is not None)
    kernel[blocks_for((rows, cols), (TILE, TILE)), (TILE, TILE), stream](
        x, weights, bias, out if residual is None else residual, out)


# --- The pipeline of the matmul ladder, with split-K ------------------------------------------------------------------
# A product with few tiles leaves SMs idle: 128 x 768 elements are 6 tiles of 128 x 128. Split-K divides the K of a tile
# among several blocks. Each writes its partial sums; a second kernel reduces them, always in the same order.


@cuda.jit(device=True)
def copy_pair_any_rows(shared, fill, a, a_row, a_col, b, b_row, b_col):
    """As matmul's copy_pair, but with zeros for rows beyond the last of a: for any number of tokens."""
    rows, depth, cols = u32.shape(a)[0], u32.shape(a)[1], u32.shape(b)[1]
    a_dst = fill + a_col % BLOCK_K * STRIDE + a_row % BLOCK_TILE
    b_dst = fill + b_row % BLOCK_K * STRIDE + A_STRIDE + b_col % BLOCK_TILE
    for i in u32.range(8):
        row = a_row + 16 * i
        inside = row < rows
        ptx.cp_async_4(shared, a_dst + 16 * i, a, row * depth + a_col if inside else 0, 4 if inside else 0)
    b_src = b_row * cols + b_col
    for i in u32.range(2):
        ptx.cp_async_16(shared, b_dst + 8 * i * STRIDE, b, b_src + 8 * i * cols, 16)


@kernel_factory
def make_fused_pipelined(exact: bool, split: bool, gelu: bool | str, residual: bool):
    """exact: N is a multiple of 128, K of 16, and all begin at multiples of 16 bytes. split: out is (splits, M, N), and
    a block computes one split of its tile, `k_per_split` steps along K, without the epilogue."""
    multiply = make_pipeline(copy_pair_any_rows if exact else copy_pair_guarded)
    epilogue = epilogue_for(gelu, residual)

    @cuda.jit(device=True)
    def store_four(acc, n, bias, residual_of, out, row, col):
        rows, cols = u32.shape(out)
        if exact:
            if row < rows:
                ptx.store_global4(out, row * cols + col,
                                  epilogue(acc[n], bias, residual_of, row, col),
                                  epilogue(acc[n + 1], bias, residual_of, row, col + 1),
                                  epilogue(acc[n + 2], bias, residual_of, row, col + 2),
                                  epilogue(acc[n + 3], bias, residual_of, row, col + 3))
        else:
            for i in u32.range(4):
                if row < rows and col + i < cols:
                    out[row, col + i] = epilogue(acc[n + i], bias, residual_of, row, col + i)

    @cuda.jit(device=True)
    def store_four_partials(acc, n, out, split_idx, row, col):
        rows, cols = u32.shape(out)[1], u32.shape(out)[2]
        if exact:
            if row < rows:
                ptx.store_global4(out, (split_idx * rows + row) * cols + col,
                                  acc[n], acc[n + 1], acc[n + 2], acc[n + 3])
        else:
            for i in u32.range(4):
                if row < rows and col + i < cols:
                    out[split_idx, row, col + i] = acc[n + i]

    @cuda.jit(launch_bounds=(256, resident(2, 256, 4 * RING)))
    def fused_pipelined_kernel(a, b, bias, residual_of, out, k_per_split):
        acc = cuda.local.array(64, float32)
        row0 = u32.blockIdx.x * BLOCK_TILE
        col0 = u32.blockIdx.y * BLOCK_TILE
        split_idx = u32.blockIdx.z
        start = uint32(split_idx * k_per_split)
        end = min(start + k_per_split, u32.shape(a)[1])
        row, col = multiply(acc, a, b, row0, col0, start, end)
        for i in u32.range(8):
            out_row = row0 + row + (i // 4 * 32 + i % 4)
            for j in u32.range(0, 8, 4):
                out_col = col0 + col + j * 4
                if split:
                    store_four_partials(acc, i * 8 + j, out, split_idx, out_row, out_col)
                else:
                    store_four(acc, i * 8 + j, bias, residual_of, out, out_row, out_col)

    return fused_pipelined_kernel


@kernel_factory
def make_add_parts(count: int, gelu: bool | str, residual: bool, bias: bool = True):
    """count: of splits, known to the compiler, so that a thread loads all partials before it waits for the first."""
    epilogue = epilogue_for(gelu, residual, bias)
    SPLITS = count

    @cuda.jit
    def add_parts_kernel(partials, bias, residual_of, out):
        i = u32.grid(1)
        size, cols = u32.size(out), u32.shape(out)[1]
        if i < size:
            row = i // cols
            total = ZERO
            for split_idx in u32.range(SPLITS):  # always in this order: the same sum every time
                total += partials[i + split_idx * size]
            col = i - row * cols
            out[row, col] = epilogue(total, bias, residual_of, row, col)

    return add_parts_kernel


# On an H200; other GPUs in proportion to their data sheets.
STEP_SECONDS = 86e-9  # for a step along K of a tile of 128 x 128 on one SM, at 50 TFLOP/s for all
OVERHEAD_STEPS = 40  # a block's overhead in steps of K: filling the pipeline, and the epilogue
BANDWIDTH = 3.5e12  # bytes a second, partial sums written and read
SECOND_LAUNCH = 2e-6


def seconds_between(parts: int, rows: int, cols: int) -> float:
    """Return the cost of splitting K into `parts`: their sums are written, then read by a second launch."""
    bandwidth = BANDWIDTH * gpus.of_an_h200("bandwidth_gbs")
    return 0.0 if parts == 1 else 8 * parts * rows * cols / bandwidth + SECOND_LAUNCH


@gpus.cached_by_target
def parts_of(rows: int, cols: int, depth: int) -> tuple[int, int]:
    """Return (splits, steps of K in each) with which a product finishes first, by the model of the constants above."""
    tiles = -(-rows // BLOCK_TILE) * -(-cols // BLOCK_TILE)
    step_seconds = STEP_SECONDS / gpus.of_an_h200("fp32_tflops", per_sm=True)

    def cost(parts):
        rounds = -(-tiles * parts // gpus.sm_count())
        return rounds * (slice_of(parts) + OVERHEAD_STEPS) * step_seconds + seconds_between(parts, rows, cols)

    def slice_of(parts):
        return -(-depth // (parts * BLOCK_K)) * BLOCK_K

    best = min(range(1, max(1, min(32, depth // 32)) + 1), key=cost)
    return -(-depth // slice_of(best)), slice_of(best)  # no split is empty


def scratch_size(rows: int, cols: int, depth: int) -> int:
    """Return how many float32 elements fused_pipelined needs for its partial sums; 0 where K is not split."""
    parts, _ = parts_of(rows, cols, depth)
    return 0 if parts == 1 else parts * rows * cols


def fused_pipelined(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
    """As tiled, but with the pipeline of the matmul ladder: 128 x 128 elements a block, 8 x 8 a thread, cp.async two
    tiles ahead. Where tiles are few, their K is split. `parts` is memory for that, scratch_size(M, N, K) elements;
    without it memory is allocated at each call."""
    rows, cols, depth = check_fused(x, weights, bias, residual, out)
    launch_pipelined(parts_of(rows, cols, depth), x, weights, bias, residual, out, gelu=gelu, parts=parts,
                     stream=stream)


def launch_pipelined(split, x, weights, bias, residual, out, *, gelu=False, parts=None, stream=0) -> None:
    """As launch_split, with the kernel of make_fused_pipelined that the sizes allow."""
    depth, cols = weights.shape

    def make(target, *options):
        exact = cols % BLOCK_TILE == 0 and depth % BLOCK_K == 0 and aligned(x, weights, target)
        return make_fused_pipelined(exact, *options)

    launch_split(make, split, (BLOCK_TILE, BLOCK_TILE), x, weights, bias, residual, out, gelu=gelu, parts=parts,
                 stream=stream, shared=4 * RING)


def launch_split(make, split, tile, x, weights, bias, residual, out, *, gelu, parts, stream, shared=0) -> None:
    """Launch the kernel of 256 threads that make(target, is_split, gelu, residual) returns, and where K is split the
    one that adds the partial sums. split: (splits, steps of K in each). tile: rows and columns of a block. bias may be
    None where K is split."""
    (rows, cols), (count, slice_) = out.shape, split
    target, epilogue = out, (gelu, residual is not None)
    if count > 1:
        parts = memory_for(parts, count, rows, cols)
        target, epilogue = parts.reshape(count, rows, cols), (False, False)
    kernel = make(target, count > 1, *epilogue)
    arguments = (x, weights, out.reshape(-1) if bias is None else bias, out if residual is None else residual, target,
                 *unsigned(slice_))
    dynamic_shared(kernel, shared, *arguments)
    kernel[(*blocks_for((rows, cols), tile), count), 256, stream, shared](*arguments)
    if count > 1:
        add_parts(parts, bias, residual, out, count, gelu, stream)


def memory_for(parts, count: int, rows: int, cols: int):
    """Return the first count * rows * cols elements of `parts`, or new memory of that size if it is None."""
    needed = count * rows * cols
    if parts is None:
        return graphs.keep(cuda.device_array(needed, np.float32))
    check_array("parts", parts, ndim=1)
    if parts.size < needed:
        raise ValueError(f"parts has {parts.size:,} numbers; {count} parts of {rows} x {cols} sums need {needed:,}")
    return parts[:needed]


def add_parts(parts, bias, residual, out, count: int, gelu: bool | str, stream) -> None:
    """out = the sum of `count` partial sums and the bias, if there is one, then GELU, then + residual."""
    add = make_add_parts(count, gelu, residual is not None, bias is not None)
    add[-(-out.size // BLOCK), BLOCK, stream](parts, out.reshape(-1) if bias is None else bias,
                                              out if residual is None else residual, out)


def check_fused(x, weights, bias, residual, out, dtype=None) -> tuple:
    """Return (rows, cols, depth), or raise an error that names the argument."""
    dtype = np.dtype(getattr(x, "dtype", np.float32)) if dtype is None else np.dtype(dtype)
    if dtype not in (np.float32, np.float16):
        raise TypeError(f"x has dtype {dtype}; float32 and float16 are allowed")
    rows, cols, depth = product_sizes(x, weights, names=("x", "weights"), dtype=dtype)
    check_array("bias", bias, shape=(cols,), dtype=dtype)
    check_array("out", out, shape=(rows, cols), dtype=dtype)
    if residual is not None:
        check_array("residual", residual, shape=(rows, cols), dtype=dtype)
    return rows, cols, depth
