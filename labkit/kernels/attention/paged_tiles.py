"""The kernels of paged_prefill that take keys in tiles: float32, and bfloat16 on tensor cores.

Shapes  as in paged_prefill.py, where the launchers are; here q and out are matrices (T, H * D), keys and values
        (pages * K * PAGE, D)
Source  as half.py and flash.py, of whose steps a tile is made

Tiles of keys begin at the sequence's first token, 64 keys each (32 where D is no multiple of 32, in float32), whatever
tile of queries they are for. A key that a row does not see adds an exact zero. So a row has the same result, bit for
bit, in one launch for the whole prompt, in parts, and in any company.
"""

from numba import float32, uint16, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.flash import THREADS, make_copy_rows, make_flash_steps
from labkit.kernels.attention.half import KEYS, make_half_steps
from labkit.kernels.attention.heads import find_sentence
from labkit.kernels.attention.pages import PAGE, find_context
from labkit.kernels.attention.sentences_flash import rows_in_shared
from labkit.kernels.matmul.mma import CHUNK
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO


def make_copy_tile(keys: int, size: int, pitch: int, threads: int, chunk: int, swizzled: bool = False):
    """A device function: starts the copies of the keys, or values, key0 to key0 + keys - 1 of one head of a sequence,
    which has `end` of them, from its pages to shared memory; zeros from `end` on. cache: (pages * K * PAGE, D)."""
    PAGES, ROWS = keys // PAGE, PAGE * pitch
    copy_page = make_copy_rows(PAGE, size, pitch, threads, chunk, swizzled)

    @cuda.jit(device=True)
    def copy_tile(shared, at, cache, page_table, sequence, key0, end, kv_heads, kv_head, thread):
        for n in u32.range(PAGES):
            first = key0 + n * PAGE
            # Past the last page the table may hold anything: the index is clamped to it, and its data is not read.
            page = uint32(page_table[sequence, min(first, end - 1) // PAGE])
            row = (page * kv_heads + kv_head) * PAGE
            rows = min(end - first, PAGE) if first < end else 0
            copy_page(shared, at + n * ROWS, cache, row, row + rows, 0, thread)

    return copy_tile


# --- float32 ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_paged_prefill(size: int, down: int):
    """Attention for heads of `size` float32 numbers; a thread has `down` queries and eight keys of a tile, as in
    make_flash."""
    SIZE, DOWN = size, down
    PART = min(down, 4)
    ACROSS = 8 if size % 32 == 0 else 4
    GROUPS = THREADS // ACROSS
    ROWS, TILE = DOWN * GROUPS, 8 * ACROSS
    SCORES, QUADS = DOWN * 8, SIZE // (4 * ACROSS)
    COLUMNS = 4 * QUADS
    ACCUMULATORS, QUERY_PART = DOWN * COLUMNS, DOWN * 4
    PITCH, EXP_PITCH = SIZE + 4, TILE + 8  # neighbouring rows begin in different banks
    KEYS_AT = ROWS * PITCH
    VALUES_AT = KEYS_AT + TILE * PITCH
    EXP_AT = VALUES_AT + TILE * SIZE
    NUMBERS = EXP_AT + ROWS * EXP_PITCH
    XOR_OFFSETS = (4, 2, 1) if ACROSS == 8 else (2, 1)
    BLOCKS = max(1, min(4 if DOWN <= 2 else 3, 233_472 // (4 * NUMBERS + 1024)))
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, THREADS, 4)
    copy_keys = make_copy_tile(TILE, SIZE, PITCH, THREADS, 4)
    copy_values = make_copy_tile(TILE, SIZE, SIZE, THREADS, 4)
    read_four, add_scores, add_values, online_softmax_update = make_flash_steps(SIZE, DOWN)

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def paged_prefill_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, kv_heads):
        shared = cuda.shared.array(0, float32)
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_part = cuda.local.array(QUERY_PART, float32)
        row_max = cuda.local.array(DOWN, float32)
        row_sum = cuda.local.array(DOWN, float32)
        thread = u32.threadIdx.x
        x, y = thread % ACROSS, thread // ACROSS
        rows, width = u32.shape(out)
        head, sequence = u32.blockIdx.x, u32.blockIdx.z
        head_column = head * SIZE
        kv_head = head // (u32.gridDim.x // kv_heads)
        begin, tokens, scale = find_sentence(begins, lengths, sequence, rows, longest, scale)
        before, seen, scale = find_context(contexts, sequence, tokens, u32.shape(page_table)[1], scale)
        row0 = (u32.gridDim.y - u32.blockIdx.y - 1) * ROWS  # the most work comes first
        if row0 >= tokens:
            return
        seen_by_first = min(before + row0 + 1, seen)
        end = min(before + row0 + ROWS, seen)  # no query here sees more
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(DOWN):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        copy_queries(shared, 0, q, begin + row0, begin + tokens, head_column, thread)
        if end > 0:
            copy_keys(shared, KEYS_AT, keys, page_table, sequence, 0, end, kv_heads, kv_head, thread)
        ptx.cp_async_commit()
        ptx.cp_async_wait(0)
        cuda.syncthreads()  # the queries and the first keys are there
        key0 = 0
        while key0 < end:
            # These values are in flight while the scores are computed, the next keys during the rest.
            copy_values(shared, VALUES_AT, values, page_table, sequence, key0, end, kv_heads, kv_head, thread)
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
            key1 = key0 + TILE
            if key1 < end:
                copy_keys(shared, KEYS_AT, keys, page_table, sequence, key1, end, kv_heads, kv_head, thread)
            ptx.cp_async_commit()

            if key1 > seen_by_first:  # some query does not see some key of this tile
                for i in u32.range(DOWN):
                    own = min(before + row0 + y + (i * GROUPS + 1), seen)
                    for j in u32.range(8):
                        if key0 + x + j * ACROSS >= own:
                            scores[8 * i + j] = NEG_INF
            exp_at = EXP_AT + y * EXP_PITCH
            online_softmax_update(scores, acc, row_max, row_sum, shared, exp_at + x, scale, 0)
            if DOWN > PART:
                online_softmax_update(scores, acc, row_max, row_sum, shared, exp_at + x, scale, PART)
            cuda.syncwarp()  # the exponentials of this warp's queries are complete; no other warp reads them

            value_at = VALUES_AT + x * 4
            exp_end = exp_at + TILE
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
            t = row0 + y + i * GROUPS
            if t < tokens:
                for quad in u32.range(QUADS):
                    at = COLUMNS * i + 4 * quad
                    to = (begin + t) * width + head_column + x * 4 + quad * 4 * ACROSS
                    ptx.store_global4(out, to, acc[at] * share, acc[at + 1] * share, acc[at + 2] * share,
                                      acc[at + 3] * share)

    paged_prefill_kernel.rows, paged_prefill_kernel.threads = ROWS, THREADS
    paged_prefill_kernel.shared_bytes = 4 * NUMBERS
    return paged_prefill_kernel


# --- bfloat16 ---------------------------------------------------------------------------------------------------------


@kernel_factory
def make_paged_prefill_mma(size: int, warps: int, down: int):
    """Attention for heads of `size` bfloat16 numbers; each of `warps` warps has `down` times 16 queries, as in
    make_flash_half. While a tile is multiplied, the next is in flight."""
    SIZE, DOWN = size, down
    THREADS, WARP_ROWS = 32 * warps, 16 * down
    ROWS = warps * WARP_ROWS
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(size)
    TILE = KEYS * PITCH
    STAGE, KEYS_AT = 2 * TILE, ROWS * PITCH
    STEPS, PIECES, ACROSS = SIZE // 16, SIZE // CHUNK, KEYS // 8
    SCORES, ACCUMULATORS, LANE_ROWS = DOWN * ACROSS * 4, DOWN * PIECES * 4, DOWN * 2
    WORDS = DOWN * 4
    KEPT = DOWN * STEPS <= 8  # the queries' words stay in registers; larger heads read them for every tile
    QUERY_WORDS = WORDS * STEPS if KEPT else WORDS
    MOVES = WARP_ROWS * PIECES // 32
    REGISTERS = 168 if size <= 64 and down == 1 else 256
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_rows = make_copy_tile(KEYS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    read_queries, add_scores, hide, online_softmax_update, add_values = make_half_steps(SIZE, DOWN, KEYS, PITCH, True)

    @cuda.jit(device=True)
    def start_tile(shared, at, keys, values, page_table, sequence, key0, end, kv_heads, kv_head, thread):
        copy_rows(shared, at, keys, page_table, sequence, key0, end, kv_heads, kv_head, thread)
        copy_rows(shared, at + TILE, values, page_table, sequence, key0, end, kv_heads, kv_head,
                  thread)

    @cuda.jit(launch_bounds=(THREADS, max(1, 65_536 // (REGISTERS * THREADS))))
    def paged_prefill_mma_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest,
                                 kv_heads):
        shared = cuda.shared.array(0, uint16)
        pairs = cuda.shared.array(0, uint32)  # the same memory, two bfloat16 numbers at a time
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
        before, seen, scale = find_context(contexts, sequence, tokens, u32.shape(page_table)[1], scale)
        row0 = (u32.gridDim.y - u32.blockIdx.y - 1) * ROWS  # the most work comes first
        if row0 >= tokens:
            return
        mine = row0 + warp * WARP_ROWS  # this warp's first row
        seen_by_first = min(before + mine + 1, seen)
        seen_by_last = min(before + mine + WARP_ROWS, seen) if mine < tokens else 0
        end = min(before + row0 + ROWS, seen)  # no query here sees more
        own = before + mine + lane // 4 + 1  # what this lane's row 0 sees
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(LANE_ROWS):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        swizzle = lane >> SHIFT & MASK
        query_at = (warp * WARP_ROWS + lane % 16) * PITCH
        wide = lane // 16 ^ swizzle  # for queries and values: rows L % 16, right piece from lane 16 on
        key_at = KEYS_AT + (lane % 8 + lane // 16 * 8) * PITCH
        tall = lane // 8 % 2 ^ swizzle  # for keys: the right piece before the next eight rows
        value_at = KEYS_AT + TILE + lane % 16 * PITCH

        copy_queries(shared, 0, q, begin + row0, begin + tokens, head_column, thread)
        ptx.cp_async_commit()
        if end > 0:
            start_tile(shared, KEYS_AT, keys, values, page_table, sequence, 0, end, kv_heads, kv_head,
                       thread)
        ptx.cp_async_commit()
        if KEPT:
            ptx.cp_async_wait(1)
            cuda.syncthreads()  # the queries are there
            for k in range(STEPS):
                read_queries(query_words, shared, query_at, wide, k, k * WORDS)
        key0, stage = 0, 0
        while key0 < end:
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # this tile has landed, and the other has been read by every warp
            key1 = key0 + KEYS
            if key1 < end:
                start_tile(shared, KEYS_AT + STAGE - stage, keys, values, page_table, sequence, key1,
                           end, kv_heads, kv_head, thread)
                ptx.cp_async_commit()
            if key0 < seen_by_last:
                for i in u32.range(SCORES):
                    scores[i] = ZERO
                for k in range(STEPS):
                    if KEPT:
                        add_scores(scores, query_words, shared, key_at + stage, tall, k, k * WORDS)
                    else:
                        read_queries(query_words, shared, query_at, wide, k, 0)
                        add_scores(scores, query_words, shared, key_at + stage, tall, k, 0)
                if key1 > seen_by_first:  # some query of this warp does not see some key of this tile
                    key = key0 + lane % 4 * 2
                    for r in u32.range(LANE_ROWS):
                        hide(scores, key, min(own + 8 * r, seen), r)
                for r in u32.range(LANE_ROWS):
                    online_softmax_update(scores, acc, row_max, row_sum, scale, r)
                for k in range(KEYS // 16):
                    add_values(scores, acc, words, shared, value_at + stage, wide, k)
            key0, stage = key1, STAGE - stage

        for r in u32.range(LANE_ROWS):
            whole = row_sum[r]
            whole += cuda.shfl_xor_sync(ALL_LANES, whole, 1)
            whole += cuda.shfl_xor_sync(ALL_LANES, whole, 2)
            row_sum[r] = float32(1.0) / whole
        # Out through the place of this warp's queries, so that lanes store rows whole, 16 bytes each.
        ptx.cp_async_wait(0)
        cuda.syncwarp()  # all lanes have read the queries
        place0 = warp * (WARP_ROWS * PITCH)
        for r in u32.range(LANE_ROWS):
            row = lane // 4 + 8 * r
            for j in u32.range(PIECES):
                at = (r // 2 * PIECES + j) * 4 + r % 2 * 2
                piece = j ^ row >> SHIFT & MASK
                to = place0 + row * PITCH + piece * CHUNK
                pairs[to // 2 + lane % 4] = ptx.pack_bf162(acc[at] * row_sum[r],
                                                                                   acc[at + 1] * row_sum[r])
        cuda.syncwarp()
        for i in u32.range(MOVES):
            move = lane + 32 * i
            row, piece = move // PIECES, move % PIECES
            swizzled = piece ^ row >> SHIFT & MASK
            a, b, c, d = ptx.load_shared4(shared, place0 + row * PITCH + swizzled * CHUNK)
            t = mine + row
            if t < tokens:
                ptx.store_global4(out, (begin + t) * width + head_column + piece * CHUNK, a, b, c, d)

    paged_prefill_mma_kernel.rows, paged_prefill_mma_kernel.threads = ROWS, THREADS
    paged_prefill_mma_kernel.shared_bytes = 2 * (KEYS_AT + 2 * STAGE)
    return paged_prefill_mma_kernel
