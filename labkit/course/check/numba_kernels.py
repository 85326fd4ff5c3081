"""`from numba import cuda`, or `from numba_cuda_mlir import cuda`, in a learner's cell, on a machine without a GPU.

It is the first line of every example on the web, and takes the place of the notebook's own `cuda`. These modules need a
GPU to launch anything, so while an answer is checked their kernels are made kernels of the CPU device, and what else
they have (arrays, streams, synchronize) is the CPU device's, too. On a GPU nothing is touched.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types

from labkit import device
from labkit.simt import api
from labkit.simt.jit import JIT_OPTIONS, jit

# Of each compiler: its module `cuda`, the module of its kernels, their type.
COMPILERS = (("numba.cuda", "numba.cuda.dispatcher", "CUDADispatcher"),
             ("numba_cuda_mlir.cuda", "numba_cuda_mlir.descriptor", "MLIRDispatcher"))


def _imported() -> list[tuple]:
    """(the module cuda, the type of its kernels) of each compiler that this process has imported."""
    return [(sys.modules[cuda], getattr(sys.modules[home], kind)) for cuda, home, kind in COMPILERS
            if cuda in sys.modules and home in sys.modules]


def adopted(answer):
    """A kernel or device function that a compiler of GPU code made, as one of the CPU device; anything else as it
    is."""
    return _adopted(answer) if not device.on_gpu() and _is_a_compilers(answer) else answer


def _is_a_compilers(answer) -> bool:
    return any(isinstance(answer, kind) for _, kind in _imported())


@functools.lru_cache(maxsize=256)
def _adopted(dispatcher):
    options = {name: value for name, value in dispatcher.targetoptions.items() if name in JIT_OPTIONS and value}
    return jit(_rebound(dispatcher.py_func), **options)


def _rebound(function):
    """The function with the CPU device's names in the place of the compiler's, where it has them by `from numba.cuda
    import grid`. Those that it takes from the module, as in cuda.grid, are understood without."""
    replacements = {id(value): getattr(api, name) for cuda, _ in _imported() for name, value in _public(cuda)}
    names = {name: replacements[id(value)] for name, value in function.__globals__.items() if id(value) in replacements}
    if not names:
        return function
    copy = types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__,
                              function.__defaults__, function.__closure__)
    return functools.update_wrapper(copy, function)


@functools.cache
def _public(cuda) -> tuple[tuple[str, object], ...]:
    """What the module and the CPU device both have, as the module has it."""
    excluded = ("errors", "types")
    return tuple((name, getattr(cuda, name)) for name in dir(api)
                 if not name.startswith("_") and name not in excluded and hasattr(cuda, name))


@contextlib.contextmanager
def numba_on_cpu():
    """Within the block the compilers' cuda launches on the CPU device, wherever it is called from."""
    if device.on_gpu():
        yield
        return
    methods = ("__getitem__", "__call__", "configure", "forall")
    replaced = [(cuda, name, value, getattr(api, name)) for cuda, _ in _imported() for name, value in _public(cuda)]
    replaced += [(kernels, name, getattr(kernels, name), _forwarding(name))
                 for _, kernels in _imported() for name in methods]
    try:
        for owner, name, _, other in replaced:
            setattr(owner, name, other)
        _replaced.extend(replaced)
        yield
    finally:
        _replaced.clear()
        for owner, name, value, _ in replaced:
            setattr(owner, name, value)


_replaced: list[tuple] = []  # (owner, name, Numba's value, the CPU device's), within numba_on_cpu


@contextlib.contextmanager
def numba_itself():
    """Within the block the compilers compile for a GPU, in a check, too."""
    replaced = list(_replaced)
    try:
        for owner, name, value, _ in replaced:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, _, other in replaced:
            setattr(owner, name, other)


def _forwarding(method: str):
    def forwarded(self, *args, **kwargs):
        return getattr(_adopted(self), method)(*args, **kwargs)

    return forwarded
