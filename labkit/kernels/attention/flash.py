"""Attention without a row of scores: tiles of keys come one after the other, and the sums so far are corrected when a
larger score comes. And two other forms: a whole matrix of scores, and one query alone.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), start (1,); float32; D a multiple of 16
Source  T. Dao et al., "FlashAttention" (2022), https://arxiv.org/abs/2205.14135; M. Milakov and N. Gimelshein, "Online
        normalizer calculation for softmax" (2018); for one query: T. Dao et al., "Flash-Decoding" (2023)

For a query, over the keys seen so far, with scores s and values v:

    row_max = max s        row_sum = sum of 2**(s - row_max)        acc = sum of 2**(s - row_max) * v

Where a new tile has a larger score, row_sum and acc are multiplied by 2**(old row_max - new row_max); then the tile's
own sums are added. The scale 1/sqrt(D) and the log2(e) that turns exp into 2** are one factor.
"""

import functools
import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, device, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, MAX_SHARED, aligned, dynamic_shared
from labkit.kernels.attention.decode import DECODE_THREADS, SLICE, decode_workspace_numbers, make_decode, teams_of
from labkit.kernels.attention.heads import check_heads, keys_and_values
from labkit.kernels.matmul.mma import swizzle_of
from labkit.kernels.op import rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO, warp_max, warp_sum

ASYNC = (8, 0)  # the compute capability that cp.async needs
STEP = 16  # heads are a multiple of this
SIZES = f"heads of a multiple of {STEP} numbers, at most 256"


def scale_for_powers_of_two(size: int) -> np.float32:
    return np.float32(math.log2(math.e) / math.sqrt(size))


def check_flash(qkv, heads, out, cache, start, dtype=np.float32, widest: int = 256) -> tuple[int, int]:
    """As check_heads; and rows move 16 bytes at a time."""
    size, capacity = check_heads(qkv, heads, out, cache, start, dtype)
    if size % STEP or size > widest:
        raise ValueError(f"a head has {size} numbers; it must be a multiple of {STEP}, at most {widest}")
    if not aligned(*(array for array in (qkv, out, cache) if array is not None)):
        raise ValueError("qkv, out and cache must begin at a multiple of 16 bytes; one is a view that does not")
    return size, capacity


def takes_flash(size: int, qkv, out, cache) -> bool:
    """Whether the rungs here that move 16 bytes at a time allow heads of `size` and these arguments, checked before."""
    return size % STEP == 0 and size <= 256 and aligned(*(array for array in (qkv, out, cache) if array is not None))


# --- A head's whole matrix of scores in shared memory -----------------------------------------------------------------

WHOLE_THREADS = 256


