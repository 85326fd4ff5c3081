"""@cuda.jit, with numba.cuda's options."""

from numba.core import sigutils, types
from numba.core.dispatcher import Dispatcher

from labkit.simt import advice, errors
from labkit.simt.kernel import DeviceFunction, Kernel

JIT_OPTIONS = {"device", "inline", "forceinline", "link", "debug", "opt", "lineinfo", "cache", "launch_bounds", "lto",
               "shared_memory_carveout", "fastmath", "max_registers", "extensions", "nopython", "argtypes", "restype",
               "bind", "boundscheck", "abi", "abi_info", "target"}  # fmt: skip


def jit(func_or_sig=None, device=False, **options):
    """Compile a Python function for the device, as numba.cuda.jit does.

    Takes a function, a signature or a list of signatures, or nothing: `@cuda.jit`, `@cuda.jit("void(float32[:])")`,
    `@cuda.jit(device=True)`. Every option of numba.cuda.jit is accepted; those that steer a GPU's code (max_registers,
    fastmath, lineinfo, ...) change nothing here.
    Returns a kernel, or a device function, or a decorator. Raises UnsupportedError for what device code may not hold.
    """
    unknown = set(options) - JIT_OPTIONS
    if unknown:
        raise errors.UnsupportedError(f"cuda.jit has no option {', '.join(sorted(unknown))}")
    if options.get("link"):
        raise errors.UnsupportedError("cuda.jit(link=...) links GPU code: it needs a GPU")
    _check_options(**options)
    advice.on_options(**options)
    if callable(func_or_sig) and not isinstance(func_or_sig, types.Type):
        function = _in_python(func_or_sig)
        return DeviceFunction(function) if device else Kernel(function, options=options)
    if device:
        signature = _device_signature(func_or_sig)
        return lambda function: DeviceFunction(_in_python(function), signature)
    signatures = _signatures(func_or_sig)

    def decorate(function):
        return Kernel(_in_python(function), signatures, options)

    return decorate


def _in_python(function):
    """The function that numba.jit has compiled for the CPU; any other as it is."""
    return function.py_func if isinstance(function, Dispatcher) else function


def _check_options(launch_bounds=None, shared_memory_carveout=None, **_):
    """What numba.cuda refuses in the options that describe a launch."""
    bounds = launch_bounds if isinstance(launch_bounds, tuple) else (launch_bounds,)
    are_counts = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in bounds)
    if launch_bounds is not None and not (are_counts and 1 <= len(bounds) <= 3):
        raise ValueError(
            f"Got {len(bounds)} launch bounds: launch_bounds is {launch_bounds!r}; it must be the most threads of a "
            "block, or a tuple of that, the fewest blocks on an SM and the most blocks of a cluster"
        )
    words, carveout = ("default", "maxl1", "maxshared"), shared_memory_carveout
    known = carveout.lower() in words if isinstance(carveout, str) else carveout is None or (
        isinstance(carveout, int) and -1 <= carveout <= 100
    )  # fmt: skip
    if not known:
        raise ValueError(
            f"Invalid carveout value: shared_memory_carveout is {carveout!r}; it must be between -1 and "
            f"100, a percentage, or one of {', '.join(words)}"
        )


def _signatures(func_or_sig):
    """Argument types from a signature, a list of them, or None."""
    if func_or_sig is None:
        return []
    argument_types = []
    for signature in func_or_sig if isinstance(func_or_sig, list) else [func_or_sig]:
        arguments, returned = sigutils.normalize_signature(signature)
        if returned not in (None, types.void, types.none):
            raise errors.UnsupportedError(f"a kernel cannot return a value: its signature returns {returned}")
        argument_types.append(arguments)
    return argument_types


def _device_signature(func_or_sig):
    """(argument types, type of the result or None) of a device function, or None. It is compiled with each caller."""
    func_or_sig = func_or_sig if isinstance(func_or_sig, list) else [] if func_or_sig is None else [func_or_sig]
    if len(func_or_sig) > 1:
        raise errors.UnsupportedError(
            "a device function with several signatures is not supported on the CPU device: leave them out, and it is "
            "compiled for the types of each call"
        )
    return sigutils.normalize_signature(func_or_sig[0]) if func_or_sig else None
