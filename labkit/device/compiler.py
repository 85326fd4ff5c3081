"""Which compiler makes GPU code: numba-cuda, or numba-cuda-mlir, its successor.

    name()               # "numba-cuda"; LABKIT_COMPILER=mlir, or no numba-cuda: "mlir"

Both compile the same kernels. What differs between them is in labkit.device.mlir, ptx_mlir, u32_mlir and unsigned_mlir
for the second, and in ptx_gpu, u32_gpu and unsigned for the first.
"""

from __future__ import annotations

import functools
import importlib.util
import os

PACKAGES = {"numba-cuda": "numba_cuda", "mlir": "numba_cuda_mlir"}  # compiler -> the package that it is


@functools.cache
def name() -> str:
    """The compiler in use: what LABKIT_COMPILER says; if that is not set, numba-cuda, or the one that is installed.

    Raises ValueError for an unknown LABKIT_COMPILER, ImportError for one that is not installed.
    """
    requested = os.environ.get("LABKIT_COMPILER", "").strip().lower()
    if not requested:
        return next((name for name in PACKAGES if installed(name)), "numba-cuda")
    if requested not in PACKAGES:
        raise ValueError(f"LABKIT_COMPILER is {requested!r}; it must be one of {', '.join(PACKAGES)}")
    if not installed(requested):
        raise ImportError(f"LABKIT_COMPILER is {requested}, but {PACKAGES[requested].replace('_', '-')} is not "
                          f"installed: {INSTALL[requested]}")
    return requested


INSTALL = {"numba-cuda": "pip install 'labkit[cu13]'", "mlir": "pip install 'labkit[mlir]'"}


def installed(compiler: str) -> bool:
    return importlib.util.find_spec(PACKAGES[compiler]) is not None


def is_mlir() -> bool:
    """True if numba-cuda-mlir compiles."""
    return name() == "mlir"
