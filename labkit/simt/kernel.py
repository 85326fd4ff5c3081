"""What `@cuda.jit` makes on the CPU device: kernels and device functions. And `show`, the source that runs."""

import os
import sys
import threading
from functools import cached_property, update_wrapper

import numba
import numpy as np
from numba import cloudpickle
from numba.core import sigutils, types
from numba.core.errors import NumbaError

from labkit.simt.arguments import (
    TENSOR_MAP_TYPE,
    argument_value,
    as_scalar,
    check_signature,
    fits,
    host_view,
    passed_type,
    quick_arguments,
)
from labkit.simt.codegen.emit import Generator
from labkit.simt.compiled_kernel import CompiledKernel, InterpretedKernel, frozen_constant, is_cached
from labkit.simt.errors import ArgumentError, KernelTypeError, LaunchError, LaunchFormError, UnsupportedError
from labkit.simt.interpreted_source import source
from labkit.simt.launch import ConfiguredKernel, check_launch_bounds, dimensions
from labkit.simt.ptx import TensorMap
from labkit.simt.rewrite import rewrite
from labkit.simt.settings import LIMITS, current_order, is_checked
from labkit.simt.sources import read_source

_OF_GPU_CODE = {"get_regs_per_thread", "get_local_mem_per_thread", "get_const_mem_size", "inspect_asm", "inspect_llvm",
                "inspect_sass", "inspect_sass_cfg", "inspect_cfg", "inspect_disasm_cfg", "inspect_types",
                "inspect_lto_ptx"}  # fmt: skip
# What numba.cuda's dispatchers have for its compiler.
_OF_COMPILER = {"_compile_for_args", "add_overload", "call", "compile_device", "disable_compile", "dump",
                "enable_caching", "fold_argument_types", "get_annotation_info", "get_call_template",
                "get_compile_result", "get_function_type", "get_metadata", "get_overload", "is_compiling",
                "mark_launch_config_sensitive", "nopython_signatures", "recompile", "stats", "targetdescr",
                "typeof_pyval"}  # fmt: skip
_COMPILE_LOCK = threading.RLock()


def _after_fork():
    """A child process must not wait for a lock that a thread of its parent held."""
    global _COMPILE_LOCK
    _COMPILE_LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class DeviceFunction:
    """What `@cuda.jit(device=True)` makes on the CPU device: kernels call it, the host cannot."""

    def __init__(self, function, signature=None):
        """signature: Numba's, of the types that arguments are converted to, and the result; None leaves them alone."""
        read_source(function)
        self.py_func, self.signature = function, signature
        update_wrapper(self, function, updated=())

    def __reduce__(self):
        return _pickled(self, DeviceFunction, self.signature)

    def __call__(self, *args, **kwargs):
        raise TypeError(f"{self.__name__} is a device function: only kernels and device functions can call it")

    def __getattr__(self, name):
        if name in _OF_GPU_CODE:
            raise AttributeError(f"{self.__name__}.{name} describes GPU code: it needs a GPU")
        raise AttributeError(f"a device function has no attribute {name!r}")

    def __repr__(self):
        return f"<device function {self.__name__}>"


