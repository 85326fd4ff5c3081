"""The embedding of one sentence by a BERT, from its ids to the mean of its tokens, in one kernel.

Shapes  inputs (1 + 128,) int32: the number of tokens, 1 to 128, and their ids; pooled (C,) float32; weights a buffer of
        float16, and offsets (layers + 1, 12) uint32, in units of 16 bytes, where each begins: KINDS of a layer; in the
        last row WORDS, PLACES, TYPES and the LayerNorm of the embeddings
Needs   compute capability 9.0
Work    each tile of 16 rows reads all weights, from L2 or memory; 5 joins for each layer (joins.py), 4 with one tile:
        the one before attention of all blocks, the others of the blocks of a tile
Source  as decode.py

A block has one tile of rows in all layers, and each warp 64 columns of it: the residual of a sum is what the warp
multiplied two products earlier, and stays in shared memory. Each block of a tile computes LayerNorm for itself, which
saves a join. Rows behind the last token repeat it; no result depends on them.
"""

import numpy as np
from numba import float32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array, launch_tiled, unsigned
from labkit.kernels.attention.pages import LOG2_E
from labkit.kernels.gelu import gelu_erf
from labkit.kernels.matmul.mma import add_product, unchanged
from labkit.kernels.norm.rows import small
from labkit.kernels.op import missing
from labkit.kernels.persistent.decode import offset_of
from labkit.kernels.persistent.encoder import (
    GROUP,
    JOINS,
    LANES_WORDS,
    MOST_TOKENS,
    ROWS,
    TILES,
    WEIGHTS,
    Encoder,
)
from labkit.kernels.persistent.encoder import WORDS as FRAGMENT
from labkit.kernels.persistent.joins import arrive, blocks_here, mark, wait
from labkit.kernels.persistent.product import load_halves
from labkit.kernels.persistent.ring import make_claim, make_stages
from labkit.kernels.pooling import LEAST_SQUARE
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO, warp_sum

KINDS = 12  # weights and biases of a layer, in the order of `offsets`
(QKV, QKV_BIAS, OUT, OUT_BIAS, NORM, NORM_BIAS, INNER, INNER_BIAS, DOWN, DOWN_BIAS, LAST_NORM,
 LAST_NORM_BIAS) = range(KINDS)
WORDS, PLACES, TYPES, FIRST_NORM, FIRST_NORM_BIAS = range(5)  # of its last row
LOW, HIGH = uint32(0xFFFF), uint32(0xFFFF0000)
ONE, INV_GROUP, GROUP_SIZE = float32(1.0), float32(1.0 / GROUP), float32(GROUP)
HALF = GROUP // 2
PAIRS = LANES_WORDS // 2  # of the product of a tile of rows and a tile of weights
SHARES = 8  # of a block: its row tile's first row, and of the products the first tile of weights and how many
ROW, QKV_FIRST, QKV_COUNT, SKIP, OUT_FIRST, OUT_COUNT, INNER_FIRST, INNER_COUNT = range(SHARES)
COUNTER = 32  # uint32 from a counter of joins to the next: 128 bytes
CPU_BLOCKS = TILES  # that the CPU device runs: one for each tile of rows


