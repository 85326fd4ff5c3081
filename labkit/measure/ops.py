"""The registry of operations, in the order of the course. A module is imported when its operation is asked for.

    from labkit.measure.ops import op
    op("matmul").rungs
"""

import importlib
from collections.abc import Iterable

from labkit._common import paths
from labkit._common.errors import did_you_mean, names_like
from labkit._common.files import read_text

# Operation -> the module that holds it, in the order of the course.
HOMES = {name: home for home, names in (
    ("kernels.ops.elementwise", "vector_add volume_add"),
    ("kernels.ops.broadcast", "broadcast_add"),
    ("kernels.ops.matmul", "matmul"),
    ("kernels.ops.matmul_half", "matmul_half matmul_bf16"),
    ("kernels.ops.matmul_tf32", "matmul_tf32"),
    ("kernels.ops.linear", "linear_f32 linear linear_gelu linear_gelu_tanh linear_residual"),
    ("kernels.ops.bias_gelu_add", "bias_gelu_add"),
    ("kernels.ops.array_sum", "array_sum"),
    ("kernels.ops.reduce", "reduce_sum"),
    ("kernels.ops.histogram", "histogram histogram_int32"),
    ("kernels.ops.scan", "scan scan_f32"),
    ("kernels.ops.softmax", "softmax"),
    ("kernels.ops.masked_softmax", "masked_softmax_none masked_softmax_causal masked_softmax_padding"),
    ("kernels.ops.transpose", "transpose"),
    ("kernels.ops.layernorm", "layernorm"),
    ("kernels.ops.residual_add", "residual_add"),
    ("kernels.ops.layernorm", "add_layernorm residual_layernorm"),
    ("kernels.ops.layernorm_half", "layernorm_half add_layernorm_half"),
    ("kernels.ops.gelu", "gelu gelu_erf"),
    ("kernels.ops.embedding", "embedding"),
    ("kernels.ops.embedding_layernorm", "embedding_layernorm embedding_layernorm_half"),
    ("kernels.ops.pooling", "mean_pool mean_pool_half l2_normalize mean_pool_normalized mean_pool_normalized_half"),
    ("kernels.ops.argmax", "argmax"),
    ("kernels.ops.sampling", "sample sample_top_p"),
    ("kernels.ops.penalties", "penalise"),
    ("kernels.ops.logprobs", "logprobs"),
    ("kernels.ops.fused_linear", "fused_linear fused_linear_gelu fused_linear_gelu_erf fused_linear_residual"),
    ("kernels.ops.skinny_linear", "skinny_linear skinny_linear_half"),
    ("kernels.ops.linear_bf16", "streamed_linear linear_bf16 linear_swiglu lm_head"),
    ("kernels.ops.quantized_linear", "linear_int4 linear_int8 linear_fp8_weights"),
    ("kernels.ops.fp8", "quantize_rows_fp8 linear_fp8"),
    ("kernels.ops.projection", "projection logits"),
    ("kernels.ops.linear_backward", "linear_backward_input linear_backward_input_bf16 linear_backward_weight "
                                    "linear_backward_weight_bf16 linear_backward_bias linear_backward_bias_bf16"),
    ("kernels.ops.attention", "attention attention_causal attention_cached"),
    ("kernels.ops.attention_half", "attention_half attention_half_causal attention_half_cached"),
    ("kernels.ops.attention_sentences", "attention_sentences attention_sentences_half"),
    ("kernels.ops.attention_training", "attention_training attention_training_bf16 attention_backward "
                                       "attention_backward_bf16"),
    ("kernels.ops.linear_attention", "linear_attention"),
    ("kernels.ops.embedding", "token_embedding token_embedding_bf16"),
    ("kernels.ops.rmsnorm", "rmsnorm rmsnorm_bf16 add_rmsnorm add_rmsnorm_bf16"),
    ("kernels.ops.rope", "rope_split_cache rope_split_cache_bf16 rope_norm_split_cache_bf16"),
    ("kernels.ops.swiglu", "swiglu swiglu_bf16"),
    ("kernels.ops.paged_decode", "paged_decode paged_decode_bf16"),
    ("kernels.ops.paged_prefill", "paged_prefill paged_prefill_bf16"),
    ("kernels.ops.one_row", "one_row_qkv one_row_qkv_half"),
    ("kernels.ops.one_row_attended", "one_row_attended one_row_attended_half"),
    ("kernels.ops.one_row", "one_row_gelu one_row_gelu_half one_row_residual one_row_residual_half"),
    ("kernels.ops.one_row_logits", "one_row_logits one_row_logits_half"),
    ("kernels.ops.layernorm_half", "layernorm_bf16"),
    ("kernels.ops.gelu", "gelu_bf16"),
    ("kernels.ops.norm_backward", "layernorm_backward rmsnorm_backward rmsnorm_backward_bf16"),
    ("kernels.ops.gelu_backward", "gelu_backward gelu_backward_bf16"),
    ("kernels.ops.swiglu_backward", "swiglu_backward swiglu_backward_bf16"),
    ("kernels.ops.embedding_backward",
     "token_embedding_backward token_embedding_backward_bf16 position_embedding_backward"),
    ("kernels.ops.softmax_backward", "softmax_backward"),
    ("kernels.ops.rope_backward", "rope_split_backward rope_split_backward_bf16"),
    ("kernels.ops.cross_entropy", "cross_entropy cross_entropy_bf16"),
    ("kernels.ops.global_norm", "global_norm global_norm_bf16"),
    ("kernels.ops.adamw", "adamw adamw_bf16"),
    ("models.gpt2_block_op", "gpt2_block gpt2_block_half"),
) for name in names.split()}
# Operations that no GPU has timed yet, or that compute-sanitizer has not run.
UNRECORDED = ()


