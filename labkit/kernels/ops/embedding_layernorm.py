"""embedding_layernorm and embedding_layernorm_half: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.embedding_sum."""

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import FLOAT16
from labkit.kernels.embedding_sum import (
    embedding_layernorm,
    embedding_layernorm_reference,
    embedding_sum_kernel,
    embedding_sum_reference,
    embedding_then_layernorm,
    make_embedding_layernorm,
)
from labkit.kernels.norm import half
from labkit.kernels.norm.layernorm import make_layernorm_warp
from labkit.kernels.norm.rows import EPSILON, QUADS, WHOLE
from labkit.kernels.norm.rows import tolerance as layernorm_tolerance
from labkit.kernels.op import Op, Work, renamed, sizes, uniform
from labkit.kernels.ops import layernorm_half
from labkit.kernels.tolerance import EPS16, EPS32


def _inputs(rng, T, C):
    """With a vocabulary as large as BERT's where there are many tokens."""
    vocabulary, positions = (30_522, 512) if T >= 1024 else (97, 40)
    indices = [rng.integers(0, count, T).astype(np.int32) for count in (vocabulary, 2, positions)]
    tables = [uniform(rng, count, C) for count in (vocabulary, positions, 2)]
    return *indices, *tables, uniform(rng, C), uniform(rng, C)


def _half_inputs(rng, T, C):
    return tuple(array if array.dtype == np.int32 else array.astype(np.float16) for array in _inputs(rng, T, C))


def _sum_terms(ids, types, positions, words, places, kinds, weight, bias, epsilon=EPSILON):
    """(the sum, what its roundings are relative to, and by how much LayerNorm scales an error of it)."""
    total = embedding_sum_reference(ids, types, positions, words, places, kinds)
    magnitude = np.abs(words[ids]) + np.abs(places[positions]) + np.abs(kinds[types])
    std = np.sqrt(total.var(axis=1, keepdims=True) + epsilon)
    normed = np.abs(total - total.mean(axis=1, keepdims=True)) / std
    return total, magnitude + magnitude.mean(axis=1, keepdims=True) * (1 + normed), np.abs(weight) / std


def tolerance(*inputs, epsilon=EPSILON):
    """LayerNorm's, and two roundings of the sum before it."""
    total, magnitude, scale = _sum_terms(*inputs, epsilon=epsilon)
    return layernorm_tolerance(total, *inputs[-2:], epsilon) + 2 * EPS32 * magnitude * scale


def half_tolerance(*inputs, epsilon=EPSILON):
    total, magnitude, scale = _sum_terms(*inputs, epsilon=epsilon)
    return layernorm_half.tolerance(total, *inputs[-2:], epsilon) + 2 * EPS32 * magnitude * scale


def _rounded_between(roundings: int):
    """For a sum that goes through memory: it, or each of its terms, is rounded to float16."""
    def allowed(*inputs):
        _, magnitude, scale = _sum_terms(*inputs)
        return half_tolerance(*inputs) + roundings * EPS16 * magnitude * scale

    return allowed


def _torch(torch, ids, types, positions, words, places, kinds, weight, bias, out):
    embedding = torch.nn.functional.embedding
    total = embedding(ids, words) + embedding(types, kinds) + embedding(positions, places)
    return torch.nn.functional.layer_norm(total, weight.shape, weight, bias, EPSILON)


def _rungs(name: str, kernels: tuple, between=None, limit: str = "4,096"):
    columns = f"rows of at most {limit} columns"
    return (renamed(embedding_then_layernorm, f"{name}_two_launches", kernel=(embedding_sum_kernel, kernels[0]),
                    idea="two launches: the sum through memory, then LayerNorm", sizes=columns, tolerance=between),
            renamed(embedding_layernorm, f"{name}_fused", kernel=kernels[1], sizes=columns,
                    idea="one launch: a warp a row, the sum stays in registers"))


NOTE = "three gathers, two additions, layer_norm"
FORMULA = "out[t] = layernorm(words[ids[t]] + kinds[types[t]] + places[positions[t]])"

SIZES = {
    "reference": embedding_layernorm_reference,
    "shape": lambda T, C: (T, C),
    "awkward": sizes("T C", (1, 1), (3, 13), (2, 269), (5, 384)),
    "by_row": (0, 1, 2),
}  # fmt: skip

TIMED = {
    "flops": lambda T, C: 10 * T * C,
    "timed_gpu": {"T": 8192, "C": 384},  # MiniLM, 64 sentences of 128 tokens
    "timed_cpu": {"T": 64, "C": 384},
    "also_gpu": ({"T": 1024, "C": 384},),  # and of 16
}  # fmt: skip

EMBEDDING_LAYERNORM = Op(
    "embedding_layernorm",
    title="BERT's embedding and its layer normalisation",
    formula=FORMULA,
    rungs=_rungs("embedding_layernorm", (make_layernorm_warp(3, WHOLE, EPSILON),
                                         make_embedding_layernorm(3, WHOLE, False, EPSILON))),
    inputs=_inputs,
    tolerance=tolerance,
    work=Work(bytes=lambda T, C: 8 * T * C, **TIMED),
    baselines=(Baseline("PyTorch", "torch", _torch, note=NOTE),),
    **SIZES,
)

EMBEDDING_LAYERNORM_HALF = Op(
    "embedding_layernorm_half",
    title="BERT's embedding and its layer normalisation in float16",
    formula=FORMULA,
    rungs=_rungs("embedding_layernorm_half", (half.make_layernorm_half(FLOAT16, 2, True, False, EPSILON),
                                              make_embedding_layernorm(2, QUADS, True, EPSILON)),
                 between=_rounded_between(1), limit="2,048"),
    inputs=_half_inputs,
    tolerance=half_tolerance,
    dtype=np.float16,
    work=Work(bytes=lambda T, C: 4 * T * C, **TIMED),
    baselines=(Baseline("PyTorch", "torch", _torch, note=NOTE, tolerance=_rounded_between(4)),),
    **SIZES,
)
