"""CUDA C++ beside the kernels of this course: a source file, compiled by nvcc for this GPU when it is first needed."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from labkit import cuda


@functools.cache
def library(source: Path) -> ctypes.CDLL:
    """The functions of a .cu file. Raises RuntimeError where there is no nvcc, or where it refuses the file."""
    if shutil.which("nvcc") is None:
        raise RuntimeError(f"nvcc is not installed: {source.name} cannot be built")
    major, minor = cuda.get_current_device().compute_capability
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        output = Path(folder, source.stem + ".so")
        options = ["-O3", f"-arch=sm_{major}{minor}", "-shared", "-Xcompiler", "-fPIC"]
        result = subprocess.run(["nvcc", *options, source, "-o", output], capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"nvcc refuses {source.name}: {result.stderr[-500:]}")
        return ctypes.CDLL(str(output))


def pointer(tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def current_stream(torch) -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
