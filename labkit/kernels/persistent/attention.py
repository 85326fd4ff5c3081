"""Attention of one query for each sequence over the pages of its keys and values, by all blocks of the grid.

An item is a split of a sequence, a few pages, and the query heads that share a head of keys and values: a warp has one
of the pages and one of the heads (several, where there are more heads than warps). A block takes consecutive items. The
keys and values of older tokens depend on nothing in this launch, and are loaded before the join behind which the
queries are there; the newest token's key is rotated by the warps that need it, one of which writes it to the cache with
the value. Warps, and then splits, are merged in order; the splits by the last block that has one of them. A sequence's
splits depend on its own length alone, so its result has the same bits in any batch.

A partial result is, for each query head, its output over some of the tokens (head_dim) and lse, the log2 of the sum of
their exponentials.
"""

import math

from numba import float32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.attention.pages import LOG2_E, PAGE
from labkit.kernels.persistent.decoder import QUERY_PAD, Decoder
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO
from labkit.kernels.rope import NAN

LANES_PER_TOKEN = 2  # that compute its scores
SPLITS_AT_ONCE = 16  # whose partial results are in flight together


def make_merge(size: int, stride: int, at_once: int):
    """Make the device function that merges partial results, `stride` apart, `at_once` of which are loaded together."""
    SIZE, STRIDE, AT_ONCE = size, stride, at_once

    @cuda.jit(device=True)
    def merge(results, start, count, d):
        """Merge `count` partial results in order: (element d of the head, lse)."""
        lses = cuda.local.array(AT_ONCE, float32)
        elements = cuda.local.array(AT_ONCE, float32)
        row_max, row_sum, acc = NEG_INF, ZERO, ZERO
        for first in u32.range(0, count, AT_ONCE):
            i = uint64(start + first * STRIDE)  # from which the others are at constant distances
            for n in range(AT_ONCE):
                lses[n], elements[n] = NEG_INF, ZERO
                if first + n < count:
                    lses[n] = results[i + uint64(n * STRIDE + SIZE)]
                    elements[n] = results[i + uint64(d) + uint64(n * STRIDE)]
            new_max = row_max
            for n in range(AT_ONCE):
                new_max = max(new_max, lses[n])
            correction = ptx.exp2_approx(row_max - new_max)
            row_sum, acc, row_max = row_sum * correction, acc * correction, new_max
            for n in range(AT_ONCE):
                weight = ptx.exp2_approx(lses[n] - new_max)
                row_sum += weight
                acc += elements[n] * weight
        return acc / row_sum, row_max + math.log2(row_sum)

    return merge


