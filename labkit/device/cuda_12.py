"""The compiler of CUDA 12, where the one of CUDA 13 is installed as well: by the extras cu12 and fits, or test.

numba-cuda would find CUDA 13's, whose code a driver of CUDA 12 rejects. It takes a library that is already loaded.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from pathlib import Path

LIBRARIES = ("cuda_nvcc/nvvm/lib64/libnvvm.so", "cuda_nvrtc/lib/libnvrtc.so.12", "nvjitlink/lib/libnvJitLink.so.12")


@functools.cache
def prefer_on_old_driver() -> None:
    """Load the compiler of CUDA 12 if both are installed and the driver is of CUDA 12, on Linux. On Windows `labkit
    doctor` says which one to uninstall."""
    paths = libraries()
    if paths and (driver := _driver_version()) is not None and driver < 13_000:
        for path in paths:
            ctypes.CDLL(str(path))


def libraries() -> list[Path]:
    """Those of CUDA 12, if the wheels of both are installed."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    if sys.platform != "linux" or not any((folder / "cu13").is_dir() for folder in folders):
        return []
    return [folder / name for folder in folders for name in LIBRARIES if (folder / name).is_file()]


def _driver_version() -> int | None:
    """12040 for CUDA 12.4; None without a driver."""
    version = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return version.value if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else None
