"""Matrix multiply, out = a @ b. One rung for each idea, slowest first.

Shapes  a (M, K), b (K, N), out (M, N); float32, C-contiguous; any sizes
Work    2*M*N*K flop; at least 4*(M*K + K*N + M*N) bytes, each matrix moved once
Source  CUDA C++ Programming Guide, "Shared Memory"; NVIDIA CUTLASS, "Efficient GEMM in CUDA"; S. Boehm, "How to
        Optimize a CUDA Matmul Kernel for cuBLAS-like Performance" (2022)

Indices are unsigned, in 32 bits (labkit.u32): with Numba's own, which are signed and have 64, matmul_coalesced takes
3.8 times as long on an H100.
"""

import numpy as np
from numba import float32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import aligned, blocks_for, check_array, dynamic_shared, product_sizes
from labkit.kernels.matmul.float32_tiles import (
    A_STRIDE,
    BLOCK_K,
    BLOCK_TILE,
    RING,
    add_products,
    copy_pair,
    copy_pair_guarded,
    load_four,
    load_four_scalar,
    make_pipeline,
    quarters_apart,
    read_eight,
    store_four,
    store_four_scalar,
)
from labkit.kernels.op import rung

BLOCK = (16, 16)
TILE = 16


def matmul_reference(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


@cuda.jit
def matmul_naive_kernel(a, b, out):
    row, col = u32.grid(2)  # neighbouring threads differ in row
    if row < out.shape[0] and col < out.shape[1]:
        depth = u32.shape(a)[1]
        total = float32(0.0)  # 0.0 alone would be a float64, and so would the sum
        for k in u32.range(depth):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@rung(kernel=matmul_naive_kernel, idea="one thread an element, neighbours run down a column")
def matmul_naive(a, b, out, stream=0):
    """One thread computes one element of out; threadIdx.x walks the rows, so a warp touches 16 rows of a and of out."""
    rows, cols = _check(a, b, out)
    matmul_naive_kernel[blocks_for((rows, cols), BLOCK), BLOCK, stream](a, b, out)


@cuda.jit
def matmul_coalesced_kernel(a, b, out):
    col, row = u32.grid(2)  # neighbouring threads differ in column: the only change
    if row < out.shape[0] and col < out.shape[1]:
        depth = u32.shape(a)[1]
        total = float32(0.0)
        for k in u32.range(depth):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@rung(kernel=matmul_coalesced_kernel, idea="neighbours run along a row: coalesced")
def matmul_coalesced(a, b, out, stream=0):
    """As naive, but threadIdx.x walks the columns: neighbours read neighbours in b, write neighbours in out."""
    rows, cols = _check(a, b, out)
    matmul_coalesced_kernel[blocks_for((cols, rows), BLOCK), BLOCK, stream](a, b, out)


GROUP = 32  # rows of blocks in a group


@cuda.jit(device=True)
def place_in_groups(block, rows_of_blocks, blocks_in_row):
    """Return the row and column of a block's tile. Blocks go down the rows of a group, then to the next column."""
    first_row = block // (GROUP * blocks_in_row) * GROUP
    rows_in_group = min(GROUP, rows_of_blocks - first_row)  # the last group may be lower
    index = block - first_row * blocks_in_row
    return first_row + index % rows_in_group, index // rows_in_group


def make_matmul_tiled(tile: int, grouped: bool = False):
    """A kernel for this tile size: shared memory is sized when the kernel is compiled. grouped: see place_in_groups."""

    @cuda.jit
    def matmul_tiled_kernel(a, b, out):
        a_tile = cuda.shared.array((tile, tile), float32)
        b_tile = cuda.shared.array((tile, tile), float32)
        x, y = u32.threadIdx.x, u32.threadIdx.y
        tile_row, tile_col = u32.blockIdx.y, u32.blockIdx.x
        if grouped:
            tile_row, tile_col = place_in_groups(tile_row * u32.gridDim.x + tile_col, u32.gridDim.y, u32.gridDim.x)
        row, col = tile_row * tile + y, tile_col * tile + x
        rows, depth, cols = u32.shape(a)[0], u32.shape(a)[1], u32.shape(b)[1]

        total = float32(0.0)
        for start in u32.range(0, depth, tile):
            # Beyond an edge a tile holds zeros, which add nothing. No thread may leave early: it still has to load.
            a_tile[y, x] = a[row, start + x] if row < rows and start + x < depth else float32(0.0)
            b_tile[y, x] = b[start + y, col] if start + y < depth and col < cols else float32(0.0)
            cuda.syncthreads()  # both tiles are complete
            for k in range(tile):
                total += a_tile[y, k] * b_tile[k, x]
            cuda.syncthreads()  # both tiles are free to overwrite

        if row < rows and col < cols:
            out[row, col] = total

    return matmul_tiled_kernel


matmul_tiled_kernel = make_matmul_tiled(TILE)
matmul_tiled_grouped_kernel = make_matmul_tiled(TILE, grouped=True)
matmul_tiled_32_kernel = make_matmul_tiled(32)


@rung(kernel=matmul_tiled_kernel, idea="16 x 16 tiles in shared memory")
def matmul_tiled(a, b, out, stream=0):
    """As coalesced, but each block stages TILE x TILE tiles in shared memory: a value is fetched once for 16 uses."""
    rows, cols = _check(a, b, out)
    matmul_tiled_kernel[blocks_for((cols, rows), (TILE, TILE)), (TILE, TILE), stream](a, b, out)


@rung(kernel=matmul_tiled_grouped_kernel, idea="blocks in groups of 32 rows, for the L2 cache")
def matmul_tiled_grouped(a, b, out, stream=0):
    """As tiled, but blocks go down 32 rows of blocks before they go to the next column: those that run together form
    a rectangle of out, and what they read of a and b fits in the L2 cache."""
    rows, cols = _check(a, b, out)
    matmul_tiled_grouped_kernel[blocks_for((cols, rows), (TILE, TILE)), (TILE, TILE), stream](a, b, out)


@rung(kernel=matmul_tiled_32_kernel, idea="32 x 32 tiles in shared memory")
def matmul_tiled_32(a, b, out, stream=0):
    """As tiled, but 32 x 32: a value is fetched once for 32 uses, by a block of 1,024 threads, the limit."""
    rows, cols = _check(a, b, out)
    matmul_tiled_32_kernel[blocks_for((cols, rows), (32, 32)), (32, 32), stream](a, b, out)


# --- Register blocking: a thread computes a tile of out ---------------------------------------------------------------

DEPTH = 8  # columns of a, and rows of b, in one tile


def make_matmul_register_blocked(thread_tile: int):
    """A kernel in which each of 16 x 16 threads computes thread_tile x thread_tile elements, 16 apart in each
    direction."""
    tile = 16 * thread_tile  # a block computes tile x tile elements
    count = thread_tile * thread_tile
    copies = tile * DEPTH // 256  # elements of each tile that a thread loads

    @cuda.jit
    def matmul_register_blocked_kernel(a, b, out):
        a_tile = cuda.shared.array((tile, DEPTH), float32)
        b_tile = cuda.shared.array((DEPTH, tile), float32)
        acc = cuda.local.array(count, float32)  # every index is a constant once the loops are unrolled: registers
        a_frag = cuda.local.array(thread_tile, float32)
        b_frag = cuda.local.array(thread_tile, float32)
        x, y = u32.threadIdx.x, u32.threadIdx.y
        thread = y * 16 + x
        row0 = u32.blockIdx.y * tile
        col0 = u32.blockIdx.x * tile
        rows, depth, cols = u32.shape(a)[0], u32.shape(a)[1], u32.shape(b)[1]
        for i in u32.range(count):
            acc[i] = float32(0.0)

        for start in u32.range(0, depth, DEPTH):
            for i in u32.range(copies):
                index = thread + i * 256
                r, c = index // DEPTH, index % DEPTH
                inside = row0 + r < rows and start + c < depth
                a_tile[r, c] = a[row0 + r, start + c] if inside else float32(0.0)
            for i in u32.range(copies):
                index = thread + i * 256
                r, c = index // tile, index % tile
                inside = start + r < depth and col0 + c < cols
                b_tile[r, c] = b[start + r, col0 + c] if inside else float32(0.0)
            cuda.syncthreads()  # both tiles are complete
            for k in range(DEPTH):
                for i in u32.range(thread_tile):
                    a_frag[i] = a_tile[y + 16 * i, k]
                    b_frag[i] = b_tile[k, x + 16 * i]
                for i in u32.range(thread_tile):  # 2 * thread_tile elements loaded for thread_tile^2 products
                    for j in u32.range(thread_tile):
                        acc[i * thread_tile + j] += a_frag[i] * b_frag[j]
            cuda.syncthreads()  # both tiles are free to overwrite

        for i in u32.range(thread_tile):
            for j in u32.range(thread_tile):
                row, col = row0 + y + 16 * i, col0 + x + 16 * j
                if row < rows and col < cols:
                    out[row, col] = acc[i * thread_tile + j]

    return matmul_register_blocked_kernel


matmul_register_blocked_4_kernel = make_matmul_register_blocked(4)
matmul_register_blocked_kernel = make_matmul_register_blocked(8)
matmul_register_blocked_16_kernel = make_matmul_register_blocked(16)


@rung(kernel=matmul_register_blocked_4_kernel, idea="a thread computes 4 x 4 elements, in registers")
def matmul_register_blocked_4(a, b, out, stream=0):
    """As tiled, but a thread computes 4 x 4 elements of a 64 x 64 tile: 8 elements from shared memory feed 16 products,
    where tiled loads 2 for 1."""
    _launch_register_blocked(matmul_register_blocked_4_kernel, 4, a, b, out, stream)


@rung(kernel=matmul_register_blocked_kernel, idea="a thread computes 8 x 8 elements")
def matmul_register_blocked(a, b, out, stream=0):
    """As register_blocked_4, but 8 x 8 elements of a 128 x 128 tile: 16 loaded elements feed 64 products."""
    _launch_register_blocked(matmul_register_blocked_kernel, 8, a, b, out, stream)


@rung(kernel=matmul_register_blocked_16_kernel, idea="a thread computes 16 x 16 elements",
      failed="13.2 TFLOP/s on an H200, where 8 x 8 elements gave 27.9: a thread has 255 registers, too few for 256 "
             "accumulators, and some of them live in memory")
def matmul_register_blocked_16(a, b, out, stream=0):
    """As register_blocked, but 16 x 16 elements of a 256 x 256 tile: 32 loaded elements would feed 256 products."""
    _launch_register_blocked(matmul_register_blocked_16_kernel, 16, a, b, out, stream)


def _launch_register_blocked(kernel, thread_tile, a, b, out, stream):
    rows, cols = _check(a, b, out)
    kernel[blocks_for((cols, rows), (16 * thread_tile, 16 * thread_tile)), (16, 16), stream](a, b, out)


# --- 128 bits at a time -----------------------------------------------------------------------------------------------

TILES_SIZE = DEPTH * (A_STRIDE + BLOCK_TILE)  # elements in a pair of tiles: that of a, then that of b
TWO_PAIRS_SIZE = 2 * TILES_SIZE


def make_store_tile(store, row_gap: int, col_gap: int):
    """A device function: store a thread tile at (row, col), four quarters of 4 x 4 elements with these distances."""

    @cuda.jit(device=True)
    def store_tile(acc, out, row, col):
        for i in u32.range(8):
            for j in u32.range(0, 8, 4):
                n = i * 8 + j
                store(out, row + (i // 4 * row_gap + i % 4), col + j // 4 * col_gap,
                      acc[n], acc[n + 1], acc[n + 2], acc[n + 3])

    return store_tile


def _load_and_store_tile(vec4: bool):
    return (load_four if vec4 else load_four_scalar,
            make_store_tile(store_four if vec4 else store_four_scalar, 64, 64))


def make_matmul_vectorized(vec4: bool):
    """vec4: load and store 128 bits at a time; the rows of all three matrices begin at multiples of 16 bytes."""
    load, store_tile = _load_and_store_tile(vec4)

    @cuda.jit(launch_bounds=(256, 2))
    def matmul_vectorized_kernel(a, b, out):
        shared = cuda.shared.array(TILES_SIZE, float32)
        acc = cuda.local.array(64, float32)
        a_frag = cuda.local.array(8, float32)
        b_frag = cuda.local.array(8, float32)
        thread = u32.threadIdx.x
        row0 = u32.blockIdx.y * BLOCK_TILE
        col0 = u32.blockIdx.x * BLOCK_TILE
        depth = u32.shape(a)[1]
        row, col = thread // 16 * 4, thread % 16 * 4  # of its thread tile
        a_row, a_col = thread // 2, thread % 2 * 4  # what the thread loads of a
        b_row, b_col = thread // 32, thread % 32 * 4  # and of b
        a_dst = a_col * A_STRIDE + a_row
        b_dst = DEPTH * A_STRIDE + b_row * BLOCK_TILE + b_col
        for i in u32.range(64):
            acc[i] = float32(0.0)

        for start in u32.range(0, depth, DEPTH):
            p, q, r, s = load(a, row0 + a_row, start + a_col)
            shared[a_dst], shared[a_dst + A_STRIDE] = p, q  # a row of a becomes a column
            shared[a_dst + 2 * A_STRIDE], shared[a_dst + 3 * A_STRIDE] = r, s
            p, q, r, s = load(b, start + b_row, col0 + b_col)
            ptx.store_shared4(shared, b_dst, p, q, r, s)
            cuda.syncthreads()  # both tiles are complete
            a_offset, b_offset = row, DEPTH * A_STRIDE + col
            while a_offset < DEPTH * A_STRIDE:
                read_eight(shared, a_offset, 64, a_frag)
                read_eight(shared, b_offset, 64, b_frag)
                add_products(acc, a_frag, b_frag)
                a_offset, b_offset = a_offset + A_STRIDE, b_offset + BLOCK_TILE
            cuda.syncthreads()  # both tiles are free to overwrite

        store_tile(acc, out, row0 + row, col0 + col)

    return matmul_vectorized_kernel


matmul_vectorized_kernel = make_matmul_vectorized(vec4=True)
matmul_vectorized_any_kernel = make_matmul_vectorized(vec4=False)


@rung(kernel=(matmul_vectorized_kernel, matmul_vectorized_any_kernel), idea="128 bits a load and a store")
def matmul_vectorized(a, b, out, stream=0):
    """As register_blocked, but four elements a load, from global memory and from shared: 4 loads feed 64 products. For
    that the tile of a is transposed: the rows of a thread tile become neighbours. Where rows do not begin at multiples
    of 16 bytes, global memory is read and written element by element."""
    _launch_tiles(matmul_vectorized_kernel, matmul_vectorized_any_kernel, a, b, out, stream)


def _launch_tiles(vec4_kernel, any_kernel, a, b, out, stream):
    rows, cols = _check(a, b, out)
    vec4 = a.shape[1] % 4 == 0 and cols % 4 == 0 and aligned(a, b, out)
    kernel = vec4_kernel if vec4 else any_kernel
    kernel[blocks_for((cols, rows), (BLOCK_TILE, BLOCK_TILE)), 256, stream](a, b, out)


# --- Double buffering: the next tiles load while these are multiplied -------------------------------------------------


def make_matmul_double_buffered(vec4: bool):
    load, store_tile = _load_and_store_tile(vec4)

    @cuda.jit(launch_bounds=(256, 2))
    def matmul_double_buffered_kernel(a, b, out):
        shared = cuda.shared.array(TWO_PAIRS_SIZE, float32)
        acc = cuda.local.array(64, float32)
        a_frag = cuda.local.array(8, float32)
        b_frag = cuda.local.array(8, float32)
        thread = u32.threadIdx.x
        row0 = u32.blockIdx.y * BLOCK_TILE
        col0 = u32.blockIdx.x * BLOCK_TILE
        depth = u32.shape(a)[1]
        row, col = thread // 16 * 4, thread % 16 * 4
        a_row, a_col = thread // 2, thread % 2 * 4
        b_row, b_col = thread // 32, thread % 32 * 4
        a_dst = a_col * A_STRIDE + a_row
        b_dst = DEPTH * A_STRIDE + b_row * BLOCK_TILE + b_col
        for i in u32.range(64):
            acc[i] = float32(0.0)

        fill, start = 0, 0
        a0, a1, a2, a3 = load(a, row0 + a_row, a_col)
        b0, b1, b2, b3 = load(b, b_row, col0 + b_col)
        while start < depth:
            shared[fill + a_dst], shared[fill + a_dst + A_STRIDE] = a0, a1
            shared[fill + a_dst + 2 * A_STRIDE], shared[fill + a_dst + 3 * A_STRIDE] = a2, a3
            ptx.store_shared4(shared, fill + b_dst, b0, b1, b2, b3)
            cuda.syncthreads()  # this pair is complete, and no thread still reads the other one, which is filled next
            start += DEPTH
            if start < depth:  # these loads are in flight through all of the products below
                a0, a1, a2, a3 = load(a, row0 + a_row, start + a_col)
                b0, b1, b2, b3 = load(b, start + b_row, col0 + b_col)
            end = fill + DEPTH * A_STRIDE
            a_offset, b_offset = fill + row, end + col
            while a_offset < end:
                read_eight(shared, a_offset, 64, a_frag)
                read_eight(shared, b_offset, 64, b_frag)
                add_products(acc, a_frag, b_frag)
                a_offset, b_offset = a_offset + A_STRIDE, b_offset + BLOCK_TILE
            fill = TILES_SIZE - fill

        store_tile(acc, out, row0 + row, col0 + col)

    return matmul_double_buffered_kernel


matmul_double_buffered_kernel = make_matmul_double_buffered(vec4=True)
matmul_double_buffered_any_kernel = make_matmul_double_buffered(vec4=False)


@rung(kernel=(matmul_double_buffered_kernel, matmul_double_buffered_any_kernel),
      idea="the next tiles load while these are multiplied")
def matmul_double_buffered(a, b, out, stream=0):
    """As vectorized, but with two pairs of tiles: the loads of the next pair are in flight during the products, and
    wait in registers until shared memory is free. One barrier a tile is enough."""
    _launch_tiles(matmul_double_buffered_kernel, matmul_double_buffered_any_kernel, a, b, out, stream)


# --- A pipeline: copies past the registers, and the next step's fragments read during this one's products -------------


def make_matmul_pipelined(exact: bool, **steps: bool):
    """exact: out is a multiple of the tile, K of BLOCK_K, and the matrices are aligned; then nothing needs a guard.
    steps: those of make_pipeline that are left out, for the rungs on the way."""
    multiply = make_pipeline(copy_pair if exact else copy_pair_guarded, **steps)
    store_tile = make_store_tile(store_four if exact else store_four_scalar,
                                 *quarters_apart(steps.get("warp_tiles", True)))

    @cuda.jit(launch_bounds=(256, 2))
    def matmul_pipelined_kernel(a, b, out):
        acc = cuda.local.array(64, float32)
        row0 = u32.blockIdx.y * BLOCK_TILE
        col0 = u32.blockIdx.x * BLOCK_TILE
        row, col = multiply(acc, a, b, row0, col0, 0, u32.shape(a)[1])
        store_tile(acc, out, row0 + row, col0 + col)

    return matmul_pipelined_kernel


def _both(**steps: bool) -> tuple:
    return make_matmul_pipelined(exact=True, **steps), make_matmul_pipelined(exact=False, **steps)


matmul_async_copies_kernel, matmul_async_copies_any_kernel = _both(warp_tiles=False, reads_ahead=False,
                                                                   serpentine=False)
matmul_warp_tiles_kernel, matmul_warp_tiles_any_kernel = _both(reads_ahead=False, serpentine=False)
matmul_reads_ahead_kernel, matmul_reads_ahead_any_kernel = _both(serpentine=False)
matmul_pipelined_kernel, matmul_pipelined_any_kernel = _both()


@rung(kernel=(matmul_async_copies_kernel, matmul_async_copies_any_kernel),
      idea="copies past the registers, two pairs of tiles ahead")
def matmul_async_copies(a, b, out, stream=0):
    """As double_buffered, but cp.async copies from global to shared memory past the registers, so copies can be further
    ahead: three pairs of tiles, 16 steps of K each, form a ring. Sizes that are no multiple of the tile are copied
    element by element, which is slower."""
    _launch_ring(matmul_async_copies_kernel, matmul_async_copies_any_kernel, a, b, out, stream)


@rung(kernel=(matmul_warp_tiles_kernel, matmul_warp_tiles_any_kernel),
      idea="a warp's thread tiles form a tile of 64 x 32")
def matmul_warp_tiles(a, b, out, stream=0):
    """As async_copies, but the 32 thread tiles of a warp form a tile of 64 x 32, of which it reads 96 elements a step;
    two rows of 16 thread tiles need 144."""
    _launch_ring(matmul_warp_tiles_kernel, matmul_warp_tiles_any_kernel, a, b, out, stream)


@rung(kernel=(matmul_reads_ahead_kernel, matmul_reads_ahead_any_kernel),
      idea="fragments are read one step of K ahead")
def matmul_reads_ahead(a, b, out, stream=0):
    """As warp_tiles, but the fragments of the next step are read during the products of this one."""
    _launch_ring(matmul_reads_ahead_kernel, matmul_reads_ahead_any_kernel, a, b, out, stream)


@rung(kernel=(matmul_pipelined_kernel, matmul_pipelined_any_kernel),
      idea="products in an order in which each shares a factor with the one before")
def matmul_pipelined(a, b, out, stream=0):
    """As reads_ahead, but the order of the products alternates, so that a register is read twice in a row."""
    _launch_ring(matmul_pipelined_kernel, matmul_pipelined_any_kernel, a, b, out, stream)


def _launch_ring(exact_kernel, any_kernel, a, b, out, stream):
    rows, cols = _check(a, b, out)
    exact = rows % BLOCK_TILE == 0 and cols % BLOCK_TILE == 0 and a.shape[1] % BLOCK_K == 0 and aligned(a, b, out)
    kernel = exact_kernel if exact else any_kernel
    dynamic_shared(kernel, 4 * RING, a, b, out)
    kernel[blocks_for((cols, rows), (BLOCK_TILE, BLOCK_TILE)), 256, stream, 4 * RING](a, b, out)


def _check(a, b, out):
    rows, cols, _ = product_sizes(a, b)
    check_array("out", out, shape=(rows, cols))
    return rows, cols
