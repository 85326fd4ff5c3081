"""linear_attention: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.attention.linear_attention."""

import math

import numpy as np

from labkit.kernels.attention import linear_attention
from labkit.kernels.attention.linear_attention import _weights, linear_attention_reference
from labkit.kernels.baselines import Baseline
from labkit.kernels.op import Op, Work, rungs_of, uniform
from labkit.kernels.tolerance import EPS32


def _tolerance(q, k, v):
    """All weights are positive, so that only the numerator can cancel. It has sums over N tokens and D elements."""
    weights = _weights(q, k)
    mean = weights @ np.abs(v) / weights.sum(axis=2, keepdims=True)
    return 2 * EPS32 * (4 + math.sqrt(q.shape[1]) + math.sqrt(q.shape[2])) * mean


def _by_torch(torch, q, k, v, out):
    """All pairs as two products, with a mask between them."""
    elu = torch.nn.functional.elu
    weights = ((elu(q) + 1) @ (elu(k) + 1).transpose(1, 2)).tril()
    return weights @ v / weights.sum(2, keepdim=True)


def _by_torch_in_chunks(torch, q, k, v, out):
    """All pairs within chunks of 128 tokens, and the state before each chunk: as linear_attention_chunked."""
    (H, N, D), F, chunk = q.shape, torch.nn.functional, 128

    def chunks(x):
        return F.pad(x, (0, 0, 0, -N % chunk)).view(H, -1, chunk, x.shape[2])

    queries, keys = (chunks(F.elu(x) + 1) for x in (q, k))
    values = chunks(F.pad(v, (0, 1), value=1.0))  # a column of ones, for the sums of the weights
    states = keys.mT @ values
    sums = (queries @ keys.mT).tril() @ values + queries @ (states.cumsum(1) - states)
    return (sums[..., :D] / sums[..., D:]).view(H, -1, D)[:, :N]


LINEAR_ATTENTION = Op(
    "linear_attention",
    title="Linear attention, causal",
    formula="out[h, i] = sum over j <= i of (phi(q[h, i]) . phi(k[h, j])) v[h, j], over the sum of these weights",
    reference=linear_attention_reference,
    rungs=rungs_of(linear_attention),
    inputs=lambda rng, H, N, D: tuple(2 * uniform(rng, H, N, D) for _ in range(3)),
    shape=lambda H, N, D: (H, N, D),
    awkward=({"H": 1, "N": 1, "D": 64}, {"H": 2, "N": 33, "D": 64}, {"H": 3, "N": 100, "D": 64}),
    tolerance=_tolerance,
    by_row=(0, 1, 2),
    work=Work(
        flops=lambda H, N, D: 4 * H * N * D * D,
        bytes=lambda H, N, D: 16 * H * N * D,
        timed_gpu={"H": 16, "N": 4096, "D": 64},
        timed_cpu={"H": 1, "N": 64, "D": 64},
        unit="TFLOP/s",
    ),
    baselines=(Baseline("PyTorch", "torch", _by_torch, "all pairs, two products"),
               Baseline("PyTorch, in chunks", "torch", _by_torch_in_chunks)),
)
