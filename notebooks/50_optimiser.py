# %% [markdown]
# # 50 · The optimiser and its precision
#
# *Lab notebook, 29 November 2026*
#
# You will learn
#
# - how AdamW turns gradients into updates, and why memory bandwidth sets its time
# - how the norm of all gradients is computed with the same bits in every run
# - why training in bfloat16 keeps a second copy of every weight in float32
#
# ## The problem
#
# The backward pass leaves a gradient for every weight: how fast the loss grows as that weight grows. The *optimiser*
# turns gradients into new weights. The simplest one subtracts a multiple of the gradient:
#
# $$w \leftarrow w - \text{rate} \cdot g$$
#
# This is *stochastic gradient descent*, SGD: stochastic because each step uses only a few texts, drawn at random. The
# factor is the *learning rate*.
#
# Every element of every tensor is treated alike. GPT-2 has 148 tensors, many of them biases of 768 elements,
# and a launch for each would cost mostly launch time. So the trainer's `Buffer` keeps all weights of a model in one
# flat array, and all gradients in a second one of the same layout. The tensors that the model's kernels read and write
# are views into them. Here are the first tensors of a small Llama, whose `Settings` are in a file.

# %%
from labkit import table
from labkit._common.paths import find_root
from labkit.train.parameters import layout
from labkit.train.settings import Settings

settings = Settings.read(find_root() / "data" / "minute.toml")
tensors = layout(settings.model)
table([(one.name, str(one.shape), one.size, one.offset, one.offset % 256) for one in tensors[:6]],
      {"tensor": "", "shape": "", "elements": ",", "offset": ",", "offset modulo 256": ""})

# %% [markdown]
# Each begins at a multiple of 256 elements. That leaves gaps of at most 255 elements, whose weights and gradients are
# always 0. In return every view is aligned for loads of 128 bits, and one flag per 256 elements can mark tensors that
# are treated differently. We will need one.
#
# ## From SGD to AdamW
#
# SGD has one rate for all weights. Take a loss of two weights, $\frac{1}{2}(100\,x^2 + y^2)$. Its gradient is
# $(100\,x, y)$, so a step multiplies $x$ by $1 - 100 \cdot \text{rate}$. Above what rate does $x$ grow instead of
# shrinking? And at that rate, how many steps does $y$ need to fall to a tenth?

# %%
import numpy as np

from labkit import plots

curvatures = np.array([100.0, 1.0])


def losses_of(update, steps=100):
    """The loss before each step. update(w, g, t, state) returns the new weights; t counts from 1."""
    w, state, losses = np.ones(2), {"m": 0.0, "v": 0.0}, []
    for t in range(1, steps + 1):
        losses.append((curvatures * w * w).sum() / 2)
        w = update(w, curvatures * w, t, state)
    return losses


def sgd(w, g, t, state):
    return w - 0.019 * g


def momentum(w, g, t, state):
    state["m"] = 0.67 * state["m"] + g
    return w - 0.033 * state["m"]


def adam(w, g, t, state):
    state["m"] = 0.9 * state["m"] + 0.1 * g
    state["v"] = 0.999 * state["v"] + 0.001 * g * g
    return w - 0.05 * (state["m"] / (1 - 0.9**t)) / (np.sqrt(state["v"] / (1 - 0.999**t)) + 1e-8)


plots.curves(range(1, 101), {"SGD": losses_of(sgd), "momentum": losses_of(momentum), "Adam": losses_of(adam)},
             "The steepest direction limits SGD's rate", "step", "loss", log_y=True, place="Computed in NumPy")

