"""one_row_logits and one_row_logits_half: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.linear.next_token."""

import functools

import numpy as np

from labkit import cuda
from labkit.kernels.linear.next_token import SIZES, _reference, blocks_of, make_row_logits, row_logits
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rows import EPSILON
from labkit.kernels.norm.rows import tolerance as layernorm_tolerance
from labkit.kernels.op import Op, Work, rung, sizes, uniform
from labkit.kernels.ops.one_row import norm_row, sum_error, torch_baseline


def _tolerance(x, norm_weight, norm_bias, table):
    normed = layernorm_reference(x, norm_weight, norm_bias)
    norm_error = layernorm_tolerance(x, norm_weight, norm_bias)
    return sum_error(normed, table.T, np.zeros(len(table))) + np.sqrt(norm_error**2 @ table.T**2)


def _torch(torch, x, norm_weight, norm_bias, table, out):
    normed = torch.nn.functional.layer_norm(x.to(table.dtype), norm_weight.shape, norm_weight, norm_bias, EPSILON)
    out.copy_(normed @ table.T)


@functools.cache
def _best(blocks: int):
    return cuda.device_array(blocks, np.int64)


def _op(half: bool):
    stored = np.float16 if half else np.float32
    size = stored().itemsize

    @rung(kernel=make_row_logits(half, 768), sizes=SIZES,
          idea="a warp keeps the row in registers; several rows of the table at once")
    def row_logits_of_warps(x, norm_weight, norm_bias, table, out, stream=0):
        """The norm, the product and the largest logit of each block in one launch."""
        row_logits(x, norm_weight, norm_bias, table, out, _best(blocks_of()), stream=stream)

    return Op(
        "one_row_logits" + "_half" * half,
        title="One row: norm and logits" + ", float16 parameters" * half,
        formula="out = layernorm(x) @ table.T",
        reference=_reference,
        rungs=(row_logits_of_warps,),
        inputs=lambda rng, K, V: (*norm_row(rng, K, stored), (uniform(rng, V, K) / np.float32(4)).astype(stored)),
        shape=lambda K, V: (1, V),
        awkward=sizes("K V", (48, 97), (776, 131)),
        tolerance=_tolerance,
        by_row=(),
        work=Work(flops=lambda K, V: 2 * K * V, bytes=lambda K, V: size * K * V + 4 * V,
                  timed_gpu={"K": 768, "V": 50257}, timed_cpu={"K": 256, "V": 2048}),
        baselines=torch_baseline(_torch, half),
    )


ONE_ROW_LOGITS, ONE_ROW_LOGITS_HALF = _op(False), _op(True)
