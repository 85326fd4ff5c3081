"""cross_entropy and cross_entropy_bf16: inputs, sizes, tolerance, work and baselines of the rungs in
labkit.kernels.loss.cross_entropy. out is the gradient; the losses are in scratch memory."""

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.loss import cross_entropy
from labkit.kernels.loss.cross_entropy import IGNORED, cross_entropy_reference
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.scan_blocks import scratch_for
from labkit.kernels.tolerance import EPS32


def tolerance_of(element: Element):
    """As for softmax; the target's is the difference from 1."""
    def tolerance(logits, targets, scale):
        gradient = cross_entropy_reference(logits, targets, scale)[1]
        exponents = logits.max(axis=1, keepdims=True) - logits
        units = 8 + exponents + np.sqrt(logits.shape[1])
        probability = np.abs(gradient) + np.abs(scale) * (np.arange(logits.shape[1]) == targets[:, None])
        return EPS32 * units * probability + element.rounding_error(gradient) + float(np.finfo(np.float32).tiny)

    return tolerance


def _inputs(rng, R, V):
    targets = rng.integers(0, V, R).astype(np.int32)
    targets[1:2] = IGNORED
    return 8 * uniform(rng, R, V), targets, np.array([0.375], np.float32)


def _torch(torch, logits, targets, scale, out):
    probabilities = torch.softmax(logits.float(), dim=1)
    hit = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    return ((probabilities - hit.float()) * (scale * (targets != IGNORED))[:, None]).to(logits.dtype)


def cross_entropy_op(name: str, element: Element):
    cast, itemsize = element.array_of, element.dtype.itemsize

    def inputs(rng, R, V):
        logits, targets, scale = _inputs(rng, R, V)
        return cast(logits), targets, scale

    return Op(
        name,
        title="Cross entropy and its gradient" + f", in {element.name}" * (element != FLOAT32),
        formula="dlogits = (softmax(logits) - onehot(target)) * scale, for each row",
        reference=lambda logits, targets, scale: cross_entropy_reference(logits, targets, scale)[1],
        rungs=tuple(one.called(one.__name__, lambda logits, targets, scale, out, stream=0, launch=one.launcher:
                               launch(logits, targets, scale, scratch_for(None, targets.size, np.float32), out,
                                      stream=stream))
                    for one in rungs_of(cross_entropy)),
        inputs=inputs,
        shape=lambda R, V: (R, V),
        awkward=sizes("R V", (1, 1), (9, 3), (5, 31), (3, 1025), (3, 8200)),
        tolerance=tolerance_of(element),
        by_row=(0, 1),
        work=Work(
            flops=lambda R, V: 10 * R * V,
            bytes=lambda R, V: 2 * itemsize * R * V,
            timed_gpu={"R": 8192, "V": 50257},  # GPT-2
            timed_cpu={"R": 16, "V": 4099},
            also_gpu=({"R": 4096, "V": 128256},),  # Llama 3
        ),
        baselines=(Baseline("PyTorch", "torch", _torch, note="softmax, then the difference"),),
        dtype=element.dtype,
    )


CROSS_ENTROPY = cross_entropy_op("cross_entropy", FLOAT32)
CROSS_ENTROPY_BF16 = cross_entropy_op("cross_entropy_bf16", BFLOAT16)
