"""The linear layers of a decoder's step, one row each, fused with the operations before and after.

    one_row_gelu        out = gelu(layernorm(x) @ weights + bias)
    one_row_residual    out = x @ weights + bias + residual
    one_row_qkv         q, and a row of the cache = layernorm(x) @ weights + bias
    one_row_attended    out = attended @ weights + bias + residual, where attended is joined from the parts that
                        attention/one_query.py writes

Shapes  x and residual (1, K), norm_weight and norm_bias (K,), weights (K, N), bias (N,), out (1, N), cache (rows, 2*K),
        start (1,) int32. Parameters, q and cache are all float32 or all float16; x, residual and out are float32 in
        either case, and so are the accumulators
Sizes   K and N multiples of 8, K at most 8,192
Work    2*K*N flop; the bytes of the weights, beside which the rest is little
Source  Little, "A Proof for the Queuing Formula: L = lambda W" (1961); PTX ISA, "cp.async.bulk.prefetch.L2"

A step of GPT-2 small in one launch for each operation is a hundred launches of a few microseconds, of which the bytes
explain a fifth. What a launch costs is a chain of latencies: it starts, its row comes from L2, is normalised, the
weights come, products are added up, and the result goes back. Three things shorten it:

    fewer chains     the norm is computed by every block again, 768 numbers each, and so needs no launch of its own
    side by side     the weights do not depend on the row: all that a thread needs of them is asked for before the row
                     is normalised, up to 12 loads of 16 bytes
    ahead            what the next launch reads is fetched into L2 meanwhile (`ahead`): a launch that only waits for
                     latencies leaves memory idle, and the next one finds its weights in L2. Compute capability 9.0
    early            in a graph a launch begins while the one before it ends, and asks for its weights before it waits
                     for its row (kernels/pdl.py). Compute capability 9.0

A block has 16 columns (8 where float32 columns are few, for more blocks); its threads share K, and their sums meet in
shared memory. The sums are always added in the same order.
"""


import numpy as np
from numba import float32, uint32

from labkit import cuda, device, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.gelu import gelu_sigmoid, gelu_tanh_reference
from labkit.kernels.linear.few_rows import make_fold
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rows import EPSILON, small
from labkit.kernels.pdl import uses_pdl
from labkit.kernels.reduce import warp_max, warp_sum

ZERO, NAN = float32(0.0), float32(np.nan)
LOWEST = float32(-3e38)  # below every score, and finite: the difference of two such maxima is a number
BLOCK = 256  # threads, of the embedding
LONGEST = 8192  # K at most: x lies in shared memory
MOST_LOADS = 12  # of 16 bytes, of a thread's weights, in flight at once
GELU, RESIDUAL, QKV = "gelu", "residual", "qkv"  # what follows the product
PLAIN, NORM, JOIN = "plain", "norm", "join"  # where its row comes from
SIZES = f"K and N multiples of 8, K at most {LONGEST:,}"


@cuda.jit(device=True)
def fetch_ahead(array, count):
    """The first `count` elements of an array, shared among the blocks, into L2. By one thread of each block."""
    share = (count + u32.gridDim.x - 1) // u32.gridDim.x
    share = (share + 63) // 64 * 64  # whole lines of 128 bytes, or pairs of them
    begin = u32.blockIdx.x * share
    if begin < count:
        nbytes = min(share, count - begin) * uint32(array.itemsize)
        ptx.prefetch_l2(array, begin, nbytes & 0xFFFFFFF0)


