# %% [markdown]
# # 48 · Gradients of a kernel: exercises
#
# Three exercises. Predict the shapes and bytes of a backward pass, write the gradient of a bias before a SiLU from a
# blank page, and add up the gradient of a gather in a fixed order. `hint("predict_backward")` gives a hint, and a second
# call a better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: terms and bytes of a backward pass
#
# On paper: a linear layer, $\text{out} = x W^T + b$, has 2,048 tokens, 1,024 inputs and 4,096 outputs. Each element of
# `dx`, of `dW` and of `db` is a sum: of how many terms? A GELU follows the layer, in bfloat16. How many bytes does its
# backward kernel move at least, if it reads `dout` and what the forward pass kept, and writes `dx`? And a batch of five
# tokens has the ids 3, 1, 3, 3 and 0: how many rows of the embedding's gradient are not 0?

# %%
dx_terms = None  # in an element of dx
dweight_terms = None  # in an element of dW
dbias_terms = None  # in an element of db
gelu_bytes = None  # moved by the GELU's backward kernel
rows = None  # of the embedding's gradient that are not 0
### BEGIN SOLUTION
dx_terms = 4096
dweight_terms = 2048
dbias_terms = 2048
gelu_bytes = 50_331_648
rows = 3
### END SOLUTION

# %%
check("predict_backward", dx_terms=dx_terms, dweight_terms=dweight_terms, dbias_terms=dbias_terms,
      gelu_bytes=gelu_bytes, rows=rows)


# %% [markdown]
# ## 2 · From a blank page: the gradient of a bias
#
# A layer ends with $\text{out} = \text{silu}(v)$, where $v_{r,c} = x_{r,c} + \text{bias}_c$ and $\text{silu}(v) = v \, s$
# with $s = 1 / (1 + e^{-v})$. Its forward pass kept `x`. The derivative of silu is $s \, (1 + v \, (1 - s))$, and each
# bias was added to a whole column, so its gradient is
#
# $$\text{out}_c = \sum_r \text{dout}_{r,c} \; s_{r,c} \, \bigl(1 + v_{r,c} (1 - s_{r,c})\bigr)$$
#
# Write `silu_bias_gradient(x, bias, dout, out)` from the decorator down. `x` and `dout` are (R, C), `bias` and `out`
# (C,), all float32. A block has 32 x 8 threads and computes 32 columns: the eight threads with the same `threadIdx.x`
# divide the rows of a column among them. `math.exp` works in a kernel.

# %%
silu_bias_gradient = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def silu_bias_gradient(x, bias, dout, out):
    partial = cuda.shared.array((8, 32), float32)
    lane, part = cuda.threadIdx.x, cuda.threadIdx.y
    col = 32 * cuda.blockIdx.x + lane
    total = float32(0.0)
    if col < x.shape[1]:
        for row in range(part, x.shape[0], 8):
            v = x[row, col] + bias[col]
            s = float32(1.0) / (float32(1.0) + math.exp(-v))
            total += dout[row, col] * s * (float32(1.0) + v * (float32(1.0) - s))
    partial[part, lane] = total
    cuda.syncthreads()
    if part == 0 and col < x.shape[1]:
        for other in range(1, 8):
            total += partial[other, lane]
        out[col] = total


### END SOLUTION

# %%
check("silu_bias_gradient", silu_bias_gradient)

# %% [markdown]
# ## 3 · The gradient of a gather
#
# A gather copies rows of a table: row t of its output is row `ids[t]` of the table. For the backward pass the host has
# sorted the positions t by id: `order` (T,) holds those of id 0 first, then those of id 1, and so on. The positions of id
# v begin at `order[starts[v]]` and end before `order[starts[v + 1]]`; `starts` is (V + 1,), and both arrays are int32.
# Row v of `dtable` (V, C) should be the sum of the rows of `dout` (T, C) at these positions, both float32, added in this
# order, and 0 if the id does not occur. The launch has one block of 64 threads per row of `dtable`. A row can have any
# number of columns.


# %%
@cuda.jit
def gather_backward(order, starts, dout, dtable):
    ### BEGIN SOLUTION
    row = cuda.blockIdx.x
    for col in range(cuda.threadIdx.x, dtable.shape[1], 64):
        total = float32(0.0)
        for i in range(starts[row], starts[row + 1]):
            total += dout[order[i], col]
        dtable[row, col] = total
    ### END SOLUTION


# %%
check("gather_backward", gather_backward)

# %% [markdown]
# You can train with this kernel. `labkit train data/minute.toml --out build/mine --yours` sorts the positions on the
# device, and computes the gradient of the embedding with it.
