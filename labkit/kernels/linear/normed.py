"""A linear layer of up to eight rows fused with the residual sum and the RMSNorm before it in a Llama:
summed = x + residual, out = rmsnorm(summed) @ weight.T, or with SwiGLU, as linear_swiglu.

Shapes  x, residual, summed (T, C), T at most 8; norm_weight (C,); weight (N, C) and out (T, N), or as linear_swiglu has
        them; bfloat16 in arrays of uint16, or float16. C a multiple of 256, at most 2,048
Needs   compute capability 8.0 for bfloat16
Work    2*T*N*C flop; 2*N*C bytes of weights; the rest is negligible
Source  as streamed.py; one_row.py, which does the same for GPT-2
"""

from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.elements import BFLOAT16, SWIGLU, Element, element_of
from labkit.kernels.linear.streamed import (
    GROUP,
    PITCH,
    STEP,
    STEPS,
    TENSOR_THREADS,
    TENSOR_WARPS,
    WARP_DEPTH,
    make_epilogue,
    prefetch_rows,
)
from labkit.kernels.matmul.mma import ADD_PRODUCT
from labkit.kernels.norm.rows import small
from labkit.kernels.pdl import CARVEOUT, load_of, uses_pdl
from labkit.kernels.reduce import warp_sum

ROWS = 8  # of x at most: the columns of an mma.sync tile
MAX_COLUMNS = TENSOR_WARPS * WARP_DEPTH  # one round of the warps
COLUMNS_PER_WARP = 256  # normalised by a warp: eight by each lane
ZERO, ONE = float32(0.0), float32(1.0)


def make_words(element: Element):
    """Device functions of words that hold two elements: add_words, add_squares and scale_pair."""
    pack, unpack = element.pack, element.unpack

    @cuda.jit(device=True)
    def add_words(x, y):
        """Add two pairs and round."""
        a, b = unpack(x)
        c, d = unpack(y)
        return pack(a + c, b + d)

    @cuda.jit(device=True)
    def add_squares(squares, word):
        a, b = unpack(word)
        squares += a * a
        squares += b * b
        return squares

    @cuda.jit(device=True)
    def scale_pair(word, scale, weight):
        """Multiply two elements by the scale, round, multiply by their weights, round."""
        a, b = unpack(word)
        v, w = unpack(weight)
        a, b = unpack(pack(a * scale, b * scale))
        return pack(a * v, b * w)

    return add_words, add_squares, scale_pair