def make_row_statistics(depth: int, each: int = 4):
    """Two device functions, for rows of `depth` numbers, a multiple of `each`, 4 or 8. load_row: a warp loads the row,
    `each` neighbours a lane at a time. statistics: its mean, and 1 / its standard deviation, in every lane."""
    DEPTH, EACH, TURNS = depth, each, -(-depth // (32 * each))
    EXACT, SMALL = depth % (32 * each) == 0, small(EPSILON)
    SHARE = float32(1.0 / depth)

    @cuda.jit(device=True)
    def load_row(numbers, x, lane):
        for j in u32.range(TURNS):
            k = EACH * lane + 32 * EACH * j
            inside = EXACT or k < DEPTH
            for n in u32.range(0, EACH, 4):
                a, b, c, d = ptx.load_global4(x, k + n if inside else 0)
                at = EACH * j + n
                numbers[at], numbers[at + 1] = a if inside else ZERO, b if inside else ZERO
                numbers[at + 2], numbers[at + 3] = c if inside else ZERO, d if inside else ZERO

    @cuda.jit(device=True)
    def statistics(numbers, lane):
        total = ZERO
        for i in range(EACH * TURNS):
            total += numbers[i]
        mean = warp_sum(total) * SHARE
        squares = ZERO
        for j in u32.range(TURNS):
            inside = EXACT or EACH * lane + 32 * EACH * j < DEPTH
            for i in range(EACH):
                apart = numbers[EACH * j + i] - mean if inside else ZERO
                squares += apart * apart
        return mean, cuda.rsqrt(warp_sum(squares) * SHARE + SMALL)

    return load_row, statistics


# --- The kernel -------------------------------------------------------------------------------------------------------


@kernel_factory
def make_one_row(half: bool, source: str, after: str, depth: int, lanes: int, threads: int, ahead: bool,
                 heads: int = 0, splits: int = 0, early: bool = False):
    """lanes: neighbours that read a row of the weights together, 16 bytes each. heads, splits: of the joined parts.
    early: as in kernels/pdl.py, all of a round's weights first.

    Its arguments: source PLAIN x, NORM x and the norm's parameters, JOIN found and statistics of one_query.py; any
    array for an absent one.
    """
    EACH = 8 if half else 4
    WORD = uint32 if half else float32
    COLS, WARPS, GROUPS = lanes * EACH, threads // 32, threads // lanes
    STEPS = min(MOST_LOADS, -(-depth // GROUPS))
    SPAN = GROUPS * STEPS  # of K, in a round
    ROUNDS = -(-depth // SPAN)
    DEPTH, TILE, WORDS = depth, ROUNDS * SPAN, 4 * STEPS
    WHOLE = depth == TILE
    STAGED = -(-TILE // threads)  # numbers of the row that a thread puts into shared memory
    ROW = 4 * -(-depth // 128)
    MEETING = WARPS * COLS
    HEADS_EACH = -(-heads // WARPS)
    SIZE = depth // heads if heads else 1
    SHARES = max(1, heads * splits)
    FOUND = max(1, STAGED * splits)
    # Distances of lanes that keep the same sum, as there are no more sums to share.
    LEFT_OVER = sum(16 >> n for n in range(4) if 16 >> n >= lanes and EACH >> n < 2)
    NORMED, JOINED = source == NORM, source == JOIN
    WITH_GELU, WITH_RESIDUAL, TO_CACHE = after == GELU, after == RESIDUAL, after == QKV
    EARLY = early
    load_row, statistics = make_row_statistics(depth)
    fold_16, fold_8, fold_4, fold_2 = (make_fold(max(1, EACH >> n), 16 >> n) for n in range(4))

    @cuda.jit(device=True)
    def load_weights(words, weights, first, col):
        cols = u32.shape(weights)[1]
        for i in u32.range(STEPS):
            k = first + i * GROUPS
            if not WHOLE:
                k = min(k, DEPTH - 1)  # where the row is continued by zeros
            words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3] = ptx.load_nc4(
                weights, k * cols + col)

    @cuda.jit(device=True)
    def add_products(acc, words, tile, first):
        for i in u32.range(STEPS):
            x = tile[first + i * GROUPS]
            for n in range(4):
                if half:
                    low, high = ptx.unpack_half2(words[4 * i + n])
                    acc[2 * n] += x * low
                    acc[2 * n + 1] += x * high
                else:
                    acc[n] += x * words[4 * i + n]

    @cuda.jit(device=True)
    def own_place(thread, s):
        return thread + s * threads

    @cuda.jit(device=True)
    def load_norm(own_weight, own_bias, norm_weight, norm_bias, thread):
        if NORMED:
            for s in range(STAGED):
                k = min(own_place(thread, s), DEPTH - 1)
                own_weight[s], own_bias[s] = float32(norm_weight[k]), float32(norm_bias[k])

    @cuda.jit(device=True)
    def fetch(cache, start, next_weights, next_count, thread):
        """What later launches read. Before the wait, start may be the last token's: one row is missing then."""
        if ahead and thread == 0:
            if TO_CACHE:
                fetch_ahead(cache, min(uint32(start[0]), u32.shape(cache)[0]) * u32.shape(cache)[1])
            fetch_ahead(next_weights, next_count)

    @cuda.jit(device=True)
    def fold(acc, lane):
        """Adds up the sums of the lanes of a column, so that lanes share the columns; which one this lane keeps."""
        kept = 0
        fold_16(acc, lane)
        kept += lane // 16 * (EACH // 2)
        fold_8(acc, lane)
        kept += lane // 8 % 2 * (EACH // 4)
        if lanes <= 4:
            fold_4(acc, lane)
            kept += lane // 4 % 2 * (EACH // 8)
        if lanes <= 2:
            fold_2(acc, lane)
        return kept

    @cuda.jit(launch_bounds=(threads, 2 if threads <= 256 else 1))
    def one_row_kernel(x, norm_weight, norm_bias, weights, bias, residual, out, cache, start, next_weights, next_count):
        tile = cuda.shared.array(TILE, float32)
        meeting = cuda.shared.array(MEETING, float32)
        shares = cuda.shared.array(SHARES, float32)
        words = cuda.local.array(WORDS, WORD)
        acc = cuda.local.array(EACH, float32)
        row = cuda.local.array(ROW, float32)
        own = cuda.local.array(STAGED, float32)
        own_weight = cuda.local.array(STAGED, float32)
        own_bias = cuda.local.array(STAGED, float32)
        found = cuda.local.array(FOUND, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        cols = u32.shape(weights)[1]
        col0 = u32.blockIdx.x * COLS

        group, column = thread // lanes, thread % lanes * EACH
        column = min(col0 + column, cols - EACH)  # columns past the edge are not stored
        own_col = min(col0 + thread, cols - 1)

        # All that the block needs is asked for before anything is waited for: the row first, which is needed first; but
        # last where the launch before may still be computing it.
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            load_weights(words, weights, group, column)
            load_norm(own_weight, own_bias, norm_weight, norm_bias, thread)
            fetch(cache, start, next_weights, next_count, thread)
            ptx.griddepcontrol_wait()
        if NORMED:
            load_row(row, x, lane)
        for s in u32.range(STAGED):
            k = min(own_place(thread, s), DEPTH - 1)
            if JOINED:
                head = k // SIZE
                at = head * (splits * SIZE) + k - head * SIZE
                for split in u32.range(splits):
                    found[s * splits + split] = x[at + split * SIZE]
            else:
                own[s] = x[0, k]
        if not EARLY:
            load_norm(own_weight, own_bias, norm_weight, norm_bias, thread)
            load_weights(words, weights, group, column)
        added = float32(bias[own_col])
        if WITH_RESIDUAL:
            added += residual[0, own_col]
        place = 0
        if TO_CACHE:
            place = uint32(start[0])
        if not EARLY:
            fetch(cache, start, next_weights, next_count, thread)

        if NORMED:
            mean, scale = statistics(row, lane)
            for s in u32.range(STAGED):
                own[s] = (own[s] - mean) * scale * own_weight[s] + own_bias[s]
        elif JOINED:
            # Of each head: what its parts weigh in the whole. norm_weight: their maxima, then their sums.
            for n in u32.range(HEADS_EACH):
                head = warp + n * WARPS
                inside = head < heads and lane < splits
                at = head * splits + lane if inside else 0
                largest = norm_weight[at] if inside else LOWEST
                total = norm_weight[at + SHARES]
                weight = ptx.exp2_approx(largest - warp_max(largest))
                weight = weight if inside else ZERO
                weight = weight / warp_sum(weight * total)
                if inside:
                    shares[at] = weight
            cuda.syncthreads()  # the parts of all heads are weighed
            for s in u32.range(STAGED):
                at = min(own_place(thread, s), DEPTH - 1) // SIZE * splits
                total = ZERO
                for split in u32.range(splits):
                    total += shares[at + split] * found[s * splits + split]
                own[s] = total
        for s in u32.range(STAGED):
            k = own_place(thread, s)
            if k < TILE:
                tile[k] = own[s] if WHOLE or k < DEPTH else ZERO
        for n in u32.range(EACH):
            acc[n] = ZERO
        cuda.syncthreads()  # the row is there
        add_products(acc, words, tile, group)
        for turn in u32.range(1, ROUNDS):
            load_weights(words, weights, group + turn * SPAN, column)
            add_products(acc, words, tile, group + turn * SPAN)

        kept = fold(acc, lane)
        if lane & LEFT_OVER == 0:  # of lanes that have kept the same sum, one
            meeting[warp * COLS + thread % lanes * EACH + kept] = acc[0]
        cuda.syncthreads()  # the sums of all warps are there
        col = col0 + thread
        if thread < COLS and col < cols:
            total = added
            for other in u32.range(WARPS):
                total += meeting[thread + other * COLS]
            if WITH_GELU:
                out[0, col] = gelu_sigmoid(total)
            elif WITH_RESIDUAL or col < DEPTH:
                out[0, col] = total
            elif place < u32.shape(cache)[0]:  # a cache that is full stays as it is
                cache[place, col - DEPTH] = total

    one_row_kernel.uses_pdl = early
    return one_row_kernel


# --- Launchers --------------------------------------------------------------------------------------------------------


def plan(depth: int, cols: int, half: bool) -> tuple[int, int]:
    """(lanes, threads) of a block: 16 columns, but 8 of float32 where there would be fewer blocks than SMs; twice the
    threads where K is long, so that one round takes all of it."""
    return 4 if not half and cols >= 2048 else 2, 512 if depth > 1536 else 256


def fetches_ahead() -> bool:
    """Whether the device has the instruction: compute capability 9.0 and later. The CPU device has nothing to fetch."""
    return device.on_gpu() and tuple(cuda.get_current_device().compute_capability) >= (9, 0)


def what_is_ahead(array, otherwise) -> tuple:
    """A kernel's last two arguments: what it fetches, as one vector, and how many elements; none of `otherwise`."""
    array, count = (otherwise, 0) if array is None else (array, array.size)
    return array.reshape(array.size), np.uint32(count)


def allowed(depth: int, cols: int) -> bool:
    """Whether there is a kernel for weights of this shape."""
    return depth % 8 == 0 and cols % 8 == 0 and depth <= LONGEST


def check_one_row(x, weights, bias, out, residual=None, norm=()) -> tuple[int, int, bool]:
    """(K, N, whether the parameters are float16), or an error that names the argument."""
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


def launch(source, after, x, norm, weights, bias, residual, out, cache, start, shape, *, heads=0, splits=0, ahead=None,
           stream=0) -> None:
    """shape: what check_one_row gives. ahead: an array to be fetched meanwhile, on GPUs that can; the keys and values
    in the cache always are."""
    depth, cols, half = shape
    lanes, threads = plan(depth, cols, half)
    fetch = (ahead is not None or after == QKV) and fetches_ahead()
    kernel = make_one_row(half, source, after, depth, lanes, threads, fetch, heads, splits, uses_pdl(1))
    blocks = -(-cols // (lanes * (8 if half else 4)))
    kernel[blocks, threads, stream](x, *norm, weights, bias, out if residual is None else residual, out, cache, start,
                                    *what_is_ahead(ahead, weights))


def one_row_gelu(x, norm_weight, norm_bias, weights, bias, out, *, ahead=None, stream=0):
    """out = gelu(layernorm(x) @ weights + bias)."""
    shape = check_one_row(x, weights, bias, out, norm=(norm_weight, norm_bias))
    launch(NORM, GELU, x, (norm_weight, norm_bias), weights, bias, None, out, weights, bias, shape, ahead=ahead,
           stream=stream)


def one_row_residual(x, weights, bias, residual, out, *, ahead=None, stream=0):
    """out = x @ weights + bias + residual."""
    shape = check_one_row(x, weights, bias, out, residual)
    launch(PLAIN, RESIDUAL, x, (bias, bias), weights, bias, residual, out, weights, bias, shape, ahead=ahead,
           stream=stream)


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
    launch(NORM, QKV, x, (norm_weight, norm_bias), weights, bias, None, q, cache, start, shape, ahead=ahead,
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
