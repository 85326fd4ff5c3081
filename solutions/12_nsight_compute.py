# %% [markdown]
# # 12 · Inside a kernel: Nsight Compute: exercises
#
# A prediction and a function, about the counter that shows wasted memory traffic. Write your answer, run its cell,
# then run the `check` under it. `hint("predict_requests")` gives a hint, and another when you call it again.

# %%
import numpy as np

from labkit import check, hint

# %% [markdown]
# ## 1 · Predict: what ncu will read
#
# Nsight Compute's *sectors per request* is the quickest way to see whether a kernel wastes memory traffic. A request is
# one load by all 32 lanes of a warp. A sector is 32 bytes, eight floats. How many sectors does one request touch, for
# each of these loads of float32? All arrays begin at the start of a sector.

# %%
row = None  # x[i]
third = None  # x[3 * i]
column = None  # x[64 * i], a column of a matrix with 64 columns
one = None  # x[i // 32]
four = None  # load_global4(x, 4 * i): four floats in a row for each lane, in one load
### BEGIN SOLUTION
row = 32 * 4 // 32  # 4
third = -(-(3 * 31 + 1) // 8)  # lanes span 94 floats and leave out no sector: 12
column = 32  # a sector for each lane
one = 1  # the same address for all
four = 32 * 16 // 32  # 16, and four times the work done
### END SOLUTION

# %%
check("predict_requests", row=row, third=third, column=column, one=one, four=four)

# %% [markdown]
# So the best count depends on how many bytes a lane loads. What matters is the share of the transferred bytes that the
# lanes use. For which of the five is it all of them?
#
# ## 2 · From a blank page: the profiler's counter
#
# Write the counter behind *sectors per request*. `sectors_touched(addresses, width)` gets the byte addresses that the
# lanes of a warp load from, as a NumPy array of integers, and the `width` in bytes of each load, 4, 8 or 16. Return how
# many different sectors of 32 bytes these loads touch together. A lane that does not take part has the address -1.
#
# For example, `sectors_touched(np.array([0, 4, 8, 28, 32, -1]), 4)` is 2: the first four lanes share a sector, the
# fifth needs the next one, and the last loads nothing. An address is a multiple of the width, so no load crosses the
# end of a sector.

# %%
sectors_touched = None  # write the function here: def sectors_touched(addresses, width)
### BEGIN SOLUTION
def sectors_touched(addresses, width):
    taking_part = addresses[addresses >= 0]
    return np.unique(taking_part // 32).size  # an aligned load is inside one sector, whatever its width


### END SOLUTION

# %%
check("sectors_touched", sectors_touched)

# %% [markdown]
# `observe(...)` counts sectors in exactly this way, with the addresses of every load of every warp.
#
# Next: the exercises of **13 · Graphs and streams**.
