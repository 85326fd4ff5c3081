"""The modules of numba.cuda whose functions are ordinary code on a CPU: libdevice, fp16, the vector types.

`rewrite` takes a LibraryFunction for a call of `code`; its implementation is in runtime/ under the same name.
"""

from numba.core import types

from labkit.simt.runtime import fp16 as _fp16
from labkit.simt.runtime import libdevice as _libdevice
from labkit.simt.runtime import vector_types as _vector_types
from labkit.simt.stubs import Function, Module

ARGUMENTS = ("x", "y", "z")
# A name of generated code -> the line that imports it there.
IMPORTS = {
    "_cmath": "import cmath as _cmath",
    "_fp16": "from labkit.simt.runtime import fp16 as _fp16",
    "_libdevice": "from labkit.simt.runtime import libdevice as _libdevice",
    "_vector": "from labkit.simt.runtime import vector_types as _vector",
}
_C_NAMES = {"char": "int8", "short": "int16", "int": "int32", "long": "int64", "longlong": "int64", "uchar": "uint8",
            "ushort": "uint16", "uint": "uint32", "ulong": "uint64", "ulonglong": "uint64", "float": "float32",
            "double": "float64"}  # fmt: skip
# Functions that the CPU device has already: the code, and the type that the arguments are converted to.
_ELSEWHERE = {
    "fma": ("_fma", "float64", 3), "fmaf": ("_fma", "float32", 3), "fma_rn": ("_fma", "float64", 3),
    "fmaf_rn": ("_fma", "float32", 3),
    "remainder": ("_remainder", "float64", 2), "remainderf": ("_remainder", "float32", 2),
}  # fmt: skip


class LibraryFunction(Function):
    """A function whose call is a call of `code`, each argument converted to `cast` first, if that is given."""

    def __init__(self, name, code, parameters, cast=None, doc=""):
        super().__init__(name, " ".join(ARGUMENTS[:parameters]), doc)
        self.code, self.cast = code, cast


class VectorType(Function):
    """A vector type: its call makes a vector, from numbers and from vectors."""

    def __init__(self, name):
        super().__init__(name, "", f"A vector of {name.partition('x')[0]}: its parts are .x, .y, .z and .w.")
        self.code = f"_vector.{name}"
        scalar, _, count = name.partition("x")  # as those of numba.cuda.vector_types
        self.base_type, self.num_elements, self.user_facing_object = getattr(types, scalar), int(count), self
        self.aliases = [f"{c}{count}" for c, of in _C_NAMES.items() if of == scalar]


class Library(Module):
    def __getattr__(self, attribute):
        raise AttributeError(f"cuda.{self._name}.{attribute} is not supported by the CPU device")


def _functions(module, runtime):
    return {name: LibraryFunction(f"{module}.{name}", f"_{module}.{name}", count)
            for name, count in runtime.PARAMETERS.items()}  # fmt: skip


libdevice = Library(
    "libdevice",
    **_functions("libdevice", _libdevice),
    **{name: LibraryFunction(f"libdevice.{name}", code, count, cast)
       for name, (code, cast, count) in _ELSEWHERE.items()},
)  # fmt: skip
fp16 = Library("fp16", **_functions("fp16", _fp16))
VECTOR_TYPES = {name: VectorType(name) for name in _vector_types.CLASSES}
VECTOR_TYPES |= {f"{c}{count}": VECTOR_TYPES[f"{scalar}x{count}"]
                 for c, scalar in _C_NAMES.items() for count in (1, 2, 3, 4)}  # fmt: skip


# numba-cuda-mlir, which has the same names in packages of its own.
_MLIR = ("numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda")


def as_numba_cuda(module):
    """The name of one of numba-cuda-mlir's modules as numba-cuda has it; any other as it is."""
    for package in _MLIR:
        if module == package or (module or "").startswith(f"{package}."):
            return f"numba.cuda{module.removeprefix(package)}"
    return module


def counterpart(module, attribute):
    """Ours for a name of numba.cuda's own modules, or None."""
    module = as_numba_cuda(module)
    if module == "numba.cuda":
        return VECTOR_TYPES.get(attribute) or {"libdevice": libdevice, "fp16": fp16}.get(attribute)
    if module == "numba.cuda.stubs":
        return VECTOR_TYPES.get(attribute)
    library = {"numba.cuda.libdevice": libdevice, "numba.cuda.fp16": fp16}.get(module)
    return None if library is None else vars(library).get(attribute)