def op(name: str):
    """The Op called `name`."""
    if name not in HOMES:
        raise ValueError(f"no operation is called {name!r}; {hint(name, HOMES)}")
    home = HOMES[name]
    found = getattr(importlib.import_module(f"labkit.{home}"), name.upper(), None)
    if found is None or found.name != name:
        raise ValueError(f"HOMES in labkit/measure/ops.py says that {name!r} is in labkit.{home}; there "
                         f"{name.upper()} must be the Op that is named {name!r}")
    return found


def hint(name: str, names: Iterable[str]) -> str:
    """What to do about a name that is not in HOMES: enter the operation, if its file is there, or take a similar
    name."""
    path = paths.PACKAGE / "kernels" / "ops" / f"{name}.py"
    if path.is_file() and f"\n{name.upper()} = " in read_text(path):
        return f"enter it in HOMES in labkit/measure/ops.py, since labkit/kernels/ops/{name}.py defines it"
    return did_you_mean(names_like(name, names))


def needed(operation, size: dict | None = None) -> list[tuple]:
    """The kernels that the rungs of an Op launch at this size, or at the one that is timed, as
    labkit.device.compile_ahead wants them."""
    import numpy as np

    from labkit import cuda
    from labkit.device import launches
    from labkit.kernels.agree import to_device

    size = size or operation.work.timed
    arguments = (*to_device(operation.inputs(np.random.default_rng(0), **size)),
                 cuda.device_array(operation.shape(**size), operation.dtype))
    libraries = {one: None for launcher in operation.rungs if not launcher.missing
                 for one in launches.needed(lambda launcher=launcher: launcher(*arguments))}
    return list(libraries)


def compile_ahead(progress=None) -> int:
    """On a GPU: compiles side by side, and keeps for later processes, what the rungs of all operations launch at their
    last awkward size. Returns how many kernels were compiled; progress(done, of) is called as they are."""
    from labkit.device import compile_ahead

    kernels = {one: None for each in all_ops() for one in needed(each, each.awkward[-1])}
    return compile_ahead.prepare(list(kernels), progress=progress, load=False)


def all_ops() -> list:
    """Every Op, in the order of the course."""
    return [op(name) for name in HOMES]
