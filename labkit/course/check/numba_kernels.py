"""`from numba import cuda` in a learner's cell, on a machine without a GPU.

It is the first line of every example on the web, and takes the place of the notebook's own `cuda`. Numba's module needs
a GPU to launch anything, so while an answer is checked its kernels are made kernels of the CPU device, and what else
the module has (arrays, streams, synchronize) is the CPU device's, too. On a GPU nothing is touched.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types

from labkit import device
from labkit.simt import api
from labkit.simt.jit import JIT_OPTIONS, jit


def adopted(answer):
    """A kernel or device function that Numba made, as one of the CPU device; anything else as it is."""
    return _adopted(answer) if not device.on_gpu() and _is_numbas(answer) else answer


def _is_numbas(answer) -> bool:
    module = sys.modules.get("numba.cuda.dispatcher")
    return module is not None and isinstance(answer, module.CUDADispatcher)


@functools.lru_cache(maxsize=256)
def _adopted(dispatcher):
    options = {name: value for name, value in dispatcher.targetoptions.items() if name in JIT_OPTIONS and value}
    return jit(_rebound(dispatcher.py_func), **options)


def _rebound(function):
    """The function with the CPU device's names in the place of Numba's, where it has them by `from numba.cuda import
    grid`. Those that it takes from the module, as in cuda.grid, are understood without."""
    replacements = {id(numba_value): getattr(api, name) for name, numba_value in _public()}
    names = {name: replacements[id(value)] for name, value in function.__globals__.items() if id(value) in replacements}
    if not names:
        return function
    copy = types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__,
                              function.__defaults__, function.__closure__)
    return functools.update_wrapper(copy, function)


@functools.cache
def _public() -> tuple[tuple[str, object], ...]:
    """What numba.cuda and the CPU device both have, as numba.cuda has it."""
    cuda, excluded = sys.modules["numba.cuda"], ("errors", "types")
    return tuple((name, getattr(cuda, name)) for name in dir(api)
                 if not name.startswith("_") and name not in excluded and hasattr(cuda, name))


@contextlib.contextmanager
def numba_on_cpu():
    """Within the block numba.cuda launches on the CPU device, wherever it is called from."""
    dispatcher = sys.modules.get("numba.cuda.dispatcher")
    if device.on_gpu() or dispatcher is None:
        yield
        return
    cuda, kernels = sys.modules["numba.cuda"], dispatcher.CUDADispatcher
    replaced = [(cuda, name, value, getattr(api, name)) for name, value in _public()]
    replaced += [(kernels, name, getattr(kernels, name), _forwarding(name))
                 for name in ("__getitem__", "__call__", "configure", "forall")]
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
    """Within the block numba.cuda compiles for a GPU, in a check, too."""
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
