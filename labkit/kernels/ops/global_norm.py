"""global_norm and global_norm_bf16: inputs, sizes, tolerance, work and baselines of the rungs in
labkit.kernels.optim.global_norm."""

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.op import Op, Work, rungs_of, uniform
from labkit.kernels.optim import global_norm
from labkit.kernels.optim.global_norm import global_norm_reference
from labkit.kernels.tolerance import EPS32


def _tolerance(gradients, max_norm):
    """A sum of positive squares: its relative error grows like the root of their number, and is halved by the root."""
    return EPS32 * (np.sqrt(gradients.size) + 4) * global_norm_reference(gradients, max_norm)


def _torch(torch, gradients, max_norm, out):
    norm = torch.linalg.vector_norm(gradients, dtype=torch.float32)
    return torch.stack([norm, torch.clamp(max_norm / (norm + 1e-6), max=1.0)])


def global_norm_op(name: str, element: Element):
    return Op(
        name,
        title="Norm of all gradients, and the factor that clips it" + f", in {element.name}" * (element != FLOAT32),
        formula="norm = sqrt(sum of gradients^2); factor = min(1, max_norm / norm)",
        reference=global_norm_reference,
        rungs=rungs_of(global_norm),
        inputs=lambda rng, n: (element.array_of(uniform(rng, n)), 1.0),
        shape=lambda n: (2,),
        awkward=tuple({"n": n} for n in (1, 7, 4_099)),
        tolerance=_tolerance,
        by_row=(),
        work=Work(
            flops=lambda n: 2 * n,
            bytes=lambda n: element.dtype.itemsize * n,
            timed_gpu={"n": 124_475_904},  # GPT-2, of 124 million parameters
            timed_cpu={"n": 2**16},
        ),
        baselines=(Baseline("PyTorch", "torch", _torch),),
    )


GLOBAL_NORM = global_norm_op("global_norm", FLOAT32)
GLOBAL_NORM_BF16 = global_norm_op("global_norm_bf16", BFLOAT16)
