"""Matrix multiply in float16 with what Turing has (compute capability 7.5: T4, RTX 20): ldmatrix and mma.sync m16n8k8.
The rung of matmul_half that a T4 runs exactly as it is written.

Shapes  a (M, K), b (K, N), out (M, N); float16, C-contiguous; accumulators in float32
Sizes   K and N multiples of 8: rows move in pieces of 16 bytes
Source  PTX ISA, "Matrix Fragments for mma.m16n8k8"; NVIDIA, "Turing Tuning Guide"

Turing has neither cp.async nor m16n8k16. So a copy passes through registers, and two instructions do 16 steps of K.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import blocks_for
from labkit.kernels.matmul.mma import CHUNK, check_product
from labkit.kernels.op import rung

ROWS = COLS = 64  # of a block's tile
DEPTH = 32
THREADS = 128
WARP = 32  # rows and columns of a warp's part of the tile
A_PITCH, B_PITCH = DEPTH + CHUNK, COLS + CHUNK  # 16 bytes of padding: ldmatrix reads eight rows from different banks
A_SIZE, B_SIZE = ROWS * A_PITCH, DEPTH * B_PITCH
PIECES = ROWS * DEPTH // CHUNK // THREADS  # of 16 bytes that a thread copies of either tile
WORDS = 8 * PIECES


@cuda.jit(device=True)
def fetch(words, place, matrix, row, col):
    """Load the 16 bytes that begin at matrix[row, col] into words[place : place + 4], zeros beyond the edges."""
    rows, cols = u32.shape(matrix)
    w, x, y, z = uint32(0), uint32(0), uint32(0), uint32(0)
    if row < rows and col < cols:
        w, x, y, z = ptx.load_global4(matrix, row * cols + col)
    words[place], words[place + 1], words[place + 2], words[place + 3] = w, x, y, z


@cuda.jit(device=True)
def fetch_tiles(words, a, b, row0, col0, k0):
    """Load this thread's pieces of both tiles: first those of a, then those of b."""
    thread = u32.threadIdx.x
    for i in u32.range(PIECES):
        piece = thread + i * THREADS
        fetch(words, 4 * i, a, row0 + piece // (DEPTH // CHUNK), k0 + piece % (DEPTH // CHUNK) * CHUNK)
        fetch(words, 4 * (PIECES + i), b, k0 + piece // (COLS // CHUNK), col0 + piece % (COLS // CHUNK) * CHUNK)


@cuda.jit(device=True)
def store_tiles(words, a_tile, b_tile):
    """Store what fetch_tiles loaded to shared memory."""
    thread = u32.threadIdx.x
    for i in u32.range(PIECES):
        piece = thread + i * THREADS
        n = 4 * i
        ptx.store_shared4(a_tile, piece // (DEPTH // CHUNK) * A_PITCH + piece % (DEPTH // CHUNK) * CHUNK,
                          words[n], words[n + 1], words[n + 2], words[n + 3])
        n = 4 * (PIECES + i)
        ptx.store_shared4(b_tile, piece // (COLS // CHUNK) * B_PITCH + piece % (COLS // CHUNK) * CHUNK,
                          words[n], words[n + 1], words[n + 2], words[n + 3])


@cuda.jit(device=True)
def add_short_product(acc, i, a0, a1, b0):
    """acc[i : i + 4] += a 16 x 8 product over 8 steps of K."""
    w, x, y, z = ptx.mma_m16n8k8_f32_f16(a0, a1, b0, acc[i], acc[i + 1], acc[i + 2], acc[i + 3])
    acc[i], acc[i + 1], acc[i + 2], acc[i + 3] = w, x, y, z


@cuda.jit(launch_bounds=(THREADS, 4))
def matmul_half_turing_kernel(a, b, out):
    a_tile = cuda.shared.array(A_SIZE, np.float16, alignment=16)
    b_tile = cuda.shared.array(B_SIZE, np.float16, alignment=16)
    words = cuda.local.array(WORDS, uint32)  # the next tiles, on their way
    a_frag = cuda.local.array(8, uint32)
    acc = cuda.local.array(32, float32)
    thread = u32.threadIdx.x
    lane, warp = thread % 32, thread // 32
    row0, col0 = u32.blockIdx.y * ROWS, u32.blockIdx.x * COLS
    warp_row, warp_col = warp // 2 * WARP, warp % 2 * WARP
    # The offset of the row that this lane passes to the warp's first ldmatrix.
    a_offset = (warp_row + lane % 16) * A_PITCH + lane // 16 * CHUNK
    b_offset = lane % 16 * B_PITCH + warp_col + lane // 16 * CHUNK
    for i in u32.range(32):
        acc[i] = float32(0.0)
    rows, depth, cols = u32.shape(a)[0], u32.shape(a)[1], u32.shape(b)[1]
    fetch_tiles(words, a, b, row0, col0, uint32(0))
    for start in u32.range(0, depth, DEPTH):
        store_tiles(words, a_tile, b_tile)
        cuda.syncthreads()  # both tiles are complete
        fetch_tiles(words, a, b, row0, col0, start + DEPTH)  # they arrive while this one is multiplied
        for k in u32.range(0, DEPTH, 16):
            for i in u32.range(2):
                a0, a1, a2, a3 = ptx.ldmatrix_x4(a_tile, a_offset + i * (16 * A_PITCH) + k)
                a_frag[4 * i], a_frag[4 * i + 1], a_frag[4 * i + 2], a_frag[4 * i + 3] = a0, a1, a2, a3
            for j in u32.range(2):  # 16 columns: two products side by side
                left0, left1, right0, right1 = ptx.ldmatrix_x4_trans(b_tile, b_offset + k * B_PITCH + 16 * j)
                for i in u32.range(2):
                    product = (4 * i + 2 * j) * 4
                    add_short_product(acc, product, a_frag[4 * i], a_frag[4 * i + 1], left0)  # k 0 to 7
                    add_short_product(acc, product, a_frag[4 * i + 2], a_frag[4 * i + 3], left1)  # k 8 to 15
                    add_short_product(acc, product + 4, a_frag[4 * i], a_frag[4 * i + 1], right0)
                    add_short_product(acc, product + 4, a_frag[4 * i + 2], a_frag[4 * i + 3], right1)
        cuda.syncthreads()  # both tiles are free to overwrite
    for i in u32.range(2):
        for j in u32.range(4):
            product = (4 * i + j) * 4
            row, col = row0 + warp_row + 16 * i + lane // 4, col0 + warp_col + 8 * j + lane % 4 * 2
            if row < rows and col < cols:
                ptx.store_global_half2(out, row * cols + col, acc[product], acc[product + 1])
            if row + 8 < rows and col < cols:
                ptx.store_global_half2(out, (row + 8) * cols + col, acc[product + 2], acc[product + 3])


@rung(kernel=matmul_half_turing_kernel, sizes="K and N multiples of 8",
      idea="the same with what a T4 has: copies through registers, and mma.sync of 8 steps of K")
def matmul_half_turing(a, b, out, stream=0):
    """As ldmatrix, but without cp.async: each thread loads its pieces of the next tiles into registers before it
    multiplies, and stores them to shared memory afterwards. Two m16n8k8 take the place of one m16n8k16."""
    rows, cols, _ = check_product(a, b, None, None, out, weights=False)
    matmul_half_turing_kernel[blocks_for((cols, rows), (COLS, ROWS)), THREADS, stream](a, b, out)
