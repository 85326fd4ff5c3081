"""Cross entropy of each row of logits, fused with its gradient, which may overwrite the logits.

Shapes  logits, dlogits (R, V); both float32, both float16, or both uint16, which holds bfloat16; targets (R,) int32;
        scale (1,) and losses (R,) float32; C-contiguous. `dlogits` may be `logits`: no other array is of that size
Work    some 10 flops and two exponentials a logit; each is read once and its gradient written once
Source  Liger Kernel, `cross_entropy.py`, https://github.com/linkedin/Liger-Kernel; llm.c, `fused_classifier.cuh`

losses[r] = log(sum of exp(logits[r])) - logits[r, target]; dlogits[r] = (softmax(logits[r]) - onehot(target)) * scale.
Rows whose target is `ignored` have loss 0 and gradient 0; any other target outside the vocabulary gives NaN, since a
launcher cannot read device memory without a synchronisation. scale is 1 / (the tokens of a step) for their mean.
"""

import math

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array, dynamic_shared, unsigned
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung
from labkit.kernels.reduce import NEG_INF, block_max, block_sum
from labkit.kernels.softmax.rows import LEAST_FINITE, LOG2_E, warp_merge

IGNORED = -100  # PyTorch's
BLOCK = 512
UNROLL = 4  # octets of a thread in flight
STATIC_BYTES = 1024  # at least what a block takes beside the row
ZERO, NAN = float32(0.0), float32(np.nan)


def cross_entropy_reference(logits, targets, scale, ignored=IGNORED):
    """Return (losses, dlogits)."""
    x, rows = float64_of(logits), np.arange(len(targets))
    counted, column = targets != ignored, np.where(targets == ignored, 0, targets)
    shifted = x - x.max(axis=1, keepdims=True)
    row_sum = np.exp(shifted).sum(axis=1, keepdims=True)
    gradient = np.exp(shifted) / row_sum
    gradient[rows, column] -= 1
    losses = np.log(row_sum[:, 0]) - shifted[rows, column]
    return losses * counted, gradient * counted[:, None] * float(scale[0])


@cuda.jit(device=True)
def power(x, row_max):
    """exp(x - row_max)"""
    return ptx.exp2_approx((x - row_max) * LOG2_E)


@cuda.jit(device=True)
def gradient_scale(target, columns, ignored, scale, row_sum):
    """(what a row's exponentials are multiplied by, what is subtracted at its target)"""
    if target == ignored:
        return ZERO, ZERO
    if uint32(target) >= columns:  # negatives become huge
        return NAN, NAN
    return scale / row_sum, scale


@cuda.jit(device=True)
def loss_of(target, columns, ignored, logit, row_max, row_sum):
    if target == ignored:
        return ZERO
    return (row_max - logit) + math.log(row_sum) if uint32(target) < columns else NAN


# --- One block a row, element by element ------------------------------------------------------------------------------


@kernel_factory
def make_cross_entropy_passes(element: Element, online: bool):
    """online: the maximum and the sum in one pass."""
    load, store, _, _, _ = ACCESS[element]

    @cuda.jit(launch_bounds=BLOCK)
    def cross_entropy_passes_kernel(logits, targets, scale, losses, dlogits, columns, ignored):  # the rows are flat
        partial_max, partial_sum = cuda.shared.array(32, float32), cuda.shared.array(32, float32)
        row, thread = u32.blockIdx.x, u32.threadIdx.x
        lane, warp, row_offset, target = thread & 31, thread >> 5, row * columns, targets[row]
        logit = load(logits, row_offset + min(uint32(target), columns - 1))  # before its gradient overwrites it
        row_max, row_sum = LEAST_FINITE, ZERO  # finite, so that -inf in a row is 0 and not NaN
        for col in u32.range(thread, columns, BLOCK):
            value = load(logits, row_offset + col)
            if online and value > row_max:
                row_sum *= power(row_max, value)
            row_max = max(row_max, value)
            if online:
                row_sum += power(value, row_max)
        if online:
            row_max, row_sum = warp_merge(row_max, row_sum)
            if lane == 0:
                partial_max[warp], partial_sum[warp] = row_max, row_sum
            cuda.syncthreads()
            valid = lane < BLOCK // 32
            row_max, row_sum = warp_merge(partial_max[lane] if valid else LEAST_FINITE,
                                          partial_sum[lane] if valid else ZERO)
        else:
            row_max = block_max(row_max, partial_max)
            for col in u32.range(thread, columns, BLOCK):
                row_sum += power(load(logits, row_offset + col), row_max)
            row_sum = block_sum(row_sum, partial_sum)
        factor, hit = gradient_scale(target, columns, ignored, scale[0], row_sum)
        for col in u32.range(thread, columns, BLOCK):
            gradient = power(load(logits, row_offset + col), row_max) * factor
            store(dlogits, row_offset + col, gradient - hit if col == uint32(target) else gradient)
        if thread == 0:
            losses[row] = loss_of(target, columns, ignored, logit, row_max, row_sum)

    return cross_entropy_passes_kernel


