"""The registry of operations, in the order of the course. A module is imported when its operation is asked for.

    from labkit.measure.ops import op
    op("matmul").rungs
"""

import importlib

# Operation -> the module that holds it, in the order of the course.
HOMES = {
    "vector_add": "kernels.elementwise",
    "volume_add": "kernels.elementwise",
    "broadcast_add": "kernels.broadcast",
    "matmul": "kernels.matmul.float32",
    "matmul_half": "kernels.matmul.half",
    "matmul_bf16": "kernels.matmul.half",
    "matmul_tf32": "kernels.matmul.tf32",
    "linear_f32": "kernels.linear.layers",
    "linear": "kernels.linear.layers",
    "linear_gelu": "kernels.linear.layers",
    "linear_gelu_tanh": "kernels.linear.layers",
    "linear_residual": "kernels.linear.layers",
    "bias_gelu_add": "kernels.bias_gelu_add",
    "reduce_sum": "kernels.reduce",
    "reduce_max": "kernels.reduce",
    "histogram": "kernels.histogram",
    "histogram_int32": "kernels.histogram",
    "scan": "kernels.scan",
    "scan_f32": "kernels.scan",
    "softmax": "kernels.softmax.rows",
    "masked_softmax_none": "kernels.softmax.masked",
    "masked_softmax_causal": "kernels.softmax.masked",
    "masked_softmax_padding": "kernels.softmax.masked",
    "transpose": "kernels.transpose",
    "layernorm": "kernels.norm.layernorm",
    "residual_add": "kernels.residual_add",
    "add_layernorm": "kernels.norm.layernorm",
    "residual_layernorm": "kernels.norm.layernorm",
    "layernorm_half": "kernels.norm.half",
    "add_layernorm_half": "kernels.norm.half",
    "gelu": "kernels.gelu",
    "gelu_erf": "kernels.gelu",
    "embedding": "kernels.embedding",
    "embedding_layernorm": "kernels.embedding_sum",
    "embedding_layernorm_half": "kernels.embedding_sum",
    "mean_pool": "kernels.pooling",
    "mean_pool_half": "kernels.pooling",
    "l2_normalize": "kernels.pooling",
    "mean_pool_normalized": "kernels.pooling",
    "mean_pool_normalized_half": "kernels.pooling",
    "argmax": "kernels.argmax",
    "sample": "kernels.sampling",
    "sample_top_p": "kernels.sampling",
    "penalise": "kernels.penalties",
    "logprobs": "kernels.logprobs",
    "fused_linear": "kernels.linear.fused",
    "fused_linear_gelu": "kernels.linear.fused",
    "fused_linear_gelu_erf": "kernels.linear.fused",
    "fused_linear_residual": "kernels.linear.fused",
    "skinny_linear": "kernels.linear.few_rows",
    "skinny_linear_half": "kernels.linear.few_rows",
    "streamed_linear": "kernels.linear.bf16",
    "linear_bf16": "kernels.linear.bf16",
    "linear_swiglu": "kernels.linear.bf16",
    "lm_head": "kernels.linear.bf16",
    "projection": "kernels.linear.projection",
    "logits": "kernels.linear.projection",
    "attention": "kernels.attention.three_pass",
    "attention_causal": "kernels.attention.three_pass",
    "attention_cached": "kernels.attention.three_pass",
    "attention_half": "kernels.attention.half",
    "attention_half_causal": "kernels.attention.half",
    "attention_half_cached": "kernels.attention.half",
    "attention_sentences": "kernels.attention.sentences",
    "attention_sentences_half": "kernels.attention.sentences",
    "linear_attention": "kernels.attention.linear_attention",
    "token_embedding": "kernels.embedding",
    "token_embedding_bf16": "kernels.embedding",
    "rmsnorm": "kernels.norm.rmsnorm",
    "rmsnorm_bf16": "kernels.norm.rmsnorm",
    "add_rmsnorm": "kernels.norm.rmsnorm",
    "add_rmsnorm_bf16": "kernels.norm.rmsnorm",
    "rope_split_cache": "kernels.rope",
    "rope_split_cache_bf16": "kernels.rope",
    "rope_norm_split_cache_bf16": "kernels.rope",
    "swiglu": "kernels.swiglu",
    "swiglu_bf16": "kernels.swiglu",
    "paged_decode": "kernels.attention.paged",
    "paged_decode_bf16": "kernels.attention.paged",
    "paged_prefill": "kernels.attention.paged_prefill",
    "paged_prefill_bf16": "kernels.attention.paged_prefill",
    "one_row_qkv": "kernels.linear.one_row",
    "one_row_qkv_half": "kernels.linear.one_row",
    "one_row_attended": "kernels.attention.one_query",
    "one_row_attended_half": "kernels.attention.one_query",
    "one_row_gelu": "kernels.linear.one_row",
    "one_row_gelu_half": "kernels.linear.one_row",
    "one_row_residual": "kernels.linear.one_row",
    "one_row_residual_half": "kernels.linear.one_row",
    "one_row_logits": "kernels.linear.next_token",
    "one_row_logits_half": "kernels.linear.next_token",
    "gpt2_block": "models.gpt2_block_op",
    "gpt2_block_half": "models.gpt2_block_op",
}


def op(name: str):
    """The Op called `name`."""
    if name not in HOMES:
        raise ValueError(f"no operation is called {name!r}; there are {', '.join(HOMES)}")
    home = HOMES[name]
    module = importlib.import_module(f"labkit.{home}")
    return getattr(module, name.upper())


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
    found = {one: None for launcher in operation.rungs if not launcher.missing
             for one in launches.needed(lambda launcher=launcher: launcher(*arguments))}
    return list(found)


def compile_ahead(progress=None) -> int:
    """On a GPU: compiles side by side, and keeps for later processes, what the rungs of all operations launch at their
    last awkward size. Returns how many kernels were compiled; progress(done, of) is called as they are."""
    from labkit.device import compile_ahead

    kernels = {one: None for each in all_ops() for one in needed(each, each.awkward[-1])}
    return compile_ahead.prepare(list(kernels), progress=progress, load=False)


def all_ops() -> list:
    """Every Op, in the order of the course."""
    return [op(name) for name in HOMES]
