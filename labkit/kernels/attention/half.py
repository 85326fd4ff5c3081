"""Attention in float16 on tensor cores, in tiles of keys. The sums are float32.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), float16; start (1,) int32
Sizes   D a multiple of 16, at most 256; any other
Source  T. Dao, "FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691; PTX ISA, "Matrix Fragments for
        mma.m16n8k16"

A warp has 16 or 32 queries, and all keys of a tile: scores = queries @ keys.T, then acc += exponentials @ values. In
the accumulators of mma.sync lane L holds columns 2 * (L % 4) and the next of rows L // 4 and 8 below; in its first
factor it holds words of the same columns and rows. So two products of 16 x 8 scores, side by side, become exponentials,
are rounded to float16, two to a word, and are the first factor of the product with the values: they never leave their
registers.
"""


import numpy as np
from numba import float32, uint32

from labkit import cuda, device, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.decode import make_decode
from labkit.kernels.attention.flash import SIZES, check_flash, launch_decode, launch_flash, make_copy_rows
from labkit.kernels.attention.heads import check_heads
from labkit.kernels.attention.three_pass import FEW
from labkit.kernels.attention.wgmma import attention_flash_wgmma, takes_flash_wgmma
from labkit.kernels.matmul.mma import CHUNK, MMA, add_product, add_product_bf16
from labkit.kernels.op import rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

KEYS = 64  # of a tile


