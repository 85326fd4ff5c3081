"""A bfloat16 linear layer of up to eight rows fused with the residual sum and the RMSNorm before it in a Llama.

    summed = x + residual
    out = rmsnorm(summed) @ weight.T              or with SwiGLU, as linear_swiglu

Shapes  x, residual, summed (T, C), T at most 8; norm_weight (C,); weight (N, C) and out (T, N), or as linear_swiglu has
        them; bfloat16 in arrays of uint16
Sizes   C a multiple of 256, at most 2,048
Needs   compute capability 8.0
Work    2*T*N*C flop; 2*N*C bytes of weights, beside which the rest is little
Source  as streamed.py; one_row.py, which does the same for GPT-2

A kernel of a few rows that writes what the next one reads costs two to three microseconds, however little it computes.
Here every block of the product normalises the rows again, while its weights are in flight: at T = 1 that is 8 KB
from L2 beside 64 KB from memory. `summed` must not be `residual`, which other blocks still read; block 0 writes it.

The sums are taken in the order of norm/rmsnorm.py and streamed.py, so that the bits are those of the two kernels apart.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.elements import BFLOAT16, SWIGLU
from labkit.kernels.linear.streamed import (
    GROUP,
    PITCH,
    STEP,
    STEPS,
    TENSOR_THREADS,
    TENSOR_WARPS,
    TURN,
    fetch_rows,
    make_eight,
    make_epilogue,
)
from labkit.kernels.matmul.mma import add_product_bf16
from labkit.kernels.norm.rows import small
from labkit.kernels.pdl import CARVEOUT, load_of, uses_pdl
from labkit.kernels.reduce import warp_sum

ROWS = 8  # of x at most: the columns of a tile of mma.sync
MOST_COLUMNS = TENSOR_WARPS * TURN  # one turn of the warps
EACH = 256  # columns of a warp that normalises: eight of each lane
ZERO, ONE = float32(0.0), float32(1.0)


@cuda.jit(device=True)
def add_words(x, y):
    """The sums of two pairs of bfloat16 numbers, rounded."""
    a, b = ptx.unpack_bf162(x)
    c, d = ptx.unpack_bf162(y)
    return ptx.pack_bf162(a + c, b + d)


@cuda.jit(device=True)
def add_squares(squares, word):
    a, b = ptx.unpack_bf162(word)
    squares += a * a
    squares += b * b
    return squares


@cuda.jit(device=True)
def scaled(word, scale, weight):
    """Two numbers times the scale, rounded, times their weights, rounded."""
    a, b = ptx.unpack_bf162(word)
    v, w = ptx.unpack_bf162(weight)
    a, b = ptx.unpack_bf162(ptx.pack_bf162(a * scale, b * scale))
    return ptx.pack_bf162(a * v, b * w)


@kernel_factory
def make_normed(columns: int, most: int, eps: float, *, swiglu: bool = False, early: bool = False):
    """As streamed.make_tensor of one tile of tokens and one of weights, whose tokens come from shared memory. most:
    rows of x at most; memory for more of them would be missing for the loads that are in flight."""
    COLUMNS, SMALL, SHARE, EARLY = columns, small(eps), ONE / float32(columns), early
    NORMING = columns // EACH  # warps that share a row
    ABREAST = TENSOR_WARPS // NORMING  # rows at a time
    ROW = columns + 32  # numbers from row to row: eight lanes that load find different banks
    TILE, MEETING = most * ROW, TENSOR_WARPS * ROWS * PITCH
    OUTPUTS = ROWS * (GROUP if swiglu else 16)
    ACROSS = GROUP if swiglu else 16
    WORDS = 8 * STEPS
    eight, load = make_eight(ptx.load_nc4), load_of(early)
    epilogue = make_epilogue(BFLOAT16, BFLOAT16, False)
    combine, to_out = SWIGLU[BFLOAT16], BFLOAT16.element

    @cuda.jit(device=True)
    def total_of(meeting, token, row):
        total = ZERO
        for warp in u32.range(TENSOR_WARPS):
            total += meeting[(warp * ROWS + token) * PITCH + row]
        return total

    @cuda.jit(launch_bounds=(TENSOR_THREADS, 2))
    def streamed_normed_kernel(x, residual, norm_weight, summed, weight, out):
        normed = cuda.shared.array(TILE, np.uint16, alignment=16)
        meeting = cuda.shared.array(MEETING, float32)
        partial = cuda.shared.array(TENSOR_WARPS, float32)
        acc = cuda.local.array(4, float32)
        w_words = cuda.local.array(WORDS, uint32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        down, q = lane // 4, lane % 4
        first_row = u32.blockIdx.x * 16
        rows, tokens = u32.shape(weight)[0], u32.shape(x)[0]
        for i in range(4):
            acc[i] = ZERO
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            fetch_rows(weight, first_row, 16, thread)
            ptx.griddepcontrol_wait()

        start = warp * TURN + q * 8
        for s in u32.range(STEPS):
            k = start + s * STEP
            inside = k < COLUMNS
            upper = eight(weight, min(first_row + down, rows - 1), k, inside)
            lower = eight(weight, min(first_row + down + 8, rows - 1), k, inside)
            for n in u32.range(4):
                w_words[8 * s + 2 * n], w_words[8 * s + 2 * n + 1] = upper[n], lower[n]

        beside, of_row = warp // NORMING, warp % NORMING
        col = (of_row * 32 + lane) * 8
        e, f, g, h = ptx.load_nc4(norm_weight, col)
        for base in u32.range(0, tokens, ABREAST):  # the same for the whole block
            token = base + beside
            inside = beside < ABREAST and token < tokens
            at = token * COLUMNS + col if inside else col
            a, b, c, d = load(x, at)
            i, j, m, n = load(residual, at)
            a, b, c, d = add_words(a, i), add_words(b, j), add_words(c, m), add_words(d, n)
            squares = add_squares(add_squares(add_squares(add_squares(ZERO, a), b), c), d)
            squares = warp_sum(squares)
            if lane == 0:
                partial[warp] = squares
            cuda.syncthreads()
            squares = ZERO
            for other in u32.range(NORMING):
                squares += partial[min(beside * NORMING + other,
                                       TENSOR_WARPS - 1)]
            scale = cuda.rsqrt(squares * SHARE + SMALL)
            if inside:
                if cuda.blockIdx.x == 0:
                    ptx.store_global4(summed, at, a, b, c, d)
                ptx.store_shared4(normed, token * ROW + col, scaled(a, scale, e), scaled(b, scale, f),
                                  scaled(c, scale, g), scaled(d, scale, h))
            cuda.syncthreads()  # the row is there, and `partial` has been read

        for s in u32.range(STEPS):
            k = start + s * STEP
            inside = down < tokens and k < COLUMNS
            a, b, c, d = ptx.load_shared4(normed, down * ROW + k if inside else 0)
            a, b = a if inside else 0, b if inside else 0
            c, d = c if inside else 0, d if inside else 0
            add_product_bf16(acc, 0, w_words[8 * s], w_words[8 * s + 1], w_words[8 * s + 2], w_words[8 * s + 3], a, b)
            add_product_bf16(acc, 0, w_words[8 * s + 4], w_words[8 * s + 5], w_words[8 * s + 6], w_words[8 * s + 7],
                             c, d)

        for n in u32.range(4):  # rows `down` and 8 below, tokens 2q and the next
            token = warp * ROWS + n % 2 + q * 2
            meeting[token * PITCH + down + n // 2 * 8] = acc[n]
        cuda.syncthreads()  # the sums of all warps are there
        if thread < OUTPUTS:
            token, place = thread // ACROSS, thread % ACROSS
            col = first_row // (16 // ACROSS) + place
            if token < tokens and col < u32.shape(out)[1]:
                total = total_of(meeting, token, place)
                if swiglu:
                    up = total_of(meeting, token, place + GROUP)
                    out[token, col] = to_out(combine(total, up))
                else:
                    out[token, col] = epilogue(total, out, col)

    streamed_normed_kernel.uses_pdl, streamed_normed_kernel.carveout = early, CARVEOUT
    return streamed_normed_kernel


def fits_normed(rows: int, columns: int) -> bool:
    """Whether linear_normed takes so many rows of so many columns."""
    return rows <= ROWS and columns % EACH == 0 and columns <= MOST_COLUMNS


def linear_normed(x, residual, norm_weight, summed, weight, out, eps, *, swiglu: bool = False, stream=0) -> None:
    """summed = x + residual; out = rmsnorm(summed) @ weight.T, or with swiglu of a weight that arrange_gate_up made."""
    (rows, columns), groups = x.shape, 2 * GROUP * -(-out.shape[1] // GROUP)
    if not fits_normed(rows, columns):
        raise ValueError(f"x has shape {tuple(x.shape)}; at most {ROWS} rows are allowed, of a multiple of {EACH} "
                         f"columns, at most {MOST_COLUMNS:,}")
    check_array("x", x, ndim=2, dtype=np.uint16)
    for name, array in (("residual", residual), ("summed", summed)):
        check_array(name, array, shape=x.shape, dtype=np.uint16)
    check_array("norm_weight", norm_weight, shape=(columns,), dtype=np.uint16)
    check_array("weight", weight, shape=(groups if swiglu else out.shape[1], columns), dtype=np.uint16)
    check_array("out", out, shape=(rows, out.shape[1]), dtype=np.uint16)
    if not aligned(x, residual, norm_weight, summed, weight):
        raise ValueError("x, residual, norm_weight, summed and weight must begin at multiples of 16 bytes")
    kernel = make_normed(columns, 1 if rows == 1 else ROWS, eps, swiglu=swiglu, early=uses_pdl(rows))
    kernel[-(-weight.shape[0] // 16), TENSOR_THREADS, stream](x, residual, norm_weight, summed, weight, out)