def make_attention(decoder: Decoder):
    """Make the device functions items_of_block, find_item, load_item (before the join) and attend (behind it).

    An item is (row, head of keys and values, split, splits of the row, its tokens, where this warp's page begins in a
    layer of the cache)."""
    THREADS, element = 32 * decoder.warps, decoder.element
    HEADS, KV_HEADS, GROUP, SIZE = decoder.heads, decoder.kv_heads, decoder.group_heads, decoder.head_dim
    PAGES, PAGE_WARPS, WARP_HEADS = decoder.split_pages, decoder.page_warps, decoder.warp_heads
    SPLIT, QKV_ROWS = PAGE * PAGES, decoder.qkv_rows
    HALF, STRIDE, SCALE = SIZE // 2, SIZE + 1, float32(decoder.scale * LOG2_E)
    PAIRS, WORDS, LOADS = decoder.pairs, decoder.page_words, decoder.page_words // 4
    VALUE_LANES = SIZE // 8  # that share a value; each of them loads 16 bytes of LOADS values
    VALUE_SHUFFLES = (32 // VALUE_LANES).bit_length() - 1
    PAIR_VALUES = 2 * PAIRS
    QUERY, QUERY_HALF = SIZE + QUERY_PAD, HALF + QUERY_PAD
    RESULTS, BUFFER = PAGES * GROUP * QUERY, PAGES * GROUP * STRIDE  # where in scratch, behind the queries; its size
    to_float, to_element, rounded = element.number, element.element, element.rounded
    pack, unpack = element.pack, element.unpack
    merge_pages, merge_splits = (make_merge(SIZE, GROUP * STRIDE, count) for count in (PAGES, SPLITS_AT_ONCE))

    @cuda.jit(device=True)
    def splits_of(step, row):
        """Return (splits of a row, its tokens, at most as many as the page table holds)."""
        _, _, _, contexts, page_table, _ = step
        tokens = min(uint32(contexts[row]), u32.shape(page_table)[1] * PAGE)
        return (tokens + (SPLIT - 1)) // SPLIT, tokens

    @cuda.jit(device=True)
    def items_of_block(step):
        """Return (the block's first item, the end of its items): of all items the same number for each block."""
        items = uint32(0)
        for row in u32.range(step[5]):
            splits, _ = splits_of(step, row)
            items += splits * KV_HEADS
        each = (items + (u32.gridDim.x - 1)) // u32.gridDim.x
        return min(u32.blockIdx.x * each, items), min((u32.blockIdx.x + 1) * each, items)

    @cuda.jit(device=True)
    def find_item(step, number, warp):
        """Find item `number`; behind the last one its row is `rows`."""
        page_table, rows = step[4], step[5]
        for row in u32.range(rows):
            splits, tokens = splits_of(step, row)
            if number < splits * KV_HEADS:
                page = min(number % splits * PAGES + warp // PAGE_WARPS, (tokens - 1) // PAGE)
                start = (uint32(page_table[row, page]) * KV_HEADS + number // splits) * (PAGE * SIZE)
                return row, number // splits, number % splits, splits, tokens, start
            number -= splits * KV_HEADS
        return rows, number, number, number, uint32(0), uint32(0)

    @cuda.jit(device=True)
    def tokens_of_warp(tokens, split, warp):
        """Return the tokens of this warp's page; 0 if it has none."""
        begin = min(split * SPLIT + warp // PAGE_WARPS * PAGE, tokens)
        return min(tokens - begin, PAGE) if warp < PAGES * PAGE_WARPS else uint32(0)

    @cuda.jit(device=True)
    def load_item(step, item, cache, layer, keys, values, cos_sin, warp, lane):
        """Load this warp's page and the cosines and sines of the newest token's position: NaN where the table has none,
        or the page table is too short. All loads are in flight at once; tokens behind the last one are not read."""
        table, positions, _, contexts, _, rows = step
        row, _, split, _, tokens, start = item
        row = min(row, rows - 1)
        last = max(tokens_of_warp(tokens, split, warp), 1) - 1  # without a page, a warp loads any
        size = uint64(cache.shape[1])
        token, part = lane // LANES_PER_TOKEN, lane % LANES_PER_TOKEN
        value_token, value_part = lane // VALUE_LANES * LOADS, lane % VALUE_LANES
        i = uint64(2 * layer) * size + uint64(start + min(token, last) * SIZE + part * HALF)
        for n in range(LOADS):
            words = ptx.load_global4(cache, i + uint64(8 * n))
            for k in range(4):
                keys[4 * n + k] = words[k]
        for n in range(LOADS):
            words = ptx.load_global4(cache, uint64(2 * layer + 1) * size + uint64(
                start + min(value_token + n, last) * SIZE + value_part * 8))
            for k in range(4):
                values[4 * n + k] = words[k]
        position = uint32(positions[row])
        for n in range(PAIRS):
            d = min(32 * n + lane, HALF - 1)
            cos_sin[2 * n], cos_sin[2 * n + 1] = NAN, NAN
            if position < u32.shape(table)[0] and uint32(contexts[row]) <= tokens:
                cos_sin[2 * n], cos_sin[2 * n + 1] = table[position, d], table[position, d + HALF]

    @cuda.jit(device=True)
    def load_head(qkv, row, column, pairs, lane):
        """Load the pairs of a head, a query or a key, that this lane rotates."""
        for n in range(PAIRS):
            d = column + min(32 * n + lane, HALF - 1)
            pairs[2 * n], pairs[2 * n + 1] = to_float(qkv[row, d]), to_float(qkv[row, d + HALF])

    @cuda.jit(device=True)
    def rotate(pairs, cos_sin, scratch, first, second, lane):
        """Write a head to scratch, one half from `first` on and the other from `second` on."""
        for n in range(PAIRS):
            d = 32 * n + lane
            if d < HALF:
                a, b, cos, sin = pairs[2 * n], pairs[2 * n + 1], cos_sin[2 * n], cos_sin[2 * n + 1]
                scratch[first + d], scratch[second + d] = rounded(a * cos - b * sin), rounded(b * cos + a * sin)

    @cuda.jit(device=True)
    def load_newest(qkv, row, column, index, key_pairs, values, lane):
        """Load the newest token's key and value, which is token `index` of the page."""
        load_head(qkv, row, column, key_pairs, lane)
        value_token, value_part = lane // VALUE_LANES * LOADS, lane % VALUE_LANES
        for n in range(LOADS):
            if value_token + n == index:
                words = ptx.load_global4(qkv, uint64(row * QKV_ROWS + column + KV_HEADS * SIZE + value_part * 8))
                for k in range(4):
                    values[4 * n + k] = words[k]

    @cuda.jit(device=True)
    def replace_newest(keys, index, scratch, key, lane):
        """Replace the key that was in the cache at token `index` by the rotated one."""
        if lane // LANES_PER_TOKEN == index:
            for n in range(WORDS):
                i = key + lane % LANES_PER_TOKEN * HALF + 2 * n
                keys[n] = pack(scratch[i], scratch[i + 1])

    @cuda.jit(device=True)
    def write_newest(cache, layer, kv_head, slot, qkv, row, column, scratch, key, lane):
        """Write the newest key and value to their slot, unless that is not in the cache."""
        if slot < u32.shape(cache)[1] // (KV_HEADS * SIZE):
            start = ((slot // PAGE * KV_HEADS + kv_head) * PAGE + slot % PAGE) * SIZE
            for d in u32.range(lane, SIZE, 32):
                cache[2 * layer, start + d] = to_element(scratch[key + d])
                cache[2 * layer + 1, start + d] = qkv[row, column + KV_HEADS * SIZE + d]

    @cuda.jit(device=True)
    def attend_page(keys, values, visible, scratch, query, result, lane):
        """Write one head's result of this warp's page, of which so many tokens are visible, to scratch[result]."""
        acc = cuda.local.array(8, float32)
        token, part = lane // LANES_PER_TOKEN, lane % LANES_PER_TOKEN
        value_token, value_part = lane // VALUE_LANES * LOADS, lane % VALUE_LANES
        score = ZERO
        for n in range(WORDS // 2):
            a, b, c, d = ptx.load_shared4(scratch, query + part * QUERY_HALF + 4 * n)
            low, high = unpack(keys[2 * n])
            score += a * low
            score += b * high
            low, high = unpack(keys[2 * n + 1])
            score += c * low
            score += d * high
        score = (score + cuda.shfl_xor_sync(ALL_LANES, score, 1)) * SCALE
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
        for n in range(LOADS):
            weight = cuda.shfl_sync(ALL_LANES, exponential, (value_token + n) * LANES_PER_TOKEN)
            for k in range(4):
                low, high = unpack(values[4 * n + k])
                acc[2 * k] += weight * low
                acc[2 * k + 1] += weight * high
        for i in range(8):
            for n in range(VALUE_SHUFFLES):
                acc[i] += cuda.shfl_xor_sync(ALL_LANES, acc[i], VALUE_LANES << n)
        if lane < VALUE_LANES:
            for i in range(8):
                scratch[result + value_part * 8 + i] = acc[i] / row_sum
        if lane == 0:
            scratch[result + SIZE] = row_max + math.log2(row_sum)

    @cuda.jit(device=True)
    def attend(step, number, end, item, qkv, cache, layer, keys, values, cos_sin, attended, scratch, partial, arrived,
               is_last, warp, lane):
        """Attention of the items from `number` on, the first of which has been loaded."""
        query_pairs = cuda.local.array(PAIR_VALUES, float32)
        key_pairs = cuda.local.array(PAIR_VALUES, float32)
        thread, max_splits = warp * 32 + lane, (u32.shape(step[4])[1] + (PAGES - 1)) // PAGES
        first_head = warp % PAGE_WARPS * WARP_HEADS
        cell = warp // PAGE_WARPS * GROUP  # of this warp's page, a query and a result for each head
        results, first_split, begins_head = uint32(RESULTS), uint32(0), True
        while number < end:
            row, kv_head, split, splits, tokens, _ = item
            if begins_head:
                first_split = split
            group, visible = row * KV_HEADS + kv_head, tokens_of_warp(tokens, split, warp)
            if visible > 0:
                newest = split * SPLIT + warp // PAGE_WARPS * PAGE + visible == tokens  # is in this page
                key_column, key = (HEADS + kv_head) * SIZE, results + (cell + first_head) * STRIDE
                slot = uint32(step[2][row])
                if newest:
                    load_newest(qkv, row, key_column, visible - 1, key_pairs, values, lane)
                if begins_head:
                    for head in u32.range(first_head, min(first_head + WARP_HEADS, GROUP)):
                        query = (cell + head) * QUERY
                        load_head(qkv, row, (kv_head * GROUP + head) * SIZE, query_pairs, lane)
                        rotate(query_pairs, cos_sin, scratch, query, query + QUERY_HALF, lane)
                if newest:
                    rotate(key_pairs, cos_sin, scratch, key, key + HALF, lane)
                cuda.syncwarp()
                if newest:
                    replace_newest(keys, visible - 1, scratch, key, lane)
                    if first_head == 0:
                        write_newest(cache, layer, kv_head, slot, qkv, row, key_column, scratch, key, lane)
                    cuda.syncwarp()  # the key has been read: the result takes its place
                for head in u32.range(first_head, min(first_head + WARP_HEADS, GROUP)):
                    attend_page(keys, values, visible, scratch, (cell + head) * QUERY, results + (cell + head) * STRIDE,
                                lane)
            number += 1
            if number < end:
                item = find_item(step, number, warp)
                load_item(step, item, cache, layer, keys, values, cos_sin, warp, lane)
            ptx.named_barrier_sync(1, THREADS)  # the results of all warps are in scratch
            num_pages = min((tokens + (PAGE - 1)) // PAGE - split * PAGES, PAGES)
            for i in u32.range(thread, GROUP * SIZE, THREADS):
                head, d = i // SIZE, i % SIZE
                out, lse = merge_pages(scratch, results + head * STRIDE, num_pages, d)
                if splits == 1:
                    attended[row, kv_head * GROUP * SIZE + i] = to_element(out)
                else:
                    start = ((group * max_splits + split) * GROUP + head) * STRIDE
                    partial[start + d] = out
                    if d == 0:
                        partial[start + SIZE] = lse
            results = 2 * RESULTS + BUFFER - results  # the other buffer: warps may still read this one
            begins_head = split == splits - 1
            if splits > 1 and (begins_head or number == end):  # the last split of a head that this block has
                ptx.named_barrier_sync(1, THREADS)
                if thread == 0:
                    cuda.threadfence()  # the block's partial results are visible before the count is
                    count = cuda.atomic.add(arrived, group, split - first_split + 1) + (split - first_split + 1)
                    is_last[0] = 1 if count == splits else 0
                    if count == splits:
                        arrived[group] = 0  # ready for the next layer
                        cuda.threadfence()
                ptx.named_barrier_sync(1, THREADS)
                if is_last[0] == 1:
                    for i in u32.range(thread, GROUP * SIZE, THREADS):
                        start = (group * max_splits * GROUP + i // SIZE) * STRIDE
                        out, _ = merge_splits(partial, start, splits, i % SIZE)
                        attended[row, kv_head * GROUP * SIZE + i] = to_element(out)

    return items_of_block, find_item, load_item, attend
