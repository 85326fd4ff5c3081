"""From a row for each token to one for each sentence: the mean of its tokens, and rows scaled to length 1.

Shapes  x (T, C) float32 or float16, begins and lengths (B,) int32, out (B, C) float32; C-contiguous
        l2_normalize: x and out (R, C) float32; `out` may be `x`
Work    T*C additions; 4*T*C bytes (float16: 2*T*C) and 4*B*C written
Source  Reimers, Gurevych: Sentence-BERT (2019), https://arxiv.org/abs/1908.10084

Sentence b has the rows begins[b] to begins[b] + lengths[b]: a padded batch of S rows each has begins 0, S, 2S and so
on, a packed one the sums of the lengths. Rows that belong to no sentence are not read, so that nothing in them reaches
a result, not as 0 * NaN either. A sentence without tokens gives zeros, one that does not lie within x a row of NaN.

Which additions are made, and in which order, depends on the sentence alone: its mean has the same bits in any batch.
"""


import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, blocks_for, check_array
from labkit.kernels.norm import half
from labkit.kernels.norm.rows import FOUR, QUADS, SINGLES, block_sum_once, fitting, flat, kind_of
from labkit.kernels.op import rung
from labkit.kernels.reduce import warp_sum

BLOCK = 128
WARPS = 8  # of a block that pools a sentence; each takes every eighth row
LEAST = 1e-12  # a shorter row is divided by this instead, as in torch.nn.functional.normalize
ZERO, ONE, NAN, LEAST_SQUARE = float32(0.0), float32(1.0), float32(np.nan), float32(LEAST**2)


def mean_pool_reference(x, begins, lengths):
    means = np.zeros((len(begins), x.shape[1]))
    for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        if length > 0:
            inside = begin >= 0 and begin + length <= len(x)
            means[row] = x[begin : begin + length].astype(np.float64).mean(axis=0) if inside else np.nan
    return means


def l2_normalize_reference(x):
    x = x.astype(np.float64)
    return x / np.maximum(np.sqrt((x**2).sum(axis=1, keepdims=True)), LEAST)


def mean_pool_normalized_reference(x, begins, lengths):
    return l2_normalize_reference(mean_pool_reference(x, begins, lengths))


# --- The mean: a thread for each column -------------------------------------------------------------------------------


@cuda.jit(device=True)
def rows_of(begins, lengths, sentence, rows):
    """(the first row, how many rows to read, by what to multiply their sum)."""
    begin, length = int32(begins[sentence]), int32(lengths[sentence])
    share = ONE / float32(max(length, int32(1)))
    if length > int32(0) and (begin < int32(0) or length > rows - begin):
        length, share = int32(0), NAN
    return begin, length, share


@cuda.jit
def mean_pool_columns_kernel(x, begins, lengths, out):
    sentence = u32.blockIdx.x
    col = u32.blockIdx.y * BLOCK + u32.threadIdx.x
    if col < u32.shape(x)[1]:
        begin, length, share = rows_of(begins, lengths, sentence, int32(x.shape[0]))
        total = ZERO
        for r in range(length):  # which may be negative
            total += float32(x[uint32(begin + r), col])
        out[sentence, col] = total * share


def mean_pool_columns(x, begins, lengths, out, stream=0):
    """One thread adds up one column of one sentence: neighbours read neighbours, one row after the other. Any width."""
    sentences, columns = _check(x, begins, lengths, out)
    grid = blocks_for((sentences, columns), (1, BLOCK))
    mean_pool_columns_kernel[grid, BLOCK, stream](x, begins, lengths, out)


# --- The mean: a block for each sentence ------------------------------------------------------------------------------

QUADS_OF = {128: 1, 256: 2, 384: 3, 512: 4, 768: 6, 1024: 8}  # columns at most -> quads a lane, in float32
OCTETS_OF = {256: 1, 512: 2, 768: 3, 1024: 4}  # the same for float16


@cuda.jit(device=True)
def add_four(v, at, e):
    v[at] += e[0]
    v[at + 1] += e[1]
    v[at + 2] += e[2]
    v[at + 3] += e[3]


@cuda.jit(device=True)
def add_eight(v, at, e):
    add_four(v, at, e)
    v[at + 4] += e[4]
    v[at + 5] += e[5]
    v[at + 6] += e[6]
    v[at + 7] += e[7]


