"""The operations of labkit.kernels.linear.one_row: inputs, sizes, tolerances, work and baselines."""

import functools

import numpy as np

from labkit import cuda
from labkit.kernels.baselines import Baseline
from labkit.kernels.linear import one_row
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rows import EPSILON
from labkit.kernels.norm.rows import tolerance as layernorm_tolerance
from labkit.kernels.op import Op, Work, rung, sizes, uniform
from labkit.kernels.ops.fused_linear import sum_error
from labkit.kernels.tolerance import EPS16, EPS32, SMALLEST16


def norm_row(rng, K: int, dtype):
    """x, and the norm's weight and bias."""
    return uniform(rng, 1, K) + np.float32(0.25), uniform(rng, K).astype(dtype), uniform(rng, K).astype(dtype)


def layer(rng, K: int, N: int, dtype):
    """weights, scaled so that sums have the magnitude of x, and bias."""
    return (uniform(rng, K, N) / np.float32(np.sqrt(K))).astype(dtype), uniform(rng, N).astype(dtype)


def normed_error(x, norm_weight, norm_bias, weights, bias):
    """As sum_error, of a row that comes out of a norm with errors of its own, which add up as a random walk."""
    normed = layernorm_reference(x, norm_weight, norm_bias)
    return sum_error(normed, weights, bias) + np.sqrt(layernorm_tolerance(x, norm_weight, norm_bias)**2 @ weights**2)


def gelu_error(*inputs):
    """GELU is nowhere steeper than 1.13, and adds some six roundings of its argument."""
    return 1.13 * normed_error(*inputs) + 6 * EPS32 * np.abs(one_row.normed_reference(*inputs))


def qkv_error(*inputs):
    return normed_error(*inputs) + EPS32 * np.abs(one_row.normed_reference(*inputs))


def qkv_error_half(*inputs):
    """Bound the error of an output rounded to float16."""
    return normed_error(*inputs) + EPS16 * np.abs(one_row.normed_reference(*inputs)) + SMALLEST16


def residual_error(x, weights, bias, residual):
    return sum_error(x, weights, bias) + 2 * EPS32 * np.abs(residual)


@functools.cache
def first_row():
    """`start` of an empty cache, in device memory."""
    return cuda.to_device(np.zeros(1, np.int32))


def _rungs(half: bool) -> tuple:
    """The launchers as the three operations call them: inputs, then out."""
    def kernel(source, epilogue, depth, cols):
        return one_row.make_one_row(half, source, epilogue, depth, *one_row.plan(depth, cols, half), False)

    @rung(kernel=kernel(one_row.NORM, one_row.GELU, 768, 3072), idea="norm, product and GELU in one launch",
          sizes=one_row.SIZES)
    def row_gelu(x, norm_weight, norm_bias, weights, bias, out, stream=0):
        """Every block normalises the row for itself, while its weights are in flight."""
        one_row.one_row_gelu(x, norm_weight, norm_bias, weights, bias, out, stream=stream)

    @rung(kernel=kernel(one_row.PLAIN, one_row.RESIDUAL, 3072, 768), idea="product and residual in one launch",
          sizes=one_row.SIZES)
    def row_residual(x, weights, bias, residual, out, stream=0):
        """The row goes to shared memory while the weights are in flight."""
        one_row.one_row_residual(x, weights, bias, residual, out, stream=stream)

    @rung(kernel=kernel(one_row.NORM, one_row.QKV, 768, 2304), idea="norm, product and the cache in one launch",
          sizes=one_row.SIZES)
    def row_qkv(x, norm_weight, norm_bias, weights, bias, out, stream=0):
        """As row_gelu; queries go to one array, keys and values to a row of the cache."""
        K = x.shape[1]
        one_row.one_row_qkv(x, norm_weight, norm_bias, weights, bias, out[:, :K], out[:, K:], first_row(),
                            stream=stream)

    return row_gelu, row_residual, row_qkv


def _torch_normed(torch, x, norm_weight, norm_bias, weights, bias):
    normed = torch.nn.functional.layer_norm(x.to(weights.dtype), norm_weight.shape, norm_weight, norm_bias, EPSILON)
    return torch.addmm(bias, normed, weights)


def _torch_gelu(torch, *inputs_and_out):
    *inputs, out = inputs_and_out
    out.copy_(torch.nn.functional.gelu(_torch_normed(torch, *inputs), approximate="tanh"))


def _torch_qkv(torch, *inputs_and_out):
    *inputs, out = inputs_and_out
    out.copy_(_torch_normed(torch, *inputs))


def _torch_residual(torch, x, weights, bias, residual, out):
    torch.add(torch.addmm(bias, x.to(weights.dtype), weights), residual, out=out)


def torch_baseline(call, half: bool) -> tuple:
    """In float16 PyTorch rounds after each of its steps."""
    return (Baseline("PyTorch", "torch", call, note="a kernel for each step",
                     tolerance=(lambda *inputs: np.float64(0.05)) if half else None),)


def _normed_inputs(dtype, rng, K, N):
    return *norm_row(rng, K, dtype), *layer(rng, K, N, dtype)


def _residual_inputs(dtype, rng, K, N):
    return uniform(rng, 1, K), *layer(rng, K, N, dtype), uniform(rng, 1, N)


def _ops(half: bool):
    stored = np.float16 if half else np.float32
    size, suffix, note = stored().itemsize, "_half" * half, ", float16 parameters" * half

    def make(name, *, title, call, timed, awkward, inputs=_normed_inputs, **fields):
        work = Work(flops=lambda K, N: 2 * K * N, bytes=lambda K, N: size * (K * N + N) + 4 * (K + N),
                    timed_gpu=dict(zip("KN", timed, strict=True)), timed_cpu={"K": 256, "N": 768})
        return Op(name + suffix, title=title + note, inputs=functools.partial(inputs, stored),
                  shape=lambda K, N: (1, N), awkward=sizes("K N", *awkward), by_row=(), work=work,
                  baselines=torch_baseline(call, half), **fields)

    row_gelu, row_residual, row_qkv = _rungs(half)
    return (make("one_row_gelu", title="One row: norm, linear layer and GELU", rungs=(row_gelu,),
                 formula="out = gelu(layernorm(x) @ weights + bias)", reference=one_row.gelu_reference,
                 tolerance=gelu_error, call=_torch_gelu, timed=(768, 3072), awkward=((48, 192), (136, 2056))),
            make("one_row_residual", title="One row: linear layer and residual", rungs=(row_residual,),
                 formula="out = x @ weights + bias + residual", reference=one_row.residual_reference,
                 tolerance=residual_error,
                 call=_torch_residual, timed=(3072, 768), awkward=((192, 48), (6152, 8), (16, 24)),
                 inputs=_residual_inputs),
            make("one_row_qkv", title="One row: norm, queries, and keys and values for the cache", rungs=(row_qkv,),
                 formula="q, cache[start] = layernorm(x) @ weights + bias", reference=one_row.normed_reference,
                 tolerance=qkv_error_half if half else qkv_error, call=_torch_qkv, timed=(768, 2304),
                 awkward=((48, 144),), dtype=stored))


ONE_ROW_GELU, ONE_ROW_RESIDUAL, ONE_ROW_QKV = _ops(False)
ONE_ROW_GELU_HALF, ONE_ROW_RESIDUAL_HALF, ONE_ROW_QKV_HALF = _ops(True)
