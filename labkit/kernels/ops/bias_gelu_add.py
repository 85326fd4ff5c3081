"""bias_gelu_add: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.bias_gelu_add."""

import numpy as np

from labkit.kernels import bias_gelu_add
from labkit.kernels.baselines import Baseline
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import EPS32


def _tolerance(x, bias, residual):
    """The sum is rounded once, and GELU's slope is at most 1.13; GELU in some ten roundings of a value no larger than
    its argument; the last sum once. Allowed is twice that."""
    argument = np.abs(x) + np.abs(bias)
    return EPS32 * (12 * argument + np.abs(residual))


def _three_lines(torch, x, bias, residual, out=None):
    y = x + bias
    y = torch.nn.functional.gelu(y, approximate="tanh")
    return y + residual


BIAS_GELU_ADD = Op(
    "bias_gelu_add",
    title="Bias, GELU, residual",
    formula="out = gelu(x + bias) + residual",
    reference=bias_gelu_add.bias_gelu_add_reference,
    rungs=rungs_of(bias_gelu_add),
    inputs=lambda rng, R, C: (2 * uniform(rng, R, C), uniform(rng, C), uniform(rng, R, C)),
    shape=lambda R, C: (R, C),
    awkward=sizes("R C", (1, 1), (3, 5), (1, 257), (33, 31), (7, 384)),
    tolerance=_tolerance,
    by_row=(0, 2),
    work=Work(
        flops=lambda R, C: 12 * R * C,
        bytes=lambda R, C: 4 * (3 * R * C + C),
        timed_gpu={"R": 512, "C": 384},
        timed_cpu={"R": 64, "C": 384},
    ),
    baselines=(Baseline("PyTorch", "torch", _three_lines, note="three calls"),),
)
