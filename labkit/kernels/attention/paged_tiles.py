"""The kernels of paged_prefill that take keys in tiles: float32, and bfloat16 on tensor cores.

Shapes  as in paged_prefill.py, where the launchers are; here q and out are matrices (T, H * D), keys and values
        (pages * K * PAGE, D)
Source  as half.py and flash.py, whose steps process a tile

Tiles of keys begin at the sequence's first token, 64 keys each (32 where D is no multiple of 32, in float32), for any
tile of queries. A key that a row does not see adds an exact zero. So a row has the same result, bit for
bit, in one launch for the whole prompt, in parts, and in any company.
"""

from numba import float32, uint16, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.flash import THREADS, FlashTile, make_copy_rows, make_flash_loop
from labkit.kernels.attention.half import KEYS, make_half_steps
from labkit.kernels.attention.heads import find_sentence
from labkit.kernels.attention.pages import PAGE, find_context
from labkit.kernels.attention.sentences_flash import rows_in_shared
from labkit.kernels.matmul.mma import CHUNK
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO


def make_copy_tile(keys: int, size: int, pitch: int, threads: int, chunk: int, swizzled: bool = False):
    """Make a device function that starts the copies of keys, or values, key0 to key0 + keys - 1 of one head of a
    sequence from its pages to shared memory; from `end` on they are zero-filled. cache: (pages * K * PAGE, D)."""
    PAGES, ROWS = keys // PAGE, PAGE * pitch
    copy_page = make_copy_rows(PAGE, size, pitch, threads, chunk, swizzled)

    @cuda.jit(device=True)
    def copy_tile(shared, offset, cache, page_table, sequence, key0, end, kv_heads, kv_head, thread):
        for n in u32.range(PAGES):
            key = key0 + n * PAGE
            # Past the last page the table may hold anything: clamp the index; the data of that page is not read.
            physical_page = uint32(page_table[sequence, min(key, end - 1) // PAGE])
            row = (physical_page * kv_heads + kv_head) * PAGE
            num_rows = min(end - key, PAGE) if key < end else 0
            copy_page(shared, offset + n * ROWS, cache, row, row + num_rows, 0, thread)

    return copy_tile


# --- float32 ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_paged_prefill(size: int, queries: int):
    """Attention for heads of `size` float32 elements, with a FlashTile of `queries` queries of a thread."""
    TILE = FlashTile(size, queries)
    SIZE, QUERIES, ROWS, LANES, ACCUMULATORS = size, queries, TILE.rows, TILE.lanes, queries * TILE.columns
    copy_queries = make_copy_rows(ROWS, SIZE, TILE.pitch, THREADS, 4)
    copy_tile_of_keys = make_copy_tile(TILE.keys, SIZE, TILE.pitch, THREADS, 4)
    copy_tile_of_values = make_copy_tile(TILE.keys, SIZE, SIZE, THREADS, 4)

    @cuda.jit(device=True)
    def copy_keys(shared, offset, source, key0, end, thread):
        keys, _, page_table, sequence, kv_heads, kv_head = source
        if end > 0:
            copy_tile_of_keys(shared, offset, keys, page_table, sequence, key0, end, kv_heads, kv_head, thread)

    @cuda.jit(device=True)
    def copy_values(shared, offset, source, key0, end, thread):
        _, values, page_table, sequence, kv_heads, kv_head = source
        copy_tile_of_values(shared, offset, values, page_table, sequence, key0, end, kv_heads, kv_head, thread)

    attend, store_rows = make_flash_loop(TILE, copy_keys, copy_values)

    @cuda.jit(launch_bounds=(THREADS, TILE.blocks))
    def paged_prefill_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, kv_heads):
        shared = cuda.shared.array(0, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        row_sum = cuda.local.array(QUERIES, float32)
        thread = u32.threadIdx.x
        head, sequence = u32.blockIdx.x, u32.blockIdx.z
        head_column = head * SIZE
        kv_head = head // (u32.gridDim.x // kv_heads)
        begin, tokens, scale = find_sentence(begins, lengths, sequence, u32.shape(out)[0], longest, scale)
        context_len, num_keys, scale = find_context(contexts, sequence, tokens, u32.shape(page_table)[1], scale)
        row0 = (u32.gridDim.y - 1 - u32.blockIdx.y) * ROWS  # the tiles with the most work first
        if row0 >= tokens:
            return
        causal_end = context_len + row0 + thread // LANES + 1
        min_visible = min(context_len + row0 + 1, num_keys)
        end = min(context_len + row0 + ROWS, num_keys)  # no query here sees more
        copy_queries(shared, 0, q, begin + row0, begin + tokens, head_column, thread)
        attend(shared, acc, row_sum, (keys, values, page_table, sequence, kv_heads, kv_head),
               (end, min_visible, causal_end, num_keys), scale, thread)
        store_rows(out, begin, row0, tokens, head_column, acc, row_sum, thread)

    paged_prefill_kernel.rows, paged_prefill_kernel.threads = ROWS, THREADS
    paged_prefill_kernel.shared_bytes = TILE.shared_bytes
    return paged_prefill_kernel


# --- bfloat16 ---------------------------------------------------------------------------------------------------------


@kernel_factory
def make_paged_prefill_mma(size: int, warps: int, m_tiles: int):
    """Attention for heads of `size` bfloat16 elements; each of `warps` warps has `m_tiles` times 16 queries, as in
    make_flash_half. While a tile is multiplied, the next is in flight."""
    SIZE, M_TILES = size, m_tiles
    THREADS, WARP_ROWS = 32 * warps, 16 * m_tiles
    ROWS = warps * WARP_ROWS
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(size)
    TILE = KEYS * PITCH
    STAGE, KEYS_OFFSET = 2 * TILE, ROWS * PITCH
    K_STEPS, CHUNKS, N_TILES = SIZE // 16, SIZE // CHUNK, KEYS // 8
    SCORES, ACCUMULATORS, LANE_ROWS = M_TILES * N_TILES * 4, M_TILES * CHUNKS * 4, M_TILES * 2
    WORDS = M_TILES * 4
    Q_IN_REGISTERS = M_TILES * K_STEPS <= 8  # else their words are read again for every tile
    QUERY_WORDS = WORDS * K_STEPS if Q_IN_REGISTERS else WORDS
    STORES = WARP_ROWS * CHUNKS // 32
    REGISTERS = 168 if size <= 64 and m_tiles == 1 else 256
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_rows = make_copy_tile(KEYS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    read_queries, add_scores, mask_scores, online_softmax_update, add_values = make_half_steps(
        SIZE, M_TILES, KEYS, PITCH, True)

    @cuda.jit(device=True)
    def start_tile(shared, offset, keys, values, page_table, sequence, key0, end, kv_heads, kv_head, thread):
        copy_rows(shared, offset, keys, page_table, sequence, key0, end, kv_heads, kv_head, thread)
        copy_rows(shared, offset + TILE, values, page_table, sequence, key0, end, kv_heads, kv_head, thread)

    @cuda.jit(launch_bounds=(THREADS, max(1, 65_536 // (REGISTERS * THREADS))))
    def paged_prefill_mma_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, kv_heads):
        shared = cuda.shared.array(0, uint16)
        pairs = cuda.shared.array(0, uint32)  # the same memory, two bfloat16 elements at a time
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_words = cuda.local.array(QUERY_WORDS, uint32)
        words = cuda.local.array(WORDS, uint32)
        row_max = cuda.local.array(LANE_ROWS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        rows, width = u32.shape(out)
        head, sequence = u32.blockIdx.x, u32.blockIdx.z
        head_column = head * SIZE
        kv_head = head // (u32.gridDim.x // kv_heads)
        begin, tokens, scale = find_sentence(begins, lengths, sequence, rows, longest, scale)
        context_len, num_keys, scale = find_context(contexts, sequence, tokens, u32.shape(page_table)[1], scale)
        row0 = (u32.gridDim.y - 1 - u32.blockIdx.y) * ROWS  # the tiles with the most work first
        if row0 >= tokens:
            return
        warp_row0 = row0 + warp * WARP_ROWS  # the warp's first row
        min_visible = min(context_len + warp_row0 + 1, num_keys)
        max_visible = min(context_len + warp_row0 + WARP_ROWS, num_keys) if warp_row0 < tokens else 0
        end = min(context_len + row0 + ROWS, num_keys)  # no query here sees more
        causal_end = context_len + warp_row0 + lane // 4 + 1  # of the lane's row 0
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(LANE_ROWS):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        swizzle = lane >> SHIFT & MASK
        query_offset = (warp * WARP_ROWS + lane % 16) * PITCH
        query_chunk = lane // 16 ^ swizzle  # for queries and values: rows L % 16, right chunk from lane 16 on
        key_offset = KEYS_OFFSET + (lane % 8 + lane // 16 * 8) * PITCH
        key_chunk = lane // 8 % 2 ^ swizzle  # for keys: the right chunk before the next eight rows
        value_offset = KEYS_OFFSET + TILE + lane % 16 * PITCH

        copy_queries(shared, 0, q, begin + row0, begin + tokens, head_column, thread)
        ptx.cp_async_commit()
        if end > 0:
            start_tile(shared, KEYS_OFFSET, keys, values, page_table, sequence, 0, end, kv_heads, kv_head, thread)
        ptx.cp_async_commit()
        if Q_IN_REGISTERS:
            ptx.cp_async_wait(1)
            cuda.syncthreads()  # the queries have landed
            for k in range(K_STEPS):
                read_queries(query_words, shared, query_offset, query_chunk, k, k * WORDS)
        key0, stage = 0, 0
        while key0 < end:
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # this tile has landed, and the other has been read by every warp
            key1 = key0 + KEYS
            if key1 < end:
                start_tile(shared, KEYS_OFFSET + STAGE - stage, keys, values, page_table, sequence, key1,
                           end, kv_heads, kv_head, thread)
                ptx.cp_async_commit()
            if key0 < max_visible:
                for i in u32.range(SCORES):
                    scores[i] = ZERO
                for k in range(K_STEPS):
                    if Q_IN_REGISTERS:
                        add_scores(scores, query_words, shared, key_offset + stage, key_chunk, k, k * WORDS)
                    else:
                        read_queries(query_words, shared, query_offset, query_chunk, k, 0)
                        add_scores(scores, query_words, shared, key_offset + stage, key_chunk, k, 0)
                if key1 > min_visible:  # some query of this warp does not see some key of this tile
                    key = key0 + lane % 4 * 2
                    for r in u32.range(LANE_ROWS):
                        mask_scores(scores, key, min(causal_end + 8 * r, num_keys), r)
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
        # Stage the output in shared memory, over the warp's queries, so that lanes store whole rows, 16 bytes each.
        ptx.cp_async_wait(0)
        cuda.syncwarp()  # all lanes have read the queries
        warp_offset = warp * (WARP_ROWS * PITCH)
        for r in u32.range(LANE_ROWS):
            row = lane // 4 + 8 * r
            for j in u32.range(CHUNKS):
                offset = (r // 2 * CHUNKS + j) * 4 + r % 2 * 2
                chunk = j ^ row >> SHIFT & MASK
                dst = warp_offset + row * PITCH + chunk * CHUNK
                pairs[dst // 2 + lane % 4] = ptx.pack_bf162(acc[offset] * row_sum[r], acc[offset + 1] * row_sum[r])
        cuda.syncwarp()
        for i in u32.range(STORES):
            index = lane + 32 * i
            row, chunk = index // CHUNKS, index % CHUNKS
            swizzled = chunk ^ row >> SHIFT & MASK
            a, b, c, d = ptx.load_shared4(shared, warp_offset + row * PITCH + swizzled * CHUNK)
            t = warp_row0 + row
            if t < tokens:
                ptx.store_global4(out, (begin + t) * width + head_column + chunk * CHUNK, a, b, c, d)

    paged_prefill_mma_kernel.rows, paged_prefill_mma_kernel.threads = ROWS, THREADS
    paged_prefill_mma_kernel.shared_bytes = 2 * (KEYS_OFFSET + 2 * STAGE)
    return paged_prefill_mma_kernel
