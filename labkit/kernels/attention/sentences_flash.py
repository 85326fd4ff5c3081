"""Attention over sentences in tiles of keys: float16 on tensor cores, and float32.

Shapes  as in sentences.py: qkv (T, 3*H*D), out (T, H*D), begins and lengths (B,) int32
Sizes   D a multiple of 16; float16 at most 128, float32 at most 256
Source  as half.py and flash.py, of whose steps a tile is made

A block takes a tile of queries of one sentence and one head; sentence and head come from the grid, the sentence's rows
from begins and lengths. A tile that lies beyond its sentence ends at once. For rows beyond a sentence's end shared
memory gets zeros, nothing is read, and their keys do not count: what lies there, be it NaN, reaches no result.

The tiles of keys begin at the sentence's own first row, 64 keys each, whatever the form; a form with smaller tiles is
chosen only where every sentence fits into one of them, and a key that is not there adds an exact zero. So a sentence
has the same result, bit for bit, alone, padded to any length, and packed, in every form.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, device, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, dynamic_shared
from labkit.kernels.attention.flash import ASYNC, STEP, THREADS, make_copy_rows, make_flash_steps
from labkit.kernels.attention.flash import scale_for_powers_of_two as scale_of
from labkit.kernels.attention.half import KEYS, make_half_steps
from labkit.kernels.attention.heads import check_sentences, find_sentence
from labkit.kernels.matmul.mma import CHUNK, MMA, swizzle_of
from labkit.kernels.op import rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

WIDEST, WIDEST_HALF = 256, 128
SIZES = f"heads of a multiple of {STEP} numbers, at most {WIDEST}"
SIZES_HALF = f"heads of a multiple of {STEP} numbers, at most {WIDEST_HALF}"


def check_tiled(qkv, heads, begins, lengths, longest, out, dtype, widest: int) -> int:
    """As check_sentences; and rows move 16 bytes at a time."""
    size = check_sentences(qkv, heads, begins, lengths, longest, out, dtype)
    if size % STEP or size > widest:
        raise ValueError(f"a head has {size} numbers; it must be a multiple of {STEP}, at most {widest}")
    if not aligned(qkv, out):
        raise ValueError("qkv and out must begin at a multiple of 16 bytes; one is a view that does not")
    return size


def rows_in_shared(size: int) -> tuple[bool, int, int, int]:
    """(swizzled, pitch, shift, mask) of rows of `size` float16 values in shared memory, so that eight rows, as ldmatrix
    reads them, lie in different banks: swizzled where rows fill whole sets of banks, and else padded."""
    if size == 32 or size % 64 == 0:
        return True, size, *swizzle_of(size // CHUNK)
    return False, size + CHUNK, 0, 0


def multiprocessors() -> int:
    """How many blocks keep the whole GPU busy; on the CPU device one does."""
    return device.sm_count() if device.on_gpu() else 1


# --- float16 ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_sentences_flash_half(size: int, warps: int, down: int, keys: int, teams: int):
    """Attention for heads of `size` float16 values: a team of `warps` warps, with `down` times 16 queries each, has a
    tile of queries of one head and takes tiles of `keys` keys. A block has `teams` teams, with neighbouring heads; more
    than one only where a team is one warp, which needs no barrier of the block.

    The queries and the first two tiles of keys and values are in flight before the first product: up to 128 tokens,
    a block waits for memory once after it has read where its sentence lies. Longer sentences take turns in the two.
    """
    SIZE, DOWN, TEAMS = size, down, teams
    TEAM, WARP_ROWS = 32 * warps, 16 * down
    THREADS, ROWS, ALONE = TEAM * teams, warps * WARP_ROWS, warps == 1
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(size)
    TILE = keys * PITCH
    STAGES = 1 if keys < KEYS else 2  # smaller tiles are for sentences that fit into one
    PENDING = STAGES - 1
    STAGE, KEYS_AT = 2 * TILE, ROWS * PITCH
    NUMBERS = KEYS_AT + STAGES * STAGE  # of a team
    STEPS, PIECES, ACROSS = SIZE // 16, SIZE // CHUNK, keys // 8
    SCORES, ACCUMULATORS, LANE_ROWS = DOWN * ACROSS * 4, DOWN * PIECES * 4, DOWN * 2
    WORDS = DOWN * 4
    KEPT = DOWN * STEPS <= 8  # the queries' words stay in registers
    QUERY_WORDS = WORDS * STEPS if KEPT else WORDS
    MOVES = WARP_ROWS * PIECES // 32
    REGISTERS = (128 if size <= 64 else 256) if down == 1 else 168 if size <= 32 else 256
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, TEAM, CHUNK, SWIZZLED)
    copy_rows = make_copy_rows(keys, SIZE, PITCH, TEAM, CHUNK, SWIZZLED)
    read_queries, add_scores, hide, online_softmax_update, add_values = make_half_steps(SIZE, DOWN, keys, PITCH)

    @cuda.jit(device=True)
    def copy_tile(shared, at, qkv, row, end, key_column, width, member):
        copy_rows(shared, at, qkv, row, end, key_column, member)
        copy_rows(shared, at + TILE, qkv, row, end, key_column + width, member)

    @cuda.jit(device=True)
    def meet():
        """What each thread of the team has copied is there for all of it."""
        if ALONE:
            cuda.syncwarp()
        else:
            cuda.syncthreads()

    @cuda.jit(launch_bounds=(THREADS, max(1, 65_536 // (REGISTERS * THREADS))))
    def attention_sentences_flash_half_kernel(qkv, begins, lengths, out, longest, scale):
        shared = cuda.shared.array(0, np.float16)
        pairs = cuda.shared.array(0, uint32)  # the same memory, two float16 values at a time
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_words = cuda.local.array(QUERY_WORDS, uint32)
        words = cuda.local.array(WORDS, uint32)
        row_max = cuda.local.array(LANE_ROWS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        thread = u32.threadIdx.x
        lane, member, team = thread % 32, thread % TEAM, thread // TEAM
        rows, width = u32.shape(out)
        head_column = (u32.blockIdx.x * TEAMS + team) * SIZE
        key_column = width + head_column
        begin, tokens, scale = find_sentence(begins, lengths, u32.blockIdx.z, rows, longest, scale)
        row0 = u32.blockIdx.y * ROWS  # counted from the sentence's first, as are keys
        if row0 >= tokens:
            return
        end = begin + tokens
        mine = member // 32 * WARP_ROWS  # this warp's first row in the tile
        active = row0 + mine < tokens  # or else the warp only copies
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(LANE_ROWS):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        base = team * NUMBERS
        swizzle = lane >> SHIFT & MASK
        query_at = base + (mine + lane % 16) * PITCH
        wide = lane // 16 ^ swizzle  # for queries and values: rows L % 16, right piece from lane 16 on
        stage = base + KEYS_AT
        key_at = (lane % 8 + lane // 16 * 8) * PITCH
        tall = lane // 8 % 2 ^ swizzle  # for keys: the right piece before the next eight rows
        value_at = TILE + lane % 16 * PITCH

        copy_queries(shared, base, qkv, begin + row0, end, head_column, member)
        copy_tile(shared, stage, qkv, begin, end, key_column, width, member)
        ptx.cp_async_commit()
        if STAGES == 2:
            if tokens > keys:
                copy_tile(shared, stage + STAGE, qkv, begin + keys, end, key_column, width, member)
            ptx.cp_async_commit()
        ptx.cp_async_wait(PENDING)
        meet()  # the queries and the first tile are there
        if KEPT:
            for k in range(STEPS):
                read_queries(query_words, shared, query_at, wide, k, k * WORDS)
        key0, next_stage = 0, stage + STAGE
        while key0 < tokens:
            key1 = key0 + keys
            if active:
                for i in u32.range(SCORES):
                    scores[i] = ZERO
                for k in range(STEPS):
                    if KEPT:
                        add_scores(scores, query_words, shared, stage + key_at, tall, k, k * WORDS)
                    else:
                        read_queries(query_words, shared, query_at, wide, k, 0)
                        add_scores(scores, query_words, shared, stage + key_at, tall, k, 0)
                if key1 > tokens:
                    key = key0 + lane % 4 * 2
                    for r in u32.range(LANE_ROWS):
                        hide(scores, key, tokens, r)
                for r in u32.range(LANE_ROWS):
                    online_softmax_update(scores, acc, row_max, row_sum, scale, r)
                for k in range(keys // 16):
                    add_values(scores, acc, words, shared, stage + value_at, wide, k)
            if STAGES == 2 and key1 < tokens:
                key2 = key1 + keys
                if key2 < tokens:
                    meet()  # every warp has read this tile
                    copy_tile(shared, stage, qkv, begin + key2, end, key_column, width, member)
                ptx.cp_async_commit()
                ptx.cp_async_wait(PENDING)
                meet()  # the next tile is there
                stage, next_stage = next_stage, stage
            key0 = key1

        if active:
            for r in u32.range(LANE_ROWS):
                whole = row_sum[r]
                whole += cuda.shfl_xor_sync(ALL_LANES, whole, 1)
                whole += cuda.shfl_xor_sync(ALL_LANES, whole, 2)
                row_sum[r] = float32(1.0) / whole
            # Out through the place of this warp's queries, so that lanes store rows whole, 16 bytes each.
            cuda.syncwarp()  # all lanes have read the queries
            place0 = base + mine * PITCH
            for r in u32.range(LANE_ROWS):
                row = lane // 4 + 8 * r
                for j in u32.range(PIECES):
                    at = (r // 2 * PIECES + j) * 4 + r % 2 * 2
                    piece = j ^ row >> SHIFT & MASK
                    place = place0 + row * PITCH + piece * CHUNK
                    pairs[place // 2 + lane % 4] = ptx.pack_half2(acc[at] * row_sum[r], acc[at + 1] * row_sum[r])
            cuda.syncwarp()
            for i in u32.range(MOVES):
                move = lane + 32 * i
                row, piece = move // PIECES, move % PIECES
                swizzled = piece ^ row >> SHIFT & MASK
                x, y, z, w = ptx.load_shared4(shared, place0 + row * PITCH + swizzled * CHUNK)
                t = row0 + mine + row
                if t < tokens:
                    ptx.store_global4(out, (begin + t) * width + head_column + piece * CHUNK, x, y, z, w)

    kernel = attention_sentences_flash_half_kernel
    kernel.rows, kernel.threads, kernel.teams, kernel.shared_bytes = ROWS, THREADS, TEAMS, 2 * TEAMS * NUMBERS
    return kernel


FORMS = ((4, 2), (4, 1), (2, 1), (1, 1))  # warps of a team, and 16 queries so many times for each


def sentences_half_form(size: int, heads: int, sentences: int, longest: int) -> tuple[int, int, int, int]:
    """(warps, down, keys, teams) of the kernel: the most queries a tile of which a smaller one would not do, and of
    which there is a block for each SM. What keys and values a block has loaded is then used most often. Where a tile is
    one warp's, the block takes up to four heads: a GPU starts blocks one after the other."""
    keys = min(KEYS, 16 * -(-longest // 16))
    wanted = multiprocessors()
    # The widest takes a CPU twice as long to compile, and is no quicker there.
    for warps, down in FORMS if size <= 64 and wanted > 1 else FORMS[1:]:
        rows = 16 * warps * down
        blocks = heads * sentences * -(-longest // rows)
        if rows // 2 < longest and blocks >= wanted:
            break
    teams = next(n for n in (4, 2, 1) if n == 1 or warps == 1 and heads % n == 0 and blocks // n >= wanted)
    return warps, down, keys, teams


@rung(kernel=make_sentences_flash_half(32, 4, 2, KEYS, 1), needs=MMA, sizes=SIZES_HALF,
      idea="tiles of keys on tensor cores: scores and weights stay in registers")
def attention_sentences_flash_half(qkv, heads, begins, lengths, longest, out, *, stream=0):
    """A block takes 16 to 128 queries of a head of a sentence. Where a sentence fits into a tile of queries, its keys
    and values are loaded once; no score goes to memory, nor do the parts of a padded batch that are padding."""
    size = check_tiled(qkv, heads, begins, lengths, longest, out, np.float16, WIDEST_HALF)
    form = sentences_half_form(size, heads, lengths.size, longest)
    launch_sentences(make_sentences_flash_half(size, *form), qkv, heads, begins, lengths, longest, out, stream)


def launch_sentences(kernel, qkv, heads, begins, lengths, longest, out, stream=0) -> None:
    """Launches a kernel that one of the factories here made. Arguments are checked before."""
    size = out.shape[1] // heads
    arguments = (qkv, begins, lengths, out, np.uint32(longest), scale_of(size))
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    grid = (heads // kernel.teams, -(-longest // kernel.rows), lengths.size)
    kernel[grid, kernel.threads, stream, kernel.shared_bytes](*arguments)


# --- float32 ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_sentences_flash(size: int, down: int):
    """Attention for heads of `size` numbers; a thread has `down` queries and eight keys of a tile, as in make_flash."""
    SIZE, DOWN = size, down
    PART = min(down, 4)
    ACROSS = 8 if size % 32 == 0 else 4
    GROUPS = THREADS // ACROSS
    ROWS, TILE = DOWN * GROUPS, 8 * ACROSS
    SCORES, QUADS = DOWN * 8, SIZE // (4 * ACROSS)
    COLUMNS = 4 * QUADS
    ACCUMULATORS, QUERY_PART = DOWN * COLUMNS, DOWN * 4
    PITCH, EXP_PITCH = SIZE + 4, TILE + 8  # neighbouring rows begin in different banks
    KEYS_AT = ROWS * PITCH
    VALUES_AT = KEYS_AT + TILE * PITCH
    EXP_AT = VALUES_AT + TILE * SIZE
    NUMBERS = EXP_AT + ROWS * EXP_PITCH
    XOR_OFFSETS = (4, 2, 1) if ACROSS == 8 else (2, 1)
    BLOCKS = 1 if SIZE > 128 else max(1, min(4 if DOWN <= 2 else 3, 233_472 // (4 * NUMBERS + 1024)))
    copy_queries = make_copy_rows(ROWS, SIZE, PITCH, THREADS, 4)
    copy_keys = make_copy_rows(TILE, SIZE, PITCH, THREADS, 4)
    copy_values = make_copy_rows(TILE, SIZE, SIZE, THREADS, 4)
    read_four, add_scores, add_values, online_softmax_update = make_flash_steps(SIZE, DOWN)

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def attention_sentences_flash_kernel(qkv, begins, lengths, out, longest, scale):
        shared = cuda.shared.array(0, float32)
        scores = cuda.local.array(SCORES, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_part = cuda.local.array(QUERY_PART, float32)
        row_max = cuda.local.array(DOWN, float32)
        row_sum = cuda.local.array(DOWN, float32)
        thread = u32.threadIdx.x
        x, y = thread % ACROSS, thread // ACROSS
        rows, width = u32.shape(out)
        head_column = u32.blockIdx.x * SIZE
        key_column = width + head_column
        begin, tokens, scale = find_sentence(begins, lengths, u32.blockIdx.z, rows, longest, scale)
        row0 = u32.blockIdx.y * ROWS  # counted from the sentence's first, as are keys
        if row0 >= tokens:
            return
        end = begin + tokens
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(DOWN):
            row_max[i], row_sum[i] = NEG_INF, ZERO

        copy_queries(shared, 0, qkv, begin + row0, end, head_column, thread)
        copy_keys(shared, KEYS_AT, qkv, begin, end, key_column, thread)
        ptx.cp_async_commit()
        ptx.cp_async_wait(0)
        cuda.syncthreads()  # the queries and the first keys are there
        key0 = 0
        while key0 < tokens:
            # These values are in flight while the scores are computed, the next keys during the rest.
            copy_values(shared, VALUES_AT, qkv, begin + key0, end, key_column + width, thread)
            ptx.cp_async_commit()
            for i in u32.range(SCORES):
                scores[i] = ZERO
            query_at, key_at = y * PITCH, KEYS_AT + x * PITCH
            query_end = query_at + SIZE
            while query_at < query_end:
                read_four(query_part, shared, query_at, PITCH)
                add_scores(scores, query_part, shared, key_at, 0)
                add_scores(scores, query_part, shared, key_at, 4)
                query_at, key_at = query_at + 4, key_at + 4
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # the values are there, and no thread reads these keys any more
            key1 = key0 + TILE
            if key1 < tokens:
                copy_keys(shared, KEYS_AT, qkv, begin + key1, end, key_column, thread)
            ptx.cp_async_commit()

            if key1 > tokens:
                for i in u32.range(DOWN):
                    for j in u32.range(8):
                        if key0 + x + j * ACROSS >= tokens:
                            scores[8 * i + j] = NEG_INF
            exp_at = EXP_AT + y * EXP_PITCH
            online_softmax_update(scores, acc, row_max, row_sum, shared, exp_at + x, scale, 0)
            if DOWN > PART:
                online_softmax_update(scores, acc, row_max, row_sum, shared, exp_at + x, scale, PART)
            cuda.syncwarp()  # the exponentials of this warp's queries are complete; no other warp reads them

            value_at = VALUES_AT + x * 4
            exp_end = exp_at + TILE
            while exp_at < exp_end:
                read_four(query_part, shared, exp_at, EXP_PITCH)
                add_values(acc, query_part, shared, value_at, 0)
                add_values(acc, query_part, shared, value_at, 1)
                add_values(acc, query_part, shared, value_at, 2)
                add_values(acc, query_part, shared, value_at, 3)
                exp_at, value_at = exp_at + 4, value_at + 4 * SIZE
            ptx.cp_async_wait(0)
            cuda.syncthreads()  # the next keys are there, and no thread reads these values any more
            key0 = key1

        for i in u32.range(DOWN):
            whole = row_sum[i]
            for distance in XOR_OFFSETS:
                whole += cuda.shfl_xor_sync(ALL_LANES, whole, distance)
            share = float32(1.0) / whole
            t = row0 + y + i * GROUPS
            if t < tokens:
                for q in u32.range(QUADS):
                    at = COLUMNS * i + 4 * q
                    place = (begin + t) * width + head_column + x * 4 + q * 4 * ACROSS
                    ptx.store_global4(out, place, acc[at] * share, acc[at + 1] * share, acc[at + 2] * share,
                                      acc[at + 3] * share)

    kernel = attention_sentences_flash_kernel
    kernel.rows, kernel.threads, kernel.teams, kernel.shared_bytes = ROWS, THREADS, 1, 4 * NUMBERS
    return kernel


def sentences_flash_rows(size: int, heads: int, sentences: int, longest: int) -> int:
    """How many queries a thread has: as many as sentences need and as leave a block for each SM."""
    wanted, groups = multiprocessors(), THREADS // (8 if size % 32 == 0 else 4)
    down = 1 if not device.on_gpu() else 4 if size <= 128 else 2
    while down > 1 and (down * groups // 2 >= longest or heads * sentences * -(-longest // (down * groups)) < wanted):
        down //= 2
    return down


@rung(kernel=make_sentences_flash(32, 1), needs=ASYNC, sizes=SIZES,
      idea="tiles of keys, corrected accumulators: no score goes to memory")
def attention_sentences_flash(qkv, heads, begins, lengths, longest, out, *, stream=0):
    """As attention_flash, one launch for all sentences: a block takes 16 to 128 queries of a head of a sentence."""
    size = check_tiled(qkv, heads, begins, lengths, longest, out, np.float32, WIDEST)
    down = sentences_flash_rows(size, heads, lengths.size, longest)
    launch_sentences(make_sentences_flash(size, down), qkv, heads, begins, lengths, longest, out, stream)
