"""Attention in float16 on Hopper: wgmma multiplies, TMA copies, and exponentials are taken while products run.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), float16; start (1,) int32
Sizes   D 64 or 128; any other
Needs   compute capability 9.0 exactly (sm_90a)
Source  J. Shah et al., "FlashAttention-3" (2024), https://arxiv.org/abs/2407.08608; PTX ISA, "Asynchronous Warpgroup
        Level Matrix Instructions"

What an SM has to do for 64 queries and 128 keys of heads of 64, in clocks:

    tensor cores              two products of 64 x 128 x 64, 4,096 operations a clock          512
    special-function units    64 x 128 powers of two, 16 a clock                               512
    the rest                  scaling, maximum, sum, rounding: about 400 instructions          400
                              for each of the four warps, one a clock from each scheduler

No part is small beside another. One after the other, as with mma.sync, they add up; the aim is to run them at the
same time. wgmma makes this possible: it runs while the warp that started it does something else.
"""

import math

import numpy as np
from numba import float32, int32, uint32, uint64

from labkit import cuda, device, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, dynamic_shared
from labkit.kernels.attention.flash import check_flash, scale_for_powers_of_two, takes_flash
from labkit.kernels.attention.heads import keys_and_values
from labkit.kernels.matmul.wgmma import HOPPER
from labkit.kernels.matmul.wgmma_tiles import ROW_GROUP
from labkit.kernels.op import missing, rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

PANEL = 64  # float16 values of a row of shared memory: 128 bytes, the widest swizzle
BOX = 64 * PANEL  # float16 values of 64 rows
REGISTERS = {1: (40, 216), 2: (24, 240), 3: (32, 160)}  # of a thread of the producer, of a consumer


