# %% [markdown]
# # 48 · Gradients of a kernel
#
# *Lab notebook, 29 November 2026*
#
# You will learn
#
# - how to derive the backward kernel of an operation, largely from the shapes of its arrays
# - how to check a gradient with finite differences, and which step to use
# - why training kernels add in a fixed order, and how they do so without atomics
#
# ## The problem
#
# So far all weights came from a file. Training finds them. The model runs on a batch of text, and the result is one
# number, the *loss*: how badly the model predicted the next tokens. Then every weight is moved a little in the
# direction that lowers the loss. That needs the derivative of the loss with respect to every weight. The derivatives
# for one array form its *gradient*, an array of the same shape.
#
# Gradients are computed from the end of the model to its beginning, in the *backward pass*. Each kernel of the forward
# pass has a backward kernel. If the forward kernel reads `x` and writes `out`, the backward kernel is given `dout`, the
# gradient of `out`, and writes `dx`, the gradient of `x`. It needs to know nothing else about the model, so we can
# derive one kernel at a time.
#
# Take the first linear layer of GPT-2's MLP, $\text{out} = x W^T + b$, in bfloat16, with $T$ = 8,192 tokens, $K$ = 768
# inputs and $N$ = 3,072 outputs. Its backward pass writes the gradients of $x$, $W$ and $b$. How many times as many
# flops as the forward pass does the backward pass need, and how many times as many bytes?

# %%
from labkit import table
from labkit.kernels.ops.linear_backward import (
    LINEAR_BACKWARD_BIAS,
    LINEAR_BACKWARD_BIAS_BF16,
    LINEAR_BACKWARD_INPUT,
    LINEAR_BACKWARD_INPUT_BF16,
    LINEAR_BACKWARD_WEIGHT,
    LINEAR_BACKWARD_WEIGHT_BF16,
)
from labkit.kernels.ops.linear_bf16 import LINEAR_BF16

T, N, K = 8192, 3072, 768
ops = {"out": LINEAR_BF16, "dx": LINEAR_BACKWARD_INPUT_BF16, "dW": LINEAR_BACKWARD_WEIGHT_BF16,
       "db": LINEAR_BACKWARD_BIAS_BF16}
work = {name: (op.work.flops(T, N, K), op.work.bytes(T, N, K)) for name, op in ops.items()}
work["dx, dW and db"] = tuple(sum(work[name][i] for name in ("dx", "dW", "db")) for i in range(2))
table([(name, flops / 1e9, nbytes / 1e6, flops / work["out"][0], nbytes / work["out"][1])
       for name, (flops, nbytes) in work.items()],
      {"": "", "GFLOP": ".2f", "MB": ".1f", "flops / forward": ".2f", "bytes / forward": ".2f"})

# %% [markdown]
# Twice the flops: two products, each as large as the forward pass's. The bytes more than double, because three kernels
# each read `dout`. Twice the flops is also why a training step is usually counted as three forward passes.
#
# ## The chain rule by shapes
#
# Each element of `x` may change every element of `out`, so its derivative is a sum:
#
# $$dx_i = \sum_j \text{dout}_j \frac{\partial \text{out}_j}{\partial x_i}$$
#
# The derivatives of all outputs with respect to all inputs form a matrix, the Jacobian. It is never stored: for a GELU
# of 8,192 x 3,072 values it would have more than $10^{14}$ elements. A backward kernel computes the sum without it, so
# the first question about any operation is which outputs an input changes.
#
# In an elementwise operation an input changes only its own output. GELU in the tanh form is $x s$, where
# $s = 1 / (1 + e^{-2u})$ and $u = \sqrt{2 / \pi} \, (x + 0.044715 \, x^3)$, so
#
# $$dx = \text{dout} \; \bigl(s + x \, s (1 - s) \, 2u'\bigr)$$

# %%
from labkit import agree, show_source
from labkit.kernels.elements import FLOAT32
from labkit.kernels.gelu_backward import make_gelu_backward_per_thread, make_gelu_slope
from labkit.kernels.ops.gelu_backward import GELU_BACKWARD

show_source(make_gelu_slope)

# %%
show_source(make_gelu_backward_per_thread(FLOAT32))

# %%
agree(GELU_BACKWARD)