@cuda.jit
def attention_whole_matrix_kernel(qkv, keys_values, start, out, first, size, scale, causal):
    scores = cuda.shared.array(0, float32)  # rows * capacity
    thread = u32.threadIdx.x
    lane, warp = thread % 32, thread // 32
    rows, width, capacity = u32.shape(out)[0], u32.shape(out)[1], u32.shape(keys_values)[0]
    head_column = u32.blockIdx.x * size
    before = uint32(start[0])
    keys = min(before + rows, capacity)

    for place in u32.range(thread, rows * keys, WHOLE_THREADS):  # the scores
        t, j = place // keys, place % keys
        score = ZERO
        for i in u32.range(size):
            score += qkv[t, head_column + i] * keys_values[j, first + head_column + i]
        unseen = causal != 0 and j > before + t
        scores[place] = NEG_INF if unseen else score * scale
    cuda.syncthreads()  # the matrix is complete

    for t in u32.range(warp, rows, WHOLE_THREADS // 32):  # softmax, a warp a row
        row_max = NEG_INF
        for j in u32.range(lane, keys, 32):
            row_max = max(row_max, scores[t * keys + j])
        row_max = warp_max(row_max)
        row_sum = ZERO
        for j in u32.range(lane, keys, 32):
            exponential = ptx.exp2_approx(scores[t * keys + j] - row_max)
            scores[t * keys + j] = exponential
            row_sum += exponential
        share = float32(1.0) / warp_sum(row_sum)
        for j in u32.range(lane, keys, 32):
            scores[t * keys + j] *= share
    cuda.syncthreads()  # the weights are complete

    for place in u32.range(thread, rows * size, WHOLE_THREADS):  # the weighted values
        t, i = place // size, place % size
        column = first + width + head_column + i
        acc = ZERO
        for j in u32.range(keys):
            acc += scores[t * keys + j] * keys_values[j, column]
        out[t, head_column + i] = acc


@rung(kernel=attention_whole_matrix_kernel, idea="one block a head: its whole matrix of scores in shared memory",
      sizes="as many scores a head as there is shared memory for: 241 x 241 on an H200",
      failed="a block for each head: 12 heads keep 12 of an H200's 132 multiprocessors busy, one after the other with "
             "scores, softmax and values. With 12 heads and 128 tokens it takes 0.66 ms there, and three_pass takes "
             "0.07. The scores then fill 64 KB, at 241 tokens all that a block can have, so that no second block "
             "would fit beside it; longer it cannot be at all")
def attention_whole_matrix(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """The obvious fusion: one block computes a head's S x S scores, its softmax and the weighted values, and nothing
    between them goes to global memory. This saves only what the caches would have held anyway."""
    size, capacity = check_heads(qkv, heads, out, cache, start)
    nbytes = 4 * out.shape[0] * capacity
    if nbytes > MAX_SHARED:
        raise ValueError(f"the scores of {out.shape[0]:,} queries and {capacity:,} keys take {nbytes:,} bytes of "
                         f"shared memory; a block can have {MAX_SHARED:,}: {math.isqrt(MAX_SHARED // 4)} x "
                         f"{math.isqrt(MAX_SHARED // 4)} scores. Tiled attention has no such limit")
    keys_values, start, first = keys_and_values(qkv, out, cache, start)
    arguments = (qkv, keys_values, start, out, first, np.uint32(size), scale_for_powers_of_two(size), np.uint32(causal))
    dynamic_shared(attention_whole_matrix_kernel, nbytes, *arguments)
    attention_whole_matrix_kernel[heads, WHOLE_THREADS, stream, nbytes](*arguments)


# --- Tiles of keys, float32 -------------------------------------------------------------------------------------------

THREADS = 128


def make_copy_rows(height: int, size: int, pitch: int, threads: int, chunk: int, swizzled: bool = False):
    """A device function: starts the copies of rows row0 to row0 + height - 1 of one head to shared memory.

    size: numbers of a head, which begin at column col0. Rows from `rows` on come as zeros. chunk: numbers in 16 bytes.
    swizzled: the pieces of a row are permuted as swizzle_of says: the same piece of eight rows lies in eight different
    banks.
    """
    chunks = size // chunk
    shift, mask = swizzle_of(chunks)
    pieces = height * chunks
    copies = -(-pieces // threads)
    exact = pieces % threads == 0

    @cuda.jit(device=True)
    def copy_rows(shared, at, matrix, row0, rows, col0, thread):
        columns = u32.shape(matrix)[1]
        for i in u32.range(copies):
            piece = thread + i * threads
            row, part = piece // chunks, piece % chunks
            place = part ^ row >> shift & mask if swizzled else part
            if exact or piece < pieces:
                inside = row0 + row < rows
                source = (row0 + row) * columns + col0 + part * chunk
                ptx.cp_async_16(shared, at + row * pitch + place * chunk,
                                matrix, source if inside else 0, 16 if inside else 0)

    return copy_rows


def make_flash_steps(size: int, down: int):
    """The device functions of which make_flash's tile of keys is made: read_four, add_scores, add_values and
    online_softmax_update."""
    SIZE, DOWN = size, down
    PART = min(down, 4)
    ACROSS = 8 if size % 32 == 0 else 4
    GROUPS = THREADS // ACROSS
    QUADS = SIZE // (4 * ACROSS)
    COLUMNS = 4 * QUADS
    PITCH, EXP_PITCH = SIZE + 4, 8 * ACROSS + 8
    XOR_OFFSETS = (4, 2, 1) if ACROSS == 8 else (2, 1)

    # The parts of these functions are as large as the compiler unrolls: a loop that stayed one would index scores and
    # acc by a number that is not constant, and they would lose their registers.

    @cuda.jit(device=True)
    def read_four(part, shared, at, pitch):
        """Four neighbouring numbers for each of this thread's queries."""
        for i in u32.range(DOWN):
            four = ptx.load_shared4(shared, at + i * GROUPS * pitch)
            for n in range(4):
                part[4 * i + n] = four[n]

    @cuda.jit(device=True)
    def add_scores(scores, query_part, shared, key_at, j0):
        """scores += four steps of the products of this thread's queries and four of its keys."""
        for j in u32.range(4):
            four = ptx.load_shared4(shared, key_at + (j0 + j) * ACROSS * PITCH)
            for n in range(4):
                for i in range(DOWN):
                    scores[8 * i + j0 + j] += query_part[4 * i + n] * four[n]

    @cuda.jit(device=True)
    def add_values(acc, exp_part, shared, value_at, n):
        """acc += the value of a tile's key n, times its exponentials."""
        for q in u32.range(QUADS):
            four = ptx.load_shared4(shared, value_at + (n * SIZE + q * 4 * ACROSS))
            for j in range(4):
                for i in range(DOWN):
                    acc[COLUMNS * i + 4 * q + j] += exp_part[4 * i + n] * four[j]

    @cuda.jit(device=True)
    def online_softmax_update(scores, acc, row_max, row_sum, shared, exp_at, scale, i0):
        """The scores of PART queries become exponentials, in shared memory; their sums so far are corrected."""
        for k in range(PART):
            i = i0 + k
            new = row_max[i]
            for j in u32.range(8):
                new = max(new, scores[8 * i + j])
            for distance in XOR_OFFSETS:
                new = max(new, cuda.shfl_xor_sync(ALL_LANES, new, distance))
            correction = ptx.exp2_approx((row_max[i] - new) * scale)  # 0 for the first tile
            row_max[i] = new
            shift = -(new * scale)
            part = ZERO
            for j in u32.range(8):
                exponential = ptx.exp2_approx(scores[8 * i + j] * scale + shift)
                part += exponential
                shared[exp_at + i * GROUPS * EXP_PITCH + j * ACROSS] = exponential
            row_sum[i] = row_sum[i] * correction + part  # of this thread's keys; the row's at the end
            for j in u32.range(COLUMNS):
                acc[COLUMNS * i + j] *= correction

    return read_four, add_scores, add_values, online_softmax_update


@kernel_factory
def make_flash(size: int, down: int):
    """Attention for heads of `size` numbers; a thread has `down` queries and eight keys of a tile.

    Threads lie in a grid, `across` of them side by side: thread (x, y) has the queries y, y + groups, ..., the keys
    x, x + across, ... and every across-th group of four columns of the values. The threads of a row of this grid are
    neighbours in a warp, so that a row of scores is reduced by shuffles.
    """
    SIZE, DOWN = size, down
    PART = min(down, 4)
    ACROSS = 8 if size % 32 == 0 else 4
    GROUPS = THREADS // ACROSS
    ROWS, KEYS = DOWN * GROUPS, 8 * ACROSS
    SCORES, QUADS = DOWN * 8, SIZE // (4 * ACROSS)
    COLUMNS = 4 * QUADS
    ACCUMULATORS, QUERY_PART = DOWN * COLUMNS, DOWN * 4
    PITCH, EXP_PITCH = SIZE + 4, KEYS + 8  # neighbouring rows begin in different banks
    KEYS_AT = ROWS * PITCH
    VALUES_AT = KEYS_AT + KEYS * PITCH
    EXP_AT = VALUES_AT + KEYS * SIZE
    NUMBERS = EXP_AT + ROWS * EXP_PITCH
    XOR_OFFSETS = (4, 2, 1) if ACROSS == 8 else (2, 1)
    BLOCKS = max(1, min({1: 4, 2: 4, 4: 3}.get(DOWN, 2), 233_472 // (4 * NUMBERS + 1024)))
    if SIZE > 64 and DOWN > 4 or SIZE > 128:
        BLOCKS = 1
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, THREADS, 4)
    copy_keys = make_copy_rows(KEYS, SIZE, PITCH, THREADS, 4)
    copy_values = make_copy_rows(KEYS, SIZE, SIZE, THREADS, 4)
    read_four, add_scores, add_values, online_softmax_update = make_flash_steps(SIZE, DOWN)

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def attention_flash_kernel(qkv, keys_values, start, out, first, scale, causal):
        shared = cuda.shared.array(0, float32)
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_part = cuda.local.array(QUERY_PART, float32)
        row_max = cuda.local.array(DOWN, float32)
        row_sum = cuda.local.array(DOWN, float32)
        thread = u32.threadIdx.x
        x, y = thread % ACROSS, thread // ACROSS
        rows, width = u32.shape(out)
        head_column = u32.blockIdx.x * SIZE
        key_column = first + head_column
        row0 = (u32.gridDim.y - u32.blockIdx.y - 1) * ROWS  # causal: the most work comes first
        before = uint32(start[0])
        keys = min(before + rows, u32.shape(keys_values)[0])  # what lies beyond may be anything
        seen_by_first = min(before + row0 + 1, keys) if causal else keys
        end = min(before + row0 + ROWS, keys) if causal else keys  # no query here sees more
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(DOWN):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        copy_queries(shared, 0, qkv, row0, rows, head_column, thread)
        copy_keys(shared, KEYS_AT, keys_values, 0, end, key_column, thread)
        ptx.cp_async_commit()
        ptx.cp_async_wait(0)
        cuda.syncthreads()  # the queries and the first keys are there
        key0 = 0
        while key0 < end:
            # These values are in flight while the scores are computed, the next keys during the rest.
            copy_values(shared, VALUES_AT, keys_values, key0, end, key_column + width, thread)
            ptx.cp_async_commit()
            for i in u32.range(SCORES):
                scores[i] = ZERO
            query_at, key_at = y * PITCH, KEYS_AT + x * PITCH
            query_end = query_at + SIZE
            while query_at < query_end:
                read_four(query_part, shared, query_at, PITCH)
                add_scores(scores, query_part, shared, key_at, 0)
                add_scores(scores, query_part, shared, key_at, 4)
                query_at, key_at = query_at + 4, key_at + 4
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # the values are there, and no thread reads these keys any more
            key1 = key0 + KEYS
            if key1 < end:
                copy_keys(shared, KEYS_AT, keys_values, key1, end, key_column, thread)
            ptx.cp_async_commit()

            if key1 > seen_by_first:  # some query does not see some key of this tile
                for i in u32.range(DOWN):
                    own = before + row0 + y + (i * GROUPS + 1)
                    seen = min(own, keys) if causal else keys
                    for j in u32.range(8):
                        if key0 + x + j * ACROSS >= seen:
                            scores[8 * i + j] = NEG_INF
            exp_at = EXP_AT + y * EXP_PITCH
            online_softmax_update(scores, acc, row_max, row_sum, shared, exp_at + x, scale, 0)
            if DOWN > PART:
                online_softmax_update(scores, acc, row_max, row_sum, shared, exp_at + x, scale, PART)
            cuda.syncwarp()  # the exponentials of this warp's queries are complete; no other warp reads them

            value_at = VALUES_AT + x * 4
            exp_end = exp_at + KEYS
            while exp_at < exp_end:
                read_four(query_part, shared, exp_at, EXP_PITCH)
                add_values(acc, query_part, shared, value_at, 0)
                add_values(acc, query_part, shared, value_at, 1)
                add_values(acc, query_part, shared, value_at, 2)
                add_values(acc, query_part, shared, value_at, 3)
                exp_at, value_at = exp_at + 4, value_at + 4 * SIZE
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # the next keys are there, and no thread reads these values any more
            key0 = key1

        for i in u32.range(DOWN):
            whole = row_sum[i]
            for distance in XOR_OFFSETS:
                whole += cuda.shfl_xor_sync(ALL_LANES, whole, distance)
            share = float32(1.0) / whole
            row = row0 + y + i * GROUPS
            if row < rows:
                for q in u32.range(QUADS):
                    at = COLUMNS * i + 4 * q
                    place = row * width + head_column + x * 4 + q * 4 * ACROSS
                    ptx.store_global4(out, place, acc[at] * share, acc[at + 1] * share, acc[at + 2] * share,
                                      acc[at + 3] * share)

    attention_flash_kernel.rows, attention_flash_kernel.threads = ROWS, THREADS
    attention_flash_kernel.shared_bytes = 4 * NUMBERS
    return attention_flash_kernel


def flash_rows(size: int, rows: int, heads: int) -> int:
    """How many queries a thread has: as many as leave a block for each SM. On the CPU device, one."""
    if not device.on_gpu():
        return 1
    wanted = cuda.get_current_device().MULTIPROCESSOR_COUNT
    groups = THREADS // (8 if size % 32 == 0 else 4)
    down = 4 if size <= 128 else 2  # with 8, at 64 numbers a head, 254 registers: 1,661 instead of 1,434 us for 4096
    while down > 1 and heads * -(-rows // (down * groups)) < wanted:
        down //= 2
    return down


@rung(kernel=make_flash(64, 4), needs=ASYNC, sizes=SIZES,
      idea="tiles of keys, corrected accumulators: no row of scores; products from registers")
def attention_flash(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """A block takes 16 to 128 queries of one head, and the keys in tiles of 64. A thread has a tile of the scores in
    registers, as in a matrix product, and of the sums: a number from shared memory feeds several products. cp.async
    brings the values during the scores and the next keys during the values. Tiles that no query sees are left out."""
    size, _ = check_flash(qkv, heads, out, cache, start)
    launch_flash(make_flash(size, flash_rows(size, out.shape[0], heads)), qkv, heads, out, cache, start, causal, stream)


def launch_flash(kernel, qkv, heads, out, cache, start, causal, stream) -> None:
    """Launches a kernel that make_flash made. Arguments are checked before."""
    tiles = -(-out.shape[0] // kernel.rows)
    if tiles > MAX_GRID_YZ:
        raise ValueError(f"{out.shape[0]:,} rows are too many; at most {MAX_GRID_YZ * kernel.rows:,} are allowed")
    keys_values, start, first = keys_and_values(qkv, out, cache, start)
    scale = scale_for_powers_of_two(out.shape[1] // heads)
    arguments = (qkv, keys_values, start, out, first, scale, np.uint32(causal))
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    kernel[(heads, tiles), kernel.threads, stream, kernel.shared_bytes](*arguments)


# --- A query or a few against many keys -------------------------------------------------------------------------------


@functools.cache
def _decode_workspace(numbers: int):
    return cuda.device_array(numbers, np.float32)


@rung(kernel=make_decode(64), sizes=f"{SIZES}, and at most 65,535 rows",
      idea="for a query or a few: blocks share the keys, a second launch combines what they found")
def attention_decode(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0, workspace=None):
    """For generation, where a token has one query and a long cache: a block for each head would leave most of the GPU
    idle. So a block takes 128 keys of a head, and a second kernel combines the slices, with the correction of flash.

    workspace: float32 in device memory, decode_workspace_numbers of them; if left out, one is made for each size and
    kept, which launches in two streams at the same time must not share. How many keys there are is read from `start`,
    so that one captured graph serves every token.
    """
    launch_decode(qkv, heads, out, cache, start, causal, stream, workspace)


def launch_decode(qkv, heads, out, cache, start, causal, stream, workspace, dtype=np.float32) -> None:
    size, capacity = check_flash(qkv, heads, out, cache, start, dtype)
    rows, slices = out.shape[0], -(-capacity // SLICE)
    if rows > MAX_GRID_YZ:
        raise ValueError(f"{rows:,} rows are too many; at most {MAX_GRID_YZ:,} are allowed")
    numbers = decode_workspace_numbers(rows, capacity, heads, size)
    if workspace is None:
        workspace = _decode_workspace(numbers)
    elif np.dtype(workspace.dtype) != np.float32 or workspace.size < numbers:
        raise ValueError(f"workspace has {workspace.size:,} elements of {workspace.dtype}; it must have {numbers:,} of "
                         f"float32")
    keys_values, start, first = keys_and_values(qkv, out, cache, start)
    find, combine = make_decode(size, dtype == np.float16)
    find[(slices, heads, rows), DECODE_THREADS, stream](
        qkv, keys_values, start, out, first, scale_for_powers_of_two(size), np.uint32(causal), workspace)
    combine[(heads, rows), size * teams_of(size), stream](
        workspace, start, out, np.uint32(capacity), np.uint32(slices), np.uint32(causal))
