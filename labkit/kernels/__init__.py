"""The kernels of the course, one file or one folder for each operation, slowest rung first."""

from labkit.simt import unsigned

WITH_PLAIN_INDICES = (
    "attention.decode", "attention.flash", "attention.one_query", "attention.paged", "attention.paged_prefill",
    "attention.paged_tiles", "broadcast", "elementwise", "gelu", "linear.layers", "linear.next_token",
    "linear.swap_ab", "logprobs", "matmul.float32", "matmul.float32_tiles", "matmul.half", "matmul.wgmma",
    "penalties", "reduce", "residual_add", "sampling_rows", "softmax.rows",
)  # fmt: skip; the others still cast each index
for module in WITH_PLAIN_INDICES:
    unsigned.applies_to(f"{__name__}.{module}")