# %% [markdown]
# The forward pass has to keep `x`; $s$ is recomputed from it, since a few flops cost less than reading another array.
# The forward kernel moves two arrays and the backward kernel three. Both are memory-bound, so at the same bandwidth the
# backward kernel takes {{ 3 / 2:.1f }} times as long.
#
# SwiGLU (lesson 35) has two inputs for each output. By the product rule each half's gradient contains the other half:
# with $s = 1 / (1 + e^{-\text{gate}})$, $d\text{up} = \text{dout} \cdot \text{gate} \cdot s$ and
# $d\text{gate} = \text{dout} \cdot \text{up} \cdot s \, (1 + \text{gate} \, (1 - s))$.

# %%
from labkit.kernels.ops.swiglu_backward import SWIGLU_BACKWARD

agree(SWIGLU_BACKWARD)

# %% [markdown]
# ## Is the formula right?
#
# `agree` compares the kernel with NumPy. If the formula itself is wrong, so are both. But a gradient can be checked
# without its formula: move `x` by a small step and see how the loss changes. As the loss we use
# $L(x) = \sum \text{dout} \cdot \text{out}(x)$, since the gradient of `out` is then `dout`. All elements move together,
# by $h$ times a random direction $d$. The *finite difference*
#
# $$\frac{L(x + h d) - L(x - h d)}{2h}$$
#
# should be close to $\sum dx \cdot d$. A wrong element of `dx` changes that sum, so one direction checks them all.
# Below, this is done for GELU in float64 and in float32, for 20 directions, with steps from 1 down to $10^{-12}$. Which
# step gives the smallest error in float64, and which in float32?

# %%
import numpy as np

from labkit.course.drawings import gradients as pictures
from labkit.kernels.gelu import CUBE, ROOT
from labkit.kernels.gelu_backward import gelu_backward_reference

rng = np.random.default_rng(0)
x, dout = rng.standard_normal((2, 1000))
directions = rng.standard_normal((20, 1000))


def gelu(x):
    """In the dtype of x."""
    root, cube = x.dtype.type(ROOT), x.dtype.type(CUBE)
    return x / 2 * (1 + np.tanh(root * (x + cube * x**3)))


def difference(function, x, dout, direction, h):
    """The derivative of sum(dout * function(x)) along `direction`."""
    step = x.dtype.type(h) * direction.astype(x.dtype)
    after, before = (dout * function(x + step)).sum(), (dout * function(x - step)).sum()
    return float(after - before) / (2 * h)


exact = directions @ gelu_backward_reference(x, dout)
steps = 10.0 ** np.arange(0, -12.5, -0.5)
errors = {}
for dtype in (np.float64, np.float32):
    arrays = x.astype(dtype), dout.astype(dtype)
    found = np.array([[difference(gelu, *arrays, direction, h) for direction in directions] for h in steps])
    errors[dtype.__name__] = np.sqrt(np.square(found - exact).mean(axis=1) / np.square(exact).mean())
pictures.step_sizes(steps, errors)

# %% [markdown]
# In float64 a step between $10^{-6}$ and $10^{-5}$ is best, and in float32 one between $10^{-3}$ and $10^{-2}$. Two
# errors add up. On the right is the *truncation error*: the slope changes between the two points. With steps on both
# sides of $x$ this error is proportional to $h^2$, so a tenth of the step leaves a hundredth of the error. On the left
# is rounding. $L$ is known only up to a relative error $\varepsilon$, and the difference of two nearby values is
# divided by $2h$, so this error grows as $h$ shrinks. The sum is smallest near $h = \sqrt[3]{\varepsilon}$, which is
# {{ (2**-52) ** (1 / 3):.6f }} for float64 and {{ (2**-23) ** (1 / 3):.3f }} for float32. With the smallest steps in
# float32, `x + step` equals `x`, and the difference is 0.
#
# In float32 about four digits can be compared at best, and a mistake in a small term goes unnoticed. So the formulas
# are checked in float64, in NumPy, and the kernels are compared with the formulas. The rest of the lesson does so for
# each operation.
#
# ## A linear layer
#
# The input $x_{tk}$ changes every output of its token: $\text{out}_{tn} = \sum_k x_{tk} W_{nk} + b_n$. So $dx_{tk}$ is
# a sum over $n$. The weight $W_{nk}$ changes one output of every token, so $dW_{nk}$ is a sum over $t$. As matrices:
#
# $$dx = \text{dout} \; W \qquad dW = \text{dout}^T x \qquad db_n = \sum_t \text{dout}_{tn}$$
#
# Shapes alone are nearly enough to find this. $dx$ is $(T, K)$, and a product of $\text{dout}$ $(T, N)$ and $W$
# $(N, K)$ can have that shape in only one way.

