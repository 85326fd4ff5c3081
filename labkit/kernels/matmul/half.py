"""Matrix multiply in float16 on tensor cores, out = a @ b. One rung for each idea, slowest first.

Shapes  a (M, K), b (K, N), out (M, N); float16, C-contiguous; accumulators in float32 unless a rung says otherwise
Sizes   any for the first four rungs; K and N multiples of 8 for the others, which move 16 bytes at a time
Work    2*M*N*K flop; at least 2*(M*K + K*N + M*N) bytes
Source  PTX ISA, "Matrix Fragments for mma.m16n8k16"; NVIDIA CUTLASS, "Efficient GEMM in CUDA"

mma.sync multiplies 16 x 16 by 16 x 8 float16 values in one instruction of a warp. Lane L holds, of

    a    pairs of float16 values in rows L // 4 and L // 4 + 8, at columns 2 * (L % 4) and 2 * (L % 4) + 8   4 registers
    b    pairs of float16 values at rows 2 * (L % 4) and 2 * (L % 4) + 8, in column L // 4                   2 registers
    out  rows L // 4 and L // 4 + 8, columns 2 * (L % 4) and 2 * (L % 4) + 1                                 4 registers
"""


import numpy as np
from numba import float32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.kernels.arguments import blocks_for
from labkit.kernels.elements import BFLOAT16, bfloat16_number
from labkit.kernels.matmul.mma import (
    Tile,
    add_product,
    check_product,
    launch,
    make_copy,
    make_pipelined,
    make_staged,
    usable,
)
from labkit.kernels.op import rung, uniform
from labkit.kernels.tolerance import EPS16, SMALLEST16

BLOCK = (16, 16)
TILE = 16
SIZES = "K and N multiples of 8"