@rung(kernel=make_cross_entropy_passes(BFLOAT16, False), idea="one block a row: maximum, sum, gradient, a pass each")
def cross_entropy_passes(logits, targets, scale, losses, dlogits, ignored=IGNORED, stream=0):
    """512 threads share a row and read it three times, an element at a time."""
    _passes(logits, targets, scale, losses, dlogits, ignored, stream, online=False)


@rung(kernel=make_cross_entropy_passes(BFLOAT16, True), idea="the maximum and the sum in one pass")
def cross_entropy_online(logits, targets, scale, losses, dlogits, ignored=IGNORED, stream=0):
    """As passes, but a running sum is corrected whenever the running maximum grows: the row is read twice."""
    _passes(logits, targets, scale, losses, dlogits, ignored, stream, online=True)


def _passes(logits, targets, scale, losses, dlogits, ignored, stream, *, online: bool):
    element = _check(logits, targets, scale, losses, dlogits)
    rows, columns = logits.shape
    make_cross_entropy_passes(element, online)[rows, BLOCK, stream](
        flat(logits), targets, scale, losses, flat(dlogits), np.uint32(columns), np.int32(ignored))


# --- The row stays in shared memory -----------------------------------------------------------------------------------


def make_row_cache(element: Element):
    """(keep, recall): between eight float32 of a local array and an octet of a row in shared memory, in the elements'
    bits."""
    if element is FLOAT32:
        @cuda.jit(device=True)
        def keep(words, octet, v, i):
            """Store v[i] to v[i + 7] as eight words of shared memory."""
            for j in u32.range(i, i + 8, 4):
                ptx.store_shared4(words, 8 * octet + (j - i), ptx.float_bits(v[j]), ptx.float_bits(v[j + 1]),
                                  ptx.float_bits(v[j + 2]), ptx.float_bits(v[j + 3]))

        @cuda.jit(device=True)
        def recall(words, octet, v, i):
            for j in u32.range(i, i + 8, 4):
                a, b, c, d = ptx.load_shared4(words, 8 * octet + (j - i))
                v[j], v[j + 1], v[j + 2], v[j + 3] = (ptx.bits_float(a), ptx.bits_float(b), ptx.bits_float(c),
                                                      ptx.bits_float(d))

        return keep, recall

    pack, unpack = element.pack, element.unpack

    @cuda.jit(device=True)
    def keep(words, octet, v, i):
        ptx.store_shared4(words, 4 * octet, pack(v[i], v[i + 1]), pack(v[i + 2], v[i + 3]), pack(v[i + 4], v[i + 5]),
                          pack(v[i + 6], v[i + 7]))

    @cuda.jit(device=True)
    def recall(words, octet, v, i):
        a, b, c, d = ptx.load_shared4(words, 4 * octet)
        v[i], v[i + 1] = unpack(a)
        v[i + 2], v[i + 3] = unpack(b)
        v[i + 4], v[i + 5] = unpack(c)
        v[i + 6], v[i + 7] = unpack(d)

    return keep, recall


