"""Linear layers of few rows, out = x @ weight.T, that stream the weights: most of the time of a decoder's step.

Shapes  x (T, K), weight (N, K) as files have it, bias (N,), out (T, N); float32, float16, or bfloat16 in arrays
        of uint16; out may also be float32 (logits). Accumulators in float32
Sizes   any for `thread` and `warp`; K a multiple of 8 (16 bits) or 4 (float32) where 128 bits are loaded at once
Work    2*T*N*K flop; 2*N*K bytes of weights, each for T products; the rest is negligible
Source  Little, "A Proof for the Queuing Formula: L = lambda W" (1961); PTX ISA, "Matrix Fragments for mma.m16n8k16"

All rungs are in one file, longer than others, as they share its epilogues and launchers with linear/bf16.py.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, blocks_for, check_array
from labkit.kernels.elements import BFLOAT16, ELEMENTS, FLOAT32, SWIGLU, Element, element_of
from labkit.kernels.matmul.mma import ADD_PRODUCT
from labkit.kernels.op import rung
from labkit.kernels.pdl import CARVEOUT, load_of, uses_pdl
from labkit.kernels.reduce import warp_sum

# By Little's law, bytes in flight are bandwidth times latency: 4.2 TB/s and some 700 ns on an H200, so 22 KB for each
# of its 132 SMs. Registers are those that ptxas counts for sm_90, without spills.
#
#     kernel            registers   threads an SM holds      bytes of weights a thread loads      in flight in an SM
#     thread, warp             31                 2,048                                    2                    4 KB
#     wide                     32                 2,048                                   16                   32 KB
#     several                  40                 1,536                                   64                   96 KB
#     tensor, T <= 8           64                 1,024                                  128                  128 KB
#     tensor, T <= 32   88 to 118                   512                                  128                   64 KB
#
# While a weight arrives, the CUDA cores have time for 13 FMAs at their peak, the tensor cores for some 200.

ZERO = float32(0.0)
GROUP = 8  # gates, and then their ups, among the rows of a weight that make_swiglu's kernels take
BLOCK = 128
WARPS = 4  # of a block that computes an output with a warp


@cuda.jit(device=True)
def gate_row(i):
    """Return the row of a gate where groups of eight gates and of their ups alternate; its up is GROUP further."""
    return i // GROUP * (2 * GROUP) + i % GROUP


def make_epilogue(element: Element, out_element: Element, bias: bool):
    """A device function: turn a sum into an element of out."""
    to_float, to_element = element.number, out_element.element

    @cuda.jit(device=True)
    def epilogue(total, bias_of, col):
        if bias:
            total += to_float(bias_of[col])
        return to_element(total)

    return epilogue


def make_dot(element: Element):
    """A device function: total + the dot product of two 128-bit vectors, in order."""
    packed, unpack = element.unpack is not None, element.unpack

    @cuda.jit(device=True)
    def dot(total, a, b):
        for i in range(4):
            if packed:
                a_low, a_high = unpack(a[i])
                b_low, b_high = unpack(b[i])
                total += a_low * b_low
                total += a_high * b_high
            else:
                total += a[i] * b[i]
        return total

    return dot


# --- A thread for each output -----------------------------------------------------------------------------------------


def make_row_dot(element: Element):
    """A device function: the dot product of a row of x and one of the weights."""
    to_float = element.number

    @cuda.jit(device=True)
    def dot(x, weight, row, col):
        depth = u32.shape(x)[1]
        total = ZERO
        for k in u32.range(depth):
            total += to_float(x[row, k]) * to_float(weight[col, k])
        return total

    return dot


def make_row_dot_wide(element: Element):
    """As make_row_dot with 128-bit loads and an accumulator for each element of a load: for the CPU device, where one
    thread runs after the other, and additions are then independent."""
    packed, unpack = element.unpack is not None, element.unpack

    @cuda.jit(device=True)
    def dot(x, weight, row, col):
        depth = u32.shape(x)[1]
        x_offset, w_offset = row * depth, col * depth
        end = x_offset + depth
        a, b, c, d, e, f, g, h = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
        while x_offset < end:
            x0, x1, x2, x3 = ptx.load_nc4(x, x_offset)
            w0, w1, w2, w3 = ptx.load_nc4(weight, w_offset)
            if packed:
                p0, q0 = unpack(x0)
                p1, q1 = unpack(x1)
                p2, q2 = unpack(x2)
                p3, q3 = unpack(x3)
                r0, s0 = unpack(w0)
                r1, s1 = unpack(w1)
                r2, s2 = unpack(w2)
                r3, s3 = unpack(w3)
                a += p0 * r0
                b += p1 * r1
                c += p2 * r2
                d += p3 * r3
                e += q0 * s0
                f += q1 * s1
                g += q2 * s2
                h += q3 * s3
                x_offset, w_offset = x_offset + 8, w_offset + 8
            else:
                a += x0 * w0
                b += x1 * w1
                c += x2 * w2
                d += x3 * w3
                x_offset, w_offset = x_offset + 4, w_offset + 4
        return ((a + b) + (c + d)) + ((e + f) + (g + h))

    return dot


@kernel_factory
def make_thread(element: Element, out_element: Element, *, wide: bool = False, bias: bool = False,
                swiglu: bool = False):
    epilogue, combine, to_element = make_epilogue(element, out_element, bias), SWIGLU[element], out_element.element
    dot = make_row_dot_wide(element) if wide else make_row_dot(element)

    @cuda.jit
    def streamed_thread_kernel(x, weight, bias_of, out):
        col, row = u32.grid(2)
        if col < u32.shape(out)[1]:
            if swiglu:
                gate = gate_row(col)
                out[row, col] = to_element(combine(dot(x, weight, row, gate), dot(x, weight, row, gate + GROUP)))
            else:
                out[row, col] = epilogue(dot(x, weight, row, col), bias_of, col)

    return streamed_thread_kernel


# --- A warp for each output -------------------------------------------------------------------------------------------


@kernel_factory
def make_warp(element: Element, out_element: Element, *, bias: bool = False, swiglu: bool = False):
    epilogue, to_float = make_epilogue(element, out_element, bias), element.number
    combine, to_element = SWIGLU[element], out_element.element

    @cuda.jit(device=True)
    def dot(x, weight, row, col, lane):
        depth = u32.shape(x)[1]
        total = ZERO
        for k in u32.range(lane, depth, 32):
            total += to_float(x[row, k]) * to_float(weight[col, k])
        return warp_sum(total)

    @cuda.jit
    def streamed_warp_kernel(x, weight, bias_of, out):
        lane, row = u32.threadIdx.x, u32.blockIdx.y
        col = u32.blockIdx.x * WARPS + u32.threadIdx.y
        if col < u32.shape(out)[1]:  # the same for all lanes of a warp
            if swiglu:
                gate = gate_row(col)
                gate_sum = dot(x, weight, row, gate, lane)
                up_sum = dot(x, weight, row, gate + GROUP, lane)
                if lane == 0:
                    out[row, col] = to_element(combine(gate_sum, up_sum))
            else:
                total = dot(x, weight, row, col, lane)
                if lane == 0:
                    out[row, col] = epilogue(total, bias_of, col)

    return streamed_warp_kernel


@kernel_factory
def make_wide(element: Element, out_element: Element, outputs: int, *, bias: bool = False):
    """A warp computes `outputs` neighbouring outputs: it has as many loads of weights in flight, and reads x once."""
    epilogue, dot = make_epilogue(element, out_element, bias), make_dot(element)
    OUTPUTS, VEC = outputs, element.per_load

    @cuda.jit
    def streamed_wide_kernel(x, weight, bias_of, out):
        lane, row = u32.threadIdx.x, u32.blockIdx.y
        col = (u32.blockIdx.x * WARPS + u32.threadIdx.y) * OUTPUTS
        rows, depth = u32.shape(weight)[0], u32.shape(x)[1]
        if col < rows:  # the same for all lanes of a warp
            totals = cuda.local.array(OUTPUTS, float32)
            w_offsets = cuda.local.array(OUTPUTS, uint32)
            for i in u32.range(OUTPUTS):
                totals[i] = ZERO
                w_offsets[i] = min(col + i, rows - 1) * depth
            x_offset = row * depth
            for k in u32.range(lane * VEC, depth, 32 * VEC):
                x_vec = ptx.load_nc4(x, x_offset + k)
                for i in u32.range(OUTPUTS):
                    totals[i] = dot(totals[i], ptx.load_nc4(weight, w_offsets[i] + k), x_vec)
            for i in u32.range(OUTPUTS):
                total = warp_sum(totals[i])
                if lane == 0 and col + i < rows:
                    out[row, col + i] = epilogue(total, bias_of, col + i)

    return streamed_wide_kernel


# --- Tensor cores -----------------------------------------------------------------------------------------------------

TENSOR_WARPS = 16  # of a block; they share K
TENSOR_THREADS = 32 * TENSOR_WARPS
STEP = 32  # of K: two products of 16
STEPS = 4  # that are consecutive for a warp: 256 bytes of a row
WARP_DEPTH = STEPS * STEP
PITCH = 20  # of 16 sums of a token: lanes that store a product's accumulators hit 32 different banks


FIRST_WAVE = 264  # blocks that an H200 holds at once: later ones begin when the previous kernel has ended


@cuda.jit(device=True)
def prefetch_rows(weight, row0, count, thread):
    """Prefetch `count` rows of the weights into L2, one for each thread. Loads to registers would have to arrive before
    griddepcontrol.wait: in a first version they did, and a block waited for memory twice."""
    row = row0 + thread
    if u32.blockIdx.x < FIRST_WAVE and thread < count and row < u32.shape(weight)[0]:
        depth = u32.shape(weight)[1]
        ptx.prefetch_l2(weight, row * depth, 2 * depth)


@kernel_factory
def make_tensor(token_tiles: int, row_tiles: int, *, element: Element = BFLOAT16, out_element: Element | None = None,
                bias: bool = False, swiglu: bool = False, early: bool = False):
    """A block computes 16 * row_tiles rows of the weights for 8 * token_tiles tokens; its warps share K.

    The weights are the left factor, whose tile has 16 rows, and tokens are the columns, in eights: one token costs no
    more than a tile of eight. As in make_skinny_half, both factors take K in an order that suits the loads: of each 32
    steps, lane q of four holds steps 8q to 8q + 7, one load of 16 bytes, whose words alternate as first and second
    register of two products. So weights are loaded from global memory straight into fragments.

    Addresses beyond an edge are clamped, and once all loads have been issued, what they load is replaced by zeros:
    without a branch or a use in between, the compiler issues all loads of a batch in a row. Which warp adds what, and
    in which order, depends on K only: an output has the same bits for any number of tokens and any tiles.

    element: of 16 bits. out_element: None for the same. early: its weights are prefetched into L2 while the previous
    kernel ends; see kernels/pdl.py.
    """
    TILES, ROW_TILES = token_tiles, row_tiles
    TOKENS = 8 * token_tiles
    BATCH = STEPS // row_tiles  # steps whose loads are in flight together: eight loads of weights
    ACCUMULATORS, X_REGS, W_REGS = 4 * TILES * ROW_TILES, 4 * TILES * BATCH, 8 * STEPS
    NUM_PARTIALS = TENSOR_WARPS * TOKENS * PITCH
    OUTPUTS = TOKENS * (GROUP if swiglu else 16)
    TILE_COLS = GROUP if swiglu else 16  # columns of out for 16 rows of weights
    out_element = out_element or element
    epilogue, combine, to_element = make_epilogue(element, out_element, bias), SWIGLU[element], out_element.element
    add_product = ADD_PRODUCT[element]
    BLOCKS = 2 if token_tiles == row_tiles == 1 else 1  # of an SM: 64 registers a thread, or 128
    EARLY = early
    load_w, load_x = ptx.load_nc4, load_of(early)

    @cuda.jit(device=True)
    def reduce_warps(partials, token, row):
        total = ZERO
        for warp in u32.range(TENSOR_WARPS):
            total += partials[(warp * TOKENS + token) * PITCH + row]
        return total

    @cuda.jit(launch_bounds=(TENSOR_THREADS, BLOCKS))
    def streamed_tensor_kernel(x, weight, bias_of, out):
        partials = cuda.shared.array(NUM_PARTIALS, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        w_frag = cuda.local.array(W_REGS, uint32)
        x_frag = cuda.local.array(X_REGS, uint32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        group_id, q = lane // 4, lane % 4
        row0 = u32.blockIdx.x * (16 * ROW_TILES)
        token0 = u32.blockIdx.y * TOKENS
        rows, depth, tokens = u32.shape(weight)[0], u32.shape(weight)[1], u32.shape(x)[0]
        for i in u32.range(ACCUMULATORS):
            acc[i] = ZERO
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            prefetch_rows(weight, row0, 16 * ROW_TILES, thread)
            ptx.griddepcontrol_wait()

        k0 = warp * WARP_DEPTH
        while k0 < depth:
            k = k0 + q * 8
            for s in u32.range(BATCH):
                k_s = k + s * STEP if k + s * STEP < depth else 0
                for j in u32.range(ROW_TILES):
                    row = row0 + 16 * j + group_id
                    w_vec = load_w(weight, min(row, rows - 1) * depth + k_s)
                    w_vec8 = load_w(weight, min(row + 8, rows - 1) * depth + k_s)
                    for n in u32.range(4):
                        w_frag[(s * ROW_TILES + j) * 8 + 2 * n] = w_vec[n]
                        w_frag[(s * ROW_TILES + j) * 8 + 2 * n + 1] = w_vec8[n]
            for s in u32.range(BATCH):
                k_s = k + s * STEP if k + s * STEP < depth else 0
                for i in u32.range(TILES):
                    x_vec = load_x(x, min(token0 + 8 * i + group_id, tokens - 1) * depth + k_s)
                    for n in u32.range(4):
                        x_frag[(s * TILES + i) * 4 + n] = x_vec[n]
            for s in u32.range(BATCH):
                inside = k + s * STEP < depth
                for n in u32.range(8 * ROW_TILES):
                    w_frag[s * ROW_TILES * 8 + n] = w_frag[s * ROW_TILES * 8 + n] if inside else 0
                for n in u32.range(4 * TILES):
                    x_frag[s * TILES * 4 + n] = x_frag[s * TILES * 4 + n] if inside else 0
            for s in u32.range(BATCH):
                for half in range(2):
                    for j in u32.range(ROW_TILES):
                        i_w = (s * ROW_TILES + j) * 8 + 4 * half
                        for i in u32.range(TILES):
                            add_product(acc, (j * TILES + i) * 4,
                                        w_frag[i_w], w_frag[i_w + 1], w_frag[i_w + 2], w_frag[i_w + 3],
                                        x_frag[(s * TILES + i) * 4 + 2 * half],
                                        x_frag[(s * TILES + i) * 4 + 2 * half + 1])
            k0 += BATCH * STEP
            if k0 % WARP_DEPTH == 0:  # the next WARP_DEPTH of K are another warp's
                k0 += (TENSOR_WARPS - 1) * WARP_DEPTH

        for j in u32.range(ROW_TILES):
            if j > 0:
                cuda.syncthreads()  # the partial sums of the previous rows have been read
            for i in u32.range(TILES):
                for n in u32.range(4):  # rows group_id and group_id + 8, tokens 2q and 2q + 1
                    token = warp * TOKENS + (8 * i + n % 2) + q * 2
                    partials[token * PITCH + group_id + n // 2 * 8] = acc[(j * TILES + i) * 4 + n]
            cuda.syncthreads()  # the partial sums of all warps are written
            for idx in u32.range(thread, OUTPUTS, TENSOR_THREADS):
                token, tile_row = idx // TILE_COLS, idx % TILE_COLS
                row = token0 + token
                col = (row0 + 16 * j) // (16 // TILE_COLS) + tile_row
                if row < tokens and col < u32.shape(out)[1]:
                    total = reduce_warps(partials, token, tile_row)
                    if swiglu:
                        up = reduce_warps(partials, token, tile_row + GROUP)
                        out[row, col] = to_element(combine(total, up))
                    else:
                        out[row, col] = epilogue(total, bias_of, col)

    streamed_tensor_kernel.uses_pdl, streamed_tensor_kernel.carveout = early, CARVEOUT
    return streamed_tensor_kernel


# --- Launching --------------------------------------------------------------------------------------------------------

EIGHTS = "K a multiple of 8 (of 4 for float32)"


def check_linear(x, weight, bias, out, *, swiglu: bool = False) -> tuple:
    """Return (Element of x, Element of out), or raise an error that names the argument and the allowed values."""
    element = element_of("x", x)
    check_array("x", x, ndim=2, dtype=element.dtype)
    name = "gate_up" if swiglu else "weight"
    check_array(name, weight, ndim=2, dtype=element.dtype)
    if weight.shape[1] != x.shape[1]:
        raise ValueError(f"x has shape {tuple(x.shape)} and {name} {tuple(weight.shape)}; they must have as many "
                         f"columns")
    out_element = element_of("out", out)
    if swiglu:
        check_array("out", out, ndim=2, dtype=element.dtype)
        cols = out.shape[1]
        if weight.shape[0] != 2 * GROUP * -(-cols // GROUP) or out.shape[0] != x.shape[0]:
            raise ValueError(f"x has shape {tuple(x.shape)}, gate_up {tuple(weight.shape)} and out {tuple(out.shape)}; "
                             f"out must have the rows of x, and gate_up {2 * GROUP} rows for each {GROUP} columns of "
                             f"out, as arrange_gate_up makes it")
        return element, element
    if out_element not in (element, FLOAT32):
        raise TypeError(f"out has dtype {out.dtype}; {element.dtype} as x, or float32, is allowed")
    check_array("out", out, shape=(x.shape[0], weight.shape[0]), dtype=out_element.dtype)
    if bias is not None:
        check_array("bias", bias, shape=weight.shape[:1], dtype=element.dtype)
    return element, out_element


def loads_whole(x, weight) -> bool:
    """Return whether 128-bit loads can read the rows of both."""
    return x.shape[1] % ELEMENTS[np.dtype(x.dtype)].per_load == 0 and aligned(x, weight)


def check_wide(x, weight) -> None:
    if not loads_whole(x, weight):
        raise ValueError(f"x has {x.shape[1]} columns; a row must be a multiple of 16 bytes, and x and the weights "
                         f"must begin at multiples of 16 bytes")


def by_thread(x, weight, bias, out, elements, *, wide: bool, swiglu: bool = False, stream=0) -> None:
    kernel = make_thread(*elements, wide=wide, bias=bias is not None, swiglu=swiglu)
    grid = blocks_for(out.shape[::-1], (BLOCK, 1))
    kernel[grid, (BLOCK, 1), stream](x, weight, out if bias is None else bias, out)


def by_warp(x, weight, bias, out, elements, *, swiglu: bool = False, stream=0) -> None:
    kernel = make_warp(*elements, bias=bias is not None, swiglu=swiglu)
    grid = blocks_for(out.shape[::-1], (WARPS, 1))
    kernel[grid, (32, WARPS), stream](x, weight, out if bias is None else bias, out)


def by_wide_warp(x, weight, bias, out, elements, outputs: int, stream=0) -> None:
    kernel = make_wide(*elements, outputs, bias=bias is not None)
    grid = blocks_for(out.shape[::-1], (WARPS * outputs, 1))
    kernel[grid, (32, WARPS), stream](x, weight, out if bias is None else bias, out)


MANY_ROWS, SOME_ROWS = 4096, 3072  # of the weights: from here on there are enough blocks of 32 rows each


def tiles_for(tokens: int, rows: int) -> tuple[int, int]:
    """Return (tiles of 8 tokens, of 16 rows of weights) of a block. A block reads all of x from L2: with more than 8
    tokens, two tiles of weights halve that traffic, as long as each SM has a block; with more than 16, also where half
    of them have none."""
    token_tiles = next((tiles for tiles in (1, 2, 4) if tokens <= 8 * tiles), 4)
    many = rows >= gpus.for_sms(SOME_ROWS if token_tiles == 4 else MANY_ROWS)
    return token_tiles, 2 if token_tiles > 1 and many else 1


def by_tensor_cores(x, weight, bias, out, elements, *, swiglu: bool = False, stream=0) -> None:
    """Any number of tokens, 32 or fewer at a time."""
    token_tiles, row_tiles = tiles_for(x.shape[0], weight.shape[0])
    kernel = make_tensor(token_tiles, row_tiles, element=elements[0], out_element=elements[1], bias=bias is not None,
                         swiglu=swiglu, early=uses_pdl(x.shape[0]))
    grid = blocks_for((weight.shape[0], x.shape[0]), (16 * row_tiles, 8 * token_tiles))
    kernel[grid, TENSOR_THREADS, stream](x, weight, out if bias is None else bias, out)


# --- The ladder -------------------------------------------------------------------------------------------------------


@rung(kernel=make_thread(BFLOAT16, BFLOAT16), idea="one thread an output: neighbours read a row apart",
      sizes="at most 65,535 rows")
def streamed_thread(x, weight, out, stream=0):
    """One thread computes one output, from a row of x and a row of the weights."""
    by_thread(x, weight, None, out, check_linear(x, weight, None, out), wide=False, stream=stream)


@rung(kernel=make_warp(BFLOAT16, BFLOAT16), idea="one warp an output, along a row of the weights",
      sizes="at most 65,535 rows")
def streamed_warp(x, weight, out, stream=0):
    """As thread, but a warp shares a row, so that neighbours read neighbours."""
    by_warp(x, weight, None, out, check_linear(x, weight, None, out), stream=stream)


@rung(kernel=make_wide(BFLOAT16, BFLOAT16, 1), idea="16 bytes a load: eight weights", sizes=EIGHTS)
def streamed_wide(x, weight, out, stream=0):
    """As warp, but a lane loads eight weights at once: eight times as many bytes are in flight."""
    elements = check_linear(x, weight, None, out)
    check_wide(x, weight)
    by_wide_warp(x, weight, None, out, elements, 1, stream)


SEVERAL = 4


@rung(kernel=make_wide(BFLOAT16, BFLOAT16, SEVERAL), idea="a warp has four rows of weights in flight", sizes=EIGHTS)
def streamed_several(x, weight, out, stream=0):
    """As wide, but a warp computes four outputs: four loads before the first is used, and x is loaded once for them."""
    elements = check_linear(x, weight, None, out)
    check_wide(x, weight)
    by_wide_warp(x, weight, None, out, elements, SEVERAL, stream)


@rung(kernel=tuple(make_tensor(tokens, rows) for tokens, rows in ((1, 1), (2, 1), (2, 2), (4, 2))),
      idea="16 warps share K; weights go to the tensor cores as they land", sizes=EIGHTS)
def streamed_tensor_cores(x, weight, out, stream=0):
    """As several, but tensor cores multiply, by up to 32 tokens at once; each thread has eight loads of weights in
    flight, and the 16 warps of a block share K, so that a small layer has as many bytes in flight as a large
    one."""
    elements = check_linear(x, weight, None, out)
    check_wide(x, weight)
    by_tensor_cores(x, weight, None, out, elements, stream=stream)
