"""Layer normalisation of rows of 16 bits, alone or with a residual added first; the arithmetic is float32.

Shapes  x, residual, out (R, C), weight, bias (C,); all float16, or all uint16, which holds bfloat16; C-contiguous
Work    about 8 flops an element; 4*R*C bytes, 6*R*C with a residual
Source  as labkit.kernels.norm.layernorm; MiniLM and BERT use this form

A lane loads eight neighbours at once: 128 bits are four words of two elements each. A row of 768 is three such
octets in each lane of a warp.
"""

from numba import float32, int32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, Element, element_of
from labkit.kernels.norm import layernorm as full
from labkit.kernels.norm.layernorm import EPSILON, ONE, ZERO
from labkit.kernels.norm.rows import fitting, flat, make_row, small
from labkit.kernels.op import rung
from labkit.kernels.reduce import block_reduce_sum, warp_sum

ROWS = 4  # per block, one per warp
OCTETS = {256: 1, 512: 2, 768: 3, 1024: 4, 2048: 8}  # most columns -> octets per lane


def layernorm_half_reference(x, weight, bias, epsilon=EPSILON):
    return full.layernorm_reference(float64_of(x), float64_of(weight), float64_of(bias), epsilon)


def add_layernorm_half_reference(x, residual, weight, bias, epsilon=EPSILON):
    return layernorm_half_reference(float64_of(x) + float64_of(residual), weight, bias, epsilon)


# --- One block per row: where MiniLM's ladder begins ------------------------------------------------------------------

BLOCK_THREADS = 128


@kernel_factory
def make_layernorm_half_block(epsilon: float):
    EPS = small(epsilon)

    @cuda.jit
    def layernorm_half_block_kernel(x, weight, bias, out):
        shared = cuda.shared.array(BLOCK_THREADS, float32)
        row, thread = u32.blockIdx.x, u32.threadIdx.x
        columns = u32.shape(x)[1]
        inv_cols = ONE / float32(columns)

        total = ZERO
        for col in u32.range(thread, columns, BLOCK_THREADS):
            total += float32(x[row, col])
        mean = block_reduce_sum(total, shared) * inv_cols

        squares = ZERO
        for col in u32.range(thread, columns, BLOCK_THREADS):
            difference = float32(x[row, col]) - mean
            squares += difference * difference
        rstd = cuda.rsqrt(block_reduce_sum(squares, shared) * inv_cols + EPS)

        for col in u32.range(thread, columns, BLOCK_THREADS):
            out[row, col] = (float32(x[row, col]) - mean) * rstd * float32(weight[col]) + float32(bias[col])

    return layernorm_half_block_kernel


