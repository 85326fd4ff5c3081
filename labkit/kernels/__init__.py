"""The kernels of the course, one file or one folder for each operation, slowest rung first."""

from labkit.simt import unsigned

for name in ("broadcast", "elementwise", "gelu", "matmul.float32", "matmul.float32_tiles", "reduce", "residual_add",
             "softmax.rows"):  # the others still cast each index
    unsigned.applies_to(f"{__name__}.{name}")
