"""gelu_backward and gelu_backward_bf16: inputs, sizes, tolerance, work and baselines of the rungs in
labkit.kernels.gelu_backward."""

import numpy as np

from labkit.kernels import gelu_backward
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.gelu_backward import gelu_backward_reference
from labkit.kernels.op import Op, Work, rungs_of, uniform
from labkit.kernels.tolerance import EPS32


def tolerance_of(element: Element):
    """A rounding of exp's argument, 2u, moves s by at most 0.23 units and the second term, never above 0.6, by two;
    the other roundings are of values up to 1.2."""
    def tolerance(x, dout):
        return 16 * EPS32 * np.abs(dout) + element.rounding_error(gelu_backward_reference(x, dout))

    return tolerance


def _torch(torch, x, dout, out):
    torch.ops.aten.gelu_backward.grad_input(dout, x, approximate="tanh", grad_input=out)


def gelu_backward_op(name: str, element: Element):
    cast, itemsize = element.array_of, element.dtype.itemsize
    return Op(
        name,
        title="Gradient of GELU, tanh form" + f", in {element.name}" * (element != FLOAT32),
        formula="dx = dout * (s + x * s * (1 - s) * 2u'), s = 1 / (1 + exp(-2u))",
        reference=gelu_backward_reference,
        rungs=rungs_of(gelu_backward),
        inputs=lambda rng, n: (cast(4 * uniform(rng, n)), cast(uniform(rng, n))),
        shape=lambda n: (n,),
        awkward=tuple({"n": n} for n in (1, 7, 8, 257, 4_099)),
        tolerance=tolerance_of(element),
        by_row=(0, 1),
        work=Work(
            flops=lambda n: 20 * n,
            bytes=lambda n: 3 * itemsize * n,
            timed_gpu={"n": 8192 * 3072},  # GPT-2, 8,192 tokens
            timed_cpu={"n": 2**16},
        ),
        baselines=(Baseline("PyTorch", "torch", _torch),),
        dtype=element.dtype,
    )


GELU_BACKWARD = gelu_backward_op("gelu_backward", FLOAT32)
GELU_BACKWARD_BF16 = gelu_backward_op("gelu_backward_bf16", BFLOAT16)