@kernel_factory
def make_mean_pool(pieces: int, access: str, is_half: bool, normalize: bool):
    """Return a kernel for rows of up to 128 * pieces columns, float16: 256 * pieces. access: WHOLE, QUADS or SINGLES,
    which of a lane's four neighbours are in range (norm/rows.py)."""
    if is_half:
        load = half.load_singles if access == SINGLES else half.load_eight
        add, EACH = add_eight, 8
    else:
        load, add, EACH = FOUR[access][0], add_four, 4
    count, STEP, WIDTH, THREADS = EACH * pieces, 32 * EACH, 32 * EACH * pieces, 32 * WARPS
    PLACES, KEPT = WARPS * WIDTH, -(-WIDTH // THREADS)  # KEPT: columns of a thread, once the warps have met

    @cuda.jit
    def mean_pool_kernel(x, begins, lengths, out):  # x and out as one long vector
        meeting = cuda.shared.array(PLACES, float32, alignment=16)
        partial = cuda.shared.array(WARPS, float32)
        lane, warp = u32.threadIdx.x, u32.threadIdx.y
        sentence = u32.blockIdx.x
        columns = u32.size(out) // u32.size(begins)
        begin, length, share = rows_of(begins, lengths, sentence, int32(u32.size(x) // columns))
        mine, left = EACH * lane, int32(columns) - int32(EACH) * int32(lane)
        v = cuda.local.array(count, float32)
        for e in range(count):
            v[e] = ZERO
        ahead = WARPS * columns  # from a warp's row to its next
        r = int32(warp)
        while r + int32(3 * WARPS) < length:  # four rows are in flight at once; they are added one after the other
            first = uint32(begin + r) * columns + mine
            for p in u32.range(pieces):
                i, inside = first + STEP * p, left - int32(STEP * p)
                one, two = load(x, i, inside), load(x, i + ahead, inside)
                three, four = (load(x, i + 2 * ahead, inside),
                               load(x, i + 3 * ahead, inside))
                add(v, EACH * p, one)
                add(v, EACH * p, two)
                add(v, EACH * p, three)
                add(v, EACH * p, four)
            r += int32(4 * WARPS)
        while r < length:
            first = uint32(begin + r) * columns + mine
            for p in u32.range(pieces):
                add(v, EACH * p, load(x, first + STEP * p, left - int32(STEP * p)))
            r += int32(WARPS)
        for p in u32.range(pieces):
            at = warp * WIDTH + mine + STEP * p
            for q in u32.range(0, EACH, 4):
                e = EACH * p + q
                ptx.store_shared4(meeting, at + q, v[e], v[e + 1], v[e + 2], v[e + 3])
        cuda.syncthreads()  # the sums of all warps are there

        thread = warp * 32 + lane
        m = cuda.local.array(KEPT, float32)
        squares = ZERO
        for k in u32.range(KEPT):
            col, total = thread + k * THREADS, ZERO
            if col < columns:
                for w in u32.range(WARPS):
                    total += meeting[w * WIDTH + col]
            m[k] = total * share
            squares += m[k] * m[k]
        scale = ONE
        if normalize:
            squares = block_sum_once(squares, partial, lane, warp, WARPS)
            scale = cuda.rsqrt(LEAST_SQUARE if squares < LEAST_SQUARE else squares)  # NaN is not less: it stays
        for k in u32.range(KEPT):
            col = thread + k * THREADS
            if col < columns:
                out[sentence * columns + col] = m[k] * scale

    return mean_pool_kernel


def _launch(x, begins, lengths, out, normalize, stream):
    sentences, columns = _check(x, begins, lengths, out)
    is_half = x.dtype == np.float16
    capacity, pieces = fitting(columns, OCTETS_OF if is_half else QUADS_OF, "a warp")
    access = kind_of(columns, capacity, x)
    if is_half:
        access = SINGLES if columns % 8 or not aligned(x) else QUADS
    kernel = make_mean_pool(pieces, access, is_half, normalize)
    kernel[sentences, (32, WARPS), stream](flat(x), begins, lengths, flat(out))


def mean_pool_warps(x, begins, lengths, out, stream=0):
    """As columns, but a block has a whole sentence, and each of its eight warps every eighth row: 128 bits a lane, up
    to four rows in flight at once. The eight sums meet in shared memory and are added in the order of the warps."""
    _launch(x, begins, lengths, out, False, stream)


def mean_pool(x, begins, lengths, out, stream=0):
    """The launcher to use: mean_pool_warps, for rows of more than 1,024 columns mean_pool_columns."""
    pick = mean_pool_warps if x.shape[-1] <= max(QUADS_OF) else mean_pool_columns
    pick(x, begins, lengths, out, stream=stream)


# --- Rows of length 1 -------------------------------------------------------------------------------------------------


@cuda.jit
def l2_normalize_naive_kernel(x, out):
    row = u32.grid(1)
    if row < u32.shape(x)[0]:
        columns = u32.shape(x)[1]
        squares = ZERO
        for col in u32.range(columns):
            squares += x[row, col] * x[row, col]
        scale = cuda.rsqrt(LEAST_SQUARE if squares < LEAST_SQUARE else squares)
        for col in u32.range(columns):
            out[row, col] = x[row, col] * scale


@rung(kernel=l2_normalize_naive_kernel, idea="one thread a row: neighbours read a row apart")
def l2_normalize_naive(x, out, stream=0):
    """One thread walks along one row twice: for its length, and to divide by it."""
    rows = _check_rows(x, out)
    l2_normalize_naive_kernel[-(-rows // 32), 32, stream](x, out)


@cuda.jit
def l2_normalize_warp_kernel(x, out):
    lane = u32.threadIdx.x
    row = u32.blockIdx.x * WARPS + u32.threadIdx.y
    if row < u32.shape(x)[0]:  # the same for the whole warp
        columns = u32.shape(x)[1]
        squares = ZERO
        for col in u32.range(lane, columns, 32):
            squares += x[row, col] * x[row, col]
        squares = warp_sum(squares)
        scale = cuda.rsqrt(LEAST_SQUARE if squares < LEAST_SQUARE else squares)
        for col in u32.range(lane, columns, 32):
            out[row, col] = x[row, col] * scale


@rung(kernel=l2_normalize_warp_kernel, idea="one warp a row; the second pass finds it in the cache")
def l2_normalize_warp(x, out, stream=0):
    """As naive, but the lanes of a warp share a row, so that neighbours read neighbours. Any width."""
    rows = _check_rows(x, out)
    l2_normalize_warp_kernel[-(-rows // WARPS), (32, WARPS), stream](x, out)


def l2_normalize(x, out, stream=0):
    """The launcher to use. Rows of length 1; zeros stay zeros. `out` may be `x`."""
    l2_normalize_warp(x, out, stream=stream)


# --- Both -------------------------------------------------------------------------------------------------------------


def mean_pool_then_normalize(x, begins, lengths, out, stream=0):
    """Two launches: the means are written into out, and normalised there, in place. Any width."""
    mean_pool(x, begins, lengths, out, stream=stream)
    l2_normalize(out, out, stream=stream)


def mean_pool_normalized_fused(x, begins, lengths, out, stream=0):
    """One launch: the block that has a sentence's mean in its registers also has all that its length needs."""
    _launch(x, begins, lengths, out, True, stream)


def mean_pool_normalized(x, begins, lengths, out, stream=0):
    """The launcher to use: one launch, for rows of more than 1,024 columns two."""
    pick = mean_pool_normalized_fused if x.shape[-1] <= max(QUADS_OF) else mean_pool_then_normalize
    pick(x, begins, lengths, out, stream=stream)


def _check(x, begins, lengths, out) -> tuple:
    dtype = np.dtype(getattr(x, "dtype", np.float32))
    if dtype not in (np.float32, np.float16):
        raise TypeError(f"x has dtype {dtype}; float32 and float16 are allowed")
    check_array("x", x, ndim=2, dtype=dtype)
    check_array("begins", begins, ndim=1, dtype=np.int32)
    check_array("lengths", lengths, shape=begins.shape, dtype=np.int32)
    check_array("out", out, shape=(begins.shape[0], x.shape[1]))
    return out.shape


def _check_rows(x, out) -> int:
    check_array("x", x, ndim=2)
    check_array("out", out, shape=x.shape)
    return x.shape[0]