@kernel_factory
def make_cross_entropy_cached(element: Element):
    access, (keep, recall) = ACCESS[element], make_row_cache(element)
    load, store, (load_eight, store_eight) = access.load, access.store, access.eight
    elements = 8 * UNROLL

    @cuda.jit(launch_bounds=1024)
    def cross_entropy_cached_kernel(logits, targets, scale, losses, dlogits, columns, cached, ignored):
        """cached: octets of a row that fit into shared memory; the others are read again."""
        words = cuda.shared.array(0, uint32)
        partial_max, partial_sum = cuda.shared.array(32, float32), cuda.shared.array(32, float32)
        row, thread, threads = u32.blockIdx.x, u32.threadIdx.x, u32.blockDim.x
        lane, warp, begin, target = thread & 31, thread >> 5, row * columns, targets[row]
        end, target_index = begin + columns, begin + min(uint32(target), columns - 1)
        logit = load(logits, target_index)  # before its gradient overwrites it
        # A row begins and ends between multiples of eight elements: 16 threads have one element more, at its edges.
        first = (begin + 7) >> 3
        octets = uint32((end >> 3) - first) if end >> 3 > first else uint32(0)
        edge = begin + thread if thread < 8 else uint32(8 * (first + octets) + (thread - 8))
        has_edge = thread < 16 and edge < (min(8 * first, end) if thread < 8 else end)
        row_max, row_sum = LEAST_FINITE, ZERO  # finite, so that -inf in a row is 0 and not NaN
        edge_value = NEG_INF
        if has_edge:
            edge_value = load(logits, edge)
            row_max = max(row_max, edge_value)
            row_sum = power(edge_value, row_max)
        v = cuda.local.array(elements, float32)
        for base in u32.range(thread, octets, UNROLL * threads):
            for u in u32.range(UNROLL):  # all loads are issued before the first use
                octet = base + u * threads
                load_eight(v, 8 * u, logits, 8 * (first + min(uint32(octet), octets - 1)), int32(8))
            largest = row_max
            for u in u32.range(UNROLL):
                octet = base + u * threads
                if octet < octets:
                    if octet < cached:
                        keep(words, octet, v, 8 * u)
                    for e in range(8):
                        largest = max(largest, v[8 * u + e])
            row_sum *= power(row_max, largest)
            row_max = largest
            for u in u32.range(UNROLL):
                if base + u * threads < octets:
                    for e in range(8):
                        row_sum += power(v[8 * u + e], row_max)

        row_max, row_sum = warp_merge(row_max, row_sum)
        if lane == 0:
            partial_max[warp], partial_sum[warp] = row_max, row_sum
        cuda.syncthreads()  # all logits were read: the gradient may overwrite them
        valid = lane < threads >> 5
        row_max, row_sum = warp_merge(partial_max[lane] if valid else LEAST_FINITE,
                                      partial_sum[lane] if valid else ZERO)

        factor, hit = gradient_scale(target, columns, ignored, scale[0], row_sum)
        for octet in u32.range(thread, octets, threads):
            i = 8 * (first + octet)
            if octet < cached:
                recall(words, octet, v, 0)  # of this thread's own
            else:
                load_eight(v, 0, logits, i, int32(8))
            for e in range(8):
                v[e] = power(v[e], row_max) * factor
            if i >> 3 == target_index >> 3:
                for e in u32.range(8):
                    if i + e == target_index:
                        v[e] -= hit
            store_eight(dlogits, i, int32(8), v, 0)
        if has_edge:
            gradient = power(edge_value, row_max) * factor
            store(dlogits, edge, gradient - hit if edge == target_index else gradient)
        if thread == 0:
            losses[row] = loss_of(target, columns, ignored, logit, row_max, row_sum)

    return cross_entropy_cached_kernel


@rung(kernel=(make_cross_entropy_cached(BFLOAT16), make_cross_entropy_passes(BFLOAT16, True)),
      idea="the row in shared memory: memory is read once, 128 bits at a time")
def cross_entropy_cached(logits, targets, scale, losses, dlogits, ignored=IGNORED, stream=0):
    """As online, but a thread loads four times eight neighbours before it uses them, and keeps them in shared memory
    for the gradient. What does not fit there, of rows above 113,000 elements of 16 bits on Hopper, is read again. Rows
    of any length; a view that does not begin at a multiple of 16 bytes takes online's kernel."""
    cross_entropy(logits, targets, scale, losses, dlogits, ignored=ignored, stream=stream)


def cross_entropy(logits, targets, scale, losses, dlogits, ignored=IGNORED, stream=0):
    """The launcher to use: cross_entropy_cached. `dlogits` may be `logits`."""
    element = _check(logits, targets, scale, losses, dlogits)
    if not aligned(logits, dlogits):
        cross_entropy_online(logits, targets, scale, losses, dlogits, ignored=ignored, stream=stream)
        return
    rows, columns = logits.shape
    gpu, octet_bytes, octets = gpus.target(), 8 * element.dtype.itemsize, columns // 8
    cached = min(octets, (gpu.shared_per_block - STATIC_BYTES) // octet_bytes)
    # Two blocks share an SM where both rows fit, so that one reads while the other writes.
    most = 1024 if 2 * (cached * octet_bytes + 2 * STATIC_BYTES) > gpu.shared_bytes else BLOCK
    threads = min(most, 32 * max(1, -(-octets // (32 * UNROLL))))
    kernel = make_cross_entropy_cached(element)
    arguments = (flat(logits), targets, scale, losses, flat(dlogits), *unsigned(columns, cached), np.int32(ignored))
    dynamic_shared(kernel, cached * octet_bytes, *arguments)
    kernel[rows, threads, stream, cached * octet_bytes](*arguments)


def _check(logits, targets, scale, losses, dlogits) -> Element:
    element = element_of("logits", logits)
    check_array("logits", logits, ndim=2, dtype=element.dtype)
    check_array("targets", targets, shape=logits.shape[:1], dtype=np.int32)
    check_array("scale", scale, shape=(1,))
    check_array("losses", losses, shape=logits.shape[:1])
    check_array("dlogits", dlogits, shape=logits.shape, dtype=element.dtype)
    return element
