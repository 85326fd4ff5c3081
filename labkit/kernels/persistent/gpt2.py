"""A token of a GPT-2, from its id to the logits and the greedy token after it, in one kernel.

Shapes  weights, a buffer of float32 or float16 (Sizes.layer gives a layer's layout; the weight and bias of the final
        norm follow the last layer), table and head (V, C), positions (P, C), cache (layers, rows, 2*C) of the same
        type; ids, start (1,) int32: the token, and how many are in the cache; logits (1, V) float32
Needs   compute capability 9.0
Work    all weights, keys and values are read once. In each layer the blocks exchange rows six times, float32 in words
        that carry their epoch; they join (joins.py) only before the greedy token
Source  B. Spector et al., "Look Ma, No Bubbles! Designing a Low-Latency Megakernel for Llama-1B" (2025)
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import float32, int32, int64, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.argmax import LEAST, key_of, warp_largest_key
from labkit.kernels.arguments import aligned, check_array, launch_tiled
from labkit.kernels.attention.pages import LOG2_E
from labkit.kernels.elements import FLOAT32, Element
from labkit.kernels.gelu import gelu_sigmoid
from labkit.kernels.norm.rows import EPSILON, small
from labkit.kernels.op import missing
from labkit.kernels.persistent.joins import arrive, leave, mark, wait
from labkit.kernels.persistent.ring import make_claim, make_stages
from labkit.kernels.reduce import ALL_LANES, NEG_INF, XOR_OFFSETS, ZERO, warp_sum
from labkit.kernels.rope import NAN

PHASES = 5  # of a layer: qkv, attention, o, the MLP, the sum of its products
MAX_SPLITS = 32  # of the keys of a head
MAX_POLLS = 1 << 22  # of a word; at about half a microsecond each, seconds: the launch is then wrong
WIDEST = 1280  # numbers of a row in a warp's registers, beside its norm's weight and bias


@dataclass(frozen=True)
class Sizes:
    """GPT-2's sizes. blocks: of the launch. splits: of the keys of a head. warps: of a block that compute; one more
    copies. in_flight: stages that an SM copies at once. timed: record when each block begins and ends each phase."""

    hidden: int
    heads: int
    inner: int
    vocab: int
    element: Element = FLOAT32
    blocks: int = 132
    splits: int = 11
    warps: int = 8
    stages: int = 7
    in_flight: int = 4
    timed: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def pitch(self) -> int:
        """Elements of a row of weights in memory: its bias lies behind it, with which it is copied."""
        return self.hidden + self.element.per_load

    @property
    def layer(self) -> dict[str, int]:
        """Where each part of a layer begins, and where the layer ends, in elements."""
        C, M, begin, result = self.hidden, self.inner, 0, {}
        for name, size in (("qkv", 3 * C * self.pitch), ("o", C * self.pitch), ("fc", M * self.pitch), ("proj", M * C),
                           ("proj_bias", C), ("ln_1", 2 * C), ("ln_2", 2 * C), ("end", 0)):
            result[name], begin = begin, begin + size
        return result

    @property
    def stage(self) -> int:
        """Elements of a stage of the ring: a row of weights for each warp, or keys and values."""
        return self.warps * self.pitch

    @property
    def stage_tokens(self) -> int:
        """Tokens whose keys and values fill a stage."""
        return self.stage // (2 * self.head_dim)

    @property
    def ring_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.stages * self.stage * self.element.dtype.itemsize

    @property
    def threads(self) -> int:
        return 32 * (self.warps + 1)

    @property
    def words(self) -> dict[str, int]:
        """Where each row that the blocks exchange begins, in words, and where the last one ends."""
        C, begin, result = self.hidden, 0, {}
        for name, size in (("qkv", 3 * C), ("partial", self.heads * self.splits * (self.head_dim + 2)), ("attended", C),
                           ("added", C), ("products", self.blocks * self.received), ("out", C), ("end", 0)):
            result[name], begin = begin, begin + size
        return result

    def rows_each(self, rows: int) -> int:
        """Return how many of a matrix's rows a block has, at most; the last blocks have fewer, or none."""
        return -(-rows // self.blocks)

    @property
    def received(self) -> int:
        """Words of the MLP's products that a block receives: for each of its rows of x, one from each block that has
        rows of the MLP; an even number."""
        words = self.rows_each(self.hidden) * -(-self.inner // self.rows_each(self.inner))
        return words + words % 2

    @property
    def gathered(self) -> int:
        """float32 in shared memory: the longest row that a block gathers."""
        return max(self.hidden, self.splits * (self.head_dim + 2), 3 * self.head_dim, self.received)

    @property
    def out_chunks(self) -> int:
        """16 bytes each, of a row of the MLP's second layer, that a thread multiplies."""
        return -(-self.hidden // (32 * self.warps * self.element.per_load))

    @property
    def out_threads(self) -> int:
        """Threads that have all of such a row."""
        return -(-self.hidden // (self.element.per_load * self.out_chunks))

    @property
    def shares(self) -> int:
        """How many times so many threads there are: each has every shares-th row."""
        return max(n for n in (1, 2, 4) if n == 1 or (n * self.out_threads <= 32 * self.warps and self.warps % n == 0))

    @property
    def scratch(self) -> int:
        """float32 in shared memory: the warps' results of attention, or this block's part of the MLP's inner row."""
        return max(self.warps * (self.head_dim + 2), self.rows_each(self.inner))

    @property
    def static_bytes(self) -> int:
        """Shared memory beside the ring, rounded up."""
        numbers = 2 * self.gathered + self.scratch + (self.shares + 1) * self.hidden
        return 4 * numbers + 8 * (2 * self.stages + self.warps) + 128

    def marks(self, layers: int) -> int:
        """Return the times that a block records: the begin and the end of each phase."""
        return 2 * (PHASES * layers + 1)

    def problem(self) -> str:
        """Why the kernel cannot compute such a model; empty if it can."""
        if self.hidden % 8 or self.hidden > WIDEST:
            return f"n_embd is {self.hidden}; multiples of 8 up to {WIDEST:,} are allowed"
        if self.hidden % self.heads or self.head_dim % 8 or self.head_dim > 128:
            return f"heads have {self.hidden / self.heads:g} numbers; multiples of 8 up to 128 are allowed"
        return ""


# A word has a float32 in its lower half and its epoch above: the number of the layer that wrote it, counted over all
# launches. A block that needs a row reads its words until they are of the layer, and has the values with them: there is
# no counter to raise behind a fence, and no second load. NCCL's LL protocol does the same. A word is written again one
# layer later, when all blocks have read it: its writer has since read values that depend on what they published then.


@cuda.jit(device=True)
def publish(words, i, value, epoch):
    ptx.store_relaxed(words, i, uint64(epoch) << uint64(32) | uint64(ptx.float_bits(value)))


def make_gather(count: int, threads: int):
    """Make the device function that gathers `count` values by `threads` threads."""
    COUNT, THREADS = count, threads
    PAIRS = -(-count // (2 * threads))
    SIZE = 2 * PAIRS

    @cuda.jit(device=True)
    def gather(words, start, run, stride, epoch, values, thread):
        """Wait for values of this epoch, and write them to shared memory, where the block's threads can read them: runs
        of `run` words, an even number, the first from words[start] on, `stride` apart."""
        pairs = cuda.local.array(SIZE, uint64)
        is_there, polls = False, 0
        while not is_there:
            is_there = True
            for n in range(PAIRS):  # all in flight together
                i = 2 * (n * THREADS + thread)
                if i < COUNT:
                    pairs[2 * n], pairs[2 * n + 1] = ptx.load_relaxed2(words, start + i // run * stride + i % run)
            for n in range(SIZE):
                if 2 * (n // 2 * THREADS + thread) + n % 2 < COUNT and uint32(pairs[n] >> uint64(32)) != epoch:
                    is_there = False
            polls += 1
            if polls == MAX_POLLS:
                ptx.trap()
        for n in range(SIZE):
            i = 2 * (n // 2 * THREADS + thread) + n % 2
            if i < COUNT:
                values[i] = ptx.bits_float(uint32(pairs[n]))
        ptx.named_barrier_sync(1, THREADS)

    return gather


@kernel_factory
def make_persistent_gpt2(sizes: Sizes):
    """A block has sizes.warps warps that compute and one that copies weights, keys and values. A product's rows are
    shared out among the blocks, neighbouring ones to each; a warp multiplies a row at a time."""
    WARPS, THREADS, STAGES, STAGE = sizes.warps, 32 * sizes.warps, sizes.stages, sizes.stage
    C, M, V, HEADS, SIZE, SPLITS = (sizes.hidden, sizes.inner, sizes.vocab, sizes.heads, sizes.head_dim, sizes.splits)
    PITCH, RECEIVED, TIMED = sizes.pitch, sizes.received, sizes.timed
    QKV, OUT, FC, PROJ, PROJ_BIAS, LN_1, LN_2, LAYER = sizes.layer.values()
    QKV_EACH, X_EACH, M_EACH, V_EACH = (sizes.rows_each(rows) for rows in (3 * C, C, M, V))
    X_PADDED = -(-C // X_EACH) * X_EACH
    SOURCES, AT_ONCE = -(-M // M_EACH), 3  # blocks that have rows of the MLP; stages that are multiplied at once
    element, ELEMENT, ITEMSIZE = sizes.element, sizes.element.dtype.type, sizes.element.dtype.itemsize
    PACKED, VEC = element.pack is not None, element.per_load
    VECS = -(-C // (32 * VEC))
    ROW, EXACT = VEC * VECS, C % (32 * VEC) == 0
    CHUNKS = SIZE // VEC  # of 16 bytes, of a key
    LANES = 1 << (CHUNKS - 1).bit_length()  # that share a key
    FULL_GROUPS, GROUPS, WARP_GROUPS = LANES == CHUNKS, THREADS // LANES, 32 // LANES
    SHUFFLES, GROUP_SHUFFLES = LANES.bit_length() - 1, WARP_GROUPS.bit_length() - 1
    TOKENS, ITEMS, PARTIAL = sizes.stage_tokens, HEADS * SPLITS, SIZE + 2
    W_QKV, W_PARTIAL, W_ATTENDED, W_ADDED, W_PRODUCTS, W_OUT, _ = sizes.words.values()
    GATHERED, SCRATCH = sizes.gathered, sizes.scratch
    ROUNDS = -(-TOKENS // GROUPS)
    OUT_CHUNKS, OUT_THREADS, SHARES = sizes.out_chunks, sizes.out_threads, sizes.shares
    OUT_WORDS, PRODUCTS = VEC * OUT_CHUNKS, SHARES * C
    SCALE = float32(LOG2_E / math.sqrt(SIZE))
    to_float, to_element, unpack = element.number, element.element, element.unpack
    claim, (stage_of, next_stage) = make_claim(sizes), make_stages(sizes)
    gather_row, gather_head, gather_splits, gather_products = (
        make_gather(count, THREADS) for count in (C, 3 * SIZE, SPLITS * PARTIAL, X_EACH * SOURCES))
    INV_COLUMNS, SMALL = float32(1.0 / C), small(EPSILON)

    @cuda.jit(device=True)
    def slice_of(rows, each):
        """Return (begin, end) of the rows of this block."""
        return min(u32.blockIdx.x * each, rows), min((u32.blockIdx.x + 1) * each, rows)

    @cuda.jit(device=True)
    def split_of(item, visible):
        """Return (head, first token, end of the tokens) of an item of attention: a split of a head's keys."""
        each = (visible + (SPLITS - 1)) // SPLITS
        first = min(item % SPLITS * each, visible)
        return item // SPLITS, first, min(first + each, visible)

    # --- The copying warp ---------------------------------------------------------------------------------------------

    @cuda.jit(device=True)
    def load_matrix(ring, weights, base, rows, each, pitch, count, lane):
        """Copy this block's rows of a matrix that begins at weights[base], one for each warp at a time: they are
        neighbours in memory, one copy. count: as for stage_of."""
        tiles, full, _, _ = ring
        begin, end = slice_of(rows, each)
        for first in u32.range(begin, end, WARPS):
            nbytes = min(WARPS, end - first) * pitch * ITEMSIZE
            stage = claim(ring, count, nbytes, lane)
            if lane == 0:
                ptx.bulk_load(tiles, stage * STAGE, weights, base + uint64(first) * uint64(pitch), nbytes, full, stage)
            count = next_stage(count)
        return count

    @cuda.jit(device=True)
    def load_keys(ring, cache, layer, visible, count, lane):
        """Copy keys and values of this block's items, the newest token's excepted."""
        tiles, full, _, _ = ring
        for item in u32.range(u32.blockIdx.x, ITEMS, u32.gridDim.x):
            head, begin, end = split_of(item, visible)
            for first in u32.range(begin, min(end, visible - 1), TOKENS):
                tokens = min(TOKENS, min(end, visible - 1) - first)
                stage = claim(ring, count, 2 * tokens * (SIZE * ITEMSIZE), lane)
                for token in u32.range(lane, tokens, 32):
                    row = uint64(layer) * uint64(cache.shape[1]) + uint64(first + token)
                    start, target = row * uint64(2 * C) + uint64(head * SIZE), stage * STAGE + token * SIZE
                    ptx.bulk_load(tiles, target, cache, start, SIZE * ITEMSIZE, full, stage)
                    ptx.bulk_load(tiles, target + TOKENS * SIZE, cache, start + uint64(C), SIZE * ITEMSIZE, full, stage)
                count = next_stage(count)
        return count

    @cuda.jit(device=True)
    def load_ring(ring, weights, head, cache, visible, lane):
        """All that the copying warp does."""
        layers, count = u32.shape(cache)[0], uint32(0)
        for layer in u32.range(layers):
            base = uint64(layer) * uint64(LAYER)
            count = load_matrix(ring, weights, base + uint64(QKV), 3 * C, QKV_EACH, PITCH, count, lane)
            count = load_keys(ring, cache, layer, visible, count, lane)
            count = load_matrix(ring, weights, base + uint64(OUT), C, X_EACH, PITCH, count, lane)
            count = load_matrix(ring, weights, base + uint64(FC), M, M_EACH, PITCH, count, lane)
            count = load_matrix(ring, weights, base + uint64(PROJ), M, M_EACH, C, count, lane)
        load_matrix(ring, head, uint64(0), V, V_EACH, C, count, lane)

    # --- Rows ---------------------------------------------------------------------------------------------------------

    # A lane has VEC neighbouring elements of a row, those 32 * VEC further on, and so on; zeros behind the row's end.

    @cuda.jit(device=True)
    def load_row(values, gathered, start, lane):
        """Load a row from shared memory, from gathered[start] on."""
        for j in range(VECS):
            k = VEC * lane + 32 * VEC * j
            inside = EXACT or k < C
            for n in range(0, VEC, 4):
                words = ptx.load_shared4(gathered, start + (k + n if inside else 0))
                for i in range(4):
                    values[VEC * j + n + i] = words[i] if inside else ZERO

    @cuda.jit(device=True)
    def unpack_words(words, values, i):
        for n in range(4):
            if PACKED:
                values[i + 2 * n], values[i + 2 * n + 1] = unpack(words[n])
            else:
                values[i + n] = words[n]

    @cuda.jit(device=True)
    def load_parameters(values, array, start, lane):
        """Load a row of elements that nothing writes, which begins at array[start]."""
        for j in range(VECS):
            k = VEC * lane + 32 * VEC * j
            unpack_words(ptx.load_nc4(array, start + uint64(k if EXACT or k < C else 0)), values, VEC * j)

    @cuda.jit(device=True)
    def load_norm(weight, bias, array, start, lane):
        load_parameters(weight, array, start, lane)
        load_parameters(bias, array, start + uint64(C), lane)

    @cuda.jit(device=True)
    def normalise(values, weight, bias, lane):
        """LayerNorm, by each warp for itself."""
        sums = cuda.local.array(4, float32)  # side by side: a chain of additions takes four times as long
        for n in range(4):
            sums[n] = ZERO
        for n in range(ROW):
            sums[n % 4] += values[n]
        mean = warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) * INV_COLUMNS
        for n in range(4):
            sums[n] = ZERO
        for j in range(VECS):
            inside = EXACT or VEC * lane + 32 * VEC * j < C
            for i in range(VEC):
                diff = values[VEC * j + i] - mean if inside else ZERO
                sums[i % 4] += diff * diff
        rstd = cuda.rsqrt(warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) * INV_COLUMNS + SMALL)
        for j in range(VECS):
            inside = EXACT or VEC * lane + 32 * VEC * j < C
            for i in range(VEC):
                n = VEC * j + i
                values[n] = (values[n] - mean) * rstd * weight[n] + bias[n] if inside else ZERO

    @cuda.jit(device=True)
    def await_stage(ring, count):
        """Return the next stage of the ring, once it is full."""
        stage, lap = stage_of(count)
        ptx.mbarrier_wait_bounded(ring[1], stage, lap)
        return stage

    @cuda.jit(device=True)
    def release(ring, stage, lane):
        cuda.syncwarp()  # all lanes have read the stage
        if lane == 0:
            ptx.mbarrier_arrive(ring[2], stage)

    @cuda.jit(device=True)
    def multiply(values, tiles, start, lane):
        """Return this lane's part of the product of a row and the weights from tiles[start] on."""
        even, odd = ZERO, ZERO
        for j in range(VECS):
            k = VEC * lane + 32 * VEC * j
            words = ptx.load_shared4(tiles, start + (k if EXACT or k < C else 0))
            for n in range(4):
                if PACKED:
                    low, high = unpack(words[n])
                    even += values[VEC * j + 2 * n] * low
                    odd += values[VEC * j + 2 * n + 1] * high
                elif n % 2 == 0:
                    even += values[VEC * j + n] * words[n]
                else:
                    odd += values[VEC * j + n] * words[n]
        return even + odd

    @cuda.jit(device=True)
    def multiply_stage(values, ring, first, end, bias, pitch, count, warp, lane):
        """Return this lane's part of the product of `values` with this warp's row of the next stage, which has rows
        `first` and on, and the next count. bias: whether theirs lie behind them, to be added."""
        total = ZERO
        if first < end:
            stage = await_stage(ring, count)
            if first + warp < end:
                start = stage * STAGE + warp * pitch
                total = multiply(values, ring[0], start, lane)
                if bias and lane == 0:
                    total += to_float(ring[0][start + C])
            release(ring, stage, lane)
            count = next_stage(count)
        return total, count

    @cuda.jit(device=True)
    def multiply_rows(values, ring, first, end, bias, pitch, count, warp, lane):
        """Return the product of `values` with row first + lane * WARPS + warp, to lanes 0 to 2, and the next count: the
        sums over the lanes of three stages are in flight together."""
        a, count = multiply_stage(values, ring, first, end, bias, pitch, count, warp, lane)
        b, count = multiply_stage(values, ring, first + WARPS, end, bias, pitch, count, warp, lane)
        c, count = multiply_stage(values, ring, first + 2 * WARPS, end, bias, pitch, count, warp, lane)
        for offset in XOR_OFFSETS:
            a += cuda.shfl_xor_sync(ALL_LANES, a, offset)
            b += cuda.shfl_xor_sync(ALL_LANES, b, offset)
            c += cuda.shfl_xor_sync(ALL_LANES, c, offset)
        return (a if lane == 0 else b if lane == 1 else c), count

    @cuda.jit(device=True)
    def multiply_columns(inner, ring, first, end, products, count, thread):
        """Write the C outputs of the values inner[0] and on, of rows `first` to `end`, with their rows of weights, to
        products[0] and on: a thread has VEC neighbouring outputs of every SHARES-th row, and its share of each sum lies
        C behind the one before. Return the next count."""
        chunk = cuda.local.array(VEC, float32)
        sums = cuda.local.array(OUT_WORDS, float32)
        share, own = thread // OUT_THREADS, thread % OUT_THREADS
        for n in range(OUT_WORDS):
            sums[n] = ZERO
        for row in u32.range(first, end, WARPS):
            stage = await_stage(ring, count)
            for r in range(WARPS // SHARES):
                n = r * SHARES + share
                if share < SHARES and row + n < end:
                    value = inner[row - first + n]
                    for j in range(OUT_CHUNKS):
                        k = VEC * (j * OUT_THREADS + own)
                        unpack_words(ptx.load_shared4(ring[0], stage * STAGE + n * C + min(k, C - VEC)), chunk, 0)
                        for i in range(VEC):
                            sums[VEC * j + i] += value * chunk[i]
            release(ring, stage, thread % 32)
            count = next_stage(count)
        for j in range(OUT_CHUNKS):
            k = VEC * (j * OUT_THREADS + own)
            if share < SHARES and k < C:
                for i in range(VEC):
                    products[share * C + k + i] = sums[VEC * j + i]
        return count

    # --- Attention ----------------------------------------------------------------------------------------------------

    @cuda.jit(device=True)
    def weight_of(part_max, new_max):
        """Return what a part of the keys weighs: 0 if it is empty, whose maximum is -inf, as new_max may be, too."""
        return ptx.exp2_approx(part_max - new_max) if part_max > NEG_INF else ZERO

    @cuda.jit(device=True)
    def score_of(query, key):
        """Return, to the lanes that share a key, its product with the query."""
        score = ZERO
        for n in range(VEC):
            score += query[n] * key[n]
        for n in range(SHUFFLES):
            score += cuda.shfl_xor_sync(ALL_LANES, score, 1 << n)
        return score

    @cuda.jit(device=True)
    def attend_stage(tiles, query, acc, row_max, row_sum, tokens, stage, group, offset):
        """Add the tokens of a stage to this group's part of the attention, of which row_max is in units of log2."""
        chunk = cuda.local.array(VEC, float32)
        scores = cuda.local.array(ROUNDS, float32)
        new_max = row_max
        for r in range(ROUNDS):
            token = r * GROUPS + group
            unpack_words(ptx.load_shared4(tiles, stage * STAGE + min(token, tokens - 1) * SIZE + offset), chunk, 0)
            score = score_of(query, chunk)
            scores[r] = score if token < tokens else NEG_INF
            new_max = max(new_max, scores[r])
        correction = weight_of(row_max, new_max)
        row_sum *= correction
        for n in range(VEC):
            acc[n] *= correction
        for r in range(ROUNDS):
            token = min(r * GROUPS + group, tokens - 1)
            unpack_words(ptx.load_shared4(tiles, stage * STAGE + (TOKENS + token) * SIZE + offset), chunk, 0)
            weight = weight_of(scores[r], new_max)
            row_sum += weight
            for n in range(VEC):
                acc[n] += weight * chunk[n]
        return new_max, row_sum

    @cuda.jit(device=True)
    def attend(ring, words, epoch, gathered, scratch, visible, count, warp, lane):
        """Publish the partial results of this block's items: for each SIZE outputs, and the log2 of the sum of their
        exponentials. Return the next count."""
        query = cuda.local.array(VEC, float32)
        key = cuda.local.array(VEC, float32)
        value = cuda.local.array(VEC, float32)
        acc = cuda.local.array(VEC, float32)
        thread, chunk = 32 * warp + lane, lane % LANES
        offset, group = (chunk if FULL_GROUPS else min(chunk, CHUNKS - 1)) * VEC, thread // LANES
        for item in u32.range(u32.blockIdx.x, ITEMS, u32.gridDim.x):
            head, begin, end = split_of(item, visible)
            gather_head(words, W_QKV + head * SIZE, SIZE, C, epoch, gathered, thread)
            for n in range(VEC):
                query[n] = gathered[offset + n] * SCALE if FULL_GROUPS or chunk < CHUNKS else ZERO
                # The newest token's key and value are not in the ring. All load them, the first group uses them.
                key[n], value[n] = gathered[SIZE + offset + n], gathered[2 * SIZE + offset + n]
                acc[n] = ZERO
            row_max, row_sum = NEG_INF, ZERO
            for first in u32.range(begin, min(end, visible - 1), TOKENS):
                stage, tokens = await_stage(ring, count), min(TOKENS, min(end, visible - 1) - first)
                row_max, row_sum = attend_stage(ring[0], query, acc, row_max, row_sum, tokens, stage, group, offset)
                release(ring, stage, lane)
                count = next_stage(count)
            if begin < end and end == visible and warp == 0:
                score = score_of(query, key)
                if group == 0:
                    new_max = max(row_max, score)
                    correction, weight = weight_of(row_max, new_max), ptx.exp2_approx(score - new_max)
                    row_max, row_sum = new_max, row_sum * correction + weight
                    for n in range(VEC):
                        acc[n] = acc[n] * correction + weight * value[n]

            # Merge the groups of a warp, then the warps.
            new_max = row_max
            for n in range(GROUP_SHUFFLES):
                new_max = max(new_max, cuda.shfl_xor_sync(ALL_LANES, new_max, LANES << n))
            weight = weight_of(row_max, new_max)
            row_sum *= weight
            for n in range(GROUP_SHUFFLES):
                row_sum += cuda.shfl_xor_sync(ALL_LANES, row_sum, LANES << n)
            for i in range(VEC):
                total = acc[i] * weight
                for n in range(GROUP_SHUFFLES):
                    total += cuda.shfl_xor_sync(ALL_LANES, total, LANES << n)
                if lane < CHUNKS:
                    scratch[warp * (SIZE + 2) + lane * VEC + i] = total
            if lane == 0:
                scratch[warp * (SIZE + 2) + SIZE], scratch[warp * (SIZE + 2) + SIZE + 1] = new_max, row_sum
            ptx.named_barrier_sync(1, THREADS)
            is_empty = begin == end
            for i in u32.range(thread, SIZE, THREADS):
                new_max = NEG_INF
                for other in range(WARPS):
                    new_max = max(new_max, scratch[other * (SIZE + 2) + SIZE])
                total, out = ZERO, ZERO
                for other in range(WARPS):
                    weight = weight_of(scratch[other * (SIZE + 2) + SIZE], new_max)
                    total += scratch[other * (SIZE + 2) + SIZE + 1] * weight
                    out += scratch[other * (SIZE + 2) + i] * weight
                publish(words, W_PARTIAL + item * PARTIAL + i, ZERO if is_empty else out / total, epoch)
                if i < 2:  # the second one makes the number of words even
                    lse = NEG_INF if is_empty else new_max + math.log2(total)
                    publish(words, W_PARTIAL + item * PARTIAL + SIZE + i, lse, epoch)
            ptx.named_barrier_sync(1, THREADS)  # scratch is read: the next item may overwrite it
        return count

    @cuda.jit(device=True)
    def merge_splits(words, epoch, gathered, thread):
        """Merge the splits of a head, by the block of its number, and publish the result."""
        for head in u32.range(u32.blockIdx.x, HEADS, u32.gridDim.x):
            first = W_PARTIAL + head * (SPLITS * PARTIAL)
            gather_splits(words, first, SPLITS * PARTIAL, 0, epoch, gathered, thread)
            for i in u32.range(thread, SIZE, THREADS):
                new_max = NEG_INF
                for n in range(SPLITS):
                    new_max = max(new_max, gathered[n * PARTIAL + SIZE])
                total, out = ZERO, ZERO
                for n in range(SPLITS):
                    weight = ptx.exp2_approx(gathered[n * PARTIAL + SIZE] - new_max)
                    total += weight
                    out += weight * gathered[n * PARTIAL + i]
                publish(words, W_ATTENDED + head * SIZE + i, out / total, epoch)
            ptx.named_barrier_sync(1, THREADS)  # gathered is read

    # --- The kernel ---------------------------------------------------------------------------------------------------

    @cuda.jit(device=True)
    def begin_phase(timers, number, marks, thread):
        if TIMED and thread == 0:
            mark(timers, 2 * number, marks)

    @cuda.jit(device=True)
    def end_phase(timers, number, marks, thread):
        if TIMED and thread == 0:
            mark(timers, 2 * number + 1, marks)

    @cuda.jit(launch_bounds=(sizes.threads, 1))
    def persistent_gpt2_kernel(weights, table, positions, head, ids, start, cache, words, logits, best, counters,
                               timers, advance):
        tiles = cuda.shared.array(0, ELEMENT)
        full = cuda.shared.array(STAGES, uint64)
        empty = cuda.shared.array(STAGES, uint64)
        # A block gathers into them in turn, with a barrier each time: no warp still reads the one that is written.
        gathered = cuda.shared.array(GATHERED, np.float32, alignment=16)
        gathered_next = cuda.shared.array(GATHERED, np.float32, alignment=16)
        scratch = cuda.shared.array(SCRATCH, np.float32)
        products = cuda.shared.array(PRODUCTS, np.float32)  # of the MLP's second layer
        residual = cuda.shared.array(C, np.float32)  # this block's rows of x, from the first one on
        keys = cuda.shared.array(WARPS, int64)
        at_join = cuda.shared.array(1, uint32)  # stays 0: the copying warp never slows down
        row = cuda.local.array(ROW, float32)
        norm_weight = cuda.local.array(ROW, float32)
        norm_bias = cuda.local.array(ROW, float32)
        thread = u32.threadIdx.x
        warp, lane = thread // 32, thread % 32
        block, blocks, layers = u32.blockIdx.x, u32.gridDim.x, u32.shape(cache)[0]
        marks = 2 * (PHASES * layers + 1)
        ring = tiles, full, empty, at_join
        visible = min(uint32(start[0]), u32.shape(cache)[1] - 1) + 1  # tokens, with the new one
        has_room = uint32(start[0]) < u32.shape(cache)[1]  # a full cache stays as it is
        epoch = counters[2]  # of the last layer of the launch before
        if thread == 0:
            for stage in range(STAGES):
                ptx.mbarrier_init(full, stage, 1)
                ptx.mbarrier_init(empty, stage, WARPS)
            at_join[0] = 0
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        if warp == WARPS:
            load_ring(ring, weights, head, cache, visible, lane)
        else:
            count = uint32(0)
            first_x, end_x = slice_of(uint32(C), uint32(X_EACH))
            load_norm(norm_weight, norm_bias, weights, uint64(LN_1), lane)
            for layer in u32.range(layers):
                base, number = uint64(layer) * uint64(LAYER), PHASES * layer
                begin, end = slice_of(uint32(3 * C), uint32(QKV_EACH))
                if layer == 0:
                    token, position = uint32(ids[0]), uint32(start[0])
                    exists = token < V and position < u32.shape(positions)[0]  # NaN for one that does not
                    token, position = min(token, V - 1), min(position, u32.shape(positions)[0] - 1)
                    load_parameters(row, table, uint64(token) * uint64(C), lane)
                    for j in range(VECS):
                        for i in range(VEC):
                            k = VEC * lane + 32 * VEC * j + i
                            row[VEC * j + i] += to_float(positions[position, k if EXACT or k < C else 0])
                            if not exists:
                                row[VEC * j + i] = NAN
                            if not EXACT and k >= C:
                                row[VEC * j + i] = ZERO
                            if warp == 0 and first_x <= k < end_x:
                                residual[k - first_x] = row[VEC * j + i]
                else:
                    if begin < end:
                        gather_row(words, W_OUT, C, 0, epoch, gathered, thread)
                    load_row(row, gathered, uint32(0), lane)
                begin_phase(timers, number, marks, thread)
                epoch += 1
                normalise(row, norm_weight, norm_bias, lane)
                for first in u32.range(begin, end, AT_ONCE * WARPS):
                    total, count = multiply_rows(row, ring, first, end, True, PITCH, count, warp, lane)
                    i = first + lane * WARPS + warp
                    if lane < AT_ONCE and i < end:
                        element = to_element(total)
                        publish(words, W_QKV + i, to_float(element), epoch)
                        if i >= C and has_room:
                            cache[layer, visible - 1, i - C] = element
                end_phase(timers, number, marks, thread)
                begin_phase(timers, number + 1, marks, thread)  # waiting counts as part of attention

                count = attend(ring, words, epoch, gathered_next, scratch, visible, count, warp, lane)
                merge_splits(words, epoch, gathered, thread)
                end_phase(timers, number + 1, marks, thread)

                if first_x < end_x:
                    gather_row(words, W_ATTENDED, C, 0, epoch, gathered_next, thread)
                else:
                    ptx.named_barrier_sync(1, THREADS)
                begin_phase(timers, number + 2, marks, thread)
                load_row(row, gathered_next, uint32(0), lane)
                for first in u32.range(first_x, end_x, AT_ONCE * WARPS):
                    total, count = multiply_rows(row, ring, first, end_x, True, PITCH, count, warp, lane)
                    i = first + lane * WARPS + warp
                    if lane < AT_ONCE and i < end_x:
                        total += residual[i - first_x]
                        publish(words, W_ADDED + i, total, epoch)
                        residual[i - first_x] = total
                end_phase(timers, number + 2, marks, thread)
                load_norm(norm_weight, norm_bias, weights, base + uint64(LN_2), lane)

                begin, end = slice_of(uint32(M), uint32(M_EACH))
                if begin < end:
                    gather_row(words, W_ADDED, C, 0, epoch, gathered, thread)
                else:
                    ptx.named_barrier_sync(1, THREADS)
                begin_phase(timers, number + 3, marks, thread)
                load_row(row, gathered, uint32(0), lane)
                normalise(row, norm_weight, norm_bias, lane)
                for first in u32.range(begin, end, AT_ONCE * WARPS):
                    total, count = multiply_rows(row, ring, first, end, True, PITCH, count, warp, lane)
                    i = first + lane * WARPS + warp
                    if lane < AT_ONCE and i < end:
                        scratch[i - begin] = gelu_sigmoid(total)
                ptx.named_barrier_sync(1, THREADS)  # this block's inner values are written

                # No block needs the whole inner row: each multiplies its own values by their rows of weights, and
                # publishes its part of each output to the block that has that row of x, which adds the parts up.
                if begin < end:
                    count = multiply_columns(scratch, ring, begin, end, products, count, thread)
                ptx.named_barrier_sync(1, THREADS)
                if begin < end:
                    for k in u32.range(thread, X_PADDED, THREADS):  # of rows that the last block lacks, zeros
                        owner, total = k // X_EACH, ZERO
                        if k < C:
                            for n in range(SHARES):
                                total += products[n * C + k]
                        i = owner * RECEIVED + block * X_EACH + (k - owner * X_EACH)
                        publish(words, W_PRODUCTS + i, total, epoch)
                end_phase(timers, number + 3, marks, thread)
                if first_x < end_x:
                    gather_products(words, W_PRODUCTS + block * RECEIVED, RECEIVED, 0, epoch, gathered_next, thread)
                    begin_phase(timers, number + 4, marks, thread)
                    for i in u32.range(warp, end_x - first_x, WARPS):
                        total = ZERO
                        for n in u32.range(lane, SOURCES, 32):
                            total += gathered_next[n * X_EACH + i]
                        total = warp_sum(total)
                        if lane == 0:
                            bias = to_float(weights[base + uint64(PROJ_BIAS) + uint64(first_x + i)])
                            total = residual[i] + (total + bias)
                            publish(words, W_OUT + first_x + i, total, epoch)
                            residual[i] = total
                else:
                    ptx.named_barrier_sync(1, THREADS)
                    begin_phase(timers, number + 4, marks, thread)
                end_phase(timers, number + 4, marks, thread)
                next_norm = base + uint64(LAYER) + uint64(LN_1 if layer + 1 < layers else 0)
                load_norm(norm_weight, norm_bias, weights, next_norm, lane)

            gather_row(words, W_OUT, C, 0, epoch, gathered, thread)
            begin_phase(timers, PHASES * layers, marks, thread)
            load_row(row, gathered, uint32(0), lane)
            normalise(row, norm_weight, norm_bias, lane)
            begin, end = slice_of(uint32(V), uint32(V_EACH))
            max_key = LEAST
            for first in u32.range(begin, end, AT_ONCE * WARPS):
                total, count = multiply_rows(row, ring, first, end, False, C, count, warp, lane)
                i = first + lane * WARPS + warp
                if lane < AT_ONCE and i < end:
                    logits[0, i] = total
                    max_key = max(max_key, key_of(total, i))
            max_key = warp_largest_key(max_key)
            if lane == 0:
                keys[warp] = max_key
            ptx.named_barrier_sync(1, THREADS)  # the keys of all warps are written
            if thread == 0:
                for other in range(WARPS):
                    max_key = max(max_key, keys[other])
                best[block] = max_key
            end_phase(timers, PHASES * layers, marks, thread)
            arrive(counters, thread, THREADS)
            if block == 0:
                wait(counters, blocks, thread, THREADS)
                if warp == 0:
                    for other in u32.range(lane, blocks, 32):
                        max_key = max(max_key, best[other])
                    max_key = warp_largest_key(max_key)
                    if lane == 0:
                        counters[2] = epoch
                        if advance > 0:
                            ids[0] = int32(~uint32(max_key))
                            start[0] += int32(advance)
            if thread == 0:
                leave(counters)

    persistent_gpt2_kernel.threads = sizes.threads
    persistent_gpt2_kernel.shared_bytes = sizes.ring_bytes
    return persistent_gpt2_kernel


class Buffers:
    """What a launch needs between its phases; and, if the kernel is timed, each block's marks in `times`, in
    nanoseconds."""

    def __init__(self, sizes: Sizes, layers: int):
        self.sizes, self.layers, self.blocks = sizes, layers, sizes.blocks
        self.words = cuda.to_device(np.zeros(sizes.words["end"], np.uint64))
        self.best = cuda.device_array(sizes.blocks, np.int64)
        self.counters = cuda.to_device(np.zeros(3, np.uint32))  # two of joins.py, and the epoch
        self.times = cuda.to_device(np.zeros(sizes.blocks * sizes.marks(layers) if sizes.timed else 1, np.uint64))


def persistent_gpt2(buffers: Buffers, weights, table, positions, head, ids, start, cache, logits, advance=0,
                    stream=0) -> None:
    """Write logits, and the token's keys and values to row start[0] of the cache, unless it is full. With advance=1 the
    most likely token replaces ids[0], and start[0] is one larger. The logits are NaN where the token or its position
    does not exist. Launches with the same buffers must not overlap."""
    sizes, layers = buffers.sizes, buffers.layers
    dtype, C = sizes.element.dtype, sizes.hidden
    if problem := sizes.problem():
        raise ValueError(f"sizes: {problem}")
    check_array("weights", weights, shape=(layers * sizes.layer["end"] + 2 * C,), dtype=dtype, most=1 << 35)
    for name, array in (("table", table), ("head", head)):
        check_array(name, array, shape=(sizes.vocab, C), dtype=dtype)
    check_array("positions", positions, shape=(positions.shape[0], C), dtype=dtype)
    check_array("ids", ids, shape=(1,), dtype=np.int32)
    check_array("start", start, shape=(1,), dtype=np.int32)
    check_array("cache", cache, ndim=3, dtype=dtype, most=1 << 40)
    if cache.shape[0] != layers or cache.shape[2] != 2 * C:
        raise ValueError(f"cache has shape {tuple(cache.shape)}; it must be ({layers}, tokens, {2 * C})")
    check_array("logits", logits, shape=(1, sizes.vocab))
    if not aligned(weights, table, head, cache):
        raise ValueError("weights, table, head and cache must begin at multiples of 16 bytes")
    kernel = make_persistent_gpt2(sizes)
    if reason := missing(kernel):
        raise ValueError(f"persistent_gpt2 {reason}")
    launch_tiled(kernel, sizes.blocks, stream, weights, table, positions, head, ids, start, cache,
                 buffers.words, logits, buffers.best, buffers.counters, buffers.times, np.uint32(advance))
