"""quantize_rows_fp8 and linear_fp8: inputs, sizes, tolerances, work and baselines of the rungs in
labkit.kernels.linear.fp8."""

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16
from labkit.kernels.linear import fp8
from labkit.kernels.linear.fp8 import LARGEST, linear_fp8_reference, linear_fp8_tolerance, quantize_rows_reference
from labkit.kernels.linear.quantized import e4m3_codes
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import EPS32

# --- Quantise ---------------------------------------------------------------------------------------------------------


def codes_tolerance(x):
    """In codes: none, but where the quotient is so near to the middle of two numbers that rounding to float32 decides.
    Quotients have three roundings, and those below 2^-6 are rounded to a multiple of 2^-29, too."""
    scales = quantize_rows_reference(x)[1]
    quotients = np.abs(x) / scales[:, None]
    error = 2 * EPS32 * quotients + 2.0**-28
    return e4m3_codes(quotients + error) - e4m3_codes(np.maximum(quotients - error, 0)).astype(np.float64)


def torch_quantize(torch, x, out):
    """Without the scales, which cost nothing more: a number for each row."""
    largest = x.abs().amax(dim=1, keepdim=True).float()
    return (x.float() * (float(LARGEST) / largest)).to(torch.float8_e4m3fn).view(torch.uint8)


QUANTIZE_ROWS_FP8 = Op(
    "quantize_rows_fp8",
    title="Rows quantised to FP8",
    formula="codes = x / scale in E4M3, scale = max |x| of the row / 448",
    reference=lambda x: quantize_rows_reference(x)[0],
    rungs=rungs_of(fp8, "quantize_rows_fp8"),
    inputs=lambda rng, R, C: (BFLOAT16.array_of(uniform(rng, R, C) ** 5),),  # with many numbers near zero
    shape=lambda R, C: (R, C),
    awkward=sizes("R C", (1, 1), (3, 37), (5, 8), (130, 264), (2, 4104)),
    tolerance=codes_tolerance,
    dtype=np.uint8,
    by_row=(0,),
    work=Work(
        flops=lambda R, C: 4 * R * C,
        bytes=lambda R, C: 3 * R * C + 4 * R,
        timed_gpu={"R": 4096, "C": 4096},
        timed_cpu={"R": 64, "C": 256},
        also_gpu=sizes("R C", (4096, 2048), (4096, 8192)),
    ),
    baselines=(Baseline("PyTorch", "torch", torch_quantize, note="a kernel for each step"),),
)

# --- Multiply ---------------------------------------------------------------------------------------------------------


def layer_in_fp8(rng, M: int, N: int, K: int) -> tuple:
    """Random codes of x and a weight, numbers from 1/2 to 2 of either sign, and a scale for each row, such that sums
    have the magnitude of 1."""
    codes = (rng.integers(0, 256, shape, np.uint8) & np.uint8(0x8F) | np.uint8(0x30) for shape in ((M, K), (N, K)))
    x_scales, weight_scales = (np.abs(uniform(rng, count)) + np.float32(0.1) for count in (M, N))
    return *codes, x_scales, weight_scales / np.float32(np.sqrt(K))


def in_torchs_type(torch, x, weight, x_scales, weight_scales, out):
    return (*(codes.view(torch.float8_e4m3fn) for codes in (x, weight)), x_scales[:, None], weight_scales[None], out)


def torch_linear(torch, x, weight, x_scales, weight_scales, out):
    return torch._scaled_mm(x, weight.T, x_scales, weight_scales, out_dtype=torch.bfloat16, use_fast_accum=True)


LINEAR_FP8 = Op(
    "linear_fp8",
    title="A linear layer in FP8",
    formula="out = (x * x_scales) @ (weight * weight_scales).T",
    reference=linear_fp8_reference,
    rungs=rungs_of(fp8, "linear_fp8"),
    inputs=layer_in_fp8,
    shape=lambda M, N, K: (M, N),
    awkward=sizes("M N K", (1, 8, 16), (2, 5, 37), (37, 24, 144), (130, 136, 272)),
    tolerance=linear_fp8_tolerance,
    dtype=np.uint16,
    by_row=(0, 2),
    work=Work(
        flops=lambda M, N, K: 2 * M * N * K,
        bytes=lambda M, N, K: M * K + N * K + 2 * M * N + 4 * (M + N),
        timed_gpu={"M": 4096, "N": 4096, "K": 4096},
        timed_cpu={"M": 64, "N": 64, "K": 64},
        also_gpu=sizes("M N K", (4096, 3072, 2048), (4096, 2048, 2048), (4096, 16384, 2048), (4096, 2048, 8192),
                       (8192, 8192, 8192), (256, 16384, 2048)),
        unit="TFLOP/s",
        peak="fp8",
    ),
    baselines=(Baseline("PyTorch", "torch", torch_linear, note="_scaled_mm, a scale for each row",
                        prepare=in_torchs_type, tolerance=fp8.wgmma_tolerance),),
)