# %% [markdown]
# Above 1/50. There $y$ shrinks by a fiftieth in each step, and needs 114 steps to fall by a factor of
# ten{{ if 0.98**114 < 0.1 < 0.98**113 }}. The SGD in the picture has a rate just below the limit.
#
# There are two remedies, and the curves show both. *Momentum* adds past gradients to the present one: in a steep
# direction they alternate in sign and cancel, in a shallow one they add up. *Adam* also divides each weight's average
# gradient, $m$, by the root of its average square, $v$, so every weight moves by about the rate in each step, however
# large its gradients are. It stores two more values per weight. Momentum wins here, with a rate and a factor computed
# from the two curvatures. Adam did not use them.
#
# Both averages begin at 0. After the first step, with the factors $\beta_1 = 0.9$ and $\beta_2 = 0.999$, they are
# $m = 0.1\,g$ and $v = 0.001\,g^2$. So Adam divides $m$ by $1 - \beta_1^t$ and $v$ by $1 - \beta_2^t$ at step $t$. This
# is the *bias correction*. Suppose all gradients are equal. Without the correction, are the first steps too small or
# too large, and by how much?

# %%
table([(t, (1 - 0.9**t) / np.sqrt(1 - 0.999**t)) for t in (1, 10, 100, 1000, 10_000)],
      {"step": ",", "update without correction, in units of the rate": ".2f"})

# %% [markdown]
# Too large, by a factor of three in the first step and more in the next ones: $v$ is further below its final value than
# $m^2$, and its root is in the denominator. The worst steps come early, while the weights are still random.
#
# ## Decay
#
# Weights should not grow needlessly, so training also pulls each of them towards 0. With SGD it makes no difference
# whether $\text{decay} \cdot w$ is added to the gradient, or $w$ is reduced by $\text{rate} \cdot \text{decay} \cdot w$
# in the update. With Adam it does. Three weights of 1 get gradients of 10, 1 and 0.3{{ example }} that alternate in
# sign, so that only the decay should move them, for 1,000 steps with a rate of 0.01{{ example }} and a decay of
# 0.1{{ example }}. Shrinking by a thousandth per step leaves 0.37{{ example }}. Where do the three weights end up if
# the decay is part of the gradient?

# %%
def after_decay(decoupled: bool):
    w, m, v, rate, decay = np.ones(3), np.zeros(3), np.zeros(3), 0.01, 0.1
    for t in range(1, 1001):
        g = np.array([10, 1, 0.3]) * (-1) ** t + (0 if decoupled else decay * w)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) - rate * decay * w * decoupled
    return w


table([("decay in the gradient", *after_decay(False)), ("decay in the update", *after_decay(True))],
      {"": "", "gradients of 10": ".3f", "of 1": ".3f", "of 0.3": ".3f"})

# %% [markdown]
# Adam divides the decay by $\sqrt{v}$ like everything else in the gradient, so weights with large gradients barely
# decay, and weights with small ones decay too fast. *AdamW* ([I. Loshchilov and F. Hutter,
# 2019](https://arxiv.org/abs/1711.05101)) applies the decay in the update: W is for weight decay. All three weights
# then end near 0.37{{ example }}.
#
# Not everything should decay. Matrices and embeddings do. Biases and the weights of norms do not: they are few, and
# pulling a norm's weight towards 0 would switch its column off. The trainer decays only tensors with two dimensions. It
# passes `decayed` to the kernel, the flag per 256 elements.
#
# ## The kernel
#
# All of this is one launch for the whole model. `make_update` holds the formulas.

# %%
from labkit import show_source
from labkit.kernels.optim.adamw import make_adamw_per_thread, make_update

show_source(make_update)

# %%
show_source(make_adamw_per_thread)

# %% [markdown]
# In float32 `1 - beta2**step` would lose digits in the first steps, since `beta2**step` is close to 1 (cancellation,
# lesson 21). `expm1(x)` computes $e^x - 1$ without that loss.
#
# `rate`, `step` and `clip` are arrays of one element on the device. A training step is a CUDA graph (lesson 13), which
# replays the arguments it was captured with, but these three change from step to step. A kernel of one thread,
# `advance`, adds 1 to `step` and looks up the rate in a table.
#
# `master` holds the weights in float32, and `parameters` the copy that the model's kernels read, which may be bfloat16.
# The second rung does the same for eight neighbouring elements per thread, with loads of 128 bits. Both agree with
# NumPy in float64:

