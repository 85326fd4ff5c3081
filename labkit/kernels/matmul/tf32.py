"""Matrix multiply of float32 on tensor cores, out = a @ b: each element rounded to TF32, a mantissa of 10 bits.

Shapes  a (M, K), b (K, N), out (M, N); float32, C-contiguous
Sizes   any for tensor_core; K and N multiples of 4 for pipelined, which moves 16 bytes at a time
Work    2*M*N*K flop; at least 4*(M*K + K*N + M*N) bytes
Needs   compute capability 8.0
Source  PTX ISA, "Matrix Fragments for mma.m16n8k8"

mma.sync multiplies 16 x 8 by 8 x 8 elements. Lane L holds a at rows L // 4 and L // 4 + 8, columns L % 4 and L % 4 + 4;
b at rows L % 4 and L % 4 + 4, column L // 4; accumulators as with float16.
"""


import numpy as np
from numba import float32, int64, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import blocks_for
from labkit.kernels.matmul.half import store_accumulators
from labkit.kernels.matmul.mma import (
    BAND,
    Tile,
    check_product,
    launch,
    make_copy,
    make_copy_stage,
    make_store_floats,
    swizzle_of,
    tile_of_block,
)
from labkit.kernels.op import rung

CHUNK = 4  # elements in 16 bytes


