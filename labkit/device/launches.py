"""What a launcher launches: which kernels, in what shape, and what each uses of an SM.

    with record(kernels) as launched:
        launcher(a, b, out)
    launched[0].block                      # (16, 16, 1)
    planned(lambda: launcher(a, b, out))   # the same list, without running anything
    resources(launched[0])                 # registers, shared memory, blocks an SM holds: on a GPU

Launchers choose their grid and block; this records what they chose, so that a kernel's launch is described in one
place only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit import cuda, device
from labkit.device import gpu_kernels
from labkit.device.lazy import built


@dataclass(frozen=True)
class Launch:
    """One launch. shared_bytes is the dynamic part, which the launch requests."""

    kernel: object
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    args: tuple

    @property
    def threads(self) -> int:
        return int(np.prod(self.block))

    @property
    def signature(self):
        """The argument types, as cuda.jit and labkit.device.compiling take them."""
        from numba import types

        return types.void(*(_type_of(value) for value in self.args))


def _type_of(value):
    import numba
    from numba import types

    if hasattr(value, "is_c_contiguous"):
        return types.Array(numba.from_dtype(np.dtype(value.dtype)), len(value.shape),
                           "C" if value.is_c_contiguous() else "A")
    try:
        return numba.typeof(value)
    except ValueError:  # what describes a matrix to the copy engine: on a GPU 128 bytes
        return types.Array(types.uint64, 1, "C")


def kernels_of(launcher: Callable) -> tuple:
    kernels = launcher.kernel if isinstance(launcher.kernel, tuple) else (launcher.kernel,)
    return tuple(built(kernel) for kernel in kernels)


@contextlib.contextmanager
def record(kernels):
    """Yield a list that collects every launch in the block below, of these kernels and of others of their type: a
    launcher may choose among several, made for different widths. The kernels do run."""
    launched: list[Launch] = []
    kinds = {type(kernel): vars(type(kernel))["configure"] for kernel in map(built, kernels)}
    for kind, configure in kinds.items():
        kind.configure = _recording(configure, launched)
    try:
        yield launched
    finally:
        for kind, configure in kinds.items():
            kind.configure = configure


@contextlib.contextmanager
def kernels_launched():
    """Yield a list that collects the kernel of each launch on a GPU in the block below, in order."""
    kind = gpu_kernels.dispatcher_type()
    launched, original = [], kind.configure

    def configure(kernel, *shape):
        configured = original(kernel, *shape)

        def launch(*args):
            launched.append(kernel)
            return configured(*args)

        return launch

    kind.configure = configure
    try:
        yield launched
    finally:
        kind.configure = original


def _recording(configure, launched):
    def configure_and_record(kernel, griddim, blockdim, stream=0, sharedmem=0):
        configured = configure(kernel, griddim, blockdim, stream, sharedmem)

        def launch(*args):
            launched.append(Launch(kernel, _axes(griddim), _axes(blockdim), int(sharedmem), args))
            return configured(*args)

        return launch

    return configure_and_record


def _axes(shape) -> tuple[int, ...]:
    return tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (int(shape),)


def of(launcher: Callable, *args) -> list[Launch]:
    """The launches that launcher(*args) makes, each kernel and shape once. It runs."""
    with record(kernels_of(launcher)) as launched:
        launcher(*args)
    cuda.synchronize()
    return list({(id(one.kernel), one.block, one.shared_bytes, str(one.signature)): one for one in launched}.values())


_imagined = False


def imagined() -> bool:
    """True while `needed` or `planned` collects what would be launched: nothing is to be compiled then."""
    return _imagined


@contextlib.contextmanager
def _imagining(kind, configure):
    """Launches of kernels of this kind go to `configure` in the block below: nothing is compiled and none runs."""
    global _imagined
    original, kind.configure, _imagined = kind.configure, configure, True
    try:
        yield
    finally:
        kind.configure, _imagined = original, False


def planned(work: Callable, recorded: list[Launch] | None = None) -> list[Launch]:
    """Every launch that work() would make, in order: nothing is compiled and no kernel runs, so that what work() reads
    back from the device is not what it would be. recorded: the list to fill, for work that reads it meanwhile."""
    if device.on_gpu():
        kind = gpu_kernels.dispatcher_type()
    else:
        from labkit.simt.kernel import Kernel as kind
    recorded = [] if recorded is None else recorded

    def configure(kernel, griddim, blockdim, stream=0, sharedmem=0):
        return lambda *args: recorded.append(Launch(kernel, _axes(griddim), _axes(blockdim), int(sharedmem), args))

    with _imagining(kind, configure):
        work()
    return recorded


def needed(work: Callable) -> list[tuple]:
    """(kernel, what it is compiled for) of what work() launches, each once, for labkit.device.compile_ahead.prepare:
    nothing is compiled and no kernel runs, so that what work() reads back from the device is not what it would be."""
    if device.on_gpu():
        kind = gpu_kernels.dispatcher_type()

        def compiled_for(kernel, block, args):
            return gpu_kernels.argument_types(kernel, args)
    else:
        from labkit.simt.kernel import Kernel as kind
        from labkit.simt.launch import ConfiguredKernel

        def compiled_for(kernel, block, args):
            return ConfiguredKernel(kernel, (1, 1, 1), (*_axes(block), 1, 1)[:3], 0, 0).compile_key(*args)

    kernels: dict[tuple, None] = {}

    def configure(kernel, griddim, blockdim, stream=0, sharedmem=0):
        return lambda *args: kernels.setdefault((kernel, compiled_for(kernel, blockdim, args)))

    # A launcher may depend on results, and fail: keep what it launched until then.
    with contextlib.suppress(Exception), _imagining(kind, configure):
        work()
    return list(kernels)


def resources(launched: Launch) -> dict | None:
    """What a launch takes on the present GPU, from the compiled kernel; None on the CPU device, which has no registers.

    kernel, block; registers and local_bytes of a thread (local memory: what did not fit into registers), shared_bytes
    of a block (static and dynamic), blocks_per_sm (how many an SM holds at once), occupancy (their threads
    over the most it can hold).
    """
    if not device.on_gpu():
        return None
    kernel = launched.kernel
    types = gpu_kernels.argument_types(kernel, launched.args)
    result = {
        "kernel": kernel.__name__, "grid": list(launched.grid), "block": list(launched.block),
        **gpu_kernels.attributes(kernel, types), "blocks_per_sm": None, "occupancy": None,
    }
    result["shared_bytes"] += launched.shared_bytes
    try:
        result["blocks_per_sm"] = gpu_kernels.blocks_per_sm(kernel, types, launched.threads, launched.shared_bytes)
        max_threads = cuda.get_current_device().MAX_THREADS_PER_MULTIPROCESSOR
        warps = -(-launched.threads // 32)
        result["occupancy"] = result["blocks_per_sm"] * warps * 32 / max_threads
    except Exception:  # another version of the compiler: the rest stands
        pass
    return result
