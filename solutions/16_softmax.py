# %% [markdown]
# # 16 · Softmax: exercises
#
# Three exercises: a prediction, the rule of online softmax on its own, and a kernel from a blank page that uses it.
# `hint("join_parts")` gives a hint, and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: a maximum that grows
#
# On paper, and in float32, where e^x is infinite from x = 89 on and 0 from x = -104 on:
#
# - `infinite`: the row is 100, 90, 50, -60. If nothing is subtracted, how many of its exponentials are infinite?
# - `zeros`: how many are 0 once the maximum of that row is subtracted?
# - `corrections`: one thread of the online kernel reads 3, 1, 4, 1, 5, 9, 2, 6, in this order. How many times does it
#   multiply its sum by a factor? It begins with the lowest float32 as the maximum and 0 as the sum.
# - `exponentials`: how many exponentials does it compute on the way?

# %%
infinite = None  # of the row 100, 90, 50, -60, with nothing subtracted
zeros = None  # of the same row, with its maximum subtracted
corrections = None  # along 3, 1, 4, 1, 5, 9, 2, 6
exponentials = None  # computed along the same elements
### BEGIN SOLUTION
infinite = 2  # of 100 and 90
zeros = 1  # of -60 - 100
corrections = 4  # at 3, 4, 5 and 9
exponentials = 12  # one for each element, and one for each correction
### END SOLUTION

# %%
check("predict_running", infinite=infinite, zeros=zeros, corrections=corrections, exponentials=exponentials)

# %% [markdown]
# ## 2 · Join the parts
#
# A row was cut into parts. For part $i$ you know the largest element $m_i$, `largest[i]`, and the sum of $e^{x - m_i}$
# over its elements, `totals[i]`. Return both values for the whole row, as an array of two. For example, the parts (1, 3,
# 2) and (5, 4) have the maxima 3 and 5 and the sums 1.503 and 1.368; the row has 5 and 1.571.
#
# This one is plain Python on the host. A part may be empty: then its maximum is `-inf` and its sum 0. At least
# one part is not empty.


# %%
def join_parts(largest, totals):
    m, s = -np.inf, 0.0
    ### BEGIN SOLUTION
    m = largest.max()
    s = (totals * np.exp(largest - m)).sum()
    ### END SOLUTION
    return np.array([m, s])


# %%
check("join_parts", join_parts)

# %% [markdown]
# ## 3 · From a blank page: log of the sum of exponentials
#
# $$\text{out}_r = \log \sum_c e^{x_{r,c}}$$
#
# Up to a subtraction, this is the loss of a language model. The elements go up to 120, where $e^x$ is beyond float32.
# Write `logsumexp(x, out)` from the decorator down, with one thread per row, for blocks of 64.

# %%
logsumexp = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def logsumexp(x, out):
    row = cuda.grid(1)
    if row < out.size:
        largest, total = x[row, 0], float32(1.0)
        for col in range(1, x.shape[1]):
            value = x[row, col]
            if value > largest:
                total *= math.exp(largest - value)  # what came before is measured against the new maximum
                largest = value
            total += math.exp(value - largest)
        out[row] = largest + math.log(total)


### END SOLUTION

# %%
check("logsumexp", logsumexp)

# %% [markdown]
# The softmax of an element is then $e^{x - \text{out}}$: one subtraction and one exponential, without a maximum.
