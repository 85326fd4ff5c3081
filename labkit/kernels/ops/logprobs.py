"""logprobs: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.logprobs."""

import numpy as np

from labkit.kernels import logprobs
from labkit.kernels.baselines import Baseline
from labkit.kernels.logprobs import COLUMNS, MOST, RANK, TOKENS, logprobs_reference
from labkit.kernels.op import Op, Work, rungs_of, sizes
from labkit.kernels.tolerance import EPS32


def any_rows(rng, R, V):
    """Ties, constant rows, rows partly or all -inf, sorted rows, an infinite logit; a different k for each row."""
    logits = (rng.standard_normal((R, V)) * rng.choice([0.1, 1, 10], (R, 1))).astype(np.float32)
    kind = np.arange(R) % 8
    logits[kind == 1] = np.round(logits[kind == 1])
    logits[kind == 2] = 0.25
    logits[(kind == 3)[:, None] & (rng.random((R, V)) < 0.97)] = -np.inf
    logits[kind == 4] = np.sort(logits[kind == 4], axis=1)
    logits[kind == 5] = -np.inf
    logits[kind == 6, rng.integers(V)] = np.inf
    tokens, wanted = rng.integers(0, V, R).astype(np.int32), rng.integers(-1, MOST + 1, R).astype(np.int32)
    wanted[: R // 2 : 2], tokens[R - 1 :: -9] = MOST, -1
    return logits, tokens, wanted


def _tolerance(logits, tokens, wanted):
    """Ranks and tokens are exact. A logprob is a difference of logits, rounded once, less the logarithm of a sum whose
    terms are off by a few units in the last place."""
    allowed = np.abs(logprobs_reference(logits, tokens.astype(int), wanted.astype(int)))
    allowed = np.where(np.isfinite(allowed), 4 * EPS32 * (allowed + 12 + np.log(logits.shape[1])), 0)
    allowed[:, RANK] = allowed[:, TOKENS:] = 0
    return allowed


def logprobs_by_torch(torch, logits, tokens, wanted, out):
    """Of equal logits torch.topk may take any. It takes one k for all rows: MOST, masked to each row's k."""
    def logprob_of(x):
        return torch.where(x == row_max, 0, x - row_max) - log_sum  # inf - inf is NaN

    row_max, log_sum = logits.amax(dim=1, keepdim=True), 0
    log_sum = logprob_of(logits).exp().sum(dim=1, keepdim=True).log()
    log_sum = torch.where(row_max == -torch.inf, torch.inf, log_sum)
    token_logits = logits.gather(1, tokens.clamp(min=0).long()[:, None])
    rank = 1 + (logits > token_logits).sum(dim=1, keepdim=True)
    valid = ((tokens >= 0) & (wanted >= 0))[:, None]
    largest, indices = logits.topk(min(MOST, logits.shape[1]), dim=1)
    in_top_k = torch.arange(indices.shape[1], device=logits.device) < wanted[:, None]
    padding = (0, MOST - indices.shape[1])
    pad = torch.nn.functional.pad
    return torch.cat([torch.where(valid, logprob_of(token_logits), 0), torch.where(valid, rank, 0),
                      pad(torch.where(in_top_k, logprob_of(largest), -torch.inf), padding, value=-torch.inf),
                      pad(torch.where(in_top_k, indices, -1), padding, value=-1)], dim=1)


def _any_of_equal_logits(logits, tokens, wanted):
    allowed = _tolerance(logits, tokens, wanted)
    allowed[:, TOKENS:] = logits.shape[1]
    return allowed


LOGPROBS = Op(
    "logprobs",
    title="Logprobs of a token and of the k most likely ones",
    formula="x - log(sum of exp(x)) of the row's token and of its k largest logits, and the token's rank",
    reference=logprobs_reference,
    rungs=rungs_of(logprobs),
    inputs=any_rows,
    shape=lambda R, V: (R, COLUMNS),
    awkward=sizes("R V", (1, 1), (8, 2), (16, 19), (16, 33), (9, 516), (8, 4099), (8, 8196)),
    tolerance=_tolerance,
    by_row=(0, 1, 2),
    work=Work(
        flops=lambda R, V: 4 * R * V,
        bytes=lambda R, V: 4 * R * V + 4 * R * (2 + COLUMNS),
        timed_gpu={"R": 128, "V": 128_256},
        timed_cpu={"R": 4, "V": 4096},
        also_gpu=({"R": 1, "V": 128_256}, {"R": 32, "V": 128_256}),
    ),
    baselines=(Baseline("PyTorch", "torch", logprobs_by_torch, tolerance=_any_of_equal_logits),),
)
