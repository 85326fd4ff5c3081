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
from labkit.kernels.arguments import aligned, check_array, dynamic_shared
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung
from labkit.kernels.reduce import block_max, block_sum
from labkit.kernels.softmax.rows import LEAST_FINITE, LOG2_E, NEG_INF, warp_merge

IGNORED = -100  # PyTorch's
BLOCK = 512
UNROLL = 4  # octets of a thread in flight
STATIC_BYTES = 1024  # at least what a block takes beside the row
ZERO, ONE, NAN = float32(0.0), float32(1.0), float32(np.nan)


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
    """Two device functions: keep eight float32 of a local array as octet o of shared memory, in the elements' bits, and
    recall them."""
    pack, unpack = element.pack, element.unpack

    @cuda.jit(device=True)
    def keep(words, o, v, i):
        if element is FLOAT32:
            for half in u32.range(2):
                j = i + 4 * half
                ptx.store_shared4(words, 8 * o + 4 * half, ptx.float_bits(v[j]), ptx.float_bits(v[j + 1]),
                                  ptx.float_bits(v[j + 2]), ptx.float_bits(v[j + 3]))
        else:
            ptx.store_shared4(words, 4 * o, pack(v[i], v[i + 1]), pack(v[i + 2], v[i + 3]), pack(v[i + 4], v[i + 5]),
                              pack(v[i + 6], v[i + 7]))

    return keep, unpack
