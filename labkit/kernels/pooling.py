"""From a row for each token to one for each sentence: the mean of its tokens, and rows scaled to length 1.

Shapes  x (T, C) float32 or float16, begins and lengths (B,) int32, out (B, C) float32; C-contiguous. Sentence b has the
        rows begins[b] to begins[b] + lengths[b] - 1, in a padded batch or a packed one. Rows of no sentence are not
        read; a sentence without tokens gives zeros, one that does not lie within x a row of NaN. l2_normalize: x and
        out (R, C) float32; `out` may be `x`
Work    T*C additions, in an order that depends on the sentence alone: its mean has the same bits in any batch; 4*T*C
        bytes (float16: 2*T*C) and 4*B*C written
Source  Reimers, Gurevych: Sentence-BERT (2019), https://arxiv.org/abs/1908.10084
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, blocks_for, check_array
from labkit.kernels.elements import FLOAT16
from labkit.kernels.norm import half
from labkit.kernels.norm.rows import FOUR, QUADS, SINGLES, block_sum_once, fitting, flat, kind_of, put_four
from labkit.kernels.op import rung
from labkit.kernels.reduce import warp_sum

BLOCK = 128
WARPS = 8  # of a block that pools a sentence; a warp adds up every eighth row
IN_FLIGHT = 4  # rows that a warp loads at once
LEAST = 1e-12  # a shorter row is divided by this instead, as in torch.nn.functional.normalize
ZERO, ONE, NAN, LEAST_SQUARE = float32(0.0), float32(1.0), float32(np.nan), float32(LEAST**2)


def mean_pool_reference(x, begins, lengths):
    means = np.zeros((len(begins), x.shape[1]))
    for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        if length > 0:
            in_range = begin >= 0 and begin + length <= len(x)
            means[row] = x[begin : begin + length].astype(np.float64).mean(axis=0) if in_range else np.nan
    return means


def l2_normalize_reference(x):
    x = x.astype(np.float64)
    return x / np.maximum(np.sqrt((x**2).sum(axis=1, keepdims=True)), LEAST)


def mean_pool_normalized_reference(x, begins, lengths):
    return l2_normalize_reference(mean_pool_reference(x, begins, lengths))


# --- The mean: a thread for each column -------------------------------------------------------------------------------


@cuda.jit(device=True)
def rows_of(begins, lengths, sentence, rows):
    """Return (first row, number of rows to read, factor for their sum)."""
    begin, length = int32(begins[sentence]), int32(lengths[sentence])
    inv_length = ONE / float32(max(length, int32(1)))
    if length > int32(0) and (begin < int32(0) or length > rows - begin):
        length, inv_length = int32(0), NAN
    return begin, length, inv_length


@cuda.jit
def mean_pool_columns_kernel(x, begins, lengths, out):
    sentence = u32.blockIdx.x
    col = u32.blockIdx.y * BLOCK + u32.threadIdx.x
    if col < u32.shape(x)[1]:
        begin, length, inv_length = rows_of(begins, lengths, sentence, int32(x.shape[0]))
        total = ZERO
        r = int32(0)
        while r < length:
            total += float32(x[uint32(begin + r), col])
            r += int32(1)
        out[sentence, col] = total * inv_length


def mean_pool_columns(x, begins, lengths, out, stream=0):
    """One thread adds up one column of one sentence: neighbours read neighbours, one row after the other. Any width."""
    sentences, columns = _check(x, begins, lengths, out)
    grid = blocks_for((sentences, columns), (1, BLOCK))
    mean_pool_columns_kernel[grid, BLOCK, stream](x, begins, lengths, out)


# --- The mean: a block for each sentence ------------------------------------------------------------------------------

QUADS_OF = {128: 1, 256: 2, 384: 3, 512: 4, 768: 6, 1024: 8}  # columns at most -> quads a lane, in float32
OCTETS_OF = {256: 1, 512: 2, 768: 3, 1024: 4}  # the same for float16


@kernel_factory
def make_mean_pool(pieces: int, access: str, is_half: bool, normalize: bool):
    """Return a kernel for rows of up to 128 * pieces columns, float16: 256 * pieces. access: WHOLE, QUADS or SINGLES,
    which of a lane's four neighbours are in range (norm/rows.py)."""
    if is_half:
        load = half.EIGHT[FLOAT16][access == SINGLES][0]
        put, VEC = half.put_eight, 8
    else:
        load, put, VEC = FOUR[access][0], put_four, 4
    ITEMS, STEP, WIDTH, THREADS = VEC * pieces, 32 * VEC, 32 * VEC * pieces, 32 * WARPS
    ROW_ITEMS = IN_FLIGHT * ITEMS
    SHARED_SIZE, COLS_PER_THREAD = WARPS * WIDTH, -(-WIDTH // THREADS)  # columns of a thread in the final sum

    @cuda.jit(launch_bounds=(THREADS, 2))  # registers for all rows in flight; else ptxas adds before it has loaded all
    def mean_pool_kernel(x, begins, lengths, out):  # x and out as one long vector
        warp_sums = cuda.shared.array(SHARED_SIZE, float32, alignment=16)
        partial = cuda.shared.array(WARPS, float32)
        lane, warp = u32.threadIdx.x, u32.threadIdx.y
        sentence = u32.blockIdx.x
        columns = u32.size(out) // u32.size(begins)
        begin, length, inv_length = rows_of(begins, lengths, sentence, int32(u32.size(x) // columns))
        lane_offset, remaining = VEC * lane, int32(columns) - int32(VEC) * int32(lane)
        v = cuda.local.array(ITEMS, float32)
        for e in range(ITEMS):
            v[e] = ZERO
        row_stride = WARPS * columns  # from a row of the warp to its next
        rows = cuda.local.array(ROW_ITEMS, float32)
        r = int32(warp)
        while r + int32((IN_FLIGHT - 1) * WARPS) < length:
            offset = uint32(begin + r) * columns + lane_offset
            for k in u32.range(IN_FLIGHT):  # all are loaded before the first is added
                for p in u32.range(pieces):
                    put(rows, k * ITEMS + VEC * p,
                        load(x, offset + k * row_stride + STEP * p, remaining - int32(STEP * p)))
            for k in u32.range(IN_FLIGHT):
                for e in u32.range(ITEMS):
                    v[e] += rows[k * ITEMS + e]
            r += int32(IN_FLIGHT * WARPS)
        while r < length:
            offset = uint32(begin + r) * columns + lane_offset
            for p in u32.range(pieces):
                put(rows, VEC * p, load(x, offset + STEP * p, remaining - int32(STEP * p)))
            for e in u32.range(ITEMS):
                v[e] += rows[e]
            r += int32(WARPS)
        for p in u32.range(pieces):
            shared_offset = warp * WIDTH + lane_offset + STEP * p
            for q in u32.range(0, VEC, 4):
                e = VEC * p + q
                ptx.store_shared4(warp_sums, shared_offset + q, v[e], v[e + 1], v[e + 2], v[e + 3])
        cuda.syncthreads()  # the sums of all warps are stored

        thread = warp * 32 + lane
        m = cuda.local.array(COLS_PER_THREAD, float32)
        squares = ZERO
        for k in u32.range(COLS_PER_THREAD):
            col, total = thread + k * THREADS, ZERO
            if col < columns:
                for w in u32.range(WARPS):
                    total += warp_sums[w * WIDTH + col]
            m[k] = total * inv_length
            squares += m[k] * m[k]
        scale = ONE
        if normalize:
            squares = block_sum_once(squares, partial, lane, warp, WARPS)
            scale = cuda.rsqrt(LEAST_SQUARE if squares < LEAST_SQUARE else squares)  # NaN is not less: it stays
        for k in u32.range(COLS_PER_THREAD):
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
    to four rows in flight at once. The eight sums go to shared memory and are added in the order of the warps."""
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
    """One launch: the block that has a sentence's mean in its registers normalises it there."""
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
