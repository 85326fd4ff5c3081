"""Attention in float16 on Hopper: wgmma multiplies, TMA copies, and exponentials are computed while products run.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), float16; start (1,) int32; D 64 or 128
Work    of an SM for 64 queries and 128 keys of heads of 64: 512 clocks of its tensor cores for two products, 512 of its
        special-function units for 64 x 128 exponentials, and about 400 to issue the scaling, maximum, sum and rounding.
        With mma.sync these add up; wgmma runs while the warps that issued it go on, so here they overlap
Needs   compute capability 9.0 exactly (sm_90a)
Source  J. Shah et al., "FlashAttention-3" (2024), https://arxiv.org/abs/2407.08608; PTX ISA, "Asynchronous Warpgroup
        Level Matrix Instructions"
"""

import math

import numpy as np
from numba import float32, int32, uint32, uint64

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, launch_tiled
from labkit.kernels.attention.flash import check_flash, scale_for_powers_of_two, takes_flash
from labkit.kernels.attention.heads import keys_and_values
from labkit.kernels.matmul.wgmma_tiles import ROW_GROUP
from labkit.kernels.op import missing, rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

PANEL = 64  # float16 values of a row of shared memory: 128 bytes, the widest swizzle
BOX = 64 * PANEL  # float16 values of 64 such rows
REGISTERS = {1: (40, 216), 2: (24, 240), 3: (32, 160)}  # per thread of the producer and of a consumer


KEYS, STAGES = 128, 2  # of a tile of keys, of which so many are in shared memory

# A consumer holds in registers the scores of a tile (64 a thread), the exponentials of the preceding tile as float16
# (32) and the accumulators (size / 2). In the accumulators of a product a thread has pairs of columns which, rounded to
# float16, are its part of an A operand: the exponentials become an operand without leaving their registers. Each stage
# of keys, and of values, has a full and an empty barrier: TMA loads it once, and every consumer reads it.
#
#     producer, for each tile             consumer, for each tile
#     wait for keys_empty, load keys      wait for keys_full; start scores = queries @ keys.T
#     wait for values_empty, load values  wait for values_full; start acc += exponentials @ values of the last tile
#                                         wait for the scores, arrive at keys_empty
#                                         exponentials of the scores, row_max, row_sum: products run
#                                         wait for the products, arrive at values_empty; correct acc, round exponentials
#
# Microseconds for 4,096 tokens (causal) of 12 heads of 64 on an H200, in a graph: 101 (57); PyTorch 112 (84), mma.sync
# 169 (98). Other ways: without overlap inside a warpgroup 109 (60); one consumer, two blocks an SM 114 (64), but up to
# 1,024 tokens the fastest; 64 keys 115 (64); consumers in turns 100 (59); persistent blocks 105 (60), and with every
# fourth exponential a polynomial 114 (63).


