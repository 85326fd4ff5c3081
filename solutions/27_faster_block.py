# %% [markdown]
# # 27 · A faster block: exercises
#
# Three exercises: a bias and a GELU in one kernel, which goes straight into the model, a prediction about what fusing
# saves, and from a blank page a program that replays one graph for many inputs. `hint("bias_gelu_tanh")` gives a hint,
# and a second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, graphs, hint
from labkit.course import yours
from labkit.kernels.linear.fused import fused_tiled

# %% [markdown]
# ## 1 · Bias and GELU, for GPT-2
#
# In lesson 23 you may have written a bias and a GELU in one kernel, in the exact form. GPT-2 was trained with the other
# form. In the lesson's block it is part of a product's epilogue; as a separate kernel it can be yours. With
# $v = x_{r,c} + \text{bias}_c$:
#
# $$\text{out}_{r,c} = \frac{v}{2} \left(1 + \tanh\left(\sqrt{2/\pi}\,(v + 0.044715\,v^3)\right)\right)$$
#
# Blocks are 32 × 8, with the grid's x along the columns. `ROOT` and `CUBIC` are given, in float32, and `math.tanh` works
# in a kernel. Watch out for large values if you write it with exponentials: `exp(90)` is infinite in float32, and
# infinity over infinity is NaN.

# %%
ROOT = float32(math.sqrt(2 / math.pi))
CUBIC = float32(0.044715)


@cuda.jit
def bias_gelu_tanh(x, bias, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < x.shape[0] and col < x.shape[1]:
        v = x[row, col] + bias[col]
        out[row, col] = float32(0.5) * v * (float32(1.0) + math.tanh(ROOT * (v + CUBIC * v * v * v)))
    ### END SOLUTION


# %%
check("bias_gelu_tanh", bias_gelu_tanh)

# %% [markdown]
# This one goes into the model, between the two layers of the MLP. The next cell runs a block with your kernel, and
# compares each step with NumPy in float64. There `out` may be `x`. Is your kernel right when it overwrites its input?

# %%
yours.block_parity(yours.answers(bias_gelu_tanh=bias_gelu_tanh))

# %% [markdown]
# ## 2 · Predict: what fusing saves
#
# GPT-2 small in float32: a width of 768, an inner width of 3,072. First ten launches, a kernel for each step. Then GELU
# moves into the epilogue of the product before it, and so do both additions. Work out on paper, for 1,024 tokens:
#
# - `launches`: how many fewer launches is that?
# - `gelu_bytes`: how many bytes did the separate kernel for GELU move?
# - `residual_bytes`: how many fewer bytes do the two additions move? The separate kernel reads two matrices and writes
#   one; which of these does the epilogue still have to touch?
# - `buffer_bytes`: the design in CUDA C++ allocates eight arrays in each call, with one row per token: six with 768
#   columns, one with 2,304, one with 3,072. How many bytes?
#
# And for a single token, fused:
#
# - `weights_percent`: what percentage of all bytes that the block moves are its weights? Round to a whole number.

# %%
launches = None
gelu_bytes = None
residual_bytes = None
buffer_bytes = None
weights_percent = None
### BEGIN SOLUTION
launches = 10 - 7
gelu_bytes = 2 * 1024 * 3072 * 4  # in and out
residual_bytes = 2 * (2 * 1024 * 768 * 4)  # for each: what is added is neither written nor read again
buffer_bytes = 1024 * (6 * 768 + 2304 + 3072) * 4
weights_percent = 100  # 28,351,488 bytes of weights; the token's rows are some 80 KB beside them
### END SOLUTION

# %%
check("predict_block", launches=launches, gelu_bytes=gelu_bytes, residual_bytes=residual_bytes,
      buffer_bytes=buffer_bytes, weights_percent=weights_percent)


# %% [markdown]
# The last number shows which bytes a GPT-2 moves while it writes text one token at a time: nearly all are its weights. No
# token can take less time than reading them. That is one reason why the weights of language models are stored in fewer
# and fewer bits.
#
# ## 3 · From a blank page: one graph, many inputs
#
# `batches` holds N inputs, one after another: its shape is (N, S, C). Each goes through the same linear layer with a
# GELU, $\text{out}_n = \text{gelu}(\text{batches}_n \cdot \text{weights} + \text{bias})$, and `out` has the shape
# (N, S, I). Everything is on the device.
#
# Write `replay_layer(batches, weights, bias, out)`, a host function. It captures one graph, whose only launch is
# `fused_tiled(x, weights, bias, y, gelu=True, stream=stream)`, and replays it N times. The graph should also work for
# inputs that do not exist yet when it is captured, so it must not hold all N launches.
#
# `graphs.capture(work)` calls `work(stream)` and returns the graph, and `graph.launch()` replays it.
# `cuda.device_array(shape, np.float32)` allocates, `batches[n]` is a part of an array, and `a.copy_to_device(b)` copies
# the device array `b` into `a`. Copies belong outside the graph.

# %%
replay_layer = None  # write the function


### BEGIN SOLUTION
def replay_layer(batches, weights, bias, out):
    x, y = cuda.device_array(batches.shape[1:], np.float32), cuda.device_array(out.shape[1:], np.float32)
    graph = graphs.capture(lambda stream: fused_tiled(x, weights, bias, y, gelu=True, stream=stream))
    for number in range(batches.shape[0]):
        x.copy_to_device(batches[number])
        graph.launch()
        out[number].copy_to_device(y)


### END SOLUTION

# %%
check("replay_layer", replay_layer)

# %% [markdown]
# `capture` ran the layer once before there was an input in `x`, to compile its kernel. Why does that do no harm here,
# when it did in the exercise `run_steps` of lesson 13?
