"""What a kernel compiles to for a GPU, without one: its PTX, and the registers and spills that ptxas counts.

    text = ptx(kernel, types.void(types.float32[::1], types.uint32))
    resources(text)                      # {"registers": 32, "spill_bytes": 0, ...}, where ptxas is installed

Needs numba-cuda and the CUDA toolkit's compiler (INSTALL), no GPU and no driver.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import subprocess
import tempfile
import types as python_types
from pathlib import Path

from labkit import device
from labkit.device import compiler
from labkit.device.compile_target import as_if_on
from labkit.simt.ptx import INTRINSICS

INSTALL = "pip install -e '.[fits]'"


class NoCompiler(RuntimeError):
    """numba-cuda, or the toolkit's NVVM, is not installed."""


@functools.cache
def _gpu_cuda():
    """The module cuda of the compiler in use."""
    try:
        return device.gpu_cuda()
    except ImportError as error:
        raise NoCompiler(f"no compiler of GPU code is installed: {error}") from None


def _gpu_object(obj, cc):
    """Return the object that replaces a kernel's global when compiling for a GPU."""
    from labkit import cuda
    from labkit.device import ptx, u32

    gpu_cuda, gpu_ptx = _gpu_cuda(), ptx.of_gpu()
    for cpu_module, gpu_module in ((cuda, gpu_cuda), (ptx, gpu_ptx), (u32, u32.of_gpu())):
        if obj is cpu_module:
            return gpu_module
    name = getattr(obj, "name", None)
    if isinstance(name, str) and INTRINSICS.get(name) is obj:
        return getattr(gpu_ptx, name)
    if hasattr(obj, "py_func") and type(obj).__module__.startswith("labkit.simt"):  # a device function
        return gpu_cuda.jit(device=True)(_for_gpu(obj.py_func, cc))
    return obj


@functools.cache  # one for each cc: a device function keeps what it was first compiled for
def _for_gpu(function, cc):
    """The same function with `cuda`, `ptx` and its device functions bound to the GPU's, whatever labkit runs on."""
    names = set(function.__code__.co_names)
    for constant in function.__code__.co_consts:
        if isinstance(constant, python_types.CodeType):
            names |= set(constant.co_names)
    scope = {**function.__globals__, **{n: _gpu_object(v, cc) for n, v in function.__globals__.items() if n in names}}
    closure = function.__closure__ and tuple(python_types.CellType(_gpu_object(c.cell_contents, cc))
                                             for c in function.__closure__)
    result = python_types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, closure)
    result.__module__ = function.__module__
    return result


def ptx(kernel, signature, cc=(9, 0), **options) -> str:
    """The PTX of a kernel, or of a Python function, for these argument types.

    kernel: what @cuda.jit made on either device. cc: compute capability; (9, 0, "a") for wgmma. The kernel's own
    options (fastmath, launch_bounds) apply. Raises NoCompiler where no compiler is installed.
    """
    return ptx_for(kernel, signature, [cc], **options)[cc]


def changes(kernel) -> set[tuple]:
    """The compute capabilities at which the code of the kernel's instructions changes."""
    from labkit.device import needs, ptx_lines

    used = needs.instructions(kernel) if hasattr(kernel, "py_func") else INTRINSICS  # any, in a Python function
    return {at for name in used if (at := ptx_lines.changed_at(name))}


