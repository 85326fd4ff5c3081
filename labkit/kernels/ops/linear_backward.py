"""linear_backward_input, linear_backward_weight and linear_backward_bias, in float32 and bfloat16: inputs, sizes,
tolerances, work and baselines of the rungs in labkit.kernels.linear.backward."""

import functools

import numpy as np

from labkit.kernels import op
from labkit.kernels.baselines import Baseline
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.linear import backward
from labkit.kernels.op import Op, Work, uniform
from labkit.kernels.tolerance import EPS32

sizes = functools.partial(op.sizes, "T N K")
FLOAT32_RUNGS, BFLOAT16_RUNGS = ("naive", "tiled"), ("naive", "pipelined", "wgmma")


def inputs_of(rng, T, N, K, of: str, element: Element):
    """grad_out, and the weight or x; scaled so that the products have the magnitude of grad_out."""
    other = {"input": (N, K, N), "weight": (T, K, T)}.get(of)
    grad_out = element.array_of(uniform(rng, T, N))
    return (grad_out,) if other is None else (
        grad_out, element.array_of(uniform(rng, *other[:2]) / np.float32(np.sqrt(other[2]))))


REFERENCES = {
    "input": lambda grad_out, weight: backward.linear_backward_input_reference(*map(float64_of, (grad_out, weight))),
    "weight": lambda grad_out, x: backward.linear_backward_weight_reference(*map(float64_of, (grad_out, x))),
    "bias": lambda grad_out: backward.linear_backward_bias_reference(float64_of(grad_out)),
}


def tolerance(*inputs, of: str, element: Element):
    """Sums of `length` products in float32, each a random walk of roundings, and one rounding to an element."""
    length = inputs[0].shape[1 if of == "input" else 0]
    sums = 2 * EPS32 * np.sqrt(length) * REFERENCES[of](*map(np.abs, inputs))
    return sums + element.rounding_error(REFERENCES[of](*inputs))


BY_TORCH = {
    "input": lambda torch, grad_out, weight, out: torch.matmul(grad_out, weight, out=out),
    "weight": lambda torch, grad_out, x, out: torch.matmul(grad_out.T, x, out=out),
    "bias": lambda torch, grad_out, out: torch.sum(grad_out, 0, out=out),
}
SHAPES = {"input": lambda T, N, K: (T, K), "weight": lambda T, N, K: (N, K), "bias": lambda T, N, K: (N,)}
TITLES = {"input": "The gradient of a linear layer's input", "weight": "The gradient of a linear layer's weight",
          "bias": "The gradient of a linear layer's bias"}
FORMULAS = {"input": "grad_x = grad_out @ weight", "weight": "grad_weight = grad_out.T @ x",
            "bias": "grad_bias[n] = sum over t of grad_out[t, n]"}


def _bytes(of: str, element: Element):
    size = element.dtype.itemsize
    if of == "bias":
        return lambda T, N, K: size * (T * N + N)
    return lambda T, N, K: size * (T * N + N * K + T * K)


def _op(of: str, element: Element) -> Op:
    products = of != "bias"
    names = (FLOAT32_RUNGS if element is FLOAT32 else BFLOAT16_RUNGS) if products else ("naive", "split")
    options = {"of": of, "element": element}
    timed = sizes((8192, 3072, 768), (8192, 768, 3072), (8192, 2304, 768), (4096, 2048, 2048), (1024, 768, 768))
    return Op(
        f"linear_backward_{of}" + "_bf16" * (element is BFLOAT16),
        title=TITLES[of] + ", bfloat16" * (element is BFLOAT16),
        formula=FORMULAS[of],
        reference=REFERENCES[of],
        rungs=tuple(getattr(backward, f"linear_backward_{of}_{name}") for name in names),
        inputs=functools.partial(inputs_of, **options),
        shape=SHAPES[of],
        awkward=sizes((1, 1, 1), (3, 7, 5), (37, 24, 40), (300, 136, 24)),
        tolerance=functools.partial(tolerance, **options),
        by_row={"input": (0,)}.get(of, ()),
        dtype=element.dtype,
        work=Work(
            flops=lambda T, N, K: 2 * T * N * K if products else T * N,
            bytes=_bytes(of, element),
            timed_gpu=timed[0], also_gpu=timed[1:], timed_cpu={"T": 64, "N": 64, "K": 64},
            **({"unit": "TFLOP/s", "peak": "fp32" if element is FLOAT32 else "f16"} if products else {}),
        ),
        baselines=(Baseline("PyTorch", "torch", BY_TORCH[of], note="cuBLAS" if products else ""),),
    )


LINEAR_BACKWARD_INPUT, LINEAR_BACKWARD_INPUT_BF16 = (_op("input", element) for element in (FLOAT32, BFLOAT16))
LINEAR_BACKWARD_WEIGHT, LINEAR_BACKWARD_WEIGHT_BF16 = (_op("weight", element) for element in (FLOAT32, BFLOAT16))
LINEAR_BACKWARD_BIAS, LINEAR_BACKWARD_BIAS_BF16 = (_op("bias", element) for element in (FLOAT32, BFLOAT16))
