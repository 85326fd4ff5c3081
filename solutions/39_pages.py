# %% [markdown]
# # 39 · A cache in pages: exercises
#
# Three exercises: a prediction about pages and slots, keys written to their slots, and from a blank page the holders of
# pages counted. `hint("predict_pages")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: pages and slots
#
# A model has 16 layers with 8 heads of keys and values, each of 64 numbers in bfloat16. It serves four sequences, of
# 1,000, 17, 512 and 3 tokens, in pages of 16 tokens, none of them shared. How many entries of the page table are in
# use? How many bytes of memory, in all layers, are empty places in last pages? In which slot is token 37 of a sequence
# whose table begins with 5, 12, 7, 9? Tokens are counted from 0.
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
# `rows` (T, K, D) float32 holds the keys of T new tokens, of K heads with D numbers each. `slots` (T,) int32 says where
# they go: slot is page × 16 + place, and a row with slot -1 goes nowhere. The cache is `out` (pages, K, 16, D); what is
# not written keeps what it holds. The grid has a block of 32 threads for each row. Both arrays hold the numbers of a
# head end to end.


# %%
@cuda.jit
def store_slots(rows, slots, out):
    t = cuda.blockIdx.x
    ### BEGIN SOLUTION
    slot = slots[t]
    if slot >= 0:
        page, place = slot // 16, slot % 16
        for head in range(rows.shape[1]):
            for i in range(cuda.threadIdx.x, rows.shape[2], 32):
                out[page, head, place, i] = rows[t, head, i]
    ### END SOLUTION


# %%
check("store_slots", store_slots)

# %% [markdown]
# ## 3 · From a blank page: who holds which page
#
# Write the bookkeeping of a block manager. `pages` is how many pages of 16 tokens there are, at first all free.
# `events` (n, 3) is an array of whole numbers, and each row is one event:
#
# - `0, s, count`: sequence s gets `count` more tokens, 0 or more. If it does not exist it begins, with no tokens before
#   these. It takes as many new pages as it needs.
# - `1, s, child`: `child`, which does not exist, becomes a copy of sequence s, which exists. It has the same tokens and
#   holds the same pages: nothing is copied, and no page is taken.
# - `2, s, 0`: sequence s, which exists, ends. A page without another holder is free again.
#
# A page with several holders must not be written. So if the last page of a sequence has free places and other holders,
# the sequence first takes a new page in place of that one when it grows, and no longer holds the old one. If an event
# needs more pages than are free, it changes nothing: no tokens are added, no page is taken, and a sequence that would
# have begun does not exist. (Only another event 0 can then name it.)
#
# Write `free_pages(events, pages)`, a function of the host. It returns the number of free pages after each event, an
# array of n whole numbers.

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
