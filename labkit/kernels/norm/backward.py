"""The gradients of LayerNorm and RMSNorm: of the rows, of the weight and, for LayerNorm, of the bias.

Shapes  x, dout, dx (R, C), weight (C,); all float32, all float16, or all uint16, which holds bfloat16. dweight, dbias
        (C,): float32 or x's type. C-contiguous. `dx` may be `dout` or the fused rungs' residual (dout not in the
        naive rungs). One kernel per epsilon
Work    some 15 flops an element; 3*R*C elements: x and dout read once, dx written once
Source  llm.c, `layernorm_backward`, https://github.com/karpathy/llm.c; Liger Kernel, `rms_norm.py`

With xhat = (x - mean) * rstd and g = dout * weight, dx = rstd * (g - mean(g) - xhat * mean(g * xhat)); RMSNorm has no
means of x and g. dweight and dbias are the sums over all rows of dout * xhat and dout. Statistics are computed again
from x: the forward pass keeps none. No atomics: every run adds up the same numbers in the same order.
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import check_array, dynamic_shared
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS, in_eights
from labkit.kernels.elements import FLOAT32, Element, element_of
from labkit.kernels.norm.rows import EPSILON, flat, small
from labkit.kernels.op import rung
from labkit.kernels.partial_sums import make_sum_by_threads, sum_partials
from labkit.kernels.reduce import warp_sum
from labkit.kernels.scan_blocks import scratch_for

ZERO, ONE = float32(0.0), float32(1.0)
MAX_COLUMNS = 8192
WARP_COLUMNS = 768  # up to here a warp has a row, and a lane three octets; beyond, a block has it
WARPS = (16, 8)  # per block, where each warp has a row: the first for which the GPU has enough shared memory
MAX_THREADS = 512  # where a block has a row: beyond 4,096 columns, a thread has two octets
THREADS_PER_SM = 1024  # of one octet each: 64 registers
THREADS_PER_SM_LAYERNORM = 768  # of one octet of float32: 80 registers
RING_BYTES = 64  # of shared memory for each thread and octet: 64 or 96 KB an SM. 4.2 TB/s need 40 KB in flight
ROW_SUMS = 512  # more bytes of it, of a block


def norm_backward_reference(x, weight, dout, epsilon=EPSILON, *, centred: bool):
    """Return (dx, dweight, dbias)."""
    x, weight, dout = float64_of(x), float64_of(weight), float64_of(dout)
    x = x - x.mean(axis=1, keepdims=True) * centred
    rstd = 1 / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon)
    xhat, g = x * rstd, dout * weight
    dx = rstd * (g - g.mean(axis=1, keepdims=True) * centred - xhat * (g * xhat).mean(axis=1, keepdims=True))
    return dx, (dout * xhat).sum(axis=0), dout.sum(axis=0)


# --- One thread per row, then one thread per column -------------------------------------------------------------------


@kernel_factory
def make_norm_backward_naive(element: Element, grad: Element, centred: bool, accumulate: bool, epsilon: float):
    (load, store, _, _, _), EPS = ACCESS[element], small(epsilon)
    load_grad, store_grad = ACCESS[grad].load, ACCESS[grad].store

    @cuda.jit
    def norm_backward_rows_kernel(x, weight, dout, dx, means, rstds):  # x, dout and dx are flat, here and below
        row, columns = u32.grid(1), u32.size(weight)
        row_offset = row * columns
        if row_offset < x.size:
            inv_cols = ONE / float32(columns)
            mean, mean_g = ZERO, ZERO
            if centred:
                for col in u32.range(columns):
                    mean += load(x, row_offset + col)
                    mean_g += load(dout, row_offset + col) * load(weight, col)
                mean *= inv_cols
                mean_g *= inv_cols
            squares, products = ZERO, ZERO
            for col in u32.range(columns):
                difference = load(x, row_offset + col) - mean
                squares += difference * difference
                products += load(dout, row_offset + col) * load(weight, col) * difference
            rstd = cuda.rsqrt(squares * inv_cols + EPS)
            slope = products * inv_cols * rstd * rstd
            means[row], rstds[row] = mean, rstd
            for col in u32.range(columns):
                g = load(dout, row_offset + col) * load(weight, col)
                store(dx, row_offset + col, rstd * (g - mean_g - (load(x, row_offset + col) - mean) * slope))

    @cuda.jit
    def norm_backward_columns_kernel(x, dout, means, rstds, dweight, dbias):
        col, columns = u32.grid(1), u32.size(dweight)
        if col < columns:
            weight_sum, bias_sum = ZERO, ZERO
            for row in u32.range(u32.size(means)):
                d = load(dout, row * columns + col)
                weight_sum += d * (load(x, row * columns + col) - means[row]) * rstds[row]
                bias_sum += d
            if accumulate:
                weight_sum += load_grad(dweight, col)
            store_grad(dweight, col, weight_sum)
            if centred:
                if accumulate:
                    bias_sum += load_grad(dbias, col)
                store_grad(dbias, col, bias_sum)

    return norm_backward_rows_kernel, norm_backward_columns_kernel


def _naive(x, weight, dout, dx, dweight, dbias, accumulate, epsilon, stream, *, centred: bool):
    element, grad = _check(x, weight, dout, dx, dweight, dbias)
    rows, columns = x.shape
    statistics = scratch_for(None, 2 * rows, np.float32)
    means, rstds = statistics[:rows], statistics[rows:]
    by_row, by_column = make_norm_backward_naive(element, grad, centred, accumulate, epsilon)
    by_row[-(-rows // 32), 32, stream](flat(x), weight, flat(dout), flat(dx), means, rstds)
    by_column[-(-columns // 32), 32, stream](flat(x), flat(dout), means, rstds, dweight, dbias)


# --- Rows in registers, and each block's sums of its columns ----------------------------------------------------------


def make_ring(element: Element, vectorized: bool):
    """Return two device functions. copy(ring, i, step, array, j, valid): eight neighbours, `valid` of them inside the
    row, to shared memory, in pieces of 16 bytes that lie `step` elements apart. load(local, offset, ring, i, step):
    these eight, as float32. Of float32 in pieces, each lane copies every 32nd piece of its warp's 64: both neighbours
    of 32 bytes are one sector of L2, which would be read twice."""
    PIECE = 16 // element.dtype.itemsize
    PIECES, packed, unpack, ELEMENT = 8 // PIECE, element.unpack is not None, element.unpack, element.dtype.type
    zero = ELEMENT(0)

    @cuda.jit(device=True)
    def copy(ring, i, step, array, j, valid):
        if vectorized:
            if PIECES == 1:
                ptx.cp_async_16(ring, i, array, j if valid > 0 else 0, 16 if valid > 0 else 0)  # all eight or none
            else:
                lane = u32.threadIdx.x & 31
                for p in u32.range(2):
                    piece = lane + 32 * p  # of the warp's
                    owner, half = piece // 2, piece % 2
                    inside = valid + 8 * int32(lane) > 8 * int32(owner)
                    source = j - 8 * lane + PIECE * piece if inside else uint32(0)
                    ptx.cp_async_16(ring, i - PIECE * lane + PIECE * owner + half * step, array, source,
                                    16 if inside else 0)
        else:
            for e in u32.range(8):
                ring[i + e // PIECE * step + e % PIECE] = array[j + e] if valid > int32(e) else zero

    @cuda.jit(device=True)
    def load(local, offset, ring, i, step):
        for p in u32.range(PIECES):
            words = ptx.load_shared4(ring, i + p * step)
            for k in range(4):
                if packed:
                    local[offset + 2 * k], local[offset + 2 * k + 1] = unpack(words[k])
                else:
                    local[offset + 4 * p + k] = words[k]

    return copy, load


def stages_of(element: Element) -> int:
    """The rows that the ring holds: two of 16 bits or one of float32, for the same bytes in flight."""
    return 4 // element.dtype.itemsize


def shared_bytes(threads: int, octets: int) -> int:
    return threads * octets * RING_BYTES + ROW_SUMS


def blocks_per_sm(element: Element, threads: int, octets: int, centred: bool) -> int:
    most = THREADS_PER_SM_LAYERNORM if centred and element is FLOAT32 else THREADS_PER_SM
    return 1 if octets > 1 else max(1, most // threads)


@kernel_factory
def make_norm_backward(element: Element, threads: int, warp_per_row: bool, octets: int, vectorized: bool,
                       centred: bool, epsilon: float, with_residual: bool = False):
    """Make a kernel for blocks of `threads`, rows of up to 8 * octets columns per thread, and a grid smaller than the
    number of rows. warp_per_row: a warp has a row, not a block. vectorized: whole octets, at multiples of 16
    bytes. with_residual: it is added to dx.

    While a row is in registers, its threads copy the next one or two to shared memory (cp.async). Each reads only what
    it has copied, or its warp in float32, so that no barrier is needed. Shared memory: RING_BYTES for each thread and
    octet; after the last row it holds the sums of the warps."""
    load, store = ACCESS[element].neighbours(vectorized)
    copy, load_copied = make_ring(element, vectorized)
    elements, EPS, ELEMENT, STAGES = 8 * octets, small(epsilon), element.dtype.type, stages_of(element)
    PIECE, PENDING, SUMS, BLOCK_WARPS = 16 // element.dtype.itemsize, STAGES - 1, 1 + centred, threads // 32
    resident, by_warp = blocks_per_sm(element, threads, octets, centred), vectorized and element is FLOAT32
    # A thread's octets, within a row of x and in the ring: pieces of all threads, octets, x and dout, stages.
    STEP = 256 if warp_per_row else 8 * threads
    PIECE_STEP, OCTET_STEP, DOUT = PIECE * threads, 8 * threads, 8 * threads * octets
    STAGE, FIRST = 2 * DOUT, threads * octets * RING_BYTES // 4  # after the ring: a row's sums of each warp
    SECOND = FIRST + 64

    @cuda.jit(device=True)
    def copy_row(ring, slot, x, dout, offset, remaining):
        for o in u32.range(octets):
            i, j, valid = slot + o * OCTET_STEP, offset + o * STEP, remaining - int32(o * STEP)
            copy(ring, i, PIECE_STEP, x, j, valid)
            copy(ring, i + DOUT, PIECE_STEP, dout, j, valid)

    @cuda.jit(device=True)
    def row_sums(a, b, sums, begin, thread):
        """The sums of a and b over a row, in each of its threads. sums[begin] and the next 63: free again after a
        barrier."""
        a, b = warp_sum(a), warp_sum(b)
        if not warp_per_row:
            if thread & 31 == 0:
                sums[begin + (thread >> 5)], sums[begin + 32 + (thread >> 5)] = a, b
            cuda.syncthreads()
            a, b = ZERO, ZERO
            for w in u32.range(BLOCK_WARPS):
                a += sums[begin + w]
                b += sums[begin + 32 + w]
        return a, b

    @cuda.jit(launch_bounds=(threads, resident))
    def norm_backward_fused_kernel(x, weight, dout, residual, dx, partials):
        """partials: (blocks, 1 or 2, C), the sums of dout * xhat and of dout over each block's rows."""
        ring = cuda.shared.array(0, ELEMENT, alignment=16)
        sums = cuda.shared.array(0, float32, alignment=16)  # the same memory
        thread, columns = u32.threadIdx.x, u32.size(weight)
        warp, lane, slot, row, row_step = thread >> 5, thread & 31, PIECE * thread, u32.blockIdx.x, u32.gridDim.x
        if warp_per_row:
            row, row_step = u32.grid(1) >> 5, u32.gridsize(1) >> 5
        rows, inv_cols = u32.size(x) // columns, ONE / float32(columns)
        col = 8 * lane if warp_per_row else 8 * thread
        remaining = int32(columns) - int32(col)
        v, g = cuda.local.array(elements, float32), cuda.local.array(elements, float32)
        w = cuda.local.array(8, float32)  # loaded whenever it is used: from L1, and not kept in registers
        weight_sum, bias_sum = cuda.local.array(elements, float32), cuda.local.array(elements, float32)
        for e in range(elements):
            weight_sum[e], bias_sum[e] = ZERO, ZERO
        for stage in u32.range(STAGES):
            next_row = row + stage * row_step
            if next_row < rows:
                copy_row(ring, slot + stage * STAGE, x, dout, next_row * columns + col, remaining)
            ptx.cp_async_commit()
        while row < rows:  # the same for a whole warp, and for a block with barriers
            offset, next_row = row * columns + col, row + STAGES * row_step
            ptx.cp_async_wait(PENDING)
            if by_warp:
                cuda.syncwarp()  # the other lanes' pieces have arrived, too
            for o in u32.range(octets):
                load_copied(v, 8 * o, ring, slot + o * OCTET_STEP, PIECE_STEP)
                load_copied(g, 8 * o, ring, slot + DOUT + o * OCTET_STEP, PIECE_STEP)
            if by_warp:
                cuda.syncwarp()  # every lane has read its pieces
            if next_row < rows:  # in flight until this row is done
                copy_row(ring, slot, x, dout, next_row * columns + col, remaining)
            ptx.cp_async_commit()
            if STAGES == 2:
                slot = slot + STAGE if slot < STAGE else slot - STAGE
            mean, mean_g = ZERO, ZERO
            if centred:
                for o in u32.range(octets):
                    load(w, 0, weight, col + o * STEP, remaining - int32(o * STEP))
                    for e in u32.range(8):
                        mean += v[8 * o + e]
                        mean_g += g[8 * o + e] * w[e]
                mean, mean_g = row_sums(mean, mean_g, sums, FIRST, thread)
                mean *= inv_cols
                mean_g *= inv_cols
            squares, products = ZERO, ZERO
            for o in u32.range(octets):
                load(w, 0, weight, col + o * STEP, remaining - int32(o * STEP))
                for e in u32.range(8):
                    if remaining > int32(o * STEP + (0 if vectorized else e)):  # beyond the row, v stays 0
                        v[8 * o + e] -= mean
                    squares += v[8 * o + e] * v[8 * o + e]
                    products += g[8 * o + e] * w[e] * v[8 * o + e]
            squares, products = row_sums(squares, products, sums, SECOND, thread)
            rstd = cuda.rsqrt(squares * inv_cols + EPS)
            slope = products * inv_cols * rstd * rstd
            for o in u32.range(octets):
                load(w, 0, weight, col + o * STEP, remaining - int32(o * STEP))
                for e in u32.range(8 * o, 8 * o + 8):
                    weight_sum[e] += g[e] * v[e] * rstd
                    if centred:
                        bias_sum[e] += g[e]
                    v[e] = rstd * (g[e] * w[e - 8 * o] - mean_g - v[e] * slope)
            if with_residual:
                for o in u32.range(octets):  # all loads, then all additions
                    load(g, 8 * o, residual, offset + o * STEP, remaining - int32(o * STEP))
                for e in range(elements):
                    v[e] += g[e]
            for o in u32.range(octets):
                store(dx, offset + o * STEP, remaining - int32(o * STEP), v, 8 * o)
            if not centred and not warp_per_row:
                cuda.syncthreads()  # SECOND is free to overwrite; where there is a FIRST, its barrier lies between
            row += row_step
        if warp_per_row:
            cuda.syncthreads()  # every warp has read its last row: the ring's memory is free
            for e in u32.range(elements):
                sums[e * threads + thread] = weight_sum[e]
                if centred:
                    sums[(elements + e) * threads + thread] = bias_sum[e]
            cuda.syncthreads()
            for which in u32.range(SUMS):
                for e in u32.range(warp, elements, BLOCK_WARPS):
                    total, column = ZERO, (e >> 3) * 256 + 8 * lane + (e & 7)
                    for other in u32.range(BLOCK_WARPS):  # one warp's sums after the other's
                        total += sums[(which * elements + e) * threads + 32 * other + lane]
                    if column < columns:
                        partials[u32.blockIdx.x, which, column] = total
        else:
            for o in u32.range(octets):
                for e in u32.range(8):
                    if remaining > int32(o * STEP + e):
                        partials[u32.blockIdx.x, 0, col + o * STEP + e] = weight_sum[8 * o + e]
                        if centred:
                            partials[u32.blockIdx.x, 1, col + o * STEP + e] = bias_sum[8 * o + e]

    return norm_backward_fused_kernel


