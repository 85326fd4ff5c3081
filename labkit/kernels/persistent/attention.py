"""Attention of one query for each sequence over the pages of its keys and values, by all blocks of the grid.

An item is a split of a sequence, a few pages, and the query heads that share a head of keys and values. A block takes
consecutive items. Keys and values of older tokens depend on nothing in this launch: the copying warp brings an item's
pages into a stage of the ring, long before the join behind which the queries are there. A warp has a page at a time and
all its query heads, as rows of mma.m16n8k16. The newest token's key is rotated by the warp that has its page, and put
into the stage and the cache with the value. Pages, and then splits, are merged in order; the splits by the last block
that has one of them. A sequence's splits depend on its own length alone, so its result has the same bits in any batch.

A partial result is, for each query head, its output over some of the tokens (head_dim) and lse, the log2 of the sum of
their exponentials.
"""

import math

from numba import float32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.attention.pages import LOG2_E, PAGE
from labkit.kernels.matmul.mma import ADD_PRODUCT
from labkit.kernels.persistent.decoder import Decoder
from labkit.kernels.persistent.product import HALF as BLOCK  # of a head, that four lanes load at a time
from labkit.kernels.persistent.product import NOTHING, load_halves
from labkit.kernels.persistent.ring import make_claim, make_stages
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO
from labkit.kernels.rope import NAN

