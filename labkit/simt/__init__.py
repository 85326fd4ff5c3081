"""The CPU device: runs `@cuda.jit` kernels on a machine with no GPU, compiled, with CUDA's semantics and CUDA's limits.

A library of its own: it imports NumPy and Numba, and nothing of labkit. Read it in this order:

rewrite.py    a kernel's source -> a normal form: names resolved, device functions with barriers inlined
webs.py       splits variables that are several at once
compiled.py   the normal form -> loops over the threads of a block, compiled by Numba for the CPU
inference.py  Numba's type inference: what threads keep across a barrier, clear errors
lowlevel.py   the checked loads, stores, atomics and bit operations that the generated code calls
launch.py     kernel[grid, block](...): limits, arguments, blocks over cores, faults, Ctrl-C
interpreter.py  the same normal form in plain Python, for kernels whose warps wait for one another
observed.py   the interpreter with every access seen; report.py says what was seen
ptx.py        labkit.ptx: the names; ptx_compiled.py and ptx_interpreted.py: what they do in the two forms
namespace.py  the names of numba.cuda
arrays.py     device arrays, streams, events
"""

from labkit.simt.kernel import show
from labkit.simt.observer.observe import observe
from labkit.simt.settings import thread_order, time_limit

__all__ = ["observe", "show", "thread_order", "time_limit"]
