"""Kernels that come from a factory and are built when they are first used, not when their module is imported.

    @kernel_factory
    def make_scale(factor):
        @cuda.jit
        def scale_kernel(x): ...
        return scale_kernel

    scale = make_scale(2)          # costs nothing; scale.__name__ is "scale_kernel"
    scale[grid, block](x)          # the factory runs here, once

So a rung can name a kernel for each tile, and those that are never launched cost no time. The factory may ask
labkit.device.gpus what the GPU has: within plan_for it runs once for each compute capability.
"""

from __future__ import annotations

import functools
import types

from labkit.device import gpus


class LazyKernel:
    """Stands for one kernel of a factory, which it builds when anything but its name is used."""

    def __init__(self, name: str, make, index: int):
        self.__name__ = self.__qualname__ = name
        self._make, self._index = make, index
        self._kernel = self._planned = None  # the kernel last built, and what it was planned for

    def build(self):
        """The kernel itself, what @cuda.jit made."""
        planned = gpus.planned_for()
        if self._kernel is None or planned is not self._planned:
            result = self._make(planned and planned.capability)
            self._kernel = result[self._index] if isinstance(result, tuple) else result
            self._planned = planned
        return self._kernel

    def __getitem__(self, configuration):
        return self.build()[configuration]

    def __call__(self, *args, **kwargs):
        return self.build()(*args, **kwargs)

    def __getattr__(self, name):
        if name.startswith("_") and name != "__wrapped__":  # such as those that copy and pickle look for
            raise AttributeError(name)
        return getattr(self.build(), name)

    def __repr__(self):
        return repr(self._kernel) if self._kernel is not None else f"<kernel {self.__name__}, not built yet>"


def built(kernel):
    """What @cuda.jit made, also of a kernel that is built only now."""
    return kernel.build() if isinstance(kernel, LazyKernel) else kernel


def kernel_factory(make):
    """Decorates a function that makes a kernel, or a tuple of kernels: it returns them unbuilt, and for the same
    arguments the same ones. The kernels are its inner functions whose names end with _kernel, in their order."""
    names = [code.co_name for code in make.__code__.co_consts
             if isinstance(code, types.CodeType) and code.co_name.endswith("_kernel")]
    if not names:
        raise TypeError(f"{make.__name__} defines no function whose name ends with _kernel")

    @functools.cache
    @functools.wraps(make)
    def factory(*args, **kwargs):
        make_once = functools.cache(lambda planned: make(*args, **kwargs))
        lazy = tuple(LazyKernel(name, make_once, index) for index, name in enumerate(names))
        return lazy if len(lazy) > 1 else lazy[0]

    return factory
