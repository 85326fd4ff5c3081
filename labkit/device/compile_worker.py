"""One of the processes that labkit.device.compile_ahead starts: compiles kernels without touching the GPU.

Standard input brings kernels, each after eight bytes that say how long it is; standard output takes a 1 for each one
that is now kept on disk and a 0 for each one that is not.
"""

from __future__ import annotations

import sys
import types


def main() -> None:
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # printed output must not be mistaken for an answer
    from labkit import device

    device.numba_cuda()
    while size := int.from_bytes(jobs.read(8), "little"):
        try:
            is_kept = compile_and_keep(jobs.read(size))
        except Exception:  # the launch will report the error
            is_kept = False
        answers.write(b"1" if is_kept else b"0")
        answers.flush()


def compile_and_keep(job: bytes) -> bool:
    """Compile a pickled (kernel, argument types, compute capability, key) and keep it. False if it is another kernel
    here than there, as where a file was edited since."""
    from numba.cuda import serialize
    from numba.cuda.dispatcher import _Kernel

    from labkit.device import kernel_cache

    kernel, argument_types, capability, key = serialize.loads(job)
    files = kernel_cache.store()
    if files is None or kernel_cache.key_for(kernel, argument_types, capability) != key:
        return False
    compile_for(capability)
    compiled = _Kernel(kernel.py_func, argument_types, **kernel.targetoptions)
    compiled._codelibrary.get_cubin()
    return kernel_cache.keep(files, key, compiled)


def compile_for(capability: tuple) -> None:
    """Numba asks the current GPU what to compile for; in this process a fixed answer is given, without a CUDA
    context."""
    from numba.cuda import codegen, dispatcher

    gpu = types.SimpleNamespace(compute_capability=capability)
    dispatcher.get_current_device = lambda: gpu
    variant = (*capability[:2], "a" if tuple(capability[:2]) >= (9, 0) else "")
    codegen.CUDACodeLibrary._ensure_cc = lambda self, cc: variant if cc is None else cc


if __name__ == "__main__":
    main()
