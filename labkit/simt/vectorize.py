"""cuda.vectorize and cuda.guvectorize: NumPy ufuncs from a function of numbers, over arrays of the host or the device.

    @cuda.vectorize(["float32(float32, float32)"])
    def relative(a, b):
        return (a - b) / b

On a GPU each element is a thread's. Here Numba compiles the loop for the CPU; device functions that the function calls
are compiled with it. A result is in device memory if any argument is, as with numba.cuda.
"""

import math
import types as python_types
import warnings

import numba
import numpy as np
from numba.core import sigutils, types
from numba.core.errors import NumbaError

from labkit.simt import advice, stubs
from labkit.simt.arrays import DeviceNDArray, as_cuda_array, is_cuda_array, on_device
from labkit.simt.errors import KernelTypeError, UnsupportedError, file_label
from labkit.simt.scope import is_device_function
from labkit.simt.sources import read_source

__all__ = ["guvectorize", "vectorize"]

_BLOCK = 256  # threads, as kernel.forall has them


def vectorize(ftylist_or_function=(), target="cuda", identity=None, cache=False, **options):
    """A ufunc from a function of numbers, for the signatures given: `@cuda.vectorize(["float32(float32)"])`."""
    _check_cache(cache)
    if options.pop("nopython", None) is not None:
        warnings.warn("nopython kwarg for cuda target is redundant", RuntimeWarning, stacklevel=2)
    if options:
        names = ", ".join(map(repr, sorted(options)))
        raise KeyError(f"Unrecognized options. cuda vectorize target does not support option: {names}")
    if callable(ftylist_or_function) or not ftylist_or_function:
        raise UnsupportedError("cuda.vectorize needs the signatures: @cuda.vectorize(['float32(float32)'])")
    signatures = ftylist_or_function if isinstance(ftylist_or_function, (list, tuple)) else [ftylist_or_function]
    _check_types("vectorize", signatures)
    return lambda function: DeviceUfunc(
        function, _compiled("vectorize", function, lambda f: numba.vectorize(list(signatures))(f))
    )


def guvectorize(ftylist, signature, target="cuda", identity=None, cache=False, nopython=True, **options):
    """A ufunc over subarrays, from a function that writes its outputs: signature is "(m,n),(n,p)->(m,p)"."""
    _check_cache(cache)
    if not nopython:
        raise TypeError("nopython flag must be True")
    if options:
        names = ", ".join(map(repr, sorted(options)))
        raise UnsupportedError(f"The following target options are not supported: {names}")
    signatures = ftylist if isinstance(ftylist, (list, tuple)) else [ftylist]
    _check_types("guvectorize", signatures)
    for one in signatures:
        _, returned = sigutils.normalize_signature(one)
        if returned not in (types.none, None):
            raise UnsupportedError(
                f"guvectorized functions cannot return values: signature {one} specifies {returned} return type"
            )
    return lambda function: DeviceGufunc(
        function, _compiled("guvectorize", function, lambda f: numba.guvectorize(list(signatures), signature)(f))
    )


def _check_types(name, signatures):
    for one in signatures:
        for ty in sigutils.normalize_signature(one)[0]:
            if isinstance(getattr(ty, "dtype", ty), (types.NPDatetime, types.NPTimedelta)):
                raise UnsupportedError(f"cuda.{name} for {ty} is not supported by the CPU device: use int64")


