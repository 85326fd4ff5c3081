"""rope_split_backward and rope_split_backward_bf16: inputs, sizes, tolerance, work and baselines of the rungs in
labkit.kernels.rope_backward."""

import numpy as np

from labkit.kernels import rope_backward
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.rope import rope_table
from labkit.kernels.rope_backward import rope_split_backward_reference
from labkit.kernels.tolerance import EPS32


def rope_split_backward_op(name: str, element: Element):
    cast, itemsize = element.array_of, element.dtype.itemsize

    def inputs(rng, T, H, KV, D):
        grads = (cast(uniform(rng, T, heads, D)) for heads in (H, KV, KV))
        return *grads, rope_table(2 * T, D, 10_000.0), rng.permutation(2 * T)[:T].astype(np.int32)

    def tolerance(dq, dk, dv, table, positions):
        """Two products and their sum, of a pair."""
        grads = np.concatenate([np.abs(one) for one in (dq, dk, dv)], axis=1)
        pair = (grads + np.roll(grads, dq.shape[2] // 2, axis=2)).reshape(len(positions), -1)
        return 2 * EPS32 * pair + element.rounding_error(
            rope_split_backward_reference(dq, dk, dv, table, positions))

    def torch_rotation(torch, dq, dk, dv, table, positions, out):
        half = dq.shape[2] // 2
        cos, sin = table[positions][:, None].split(half, dim=2)

        def rotated_back(grad):
            a, b = grad.float().split(half, dim=2)
            return torch.cat([a * cos + b * sin, b * cos - a * sin], dim=2).to(grad.dtype)

        return torch.cat([rotated_back(dq), rotated_back(dk), dv], dim=1).flatten(1)

    return Op(
        name,
        title="RoPE's gradient: queries and keys rotated back" + f", in {element.name}" * (element != FLOAT32),
        formula="(a, b) -> (a * cos + b * sin, b * cos - a * sin)",
        reference=rope_split_backward_reference,
        rungs=rungs_of(rope_backward),
        inputs=inputs,
        shape=lambda T, H, KV, D: (T, (H + 2 * KV) * D),
        awkward=sizes("T H KV D", (1, 1, 1, 2), (3, 3, 3, 6), (5, 4, 1, 10), (5, 2, 1, 64), (7, 9, 3, 16)),
        tolerance=tolerance,
        by_row=(0, 1, 2, 4),
        work=Work(
            flops=lambda T, H, KV, D: 3 * T * (H + KV) * D,
            bytes=lambda T, H, KV, D: 2 * itemsize * T * (H + 2 * KV) * D,
            timed_gpu={"T": 8192, "H": 32, "KV": 8, "D": 64},  # Llama 3.2 1B
            timed_cpu={"T": 64, "H": 4, "KV": 1, "D": 64},
        ),
        baselines=(Baseline("PyTorch", "torch", torch_rotation, note="elementwise operations"),),
        dtype=element.dtype,
    )


ROPE_SPLIT_BACKWARD = rope_split_backward_op("rope_split_backward", FLOAT32)
ROPE_SPLIT_BACKWARD_BF16 = rope_split_backward_op("rope_split_backward_bf16", BFLOAT16)
