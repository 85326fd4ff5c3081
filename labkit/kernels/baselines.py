"""Baselines: libraries that do the same job as an operation's rungs, to compare times with.

    Baseline("PyTorch", "torch", call)      as PyTorch runs it, and as torch.compile makes it: forms() has both
    numpy_cupy_torch(call)                  the same call with NumPy, CuPy and PyTorch
    sdpa(call)                              attention by each kernel that scaled_dot_product_attention can choose
    unfused_attention(torch, q, keys, ...)  attention by two products and a softmax, compiled too
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

COMPILED = ", compiled"
AUTOTUNED = ", compiled and autotuned"
AUTOTUNING = "max-autotune-no-cudagraphs"  # also tries Triton's matrix products, with their epilogue fused


@dataclass(frozen=True)
class Baseline:
    """A library that does the same job. call(module, *inputs, out) does it on that library's own arrays.

    library: "torch", "cupy", "numpy", "triton" (which takes PyTorch's tensors). The result is what call returns, or, if
    it returns None, what it wrote into out. tolerance: the baseline's own, when it computes less exactly than rungs do.
    prepare(module, *inputs, out) makes call's arguments, once and untimed: a mask, an array laid out anew.
    within(module): a context manager to call it in.

    forms() adds what torch.compile makes of a call to PyTorch. compile: what it is given, called as `call` is; True is
    `call` with an out of its own, which costs no copy; False leaves it out. eager: whether `call` is timed as it is.
    autotune: whether to compile it with autotuned products, too.
    """

    name: str
    library: str
    call: Callable
    note: str = ""
    tolerance: Callable | None = None
    prepare: Callable | None = None
    within: Callable = lambda module: contextlib.nullcontext()
    compile: Callable | bool = True
    eager: bool = True
    autotune: bool = False

    @property
    def title(self) -> str:
        return f"{self.name} ({self.note})" if self.note else self.name

    def bound(self, module, *inputs_and_out) -> Callable[[], object]:
        """Prepare the arguments once, and return the call without arguments that is to be timed."""
        arguments = inputs_and_out if self.prepare is None else self.prepare(module, *inputs_and_out)
        return functools.partial(self.call, module, *arguments)


def is_eager(title: str) -> bool:
    """Whether a baseline of this title is PyTorch without torch.compile."""
    return title.startswith("PyTorch") and COMPILED not in title


def forms(baseline: Baseline) -> tuple[Baseline, ...]:
    """The baseline itself and, for PyTorch, what torch.compile makes of it."""
    result = (baseline,) if baseline.eager else ()
    if baseline.library != "torch" or baseline.compile is False:
        return result
    result += (_compiled(baseline, COMPILED, None),)
    if baseline.autotune:
        result += (_compiled(baseline, AUTOTUNED, AUTOTUNING),)
    return result


def _compiled(baseline: Baseline, suffix: str, mode: str | None) -> Baseline:
    """The baseline as torch.compile makes it: one graph for these shapes, compiled when it is first called."""
    target = _with_its_own_out(baseline.call) if baseline.compile is True else baseline.compile
    functions = []

    def call(torch, *inputs_and_out):
        if not functions:
            torch._dynamo.reset()  # it counts recompilations per line of source, and all baselines share this line
            functions.append(torch.compile(functools.partial(target, torch), fullgraph=True, dynamic=False, mode=mode))
        return functions[0](*inputs_and_out)

    return replace(baseline, name=baseline.name + suffix, note="", call=call, compile=False, eager=True)


def _with_its_own_out(call: Callable) -> Callable:
    """`call` into an array that it allocates: where that is part of the graph, the compiler need not copy into it."""
    def allocating(torch, *inputs_and_out):
        *inputs, out = inputs_and_out
        new_out = torch.empty_like(out)
        returned = call(torch, *inputs, new_out)
        return new_out if returned is None else returned

    return allocating


def numpy_cupy_torch(call: Callable, note: str = "", **fields) -> tuple[Baseline, ...]:
    """The same call(xp, *inputs, out) with NumPy on the host, with CuPy and with PyTorch in place of xp.

    `note` is about the two on the GPU: what they call, or how often. fields: other fields of Baseline.
    """
    return (Baseline("NumPy, on the host", "numpy", call, **fields), Baseline("CuPy", "cupy", call, note, **fields),
            Baseline("PyTorch", "torch", call, note, **fields))


def gelu_by_cublas(as_columns: Callable) -> Baseline:
    """gelu(x @ weights + bias) in one call of cuBLAS, whose epilogue has only the tanh form.
    as_columns(weights) is (K, N)."""
    return Baseline("PyTorch", "torch", lambda torch, x, weights, bias, out: torch._addmm_activation(
        bias, x, as_columns(weights), use_gelu=True), "cuBLAS, bias and GELU fused", compile=False)


def sdpa(call: Callable, backends: tuple[str, ...], **fields) -> tuple[Baseline, ...]:
    """call(torch, *inputs, out), which calls scaled_dot_product_attention: with the kernel that PyTorch chooses, eager
    and compiled, and with each of `backends`, members of torch.nn.attention.SDPBackend."""
    def only(backend: str):
        def within(torch):
            from torch.nn.attention import SDPBackend, sdpa_kernel

            return sdpa_kernel(getattr(SDPBackend, backend))

        return within

    names = {"FLASH_ATTENTION": "flash", "CUDNN_ATTENTION": "cuDNN", "EFFICIENT_ATTENTION": "memory-efficient"}
    return (Baseline("PyTorch, fused", "torch", call, "SDPA", **fields),
            *(Baseline("PyTorch, fused", "torch", call, f"SDPA, {names[name]}", within=only(name), compile=False,
                       **fields)
              for name in backends))


def unfused_attention(torch, q, keys, values, scale: float):
    """Attention of q (..., S, D) to keys and values (..., T, D) by two products and a softmax.

    Where rows of weights are divided by their sums before the second product, torch.compile recognises attention and
    calls SDPA instead. So the product's rows are divided.
    """
    scores = (q @ keys.transpose(-2, -1)).float() * scale
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights.to(values.dtype) @ values / weights.sum(-1, keepdim=True)).to(values.dtype)
