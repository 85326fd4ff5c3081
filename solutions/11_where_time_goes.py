# %% [markdown]
# # 11 · Where the time goes: exercises
#
# A function and a prediction, about the time around a kernel. Write your answer, run its cell, then run the `check`
# under it. `hint("own_time")` gives a hint, and another when you call it again.

# %%
import numpy as np

from labkit import check, hint

# %% [markdown]
# ## 1 · From a blank page: whose time is it
#
# A profiler's table counts an outer range with everything inside it. In the lesson's table from `nsys` the whole product
# takes 50.0 % of the time and the allocation another 50.0 %: the same 125 ms, counted twice.
#
# A range's *own* time is its total minus the ranges directly inside it. Write `own_time(parent, total)`, which returns
# the own time of every range. Ranges are numbered in the order they begin: `parent[i]` is the index of the
# range around range `i`, or -1 if there is none, and `total[i]` is its time in milliseconds.
#
# For example, `own_time([-1, 0, 0, 2], [10, 3, 5, 4])` is `[2, 3, 1, 4]`: range 0 contains ranges 1 and 2, and range 2
# contains range 3. In the lesson's table, `parent` is `[-1, 0, 0, 0, 0, 0]`, five ranges in one.

# %%
own_time = None  # write the function here: def own_time(parent, total)
### BEGIN SOLUTION
def own_time(parent, total):
    own = np.array(total, np.float64)
    for child, outer in enumerate(parent):
        if outer >= 0:
            own[outer] -= total[child]  # what is nested deeper is part of the child's total
    return own


### END SOLUTION

# %%
check("own_time", own_time)

# %% [markdown]
# ## 2 · Predict: many small copies
#
# A copy to the device takes 10 µs to start, and then moves 50,000 bytes per microsecond (50 GB/s). How many microseconds
# do these take, rounded to a whole number?
#
# - a copy of 4 bytes
# - a copy of 2,000,000 bytes
# - 1,000 copies of 2,000 bytes, one after the other
# - one copy of the same 1,000 arrays, packed into one
#
# And how large is a copy, in bytes, if moving the bytes takes exactly as long as the start?

# %%
tiny_us = None  # 4 bytes
large_us = None  # 2,000,000 bytes
apart_us = None  # 1,000 copies of 2,000 bytes
together_us = None  # the same in one copy
even_bytes = None  # as much time for the bytes as for the start
### BEGIN SOLUTION
tiny_us = 10
large_us = 10 + 2_000_000 // 50_000  # 50
apart_us = round(1000 * (10 + 2000 / 50_000))  # 10,040
together_us = 10 + 1000 * 2000 // 50_000  # 50
even_bytes = 10 * 50_000
### END SOLUTION

# %%
check("predict_copies", tiny_us=tiny_us, large_us=large_us, apart_us=apart_us, together_us=together_us,
      even_bytes=even_bytes)
