# %% [markdown]
# # 38 · Batches: exercises
#
# Three exercises: predict what a batch is worth, refill slots in the order of a queue, and from a blank page write the
# rows of a step. `hint("refill_slots")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: the worth of a batch
#
# A model has 10⁹ weights in bfloat16, 25 layers, and 8 heads of keys and values of 80 values each, also in bfloat16.
# A GPU moves 4,000 GB/s and does 800 · 10¹² flops per second. Every sequence has 1,000 tokens in its cache. A step reads
# all weights once, and all keys and values of each sequence; suppose that it takes as long as these bytes need.
#
# How many MB are the keys and values of one sequence (1 MB = 10⁶ bytes)? How many microseconds does a step take with 1
# sequence, and with 125? How many tokens per second does the GPU compute with 125? And for how many rows of a prompt do
# the flops, two per weight and row, take as long as the weights' bytes?

# %%
kept_mb = None
step_us_1 = None
step_us_125 = None
tokens_per_second_125 = None
rows_at_ridge = None
### BEGIN SOLUTION
kept_mb = 2 * 25 * 8 * 80 * 2 * 1000 // 10**6
step_us_1 = (2000 + kept_mb) // 4
step_us_125 = (2000 + 125 * kept_mb) // 4
tokens_per_second_125 = 125 * 10**6 // step_us_125
rows_at_ridge = 500 * 800 * 10**6 // (2 * 10**9)  # flops in 500 microseconds, by those of a row
### END SOLUTION

# %%
check("predict_batch", kept_mb=kept_mb, step_us_1=step_us_1, step_us_125=step_us_125,
      tokens_per_second_125=tokens_per_second_125, rows_at_ridge=rows_at_ridge)


# %% [markdown]
# ## 2 · Slots that are refilled
#
# Requests wait in a queue, and request i will write `lengths[i]` tokens, one per step; `lengths` is an array (n,) of
# positive integers. There are `slots` slots. Before each step, every free slot gets the next request in the queue, the
# lowest slot first. A slot is free from the step after its request's last token on. Return an array (n, 2) with the slot
# of each request and the step of its first token, both counted from 0.
#
# For example, lengths of 3, 1 and 2 in two slots give `[[0, 0], [1, 0], [1, 1]]`: slot 1 is free again after one step.


# %%
def refill_slots(lengths, slots):
    ### BEGIN SOLUTION
    free, found = [0] * slots, []  # the first step in which each slot is free
    for length in lengths.tolist():
        slot = free.index(min(free))
        found.append((slot, free[slot]))
        free[slot] += length
    return np.array(found)
    ### END SOLUTION


# %%
check("refill_slots", refill_slots)

# %% [markdown]
# The requests of the lesson, with four slots: the steps of continuous batching until the last request ends, and those of
# static batching, which are the longest answer of each batch, added up.

# %%
counts = np.array([24, 3, 9, 14, 4, 6, 20, 3, 10, 5])
found = refill_slots(counts, 4)
if found is not None:
    print("continuous:", (found[:, 1] + counts).max(), "static:", sum(counts[i : i + 4].max() for i in (0, 4, 8)))


# %% [markdown]
# ## 3 · From a blank page: the rows of a step
#
# In a step, sequence b has `new[b]` rows: one if it is decoding, several if they are from its prompt, or none at all. The
# cache already holds `before[b]` of its tokens. Both are arrays (B,) of integers, and a step has at least one row. The
# rows of all sequences are packed end to end, in the order of the sequences.
#
# Return an array (T, 3) of integers. For each of the T rows it holds the sequence, the position in that sequence, and a 1
# if the row is its sequence's last in this step, so that the head needs it, else 0. Sequences and positions are counted
# from 0.
#
# For example, `before = [5, 0]` and `new = [1, 3]` give
#
# ```
# [[0, 5, 1],
#  [1, 0, 0],
#  [1, 1, 0],
#  [1, 2, 1]]
# ```
#
# Write `rows_of_step(before, new)`.

# %%
rows_of_step = None  # write the function


### BEGIN SOLUTION
def rows_of_step(before, new):
    rows = []
    for b in range(len(new)):
        for i in range(new[b]):
            rows.append((b, before[b] + i, int(i == new[b] - 1)))
    return np.array(rows)


### END SOLUTION

# %%
check("rows_of_step", rows_of_step)

# %% [markdown]
# The step of the lesson: two sequences that decode, and a prompt.

# %%
rows = rows_of_step(np.array([9, 10, 0]), np.array([1, 1, 9])) if rows_of_step else None
if rows is not None:
    print(rows.T)
