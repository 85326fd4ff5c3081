"""GPU instructions for which Numba has no function, usable in any `@cuda.jit` kernel or device function.

    from labkit import cuda, ptx

    x, y, z, w = ptx.load_nc4(a, i)          # one 128-bit load instead of four

128-bit loads and stores; copies from global to shared memory that do not pass through registers (cp.async, TMA);
fragments of matrices (ldmatrix) and the tensor cores' products (mma.sync, wgmma); the barriers that go with them.
`array` is any C-contiguous array and `i` a flat index of an element; addresses need no pointer arithmetic in Python.

On a GPU each is a line of inline PTX (labkit.device.ptx_lines). On the CPU device each does the same to the same bytes,
with its bounds checked (labkit.simt.ptx), so that a tensor-core kernel runs, and is tested, on a machine without a GPU.
`help(ptx.mma_m16n8k16_f32_f16)` says which lane holds what, which GPUs have it, and where the PTX ISA describes it.
"""

from labkit import device
from labkit.device import compiler
from labkit.simt.ptx import INTRINSICS


def of_gpu():
    """The GPU's half, of the compiler in use."""
    if compiler.is_mlir():
        from labkit.device import ptx_mlir as home
    else:
        from labkit.device import ptx_gpu as home
    return home


if device.on_gpu():
    _home = of_gpu()
else:
    from labkit.simt import ptx as _home

tensor_map_2d = _home.tensor_map_2d
globals().update({name: getattr(_home, name) for name in INTRINSICS})

__all__ = ["tensor_map_2d", *INTRINSICS]
