"""The kernels of the course, one file for each operation, slowest rung first.

    from labkit.kernels import op
    op("matmul").rungs
"""

import importlib

# Operation -> the module that holds it, in the order of the course.
HOMES = {
    "vector_add": "elementwise",
    "volume_add": "elementwise",
    "broadcast_add": "broadcast",
    "matmul": "matmul",
    "matmul_half": "matmul_half",
    "matmul_bf16": "matmul_half",
    "matmul_tf32": "matmul_tf32",
    "linear_f32": "linear",
    "linear": "linear",
    "linear_gelu": "linear",
    "linear_gelu_tanh": "linear",
    "linear_residual": "linear",
    "bias_gelu_add": "bias_gelu_add",
    "reduce_sum": "reduce",
    "reduce_max": "reduce",
    "softmax": "softmax",
    "masked_softmax_none": "masked_softmax",
    "masked_softmax_causal": "masked_softmax",
    "masked_softmax_padding": "masked_softmax",
    "transpose": "transpose",
    "layernorm": "layernorm",
    "residual_add": "residual_add",
    "add_layernorm": "layernorm",
    "residual_layernorm": "layernorm",
    "layernorm_half": "layernorm_half",
    "add_layernorm_half": "layernorm_half",
    "gelu": "gelu",
    "gelu_erf": "gelu",
    "embedding": "embedding",
    "argmax": "argmax",
    "fused_linear": "fused_linear",
    "fused_linear_gelu": "fused_linear",
    "fused_linear_residual": "fused_linear",
    "skinny_linear": "skinny_linear",
    "skinny_linear_half": "skinny_linear",
    "projection": "projection",
    "logits": "projection",
    "attention": "attention",
    "attention_causal": "attention",
    "attention_cached": "attention",
    "attention_half": "flash_attention_half",
    "attention_half_causal": "flash_attention_half",
    "attention_half_cached": "flash_attention_half",
    "gpt2_block": "labkit.models.block_op",
    "gpt2_block_half": "labkit.models.block_op",
}


def op(name: str):
    """The Op called `name`."""
    if name not in HOMES:
        raise ValueError(f"no operation is called {name!r}; there are {', '.join(HOMES)}")
    home = HOMES[name]
    module = importlib.import_module(home if "." in home else f"labkit.kernels.{home}")
    return getattr(module, name.upper())


def all_ops() -> list:
    """Every Op, in the order of the course."""
    return [op(name) for name in HOMES]