# %% tags=["hide-input"]
pictures.linear_products()

# %% [markdown]
# All three are matrix products, and everything in the course's ladders for them applies: tiles, tensor cores,
# pipelines. Only the axis that is summed over differs. In the plainest kernel for $dW$, neighbouring threads compute
# neighbouring $k$. Are this kernel's loads of both factors coalesced, although one factor is transposed?

# %%
from labkit.kernels.linear.backward import make_weight_naive

show_source(make_weight_naive(FLOAT32, FLOAT32, False))

# %% [markdown]
# They are: for `x[t, col]` neighbouring threads load neighbouring elements of one token, and `grad_out[t, row]` is the
# same element for all or most of a warp. The elements of a token are contiguous in both factors, so no transposed copy
# is needed; the faster kernels load tiles of such rows and transpose as they read fragments.
#
# The sum runs over many tokens, while $N \times K$ may be only a few tiles: 3,072 x 768 is
# {{ (3072 // 128) * (768 // 128) }} tiles of 128 x 128, few more than the {{ machine.sms }} multiprocessors of an H200.
# With a smaller layer most of the GPU would be idle. So the tokens are split as well: several blocks compute the same
# tile for different tokens. Could they add their sums to `dW` with atomics?
#
# ## The same bits in every run
#
# They could, and the result would be within the tolerance. But then the blocks would add in the order in which they
# happen to finish. The next cell adds up 100 float32 values in random orders. How many different sums do 1,000 random
# orders of the same 100 values give?

# %%
values = rng.standard_normal(100).astype(np.float32)
sums = [np.add.accumulate(rng.permutation(values))[-1] for _ in range(1000)]
table([(len(set(sums)), min(sums), max(sums), values.astype(np.float64).sum())],
      {"different sums": "", "smallest": ".6f", "largest": ".6f", "in float64": ".6f"})

# %% [markdown]
# About twenty: floating-point addition is not associative. One such difference is harmless. But training repeats this
# thousands of times, each step starting from the result of the one before, and two runs with the same seed drift apart.
# A bug that shows up at step 20,000{{ example }} might not show up again. So no backward kernel of the course uses
# atomics. Each split writes its partial sum, and a second launch adds these up, always in the same order. A thread of
# it adds up eight neighbouring elements:

# %%
from labkit.kernels.partial_sums import make_sum_by_threads

show_source(make_sum_by_threads(FLOAT32, False, True))

# %%
agree(LINEAR_BACKWARD_INPUT)

# %%
agree(LINEAR_BACKWARD_WEIGHT)

# %%
agree(LINEAR_BACKWARD_BIAS)

# %% [markdown]
# The sum over tokens is also the reason that `dW` is often kept in float32. If a batch is too large for memory, it is
# processed in parts, and with `accumulate=True` the kernels add each part's gradient to the sum so far. In bfloat16 a
# small contribution would be rounded away.
#
# ## A softmax
#
# In a softmax, each input changes every output $y_j$ of its row: raising one lowers the other outputs.
# $\partial y_j / \partial x_i$ is $y_i (1 - y_i)$ for $j = i$ and $-y_i y_j$ otherwise. The sum over $j$ then needs
# only one number per row:
#
# $$dx_i = y_i \Bigl(\text{dout}_i - \sum_j \text{dout}_j \, y_j\Bigr)$$
#
# $x$ does not appear, so the forward pass keeps only its output. Writing a kernel for it is an exercise of lesson 20,
# `softmax_backward`. The library's kernel reads both rows once and keeps them in registers. What do the elements of a
# row of `dx` add up to?

# %%
from labkit.kernels.ops.softmax_backward import SOFTMAX_BACKWARD
from labkit.kernels.softmax.backward import softmax_backward_reference
from labkit.kernels.softmax.rows import softmax_reference

scores, dscores = rng.standard_normal((2, 3, 1000))
y = softmax_reference(scores)
table([(row, abs(total)) for row, total in enumerate(softmax_backward_reference(y, dscores).sum(axis=1))],
      {"row": "", "sum of dx": ".1e"})

# %% [markdown]
# To 0, apart from rounding: adding a constant to all inputs of a row does not change a softmax, so the derivative in
# that direction is 0. Such an invariant is a second check of a gradient, and needs no finite differences.

# %%
agree(SOFTMAX_BACKWARD)

