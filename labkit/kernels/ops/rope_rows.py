"""rope_rows, rope_rows_backward and rope_rows_backward_bf16: inputs, sizes, tolerance, work and baselines of the rungs
in labkit.kernels.rope_rows."""

import numpy as np

from labkit.kernels import rope_rows
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.rope import rope_table
from labkit.kernels.rope_rows import rope_rows_reference
from labkit.kernels.tolerance import EPS32


def rope_rows_op(name: str, element: Element, inverse: bool):
    cast, itemsize = element.array_of, element.dtype.itemsize

    def inputs(rng, T, H, D):
        positions = rng.permutation(2 * T)[:T].astype(np.int32)
        return cast(uniform(rng, T, H, D)), rope_table(2 * T, D, 10_000.0), positions, max(1, 5 * H // 6)

    def reference(qkv, table, positions, rotated):
        return rope_rows_reference(qkv, table, positions, rotated, inverse)

    def tolerance(qkv, table, positions, rotated):
        """Two products and their sum, of a pair."""
        pair = np.abs(qkv) + np.abs(np.roll(qkv, qkv.shape[2] // 2, axis=2))
        return 2 * EPS32 * pair + element.rounding_error(reference(qkv, table, positions, rotated))

    def torch_rows(torch, qkv, table, positions, rotated, out):
        half = qkv.shape[2] // 2
        cos, sin = table[positions][:, None].split(half, dim=2)
        a, b = qkv[:, :rotated].float().split(half, dim=2)
        sin = -sin if inverse else sin
        rotated_heads = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=2).to(qkv.dtype)
        return torch.cat([rotated_heads, qkv[:, rotated:]], dim=1)

    return Op(
        name,
        title="Rotation of queries and keys" + " back: its gradient" * inverse
              + f", in {element.name}" * (element != FLOAT32),
        formula="(a, b) -> (a * cos - b * sin, b * cos + a * sin)" + ", by the negative angle" * inverse,
        reference=reference,
        rungs=tuple(one.called(one.__name__, lambda qkv, table, positions, rotated, out, stream=0, launch=one.launcher:
                               launch(qkv, table, positions, out, rotated, inverse=inverse, stream=stream))
                    for one in rungs_of(rope_rows)),
        inputs=inputs,
        shape=lambda T, H, D: (T, H, D),
        awkward=sizes("T H D", (1, 1, 2), (3, 6, 10), (5, 3, 64), (7, 12, 16)),
        tolerance=tolerance,
        by_row=(0, 2),
        work=Work(
            flops=lambda T, H, D: 3 * T * H * D,
            bytes=lambda T, H, D: 2 * itemsize * T * H * D,
            timed_gpu={"T": 8192, "H": 48, "D": 64},  # Llama 3.2 1B: 32 query heads, 8 of keys, 8 of values
            timed_cpu={"T": 64, "H": 6, "D": 64},
        ),
        baselines=(Baseline("PyTorch", "torch", torch_rows, note="elementwise operations"),),
        dtype=element.dtype,
    )


ROPE_ROWS = rope_rows_op("rope_rows", FLOAT32, False)
ROPE_ROWS_BACKWARD = rope_rows_op("rope_rows_backward", FLOAT32, True)
ROPE_ROWS_BACKWARD_BF16 = rope_rows_op("rope_rows_backward_bf16", BFLOAT16, True)
