"""The kernels of paged_decode: the pages of a sequence split over lanes, warps and blocks, and what they found joined.

A sequence is cut into up to 16 parts of 8 pages or more, by its own length alone. A block takes one part after the
other: all of them, where the batch keeps the GPU busy; one, where it would leave it idle. Warps take the pages of a
part in turn and join at its end; parts are folded in their order, by the block that has them all, or by the one that
ends last. These are the same operations in the same order, so that the result has the same bits in any batch.

Shapes  as in paged.py, where the launchers are; here q and out are matrices (B * H, D), keys and values (pages * K *
        PAGE, D). ratio: H // K. partial, arrived: what decode_parts makes
"""

from numba import float32, uint16, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.flash import make_copy_rows
from labkit.kernels.attention.half import make_half_steps
from labkit.kernels.attention.pages import PAGE, find_length
from labkit.kernels.attention.sentences_flash import rows_in_shared
from labkit.kernels.matmul.mma import CHUNK
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

WARPS, THREADS = 4, 128
SPLITS = 16  # parts of a sequence, at most
SHORTEST = 8  # pages of a part, at least: two for each warp
LOWEST = float32(-3e38)  # below every score, and finite: the difference of two such maxima is a number
MOST, MOST_MMA = 8, 16  # query heads of a block


