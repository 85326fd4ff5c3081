"""The CPU device: runs `@cuda.jit` kernels on a machine with no GPU, compiled, with CUDA's semantics and CUDA's limits.

A library of its own: it imports NumPy and Numba, and nothing of labkit.

What a program sees
    api.py        the names of numba.cuda
    jit.py        @cuda.jit
    kernel.py     what it makes: kernels and device functions
    stubs.py      the names that mean something only inside a kernel
    arrays.py     device arrays and copies; allocation.py is the memory behind them
    device_memory.py  untyped memory, and copies between addresses
    array_interface.py  __cuda_array_interface__, in both directions
    libraries.py  libdevice, fp16, vector types; vectorize.py: cuda.vectorize and cuda.guvectorize
    streams.py    streams and events
    devices.py    what the device says of itself
    random.py     random numbers in kernels; reduction.py: cuda.reduce
    extending.py  numba.cuda.extending: overloads and types of a program's own
    ptx.py        the intrinsics of labkit.ptx: their names and documentation
    errors.py     what can go wrong
    advice.py     numba-cuda's warnings, for programs that know nothing of labkit
    supported.py  the page that lists all this, data/cpu-device.md
    settings.py   environment variables, the order of threads, the time limit, the device's limits

From a kernel's source to code
    ir.py         the typed tree of a kernel, which both runs share
    rewrite.py    source -> its tree, in these steps:
      sources.py      the source of a Python function
      scope.py        what the names of a function mean
      overloads.py    functions that are chosen by the types of their arguments
      resolve.py      names resolved; what a GPU does not have refused, with the line
      flatten.py      barriers out of expressions; device functions with barriers inlined
      live_ranges.py  variables split that are several at once
      spins.py        which loops may wait for another thread
    codegen/      the tree -> loops over the threads of a block, compiled by Numba for the CPU
    compiled_kernel.py  a kernel compiled for one set of argument types
    cache.py      compiled kernels on disk; store.py: the files, with their checksums
    runtime/      what the generated code calls: memory, atomics, warps, tensor cores

A launch
    launch.py     kernel[grid, block](...): limits, shared memory
    arguments.py  which values a kernel takes
    workers.py    blocks over cores, Ctrl-C, the time limit
    faults.py     a fault record -> the error, with kernel, line, block and thread

For programs that know nothing of labkit
    README.md     for those who come for it alone
    stand_in/     install(): the CPU device in the place of numba.cuda and numba_cuda_mlir.cuda; LABKIT_SIMT=1
    __main__.py   python -m labkit.simt script.py
    pytest.py     the pytest plugin: --cuda-on-cpu, --cuda-observe

In plain Python
    interpreter.py    the same tree, for kernels whose warps wait for one another, and launches whose threads do
    typed_numbers.py  its numbers, and operators with Numba's types
    typed_arrays.py   its arrays and records
    typed_tree.py     the types of its variables: one where paths meet, as in compiled code
    undefined.py      what depends on an undefined value: a test, and what it chooses
    ptx_interpreted/  what labkit.ptx's intrinsics do there
    observer/         observe: the race detector, memory requests, a report, a figure, a player
"""

import importlib

# Name -> the module that it comes from, imported when it is first used: `import labkit.simt` costs nothing.
_HOMES = {"observe": "observer.observe", "show": "kernel"} | dict.fromkeys(
    ("blocks_in_turn", "step_limit", "strict_barriers", "thread_order", "time_limit"), "settings"
)
__all__ = [*_HOMES]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__():
    return sorted(__all__)
