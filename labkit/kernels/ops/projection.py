"""projection and logits: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.linear.projection."""

import numpy as np

from labkit.kernels.baselines import numpy_cupy_torch
from labkit.kernels.linear import projection
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import dot_products

SHAPES = sizes("M N K", (1, 1, 1), (1, 65, 33), (5, 1, 31), (7, 48, 144), (37, 23, 19), (33, 130, 70), (128, 128, 80))

PROJECTION = Op(
    "projection",
    title="A linear layer with weights (in, out)",
    formula="out = x @ weights + bias",
    reference=projection.projection_reference,
    rungs=rungs_of(projection, "projection"),
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N), uniform(rng, N)),
    shape=lambda M, N, K: (M, N),
    awkward=SHAPES,
    tolerance=dot_products(lambda x, weights, bias: np.abs(x) @ np.abs(weights) + np.abs(bias),
                           length=lambda x, weights, bias: x.shape[1] + 1),
    by_row=(0,),
    work=Work(
        flops=lambda M, N, K: 2 * M * N * K,
        bytes=lambda M, N, K: 4 * (M * K + N * K + N + M * N),
        timed_gpu={"M": 1, "N": 3072, "K": 768},
        timed_cpu={"M": 1, "N": 1024, "K": 256},
        also_gpu=({"M": 1024, "N": 3072, "K": 768},),
    ),
    baselines=numpy_cupy_torch(lambda xp, x, weights, bias, out: xp.add(xp.matmul(x, weights), bias, out=out),
                               note="cuBLAS, then the bias"),
)

LOGITS = Op(
    "logits",
    title="Logits: how well each token of the vocabulary fits",
    formula="out = x @ table.T",
    reference=projection.logits_reference,
    rungs=rungs_of(projection, "logits"),
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, N, K)),
    shape=lambda M, N, K: (M, N),
    awkward=SHAPES,
    tolerance=dot_products(lambda x, table: np.abs(x) @ np.abs(table).T, length=lambda x, table: x.shape[1]),
    by_row=(0,),
    work=Work(
        flops=lambda M, N, K: 2 * M * N * K,
        bytes=lambda M, N, K: 4 * (M * K + N * K + M * N),
        timed_gpu={"M": 1, "N": 50257, "K": 768},
        timed_cpu={"M": 1, "N": 2048, "K": 256},
    ),
    baselines=numpy_cupy_torch(lambda xp, x, table, out: xp.matmul(x, table.T, out=out), note="cuBLAS"),
)
