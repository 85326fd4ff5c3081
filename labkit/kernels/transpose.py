"""Transpose a matrix, out = a.T. One rung for each idea, slowest first.

Shapes  a (R, C), out (C, R); float32, C-contiguous; any sizes
Work    no arithmetic; 8*R*C bytes, each matrix moved once. The limit is a copy
Source  CUDA C++ Best Practices Guide, "Shared Memory and Memory Banks"

Shared memory lies in 32 banks, four bytes wide: element i of a float32 array is in bank i % 32. A warp's access takes
one step if its lanes use 32 different banks (or the same element); otherwise it takes as many steps as the busiest bank
has different elements.
"""

from numba import float32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import aligned, blocks_for, check_array, unsigned
from labkit.kernels.op import rung

TILE = 32
BLOCK = (32, 8)  # 256 threads; each takes four elements of a tile, eight rows apart


def transpose_reference(a):
    return a.T  # no value changes


@cuda.jit
def transpose_naive_kernel(a, out):
    col, row = u32.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        out[col, row] = a[row, col]  # a warp reads along a row and writes down a column


@rung(kernel=transpose_naive_kernel, idea="one thread an element: reads a row, writes a column")
def transpose_naive(a, out, stream=0):
    """One thread moves one element. The loads of a warp are adjacent; its stores are a whole row of out apart."""
    rows, cols = _check(a, out)
    transpose_naive_kernel[blocks_for((cols, rows), BLOCK), BLOCK, stream](a, out)


def make_transpose_tiled(pitch: int):
    """A kernel whose tile has rows of `pitch` elements, of which 32 are used."""

    @cuda.jit
    def transpose_tiled_kernel(a, out):
        tile = cuda.shared.array((TILE, pitch), float32)
        x, y = u32.threadIdx.x, u32.threadIdx.y
        col0, row0 = u32.blockIdx.x * TILE, u32.blockIdx.y * TILE
        rows, cols = u32.shape(a)
        for step in u32.range(4):
            i = y + 8 * step
            if row0 + i < rows and col0 + x < cols:
                tile[i, x] = a[row0 + i, col0 + x]
        cuda.syncthreads()  # the tile is complete
        for step in u32.range(4):
            i = y + 8 * step
            if col0 + i < cols and row0 + x < rows:
                out[col0 + i, row0 + x] = tile[x, i]  # a warp reads a column of the tile

    return transpose_tiled_kernel


transpose_tiled_kernel = make_transpose_tiled(TILE)
transpose_padded_kernel = make_transpose_tiled(TILE + 1)


@rung(kernel=transpose_tiled_kernel, idea="transposed in a tile of shared memory")
def transpose_tiled(a, out, stream=0):
    """As naive, but through a 32 x 32 tile in shared memory: loads and stores of global memory both run along rows. The
    column of the tile that a warp reads lies in a single bank, so the read takes 32 steps."""
    rows, cols = _check(a, out)
    transpose_tiled_kernel[blocks_for((cols, rows), (TILE, TILE)), BLOCK, stream](a, out)


@rung(kernel=transpose_padded_kernel, idea="rows of the tile 33 long: no bank conflicts")
def transpose_padded(a, out, stream=0):
    """As tiled, but a row of the tile has 33 elements, one of them unused: a column walks through all 32 banks."""
    rows, cols = _check(a, out)
    transpose_padded_kernel[blocks_for((cols, rows), (TILE, TILE)), BLOCK, stream](a, out)


@cuda.jit
def transpose_swizzled_kernel(a, out):
    tile = cuda.shared.array((TILE, TILE), float32)
    x, y = u32.threadIdx.x, u32.threadIdx.y
    col0, row0 = u32.blockIdx.x * TILE, u32.blockIdx.y * TILE
    rows, cols = u32.shape(a)
    for step in u32.range(4):
        i = y + 8 * step
        if row0 + i < rows and col0 + x < cols:
            tile[i, x ^ i] = a[row0 + i, col0 + x]  # row r stores its element c in column c ^ r
    cuda.syncthreads()
    for step in u32.range(4):
        i = y + 8 * step
        if col0 + i < cols and row0 + x < rows:
            out[col0 + i, row0 + x] = tile[x, i ^ x]


@rung(kernel=transpose_swizzled_kernel, idea="places exchanged by exclusive or: no padding either")
def transpose_swizzled(a, out, stream=0):
    """As padded, without the unused column: row r of the tile stores its element c in column c ^ r."""
    rows, cols = _check(a, out)
    transpose_swizzled_kernel[blocks_for((cols, rows), (TILE, TILE)), BLOCK, stream](a, out)


WIDE_TILE = 64  # of the vectorized rung: 32 pieces of four rows by 32 columns, one warp a piece
PITCH = 65
TILE_SIZE = WIDE_TILE * PITCH


@cuda.jit
def transpose_vectorized_kernel(a, out, rows, cols):  # a and out flat; rows, cols multiples of four
    tile = cuda.shared.array(TILE_SIZE, float32)
    lane, warp = u32.threadIdx.x, u32.threadIdx.y
    lane_col, lane_row = 4 * (lane & 7), lane >> 3  # eight lanes along a row, four rows
    col0, row0 = u32.blockIdx.x * WIDE_TILE, u32.blockIdx.y * WIDE_TILE
    for step in u32.range(4):
        piece = warp + 8 * step
        row, col = 4 * (piece >> 1) + lane_row, 32 * (piece & 1) + lane_col
        if row0 + row < rows and col0 + col < cols:
            i = row * PITCH + col
            w, x, y, z = ptx.load_nc4(a, (row0 + row) * cols + col0 + col)
            tile[i], tile[i + 1], tile[i + 2], tile[i + 3] = w, x, y, z
    cuda.syncthreads()
    for step in u32.range(4):
        piece = warp + 8 * step
        row, col = 4 * (piece >> 1) + lane_row, 32 * (piece & 1) + lane_col
        if col0 + row < cols and row0 + col < rows:
            i = col * PITCH + row
            ptx.store_global4(out, (col0 + row) * rows + row0 + col, tile[i], tile[i + PITCH],
                              tile[i + 2 * PITCH], tile[i + 3 * PITCH])


@rung(kernel=(transpose_vectorized_kernel, transpose_padded_kernel), idea="64 x 64 tiles, 128-bit loads and stores")
def transpose_vectorized(a, out, stream=0):
    """As padded, but a thread moves four neighbours at once, and four times before the barrier. Eight lanes along a row
    and four rows use 32 banks on either side. Sizes that are not multiples of four, and views that are not
    aligned to 16 bytes, take the padded kernel."""
    rows, cols = _check(a, out)
    if rows % 4 or cols % 4 or not aligned(a, out):
        transpose_padded(a, out, stream=stream)
    else:
        grid = blocks_for((cols, rows), (WIDE_TILE, WIDE_TILE))
        transpose_vectorized_kernel[grid, BLOCK, stream](a.reshape(a.size), out.reshape(out.size),
                                                         *unsigned(rows, cols))


def _check(a, out):
    check_array("a", a, ndim=2)
    check_array("out", out, shape=(a.shape[1], a.shape[0]))
    return a.shape
