"""The CPU device: runs `@cuda.jit` kernels on a machine with no GPU, compiled, with CUDA's semantics and CUDA's limits.

A library of its own: it imports NumPy and Numba, and nothing of labkit. Read it in this order:

ir.py         the typed tree of a kernel, which both runs share
rewrite.py    a kernel's source -> its tree, in these steps:
  scope.py        what the names of a function mean
  resolve.py      names resolved; what a GPU does not have refused, with the line
  flatten.py      barriers out of expressions; device functions with barriers inlined
  live_ranges.py  variables split that are several at once
codegen/      the tree -> loops over the threads of a block, compiled by Numba for the CPU
lowlevel.py   the checked loads, stores, atomics and bit operations that the generated code calls
launch.py     kernel[grid, block](...): limits, arguments, blocks over cores, faults, Ctrl-C
interpreter.py  the same tree in plain Python, for kernels whose warps wait for one another
observed.py   the interpreter with every access seen; report.py says what was seen
ptx.py        labkit.ptx: the names; ptx_compiled.py and ptx_interpreted.py: what they do in the two forms
namespace.py  the names of numba.cuda
arrays.py     device arrays, streams, events
"""

from labkit.simt.launch import show, thread_order, time_limit
from labkit.simt.observed import observe

__all__ = ["observe", "show", "thread_order", "time_limit"]
