"""Baselines: libraries that do the same job as an operation's rungs, to compare their times with."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Baseline:
    """A library that does the same job. call(module, *inputs, out) does it on that library's own arrays.

    library: "torch", "cupy", "numpy", "triton" (which takes PyTorch's tensors). The result is what call returns, or, if
    it returns None, what it wrote into out. tolerance: the baseline's own, when it computes less exactly than rungs do.
    """

    name: str
    library: str
    call: Callable
    note: str = ""
    tolerance: Callable | None = None

    @property
    def title(self) -> str:
        return f"{self.name} ({self.note})" if self.note else self.name


def numpy_cupy_torch(call: Callable, note: str = "") -> tuple[Baseline, ...]:
    """The same call(xp, *inputs, out) with NumPy on the host, with CuPy and with PyTorch in place of xp.

    `note` is about the two on the GPU: what they call, or how often.
    """
    return (Baseline("NumPy, on the host", "numpy", call), Baseline("CuPy", "cupy", call, note),
            Baseline("PyTorch", "torch", call, note))