def layernorm_half_block(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """128 threads share a row; a tree in shared memory adds up their sums, with a barrier for each of its levels.
    float16 only. `out` may be `x`."""
    _check(x, weight, bias, out, allowed=(FLOAT16,))
    make_layernorm_half_block(epsilon)[x.shape[0], BLOCK_THREADS, stream](x, weight, bias, out)


# --- Eight neighbours of a row; `remaining` of them are inside, the others load as zero and are not stored ----------


def make_eight(element: Element):
    """Make two pairs of device functions, (load, store): of eight neighbours at once, and of one after the other."""
    number, to_element, pack, unpack = element.number, element.element, element.pack, element.unpack

    @cuda.jit(device=True)
    def load_eight(array, i, remaining):
        a, b, c, d = 0, 0, 0, 0
        if remaining > 0:  # all eight or none
            a, b, c, d = ptx.load_global4(array, i)
        e0, e1 = unpack(a)
        e2, e3 = unpack(b)
        e4, e5 = unpack(c)
        e6, e7 = unpack(d)
        return e0, e1, e2, e3, e4, e5, e6, e7

    @cuda.jit(device=True)
    def store_eight(array, i, remaining, e):
        if remaining > 0:
            ptx.store_global4(array, i, pack(e[0], e[1]), pack(e[2], e[3]), pack(e[4], e[5]), pack(e[6], e[7]))

    @cuda.jit(device=True)
    def load_one(array, i, remaining):
        return number(array[i]) if remaining > 0 else ZERO

    @cuda.jit(device=True)
    def load_singles(array, i, remaining):
        return (load_one(array, i, remaining), load_one(array, i + 1, remaining - 1),
                load_one(array, i + 2, remaining - 2), load_one(array, i + 3, remaining - 3),
                load_one(array, i + 4, remaining - 4), load_one(array, i + 5, remaining - 5),
                load_one(array, i + 6, remaining - 6), load_one(array, i + 7, remaining - 7))

    @cuda.jit(device=True)
    def store_singles(array, i, remaining, e):
        for n in u32.range(8):
            if remaining > int32(n):
                array[i + n] = to_element(e[n])

    return (load_eight, store_eight), (load_singles, store_singles)


EIGHT = {element: make_eight(element) for element in (FLOAT16, BFLOAT16)}


@cuda.jit(device=True)
def put_eight(local, i, values):
    local[i], local[i + 1], local[i + 2], local[i + 3] = values[0], values[1], values[2], values[3]
    local[i + 4], local[i + 5], local[i + 6], local[i + 7] = values[4], values[5], values[6], values[7]


@kernel_factory
def make_layernorm_half(element: Element, octets: int, vectorized: bool, with_residual: bool, epsilon: float):
    """Make a kernel for rows of up to 256 * octets columns. vectorized: whole octets, at multiples of 16 bytes."""
    load, store = EIGHT[element][0 if vectorized else 1]
    elements, EPS = 8 * octets, small(epsilon)
    centre, store_normalised = make_row(octets, 256, load, store, vec=8)

    @cuda.jit
    def layernorm_half_kernel(x, residual, weight, bias, out):
        lane = u32.threadIdx.x
        columns = u32.size(weight)
        row_offset = (u32.blockIdx.x * ROWS + u32.threadIdx.y) * columns
        if row_offset < x.size:
            inv_cols = ONE / float32(columns)
            offset, remaining = row_offset + 8 * lane, int32(columns) - int32(8) * int32(lane)
            v = cuda.local.array(elements, float32)
            for o in u32.range(octets):
                put_eight(v, 8 * o, load(x, offset + 256 * o, remaining - int32(256 * o)))
            if with_residual:
                r = cuda.local.array(elements, float32)
                for o in u32.range(octets):
                    put_eight(r, 8 * o, load(residual, offset + 256 * o, remaining - int32(256 * o)))
                for e in range(elements):
                    v[e] += r[e]
            total = ZERO
            for e in range(elements):
                total += v[e]
            mean = warp_sum(total) * inv_cols
            rstd = cuda.rsqrt(warp_sum(centre(v, mean, remaining)) * inv_cols + EPS)
            store_normalised(v, rstd, weight, bias, out, offset, 8 * lane, remaining)

    return layernorm_half_kernel


@rung(kernel=make_layernorm_half(FLOAT16, 3, False, False, EPSILON), idea="one warp a row, elements loaded one by one",
      sizes="rows of at most 2,048 columns")
def layernorm_half_singles(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """One warp normalises one row, which stays in registers. A lane takes eight neighbours, loaded one by one."""
    _check(x, weight, bias, out)
    _launch(x, x, weight, bias, out, epsilon, stream, with_residual=False, vectorized=False)


@rung(kernel=make_layernorm_half(FLOAT16, 3, True, False, EPSILON), idea="eight elements in one load",
      sizes="rows of at most 2,048 columns")
def layernorm_half_warp(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """As singles, but the eight neighbours are one load of 128 bits, if columns are a multiple of eight. `out` may
    be `x`."""
    _check(x, weight, bias, out)
    _launch(x, x, weight, bias, out, epsilon, stream, with_residual=False)


@rung(kernel=make_layernorm_half(FLOAT16, 3, False, True, EPSILON), idea="one warp a row, elements loaded one by one",
      sizes="rows of at most 2,048 columns")
def add_layernorm_half_singles(x, residual, weight, bias, out, epsilon=EPSILON, stream=0):
    """One warp adds and normalises one row; the sum stays in registers, in float32. Values are loaded one by one."""
    _check(x, weight, bias, out, residual)
    _launch(x, residual, weight, bias, out, epsilon, stream, with_residual=True, vectorized=False)


@rung(kernel=make_layernorm_half(FLOAT16, 3, True, True, EPSILON), idea="eight elements in one load",
      sizes="rows of at most 2,048 columns")
def add_layernorm_half_warp(x, residual, weight, bias, out, epsilon=EPSILON, stream=0):
    """As singles, but eight neighbours are one load of 128 bits, if columns are a multiple of eight. `out` may be
    `x` or `residual`."""
    _check(x, weight, bias, out, residual)
    _launch(x, residual, weight, bias, out, epsilon, stream, with_residual=True)


def _launch(x, residual, weight, bias, out, epsilon, stream, *, with_residual, vectorized=True):
    rows, columns = x.shape
    _, octets = fitting(columns, OCTETS, "a warp")
    vectorized = vectorized and columns % 8 == 0 and aligned(x, residual, weight, bias, out)
    kernel = make_layernorm_half(element_of("x", x), octets, vectorized, with_residual, epsilon)
    kernel[-(-rows // ROWS), (32, ROWS), stream](flat(x), flat(residual), weight, bias, flat(out))


def _check(x, weight, bias, out, residual=None, allowed=tuple(EIGHT)):
    element = element_of("x", x)
    if element not in allowed:
        raise TypeError(f"x has dtype {x.dtype}; float16, and uint16, which holds bfloat16, are allowed")
    check_array("x", x, ndim=2, dtype=element.dtype)
    check_array("weight", weight, shape=x.shape[1:], dtype=element.dtype)
    check_array("bias", bias, shape=x.shape[1:], dtype=element.dtype)
    check_array("out", out, shape=x.shape, dtype=element.dtype)
    if residual is not None:
        check_array("residual", residual, shape=x.shape, dtype=element.dtype)