def make_half_steps(size: int, down: int, keys: int, pitch: int, bf16: bool = False):
    """Make the device functions for a tile of `keys` keys: read_queries, add_scores, hide, online_softmax_update and
    add_values. A warp has `down` times 16 queries of `size` float16 values, or bfloat16; rows of shared memory take
    `pitch`."""
    DOWN, PITCH = down, pitch
    STEPS, PIECES, ACROSS = size // 16, size // CHUNK, keys // 8
    add, pack = (add_product_bf16, ptx.pack_bf162) if bf16 else (add_product, ptx.pack_half2)

    # `at` is where this lane's row of a first ldmatrix begins, `piece` the 16 bytes that it wants of the row for step
    # 0, both as the swizzle has them. Step k is two pieces further: an exclusive or, for these bits of it are zero.

    @cuda.jit(device=True)
    def read_queries(query_words, shared, at, piece, k, to):
        """The words of the queries' columns 16 * k to 16 * k + 15."""
        place = at + (piece ^ 2 * k) * CHUNK
        for i in u32.range(DOWN):
            four = ptx.ldmatrix_x4(shared, place + 16 * i * PITCH)
            for n in range(4):
                query_words[to + 4 * i + n] = four[n]

    @cuda.jit(device=True)
    def add_scores(scores, query_words, shared, at, piece, k, q0):
        """scores += 16 steps of queries @ keys.T."""
        place = at + (piece ^ 2 * k) * CHUNK
        for pair in u32.range(ACROSS // 2):
            b0, b1, b2, b3 = ptx.ldmatrix_x4(shared, place + 16 * pair * PITCH)
            for i in range(DOWN):
                q, to = q0 + 4 * i, (i * ACROSS + 2 * pair) * 4
                a0, a1, a2, a3 = query_words[q], query_words[q + 1], query_words[q + 2], query_words[q + 3]
                add(scores, to, a0, a1, a2, a3, b0, b1)
                add(scores, to + 4, a0, a1, a2, a3, b2, b3)

    @cuda.jit(device=True)
    def hide(scores, key, seen, r):
        """Scores of this lane's row r that do not count: their keys, the first of which is `key`, are not seen."""
        for j in u32.range(ACROSS):
            for right in u32.range(2):
                if key + (8 * j + right) >= seen:
                    scores[r // 2 * ACROSS * 4 + r % 2 * 2 + 4 * j + right] = NEG_INF

    @cuda.jit(device=True)
    def online_softmax_update(scores, acc, row_max, row_sum, scale, r):
        """The scores of this lane's row r become exponentials, and its sums so far are corrected. Row 0 is L // 4, row
        1 the row 8 below; 2 and 3 are the same of the warp's next 16 queries."""
        first = r // 2 * ACROSS * 4 + r % 2 * 2
        new = row_max[r]
        for j in range(ACROSS):
            new = max(new, max(scores[first + 4 * j], scores[first + 4 * j + 1]))
        new = max(new, cuda.shfl_xor_sync(ALL_LANES, new, 1))
        new = max(new, cuda.shfl_xor_sync(ALL_LANES, new, 2))
        correction = ptx.exp2_approx((row_max[r] - new) * scale)  # 0 for the first tile
        row_max[r] = new
        shift = -(new * scale)
        part = ZERO
        for j in range(ACROSS):
            left = ptx.exp2_approx(scores[first + 4 * j] * scale + shift)
            right = ptx.exp2_approx(scores[first + 4 * j + 1] * scale + shift)
            part += left + right
            scores[first + 4 * j], scores[first + 4 * j + 1] = left, right
        row_sum[r] = row_sum[r] * correction + part  # of this lane's keys; the row's at the end
        first = r // 2 * PIECES * 4 + r % 2 * 2
        for j in range(PIECES):
            acc[first + 4 * j] *= correction
            acc[first + 4 * j + 1] *= correction

    @cuda.jit(device=True)
    def add_values(scores, acc, words, shared, at, piece, k):
        """acc += exponentials @ values, of the keys 16 * k to 16 * k + 15."""
        for i in range(DOWN):
            for n in range(4):  # rows L // 4 and 8 below, of the left 8 columns, then of the right
                left = (i * ACROSS + 2 * k + n // 2) * 4 + n % 2 * 2
                words[4 * i + n] = pack(scores[left], scores[left + 1])
        for pair in u32.range(STEPS):
            place = at + (piece ^ 2 * pair) * CHUNK
            b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(shared, place + 16 * k * PITCH)
            for i in range(DOWN):
                to = (i * PIECES + 2 * pair) * 4
                a0, a1, a2, a3 = words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]
                add(acc, to, a0, a1, a2, a3, b0, b1)
                add(acc, to + 4, a0, a1, a2, a3, b2, b3)

    return read_queries, add_scores, hide, online_softmax_update, add_values


@kernel_factory
def make_flash_half(size: int, warps: int, down: int):
    """Attention for heads of `size` float16 values; each of `warps` warps has `down` times 16 queries."""
    SIZE, DOWN = size, down
    THREADS, WARP_ROWS = 32 * warps, 16 * down
    ROWS = warps * WARP_ROWS
    SWIZZLED = size % 64 == 0
    PITCH = SIZE if SWIZZLED else SIZE + CHUNK  # either way eight rows, as ldmatrix reads them, lie in different banks
    MASK = 7 if SWIZZLED else 0
    TILE = KEYS * PITCH
    STAGE, KEYS_AT = 2 * TILE, ROWS * PITCH
    STEPS, PIECES, ACROSS = SIZE // 16, SIZE // CHUNK, KEYS // 8
    SCORES, ACCUMULATORS, LANE_ROWS = DOWN * ACROSS * 4, DOWN * PIECES * 4, DOWN * 2
    WORDS = DOWN * 4
    KEPT = DOWN * STEPS <= 8  # the queries' words stay in registers; larger heads read them for every tile
    QUERY_WORDS = WORDS * STEPS if KEPT else WORDS
    MOVES = WARP_ROWS * PIECES // 32
    REGISTERS = 128 if size <= 64 and down == 1 else 256
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_rows = make_copy_rows(KEYS, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    read_queries, add_scores, hide, online_softmax_update, add_values = make_half_steps(SIZE, DOWN, KEYS, PITCH)

    @cuda.jit(device=True)
    def copy_tile(shared, at, keys_values, key0, end, key_column, width, thread):
        copy_rows(shared, at, keys_values, key0, end, key_column, thread)
        copy_rows(shared, at + TILE, keys_values, key0, end, key_column + width, thread)
        ptx.cp_async_commit()

    @cuda.jit(launch_bounds=(THREADS, 65_536 // (REGISTERS * THREADS)))
    def attention_flash_half_kernel(qkv, keys_values, start, out, first, scale, causal):
        shared = cuda.shared.array(0, np.float16)
        pairs = cuda.shared.array(0, uint32)  # the same memory, two float16 values at a time
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_words = cuda.local.array(QUERY_WORDS, uint32)
        words = cuda.local.array(WORDS, uint32)
        row_max = cuda.local.array(LANE_ROWS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        rows, width = u32.shape(out)
        head_column = u32.blockIdx.x * SIZE
        key_column = first + head_column
        row0 = (u32.gridDim.y - u32.blockIdx.y - 1) * ROWS  # causal: the most work comes first
        before = uint32(start[0])
        keys = min(before + rows, u32.shape(keys_values)[0])  # what lies beyond may be anything
        seen_by_first = min(before + row0 + 1, keys) if causal else keys
        end = min(before + row0 + ROWS, keys) if causal else keys  # no query here sees more
        own = before + row0 + warp * WARP_ROWS + lane // 4 + 1  # what row 0 sees
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(LANE_ROWS):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        swizzle = lane & MASK
        query_at = (warp * WARP_ROWS + lane % 16) * PITCH
        wide = lane // 16 ^ swizzle  # for queries and values: rows L % 16, right piece from lane 16 on
        key_at = KEYS_AT + (lane % 8 + lane // 16 * 8) * PITCH
        tall = lane // 8 % 2 ^ swizzle  # for keys: the right piece before the next eight rows
        value_at = KEYS_AT + TILE + lane % 16 * PITCH

        copy_queries(shared, 0, qkv, row0, rows, head_column, thread)
        ptx.cp_async_commit()
        copy_tile(shared, KEYS_AT, keys_values, 0, end, key_column, width, thread)
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
                copy_tile(shared, KEYS_AT + STAGE - stage, keys_values, key1, end, key_column, width,
                          thread)
            for i in u32.range(SCORES):
                scores[i] = ZERO
            for k in range(STEPS):
                if KEPT:
                    add_scores(scores, query_words, shared, key_at + stage, tall, k, k * WORDS)
                else:
                    read_queries(query_words, shared, query_at, wide, k, 0)
                    add_scores(scores, query_words, shared, key_at + stage, tall, k, 0)
            if key1 > seen_by_first:  # some query does not see some key of this tile
                key = key0 + lane % 4 * 2
                for r in u32.range(LANE_ROWS):
                    hide(scores, key, min(own + 8 * r, keys) if causal else keys, r)
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
        mine = warp * (WARP_ROWS * PITCH)
        for r in u32.range(LANE_ROWS):
            row = lane // 4 + 8 * r
            for j in u32.range(PIECES):
                at = (r // 2 * PIECES + j) * 4 + r % 2 * 2
                place = mine + row * PITCH + (j ^ row & MASK) * CHUNK
                pairs[place // 2 + lane % 4] = ptx.pack_half2(acc[at] * row_sum[r],
                                                                                      acc[at + 1] * row_sum[r])
        cuda.syncwarp()
        for i in u32.range(MOVES):
            move = lane + 32 * i
            row, piece = move // PIECES, move % PIECES
            place = mine + row * PITCH + (piece ^ row & MASK) * CHUNK
            x, y, z, w = ptx.load_shared4(shared, place)
            to = row0 + warp * WARP_ROWS + row
            if to < rows:
                ptx.store_global4(out, to * width + head_column + piece * CHUNK, x, y, z, w)

    attention_flash_half_kernel.rows, attention_flash_half_kernel.threads = ROWS, THREADS
    attention_flash_half_kernel.shared_bytes = 2 * (KEYS_AT + 2 * STAGE)
    return attention_flash_half_kernel


FORMS = ((4, 2), (4, 1), (2, 1), (1, 1))  # warps of a block, and 16 queries so many times for each


def flash_half_form(size: int, rows: int, heads: int) -> tuple[int, int]:
    """The form with the most rows of which there is a block for each SM. On the CPU device, the one with the most
    rows."""
    forms = FORMS if size <= 64 else FORMS[1:]
    wanted = cuda.get_current_device().MULTIPROCESSOR_COUNT if device.on_gpu() else 1
    for warps, down in forms:
        if heads * -(-rows // (16 * warps * down)) >= wanted:
            return warps, down
    return forms[-1]


@rung(kernel=make_flash_half(64, 4, 1), needs=MMA, sizes=SIZES,
      idea="tensor cores: scores become exponentials, and a factor of the next product, in registers")
def attention_flash_half(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """A block takes 16 to 128 queries of one head, a warp 16 or 32 of them, and the keys in tiles of 64. cp.async
    brings the next tile, swizzled, while this one is multiplied. Tiles that no query sees are left out."""
    size, _ = check_flash(qkv, heads, out, cache, start, np.float16)
    kernel = make_flash_half(size, *flash_half_form(size, out.shape[0], heads))
    launch_flash(kernel, qkv, heads, out, cache, start, causal, stream)


@rung(kernel=make_decode(64, True), sizes=f"{SIZES}, and at most 65,535 rows",
      idea="for a query or a few: blocks share the keys, a second launch combines what they found")
def attention_decode_half(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0, workspace=None):
    """As attention_decode, which also says what workspace is: 16 bytes are eight float16 values, and all sums
    float32."""
    launch_decode(qkv, heads, out, cache, start, causal, stream, workspace, np.float16)


SHORT = 64  # queries: for so few, blocks of 16 are done sooner; 3.2 us for 64 of 12 heads on an H200, wgmma takes 3.6


def attention_half(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """The rung to use."""
    size, _ = check_heads(qkv, heads, out, cache, start, np.float16)
    if cache is not None and out.shape[0] <= FEW:
        pick = attention_decode_half
    elif device.on_gpu() and out.shape[0] > SHORT and takes_flash_wgmma(size, qkv, out, cache):
        pick = attention_flash_wgmma
    else:
        pick = attention_flash_half
    pick(qkv, heads, out, cache=cache, start=start, causal=causal, stream=stream)
