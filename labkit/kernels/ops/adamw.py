"""adamw and adamw_bf16: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.optim.adamw. out
holds the new master, m and v; the copies of the parameters, of the gradients' type, are in scratch memory."""

import math

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.op import Op, Work, rungs_of, uniform
from labkit.kernels.optim import adamw
from labkit.kernels.optim.adamw import BETAS, DECAY, EPS, SEGMENT, adamw_reference
from labkit.kernels.scan_blocks import scratch_for
from labkit.kernels.tolerance import EPS32


def _tolerance(master, m, v, gradients, decayed, rate, step, clip):
    """Some roundings of each term; where m and the gradient cancel, the update has their errors."""
    new_master, _, new_v = adamw_reference(master, m, v, gradients, decayed, rate, step, clip)
    g, count = np.abs(gradients * clip), int(step[0])
    first = np.abs(m) + (1 - BETAS[0]) * g
    update = first / (1 - BETAS[0] ** count) / (np.sqrt(new_v / (1 - BETAS[1] ** count)) + EPS)
    return EPS32 * np.stack([np.abs(master) + np.abs(new_master) + 16 * rate * update, 4 * first, 4 * new_v])


def _with_copies(torch, master, m, v, gradients, decayed, rate, step, clip, out):
    """Memory for the copies of the parameters, which our kernels write, too."""
    return master, m, v, gradients, decayed, rate, step, clip, torch.empty_like(gradients)


def _torch(torch, master, m, v, gradients, decayed, rate, step, clip, parameters):
    """As functions of PyTorch, for torch.compile to fuse; torch.optim.AdamW(fused=True) updates in place."""
    g, count = gradients.float() * clip, step.float()
    first, second = torch.lerp(m, g, 1 - BETAS[0]), torch.lerp(v, g * g, 1 - BETAS[1])
    correct_m, correct_v = -1 / torch.expm1(count * math.log(BETAS[0])), -1 / torch.expm1(count * math.log(BETAS[1]))
    shrink = (decayed != 0).float().repeat_interleave(SEGMENT)[: master.shape[0]] * (rate * DECAY)
    master = master - rate * first * correct_m / ((second * correct_v).sqrt() + EPS) - shrink * master
    parameters.copy_(master)
    return master, first, second


def _copied(torch, master, m, v, gradients, decayed, rate, step, clip, out):
    """A state of its own, since PyTorch's kernel updates it in place, and clipped gradients."""
    return master.clone(), m.clone(), v.clone(), gradients * clip, step.float(), float(rate)


def _torch_fused(torch, master, m, v, gradients, step, rate):
    torch._fused_adamw_([master], [gradients], [m], [v], [], [step], lr=rate, beta1=BETAS[0], beta2=BETAS[1],
                        weight_decay=DECAY, eps=EPS, amsgrad=False, maximize=False)
    return master, m, v


def _fused_tolerance(master, m, v, gradients, decayed, rate, step, clip):
    """It decays every parameter."""
    return (_tolerance(master, m, v, gradients, decayed, rate, step, clip)
            + np.stack([rate * DECAY * np.abs(master), 0 * m, 0 * v]))


# What torch.optim.AdamW(fused=True) launches: parameters and gradients of one type, and no copy.
FUSED = Baseline("PyTorch", "torch", _torch_fused, note="AdamW(fused=True)", prepare=_copied, compile=False,
                 tolerance=_fused_tolerance)


def adamw_op(name: str, gradient: Element):
    def inputs(rng, n):
        decayed = rng.integers(0, 2, -(-n // SEGMENT)).astype(np.uint8)
        return (uniform(rng, n), uniform(rng, n), np.abs(uniform(rng, n)), gradient.array_of(uniform(rng, n)), decayed,
                np.array([0.01], np.float32), np.array([3], np.int32), np.array([0.5], np.float32))

    return Op(
        name,
        title="A step of AdamW" + f", gradients and copies in {gradient.name}" * (gradient != FLOAT32),
        formula="master -= rate * (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + decay * master)",
        reference=lambda *arrays: np.stack(adamw_reference(*arrays)),
        rungs=tuple(one.called(one.__name__, lambda master, m, v, gradients, decayed, rate, step, clip, out, stream=0,
                               launch=one.launcher: launch(
                                   master, m, v, gradients, scratch_for(None, master.size, gradient.dtype), decayed,
                                   rate, step, clip, out=out, stream=stream))
                    for one in rungs_of(adamw)),
        inputs=inputs,
        shape=lambda n: (3, n),
        awkward=tuple({"n": n} for n in (1, 8, 257, 4_100)),
        tolerance=_tolerance,
        by_row=(),
        work=Work(
            flops=lambda n: 20 * n,
            bytes=lambda n: (24 + 2 * gradient.dtype.itemsize) * n,
            timed_gpu={"n": 124_475_904},  # GPT-2, of 124 million parameters
            timed_cpu={"n": 2**16},
        ),
        baselines=(Baseline("PyTorch", "torch", _torch, note="elementwise operations", prepare=_with_copies,
                            compile=_torch),  # as it is: with an `out` of its own the copies would not be written
                   *(FUSED,) * (gradient == FLOAT32)),
    )


ADAMW = adamw_op("adamw", FLOAT32)
ADAMW_BF16 = adamw_op("adamw_bf16", BFLOAT16)