@kernel_factory
def make_flash_wgmma(size: int, consumers: int):
    """Attention for heads of `size` float16 values: `consumers` warpgroups have 64 queries each; the last warpgroup,
    the producer, gives up its registers, and one thread of it starts every copy.

    Shared memory, 88 KB for three consumers and heads of 64: queries, then the stages of keys, then those of values.
    Heads of 128 lie in two panels of 64 columns each. Each consumer stages its output where its queries were, for TMA
    to store. Rows of queries beyond the end are computed from zeros and not stored. Scores of keys beyond the end are
    masked, and their values, which in a cache may be NaN, are overwritten with zeros.
    """
    CONSUMERS = consumers
    THREADS, BLOCKS = 128 * (consumers + 1), 2 if consumers == 1 else 1
    PRODUCER_REGISTERS, CONSUMER_REGISTERS = REGISTERS[consumers]
    ROWS, PANELS = 64 * consumers, size // PANEL
    QUERY_PANEL, KEY_PANEL = ROWS * PANEL, KEYS * PANEL
    STAGE = KEYS * size
    KEYS_OFFSET, VALUES_OFFSET = ROWS * size, ROWS * size + STAGES * STAGE
    QUERY_STEP, KEY_STEP, STAGE_STEP = QUERY_PANEL // 8, KEY_PANEL // 8, STAGE // 8  # in 16 bytes, for descriptors
    VALUES_LEADING = 2 * KEY_PANEL
    SCORES, WORDS, ACCUMULATORS = KEYS // 2, KEYS // 4, size // 2
    STAGE_BYTES, QUERY_BYTES = 2 * STAGE, 2 * ROWS * size
    mma_qk = ptx.wgmma_m64n128k16_f32_f16
    mma_pv = getattr(ptx, f"wgmma_m64n{size}k16_f32_f16_ra_bmn")

    # The compiler unrolls all loops of these functions: an array indexed by a loop left rolled would no longer live in
    # registers. A thread has, of each 8 columns of a product, two of its upper row and two of its lower row.

    @cuda.jit(device=True, forceinline=True)
    def load(tiles, offset, bars, stage, kv_map, row, column):
        """Start the copies of a tile of keys, or of values."""
        ptx.mbarrier_expect_tx(bars, stage, STAGE_BYTES)  # whole boxes count, also beyond an edge
        for panel in u32.range(PANELS):
            ptx.tma_load_2d(tiles, offset + stage * STAGE + panel * KEY_PANEL, kv_map,
                            column + panel * PANEL, row, bars, stage)

    @cuda.jit(device=True, forceinline=True)
    def start_qk(scores, queries, tile):
        for panel in u32.range(PANELS):
            for i in u32.range(4):
                mma_qk(scores, queries + uint64(panel * QUERY_STEP + 2 * i), tile + uint64(panel * KEY_STEP + 2 * i),
                       uint32(panel + i > 0))
        ptx.wgmma_commit()

    @cuda.jit(device=True, forceinline=True)
    def start_pv(acc, words, tile):
        for i in range(KEYS // 16):
            w = 4 * i
            mma_pv(acc, words[w], words[w + 1], words[w + 2], words[w + 3], tile + uint64(128 * i), 1)
        ptx.wgmma_commit()

    @cuda.jit(device=True, forceinline=True)
    def mask_scores(scores, key, upper, lower):
        """Mask the scores of keys from `upper` on for a thread's upper row, from `lower` on for its lower row."""
        for j in u32.range(KEYS // 8):
            for right in u32.range(2):
                col = key + (8 * j + right)
                if col >= upper:
                    scores[4 * j + right] = NEG_INF
                if col >= lower:
                    scores[4 * j + right + 2] = NEG_INF

    @cuda.jit(device=True, forceinline=True)
    def online_softmax_update(scores, row_max, row_sum, correction, scale):
        """Turn scores into exponentials; leave the factors for the running sums in `correction`."""
        upper, lower = row_max[0], row_max[1]
        for s in range(0, SCORES, 4):
            upper = max(upper, max(scores[s], scores[s + 1]))
            lower = max(lower, max(scores[s + 2], scores[s + 3]))
        upper = max(upper, cuda.shfl_xor_sync(ALL_LANES, upper, 1))
        lower = max(lower, cuda.shfl_xor_sync(ALL_LANES, lower, 1))
        upper = max(upper, cuda.shfl_xor_sync(ALL_LANES, upper, 2))
        lower = max(lower, cuda.shfl_xor_sync(ALL_LANES, lower, 2))
        correction[0] = ptx.exp2_approx((row_max[0] - upper) * scale)  # 0 for the first tile
        correction[1] = ptx.exp2_approx((row_max[1] - lower) * scale)
        row_max[0], row_max[1] = upper, lower
        upper_shift, lower_shift = -(upper * scale), -(lower * scale)
        upper_sum, lower_sum = ZERO, ZERO
        for s in range(0, SCORES, 4):
            a = ptx.exp2_approx(scores[s] * scale + upper_shift)
            b = ptx.exp2_approx(scores[s + 1] * scale + upper_shift)
            c = ptx.exp2_approx(scores[s + 2] * scale + lower_shift)
            d = ptx.exp2_approx(scores[s + 3] * scale + lower_shift)
            upper_sum += a + b
            lower_sum += c + d
            scores[s], scores[s + 1], scores[s + 2], scores[s + 3] = a, b, c, d
        row_sum[0] = row_sum[0] * correction[0] + upper_sum  # over this thread's keys; the whole row's at the end
        row_sum[1] = row_sum[1] * correction[1] + lower_sum

    @cuda.jit(device=True, forceinline=True)
    def scale_rows(acc, factors):
        for s in range(0, ACCUMULATORS, 4):
            acc[s], acc[s + 1] = acc[s] * factors[0], acc[s + 1] * factors[0]
            acc[s + 2], acc[s + 3] = acc[s + 2] * factors[1], acc[s + 3] * factors[1]

    @cuda.jit(device=True, forceinline=True)
    def pack(words, scores):
        for w in range(WORDS):
            words[w] = ptx.pack_half2(scores[2 * w], scores[2 * w + 1])

    @cuda.jit(device=True, forceinline=True)
    def epilogue(acc, panel, pairs, pair_offset, group):
        """Write a thread's results of 64 columns, as float16, to a box that TMA can store."""
        for j in u32.range(8):
            upper = pair_offset + panel * QUERY_PANEL // 2 + (j ^ group) * 4
            s = 32 * panel + 4 * j
            pairs[upper] = ptx.pack_half2(acc[s], acc[s + 1])
            pairs[upper + 8 * 32] = ptx.pack_half2(acc[s + 2], acc[s + 3])  # eight rows below

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def attention_flash_wgmma_kernel(query_map, kv_map, out_map, start, rows, capacity, kv_offset, width, scale,
                                     causal):
        tiles = cuda.shared.array(0, np.float16, alignment=1024)
        pairs = cuda.shared.array(0, uint32, alignment=1024)  # the same memory, two float16 values at a time
        queries_full = cuda.shared.array(1, np.uint64)
        keys_full = cuda.shared.array(STAGES, np.uint64)
        keys_empty = cuda.shared.array(STAGES, np.uint64)
        values_full = cuda.shared.array(STAGES, np.uint64)
        values_empty = cuda.shared.array(STAGES, np.uint64)
        thread = u32.threadIdx.x
        warpgroup = uint32(cuda.shfl_sync(ALL_LANES, int32(thread // 128), 0))  # uniform to the compiler
        wg_thread = thread % 128
        is_leader = wg_thread == 0

        if thread == 0:
            ptx.mbarrier_init(queries_full, 0, 1)
            for stage in u32.range(STAGES):
                ptx.mbarrier_init(keys_full, stage, 1)
                ptx.mbarrier_init(keys_empty, stage, CONSUMERS)
                ptx.mbarrier_init(values_full, stage, 1)
                ptx.mbarrier_init(values_empty, stage, CONSUMERS)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        head_column = u32.blockIdx.x * size
        row0 = (u32.gridDim.y - 1 - u32.blockIdx.y) * ROWS  # causal: the most work comes first
        context_len = uint32(start[0])
        num_keys = min(context_len + rows, capacity)  # rows beyond may hold anything
        block_end = min(context_len + row0 + ROWS, num_keys) if causal else num_keys
        num_tiles = (block_end + (KEYS - 1)) // KEYS
        stage, parity = 0, 0

        if warpgroup == CONSUMERS:
            ptx.setmaxnreg_decrease(PRODUCER_REGISTERS)
            if is_leader:
                key_column = kv_offset + head_column
                ptx.mbarrier_expect_tx(queries_full, 0, QUERY_BYTES)
                for panel in u32.range(PANELS):
                    ptx.tma_load_2d(tiles, panel * QUERY_PANEL, query_map,
                                    head_column + panel * PANEL, row0, queries_full, 0)
                key0, tile_index = 0, 0
                while tile_index < num_tiles:
                    ptx.mbarrier_wait(keys_empty, stage, 1 - parity)  # passes at once in the first lap
                    load(tiles, KEYS_OFFSET, keys_full, stage, kv_map, key0, key_column)
                    ptx.mbarrier_wait(values_empty, stage, 1 - parity)
                    load(tiles, VALUES_OFFSET, values_full, stage, kv_map, key0, key_column + width)
                    key0, tile_index = key0 + KEYS, tile_index + 1
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, 1 - parity
        else:
            ptx.setmaxnreg_increase(CONSUMER_REGISTERS)
            scores = cuda.local.array(SCORES, float32)
            acc = cuda.local.array(ACCUMULATORS, float32)
            words = cuda.local.array(WORDS, uint32)
            row_max = cuda.local.array(2, float32)
            row_sum = cuda.local.array(2, float32)
            correction = cuda.local.array(2, float32)
            for j in range(ACCUMULATORS):
                acc[j] = ZERO
            for r in range(2):
                row_max[r], row_sum[r] = NEG_INF, ZERO

            # A thread's rows are `upper` and upper + 8 of its consumer's 64; of 8 columns it has 2 * quad and the next.
            lane, quad = wg_thread % 32, wg_thread % 4
            group = lane // 4
            upper = wg_thread // 32 * 16 + group
            wg_row0 = row0 + warpgroup * 64
            wg_end = min(context_len + wg_row0 + 64, num_keys) if causal else num_keys
            wg_tiles = (wg_end + (KEYS - 1)) // KEYS if wg_row0 < rows else 0
            num_visible = context_len + wg_row0 + upper + 1 if causal else num_keys  # keys of a thread's upper row
            num_visible_lower = min(num_visible + 8, num_keys)
            num_visible = min(num_visible, num_keys)
            # Keys that every row of the warp sees
            warp_min_visible = min(context_len + wg_row0 + wg_thread // 32 * 16 + 1, num_keys) if causal else num_keys
            query_tile = ptx.wgmma_descriptor(tiles, warpgroup * BOX, 16, ROW_GROUP, 128)
            key_base = ptx.wgmma_descriptor(tiles, KEYS_OFFSET, 16, ROW_GROUP, 128)
            value_base = ptx.wgmma_descriptor(tiles, VALUES_OFFSET, VALUES_LEADING, ROW_GROUP, 128)
            tile_index = 0

            if wg_tiles > 0:
                ptx.mbarrier_wait(queries_full, 0, 0)
                ptx.mbarrier_wait(keys_full, 0, 0)
                ptx.wgmma_fence()
                start_qk(scores, query_tile, key_base)
                ptx.wgmma_wait(0)
                if is_leader:
                    ptx.mbarrier_arrive(keys_empty, 0)
                key = quad * 2
                if warp_min_visible < KEYS:
                    mask_scores(scores, key, num_visible, num_visible_lower)
                online_softmax_update(scores, row_max, row_sum, correction, scale)
                pack(words, scores)
                tile_index = 1
                value_stage, value_parity = 0, 0
                stage = 1
                while tile_index < wg_tiles:
                    key_tile = key_base + uint64(stage * STAGE_STEP)
                    value_tile = value_base + uint64(value_stage * STAGE_STEP)
                    ptx.mbarrier_wait(keys_full, stage, parity)
                    ptx.wgmma_fence()
                    start_qk(scores, query_tile, key_tile)
                    ptx.mbarrier_wait(values_full, value_stage, value_parity)
                    start_pv(acc, words, value_tile)
                    ptx.wgmma_wait(1)  # the scores have arrived; the product with the values may still be in flight
                    if is_leader:
                        ptx.mbarrier_arrive(keys_empty, stage)
                    key += KEYS
                    if tile_index * KEYS + KEYS > warp_min_visible:
                        mask_scores(scores, key, num_visible, num_visible_lower)
                    online_softmax_update(scores, row_max, row_sum, correction, scale)
                    # Never less than zero. But the compiler is free to move the exponentials after the wait below, and
                    # would; a branch on their sum forces it to compute them first.
                    while cuda.any_sync(ALL_LANES, row_sum[0] + row_sum[1] < ZERO):
                        pass
                    ptx.wgmma_wait(0)  # the previous tile's values are added
                    if is_leader:
                        ptx.mbarrier_arrive(values_empty, value_stage)
                    scale_rows(acc, correction)
                    pack(words, scores)
                    tile_index += 1
                    value_stage, value_parity = stage, parity
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, 1 - parity

                ptx.mbarrier_wait(values_full, value_stage, value_parity)
                tile_key0 = (tile_index - 1) * KEYS
                if num_keys < capacity and num_keys < tile_key0 + KEYS:
                    # Values beyond the last key, which may be NaN, are multiplied by zero: make them zero too.
                    offset = VALUES_OFFSET + value_stage * STAGE
                    for panel in u32.range(PANELS):
                        for word in u32.range((num_keys - tile_key0) * (PANEL // 2) + wg_thread,
                                              KEYS * PANEL // 2, 128):
                            pairs[(offset + panel * KEY_PANEL) // 2 + word] = 0
                    ptx.fence_proxy_async()
                    ptx.named_barrier_sync(warpgroup + 1, 128)
                ptx.wgmma_fence()
                start_pv(acc, words, value_base + uint64(value_stage * STAGE_STEP))
                ptx.wgmma_wait(0)
                if is_leader:
                    ptx.mbarrier_arrive(values_empty, value_stage)

                for r in range(2):
                    denominator = row_sum[r]
                    denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 1)
                    denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 2)
                    correction[r] = ptx.rcp_approx(denominator)
                scale_rows(acc, correction)
                # Stage the output where this consumer's queries were.
                pair_offset = warpgroup * (BOX // 2) + upper * 32 + quad
                epilogue(acc, 0, pairs, pair_offset, group)
                if PANELS > 1:
                    epilogue(acc, 1, pairs, pair_offset, group)
                ptx.fence_proxy_async()
                ptx.named_barrier_sync(warpgroup + 1, 128)
                if is_leader:
                    for panel in u32.range(PANELS):
                        ptx.tma_store_2d(out_map, head_column + panel * PANEL, wg_row0, tiles,
                                         warpgroup * BOX + panel * QUERY_PANEL)
                    ptx.tma_store_commit()

            while tile_index < num_tiles:  # tiles for other consumers: their barriers need this one's arrivals
                if is_leader:
                    ptx.mbarrier_wait(keys_full, stage, parity)
                    ptx.mbarrier_arrive(keys_empty, stage)
                    ptx.mbarrier_wait(values_full, stage, parity)
                    ptx.mbarrier_arrive(values_empty, stage)
                tile_index += 1
                stage += 1
                if stage == STAGES:
                    stage, parity = 0, 1 - parity
            if is_leader:
                ptx.tma_store_wait(0)

    kernel = attention_flash_wgmma_kernel
    kernel.blocks = BLOCKS  # per multiprocessor
    kernel.rows, kernel.threads, kernel.shared_bytes = ROWS, THREADS, 2 * (VALUES_OFFSET + STAGES * STAGE)
    return kernel


def launch_flash_wgmma(kernel, qkv, heads, out, cache, start, causal, stream) -> None:
    """Launch a kernel that make_flash_wgmma made. The arguments must have been checked."""
    tiles = -(-out.shape[0] // kernel.rows)
    if tiles > MAX_GRID_YZ:
        raise ValueError(f"{out.shape[0]:,} rows are too many; at most {MAX_GRID_YZ * kernel.rows:,} are allowed")
    keys_values, start, kv_offset = keys_and_values(qkv, out, cache, start)
    arguments = (ptx.tensor_map_2d(qkv, kernel.rows, PANEL), ptx.tensor_map_2d(keys_values, KEYS, PANEL),
                 ptx.tensor_map_2d(out, 64, PANEL), start, np.uint32(out.shape[0]), np.uint32(keys_values.shape[0]),
                 kv_offset, np.uint32(out.shape[1]), scale_for_powers_of_two(out.shape[1] // heads), np.uint32(causal))
    launch_tiled(kernel, (heads, tiles), stream, *arguments)


SIZES = "heads of 64 or 128 numbers"
# For each head size: consumers -> the microseconds an SM takes for a tile of keys of each of its resident blocks
CONSUMERS_OF = {64: {3: 1.55, 1: 1.2}, 128: {2: 1.55}}


def consumers_for(size: int, rows: int, heads: int, causal: bool) -> int:
    """Return the consumers of a block with which these rows take the least time; on the CPU device, the fewest."""
    times = CONSUMERS_OF[size]
    if not gpus.chosen_on_gpu():
        return min(times)
    sms = gpus.sm_count()

    def time(consumers):
        rounds = heads * -(-rows // (64 * consumers)) / (sms * (2 if consumers == 1 else 1))
        # Causal blocks take half the time on average, the longest one all of it, and it comes first.
        return times[consumers] * (max(1, rounds / 2) if causal else math.ceil(rounds))

    return min(times, key=time)


def takes_flash_wgmma(size: int, qkv, out, cache) -> bool:
    """Whether attention_flash_wgmma can run here and takes heads of `size` and these arguments, already checked."""
    return (size in CONSUMERS_OF and not missing(make_flash_wgmma(size, min(CONSUMERS_OF[size])))
            and takes_flash(size, qkv, out, cache))


@rung(kernel=tuple(make_flash_wgmma(64, consumers) for consumers in CONSUMERS_OF[64]), sizes=SIZES,
      idea="wgmma and TMA: products run while warpgroups take exponentials, which are a factor in registers")
def attention_flash_wgmma(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """As flash, but wgmma in place of mma.sync: a block has 192 queries, or 64 where there are few, a warpgroup 64 of
    them, and the products of one tile run while the scores of the next become exponentials. TMA copies."""
    size, _ = check_flash(qkv, heads, out, cache, start, np.float16)
    if size not in CONSUMERS_OF:
        raise ValueError(f"a head has {size} numbers; it must have {' or '.join(map(str, CONSUMERS_OF))}")
    kernel = make_flash_wgmma(size, consumers_for(size, out.shape[0], heads, causal))
    launch_flash_wgmma(kernel, qkv, heads, out, cache, start, causal, stream)
