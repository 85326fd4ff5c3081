# %% [markdown]
# # 39 · A cache in pages: exercises
#
# Three exercises: predict pages and slots, write keys to their slots, and from a blank page count who holds which page.
# `hint("predict_pages")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: pages and slots
#
# A model has 16 layers with 8 heads of keys and values, each of 64 values in bfloat16. It serves four sequences, of
# 1,000, 17, 512 and 3 tokens, in pages of 16 tokens, none of them shared. How many entries of the page table are in use?
# How many bytes of the last pages are unused, over all layers? In which slot is token 37 of a sequence whose table begins
# with 5, 12, 7, 9? Tokens are counted from 0.
#
# Two other sequences begin with the same 40 tokens and share what they can. One has 50 tokens, the other 70. How many
# pages do they hold together?

# %%
pages_used = None
empty_bytes = None
slot = None
held_by_two = None
### BEGIN SOLUTION
pages_used = 63 + 2 + 32 + 1
empty_bytes = (8 + 15 + 0 + 13) * 2 * 16 * 8 * 64 * 2  # keys and values, layers, heads, numbers, bytes
slot = 7 * 16 + 5
held_by_two = 4 + 5 - 40 // 16
### END SOLUTION

# %%
check("predict_pages", pages_used=pages_used, empty_bytes=empty_bytes, slot=slot, held_by_two=held_by_two)

# %% [markdown]
# ## 2 · Keys to their slots
#
# `rows` (T, K, D) float32 holds the keys of T new tokens, for K heads of D values, and `slots` (T,) int32 says where they
# go. A slot is page × 16 + offset, and a row with slot -1 goes nowhere. Write the keys to the cache `out`
# (pages, K, 16, D), and leave the rest of it unchanged. For example, a row with slot 118 goes to `out[7, :, 6]`, since
# 118 is 7 × 16 + 6.
#
# The grid has one block of 32 threads per row, and neighbouring lanes should store neighbouring values.


# %%
@cuda.jit
def store_slots(rows, slots, out):
    t = cuda.blockIdx.x
    ### BEGIN SOLUTION
    slot = slots[t]
    if slot >= 0:
        page, offset = slot // 16, slot % 16
        for head in range(rows.shape[1]):
            for i in range(cuda.threadIdx.x, rows.shape[2], 32):
                out[page, head, offset, i] = rows[t, head, i]
    ### END SOLUTION


# %%
check("store_slots", store_slots)

# %% [markdown]
# ## 3 · From a blank page: who holds which page
#
# Write the bookkeeping of a block manager. There are `pages` pages of 16 tokens, all free at first, and `events` (n, 3)
# is an array of integers with one event per row:
#
# - `0, s, count`: sequence s grows by `count` tokens, 0 or more. If it does not exist yet, it starts here.
# - `1, s, child`: `child`, which does not exist yet, becomes a copy of sequence s. Both hold the same pages.
# - `2, s, 0`: sequence s ends. A page is free again once nobody holds it.
#
# A page with several holders must not be written. So before a sequence grows into a shared last page that is not full, it
# swaps that page for a new one. An event that needs more pages than are free changes nothing, and a sequence that would
# have started with it does not exist. (Events 1 and 2 name existing sequences only.)
#
# With 4 pages:
#
# ```
# 0, 0, 20    sequence 0 has 20 tokens in 2 pages                         2 free
# 1, 0, 1     sequence 1 is a copy and holds the same 2 pages             2 free
# 0, 1, 5     1 grows into the shared last page: it swaps it for a new    1 free
# 0, 1, 30    55 tokens need 4 pages, two more than it has: refused       1 free
# 2, 0, 0     0 ends: its first page is still held by 1                   2 free
# ```
#
# So `free_pages` returns `[2, 2, 1, 1, 2]`: the number of free pages after each event, an array of n integers.
#
# Write `free_pages(events, pages)`, a host function.

# %%
free_pages = None  # write the function


### BEGIN SOLUTION
def free_pages(events, pages):
    free, holders = list(range(pages)), [0] * pages
    tokens, held = {}, {}
    counts = []
    for kind, s, number in events.tolist():
        if kind == 0:
            before, mine = tokens.get(s, 0), list(held.get(s, []))
            shared = number > 0 and before % 16 > 0 and holders[mine[-1]] > 1
            new = -(-(before + number) // 16) - len(mine)
            if new + shared <= len(free):
                if shared:
                    holders[mine.pop()] -= 1
                    new += 1
                for _ in range(new):
                    mine.append(free.pop())
                    holders[mine[-1]] = 1
                tokens[s], held[s] = before + number, mine
        elif kind == 1:
            tokens[number], held[number] = tokens[s], list(held[s])
            for page in held[s]:
                holders[page] += 1
        else:
            for page in held.pop(s):
                holders[page] -= 1
                if holders[page] == 0:
                    free.append(page)
            del tokens[s]
        counts.append(len(free))
    return np.array(counts)


### END SOLUTION

# %%
check("free_pages", free_pages)
