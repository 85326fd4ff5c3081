"""Flash attention, float32: a block goes through the keys tile by tile and rescales its running sums whenever a larger
score comes up, so that no row of scores is kept.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), start (1,); float32; D a multiple of 16
Source  T. Dao et al., "FlashAttention" (2022), https://arxiv.org/abs/2205.14135; M. Milakov and N. Gimelshein, "Online
        normalizer calculation for softmax" (2018)

A query keeps row_max = max s, row_sum = sum of 2**(s - row_max) and acc = sum of 2**(s - row_max) * v, over scores s
and values v; a larger row_max multiplies both sums by 2**(old - new). log2(e), for exp, is part of the scale 1/sqrt(D).
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, aligned, fits, launch_tiled, resident
from labkit.kernels.attention.heads import STEP, check_chunks, check_heads, keys_and_values, multiprocessors
from labkit.kernels.matmul.mma import swizzle_of
from labkit.kernels.op import rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

SIZES = f"heads of a multiple of {STEP} numbers, at most 256"


def scale_for_powers_of_two(size: int) -> np.float32:
    return np.float32(math.log2(math.e) / math.sqrt(size))


def check_flash(qkv, heads, out, cache, start, dtype=np.float32, widest: int = 256) -> tuple[int, int]:
    """As check_heads, for rows that move 16 bytes at a time."""
    size, capacity = check_heads(qkv, heads, out, cache, start, dtype)
    check_chunks(size, widest, qkv=qkv, out=out, **({} if cache is None else {"cache": cache}))
    return size, capacity


def takes_flash(size: int, qkv, out, cache) -> bool:
    """Whether kernels that move 16 bytes at a time take heads of this size and these arguments, already checked."""
    return size % STEP == 0 and size <= 256 and aligned(*(array for array in (qkv, out, cache) if array is not None))


THREADS = 128


def make_copy_strided_rows(num_rows: int, size: int, pitch: int, threads: int, chunk: int, swizzled: bool = False):
    """Make a device function that starts copying rows row0 to row0 + num_rows - 1 of one head to shared memory, from an
    array whose rows are `stride` elements apart.

    size: elements of a head, which begin at column col0. Rows from `rows` on are filled with zeros. chunk: elements in
    16 bytes. swizzled: the chunks of a row are permuted as swizzle_of says: the same chunk of eight rows lies in eight
    different banks.
    """
    chunks = size // chunk
    shift, mask = swizzle_of(chunks)
    num_chunks = num_rows * chunks
    copies = -(-num_chunks // threads)
    divides = num_chunks % threads == 0

    @cuda.jit(device=True)
    def copy_strided_rows(shared, offset, array, stride, row0, rows, col0, thread):
        for i in u32.range(copies):
            index = thread + i * threads
            row, col = index // chunks, index % chunks
            swizzled_col = col ^ row >> shift & mask if swizzled else col
            if divides or index < num_chunks:
                in_bounds = row0 + row < rows
                src = (row0 + row) * stride + col0 + col * chunk
                ptx.cp_async_16(shared, offset + row * pitch + swizzled_col * chunk,
                                array, src if in_bounds else 0, 16 if in_bounds else 0)

    return copy_strided_rows


def make_copy_rows(num_rows: int, size: int, pitch: int, threads: int, chunk: int, swizzled: bool = False):
    """As make_copy_strided_rows, from a contiguous matrix."""
    copy_strided_rows = make_copy_strided_rows(num_rows, size, pitch, threads, chunk, swizzled)

    @cuda.jit(device=True)
    def copy_rows(shared, offset, matrix, row0, rows, col0, thread):
        copy_strided_rows(shared, offset, matrix, u32.shape(matrix)[1], row0, rows, col0, thread)

    return copy_rows


@dataclass(frozen=True)
class FlashTile:
    """What a block of THREADS threads computes at once, for heads of `size` elements: a thread has `queries` queries
    and `keys_each` keys: 8, or 4 or 2 where shared memory is small.

    Threads form a grid, `lanes` of them to a row: thread (x, y) has the queries y, y + groups, ..., the keys x,
    x + lanes, ... and every lanes-th group of four columns of the values. The threads of a row of this grid are
    neighbours in a warp, so that a row of scores is reduced by shuffles.
    """

    size: int
    queries: int
    keys_each: int = 8

    @property
    def lanes(self) -> int:
        return 8 if self.size % 32 == 0 else 4

    @property
    def groups(self) -> int:
        return THREADS // self.lanes

    @property
    def rows(self) -> int:
        return self.queries * self.groups

    @property
    def keys(self) -> int:
        return self.keys_each * self.lanes

    @property
    def columns(self) -> int:
        """Columns of the values that a thread has."""
        return self.size // self.lanes

    @property
    def pitch(self) -> int:
        return self.size + 4  # neighbouring rows begin in different banks

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """Offsets in shared memory of the keys, the values and the exponentials, and the end of the last."""
        keys = self.rows * self.pitch
        values = keys + self.keys * self.pitch
        exponentials = values + self.keys * self.size
        return keys, values, exponentials, exponentials + self.rows * (self.keys + 8)

    @property
    def shared_bytes(self) -> int:
        return 4 * self.offsets[-1]

    @property
    def blocks(self) -> int:
        """The blocks for which an SM has registers and shared memory."""
        if self.size > 64 and self.queries > 4 or self.size > 128:
            return 1
        most = {1: 4, 2: 4, 4: 3}.get(self.queries, 2)
        if self.queries == 1 and self.size >= 64 and gpus.target().capability != (9, 0):
            most = 3  # code for other GPUs takes more registers, and would spill
        return max(1, min(most, 233_472 // (self.shared_bytes + 1024)))


def make_flash_steps(tile: FlashTile):
    """Make the device functions for a tile of keys: read_four, add_scores, add_values and online_softmax_update."""
    SIZE, QUERIES, LANES, GROUPS, COLUMNS = tile.size, tile.queries, tile.lanes, tile.groups, tile.columns
    QUERIES_AT_ONCE, QUADS, EACH = min(QUERIES, 4), COLUMNS // 4, tile.keys_each
    KEYS_AT_ONCE = min(EACH, 4)
    PITCH, EXP_PITCH = tile.pitch, tile.keys + 8
    XOR_OFFSETS = (4, 2, 1) if LANES == 8 else (2, 1)

    # Each function is small enough for the compiler to unroll: a loop left rolled would index scores and acc with a
    # variable, and they would no longer live in registers.

    @cuda.jit(device=True)
    def read_four(part, shared, offset, pitch):
        """Read four neighbouring elements for each of this thread's queries."""
        for i in u32.range(QUERIES):
            four = ptx.load_shared4(shared, offset + i * GROUPS * pitch)
            for n in range(4):
                part[4 * i + n] = four[n]

    @cuda.jit(device=True)
    def add_scores(scores, query_part, shared, key_offset, j0):
        """scores += four steps of the products of this thread's queries and four of its keys, or all."""
        for j in u32.range(KEYS_AT_ONCE):
            four = ptx.load_shared4(shared, key_offset + (j0 + j) * LANES * PITCH)
            for n in range(4):
                for i in range(QUERIES):
                    scores[EACH * i + j0 + j] += query_part[4 * i + n] * four[n]

    @cuda.jit(device=True)
    def add_values(acc, exp_part, shared, value_offset, n):
        """acc += the value of a tile's key n, times its exponentials."""
        for q in u32.range(QUADS):
            four = ptx.load_shared4(shared, value_offset + (n * SIZE + q * 4 * LANES))
            for j in range(4):
                for i in range(QUERIES):
                    acc[COLUMNS * i + 4 * q + j] += exp_part[4 * i + n] * four[j]

    @cuda.jit(device=True)
    def online_softmax_update(scores, acc, row_max, row_sum, shared, exp_offset, scale, i0):
        """Turn the scores of QUERIES_AT_ONCE queries into exponentials, in shared memory; rescale the running sums."""
        for k in range(QUERIES_AT_ONCE):
            i = i0 + k
            new_max = row_max[i]
            for j in u32.range(EACH):
                new_max = max(new_max, scores[EACH * i + j])
            for distance in XOR_OFFSETS:
                new_max = max(new_max, cuda.shfl_xor_sync(ALL_LANES, new_max, distance))
            correction = ptx.exp2_approx((row_max[i] - new_max) * scale)  # 0 for the first tile
            row_max[i] = new_max
            shift = -(new_max * scale)
            part = ZERO
            for j in u32.range(EACH):
                exponential = ptx.exp2_approx(scores[EACH * i + j] * scale + shift)
                part += exponential
                shared[exp_offset + i * GROUPS * EXP_PITCH + j * LANES] = exponential
            row_sum[i] = row_sum[i] * correction + part  # over this thread's keys; the whole row's at the end
            for j in u32.range(COLUMNS):
                acc[COLUMNS * i + j] *= correction

    return read_four, add_scores, add_values, online_softmax_update


