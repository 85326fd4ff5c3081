"""The operations of labkit.kernels.linear.fused: inputs, sizes, tolerances, work and baselines."""

import functools

import numpy as np

from labkit.kernels.baselines import Baseline, gelu_by_cublas
from labkit.kernels.linear.fused import (
    fused_naive,
    fused_pipelined,
    fused_reference,
    fused_tiled,
    make_add_parts,
    make_fused_naive,
    make_fused_pipelined,
    make_fused_tiled,
)
from labkit.kernels.op import Op, Work, named, rung, sizes, uniform
from labkit.kernels.tolerance import EPS32


def sum_error(x, weights, bias):
    """The error allowed for sums of K products and the bias in float32."""
    return 2 * EPS32 * np.sqrt(x.shape[1] + 1) * (np.abs(x) @ np.abs(weights) + np.abs(bias))


def gelu_error(x, weights, bias):
    """GELU is nowhere steeper than 1.13, and adds some six roundings of its argument."""
    return 1.13 * sum_error(x, weights, bias) + 6 * EPS32 * np.abs(x @ weights + bias)


def residual_error(x, weights, bias, residual):
    return sum_error(x, weights, bias) + EPS32 * (np.abs(residual) + np.abs(x @ weights + bias))


def as_rung(launch, name: str, kernel, idea: str, gelu=False, residual=False, **options):
    """A launcher as an Op calls it: inputs, then out."""
    @rung(kernel=kernel, idea=idea, **options)
    @named(name, launch.__doc__)
    def bound(x, weights, bias, *args, stream=0):
        launch(x, weights, bias, args[-1], residual=args[0] if residual else None, gelu=gelu, stream=stream)

    return bound


def rungs_for(name: str, gelu: bool | str, residual: bool) -> tuple:
    epilogue = (gelu, residual)
    pipelined = (*(make_fused_pipelined(exact, False, *epilogue) for exact in (True, False)),
                 *(make_fused_pipelined(exact, True, False, False) for exact in (True, False)),
                 make_add_parts(4, *epilogue))
    return (as_rung(fused_naive, f"{name}_naive", make_fused_naive(*epilogue), "one thread an element; what follows, "
                    "with the sum in a register", *epilogue),
            as_rung(fused_tiled, f"{name}_tiled", make_fused_tiled(*epilogue), "16 x 16 tiles", *epilogue),
            as_rung(fused_pipelined, f"{name}_pipelined", pipelined, "128 x 128 tiles in a pipeline; K in parts where "
                    "tiles are few", *epilogue))


def layer(rng, M, N, K):
    """x, weights and bias, the weights scaled so that sums have the magnitude of x."""
    return uniform(rng, M, K), uniform(rng, K, N) / np.float32(np.sqrt(K)), uniform(rng, N)


AWKWARD = sizes("M N K", (1, 1, 1), (37, 23, 19), (5, 40, 200), (129, 128, 16), (3, 256, 128))


def _op(name: str, title: str, formula: str, call, *, gelu=False, residual=False, tolerance=sum_error, timed_gpu,
        also_gpu):
    work = Work(flops=lambda M, N, K: 2 * M * N * K, timed_gpu=timed_gpu, timed_cpu={"M": 64, "N": 128, "K": 64},
                bytes=lambda M, N, K: 4 * (M * K + N * K + N + (2 if residual else 1) * M * N), also_gpu=also_gpu,
                unit="TFLOP/s")
    return Op(name, title=title, formula=formula, rungs=rungs_for(name, gelu, residual),
              reference=functools.partial(fused_reference, gelu=gelu), shape=lambda M, N, K: (M, N), awkward=AWKWARD,
              inputs=(lambda rng, M, N, K: (*layer(rng, M, N, K), uniform(rng, M, N))) if residual else layer,
              tolerance=tolerance, by_row=(0, 3) if residual else (0,), work=work,
              baselines=(Baseline("PyTorch", "torch", call, note="cuBLAS, then what follows"),
                         *([gelu_by_cublas(lambda weights: weights)] if gelu is True else [])))


def torch_addmm(torch, x, weights, bias, out):
    torch.addmm(bias, x, weights, out=out)


def torch_addmm_gelu(torch, x, weights, bias, out):
    return torch.nn.functional.gelu(torch.addmm(bias, x, weights), approximate="tanh")


def torch_addmm_gelu_erf(torch, x, weights, bias, out):
    return torch.nn.functional.gelu(torch.addmm(bias, x, weights))


def torch_addmm_residual(torch, x, weights, bias, residual, out):
    torch.add(torch.addmm(bias, x, weights), residual, out=out)


FUSED_LINEAR = _op("fused_linear", "A linear layer, its bias in the kernel", "out = x @ weights + bias", torch_addmm,
                   timed_gpu={"M": 128, "N": 2304, "K": 768}, also_gpu=({"M": 1024, "N": 2304, "K": 768},))

FUSED_LINEAR_GELU = _op("fused_linear_gelu", "A linear layer and GELU", "out = gelu(x @ weights + bias)",
                        torch_addmm_gelu, gelu=True, tolerance=gelu_error, timed_gpu={"M": 128, "N": 3072, "K": 768},
                        also_gpu=({"M": 1024, "N": 3072, "K": 768},))

FUSED_LINEAR_GELU_ERF = _op("fused_linear_gelu_erf", "A linear layer and exact GELU",
                            "out = gelu(x @ weights + bias), with erf", torch_addmm_gelu_erf, gelu="erf",
                            tolerance=gelu_error, timed_gpu={"M": 8192, "N": 1536, "K": 384},  # MiniLM's inner layer
                            also_gpu=({"M": 1024, "N": 1536, "K": 384},))

FUSED_LINEAR_RESIDUAL = _op("fused_linear_residual", "A linear layer and a residual",
                            "out = x @ weights + bias + residual", torch_addmm_residual, residual=True,
                            tolerance=residual_error, timed_gpu={"M": 128, "N": 768, "K": 3072},
                            also_gpu=({"M": 1024, "N": 768, "K": 3072},))