# %% [markdown]
# ## An embedding
#
# The forward pass copies row `ids[t]` of the table to row $t$ of the output (lesson 28). The backward pass adds row $t$
# of `dout` to row `ids[t]` of the table's gradient. A frequent token occurs hundreds of times in a batch, and all of
# its rows are added to a single one. Again atomics are the obvious way, and again the order would be random. In the
# next kernel each row of `dout` has a block. Among the blocks with the same token, one adds up the rows of all, and the
# others return. Which of the blocks with the same token adds up its rows?

# %%
from labkit.kernels.embedding_backward import make_embedding_backward

show_source(make_embedding_backward(FLOAT32, FLOAT32, True))

# %% [markdown]
# The one whose row comes first. Every block looks for its id among the earlier ones and returns if it finds it. No
# block waits for another, and the order of the sum depends only on `ids`. Reading the ids again in every block is not
# free: for 8,192 tokens it is {{ 8192**2 * 4 / 1e6:.0f }} MB if each block reads all of them. But these reads hit a
# cache, and a row of `dout` is much larger than an id.

# %%
from labkit.kernels.ops.embedding_backward import TOKEN_EMBEDDING_BACKWARD

agree(TOKEN_EMBEDDING_BACKWARD)

# %% [markdown]
# ## Cross entropy, in place
#
# The loss of one token is the *cross entropy*: $-\log p$ of the token that really comes next, where $p$ is the softmax
# of the logits $z$. The backward pass starts here. In the gradient, nearly everything cancels:
#
# $$\text{loss} = \log \sum_j e^{z_j} - z_\text{target} \qquad dz_i = p_i - [i = \text{target}]$$
#
# The gradient is the probabilities, less 1 at the target. Both loss and gradient need the row's maximum and sum, so one
# kernel computes the two. The loss of a batch is the mean over its tokens, so the gradient is multiplied by `scale`,
# usually one over the number of tokens.
#
# Logits are a model's largest array: 8,192 tokens and GPT-2's vocabulary of 50,257 are {{ 8192 * 50257 * 2 / 1e6:.0f }}
# MB in bfloat16. Once the gradient is known they are no longer needed, so the kernel may overwrite them with it. How
# many times does this kernel load each logit?

# %%
from labkit.kernels.loss.cross_entropy import make_cross_entropy_passes

show_source(make_cross_entropy_passes(FLOAT32, True))

# %% [markdown]
# Twice: once for the maximum and the sum, together, and once for the gradient. The target's logit is also loaded first
# of all. The loss needs it, and by the end of the kernel another thread may have overwritten it. In the second loop
# each thread reads an element right before overwriting it, and no other thread still needs that element: a barrier in
# the reduction separates the two loops. The launcher `cross_entropy` picks a faster version, which keeps the row in
# shared memory. Here it runs in place:

# %%
from labkit import cuda
from labkit.kernels.loss.cross_entropy import cross_entropy, cross_entropy_reference
from labkit.kernels.ops.cross_entropy import CROSS_ENTROPY

logits, targets, scale = CROSS_ENTROPY.inputs(rng, R=5, V=1001)
losses, dlogits = cross_entropy_reference(logits, targets, scale)
on_device, found = cuda.to_device(logits), cuda.device_array(5, np.float32)
cross_entropy(on_device, cuda.to_device(targets), cuda.to_device(scale), found, on_device)
table([(int(target), loss, expected, np.abs(row).max()) for target, loss, expected, row in
       zip(targets, found.copy_to_host(), losses, on_device.copy_to_host() - dlogits, strict=True)],
      {"target": "", "loss": ".5f", "in float64": ".5f", "largest error of the gradient": ".1e"})

# %% [markdown]
# A target of -100 is ignored: the loss is 0, and so is the row of the gradient.

# %%
agree(CROSS_ENTROPY)

# %% [markdown]
# ## The ladder of cross entropy
#
# The ladder was recorded in bfloat16, at the size above. `passes` loads each logit three times: for the maximum, for
# the sum and for the gradient. `online` is the kernel above, and `cached` the one that keeps the row in shared memory
# and loads 128 bits at a time. By their bytes, how many times as fast as `passes` should the other two be?

# %%
from labkit import measure, plots

plots.ladder(measure.recorded_ladder("cross_entropy_bf16", gpu="NVIDIA H200"), None)

# %% [markdown]
# With the gradient written once, {{ 4 / 3:.1f }} and {{ 4 / 2:.0f }} times. Measured, `online` is
# {{ us['passes'] / us['online']:.1f }} times as fast, and `cached` {{ us['passes'] / us['cached']:.1f }} times: the
# first two load 16 bits at a time, and are not limited by their bytes alone. `cached` takes
# {{ us['cached'] / bound:.1f }} times as long as its bytes. Compiled PyTorch needs
# {{ us['PyTorch, compiled'] / us['cached']:.1f }} times its time.

