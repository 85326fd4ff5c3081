"""Products on tensor cores through mma.sync: the kernels that matmul_half, matmul_bf16 and linear share.

Shapes  a (M, K), b (K, N), or as the weights of a linear layer (N, K); out (M, N); 16-bit numbers, float32 accumulators
Sizes   K and N multiples of 8: rows move in pieces of 16 bytes, which begin at multiples of 16 bytes. Any M
Needs   compute capability 8.0 (cp.async, mma m16n8k16)
Source  PTX ISA, "Matrix Fragments for mma.m16n8k16", "ldmatrix", "cp.async"; NVIDIA CUTLASS, "Efficient GEMM in CUDA"

Every kernel takes (a, b, bias, residual, out). bias (N,) and residual (M, N) are read only by a kernel that was made
for them; pass `out` for one that is not there.
"""

from dataclasses import dataclass

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, blocks_for, check_array, dynamic_shared
from labkit.kernels.elements import bfloat16_number

BAND = 8  # tiles that neighbouring blocks go down before they go to the next column
MMA = (8, 0)  # the compute capability that these instructions need
CHUNK = 8  # 16-bit elements in 16 bytes, what one cp.async moves and one ldmatrix row holds


@dataclass(frozen=True)
class Tile:
    """What a block computes, rows x cols, how deep a slice of K it stages, and how warps divide it."""

    rows: int
    cols: int
    depth: int
    warp_rows: int
    warp_cols: int
    stages: int = 2
    blocks: int = 1  # a multiprocessor holds at least so many: what bounds a thread's registers

    @property
    def warps(self) -> int:
        return (self.rows // self.warp_rows) * (self.cols // self.warp_cols)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    def count(self, rows: int, cols: int) -> int:
        """Blocks that cover rows x cols."""
        return -(-rows // self.rows) * -(-cols // self.cols)


# --- Pieces that the kernels share ------------------------------------------------------------------------------------


def make_copy(height: int, width: int, threads: int, pitch: int, swizzled: bool, chunk: int = CHUNK):
    """A device function: starts the copies of a height x width tile of `matrix` to shared memory, zeros beyond edges.

    A row of the tile takes `pitch` elements of shared memory. In a swizzled tile the pieces of a row are permuted,
    by a number that changes from row to row, so that the same piece of eight rows lies in eight different banks.
    chunk: elements in 16 bytes.
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
        first, piece = thread // chunks, thread % chunks
        col = col0 + piece * chunk
        source = (row0 + first) * cols + col
        for i in u32.range(copies):
            row = first + i * step
            place = piece ^ row >> shift & mask
            valid = 16 if row0 + row < rows and col < cols else 0
            ptx.cp_async_16(shared, start + row * pitch + place * chunk,
                            matrix, source + i * step * cols, valid)

    return copy_tile


def swizzle_of(chunks: int) -> tuple:
    """(shift, mask): piece p of row r lies at p ^ (r >> shift & mask). Eight pieces are 128 bytes, all 32 banks; where
    a row has four, two rows share them."""
    return {4: (1, 3)}.get(chunks, (0, 7))


@cuda.jit(device=True)
def tile_of_block(block, down, across, height):
    """The row and column of a block's tile: blocks go down `height` tiles, then to the next column of tiles.

    The blocks that run at the same time then form a rectangle, not a line, and share rows of a and columns of b in the
    L2 cache.
    """
    size = height * across
    band = block // size
    rest = block - band * size
    rows = min(down - band * height, height)
    return band * height + rest % rows, rest // rows


@cuda.jit(device=True)
def add_product(acc, at, a0, a1, a2, a3, b0, b1):
    """acc[at : at + 4] += a 16 x 8 product in float16 over 16 steps of K, in float32."""
    w, x, y, z = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, acc[at], acc[at + 1], acc[at + 2], acc[at + 3])
    acc[at], acc[at + 1], acc[at + 2], acc[at + 3] = w, x, y, z


@cuda.jit(device=True)
def add_product_bf16(acc, at, a0, a1, a2, a3, b0, b1):
    """The same of bfloat16 numbers."""
    w, x, y, z = ptx.mma_m16n8k16_f32_bf16(a0, a1, a2, a3, b0, b1, acc[at], acc[at + 1], acc[at + 2], acc[at + 3])
    acc[at], acc[at + 1], acc[at + 2], acc[at + 3] = w, x, y, z


@cuda.jit(device=True)
def add_product_f16(acc, at, a0, a1, a2, a3, b0, b1):
    """The same with float16 accumulators: acc[at] and acc[at + 1] are words of two."""
    x, y = ptx.mma_m16n8k16_f16_f16(a0, a1, a2, a3, b0, b1, acc[at], acc[at + 1])
    acc[at], acc[at + 1] = x, y


@cuda.jit(device=True)
def read_accumulators(acc, at):
    """A lane's accumulators of a 16 x 8 product: two neighbours in row lane // 4, then two in the row 8 below."""
    return acc[at], acc[at + 1], acc[at + 2], acc[at + 3]


@cuda.jit(device=True)
def read_accumulators_f16(acc, at):
    """The same with float16 accumulators."""
    w, x = ptx.unpack_half2(acc[at])
    y, z = ptx.unpack_half2(acc[at + 1])
    return w, x, y, z


@cuda.jit(device=True)
def unchanged(x):
    return x


# --- Two or three stages, padded rows ---------------------------------------------------------------------------------


@kernel_factory
def make_staged(tile: Tile, *, weights: bool = False, bias: bool = False, f16_accumulators: bool = False,
                activation=unchanged):
    """cp.async into `tile.stages` buffers and ldmatrix; a warp's fragments are loaded just before they are multiplied.

    weights: b is (N, K), the layout of a linear layer. f16_accumulators: they are float16, two in a register.
    activation: a device function of one float32, applied on the way out to what was rounded to float16. The way leads
    through shared memory, and the loop over a lane's words is not unrolled: see make_store_float16.
    """
    ROWS, COLS, DEPTH = tile.rows, tile.cols, tile.depth
    STAGES, PENDING = tile.stages, tile.stages - 2
    THREADS, ACROSS = tile.threads, tile.cols // tile.warp_cols
    WARP_ROWS, WARP_COLS = tile.warp_rows, tile.warp_cols
    DOWN_MMA, ACROSS_MMA, PAIRS, STEPS = WARP_ROWS // 16, WARP_COLS // 8, WARP_COLS // 16, DEPTH // 16
    A_PITCH = DEPTH + CHUNK  # 16 bytes of padding: ldmatrix then reads eight rows from different banks
    B_PITCH = A_PITCH if weights else COLS + CHUNK
    A_SIZE = ROWS * A_PITCH
    STAGE = A_SIZE + (COLS if weights else DEPTH) * B_PITCH
    ACC, ACC_TYPE = (2, uint32) if f16_accumulators else (4, float32)  # registers of a lane for a 16 x 8 product
    ACCUMULATORS, A_WORDS, B_WORDS = DOWN_MMA * ACROSS_MMA * ACC, DOWN_MMA * 4, ACROSS_MMA * 2
    add, read = (add_product_f16, read_accumulators_f16) if f16_accumulators else (add_product, read_accumulators)
    copy_a = make_copy(ROWS, DEPTH, THREADS, A_PITCH, swizzled=False)
    copy_b = make_copy(*((COLS, DEPTH) if weights else (DEPTH, COLS)), THREADS, B_PITCH, swizzled=False)
    activated = activation is not unchanged
    OUT_WORDS = DOWN_MMA * ACROSS_MMA * 2  # of a lane

    @cuda.jit(device=True)
    def copy_stage(shared, slot, a, b, row0, col0, k0, thread):
        start = slot * STAGE
        copy_a(shared, start, a, row0, k0, thread)
        if weights:
            copy_b(shared, start + A_SIZE, b, col0, k0, thread)
        else:
            copy_b(shared, start + A_SIZE, b, k0, col0, thread)

    @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
    def staged_kernel(a, b, bias_of, residual, out):
        shared = cuda.shared.array(0, np.float16)
        words = cuda.shared.array(0, uint32)  # the same memory, two float16 values at a time
        rows, cols, depth = u32.shape(out)[0], u32.shape(out)[1], u32.shape(a)[1]
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        row0, col0 = u32.blockIdx.y * ROWS, u32.blockIdx.x * COLS
        warp_row = warp // ACROSS * WARP_ROWS
        warp_col = warp % ACROSS * WARP_COLS

        # Where this lane's row of the first ldmatrix of a warp begins in a stage.
        a_at = (warp_row + lane % 16) * A_PITCH + lane // 16 * CHUNK
        if weights:
            b_row, b_chunk = lane % 8 + lane // 16 * 8, lane // 8 % 2
            b_at = A_SIZE + (warp_col + b_row) * B_PITCH + b_chunk * CHUNK
        else:
            b_at = A_SIZE + lane % 16 * B_PITCH + warp_col + lane // 16 * CHUNK

        acc = cuda.local.array(ACCUMULATORS, ACC_TYPE)
        a_words = cuda.local.array(A_WORDS, uint32)
        b_words = cuda.local.array(B_WORDS, uint32)
        for i in u32.range(ACCUMULATORS):
            acc[i] = ACC_TYPE(0)

        steps = (depth + (DEPTH - 1)) // DEPTH
        for s in u32.range(STAGES - 1):
            copy_stage(shared, s, a, b, row0, col0, s * DEPTH, thread)
            ptx.cp_async_commit()
        for step in u32.range(steps):
            ptx.cp_async_wait(PENDING)
            cuda.syncthreads()  # stage `step` has landed; the one before it is free to overwrite
            ahead = step + (STAGES - 1)
            if ahead < steps:
                slot = ahead % STAGES
                copy_stage(shared, slot, a, b, row0, col0, ahead * DEPTH, thread)
            ptx.cp_async_commit()
            stage = step % STAGES * STAGE
            for k in u32.range(STEPS):
                for i in u32.range(DOWN_MMA):
                    four = ptx.ldmatrix_x4(shared, stage + a_at + (i * 16 * A_PITCH + k * 16))
                    for j in u32.range(4):
                        a_words[i * 4 + j] = four[j]
                for i in u32.range(PAIRS):
                    if weights:
                        four = ptx.ldmatrix_x4(shared, stage + b_at + (i * 16 * B_PITCH + k * 16))
                    else:
                        four = ptx.ldmatrix_x4_trans(shared, stage + b_at + (k * 16 * B_PITCH + i * 16))
                    for j in u32.range(4):
                        b_words[i * 4 + j] = four[j]
                for i in u32.range(DOWN_MMA):
                    for j in u32.range(ACROSS_MMA):
                        add(acc, (i * ACROSS_MMA + j) * ACC, a_words[i * 4], a_words[i * 4 + 1],
                            a_words[i * 4 + 2], a_words[i * 4 + 3], b_words[j * 2], b_words[j * 2 + 1])

        if activated:
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # every warp has read the last stage: words wait there for the activation
        mine = warp * (32 * OUT_WORDS) + lane  # a lane reads back only what it wrote
        for j in u32.range(ACROSS_MMA):
            col = col0 + warp_col + j * 8 + lane % 4 * 2
            if col < cols:
                left = float32(bias_of[col]) if bias else float32(0.0)
                right = float32(bias_of[col + 1]) if bias else float32(0.0)
                for i in u32.range(DOWN_MMA):
                    w, x, y, z = read(acc, (i * ACROSS_MMA + j) * ACC)
                    if activated:
                        at = mine + 64 * (i * ACROSS_MMA + j)
                        words[at] = ptx.pack_half2(w + left, x + right)
                        words[at + 32] = ptx.pack_half2(y + left, z + right)
                    else:
                        row = row0 + warp_row + i * 16 + lane // 4
                        if row < rows:
                            ptx.store_global_half2(out, row * cols + col, w + left, x + right)
                        row += 8
                        if row < rows:
                            ptx.store_global_half2(out, row * cols + col, y + left, z + right)
        if activated:
            for n in u32.range(OUT_WORDS):
                i, j = n // (2 * ACROSS_MMA), n // 2 % ACROSS_MMA
                row = row0 + warp_row + i * 16 + n % 2 * 8 + lane // 4
                col = col0 + warp_col + j * 8 + lane % 4 * 2
                if row < rows and col < cols:
                    left, right = ptx.unpack_half2(words[mine + n * 32])
                    ptx.store_global_half2(out, row * cols + col, activation(left), activation(right))

    staged_kernel.tile, staged_kernel.in_bands = tile, False
    staged_kernel.shared_bytes = max(2 * STAGES * STAGE, 2 * ROWS * COLS if activated else 0)
    return staged_kernel


# --- Four stages, swizzled, fragments loaded ahead --------------------------------------------------------------------


def make_store_float16(tile: Tile, bias: bool, residual: bool, activation, bf16: bool = False):
    """A device function: a warp's accumulators, through shared memory, to out as float16 (or bfloat16): its rows whole,
    16 bytes a lane.

    A lane holds two neighbouring accumulators: stored as they are, each store would fill an eighth of a 32-byte sector.
    The activation is applied on the way out, to float16: a loop over all accumulators would be unrolled to thousands
    of instructions, or not be unrolled and lose the registers.
    """
    activated = activation is not unchanged
    pack, unpack = (ptx.pack_bf162, ptx.unpack_bf162) if bf16 else (ptx.pack_half2, ptx.unpack_half2)
    number = bfloat16_number if bf16 else float32
    WARP_ROWS, WARP_COLS = tile.warp_rows, tile.warp_cols
    DOWN_MMA, ACROSS_MMA, BIASES = WARP_ROWS // 16, WARP_COLS // 8, WARP_COLS // 4
    PITCH = WARP_COLS + CHUNK
    CHUNKS = WARP_COLS // CHUNK
    MOVES = WARP_ROWS * CHUNKS // 32

    @cuda.jit(device=True)
    def activate(word):
        left, right = unpack(word)
        return pack(activation(left), activation(right))

    @cuda.jit(device=True)
    def store_float16(acc, shared, words, bias_of, residual_of, out, row0, col0, warp, lane):
        rows, cols = u32.shape(out)
        biases = cuda.local.array(BIASES, float32)
        for j in u32.range(ACROSS_MMA):
            for half in u32.range(2):
                biases[2 * j + half] = float32(0.0)
                if bias:
                    col = col0 + (j * 8 + half) + lane % 4 * 2
                    biases[2 * j + half] = number(bias_of[col]) if col < cols else float32(0.0)
        mine = warp * (WARP_ROWS * PITCH)  # each warp has its own part of shared memory
        if residual:
            for i in u32.range(MOVES):
                piece = lane + 32 * i
                row, col = piece // CHUNKS, piece % CHUNKS * CHUNK
                valid = 16 if row0 + row < rows and col0 + col < cols else 0
                ptx.cp_async_16(shared, mine + row * PITCH + col,
                                residual_of, (row0 + row) * cols + col0 + col, valid)
            ptx.cp_async_commit()
            ptx.cp_async_wait(0)
            cuda.syncwarp()
        for i in u32.range(DOWN_MMA):
            for j in u32.range(ACROSS_MMA):
                for below in u32.range(2):  # 0: row lane // 4; 1: the row 8 below
                    at = (i * ACROSS_MMA + j) * 4 + below * 2
                    row = i * 16 + below * 8 + lane // 4
                    word = (mine + row * PITCH) // 2 + j * 4 + lane % 4
                    left, right = acc[at] + biases[2 * j], acc[at + 1] + biases[2 * j + 1]
                    if residual:
                        add_left, add_right = unpack(words[word])
                        left += add_left
                        right += add_right
                    words[word] = pack(left, right)
        cuda.syncwarp()
        for i in u32.range(MOVES):
            piece = lane + 32 * i
            row, col = piece // CHUNKS, piece % CHUNKS * CHUNK
            x, y, z, w = ptx.load_shared4(shared, mine + row * PITCH + col)
            if activated:
                x, y, z, w = activate(x), activate(y), activate(z), activate(w)
            if row0 + row < rows and col0 + col < cols:
                ptx.store_global4(out, (row0 + row) * cols + col0 + col, x, y, z, w)

    return store_float16


def make_store_floats(tile: Tile):
    """A device function: a warp's accumulators to out as float32: four lanes fill a 32-byte sector."""
    DOWN_MMA, ACROSS_MMA = tile.warp_rows // 16, tile.warp_cols // 8

    @cuda.jit(device=True)
    def store_floats(acc, shared, words, bias_of, residual_of, out, row0, col0, warp, lane):
        rows, cols = u32.shape(out)
        for i in u32.range(DOWN_MMA):
            for j in u32.range(ACROSS_MMA):
                for below in u32.range(2):
                    at = (i * ACROSS_MMA + j) * 4 + below * 2
                    row = row0 + (i * 16 + below * 8) + lane // 4
                    col = col0 + j * 8 + lane % 4 * 2
                    if row < rows and col < cols:
                        out[row, col] = acc[at]
                        out[row, col + 1] = acc[at + 1]

    return store_floats


@kernel_factory
def make_pipelined(tile: Tile, *, weights: bool = False, bias: bool = False, residual: bool = False,
                   activation=unchanged, bf16: bool = False, bf16_out: bool = False):
    """out = activation(a @ b + bias + residual), with b (N, K) if it holds weights. bf16: uint16 in, and out as well
    with bf16_out; without it out is float32, the accumulators as they are.

    While tensor cores multiply the fragments of one step of 16 along K, ldmatrix loads those of the next into other
    registers, and cp.async fills the stage that was used last. One barrier a stage.
    """
    ROWS, COLS, DEPTH = tile.rows, tile.cols, tile.depth
    STAGES, AHEAD, PENDING = tile.stages, tile.stages - 1, tile.stages - 2
    THREADS, ACROSS = tile.threads, tile.cols // tile.warp_cols
    WARP_ROWS, WARP_COLS = tile.warp_rows, tile.warp_cols
    DOWN_MMA, ACROSS_MMA, PAIRS, STEPS = WARP_ROWS // 16, WARP_COLS // 8, WARP_COLS // 16, DEPTH // 16
    A_SIZE = ROWS * DEPTH
    STAGE = A_SIZE + COLS * DEPTH
    ACCUMULATORS, A_WORDS, B_WORDS = DOWN_MMA * ACROSS_MMA * 4, DOWN_MMA * 4, ACROSS_MMA * 2
    SHIFT, MASK = swizzle_of(DEPTH // CHUNK)
    ELEMENT = np.uint16 if bf16 else np.float16
    copy_a = make_copy(ROWS, DEPTH, THREADS, DEPTH, swizzled=True)
    copy_b = make_copy(COLS, DEPTH, THREADS, DEPTH, True) if weights else make_copy(DEPTH, COLS, THREADS, COLS, True)
    add = add_product_bf16 if bf16 else add_product
    floats = bf16 and not bf16_out
    store = make_store_floats(tile) if floats else make_store_float16(tile, bias, residual, activation, bf16)

    @cuda.jit(device=True)
    def copy_stage(shared, slot, a, b, row0, col0, k0, thread):
        start = slot * STAGE
        copy_a(shared, start, a, row0, k0, thread)
        if weights:
            copy_b(shared, start + A_SIZE, b, col0, k0, thread)
        else:
            copy_b(shared, start + A_SIZE, b, k0, col0, thread)

    @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
    def pipelined_kernel(a, b, bias_of, residual_of, out):
        shared = cuda.shared.array(0, ELEMENT)
        words = cuda.shared.array(0, uint32)  # the same memory, read two float16 values at a time
        rows, cols, depth = u32.shape(out)[0], u32.shape(out)[1], u32.shape(a)[1]
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        down = (rows + (ROWS - 1)) // ROWS
        across = (cols + (COLS - 1)) // COLS
        tile_row, tile_col = tile_of_block(u32.blockIdx.x, down, across, BAND)
        row0, col0 = tile_row * ROWS, tile_col * COLS
        warp_row = warp // ACROSS * WARP_ROWS
        warp_col = warp % ACROSS * WARP_COLS

        # Where this lane's row of a warp's first ldmatrix begins in a stage. The piece that step k wants is `2 * k`
        # further, before the swizzle: an exclusive or with 2 * k pieces, since those bits of the address are its own.
        a_row = warp_row + lane % 16
        a_chunk = lane // 16 ^ a_row >> SHIFT & MASK
        a_at = a_row * DEPTH + a_chunk * CHUNK
        b_at = cuda.local.array(PAIRS, uint32)
        if weights:
            b_row = warp_col + lane % 8 + lane // 16 * 8
            b_chunk = lane // 8 % 2 ^ b_row >> SHIFT & MASK
            b_at[0] = A_SIZE + b_row * DEPTH + b_chunk * CHUNK
        else:
            for j in u32.range(PAIRS):
                b_chunk = warp_col // CHUNK + 2 * j + lane // 16 ^ lane % 8
                b_at[j] = A_SIZE + lane % 16 * COLS + b_chunk * CHUNK

        acc = cuda.local.array(ACCUMULATORS, float32)
        a_words = cuda.local.array((2, A_WORDS), uint32)
        b_words = cuda.local.array((2, B_WORDS), uint32)
        for i in u32.range(ACCUMULATORS):
            acc[i] = float32(0.0)
        for i in u32.range(A_WORDS):
            a_words[1, i] = 0  # the first product has nothing to multiply yet: it adds zeros
        for i in u32.range(B_WORDS):
            b_words[1, i] = 0

        steps = (depth + (DEPTH - 1)) // DEPTH
        for s in u32.range(AHEAD):
            copy_stage(shared, s, a, b, row0, col0, s * DEPTH, thread)
            ptx.cp_async_commit()
        full, empty = 0, AHEAD  # the stages to multiply and to fill next
        for step in u32.range(steps):
            ptx.cp_async_wait(PENDING)
            cuda.syncthreads()  # stage `full` has landed; `empty`, the one before it, has been read by every warp
            stage = full * STAGE
            full = full + 1 if full < AHEAD else 0
            for k in u32.range(STEPS):
                now, before = k % 2, (k + 1) % 2
                for i in u32.range(DOWN_MMA):
                    four = ptx.ldmatrix_x4(shared, stage + (a_at ^ 16 * k) + i * 16 * DEPTH)
                    for j in u32.range(4):
                        a_words[now, i * 4 + j] = four[j]
                for i in u32.range(PAIRS):
                    if weights:
                        at = stage + (b_at[0] ^ 16 * k) + i * 16 * DEPTH
                        four = ptx.ldmatrix_x4(shared, at)
                    else:
                        four = ptx.ldmatrix_x4_trans(shared, stage + b_at[i] + k * 16 * COLS)
                    for j in u32.range(4):
                        b_words[now, i * 4 + j] = four[j]
                if k == STEPS - 1:  # no earlier: loads from shared memory do not overtake copies into it
                    ahead = step + AHEAD
                    if ahead < steps:
                        copy_stage(shared, empty, a, b, row0, col0, ahead * DEPTH, thread)
                    ptx.cp_async_commit()
                    empty = empty + 1 if empty < AHEAD else 0
                for i in u32.range(DOWN_MMA):
                    for j in u32.range(ACROSS_MMA):
                        add(acc, (i * ACROSS_MMA + j) * 4,
                            a_words[before, i * 4], a_words[before, i * 4 + 1], a_words[before, i * 4 + 2],
                            a_words[before, i * 4 + 3], b_words[before, j * 2], b_words[before, j * 2 + 1])
        for i in u32.range(DOWN_MMA):
            for j in u32.range(ACROSS_MMA):
                add(acc, (i * ACROSS_MMA + j) * 4, a_words[1, i * 4], a_words[1, i * 4 + 1], a_words[1, i * 4 + 2],
                    a_words[1, i * 4 + 3], b_words[1, j * 2], b_words[1, j * 2 + 1])

        ptx.cp_async_wait(0)
        cuda.syncthreads()  # the stages are free: they hold the output on its way to memory
        store(acc, shared, words, bias_of, residual_of, out, row0 + warp_row, col0 + warp_col,
              warp, lane)

    way_out = 0 if floats else tile.warps * WARP_ROWS * (WARP_COLS + CHUNK)
    pipelined_kernel.tile, pipelined_kernel.in_bands = tile, True
    pipelined_kernel.shared_bytes = 2 * max(STAGES * STAGE, way_out)
    return pipelined_kernel


# --- Launching --------------------------------------------------------------------------------------------------------


def check_product(a, b, bias, residual, out, *, weights: bool, dtype=np.float16, out_dtype=np.float16, names="ab",
                  multiple: int = CHUNK) -> tuple:
    """Return (rows, cols, depth) of the product, or raise an error that names the argument and the limits."""
    a_name, b_name = names
    check_array(a_name, a, ndim=2, dtype=dtype)
    check_array(b_name, b, ndim=2, dtype=dtype)
    (rows, depth), (b_depth, cols) = a.shape, b.shape[::-1] if weights else b.shape
    if b_depth != depth:
        raise ValueError(f"{a_name} has shape {tuple(a.shape)} and {b_name} {tuple(b.shape)}; the columns of {a_name} "
                         f"({depth}) must equal the {'columns' if weights else 'rows'} of {b_name} ({b_depth})")
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
    """Launches a kernel that make_staged or make_pipelined made. Arguments are checked before."""
    tile, (rows, cols) = kernel.tile, out.shape
    grid = (tile.count(rows, cols),) if kernel.in_bands else blocks_for((cols, rows), (tile.cols, tile.rows))
    arguments = (a, b, out if bias is None else bias, out if residual is None else residual, out)
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    kernel[grid, tile.threads, stream, kernel.shared_bytes](*arguments)