def _check_cache(cache):
    if cache:
        raise TypeError("caching is not supported")


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
    """What cuda.vectorize makes: called with arrays and numbers, and `out`. Arrays must have a signature's types."""

    def __init__(self, function, ufunc):
        self._ufunc = ufunc
        accepted = [text.partition("->")[0] for text in ufunc.types]
        self._signatures = list(dict.fromkeys(tuple(map(np.dtype, text)) for text in accepted))
        self.py_func = function
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__

    def __repr__(self):
        return f"<ufunc {self.__name__} of the CPU device>"

    def __call__(self, *args, out=None, stream=0):
        inputs, outputs = self._split(args, out)
        outputs = [as_cuda_array(a) if is_cuda_array(a) else a for a in outputs]
        values = self._typed([as_cuda_array(a)._array if is_cuda_array(a) else a for a in inputs],
                             [is_cuda_array(a) for a in inputs])  # fmt: skip
        with np.errstate(all="ignore"):
            result = self._ufunc(*values, *(a._array if isinstance(a, DeviceNDArray) else a for a in outputs))
        results = result if isinstance(result, tuple) else (result,)
        advice.on_grid(-(-self._threads(np.shape(results[0])) // _BLOCK), stacklevel=3)
        if outputs:
            results = outputs
        elif any(is_cuda_array(a) for a in args):
            results = [on_device(np.asarray(r), stream) if np.ndim(r) else r for r in results]
        return results[0] if len(results) == 1 else tuple(results)

    def _split(self, args, out):
        """The inputs and the outputs of a call."""
        if len(args) != self._ufunc.nin:
            raise TypeError(f"{self.__name__} takes {self._ufunc.nin} arguments, {len(args)} given")
        return args, [] if out is None else list(out) if isinstance(out, tuple) else [out]

    def _typed(self, inputs, on_device):
        """The inputs in the types of the one signature that takes them: arrays have its types, numbers are converted.

        on_device: for each input, whether it is in device memory.
        """
        given = [a if isinstance(a, (int, float, complex, np.number)) else np.asarray(a) for a in inputs]
        kinds = [a.dtype if isinstance(a, np.ndarray) else None for a in given]
        exact = tuple(np.asarray(a).dtype for a in given)
        fitting = [s for s in self._signatures if all(k in (None, f) for k, f in zip(kinds, s, strict=True))]
        fitting = [exact] if exact in fitting else fitting
        if not fitting:
            raise TypeError(
                f"{self.__name__}({', '.join(map(str, exact))}): No matching version.  GPU ufunc requires array "
                "arguments to have the exact types.  This behaves like regular ufunc with casting='no'."
            )
        if len(fitting) > 1:
            raise TypeError(
                f"{self.__name__}: Failed to resolve ufunc due to ambiguous signature. Too many untyped scalars. Use "
                "numpy dtype object to type tag."
            )
        return [np.asarray(a, dtype) for a, dtype in zip(given, fitting[0], strict=True)]

    def _threads(self, shape):
        """How many threads a GPU runs for a result of this shape."""
        return math.prod(shape)

    def reduce(self, arg, stream=0):
        """The function applied over all the elements, two by two; one number."""
        values = as_cuda_array(arg)._array if is_cuda_array(arg) else np.asarray(arg)
        return self._ufunc.reduce(values)


class DeviceGufunc(DeviceUfunc):
    """What cuda.guvectorize makes. Outputs may follow the inputs; host arrays are converted to a signature's types."""

    def _split(self, args, out):
        nin, nout = self._ufunc.nin, self._ufunc.nout
        if out is None and len(args) not in (nin, nin + nout):
            raise TypeError(
                f"{self.__name__}: This gufunc accepts {_positional(nin)} (when providing input only) or "
                f"{_positional(nin + nout)} (when providing input and output). Got {_positional(len(args))}."
            )
        if out is not None and len(args) > nin:
            raise ValueError("cannot specify argument 'out' as both positional and keyword")
        if out is None:
            return args[:nin], list(args[nin:])
        return args, list(out) if isinstance(out, tuple) else [out]

    def _typed(self, inputs, on_device):
        given = [np.asarray(a) for a in inputs]
        kinds = tuple(a.dtype for a in given)
        if kinds in self._signatures:
            return given
        # As numba-cuda chooses: the first signature whose types NumPy converts to the given ones.
        fitting = next((s for s in self._signatures if all(map(np.can_cast, s, kinds))), None)
        if fitting is None:
            raise TypeError(f"{self.__name__}({', '.join(map(str, kinds))}): no matching signature")
        for array, dtype, stays in zip(given, fitting, on_device, strict=True):
            if stays and array.dtype != dtype:
                raise TypeError(
                    f"{self.__name__}: compatible signature is possible by casting but {DeviceNDArray} does not "
                    f"support .astype(): a device array has the type {array.dtype}, and the signature {dtype}"
                )
        return [a.astype(dtype) for a, dtype in zip(given, fitting, strict=True)]

    def _threads(self, shape):
        signature = self._ufunc.signature or "->()"  # NumPy has none where all are numbers
        first_output = signature.partition("->")[2].partition(")")[0].strip("( ")
        inner = len(first_output.split(",")) if first_output else 0
        return math.prod(shape[: len(shape) - inner])


def _positional(count):
    return f"{count} positional argument{'' if count == 1 else 's'}"