def matmul_tf32_reference(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


@cuda.jit(device=True)
def add_product_tf32(acc, i, a0, a1, a2, a3, b0, b1):
    """acc[i : i + 4] += a 16 x 8 product in TF32 over 8 steps of K, in float32."""
    w, x, y, z = ptx.mma_m16n8k8_f32_tf32(a0, a1, a2, a3, b0, b1, acc[i], acc[i + 1], acc[i + 2], acc[i + 3])
    acc[i], acc[i + 1], acc[i + 2], acc[i + 3] = w, x, y, z


@cuda.jit(device=True)
def load_tf32(matrix, row, col):
    """Return matrix[row, col] rounded to TF32, zero beyond the edges."""
    inside = row < u32.shape(matrix)[0] and col < u32.shape(matrix)[1]
    return ptx.to_tf32(matrix[row, col] if inside else float32(0.0))


@cuda.jit(device=True)
def to_tf32(word):
    """Round the float32 in a word as ptx.to_tf32 does, but in two instructions, not four; some NaNs differ. Half of the
    last remaining bit is added, then the lower 13 bits are cleared."""
    return (word + 0x1000) & 0xFFFFE000


@kernel_factory
def make_tensor_core():
    @cuda.jit
    def matmul_tf32_tensor_core_kernel(a, b, out):
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        row = u32.blockIdx.y * 32 + warp // 2 * 16  # of this warp's 16 x 16 tile
        col = u32.blockIdx.x * 32 + warp % 2 * 16
        group_id, quad_lane = lane // 4, lane % 4
        acc = cuda.local.array(8, float32)
        for i in range(8):
            acc[i] = float32(0.0)
        depth = u32.shape(a)[1]
        for k in u32.range(0, depth, 8):
            a0, a1 = load_tf32(a, row + group_id, k + quad_lane), load_tf32(a, row + group_id + 8, k + quad_lane)
            a2 = load_tf32(a, row + group_id, k + quad_lane + 4)
            a3 = load_tf32(a, row + group_id + 8, k + quad_lane + 4)
            for j in u32.range(2):  # two products of 16 x 8, side by side
                b0 = load_tf32(b, k + quad_lane, col + group_id + 8 * j)
                b1 = load_tf32(b, k + quad_lane + 4, col + group_id + 8 * j)
                add_product_tf32(acc, 4 * j, a0, a1, a2, a3, b0, b1)
        for j in u32.range(2):
            store_accumulators(acc, 4 * j, out, row, col + 8 * j)

    return matmul_tf32_tensor_core_kernel


@rung(kernel=make_tensor_core(),
      idea="mma.sync: a 16 x 16 tile a warp, straight from global memory")
def matmul_tf32_tensor_core(a, b, out, stream=0):
    """A warp computes a 16 x 16 tile with the tensor cores, 8 steps of K at a time."""
    rows, cols, _ = check_product(a, b, None, None, out, weights=False, multiple=1, dtype=np.float32,
                                  out_dtype=np.float32)
    make_tensor_core()[blocks_for((cols, rows), (32, 32)), 128, stream](a, b, out)


@kernel_factory
def make_pipelined_tf32(tile: Tile):
    """As mma.make_pipelined. ldmatrix loads four elements of a row in place of eight float16 values; but it cannot
    transpose them, so b is read element by element, from rows padded by 32 bytes."""
    ROWS, COLS, DEPTH = tile.rows, tile.cols, tile.depth
    STAGES, PREFETCH, PENDING = tile.stages, tile.stages - 1, tile.stages - 2
    WARPS_N, WARP_ROWS, WARP_COLS = tile.cols // tile.warp_cols, tile.warp_rows, tile.warp_cols
    MMA_M, MMA_N, STEPS = WARP_ROWS // 16, WARP_COLS // 8, DEPTH // 8
    B_PITCH = COLS + 8  # four rows and eight columns then lie in 32 banks
    A_SIZE = ROWS * DEPTH
    STAGE_SIZE = A_SIZE + DEPTH * B_PITCH
    ACCUMULATORS, A_REGS, B_REGS = MMA_M * MMA_N * 4, MMA_M * 4, MMA_N * 2
    SHIFT, MASK = swizzle_of(DEPTH // CHUNK)
    copy_a = make_copy(ROWS, DEPTH, tile.threads, DEPTH, swizzled=True, chunk=CHUNK)
    copy_b = make_copy(DEPTH, COLS, tile.threads, B_PITCH, swizzled=False, chunk=CHUNK)
    copy_stage = make_copy_stage(copy_a, copy_b, A_SIZE, STAGE_SIZE, weights=False)
    store = make_store_floats(tile)

    @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
    def pipelined_tf32_kernel(a, b, bias_of, residual_of, out):
        shared = cuda.shared.array(0, float32)
        words = cuda.shared.array(0, uint32)  # the same memory as words
        rows, cols, depth = u32.shape(out)[0], u32.shape(out)[1], u32.shape(a)[1]
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        tiles_m = (rows + (ROWS - 1)) // ROWS
        tiles_n = (cols + (COLS - 1)) // COLS
        tile_row, tile_col = tile_of_block(u32.blockIdx.x, tiles_m, tiles_n, BAND)
        row0, col0 = tile_row * ROWS, tile_col * COLS
        warp_row = warp // WARPS_N * WARP_ROWS
        warp_col = warp % WARPS_N * WARP_COLS

        a_row = warp_row + lane % 16
        a_chunk = lane // 16 ^ a_row >> SHIFT & MASK
        a_offset = a_row * DEPTH + a_chunk * CHUNK
        b_offset = A_SIZE + lane % 4 * B_PITCH + warp_col + lane // 4

        acc = cuda.local.array(ACCUMULATORS, float32)
        a_frag = cuda.local.array((2, A_REGS), uint32)
        b_frag = cuda.local.array((2, B_REGS), uint32)
        for i in u32.range(ACCUMULATORS):
            acc[i] = float32(0.0)
        for i in u32.range(A_REGS):
            a_frag[1, i] = 0  # the first product has no fragments yet: it adds zeros
        for i in u32.range(B_REGS):
            b_frag[1, i] = 0

        steps = (depth + (DEPTH - 1)) // DEPTH
        for s in u32.range(PREFETCH):
            copy_stage(shared, s, a, b, row0, col0, s * DEPTH, thread)
            ptx.cp_async_commit()
        full, empty = 0, PREFETCH  # the stages to multiply and to fill next
        for step in u32.range(steps):
            ptx.cp_async_wait(PENDING)
            cuda.syncthreads()  # stage `full` has landed; `empty`, the previous one, has been read by every warp
            stage = full * STAGE_SIZE
            full = full + 1 if full < PREFETCH else 0
            for k in u32.range(STEPS):
                load_buf, mma_buf = k % 2, (k + 1) % 2
                for i in u32.range(MMA_M):
                    regs = ptx.ldmatrix_x4(shared, stage + (a_offset ^ 8 * k) + i * 16 * DEPTH)
                    for j in u32.range(4):
                        a_frag[load_buf, i * 4 + j] = regs[j]
                b_base = int64(stage + b_offset)  # in 64 bits, where constants are immediate offsets of the loads
                for i in range(MMA_N):
                    for j in range(2):
                        b_frag[load_buf, i * 2 + j] = words[b_base + ((k * 8 + j * 4) * B_PITCH + i * 8)]
                if k == STEPS - 1:
                    next_step = step + PREFETCH
                    if next_step < steps:
                        copy_stage(shared, empty, a, b, row0, col0, next_step * DEPTH, thread)
                    ptx.cp_async_commit()
                    empty = empty + 1 if empty < PREFETCH else 0
                for i in u32.range(MMA_M):
                    for j in u32.range(MMA_N):
                        add_product_tf32(acc, (i * MMA_N + j) * 4,  # rounded here, while the tensor cores work
                                         to_tf32(a_frag[mma_buf, i * 4]), to_tf32(a_frag[mma_buf, i * 4 + 1]),
                                         to_tf32(a_frag[mma_buf, i * 4 + 2]), to_tf32(a_frag[mma_buf, i * 4 + 3]),
                                         to_tf32(b_frag[mma_buf, j * 2]), to_tf32(b_frag[mma_buf, j * 2 + 1]))
        for i in u32.range(MMA_M):
            for j in u32.range(MMA_N):
                add_product_tf32(acc, (i * MMA_N + j) * 4,
                                 to_tf32(a_frag[1, i * 4]), to_tf32(a_frag[1, i * 4 + 1]),
                                 to_tf32(a_frag[1, i * 4 + 2]), to_tf32(a_frag[1, i * 4 + 3]),
                                 to_tf32(b_frag[1, j * 2]), to_tf32(b_frag[1, j * 2 + 1]))
        store(acc, out, 0, rows, row0 + warp_row, col0 + warp_col)

    pipelined_tf32_kernel.tile, pipelined_tf32_kernel.in_bands = tile, True
    pipelined_tf32_kernel.shared_bytes = 4 * STAGES * STAGE_SIZE
    return pipelined_tf32_kernel


PIPELINED = make_pipelined_tf32(Tile(rows=128, cols=256, depth=16, warp_rows=64, warp_cols=64, stages=4))


@rung(kernel=PIPELINED,
      idea="four stages of cp.async, 64 x 64 a warp, fragments loaded ahead",
      sizes="K and N multiples of 4")
def matmul_tf32_pipelined(a, b, out, stream=0):
    """As tensor_core, but staged like matmul_half_pipelined; a fragment is rounded to TF32 before it is multiplied."""
    check_product(a, b, None, None, out, weights=False, dtype=np.float32, out_dtype=np.float32, multiple=CHUNK)
    launch(PIPELINED, a, b, None, None, out, stream)
