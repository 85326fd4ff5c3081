"""rmsnorm, rmsnorm_bf16, add_rmsnorm and add_rmsnorm_bf16: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.norm.rmsnorm."""

from dataclasses import replace

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.norm import rmsnorm
from labkit.kernels.norm.rmsnorm import EPS, add_rmsnorm_reference, rmsnorm_reference
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import EPS32


def tolerance_of(element: Element):
    """The sum goes over C positive terms: its relative error grows like sqrt(C), and the root makes it half as large;
    the root's reciprocal and the products are some roundings more. In 16 bits a value near the midpoint of two
    neighbours may be rounded to the other one, before and after the weight."""
    def tolerance(x, weight, eps=EPS):
        magnitude = np.abs(rmsnorm_reference(x, weight, eps))
        rounded = 2 * element.rounding_error(magnitude) + element.smallest * np.abs(weight)
        return EPS32 * (np.sqrt(x.shape[1]) + 4) * magnitude + rounded

    return tolerance


def _add_tolerance_of(element: Element):
    """The sums are exact, to the last bit."""
    def tolerance(x, residual, weight):
        rows = add_rmsnorm_reference(x, residual, weight)[1]
        return np.stack([tolerance_of(element)(rows, weight) * 1.01, np.zeros_like(rows)])

    return tolerance


def _torch(torch, x, weight, out):
    return torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)


def _torch_add(torch, x, residual, weight, out):
    """(normed, sum), each in memory of its own: into one array torch.compile would copy them."""
    total = x + residual
    return torch.nn.functional.rms_norm(total, weight.shape, weight, EPS), total


AWKWARD = sizes("T C", (1, 1), (6, 264), (3, 1021))

TIMED = {
    "timed_gpu": {"T": 16384, "C": 2048},
    "timed_cpu": {"T": 64, "C": 256},
    "also_gpu": ({"T": 1, "C": 2048}, {"T": 32, "C": 2048}, {"T": 256, "C": 2048}),  # decode of Llama 3.2 1B
}  # fmt: skip


def rmsnorm_op(name: str, element: Element):
    cast, itemsize = element.array_of, element.dtype.itemsize
    return Op(
        name,
        title="RMSNorm" + f" in {element.name}" * (element != FLOAT32),
        formula="out = x / sqrt(mean(x^2) + 1e-5) * weight, for each row",
        reference=rmsnorm_reference,
        rungs=rungs_of(rmsnorm, "rmsnorm"),
        inputs=lambda rng, T, C: (cast(uniform(rng, T, C) + np.float32(0.75)), cast(uniform(rng, C))),
        shape=lambda T, C: (T, C),
        awkward=AWKWARD,
        tolerance=tolerance_of(element),
        by_row=(0,),
        work=Work(flops=lambda T, C: 4 * T * C, bytes=lambda T, C: 2 * itemsize * T * C, **TIMED),
        baselines=(Baseline("PyTorch", "torch", _torch),),
        dtype=element.dtype,
    )


def add_rmsnorm_op(name: str, element: Element):
    cast, itemsize = element.array_of, element.dtype.itemsize
    return replace(
        rmsnorm_op(name, element),
        title="Residual addition and RMSNorm, the sum kept" + f", in {element.name}" * (element != FLOAT32),
        formula="out[1] = x + residual; out[0] = rmsnorm(out[1])",
        reference=add_rmsnorm_reference,
        rungs=rungs_of(rmsnorm, "add_rmsnorm"),
        inputs=lambda rng, T, C: (cast(uniform(rng, T, C) + np.float32(0.75)), cast(uniform(rng, T, C)),
                                  cast(uniform(rng, C))),
        shape=lambda T, C: (2, T, C),
        tolerance=_add_tolerance_of(element),
        by_row=(),
        work=Work(flops=lambda T, C: 5 * T * C, bytes=lambda T, C: 4 * itemsize * T * C, **TIMED),
        baselines=(Baseline("PyTorch", "torch", _torch_add, note="add, then rms_norm", compile=_torch_add),),
    )


RMSNORM = rmsnorm_op("rmsnorm", FLOAT32)
RMSNORM_BF16 = rmsnorm_op("rmsnorm_bf16", BFLOAT16)
ADD_RMSNORM = add_rmsnorm_op("add_rmsnorm", FLOAT32)
ADD_RMSNORM_BF16 = add_rmsnorm_op("add_rmsnorm_bf16", BFLOAT16)
