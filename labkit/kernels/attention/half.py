"""Attention in float16 on tensor cores, in tiles of keys. The sums are float32.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), float16; start (1,) int32
Sizes   D a multiple of 16, at most 256; any other
Source  T. Dao, "FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691; PTX ISA, "Matrix Fragments for
        mma.m16n8k16"

A warp has 16 or 32 queries, and all keys of a tile: scores = queries @ keys.T, then acc += exponentials @ values. In
the accumulators of mma.sync lane L holds columns 2 * (L % 4) and the next of rows L // 4 and L // 4 + 8; in its A
operand it holds words of the same columns and rows. So two products of 16 x 8 scores, side by side, become
exponentials, are rounded to float16, two to a word, and are the A operand of the product with the values: they never
leave their registers.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, device, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.decode import make_decode
from labkit.kernels.attention.flash import SIZES, check_flash, launch_decode, launch_flash, make_copy_rows
from labkit.kernels.attention.heads import check_heads
from labkit.kernels.attention.three_pass import FEW
from labkit.kernels.attention.wgmma import attention_flash_wgmma, takes_flash_wgmma
from labkit.kernels.matmul.mma import CHUNK, MMA, add_product, add_product_bf16
from labkit.kernels.op import rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

KEYS = 64  # keys per tile


def make_half_steps(size: int, m_tiles: int, keys: int, pitch: int, bf16: bool = False):
    """Make the device functions for a tile of `keys` keys: read_queries, add_scores, mask_scores,
    online_softmax_update and add_values. A warp has `m_tiles` tiles of 16 queries of `size` float16 values, or
    bfloat16; the rows of shared memory are `pitch` apart."""
    M_TILES, PITCH = m_tiles, pitch
    K_STEPS, CHUNKS, N_TILES = size // 16, size // CHUNK, keys // 8
    add, pack = (add_product_bf16, ptx.pack_bf162) if bf16 else (add_product, ptx.pack_half2)

    # `offset` is where this lane's row of the first ldmatrix begins, `chunk` the swizzled 16-byte chunk of that row for
    # step 0. Step k is two chunks further: an exclusive or, since these bits of it are zero.

    @cuda.jit(device=True)
    def read_queries(query_words, shared, offset, chunk, k, dst):
        """Read the words of the queries' columns 16 * k to 16 * k + 15."""
        src = offset + (chunk ^ 2 * k) * CHUNK
        for i in u32.range(M_TILES):
            four = ptx.ldmatrix_x4(shared, src + 16 * i * PITCH)
            for n in range(4):
                query_words[dst + 4 * i + n] = four[n]

    @cuda.jit(device=True)
    def add_scores(scores, query_words, shared, offset, chunk, k, q0):
        """scores += 16 steps of queries @ keys.T."""
        src = offset + (chunk ^ 2 * k) * CHUNK
        for pair in u32.range(N_TILES // 2):
            b0, b1, b2, b3 = ptx.ldmatrix_x4(shared, src + 16 * pair * PITCH)
            for i in range(M_TILES):
                q, dst = q0 + 4 * i, (i * N_TILES + 2 * pair) * 4
                a0, a1, a2, a3 = query_words[q], query_words[q + 1], query_words[q + 2], query_words[q + 3]
                add(scores, dst, a0, a1, a2, a3, b0, b1)
                add(scores, dst + 4, a0, a1, a2, a3, b2, b3)

    @cuda.jit(device=True)
    def mask_scores(scores, key, num_visible, r):
        """Mask the scores of this lane's row r whose keys, the first of which is `key`, are not visible."""
        for j in u32.range(N_TILES):
            for right in u32.range(2):
                if key + (8 * j + right) >= num_visible:
                    scores[r // 2 * N_TILES * 4 + r % 2 * 2 + 4 * j + right] = NEG_INF

    @cuda.jit(device=True)
    def online_softmax_update(scores, acc, row_max, row_sum, scale, r):
        """Turn the scores of this lane's row r into exponentials, and rescale its running sums. Row 0 is L // 4, row 1
        is L // 4 + 8; 2 and 3 are the same of the warp's next 16 queries."""
        base = r // 2 * N_TILES * 4 + r % 2 * 2
        new_max = row_max[r]
        for j in range(N_TILES):
            new_max = max(new_max, max(scores[base + 4 * j], scores[base + 4 * j + 1]))
        new_max = max(new_max, cuda.shfl_xor_sync(ALL_LANES, new_max, 1))
        new_max = max(new_max, cuda.shfl_xor_sync(ALL_LANES, new_max, 2))
        correction = ptx.exp2_approx((row_max[r] - new_max) * scale)  # 0 for the first tile
        row_max[r] = new_max
        shift = -(new_max * scale)
        tile_sum = ZERO
        for j in range(N_TILES):
            left = ptx.exp2_approx(scores[base + 4 * j] * scale + shift)
            right = ptx.exp2_approx(scores[base + 4 * j + 1] * scale + shift)
            tile_sum += left + right
            scores[base + 4 * j], scores[base + 4 * j + 1] = left, right
        row_sum[r] = row_sum[r] * correction + tile_sum  # over this lane's keys; the whole row's at the end
        base = r // 2 * CHUNKS * 4 + r % 2 * 2
        for j in range(CHUNKS):
            acc[base + 4 * j] *= correction
            acc[base + 4 * j + 1] *= correction

    @cuda.jit(device=True)
    def add_values(scores, acc, words, shared, offset, chunk, k):
        """acc += exponentials @ values, of the keys 16 * k to 16 * k + 15."""
        for i in range(M_TILES):
            for n in range(4):  # rows L // 4 and L // 4 + 8, of the left 8 columns, then of the right
                left = (i * N_TILES + 2 * k + n // 2) * 4 + n % 2 * 2
                words[4 * i + n] = pack(scores[left], scores[left + 1])
        for pair in u32.range(K_STEPS):
            src = offset + (chunk ^ 2 * pair) * CHUNK
            b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(shared, src + 16 * k * PITCH)
            for i in range(M_TILES):
                dst = (i * CHUNKS + 2 * pair) * 4
                a0, a1, a2, a3 = words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]
                add(acc, dst, a0, a1, a2, a3, b0, b1)
                add(acc, dst + 4, a0, a1, a2, a3, b2, b3)

    return read_queries, add_scores, mask_scores, online_softmax_update, add_values


@kernel_factory
def make_flash_half(size: int, warps: int, m_tiles: int):
    """Attention for heads of `size` float16 values; each of `warps` warps has `m_tiles` tiles of 16 queries."""
    SIZE, M_TILES = size, m_tiles
    THREADS, WARP_ROWS = 32 * warps, 16 * m_tiles
    ROWS = warps * WARP_ROWS
    SWIZZLED = size % 64 == 0
    PITCH = SIZE if SWIZZLED else SIZE + CHUNK  # either way eight rows, as ldmatrix reads them, lie in different banks
    MASK = 7 if SWIZZLED else 0
    TILE = KEYS * PITCH
    STAGE, KEYS_OFFSET = 2 * TILE, ROWS * PITCH
    K_STEPS, CHUNKS, N_TILES = SIZE // 16, SIZE // CHUNK, KEYS // 8
    SCORES, ACCUMULATORS, LANE_ROWS = M_TILES * N_TILES * 4, M_TILES * CHUNKS * 4, M_TILES * 2
    WORDS = M_TILES * 4
    Q_IN_REGISTERS = M_TILES * K_STEPS <= 8  # larger heads read the queries again for every tile
    QUERY_WORDS = WORDS * K_STEPS if Q_IN_REGISTERS else WORDS
    STORES = WARP_ROWS * CHUNKS // 32
    REGISTERS = 128 if size <= 64 and m_tiles == 1 else 256
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_rows = make_copy_rows(KEYS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    read_queries, add_scores, mask_scores, online_softmax_update, add_values = make_half_steps(SIZE, M_TILES, KEYS,
                                                                                               PITCH)

    @cuda.jit(device=True)
    def copy_tile(shared, offset, keys_values, key0, end, key_column, width, thread):
        copy_rows(shared, offset, keys_values, key0, end, key_column, thread)
        copy_rows(shared, offset + TILE, keys_values, key0, end, key_column + width, thread)
        ptx.cp_async_commit()

    @cuda.jit(launch_bounds=(THREADS, 65_536 // (REGISTERS * THREADS)))
    def attention_flash_half_kernel(qkv, keys_values, start, out, kv_offset, scale, causal):
        shared = cuda.shared.array(0, np.float16)
        pairs = cuda.shared.array(0, uint32)  # the same memory, two float16 values at a time
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_words = cuda.local.array(QUERY_WORDS, uint32)
        words = cuda.local.array(WORDS, uint32)
        row_max = cuda.local.array(LANE_ROWS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        rows, width = u32.shape(out)
        head_column = u32.blockIdx.x * SIZE
        key_column = kv_offset + head_column
        row0 = (u32.gridDim.y - u32.blockIdx.y - 1) * ROWS  # causal: the most work comes first
        context_len = uint32(start[0])
        num_keys = min(context_len + rows, u32.shape(keys_values)[0])  # rows beyond may hold anything
        min_visible = min(context_len + row0 + 1, num_keys) if causal else num_keys
        end = min(context_len + row0 + ROWS, num_keys) if causal else num_keys  # the most that any query here sees
        causal_end = context_len + row0 + warp * WARP_ROWS + lane // 4 + 1  # of this lane's row 0
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(LANE_ROWS):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        swizzle = lane & MASK
        query_offset = (warp * WARP_ROWS + lane % 16) * PITCH
        query_chunk = lane // 16 ^ swizzle  # for queries and values: rows L % 16, the right chunk from lane 16 on
        key_offset = KEYS_OFFSET + (lane % 8 + lane // 16 * 8) * PITCH
        key_chunk = lane // 8 % 2 ^ swizzle  # for keys: the right chunk before the next eight rows
        value_offset = KEYS_OFFSET + TILE + lane % 16 * PITCH

        copy_queries(shared, 0, qkv, row0, rows, head_column, thread)
        ptx.cp_async_commit()
        copy_tile(shared, KEYS_OFFSET, keys_values, 0, end, key_column, width, thread)
        if Q_IN_REGISTERS:
            ptx.cp_async_wait(1)
            cuda.syncthreads()  # the queries have arrived
            for k in range(K_STEPS):
                read_queries(query_words, shared, query_offset, query_chunk, k, k * WORDS)
        key0, stage = 0, 0
        while key0 < end:
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # this tile has arrived, and all warps are done with the other
            key1 = key0 + KEYS
            if key1 < end:
                copy_tile(shared, KEYS_OFFSET + STAGE - stage, keys_values, key1, end, key_column, width, thread)
            for i in u32.range(SCORES):
                scores[i] = ZERO
            for k in range(K_STEPS):
                if Q_IN_REGISTERS:
                    add_scores(scores, query_words, shared, key_offset + stage, key_chunk, k, k * WORDS)
                else:
                    read_queries(query_words, shared, query_offset, query_chunk, k, 0)
                    add_scores(scores, query_words, shared, key_offset + stage, key_chunk, k, 0)
            if key1 > min_visible:  # some query must not see some key of this tile
                key = key0 + lane % 4 * 2
                for r in u32.range(LANE_ROWS):
                    mask_scores(scores, key, min(causal_end + 8 * r, num_keys) if causal else num_keys, r)
            for r in u32.range(LANE_ROWS):
                online_softmax_update(scores, acc, row_max, row_sum, scale, r)
            for k in range(KEYS // 16):
                add_values(scores, acc, words, shared, value_offset + stage, query_chunk, k)
            key0, stage = key1, STAGE - stage

        for r in u32.range(LANE_ROWS):
            denominator = row_sum[r]
            denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 1)
            denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 2)
            row_sum[r] = float32(1.0) / denominator
        # Stage the output where this warp's queries were, so that lanes store whole rows, 16 bytes each.
        warp_offset = warp * (WARP_ROWS * PITCH)
        for r in u32.range(LANE_ROWS):
            row = lane // 4 + 8 * r
            for j in u32.range(CHUNKS):
                offset = (r // 2 * CHUNKS + j) * 4 + r % 2 * 2
                shared_offset = warp_offset + row * PITCH + (j ^ row & MASK) * CHUNK
                pairs[shared_offset // 2 + lane % 4] = ptx.pack_half2(acc[offset] * row_sum[r],
                                                                      acc[offset + 1] * row_sum[r])
        cuda.syncwarp()
        for i in u32.range(STORES):
            index = lane + 32 * i
            row, chunk = index // CHUNKS, index % CHUNKS
            shared_offset = warp_offset + row * PITCH + (chunk ^ row & MASK) * CHUNK
            x, y, z, w = ptx.load_shared4(shared, shared_offset)
            out_row = row0 + warp * WARP_ROWS + row
            if out_row < rows:
                ptx.store_global4(out, out_row * width + head_column + chunk * CHUNK, x, y, z, w)

    attention_flash_half_kernel.rows, attention_flash_half_kernel.threads = ROWS, THREADS
    attention_flash_half_kernel.shared_bytes = 2 * (KEYS_OFFSET + 2 * STAGE)
    return attention_flash_half_kernel


FORMS = ((4, 2), (4, 1), (2, 1), (1, 1))  # warps of a block, tiles of 16 queries of a warp


def flash_half_form(size: int, rows: int, heads: int) -> tuple[int, int]:
    """Return the form with the most rows that still has a block for each SM. On the CPU device, the one with the most
    rows."""
    forms = FORMS if size <= 64 else FORMS[1:]
    min_blocks = cuda.get_current_device().MULTIPROCESSOR_COUNT if device.on_gpu() else 1
    for warps, m_tiles in forms:
        if heads * -(-rows // (16 * warps * m_tiles)) >= min_blocks:
            return warps, m_tiles
    return forms[-1]


@rung(kernel=make_flash_half(64, 4, 1), needs=MMA, sizes=SIZES,
      idea="tensor cores: scores become exponentials, and a factor of the next product, in registers")
def attention_flash_half(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """A block takes 16 to 128 queries of one head, a warp 16 or 32 of them, and the keys in tiles of 64. cp.async
    copies the next tile, swizzled, while this one is multiplied. Tiles that no query sees are skipped."""
    size, _ = check_flash(qkv, heads, out, cache, start, np.float16)
    kernel = make_flash_half(size, *flash_half_form(size, out.shape[0], heads))
    launch_flash(kernel, qkv, heads, out, cache, start, causal, stream)


@rung(kernel=make_decode(64, True), sizes=f"{SIZES}, and at most 65,535 rows",
      idea="for a query or a few: blocks share the keys, a second launch combines what they found")
def attention_decode_half(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0, workspace=None):
    """As attention_decode, which also explains workspace: 16 bytes hold eight float16 values, and all sums are
    float32."""
    launch_decode(qkv, heads, out, cache, start, causal, stream, workspace, np.float16)


SHORT = 64  # queries: for so few, blocks of 16 are done sooner; 3.2 us for 64 of 12 heads on an H200, wgmma takes 3.6


def attention_half(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """The rung to use."""
    size, _ = check_heads(qkv, heads, out, cache, start, np.float16)
    if cache is not None and out.shape[0] <= FEW:
        pick = attention_decode_half
    elif device.on_gpu() and out.shape[0] > SHORT and takes_flash_wgmma(size, qkv, out, cache):
        pick = attention_flash_wgmma
    else:
        pick = attention_flash_half
    pick(qkv, heads, out, cache=cache, start=start, causal=causal, stream=stream)