def matmul_half_reference(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def tolerance_f16_accumulators(a, b):
    """Tolerance for sums that are rounded to float16 after every 8 or 16 products.

    A sum of k products is about sqrt(a**2 @ b**2 * k / K); its rounding errors, eps/2 of it at most, add up like a
    random walk over K / 8 steps. Allowed is eight times that.
    """
    steps = max(1.0, a.shape[1] / 8)
    return EPS16 * (np.abs(a @ b) + 4 * np.sqrt(steps) * np.sqrt(a**2 @ b**2)) + SMALLEST16


# --- Without tensor cores ---------------------------------------------------------------------------------------------


@cuda.jit
def matmul_half_naive_kernel(a, b, out):
    col, row = u32.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        depth = u32.shape(a)[1]
        total = float32(0.0)
        for k in u32.range(depth):
            total += float32(a[row, k]) * float32(b[k, col])
        out[row, col] = total


@rung(kernel=matmul_half_naive_kernel, idea="one thread an element, float32 arithmetic on float16")
def matmul_half_naive(a, b, out, stream=0):
    """One thread computes one element; float16 values are half the bytes of float32, but the arithmetic is the same."""
    rows, cols, _ = check_product(a, b, None, None, out, weights=False, multiple=1)
    matmul_half_naive_kernel[blocks_for((cols, rows), BLOCK), BLOCK, stream](a, b, out)


@cuda.jit
def matmul_half_tiled_kernel(a, b, out):
    a_tile = cuda.shared.array((TILE, TILE), float32)  # a float16 is converted once for 16 uses
    b_tile = cuda.shared.array((TILE, TILE), float32)
    x, y = u32.threadIdx.x, u32.threadIdx.y
    col = u32.blockIdx.x * TILE + x
    row = u32.blockIdx.y * TILE + y
    rows, depth, cols = u32.shape(a)[0], u32.shape(a)[1], u32.shape(b)[1]
    total = float32(0.0)
    for start in u32.range(0, depth, TILE):
        a_tile[y, x] = float32(a[row, start + x]) if row < rows and start + x < depth else float32(0.0)
        b_tile[y, x] = float32(b[start + y, col]) if start + y < depth and col < cols else float32(0.0)
        cuda.syncthreads()  # both tiles are complete
        for k in range(TILE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()  # both tiles are free to overwrite
    if row < rows and col < cols:
        out[row, col] = total


@rung(kernel=matmul_half_tiled_kernel, idea="16 x 16 tiles in shared memory, as float32")
def matmul_half_tiled(a, b, out, stream=0):
    """As naive, but a block stages tiles in shared memory: a value is fetched, and converted, once for 16 uses."""
    rows, cols, _ = check_product(a, b, None, None, out, weights=False, multiple=1)
    matmul_half_tiled_kernel[blocks_for((cols, rows), (TILE, TILE)), (TILE, TILE), stream](a, b, out)


# --- Tensor cores, one element at a time ------------------------------------------------------------------------------


@cuda.jit(device=True)
def load_row_pair(matrix, row, col):
    """Pack matrix[row, col] and its right neighbour into a word, zeros beyond the edges."""
    rows, cols = u32.shape(matrix)
    lo = float32(matrix[row, col]) if row < rows and col < cols else float32(0.0)
    hi = float32(matrix[row, col + 1]) if row < rows and col + 1 < cols else float32(0.0)
    return ptx.pack_half2(lo, hi)


@cuda.jit(device=True)
def load_col_pair(matrix, row, col):
    """Pack matrix[row, col] and the element below it into a word, zeros beyond the edges."""
    rows, cols = u32.shape(matrix)
    lo = float32(matrix[row, col]) if row < rows and col < cols else float32(0.0)
    hi = float32(matrix[row + 1, col]) if row + 1 < rows and col < cols else float32(0.0)
    return ptx.pack_half2(lo, hi)


@cuda.jit(device=True)
def store_accumulators(acc, offset, out, row, col):
    """Store a lane's four accumulators of a 16 x 8 product whose first element is (row, col)."""
    lane = u32.threadIdx.x % 32
    rows, cols = u32.shape(out)
    for row_half in u32.range(2):
        for odd in u32.range(2):
            r = row + lane // 4 + 8 * row_half
            c = col + lane % 4 * 2 + odd
            if r < rows and c < cols:
                out[r, c] = acc[offset + row_half * 2 + odd]


@cuda.jit
def matmul_half_tensor_core_kernel(a, b, out):
    thread = u32.threadIdx.x
    lane, warp = thread % 32, thread // 32
    row = u32.blockIdx.y * 32 + warp // 2 * 16  # of this warp's 16 x 16 tile
    col = u32.blockIdx.x * 32 + warp % 2 * 16
    group_id, pair = lane // 4, lane % 4 * 2
    acc = cuda.local.array(8, float32)
    for i in range(8):
        acc[i] = float32(0.0)
    depth = u32.shape(a)[1]
    for k in u32.range(0, depth, 16):
        a0 = load_row_pair(a, row + group_id, k + pair)
        a1 = load_row_pair(a, row + group_id + 8, k + pair)
        a2 = load_row_pair(a, row + group_id, k + pair + 8)
        a3 = load_row_pair(a, row + group_id + 8, k + pair + 8)
        for j in u32.range(2):  # two products of 16 x 8, side by side
            b0 = load_col_pair(b, k + pair, col + group_id + 8 * j)
            b1 = load_col_pair(b, k + pair + 8, col + group_id + 8 * j)
            add_product(acc, 4 * j, a0, a1, a2, a3, b0, b1)
    for j in u32.range(2):
        store_accumulators(acc, 4 * j, out, row, col + 8 * j)


@rung(kernel=matmul_half_tensor_core_kernel,
      idea="mma.sync: a 16 x 16 tile a warp, straight from global memory")
def matmul_half_tensor_core(a, b, out, stream=0):
    """As naive, but a warp computes a 16 x 16 tile with the tensor cores: 16 steps of K in two instructions."""
    rows, cols, _ = check_product(a, b, None, None, out, weights=False, multiple=1)
    matmul_half_tensor_core_kernel[blocks_for((cols, rows), (32, 32)), 128, stream](a, b, out)


HAND_TILE = 64  # rows and columns of a block's tile
HAND_DEPTH = 32
HAND_THREADS = 128
HAND_COPIES = HAND_TILE * HAND_DEPTH // HAND_THREADS


def make_hand_blocked(wide: bool):
    """wide: tiles are copied 16 bytes at a time, past the registers; otherwise float16 values, one by one."""
    copy_a = make_copy(HAND_TILE, HAND_DEPTH, HAND_THREADS, HAND_DEPTH, swizzled=False)
    copy_b = make_copy(HAND_DEPTH, HAND_TILE, HAND_THREADS, HAND_TILE, swizzled=False)

    @cuda.jit
    def hand_blocked_kernel(a, b, out):
        a_tile = cuda.shared.array((HAND_TILE, HAND_DEPTH), np.float16, alignment=16)
        b_tile = cuda.shared.array((HAND_DEPTH, HAND_TILE), np.float16, alignment=16)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        row0, col0 = u32.blockIdx.y * HAND_TILE, u32.blockIdx.x * HAND_TILE
        warp_row, warp_col = warp // 2 * 32, warp % 2 * 32
        group_id, pair = lane // 4, lane % 4 * 2
        rows, depth, cols = u32.shape(a)[0], u32.shape(a)[1], u32.shape(b)[1]
        acc = cuda.local.array(32, float32)
        for i in u32.range(32):
            acc[i] = float32(0.0)
        for start in u32.range(0, depth, HAND_DEPTH):
            if wide:
                copy_a(a_tile, 0, a, row0, start, thread)
                copy_b(b_tile, 0, b, start, col0, thread)
                ptx.cp_async_commit()
                ptx.cp_async_wait(0)
            else:
                for i in u32.range(HAND_COPIES):
                    index = thread + i * HAND_THREADS
                    y, x = index // HAND_DEPTH, index % HAND_DEPTH
                    inside = row0 + y < rows and start + x < depth
                    a_tile[y, x] = float32(a[row0 + y, start + x]) if inside else float32(0.0)
                    y, x = index // HAND_TILE, index % HAND_TILE
                    inside = start + y < depth and col0 + x < cols
                    b_tile[y, x] = float32(b[start + y, col0 + x]) if inside else float32(0.0)
            cuda.syncthreads()  # both tiles are complete
            for step in u32.range(2):
                k = 16 * step + pair
                for i in u32.range(2):  # 32 x 32 of a warp: two products down, four across
                    y = warp_row + 16 * i + group_id
                    a0, a1 = load_row_pair(a_tile, y, k), load_row_pair(a_tile, y + 8, k)
                    a2, a3 = load_row_pair(a_tile, y, k + 8), load_row_pair(a_tile, y + 8, k + 8)
                    for j in u32.range(4):
                        x = warp_col + 8 * j + group_id
                        b0, b1 = load_col_pair(b_tile, k, x), load_col_pair(b_tile, k + 8, x)
                        add_product(acc, (i * 4 + j) * 4, a0, a1, a2, a3, b0, b1)
            cuda.syncthreads()  # both tiles are free to overwrite
        for i in u32.range(2):
            for j in u32.range(4):
                store_accumulators(acc, (i * 4 + j) * 4, out, row0 + warp_row + 16 * i, col0 + warp_col + 8 * j)

    return hand_blocked_kernel


matmul_half_hand_blocked_kernel = make_hand_blocked(wide=False)
matmul_half_wide_copies_kernel = make_hand_blocked(wide=True)


@rung(kernel=matmul_half_hand_blocked_kernel,
      idea="tiles of 64 x 64 in shared memory, float16 values copied one by one",
      failed="on the H200 it ran 4096^3 at 11.1 TFLOP/s, where tensor_core reached 13.6: the repeated reads of that "
             "one hit the caches, and this adds barriers and copies of single float16 values")
def matmul_half_hand_blocked(a, b, out, stream=0):
    """As tensor_core, but a block stages its tiles in shared memory first, and lanes load fragments from there."""
    rows, cols, _ = check_product(a, b, None, None, out, weights=False, multiple=1)
    matmul_half_hand_blocked_kernel[blocks_for((cols, rows), (HAND_TILE, HAND_TILE)), HAND_THREADS, stream](a, b, out)


@rung(kernel=matmul_half_wide_copies_kernel, sizes=SIZES, idea="the same tiles, copied 16 bytes at a time")
def matmul_half_wide_copies(a, b, out, stream=0):
    """As hand_blocked, but cp.async copies the tiles 16 bytes at a time, past the registers."""
    rows, cols, _ = check_product(a, b, None, None, out, weights=False)
    matmul_half_wide_copies_kernel[blocks_for((cols, rows), (HAND_TILE, HAND_TILE)), HAND_THREADS, stream](a, b, out)


# --- Tensor cores, 16 bytes at a time in and out of shared memory -----------------------------------------------------

LDMATRIX = make_staged(Tile(rows=64, cols=64, depth=32, warp_rows=32, warp_cols=32, stages=1))
LARGE_TILES = make_staged(Tile(rows=128, cols=128, depth=32, warp_rows=64, warp_cols=32, stages=1, blocks=2))
TWO_STAGES = Tile(rows=128, cols=128, depth=32, warp_rows=64, warp_cols=32, stages=2, blocks=2)
DOUBLE_BUFFERED = make_staged(TWO_STAGES)
THREE_STAGE = make_staged(Tile(rows=128, cols=128, depth=32, warp_rows=64, warp_cols=32, stages=3, blocks=2))


@rung(kernel=LDMATRIX, sizes=SIZES, idea="ldmatrix loads the fragments, four registers at a time")
def matmul_half_ldmatrix(a, b, out, stream=0):
    """As wide_copies, but ldmatrix loads four 8 x 8 parts of fragments in one instruction. Rows of the tiles are padded
    by 16 bytes, so that it reads eight of them from different banks."""
    check_product(a, b, None, None, out, weights=False)
    launch(LDMATRIX, a, b, None, None, out, stream)


@rung(kernel=LARGE_TILES, sizes=SIZES, idea="128 x 128 a block, 64 x 32 a warp")
def matmul_half_large_tiles(a, b, out, stream=0):
    """As ldmatrix, but a block computes 128 x 128 elements and a warp 64 x 32: a fragment is used
    four times, and a copied element 128 times."""
    check_product(a, b, None, None, out, weights=False)
    launch(LARGE_TILES, a, b, None, None, out, stream)


@rung(kernel=DOUBLE_BUFFERED, sizes=SIZES,
      idea="two buffers: one is filled while the other is multiplied")
def matmul_half_double_buffered(a, b, out, stream=0):
    """As large_tiles, but with two buffers: cp.async fills one while the other is multiplied, with one barrier a step
    less."""
    check_product(a, b, None, None, out, weights=False)
    launch(DOUBLE_BUFFERED, a, b, None, None, out, stream)


@rung(kernel=THREE_STAGE, sizes=SIZES,
      idea="three buffers: copies run two stages ahead")
def matmul_half_three_stage(a, b, out, stream=0):
    """As double_buffered, with a third buffer: a copy has the time of two stages to arrive.

    On other GPUs a third buffer did not pay: on an RTX 3090 three are reported slower than two at every shape of
    MiniLM, whose K is 384 or 1536. On the H200 three are faster than two by 1% and 4% at those K, in a graph, and by 9%
    at 4096^3.
    """
    check_product(a, b, None, None, out, weights=False)
    launch(THREE_STAGE, a, b, None, None, out, stream)


F16_ACCUMULATORS = make_staged(TWO_STAGES, f16_accumulators=True)


@rung(kernel=F16_ACCUMULATORS,
      idea="as double_buffered, but the accumulators are float16", sizes=SIZES, tolerance=tolerance_f16_accumulators)
def matmul_half_f16_accumulators(a, b, out, stream=0):
    """As double_buffered, with float16 accumulators: half the registers, and rounded at every step of 16 along K.

    GeForce GPUs multiply twice as fast this way; the H200 does not: 283 against 281 TFLOP/s at 4096^3. The relative
    error grows from 2.1e-4 to 7.3e-4 at K = 384, 1.4e-3 at 1536, 2.4e-3 at 4096.
    """
    check_product(a, b, None, None, out, weights=False)
    launch(F16_ACCUMULATORS, a, b, None, None, out, stream)


# The tiles of the pipelined kernel, and how fast each multiplies relative to the first, on an H200 at 4096^3.
PIPELINED_TILES = {
    Tile(rows=128, cols=256, depth=32, warp_rows=64, warp_cols=64, stages=4): 1.0,
    Tile(rows=128, cols=128, depth=32, warp_rows=64, warp_cols=64, stages=3, blocks=2): 0.93,
    Tile(rows=96, cols=128, depth=32, warp_rows=48, warp_cols=64, stages=3, blocks=2): 0.88,
}
OVERHEAD = 256  # what a tile costs besides its products, in steps of K; blocks that share an SM hide it


def pipelined_tile(rows: int, cols: int, depth: int) -> Tile:
    """Return the tile with which the busiest SM finishes first. On the CPU device it is always the same one."""
    if not gpus.chosen_on_gpu():
        return usable(PIPELINED_TILES)[0]
    sms = gpus.sm_count()

    def cost(tile):
        rounds = -(-tile.count(rows, cols) // sms)
        return rounds * tile.rows * tile.cols * (depth + OVERHEAD / tile.blocks) / PIPELINED_TILES[tile]

    return min(usable(PIPELINED_TILES), key=cost)


PIPELINED = tuple(make_pipelined(tile) for tile in PIPELINED_TILES)


@rung(kernel=PIPELINED, sizes=SIZES,
      idea="four stages, swizzled; 64 x 64 a warp, fragments loaded ahead; rows stored whole")
def matmul_half_pipelined(a, b, out, stream=0):
    """As three_stage, but a warp's tile is 64 x 64, its next fragments are loaded while the last are multiplied, pieces
    of a row are permuted instead of padded, and blocks that run together form a rectangle of out."""
    rows, cols, depth = check_product(a, b, None, None, out, weights=False)
    launch(make_pipelined(pipelined_tile(rows, cols, depth)), a, b, None, None, out, stream)


# --- The operation ----------------------------------------------------------------------------------------------------


def random_float16(rng, *shape):
    return uniform(rng, *shape).astype(np.float16)


# --- bfloat16 ---------------------------------------------------------------------------------------------------------


@cuda.jit
def matmul_bf16_naive_kernel(a, b, out):
    col, row = u32.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        depth = u32.shape(a)[1]
        total = float32(0.0)
        for k in u32.range(depth):  # a bfloat16 is the upper half of a float32
            a_value = bfloat16_number(a[row, k])
            b_value = bfloat16_number(b[k, col])
            total += a_value * b_value
        out[row, col] = total


@rung(kernel=matmul_bf16_naive_kernel, idea="one thread an element; a bfloat16 is the upper half of a float32")
def matmul_bf16_naive(a, b, out, stream=0):
    """One thread computes one element, in float32."""
    rows, cols, _ = check_product(a, b, None, None, out, weights=False, multiple=1, dtype=np.uint16,
                                  out_dtype=np.float32)
    matmul_bf16_naive_kernel[blocks_for((cols, rows), BLOCK), BLOCK, stream](a, b, out)


PIPELINED_BF16 = tuple(make_pipelined(tile, element=BFLOAT16, floats=True) for tile in PIPELINED_TILES)


@rung(kernel=PIPELINED_BF16,
      idea="matmul_half_pipelined with mma.sync for bfloat16; out in float32", sizes=SIZES)
def matmul_bf16_pipelined(a, b, out, stream=0):
    """The pipelined kernel of matmul_half: the same fragments, one other instruction, and accumulators stored as they
    are."""
    rows, cols, depth = check_product(a, b, None, None, out, weights=False, dtype=np.uint16, out_dtype=np.float32)
    kernel = make_pipelined(pipelined_tile(rows, cols, depth), element=BFLOAT16, floats=True)
    launch(kernel, a, b, None, None, out, stream)