def make_flash_loop(tile: FlashTile, copy_keys, copy_values):
    """Make the device functions attend, which loops over the tiles of keys for a tile of queries, and store_rows.

    copy_keys(shared, offset, source, key0, end, thread) starts the copies of the tile of keys from key0 to shared
    memory, with zeros from key `end` on; copy_values does so for the values. `source` is a tuple of their own.
    """
    SIZE, QUERIES, LANES, GROUPS, COLUMNS = tile.size, tile.queries, tile.lanes, tile.groups, tile.columns
    KEYS, PITCH, EXP_PITCH = tile.keys, tile.pitch, tile.keys + 8
    KEYS_OFFSET, VALUES_OFFSET, EXP_OFFSET, _ = tile.offsets
    EACH, QUERIES_AT_ONCE = tile.keys_each, min(QUERIES, 4)
    SCORES, ACCUMULATORS, QUERY_PART, QUADS = QUERIES * EACH, QUERIES * COLUMNS, QUERIES * 4, COLUMNS // 4
    XOR_OFFSETS = (4, 2, 1) if LANES == 8 else (2, 1)
    read_four, add_scores, add_values, online_softmax_update = make_flash_steps(tile)

    @cuda.jit(device=True)
    def attend(shared, acc, row_sum, source, visible, scale, thread):
        """Compute acc and row_sum of this thread's queries. visible: (end, min_visible, causal_end, num_keys). Keys
        from `end` on are not read; every query of the block sees the keys before min_visible, and query i of this
        thread those before causal_end + i * GROUPS and before num_keys."""
        end, min_visible, causal_end, num_keys = visible
        scores = cuda.local.array(SCORES, float32)
        query_part = cuda.local.array(QUERY_PART, float32)
        row_max = cuda.local.array(QUERIES, float32)
        x, y = thread % LANES, thread // LANES
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(QUERIES):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        copy_keys(shared, KEYS_OFFSET, source, 0, end, thread)
        ptx.cp_async_commit()
        ptx.cp_async_wait(0)
        cuda.syncthreads()  # the queries and the first keys have arrived
        key0 = 0
        while key0 < end:
            # These values are in flight while the scores are computed, the next keys during the rest.
            copy_values(shared, VALUES_OFFSET, source, key0, end, thread)
            ptx.cp_async_commit()
            for i in u32.range(SCORES):
                scores[i] = ZERO
            query_offset, key_offset = y * PITCH, KEYS_OFFSET + x * PITCH
            query_end = query_offset + SIZE
            while query_offset < query_end:
                read_four(query_part, shared, query_offset, PITCH)
                add_scores(scores, query_part, shared, key_offset, 0)
                if EACH > 4:
                    add_scores(scores, query_part, shared, key_offset, 4)
                query_offset, key_offset = query_offset + 4, key_offset + 4
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # the values have arrived, and all threads are done with these keys
            key1 = key0 + KEYS
            if key1 < end:
                copy_keys(shared, KEYS_OFFSET, source, key1, end, thread)
            ptx.cp_async_commit()

            if key1 > min_visible:  # some query must not see some key of this tile
                for i in u32.range(QUERIES):
                    num_visible = min(causal_end + i * GROUPS, num_keys)
                    for j in u32.range(EACH):
                        if key0 + x + j * LANES >= num_visible:
                            scores[EACH * i + j] = NEG_INF
            exp_offset = EXP_OFFSET + y * EXP_PITCH
            online_softmax_update(scores, acc, row_max, row_sum, shared, exp_offset + x, scale, 0)
            if QUERIES > QUERIES_AT_ONCE:
                online_softmax_update(scores, acc, row_max, row_sum, shared, exp_offset + x, scale, QUERIES_AT_ONCE)
            cuda.syncwarp()  # the exponentials of this warp's queries are complete; no other warp reads them

            value_offset = VALUES_OFFSET + x * 4
            exp_end = exp_offset + KEYS
            while exp_offset < exp_end:
                read_four(query_part, shared, exp_offset, EXP_PITCH)
                add_values(acc, query_part, shared, value_offset, 0)
                add_values(acc, query_part, shared, value_offset, 1)
                add_values(acc, query_part, shared, value_offset, 2)
                add_values(acc, query_part, shared, value_offset, 3)
                exp_offset, value_offset = exp_offset + 4, value_offset + 4 * SIZE
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # the next keys have arrived, and all threads are done with these values
            key0 = key1

    @cuda.jit(device=True)
    def store_rows(out, begin, row0, rows, head_column, acc, row_sum, thread):
        """Divide by row_sum, and store this thread's queries among rows row0 to rows - 1, counted from row `begin`."""
        x, y, width = thread % LANES, thread // LANES, u32.shape(out)[1]
        for i in u32.range(QUERIES):
            denominator = row_sum[i]
            for distance in XOR_OFFSETS:
                denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, distance)
            inv_row_sum = float32(1.0) / denominator
            row = row0 + y + i * GROUPS
            if row < rows:
                for q in u32.range(QUADS):
                    a = COLUMNS * i + 4 * q
                    out_offset = (begin + row) * width + head_column + x * 4 + q * 4 * LANES
                    ptx.store_global4(out, out_offset, acc[a] * inv_row_sum, acc[a + 1] * inv_row_sum,
                                      acc[a + 2] * inv_row_sum, acc[a + 3] * inv_row_sum)

    return attend, store_rows


