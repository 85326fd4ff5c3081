"""The kernels of paged_decode: the pages of a sequence split over lanes, warps and blocks, and what they found joined.

Shapes  as in paged.py, where the launchers are; here q and out are matrices (B * H, D), keys and values (pages * K *
        PAGE, D). ratio: H // K. partial, arrived: what decode_parts makes
"""

from numba import float32, uint16, uint32

from labkit import cuda
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.flash import make_copy_rows
from labkit.kernels.attention.half import make_half_steps
from labkit.kernels.attention.pages import PAGE, find_length
from labkit.kernels.attention.sentences_flash import rows_in_shared
from labkit.kernels.matmul.mma import CHUNK
from labkit.kernels.reduce import ALL_LANES, NOTHING, ZERO

WARPS, THREADS = 4, 128
SPLITS = 16  # blocks of a sequence and a head, at most
SHORTEST = 8  # pages of a block, at least: two for each warp
LOWEST = float32(-3e38)  # below every score, and finite: the difference of two such maxima is a number
MOST, MOST_MMA = 8, 16  # query heads of a block


def blocks_of_group(group: int, most: int) -> tuple[int, int]:
    """(blocks, query heads of each) for the query heads that share a head of keys and values: in equal parts, of which
    the last may be smaller."""
    blocks = -(-group // most)
    return blocks, -(-group // blocks)


def record_of(size: int) -> int:
    """Numbers of what was found for a query head in a part of its keys: acc, row_sum, row_max and two that are never
    read."""
    return size + 4


@cuda.jit(device=True)
def find_split(tokens, split, splits):
    """(first page, behind the last page, how many splits there are) of a sequence of so many tokens."""
    pages = uint32((tokens + uint32(PAGE - 1)) // uint32(PAGE))
    share = uint32((pages + uint32(splits - 1)) // uint32(splits))
    share = max(uint32(SHORTEST), uint32((share + uint32(WARPS - 1)) // uint32(WARPS) * uint32(WARPS)))
    if splits == 1:
        share = pages
    first = uint32(split * share)
    return first, min(uint32(first + share), pages), uint32((pages + share - uint32(1)) // share)


def make_join(size: int, heads: int, bf16: bool, splits: int):
    """Two device functions. write_zeros: of an empty slot. join: the records of a block's warps, which lie in shared
    memory, become the block's; where a sequence has several blocks, they go to `partial`, and the block that comes last
    joins them."""
    HEADS, SIZE, RECORD = heads, size, record_of(size)
    PAIRS = heads * size // 2  # of neighbouring numbers: a thread's share
    SPLIT = splits > 1

    @cuda.jit(device=True)
    def write(out, row, column, left, right):
        if bf16:
            ptx.store_global_bf162(out, uint32(row * uint32(SIZE) + column), left, right)
        else:
            out[row, column], out[row, column + uint32(1)] = left, right

    @cuda.jit(device=True)
    def write_zeros(out, first_row, count, thread):
        pair = thread
        while pair < uint32(count * uint32(SIZE // 2)):
            row, column = uint32(pair // uint32(SIZE // 2)), uint32(pair % uint32(SIZE // 2) * uint32(2))
            write(out, uint32(first_row + row), column, ZERO, ZERO)
            pair = uint32(pair + uint32(THREADS))

    @cuda.jit(device=True)
    def join(records, last, out, first_row, count, split, parts, group, partial, arrived, thread):
        """first_row, count: the block's rows of out as a matrix (B * H, D). group: the number of the blocks that belong
        together, of which there are `parts`."""
        cuda.syncthreads()  # every warp's record is complete
        pair = thread
        while pair < uint32(PAIRS):
            head, column = uint32(pair // uint32(SIZE // 2)), uint32(pair % uint32(SIZE // 2) * uint32(2))
            at = uint32(head * uint32(RECORD))
            row_max, row_sum, left, right = LOWEST, ZERO, ZERO, ZERO
            for warp in range(WARPS):
                row_max = max(row_max, records[at + uint32(warp * HEADS * RECORD + SIZE + 1)])
            for warp in range(WARPS):
                one = uint32(at + uint32(warp * HEADS * RECORD))
                weight = ptx.exp2_approx(records[one + uint32(SIZE + 1)] - row_max)
                row_sum += records[one + uint32(SIZE)] * weight
                left += records[one + column] * weight
                right += records[one + column + uint32(1)] * weight
            if not SPLIT or parts == uint32(1):
                if head < count:
                    share = float32(1.0) / row_sum
                    write(out, uint32(first_row + head), column, left * share, right * share)
            else:
                one = uint32(uint32(uint32(group * uint32(SPLITS)) + split) * uint32(HEADS * RECORD) + at)
                partial[one + column], partial[one + column + uint32(1)] = left, right
                if column == uint32(0):
                    partial[one + uint32(SIZE)], partial[one + uint32(SIZE + 1)] = row_sum, row_max
            pair = uint32(pair + uint32(THREADS))
        if SPLIT and parts > uint32(1):
            cuda.syncthreads()  # the block's records are written
            if thread == uint32(0):
                cuda.threadfence()  # and every block sees them before it sees the count
                # The count is 0 again after the last block: the next launch needs nothing.
                order = uint32(cuda.atomic.inc(arrived, group, uint32(parts - uint32(1))))
                last[0] = uint32(1) if order == uint32(parts - uint32(1)) else uint32(0)
                cuda.threadfence()
            cuda.syncthreads()
            if last[0] != uint32(0):
                join_blocks(out, first_row, count, parts, group, partial, thread)

    @cuda.jit(device=True)
    def join_blocks(out, first_row, count, parts, group, partial, thread):
        pair = thread
        while pair < uint32(count * uint32(SIZE // 2)):
            head, column = uint32(pair // uint32(SIZE // 2)), uint32(pair % uint32(SIZE // 2) * uint32(2))
            first = uint32(uint32(group * uint32(SPLITS * HEADS)) + head) * uint32(RECORD)
            row_max, row_sum, left, right = LOWEST, ZERO, ZERO, ZERO
            # No branches, so that all loads can be under way at once.
            for split in range(SPLITS):
                one = uint32(first + min(uint32(split), uint32(parts - uint32(1))) * uint32(HEADS * RECORD))
                row_max = max(row_max, partial[one + uint32(SIZE + 1)])
            for split in range(SPLITS):
                one = uint32(first + min(uint32(split), uint32(parts - uint32(1))) * uint32(HEADS * RECORD))
                weight = ptx.exp2_approx(partial[one + uint32(SIZE + 1)] - row_max)
                weight = weight if uint32(split) < parts else ZERO
                row_sum += partial[one + uint32(SIZE)] * weight
                left += partial[one + column] * weight
                right += partial[one + column + uint32(1)] * weight
            share = float32(1.0) / row_sum
            write(out, uint32(first_row + head), column, left * share, right * share)
            pair = uint32(pair + uint32(THREADS))

    return write_zeros, join


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
            scores[n * HEADS + head] = score if seen else NOTHING

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
    SIZE, HEADS, RECORD = size, heads, record_of(size)
    PIECES = size // COUNT
    LANES = 1 << (PIECES - 1).bit_length()
    KEYS = 32 // LANES
    WHOLE = LANES == PIECES  # or else some lanes of a group have no piece
    MANY = heads * COUNT > 32  # numbers of queries in registers, and as many of acc
    ROUND = min(PAGE // KEYS, 2 if MANY else 4)  # keys of a group whose loads are under way at once
    ROUNDS = PAGE // KEYS // ROUND
    ACROSS = KEYS.bit_length() - 1  # exchanges between all groups of lanes
    NUMBERS, QUERIES, SCORES = ROUND * COUNT, heads * COUNT, ROUND * heads
    RECORDS = WARPS * heads * RECORD
    read, score_key, add_value = make_decode_steps(heads, bf16, LANES)
    write_zeros, join = make_join(size, heads, bf16, splits)

    @cuda.jit(device=True)
    def add_round(queries, acc, row_max, row_sum, keys, values, at, first, last):
        """The group's next ROUND keys: those at first, first + KEYS, ... of a page whose last key is `last`."""
        key_numbers = cuda.local.array(NUMBERS, float32)
        value_numbers = cuda.local.array(NUMBERS, float32)
        scores = cuda.local.array(SCORES, float32)
        # No branches, so that all loads can be under way at once.
        for n in range(ROUND):
            read(key_numbers, n * COUNT, keys, uint32(at + min(uint32(first + uint32(n * KEYS)), last) * uint32(SIZE)))
        for n in range(ROUND):
            read(value_numbers, n * COUNT, values,
                 uint32(at + min(uint32(first + uint32(n * KEYS)), last) * uint32(SIZE)))
        for n in range(ROUND):
            score_key(scores, queries, key_numbers, n, uint32(first + uint32(n * KEYS)) <= last)
        for head in range(HEADS):
            new = row_max[head]
            for n in range(ROUND):
                new = max(new, scores[n * HEADS + head])
            correction = ptx.exp2_approx(row_max[head] - new)
            row_max[head] = new
            part = ZERO
            for n in range(ROUND):
                exponential = ptx.exp2_approx(scores[n * HEADS + head] - new)
                scores[n * HEADS + head] = exponential
                part += exponential
            row_sum[head] = row_sum[head] * correction + part
            for i in range(COUNT):
                acc[head * COUNT + i] *= correction
        for n in range(ROUND):
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
        records = cuda.shared.array(RECORDS, float32)
        last_block = cuda.shared.array(1, uint32)
        queries = cuda.local.array(QUERIES, float32)
        acc = cuda.local.array(QUERIES, float32)
        row_max = cuda.local.array(HEADS, float32)
        row_sum = cuda.local.array(HEADS, float32)
        thread = uint32(cuda.threadIdx.x)
        lane, warp = uint32(thread % uint32(32)), uint32(thread // uint32(32))
        sequence = uint32(cuda.blockIdx.z)
        blocks = uint32(uint32(cuda.gridDim.y) // kv_heads)
        kv_head = uint32(uint32(cuda.blockIdx.y) // blocks)
        first_head = uint32(uint32(cuda.blockIdx.y) % blocks * uint32(HEADS))  # of those that share kv_head
        count = min(uint32(HEADS), uint32(ratio - first_head))
        first_row = uint32(uint32(sequence * kv_heads + kv_head) * ratio + first_head)
        split = uint32(cuda.blockIdx.x)
        tokens, scale = find_length(lengths, sequence, uint32(page_table.shape[1]), scale)
        if tokens == uint32(0):
            if split == uint32(0):
                write_zeros(out, first_row, count, thread)
            return
        page, end, parts = find_split(tokens, split, splits)
        if page >= end:
            return  # the grid has blocks for a full page table
        piece, key = uint32(lane % uint32(LANES)), uint32(lane // uint32(LANES))
        own = uint32((piece if WHOLE else min(piece, uint32(PIECES - 1))) * uint32(COUNT))
        for head in range(HEADS):
            row = uint32(first_row + min(uint32(head), uint32(count - uint32(1))))
            read(queries, head * COUNT, q, uint32(row * uint32(SIZE) + own))
            for i in range(COUNT):
                queries[head * COUNT + i] *= scale if WHOLE or piece < uint32(PIECES) else ZERO
                acc[head * COUNT + i] = ZERO
            row_max[head], row_sum[head] = LOWEST, ZERO

        page = uint32(page + warp)
        while page < end:
            number = uint32(page_table[sequence, page])
            at = uint32(uint32(number * kv_heads + kv_head) * uint32(PAGE * SIZE) + own)
            last = min(uint32(tokens - page * uint32(PAGE)), uint32(PAGE)) - uint32(1)
            for step in range(ROUNDS):
                add_round(queries, acc, row_max, row_sum, keys, values, at, uint32(key + uint32(step * ROUND * KEYS)),
                          last)
            page = uint32(page + uint32(WARPS))

        for head in range(HEADS):
            join_lanes(acc, row_max, row_sum, head)
            at = uint32(uint32(warp * uint32(HEADS) + uint32(head)) * uint32(RECORD))
            if key == uint32(0) and (WHOLE or piece < uint32(PIECES)):
                for i in range(0, COUNT, 4):
                    ptx.store_shared4(records, uint32(at + own + uint32(i)), acc[head * COUNT + i],
                                      acc[head * COUNT + i + 1], acc[head * COUNT + i + 2], acc[head * COUNT + i + 3])
            if lane == uint32(0):
                records[at + uint32(SIZE)], records[at + uint32(SIZE + 1)] = row_sum[head], row_max[head]
        group = uint32(sequence * uint32(cuda.gridDim.y) + uint32(cuda.blockIdx.y))
        join(records, last_block, out, first_row, count, split, parts, group, partial, arrived, thread)

    paged_decode_kernel.threads, paged_decode_kernel.shared_bytes = THREADS, 0
    return paged_decode_kernel


# --- Tensor cores: bfloat16 -------------------------------------------------------------------------------------------


@kernel_factory
def make_paged_decode_mma(size: int, heads: int):
    """As make_paged_decode, for bfloat16: the query heads are rows of a factor of 16, a page is 16 keys.

    Each warp has a ring of pages of its own in shared memory, which cp.async fills while earlier ones are multiplied;
    it waits for no other warp. A multiplication takes a tenth of the instructions that products in registers take, for
    every number of heads up to 16, and so leaves time for loads.
    """
    SIZE, HEADS, RECORD = size, heads, record_of(size)
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
    copy_queries = make_copy_rows(16, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_page = make_copy_rows(PAGE, SIZE, PITCH, 32, CHUNK, SWIZZLED)
    read_queries, add_scores, hide, take_exponentials, add_values = make_half_steps(SIZE, 1, PAGE, PITCH, True)
    write_zeros, join = make_join(size, heads, True, SPLITS)

    @cuda.jit(device=True)
    def start_page(shared, at, keys, values, page_table, sequence, page, end, tokens, kv_heads, kv_head, lane):
        """Starts the copies of a page, if there is one; of rows beyond the sequence come zeros. Closes a group."""
        if page < end:
            number = uint32(page_table[sequence, page])
            row = uint32(uint32(number * kv_heads + kv_head) * uint32(PAGE))
            rows = uint32(row + min(uint32(tokens - page * uint32(PAGE)), uint32(PAGE)))
            copy_page(shared, at, keys, row, rows, uint32(0), lane)
            copy_page(shared, uint32(at + uint32(TILE)), values, row, rows, uint32(0), lane)
        ptx.cp_async_commit()

    @cuda.jit(launch_bounds=(THREADS, 4 if size <= 64 else 2))
    def paged_decode_mma_kernel(q, keys, values, page_table, lengths, out, scale, ratio, kv_heads, partial, arrived):
        shared = cuda.shared.array(0, uint16)
        records = cuda.shared.array(0, float32)  # the same memory, after the last page
        last_block = cuda.shared.array(1, uint32)
        scores = cuda.local.array(8, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_words = cuda.local.array(QUERY_WORDS, uint32)
        words = cuda.local.array(4, uint32)
        row_max = cuda.local.array(2, float32)
        row_sum = cuda.local.array(2, float32)
        thread = uint32(cuda.threadIdx.x)
        lane, warp = uint32(thread % uint32(32)), uint32(thread // uint32(32))
        sequence = uint32(cuda.blockIdx.z)
        blocks = uint32(uint32(cuda.gridDim.y) // kv_heads)
        kv_head = uint32(uint32(cuda.blockIdx.y) // blocks)
        first_head = uint32(uint32(cuda.blockIdx.y) % blocks * uint32(HEADS))  # of those that share kv_head
        count = min(uint32(HEADS), uint32(ratio - first_head))
        first_row = uint32(uint32(sequence * kv_heads + kv_head) * ratio + first_head)
        split = uint32(cuda.blockIdx.x)
        tokens, scale = find_length(lengths, sequence, uint32(page_table.shape[1]), scale)
        if tokens == uint32(0):
            if split == uint32(0):
                write_zeros(out, first_row, count, thread)
            return
        page, end, parts = find_split(tokens, split, SPLITS)
        if page >= end:
            return  # the grid has blocks for a full page table
        page = uint32(page + warp)
        ring = uint32(warp * uint32(RING))
        copy_queries(shared, uint32(QUERIES_AT), q, first_row, uint32(first_row + count), uint32(0), thread)
        ptx.cp_async_commit()
        for n in range(BEFORE):
            start_page(shared, uint32(ring + uint32(n * STAGE)), keys, values, page_table, sequence,
                       uint32(page + uint32(n * WARPS)), end, tokens, kv_heads, kv_head, lane)
        for i in range(ACCUMULATORS):
            acc[i] = ZERO
        for r in range(2):
            row_max[r], row_sum[r] = NOTHING, ZERO

        swizzle = uint32(lane >> uint32(SHIFT) & uint32(MASK))
        row_at = uint32(lane % uint32(16) * uint32(PITCH))
        wide = uint32(lane // uint32(16) ^ swizzle)  # for queries and values: rows L % 16, right piece from lane 16 on
        key_at = uint32((lane % uint32(8) + lane // uint32(16) * uint32(8)) * uint32(PITCH))
        tall = uint32(lane // uint32(8) % uint32(2) ^ swizzle)  # for keys: the right piece before the next eight rows
        ptx.cp_async_wait(BEFORE)
        cuda.syncthreads()  # the queries are there
        for k in range(STEPS):
            read_queries(query_words, shared, uint32(uint32(QUERIES_AT) + row_at), wide, k, 4 * k)
        stage = uint32(0)
        while page < end:
            ptx.cp_async_wait(PENDING)
            cuda.syncwarp()  # this page has landed, and every lane has read the one before it
            before = uint32(stage + uint32(BEFORE * STAGE)) if stage == uint32(0) else uint32(stage - uint32(STAGE))
            start_page(shared, uint32(ring + before), keys, values, page_table, sequence,
                       uint32(page + uint32(BEFORE * WARPS)), end, tokens, kv_heads, kv_head, lane)
            at = uint32(ring + stage)
            for i in range(8):
                scores[i] = ZERO
            for k in range(STEPS):
                add_scores(scores, query_words, shared, uint32(at + key_at), tall, k, 4 * k)
            key = uint32(page * uint32(PAGE) + lane % uint32(4) * uint32(2))
            for r in range(LANE_ROWS):
                if uint32(page + uint32(1)) * uint32(PAGE) > tokens:
                    hide(scores, key, tokens, r)
                take_exponentials(scores, acc, row_max, row_sum, scale, r)
            add_values(scores, acc, words, shared, uint32(at + uint32(TILE) + row_at), wide, 0)
            page = uint32(page + uint32(WARPS))
            stage = uint32(stage + uint32(STAGE)) if stage < uint32(BEFORE * STAGE) else uint32(0)

        ptx.cp_async_wait(0)
        cuda.syncthreads()  # no warp reads a page any more, and none is still on its way
        for r in range(LANE_ROWS):
            whole = row_sum[r]
            whole += cuda.shfl_xor_sync(ALL_LANES, whole, 1)
            whole += cuda.shfl_xor_sync(ALL_LANES, whole, 2)
            head = uint32(lane // uint32(4) + uint32(8 * r))
            if head < uint32(HEADS):
                record = uint32(uint32(warp * uint32(HEADS) + head) * uint32(RECORD))
                for j in range(PIECES):
                    column = uint32(uint32(8 * j) + lane % uint32(4) * uint32(2))
                    records[record + column] = acc[4 * j + 2 * r]
                    records[record + column + uint32(1)] = acc[4 * j + 2 * r + 1]
                if lane % uint32(4) == uint32(0):
                    records[record + uint32(SIZE)] = whole
                    records[record + uint32(SIZE + 1)] = max(LOWEST, row_max[r] * scale)
        group = uint32(sequence * uint32(cuda.gridDim.y) + uint32(cuda.blockIdx.y))
        join(records, last_block, out, first_row, count, split, parts, group, partial, arrived, thread)

    paged_decode_mma_kernel.threads = THREADS
    paged_decode_mma_kernel.shared_bytes = max(2 * (QUERIES_AT + QUERY_TILE), 4 * WARPS * HEADS * RECORD)
    return paged_decode_mma_kernel
