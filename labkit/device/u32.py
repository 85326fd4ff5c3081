"""Indices as unsigned 32-bit integers: `u32.X` is numba.cuda's, or Python's, X as uint32.

    from labkit import cuda, u32

    col, row = u32.grid(2)
    rows, cols = u32.shape(out)
    for k in u32.range(depth): ...

Arithmetic on them has Numba's types, but in packages with the rule of labkit.simt.unsigned, where it stays in 32 bits.
"""

from labkit import device
from labkit.device import compiler
from labkit.simt.u32 import NAMES


def of_gpu():
    """The GPU's half, of the compiler in use."""
    if compiler.is_mlir():
        from labkit.device import u32_mlir as home
    else:
        from labkit.device import u32_gpu as home
    return home


if device.on_gpu():
    _home = of_gpu()
else:
    from labkit.simt import u32 as _home

globals().update({name: getattr(_home, name) for name in NAMES})

__all__ = [*NAMES]
