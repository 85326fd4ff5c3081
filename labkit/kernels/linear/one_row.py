"""The linear layers of a decoder's step, one row each, fused with the operations before and after.

Shapes  x and residual (1, K), norm_weight and norm_bias (K,), weights (K, N), bias (N,), out (1, N), cache (rows, 2*K),
        start (1,) int32. Parameters, q and cache are all float32 or all float16; x, residual and out are float32 in
        either case, and so are the accumulators
Sizes   K and N multiples of 8, K at most 8,192
Work    2*K*N flop; the bytes of the weights; the rest is negligible
Source  Little, "A Proof for the Queuing Formula: L = lambda W" (1961); PTX ISA, "cp.async.bulk.prefetch.L2"
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array, unsigned
from labkit.kernels.gelu import gelu_sigmoid, gelu_tanh_reference
from labkit.kernels.linear.few_rows import make_reduce_scatter
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rows import EPSILON, small
from labkit.kernels.pdl import uses_pdl
from labkit.kernels.reduce import warp_max, warp_sum

ZERO, NAN = float32(0.0), float32(np.nan)
LEAST_FINITE = float32(-3e38)  # below every score, but finite: the difference of two such maxima is not NaN
BLOCK = 256  # threads, of the embedding
MAX_DEPTH = 8192  # K at most: x is in shared memory
MAX_LOADS = 12  # of 16 bytes, of a thread's weights, in flight at once
GELU, RESIDUAL, QKV = "gelu", "residual", "qkv"  # the epilogue
PLAIN, NORM, JOIN = "plain", "norm", "join"  # the source of its row
SIZES = f"K and N multiples of 8, K at most {MAX_DEPTH:,}"


@cuda.jit(device=True)
def fetch_ahead(array, count):
    """Prefetch the first `count` elements of an array into L2, a range for each block. Called by one thread of each."""
    per_block = (count + u32.gridDim.x - 1) // u32.gridDim.x
    per_block = (per_block + 63) // 64 * 64  # whole cache lines of 128 bytes, or pairs of them
    start = u32.blockIdx.x * per_block
    if start < count:
        nbytes = min(per_block, count - start) * uint32(array.itemsize)
        ptx.prefetch_l2(array, start, nbytes & 0xFFFFFFF0)


def make_row_statistics(depth: int, vec: int = 4):
    """Two device functions, for rows of `depth` elements, a multiple of `vec`, 4 or 8. load_row: a warp loads the row,
    `vec` neighbours a lane at a time. statistics: return its mean and 1 / its standard deviation, in every lane."""
    DEPTH, VEC, VECS = depth, vec, -(-depth // (32 * vec))
    EXACT, SMALL = depth % (32 * vec) == 0, small(EPSILON)
    INV_DEPTH = float32(1.0 / depth)

    @cuda.jit(device=True)
    def load_row(values, x, lane):
        for j in u32.range(VECS):
            k = VEC * lane + 32 * VEC * j
            inside = EXACT or k < DEPTH
            for n in u32.range(0, VEC, 4):
                a, b, c, d = ptx.load_global4(x, k + n if inside else 0)
                offset = VEC * j + n
                values[offset], values[offset + 1] = a if inside else ZERO, b if inside else ZERO
                values[offset + 2], values[offset + 3] = c if inside else ZERO, d if inside else ZERO

    @cuda.jit(device=True)
    def statistics(values, lane):
        total = ZERO
        for i in range(VEC * VECS):
            total += values[i]
        mean = warp_sum(total) * INV_DEPTH
        squares = ZERO
        for j in u32.range(VECS):
            inside = EXACT or VEC * lane + 32 * VEC * j < DEPTH
            for i in range(VEC):
                diff = values[VEC * j + i] - mean if inside else ZERO
                squares += diff * diff
        return mean, cuda.rsqrt(warp_sum(squares) * INV_DEPTH + SMALL)

    return load_row, statistics


# --- The kernel -------------------------------------------------------------------------------------------------------


# The cost of a launch is a chain of latencies: it starts, loads its row from L2, normalises it, loads the weights, adds
# up products, stores. Every block computes the norm again, 768 elements, which saves a launch. A thread issues all its
# loads of weights before the row is normalised, up to 12 of 16 bytes. What the next launch reads is prefetched into L2
# meanwhile (`ahead`), as this one leaves memory idle. A block has 16 columns, or 8 where float32 columns are few; its
# threads share K, and their partial sums are reduced in shared memory, always in the same order.


@kernel_factory
def make_one_row(half: bool, source: str, after: str, depth: int, lanes: int, threads: int, ahead: bool, *,
                 heads: int = 0, splits: int = 0, early: bool = False):
    """lanes: neighbours that read a row of the weights together, 16 bytes each. heads, splits: of the merged partials.
    early: as in kernels/pdl.py, all of a round's weights first.

    x and norm_weight, norm_bias: with PLAIN x alone; with NORM x and the norm's parameters; with JOIN the partial
    outputs and statistics of one_query.py. Pass any array for an absent one.
    """
    VEC = 8 if half else 4
    WORD = uint32 if half else float32
    COLS, WARPS, GROUPS = lanes * VEC, threads // 32, threads // lanes
    STEPS = min(MAX_LOADS, -(-depth // GROUPS))
    ROUND_DEPTH = GROUPS * STEPS  # of K, in a round
    ROUNDS = -(-depth // ROUND_DEPTH)
    DEPTH, TILE, WORDS = depth, ROUNDS * ROUND_DEPTH, 4 * STEPS
    EXACT = depth == TILE
    ROW_PER_THREAD = -(-TILE // threads)  # elements of the row that a thread stages in shared memory
    ROW_REGS = 4 * -(-depth // 128)
    NUM_PARTIALS = WARPS * COLS
    HEADS_PER_WARP = -(-heads // WARPS)
    HEAD_SIZE = depth // heads if heads else 1
    NUM_SPLITS = max(1, heads * splits)
    SPLIT_REGS = max(1, ROW_PER_THREAD * splits)
    # Distances of lanes that keep the same sum, as there are fewer sums than lanes.
    DUPLICATE_LANES = sum(16 >> n for n in range(4) if 16 >> n >= lanes and VEC >> n < 2)
    NORMED, JOINED = source == NORM, source == JOIN
    WITH_GELU, WITH_RESIDUAL, TO_CACHE = after == GELU, after == RESIDUAL, after == QKV
    EARLY = early
    load_row, statistics = make_row_statistics(depth)
    reduce_16, reduce_8, reduce_4, reduce_2 = (make_reduce_scatter(max(1, VEC >> n), 16 >> n) for n in range(4))

    @cuda.jit(device=True)
    def load_weights(words, weights, k0, col):
        cols = u32.shape(weights)[1]
        for i in u32.range(STEPS):
            k = k0 + i * GROUPS
            if not EXACT:
                k = min(k, DEPTH - 1)  # where the row is padded with zeros
            words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3] = ptx.load_nc4(weights, k * cols + col)

    @cuda.jit(device=True)
    def add_products(acc, words, tile, k0):
        for i in u32.range(STEPS):
            x = tile[k0 + i * GROUPS]
            for n in range(4):
                if half:
                    low, high = ptx.unpack_half2(words[4 * i + n])
                    acc[2 * n] += x * low
                    acc[2 * n + 1] += x * high
                else:
                    acc[n] += x * words[4 * i + n]

    @cuda.jit(device=True)
    def row_index(thread, s):
        return thread + s * threads

    @cuda.jit(device=True)
    def load_norm(thread_weight, thread_bias, norm_weight, norm_bias, thread):
        if NORMED:
            for s in range(ROW_PER_THREAD):
                k = min(row_index(thread, s), DEPTH - 1)
                thread_weight[s], thread_bias[s] = float32(norm_weight[k]), float32(norm_bias[k])

    @cuda.jit(device=True)
    def prefetch(cache, start, next_weights, next_count, thread):
        """Prefetch what later launches read. Before the wait, start may be the last token's, and one row missing."""
        if ahead and thread == 0:
            if TO_CACHE:
                fetch_ahead(cache, min(uint32(start[0]), u32.shape(cache)[0]) * u32.shape(cache)[1])
            fetch_ahead(next_weights, next_count)

    @cuda.jit(device=True)
    def reduce_scatter(acc, lane):
        """Reduce-scatter the sums of a column's lanes among them; return which column this lane keeps."""
        lane_col = 0
        reduce_16(acc, lane)
        lane_col += lane // 16 * (VEC // 2)
        reduce_8(acc, lane)
        lane_col += lane // 8 % 2 * (VEC // 4)
        if lanes <= 4:
            reduce_4(acc, lane)
            lane_col += lane // 4 % 2 * (VEC // 8)
        if lanes <= 2:
            reduce_2(acc, lane)
        return lane_col

    @cuda.jit(launch_bounds=(threads, 2 if threads <= 256 else 1))
    def one_row_kernel(x, norm_weight, norm_bias, weights, bias, residual, out, cache, start, next_weights, next_count):
        tile = cuda.shared.array(TILE, float32)
        partials = cuda.shared.array(NUM_PARTIALS, float32)
        split_weights = cuda.shared.array(NUM_SPLITS, float32)
        words = cuda.local.array(WORDS, WORD)
        acc = cuda.local.array(VEC, float32)
        row = cuda.local.array(ROW_REGS, float32)
        thread_x = cuda.local.array(ROW_PER_THREAD, float32)
        thread_weight = cuda.local.array(ROW_PER_THREAD, float32)
        thread_bias = cuda.local.array(ROW_PER_THREAD, float32)
        split_out = cuda.local.array(SPLIT_REGS, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        cols = u32.shape(weights)[1]
        col0 = u32.blockIdx.x * COLS

        group, column = thread // lanes, thread % lanes * VEC
        column = min(col0 + column, cols - VEC)  # columns past the edge are not stored
        bias_col = min(col0 + thread, cols - 1)

        # Issue all loads before waiting for any: those of the row first, as it is needed first; but last where the
        # previous launch may still be computing it.
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            load_weights(words, weights, group, column)
            load_norm(thread_weight, thread_bias, norm_weight, norm_bias, thread)
            prefetch(cache, start, next_weights, next_count, thread)
            ptx.griddepcontrol_wait()
        if NORMED:
            load_row(row, x, lane)
        for s in u32.range(ROW_PER_THREAD):
            k = min(row_index(thread, s), DEPTH - 1)
            if JOINED:
                head = k // HEAD_SIZE
                offset = head * (splits * HEAD_SIZE) + k - head * HEAD_SIZE
                for split in u32.range(splits):
                    split_out[s * splits + split] = x[offset + split * HEAD_SIZE]
            else:
                thread_x[s] = x[0, k]
        if not EARLY:
            load_norm(thread_weight, thread_bias, norm_weight, norm_bias, thread)
            load_weights(words, weights, group, column)
        addend = float32(bias[bias_col])
        if WITH_RESIDUAL:
            addend += residual[0, bias_col]
        cache_row = 0
        if TO_CACHE:
            cache_row = uint32(start[0])
        if not EARLY:
            prefetch(cache, start, next_weights, next_count, thread)

        if NORMED:
            mean, scale = statistics(row, lane)
            for s in u32.range(ROW_PER_THREAD):
                thread_x[s] = (thread_x[s] - mean) * scale * thread_weight[s] + thread_bias[s]
        elif JOINED:
            # The weight of each split of a head. norm_weight: the splits' maxima, then their sums.
            for n in u32.range(HEADS_PER_WARP):
                head = warp + n * WARPS
                inside = head < heads and lane < splits
                offset = head * splits + lane if inside else 0
                split_max = norm_weight[offset] if inside else LEAST_FINITE
                total = norm_weight[offset + NUM_SPLITS]
                weight = ptx.exp2_approx(split_max - warp_max(split_max))
                weight = weight if inside else ZERO
                weight = weight / warp_sum(weight * total)
                if inside:
                    split_weights[offset] = weight
            cuda.syncthreads()  # the weights of all splits are written
            for s in u32.range(ROW_PER_THREAD):
                offset = min(row_index(thread, s), DEPTH - 1) // HEAD_SIZE * splits
                total = ZERO
                for split in u32.range(splits):
                    total += split_weights[offset + split] * split_out[s * splits + split]
                thread_x[s] = total
        for s in u32.range(ROW_PER_THREAD):
            k = row_index(thread, s)
            if k < TILE:
                tile[k] = thread_x[s] if EXACT or k < DEPTH else ZERO
        for n in u32.range(VEC):
            acc[n] = ZERO
        cuda.syncthreads()  # the row is staged
        add_products(acc, words, tile, group)
        for round_idx in u32.range(1, ROUNDS):
            load_weights(words, weights, group + round_idx * ROUND_DEPTH, column)
            add_products(acc, words, tile, group + round_idx * ROUND_DEPTH)

        lane_col = reduce_scatter(acc, lane)
        if lane & DUPLICATE_LANES == 0:  # one of the lanes that keep the same sum
            partials[warp * COLS + thread % lanes * VEC + lane_col] = acc[0]
        cuda.syncthreads()  # the partial sums of all warps are written
        col = col0 + thread
        if thread < COLS and col < cols:
            total = addend
            for other_warp in u32.range(WARPS):
                total += partials[thread + other_warp * COLS]
            if WITH_GELU:
                out[0, col] = gelu_sigmoid(total)
            elif WITH_RESIDUAL or col < DEPTH:
                out[0, col] = total
            elif cache_row < u32.shape(cache)[0]:  # a full cache stays as it is
                cache[cache_row, col - DEPTH] = total

    one_row_kernel.uses_pdl = early
    return one_row_kernel


# --- Launchers --------------------------------------------------------------------------------------------------------


def plan(depth: int, cols: int, half: bool) -> tuple[int, int]:
    """Return (lanes, threads) of a block: 16 columns, but 8 of float32 where there would be fewer blocks than SMs;
    twice the threads where K is long, so that one round takes all of it."""
    return 4 if not half and cols >= 2048 else 2, 512 if depth > 1536 else 256


def fetches_ahead() -> bool:
    """Return whether the device has the instruction: compute capability 9.0 and later; not on the CPU device."""
    return gpus.chosen_on_gpu() and gpus.target().capability >= (9, 0)


def what_is_ahead(array, otherwise) -> tuple:
    """Return a kernel's last two arguments: what it prefetches, as a vector, and its size; or `otherwise` and 0."""
    array, count = (otherwise, 0) if array is None else (array, array.size)
    return array.reshape(array.size), *unsigned(count)


def allowed(depth: int, cols: int) -> bool:
    """Return whether there is a kernel for weights of this shape."""
    return depth % 8 == 0 and cols % 8 == 0 and depth <= MAX_DEPTH


def check_one_row(x, weights, bias, out, residual=None, norm=()) -> tuple[int, int, bool]:
    """Return (K, N, whether the parameters are float16), or raise an error that names the argument."""
    dtype = np.dtype(getattr(weights, "dtype", np.float32))
    if dtype not in (np.float32, np.float16):
        raise TypeError(f"weights has dtype {dtype}; float32 and float16 are allowed")
    check_array("weights", weights, ndim=2, dtype=dtype)
    depth, cols = weights.shape
    if not allowed(depth, cols):
        raise ValueError(f"weights has shape {depth} x {cols}; allowed are {SIZES}")
    if x is not None:
        check_array("x", x, shape=(1, depth))
    for name, array in zip(("norm_weight", "norm_bias"), norm, strict=False):
        check_array(name, array, shape=(depth,), dtype=dtype)
    check_array("bias", bias, shape=(cols,), dtype=dtype)
    if out is not None:
        check_array("out", out, shape=(1, cols))
    if residual is not None:
        check_array("residual", residual, shape=(1, cols))
    if not aligned(*(array for array in (x, weights) if array is not None)):
        raise ValueError("x and weights must begin at multiples of 16 bytes; pass a copy of a view that does not")
    return depth, cols, dtype == np.float16


def launch(source, after, x, weights, bias, out, shape, *, norm=None, residual=None, cache=None, start=None, heads=0,
           splits=0, ahead=None, stream=0) -> None:
    """shape: of check_one_row. norm: a pair, of weight and bias. ahead: an array to prefetch meanwhile, on GPUs that
    can; the keys and values in the cache always are."""
    depth, cols, half = shape
    lanes, threads = plan(depth, cols, half)
    fetch = (ahead is not None or after == QKV) and fetches_ahead()
    kernel = make_one_row(half, source, after, depth, lanes, threads, fetch, heads=heads, splits=splits,
                          early=uses_pdl(1))
    blocks = -(-cols // (lanes * (8 if half else 4)))
    norm, residual = norm or (bias, bias), out if residual is None else residual
    cache, start = (weights, bias) if cache is None else (cache, start)
    kernel[blocks, threads, stream](
        x, *norm, weights, bias, residual, out, cache, start, *what_is_ahead(ahead, weights))


def one_row_gelu(x, norm_weight, norm_bias, weights, bias, out, *, ahead=None, stream=0):
    """out = gelu(layernorm(x) @ weights + bias)."""
    shape = check_one_row(x, weights, bias, out, norm=(norm_weight, norm_bias))
    launch(NORM, GELU, x, weights, bias, out, shape, norm=(norm_weight, norm_bias), ahead=ahead, stream=stream)


def one_row_residual(x, weights, bias, residual, out, *, ahead=None, stream=0):
    """out = x @ weights + bias + residual."""
    shape = check_one_row(x, weights, bias, out, residual)
    launch(PLAIN, RESIDUAL, x, weights, bias, out, shape, residual=residual, ahead=ahead, stream=stream)


def one_row_qkv(x, norm_weight, norm_bias, weights, bias, q, cache, start, *, ahead=None, stream=0):
    """q (1, K), and row start[0] of cache (rows, 2*K), keys and values = layernorm(x) @ weights + bias."""
    shape = check_one_row(x, weights, bias, None, norm=(norm_weight, norm_bias))
    if shape[1] != 3 * shape[0]:
        raise ValueError(f"weights has shape {shape[0]} x {shape[1]}; queries, keys and values need 3 columns a row")
    check_array("q", q, shape=(1, shape[0]), dtype=weights.dtype)
    check_array("cache", cache, ndim=2, dtype=weights.dtype)
    if cache.shape[1] != 2 * shape[0]:
        raise ValueError(f"cache has {cache.shape[1]} columns; keys and values of {shape[0]} numbers need "
                         f"{2 * shape[0]}")
    check_array("start", start, shape=(1,), dtype=np.int32)
    launch(NORM, QKV, x, weights, bias, q, shape, norm=(norm_weight, norm_bias), cache=cache, start=start, ahead=ahead,
           stream=stream)


@kernel_factory
def make_one_row_embedding(early: bool):
    EARLY = early

    @cuda.jit
    def one_row_embedding_kernel(ids, tokens, positions, start, out):
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            ptx.griddepcontrol_wait()
        col = u32.grid(1)
        if col < u32.shape(out)[1]:
            token, position = uint32(ids[0]), uint32(start[0])  # negatives become huge
            value = NAN
            if token < u32.shape(tokens)[0] and position < u32.shape(positions)[0]:
                value = float32(tokens[token, col]) + float32(positions[position, col])
            out[0, col] = value

    one_row_embedding_kernel.uses_pdl = early
    return one_row_embedding_kernel


def one_row_embedding(ids, tokens, positions, start, out, *, stream=0):
    """out = tokens[ids[0]] + positions[start[0]], in float32 whatever the tables hold; NaN where there is no such
    row."""
    check_array("out", out, ndim=2)
    kernel = make_one_row_embedding(uses_pdl(1))
    kernel[-(-out.shape[1] // BLOCK), BLOCK, stream](ids, tokens, positions, start, out)


# --- References -------------------------------------------------------------------------------------------------------


def normed_reference(x, norm_weight, norm_bias, weights, bias):
    return layernorm_reference(x, norm_weight, norm_bias) @ weights.astype(np.float64) + bias.astype(np.float64)


def gelu_reference(*inputs):
    return gelu_tanh_reference(normed_reference(*inputs))


def residual_reference(x, weights, bias, residual):
    x, weights, bias, residual = (array.astype(np.float64) for array in (x, weights, bias, residual))
    return x @ weights + bias + residual
