"""Linear layers of few rows, and `linear`, which picks a kernel by shape: out = x @ weights + bias, then GELU or a
residual.

Shapes  x (M, K), weights (K, N), bias (N,), residual and out (M, N); all float32, or all float16 with float32
        accumulators
Sizes   any for float32, K and N multiples of 8 for float16; fast for M up to 64 (float32) and 128 (float16)
Work    2*M*N*K flop; 4 (2) * (M*K + K*N + N + M*N) bytes, nearly all of them weights where M is small: what counts is
        how many are in flight. So a block has only 16 columns; its eight warps share K, and more blocks do (fused.py).
        float32 and float16 have a kernel each in this file
Source  PTX ISA, "Matrix Fragments for mma.m16n8k16", "ldmatrix"; NVIDIA CUTLASS, "Efficient GEMM in CUDA"
"""


import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned
from labkit.kernels.linear import fused as fused_linear
from labkit.kernels.linear.fused import (
    ZERO,
    add_parts,
    check_fused,
    epilogue_for,
    fused_naive,
    fused_pipelined,
    fused_tiled,
    gelu_of,
    launch_split,
    memory_for,
    seconds_between,
)
from labkit.kernels.matmul import mma as tensor_core
from labkit.kernels.matmul import wgmma
from labkit.kernels.matmul.float32_tiles import load_four, load_four_scalar
from labkit.kernels.matmul.mma import Tile, add_product, launch, make_pipelined, usable
from labkit.kernels.matmul.wgmma import has_wgmma, multiply_parts, multiply_specialised
from labkit.kernels.matmul.wgmma_tiles import unchanged

COLS = 16  # of a block
WARPS = 8
THREADS = 32 * WARPS  # 256, as launch_split has them
ALL_LANES = 0xFFFFFFFF

# --- float32 ----------------------------------------------------------------------------------------------------------

GROUPS = 64  # of four lanes; each takes every 64th step of K
CHUNK = 4 * GROUPS  # steps for which x is staged: four for each group


def make_reduce_scatter(count: int, distance: int):
    """A device function: one step of a warp's reduce-scatter. Add `count` accumulators to those of the lane `distance`
    away, so that each lane keeps half of them; both keep a single one."""
    half = count // 2

    @cuda.jit(device=True)
    def reduce_scatter(acc, lane):
        if half:
            upper = lane & distance != 0
            for i in range(half):
                keep, send = acc[i], acc[half + i]
                if upper:
                    keep, send = send, keep
                acc[i] = keep + cuda.shfl_xor_sync(ALL_LANES, send, distance)
        else:
            acc[0] = acc[0] + cuda.shfl_xor_sync(ALL_LANES, acc[0], distance)

    return reduce_scatter