def blocks_of_group(group: int, most: int) -> tuple[int, int]:
    """(blocks, query heads of each) for the query heads that share a head of keys and values: in equal parts, of which
    the last may be smaller."""
    blocks = -(-group // most)
    return blocks, -(-group // blocks)


def partial_stride(size: int) -> int:
    """Numbers of what was found for a query head in a part of its keys: acc, row_sum, row_max and two that are never
    read."""
    return size + 4


@cuda.jit(device=True)
def find_parts(tokens, splits):
    """(pages, pages of a part, parts) of a sequence of so many tokens; parts are a multiple of WARPS long, but for the
    last."""
    pages = (tokens + (PAGE - 1)) // PAGE
    share = (pages + (splits - 1)) // splits
    share = max(SHORTEST, (share + (WARPS - 1)) // WARPS * WARPS)
    if splits == 1:
        share = pages
    return pages, share, (pages + share - 1) // share


@cuda.jit(device=True)
def split_range(parts, block, blocks):
    """(first part, behind the last part, blocks that have any) of a block, of a grid of so many for the sequence."""
    each = (parts + blocks - 1) // blocks
    first = block * each
    return first, min(first + each, parts), (parts + each - 1) // each


@cuda.jit(device=True)
def fold(row_max, row_sum, left, right, n, part_max, part_sum, part_left, part_right):
    """Adds a part to the parts before it, for pair n of the thread's. The rounding is spelled out: whoever folds, a
    block or the last one, gets the same bits."""
    new = max(row_max[n], part_max)
    before, weight = ptx.exp2_approx(row_max[n] - new), ptx.exp2_approx(part_max - new)
    row_max[n] = new
    row_sum[n] = cuda.fma(row_sum[n], before, part_sum * weight)
    left[n] = cuda.fma(left[n], before, part_left * weight)
    right[n] = cuda.fma(right[n], before, part_right * weight)


def make_join(size: int, heads: int, bf16: bool, splits: int):
    """The device functions that join: write_zeros, of an empty slot; place, where in shared memory a number of acc
    lies; merge_partials, at the end of a part; reduce_splits, at the end of a block.

    A thread has up to PAIRS pairs of neighbouring columns of a query head, and for each a row_max, a row_sum and the
    two numbers, folded over the block's parts so far.
    """
    HEADS, SIZE, RECORD = heads, size, partial_stride(size)
    COLUMNS = size // 2  # pairs of a head
    ALL, PAIRS = heads * COLUMNS, -(-heads * COLUMNS // THREADS)
    SPLIT = splits > 1
    # Rows of 64 numbers begin in one bank: the eight rows that a warp writes at once are moved apart.
    APART = 8 if size & (size - 1) == 0 else 0
    TURNS = min(7, size // 8 - 1)

    @cuda.jit(device=True)
    def write(out, row, column, left, right):
        if bf16:
            ptx.store_global_bf162(out, row * SIZE + column, left, right)
        else:
            out[row, column], out[row, column + 1] = left, right

    @cuda.jit(device=True)
    def write_zeros(out, first_row, count, thread):
        for pair in u32.range(thread, count * COLUMNS, THREADS):
            row, column = pair // COLUMNS, pair % COLUMNS * 2
            write(out, first_row + row, column, ZERO, ZERO)

    @cuda.jit(device=True)
    def place(head, column):
        return head * SIZE + (column ^ (head & TURNS) * APART)

    @cuda.jit(device=True)
    def merge_partials(found, places, maxima, sums, row_max, row_sum, left, right, alone, part, group, partial, thread):
        """A part's end. found[places[warp] + place(head, column)]: acc of a warp. maxima, sums: [warp * HEADS + head].
        alone: the block has all of the sequence's parts, and folds this one; else it goes to `partial`."""
        cuda.syncthreads()  # what every warp found is complete
        for n in u32.range(PAIRS):
            pair = thread + n * THREADS
            if pair < ALL:
                head, column = pair // COLUMNS, pair % COLUMNS * 2
                part_max, part_sum, part_left, part_right = LOWEST, ZERO, ZERO, ZERO
                for warp in u32.range(WARPS):
                    part_max = max(part_max, maxima[warp * HEADS + head])
                for warp in u32.range(WARPS):
                    at = places[warp] + place(head, column)
                    weight = ptx.exp2_approx(maxima[warp * HEADS + head] - part_max)
                    part_sum += sums[warp * HEADS + head] * weight
                    part_left += found[at] * weight
                    part_right += found[at + 1] * weight
                if not SPLIT or alone:
                    fold(row_max, row_sum, left, right, n, part_max, part_sum, part_left, part_right)
                else:
                    one = (((group * SPLITS + part) * HEADS + head)
                                 * RECORD)
                    partial[one + column], partial[one + column + 1] = part_left, part_right
                    if column == 0:
                        partial[one + SIZE], partial[one + (SIZE + 1)] = part_sum, part_max
        cuda.syncthreads()  # and has been read by every thread

    @cuda.jit(device=True)
    def reduce_splits(last, out, first_row, count, row_max, row_sum, left, right, parts, blocks, group, partial,
                      arrived, thread):
        """first_row, count: the block's rows of out as a matrix (B * H, D). group: the number of the `blocks` that
        belong together."""
        if SPLIT and blocks > 1:
            if thread == 0:
                cuda.threadfence()  # every block sees the records of this one before it sees the count
                # The count is 0 again after the last block: the next launch needs nothing.
                order = uint32(cuda.atomic.inc(arrived, group, blocks - 1))
                last[0] = 1 if order == blocks - 1 else 0
                cuda.threadfence()
            cuda.syncthreads()
            if last[0] == 0:
                return
            fold_parts(row_max, row_sum, left, right, parts, group, partial, thread)
        for n in u32.range(PAIRS):
            pair = thread + n * THREADS
            head, column = pair // COLUMNS, pair % COLUMNS * 2
            if head < count:
                share = float32(1.0) / row_sum[n]
                write(out, first_row + head, column, left[n] * share, right[n] * share)

    @cuda.jit(device=True)
    def fold_parts(row_max, row_sum, left, right, parts, group, partial, thread):
        for n in u32.range(PAIRS):
            pair = min(thread + n * THREADS, ALL - 1)
            head, column = pair // COLUMNS, pair % COLUMNS * 2
            first = (group * (SPLITS * HEADS) + head) * RECORD
            # No branches, so that all loads can be under way at once: a part that is not there weighs nothing.
            for part in u32.range(SPLITS):
                one = first + min(part, parts - 1) * (HEADS * RECORD)
                part_max = partial[one + (SIZE + 1)] if part < parts else LOWEST
                fold(row_max, row_sum, left, right, n, part_max, partial[one + SIZE], partial[one + column],
                     partial[one + column + 1])

    return write_zeros, place, merge_partials, reduce_splits


# --- Products in registers: float32 and bfloat16 ----------------------------------------------------------------------


def make_decode_steps(heads: int, bf16: bool, lanes: int):
    """The device functions of which a round of keys is made: read, score_key and add_value. Each of a group of `lanes`
    neighbours has 16 bytes of a key and of its value."""
    COUNT = 8 if bf16 else 4
    HEADS = heads
    EXCHANGES = lanes.bit_length() - 1

    @cuda.jit(device=True)
    def read(numbers, to, array, at):
        """numbers[to], ... = the numbers in 16 bytes of an array."""
        four = ptx.load_global4(array, at)
        for n in range(4):
            if bf16:
                numbers[to + 2 * n], numbers[to + 2 * n + 1] = ptx.unpack_bf162(four[n])
            else:
                numbers[to + n] = four[n]

    @cuda.jit(device=True)
    def score_key(scores, queries, numbers, n, seen):
        """The scores of the group's key n of this round, for each head, in all of the group's lanes."""
        for head in range(HEADS):
            score = ZERO
            for i in range(COUNT):
                score += queries[head * COUNT + i] * numbers[n * COUNT + i]
            for i in range(EXCHANGES):
                score += cuda.shfl_xor_sync(ALL_LANES, score, 1 << i)
            scores[n * HEADS + head] = score if seen else NEG_INF

    @cuda.jit(device=True)
    def add_value(acc, scores, numbers, n):
        for head in range(HEADS):
            for i in range(COUNT):
                acc[head * COUNT + i] += scores[n * HEADS + head] * numbers[n * COUNT + i]

    return read, score_key, add_value


@kernel_factory
def make_paged_decode(size: int, heads: int, bf16: bool, splits: int):
    """Attention of `heads` query heads of `size` numbers that share a head of keys and values.

    A warp takes every WARPS-th page of its block. LANES neighbours share a key, so that a warp reads KEYS keys in 16
    bytes each, and has a row_max, a row_sum and an acc for each of these groups of lanes: in the loop over pages the
    only exchange is the sum of a product over a group.
    """
    COUNT = 8 if bf16 else 4  # numbers in 16 bytes
    SIZE, HEADS = size, heads
    PIECES = size // COUNT
    LANES = 1 << (PIECES - 1).bit_length()
    KEYS = 32 // LANES
    WHOLE = LANES == PIECES  # or else some lanes of a group have no piece
    MANY = heads * COUNT > 32  # numbers of queries in registers, and as many of acc
    ROUND = min(PAGE // KEYS, 2 if MANY else 4)  # keys of a group whose loads are under way at once
    ROUNDS = PAGE // KEYS // ROUND
    ACROSS = KEYS.bit_length() - 1  # exchanges between all groups of lanes
    NUMBERS, QUERIES, SCORES = ROUND * COUNT, heads * COUNT, ROUND * heads
    FOUND, FOUND_SUMS, PAIRS = WARPS * heads * size, WARPS * heads, -(-heads * size // (2 * THREADS))
    read, score_key, add_value = make_decode_steps(heads, bf16, LANES)
    write_zeros, place, merge_partials, reduce_splits = make_join(size, heads, bf16, splits)

    @cuda.jit(device=True)
    def add_round(queries, acc, row_max, row_sum, keys, values, at, first, last):
        """The group's next ROUND keys: those at first, first + KEYS, ... of a page whose last key is `last`."""
        key_numbers = cuda.local.array(NUMBERS, float32)
        value_numbers = cuda.local.array(NUMBERS, float32)
        scores = cuda.local.array(SCORES, float32)
        # No branches, so that all loads can be under way at once.
        for n in u32.range(ROUND):
            read(key_numbers, n * COUNT, keys, at + min(first + n * KEYS, last) * SIZE)
        for n in u32.range(ROUND):
            read(value_numbers, n * COUNT, values,
                 at + min(first + n * KEYS, last) * SIZE)
        for n in u32.range(ROUND):
            score_key(scores, queries, key_numbers, n, first + n * KEYS <= last)
        for head in range(HEADS):
            new = row_max[head]
            for n in u32.range(ROUND):
                new = max(new, scores[n * HEADS + head])
            correction = ptx.exp2_approx(row_max[head] - new)
            row_max[head] = new
            part = ZERO
            for n in u32.range(ROUND):
                exponential = ptx.exp2_approx(scores[n * HEADS + head] - new)
                scores[n * HEADS + head] = exponential
                part += exponential
            row_sum[head] = row_sum[head] * correction + part
            for i in range(COUNT):
                acc[head * COUNT + i] *= correction
        for n in u32.range(ROUND):
            add_value(acc, scores, value_numbers, n)

    @cuda.jit(device=True)
    def join_lanes(acc, row_max, row_sum, head):
        """What all groups of lanes found for a head, in every lane."""
        new = row_max[head]
        for n in range(ACROSS):
            new = max(new, cuda.shfl_xor_sync(ALL_LANES, new, LANES << n))
        weight = ptx.exp2_approx(row_max[head] - new)
        row_max[head] = new
        whole = row_sum[head] * weight
        for n in range(ACROSS):
            whole += cuda.shfl_xor_sync(ALL_LANES, whole, LANES << n)
        row_sum[head] = whole
        for i in range(COUNT):
            value = acc[head * COUNT + i] * weight
            for n in range(ACROSS):
                value += cuda.shfl_xor_sync(ALL_LANES, value, LANES << n)
            acc[head * COUNT + i] = value

    @cuda.jit(launch_bounds=(THREADS, 2 if MANY else 3))
    def paged_decode_kernel(q, keys, values, page_table, lengths, out, scale, ratio, kv_heads, partial, arrived):
        found = cuda.shared.array(FOUND, float32)
        maxima, sums = cuda.shared.array(FOUND_SUMS, float32), cuda.shared.array(FOUND_SUMS, float32)
        places = cuda.shared.array(WARPS, uint32)
        last_block = cuda.shared.array(1, uint32)
        queries = cuda.local.array(QUERIES, float32)
        acc = cuda.local.array(QUERIES, float32)
        row_max = cuda.local.array(HEADS, float32)
        row_sum = cuda.local.array(HEADS, float32)
        whole_max, whole_sum = cuda.local.array(PAIRS, float32), cuda.local.array(PAIRS, float32)
        left, right = cuda.local.array(PAIRS, float32), cuda.local.array(PAIRS, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        sequence = u32.blockIdx.z
        blocks = u32.gridDim.y // kv_heads
        kv_head = u32.blockIdx.y // blocks
        first_head = u32.blockIdx.y % blocks * HEADS  # of those that share kv_head
        count = min(HEADS, ratio - first_head)
        first_row = (sequence * kv_heads + kv_head) * ratio + first_head
        block = u32.blockIdx.x
        tokens, scale = find_length(lengths, sequence, u32.shape(page_table)[1], scale)
        if tokens == 0:
            if block == 0:
                write_zeros(out, first_row, count, thread)
            return
        pages, share, parts = find_parts(tokens, splits)
        part, last_part, blocks_used = split_range(parts, block, u32.gridDim.x)
        if part >= last_part:
            return  # the grid has blocks for a full page table
        piece, key = lane % LANES, lane // LANES
        own = (piece if WHOLE else min(piece, PIECES - 1)) * COUNT
        for head in u32.range(HEADS):
            row = first_row + min(head, count - 1)
            read(queries, head * COUNT, q, row * SIZE + own)
            for i in u32.range(COUNT):
                queries[head * COUNT + i] *= scale if WHOLE or piece < PIECES else ZERO
        for n in range(PAIRS):
            whole_max[n], whole_sum[n], left[n], right[n] = LOWEST, ZERO, ZERO, ZERO
        if lane == 0:
            places[warp] = warp * (HEADS * SIZE)
        group = sequence * u32.gridDim.y + u32.blockIdx.y

        while part < last_part:
            for head in u32.range(HEADS):
                row_max[head], row_sum[head] = LOWEST, ZERO
                for i in u32.range(COUNT):
                    acc[head * COUNT + i] = ZERO
            end = min((part + 1) * share, pages)
            for page in u32.range(part * share + warp, end, WARPS):
                number = uint32(page_table[sequence, page])
                at = (number * kv_heads + kv_head) * (PAGE * SIZE) + own
                last = min(tokens - page * PAGE, PAGE) - 1
                for step in u32.range(ROUNDS):
                    add_round(queries, acc, row_max, row_sum, keys, values, at,
                              key + step * ROUND * KEYS, last)

            for head in u32.range(HEADS):
                join_lanes(acc, row_max, row_sum, head)
                if key == 0 and (WHOLE or piece < PIECES):
                    for i in u32.range(0, COUNT, 4):
                        at = warp * (HEADS * SIZE) + place(head, own + i)
                        ptx.store_shared4(found, at, acc[head * COUNT + i], acc[head * COUNT + i + 1],
                                          acc[head * COUNT + i + 2], acc[head * COUNT + i + 3])
                if lane == 0:
                    maxima[warp * HEADS + head] = row_max[head]
                    sums[warp * HEADS + head] = row_sum[head]
            merge_partials(found, places, maxima, sums, whole_max, whole_sum, left, right, blocks_used == 1,
                           part, group, partial, thread)
            part += 1
        reduce_splits(last_block, out, first_row, count, whole_max, whole_sum, left, right, parts, blocks_used, group,
                      partial, arrived, thread)

    paged_decode_kernel.threads, paged_decode_kernel.shared_bytes = THREADS, 0
    return paged_decode_kernel


# --- Tensor cores: bfloat16 -------------------------------------------------------------------------------------------


@kernel_factory
def make_paged_decode_mma(size: int, heads: int, early: bool = False):
    """As make_paged_decode, for bfloat16: the query heads are rows of a factor of 16, a page is 16 keys.

    Each warp has a ring of pages of its own in shared memory, which cp.async fills while earlier ones are multiplied;
    it waits for no other warp. A multiplication takes a tenth of the instructions that products in registers take, for
    every number of heads up to 16, and so leaves time for loads.

    early: as in kernels/pdl.py; the first pages are fetched into L2 meanwhile, where what the step still adds to
    them is written, too.
    """
    SIZE, HEADS = size, heads
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(size)
    TILE, QUERY_TILE = PAGE * PITCH, 16 * PITCH
    STAGE, STAGES = 2 * TILE, 3
    BEFORE = STAGES - 1  # pages that are under way
    PENDING = STAGES - 2
    RING = STAGES * STAGE
    QUERIES_AT = WARPS * RING
    STEPS, PIECES = size // 16, size // CHUNK
    LANE_ROWS = 1 if heads <= 8 else 2
    ACCUMULATORS, QUERY_WORDS = PIECES * 4, STEPS * 4
    FOUND_SUMS, PAIRS = WARPS * heads, -(-heads * size // (2 * THREADS))
    EARLY, PAGE_ELEMENTS, PAGE_BYTES = early, PAGE * size, 2 * PAGE * size
    copy_queries = make_copy_rows(16, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_page = make_copy_rows(PAGE, SIZE, PITCH, 32, CHUNK, SWIZZLED)
    read_queries, add_scores, hide, online_softmax_update, add_values = make_half_steps(SIZE, 1, PAGE, PITCH, True)
    write_zeros, place, merge_partials, reduce_splits = make_join(size, heads, True, SPLITS)

    @cuda.jit(device=True)
    def start_page(shared, at, keys, values, page_table, sequence, page, end, tokens, kv_heads, kv_head, lane):
        """Starts the copies of a page, if there is one; of rows beyond the sequence come zeros. Closes a group."""
        if page < end:
            number = uint32(page_table[sequence, page])
            row = (number * kv_heads + kv_head) * PAGE
            rows = row + min(tokens - page * PAGE, PAGE)
            copy_page(shared, at, keys, row, rows, 0, lane)
            copy_page(shared, at + TILE, values, row, rows, 0, lane)
        ptx.cp_async_commit()

    @cuda.jit(device=True)
    def fetch_page(keys, values, page_table, sequence, page, end, kv_heads, kv_head):
        """Brings a page into L2, if there is one."""
        if page < end:
            at = (uint32(page_table[sequence, page]) * kv_heads + kv_head) * PAGE_ELEMENTS
            ptx.prefetch_l2(keys, at, PAGE_BYTES)
            ptx.prefetch_l2(values, at, PAGE_BYTES)

    @cuda.jit(launch_bounds=(THREADS, 4 if size <= 64 else 2))
    def paged_decode_mma_kernel(q, keys, values, page_table, lengths, out, scale, ratio, kv_heads, partial, arrived):
        shared = cuda.shared.array(0, uint16)
        found = cuda.shared.array(0, float32)  # the same memory: what a warp found lies in its page that was last read
        maxima, sums = cuda.shared.array(FOUND_SUMS, float32), cuda.shared.array(FOUND_SUMS, float32)
        places = cuda.shared.array(WARPS, uint32)
        last_block = cuda.shared.array(1, uint32)
        scores = cuda.local.array(8, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_words = cuda.local.array(QUERY_WORDS, uint32)
        words = cuda.local.array(4, uint32)
        row_max = cuda.local.array(2, float32)
        row_sum = cuda.local.array(2, float32)
        whole_max, whole_sum = cuda.local.array(PAIRS, float32), cuda.local.array(PAIRS, float32)
        left, right = cuda.local.array(PAIRS, float32), cuda.local.array(PAIRS, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        sequence = u32.blockIdx.z
        blocks = u32.gridDim.y // kv_heads
        kv_head = u32.blockIdx.y // blocks
        first_head = u32.blockIdx.y % blocks * HEADS  # of those that share kv_head
        count = min(HEADS, ratio - first_head)
        first_row = (sequence * kv_heads + kv_head) * ratio + first_head
        block = u32.blockIdx.x
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
        tokens, scale = find_length(lengths, sequence, u32.shape(page_table)[1], scale)
        pages, share, parts = find_parts(max(tokens, 1), SPLITS)
        part, last_part, blocks_used = split_range(parts, block, u32.gridDim.x)
        page = part * share + warp
        last_page = min(last_part * share, pages)  # behind the block's last one
        if EARLY:
            if tokens > 0 and lane < BEFORE:
                fetch_page(keys, values, page_table, sequence, page + lane * WARPS, last_page, kv_heads,
                           kv_head)
            ptx.griddepcontrol_wait()
        if tokens == 0:
            if block == 0:
                write_zeros(out, first_row, count, thread)
            return
        if part >= last_part:
            return  # the grid has blocks for a full page table
        ring = warp * RING
        copy_queries(shared, QUERIES_AT, q, first_row, first_row + count, 0, thread)
        ptx.cp_async_commit()
        for n in u32.range(BEFORE):
            start_page(shared, ring + n * STAGE, keys, values, page_table, sequence,
                       page + n * WARPS, last_page, tokens, kv_heads, kv_head, lane)
        for n in u32.range(PAIRS):
            whole_max[n], whole_sum[n], left[n], right[n] = LOWEST, ZERO, ZERO, ZERO
        group = sequence * u32.gridDim.y + u32.blockIdx.y

        swizzle = lane >> SHIFT & MASK
        row_at = lane % 16 * PITCH
        wide = lane // 16 ^ swizzle  # for queries and values: rows L % 16, right piece from lane 16 on
        key_at = (lane % 8 + lane // 16 * 8) * PITCH
        tall = lane // 8 % 2 ^ swizzle  # for keys: the right piece before the next eight rows
        ptx.cp_async_wait(BEFORE)
        cuda.syncthreads()  # the queries are there
        for k in range(STEPS):
            read_queries(query_words, shared, QUERIES_AT + row_at, wide, k, 4 * k)
        stage, free = 0, BEFORE * STAGE  # of the ring: the next page, and the place that none is in
        while part < last_part:
            end = min((part + 1) * share, pages)
            for i in range(ACCUMULATORS):
                acc[i] = ZERO
            for r in u32.range(2):
                row_max[r], row_sum[r] = NEG_INF, ZERO
            while page < end:
                ptx.cp_async_wait(PENDING)
                cuda.syncwarp()  # this page has landed, and every lane has read the one before it
                start_page(shared, ring + free, keys, values, page_table, sequence,
                           page + BEFORE * WARPS, last_page, tokens, kv_heads, kv_head, lane)
                at = ring + stage
                for i in range(8):
                    scores[i] = ZERO
                for k in range(STEPS):
                    add_scores(scores, query_words, shared, at + key_at, tall, k, 4 * k)
                key = page * PAGE + lane % 4 * 2
                for r in u32.range(LANE_ROWS):
                    if (page + 1) * PAGE > tokens:
                        hide(scores, key, tokens, r)
                    online_softmax_update(scores, acc, row_max, row_sum, scale, r)
                add_values(scores, acc, words, shared, at + TILE + row_at, wide, 0)
                page += WARPS
                free = stage
                stage = stage + STAGE if stage < BEFORE * STAGE else 0

            cuda.syncwarp()  # every lane has read the last page, where these sums go
            mine = (ring + free) // 2  # in float32 numbers
            if lane == 0:
                places[warp] = mine
            for r in u32.range(LANE_ROWS):
                whole = row_sum[r]
                whole += cuda.shfl_xor_sync(ALL_LANES, whole, 1)
                whole += cuda.shfl_xor_sync(ALL_LANES, whole, 2)
                head = lane // 4 + 8 * r
                if head < HEADS:
                    for j in u32.range(PIECES):
                        to = mine + place(head, 8 * j + lane % 4 * 2)
                        found[to] = acc[4 * j + 2 * r]
                        found[to + 1] = acc[4 * j + 2 * r + 1]
                    if lane % 4 == 0:
                        sums[warp * HEADS + head] = whole
                        maxima[warp * HEADS + head] = max(LOWEST, row_max[r] * scale)
            merge_partials(found, places, maxima, sums, whole_max, whole_sum, left, right, blocks_used == 1,
                           part, group, partial, thread)
            part += 1
        reduce_splits(last_block, out, first_row, count, whole_max, whole_sum, left, right, parts, blocks_used, group,
                      partial, arrived, thread)

    paged_decode_mma_kernel.threads, paged_decode_mma_kernel.uses_pdl = THREADS, early
    paged_decode_mma_kernel.shared_bytes = 2 * (QUERIES_AT + QUERY_TILE)
    return paged_decode_mma_kernel
