"""sample and sample_top_p: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.sampling."""

from dataclasses import replace

import numpy as np

from labkit.kernels import sampling, sampling_rows
from labkit.kernels.baselines import Baseline
from labkit.kernels.op import Op, Work, rungs_of, sizes
from labkit.kernels.sampling_reference import sample_reference


def any_requests(rng, R, V):
    """Rows of every kind: each parameter on and off, ties, flat, steep and partly masked rows."""
    logits = (rng.standard_normal((R, V)) * rng.choice([0.1, 1, 3, 10], (R, 1))).astype(np.float32)
    kind = np.arange(R) % 6
    logits[kind == 1] = np.round(logits[kind == 1])
    logits[kind == 2] = 0.25
    logits[(kind == 3)[:, None] & (rng.random((R, V)) < 0.7)] = -np.inf
    return (logits, rng.choice([0, 0.5, 1, 1.7], R, p=[0.1, 0.3, 0.3, 0.3]).astype(np.float32),
            rng.choice([0, 1, 2, 40, V], R).astype(np.int32), rng.choice([0.05, 0.5, 0.9, 1], R).astype(np.float32),
            rng.choice([0, 0.02, 0.3], R).astype(np.float32), rng.integers(0, 2**32, (R, 2), np.uint32),
            rng.integers(0, 5000, R).astype(np.int32))


def top_p_requests(rng, R, V):
    """Logits with the spread of a language model's, and top_p alone."""
    logits = np.float32(2.5) * rng.standard_normal((R, V), np.float32)
    return (logits, rng.uniform(0.7, 1.2, R).astype(np.float32), np.zeros(R, np.int32), np.full(R, 0.9, np.float32),
            np.zeros(R, np.float32), rng.integers(0, 2**32, (R, 2), np.uint32), np.arange(R, dtype=np.int32))


def _without_seeds(torch, logits, temperature, top_k, top_p, min_p, seeds, steps, out):
    """A library's arguments; it draws its own random numbers."""
    return logits, temperature, top_k, top_p, min_p


def _top_p_alone(torch, logits, temperature, top_k, top_p, min_p, seeds, steps, out):
    return logits, temperature, None, top_p, None


def sorted_by_torch(torch, logits, temperature, top_k, top_p, min_p):
    """By a sort, as transformers does it; top_k and min_p may be None."""
    greedy = temperature == 0
    scaled, index = (logits / torch.where(greedy, 1, temperature)[:, None]).sort(dim=-1, descending=True)
    if top_k is not None:
        rank = torch.arange(logits.shape[1], device=logits.device)
        excluded = (rank >= torch.where(top_k > 0, top_k, logits.shape[1])[:, None])
        scaled = scaled.masked_fill(excluded | (scaled - scaled[:, :1] < min_p[:, None].log()), -torch.inf)
    probs = scaled.softmax(dim=-1)
    preceding = probs.cumsum(dim=-1) - probs
    probs = probs.masked_fill(preceding >= top_p[:, None], 0)
    drawn = (probs / torch.empty_like(probs).exponential_()).argmax(dim=-1)
    return index.gather(-1, torch.where(greedy, 0, drawn)[:, None])[:, 0].int()


SEARCHES, BRANCHES = 7, 15  # 16**7 intervals of 32: as fine as float32


def _find_threshold(torch, scaled, weights, target):
    """Find each row's threshold: the largest t for which the weights with scaled >= t add up to `target`.

    Each pass divides the interval by sixteen, and reads the row once for all fifteen sums."""
    threshold = torch.full_like(target, -32.0)
    width = -threshold
    for _ in range(SEARCHES):
        width = width / (BRANCHES + 1)
        reached = [torch.where(scaled >= (threshold + branch * width)[:, None], weights, 0).sum(dim=-1) >= target
                   for branch in range(1, BRANCHES + 1)]
        threshold = threshold + width * sum(mask.int() for mask in reached)
    return threshold[:, None]


def searched_by_torch(torch, logits, temperature, top_k, top_p, min_p):
    """The same without a sort, for torch.compile."""
    greedy = temperature == 0
    scaled = logits / torch.where(greedy, 1, temperature)[:, None]
    scaled = scaled - scaled.amax(dim=-1, keepdim=True)
    weights = scaled.exp()
    if top_k is not None:
        weights = torch.where(weights >= min_p[:, None], weights, 0)
        count = torch.where(top_k > 0, top_k, logits.shape[1]).float()
        threshold = _find_threshold(torch, scaled, (weights > 0).float(), count)
        weights = torch.where(scaled >= threshold, weights, 0)
    weights = torch.where(scaled >= _find_threshold(torch, scaled, weights, top_p * weights.sum(dim=-1)), weights, 0)
    drawn = (weights / -torch.rand_like(weights).log()).argmax(dim=-1)
    return torch.where(greedy, scaled.argmax(dim=-1), drawn).int()


def _by_torch(prepare) -> tuple[Baseline, ...]:
    """Libraries draw other random numbers, so that any token is accepted."""
    def any_token(logits, *parameters):
        return np.full(len(logits), float(logits.shape[1]))

    return (Baseline("PyTorch", "torch", sorted_by_torch, "sort, softmax, cumulative sum", any_token, prepare,
                     compile=False),  # torch.compile has no sort of its own
            Baseline("PyTorch, a search", "torch", searched_by_torch, "", any_token, prepare,
                     compile=searched_by_torch, eager=False))


SIZES = sizes("R V", (12, 1), (12, 2), (12, 31), (24, 32), (24, 33), (18, 257), (12, 4099))

SAMPLE = Op(
    "sample",
    title="Draw a token from each row of logits",
    formula="temperature, min_p, top_k, top_p, then a draw by the row's own seed and step",
    reference=sample_reference,
    rungs=(*rungs_of(sampling_rows), *rungs_of(sampling)),
    inputs=any_requests,
    shape=lambda R, V: (R,),
    awkward=SIZES,
    tolerance=lambda logits, *parameters: np.zeros(len(logits)),  # integers: there is one right token
    by_row=tuple(range(7)),
    dtype=np.int32,
    work=Work(
        flops=lambda R, V: 20 * R * V,
        bytes=lambda R, V: 4 * R * V + 4 * R,
        timed_gpu={"R": 32, "V": 128_256},
        timed_cpu={"R": 4, "V": 4096},
        also_gpu=({"R": 1, "V": 128_256}, {"R": 256, "V": 128_256}),
    ),
    baselines=_by_torch(_without_seeds),
)

SAMPLE_TOP_P = replace(
    SAMPLE, name="sample_top_p", title="Draw a token from each row of logits, top-p alone", inputs=top_p_requests,
    formula="temperature, top_p, then a draw by the row's own seed and step",
    awkward=SIZES[-3:],
    baselines=_by_torch(_top_p_alone),
)