# %%
from labkit import agree
from labkit.kernels.ops.adamw import ADAMW, ADAMW_BF16

agree(ADAMW)

# %%
agree(ADAMW_BF16)

# %% [markdown]
# GPT-2 has 124 million weights. With gradients and copies in bfloat16, is a step of AdamW bound by arithmetic or by
# memory, and how long does it take at least?

# %%
from labkit import roofline

roofline.predict(ADAMW_BF16)

# %% [markdown]
# By memory, by a factor of more than twenty{{ if bytes_over_flops > 20 }}. Per weight, `master`, `m` and `v` are read
# and written: 24 bytes. The gradient is read and the copy written: 28 bytes in all. Our trainer accumulates gradients
# in float32, so there it is 30. No value is used twice, so tiles and caches cannot help. The best a kernel can do is to
# move each byte once, in one launch: an update written as separate array operations would also read and write
# intermediate results.
#
# ## Clipping
#
# An unusual batch can have gradients a hundred times as large as those of the batch before. *Gradient clipping* bounds
# the norm of all gradients together, the root of the sum of all squares: if it exceeds a limit, every gradient is
# multiplied by the limit over the norm. The direction does not change. The sum has to be complete before the first
# weight changes, so it needs a separate launch.

# %%
from labkit.kernels.optim.global_norm import make_square_sums

show_source(make_square_sums)

# %% [markdown]
# This is the reduction of lesson 15, with 1,024 blocks on every GPU, however many SMs it has. A second launch of one
# block adds up their sums. Atomics would need no second launch, but then the blocks would add in the order in which
# they finish. How many different norms does float32 give if 100,000 squares are added up in ten random orders, and how
# many does `global_norm` give in ten runs?

# %%
from labkit import cuda
from labkit.kernels.optim.global_norm import global_norm

gradients = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
squares, on_device, result = gradients * gradients, cuda.to_device(gradients), cuda.device_array(2, np.float32)
shuffled, launched = set(), set()
for seed in range(10):
    order = np.random.default_rng(seed).permutation(len(squares))
    shuffled.add(float(np.sqrt(np.cumsum(squares[order])[-1])))  # cumsum adds one after the other
    global_norm(on_device, 1.0, result)
    launched.add(float(result.copy_to_host()[0]))
exact = np.sqrt((gradients.astype(np.float64) ** 2).sum())
table([("in random orders", len(shuffled), max(abs(norm - exact) for norm in shuffled)),
       ("global_norm", len(launched), max(abs(norm - exact) for norm in launched))],
      {"100,000 squares": "", "different norms": "", "largest error": ".1e"})

# %% [markdown]
# Ten and one. The differences are tiny, but the factor multiplies every gradient, and after a few hundred steps two
# runs would have no weight in common. If a run ends in NaN at step 900, one wants to reproduce that. So no kernel of
# our trainer uses atomics on floating-point numbers, and the same settings always give the same bits. The fixed order
# is also more accurate here: each thread adds up few squares, and then sums of similar size are added.

# %%
from labkit.kernels.ops.global_norm import GLOBAL_NORM, GLOBAL_NORM_BF16

agree(GLOBAL_NORM)

# %%
agree(GLOBAL_NORM_BF16)

# %% [markdown]
# ## The learning rate over the steps
#
# In the first steps $v$ is estimated from a handful of gradients, and the weights are random, so the full rate would do
# damage that later steps must repair. The rate therefore rises linearly at first: this is the *warm-up*. Then it falls,
# here along half a cosine, so that the weights settle. The table for `advance` is computed once, on the host.

# %%
rates = settings.train.rates()
plots.curves(range(1, len(rates) + 1), {"learning rate": rates}, "Up in a line, down along a cosine", "step",
             "learning rate", place="data/minute.toml")

