"""A key for a compiled kernel: equal in every process where the compiled code would be equal, and different elsewhere.

    key_of(kernel, argument_types, capability=(9, 0))     # 64 hexadecimal digits
    Fingerprint().of(function)                            # of anything that a kernel can refer to

Numba compiles a kernel together with all that it refers to: device functions of other files, numbers that it closes
over, globals. The key covers all of these by value. What it cannot compare raises Uncacheable:
such a kernel is compiled again, which is slow but never wrong. Functions of Python, NumPy and Numba count by their
names and versions: what a program adds to them with Numba's @overload is not part of the key.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import importlib.metadata
import struct
import sys
import types
from pathlib import Path

import numpy as np

from labkit.device import compiler
from labkit.simt import unsigned

FORMAT = 2  # of the key and of the data stored under it
# Known by their versions.
TRUSTED = ("numba", "numba_cuda", "numba_cuda_mlir", "numpy", "math", "cmath", "operator", "builtins")
MAX_ARRAY = 64 << 20  # bytes of an array that a kernel has as a constant


class Uncacheable(Exception):
    """A kernel refers to something whose value cannot be compared between processes."""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _trusted(module: str | None) -> bool:
    return module is not None and (module.partition(".")[0] in TRUSTED or module.startswith("labkit.simt"))


@functools.lru_cache(maxsize=4096)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """The names that the code, and functions inside it, look up among globals; names of attributes are not among
    them."""
    names = _read_names(code) if sys.version_info < (3, 14) else _disassembled_names(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_global_names(constant))
    return tuple(sorted(names))


def _disassembled_names(code: types.CodeType) -> set[str]:
    return {instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_GLOBAL"}


def _read_names(code: types.CodeType) -> set[str]:
    """As _disassembled_names, from the bytes themselves: about twenty times faster, for versions whose bytes are known,
    in which an instruction has two of them and the number of a global's name is doubled."""
    load, extended, high_bits, names = dis.opmap["LOAD_GLOBAL"], dis.EXTENDED_ARG, 0, set()
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument |= high_bits
        high_bits = argument << 8 if operation == extended else 0
        if operation == load:
            names.add(code.co_names[argument >> 1])
    return names


