"""Softmax of each row from BLAS reductions and two small kernels. One rung for each idea, slowest first.

Shapes  x, out (R, C); float32, C-contiguous
Work    four calls a row, one row after another; at least 8*R*C bytes, of which each row is moved several times
Source  cuBLAS documentation, "cublasI<t>amax" and "cublas<t>asum"

BLAS has the sum of |x|, which serves for exponentials, since they are positive. It has no maximum, only the index of
the largest |x|. Where that is a negative number, everything after the subtraction is too large, and exp overflows.
"""

import math

import numpy as np

from labkit import cuda, u32
from labkit.kernels.arguments import blocks_for, check_array, unsigned
from labkit.kernels.libraries import blas
from labkit.kernels.op import rung
from labkit.kernels.ops.softmax import SOFTMAX
from labkit.kernels.reduce import row_max
from labkit.kernels.tolerance import EPS32

BLOCK = 256


def far_tolerance(x):
    """x - c with |c| <= max |x| is rounded at a magnitude of up to 2 * max |x|, and exp propagates that error."""
    far = 2 * np.abs(x).max(axis=1, keepdims=True)
    return 2 * EPS32 * (far + np.sqrt(x.shape[1]) + 4) * SOFTMAX.reference(x)


@cuda.jit
def sub_max_exp_kernel(x, out, row, biggest):
    col = u32.grid(1)
    if col < x.shape[1]:
        out[row, col] = math.exp(x[row, col] - biggest)


@cuda.jit
def normalize_kernel(out, row, total):
    col = u32.grid(1)
    if col < out.shape[1]:
        out[row, col] /= total


@rung(kernel=(sub_max_exp_kernel, normalize_kernel), idea="row by row; the host fetches |max| and the sum",
      failed="a row that holds -200 and 100 comes out as NaN: -200 is subtracted, and exp(300) is infinite in float32",
      tolerance=far_tolerance)
def softmax_by_isamax(x, out, stream=0):
    """The largest |x| by cublasIsamax, the sum by cublasSasum. The host waits for both, in each row."""
    rows, cols = _check(x, out)
    grid = blocks_for((cols,), (BLOCK,))
    for row in range(rows):
        index = blas.isamax(cols, blas.at(x, row * cols))  # the host waits
        biggest = x[row, index - 1]  # counted from 1; and a copy of four bytes
        sub_max_exp_kernel[grid, BLOCK, stream](x, out, *unsigned(row), biggest)
        total = blas.asum(cols, blas.at(out, row * cols))  # the host waits
        normalize_kernel[grid, BLOCK, stream](out, *unsigned(row), np.float32(total))


@rung(kernel=(sub_max_exp_kernel, normalize_kernel), idea="row by row; a true maximum, from a kernel")
def softmax_by_row_max(x, out, stream=0):
    """Compute it as by_isamax does, but subtract the maximum; one reduction launch finds it for all rows."""
    rows, cols = _check(x, out)
    grid = blocks_for((cols,), (BLOCK,))
    maxima = cuda.device_array(rows, np.float32)
    row_max(x, maxima, stream=stream)
    for row, biggest in enumerate(maxima.copy_to_host()):
        sub_max_exp_kernel[grid, BLOCK, stream](x, out, *unsigned(row), biggest)
        total = blas.asum(cols, blas.at(out, row * cols))  # the host waits
        normalize_kernel[grid, BLOCK, stream](out, *unsigned(row), np.float32(total))


@cuda.jit
def sub_row_max_exp_kernel(x, out, row, maxima):
    col = u32.grid(1)
    if col < x.shape[1]:
        out[row, col] = math.exp(x[row, col] - maxima[row])


@cuda.jit
def normalize_by_kernel(out, row, total):
    col = u32.grid(1)
    if col < out.shape[1]:
        out[row, col] /= total[0]


@rung(kernel=(sub_row_max_exp_kernel, normalize_by_kernel), idea="row by row; nothing comes back to the host")
def softmax_on_device(x, out, stream=0):
    """As by_row_max, but the maxima and the sums stay in device memory, where the kernels read them."""
    rows, cols = _check(x, out)
    grid = blocks_for((cols,), (BLOCK,))
    maxima, total = cuda.device_array(rows, np.float32), cuda.device_array(1, np.float32)
    row_max(x, maxima, stream=stream)
    for row in range(rows):
        sub_row_max_exp_kernel[grid, BLOCK, stream](x, out, *unsigned(row), maxima)
        blas.asum(cols, blas.at(out, row * cols), result=total)
        normalize_by_kernel[grid, BLOCK, stream](out, *unsigned(row), total)


def _check(x, out) -> tuple[int, int]:
    check_array("x", x, ndim=2)
    check_array("out", out, shape=x.shape)
    return x.shape


BLAS_SOFTMAX = SOFTMAX.with_rungs(softmax_by_isamax, softmax_by_row_max, softmax_on_device)