class Kernel:
    """What `@cuda.jit` makes on the CPU device. Launched as `kernel[grid, block, stream, shared_bytes](...)`.

    As with numba.cuda, another kernel may call it as a device function.
    """

    def __init__(self, function, signatures=(), options=None):
        if getattr(function, "__name__", "") == "<lambda>":
            raise UnsupportedError("a lambda cannot be a kernel: write it with def")
        read_source(function)
        self.py_func, self.options = function, options or {}
        update_wrapper(self, function, updated=())
        self.dynamic_allowed = LIMITS.shared_per_block
        self.last_launch = None
        self.extensions = list(self.options.get("extensions") or ())
        self.specializations = {}
        self._compiled, self._quick = {}, {}  # _quick: the same, by what a launch looks at first
        self._given = [tuple(s) for s in signatures]
        for signature in self._given:
            check_signature(self.__name__, signature)
            self._compile(signature)

    def __repr__(self):
        return f"<kernel {self.__name__}>"

    def __reduce__(self):
        return _pickled(self, Kernel, self._given, self.options)

    @property
    def overloads(self):
        """The compiled kernels, by argument types."""
        return {types_: compiled for (types_, *_), compiled in self._compiled.items()}

    @property
    def signatures(self):
        """The argument types that the kernel is compiled for."""
        return list(self.overloads)

    def __getattr__(self, name):
        if name in _OF_GPU_CODE:
            raise AttributeError(f"{self.__name__}.{name} describes GPU code: it needs a GPU")
        if name in _OF_COMPILER:
            raise AttributeError(f"{self.__name__}.{name} is of numba.cuda's compiler: not supported on the CPU device")
        raise AttributeError(f"a kernel has no attribute {name!r}")

    @cached_property
    def params(self):
        code = self.py_func.__code__
        return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def __call__(self, *args, **kwargs):
        raise LaunchFormError(
            f"{self.__name__} is a kernel: launch it with a grid and a block, {self.__name__}[grid, block](...); the "
            "launch configuration was not specified"
        )

    def __getitem__(self, configuration):
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchFormError(
                f"{self.__name__}[...] takes [grid, block], or [grid, block, stream], or "
                "[grid, block, stream, shared_bytes]"
            )
        return self.configure(*configuration)

    def configure(self, griddim, blockdim, stream=0, sharedmem=0):
        """The kernel bound to a launch configuration. grid and block are ints or tuples of up to three ints."""
        grid, block = dimensions(self, "grid", griddim), dimensions(self, "block", blockdim)
        check_launch_bounds(self, block)
        return ConfiguredKernel(self, grid, block, stream, sharedmem)

    def forall(self, ntasks, tpb=0, stream=0, sharedmem=0):
        """A launch over ntasks threads in one dimension."""
        if ntasks < 0:
            raise LaunchError(f"{self.__name__}.forall: Can't create ForAll with negative task count: {ntasks}")
        block = tpb or min(256, LIMITS.max_threads_per_block)
        return self.configure(-(-ntasks // block), block, stream, sharedmem) if ntasks else lambda *args: None

    def specialize(self, *args):
        """The kernel for these types, or the types of these arguments, alone; the same one for the same types."""
        if self._given:
            raise RuntimeError(f"Dispatcher already specialized: the signature of {self.__name__} says its types")
        argument_types = tuple(a if isinstance(a, types.Type) else numba.typeof(host_view(a)) for a in args)
        known = self.specializations.get(argument_types)
        if known is None:
            known = self.specializations[argument_types] = Kernel(self.py_func, [argument_types], self.options)
        return known

    @property
    def specialized(self):
        """Whether the kernel takes arguments of one set of types alone."""
        return len(self._given) == 1

    def get_shared_mem_per_block(self, signature=None):
        """Bytes of static shared memory, for a signature; without one, of each set of argument types."""
        return self._of_overloads("static_bytes", signature)

    def get_max_threads_per_block(self, signature=None):
        """The most threads that a block may have, as for get_shared_mem_per_block."""
        return self._of_overloads("max_threads_per_block", signature)

    def _of_overloads(self, attribute, signature):
        if signature is not None:
            return getattr(self.overloads[sigutils.normalize_signature(signature)[0]], attribute)
        values = {argument_types: getattr(o, attribute) for argument_types, o in self.overloads.items()}
        return next(iter(values.values())) if self.specialized else values

    def compile(self, signature):
        """Compile for a signature, ahead of the first launch."""
        argument_types, _ = sigutils.normalize_signature(signature)
        return self._compile(argument_types)

    def allow_dynamic_shared(self, nbytes):
        """Allow launches up to nbytes of dynamic shared memory: above 48 KB CUDA wants to be asked."""
        self.dynamic_allowed = max(self.dynamic_allowed, int(nbytes))

    def _key(self, argument_types, flat):
        ordered = current_order() != "forward"  # one kernel for all other orders
        return argument_types, is_checked(), ordered, flat and not ordered

    def _compile(self, argument_types, flat=False):
        """flat: for blocks of one dimension alone, whose code is shorter and compiles sooner."""
        key = self._key(argument_types, flat)
        compiled = self._compiled.get(key)
        if compiled is None:
            if len(argument_types) != len(self.params):
                raise KernelTypeError(
                    f"{self.__name__} has {len(self.params)} parameters and its signature {len(argument_types)}"
                )
            with _COMPILE_LOCK:
                compiled = self._compiled[key] = self._made(self._rewritten(argument_types), key)
        return compiled

    @property
    def checks_division(self):
        """Whether a division by zero is a fault."""
        return bool(self.options.get("debug")) and not self.options.get("fastmath")

    def _rewritten(self, argument_types):
        return rewrite(self.py_func, argument_types, self.checks_division)

    @staticmethod
    def _made(program, key):
        argument_types, _, ordered, flat = key
        if program.interpreted:
            return InterpretedKernel(program)
        return CompiledKernel(program, tuple(map(passed_type, argument_types)), ordered, flat)

    # What labkit.device.compile_ahead needs, in this order.

    def compile_key(self, args, flat=False):
        """What a launch with these (host view) arguments compiles: (argument types, flat)."""
        if self._given:
            return self._nearest(args), False
        return tuple(self._typeof(k, a) for k, a in enumerate(args)), flat

    def load(self, argument_types, flat):
        """Takes what an earlier process has compiled; False if it must be compiled yet."""
        key = self._key(argument_types, flat)
        if key not in self._compiled:
            with _COMPILE_LOCK:
                program = self._rewritten(argument_types)
                if not program.interpreted and not is_cached(
                    program, tuple(map(passed_type, argument_types)), *key[2:]
                ):
                    return False
                self._compiled[key] = self._made(program, key)
        return True

    def compile_for(self, argument_types, flat):
        """Compiles it, and keeps it on disk."""
        self._compile(argument_types, flat)

    def compiled_for(self, args, flat=False):
        """The compiled kernel for the arguments of a launch, and the arguments as it takes them."""
        quick, kinds = quick_arguments(args)
        key = kinds, is_checked(), current_order() != "forward", flat
        compiled = None if quick is None else self._quick.get(key)
        if compiled is not None:
            return compiled, quick
        values = [argument_value(self, name, a) for name, a in zip(self.params, args, strict=True)]
        compiled = self._compile(*self.compile_key(values, flat))
        if quick is not None and not self._given:
            self._quick[key] = compiled
        return compiled, self.converted(values)

    def converted(self, args):
        """These (host view) arguments as the kernel takes them: scalars in the types of its signature."""
        if not self._given:
            return args
        return [as_scalar(a, ty) for a, ty in zip(args, self._nearest(args), strict=True)]

    def _nearest(self, args):
        """The signature whose types the arguments reach with the fewest conversions, none of which loses much."""
        candidates = []
        for signature in self._given:
            check_signature(self.__name__, signature)
            distances = [fits(a, ty) for a, ty in zip(args, signature, strict=True)]
            if None not in distances:
                candidates.append((sorted(distances, reverse=True), signature))
        if not candidates:
            launch_types = ", ".join(str(self._typeof(k, a)) for k, a in enumerate(args))
            compiled_types = " or ".join(f"({', '.join(map(str, s))})" for s in self._given)
            raise ArgumentError(
                f"No matching definition for argument type(s) {launch_types}: {self.__name__} is compiled for "
                f"{compiled_types}"
            )
        least = min(distance for distance, _ in candidates)
        nearest = [signature for distance, signature in candidates if distance == least]
        if len(nearest) > 1 and any(least):
            launch_types = tuple(self._typeof(k, a) for k, a in enumerate(args))
            lines = "\n".join(f"{signature} -> none" for signature in nearest)
            raise ArgumentError(f"Ambiguous overloading for {self.py_func} {launch_types}:\n{lines}")
        return nearest[0]

    def _typeof(self, position, value):
        if isinstance(value, TensorMap):
            return TENSOR_MAP_TYPE
        try:
            return _quick_typeof(value)
        except (ValueError, TypeError, NumbaError) as error:
            raise ArgumentError(
                f"{self.__name__}: argument {self.params[position]!r} has the type {type(value).__name__}, which a "
                f"kernel cannot take ({error})"
            ) from None


_TYPES = {}


def _quick_typeof(value):
    """numba.typeof, which takes longer than all else before a launch: looked up by what decides it."""
    if type(value) is np.ndarray:
        flags = value.flags
        key = (value.dtype, value.ndim, flags.c_contiguous, flags.f_contiguous, flags.writeable, flags.aligned)
    elif isinstance(value, np.number) and not isinstance(value, np.timedelta64):
        key = type(value)
    else:
        return numba.typeof(value)
    ty = _TYPES.get(key)
    if ty is None:
        ty = _TYPES[key] = numba.typeof(value)
    return ty


def _pickled(made, kind, *settings):
    """By name, as functions are pickled; by value where the name does not lead to it, in a function for one."""
    resolved = sys.modules.get(made.__module__)
    for name in made.__qualname__.split("."):
        resolved = getattr(resolved, name, None)
    if resolved is made:
        return made.__qualname__
    return _unpickled, (kind, cloudpickle.dumps(made.py_func), *settings)


def _unpickled(kind, function, *settings):
    return kind(cloudpickle.loads(function), *settings)


def show(kernel, *args):
    """Return the source that the CPU device runs for a kernel, without its bounds checks, as text.

    Takes a kernel and the arguments of a launch (their types decide which data is kept per thread).
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"show takes a kernel of the CPU device, not {kernel!r}")
    program = rewrite(kernel.py_func)
    if program.interpreted:
        return source(program)
    if kernel._given and not args:
        argument_types = tuple(map(passed_type, kernel._given[0]))
    elif len(args) != len(kernel.params):
        raise ArgumentError(f"show({kernel.__name__}, ...) needs the arguments of a launch: {', '.join(kernel.params)}")
    else:
        argument_types = tuple(numba.typeof(host_view(a)) for a in args)
    if program.overloads:
        program = rewrite(kernel.py_func, argument_types)
    constants = [numba.typeof(frozen_constant(a)) for a in program.constants.values()]
    return Generator(program, (*constants, *argument_types), pretty=True).generate()
