"""Run a kernel in plain Python and record every access: the parts of `observe`.

The interpreter runs the threads, which take turns from one barrier to the next. Here arrays are wrapped, so that each
load and store is recorded with its line, thread and address.

observe.py      observe(kernel[grid, block], ...)
observation.py  the run: reads of memory that nothing wrote, indices out of bounds
seen_arrays.py  the wrapped arrays
races.py        the race detector
async_races.py  races with copies and products that run beside the threads
memory_requests.py  sectors, bank conflicts, divergent branches
report.py       the report: findings in sentences, counts for each line, a table
drawing.py      a figure of who reads and writes what
launches.py     every launch of a program observed

Played, step by step (Report.play)
kept_launch.py  the initial state of the launch
recorder.py     the launch once more, the lanes of a warp in lockstep; each statement of a warp is a step
trace.py        the steps as compact data for the page
player.py       the page, as a notebook's element and as a file; page/ has its HTML, CSS and JavaScript

Work    about 2 us for each access: meant for launches of up to some ten thousand threads
"""
