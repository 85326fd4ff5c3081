"""The normal form -> loops over the threads of a block, compiled by Numba for the CPU.

The code between two barriers is a region. A region runs for one thread of the block after the other, in a loop; then
comes the next region. What a thread carries from one region to the next is kept in an array with an entry for each
thread. Control flow that contains a barrier runs for the whole block at once, under a mask that says which threads
take part: so a barrier knows who is missing.

    total = float32(0)                     for thread in block:
    for k in range(n):                         total[thread] = 0
        tile[t] = a[...]                   for k in range(n):
        cuda.syncthreads()         ->          for thread in block: tile[t] = a[...]
        total += tile[...]                     for thread in block: total[thread] += tile[...]
        cuda.syncthreads()
"""