LOW, HIGH = uint32(0xFFFF), uint32(0xFFFF0000)
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
    """Make the device functions items_of_block and load_items (of the copying warp), find_item and load_rotation
    (before the join) and attend (behind it).

    An item is (row, head of keys and values, split, splits of the row, its tokens)."""
    WARPS, THREADS, element = decoder.warps, 32 * decoder.warps, decoder.element
    HEADS, KV_HEADS, GROUP, SIZE = decoder.heads, decoder.kv_heads, decoder.group_heads, decoder.head_dim
    PAGES, PAGE_SIZE, PAGE_BYTES = decoder.split_pages, decoder.page, decoder.page * element.dtype.itemsize
    SPLIT, ROUNDS, STAGE = PAGE * PAGES, -(-PAGES // WARPS), decoder.stage
    HALF, STRIDE, SCALE = SIZE // 2, SIZE + 1, float32(decoder.scale * LOG2_E)
    PAIRS, PAIR_VALUES = decoder.pairs, 2 * decoder.pairs
    BLOCKS, QUERY_WORDS = SIZE // BLOCK, SIZE // BLOCK * 4
    CHUNKS, PASSES = SIZE // 8, -(-SIZE // 64)  # of 16 bytes of a value; a pass computes eight of them
    BUFFER = PAGES * GROUP * STRIDE  # float32 of the results of an item
    to_float, to_element, pack = element.number, element.element, element.pack
    add_product = ADD_PRODUCT[element]
    merge_pages = make_merge(SIZE, GROUP * STRIDE, PAGES)
    merge_splits = make_merge(SIZE, GROUP * STRIDE, SPLITS_AT_ONCE)
    claim, (stage_of, next_stage) = make_claim(decoder), make_stages(decoder)

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
    def find_item(step, number):
        """Find item `number`; behind the last one its row is `rows`."""
        rows = step[5]
        for row in u32.range(rows):
            splits, tokens = splits_of(step, row)
            if number < splits * KV_HEADS:
                return row, number // splits, number % splits, splits, tokens
            number -= splits * KV_HEADS
        return rows, number, number, number, uint32(0)

    @cuda.jit(device=True)
    def load_items(ring, step, number, end, cache, layer, count, lane):
        """Copy the pages of a block's items, the keys before the values, by a lane each. count: as for stage_of."""
        stages, full, _, _ = ring
        page_table, size = step[4], uint64(cache.shape[1])
        is_value = uint32(1) if lane >= PAGES else uint32(0)
        page = lane - is_value * PAGES
        for other in u32.range(number, end):
            row, kv_head, split, _, tokens = find_item(step, other)
            pages = min((tokens + (PAGE - 1)) // PAGE - split * PAGES, PAGES)
            stage = claim(ring, count, 2 * PAGE_BYTES * pages, lane)
            if page < pages:
                start = uint64((uint32(page_table[row, split * PAGES + page]) * KV_HEADS + kv_head) * PAGE_SIZE)
                ptx.bulk_load(stages, stage * STAGE + lane * PAGE_SIZE, cache,
                              uint64(2 * layer + is_value) * size + start, PAGE_BYTES, full, stage)
            count = next_stage(count)
        return count

    @cuda.jit(device=True)
    def tokens_of_page(tokens, split, page):
        """Return the tokens of a page of a split; 0 if it has none."""
        begin = min(split * SPLIT + page * PAGE, tokens)
        return min(tokens - begin, PAGE) if page < PAGES else uint32(0)

    @cuda.jit(device=True)
    def load_rotation(step, item, cos_sin, lane):
        """Load the cosines and sines of the newest token's position: NaN where the table has none, or the page table is
        too short."""
        table, positions, _, contexts, _, rows = step
        row, tokens = min(item[0], rows - 1), item[4]
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
    def rotate(pairs, cos_sin, array, start, lane):
        """Write a head to shared memory, from array[start] on."""
        for n in range(PAIRS):
            d = 32 * n + lane
            if d < HALF:
                a, b, cos, sin = pairs[2 * n], pairs[2 * n + 1], cos_sin[2 * n], cos_sin[2 * n + 1]
                array[start + d], array[start + d + HALF] = to_element(a * cos - b * sin), to_element(b * cos + a * sin)

    @cuda.jit(device=True)
    def put_newest(tiles, key, value, cache, layer, kv_head, slot, qkv, row, cos_sin, lane):
        """Write the newest key and value to the stage, and to their slot of the cache, unless that is not in it."""
        pairs = cuda.local.array(PAIR_VALUES, float32)
        column = (HEADS + kv_head) * SIZE
        load_head(qkv, row, column, pairs, lane)
        for d in u32.range(lane, SIZE, 32):
            tiles[value + d] = qkv[row, column + KV_HEADS * SIZE + d]
        rotate(pairs, cos_sin, tiles, key, lane)
        cuda.syncwarp()
        if slot < u32.shape(cache)[1] // (KV_HEADS * SIZE):
            start = ((slot // PAGE * KV_HEADS + kv_head) * PAGE + slot % PAGE) * SIZE
            for d in u32.range(lane, SIZE, 32):
                cache[2 * layer, start + d], cache[2 * layer + 1, start + d] = tiles[key + d], tiles[value + d]

    @cuda.jit(device=True)
    def load_queries(queries, fragment, lane):
        """Load this lane's part of the query heads, rows of 16: lane 4 * g + q has elements 8q to 8q + 7 of each block
        of row g."""
        for b in range(BLOCKS):
            words = ptx.load_shared4(queries, min(lane // 4, GROUP - 1) * SIZE + b * BLOCK + lane % 4 * 8)
            for k in range(4):
                fragment[4 * b + k] = words[k]

    @cuda.jit(device=True)
    def add_block(scores, i, fragment, b, words):
        """scores[i : i + 4] += the products of a block of the query heads and of eight keys."""
        add_product(scores, i, fragment[4 * b], NOTHING, fragment[4 * b + 1], NOTHING, words[0], words[1])
        add_product(scores, i, fragment[4 * b + 2], NOTHING, fragment[4 * b + 3], NOTHING, words[2], words[3])

    @cuda.jit(device=True)
    def score_page(tiles, keys, fragment, scores, lane):
        """Write the products of the query heads and 16 keys: lane 4 * g + q has head g's with the tokens 2q, 2q + 1,
        2q + 8 and 2q + 9, at 0, 1, 4 and 5. Two keys are a multiple of 128 bytes apart, as the rows in product.py."""
        for i in range(8):
            scores[i] = ZERO
        for t in range(2):
            i = keys + (8 * t + lane // 4) * SIZE + lane % 4 * 8
            if BLOCKS == 1:
                add_block(scores, 4 * t, fragment, 0, ptx.load_shared4(tiles, i))
            else:
                for b in range(0, BLOCKS, 2):
                    low, high = load_halves(tiles, i + b * BLOCK, lane)
                    add_block(scores, 4 * t, fragment, b, low)
                    add_block(scores, 4 * t, fragment, b + 1, high)

    @cuda.jit(device=True)
    def attend_page(tiles, keys, visible, fragment, scratch, results, lane):
        """Write the heads' results for a page's first `visible` tokens to scratch, STRIDE apart. keys: where the page's
        keys begin in the ring; its values are PAGES pages behind."""
        scores, acc = cuda.local.array(8, float32), cuda.local.array(32, float32)
        head, q = lane // 4, lane % 4
        score_page(tiles, keys, fragment, scores, lane)
        row_max, row_sum = NEG_INF, ZERO
        for i in range(4):
            n, token = i // 2 * 4 + i % 2, i // 2 * 8 + 2 * q + i % 2
            scores[n] = scores[n] * SCALE if token < visible else NEG_INF
            row_max = max(row_max, scores[n])
        row_max = max(row_max, cuda.shfl_xor_sync(ALL_LANES, row_max, 1))
        row_max = max(row_max, cuda.shfl_xor_sync(ALL_LANES, row_max, 2))
        for i in range(4):
            n = i // 2 * 4 + i % 2
            scores[n] = ptx.exp2_approx(scores[n] - row_max)
            row_sum += scores[n]
        row_sum += cuda.shfl_xor_sync(ALL_LANES, row_sum, 1)
        row_sum += cuda.shfl_xor_sync(ALL_LANES, row_sum, 2)
        weights_low, weights_high = pack(scores[0], scores[1]), pack(scores[4], scores[5])
        for p in range(PASSES):
            # Column n of product j is element j of chunk n. Behind the last token, whose weight is zero, there may be
            # anything: the last one is read again.
            i = keys + PAGES * PAGE_SIZE + min(8 * p + head, CHUNKS - 1) * 8
            a = ptx.load_shared4(tiles, i + min(2 * q, visible - 1) * SIZE)
            b = ptx.load_shared4(tiles, i + min(2 * q + 1, visible - 1) * SIZE)
            c = ptx.load_shared4(tiles, i + min(2 * q + 8, visible - 1) * SIZE)
            d = ptx.load_shared4(tiles, i + min(2 * q + 9, visible - 1) * SIZE)
            for n in range(32):
                acc[n] = ZERO
            for k in range(4):
                add_product(acc, 8 * k, weights_low, NOTHING, weights_high, NOTHING, a[k] & LOW | b[k] << 16,
                            c[k] & LOW | d[k] << 16)
                add_product(acc, 8 * k + 4, weights_low, NOTHING, weights_high, NOTHING, a[k] >> 16 | b[k] & HIGH,
                            c[k] >> 16 | d[k] & HIGH)
            for n in range(2):
                chunk = 8 * p + 2 * q + n
                if head < GROUP and chunk < CHUNKS:
                    for j in range(8):
                        scratch[results + head * STRIDE + chunk * 8 + j] = acc[4 * j + n] / row_sum
        if head < GROUP and q == 0:
            scratch[results + head * STRIDE + SIZE] = row_max + math.log2(row_sum)

    @cuda.jit(device=True)
    def attend(step, number, end, item, ring, count, qkv, cache, layer, cos_sin, attended, queries, scratch, partial,
               arrived, is_last, warp, lane):
        """Compute the attention of items `number` to `end`; item: the first one. Return the next count."""
        pairs = cuda.local.array(PAIR_VALUES, float32)
        fragment = cuda.local.array(QUERY_WORDS, uint32)
        tiles, full, empty, _ = ring
        thread, max_splits = warp * 32 + lane, (u32.shape(step[4])[1] + (PAGES - 1)) // PAGES
        results, first_split, begins_head = uint32(0), uint32(0), True
        while number < end:
            row, kv_head, split, splits, tokens = item
            group = row * KV_HEADS + kv_head
            stage, lap = stage_of(count)
            ptx.mbarrier_wait_bounded(full, stage, lap)
            # The newest token's page; its warp loads the key and value while others load the queries.
            page = (tokens - 1) // PAGE - split * PAGES
            if split == splits - 1 and page % WARPS == warp:
                key = stage * STAGE + page * PAGE_SIZE + (tokens - 1) % PAGE * SIZE
                put_newest(tiles, key, key + PAGES * PAGE_SIZE, cache, layer, kv_head, uint32(step[2][row]), qkv, row,
                           cos_sin, lane)
                ptx.fence_proxy_async()  # the next copies into the stage come after these writes
            if begins_head:
                first_split = split
                for head in u32.range(warp, GROUP, WARPS):
                    load_head(qkv, row, (kv_head * GROUP + head) * SIZE, pairs, lane)
                    rotate(pairs, cos_sin, queries, head * SIZE, lane)
                ptx.named_barrier_sync(1, THREADS)
                load_queries(queries, fragment, lane)
            for r in range(ROUNDS):
                page = r * WARPS + warp
                visible = tokens_of_page(tokens, split, page)
                if visible > 0:
                    attend_page(tiles, stage * STAGE + page * PAGE_SIZE, visible, fragment, scratch,
                                results + page * GROUP * STRIDE, lane)
            cuda.syncwarp()  # all lanes have read the stage
            if lane == 0:
                ptx.mbarrier_arrive(empty, stage)
            count = next_stage(count)
            number += 1
            begins_head = split == splits - 1
            if number < end:
                item = find_item(step, number)
                if begins_head:
                    load_rotation(step, item, cos_sin, lane)
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
            results = BUFFER - results  # the other buffer: warps may still read this one
            if splits > 1 and (begins_head or number == end):  # the last split of a head that this block has
                ptx.named_barrier_sync(1, THREADS)
                if thread == 0:
                    cuda.threadfence()  # the block's partial results are visible before the count is
                    arrivals = cuda.atomic.add(arrived, group, split - first_split + 1) + (split - first_split + 1)
                    is_last[0] = 1 if arrivals == splits else 0
                    if arrivals == splits:
                        arrived[group] = 0  # ready for the next layer
                        cuda.threadfence()
                ptx.named_barrier_sync(1, THREADS)
                if is_last[0] == 1:
                    for i in u32.range(thread, GROUP * SIZE, THREADS):
                        start = (group * max_splits * GROUP + i // SIZE) * STRIDE
                        out, _ = merge_splits(partial, start, splits, i % SIZE)
                        attended[row, kv_head * GROUP * SIZE + i] = to_element(out)
        return count

    return items_of_block, load_items, find_item, load_rotation, attend
