"""The embedding of one sentence by a BERT, from its ids to the mean of its tokens, in one kernel.

Shapes  inputs (1 + 128,) int32: the number of tokens, 1 to 128, and their ids; pooled (C,) float32; weights a buffer of
        float16, and offsets (layers + 1, 12) uint32, in units of 16 bytes, where each begins: KINDS of a layer; in the
        last row WORDS, PLACES, TYPES and the LayerNorm of the embeddings
Needs   compute capability 9.0
Work    each tile of 16 rows reads all weights, from L2 or memory; 5 joins for each layer (joins.py), 4 with one tile
Source  as decode.py

A block has one tile of rows in all layers, and each warp 64 columns of it: the residual of a sum is what the warp
multiplied two products earlier, in the same registers, and needs no memory. LayerNorm is computed again by all blocks
of a tile, each for itself, instead of behind one more join. Rows behind the last token repeat it; no result depends on
them.
"""

import numpy as np
from numba import float32, uint32, uint64

from labkit import cuda, device, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array, launch_tiled, unsigned
from labkit.kernels.attention.pages import LOG2_E
from labkit.kernels.gelu import gelu_erf
from labkit.kernels.matmul.mma import add_product, unchanged
from labkit.kernels.norm.rows import small
from labkit.kernels.op import missing
from labkit.kernels.persistent.decode import mark, offset_of
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
from labkit.kernels.persistent.joins import arrive, leave, wait
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
def moments_of(values, r):
    """Return the sum of a row's 64 columns, and that of the squares of their distances from their mean. r: 0 for row g,
    1 for row g + 8."""
    total, squares = ZERO, ZERO
    for h in range(2):
        for n in range(8):
            total += values[16 * h + 8 * r + n]
    total = quad_sum(total)
    mean = total * INV_GROUP
    for h in range(2):
        for n in range(8):
            difference = values[16 * h + 8 * r + n] - mean
            squares += difference * difference
    return total, quad_sum(squares)


