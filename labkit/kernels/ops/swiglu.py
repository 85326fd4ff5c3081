"""swiglu and swiglu_bf16: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.swiglu."""

import numpy as np

from labkit.kernels import swiglu
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.swiglu import silu, swiglu_reference
from labkit.kernels.tolerance import EPS32


def tolerance_of(element: Element):
    """The exponential is off by 2^-22 and by what its argument is; then four roundings. In 16 bits a value near the
    midpoint of two neighbours may be rounded to the other one, twice. Beyond exp(88) the reciprocal is flushed to 0."""
    def tolerance(gate_up):
        gate, up = gate_up[:, : gate_up.shape[1] // 2], gate_up[:, gate_up.shape[1] // 2 :]
        rounded = element.rounding_error(silu(gate)) * np.abs(up) + element.rounding_error(silu(gate) * up)
        units = EPS32 * (6 + np.minimum(np.abs(gate), 90))
        return units * np.abs(silu(gate) * up) + rounded + 2e-36 * np.abs(up)

    return tolerance


def _torch(torch, gate_up, out):
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def swiglu_op(name: str, element: Element):
    cast, itemsize = element.array_of, element.dtype.itemsize
    return Op(
        name,
        title="SwiGLU" + f" in {element.name}" * (element != FLOAT32),
        formula="out = silu(gate) * up, of gate_up = [gate | up]",
        reference=swiglu_reference,
        rungs=rungs_of(swiglu),
        inputs=lambda rng, T, F: (cast(4 * uniform(rng, T, 2 * F)),),
        shape=lambda T, F: (T, F),
        awkward=sizes("T F", (1, 1), (3, 13), (5, 264)),
        tolerance=tolerance_of(element),
        by_row=(0,),
        work=Work(
            flops=lambda T, F: 6 * T * F,
            bytes=lambda T, F: 3 * itemsize * T * F,
            timed_gpu={"T": 4096, "F": 8192},  # Llama 3.2 1B
            timed_cpu={"T": 64, "F": 704},
            also_gpu=({"T": 1, "F": 8192}, {"T": 32, "F": 8192}, {"T": 256, "F": 8192}),
        ),
        baselines=(Baseline("PyTorch", "torch", _torch, note="silu, then multiply"),),
        dtype=element.dtype,
    )


SWIGLU = swiglu_op("swiglu", FLOAT32)
SWIGLU_BF16 = swiglu_op("swiglu_bf16", BFLOAT16)
