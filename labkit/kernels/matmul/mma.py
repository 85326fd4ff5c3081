"""Products on tensor cores through mma.sync: the kernels that matmul_half, matmul_bf16 and linear share.

Shapes  a (M, K), b (K, N), or as the weights of a linear layer (N, K); out (M, N); 16-bit elements, accumulators in
        float32
Sizes   K and N multiples of 8: rows move in pieces of 16 bytes, which begin at multiples of 16 bytes. Any M
Needs   compute capability 8.0 (cp.async, mma m16n8k16)
Source  PTX ISA, "Matrix Fragments for mma.m16n8k16", "ldmatrix", "cp.async"; NVIDIA CUTLASS, "Efficient GEMM in CUDA"

Every kernel takes (a, b, bias, residual, out). bias (N,) and residual (M, N) are read only by a kernel that was made
for them; pass `out` for one that is not there. The file is longer than others, for two kernels and all their epilogues.
"""

from dataclasses import dataclass

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, blocks_for, check_array, dynamic_shared, fits, product_sizes, resident
from labkit.kernels.elements import BFLOAT16, FLOAT16, Element

BAND = 8  # height in tiles of the bands in which blocks are rasterised
CHUNK = 8  # 16-bit elements in 16 bytes, what one cp.async moves and one ldmatrix row holds


