"""The matrix product over sizes. The series of lesson 07."""

from __future__ import annotations

from labkit import device, measure
from labkit.measure import roofline
from labkit.measure.ops import op


def matmul_sizes(sizes=None, budget_s: float = 0.12) -> dict:
    """The first rungs of the matrix product, the fastest and its baselines over square sizes, each result checked."""
    matmul = op("matmul")
    sizes = sizes or device.pick(gpu=(256, 512, 1024, 2048, 4096), cpu=(32, 64, 96, 128))
    rungs = ["matmul_naive", "matmul_coalesced", "matmul_tiled", "matmul_tiled_32"]
    if device.on_gpu():  # their tile is larger than the sizes of a CPU
        rungs += ["matmul_pipelined", "matmul_split"]
    ladders = [measure.ladder(matmul, {"M": s, "N": s, "K": s}, rungs=rungs, budget_s=budget_s) for s in sizes]
    everywhere = set.intersection(*({row.name for row in one.rows} for one in ladders))
    lines = [{"name": row.name, "kind": row.kind, "ms": [one.row(row.name).timing.p50 for one in ladders],
              "rate": [one.row(row.name).tflops for one in ladders]}
             for row in ladders[0].rows if row.name in everywhere]
    return measure.stamped({"op": "matmul", "title": matmul.title, "x": list(sizes), "x_label": "M = N = K",
                            "lines": lines,
                            "unit": "TFLOP/s", "limit": roofline.limits().fp32_tflops, "limit_name": "float32 peak"})