@kernel_factory
def make_normed(columns: int, max_rows: int, eps: float, *, element: Element = BFLOAT16, swiglu: bool = False,
                early: bool = False):
    """As streamed.make_tensor of one tile of tokens and one of weights, whose tokens come from shared memory: every
    block normalises the rows again, while its weights are in flight (at T = 1 8 KB from L2 beside 64 KB from memory),
    which saves a launch of two to three microseconds. Sums are in the order of norm/rmsnorm.py and streamed.py: the
    result has the bits of the two kernels. Block 0 writes `summed`, which must not be `residual`: others read it.
    max_rows: of x; shared memory for more would take away L1 from the loads in flight."""
    COLUMNS, SMALL, INV_COLUMNS, EARLY = columns, small(eps), ONE / float32(columns), early
    WARPS_PER_ROW = columns // COLUMNS_PER_WARP  # warps that share a row
    ROWS_AT_ONCE = TENSOR_WARPS // WARPS_PER_ROW  # rows at a time
    ROW_STRIDE = columns + 32  # elements from row to row: eight lanes load from different banks
    TILE, NUM_PARTIALS = max_rows * ROW_STRIDE, TENSOR_WARPS * ROWS * PITCH
    OUTPUTS = ROWS * (GROUP if swiglu else 16)
    TILE_COLS = GROUP if swiglu else 16
    W_REGS = 8 * STEPS
    load = load_of(early)
    epilogue = make_epilogue(element, element, False)
    combine, to_element, ELEMENT = SWIGLU[element], element.element, element.dtype.type
    add_product, (add_words, add_squares, scale_pair) = ADD_PRODUCT[element], make_words(element)

    @cuda.jit(device=True)
    def reduce_warps(partials, token, row):
        total = ZERO
        for warp in u32.range(TENSOR_WARPS):
            total += partials[(warp * ROWS + token) * PITCH + row]
        return total

    @cuda.jit(launch_bounds=(TENSOR_THREADS, 2))
    def streamed_normed_kernel(x, residual, norm_weight, summed, weight, out):
        normed = cuda.shared.array(TILE, ELEMENT, alignment=16)
        partials = cuda.shared.array(NUM_PARTIALS, float32)
        warp_squares = cuda.shared.array(TENSOR_WARPS, float32)
        acc = cuda.local.array(4, float32)
        w_frag = cuda.local.array(W_REGS, uint32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        group_id, q = lane // 4, lane % 4
        row0 = u32.blockIdx.x * 16
        rows, tokens = u32.shape(weight)[0], u32.shape(x)[0]
        for i in range(4):
            acc[i] = ZERO
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            prefetch_rows(weight, row0, 16, thread)
            ptx.griddepcontrol_wait()

        k0 = warp * WARP_DEPTH + q * 8
        for s in u32.range(STEPS):
            k = k0 + s * STEP if k0 + s * STEP < COLUMNS else 0
            w_vec = ptx.load_nc4(weight, min(row0 + group_id, rows - 1) * COLUMNS + k)
            w_vec8 = ptx.load_nc4(weight, min(row0 + group_id + 8, rows - 1) * COLUMNS + k)
            for n in u32.range(4):
                w_frag[8 * s + 2 * n], w_frag[8 * s + 2 * n + 1] = w_vec[n], w_vec8[n]

        row_slot, warp_in_row = warp // WARPS_PER_ROW, warp % WARPS_PER_ROW
        col = (warp_in_row * 32 + lane) * 8
        e, f, g, h = ptx.load_nc4(norm_weight, col)
        for token0 in u32.range(0, tokens, ROWS_AT_ONCE):  # the same for the whole block
            token = token0 + row_slot
            inside = row_slot < ROWS_AT_ONCE and token < tokens
            offset = token * COLUMNS + col if inside else col
            a, b, c, d = load(x, offset)
            i, j, m, n = load(residual, offset)
            a, b, c, d = add_words(a, i), add_words(b, j), add_words(c, m), add_words(d, n)
            squares = add_squares(add_squares(add_squares(add_squares(ZERO, a), b), c), d)
            squares = warp_sum(squares)
            if lane == 0:
                warp_squares[warp] = squares
            cuda.syncthreads()
            squares = ZERO
            for other_warp in u32.range(WARPS_PER_ROW):
                squares += warp_squares[min(row_slot * WARPS_PER_ROW + other_warp, TENSOR_WARPS - 1)]
            scale = cuda.rsqrt(squares * INV_COLUMNS + SMALL)
            if inside:
                if cuda.blockIdx.x == 0:
                    ptx.store_global4(summed, offset, a, b, c, d)
                ptx.store_shared4(normed, token * ROW_STRIDE + col, scale_pair(a, scale, e), scale_pair(b, scale, f),
                                  scale_pair(c, scale, g), scale_pair(d, scale, h))
            cuda.syncthreads()  # the row is written, and `warp_squares` has been read

        for s in u32.range(STEPS):
            k = k0 + s * STEP
            for n in u32.range(8):
                w_frag[8 * s + n] = w_frag[8 * s + n] if k < COLUMNS else 0
            inside = group_id < tokens and k < COLUMNS
            a, b, c, d = ptx.load_shared4(normed, group_id * ROW_STRIDE + k if inside else 0)
            a, b = a if inside else 0, b if inside else 0
            c, d = c if inside else 0, d if inside else 0
            add_product(acc, 0, w_frag[8 * s], w_frag[8 * s + 1], w_frag[8 * s + 2], w_frag[8 * s + 3], a, b)
            add_product(acc, 0, w_frag[8 * s + 4], w_frag[8 * s + 5], w_frag[8 * s + 6], w_frag[8 * s + 7], c, d)

        for n in u32.range(4):  # rows group_id and group_id + 8, tokens 2q and 2q + 1
            token = warp * ROWS + n % 2 + q * 2
            partials[token * PITCH + group_id + n // 2 * 8] = acc[n]
        cuda.syncthreads()  # the partial sums of all warps are written
        if thread < OUTPUTS:
            token, tile_row = thread // TILE_COLS, thread % TILE_COLS
            col = row0 // (16 // TILE_COLS) + tile_row
            if token < tokens and col < u32.shape(out)[1]:
                total = reduce_warps(partials, token, tile_row)
                if swiglu:
                    up = reduce_warps(partials, token, tile_row + GROUP)
                    out[token, col] = to_element(combine(total, up))
                else:
                    out[token, col] = epilogue(total, out, col)

    streamed_normed_kernel.uses_pdl, streamed_normed_kernel.carveout = early, CARVEOUT
    return streamed_normed_kernel


def fits_normed(rows: int, columns: int) -> bool:
    """Return whether linear_normed takes this many rows and columns."""
    return rows <= ROWS and columns % COLUMNS_PER_WARP == 0 and columns <= MAX_COLUMNS


def linear_normed(x, residual, norm_weight, summed, weight, out, eps, *, swiglu: bool = False, stream=0) -> None:
    """summed = x + residual; out = rmsnorm(summed) @ weight.T, or with swiglu of a weight that arrange_gate_up made."""
    (rows, columns), groups = x.shape, 2 * GROUP * -(-out.shape[1] // GROUP)
    if not fits_normed(rows, columns):
        raise ValueError(f"x has shape {tuple(x.shape)}; at most {ROWS} rows are allowed, of a multiple of "
                         f"{COLUMNS_PER_WARP} columns, at most {MAX_COLUMNS:,}")
    element = element_of("x", x)
    if element.pack is None:
        raise TypeError(f"x has dtype {x.dtype}; uint16, which holds bfloat16, and float16 are allowed")
    check_array("x", x, ndim=2, dtype=element.dtype)
    for name, array in (("residual", residual), ("summed", summed)):
        check_array(name, array, shape=x.shape, dtype=element.dtype)
    check_array("norm_weight", norm_weight, shape=(columns,), dtype=element.dtype)
    check_array("weight", weight, shape=(groups if swiglu else out.shape[1], columns), dtype=element.dtype)
    check_array("out", out, shape=(rows, out.shape[1]), dtype=element.dtype)
    if not aligned(x, residual, norm_weight, summed, weight):
        raise ValueError("x, residual, norm_weight, summed and weight must begin at multiples of 16 bytes")
    kernel = make_normed(columns, 1 if rows == 1 else ROWS, eps, element=element, swiglu=swiglu, early=uses_pdl(rows))
    kernel[-(-weight.shape[0] // 16), TENSOR_THREADS, stream](x, residual, norm_weight, summed, weight, out)