def _fused(x, weight, dout, dx, dweight, dbias, accumulate, epsilon, stream, residual, *, centred: bool):
    element, grad = _check(x, weight, dout, dx, dweight, dbias)
    if residual is not None:
        check_array("residual", residual, shape=x.shape, dtype=element.dtype)
    rows, columns = x.shape
    if columns > MAX_COLUMNS:
        raise ValueError(f"x has {columns:,} columns; a block keeps at most {MAX_COLUMNS:,} in registers")
    warp_per_row = columns <= WARP_COLUMNS
    octets = -(-columns // (256 if warp_per_row else 8 * MAX_THREADS))
    warps = -(-columns // (256 * octets))
    if warp_per_row:
        allowed = WARPS[1:] if element is FLOAT32 and octets == 3 else WARPS  # more than 128 registers a thread
        warps = next(count for count in allowed if not gpus.lacks_shared(shared_bytes(32 * count, octets)))
    threads = 32 * warps
    shared = shared_bytes(threads, octets)
    if lacks := gpus.lacks_shared(shared):
        raise ValueError(f"x has {columns:,} columns, too many for this GPU's shared memory: {lacks}")
    most = (gpus.sm_count() if gpus.chosen_on_gpu() else 1) * blocks_per_sm(element, threads, octets, centred)
    blocks = min(most, -(-rows // warps) if warp_per_row else rows)
    partials = scratch_for(None, blocks * (1 + centred) * columns, np.float32).reshape(blocks, 1 + centred, columns)
    others = (dx,) if residual is None else (dx, residual)
    kernel = make_norm_backward(element, threads, warp_per_row, octets, in_eights(columns, x, weight, dout, *others),
                                centred, epsilon, residual is not None)
    arguments = (flat(x), weight, flat(dout), flat(others[-1]), flat(dx), partials)
    dynamic_shared(kernel, shared, *arguments)
    kernel[blocks, threads, stream, shared](*arguments)
    sum_partials(partials, (dweight, dbias) if centred else (dweight,), accumulate, stream)


# --- LayerNorm --------------------------------------------------------------------------------------------------------


@rung(kernel=make_norm_backward_naive(FLOAT32, FLOAT32, True, False, EPSILON),
      idea="one thread a row for dx, one thread a column for the sums over all rows")
def layernorm_backward_naive(x, weight, dout, dx, dweight, dbias, accumulate=False, epsilon=EPSILON, stream=0):
    """One thread walks along a row three times and keeps its mean and rstd; then one walks down each column. x and dout
    are read four and two times."""
    _naive(x, weight, dout, dx, dweight, dbias, accumulate, epsilon, stream, centred=True)


@rung(kernel=(make_norm_backward(FLOAT32, 256, True, 3, True, True, EPSILON),
              make_sum_by_threads(FLOAT32, False, True)),
      idea="one pass: rows in registers, each block's column sums, then their sum",
      sizes=f"rows of at most {MAX_COLUMNS:,} columns")
def layernorm_backward_fused(x, weight, dout, dx, dweight, dbias, accumulate=False, epsilon=EPSILON, stream=0, *,
                             residual=None):
    """As naive, but x and dout are read once: a warp or a block keeps a row in registers, goes from row to row, and
    adds up its columns meanwhile; a second, small launch adds up these sums, always in the same order."""
    layernorm_backward(x, weight, dout, dx, dweight, dbias, accumulate=accumulate, epsilon=epsilon, stream=stream,
                       residual=residual)


def layernorm_backward(x, weight, dout, dx, dweight, dbias, accumulate=False, epsilon=EPSILON, stream=0, *,
                       residual=None):
    """The launcher to use: layernorm_backward_fused. accumulate: add to dweight and dbias, not overwrite them.
    residual: (R, C), of x's type; dx = residual + the norm's gradient, rounded once."""
    _fused(x, weight, dout, dx, dweight, dbias, accumulate, epsilon, stream, residual, centred=True)


# --- RMSNorm ----------------------------------------------------------------------------------------------------------


@rung(kernel=make_norm_backward_naive(FLOAT32, FLOAT32, False, False, EPSILON),
      idea="one thread a row for dx, one thread a column for the sum over all rows")
def rmsnorm_backward_naive(x, weight, dout, dx, dweight, accumulate=False, eps=EPSILON, stream=0):
    """As layernorm_backward_naive, without the means."""
    _naive(x, weight, dout, dx, dweight, dweight, accumulate, eps, stream, centred=False)


@rung(kernel=(make_norm_backward(FLOAT32, 256, False, 1, True, False, EPSILON),
              make_sum_by_threads(FLOAT32, False, True)),
      idea="one pass: rows in registers, each block's column sums, then their sum",
      sizes=f"rows of at most {MAX_COLUMNS:,} columns")
def rmsnorm_backward_fused(x, weight, dout, dx, dweight, accumulate=False, eps=EPSILON, stream=0, *, residual=None):
    """As layernorm_backward_fused, with one sum over a row in place of two."""
    rmsnorm_backward(x, weight, dout, dx, dweight, accumulate=accumulate, eps=eps, stream=stream, residual=residual)


def rmsnorm_backward(x, weight, dout, dx, dweight, accumulate=False, eps=EPSILON, stream=0, *, residual=None):
    """The launcher to use: rmsnorm_backward_fused. accumulate: add to dweight, not overwrite it. residual: as for
    layernorm_backward."""
    _fused(x, weight, dout, dx, dweight, dweight, accumulate, eps, stream, residual, centred=False)


def _check(x, weight, dout, dx, dweight, dbias) -> tuple[Element, Element]:
    """The elements of x and of dweight."""
    element = element_of("x", x)
    check_array("x", x, ndim=2, dtype=element.dtype)
    check_array("weight", weight, shape=x.shape[1:], dtype=element.dtype)
    check_array("dout", dout, shape=x.shape, dtype=element.dtype)
    check_array("dx", dx, shape=x.shape, dtype=element.dtype)
    grad = element_of("dweight", dweight)
    if grad not in (element, FLOAT32):
        raise TypeError(f"dweight has dtype {dweight.dtype}; float32 and x's {element.dtype.name} are allowed")
    check_array("dweight", dweight, shape=x.shape[1:], dtype=grad.dtype)
    check_array("dbias", dbias, shape=x.shape[1:], dtype=grad.dtype)
    return element, grad