@dataclass(frozen=True)
class Tile:
    """The tile of a block, rows x cols, the depth of a stage along K, and the tile of a warp."""

    rows: int
    cols: int
    depth: int
    warp_rows: int
    warp_cols: int
    stages: int = 2
    blocks: int = 1  # resident on an SM at least: this bounds a thread's registers

    @property
    def warps(self) -> int:
        return (self.rows // self.warp_rows) * (self.cols // self.warp_cols)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Of the stages, each with a tile of either factor in 16 bits."""
        return 2 * self.stages * (self.rows + self.cols) * self.depth

    def count(self, rows: int, cols: int) -> int:
        """Blocks that cover rows x cols."""
        return -(-rows // self.rows) * -(-cols // self.cols)


def usable(tiles) -> list[Tile]:
    """Those of these tiles that fit into the target's shared memory. On compute capability 7.5, where copies go through
    registers, four warps of 64 x 64 need more than 255 registers a thread: that tile is left out there."""
    spills = gpus.target().capability == (7, 5)
    return [tile for tile in tiles if fits(tile)
            and not (spills and tile.warps == 4 and (tile.warp_rows, tile.warp_cols) == (64, 64))]


# --- What the kernels share -------------------------------------------------------------------------------------------


def make_copy(height: int, width: int, threads: int, pitch: int, swizzled: bool, chunk: int = CHUNK):
    """A device function: start the copies of a height x width tile of `matrix` to shared memory, zeros beyond edges.

    A row of the tile takes `pitch` elements of shared memory. In a swizzled tile the pieces of a row, 16 bytes each,
    are permuted by a value that changes from row to row, so that the same piece of eight rows lies in eight different
    groups of banks. chunk: elements in 16 bytes.
    """
    chunks = width // chunk
    step = threads // chunks  # rows between two copies of a thread
    copies = height // step
    if step * chunks != threads or copies * step != height:
        raise ValueError(f"{threads} threads cannot share a tile of {height} x {width} elements in equal parts")
    shift, mask = swizzle_of(chunks) if swizzled else (0, 0)

    @cuda.jit(device=True)
    def copy_tile(shared, start, matrix, row0, col0, thread):
        rows, cols = u32.shape(matrix)
        row_in_copy, piece = thread // chunks, thread % chunks
        col = col0 + piece * chunk
        src_offset = (row0 + row_in_copy) * cols + col
        for i in u32.range(copies):
            row = row_in_copy + i * step
            swizzled_piece = piece ^ row >> shift & mask
            src_bytes = 16 if row0 + row < rows and col < cols else 0
            ptx.cp_async_16(shared, start + row * pitch + swizzled_piece * chunk,
                            matrix, src_offset + i * step * cols, src_bytes)

    return copy_tile


def make_copy_stage(copy_a, copy_b, a_size: int, stage_size: int, weights: bool, transposed: bool = False):
    """A device function: start the copies of a stage, a tile of a and then one of b, (N, K) if it holds weights.
    transposed: a is (K, M)."""

    @cuda.jit(device=True)
    def copy_stage(shared, slot, a, b, row0, col0, k0, thread):
        start = slot * stage_size
        if transposed:
            copy_a(shared, start, a, k0, row0, thread)
        else:
            copy_a(shared, start, a, row0, k0, thread)
        if weights:
            copy_b(shared, start + a_size, b, col0, k0, thread)
        else:
            copy_b(shared, start + a_size, b, k0, col0, thread)

    return copy_stage


def swizzle_of(chunks: int) -> tuple:
    """Return (shift, mask): piece p of row r lies at p ^ (r >> shift & mask). Eight pieces are 128 bytes, all 32 banks;
    with four pieces a row, two rows share them."""
    return {4: (1, 3)}.get(chunks, (0, 7))


@cuda.jit(device=True)
def tile_of_block(block, tiles_m, tiles_n, band_height):
    """Return the row and column of a block's tile. Blocks go down `band_height` tiles, then to the next column.

    The blocks that run at the same time then form a rectangle, not a line, and share rows of a and columns of b in the
    L2 cache.
    """
    band_tiles = band_height * tiles_n
    band = block // band_tiles
    index_in_band = block - band * band_tiles
    rows_in_band = min(tiles_m - band * band_height, band_height)
    return band * band_height + index_in_band % rows_in_band, index_in_band // rows_in_band


@cuda.jit(device=True)
def add_product(acc, i, a0, a1, a2, a3, b0, b1):
    """acc[i : i + 4] += a 16 x 8 product in float16 over 16 steps of K, in float32."""
    w, x, y, z = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, acc[i], acc[i + 1], acc[i + 2], acc[i + 3])
    acc[i], acc[i + 1], acc[i + 2], acc[i + 3] = w, x, y, z


@cuda.jit(device=True)
def add_product_bf16(acc, i, a0, a1, a2, a3, b0, b1):
    """The same in bfloat16."""
    w, x, y, z = ptx.mma_m16n8k16_f32_bf16(a0, a1, a2, a3, b0, b1, acc[i], acc[i + 1], acc[i + 2], acc[i + 3])
    acc[i], acc[i + 1], acc[i + 2], acc[i + 3] = w, x, y, z


ADD_PRODUCT = {FLOAT16: add_product, BFLOAT16: add_product_bf16}


@cuda.jit(device=True)
def add_product_f16(acc, i, a0, a1, a2, a3, b0, b1):
    """The same with float16 accumulators: acc[i] and acc[i + 1] are words of two."""
    x, y = ptx.mma_m16n8k16_f16_f16(a0, a1, a2, a3, b0, b1, acc[i], acc[i + 1])
    acc[i], acc[i + 1] = x, y


@cuda.jit(device=True)
def read_accumulators(acc, i):
    """Return a lane's accumulators of a 16 x 8 product: two neighbours in row lane // 4, then two 8 rows below."""
    return acc[i], acc[i + 1], acc[i + 2], acc[i + 3]


@cuda.jit(device=True)
def read_accumulators_f16(acc, i):
    """The same with float16 accumulators."""
    w, x = ptx.unpack_half2(acc[i])
    y, z = ptx.unpack_half2(acc[i + 1])
    return w, x, y, z


@cuda.jit(device=True)
def unchanged(x):
    return x


# --- One to three stages, padded rows ---------------------------------------------------------------------------------


@kernel_factory
def make_staged(tile: Tile, *, weights: bool = False, bias: bool = False, f16_accumulators: bool = False,
                activation=unchanged):
    """cp.async into `tile.stages` buffers, then ldmatrix; a warp loads its fragments just before it multiplies them.
    With one buffer every copy is waited for.

    weights: b is (N, K), the layout of a linear layer. f16_accumulators: they are float16, two in a register.
    activation: a device function of one float32, applied in the epilogue to values rounded to float16. These go through
    shared memory, and the loop over a lane's words is not unrolled: see make_store_elements.
    """
    ROWS, COLS, DEPTH = tile.rows, tile.cols, tile.depth
    STAGES, PENDING = tile.stages, max(0, tile.stages - 2)
    THREADS, WARPS_N = tile.threads, tile.cols // tile.warp_cols
    WARP_ROWS, WARP_COLS = tile.warp_rows, tile.warp_cols
    MMA_M, MMA_N, PAIRS, STEPS = WARP_ROWS // 16, WARP_COLS // 8, WARP_COLS // 16, DEPTH // 16
    A_PITCH = DEPTH + CHUNK  # 16 bytes of padding: ldmatrix then reads eight rows from different banks
    B_PITCH = A_PITCH if weights else COLS + CHUNK
    A_SIZE = ROWS * A_PITCH
    STAGE_SIZE = A_SIZE + (COLS if weights else DEPTH) * B_PITCH
    ACC, ACC_TYPE = (2, uint32) if f16_accumulators else (4, float32)  # registers of a lane for a 16 x 8 product
    ACCUMULATORS, A_REGS, B_REGS = MMA_M * MMA_N * ACC, MMA_M * 4, MMA_N * 2
    add, read = (add_product_f16, read_accumulators_f16) if f16_accumulators else (add_product, read_accumulators)
    copy_a = make_copy(ROWS, DEPTH, THREADS, A_PITCH, swizzled=False)
    copy_b = make_copy(*((COLS, DEPTH) if weights else (DEPTH, COLS)), THREADS, B_PITCH, swizzled=False)
    copy_stage = make_copy_stage(copy_a, copy_b, A_SIZE, STAGE_SIZE, weights)
    activated = activation is not unchanged
    OUT_WORDS = MMA_M * MMA_N * 2  # of a lane

    @cuda.jit(launch_bounds=(tile.threads, resident(tile.blocks, tile.threads, tile.shared_bytes)))
    def staged_kernel(a, b, bias_of, residual, out):
        shared = cuda.shared.array(0, np.float16)
        words = cuda.shared.array(0, uint32)  # the same memory, two float16 values at a time
        rows, cols, depth = u32.shape(out)[0], u32.shape(out)[1], u32.shape(a)[1]
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        row0, col0 = u32.blockIdx.y * ROWS, u32.blockIdx.x * COLS
        warp_row = warp // WARPS_N * WARP_ROWS
        warp_col = warp % WARPS_N * WARP_COLS

        # The offset in a stage of this lane's row of the warp's first ldmatrix.
        a_offset = (warp_row + lane % 16) * A_PITCH + lane // 16 * CHUNK
        if weights:
            b_row, b_chunk = lane % 8 + lane // 16 * 8, lane // 8 % 2
            b_offset = A_SIZE + (warp_col + b_row) * B_PITCH + b_chunk * CHUNK
        else:
            b_offset = A_SIZE + lane % 16 * B_PITCH + warp_col + lane // 16 * CHUNK

        acc = cuda.local.array(ACCUMULATORS, ACC_TYPE)
        a_frag = cuda.local.array(A_REGS, uint32)
        b_frag = cuda.local.array(B_REGS, uint32)
        for i in u32.range(ACCUMULATORS):
            acc[i] = ACC_TYPE(0)

        steps = (depth + (DEPTH - 1)) // DEPTH
        for s in u32.range(STAGES - 1):
            copy_stage(shared, s, a, b, row0, col0, s * DEPTH, thread)
            ptx.cp_async_commit()
        for step in u32.range(steps):
            if STAGES == 1:
                cuda.syncthreads()  # every warp has read the only stage: it is free to overwrite
                copy_stage(shared, 0, a, b, row0, col0, step * DEPTH, thread)
                ptx.cp_async_commit()
            ptx.cp_async_wait(PENDING)
            cuda.syncthreads()  # the stage of `step` has landed; the previous one is free to overwrite
            if STAGES > 1:
                next_step = step + (STAGES - 1)
                if next_step < steps:
                    slot = next_step % STAGES
                    copy_stage(shared, slot, a, b, row0, col0, next_step * DEPTH, thread)
                ptx.cp_async_commit()
            stage = step % STAGES * STAGE_SIZE
            for k in u32.range(STEPS):
                for i in u32.range(MMA_M):
                    regs = ptx.ldmatrix_x4(shared, stage + a_offset + (i * 16 * A_PITCH + k * 16))
                    for j in u32.range(4):
                        a_frag[i * 4 + j] = regs[j]
                for i in u32.range(PAIRS):
                    if weights:
                        regs = ptx.ldmatrix_x4(shared, stage + b_offset + (i * 16 * B_PITCH + k * 16))
                    else:
                        regs = ptx.ldmatrix_x4_trans(shared, stage + b_offset + (k * 16 * B_PITCH + i * 16))
                    for j in u32.range(4):
                        b_frag[i * 4 + j] = regs[j]
                for i in u32.range(MMA_M):
                    for j in u32.range(MMA_N):
                        add(acc, (i * MMA_N + j) * ACC, a_frag[i * 4], a_frag[i * 4 + 1],
                            a_frag[i * 4 + 2], a_frag[i * 4 + 3], b_frag[j * 2], b_frag[j * 2 + 1])

        if activated:
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # every warp has read the last stage: it holds the words until the activation
        lane_base = warp * (32 * OUT_WORDS) + lane  # a lane reads back only what it wrote
        for j in u32.range(MMA_N):
            col = col0 + warp_col + j * 8 + lane % 4 * 2
            if col < cols:
                v0 = float32(bias_of[col]) if bias else float32(0.0)
                v1 = float32(bias_of[col + 1]) if bias else float32(0.0)
                for i in u32.range(MMA_M):
                    w, x, y, z = read(acc, (i * MMA_N + j) * ACC)
                    if activated:
                        offset = lane_base + 64 * (i * MMA_N + j)
                        words[offset] = ptx.pack_half2(w + v0, x + v1)
                        words[offset + 32] = ptx.pack_half2(y + v0, z + v1)
                    else:
                        row = row0 + warp_row + i * 16 + lane // 4
                        if row < rows:
                            ptx.store_global_half2(out, row * cols + col, w + v0, x + v1)
                        row += 8
                        if row < rows:
                            ptx.store_global_half2(out, row * cols + col, y + v0, z + v1)
        if activated:
            for n in u32.range(OUT_WORDS):
                i, j = n // (2 * MMA_N), n // 2 % MMA_N
                row = row0 + warp_row + i * 16 + n % 2 * 8 + lane // 4
                col = col0 + warp_col + j * 8 + lane % 4 * 2
                if row < rows and col < cols:
                    v0, v1 = ptx.unpack_half2(words[lane_base + n * 32])
                    ptx.store_global_half2(out, row * cols + col, activation(v0), activation(v1))

    staged_kernel.tile, staged_kernel.in_bands = tile, False
    staged_kernel.shared_bytes = max(2 * STAGES * STAGE_SIZE, 2 * ROWS * COLS if activated else 0)
    return staged_kernel


# --- Four stages, swizzled, fragments loaded ahead --------------------------------------------------------------------


def make_store_elements(tile: Tile, bias: bool, residual: bool, activation, element: Element):
    """A device function: store a warp's accumulators to out as elements of 16 bits, through shared memory, 16 bytes a
    lane along its rows.

    A lane holds two neighbouring accumulators: stored as they are, each store would fill an eighth of a 32-byte sector.
    The activation is applied last, to such elements: a loop over all accumulators would be unrolled to thousands of
    instructions, or not be unrolled and spill them.
    """
    activated = activation is not unchanged
    pack, unpack, to_float, ELEMENT = element.pack, element.unpack, element.number, element.dtype.type
    WARP_ROWS, WARP_COLS = tile.warp_rows, tile.warp_cols
    MMA_M, MMA_N, NUM_BIASES = WARP_ROWS // 16, WARP_COLS // 8, WARP_COLS // 4
    PITCH = WARP_COLS + CHUNK
    CHUNKS = WARP_COLS // CHUNK
    NUM_COPIES = WARP_ROWS * CHUNKS // 32

    @cuda.jit(device=True)
    def activate(word):
        v0, v1 = unpack(word)
        return pack(activation(v0), activation(v1))

    @cuda.jit(device=True)
    def store_elements(acc, bias_of, residual_of, out, row0, col0):
        shared = cuda.shared.array(0, ELEMENT)
        words = cuda.shared.array(0, uint32)  # the same memory, two values at a time
        lane, warp = u32.threadIdx.x % 32, u32.threadIdx.x // 32
        rows, cols = u32.shape(out)
        biases = cuda.local.array(NUM_BIASES, float32)
        for j in u32.range(MMA_N):
            for half in u32.range(2):
                biases[2 * j + half] = float32(0.0)
                if bias:
                    col = col0 + (j * 8 + half) + lane % 4 * 2
                    biases[2 * j + half] = to_float(bias_of[col]) if col < cols else float32(0.0)
        warp_base = warp * (WARP_ROWS * PITCH)  # each warp has a region of shared memory
        if residual:
            for i in u32.range(NUM_COPIES):
                piece = lane + 32 * i
                row, col = piece // CHUNKS, piece % CHUNKS * CHUNK
                src_bytes = 16 if row0 + row < rows and col0 + col < cols else 0
                ptx.cp_async_16(shared, warp_base + row * PITCH + col,
                                residual_of, (row0 + row) * cols + col0 + col, src_bytes)
            ptx.cp_async_commit()
            ptx.cp_async_wait(0)
            cuda.syncwarp()
        for i in u32.range(MMA_M):
            for j in u32.range(MMA_N):
                for row_half in u32.range(2):  # 0: row lane // 4; 1: the row 8 below
                    offset = (i * MMA_N + j) * 4 + row_half * 2
                    row = i * 16 + row_half * 8 + lane // 4
                    word = (warp_base + row * PITCH) // 2 + j * 4 + lane % 4
                    v0, v1 = acc[offset] + biases[2 * j], acc[offset + 1] + biases[2 * j + 1]
                    if residual:
                        r0, r1 = unpack(words[word])
                        v0 += r0
                        v1 += r1
                    words[word] = pack(v0, v1)
        cuda.syncwarp()
        for i in u32.range(NUM_COPIES):
            piece = lane + 32 * i
            row, col = piece // CHUNKS, piece % CHUNKS * CHUNK
            x, y, z, w = ptx.load_shared4(shared, warp_base + row * PITCH + col)
            if activated:
                x, y, z, w = activate(x), activate(y), activate(z), activate(w)
            if row0 + row < rows and col0 + col < cols:
                ptx.store_global4(out, (row0 + row) * cols + col0 + col, x, y, z, w)

    return store_elements


def make_store_floats(tile: Tile, accumulate: bool = False):
    """A device function: store a warp's accumulators as float32, or add them: four lanes fill a 32-byte sector. The
    matrix begins at row `begin` of out and has `rows` rows."""
    MMA_M, MMA_N = tile.warp_rows // 16, tile.warp_cols // 8

    @cuda.jit(device=True)
    def store_floats(acc, out, begin, rows, row0, col0):
        lane, cols = u32.threadIdx.x % 32, u32.shape(out)[1]
        for i in u32.range(MMA_M):
            for j in u32.range(MMA_N):
                for row_half in u32.range(2):
                    offset = (i * MMA_N + j) * 4 + row_half * 2
                    row = row0 + (i * 16 + row_half * 8) + lane // 4
                    col = col0 + j * 8 + lane % 4 * 2
                    if row < rows and col < cols:
                        x, y = acc[offset], acc[offset + 1]
                        if accumulate:
                            x += out[begin + row, col]
                            y += out[begin + row, col + 1]
                        ptx.store_global2(out, (begin + row) * cols + col, x, y)

    return store_floats


@kernel_factory
def make_pipelined(tile: Tile, *, weights: bool = False, bias: bool = False, residual: bool = False,
                   activation=unchanged, element: Element = FLOAT16, floats: bool = False, transposed: bool = False,
                   accumulate: bool = False):
    """out = activation(a @ b + bias + residual), with b (N, K) if it holds weights. floats: out is float32, the
    accumulators as they are. transposed: a is (K, M); blockIdx.y is then a split of K, and out has M rows for each.
    accumulate: float32 accumulators are added to what is in out.

    While tensor cores multiply the fragments of one step of 16 along K, ldmatrix loads those of the next into other
    registers, and cp.async fills the stage that was read last. One barrier a stage.
    """
    ROWS, COLS, DEPTH = tile.rows, tile.cols, tile.depth
    STAGES, PREFETCH, PENDING = tile.stages, tile.stages - 1, tile.stages - 2
    THREADS, WARPS_N = tile.threads, tile.cols // tile.warp_cols
    WARP_ROWS, WARP_COLS = tile.warp_rows, tile.warp_cols
    MMA_M, MMA_N, PAIRS, STEPS = WARP_ROWS // 16, WARP_COLS // 8, WARP_COLS // 16, DEPTH // 16
    A_SIZE = ROWS * DEPTH
    STAGE_SIZE = A_SIZE + COLS * DEPTH
    ACCUMULATORS, A_REGS, B_REGS = MMA_M * MMA_N * 4, MMA_M * 4, MMA_N * 2
    SHIFT, MASK = swizzle_of(DEPTH // CHUNK)
    A_OFFSETS, K_AXIS = (MMA_M, 0) if transposed else (1, 1)
    ELEMENT = element.dtype.type
    copy_a = make_copy(*((DEPTH, ROWS, THREADS, ROWS) if transposed else (ROWS, DEPTH, THREADS, DEPTH)), swizzled=True)
    copy_b = make_copy(COLS, DEPTH, THREADS, DEPTH, True) if weights else make_copy(DEPTH, COLS, THREADS, COLS, True)
    copy_stage = make_copy_stage(copy_a, copy_b, A_SIZE, STAGE_SIZE, weights, transposed)
    add, store_floats = ADD_PRODUCT[element], make_store_floats(tile, accumulate)
    store_elements = make_store_elements(tile, bias, residual, activation, element)

    @cuda.jit(launch_bounds=(tile.threads, resident(tile.blocks, tile.threads, tile.shared_bytes)))
    def pipelined_kernel(a, b, bias_of, residual_of, out):
        shared = cuda.shared.array(0, ELEMENT)
        rows, cols, depth = u32.shape(out)[0], u32.shape(out)[1], u32.shape(a)[K_AXIS]
        steps = (depth + (DEPTH - 1)) // DEPTH
        k_begin, out_begin = 0, 0
        if transposed:
            rows = rows // u32.gridDim.y
            split_steps = (steps + (u32.gridDim.y - 1)) // u32.gridDim.y
            first_step = u32.blockIdx.y * split_steps
            steps = min(split_steps, steps - first_step)
            k_begin, out_begin = first_step * DEPTH, u32.blockIdx.y * rows
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        tiles_m = (rows + (ROWS - 1)) // ROWS
        tiles_n = (cols + (COLS - 1)) // COLS
        tile_row, tile_col = tile_of_block(u32.blockIdx.x, tiles_m, tiles_n, BAND)
        row0, col0 = tile_row * ROWS, tile_col * COLS
        warp_row = warp // WARPS_N * WARP_ROWS
        warp_col = warp % WARPS_N * WARP_COLS

        # The offset in a stage of this lane's row of the warp's first ldmatrix. Step k needs the piece `2 * k` further,
        # before the swizzle: an XOR with 2 * k pieces, since no other bits of the offset change.
        a_offset = cuda.local.array(A_OFFSETS, uint32)
        b_offset = cuda.local.array(PAIRS, uint32)
        if transposed:  # rows of k: ldmatrix transposes as it reads
            for i in u32.range(MMA_M):
                a_chunk = warp_row // CHUNK + 2 * i + lane // 8 % 2 ^ lane % 8
                a_offset[i] = (lane % 8 + lane // 16 * 8) * ROWS + a_chunk * CHUNK
        else:
            a_row = warp_row + lane % 16
            a_chunk = lane // 16 ^ a_row >> SHIFT & MASK
            a_offset[0] = a_row * DEPTH + a_chunk * CHUNK
        if weights:
            b_row = warp_col + lane % 8 + lane // 16 * 8
            b_chunk = lane // 8 % 2 ^ b_row >> SHIFT & MASK
            b_offset[0] = A_SIZE + b_row * DEPTH + b_chunk * CHUNK
        else:
            for j in u32.range(PAIRS):
                b_chunk = warp_col // CHUNK + 2 * j + lane // 16 ^ lane % 8
                b_offset[j] = A_SIZE + lane % 16 * COLS + b_chunk * CHUNK

        acc = cuda.local.array(ACCUMULATORS, float32)
        a_frag = cuda.local.array((2, A_REGS), uint32)
        b_frag = cuda.local.array((2, B_REGS), uint32)
        for i in u32.range(ACCUMULATORS):
            acc[i] = float32(0.0)
        for i in u32.range(A_REGS):
            a_frag[1, i] = 0  # the first product has no fragments yet: it adds zeros
        for i in u32.range(B_REGS):
            b_frag[1, i] = 0

        for s in u32.range(PREFETCH):
            copy_stage(shared, s, a, b, row0, col0, k_begin + s * DEPTH, thread)
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
                    if transposed:
                        regs = ptx.ldmatrix_x4_trans(shared, stage + a_offset[i] + k * 16 * ROWS)
                    else:
                        regs = ptx.ldmatrix_x4(shared, stage + (a_offset[0] ^ 16 * k) + i * 16 * DEPTH)
                    for j in u32.range(4):
                        a_frag[load_buf, i * 4 + j] = regs[j]
                for i in u32.range(PAIRS):
                    if weights:
                        b_row_offset = stage + (b_offset[0] ^ 16 * k) + i * 16 * DEPTH
                        regs = ptx.ldmatrix_x4(shared, b_row_offset)
                    else:
                        regs = ptx.ldmatrix_x4_trans(shared, stage + b_offset[i] + k * 16 * COLS)
                    for j in u32.range(4):
                        b_frag[load_buf, i * 4 + j] = regs[j]
                if k == STEPS - 1:  # no earlier: loads from shared memory do not overtake copies into it
                    next_step = step + PREFETCH
                    if next_step < steps:
                        copy_stage(shared, empty, a, b, row0, col0, k_begin + next_step * DEPTH, thread)
                    ptx.cp_async_commit()
                    empty = empty + 1 if empty < PREFETCH else 0
                for i in u32.range(MMA_M):
                    for j in u32.range(MMA_N):
                        add(acc, (i * MMA_N + j) * 4,
                            a_frag[mma_buf, i * 4], a_frag[mma_buf, i * 4 + 1], a_frag[mma_buf, i * 4 + 2],
                            a_frag[mma_buf, i * 4 + 3], b_frag[mma_buf, j * 2], b_frag[mma_buf, j * 2 + 1])
        for i in u32.range(MMA_M):
            for j in u32.range(MMA_N):
                add(acc, (i * MMA_N + j) * 4, a_frag[1, i * 4], a_frag[1, i * 4 + 1], a_frag[1, i * 4 + 2],
                    a_frag[1, i * 4 + 3], b_frag[1, j * 2], b_frag[1, j * 2 + 1])

        ptx.cp_async_wait(0)
        cuda.syncthreads()  # the stages are free: the epilogue stages the output in them
        if floats:
            store_floats(acc, out, out_begin, rows, row0 + warp_row, col0 + warp_col)
        else:
            store_elements(acc, bias_of, residual_of, out, row0 + warp_row, col0 + warp_col)

    epilogue_size = 0 if floats else tile.warps * WARP_ROWS * (WARP_COLS + CHUNK)
    pipelined_kernel.tile, pipelined_kernel.in_bands = tile, True
    pipelined_kernel.shared_bytes = 2 * max(STAGES * STAGE_SIZE, epilogue_size)
    return pipelined_kernel


# --- Launching --------------------------------------------------------------------------------------------------------


def check_product(a, b, bias, residual, out, *, weights: bool, dtype=np.float16, out_dtype=np.float16, names="ab",
                  multiple: int = CHUNK) -> tuple:
    """Return (rows, cols, depth) of the product, or raise an error that names the argument and the limits."""
    rows, cols, depth = product_sizes(a, b, weights=weights, names=names, dtype=dtype)
    check_array("out", out, shape=(rows, cols), dtype=out_dtype)
    if bias is not None:
        check_array("bias", bias, shape=(cols,), dtype=dtype)
    if residual is not None:
        check_array("residual", residual, shape=(rows, cols), dtype=dtype)
    for axis, size in (("K", depth), ("N", cols)):
        if size % multiple:
            raise ValueError(f"{axis} is {size}; it must be a multiple of {multiple}, so that every row begins at a "
                             f"multiple of 16 bytes")
    if multiple > 1 and not aligned(*(array for array in (a, b, residual, out) if array is not None)):
        raise ValueError("every matrix must begin at a multiple of 16 bytes; one is a view that does not")
    return rows, cols, depth


def launch(kernel, a, b, bias, residual, out, stream=0) -> None:
    """Launch a kernel of make_staged or make_pipelined. The caller has checked the arguments."""
    tile, (rows, cols) = kernel.tile, out.shape
    grid = (tile.count(rows, cols),) if kernel.in_bands else blocks_for((cols, rows), (tile.cols, tile.rows))
    arguments = (a, b, out if bias is None else bias, out if residual is None else residual, out)
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    kernel[grid, tile.threads, stream, kernel.shared_bytes](*arguments)