def make_contiguous_loop(tile: FlashTile):
    """Make the functions of make_flash_loop for keys and values in rows of a matrix. source: (the matrix, its row with
    key 0, the columns where a head's keys and its values begin)."""
    copy_rows_of_keys = make_copy_rows(tile.keys, tile.size, tile.pitch, THREADS, 4)
    copy_rows_of_values = make_copy_rows(tile.keys, tile.size, tile.size, THREADS, 4)

    @cuda.jit(device=True)
    def copy_keys(shared, offset, source, key0, end, thread):
        matrix, row0, column, _ = source
        copy_rows_of_keys(shared, offset, matrix, row0 + key0, row0 + end, column, thread)

    @cuda.jit(device=True)
    def copy_values(shared, offset, source, key0, end, thread):
        matrix, row0, _, column = source
        copy_rows_of_values(shared, offset, matrix, row0 + key0, row0 + end, column, thread)

    return make_flash_loop(tile, copy_keys, copy_values)


def flash_form(size: int, pairs: int, rows: int) -> tuple[int, int]:
    """Return (queries, keys_each) of a FlashTile that fits into the target's shared memory: no more queries than `rows`
    rows need, and so few that `pairs` pairs of a sequence and a head have a block for each SM. On the CPU device, one
    query. keys_each depends on the size alone: it decides which keys are added up together."""
    keys_each = next(each for each in (8, 4, 2) if fits(FlashTile(size, 1, each)) or each == 2)
    # With 8, at heads of 64, a thread has 254 registers: 4,096 rows take 1,661 us instead of 1,434.
    queries = 1 if not gpus.chosen_on_gpu() else 4 if size <= 128 else 2
    while queries > 1:
        tile = FlashTile(size, queries, keys_each)
        if fits(tile) and tile.rows // 2 < rows and pairs * -(-rows // tile.rows) >= multiprocessors():
            break
        queries //= 2
    return queries, keys_each


