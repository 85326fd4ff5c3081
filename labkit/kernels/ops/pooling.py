"""The operations of labkit.kernels.pooling: inputs, sizes, tolerances, work and baselines."""

import numpy as np

from labkit.kernels import pooling
from labkit.kernels.baselines import Baseline
from labkit.kernels.norm.rows import QUADS, WHOLE
from labkit.kernels.op import Op, Work, renamed, rungs_of, sizes, uniform
from labkit.kernels.tolerance import EPS32


def _inputs(rng, B, T, C):
    """Packed: T rows divided at random among B sentences; where T is small, some are empty."""
    lengths = rng.multinomial(T, np.full(B, 1 / B)).astype(np.int32)
    return uniform(rng, T, C), (np.cumsum(lengths) - lengths).astype(np.int32), lengths


def _half_inputs(rng, B, T, C):
    x, begins, lengths = _inputs(rng, B, T, C)
    return x.astype(np.float16), begins, lengths


def mean_tolerance(x, begins, lengths):
    """A sum of L terms, as for dot products; the reciprocal and the product round twice more."""
    magnitude = pooling.mean_pool_reference(np.abs(x), begins, lengths)
    return EPS32 * (2 * np.sqrt(np.maximum(lengths, 1))[:, None] + 2) * magnitude


def l2_tolerance(x):
    """A sum of C squares, all of them positive, its root's reciprocal (two units) and a product."""
    return EPS32 * (np.sqrt(x.shape[1]) + 4) * np.abs(pooling.l2_normalize_reference(x))


def normalized_tolerance(x, begins, lengths):
    """The mean's error, divided as the mean is; it also changes the length by which all elements are divided."""
    mean, error = pooling.mean_pool_reference(x, begins, lengths), mean_tolerance(x, begins, lengths)
    norm = np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), pooling.LEAST)
    return (error + np.abs(mean) * np.linalg.norm(error, axis=1, keepdims=True) / norm) / norm + l2_tolerance(mean)


def _torch_mean(torch, x, begins, lengths, out):
    segment_ids = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths, output_size=len(x))
    total = torch.zeros_like(out).index_add_(0, segment_ids, x.float())
    return total / lengths.clamp(min=1)[:, None]


def _torch_normalize(torch, x, out):
    return torch.nn.functional.normalize(x, dim=1)


def _torch_mean_normalized(torch, x, begins, lengths, out):
    return torch.nn.functional.normalize(_torch_mean(torch, x, begins, lengths, out), dim=1)


def _op(name: str, is_half: bool, normalize: bool):
    form = (2, QUADS, True) if is_half else (3, WHOLE, False)
    block, plain = pooling.make_mean_pool(*form, normalize), pooling.make_mean_pool(*form, False)
    limit = f"rows of at most {max(pooling.QUADS_OF):,} columns"
    if normalize:
        rungs = (renamed(pooling.mean_pool_then_normalize, f"{name}_two_launches",
                         kernel=(plain, pooling.l2_normalize_warp_kernel),
                         idea="two launches: the mean through memory, then its length"),
                 renamed(pooling.mean_pool_normalized_fused, f"{name}_fused", kernel=block, sizes=limit,
                         idea="one launch: the mean is normalised where it was made"))
    else:
        rungs = (renamed(pooling.mean_pool_columns, f"{name}_columns", kernel=pooling.mean_pool_columns_kernel,
                         idea="one thread a column, row after row"),
                 renamed(pooling.mean_pool_warps, f"{name}_warps", kernel=block, sizes=limit,
                         idea="one block a sentence, eight warps share its rows"))
    return Op(
        name,
        title="The mean of each sentence's rows" + ", scaled to length 1" * normalize + ", from float16" * is_half,
        formula="out[b] = mean(x[begins[b] : begins[b] + lengths[b]])" + ", divided by its length" * normalize,
        reference=pooling.mean_pool_normalized_reference if normalize else pooling.mean_pool_reference,
        rungs=rungs,
        inputs=_half_inputs if is_half else _inputs,
        shape=lambda B, T, C: (B, C),
        awkward=sizes("B T C", (1, 1, 1), (5, 3, 13), (3, 130, 269), (2, 61, 384)),
        tolerance=normalized_tolerance if normalize else mean_tolerance,
        by_row=(1, 2),
        work=Work(
            flops=lambda B, T, C: T * C,
            bytes=lambda B, T, C: (2 if is_half else 4) * T * C + 4 * B * C,
            timed_gpu={"B": 64, "T": 8192, "C": 384},  # MiniLM, 64 sentences of 128 tokens
            timed_cpu={"B": 4, "T": 64, "C": 384},
            also_gpu=({"B": 64, "T": 1024, "C": 384}, {"B": 1, "T": 128, "C": 384}),
        ),
        baselines=(Baseline("PyTorch", "torch", _torch_mean_normalized if normalize else _torch_mean,
                            note="index_add, then divide" + ", then normalize" * normalize),),
    )


MEAN_POOL = _op("mean_pool", False, False)
MEAN_POOL_HALF = _op("mean_pool_half", True, False)
MEAN_POOL_NORMALIZED = _op("mean_pool_normalized", False, True)
MEAN_POOL_NORMALIZED_HALF = _op("mean_pool_normalized_half", True, True)


def _rows(rng, R, C):
    x = uniform(rng, R, C)
    x[R // 2 : R // 2 + (R > 2)] = 0  # a row of zeros
    return (x,)


L2_NORMALIZE = Op(
    "l2_normalize",
    title="Rows scaled to length 1",
    formula="out = x / sqrt(sum of squares), for each row",
    reference=pooling.l2_normalize_reference,
    rungs=rungs_of(pooling),
    inputs=_rows,
    shape=lambda R, C: (R, C),
    awkward=sizes("R C", (1, 1), (3, 5), (9, 384), (2, 1031)),
    tolerance=l2_tolerance,
    by_row=(0,),
    work=Work(
        flops=lambda R, C: 3 * R * C,
        bytes=lambda R, C: 8 * R * C,
        timed_gpu={"R": 2048, "C": 384},
        timed_cpu={"R": 64, "C": 384},
    ),
    baselines=(Baseline("PyTorch", "torch", _torch_normalize),),
)