@kernel_factory
def make_skinny(rows_per_block: int, vec4: bool, split: bool, gelu: bool | str, residual: bool):
    """rows_per_block: 1, 4 or 16. vec4: rows of weights begin at multiples of 16 bytes. split: out is (splits, M, N),
    and the epilogue is left to a second kernel."""
    ROWS = rows_per_block
    PITCH = ROWS + 4 if ROWS > 4 else ROWS  # of x: eight lanes that store four rows each hit eight groups of banks
    QUADS, ACCUMULATORS = ROWS // 4, 4 * ROWS
    LANE_ACCUMULATORS = max(1, ACCUMULATORS // 8)  # of a lane after three steps of reduce-scatter
    X_SIZE, NUM_PARTIALS = CHUNK * PITCH, WARPS * ROWS * COLS
    load, epilogue = load_four if vec4 else load_four_scalar, epilogue_for(gelu, residual)
    reduce_16, reduce_8 = make_reduce_scatter(ACCUMULATORS, 16), make_reduce_scatter(ACCUMULATORS // 2, 8)
    reduce_4 = make_reduce_scatter(ACCUMULATORS // 4, 4)

    @cuda.jit(device=True)
    def load_x(x, row, k):
        return x[row, k] if row < u32.shape(x)[0] and k < u32.shape(x)[1] else ZERO

    @cuda.jit(device=True)
    def add_row(acc, n, value, w):
        a, b, c, d = w
        acc[n] += value * a
        acc[n + 1] += value * b
        acc[n + 2] += value * c
        acc[n + 3] += value * d

    @cuda.jit(device=True)
    def add_step(acc, x_tile, offset, w):
        """Add the products of four weights of one step of K with that step of every row."""
        if QUADS > 0:
            for r in u32.range(QUADS):
                p, q, s, t = ptx.load_shared4(x_tile, offset + 4 * r)
                add_row(acc, 16 * r, p, w)
                add_row(acc, 16 * r + 4, q, w)
                add_row(acc, 16 * r + 8, s, w)
                add_row(acc, 16 * r + 12, t, w)
        else:
            for r in u32.range(ROWS):
                add_row(acc, 4 * r, x_tile[offset + r], w)

    @cuda.jit(launch_bounds=(THREADS, 2))
    def skinny_kernel(x, weights, bias, residual_of, out, k_per_split):
        x_tile = cuda.shared.array(X_SIZE, float32, alignment=16)  # transposed: the rows of a step of K are neighbours
        partials = cuda.shared.array(NUM_PARTIALS, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        group, quad = thread // 4, thread % 4  # which steps of K, which four columns
        row0 = u32.blockIdx.x * ROWS
        col0 = u32.blockIdx.y * COLS
        split_idx = u32.blockIdx.z
        start = uint32(split_idx * k_per_split)
        k_end = min(start + k_per_split, u32.shape(x)[1])
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO

        for k0 in u32.range(start, k_end, CHUNK):
            k, col = k0 + group, col0 + quad * 4  # loaded before x is staged
            w0, w1 = load(weights, k, col), load(weights, k + GROUPS, col)
            w2 = load(weights, k + 2 * GROUPS, col)
            w3 = load(weights, k + 3 * GROUPS, col)
            x_k = k0 + thread
            if QUADS > 0:
                for r in u32.range(QUADS):
                    row = row0 + 4 * r
                    ptx.store_shared4(x_tile, thread * PITCH + 4 * r,
                                      load_x(x, row, x_k), load_x(x, row + 1, x_k),
                                      load_x(x, row + 2, x_k), load_x(x, row + 3, x_k))
            else:
                for r in u32.range(ROWS):
                    x_tile[thread * PITCH + r] = load_x(x, row0 + r, x_k)
            cuda.syncthreads()  # x is staged
            offset = group * PITCH
            add_step(acc, x_tile, offset, w0)
            add_step(acc, x_tile, offset + GROUPS * PITCH, w1)
            add_step(acc, x_tile, offset + 2 * GROUPS * PITCH, w2)
            add_step(acc, x_tile, offset + 3 * GROUPS * PITCH, w3)
            cuda.syncthreads()  # x is free to overwrite

        # Reduce-scatter among the eight groups of a warp: each lane ends with an eighth of the sums.
        reduce_16(acc, lane)
        reduce_8(acc, lane)
        reduce_4(acc, lane)
        # The first value of 4 * row + column that the lane keeps:
        base = (lane // 16 * (ACCUMULATORS // 2) + lane // 8 % 2 * (ACCUMULATORS // 4)
                + lane // 4 % 2 * (ACCUMULATORS // 8))
        for i in u32.range(LANE_ACCUMULATORS):
            n = base + i
            row, col = n // 4, quad * 4 + n % 4
            partials[(warp * ROWS + row) * COLS + col] = acc[i]
        cuda.syncthreads()  # the partial sums of all warps are written
        row, col = thread // COLS, thread % COLS
        if row < ROWS:
            total = ZERO
            for other_warp in u32.range(WARPS):
                total += partials[(other_warp * ROWS + row) * COLS + col]
            row, col = row0 + row, col0 + col
            if row < u32.shape(x)[0] and col < u32.shape(weights)[1]:
                if split:
                    out[split_idx, row, col] = total
                else:
                    out[row, col] = epilogue(total, bias, residual_of, row, col)

    return skinny_kernel


# --- float16, tensor cores --------------------------------------------------------------------------------------------

STEP = 32  # of K: two products of 16 steps
STAGES = 4  # of a ring for each warp: three steps in flight
PENDING = STAGES - 2
STAGE_SIZE = STEP * COLS  # float16 values
WARP_RING = STAGES * STAGE_SIZE
RING_SIZE = WARPS * WARP_RING


@kernel_factory
def make_skinny_half(row_tiles: int, split: bool, gelu: bool | str, residual: bool):
    """row_tiles: of 16 rows each; a fragment of the weights is used for all of them.

    K may be permuted, if both factors are permuted alike. A lane needs, of x, pairs at 2q and 2q + 8 for each of two
    products (q = lane % 4): eight float16 values at four addresses. Here row j of product t is step
    8 * (j % 8 // 2) + 2 * (j // 8) + j % 2 + 4 * t of K instead: the eight float16 values are contiguous, one load of
    16 bytes straight from memory, and only the weights go through shared memory, with their rows in that order.
    """
    TILES, ACCUMULATORS, X_REGS = row_tiles, 8 * row_tiles, 8 * row_tiles
    ROWS = 16 * row_tiles
    NUM_PARTIALS = WARPS * 256
    epilogue = epilogue_for(gelu, residual)

    @cuda.jit(device=True)
    def copy_step(ring, stage, weights, k0, col0, lane, inside):
        """Copy 32 rows of 16 columns. The two pieces of a row are swapped in every other four rows, so that ldmatrix
        reads eight rows from different banks."""
        depth, cols = u32.shape(weights)
        j, piece = lane // 2, lane % 2
        col = col0 + piece * 8
        for t in u32.range(2):
            k = k0 + j % 8 // 2 * 8 + j // 8 * 2 + j % 2 + 4 * t
            valid = inside and k < depth and col < cols
            slot = piece ^ j // 4 % 2
            ptx.cp_async_16(ring, stage + t * 256 + j * COLS + slot * 8,
                            weights, k * cols + col if valid else 0, 16 if valid else 0)

    @cuda.jit(device=True)
    def load_vec(x, row, k, inside):
        a, b, c, d = 0, 0, 0, 0
        if inside and row < u32.shape(x)[0] and k < u32.shape(x)[1]:
            a, b, c, d = ptx.load_nc4(x, row * u32.shape(x)[1] + k)
        return a, b, c, d

    @cuda.jit(device=True)
    def load_step(x, row, k, inside, x_frag):
        for i in u32.range(TILES):
            vec = load_vec(x, row + 16 * i, k, inside)
            vec8 = load_vec(x, row + (16 * i + 8), k, inside)
            for n in range(4):
                x_frag[8 * i + 2 * n], x_frag[8 * i + 2 * n + 1] = vec[n], vec8[n]

    @cuda.jit(launch_bounds=(THREADS, 2))
    def skinny_half_kernel(x, weights, bias, residual_of, out, k_per_split):
        ring = cuda.shared.array(RING_SIZE, np.float16, alignment=16)
        partials = cuda.shared.array(NUM_PARTIALS, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        x_frag = cuda.local.array(X_REGS, uint32)
        next_frag = cuda.local.array(X_REGS, uint32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        row0 = u32.blockIdx.x * ROWS
        col0 = u32.blockIdx.y * COLS
        split_idx = u32.blockIdx.z
        k_end = min((split_idx + 1) * k_per_split, u32.shape(x)[1])
        k = split_idx * k_per_split + warp * STEP  # a warp takes every eighth step
        ring_base = warp * WARP_RING
        row, lane_k = row0 + lane // 4, lane % 4 * 8
        # The row of a stage that this lane addresses in ldmatrix: four tiles of 8 x 8, along k, then along the columns.
        j = lane % 16
        ldmatrix_offset = ring_base + j * COLS + (lane // 16 ^ j // 4 % 2) * 8
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO

        for s in u32.range(STAGES - 1):
            copy_k = k + s * WARPS * STEP
            copy_step(ring, ring_base + s * STAGE_SIZE, weights, copy_k, col0, lane, copy_k < k_end)
            ptx.cp_async_commit()
        load_step(x, row, k + lane_k, k < k_end, x_frag)
        stage, fill = 0, (STAGES - 1) * STAGE_SIZE
        while k < k_end:
            next_k = k + WARPS * STEP
            load_step(x, row, next_k + lane_k, next_k < k_end, next_frag)
            ptx.cp_async_wait(PENDING)
            cuda.syncwarp()  # all lanes' copies of this step have landed, and all have read the previous one
            copy_k = k + (STAGES - 1) * WARPS * STEP
            copy_step(ring, ring_base + fill, weights, copy_k, col0, lane, copy_k < k_end)
            ptx.cp_async_commit()
            for t in u32.range(2):
                b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(ring, ldmatrix_offset + stage + t * 256)
                for i in u32.range(TILES):
                    n = 8 * i + 4 * t
                    add_product(acc, 8 * i, x_frag[n], x_frag[n + 1], x_frag[n + 2], x_frag[n + 3], b0, b1)
                    add_product(acc, 8 * i + 4, x_frag[n], x_frag[n + 1], x_frag[n + 2], x_frag[n + 3], b2, b3)
            for i in u32.range(X_REGS):
                x_frag[i] = next_frag[i]
            stage = stage + STAGE_SIZE if stage < (STAGES - 1) * STAGE_SIZE else 0
            fill = fill + STAGE_SIZE if fill < (STAGES - 1) * STAGE_SIZE else 0
            k = next_k
        ptx.cp_async_wait(0)

        group_id, pair = lane // 4, lane % 4 * 2
        for i in u32.range(TILES):
            for n in u32.range(2):
                slot = warp * 256 + group_id * 16 + pair + 8 * n
                partials[slot], partials[slot + 1] = acc[8 * i + 4 * n], acc[8 * i + 4 * n + 1]
                partials[slot + 128] = acc[8 * i + 4 * n + 2]
                partials[slot + 129] = acc[8 * i + 4 * n + 3]
            cuda.syncthreads()  # the partial sums of all warps are written
            total = ZERO
            for other_warp in u32.range(WARPS):
                total += partials[thread + 256 * other_warp]
            out_row, out_col = row0 + 16 * i + thread // 16, col0 + thread % 16
            if out_row < u32.shape(x)[0] and out_col < u32.shape(weights)[1]:
                if split:
                    out[split_idx, out_row, out_col] = total
                else:
                    out[out_row, out_col] = epilogue(total, bias, residual_of, out_row, out_col)
            if i + 1 < TILES:
                cuda.syncthreads()  # partials are free for the next 16 rows

    return skinny_half_kernel


# --- Launchers --------------------------------------------------------------------------------------------------------


def rows_of_block(rows: int, dtype) -> int:
    """Return how many rows a block computes: all of them, up to what its registers hold."""
    few = (16, 32, 64) if np.dtype(dtype) == np.float16 else (1, 4, 16)
    return next((count for count in few if rows <= count), few[-1])


@gpus.cached_by_target
def parts_of(rows: int, cols: int, depth: int, dtype) -> tuple[int, int]:
    """Return (splits, steps of K in each), as fused_linear.parts_of, for a block of 16 columns."""
    half = np.dtype(dtype) == np.float16
    rows_per_block = rows_of_block(rows, dtype)
    blocks = -(-rows // rows_per_block) * -(-cols // COLS)
    step = WARPS * STEP if half else CHUNK
    # Seconds of an SM of an H200 for one step of K: the bytes of 16 weights at 40 GB/s, and their products.
    seconds, products = (0.8e-9, rows_per_block / 64) if half else (1.6e-9, rows_per_block / 8)
    seconds *= max(1 / gpus.of_an_h200("bandwidth_gbs", per_sm=True),
                   products / gpus.of_an_h200("f16_tflops" if half else "fp32_tflops", per_sm=True))

    def slice_of(parts):
        return -(-depth // (parts * step)) * step

    def cost(parts):
        rounds = -(-blocks * parts // gpus.sm_count())
        return rounds * (slice_of(parts) + step / 2) * seconds + seconds_between(parts, rows, cols)

    best = min(range(1, -(-depth // step) + 1), key=cost)
    return -(-depth // slice_of(best)), slice_of(best)


def skinny(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
    """As fused_tiled, but a block computes 16 columns of up to 16 rows; 64 groups of four lanes share K, each loads
    four weights at once and uses them for all rows. `parts`: as for fused_pipelined."""
    sizes = check_fused(x, weights, bias, residual, out, np.float32)
    vec4 = sizes[1] % 4 == 0 and aligned(weights)
    rows = rows_of_block(sizes[0], np.float32)
    launch_split(lambda _, *options: make_skinny(rows, vec4, *options), parts_of(*sizes, x.dtype), (rows, COLS),
                 x, weights, bias, residual, out, gelu=gelu, parts=parts, stream=stream)


def skinny_half(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
    """As skinny, for float16, on tensor cores: 16 rows at a time, of which those beyond the last are zeros. Each of
    eight warps takes every eighth step of K and has its own ring, so that no warp waits at a barrier."""
    sizes = check_fused(x, weights, bias, residual, out, np.float16)
    check_multiples_of_8(sizes, x, weights)
    rows = rows_of_block(sizes[0], np.float16)
    launch_split(lambda _, *options: make_skinny_half(rows // 16, *options), parts_of(*sizes, x.dtype), (rows, COLS),
                 x, weights, bias, residual, out, gelu=gelu, parts=parts, stream=stream)


def check_multiples_of_8(sizes, x, weights) -> None:
    for axis, size in (("K", sizes[2]), ("N", sizes[1])):
        if size % 8:
            raise ValueError(f"{axis} is {size}; it must be a multiple of 8, so that every row begins at a multiple of "
                             f"16 bytes")
    if not aligned(x, weights):
        raise ValueError("x and weights must begin at multiples of 16 bytes; one is a view that does not")


# --- Any shape --------------------------------------------------------------------------------------------------------

FEW, FEW_HALF = 64, 32  # rows up to which the kernels above are the ones to use
FEW_ON_CPU = 8  # rows from which on tiles of 16 x 16 are faster where threads run one after the other
WIDE_TILES = {  # of products in float16 by mma.sync -> speed relative to the first
    Tile(rows=128, cols=128, depth=32, warp_rows=64, warp_cols=32, stages=3, blocks=2): 1.0,
    Tile(rows=64, cols=64, depth=64, warp_rows=32, warp_cols=32, stages=4, blocks=2): 0.7,
}


def wide_tile(rows: int, cols: int) -> Tile:
    """Return the tile with which the busiest SM finishes first."""
    def cost(tile):
        return -(-tile.count(rows, cols) // gpus.sm_count()) * tile.rows * tile.cols / WIDE_TILES[tile]

    return min(usable(WIDE_TILES), key=cost)


def wide_half(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
    """A product in float16 with many rows: by wgmma, on GPUs that are not Hopper by mma.sync."""
    sizes = check_fused(x, weights, bias, residual, out, np.float16)
    check_multiples_of_8(sizes, x, weights)
    activation = gelu_of(gelu)
    if has_wgmma():
        count, slice_ = wgmma.parts_of(*sizes, wgmma.block_count())
        if count == 1:
            multiply_specialised(x, weights, bias, out, weights=False, activation=activation or unchanged,
                                 residual=residual, stream=stream)
        else:
            parts = memory_for(parts, count, *sizes[:2])
            multiply_parts(x, weights, out, parts, count, slice_, weights=False, stream=stream)
            add_parts(parts, bias, residual, out, count, gelu, stream)
    else:
        kernel = make_pipelined(wide_tile(*sizes[:2]), weights=False, bias=True, residual=residual is not None,
                                activation=activation or tensor_core.unchanged)
        launch(kernel, x, weights, bias, residual, out, stream)


def linear(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
    """out = x @ weights + bias, then GELU, then + residual: with the kernel to use for these sizes on this device.

    gelu: False, True for the tanh form of GPT-2, "erf" for the exact one of BERT.
    `parts`: memory of scratch_size(M, N, K, dtype) float32 elements; without it, it is allocated where it is needed.
    On the CPU device, where threads run one after the other, the plain kernels are the fastest.
    """
    rows, cols, depth = check_fused(x, weights, bias, residual, out)
    _pick(rows, cols, depth, x.dtype, aligned(x, weights, out))(
        x, weights, bias, out, residual=residual, gelu=gelu, parts=parts, stream=stream)


def _pick(rows: int, cols: int, depth: int, dtype, together=True):
    if not gpus.chosen_on_gpu():
        return fused_naive if rows < FEW_ON_CPU else fused_tiled
    if np.dtype(dtype) == np.float32:
        return skinny if rows <= FEW else fused_pipelined
    if cols % 8 or depth % 8 or not together:
        return fused_tiled
    return skinny_half if rows <= FEW_HALF else wide_half


def scratch_size(rows: int, cols: int, depth: int, dtype=np.float32) -> int:
    """Return how many float32 elements `linear` needs for partial sums; 0 where K is not split among blocks."""
    pick = _pick(rows, cols, depth, dtype)
    if pick is fused_pipelined:
        return fused_linear.scratch_size(rows, cols, depth)
    count = 1
    if pick is skinny or pick is skinny_half:
        count = parts_of(rows, cols, depth, np.dtype(dtype))[0]
    elif pick is wide_half and has_wgmma():
        count = wgmma.parts_of(rows, cols, depth, wgmma.block_count())[0]
    return 0 if count == 1 else count * rows * cols
