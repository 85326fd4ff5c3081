"""rope_split_cache, rope_split_cache_bf16 and rope_norm_split_cache_bf16: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.rope."""

import numpy as np

from labkit.kernels import rope
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.norm.rmsnorm import rmsnorm_reference
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.rope import EPS, PAGE, _cache_shape, _parts, _reference, in_pages, rope_table
from labkit.kernels.tolerance import EPS32


def head_tolerance(heads, weight, element: Element):
    """For rotated heads (T, heads, D), of float64: two products and their sum, of values bounded by the norm of the
    pair. A norm's roundings come first, as RMSNorm has them."""
    dim, units, roundings = heads.shape[2], 3 * EPS32, 1
    if weight is not None:
        heads = rmsnorm_reference(heads.reshape(-1, dim), weight, EPS).reshape(heads.shape)
        units, roundings = units + EPS32 * (np.sqrt(dim) + 4), 3
    norms = np.tile(np.hypot(heads[..., : dim // 2], heads[..., dim // 2 :]), 2)
    return units * norms + roundings * element.rounding_error(norms)


def _tolerance_of(element: Element):
    def tolerance(qkv, table, positions, slots, heads, q_norm, k_norm):
        """Values are exact."""
        shape = _cache_shape(qkv, table, heads)
        rows = qkv.reshape(len(slots), -1, shape[3])
        keys = in_pages(head_tolerance(rows[:, heads : heads + shape[1]], k_norm, element), slots, shape)
        queries = head_tolerance(rows[:, :heads], q_norm, element)
        return np.concatenate([queries.reshape(-1), keys.reshape(-1), np.zeros(keys.size)])

    return tolerance


def _separate(torch, qkv, table, positions, slots, heads, q_norm, k_norm, out):
    """Allocate queries, keys and values separately: torch.compile would copy all of an array behind three views."""
    outputs = (torch.full_like(part, torch.nan) for part in _parts(qkv, table, heads, out))
    return qkv, table, positions, slots, heads, q_norm, k_norm, *outputs


def _torch(torch, qkv, table, positions, slots, heads, q_norm, k_norm, q, keys, values):
    shared, rows = keys.shape[1], qkv.view(len(slots), -1, table.shape[1])
    pages, offsets = slots.long() // PAGE, slots.long() % PAGE
    cos, sin = table[positions.long()][:, None].chunk(2, dim=-1)

    def rotated(x, weight):
        if weight is not None:
            x = torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).to(qkv.dtype)

    q.copy_(rotated(rows[:, :heads], q_norm))
    keys[pages, :, offsets] = rotated(rows[:, heads : heads + shared], k_norm)
    values[pages, :, offsets] = rows[:, heads + shared :]
    return q, keys, values


def rope_op(name: str, element: Element, with_norms: bool = False):
    cast, itemsize = element.array_of, element.dtype.itemsize

    def inputs(rng, T, H, KV, D):
        norms = (cast(uniform(rng, D)), cast(uniform(rng, D))) if with_norms else (None, None)
        return (cast(uniform(rng, T, (H + 2 * KV) * D)), rope_table(64, D, 10_000.0),
                rng.integers(0, 64, T).astype(np.int32), rng.permutation(T).astype(np.int32), H, *norms)

    shape = {"H": 16, "KV": 8, "D": 128} if with_norms else {"H": 32, "KV": 8, "D": 64}  # Qwen3 0.6B, Llama 3.2 1B
    awkward = ((16, 6, 2, 34), (32, 7, 1, 64)) if with_norms else ((16, 1, 1, 2), (48, 3, 1, 34), (32, 8, 2, 64))
    return Op(
        name,
        title="Split QKV, rotate, and write the cache" + ", with norms of queries and keys" * with_norms +
              f", in {element.name}" * (element != FLOAT32),
        formula="q[t], keys[slots[t]] = rotated(q and k of qkv[t], positions[t]); values[slots[t]] = v of qkv[t]",
        reference=_reference,
        rungs=rungs_of(rope),
        inputs=inputs,
        shape=lambda T, H, KV, D: (T * (H + 2 * KV) * D,),
        awkward=sizes("T H KV D", *awkward),
        tolerance=_tolerance_of(element),
        by_row=(),
        work=Work(
            flops=lambda T, H, KV, D: 3 * T * (H + KV) * D,
            bytes=lambda T, H, KV, D: 2 * itemsize * T * (H + 2 * KV) * D + 4 * T * D,
            timed_gpu={"T": 4096, **shape},
            timed_cpu={"T": 64, "H": 8, "KV": 4, "D": 32},
            also_gpu=tuple({"T": T, **shape} for T in (16, 32, 256)),
        ),
        baselines=(Baseline("PyTorch", "torch", _torch, note="unfused: rotate, cat, index_put", prepare=_separate,
                            compile=_torch),),
        dtype=element.dtype,
    )


ROPE_SPLIT_CACHE = rope_op("rope_split_cache", FLOAT32)
ROPE_SPLIT_CACHE_BF16 = rope_op("rope_split_cache_bf16", BFLOAT16)
ROPE_NORM_SPLIT_CACHE_BF16 = rope_op("rope_norm_split_cache_bf16", BFLOAT16, with_norms=True)
