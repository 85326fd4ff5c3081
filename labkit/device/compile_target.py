"""Compile for another compute capability than the present GPU's: Numba asks what the GPU is, and is given an answer.

    with as_if_on((8, 6)): ...            # without a GPU, too
    answer_with((7, 5, 9, 0))             # code for 7.5, assembled for the 9.0 that is present
    here()                                # what kernels are compiled for now
"""

from __future__ import annotations

import contextlib
import functools
import types

from labkit.device import compiler


@contextlib.contextmanager
def as_if_on(cc: tuple):
    """Numba asks the current GPU what to compile for; give it this answer within the block, without a CUDA context.

    cc: a compute capability, (7, 5). Four numbers, (7, 5, 9, 0): code for the first one, assembled for the second.
    """
    if compiler.is_mlir():
        from labkit.device import mlir

        with mlir.as_if_on(cc):
            yield
        return
    from numba.cuda import codegen, dispatcher

    library = codegen.CUDACodeLibrary
    originals = dispatcher.get_current_device, library._ensure_cc, library.get_cubin
    answer_with(cc)
    try:
        yield
    finally:
        dispatcher.get_current_device, library._ensure_cc, library.get_cubin = originals


def answer_with(cc: tuple) -> None:
    """As `as_if_on`, for the rest of the process."""
    if compiler.is_mlir():
        from labkit.device import mlir

        mlir.answer_with(cc)
        return
    from numba.cuda import codegen, dispatcher

    library, variant = codegen.CUDACodeLibrary, (*cc[:2], "a" if tuple(cc[:2]) >= (9, 0) else "")
    current = types.SimpleNamespace(compute_capability=tuple(cc[:2]), runs_on=tuple(cc[2:4]) if len(cc) == 4 else ())
    dispatcher.get_current_device = lambda: current
    library._ensure_cc = lambda self, cc: variant if cc is None else cc
    if len(cc) == 4:
        library.get_cubin = functools.partialmethod(_cubin, runs_on=(*cc[2:], "a" if tuple(cc[2:]) >= (9, 0) else ""))


def _cubin(library, cc=None, *, runs_on: tuple) -> bytes:
    """What CUDACodeLibrary.get_cubin returns, assembled for a later GPU than the one that the code was made for."""
    from numba.cuda.cudadrv import driver

    if runs_on not in library._cubin_cache:
        linker = driver._Linker(max_registers=library._max_registers, cc=runs_on, lto=False)
        library._link_all(linker, library._ensure_cc(None))
        library._cubin_cache[runs_on] = linker.complete()
        library._linkerinfo_cache[runs_on] = linker.info_log
    return library._cubin_cache[runs_on]


def here() -> tuple[int, ...]:
    """The compute capability that kernels are compiled for; of two that as_if_on was given, both."""
    if compiler.is_mlir():
        from labkit.device import mlir

        return mlir.compiled_for()
    from numba.cuda import dispatcher

    current = dispatcher.get_current_device()
    return (*current.compute_capability, *getattr(current, "runs_on", ()))
