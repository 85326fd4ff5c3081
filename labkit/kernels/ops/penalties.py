"""penalise: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.penalties."""

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.op import Op, Work, sizes
from labkit.kernels.penalties import IN_PROMPT, penalise, penalise_reference
from labkit.kernels.tolerance import EPS32


def seen_tokens(rng, R, V):
    """A sixth of the vocabulary has appeared; every third row has no penalties, and each penalty also occurs alone."""
    table = np.where(rng.random((R + 1, V)) < 0.1, rng.integers(1, 300, (R + 1, V)), 0).astype(np.uint32)
    table |= np.where(rng.random((R + 1, V)) < 0.07, np.uint32(IN_PROMPT), np.uint32(0)).astype(np.uint32)
    slots = rng.permutation(R + 1)[:R].astype(np.int32)
    slots[::3] = -1
    return ((3 * rng.standard_normal((R, V))).astype(np.float32), table, slots,
            rng.choice([1, 1.3, 0.8], R).astype(np.float32), rng.choice([0, 0.01, -0.2], R).astype(np.float32),
            rng.choice([0, 0.6, -1], R).astype(np.float32))


def _tolerance(logits, table, slots, repetition, frequency, presence):
    """Three roundings of a value no larger than the sum of the terms; 0 for tokens that have not appeared."""
    bound = np.zeros_like(logits)
    for row, slot in enumerate(np.asarray(slots, np.int64)):
        if slot >= 0:
            words = table[slot].astype(np.int64)
            terms = np.abs(logits[row]) * max(repetition[row], 1 / repetition[row]) + abs(presence[row])
            bound[row] = np.where(words != 0, terms + abs(frequency[row]) * (words & 0x7FFFFFFF), 0)
    return 3 * EPS32 * bound


def _signed(torch, logits, table, slots, *penalties):
    """PyTorch has few operations on uint32."""
    return logits, table.view(torch.int32), slots, *penalties


def _torch(torch, logits, table, slots, repetition, frequency, presence, out):
    words = table[slots.long().clamp(min=0)]
    seen, count = (words != 0) & (slots >= 0)[:, None], words & 0x7FFFFFFF
    x = torch.where(logits > 0, logits / repetition[:, None], logits * repetition[:, None])
    x = x - frequency[:, None] * count - presence[:, None] * (count > 0)
    return torch.where(seen, x, logits)


PENALISE = Op(
    "penalise",
    title="Penalties for tokens already seen",
    formula="out = logits, divided or multiplied by repetition, less frequency * count, less presence",
    reference=penalise_reference,
    rungs=(penalise,),
    inputs=seen_tokens,
    shape=lambda R, V: (R, V),
    awkward=sizes("R V", (1, 1), (3, 33), (5, 260), (2, 4099)),
    tolerance=_tolerance,
    by_row=(),
    work=Work(
        flops=lambda R, V: 4 * R * V,
        bytes=lambda R, V: 12 * R * V,
        timed_gpu={"R": 32, "V": 128_256},
        timed_cpu={"R": 4, "V": 4096},
    ),
    baselines=(Baseline("PyTorch", "torch", _torch, prepare=_signed),),
)