# %% [markdown]
# A large batch may not fit into memory. With *gradient accumulation* a step processes several small batches, one after
# another, and the backward kernels add to the gradients instead of overwriting them. Each loss is divided by the number
# of tokens of the whole step, so the sum is the gradient of the large batch, up to rounding. Because of these sums, the
# gradients are kept in float32.
#
# ## Updates that vanish
#
# In bfloat16 the two passes move half the bytes, and use tensor cores at their full rate. Why not keep the weights in
# bfloat16 alone? The numbers just below 1 are 1/256 apart (lesson 33). A weight of 1 gets an update of
# -0.001{{ example }} in each of 40 steps. Where does it end up if it is a bfloat16, rounded after every step? And what
# if the update goes to a float32 master, and only the copy is rounded?

# %%
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.optim.adamw import adamw


def train_one_weight(keep_master: bool, steps=40, rate=0.001):
    """(master, copy) after each step of AdamW on a weight of 1, whose gradient is always 1."""
    flags, ones = cuda.to_device(np.zeros(1, np.uint8)), np.ones(1, np.float32)
    master, m, v = (cuda.to_device(values) for values in (ones, 0 * ones, 0 * ones))
    gradient, copy = cuda.to_device(bfloat16_of(ones)), cuda.to_device(bfloat16_of(ones))
    rates, clip, step, found = cuda.to_device(rate * ones), cuda.to_device(ones), np.zeros(1, np.int32), []
    for _ in range(steps):
        step += 1
        adamw(master, m, v, gradient, copy, flags, rates, cuda.to_device(step), clip, decay=0.0)
        rounded = float32_of(copy.copy_to_host())
        if not keep_master:
            master.copy_to_device(rounded)
        found.append((float(master.copy_to_host()[0]), float(rounded[0])))
    return np.array(found).T


master, copy = train_one_weight(keep_master=True)
alone, _ = train_one_weight(keep_master=False)
plots.curves(range(1, 41), {"float32 master": master, "its bfloat16 copy": copy, "bfloat16 alone": alone},
             "Without a master the weight never moves", "step", "weight", place="AdamW, rate 0.001, gradient 1")

# %% [markdown]
# The update is less than half the distance to the next number, so a bfloat16 weight is rounded back to 1, every time.
# Forty such updates do as little as one. The master accumulates them, and its copy moves by 1/256 whenever they add up
# to enough. These are *master weights* ([P. Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740)): the passes
# use 16 bits, the sums over steps 32. The whole scheme is called *mixed precision*.
#
# Smaller weights are spaced more closely, so does this matter for real ones? Subtract the same update from every weight
# of tiny-llama. What share of them does not change if the update is 0.001, 0.0001 or 0.00001{{ example }}?

# %%
from labkit.models.load import folder
from labkit.models.load import tensors as tensors_of

weights = np.concatenate([float32_of(one.ravel()) for one in tensors_of(folder("tiny-llama")).values()])
table([(update, (float32_of(bfloat16_of(weights - update)) == weights).mean())
       for update in (np.float32(10.0**-power) for power in (3, 4, 5))],
      {"update": "g", "weights that do not change": ".1%"}, f"{len(weights):,} weights")

# %% [markdown]
# The first moves nearly all of them, but half ignore the second, which is a common learning rate for large models. The
# third is of the order of the rate at the end of a cosine, and changes few weights.
#
# ## Bytes for each parameter
#
# How much memory do the weights, gradients and AdamW's state of Llama 3.2 1B need in mixed precision, and how many
# times as much is that as its weights alone need for inference?

# %%
from labkit.models.configs import LLAMA_3_2_1B

