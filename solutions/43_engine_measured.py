# %% [markdown]
# # 43 · The engine, measured: exercises
#
# Three exercises: a prediction about pages and steps, the empty seats of a run, and from a blank page the steps of a
# static and of a continuous batch. `hint("predict_engine")` gives a hint, and a second call a better one.

# %%
import numpy as np

from labkit import check, hint

# %% [markdown]
# ## 1 · Predict: pages and steps
#
# A cache has room for 64,000 tokens. A sequence may have up to 2,000 tokens, and at any moment it has 500 on average. In
# each step, reading the weights takes 1,024 us, and each sequence adds 8 us.
#
# How many sequences run at a time if each reserves its 2,000 tokens, and how many if each holds only the tokens that it
# has? Suppose that all pages are full. How many tokens per second does the engine write in either case?
#
# Then compare two runs that write the same tokens. The static run has 4,000 steps with 16 sequences on average, the
# continuous run 2,000 steps with 32. How many milliseconds does each take?

# %%
reserved = None  # sequences at a time
paged = None
rate_reserved = None  # tokens per second
rate_paged = None
ms_static = None
ms_continuous = None
### BEGIN SOLUTION
reserved = 64_000 // 2_000
paged = 64_000 // 500
rate_reserved = reserved * 10**6 // (1_024 + 8 * reserved)
rate_paged = paged * 10**6 // (1_024 + 8 * paged)
ms_static = 4_000 * (1_024 + 8 * 16) // 1_000
ms_continuous = 2_000 * (1_024 + 8 * 32) // 1_000
### END SOLUTION

# %%
check("predict_engine", reserved=reserved, paged=paged, rate_reserved=rate_reserved, rate_paged=rate_paged,
      ms_static=ms_static, ms_continuous=ms_continuous)


# %% [markdown]
# ## 2 · Empty seats
#
# An engine with `seats` seats has recorded each stay in one of them: stay i begins with step `begins[i]`, and its seat is
# free again from step `ends[i]` on. Both are arrays (n,) of integers, and n is at least 1. The run begins with step 0 and
# ends when the last stay does.
#
# Return an array of two counts: how many (seat, step) pairs are taken, and how many are empty.
#
# An example with two seats: the stays are from 0 to 5, from 0 to 2 and from 2 to 6. The run has 6 steps, so there are 12
# pairs. 5 + 2 + 4 = 11 of them are taken, and 1 is empty: `[11, 1]`.


# %%
def empty_seats(begins, ends, seats):
    ### BEGIN SOLUTION
    taken = (ends - begins).sum()
    return np.array([taken, seats * ends.max() - taken])
    ### END SOLUTION


# %%
check("empty_seats", empty_seats)

# %% [markdown]
# ## 3 · From a blank page: static or continuous
#
# Request i will write `outputs[i]` tokens, one per step; `outputs` is an array (n,) of positive integers. There are
# `seats` seats, and requests are served in order. Count the steps until all have ended, in two ways.
#
# - *Static*: the first `seats` requests form a batch. When the last of them has ended, the next `seats` begin.
# - *Continuous*: as soon as a seat is free, the next request begins there, in the step after the previous request's last
#   token.
#
# An example with two seats and outputs of 5, 2 and 4 tokens. Static: the first two need 5 steps, and the third 4 more, 9
# in all. Continuous: the third begins in the third step, in the seat of the second, and everything is done after 6 steps.
#
# Write `count_steps(outputs, seats)`. It returns an array of the two counts, static first: for the example, `[9, 6]`.

# %%
count_steps = None  # write the function


### BEGIN SOLUTION
def count_steps(outputs, seats):
    static = sum(outputs[first : first + seats].max() for first in range(0, len(outputs), seats))
    free = [0] * seats
    for output in outputs.tolist():
        seat = free.index(min(free))
        free[seat] += output
    return np.array([static, max(free)])


### END SOLUTION

# %%
check("count_steps", count_steps)