def make_rows(encoder: Encoder):
    """Make device functions for this warp's columns of 16 rows: load_norm, embed, add_residual and normalise."""
    DEPTH, THREADS, MOMENTS, COLUMNS = encoder.depth_warps, 32 * encoder.warps, encoder.moments, encoder.hidden
    VOCAB, PLACES_, EPS, INV_COLUMNS = encoder.vocab, encoder.positions, small(encoder.eps), ONE / float32(COLUMNS)

    @cuda.jit(device=True)
    def load_norm(norm, weights, offsets, row, kind, depth, lane):
        """Load a LayerNorm's weight and bias, as pairs of this lane's columns."""
        for n in range(2):
            i = offset_of(offsets, row, kind + n) + uint64(depth * GROUP + lane % 4 * 8)
            for h in range(2):
                words = ptx.load_global4(weights, i + uint64(h * HALF))
                for k in range(4):
                    norm[8 * n + 4 * h + k] = words[k]

    @cuda.jit(device=True)
    def embed(values, weights, offsets, inputs, first_row, length, depth, lane):
        """Add up the embeddings of the words, the type and the positions."""
        layers, column = u32.shape(offsets)[0] - 1, uint64(depth * GROUP + lane % 4 * 8)
        for i in range(32):
            values[i] = ZERO
        for r in range(2):
            row = min(first_row + lane // 4 + 8 * r, length - 1)
            word, place = min(uint32(inputs[1 + row]), VOCAB - 1), min(row, PLACES_ - 1)
            begins = (offset_of(offsets, layers, WORDS) + uint64(word) * uint64(COLUMNS) + column,
                      offset_of(offsets, layers, TYPES) + column,
                      offset_of(offsets, layers, PLACES) + uint64(place) * uint64(COLUMNS) + column)
            for h in range(2):
                for n in range(3):
                    add_pairs(values, 16 * h + 8 * r, ptx.load_global4(weights, begins[n] + uint64(h * HALF)))

    @cuda.jit(device=True)
    def add_residual(values, sums, fragment):
        for j in range(16):
            a, b = ptx.unpack_half2(sums[j])
            c, d = ptx.unpack_half2(fragment[j])
            values[2 * j], values[2 * j + 1] = a + c, b + d

    @cuda.jit(device=True)
    def normalise(values, fragment, norm, scratch, depth, width, lane):
        """LayerNorm of the rows, by all warps, to `fragment`. Each warp adds up its own columns, so that no sum of
        squares is the small difference of large ones."""
        total, squares = moments_of(values, 0)
        other_total, other_squares = moments_of(values, 1)
        if width == 0 and lane % 4 == 0:
            ptx.store_shared4(scratch, MOMENTS + (depth * 8 + lane // 4) * 4, total, squares, other_total,
                              other_squares)
        ptx.named_barrier_sync(1, THREADS)
        mean, other_mean, squares, other_squares = ZERO, ZERO, ZERO, ZERO
        for d in range(DEPTH):
            a, _, c, _ = ptx.load_shared4(scratch, MOMENTS + (d * 8 + lane // 4) * 4)
            mean += a
            other_mean += c
        mean, other_mean = mean * INV_COLUMNS, other_mean * INV_COLUMNS
        for d in range(DEPTH):
            a, b, c, e = ptx.load_shared4(scratch, MOMENTS + (d * 8 + lane // 4) * 4)
            a, c = a * INV_GROUP - mean, c * INV_GROUP - other_mean
            squares += b + GROUP_SIZE * a * a
            other_squares += e + GROUP_SIZE * c * c
        rstd, other_rstd = cuda.rsqrt(squares * INV_COLUMNS + EPS), cuda.rsqrt(other_squares * INV_COLUMNS + EPS)
        for h in range(2):
            for k in range(4):
                a, b = ptx.unpack_half2(norm[4 * h + k])
                c, d = ptx.unpack_half2(norm[8 + 4 * h + k])
                i = 16 * h + 2 * k
                fragment[8 * h + k] = ptx.pack_half2((values[i] - mean) * rstd * a + c,
                                                     (values[i + 1] - mean) * rstd * b + d)
                fragment[8 * h + 4 + k] = ptx.pack_half2((values[i + 8] - other_mean) * other_rstd * a + c,
                                                         (values[i + 9] - other_mean) * other_rstd * b + d)

    return load_norm, embed, add_residual, normalise


def make_product(encoder: Encoder, columns: int, outputs: int, activation=unchanged):
    """Make the device functions of a product of rows of so many columns, of the hidden or the inner size, and so many
    rows of weights: load_tiles (of the copying warp), load_bias (before a join) and multiply (behind it). A stage holds
    `per_stage` tiles of weights."""
    COLUMNS, OUTPUTS, STAGE, WARPS, THREADS = columns, outputs, encoder.stage, encoder.warps, 32 * encoder.warps
    WHOLE = columns != encoder.hidden  # all warps share the columns
    DEPTH, WIDTH = (WARPS, 1) if WHOLE else (encoder.depth_warps, encoder.width_warps)
    GROUPS, PER_STAGE = (encoder.inner_groups, 1) if WHOLE else (1, encoder.stage_tiles)
    TURNS, BUFFER, TILE = -(-PER_STAGE // WIDTH), encoder.slots * LANES_WORDS, WEIGHTS * columns
    TILE_BYTES, LAST_TILE = TILE * encoder.element.dtype.itemsize, outputs // WEIGHTS - 1
    claim, (stage_of, next_stage) = make_claim(encoder), make_stages(encoder)
    to_float, rounded, activated = encoder.element.number, encoder.element.rounded, activation is not unchanged

    @cuda.jit(device=True)
    def load_tiles(ring, weights, base, first, end, count, lane):
        """Copy tiles `first` to `end` of weights that begin at weights[base]. count: as for stage_of."""
        stages, full, _, _ = ring
        for tile in u32.range(first, end, PER_STAGE):
            tiles = min(end - tile, PER_STAGE)
            stage = claim(ring, count, tiles * TILE_BYTES, lane)
            if lane < tiles:
                ptx.bulk_load(stages, stage * STAGE + lane * TILE, weights, base + uint64((tile + lane) * TILE),
                              TILE_BYTES, full, stage)
            count = next_stage(count)
        return count

    @cuda.jit(device=True)
    def load_bias(weights, base, tile, warp, lane):
        """Load the two biases that this lane adds to its sums of a stage that begins with `tile`."""
        i = base + uint64(min(tile + warp, LAST_TILE) * WEIGHTS + lane % 4 * 2)
        return to_float(weights[i]), to_float(weights[i + uint64(1)])

    @cuda.jit(device=True)
    def multiply_tile(acc, fragment, tiles, start, lane):
        for i in range(8):
            acc[i] = ZERO
        for n in range(GROUPS):
            low, high = load_halves(tiles, start + n * (DEPTH * GROUP), lane)
            for k in range(2):
                i = FRAGMENT * n + 2 * k
                add_product(acc, 0, fragment[i], fragment[i + 4], fragment[i + 1], fragment[i + 5], low[2 * k],
                            low[2 * k + 1])
                add_product(acc, 4, fragment[i + 8], fragment[i + 12], fragment[i + 9], fragment[i + 13], high[2 * k],
                            high[2 * k + 1])

    @cuda.jit(device=True)
    def multiply(fragment, ring, scratch, weights, bias_base, bias, out, row, first, end, count, warp, lane):
        """Write the product of 16 rows, from `row` on, with tiles `first` to `end` of the weights, and the bias. bias:
        what load_bias gives for `first`. Return the next count."""
        acc = cuda.local.array(8, float32)
        stages, full, empty, _ = ring
        depth, width = warp // WIDTH, warp % WIDTH
        buffer = uint32(0)
        for tile in u32.range(first, end, PER_STAGE):
            tiles = min(end - tile, PER_STAGE)
            following = load_bias(weights, bias_base, tile + PER_STAGE, warp, lane)
            stage, lap = stage_of(count)
            ptx.mbarrier_wait_bounded(full, stage, lap)
            for t in range(TURNS):
                n = t * WIDTH + width
                if n < tiles:
                    start = stage * STAGE + n * TILE + lane // 4 * COLUMNS + depth * GROUP + lane % 4 * 8
                    multiply_tile(acc, fragment, stages, start, lane)
                    ptx.store_shared4(scratch, buffer + ((n * DEPTH + depth) * 32 + lane) * 4, acc[0] + acc[4],
                                      acc[1] + acc[5], acc[2] + acc[6], acc[3] + acc[7])
            cuda.syncwarp()  # all lanes have read the stage
            if lane == 0:
                ptx.mbarrier_arrive(empty, stage)
            count = next_stage(count)
            ptx.named_barrier_sync(1, THREADS)
            if warp < tiles:
                a, b, c, d = ZERO, ZERO, ZERO, ZERO
                for other in range(DEPTH):
                    e, f, g, h = ptx.load_shared4(scratch, buffer + ((warp * DEPTH + other) * 32 + lane) * 4)
                    a += e
                    b += f
                    c += g
                    d += h
                a, b, c, d = a + bias[0], b + bias[1], c + bias[0], d + bias[1]
                if activated:
                    a, b, c, d = (activation(rounded(a)), activation(rounded(b)), activation(rounded(c)),
                                  activation(rounded(d)))
                i = (row + lane // 4) * OUTPUTS + (tile + warp) * WEIGHTS + lane % 4 * 2
                ptx.store_global_half2(out, i, a, b)
                ptx.store_global_half2(out, i + 8 * OUTPUTS, c, d)
            bias = following
            buffer = BUFFER - buffer  # the other one: warps may still read this one
        return count

    return load_tiles, load_bias, multiply


def make_attention(encoder: Encoder):
    """Make the device function that computes the attention of 16 queries of a head; each warp has tiles of 16 keys, and
    their results are merged in the order of the tiles."""
    WARPS, THREADS, SIZE, C = encoder.warps, 32 * encoder.warps, encoder.head_dim, encoder.hidden
    PITCH, BLOCKS, CHUNKS, PASSES, QUADS = encoder.attended_pitch, SIZE // 32, SIZE // 8, -(-SIZE // 64), SIZE // 4
    QUERY_WORDS, RESULTS, ROW = 8 * BLOCKS, ROWS * PITCH, 3 * C
    STATS, SCALE = TILES * RESULTS, float32(SIZE**-0.5 * LOG2_E)

    @cuda.jit(device=True)
    def attend_tile(qkv, row, head, first_key, length, scratch, key_tile, lane):
        """Write what the keys from first_key on add to the queries from `row` on, with the largest scores and the sums
        of the exponentials."""
        queries = cuda.local.array(QUERY_WORDS, uint32)
        scores = cuda.local.array(8, float32)
        acc = cuda.local.array(32, float32)
        g, q, column = lane // 4, lane % 4, head * SIZE
        for i in range(8):
            scores[i] = ZERO
        for b in range(BLOCKS):
            for r in range(2):
                words = ptx.load_global4(qkv, (row + g + 8 * r) * ROW + column + 32 * b + 8 * q)
                for k in range(4):
                    queries[8 * b + 4 * r + k] = words[k]
        for t in range(2):
            for b in range(BLOCKS):
                w = ptx.load_global4(qkv, (first_key + 8 * t + g) * ROW + C + column + 32 * b + 8 * q)
                for k in range(2):
                    i = 8 * b + 2 * k
                    add_product(scores, 4 * t, queries[i], queries[i + 4], queries[i + 1], queries[i + 5], w[2 * k],
                                w[2 * k + 1])
        # Column n of product j is element j of chunk n. Rows behind the last token are copies of it, and finite.
        values = (first_key + 2 * q) * ROW + 2 * C + column
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
        for p in range(PASSES):
            i = values + min(8 * p + g, CHUNKS - 1) * 8
            a, b = ptx.load_global4(qkv, i), ptx.load_global4(qkv, i + ROW)
            c, d = ptx.load_global4(qkv, i + 8 * ROW), ptx.load_global4(qkv, i + 9 * ROW)
            for n in range(32):
                acc[n] = ZERO
            for k in range(4):
                add_product(acc, 8 * k, first, second, third, fourth, a[k] & LOW | b[k] << 16, c[k] & LOW | d[k] << 16)
                add_product(acc, 8 * k + 4, first, second, third, fourth, a[k] >> 16 | b[k] & HIGH,
                            c[k] >> 16 | d[k] & HIGH)
            for n in range(2):
                chunk = 8 * p + 2 * q + n
                if chunk < CHUNKS:
                    for r in range(2):
                        i, j = key_tile * RESULTS + (8 * r + g) * PITCH + chunk * 8, 2 * r + n
                        ptx.store_shared4(scratch, i, acc[j], acc[4 + j], acc[8 + j], acc[12 + j])
                        ptx.store_shared4(scratch, i + 4, acc[16 + j], acc[20 + j], acc[24 + j], acc[28 + j])

    @cuda.jit(device=True)
    def attend(qkv, row, head, length, attended, scratch, warp, lane):
        """Compute the attention of the queries from `row` on, of one head."""
        key_tiles = (length + (ROWS - 1)) // ROWS
        for key_tile in u32.range(warp, key_tiles, WARPS):
            attend_tile(qkv, row, head, key_tile * ROWS, length, scratch, key_tile, lane)
        ptx.named_barrier_sync(1, THREADS)
        for n in u32.range(warp * 32 + lane, ROWS * QUADS, THREADS):
            r, quad = n // QUADS, n % QUADS
            row_max, row_sum = NEG_INF, ZERO
            a, b, c, d = ZERO, ZERO, ZERO, ZERO
            for key_tile in u32.range(key_tiles):
                row_max = max(row_max, scratch[STATS + 2 * (key_tile * ROWS + r)])
            for key_tile in u32.range(key_tiles):
                i = STATS + 2 * (key_tile * ROWS + r)
                weight = ptx.exp2_approx(scratch[i] - row_max)
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
def share(tiles, part, parts):
    """Return (first, end) of the tiles of weights that a block has of each product."""
    return part * tiles // parts, (part + 1) * tiles // parts


@cuda.jit(device=True)
def part_of_block(length):
    """Return (tiles of rows, this block's, which of its blocks this is, how many it has). Blocks that are left over
    have part `parts`, and nothing to do."""
    tiles = (length + (ROWS - 1)) // ROWS
    parts = u32.gridDim.x // tiles
    tile = u32.blockIdx.x // parts
    return (tiles, tile, u32.blockIdx.x % parts, parts) if tile < tiles else (tiles, tiles - 1, parts, parts)


@kernel_factory
def make_persistent_encode(encoder: Encoder):
    """A block has encoder.warps warps that compute and one that copies weights; a phase ends with a join. With one tile
    of rows, a block computes the queries, keys and values of whole heads, and their attention without a join."""
    WARPS, THREADS, STAGES, SCRATCH = encoder.warps, 32 * encoder.warps, encoder.stages, encoder.scratch
    C, INNER_SIZE, HEADS, TIMED = encoder.hidden, encoder.inner, encoder.heads, encoder.timed
    WIDTH, GROUPS, INNER_WORDS = encoder.width_warps, encoder.inner_groups, encoder.inner_groups * FRAGMENT
    QKV_TILES, C_TILES, INNER_TILES = 3 * C // WEIGHTS, C // WEIGHTS, INNER_SIZE // WEIGHTS
    HEAD_TILES, VALUES = encoder.head_dim // WEIGHTS, 2 * FRAGMENT
    ELEMENT = encoder.element.dtype.type
    load_norm, embed, add_residual, normalise = make_rows(encoder)
    load_qkv, bias_of_qkv, multiply_qkv = make_product(encoder, C, 3 * C)
    load_out, bias_of_out, multiply_out = make_product(encoder, C, C)
    load_inner, bias_of_inner, multiply_inner = make_product(encoder, C, INNER_SIZE, gelu_erf)
    load_down, bias_of_down, multiply_down = make_product(encoder, INNER_SIZE, C)
    attend, (sum_rows, pool) = make_attention(encoder), make_pool(encoder)

    @cuda.jit(device=True)
    def shares(part, parts):
        """Return (first, end) of this block's tiles of qkv, out, inner and down; nothing where part is `parts`."""
        if part == parts:
            nothing = uint32(0), uint32(0)
            return nothing, nothing, nothing
        return share(QKV_TILES, part, parts), share(C_TILES, part, parts), share(INNER_TILES, part, parts)

    @cuda.jit(device=True)
    def load_ring(ring, weights, offsets, length, lane):
        """All that the copying warp does."""
        layers, count = u32.shape(offsets)[0] - 1, uint32(0)
        tiles, _, part, parts = part_of_block(length)
        (qkv, qkv_end), (out, out_end), (inner, inner_end) = shares(part, parts)
        for layer in u32.range(layers):
            base = offset_of(offsets, layer, QKV)
            if tiles == 1:
                for head in u32.range(part, HEADS, parts):
                    for kind in range(3):
                        first = kind * C_TILES + head * HEAD_TILES
                        count = load_qkv(ring, weights, base, first, first + HEAD_TILES, count, lane)
            else:
                count = load_qkv(ring, weights, base, qkv, qkv_end, count, lane)
            count = load_out(ring, weights, offset_of(offsets, layer, OUT), out, out_end, count, lane)
            count = load_inner(ring, weights, offset_of(offsets, layer, INNER), inner, inner_end, count, lane)
            count = load_down(ring, weights, offset_of(offsets, layer, DOWN), out, out_end, count, lane)

    @cuda.jit(device=True)
    def end_phase(counters, timers, number, marks, thread):
        """End a phase. What follows until the next one begins depends on no other block. number: phases before it;
        return the next."""
        if TIMED and thread == 0:
            mark(timers, 2 * number + 1, marks)
        arrive(counters, thread, THREADS)
        return number + 1

    @cuda.jit(device=True)
    def begin_phase(counters, timers, number, marks, thread):
        wait(counters, number * u32.gridDim.x, thread, THREADS)
        if TIMED and thread == 0:
            mark(timers, 2 * number, marks)

    @cuda.jit(launch_bounds=(encoder.threads, 1))
    def persistent_encode_kernel(weights, offsets, inputs, qkv, attended, projected, inner, sums, pooled, normalize,
                                 counters, timers):
        stages = cuda.shared.array(0, ELEMENT)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        scratch = cuda.shared.array(SCRATCH, float32, alignment=16)
        at_join = cuda.shared.array(1, uint32)
        fragment = cuda.local.array(FRAGMENT, uint32)  # rows as they are multiplied; then, the residual
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
        cuda.syncthreads()

        length = max(min(uint32(inputs[0]), MOST_TOKENS), uint32(1))
        if warp == WARPS:
            load_ring(ring, weights, offsets, length, lane)
        else:
            tiles, tile, part, parts = part_of_block(length)
            (qkv_first, qkv_end), (out_first, out_end), (inner_first, inner_end) = shares(part, parts)
            row, depth, width = tile * ROWS, warp // WIDTH, warp % WIDTH
            column, count, number = depth * GROUP, uint32(0), uint32(0)
            if TIMED and thread == 0:
                mark(timers, 0, marks)
            load_norm(norm, weights, offsets, layers, FIRST_NORM, depth, lane)
            embed(values, weights, offsets, inputs, row, length, depth, lane)
            normalise(values, fragment, norm, scratch, depth, width, lane)

            for layer in u32.range(layers):
                base = offset_of(offsets, layer, QKV_BIAS)
                if tiles == 1:
                    for head in u32.range(part, HEADS, parts):
                        for kind in range(3):
                            first = kind * C_TILES + head * HEAD_TILES
                            bias = bias_of_qkv(weights, base, first, warp, lane)
                            count = multiply_qkv(fragment, ring, scratch, weights, base, bias, qkv, row, first,
                                                 first + HEAD_TILES, count, warp, lane)
                            ptx.named_barrier_sync(1, THREADS)
                        attend(qkv, row, head, length, attended, scratch, warp, lane)
                        ptx.named_barrier_sync(1, THREADS)  # scratch has been read
                else:
                    bias = bias_of_qkv(weights, base, qkv_first, warp, lane)
                    count = multiply_qkv(fragment, ring, scratch, weights, base, bias, qkv, row, qkv_first, qkv_end,
                                         count, warp, lane)
                    number = end_phase(counters, timers, number, marks, thread)
                    begin_phase(counters, timers, number, marks, thread)
                    for item in u32.range(u32.blockIdx.x, HEADS * tiles, u32.gridDim.x):
                        attend(qkv, item // HEADS * ROWS, item % HEADS, length, attended, scratch, warp, lane)
                        ptx.named_barrier_sync(1, THREADS)  # scratch has been read
                number = end_phase(counters, timers, number, marks, thread)
                base = offset_of(offsets, layer, OUT_BIAS)
                bias = bias_of_out(weights, base, out_first, warp, lane)
                begin_phase(counters, timers, number, marks, thread)

                if out_first < out_end:
                    load_group(loaded, attended, row, C, column)
                    count = multiply_out(loaded, ring, scratch, weights, base, bias, projected, row, out_first, out_end,
                                         count, warp, lane)
                number = end_phase(counters, timers, number, marks, thread)
                load_norm(norm, weights, offsets, layer, NORM, depth, lane)
                base = offset_of(offsets, layer, INNER_BIAS)
                bias = bias_of_inner(weights, base, inner_first, warp, lane)
                begin_phase(counters, timers, number, marks, thread)

                load_group(loaded, projected, row, C, column)
                add_residual(values, loaded, fragment)
                normalise(values, fragment, norm, scratch, depth, width, lane)
                count = multiply_inner(fragment, ring, scratch, weights, base, bias, inner, row, inner_first, inner_end,
                                       count, warp, lane)
                number = end_phase(counters, timers, number, marks, thread)
                base = offset_of(offsets, layer, DOWN_BIAS)
                bias = bias_of_down(weights, base, out_first, warp, lane)
                begin_phase(counters, timers, number, marks, thread)

                if out_first < out_end:
                    for n in range(GROUPS):
                        load_group(loaded, inner, row, INNER_SIZE, (n * WARPS + warp) * GROUP)
                        for i in range(FRAGMENT):
                            inner_frag[FRAGMENT * n + i] = loaded[i]
                    count = multiply_down(inner_frag, ring, scratch, weights, base, bias, projected, row, out_first,
                                          out_end, count, warp, lane)
                number = end_phase(counters, timers, number, marks, thread)
                load_norm(norm, weights, offsets, layer, LAST_NORM, depth, lane)
                begin_phase(counters, timers, number, marks, thread)

                load_group(loaded, projected, row, C, column)
                add_residual(values, loaded, fragment)
                normalise(values, fragment, norm, scratch, depth, width, lane)

            if part == 0:
                sum_rows(fragment, sums, tile, length, depth, width, lane)
                if TIMED and thread == 0:
                    mark(timers, 2 * number + 1, marks)
                arrive(counters, thread, THREADS)
            if u32.blockIdx.x == 0:
                wait(counters, number * u32.gridDim.x + tiles, thread, THREADS)
                pool(sums, tiles, length, normalize, pooled, scratch, warp, lane)
            if thread == 0:
                leave(counters)

    persistent_encode_kernel.threads = encoder.threads
    persistent_encode_kernel.shared_bytes = encoder.ring_bytes
    return persistent_encode_kernel


def blocks_here() -> int:
    """Return how many blocks a launch has: one for each SM, so that all are resident."""
    return gpus.sm_count() if device.on_gpu() else CPU_BLOCKS


class Buffers:
    """What a launch needs between its phases, for sentences of up to 128 tokens; and times, in nanoseconds, of each
    block the marks, if the encoder is timed. blocks: of a launch."""

    def __init__(self, encoder: Encoder, layers: int, blocks: int | None = None):
        self.encoder, self.layers, self.blocks = encoder, layers, blocks or blocks_here()
        if self.blocks < TILES:
            raise ValueError(f"blocks is {self.blocks}; there must be at least {TILES}, one for each {ROWS} tokens")
        self.inputs = cuda.to_device(np.zeros(1 + MOST_TOKENS, np.int32))
        self.qkv, self.attended, self.projected, self.inner = (
            cuda.device_array(MOST_TOKENS * columns, encoder.element.dtype)
            for columns in (3 * encoder.hidden, encoder.hidden, encoder.hidden, encoder.inner))
        self.sums = cuda.device_array(TILES * encoder.hidden, np.float32)
        self.pooled = cuda.device_array(encoder.hidden, np.float32)
        self.counters = cuda.to_device(np.zeros(2, np.uint32))
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