sizes = {"copy, bfloat16": 2, "gradient, float32": 4, "master, float32": 4, "m, float32": 4, "v, float32": 4}
total = sum(sizes.values())
table([(name, size, size * LLAMA_3_2_1B.parameters / 1e9) for name, size in {**sizes, "all": total}.items()],
      {"": "", "bytes": "", "GB": ".1f"}, f"Llama 3.2 1B has {LLAMA_3_2_1B.parameters:,} parameters")

# %% [markdown]
# 18 bytes per parameter, nine times the 2 of inference: 16, and 2 for the copy. Training in float32 needs only 16,
# since the kernels read the master itself. So mixed precision saves no memory here. It saves memory for activations,
# and time.
#
# ## What float16 would need
#
# float16 is more finely spaced than bfloat16, but has a narrow range: its smallest positive value is about
# 6e-8{{ hardware }} (lesson 33). The gradients below are normally distributed, with a standard deviation of
# 1e-8{{ example }}. What share of them becomes 0 in float16, and in bfloat16? And what if they are multiplied by 65,536
# first?

# %%
tiny = (1e-8 * np.random.default_rng(0).standard_normal(100_000)).astype(np.float32)
table([("float16", (tiny.astype(np.float16) == 0).mean()),
       ("float16, times 65,536", ((65536 * tiny).astype(np.float16) == 0).mean()),
       ("bfloat16", (float32_of(bfloat16_of(tiny)) == 0).mean())], {"": "", "gradients that are 0": ".1%"})

# %% [markdown]
# Multiplying the loss by a factor multiplies every gradient, and all of them are divided by it again before the update.
# This is *loss scaling*. The factor should be as large as possible without overflow. So it is doubled from time to
# time, and if a gradient comes out infinite, the step is skipped and the factor halved. bfloat16 has the exponent range
# of float32 and needs none of this, so our trainer offers no float16, only bfloat16 and float32.
#
# ## What was implemented
#
# - AdamW for a whole model in one launch, with the rate, step and clipping factor on the device
# - the norm of all gradients, added up in a fixed order, and the factor that clips them
# - `labkit.train.parameters`: one flat buffer each for masters, copies, gradients, $m$ and $v$
#
# ## What I learned
#
# - Adam's steps do not depend on the size of the gradients. So weight decay must be kept out of the gradients.
# - An optimiser does little arithmetic per byte: one launch that moves every byte once is as good as it gets.
# - The order of a float32 sum is part of its result. A fixed order makes a run repeatable.
# - An update below half the spacing of the format is lost, and so are a thousand of them. Only the sum over steps needs
#   the extra digits, not the passes.
#
# ## Resources
#
# - [D. Kingma and J. Ba: Adam (2015)](https://arxiv.org/abs/1412.6980), and [I. Loshchilov and F. Hutter: Decoupled
#   Weight Decay Regularization (2019)](https://arxiv.org/abs/1711.05101)
# - [P. Micikevicius et al.: Mixed Precision Training (2018)](https://arxiv.org/abs/1710.03740)
# - [R. Pascanu et al.: On the difficulty of training recurrent neural networks
#   (2013)](https://arxiv.org/abs/1211.5063), where clipping by the norm comes from
# - [llm.c](https://github.com/karpathy/llm.c), whose `adamw.cuh` is the same update in CUDA C++
#
# ## Try it
#
# - Call `train_one_weight(False, rate=0.002)`, and then with a rate of `0.0019`. Which of the two moves the weight?
# - Multiply all gradients by 1,000, and compare the steps of `sgd` and of `adam`.
# - Many language models train with $\beta_2 = 0.95$. How large are the first steps then without bias correction?
# - With a GPU: `labkit bench adamw_bf16` and `labkit bench global_norm`.
#
# In the exercises for this lesson you predict when updates vanish, write SGD with Nesterov's momentum from a blank
# page, and round to bfloat16 at random, which keeps small updates without a master.

# %% [numbers]
# bytes_over_flops = limits.fp32_tflops * 1e3 / limits.bandwidth_gbs / (20 / 28)
