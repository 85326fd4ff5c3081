"""gelu, gelu_erf and gelu_bf16: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.gelu."""

import numpy as np

from labkit.kernels import gelu
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16
from labkit.kernels.op import Op, Work, rungs_of, uniform
from labkit.kernels.tolerance import relative_to

# A rounding of u moves tanh(u) by at most 0.45 of it, erf by 0.5; tanh and erf are within two units; 1 + tanh rounds.
TOLERANCE = relative_to(np.abs, roundings=6)

SIZES = {
    "inputs": lambda rng, n: (4 * uniform(rng, n),),
    "shape": lambda n: (n,),
    "awkward": tuple({"n": n} for n in (1, 2, 3, 4, 31, 257, 1_000, 4_099)),
    "tolerance": TOLERANCE,
    "by_row": (0,),
    "work": Work(
        flops=lambda n: 10 * n,
        bytes=lambda n: 8 * n,
        timed_gpu={"n": 8192 * 3072},  # GPT-2, 8,192 tokens
        timed_cpu={"n": 2**16},
        also_gpu=({"n": 8192 * 1536},),  # MiniLM, 64 sentences of 128 tokens
    ),
}  # fmt: skip


def torch_gelu(torch, x, out):
    return torch.nn.functional.gelu(x, approximate="tanh")


GELU = Op(
    "gelu",
    title="GELU, tanh form",
    formula="out = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))",
    reference=gelu.gelu_tanh_reference,
    rungs=(gelu.gelu_per_thread, gelu.gelu_vectorized, gelu.gelu_sigmoid_form),
    baselines=(Baseline("PyTorch", "torch", torch_gelu),),
    **SIZES,
)

GELU_ERF = Op(
    "gelu_erf",
    title="GELU, exact",
    formula="out = x/2 * (1 + erf(x / sqrt(2)))",
    reference=gelu.gelu_erf_reference,
    rungs=rungs_of(gelu, "gelu_erf"),
    baselines=(Baseline("PyTorch", "torch", lambda torch, x, out: torch.nn.functional.gelu(x)),),
    **SIZES,
)

GELU_BF16 = Op(
    "gelu_bf16",
    title="GELU, tanh form, in bfloat16",
    formula=GELU.formula,
    reference=gelu.gelu_tanh_reference,
    rungs=(gelu.gelu_eights,),
    baselines=(Baseline("PyTorch", "torch", torch_gelu),),
    dtype=np.uint16,
    **SIZES | {
        "inputs": lambda rng, n: (BFLOAT16.array_of(4 * uniform(rng, n)),),
        "tolerance": lambda x: TOLERANCE(x) + BFLOAT16.rounding_error(gelu.gelu_tanh_reference(x)),
        "work": Work(flops=lambda n: 10 * n, bytes=lambda n: 4 * n, timed_gpu={"n": 8192 * 3072},
                     timed_cpu={"n": 2**16}),
    },
)