def ptx_for(kernel, signature, ccs, **options) -> dict[tuple, str]:
    """As `ptx`, for several compute capabilities: Numba's part of the work is done once for those for which
    labkit.device.ptx_lines has the same texts."""
    _gpu_cuda()
    own = getattr(kernel, "options", None) or getattr(kernel, "targetoptions", {})
    options = {name: own[name] for name in ("fastmath", "launch_bounds") if own.get(name)} | options
    compiled = _ptx_by_mlir if compiler.is_mlir() else _ptx_by_numba_cuda
    libraries, found = {}, {}
    starts = {(0, 0), *changes(kernel)}
    for cc in ccs:
        front = max(start for start in starts if start <= cc[:2])
        function = _for_gpu(getattr(kernel, "py_func", kernel), front)
        try:
            with as_if_on(cc):
                found[cc] = compiled(function, signature, cc, libraries, front, options)
        except Exception as error:
            if type(error).__name__ == "DynamicLibNotFoundError" or "libnvvm" in str(error) or "NVVM" in str(error):
                raise NoCompiler(f"the CUDA toolkit's compiler is not installed ({INSTALL}): {error!s:.80}") from None
            raise
    return found


def _ptx_by_numba_cuda(function, signature, cc, libraries, front, options) -> str:
    from numba.cuda.compiler import _compile_pyfunc_with_fixup

    if front not in libraries:
        libraries[front], _ = _compile_pyfunc_with_fixup(function, signature, device=False, cc=cc, abi="numba",
                                                         **options)
    (text,) = libraries[front].get_asm_strs(cc=cc)
    return text


def _ptx_by_mlir(function, signature, cc, libraries, front, options) -> str:
    from labkit.device import mlir

    return mlir.ptx(function, signature, options)


@functools.cache
def ptxas() -> str | None:
    """Where ptxas is: in the wheel nvidia-cuda-nvcc, or on the PATH; None where it is not installed."""
    with contextlib.suppress(Exception):
        from cuda import pathfinder

        if (path := pathfinder.find_nvidia_binary_utility("ptxas")) is not None:
            return path
    return shutil.which("ptxas")


@functools.cache
def ptxas_version() -> str:
    """ "13.3.33"; empty where ptxas is not installed."""
    if ptxas() is None:
        return ""
    said = subprocess.run([ptxas(), "--version"], capture_output=True, text=True).stdout
    return found[1] if (found := re.search(r"\bV([\d.]+)", said)) else ""


class Refused(RuntimeError):
    """ptxas refuses a kernel's PTX. problems: (number of the line of the PTX, what ptxas says), in its order."""

    def __init__(self, problems: list[tuple[int, str]], message: str):
        super().__init__(f"ptxas refused the PTX: {message}")
        self.problems = problems


def resources(text: str, max_registers: int | None = None) -> dict | None:
    """What ptxas reports on the one kernel in a PTX text; None where ptxas is not installed or too old for the PTX.

    {"registers", "spill_bytes" (stores and loads), "stack_bytes", "shared_bytes" (static), "warnings"}. Raises Refused.
    """
    if ptxas() is None:
        return None
    target = re.search(r"^\.target (\w+)", text, re.MULTILINE)[1]
    options = [f"-maxrregcount={max_registers}"] if max_registers else []
    with tempfile.TemporaryDirectory() as folder:
        for version in (None, "8.8", "8.5", "8.0"):  # ptxas refuses PTX of a later toolkit by its version line alone
            source = Path(folder) / "kernel.ptx"
            source.write_text(text if version is None else re.sub(r"(?m)^\.version .*$", f".version {version}", text))
            command = [ptxas(), "-v", f"-arch={target}", *options, str(source), "-o", f"{folder}/kernel.cubin"]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode == 0:
                break
            if "Unsupported .version" not in run.stderr:
                problems = [(int(line), what) for line, what in re.findall(r"line (\d+); error\s*: (.*)", run.stderr)]
                raise Refused(problems, run.stderr.strip()[:2000])
        else:
            return None

    def count(pattern):
        return sum(int(match) for match in re.findall(pattern, run.stderr))

    return {"registers": count(r"Used (\d+) registers"), "stack_bytes": count(r"(\d+) bytes stack frame"),
            "spill_bytes": count(r"(\d+) bytes spill"), "shared_bytes": count(r"(\d+) bytes smem"),
            "warnings": [line for line in run.stderr.splitlines()
                         if "warning" in line.lower() or "Performance Loss" in line]}  # such as wgmma one at a time
