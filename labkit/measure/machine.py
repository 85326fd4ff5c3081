"""What a measurement depends on: the GPU, its driver, the versions of the libraries, the date."""

from __future__ import annotations

import datetime
import functools
import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from labkit import cuda, device
from labkit.device import where


def stamped(series: dict) -> dict:
    """Return a series with the place and date of its measurement."""
    return {**series, "where": where(), "date": datetime.date.today().isoformat()}


def machine() -> dict:
    """Return what a measurement depends on: GPU, driver, versions, date."""
    facts = {"device": device.name(), "kind": device.kind(), "date": datetime.date.today().isoformat(),
             "python": platform.python_version(), "host": f"{platform.machine()}, {os.cpu_count()} cores"}
    for package in ("labkit", "numba", "numba-cuda", "numpy", "torch", "cupy", "triton"):
        facts[package] = _version(package)
    if device.on_gpu():
        gpu = cuda.get_current_device()
        facts["gpu"] = device.name()
        facts["compute_capability"] = ".".join(str(part) for part in gpu.compute_capability)
        facts["sms"] = gpu.MULTIPROCESSOR_COUNT
        facts["l2_mb"] = round(getattr(gpu, "L2_CACHE_SIZE", 0) / 2**20)
        facts["cuda_driver"] = _dotted(cuda.cudadrv.driver.driver.get_version)
        facts["cuda_runtime"] = _dotted(cuda.runtime.get_version)
        facts["driver"] = _nvidia_smi("driver_version")
    return facts


def _version(package: str) -> str | None:
    names = [package, "cupy-cuda13x", "cupy-cuda12x"] if package == "cupy" else [package]
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    module = sys.modules.get(package)
    return getattr(module, "__version__", None)


def _dotted(get_version: Callable) -> str | None:
    try:
        return ".".join(str(part) for part in get_version())
    except Exception:  # a library that is not there: the fact is unknown, the measurement stands
        return None


@functools.cache
def _nvidia_smi(query: str) -> str | None:
    try:
        run = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True,
                             text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.splitlines()[0].strip() if run.stdout.strip() else None


def slug(name: str) -> str:
    """"NVIDIA H200" -> "nvidia-h200": a file's name."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


@functools.cache
def import_library(name: str):
    """numpy, cupy or torch; None where it is not installed, or sees no GPU."""
    try:
        module = importlib.import_module(name)
        if name == "torch":
            if not module.cuda.is_available():
                return None
            module.backends.cuda.matmul.allow_tf32 = False  # float32 means float32 for everyone
        return module
    except Exception:  # a broken install of a baseline must not stop the measurement
        return None


def torch_on_gpu():
    """PyTorch where it can be measured; None without a GPU or PyTorch."""
    return import_library("torch") if device.on_gpu() else None
