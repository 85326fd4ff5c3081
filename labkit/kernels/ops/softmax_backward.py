"""softmax_backward: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.softmax.backward."""

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.softmax import backward
from labkit.kernels.softmax.backward import softmax_backward_reference
from labkit.kernels.tolerance import EPS32


def _tolerance(y, dout):
    """A sum of C terms, one difference, two products."""
    scale = np.abs(y) * (np.abs(dout) + np.abs(dout * y).sum(axis=1, keepdims=True))
    return EPS32 * (np.sqrt(y.shape[1]) + 4) * scale + float(np.finfo(np.float32).tiny)


def _torch(torch, y, dout, out):
    return torch.ops.aten._softmax_backward_data(dout, y, 1, torch.float32)


SOFTMAX_BACKWARD = Op(
    "softmax_backward",
    title="Gradient of the softmax of each row",
    formula="dx[row, col] = y[row, col] * (dout[row, col] - sum over c of dout[row, c] * y[row, c])",
    reference=softmax_backward_reference,
    rungs=rungs_of(backward),
    inputs=lambda rng, R, C: (np.abs(uniform(rng, R, C)) * np.float32(1.33 / C), uniform(rng, R, C)),
    shape=lambda R, C: (R, C),
    awkward=sizes("R C", (1, 1), (9, 31), (5, 256), (3, 1021), (2, 8200)),
    tolerance=_tolerance,
    by_row=(0, 1),
    work=Work(
        flops=lambda R, C: 4 * R * C,
        bytes=lambda R, C: 12 * R * C,
        timed_gpu={"R": 8192, "C": 8192},
        timed_cpu={"R": 128, "C": 512},
        also_gpu=({"R": 98304, "C": 1024},),  # GPT-2's attention: 8 sequences, 12 heads, 1,024 queries
    ),
    baselines=(Baseline("PyTorch", "torch", _torch),),
)
