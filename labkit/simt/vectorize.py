"""cuda.vectorize and cuda.guvectorize: NumPy ufuncs from a function of numbers, over arrays of the host or the device.

    @cuda.vectorize(["float32(float32, float32)"])
    def relative(a, b):
        return (a - b) / b

On a GPU each element is a thread's. Here Numba compiles the loop for the CPU; device functions that the function calls
are compiled with it. A result is in device memory if any argument is, as with numba.cuda.
"""

import types as python_types

import numba
import numpy as np
from numba.core.errors import NumbaError

from labkit.simt import stubs
from labkit.simt.arrays import DeviceNDArray, as_cuda_array, is_cuda_array, on_device
from labkit.simt.errors import KernelTypeError, UnsupportedError, file_label
from labkit.simt.scope import is_device_function
from labkit.simt.sources import read_source

__all__ = ["guvectorize", "vectorize"]

_IGNORED = {"target", "nopython", "cache", "fastmath", "identity"}  # they change no value here


def vectorize(ftylist_or_function=(), **options):
    """A ufunc from a function of numbers, for the signatures given: `@cuda.vectorize(["float32(float32)"])`."""
    _check("vectorize", options)
    if callable(ftylist_or_function) or not ftylist_or_function:
        raise UnsupportedError("cuda.vectorize needs the signatures: @cuda.vectorize(['float32(float32)'])")
    signatures = ftylist_or_function if isinstance(ftylist_or_function, (list, tuple)) else [ftylist_or_function]
    return lambda function: DeviceUfunc(
        function, _compiled("vectorize", function, lambda f: numba.vectorize(list(signatures))(f))
    )


def guvectorize(ftylist, signature, **options):
    """A ufunc over subarrays, from a function that writes its outputs: signature is "(m,n),(n,p)->(m,p)"."""
    _check("guvectorize", options)
    signatures = ftylist if isinstance(ftylist, (list, tuple)) else [ftylist]
    return lambda function: DeviceUfunc(
        function, _compiled("guvectorize", function, lambda f: numba.guvectorize(list(signatures), signature)(f))
    )


def _check(name, options):
    unknown = set(options) - _IGNORED
    if unknown:
        raise UnsupportedError(f"cuda.{name} has no option {', '.join(sorted(unknown))}")


def _compiled(name, function, compile_):
    read_source(function)
    try:
        return compile_(_for_the_host(name, function))
    except NumbaError as error:
        first_line = next((part.strip() for part in str(error).split("\n")[1:] if part.strip()), str(error))
        raise KernelTypeError(
            f"cuda.{name} of {function.__name__}: does not compile for its signatures: {first_line} "
            f"({file_label(function.__code__.co_filename)}:{function.__code__.co_firstlineno})"
        ) from error


def _for_the_host(name, function):
    """The function with the device functions that it calls compiled for the CPU; names of numba.cuda are refused."""

    def translated(key, value):
        if is_device_function(value) and not isinstance(value, numba.core.dispatcher.Dispatcher):
            return numba.njit(error_model="numpy")(_for_the_host(name, value.py_func))
        if isinstance(value, (stubs.Function, stubs.Dim3, stubs.Value, stubs.Module)):
            subject = f"cuda.{name} of {function.__name__}: {key}"
            raise UnsupportedError(f"{subject} is not supported by the CPU device in a ufunc")
        return value

    used = set(function.__code__.co_names)
    surroundings = {
        key: translated(key, value) if key in used else value for key, value in function.__globals__.items()
    }
    cells = []
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        cells.append(python_types.CellType(translated(key, cell.cell_contents)))
    private = f"_{function.__name__}"  # NumPy's reduce() promotes small integers to int64 in a ufunc named add
    new = python_types.FunctionType(
        function.__code__, surroundings, private, function.__defaults__, tuple(cells) or None
    )
    new.__kwdefaults__, new.__module__, new.__qualname__ = (
        function.__kwdefaults__, function.__module__, function.__qualname__
    )  # fmt: skip
    return new


class DeviceUfunc:
    """What cuda.vectorize makes: called with arrays and numbers; outputs may follow, or be given as `out`."""

    def __init__(self, function, ufunc):
        self._ufunc = ufunc
        self.py_func = function
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__

    def __repr__(self):
        return f"<ufunc {self.__name__} of the CPU device>"

    def __call__(self, *args, out=None, stream=0):
        nin = self._ufunc.nin
        if len(args) < nin:
            raise TypeError(f"{self.__name__} takes {nin} arguments, {len(args)} given")
        outputs = [*args[nin:], *(out if isinstance(out, tuple) else () if out is None else (out,))]
        outputs = [as_cuda_array(a) if is_cuda_array(a) else a for a in outputs]
        inputs = [as_cuda_array(a)._array if is_cuda_array(a) else a for a in args[:nin]]
        inputs = self._cast(inputs)
        with np.errstate(all="ignore"):
            result = self._ufunc(*inputs, *(a._array if isinstance(a, DeviceNDArray) else a for a in outputs))
        if outputs:
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        if not any(is_cuda_array(a) for a in args):
            return result
        wrapped = [on_device(np.asarray(r), stream) if np.ndim(r) else r
                 for r in (result if isinstance(result, tuple) else (result,))]  # fmt: skip
        return tuple(wrapped) if isinstance(result, tuple) else wrapped[0]

    def _cast(self, inputs):
        """Inputs cast where NumPy refuses them and numba-cuda takes them: a number to the type declared for it where
        the arrays have theirs, and for a generalized ufunc arrays to the first signature that casts to *their* types.
        """
        given = [np.asarray(a).dtype for a in inputs]
        signatures = [[np.dtype(code) for code in types.split("->")[0]] for types in self._ufunc.types]
        if any(all(map(np.can_cast, given, declared)) for declared in signatures):
            return inputs
        for declared in signatures:
            numbers = all(np.ndim(a) == 0 or t == d for a, t, d in zip(inputs, given, declared, strict=True))
            if numbers or self._ufunc.signature and all(map(np.can_cast, declared, given)):
                return [np.asarray(a).astype(dtype)[()] for a, dtype in zip(inputs, declared, strict=True)]
        return inputs

    def reduce(self, arg, stream=0):
        """The function applied over all the elements, two by two; one number."""
        values = as_cuda_array(arg)._array if is_cuda_array(arg) else np.asarray(arg)
        return self._ufunc.reduce(values)
