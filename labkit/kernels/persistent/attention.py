"""Attention of one query for each sequence over the pages of its keys and values, by all blocks of the grid.

An item is a split of a sequence, a page for each warp of a block, and the query heads that share a head of keys and
values. The block rotates its queries and, in the split that ends with the newest token, that token's key, which it
writes to the cache with the value. Warps, and then splits, are merged in order; the splits by the last block that has
one of them. A sequence's splits depend on its own length alone, so its result has the same bits in any batch.

A partial result is, for each query head, acc (head_dim), row_sum and row_max, as in attention/paged_merge.py.
"""

from numba import float32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.attention.pages import LOG2_E, PAGE, find_length
from labkit.kernels.persistent.decoder import Decoder
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO
from labkit.kernels.rope import NAN

LANES_PER_TOKEN = 2  # that compute its scores
NO_SLOT = uint32(0xFFFFFFFF)


def make_attention(decoder: Decoder):
    """Make the device functions fetch_pages, which brings this block's pages to L2, and attend."""
    WARPS, THREADS, element = decoder.warps, 32 * decoder.warps, decoder.element
    HEADS, KV_HEADS, GROUP, SIZE = decoder.heads, decoder.kv_heads, decoder.group_heads, decoder.head_dim
    HALF, STRIDE, SCALE, LOG2E = SIZE // 2, SIZE + 2, float32(decoder.scale), float32(LOG2_E)
    KEY_LOADS = SIZE // 8 // LANES_PER_TOKEN  # of 16 bytes, by a lane
    VALUE_LANES = SIZE // 8  # that share a value
    VALUES = PAGE * VALUE_LANES // 32  # that a lane loads 16 bytes of
    KEY_WORDS, VALUE_WORDS, VALUE_SHUFFLES = 4 * KEY_LOADS, 4 * VALUES, (32 // VALUE_LANES).bit_length() - 1
    RESULTS = GROUP * SIZE  # where in scratch, behind the queries
    PAGE_BYTES = PAGE * SIZE * element.dtype.itemsize
    to_float, to_element, rounded, unpack = element.number, element.element, element.rounded, element.unpack

    @cuda.jit(device=True)
    def find_item(contexts, item, rows, max_pages):
        """Return (row, head of keys and values, split, splits of the row, its tokens); row is `rows` behind the last
        item."""
        for row in u32.range(rows):
            tokens, _ = find_length(contexts, row, max_pages, SCALE)
            splits = (tokens + (PAGE * WARPS - 1)) // (PAGE * WARPS)
            if item < splits * KV_HEADS:
                return row, item // splits, item % splits, splits, tokens
            item -= splits * KV_HEADS
        return rows, item, item, item, item

    @cuda.jit(device=True)
    def start_of_page(page_table, row, page, kv_head):
        return (uint32(page_table[row, page]) * KV_HEADS + kv_head) * (PAGE * SIZE)

    @cuda.jit(device=True)
    def fetch_pages(contexts, page_table, cache, layer, rows, warp, lane):
        size, max_pages = uint64(cache.shape[1]), u32.shape(page_table)[1]
        item = u32.blockIdx.x
        row, kv_head, split, _, tokens = find_item(contexts, item, rows, max_pages)
        while row < rows:
            page = split * WARPS + warp
            if lane < 2 and page * PAGE < tokens:  # keys and values
                start = uint64(2 * layer + lane) * size + uint64(start_of_page(page_table, row, page, kv_head))
                ptx.prefetch_l2(cache, start, PAGE_BYTES)
            item += u32.gridDim.x
            row, kv_head, split, _, tokens = find_item(contexts, item, rows, max_pages)

    @cuda.jit(device=True)
    def rotate(qkv, table, position, slot, cache, layer, row, kv_head, scratch, thread):
        """Write the queries to scratch. slot: where the newest key and value are written, if it is in the cache."""
        in_table = position < u32.shape(table)[0]
        in_cache = slot < u32.shape(cache)[1] // (KV_HEADS * SIZE)
        for pair in u32.range(thread, (GROUP + 1) * HALF, THREADS):
            head, d = pair // HALF, pair % HALF
            cos, sin = NAN, NAN
            if in_table:
                cos, sin = table[position, d], table[position, d + HALF]
            column = (kv_head * GROUP + head if head < GROUP else HEADS + kv_head) * SIZE + d
            first, second = to_float(qkv[row, column]), to_float(qkv[row, column + HALF])
            a, b = rounded(first * cos - second * sin), rounded(second * cos + first * sin)
            if head < GROUP:
                scratch[head * SIZE + d], scratch[head * SIZE + d + HALF] = a, b
            elif in_cache:
                i = ((slot // PAGE * KV_HEADS + kv_head) * PAGE + slot % PAGE) * SIZE + d
                column += KV_HEADS * SIZE  # of the value
                cache[2 * layer, i], cache[2 * layer, i + HALF] = to_element(a), to_element(b)
                cache[2 * layer + 1, i], cache[2 * layer + 1, i + HALF] = qkv[row, column], qkv[row, column + HALF]

    @cuda.jit(device=True)
    def attend_page(cache, layer, start, visible, scale, scratch, results, lane):
        """Write the result of one page, of which so many tokens are visible, to scratch[results]."""
        keys = cuda.local.array(KEY_WORDS, uint32)
        values = cuda.local.array(VALUE_WORDS, uint32)
        acc = cuda.local.array(8, float32)
        size = uint64(cache.shape[1])
        token, part = lane // LANES_PER_TOKEN, lane % LANES_PER_TOKEN
        value_token, value_part = lane // VALUE_LANES * VALUES, lane % VALUE_LANES
        # All loads are in flight at once. Tokens behind the last visible one are not read.
        i = uint64(2 * layer) * size + uint64(start + min(token, visible - 1) * SIZE + part * HALF)
        for n in range(KEY_LOADS):
            words = ptx.load_global4(cache, i + uint64(8 * n))
            for k in range(4):
                keys[4 * n + k] = words[k]
        for n in range(VALUES):
            words = ptx.load_global4(cache, uint64(2 * layer + 1) * size + uint64(
                start + min(value_token + n, visible - 1) * SIZE + value_part * 8))
            for k in range(4):
                values[4 * n + k] = words[k]
        for head in u32.range(GROUP):
            score = ZERO
            for n in range(KEY_WORDS):
                low, high = unpack(keys[n])
                score += scratch[head * SIZE + part * HALF + 2 * n] * low
                score += scratch[head * SIZE + part * HALF + 2 * n + 1] * high
            score = (score + cuda.shfl_xor_sync(ALL_LANES, score, 1)) * scale
            score = score if token < visible else NEG_INF
            row_max = score
            for n in range(4):
                row_max = max(row_max, cuda.shfl_xor_sync(ALL_LANES, row_max, 2 << n))
            exponential = ptx.exp2_approx(score - row_max)
            row_sum = exponential
            for n in range(4):
                row_sum += cuda.shfl_xor_sync(ALL_LANES, row_sum, 2 << n)
            for i in range(8):
                acc[i] = ZERO
            for n in range(VALUES):
                weight = cuda.shfl_sync(ALL_LANES, exponential, (value_token + n) * LANES_PER_TOKEN)
                for k in range(4):
                    low, high = unpack(values[4 * n + k])
                    acc[2 * k] += weight * low
                    acc[2 * k + 1] += weight * high
            for i in range(8):
                for n in range(VALUE_SHUFFLES):
                    acc[i] += cuda.shfl_xor_sync(ALL_LANES, acc[i], VALUE_LANES << n)
            start = results + head * STRIDE
            if lane < VALUE_LANES:
                for i in range(8):
                    scratch[start + value_part * 8 + i] = acc[i]
            if lane == 0:
                scratch[start + SIZE], scratch[start + SIZE + 1] = row_sum, row_max

    @cuda.jit(device=True)
    def merge(results, start, stride, count, head, d):
        """Merge `count` partial results, `stride` apart, in order: (acc, row_sum, row_max) of an element of a head."""
        start += head * STRIDE
        row_max, row_sum, acc = NEG_INF, ZERO, ZERO
        for n in u32.range(count):
            row_max = max(row_max, results[start + n * stride + SIZE + 1])
        for n in u32.range(count):
            weight = ptx.exp2_approx(results[start + n * stride + SIZE + 1] - row_max)
            row_sum += results[start + n * stride + SIZE] * weight
            acc += results[start + n * stride + d] * weight
        return acc, row_sum, row_max

    @cuda.jit(device=True)
    def attend(step, qkv, cache, layer, attended, scratch, partial, arrived, is_last, warp, lane):
        table, positions, slots, contexts, page_table, rows = step
        thread, max_pages = warp * 32 + lane, u32.shape(page_table)[1]
        max_splits = (max_pages + (WARPS - 1)) // WARPS
        item = u32.blockIdx.x
        row, kv_head, split, splits, tokens = find_item(contexts, item, rows, max_pages)
        while row < rows:
            _, scale = find_length(contexts, row, max_pages, SCALE)
            newest = split == splits - 1
            slot = uint32(slots[row]) if newest else NO_SLOT
            rotate(qkv, table, uint32(positions[row]), slot, cache, layer, row, kv_head, scratch, thread)
            ptx.named_barrier_sync(1, THREADS)  # the queries are in scratch, the newest key and value in the cache
            page = split * WARPS + warp
            if page * PAGE < tokens:
                attend_page(cache, layer, start_of_page(page_table, row, page, kv_head),
                            min(tokens - page * PAGE, PAGE), scale * LOG2E, scratch, RESULTS + warp * GROUP * STRIDE,
                            lane)
            ptx.named_barrier_sync(1, THREADS)  # the results of all warps are in scratch
            num_pages = min((tokens + (PAGE - 1)) // PAGE - split * WARPS, WARPS)
            group = row * KV_HEADS + kv_head
            for i in u32.range(thread, GROUP * SIZE, THREADS):
                head, d = i // SIZE, i % SIZE
                acc, row_sum, row_max = merge(scratch, RESULTS, GROUP * STRIDE, num_pages, head, d)
                if splits == 1:
                    attended[row, kv_head * GROUP * SIZE + i] = to_element(acc / row_sum)
                else:
                    start = ((group * max_splits + split) * GROUP + head) * STRIDE
                    partial[start + d] = acc
                    if d == 0:
                        partial[start + SIZE], partial[start + SIZE + 1] = row_sum, row_max
            if splits > 1:
                ptx.named_barrier_sync(1, THREADS)
                if thread == 0:
                    cuda.threadfence()  # the block's partial result is visible before the count is
                    # The count wraps to 0 at the last split, ready for the next layer.
                    is_last[0] = 1 if cuda.atomic.inc(arrived, group, splits - 1) == splits - 1 else 0
                    cuda.threadfence()
                ptx.named_barrier_sync(1, THREADS)
                if is_last[0] == 1:
                    for i in u32.range(thread, GROUP * SIZE, THREADS):
                        start = group * max_splits * GROUP * STRIDE
                        acc, row_sum, _ = merge(partial, start, GROUP * STRIDE, splits, i // SIZE, i % SIZE)
                        attended[row, kv_head * GROUP * SIZE + i] = to_element(acc / row_sum)
            ptx.named_barrier_sync(1, THREADS)  # scratch has been read
            item += u32.gridDim.x
            row, kv_head, split, splits, tokens = find_item(contexts, item, rows, max_pages)

    return fetch_pages, attend