def _all_names(code: types.CodeType) -> set[str]:
    """Every name in the code, attributes too: those that it may read of a module."""
    inner = [_all_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


class Fingerprint:
    """Text that is the same for equal values in every process. One object serves one key: it keeps what it has
    visited."""

    def __init__(self):
        self._known: dict[int, tuple[object, str]] = {}  # id -> the object, held so that its id stays its own; text
        self._in_progress: list[int] = []  # functions being visited: one may refer to itself
        self.device_functions: list = []  # those visited

    def of(self, value) -> str:
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = (value, self._of(value))
        return known[1]

    def _of(self, value) -> str:
        if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes):
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, enum.Enum):
            kind = type(value)
            return _digest("enum", kind.__module__, kind.__qualname__, value.name, self.of(value.value))
        if type(value) is float:
            return f"float:{struct.pack('<d', value).hex()}"  # -0.0 is not 0.0
        if type(value) is complex:
            return f"complex:{struct.pack('<dd', value.real, value.imag).hex()}"
        if isinstance(value, np.generic):
            return f"scalar:{value.dtype.str}:{value.tobytes().hex()}"
        if isinstance(value, np.dtype):
            return f"dtype:{value!r}:{value.itemsize}:{value.alignment}"
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, tuple):
            kind = "" if type(value) is tuple else f"{type(value).__qualname__}{getattr(value, '_fields', '')}"
            return _digest("tuple", kind, *map(self.of, value))
        if isinstance(value, frozenset):
            return _digest("frozenset", *sorted(map(self.of, value)))
        if isinstance(value, slice):
            return _digest("slice", *map(self.of, (value.start, value.stop, value.step)))
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.ModuleType):
            return f"module:{value.__name__}"  # attributes read from it are compared at the read
        if isinstance(value, np.ufunc):
            return f"ufunc:{value.__name__}"
        if _is_numba_type(value):
            return type_text(value)
        if (name := instruction_name(value)) is not None:
            return f"ptx:{name}"
        if hasattr(value, "py_func") and _trusted(type(value).__module__):
            return self._jitted(value)
        return self._named(value)

    def _array(self, value) -> str:
        if value.nbytes > MAX_ARRAY or value.dtype.hasobject:
            raise Uncacheable(f"an array of {value.nbytes:,} bytes of {value.dtype}")
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        content = hashlib.sha256(value.tobytes(order)).hexdigest()
        return _digest("array", self.of(value.dtype), str(value.shape), str(value.flags.c_contiguous), order, content)

    def _named(self, value) -> str:
        """Return the key of a value identified by its name and its package's version."""
        module = value.__module__ if isinstance(value, type) else getattr(value, "__module__", None)
        if isinstance(value, types.BuiltinFunctionType) and module is None:
            module = "builtins"
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        if name is None or not _trusted(module):
            kind = type(value)
            raise Uncacheable(f"{name or 'a value'} of type {kind.__module__}.{kind.__qualname__}")
        return f"named:{module}.{name}"

    def _jitted(self, value) -> str:
        """A kernel or a device function: its function and how it is to be compiled."""
        options = getattr(value, "targetoptions", None)
        options = dict(getattr(value, "options", {}) if options is None else options)
        options.pop("chip", None)  # numba-cuda-mlir writes here what it compiles for, which is part of the key already
        if options.pop("link", None):
            raise Uncacheable(f"{value.__name__} is linked with files")
        if options.pop("extensions", None):
            raise Uncacheable(f"{value.__name__} has extensions")
        if options.get("debug") or options.get("lineinfo"):
            raise Uncacheable(f"{value.__name__} is compiled for a debugger or a profiler, with the lines of its file")
        self.device_functions.append(value)
        return _digest("jitted", self.function(value.py_func),
                       *(f"{name}={self.of(option)}" for name, option in sorted(options.items())))

    def function(self, function) -> str:
        """A Python function as a compiler sees it: its code and the values of all that it refers to."""
        if id(function) in self._in_progress:
            return f"itself:{self._in_progress.index(id(function)) - len(self._in_progress)}"
        self._in_progress.append(id(function))
        try:
            code = function.__code__
            parts = ["function", function.__name__, f"32 bits: {unsigned.follows(function)}", self.of(code),
                     self.of(function.__defaults__ or ()),
                     *(f"{name}={self.of(value)}" for name, value in sorted((function.__kwdefaults__ or {}).items()))]
            names = _all_names(code)
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
                try:
                    value = cell.cell_contents
                except ValueError:
                    parts.append(f"{name} is empty")
                else:
                    parts.append(f"{name}={self._referred(value, names)}")
            for name in _global_names(code):
                if name in function.__globals__:
                    parts.append(f"{name}={self._referred(function.__globals__[name], names)}")
                else:
                    parts.append(f"{name} is {'built in' if hasattr(builtins, name) else 'missing'}")
            return _digest(*parts)
        except Uncacheable as error:
            raise Uncacheable(f"{function.__name__} refers to {error}") from None
        finally:
            self._in_progress.pop()

    def _referred(self, value, names: set[str], depth: int = 0) -> str:
        """A value that code refers to; of a module, also what the code may read of it."""
        if not isinstance(value, types.ModuleType) or _trusted(value.__name__) or depth > 4:
            return self.of(value)
        attributes = vars(value)
        return _digest(self.of(value), *(f"{name}={self._referred(attributes[name], names, depth + 1)}"
                                         for name in sorted(names) if name in attributes))

    def _code(self, code: types.CodeType) -> str:
        return _digest("code", code.co_name, code.co_code.hex(), getattr(code, "co_exceptiontable", b"").hex(),
                       *map(str, (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
                                  code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)),
                       *map(self.of, code.co_consts))


def _is_numba_type(value) -> bool:
    return any(kind.__name__ == "Type" and kind.__module__.startswith(("numba.", "numba_cuda_mlir."))
               for kind in type(value).__mro__)


def type_text(value) -> str:
    """A Numba type, such as that of an argument, in full."""
    text = f"{type(value).__module__}.{type(value).__qualname__}:{value!s}:{value!r}"
    if " at 0x" in text:  # an address: it names an object of this process
        raise Uncacheable(f"the type {value}")
    return text