# %% [markdown]
# ## Every formula checked
#
# The references that the kernels agree with are NumPy functions. Each is now compared with a finite difference in
# float64, with a step of $10^{-5}$.

# %%
from labkit.kernels.embedding_backward import token_embedding_backward_reference
from labkit.kernels.swiglu import silu
from labkit.kernels.swiglu_backward import swiglu_backward_reference

x, weight = rng.standard_normal((7, 5)), rng.standard_normal((6, 5))
ids, targets = rng.integers(0, 7, 40).astype(np.int32), rng.integers(0, 5, 7)
dout, dids, dhalf = rng.standard_normal((7, 6)), rng.standard_normal((40, 5)), rng.standard_normal((7, 3))
gate_up = rng.standard_normal((7, 6))
cases = {  # name: (function, its input, dout, the gradient by the formula)
    "GELU": (gelu, x, x[::-1], gelu_backward_reference(x, x[::-1])),
    "SwiGLU": (lambda both: silu(both[:, :3]) * both[:, 3:], gate_up, dhalf, swiglu_backward_reference(gate_up, dhalf)),
    "linear, input": (lambda x: x @ weight.T, x, dout, dout @ weight),
    "linear, weight": (lambda weight: x @ weight.T, weight, dout, dout.T @ x),
    "softmax": (softmax_reference, x, x[::-1], softmax_backward_reference(softmax_reference(x), x[::-1])),
    "embedding": (lambda rows: rows[ids], x, dids, token_embedding_backward_reference(ids, dids, 7)),
    "cross entropy": (lambda z: cross_entropy_reference(z, targets, [1.0])[0], x, np.ones(7),
                      cross_entropy_reference(x, targets, [1.0])[1]),
}
found = []
for name, (function, at, grad_out, gradient) in cases.items():
    direction = rng.standard_normal(at.shape)
    by_formula = (gradient * direction).sum()
    found.append((name, by_formula, abs(difference(function, at, grad_out, direction, 1e-5) - by_formula)))
table(found, {"": "", "by the formula": ".6f", "finite difference is off by": ".1e"})

# %% [markdown]
# All agree to about ten digits, as the figure above led us to expect.
#
# ## What was implemented
#
# - the gradients of GELU, SwiGLU, a linear layer, a softmax, an embedding and cross entropy, in float32 and, except for
#   the softmax, in 16 bits
# - sums over tokens in a fixed order, by partial sums and a second launch, or by one block per token
#
# ## What I learned
#
# - A backward kernel is given `dout` and writes `dx`. It multiplies by the Jacobian without storing it.
# - Where the forward pass uses a value many times, the backward pass adds up many contributions: a weight's gradient is
#   a sum over tokens.
# - A linear layer's backward pass is two products, and a pass over `dout` for the bias.
# - Finite differences check a formula in float64, with a step near the cube root of $\varepsilon$. The kernel is then
#   compared with the formula.
# - The order of a sum determines its last bits. A fixed order costs a second launch, and makes training repeatable.
#
# ## Resources
#
# - [A. Karpathy: llm.c](https://github.com/karpathy/llm.c), a GPT-2 with all of its backward kernels
# - [Liger Kernel](https://github.com/linkedin/Liger-Kernel), where cross entropy also writes its gradient over the
#   logits
# - [A. G. Baydin et al.: Automatic Differentiation in Machine Learning: a Survey
#   (2018)](https://arxiv.org/abs/1502.05767)
#
# ## Try it
#
# - Use a one-sided difference, $(L(x + hd) - L(x)) / h$. What is the best step, and how many digits agree?
# - Break one of the formulas, for example `1 - tanh**2` in a copy of GELU's. How large must the mistake be for a check
#   in float32 to notice it?
# - With a GPU: `labkit bench linear_backward_weight_bf16`.
#
# In the exercises for this lesson you predict shapes and bytes, write the gradient of a bias and SiLU from a blank
# page, and add up the gradient of a gather in a fixed order.

# %% [numbers]
# us = {name.removeprefix('cross_entropy_'): row('cross_entropy_bf16', name).us for name in (
#     'cross_entropy_passes', 'cross_entropy_online', 'cross_entropy_cached', 'PyTorch, compiled')}
# bound = 1000 * row('cross_entropy_bf16', 'cross_entropy_cached').bound_ms