@cuda.jit(device=True)
def load_group(fragment, array, row, columns, column):
    """Load this lane's part of a group of columns of 16 rows: lane 4 * g + q has columns 8q to 8q + 7 of both halves
    of rows g and g + 8, as an operand of mma.m16n8k16. Which columns are multiplied when is free, as long as the
    weights' are the same."""
    lane = u32.threadIdx.x % 32
    i = (row + lane // 4) * columns + column + lane % 4 * 8
    for h in range(2):
        for r in range(2):
            words = ptx.load_global4(array, i + (h * HALF + 8 * r * columns))
            for k in range(4):
                fragment[8 * h + 4 * r + k] = words[k]


@cuda.jit(device=True)
def add_pairs(values, i, words):
    """values[i : i + 8] += the pairs of four words."""
    for k in range(4):
        a, b = ptx.unpack_half2(words[k])
        values[i + 2 * k] += a
        values[i + 2 * k + 1] += b


@cuda.jit(device=True)
def quad_sum(value):
    """Add up what the four lanes of a row have."""
    value += cuda.shfl_xor_sync(ALL_LANES, value, 1)
    return value + cuda.shfl_xor_sync(ALL_LANES, value, 2)


@cuda.jit(device=True)
def moments_of(values, i):
    """Return the sum of a row's 64 columns, and that of the squares of their distances from their mean. This lane has
    16 of them, from values[i] on."""
    total, squares = ZERO, ZERO
    for n in range(16):
        total += values[i + n]
    total = quad_sum(total)
    mean = total * INV_GROUP
    for n in range(16):
        difference = values[i + n] - mean
        squares += difference * difference
    return total, quad_sum(squares)


def make_rows(encoder: Encoder):
    """Make device functions for this warp's columns of 16 rows: load_norm, embed, load_rows, add_residual, normalise.

    Lane 4 * g + q has row g and row g + 8, or, where two warps have the same columns, one of the two each. first: 1 for
    a warp that has only row g + 8."""
    DEPTH, WIDTH, THREADS, COLUMNS = encoder.depth_warps, encoder.width_warps, 32 * encoder.warps, encoder.hidden
    COUNT, MOMENTS, RESIDUAL = 2 // WIDTH, encoder.moments, encoder.stages * encoder.stage
    VOCAB, PLACES_, EPS, INV_COLUMNS = encoder.vocab, encoder.positions, small(encoder.eps), ONE / float32(COLUMNS)

    @cuda.jit(device=True)
    def load_norm(norm, weights, begins, depth, lane):
        """Load a LayerNorm's weight and bias, as pairs of this lane's columns. begins: of both."""
        for n in range(2):
            i = begins[n] + uint64(depth * GROUP + lane % 4 * 8)
            for h in range(2):
                words = ptx.load_global4(weights, i + uint64(h * HALF))
                for k in range(4):
                    norm[8 * n + 4 * h + k] = words[k]

    @cuda.jit(device=True)
    def embed(values, weights, offsets, inputs, first_row, length, depth, first, lane):
        """Add up the embeddings of the words, the type and the positions."""
        layers, column = u32.shape(offsets)[0] - 1, uint64(depth * GROUP + lane % 4 * 8)
        for i in range(16 * COUNT):
            values[i] = ZERO
        for r in range(COUNT):
            row = min(first_row + lane // 4 + 8 * (first + r), length - 1)
            word, place = min(uint32(inputs[1 + row]), VOCAB - 1), min(row, PLACES_ - 1)
            begins = (offset_of(offsets, layers, WORDS) + uint64(word) * uint64(COLUMNS) + column,
                      offset_of(offsets, layers, TYPES) + column,
                      offset_of(offsets, layers, PLACES) + uint64(place) * uint64(COLUMNS) + column)
            for h in range(2):
                for n in range(3):
                    add_pairs(values, 16 * r + 8 * h, ptx.load_global4(weights, begins[n] + uint64(h * HALF)))

    @cuda.jit(device=True)
    def load_rows(loaded, array, row, depth, first, lane):
        for r in range(COUNT):
            i = (row + lane // 4 + 8 * (first + r)) * COLUMNS + depth * GROUP + lane % 4 * 8
            for h in range(2):
                words = ptx.load_global4(array, i + h * HALF)
                for k in range(4):
                    loaded[8 * r + 4 * h + k] = words[k]

    @cuda.jit(device=True)
    def add_residual(values, loaded, stages, depth, first, lane):
        """Add what normalise stored last."""
        for r in range(COUNT):
            for h in range(2):
                words = ptx.load_shared4(stages, RESIDUAL + ((depth * 4 + 2 * h + first + r) * 32 + lane) * 8)
                for k in range(4):
                    i = 8 * r + 4 * h + k
                    a, b = ptx.unpack_half2(loaded[i])
                    c, d = ptx.unpack_half2(words[k])
                    values[2 * i], values[2 * i + 1] = a + c, b + d

    @cuda.jit(device=True)
    def normalise(values, fragment, norm, scratch, stages, depth, first, lane):
        """LayerNorm of the rows, by all warps, to `fragment`, as load_group loads it, and to shared memory behind the
        ring, as the next residual. Each warp adds up its own columns, so that no sum of squares is the small difference
        of large ones."""
        for r in range(COUNT):
            total, squares = moments_of(values, 16 * r)
            if lane % 4 == 0:
                i = MOMENTS + ((depth * 2 + first + r) * 8 + lane // 4) * 2
                scratch[i], scratch[i + 1] = total, squares
        ptx.named_barrier_sync(1, THREADS)
        for r in range(COUNT):
            mean, squares = ZERO, ZERO
            for d in range(DEPTH):
                mean += scratch[MOMENTS + ((d * 2 + first + r) * 8 + lane // 4) * 2]
            mean *= INV_COLUMNS
            for d in range(DEPTH):
                i = MOMENTS + ((d * 2 + first + r) * 8 + lane // 4) * 2
                difference = scratch[i] * INV_GROUP - mean
                squares += scratch[i + 1] + GROUP_SIZE * difference * difference
            rstd = cuda.rsqrt(squares * INV_COLUMNS + EPS)
            for h in range(2):
                for k in range(4):
                    a, b = ptx.unpack_half2(norm[4 * h + k])
                    c, d = ptx.unpack_half2(norm[8 + 4 * h + k])
                    i = 16 * r + 8 * h + 2 * k
                    fragment[k] = ptx.pack_half2((values[i] - mean) * rstd * a + c,
                                                 (values[i + 1] - mean) * rstd * b + d)
                ptx.store_shared4(stages, RESIDUAL + ((depth * 4 + 2 * h + first + r) * 32 + lane) * 8, fragment[0],
                                  fragment[1], fragment[2], fragment[3])
        if WIDTH > 1:
            ptx.named_barrier_sync(2 + depth, 64)  # both warps of these columns
        for j in range(4):
            words = ptx.load_shared4(stages, RESIDUAL + ((depth * 4 + j) * 32 + lane) * 8)
            for k in range(4):
                fragment[4 * j + k] = words[k]

    return load_norm, embed, load_rows, add_residual, normalise


def make_product(encoder: Encoder, columns: int, outputs: int, activation=unchanged):
    """Make the device functions of a product of rows of so many columns, of the hidden or the inner size, and so many
    rows of weights: load_tiles (of the copying warp) and multiply. A stage holds PER_STAGE tiles of weights.

    A block has `tiles` tiles of weights, from `first` on. skip: tiles left out after each head's; of queries, keys and
    values of one head, those of the other heads."""
    COLUMNS, OUTPUTS, STAGE, WARPS, THREADS = columns, outputs, encoder.stage, encoder.warps, 32 * encoder.warps
    WHOLE = columns != encoder.hidden  # all warps share the columns
    DEPTH, WIDTH = (WARPS, 1) if WHOLE else (encoder.depth_warps, encoder.width_warps)
    GROUPS, PER_STAGE = (encoder.inner_groups, 1) if WHOLE else (1, encoder.stage_tiles)
    AT_ONCE = min(WARPS, encoder.slots // DEPTH) // PER_STAGE * PER_STAGE  # tiles between two barriers
    TURNS, TILE, BIASES = -(-PER_STAGE // WIDTH), WEIGHTS * columns, encoder.biases
    HEAD_TILES, CHAINS = encoder.head_dim // WEIGHTS, 2 * min(GROUPS, 2)
    ACCUMULATORS, ROUNDS = 4 * CHAINS * TURNS, -(-AT_ONCE * PAIRS // THREADS)
    TILE_BYTES, BIAS_BYTES = TILE * encoder.element.dtype.itemsize, WEIGHTS * encoder.element.dtype.itemsize
    claim, (stage_of, next_stage) = make_claim(encoder), make_stages(encoder)
    to_float, rounded, activated = encoder.element.number, encoder.element.rounded, activation is not unchanged

    @cuda.jit(device=True)
    def load_tiles(ring, weights, offsets, layer, kind, first, tiles, skip, count, lane):
        """Copy the block's tiles, and their biases, which are kind + 1 of the layer. count: as for stage_of."""
        stages, full, _, _ = ring
        base, bias_base = offsets_of(offsets, layer, kind)
        for begin in u32.range(0, tiles, PER_STAGE):
            in_stage = min(tiles - begin, PER_STAGE)
            stage = claim(ring, count, in_stage * (TILE_BYTES + BIAS_BYTES), lane)
            if lane < in_stage:
                tile = first + begin + lane + (begin + lane) // HEAD_TILES * skip
                ptx.bulk_load(stages, stage * STAGE + lane * TILE, weights, base + uint64(tile * TILE), TILE_BYTES,
                              full, stage)
                ptx.bulk_load(stages, stage * STAGE + BIASES + lane * WEIGHTS, weights,
                              bias_base + uint64(tile * WEIGHTS), BIAS_BYTES, full, stage)
            count = next_stage(count)
        return count

    @cuda.jit(device=True)
    def multiply_tile(acc, t, fragment, tiles, start, bias, lane):
        """acc[t : t + CHAINS * 4] = this warp's part of the product of the rows and a tile, and the biases; each half
        of a group of columns has accumulators of its own, as long as there are any."""
        for i in range(t, t + 4 * CHAINS):
            acc[i] = ZERO
        acc[t], acc[t + 1], acc[t + 2], acc[t + 3] = bias[0], bias[1], bias[0], bias[1]
        for n in range(GROUPS):
            low, high = load_halves(tiles, start + n * (DEPTH * GROUP), lane)
            for k in range(2):
                i, j = FRAGMENT * n + 2 * k, t + 2 * n % CHAINS * 4
                add_product(acc, j, fragment[i], fragment[i + 4], fragment[i + 1], fragment[i + 5], low[2 * k],
                            low[2 * k + 1])
                add_product(acc, j + 4, fragment[i + 8], fragment[i + 12], fragment[i + 9], fragment[i + 13],
                            high[2 * k], high[2 * k + 1])

    @cuda.jit(device=True)
    def store_products(acc, t, scratch, slot):
        for i in range(4):
            for chain in range(1, CHAINS):
                acc[t + i] += acc[t + 4 * chain + i]
        ptx.store_shared4(scratch, 4 * slot, acc[t], acc[t + 1], acc[t + 2], acc[t + 3])

    @cuda.jit(device=True)
    def multiply(fragment, ring, scratch, out, row, first, tiles, skip, count, warp, lane):
        """Write the product of 16 rows, from `row` on, with the block's tiles, and the biases. Return the next count.
        """
        acc = cuda.local.array(ACCUMULATORS, float32)
        stages, full, empty, _ = ring
        depth, width = warp // WIDTH, warp % WIDTH
        for begin in u32.range(0, tiles, AT_ONCE):
            end = min(begin + AT_ONCE, tiles)
            if begin > 0:
                ptx.named_barrier_sync(1, THREADS)  # scratch has been read
            for tile in u32.range(begin, end, PER_STAGE):
                in_stage = min(end - tile, PER_STAGE)
                stage, lap = stage_of(count)
                ptx.mbarrier_wait_bounded(full, stage, lap)
                for t in range(TURNS):
                    n = t * WIDTH + width
                    if n < in_stage:
                        i = stage * STAGE + BIASES + n * WEIGHTS + lane % 4 * 2
                        bias = to_float(stages[i]), to_float(stages[i + 1])
                        if depth > 0:
                            bias = ZERO, ZERO
                        start = stage * STAGE + n * TILE + lane // 4 * COLUMNS + depth * GROUP + lane % 4 * 8
                        multiply_tile(acc, 4 * CHAINS * t, fragment, stages, start, bias, lane)
                for t in range(TURNS):  # behind all products, which overlap
                    n, i = t * WIDTH + width, 4 * CHAINS * t
                    if n < in_stage:
                        store_products(acc, i, scratch, ((tile - begin + n) * DEPTH + depth) * 32 + lane)
                cuda.syncwarp()  # all lanes have read the stage
                if lane == 0:
                    ptx.mbarrier_arrive(empty, stage)
                count = next_stage(count)
            ptx.named_barrier_sync(1, THREADS)
            for n in range(ROUNDS):  # pairs of neighbours, of a lane's four sums either the first or the last two
                pair = n * THREADS + warp * 32 + lane
                tile = begin + pair // PAIRS
                if tile < end:
                    a, b = ZERO, ZERO
                    for other in range(DEPTH):
                        i = (pair // PAIRS * DEPTH + other) * LANES_WORDS + pair % PAIRS * 2
                        a += scratch[i]
                        b += scratch[i + 1]
                    if activated:
                        a, b = activation(rounded(a)), activation(rounded(b))
                    tile = first + tile + tile // HEAD_TILES * skip
                    i = (row + pair % PAIRS // 8 + pair % 2 * 8) * OUTPUTS + tile * WEIGHTS + pair // 2 % 4 * 2
                    ptx.store_global_half2(out, i, a, b)
        return count

    return load_tiles, multiply


def make_attention(encoder: Encoder):
    """Make the device function that computes the attention of 16 queries of a head; each warp has tiles of 16 keys, and
    their results are merged in the order of the tiles."""
    WARPS, THREADS, SIZE, C = encoder.warps, 32 * encoder.warps, encoder.head_dim, encoder.hidden
    PITCH, BLOCKS, CHUNKS, QUADS = encoder.attended_pitch, SIZE // 32, SIZE // 8, SIZE // 4
    QUERY_WORDS, VALUE_WORDS, RESULTS, QKV_PITCH = 8 * BLOCKS, 16, ROWS * PITCH, 3 * C
    STATS, SCALE = TILES * RESULTS, float32(SIZE**-0.5 * LOG2_E)

    @cuda.jit(device=True)
    def attend_tile(qkv, row, head, first_key, length, scratch, key_tile, lane):
        """Write what the keys from first_key on add to the queries from `row` on, with the largest scores and the sums
        of the exponentials."""
        queries, keys = cuda.local.array(QUERY_WORDS, uint32), cuda.local.array(QUERY_WORDS, uint32)
        loaded = cuda.local.array(VALUE_WORDS, uint32)
        scores = cuda.local.array(8, float32)
        acc = cuda.local.array(32, float32)
        g, q, column = lane // 4, lane % 4, head * SIZE
        values = (first_key + 2 * q) * QKV_PITCH + 2 * C + column
        for r in range(2):
            for b in range(BLOCKS):
                i = column + 32 * b + 8 * q
                query = ptx.load_global4(qkv, (row + 8 * r + g) * QKV_PITCH + i)
                key = ptx.load_global4(qkv, (first_key + 8 * r + g) * QKV_PITCH + C + i)
                for k in range(4):
                    queries[8 * b + 4 * r + k], keys[8 * b + 4 * r + k] = query[k], key[k]
        # In flight during the scores. Rows behind the last token are copies of it, and finite.
        for n in range(4):
            value = ptx.load_global4(qkv, values + (n // 2 * 8 + n % 2) * QKV_PITCH + min(g, CHUNKS - 1) * 8)
            for k in range(4):
                loaded[4 * n + k] = value[k]
        for i in range(8):
            scores[i] = ZERO
        for t in range(2):
            for b in range(BLOCKS):
                for k in range(2):
                    i, j = 8 * b + 2 * k, 8 * b + 4 * t + 2 * k
                    add_product(scores, 4 * t, queries[i], queries[i + 4], queries[i + 1], queries[i + 5], keys[j],
                                keys[j + 1])
        for r in range(2):
            row_max, row_sum = NEG_INF, ZERO
            for t in range(2):
                for e in range(2):
                    i = 4 * t + 2 * r + e
                    scores[i] = scores[i] * SCALE if first_key + 8 * t + 2 * q + e < length else NEG_INF
                    row_max = max(row_max, scores[i])
            row_max = max(row_max, cuda.shfl_xor_sync(ALL_LANES, row_max, 1))
            row_max = max(row_max, cuda.shfl_xor_sync(ALL_LANES, row_max, 2))
            for t in range(2):
                for e in range(2):
                    i = 4 * t + 2 * r + e
                    scores[i] = ptx.exp2_approx(scores[i] - row_max)
                    row_sum += scores[i]
            row_sum = quad_sum(row_sum)
            if q == 0:
                i = STATS + 2 * (key_tile * ROWS + 8 * r + g)
                scratch[i], scratch[i + 1] = row_max, row_sum
        first, second = ptx.pack_half2(scores[0], scores[1]), ptx.pack_half2(scores[2], scores[3])
        third, fourth = ptx.pack_half2(scores[4], scores[5]), ptx.pack_half2(scores[6], scores[7])
        for n in range(32):
            acc[n] = ZERO
        for k in range(4):  # column n of product j is element j of chunk n
            a, b, c, d = loaded[k], loaded[4 + k], loaded[8 + k], loaded[12 + k]
            add_product(acc, 8 * k, first, second, third, fourth, a & LOW | b << 16, c & LOW | d << 16)
            add_product(acc, 8 * k + 4, first, second, third, fourth, a >> 16 | b & HIGH, c >> 16 | d & HIGH)
        for n in range(2):
            chunk = 2 * q + n
            if chunk < CHUNKS:
                for r in range(2):
                    i, j = key_tile * RESULTS + (8 * r + g) * PITCH + chunk * 8, 2 * r + n
                    ptx.store_shared4(scratch, i, acc[j], acc[4 + j], acc[8 + j], acc[12 + j])
                    ptx.store_shared4(scratch, i + 4, acc[16 + j], acc[20 + j], acc[24 + j], acc[28 + j])

    @cuda.jit(device=True)
    def attend(qkv, row, head, length, attended, scratch, warp, lane):
        """Compute the attention of the queries from `row` on, of one head."""
        key_tiles = (length + (ROWS - 1)) // ROWS
        for n in range(-(-TILES // WARPS)):
            key_tile = n * WARPS + warp
            if key_tile < key_tiles:
                attend_tile(qkv, row, head, key_tile * ROWS, length, scratch, key_tile, lane)
        ptx.named_barrier_sync(1, THREADS)
        for n in u32.range(warp * 32 + lane, ROWS * QUADS, THREADS):
            r, quad = n // QUADS, n % QUADS
            row_max, row_sum = NEG_INF, ZERO
            a, b, c, d = ZERO, ZERO, ZERO, ZERO
            for key_tile in range(TILES):
                row_max = max(row_max, scratch[STATS + 2 * (min(key_tile, key_tiles - 1) * ROWS + r)])
            for other in range(TILES):  # a fixed number, so that the loads are in flight together
                key_tile = min(other, key_tiles - 1)
                i = STATS + 2 * (key_tile * ROWS + r)
                weight = ptx.exp2_approx(scratch[i] - row_max) if other < key_tiles else ZERO
                row_sum += weight * scratch[i + 1]
                e, f, g, h = ptx.load_shared4(scratch, key_tile * RESULTS + r * PITCH + 4 * quad)
                a += weight * e
                b += weight * f
                c += weight * g
                d += weight * h
            i = (row + r) * C + head * SIZE + 4 * quad
            inverse = ONE / row_sum
            ptx.store_global_half2(attended, i, a * inverse, b * inverse)
            ptx.store_global_half2(attended, i + 2, c * inverse, d * inverse)

    return attend


def make_pool(encoder: Encoder):
    """Make the device functions sum_rows, of a tile, and pool, of all tiles, by one block."""
    C, WARPS, THREADS = encoder.hidden, encoder.warps, 32 * encoder.warps

    @cuda.jit(device=True)
    def sum_rows(fragment, sums, tile, length, depth, width, lane):
        """Add up the tokens of a tile, in float32."""
        first_row = tile * ROWS + lane // 4
        keep, keep_other = ONE if first_row < length else ZERO, ONE if first_row + 8 < length else ZERO
        for h in range(2):
            for k in range(4):
                a, b = ptx.unpack_half2(fragment[8 * h + k])
                c, d = ptx.unpack_half2(fragment[8 * h + 4 + k])
                a, b = a * keep + c * keep_other, b * keep + d * keep_other
                for n in range(3):
                    a += cuda.shfl_xor_sync(ALL_LANES, a, 4 << n)
                    b += cuda.shfl_xor_sync(ALL_LANES, b, 4 << n)
                if lane < 4 and width == 0:
                    i = tile * C + depth * GROUP + h * HALF + lane * 8 + 2 * k
                    sums[i], sums[i + 1] = a, b

    @cuda.jit(device=True)
    def pool(sums, tiles, length, normalize, pooled, scratch, warp, lane):
        """Write the mean of the tokens, if normalize is 1 scaled to length 1."""
        inv_length, squares = ONE / float32(length), ZERO
        for col in u32.range(warp * 32 + lane, C, THREADS):
            total = ZERO
            for tile in u32.range(tiles):
                total += sums[tile * C + col]
            total *= inv_length
            scratch[col] = total
            squares += total * total
        squares = warp_sum(squares)
        if lane == 0:
            scratch[C + warp] = squares
        ptx.named_barrier_sync(1, THREADS)
        squares = ZERO
        for other in u32.range(WARPS):
            squares += scratch[C + other]
        scale = cuda.rsqrt(LEAST_SQUARE if squares < LEAST_SQUARE else squares) if normalize == 1 else ONE
        for col in u32.range(warp * 32 + lane, C, THREADS):
            pooled[col] = scratch[col] * scale

    return sum_rows, pool


@cuda.jit(device=True)
def offsets_of(offsets, row, kind):
    """Return where a weight begins, and its bias; loaded a phase ahead, so that no load waits for another at a join."""
    return offset_of(offsets, row, kind), offset_of(offsets, row, kind + 1)


@cuda.jit(device=True)
def share(tiles, part, parts):
    """Return (first tile of weights that a block has of a product, how many)."""
    first = part * tiles // parts
    return first, (part + 1) * tiles // parts - first


@cuda.jit(device=True)
def part_of_block(length):
    """Return (tiles of rows, this block's, which of its blocks this is, how many it has). Blocks that are left over
    have tile `tiles`, and nothing to do."""
    tiles = (length + (ROWS - 1)) // ROWS
    parts = u32.gridDim.x // tiles
    return tiles, min(u32.blockIdx.x // parts, tiles), u32.blockIdx.x % parts, parts


@cuda.jit(device=True)
def leave_all(counters):
    """As joins.leave, for the counters of all tiles."""
    if cuda.atomic.add(counters, 1, 1) == u32.gridDim.x - 1:
        counters[1] = 0
        for tile in u32.range(TILES + 1):
            counters[COUNTER * tile] = 0


@kernel_factory
def make_persistent_encode(encoder: Encoder):
    """A block has encoder.warps warps that compute and one that copies weights; a phase ends with a join. With one tile
    of rows, a block computes the queries, keys and values of one head, and its attention without a join."""
    WARPS, THREADS, STAGES, SCRATCH = encoder.warps, 32 * encoder.warps, encoder.stages, encoder.scratch
    C, INNER_SIZE, HEADS, TIMED = encoder.hidden, encoder.inner, encoder.heads, encoder.timed
    WIDTH, GROUPS, INNER_WORDS = encoder.width_warps, encoder.inner_groups, encoder.inner_groups * FRAGMENT
    QKV_TILES, C_TILES, INNER_TILES = 3 * C // WEIGHTS, C // WEIGHTS, INNER_SIZE // WEIGHTS
    HEAD_TILES, VALUES = encoder.head_dim // WEIGHTS, 2 * FRAGMENT
    OTHERS = C_TILES - HEAD_TILES  # tiles of queries, keys or values of the other heads
    ELEMENT = encoder.element.dtype.type
    load_norm, embed, load_rows, add_residual, normalise = make_rows(encoder)
    load_qkv, multiply_qkv = make_product(encoder, C, 3 * C)
    load_out, multiply_out = make_product(encoder, C, C)
    load_inner, multiply_inner = make_product(encoder, C, INNER_SIZE, gelu_erf)
    load_down, multiply_down = make_product(encoder, INNER_SIZE, C)
    attend, (sum_rows, pool) = make_attention(encoder), make_pool(encoder)

    @cuda.jit(device=True)
    def share_qkv(has_head, part, parts):
        """Return (first tile that a block has of qkv, how many, tiles left out after each head's)."""
        if has_head:
            return part * HEAD_TILES, uint32(3 * HEAD_TILES) if part < HEADS else uint32(0), uint32(OTHERS)
        first, count = share(QKV_TILES, part, parts)
        return first, count, uint32(0)

    @cuda.jit(device=True)
    def load_ring(ring, weights, offsets, has_head, part, parts, lane):
        """All that the copying warp does."""
        layers, count = u32.shape(offsets)[0] - 1, uint32(0)
        (qkv, qkv_tiles, skip), (out, out_tiles) = share_qkv(has_head, part, parts), share(C_TILES, part, parts)
        inner, inner_tiles = share(INNER_TILES, part, parts)
        for layer in u32.range(layers):
            count = load_qkv(ring, weights, offsets, layer, QKV, qkv, qkv_tiles, skip, count, lane)
            count = load_out(ring, weights, offsets, layer, OUT, out, out_tiles, 0, count, lane)
            count = load_inner(ring, weights, offsets, layer, INNER, inner, inner_tiles, 0, count, lane)
            count = load_down(ring, weights, offsets, layer, DOWN, out, out_tiles, 0, count, lane)

    @cuda.jit(device=True)
    def end_phase(counters, timers, number, marks, thread):
        """End a phase. What follows until the next one begins depends on no other block. number: phases before it."""
        if TIMED and thread == 0:
            mark(timers, 2 * number + 1, marks)
        arrive(counters, thread, THREADS)
        return number + 1

    @cuda.jit(device=True)
    def begin_phase(counters, target, timers, number, marks, thread):
        wait(counters, target, thread, THREADS)
        if TIMED and thread == 0:
            mark(timers, 2 * number, marks)

    @cuda.jit(launch_bounds=(encoder.threads, 1))
    def persistent_encode_kernel(weights, offsets, inputs, qkv, attended, projected, inner, sums, pooled, normalize,
                                 counters, timers):
        stages = cuda.shared.array(0, ELEMENT)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        scratch = cuda.shared.array(SCRATCH, float32, alignment=16)
        at_join = cuda.shared.array(1, uint32)  # stays 0: the copying warp never slows down
        shares = cuda.shared.array(SHARES, uint32)
        fragment = cuda.local.array(FRAGMENT, uint32)  # rows as they are multiplied
        loaded = cuda.local.array(FRAGMENT, uint32)
        inner_frag = cuda.local.array(INNER_WORDS, uint32)
        norm = cuda.local.array(FRAGMENT, uint32)
        values = cuda.local.array(VALUES, float32)
        thread = u32.threadIdx.x
        warp, lane = thread // 32, thread % 32
        layers = u32.shape(offsets)[0] - 1
        marks = 2 * (JOINS * layers + 1)
        ring = stages, full, empty, at_join
        if thread == 0:
            for stage in range(STAGES):
                ptx.mbarrier_init(full, stage, 1)
                ptx.mbarrier_init(empty, stage, WARPS)
            at_join[0] = 0
            ptx.fence_mbarrier_init()
        length = max(min(uint32(inputs[0]), MOST_TOKENS), uint32(1))
        tiles, tile, part, parts = part_of_block(length)
        has_head = tiles == 1 and parts >= HEADS
        if thread == 0:
            shares[ROW] = tile * ROWS
            shares[QKV_FIRST], shares[QKV_COUNT], shares[SKIP] = share_qkv(has_head, part, parts)
            shares[OUT_FIRST], shares[OUT_COUNT] = share(C_TILES, part, parts)
            shares[INNER_FIRST], shares[INNER_COUNT] = share(INNER_TILES, part, parts)
        cuda.syncthreads()

        if tile == tiles:
            if thread == 0:
                leave_all(counters)
        elif warp == WARPS:
            load_ring(ring, weights, offsets, has_head, part, parts, lane)
        else:
            depth, width = warp // WIDTH, warp % WIDTH
            column, count, number, target = depth * GROUP, uint32(0), uint32(0), uint32(0)
            own = counters[COUNTER * (tile + 1) :]  # of this tile's blocks
            if TIMED and thread == 0:
                mark(timers, 0, marks)
            load_norm(norm, weights, offsets_of(offsets, layers, FIRST_NORM), depth, lane)
            embed(values, weights, offsets, inputs, tile * ROWS, length, depth, width, lane)
            normalise(values, fragment, norm, scratch, stages, depth, width, lane)

            for layer in u32.range(layers):
                heads = qkv[layer % 2 * (MOST_TOKENS * 3 * C) :]  # other tiles' blocks may still read the last layer's
                count = multiply_qkv(fragment, ring, scratch, heads, shares[ROW], shares[QKV_FIRST], shares[QKV_COUNT],
                                     shares[SKIP], count, warp, lane)
                if has_head:
                    ptx.named_barrier_sync(1, THREADS)
                else:
                    number = end_phase(counters, timers, number, marks, thread)
                    begin_phase(counters, (layer + 1) * tiles * parts, timers, number, marks, thread)
                row = shares[ROW]
                for head in u32.range(part, HEADS, parts):
                    if head > part:
                        ptx.named_barrier_sync(1, THREADS)  # scratch has been read
                    attend(heads, row, head, length, attended, scratch, warp, lane)
                number = end_phase(own, timers, number, marks, thread)
                target += parts
                row, first, own_tiles = shares[ROW], shares[OUT_FIRST], shares[OUT_COUNT]
                begin_phase(own, target, timers, number, marks, thread)

                if own_tiles > 0:
                    load_group(loaded, attended, row, C, column)
                norm_begins = offsets_of(offsets, layer, NORM)
                count = multiply_out(loaded, ring, scratch, projected, row, first, own_tiles, 0, count, warp, lane)
                number = end_phase(own, timers, number, marks, thread)
                target += parts
                row, first, own_tiles = shares[ROW], shares[INNER_FIRST], shares[INNER_COUNT]
                load_norm(norm, weights, norm_begins, depth, lane)
                begin_phase(own, target, timers, number, marks, thread)

                load_rows(loaded, projected, row, depth, width, lane)
                add_residual(values, loaded, stages, depth, width, lane)
                normalise(values, fragment, norm, scratch, stages, depth, width, lane)
                count = multiply_inner(fragment, ring, scratch, inner, row, first, own_tiles, 0, count, warp, lane)
                number = end_phase(own, timers, number, marks, thread)
                target += parts
                row, first, own_tiles = shares[ROW], shares[OUT_FIRST], shares[OUT_COUNT]
                begin_phase(own, target, timers, number, marks, thread)

                if own_tiles > 0:
                    for n in range(GROUPS):
                        load_group(loaded, inner, row, INNER_SIZE, (n * WARPS + warp) * GROUP)
                        for i in range(FRAGMENT):
                            inner_frag[FRAGMENT * n + i] = loaded[i]
                norm_begins = offsets_of(offsets, layer, LAST_NORM)
                count = multiply_down(inner_frag, ring, scratch, projected, row, first, own_tiles, 0, count, warp, lane)
                number = end_phase(own, timers, number, marks, thread)
                target += parts
                row = shares[ROW]
                load_norm(norm, weights, norm_begins, depth, lane)
                begin_phase(own, target, timers, number, marks, thread)

                load_rows(loaded, projected, row, depth, width, lane)
                add_residual(values, loaded, stages, depth, width, lane)
                normalise(values, fragment, norm, scratch, stages, depth, width, lane)

            if part == 0:
                sum_rows(fragment, sums, tile, length, depth, width, lane)
                if TIMED and thread == 0:
                    mark(timers, 2 * number + 1, marks)
                arrive(counters, thread, THREADS)
            if u32.blockIdx.x == 0:
                before = uint32(0) if has_head else layers * tiles * parts
                wait(counters, before + tiles, thread, THREADS)
                pool(sums, tiles, length, normalize, pooled, scratch, warp, lane)
            if thread == 0:
                leave_all(counters)

    persistent_encode_kernel.threads = encoder.threads
    persistent_encode_kernel.shared_bytes = encoder.ring_bytes
    return persistent_encode_kernel


class Buffers:
    """What a launch needs between its phases, for sentences of up to 128 tokens; and times, in nanoseconds, of each
    block the marks, if the encoder is timed. blocks: of a launch."""

    def __init__(self, encoder: Encoder, layers: int, blocks: int | None = None):
        self.encoder, self.layers, self.blocks = encoder, layers, blocks or blocks_here(CPU_BLOCKS)
        if self.blocks < TILES:
            raise ValueError(f"blocks is {self.blocks}; there must be at least {TILES}, one for each {ROWS} tokens")
        self.inputs = cuda.to_device(np.zeros(1 + MOST_TOKENS, np.int32))
        self.qkv, self.attended, self.projected, self.inner = (
            cuda.device_array(MOST_TOKENS * columns, encoder.element.dtype)
            for columns in (2 * 3 * encoder.hidden, encoder.hidden, encoder.hidden, encoder.inner))
        self.sums = cuda.device_array(TILES * encoder.hidden, np.float32)
        self.pooled = cuda.device_array(encoder.hidden, np.float32)
        self.counters = cuda.to_device(np.zeros(COUNTER * (TILES + 1), np.uint32))
        self.times = cuda.to_device(np.zeros(self.blocks * encoder.marks(layers) if encoder.timed else 1, np.uint64))


def persistent_encode(buffers: Buffers, weights, offsets, normalize: bool = True, stream=0) -> None:
    """Write the embedding of the sentence in buffers.inputs to buffers.pooled (C,)."""
    encoder = buffers.encoder
    if problem := encoder.problem():
        raise ValueError(f"encoder: {problem}")
    check_array("weights", weights, ndim=1, dtype=encoder.element.dtype, most=1 << 35)
    check_array("offsets", offsets, shape=(buffers.layers + 1, KINDS), dtype=np.uint32)
    if not aligned(weights):
        raise ValueError("weights must begin at a multiple of 16 bytes")
    kernel = make_persistent_encode(encoder)
    if reason := missing(kernel):
        raise ValueError(f"persistent_encode {reason}")
    launch_tiled(kernel, buffers.blocks, stream, weights, offsets, buffers.inputs, buffers.qkv, buffers.attended,
                 buffers.projected, buffers.inner, buffers.sums, buffers.pooled, *unsigned(normalize),
                 buffers.counters, buffers.times)
