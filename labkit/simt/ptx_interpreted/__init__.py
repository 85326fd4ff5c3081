"""What labkit.ptx's intrinsics do in interpreted kernels: those that `observe` runs, and those whose warps run
different loops and wait for one another at mbarriers.

values.py      packing, conversions, approximations
matrices.py    mma.sync, ldmatrix, the tiles of wgmma
under_way.py   work in flight: mbarriers, copies, products
intrinsics.py  the functions that a kernel calls

Registers of a fragment are Python integers, float32 are NumPy's. Work that a GPU does beside its threads is done as
late as CUDA allows, so that a missing wait shows in the result: copies of cp.async at the thread's cp_async_wait,
products of wgmma at the wgmma_wait, TMA loads when no thread can go on without one, TMA stores at the tma_store_wait.

An execution (observer/, interpreter.py) has: `current`, the thread that runs; `state`, the Block; `fault(...)`, which
raises; and hooks that see accesses: `wide`, `started`, `arrived`.
"""
