"""masked_softmax_none, masked_softmax_causal and masked_softmax_padding: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.softmax.masked."""

import functools
import math

import numpy as np

from labkit.kernels.baselines import Baseline, numpy_cupy_torch
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.softmax import masked
from labkit.kernels.tolerance import EPS32

LAUNCHERS = rungs_of(masked)


def _bound(launch, prefix: str, causal: bool, padded: bool):
    """The launcher with its mask chosen."""
    if padded:
        def bound(scores, lengths, out, stream=0):
            launch(scores, out, lengths, causal=causal, stream=stream)
    else:
        def bound(scores, out, stream=0):
            launch(scores, out, causal=causal, stream=stream)
    return launch.called(launch.__name__.replace("masked_softmax", prefix), bound)


def _tolerance(causal: bool):
    def tolerance(scores, lengths=None):
        """As in softmax, with one rounding more: that of scale * x, eps/2 of its own size."""
        lengths = None if lengths is None else lengths.astype(np.int64)
        expected = masked.masked_softmax_reference(scores, lengths, causal=causal)
        x = scores * masked.SCALE
        exponents = x.max(axis=-1, keepdims=True) - x
        roundings = 6 + exponents + 2 * np.abs(x).max(axis=-1, keepdims=True) + np.sqrt(x.shape[-1])
        return EPS32 * roundings * expected + float(np.finfo(np.float32).tiny)

    return tolerance


def _without_a_mask(causal: bool):
    """The same for torch.compile, whose kernel compares indices instead of reading a mask."""
    def call(torch, scores, *lengths_and_out):
        *lengths, _ = lengths_and_out
        x = scores * masked.SCALE
        if causal or lengths:
            x = torch.where(masked._masked(torch, scores, causal, *lengths), -math.inf, x)
        return torch.softmax(x, dim=-1)

    return call


def _lengths(rng, count, size):
    """From 1 to S; the first sequence has full length."""
    lengths = rng.integers(1, size + 1, count).astype(np.int32)
    lengths[0] = size
    return lengths


def _scores(rng, count, size):
    return 40 * uniform(rng, count, size, size)  # from -60 to 60, as q . k of 64 numbers each can be


def _op(name: str, title: str, formula: str, causal: bool, padded: bool):
    half = causal or padded  # read, on average
    return Op(
        f"masked_softmax_{name}",
        title=title,
        formula=formula,
        reference=functools.partial(masked.masked_softmax_reference, causal=causal),
        rungs=tuple(_bound(launch, name, causal, padded) for launch in LAUNCHERS),
        inputs=(lambda rng, B, S: (_scores(rng, B, S), _lengths(rng, B, S))) if padded
        else (lambda rng, B, S: (_scores(rng, B, S),)),
        shape=lambda B, S: (B, S, S),
        awkward=sizes("B S", (1, 1), (3, 5), (2, 64), (2, 131), (1, 516), (1, 1023), (1, 1028), (1, 1030)),
        tolerance=_tolerance(causal),
        by_row=(0, 1) if padded else (0,),
        work=Work(
            # product, maximum, difference, exponential, sum, product
            flops=lambda B, S: (3 if half else 6) * B * S * S,
            bytes=lambda B, S: 4 * B * S * S + (2 * B * S * (S + 1) if half else 4 * B * S * S),
            timed_gpu={"B": 64, "S": 1024},
            timed_cpu={"B": 1, "S": 256},
            also_gpu=({"B": 1, "S": 512}, {"B": 1, "S": 1024}),
        ),
        baselines=(*numpy_cupy_torch(masked.unfused_by_library(causal),
                                     note="scale, mask, softmax" if half else "scale, softmax",
                                     prepare=masked.masks(causal), compile=False),
                   Baseline("PyTorch", "torch", _without_a_mask(causal), eager=False)),
    )


MASKED_SOFTMAX_NONE = _op("none", "Scaled softmax of attention scores", "out = softmax(scale * scores)", False, False)

MASKED_SOFTMAX_CAUSAL = _op("causal", "Scaled softmax of attention scores, causal mask",
                            "out = softmax(scale * scores + mask), mask[q, k] = -inf where k > q", True, False)

MASKED_SOFTMAX_PADDING = _op("padding", "Scaled softmax of attention scores, padding mask",
                             "out = softmax(scale * scores + mask), mask[q, k] = -inf where k >= length", False, True)
