"""The loop over tiles of keys on tensor cores, for all attention kernels that have one: float16 or bfloat16, keys in
the rows of a matrix or in pages. Sums are float32.

Source  T. Dao, "FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691; PTX ISA, "Matrix Fragments for
        mma.m16n8k16"

A warp has 16 or 32 queries, and all keys of a tile: scores = queries @ keys.T, then acc += exponentials @ values. An
accumulator and an A operand of mma.sync give lane L the same elements: columns 2 * (L % 4) and the next of rows L // 4
and L // 4 + 8. So the exponentials of two neighbouring 16 x 8 products, packed two to a word, are the A operand of the
product with the values: they never leave their registers.
"""

from dataclasses import dataclass

from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.kernels.arguments import fits
from labkit.kernels.attention.flash import make_copy_rows
from labkit.kernels.attention.heads import multiprocessors
from labkit.kernels.elements import FLOAT16, Element
from labkit.kernels.matmul.mma import ADD_PRODUCT, CHUNK, swizzle_of
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

KEYS = 64  # keys per tile


def rows_in_shared(size: int) -> tuple[bool, int, int, int]:
    """Return (swizzled, pitch, shift, mask) for rows of `size` float16 values in shared memory, so that eight rows, as
    ldmatrix reads them, lie in different banks: swizzled where rows fill whole sets of banks, otherwise padded."""
    if size == 32 or size % 64 == 0:
        return True, size, *swizzle_of(size // CHUNK)
    return False, size + CHUNK, 0, 0


@dataclass(frozen=True)
class MmaTile:
    """What `warps` warps compute at once, for heads of `size` elements of 16 bits: each warp has `m_tiles`
    tiles of 16 queries, and all of `keys` keys. `first` tiles of keys are in flight before the first product. causal:
    a later query may see more keys. stages: tiles of keys that shared memory holds: two, or one where all keys fit
    into a single tile."""

    size: int
    warps: int
    m_tiles: int
    keys: int = KEYS
    element: Element = FLOAT16
    first: int = 1
    causal: bool = True
    stages: int = 2

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        return 16 * self.m_tiles * self.warps

    @property
    def elements(self) -> int:
        """Elements of shared memory: the queries, and the keys and values of each stage."""
        return (self.rows + self.stages * 2 * self.keys) * rows_in_shared(self.size)[1]

    @property
    def shared_bytes(self) -> int:
        return 2 * self.elements

    @property
    def lane_rows(self) -> int:
        """Query rows of which each lane holds elements: two in each tile of 16 queries."""
        return 2 * self.m_tiles

    @property
    def registers(self) -> int:
        """Registers of a thread, where keys are rows of a matrix."""
        if self.m_tiles == 1:
            spills = self.size == 48 and self.warps < 4  # in 128: its rows are padded, which takes more addresses
            return 256 if self.size > 64 else 168 if spills else 128
        return 168 if self.size <= 32 else 256

    @property
    def accumulators(self) -> int:
        return self.lane_rows * self.size // 4


FORMS = ((4, 2), (4, 1), (2, 1), (1, 1))  # of a block, or a team: warps, and tiles of 16 queries for each warp


def keys_of_tile(size: int) -> int:
    """Return how many keys a tile has, so that two tiles fit into the target's shared memory beside 64 queries. It
    depends on the size alone: it decides which keys are added up together."""
    return next(keys for keys in (KEYS, KEYS // 2, KEYS // 4) if fits(MmaTile(size, 4, 1, keys)) or keys == KEYS // 4)


def mma_form(size: int, pairs: int, rows: int) -> tuple[int, int, int]:
    """Return (warps, m_tiles, keys): the tallest tile of queries that `rows` rows need, so that keys and values are
    reused most, and with which `pairs` pairs of a sequence and a head have a block for each SM."""
    min_blocks, keys = multiprocessors(), keys_of_tile(size)
    # The tallest takes a CPU twice as long to compile, and is no faster there. On 7.5, where copies go through
    # registers, it would need more than 255 of them.
    tallest = size <= 64 and min_blocks > 1 and gpus.target().capability > (7, 5)
    for warps, m_tiles in FORMS if tallest else FORMS[1:]:
        tile_rows = 16 * warps * m_tiles
        if (fits(MmaTile(size, warps, m_tiles, keys)) and tile_rows // 2 < rows
                and pairs * -(-rows // tile_rows) >= min_blocks):
            break
    return warps, m_tiles, keys


def make_copy_elements(tile: MmaTile, num_rows: int, make_copy=make_copy_rows):
    """Make the function of make_copy_rows, or of make_copy_strided_rows, for `num_rows` rows as the tile has them in
    shared memory."""
    swizzled, pitch, _, _ = rows_in_shared(tile.size)
    return make_copy(num_rows, tile.size, pitch, tile.threads, CHUNK, swizzled)


def make_mma_steps(size: int, m_tiles: int, keys: int, pitch: int, element: Element = FLOAT16):
    """Make the device functions for a tile of `keys` keys: read_queries, add_scores, mask_scores,
    online_softmax_update and add_values. A warp has `m_tiles` tiles of 16 queries of `size` elements; rows of shared
    memory are `pitch` apart."""
    M_TILES, PITCH = m_tiles, pitch
    K_STEPS, CHUNKS, N_TILES = size // 16, size // CHUNK, keys // 8
    add, pack = ADD_PRODUCT[element], element.pack

    # `offset` is where this lane's row of the first ldmatrix begins, `chunk` the swizzled 16-byte chunk of that row for
    # step 0. Step k is two chunks further: an exclusive or, since these bits of it are zero.

    @cuda.jit(device=True)
    def read_queries(query_words, shared, offset, chunk, k, dst):
        """Read the words of the queries' columns 16 * k to 16 * k + 15."""
        src = offset + (chunk ^ 2 * k) * CHUNK
        for i in u32.range(M_TILES):
            four = ptx.ldmatrix_x4(shared, src + 16 * i * PITCH)
            for n in range(4):
                query_words[dst + 4 * i + n] = four[n]

    @cuda.jit(device=True)
    def add_scores(scores, query_words, shared, offset, chunk, k, q0):
        """scores += 16 steps of queries @ keys.T."""
        src = offset + (chunk ^ 2 * k) * CHUNK
        for pair in u32.range(N_TILES // 2):
            b0, b1, b2, b3 = ptx.ldmatrix_x4(shared, src + 16 * pair * PITCH)
            for i in range(M_TILES):
                q, dst = q0 + 4 * i, (i * N_TILES + 2 * pair) * 4
                a0, a1, a2, a3 = query_words[q], query_words[q + 1], query_words[q + 2], query_words[q + 3]
                add(scores, dst, a0, a1, a2, a3, b0, b1)
                add(scores, dst + 4, a0, a1, a2, a3, b2, b3)

    @cuda.jit(device=True)
    def mask_scores(scores, key, num_visible, r):
        """Set the scores of this lane's row r to -inf for the keys from num_visible on. key: index of the lane's first
        key in this tile."""
        for j in u32.range(N_TILES):
            for right in u32.range(2):
                if key + (8 * j + right) >= num_visible:
                    scores[r // 2 * N_TILES * 4 + r % 2 * 2 + 4 * j + right] = NEG_INF

    @cuda.jit(device=True)
    def online_softmax_update(scores, acc, row_max, row_sum, scale, r):
        """Turn the scores of this lane's row r into exponentials, and rescale its running sums. Row 0 is L // 4, row 1
        is L // 4 + 8; 2 and 3 are the same of the warp's next 16 queries."""
        base = r // 2 * N_TILES * 4 + r % 2 * 2
        new_max = row_max[r]
        for j in range(N_TILES):
            new_max = max(new_max, max(scores[base + 4 * j], scores[base + 4 * j + 1]))
        new_max = max(new_max, cuda.shfl_xor_sync(ALL_LANES, new_max, 1))
        new_max = max(new_max, cuda.shfl_xor_sync(ALL_LANES, new_max, 2))
        correction = ptx.exp2_approx((row_max[r] - new_max) * scale)  # 0 for the first tile
        row_max[r] = new_max
        shift = -(new_max * scale)
        tile_sum = ZERO
        for j in range(N_TILES):
            left = ptx.exp2_approx(scores[base + 4 * j] * scale + shift)
            right = ptx.exp2_approx(scores[base + 4 * j + 1] * scale + shift)
            tile_sum += left + right
            scores[base + 4 * j], scores[base + 4 * j + 1] = left, right
        row_sum[r] = row_sum[r] * correction + tile_sum  # over this lane's keys; the whole row's at the end
        base = r // 2 * CHUNKS * 4 + r % 2 * 2
        for j in range(CHUNKS):
            acc[base + 4 * j] *= correction
            acc[base + 4 * j + 1] *= correction

    @cuda.jit(device=True)
    def add_values(scores, acc, words, shared, offset, chunk, k):
        """acc += exponentials @ values, of the keys 16 * k to 16 * k + 15."""
        for i in range(M_TILES):
            for n in range(4):  # rows L // 4 and L // 4 + 8, of the left 8 columns, then of the right
                left = (i * N_TILES + 2 * k + n // 2) * 4 + n % 2 * 2
                words[4 * i + n] = pack(scores[left], scores[left + 1])
        for pair in u32.range(K_STEPS):
            src = offset + (chunk ^ 2 * pair) * CHUNK
            b0, b1, b2, b3 = ptx.ldmatrix_x4_trans(shared, src + 16 * k * PITCH)
            for i in range(M_TILES):
                dst = (i * CHUNKS + 2 * pair) * 4
                a0, a1, a2, a3 = words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]
                add(acc, dst, a0, a1, a2, a3, b0, b1)
                add(acc, dst + 4, a0, a1, a2, a3, b2, b3)

    return read_queries, add_scores, mask_scores, online_softmax_update, add_values


def make_mma_loop(tile: MmaTile, copy_tile):
    """Make the device functions attend, which loops over the tiles of keys for a tile of queries, and store_rows. Both
    take the offset of the queries in shared memory, where store_rows stages the results.

    copy_tile(shared, offset, source, key0, end, thread) starts the copies of the tile of keys from key0 to shared
    memory, and of its values behind them, with zeros from key `end` on. `source` is a tuple of its own.
    """
    SIZE, M_TILES, KEYS_OF_TILE, STAGES, FIRST = tile.size, tile.m_tiles, tile.keys, tile.stages, tile.first
    _, PITCH, SHIFT, MASK = rows_in_shared(tile.size)
    KEYS_OFFSET, VALUES, CAUSAL = tile.rows * PITCH, tile.keys * PITCH, tile.causal
    STAGE = 2 * VALUES if STAGES > 1 else 0
    PENDING = min(FIRST, STAGES - 1)
    K_STEPS, CHUNKS, WORDS, WARP_ROWS = SIZE // 16, SIZE // CHUNK, M_TILES * 4, 16 * M_TILES
    SCORES, ACCUMULATORS, LANE_ROWS = M_TILES * KEYS_OF_TILE // 2, tile.accumulators, tile.lane_rows
    Q_IN_REGISTERS = M_TILES * K_STEPS <= 8  # larger heads read the queries again for every tile
    QUERY_WORDS = WORDS * K_STEPS if Q_IN_REGISTERS else WORDS
    STORES, ONE_WARP = WARP_ROWS * CHUNKS // 32, tile.warps == 1
    pack = tile.element.pack
    read_queries, add_scores, mask_scores, online_softmax_update, add_values = make_mma_steps(
        SIZE, M_TILES, KEYS_OF_TILE, PITCH, tile.element)

    @cuda.jit(device=True)
    def tile_sync():
        """Make what each thread has copied visible to all threads of the tile."""
        if ONE_WARP:
            cuda.syncwarp()
        else:
            cuda.syncthreads()

    @cuda.jit(device=True)
    def attend(shared, offset, acc, row_sum, row_max, source, visible, scale, thread):
        """Compute acc, row_sum and row_max of this lane's rows. The copies of the queries have been started. visible:
        (end, min_visible, max_visible, causal_end, num_keys). Keys from `end` on are not read; every query of this warp
        sees the keys before min_visible, none sees any from max_visible on; row r of the lane sees those before
        num_keys and, in a causal tile, before causal_end + 8 * r."""
        end, min_visible, max_visible, causal_end, num_keys = visible
        scores = cuda.local.array(SCORES, float32)
        query_words = cuda.local.array(QUERY_WORDS, uint32)
        words = cuda.local.array(WORDS, uint32)
        lane = thread % 32
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        for i in u32.range(LANE_ROWS):
            row_max[i], row_sum[i] = NEG_INF, ZERO
        swizzle = lane >> SHIFT & MASK
        query_offset = offset + (thread // 32 * WARP_ROWS + lane % 16) * PITCH
        query_chunk = lane // 16 ^ swizzle  # for queries and values: rows L % 16, the right chunk from lane 16 on
        keys_offset = offset + KEYS_OFFSET
        key_offset = keys_offset + (lane % 8 + lane // 16 * 8) * PITCH
        key_chunk = lane // 8 % 2 ^ swizzle  # for keys: the right chunk before the next eight rows
        value_offset = keys_offset + VALUES + lane % 16 * PITCH

        ptx.cp_async_commit()
        for n in u32.range(FIRST):
            if n * KEYS_OF_TILE < end:
                copy_tile(shared, keys_offset + n * STAGE, source, n * KEYS_OF_TILE, end, thread)
            ptx.cp_async_commit()
        if Q_IN_REGISTERS or FIRST == STAGES:
            ptx.cp_async_wait(PENDING)
            tile_sync()  # the queries have arrived; where every stage is being filled, the first tile, too
        if Q_IN_REGISTERS:
            for k in range(K_STEPS):
                read_queries(query_words, shared, query_offset, query_chunk, k, k * WORDS)
        key0, stage = 0, 0
        while key0 < end:
            key1 = key0 + KEYS_OF_TILE
            if STAGES > 1 and (FIRST < STAGES or key0 > 0):
                ptx.cp_async_wait(0)
                tile_sync()  # this tile has arrived, and all warps are done with the other
                if key1 < end:
                    copy_tile(shared, keys_offset + STAGE - stage, source, key1, end, thread)
                    ptx.cp_async_commit()
            if key0 < max_visible:
                for i in u32.range(SCORES):
                    scores[i] = ZERO
                for k in range(K_STEPS):
                    if Q_IN_REGISTERS:
                        add_scores(scores, query_words, shared, key_offset + stage, key_chunk, k, k * WORDS)
                    else:
                        read_queries(query_words, shared, query_offset, query_chunk, k, 0)
                        add_scores(scores, query_words, shared, key_offset + stage, key_chunk, k, 0)
                if key1 > min_visible:  # some query must not see some key of this tile
                    key = key0 + lane % 4 * 2
                    for r in u32.range(LANE_ROWS):
                        mask_scores(scores, key, min(causal_end + 8 * r, num_keys) if CAUSAL else num_keys, r)
                for r in u32.range(LANE_ROWS):
                    online_softmax_update(scores, acc, row_max, row_sum, scale, r)
                for k in range(KEYS_OF_TILE // 16):
                    add_values(scores, acc, words, shared, value_offset + stage, query_chunk, k)
            key0, stage = key1, STAGE - stage

    @cuda.jit(device=True)
    def store_rows(shared, offset, acc, row_sum, out, rows, head_column, thread):
        """Divide acc by row_sum and store this warp's rows of out. rows: (begin, row0, end): the tile begins at row
        begin + row0, and rows from begin + end on do not exist."""
        pairs = cuda.shared.array(0, uint32)  # the same memory as `shared`, two elements at a time
        begin, row0, end = rows
        lane, width = thread % 32, u32.shape(out)[1]
        warp_row0 = thread // 32 * WARP_ROWS
        if row0 + warp_row0 < end:
            for r in u32.range(LANE_ROWS):
                denominator = row_sum[r]
                denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 1)
                denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 2)
                row_sum[r] = float32(1.0) / denominator
            # Stage the output where this warp's queries were, so that lanes store whole rows, 16 bytes each.
            ptx.cp_async_wait(0)
            cuda.syncwarp()  # all lanes are done with the queries
            warp_offset = offset + warp_row0 * PITCH
            for r in u32.range(LANE_ROWS):
                row = lane // 4 + 8 * r
                for j in u32.range(CHUNKS):
                    a = (r // 2 * CHUNKS + j) * 4 + r % 2 * 2
                    dst = warp_offset + row * PITCH + (j ^ row >> SHIFT & MASK) * CHUNK
                    pairs[dst // 2 + lane % 4] = pack(acc[a] * row_sum[r], acc[a + 1] * row_sum[r])
            cuda.syncwarp()
            for i in u32.range(STORES):
                index = lane + 32 * i
                row, chunk = index // CHUNKS, index % CHUNKS
                src = warp_offset + row * PITCH + (chunk ^ row >> SHIFT & MASK) * CHUNK
                x, y, z, w = ptx.load_shared4(shared, src)
                out_row = row0 + warp_row0 + row
                if out_row < end:
                    ptx.store_global4(out, (begin + out_row) * width + head_column + chunk * CHUNK, x, y, z, w)

    return attend, store_rows


def make_contiguous_mma_loop(tile: MmaTile):
    """Make the functions of make_mma_loop for keys and values in rows of a matrix. source: (the matrix, its row with
    key 0, the columns where a head's keys and its values begin)."""
    VALUES = tile.keys * rows_in_shared(tile.size)[1]
    copy_rows = make_copy_elements(tile, tile.keys)

    @cuda.jit(device=True)
    def copy_tile(shared, offset, source, key0, end, thread):
        matrix, row0, key_column, value_column = source
        copy_rows(shared, offset, matrix, row0 + key0, row0 + end, key_column, thread)
        copy_rows(shared, offset + VALUES, matrix, row0 + key0, row0 + end, value_column, thread)

    return make_mma_loop(tile, copy_tile)
