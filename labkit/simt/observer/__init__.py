"""Runs a kernel in plain Python and sees every access: what `observe` is made of.

The interpreter runs the threads, which take turns from one barrier to the next. Here arrays are wrapped, so that each
load and store is seen with its line, thread and address.

observe.py      observe(kernel[grid, block], ...): the run, reads of memory that nothing wrote, indices out of bounds
seen_arrays.py  the wrapped arrays
races.py        the race detector
async_races.py  races with copies and products that run beside the threads
memory_requests.py  sectors, bank conflicts, divergent branches
report.py       what was seen: findings in sentences, counts for each line, a table
drawing.py      a figure of who reads and writes what

Work    about 2 us for each access: meant for launches of up to some ten thousand threads
"""
