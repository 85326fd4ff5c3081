# %% [markdown]
# # 50 · The optimiser and its precision: exercises
#
# Three exercises. Predict when an update vanishes in bfloat16 and what an optimiser's state costs, write SGD with
# Nesterov's momentum from a blank page, and round to bfloat16 at random. `hint("predict_vanished")` gives a hint, and a
# second call a better one.

# %%
import numpy as np
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: when an update vanishes
#
# On paper: a weight of 1 in bfloat16 gets an update of -0.0005 in each step, and is rounded to nearest after every step,
# ties to even. What is it after 100 steps? With a float32 master, after which step does the bfloat16 copy first differ
# from 1? Now take updates of +1/1024: what is the smallest power of two that such an update does not change, if it is a
# bfloat16 weight?
#
# A model of 7 billion parameters is trained with bfloat16 copies, float32 gradients, float32 masters, m and v. How many
# GB (1e9 bytes) do these need? How many bytes per parameter does a step of AdamW move, if it reads what it needs once and
# writes what it changes once?

# %%
after_100 = None  # the weight in bfloat16 alone
first_change = None  # the step, counted from 1, with a float32 master
smallest_stuck = None  # the smallest power of two that +1/1024 does not change
state_gb = None  # copies, gradients, masters, m and v of 7 billion parameters
step_bytes = None  # that a step of AdamW moves per parameter
### BEGIN SOLUTION
after_100 = 1
first_change = 4
smallest_stuck = 0.25
state_gb = 126
step_bytes = 30
### END SOLUTION

# %%
check("predict_vanished", after_100=after_100, first_change=first_change, smallest_stuck=smallest_stuck,
      state_gb=state_gb, step_bytes=step_bytes)


# %% [markdown]
# ## 2 · From a blank page: Nesterov's momentum
#
# SGD with Nesterov's momentum keeps one value per weight, its velocity. A step is
#
# `velocity = mu * velocity + gradient`, then `weight = weight - rate * (gradient + mu * velocity)`
#
# with the new velocity in the second formula. All weights of a model are in one flat buffer: `weights`, `velocities` and
# `gradients` are (n,) float32, and `rate` and `mu` are float32 scalars. `out` is (2, n): store the new weights in
# `out[0]` and the new velocities in `out[1]`, and do not change the inputs.
#
# Write `nesterov_step(weights, velocities, gradients, rate, mu, out)` from the decorator down. Blocks have 128 threads,
# and the grid is one-dimensional, with at least one thread per weight.

# %%
nesterov_step = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def nesterov_step(weights, velocities, gradients, rate, mu, out):
    i = cuda.grid(1)
    if i < weights.size:
        g = gradients[i]
        velocity = mu * velocities[i] + g
        out[0, i] = weights[i] - rate * (g + mu * velocity)
        out[1, i] = velocity


### END SOLUTION

# %%
check("nesterov_step", nesterov_step)

# %% [markdown]
# ## 3 · Rounding at random
#
# Without a float32 master, small updates survive if weights are rounded at random (*stochastic rounding*): up with a
# probability equal to the fraction that would be cut off. Then an update of a hundredth of the distance between
# neighbours moves one weight in a hundred, and the mean is right. The upper 16 bits of a float32 are a bfloat16. To round
# at random, add a random number from 0 to 65,535 to the 32 bits, and keep the upper 16 bits of the sum.
#
# `values` (n,) uint32 holds the bits of float32 numbers, and `random` (n,) uint32 holds random words; use their lower 16
# bits. Store the bits of the bfloat16 results in `out` (n,) uint16. No value is infinite or NaN, or becomes so. The
# launch may have fewer threads than values: use a grid-stride loop. Blocks have 64 threads.


# %%
@cuda.jit
def round_at_random(values, random, out):
    ### BEGIN SOLUTION
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        out[i] = values[i] + (random[i] & 0xFFFF) >> 16
    ### END SOLUTION


# %%
check("round_at_random", round_at_random)

# %% [markdown]
# With stochastic rounding a model needs no masters, which saves 4 of the 18 bytes per parameter, but each step needs one
# random word per weight. `labkit.kernels.philox` computes these from a counter and a seed.
