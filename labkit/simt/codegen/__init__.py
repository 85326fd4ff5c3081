"""The tree of a kernel -> loops over the threads of a block, compiled by Numba for the CPU.

The code between two barriers is a region. A region runs for one thread of the block after the other, in a loop; then
the next region runs. Values that a thread carries from one region to the next are kept in arrays with one entry per
thread. Control flow that contains a barrier runs for the whole block at once, under a mask of the participating
threads, so a barrier knows which threads are missing.

    total = float32(0)                     for thread in block:
    for k in range(n):                         total[thread] = 0
        tile[t] = a[...]                   for k in range(n):
        cuda.syncthreads()         ->          for thread in block: tile[t] = a[...]
        total += tile[...]                     for thread in block: total[thread] += tile[...]
        cuda.syncthreads()

plan.py         regions, branches, loops and waits; which variables are kept for each thread
lowering.py     Numba's lowering, with values for stack slots
native.py       machine code, and how Python calls it
liveness.py     Numba's analysis of live variables, in time that grows with a kernel's length
types.py        the types of variables, from Numba's inference (inference.py)
checks.py       indexing -> checked loads and stores
writer.py       lines of code, and the sites where a fault can happen
memory.py       layout of arrays in the scratch memory
collectives.py  barriers and collectives between two regions
emit.py         the whole function
"""