@kernel_factory
def make_flash_wgmma(size: int, consumers: int, keys: int, stages: int):
    """Attention for heads of `size` float16 values: a block has `consumers` warpgroups with 64 queries each, takes
    tiles of `keys` keys, and keeps `stages` of them in shared memory, at least two.

    The last warpgroup, the producer, gives its registers away, and one thread of it starts every copy. A consumer has,
    in registers, the scores of a tile (keys / 2 of a thread), the exponentials of the tile before as float16 (keys / 4)
    and the accumulators (size / 2): 128 of the 160 that a thread of three consumers can have. In the accumulators of a
    product a thread holds pairs of columns that are, rounded to float16, its part of a first factor: the exponentials
    are that of the product with the values, without leaving their registers.

        producer                            consumer
        queries; then for each tile:        wait for keys_there; start scores = queries @ keys.T
        wait for keys_read, copy keys       wait for values_there; start acc += exponentials @ values of the last tile
        wait for values_read, copy values   wait for the scores, arrive at keys_read
                                            exponentials of the scores, row_max, row_sum: products run
                                            wait for the products, arrive at values_read
                                            correct acc, round the exponentials

    So the tensor cores have work while a warpgroup takes exponentials: its own product with the values, and what the
    others have started. There are barriers for keys and values of each stage, for the loaded and the read ones: they
    are loaded once, by TMA, and read by each consumer.

    Shared memory, for three consumers and 128 keys of heads of 64, 88 KB:
            0  queries, 192 x 64 float16 values; each consumer writes its results to where its queries were, for TMA to
            store
        24576  two tiles of keys, 128 x 64 each
        57344  two tiles of values
    Heads of 128 lie in two panels of 64 columns each. Rows of queries beyond the end are computed from zeros and not
    stored; a consumer that has no others only keeps its barriers going. Scores of keys beyond the end count as nothing.
    In a cache what lies beyond may be NaN, also among values, where an exponential of zero does not help: the last
    tile's values are overwritten with zeros.

    Measured on an H200 in a graph, 12 heads of 64, microseconds for 4,096 tokens (causal), PyTorch 112 (84) in the
    same runs, mma.sync 169 (98):
        as it stands: three consumers, 128 keys, two stages; 100 to 102                                  101 (57)
        waits for all products before it takes exponentials: overlap only with other warpgroups          109 (60)
        one consumer, two blocks a multiprocessor: up to 1,024 tokens the fastest                        114 (64)
        two consumers                                                                                    119 (69)
        three consumers, 64 keys                                                                         115 (64)
        two consumers, 192 keys                                                                          142 (74)
        consumers take turns: one starts products when the one before has started its own                100 (59)
        two consumers, 192 keys, in turns                                                                121 (69)
        row_max and row_sum in more chains of instructions, which wait less for each other               102 (57)
        persistent blocks, which copy the next queries early                                             105 (60)
        persistent, and acc is corrected only where a row of the warp has a new row_max                  108 (60)
        persistent, and every fourth exponential is a polynomial of degree three, which takes load off the
        special-function units: they are not what it waits for                                           114 (63)
    A round of three tiles takes 1.5 us; 0.8 us of it would be enough for the tensor cores, and as much for the
    exponentials. Heads of 128 (6 of them, 4,096 tokens): 100 to 122 us in different runs, causal 51; PyTorch 105 and
    79.
    """
    CONSUMERS, KEYS, STAGES = consumers, keys, stages
    THREADS, BLOCKS = 128 * (consumers + 1), 2 if consumers == 1 else 1
    PRODUCER, CONSUMER = REGISTERS[consumers]
    ROWS, PANELS = 64 * consumers, size // PANEL
    QUERY_PANEL, KEY_PANEL = ROWS * PANEL, keys * PANEL
    STAGE = keys * size
    KEYS_AT, VALUES_AT = ROWS * size, ROWS * size + stages * STAGE
    QUERY_STEP, KEY_STEP, STAGE_STEP = QUERY_PANEL // 8, KEY_PANEL // 8, STAGE // 8  # in 16 bytes, for descriptors
    VALUES_LEADING = 2 * KEY_PANEL
    SCORES, CHUNKS, WORDS, ACCUMULATORS = keys // 2, keys // 64, keys // 4, size // 2
    STAGE_BYTES, QUERY_BYTES = 2 * STAGE, 2 * ROWS * size
    score = getattr(ptx, f"wgmma_m64n{keys}k16_f32_f16")
    mix = getattr(ptx, f"wgmma_m64n{size}k16_f32_f16_ra_bmn")

    # The loops of these functions are as long as the compiler unrolls: what a loop indexes that stayed one would lose
    # its registers.

    @cuda.jit(device=True, forceinline=True)
    def load(tiles, at, bars, stage, kv_map, row, column):
        """Starts the copies of a tile of keys, or of values."""
        ptx.mbarrier_expect_tx(bars, stage, STAGE_BYTES)  # whole boxes count, also beyond an edge
        for panel in u32.range(PANELS):
            ptx.tma_load_2d(tiles, at + stage * STAGE + panel * KEY_PANEL, kv_map,
                            column + panel * PANEL, row, bars, stage)

    @cuda.jit(device=True, forceinline=True)
    def start_scores(scores, queries, tile):
        for panel in u32.range(PANELS):
            for i in u32.range(4):
                score(scores, queries + uint64(panel * QUERY_STEP + 2 * i), tile + uint64(panel * KEY_STEP + 2 * i),
                      uint32(panel + i > 0))
        ptx.wgmma_commit()

    @cuda.jit(device=True, forceinline=True)
    def mix_chunk(acc, words, tile, chunk):
        for i in range(4):
            w = 16 * chunk + 4 * i
            mix(acc, words[w], words[w + 1], words[w + 2], words[w + 3], tile + uint64(128 * (4 * chunk + i)),
                1)

    @cuda.jit(device=True, forceinline=True)
    def start_mixing(acc, words, tile):
        mix_chunk(acc, words, tile, 0)
        if CHUNKS > 1:
            mix_chunk(acc, words, tile, 1)
        if CHUNKS > 2:
            mix_chunk(acc, words, tile, 2)
        ptx.wgmma_commit()

    @cuda.jit(device=True, forceinline=True)
    def hide_chunk(scores, chunk, key, upper, lower):
        for j in u32.range(8):
            for right in u32.range(2):
                at = 32 * chunk + 4 * j + right
                this = key + (64 * chunk + 8 * j + right)
                if this >= upper:
                    scores[at] = NEG_INF
                if this >= lower:
                    scores[at + 2] = NEG_INF

    @cuda.jit(device=True, forceinline=True)
    def hide(scores, key, upper, lower):
        """Scores that do not count: of keys from `upper` on for a thread's upper row, from `lower` on for the other."""
        hide_chunk(scores, 0, key, upper, lower)
        if CHUNKS > 1:
            hide_chunk(scores, 1, key, upper, lower)
        if CHUNKS > 2:
            hide_chunk(scores, 2, key, upper, lower)

    @cuda.jit(device=True, forceinline=True)
    def max_chunk(scores, chunk, upper, lower):
        for j in range(8):
            s = 32 * chunk + 4 * j
            upper = max(upper, max(scores[s], scores[s + 1]))
            lower = max(lower, max(scores[s + 2], scores[s + 3]))
        return upper, lower

    @cuda.jit(device=True, forceinline=True)
    def exp_chunk(scores, chunk, scale, upper, lower, upper_sum, lower_sum):
        for j in range(8):
            s = 32 * chunk + 4 * j
            a, b = ptx.exp2_approx(scores[s] * scale + upper), ptx.exp2_approx(scores[s + 1] * scale + upper)
            c, d = ptx.exp2_approx(scores[s + 2] * scale + lower), ptx.exp2_approx(scores[s + 3] * scale + lower)
            upper_sum += a + b
            lower_sum += c + d
            scores[s], scores[s + 1], scores[s + 2], scores[s + 3] = a, b, c, d
        return upper_sum, lower_sum

    @cuda.jit(device=True, forceinline=True)
    def online_softmax_update(scores, row_max, row_sum, correction, scale):
        """Scores become exponentials; what the sums so far have to be multiplied by is left in `correction`."""
        upper, lower = max_chunk(scores, 0, row_max[0], row_max[1])
        if CHUNKS > 1:
            upper, lower = max_chunk(scores, 1, upper, lower)
        if CHUNKS > 2:
            upper, lower = max_chunk(scores, 2, upper, lower)
        upper = max(upper, cuda.shfl_xor_sync(ALL_LANES, upper, 1))
        lower = max(lower, cuda.shfl_xor_sync(ALL_LANES, lower, 1))
        upper = max(upper, cuda.shfl_xor_sync(ALL_LANES, upper, 2))
        lower = max(lower, cuda.shfl_xor_sync(ALL_LANES, lower, 2))
        correction[0] = ptx.exp2_approx((row_max[0] - upper) * scale)  # 0 for the first tile
        correction[1] = ptx.exp2_approx((row_max[1] - lower) * scale)
        row_max[0], row_max[1] = upper, lower
        shift, shift_lower = -(upper * scale), -(lower * scale)
        a, b = exp_chunk(scores, 0, scale, shift, shift_lower, ZERO, ZERO)
        if CHUNKS > 1:
            a, b = exp_chunk(scores, 1, scale, shift, shift_lower, a, b)
        if CHUNKS > 2:
            a, b = exp_chunk(scores, 2, scale, shift, shift_lower, a, b)
        row_sum[0] = row_sum[0] * correction[0] + a  # of this thread's keys; the row's at the end
        row_sum[1] = row_sum[1] * correction[1] + b

    @cuda.jit(device=True, forceinline=True)
    def multiply_rows(acc, factors):
        for j in range(8):
            s = 4 * j
            acc[s], acc[s + 1] = acc[s] * factors[0], acc[s + 1] * factors[0]
            acc[s + 2], acc[s + 3] = acc[s + 2] * factors[1], acc[s + 3] * factors[1]
        if PANELS > 1:
            for j in range(8):
                s = 32 + 4 * j
                acc[s], acc[s + 1] = acc[s] * factors[0], acc[s + 1] * factors[0]
                acc[s + 2], acc[s + 3] = acc[s + 2] * factors[1], acc[s + 3] * factors[1]

    @cuda.jit(device=True, forceinline=True)
    def pack_chunk(words, scores, chunk):
        for i in range(16):
            w = 16 * chunk + i
            words[w] = ptx.pack_half2(scores[2 * w], scores[2 * w + 1])

    @cuda.jit(device=True, forceinline=True)
    def pack(words, scores):
        pack_chunk(words, scores, 0)
        if CHUNKS > 1:
            pack_chunk(words, scores, 1)
        if CHUNKS > 2:
            pack_chunk(words, scores, 2)

    @cuda.jit(device=True, forceinline=True)
    def epilogue(acc, panel, pairs, pair, eighth):
        """A thread's results of 64 columns, as float16, to a box that TMA can store."""
        for j in u32.range(8):
            upper = pair + panel * QUERY_PANEL // 2 + (j ^ eighth) * 4
            s = 32 * panel + 4 * j
            pairs[upper] = ptx.pack_half2(acc[s], acc[s + 1])
            pairs[upper + 8 * 32] = ptx.pack_half2(acc[s + 2], acc[s + 3])  # eight rows below

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def attention_flash_wgmma_kernel(query_map, kv_map, out_map, start, rows, capacity, first, width, scale, causal):
        tiles = cuda.shared.array(0, np.float16, alignment=1024)
        pairs = cuda.shared.array(0, uint32, alignment=1024)  # the same memory, two float16 values at a time
        queries_there = cuda.shared.array(1, np.uint64)
        keys_there = cuda.shared.array(STAGES, np.uint64)
        keys_read = cuda.shared.array(STAGES, np.uint64)
        values_there = cuda.shared.array(STAGES, np.uint64)
        values_read = cuda.shared.array(STAGES, np.uint64)
        thread = u32.threadIdx.x
        warpgroup = uint32(cuda.shfl_sync(ALL_LANES, int32(thread // 128), 0))  # the compiler sees: uniform
        member = thread % 128
        first_member = member == 0

        if thread == 0:
            ptx.mbarrier_init(queries_there, 0, 1)
            for stage in u32.range(STAGES):
                ptx.mbarrier_init(keys_there, stage, 1)
                ptx.mbarrier_init(keys_read, stage, CONSUMERS)
                ptx.mbarrier_init(values_there, stage, 1)
                ptx.mbarrier_init(values_read, stage, CONSUMERS)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        head_column = u32.blockIdx.x * size
        row0 = (u32.gridDim.y - u32.blockIdx.y - 1) * ROWS  # causal: the most work comes first
        before = uint32(start[0])
        end = min(before + rows, capacity)  # of the keys; what lies beyond may be anything
        all_end = min(before + row0 + ROWS, end) if causal else end
        count = (all_end + (KEYS - 1)) // KEYS
        stage, parity = 0, 0

        if warpgroup == CONSUMERS:
            ptx.setmaxnreg_decrease(PRODUCER)
            if first_member:
                key_column = first + head_column
                ptx.mbarrier_expect_tx(queries_there, 0, QUERY_BYTES)
                for panel in u32.range(PANELS):
                    ptx.tma_load_2d(tiles, panel * QUERY_PANEL, query_map,
                                    head_column + panel * PANEL, row0, queries_there, 0)
                key0, number = 0, 0
                while number < count:
                    ptx.mbarrier_wait(keys_read, stage, 1 - parity)  # passes at once in the first lap
                    load(tiles, KEYS_AT, keys_there, stage, kv_map, key0, key_column)
                    ptx.mbarrier_wait(values_read, stage, 1 - parity)
                    load(tiles, VALUES_AT, values_there, stage, kv_map, key0, key_column + width)
                    key0, number = key0 + KEYS, number + 1
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, 1 - parity
        else:
            ptx.setmaxnreg_increase(CONSUMER)
            scores = cuda.local.array(SCORES, float32)
            acc = cuda.local.array(ACCUMULATORS, float32)
            words = cuda.local.array(WORDS, uint32)
            row_max = cuda.local.array(2, float32)
            row_sum = cuda.local.array(2, float32)
            correction = cuda.local.array(2, float32)
            for j in range(16):
                acc[j], acc[j + 16] = ZERO, ZERO
            if PANELS > 1:
                for j in range(16):
                    acc[j + 32], acc[j + 48] = ZERO, ZERO
            for r in range(2):
                row_max[r], row_sum[r] = NEG_INF, ZERO

            # A thread's rows are `upper` and upper + 8 of its consumer's 64; of 8 columns it has 2 * quad and the next.
            lane, quad = member % 32, member % 4
            eighth = lane // 4
            upper = member // 32 * 16 + eighth
            mine = row0 + warpgroup * 64
            my_end = min(before + mine + 64, end) if causal else end
            my_count = (my_end + (KEYS - 1)) // KEYS if mine < rows else 0
            sees = before + mine + upper + 1 if causal else end  # so many keys a thread's upper row
            sees_lower = min(sees + 8, end)
            sees = min(sees, end)
            warp_sees = min(before + mine + member // 32 * 16 + 1, end) if causal else (
                end)  # what each row of the warp sees
            query_tile = ptx.wgmma_descriptor(tiles, warpgroup * BOX, 16, ROW_GROUP, 128)
            key_first = ptx.wgmma_descriptor(tiles, KEYS_AT, 16, ROW_GROUP, 128)
            value_first = ptx.wgmma_descriptor(tiles, VALUES_AT, VALUES_LEADING, ROW_GROUP, 128)
            number = 0

            if my_count > 0:
                ptx.mbarrier_wait(queries_there, 0, 0)
                ptx.mbarrier_wait(keys_there, 0, 0)
                ptx.wgmma_fence()
                start_scores(scores, query_tile, key_first)
                ptx.wgmma_wait(0)
                if first_member:
                    ptx.mbarrier_arrive(keys_read, 0)
                key = quad * 2
                if warp_sees < KEYS:
                    hide(scores, key, sees, sees_lower)
                online_softmax_update(scores, row_max, row_sum, correction, scale)
                pack(words, scores)
                number = 1
                value_stage, value_parity = 0, 0
                stage = 1
                while number < my_count:
                    key_tile = key_first + uint64(stage * STAGE_STEP)
                    value_tile = value_first + uint64(value_stage * STAGE_STEP)
                    ptx.mbarrier_wait(keys_there, stage, parity)
                    ptx.wgmma_fence()
                    start_scores(scores, query_tile, key_tile)
                    ptx.mbarrier_wait(values_there, value_stage, value_parity)
                    start_mixing(acc, words, value_tile)
                    ptx.wgmma_wait(1)  # these scores are there; the values may still be on their way into acc
                    if first_member:
                        ptx.mbarrier_arrive(keys_read, stage)
                    key += KEYS
                    if number * KEYS + KEYS > warp_sees:
                        hide(scores, key, sees, sees_lower)
                    online_softmax_update(scores, row_max, row_sum, correction, scale)
                    # Never less than zero. But the compiler, which may wait before it takes exponentials, and would,
                    # has to have their sum first where a branch depends on it.
                    while cuda.any_sync(ALL_LANES, row_sum[0] + row_sum[1] < ZERO):
                        pass
                    ptx.wgmma_wait(0)  # the values of the tile before are added
                    if first_member:
                        ptx.mbarrier_arrive(values_read, value_stage)
                    multiply_rows(acc, correction)
                    pack(words, scores)
                    number += 1
                    value_stage, value_parity = stage, parity
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, 1 - parity

                ptx.mbarrier_wait(values_there, value_stage, value_parity)
                last0 = (number - 1) * KEYS
                if end < capacity and end < last0 + KEYS:
                    # Values of no key, which may be NaN, are multiplied by zero, and have to be zero too.
                    at = VALUES_AT + value_stage * STAGE
                    for panel in u32.range(PANELS):
                        for spot in u32.range((end - last0) * (PANEL // 2) + member, KEYS * PANEL // 2, 128):
                            pairs[(at + panel * KEY_PANEL) // 2 + spot] = 0
                    ptx.fence_proxy_async()
                    ptx.named_barrier_sync(warpgroup + 1, 128)
                ptx.wgmma_fence()
                start_mixing(acc, words, value_first + uint64(value_stage * STAGE_STEP))
                ptx.wgmma_wait(0)
                if first_member:
                    ptx.mbarrier_arrive(values_read, value_stage)

                for r in range(2):
                    whole = row_sum[r]
                    whole += cuda.shfl_xor_sync(ALL_LANES, whole, 1)
                    whole += cuda.shfl_xor_sync(ALL_LANES, whole, 2)
                    correction[r] = ptx.rcp_approx(whole)
                multiply_rows(acc, correction)
                # Out through the place of this consumer's queries.
                pair = warpgroup * (BOX // 2) + upper * 32 + quad
                epilogue(acc, 0, pairs, pair, eighth)
                if PANELS > 1:
                    epilogue(acc, 1, pairs, pair, eighth)
                ptx.fence_proxy_async()
                ptx.named_barrier_sync(warpgroup + 1, 128)
                if first_member:
                    for panel in u32.range(PANELS):
                        ptx.tma_store_2d(out_map, head_column + panel * PANEL, mine, tiles,
                                         warpgroup * BOX + panel * QUERY_PANEL)
                    ptx.tma_store_commit()

            while number < count:  # tiles that only other consumers use: their barriers need this one's arrivals
                if first_member:
                    ptx.mbarrier_wait(keys_there, stage, parity)
                    ptx.mbarrier_arrive(keys_read, stage)
                    ptx.mbarrier_wait(values_there, stage, parity)
                    ptx.mbarrier_arrive(values_read, stage)
                number += 1
                stage += 1
                if stage == STAGES:
                    stage, parity = 0, 1 - parity
            if first_member:
                ptx.tma_store_wait(0)

    kernel = attention_flash_wgmma_kernel
    kernel.blocks = BLOCKS  # that a multiprocessor holds
    kernel.rows, kernel.keys, kernel.threads = ROWS, KEYS, THREADS
    kernel.shared_bytes = 2 * (VALUES_AT + stages * STAGE)
    return kernel


def launch_flash_wgmma(kernel, qkv, heads, out, cache, start, causal, stream) -> None:
    """Launches a kernel that make_flash_wgmma made. Arguments are checked before."""
    tiles = -(-out.shape[0] // kernel.rows)
    if tiles > MAX_GRID_YZ:
        raise ValueError(f"{out.shape[0]:,} rows are too many; at most {MAX_GRID_YZ * kernel.rows:,} are allowed")
    keys_values, start, first = keys_and_values(qkv, out, cache, start)
    arguments = (ptx.tensor_map_2d(qkv, kernel.rows, PANEL), ptx.tensor_map_2d(keys_values, kernel.keys, PANEL),
                 ptx.tensor_map_2d(out, 64, PANEL), start, np.uint32(out.shape[0]), np.uint32(keys_values.shape[0]),
                 first, np.uint32(out.shape[1]), scale_for_powers_of_two(out.shape[1] // heads), np.uint32(causal))
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    kernel[(heads, tiles), kernel.threads, stream, kernel.shared_bytes](*arguments)


SIZES = "heads of 64 or 128 numbers"
# Of a head's size: forms, and microseconds that one multiprocessor takes for a tile with all that runs there at once.
FORMS = {64: {(3, 128, 2): 1.55, (1, 128, 2): 1.2}, 128: {(2, 128, 2): 1.55}}


def flash_wgmma_form(size: int, rows: int, heads: int, causal: bool) -> tuple[int, int, int]:
    """The form that finishes first: what make_flash_wgmma takes after the size. On the CPU device, the smallest."""
    forms = FORMS[size]
    if not device.on_gpu():
        return min(forms)
    sms = cuda.get_current_device().MULTIPROCESSOR_COUNT

    def time(form):
        consumers = form[0]
        rounds = heads * -(-rows // (64 * consumers)) / (sms * (2 if consumers == 1 else 1))
        # Causal blocks take half the time on average, the longest one all of it, and it comes first.
        return forms[form] * (max(1, rounds / 2) if causal else math.ceil(rounds))

    return min(forms, key=time)


def takes_flash_wgmma(size: int, qkv, out, cache) -> bool:
    """Whether attention_flash_wgmma can run here and allows heads of `size` and these arguments, checked before."""
    return size in FORMS and not missing(HOPPER) and takes_flash(size, qkv, out, cache)


@rung(kernel=tuple(make_flash_wgmma(64, *form) for form in FORMS[64]), needs=HOPPER, sizes=SIZES,
      idea="wgmma and TMA: products run while warpgroups take exponentials, which are a factor in registers")
def attention_flash_wgmma(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """As flash, but wgmma in place of mma.sync: a block has 192 queries, or 64 where there are few, a warpgroup 64 of
    them, and the products of one tile run while the scores of the next become exponentials. TMA copies."""
    size, _ = check_flash(qkv, heads, out, cache, start, np.float16)
    if size not in FORMS:
        raise ValueError(f"a head has {size} numbers; it must have {' or '.join(map(str, FORMS))}")
    kernel = make_flash_wgmma(size, *flash_wgmma_form(size, out.shape[0], heads, causal))
    launch_flash_wgmma(kernel, qkv, heads, out, cache, start, causal, stream)
