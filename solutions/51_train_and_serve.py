# %% [markdown]
# # 51 · Train, cut to four bits, serve: exercises
#
# Three exercises. Predict what a training run needs and sends, write a schedule of learning rates from a blank page, and
# average the gradients of several workers. `hint("predict_training")` gives a hint, and a second call a better one.

# %%
import numpy as np
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: what a training run needs
#
# On paper: a model of 1 billion parameters is trained in bfloat16, with float32 masters, gradients, m and v. On each of 4
# GPUs, a small batch has 8 windows of 1,024 tokens, and a step adds up the gradients of 2 such batches before all GPUs
# average theirs. How many GB (1e9 bytes) do parameters, gradients and AdamW's state need on each GPU? How many tokens
# does a step train on, over all GPUs? If forward and backward pass together cost 6 flops per parameter and token, how
# many TFLOP (1e12 flops) does each GPU compute in a step? How many GB does each GPU send for an all-reduce in a ring? And
# a run of 1,000 steps that saved a checkpoint every 150 steps is killed after step 700: at which step does the resumed
# run begin?

# %%
state_gb = None  # on each GPU
step_tokens = None  # of a step, all GPUs together
step_tflop = None  # of each GPU in a step
sent_gb = None  # by each GPU in a step
resumed_step = None  # the first step after resuming
### BEGIN SOLUTION
state_gb = 18
step_tokens = 65_536
step_tflop = 98.304
sent_gb = 6
resumed_step = 601
### END SOLUTION

# %%
check("predict_training", state_gb=state_gb, step_tokens=step_tokens, step_tflop=step_tflop, sent_gb=sent_gb,
      resumed_step=resumed_step)


# %% [markdown]
# ## 2 · From a blank page: a schedule of learning rates
#
# A run of `total` steps needs a rate for each. In the first `warm_up` steps it rises linearly: step s, counted from 1,
# has the rate `peak * s / warm_up`. Then it falls linearly, so that step `total` has the rate `least`: after the warm-up,
# step s has the rate `peak + (least - peak) * (s - warm_up) / (total - warm_up)`. Steps after `total` have the rate
# `least`.
#
# `steps` (n,) int32 holds step numbers, in any order and each at least 1. Write their rates to `rates` (n,) float32.
# `peak` and `least` are float32 scalars, `warm_up` and `total` are int32, with 0 <= `warm_up` < `total`.
#
# Write `rates_of_steps(steps, peak, least, warm_up, total, rates)` from the decorator down. Blocks have 64 threads, and
# the grid is one-dimensional, with at least one thread per step.

# %%
rates_of_steps = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def rates_of_steps(steps, peak, least, warm_up, total, rates):
    i = cuda.grid(1)
    if i < steps.size:
        s = steps[i]
        if s <= warm_up:
            rates[i] = peak * float32(s) / float32(warm_up)
        else:
            progress = float32(s - warm_up) / float32(total - warm_up)
            rates[i] = peak + (least - peak) * min(progress, float32(1.0))


### END SOLUTION

# %%
check("rates_of_steps", rates_of_steps)

# %% [markdown]
# ## 3 · The mean over workers
#
# W workers have computed gradients of n weights, each on its own windows: `gradients` (W, n) float32. Worker w trained on
# `counts[w]` tokens, and `counts` (W,) is int32: a worker whose texts ended early has fewer than the others, and some may
# have none, but not all. A worker's gradients are the mean over its tokens. `out` (n,) float32 should be the mean over
# all workers' tokens.
#
# Add up the workers in order, so that every run gives the same bits. The launch may have fewer threads than weights: use
# a grid-stride loop. Blocks have 64 threads.


# %%
@cuda.jit
def mean_of_workers(gradients, counts, out):
    ### BEGIN SOLUTION
    tokens = 0
    for w in range(counts.size):
        tokens += counts[w]
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        total = float32(0.0)
        for w in range(counts.size):
            total += float32(counts[w]) * gradients[w, i]
        out[i] = total / float32(tokens)
    ### END SOLUTION


# %%
check("mean_of_workers", mean_of_workers)