def instruction_name(value) -> str | None:
    """The name of one of labkit.ptx's instructions or labkit.u32's indices, on either device; None for anything
    else."""
    counterpart = getattr(value, "cpu_device", value)  # what a GPU's instruction does on the CPU device
    if not type(counterpart).__module__.startswith("labkit.simt"):
        return None
    from labkit.simt import u32
    from labkit.simt.ptx import INTRINSICS

    name = getattr(counterpart, "name", None)
    if isinstance(name, str) and INTRINSICS.get(name) is counterpart:
        return name
    return next((f"u32.{name}" for name in u32.NAMES if getattr(u32, name) is counterpart), None)


# --- What compiles --------------------------------------------------------------------------------------------------


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _str_or_empty(query) -> str:
    try:
        return str(query())
    except Exception:  # a library that is not installed, or another version of it
        return ""


def _loaded_from(name: str) -> str:
    from cuda import pathfinder

    return pathfinder.load_nvidia_dynamic_lib(name).abs_path


def _libdevice() -> str:
    if compiler.is_mlir():
        from numba_cuda_mlir.numba_cuda.cudadrv import libs
    else:
        from numba.cuda.cudadrv import libs
    return libs.get_libdevice()


def _driver() -> str:
    from cuda.bindings import driver

    return str(driver.cuDriverGetVersion())


@functools.cache
def compiler_files() -> dict[str, str]:
    """The compiler, the linker and the library of functions of the CUDA toolkit: which files they are, "" for one that
    is not found. Without nvJitLink the driver links, and its version counts."""
    paths = {"nvvm": _str_or_empty(lambda: _loaded_from("nvvm")), "libdevice": _str_or_empty(_libdevice),
             "nvJitLink": _str_or_empty(lambda: _loaded_from("nvJitLink"))}
    stamps = {name: path and f"{path} {Path(path).stat().st_size} {Path(path).stat().st_mtime_ns}"
              for name, path in paths.items()}
    return stamps if stamps["nvJitLink"] else stamps | {"nvJitLink": _str_or_empty(_driver)}


def _settings() -> list[str]:
    """Return the Numba settings that change the compiled code and are not among a kernel's options."""
    if compiler.is_mlir():
        from numba_cuda_mlir.numba_cuda.core import config
    else:
        from numba.cuda.core import config
    names = "ENABLE_NRT", "ENABLE_MINOR_VERSION_COMPATIBILITY", "USE_NVIDIA_BINDING", "INCLUDE_PATH"
    return [f"{name}={getattr(config, f'CUDA_{name}', '')!r}" for name in names]


@functools.cache
def own_files() -> str:
    """Digest of labkit's files that define instructions. Computed early, so that it matches the imported versions."""
    folder = Path(__file__).parent
    return _digest(*(hashlib.sha256((folder / name).read_bytes()).hexdigest()
                     for name in OWN_FILES))


OWN_FILES = ("__init__.py", "compile_target.py", "ptx_lines.py", "ptx_gpu.py", "ptx_mlir.py", "u32_gpu.py",
             "u32_mlir.py", "narrowing.py", "unsigned.py", "unsigned_mlir.py", "mlir.py", "../simt/unsigned.py",
             "../simt/runtime/operators.py")
PACKAGES = ("numba", "numba-cuda", "numba-cuda-mlir", "llvmlite", "numpy", "cuda-bindings", "cuda-core")


@functools.cache
def toolchain() -> str:
    """Everything that takes part in compiling: the versions of Python, of Numba and of the CUDA toolkit."""
    return _digest(str(FORMAT), compiler.name(), sys.implementation.cache_tag or "", sys.version, own_files(),
                   *(f"{name} {_version(name)}" for name in PACKAGES), str(compiler_files()), _str_or_empty(_settings))


def key_of(kernel, argument_types: tuple, capability: tuple, fingerprint: Fingerprint | None = None) -> str:
    """The key of a kernel, as compiled for these argument types and this compute capability. Raises Uncacheable."""
    fingerprint = fingerprint or Fingerprint()
    return _digest(toolchain(), str(tuple(capability)), fingerprint.of(kernel), *map(type_text, argument_types))
