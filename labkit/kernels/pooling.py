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

import functools

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, blocks_for, check_array
from labkit.kernels.baselines import Baseline
from labkit.kernels.norm import half
from labkit.kernels.norm.rows import FOUR, QUADS, SINGLES, WHOLE, block_sum_once, fitting, flat, kind_of
from labkit.kernels.op import Op, Work, rung, uniform
from labkit.kernels.reduce import warp_sum
from labkit.kernels.tolerance import EPS32

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


# --- The operations ---------------------------------------------------------------------------------------------------


def _inputs(rng, B, T, C):
    """Packed: T rows divided among B sentences, as evenly as chance has it; where T is small, some have none."""
    lengths = rng.multinomial(T, np.full(B, 1 / B)).astype(np.int32)
    return uniform(rng, T, C), (np.cumsum(lengths) - lengths).astype(np.int32), lengths


def _half_inputs(rng, B, T, C):
    x, begins, lengths = _inputs(rng, B, T, C)
    return x.astype(np.float16), begins, lengths


def mean_tolerance(x, begins, lengths):
    """A sum of L terms, as for dot products; the reciprocal and the product round twice more."""
    size = mean_pool_reference(np.abs(x), begins, lengths)
    return EPS32 * (2 * np.sqrt(np.maximum(lengths, 1))[:, None] + 2) * size


def l2_tolerance(x):
    """A sum of C squares, all of them positive, its root's reciprocal (two units) and a product."""
    return EPS32 * (np.sqrt(x.shape[1]) + 4) * np.abs(l2_normalize_reference(x))


def normalized_tolerance(x, begins, lengths):
    """The mean's error, divided as the mean is; it also changes the length by which all elements are divided."""
    mean, error = mean_pool_reference(x, begins, lengths), mean_tolerance(x, begins, lengths)
    norm = np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), LEAST)
    return (error + np.abs(mean) * np.linalg.norm(error, axis=1, keepdims=True) / norm) / norm + l2_tolerance(mean)


def _torch_mean(torch, x, begins, lengths, out):
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths, output_size=len(x))
    total = torch.zeros_like(out).index_add_(0, owner, x.float())
    return total / lengths.clamp(min=1)[:, None]


def _torch_normalize(torch, x, out):
    return torch.nn.functional.normalize(x, dim=1)


def _torch_mean_normalized(torch, x, begins, lengths, out):
    return torch.nn.functional.normalize(_torch_mean(torch, x, begins, lengths, out), dim=1)


def _as_rung(launch, name: str, kernel, idea: str, sizes: str = ""):
    @functools.wraps(launch)
    def launcher(*args, **kwargs):
        launch(*args, **kwargs)

    launcher.__name__ = launcher.__qualname__ = name
    return rung(kernel=kernel, idea=idea, sizes=sizes)(launcher)


def _op(name: str, is_half: bool, normalize: bool):
    block = make_mean_pool(2, QUADS, True, normalize) if is_half else make_mean_pool(3, WHOLE, False, normalize)
    plain = make_mean_pool(2, QUADS, True, False) if is_half else make_mean_pool(3, WHOLE, False, False)
    limit = f"rows of at most {max(QUADS_OF):,} columns"
    if normalize:
        rungs = (_as_rung(mean_pool_then_normalize, f"{name}_two_launches", (plain, l2_normalize_warp_kernel),
                          "two launches: the mean through memory, then its length"),
                 _as_rung(mean_pool_normalized_fused, f"{name}_fused", block,
                          "one launch: the mean is normalised where it was made", limit))
    else:
        rungs = (_as_rung(mean_pool_columns, f"{name}_columns", mean_pool_columns_kernel,
                          "one thread a column, row after row"),
                 _as_rung(mean_pool_warps, f"{name}_warps", block, "one block a sentence, eight warps share its rows",
                          limit))
    return Op(
        name,
        title="The mean of each sentence's rows" + ", scaled to length 1" * normalize + ", from float16" * is_half,
        formula="out[b] = mean(x[begins[b] : begins[b] + lengths[b]])" + ", divided by its length" * normalize,
        reference=mean_pool_normalized_reference if normalize else mean_pool_reference,
        rungs=rungs,
        inputs=_half_inputs if is_half else _inputs,
        shape=lambda B, T, C: (B, C),
        awkward=tuple({"B": B, "T": T, "C": C} for B, T, C in
                      ((1, 1, 1), (5, 3, 13), (3, 130, 269), (2, 61, 384))),
        tolerance=normalized_tolerance if normalize else mean_tolerance,
        by_row=(1, 2),
        work=Work(
            flops=lambda B, T, C: T * C,
            bytes=lambda B, T, C: (2 if is_half else 4) * T * C + 4 * B * C,
            timed_gpu={"B": 64, "T": 8192, "C": 384},  # MiniLM, 64 sentences of 128 tokens
            timed_cpu={"B": 4, "T": 64, "C": 384},
            also_gpu=({"B": 64, "T": 1024, "C": 384}, {"B": 1, "T": 128, "C": 384}),
        ),
        baselines=(Baseline("PyTorch", "torch", _torch_mean_normalized if normalize else _torch_mean,
                            note="index_add, then divide" + ", then normalize" * normalize),),
    )


MEAN_POOL = _op("mean_pool", False, False)
MEAN_POOL_HALF = _op("mean_pool_half", True, False)
MEAN_POOL_NORMALIZED = _op("mean_pool_normalized", False, True)
MEAN_POOL_NORMALIZED_HALF = _op("mean_pool_normalized_half", True, True)


def _rows(rng, R, C):
    x = uniform(rng, R, C)
    x[R // 2 : R // 2 + (R > 2)] = 0  # a row without length
    return (x,)


L2_NORMALIZE = Op(
    "l2_normalize",
    title="Rows scaled to length 1",
    formula="out = x / sqrt(sum of squares), for each row",
    reference=l2_normalize_reference,
    rungs=(l2_normalize_naive, l2_normalize_warp),
    inputs=_rows,
    shape=lambda R, C: (R, C),
    awkward=tuple({"R": R, "C": C} for R, C in ((1, 1), (3, 5), (9, 384), (2, 1031))),
    tolerance=l2_tolerance,
    by_row=(0,),
    work=Work(
        flops=lambda R, C: 3 * R * C,
        bytes=lambda R, C: 8 * R * C,
        timed_gpu={"R": 2048, "C": 384},
        timed_cpu={"R": 64, "C": 384},
    ),
    baselines=(Baseline("PyTorch", "torch", _torch_normalize),),
)