@kernel_factory
def make_flash(size: int, queries: int, keys_each: int = 8):
    """Attention for heads of `size` elements, with a FlashTile of `queries` queries of a thread."""
    TILE = FlashTile(size, queries, keys_each)
    SIZE, QUERIES, ROWS, LANES, ACCUMULATORS = size, queries, TILE.rows, TILE.lanes, queries * TILE.columns
    copy_queries = make_copy_rows(ROWS, SIZE, TILE.pitch, THREADS, 4)
    attend, store_rows = make_contiguous_loop(TILE)

    @cuda.jit(launch_bounds=(THREADS, resident(TILE.blocks, THREADS, TILE.shared_bytes)))
    def attention_flash_kernel(qkv, keys_values, start, out, kv_offset, scale, causal):
        shared = cuda.shared.array(0, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        row_sum = cuda.local.array(QUERIES, float32)
        thread = u32.threadIdx.x
        rows, width = u32.shape(out)
        head_column = u32.blockIdx.x * SIZE
        key_column = kv_offset + head_column
        row0 = (u32.gridDim.y - 1 - u32.blockIdx.y) * ROWS  # causal: the most work comes first
        context_len = uint32(start[0])
        num_keys = min(context_len + rows, u32.shape(keys_values)[0])  # rows beyond may hold anything
        end = min_visible = causal_end = num_keys
        if causal:
            causal_end = context_len + row0 + thread // LANES + 1
            min_visible = min(context_len + row0 + 1, num_keys)
            end = min(context_len + row0 + ROWS, num_keys)  # the most that any query here sees
        copy_queries(shared, 0, qkv, row0, rows, head_column, thread)
        attend(shared, acc, row_sum, (keys_values, 0, key_column, key_column + width),
               (end, min_visible, causal_end, num_keys), scale, thread)
        store_rows(out, 0, row0, rows, head_column, acc, row_sum, thread)

    attention_flash_kernel.rows, attention_flash_kernel.threads = ROWS, THREADS
    attention_flash_kernel.shared_bytes = TILE.shared_bytes
    return attention_flash_kernel


@rung(kernel=tuple(make_flash(64, queries, 8) for queries in (4, 2, 1)), sizes=SIZES,
      idea="tiles of keys, corrected accumulators: no row of scores; products from registers")
def attention_flash(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """A block takes 16 to 128 queries of one head, and the keys in tiles of 64. A thread has a tile of the scores in
    registers, as in a matrix product, and of the sums: an element from shared memory feeds several products. cp.async
    copies the values during the scores and the next keys during the values. Tiles that no query sees are skipped."""
    size, _ = check_flash(qkv, heads, out, cache, start)
    kernel = make_flash(size, *flash_form(size, heads, out.shape[0]))
    launch_flash(kernel, qkv, heads, out, cache, start, causal, stream)


def launch_flash(kernel, qkv, heads, out, cache, start, causal, stream) -> None:
    """Launch a kernel that make_flash made. The arguments must have been checked."""
    tiles = -(-out.shape[0] // kernel.rows)
    if tiles > MAX_GRID_YZ:
        raise ValueError(f"{out.shape[0]:,} rows are too many; at most {MAX_GRID_YZ * kernel.rows:,} are allowed")
    keys_values, start, kv_offset = keys_and_values(qkv, out, cache, start)
    scale = scale_for_powers_of_two(out.shape[1] // heads)
    arguments = (qkv, keys_values, start, out, kv_offset, scale, np.uint32(causal))
    launch_tiled(kernel, (heads, tiles), stream, *arguments)
