# %% [markdown]
# # 12 · Inside a kernel: Nsight Compute: exercises
#
# A function and two predictions, about the time around a kernel and what a kernel's own time depends on. Write your
# answer, run its cell, then run the `check` under it. `hint("own_time")` gives a hint, and more when you ask again.

# %%
import numpy as np

from labkit import check, hint

# %% [markdown]
# ## 1 · Predict: what ncu will read
#
# Nsight Compute's column *sectors per request* is the quickest way to see whether a kernel wastes memory traffic. A
# request is one load by one warp, all 32 lanes at once. A sector is 32 bytes, eight floats. How many sectors does one
# request touch, for each of these loads of float32? All arrays begin where a sector begins.

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
# So no single number is best for all kernels: it depends on how many bytes a lane loads. What counts is the number of
# bytes used over the number of bytes in the sectors. For which of the five is that quotient 1?
#
# Next: the exercises of **09 · Graphs and streams**.
