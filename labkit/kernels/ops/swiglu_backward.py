"""swiglu_backward and swiglu_backward_bf16: inputs, sizes, tolerance, work and baselines of the rungs in
labkit.kernels.swiglu_backward."""

import numpy as np

from labkit.kernels import swiglu_backward
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.swiglu_backward import swiglu_backward_reference
from labkit.kernels.tolerance import EPS32


def tolerance_of(element: Element):
    """exp's argument moves s by s * (1 - s) * |gate| units, and 1 + gate * (1 - s) by as much times the gate."""
    def tolerance(gate_up, dout):
        gate, up = np.split(np.abs(gate_up), 2, axis=1)
        scale = np.concatenate([np.abs(dout) * up, np.abs(dout) * (1 + gate)], axis=1)
        return 16 * EPS32 * scale + element.rounding_error(swiglu_backward_reference(gate_up, dout))

    return tolerance


def _torch(torch, gate_up, dout, out):
    gate, up = gate_up.chunk(2, dim=-1)
    s = torch.sigmoid(gate)
    return torch.cat([dout * up * s * (1 + gate * (1 - s)), dout * gate * s], dim=-1)


def swiglu_backward_op(name: str, element: Element):
    cast, itemsize = element.array_of, element.dtype.itemsize
    return Op(
        name,
        title="Gradient of SwiGLU" + f" in {element.name}" * (element != FLOAT32),
        formula="dgate = dout * up * s * (1 + gate * (1 - s)), dup = dout * gate * s, s = 1 / (1 + exp(-gate))",
        reference=swiglu_backward_reference,
        rungs=rungs_of(swiglu_backward),
        inputs=lambda rng, T, F: (cast(4 * uniform(rng, T, 2 * F)), cast(uniform(rng, T, F))),
        shape=lambda T, F: (T, 2 * F),
        awkward=sizes("T F", (1, 1), (3, 13), (5, 264)),
        tolerance=tolerance_of(element),
        by_row=(0, 1),
        work=Work(
            flops=lambda T, F: 12 * T * F,
            bytes=lambda T, F: 5 * itemsize * T * F,
            timed_gpu={"T": 4096, "F": 8192},  # Llama 3.2 1B
            timed_cpu={"T": 64, "F": 704},
        ),
        baselines=(Baseline("PyTorch", "torch", _torch, note="elementwise operations",
                            tolerance=lambda gate_up, dout: 4 * tolerance_of(element)(gate_up, dout)
                            + 4 * element.rounding_error(np.abs(np.tile(dout, 2)) * (1 + np.abs(gate_up)))
                            * (1 + np.abs(np.roll(gate_up, dout.shape[1], axis=1)))),),
        dtype=element.dtype,
    )


SWIGLU_BACKWARD = swiglu_backward_op("swiglu_backward", FLOAT32)
SWIGLU_BACKWARD_BF16 = swiglu_backward_op("swiglu_backward_bf16", BFLOAT16)
