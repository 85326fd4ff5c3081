# %% [markdown]
# # 46 · Four bits
#
# *Lab notebook, 29 November 2026*
#
# You will learn
#
# - why a model that writes gets faster with smaller weights, and what four bits can hold
# - how codes, scales and zeros are packed, in published files and for a kernel that unpacks them in registers
# - what rounding costs in quality, and how GPTQ makes later weights correct the errors of earlier ones
#
# ## The problem
#
# A decode step reads every weight of a model to write one token per sequence (lesson 34), so with few sequences its
# time is the bytes of the weights over the bandwidth. No better kernel helps against that bound; fewer bytes do.
# *Quantised weights* are small integers, codes, with a scale that is shared by many of them. Activations stay in
# bfloat16.
#
# The linear layers of Llama 3.2 1B, without the embedding, have 973 million weights. How many bytes are these in
# bfloat16, in 8 bits with a scale for each row, and in 4 bits with a scale of 16 bits for each 128, and how long does
# an H200 need to read them once?

# %%
from labkit import measure, table
from labkit.models.configs import LLAMA_3_2_1B

linear = {name: shape for name, shape in LLAMA_3_2_1B.layer_parameters.items() if len(shape) == 2}
layers = LLAMA_3_2_1B.num_hidden_layers
weights = layers * sum(rows * columns for rows, columns in linear.values())
rows = layers * sum(rows for rows, _ in linear.values())
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"] * 1e9
sizes = {"bfloat16": 2 * weights, "8 bits": weights + 4 * rows, "4 bits": weights / 2 + 2 * weights / 128}
table([(name, 8 * nbytes / weights, nbytes / 1e6, 1e6 * nbytes / bandwidth) for name, nbytes in sizes.items()],
      {"": "", "bits a weight": ".3f", "MB": ",.0f", "us to read": ",.0f"})

# %% [markdown]
# In 4 bits the weights take {{ 16 / 4.125:.2f }} times less to read than in bfloat16: the scales cost an eighth of a
# bit for each weight.
#
# ## What four bits hold
#
# A code is one of sixteen integers. Symmetric codes stand for -8 to 7 times the scale, stored with 8 added, so
# that they are 0 to 15. With the scale `largest / 7.5` the weight farthest from 0 just fits. An asymmetric code
# also has a zero, the code that means 0, for each scale, so that the 16 values reach from the smallest weight to the
# largest.
#
# One large weight makes the scale large, and so the steps of all weights that share it. A weight's neighbours in its
# row are its group. A `Scheme` names a format, its group and whether it has zeros. Take a layer of tiny-llama. How does
# the error grow from groups of 32 to a whole row of 256?

# %%
import numpy as np

from labkit.kernels.dtypes import float64_of
from labkit.kernels.linear.quantized import E4M3, INT4, INT8
from labkit.models.load import folder, tensors
from labkit.models.quantize import Scheme, codes_of, round_to_nearest, values_of

tiny = folder("tiny-llama")
weights = float64_of(tensors(tiny)["model.layers.2.mlp.up_proj.weight"])  # (704, 256)


def error(approximate):
    """The root mean square error, relative to the weights' root mean square."""
    return np.sqrt(np.square(approximate - weights).mean() / np.square(weights).mean())


found = []
for group in (32, 64, 128, 256):
    scales = np.abs(weights).reshape(704, -1, group).max(axis=2).repeat(group, axis=1) / 7.5
    codes = codes_of(weights, scales, None, INT4)
    found.append((f"4 bits, groups of {group}", 4 + 16 / group, error(values_of(codes, scales, None, INT4))))
for name, scheme in (("4 bits with zeros, groups of 64", Scheme(INT4, 64, zeros=True)), ("int8", Scheme(INT8)),
                     ("FP8, E4M3", Scheme(E4M3))):
    bits = 4 + (16 + 4) / 64 if scheme.zeros else 8 + 16 / 256
    found.append((name, bits, error(round_to_nearest(weights, scheme).dequantize())))
table(found, {"": "", "bits a weight": ".3f", "error": ".2%"})

# %% [markdown]
# Smaller groups cost more scales and save error. INT8 has 16 times as many codes as INT4, and about a sixteenth of the
# error. FP8 spends its bits on a range that such weights do not need: its three bits of fraction make the error larger
# than INT8's.
#
# ## Packed by others
#
# Files hold eight codes in a word of 32 bits, in one of several orders. AWQ (activation-aware weight quantisation)
# stores eight neighbouring columns in the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up, which suited its own
# kernel. GPTQ packs along the inputs, and stores zeros less 1. compressed-tensors, the layout of vLLM's tools, packs in
# order. `labkit.models.packed` reads all three, and `labkit quantize` writes the last one. Which column is in the
# highest four bits of AWQ's word 0x75316420, whose codes are the numbers of their columns?

# %%
from labkit.models.packed import AWQ_ORDER, IN_ORDER, nibbles

word = np.array([[0x75316420]], np.uint32)
table([("from the lowest bits up", *nibbles(word, IN_ORDER)[0]), ("as columns", *nibbles(word, AWQ_ORDER)[0])],
      ["", *(f"code {i}" for i in range(8))])

# %% [markdown]
# ## Unpacked in registers
#
# If a kernel wrote the weights in bfloat16 to memory before it multiplied them, nothing would be won: the codes would
# be read, and then 16 bits for each weight would be written and read. So they have to become numbers in registers,
# between the load and the product. The simplest kernel has a thread for each output. For each code it finds the word,
# shifts, subtracts the zero and multiplies; the sum of a group is scaled once.

# %%
from labkit import show_source
from labkit.kernels.linear.quantized_linear import make_thread, make_warp

show_source(make_thread(INT4, 128, None, False))

# %% [markdown]
# Its threads read words that are far apart, and each word is read by eight of them. On a GPU the packed layout is made
# for the next kernels instead: a tile of 16 rows by 64 columns is 512 bytes, one load of 16 bytes by each lane of a
# warp, and each lane gets what it multiplies itself, in the order of mma.sync's fragments (lesson 07).

# %%
show_source(make_warp(INT4, 128, None, False))

# %% [markdown]
# The last rung gives the products to tensor cores, and those want pairs of bfloat16, not codes. Converting an integer
# to a float costs an instruction for each code, and a shift and a mask before it. There is a cheaper way: the
# bfloat16 0x4300 is 128, and the last bit of its fraction is worth 1. What number are the bits `0x4300 | code`?

# %%
from labkit.kernels.dtypes import float32_of

codes = np.arange(16, dtype=np.uint16)
words = np.uint16(0x4300) | codes
table([(int(code), f"0x{bits:04X}", value, value - 136)
       for code, bits, value in zip(codes[::5], words[::5], float32_of(words[::5]), strict=True)],
      {"code": "", "0x4300 | code": "", "as bfloat16": ".0f", "less 136": ".0f"})

# %% [markdown]
# 128 plus the code. One instruction, `lop3`, masks two codes of a word and puts both behind 0x43, and one fused
# multiply-add subtracts 136 from both: two instructions for two weights, and every value exact. The scale is not
# multiplied in at all: the tensor cores add up codes times activations, and the sum of a group is scaled once, in
# float32.
#
# The three rungs agree with NumPy, also for shapes that are no multiple of a tile, and with zeros:

# %%
from labkit import agree
from labkit.kernels.ops.quantized_linear import LINEAR_FP8_WEIGHTS, LINEAR_INT4, LINEAR_INT8

agree(LINEAR_INT4)

# %%
agree(LINEAR_INT8)
agree(LINEAR_FP8_WEIGHTS)

# %% [markdown]
# ## The ladder
#
# A GPU is bound by the bytes of the weights only if enough of them are in flight and unpacking keeps up. Up to some 16
# rows of x this can work. With many more the products are what takes the time, and 4 bits save nothing: above 256 rows
# the weights are written out in bfloat16 once, and multiplied as in lesson 36.

# %%
from labkit import ladder

found = ladder(LINEAR_INT4)
found

# %% [markdown]
# ## What it costs
#
# Rounding is paid for in quality, and the error of a weight says little about it. tiny-llama was quantised in six ways,
# its embedding left in bfloat16. The loss is the mean of $-\log p$ over the tokens of 60 texts that it was trained on,
# which it knows by heart, and of 60 that it was not. Which column will show the damage, and does asymmetric rounding
# pay for its zeros?

# %%
from labkit._common.files import read_json
from labkit._common.paths import find_root

quality = read_json(find_root() / "data" / "quantized.json")
table([(row["format"], row["bits"], row["bytes"] / 1e6, row["trained"], row["held_out"],
        f"{row['same_answers']} of {quality['prompts']}") for row in quality["rows"]],
      {"linear layers": "", "bits a weight": ".2f", "MB": ".2f", "loss, trained on": ".4f", "held out": ".3f",
       "same answers": ""})

# %% [markdown]
# On the texts that it knows, 8 bits hardly change the loss{{ if eight_bits_keep }}, and 4 bits rounded to nearest add
# {{ nearest:.0% }} to it, of which GPTQ leaves {{ calibrated:.0% }}. Texts that the model has never seen have a loss so
# high that rounding is lost in it. Zeros help where weights are rounded to nearest{{ if zeros_help }}, and after GPTQ
# little is left for them to gain{{ if zeros_gain_little }}.
#
# ## GPTQ
#
# Rounding to nearest makes the error of each weight smallest. What should be small is the error of the layer's outputs,
# for the inputs that it really gets. Where two inputs usually rise and fall together, an error in one weight can be
# corrected by the opposite error in the other. *GPTQ* ([E. Frantar et al., 2022](https://arxiv.org/abs/2210.17323))
# runs the model on some texts, the calibration, and collects for each layer the Hessian $H = X^T X$ of its inputs. Then
# it rounds one column of weights after the other. After each it moves all columns that are not rounded yet, along the
# row of $H^{-1}$ that says how best to do this. How much smaller does the error of the outputs get, and what happens
# to the error of the weights?

# %%
from labkit.models.quantize import gptq, hessian_of

rng = np.random.default_rng(0)
inputs = rng.standard_normal((2000, 40)) @ rng.standard_normal((40, 256)) + 0.3 * rng.standard_normal((2000, 256))
outputs = inputs @ weights.T
found = []
for name, quantized in (("rounded to nearest", round_to_nearest(weights, Scheme(INT4, 64))),
                        ("GPTQ", gptq(weights, hessian_of(inputs), Scheme(INT4, 64)))):
    approximate = quantized.dequantize()
    off = inputs @ approximate.T - outputs
    found.append((name, error(approximate), np.sqrt(np.square(off).mean() / np.square(outputs).mean())))
table(found, {"4 bits, groups of 64": "", "error of the weights": ".2%", "of the outputs": ".2%"})

# %% [markdown]
# The weights get worse and the outputs better. The kernel does not know the difference: the codes are others, and the
# format is the same.
#
# ## What I learned
#
# - Decode is paid by the byte. 4 bits with a scale for each 128 are 4.125 bits a weight.
# - Codes must become numbers in registers, and cheaply: an integer placed in a float's fraction needs no conversion.
# - One scale for fewer weights is more exact and costs more bits.
# - Quality is measured on a model's outputs, and on texts that it can do.
#
# ## Resources
#
# - [E. Frantar et al.: GPTQ (2022)](https://arxiv.org/abs/2210.17323), and
#   [MARLIN (2024)](https://arxiv.org/abs/2408.11743), a kernel for such weights
# - [J. Lin et al.: AWQ (2023)](https://arxiv.org/abs/2306.00978)
# - [Y. J. Kim et al.: Who Says Elephants Can't Run (2022)](https://arxiv.org/abs/2211.10017), integers in the fraction
#   of a float
#
# ## Try it
#
# - `labkit quantize tiny-llama --bits 4 --out tiny-llama-int4`, and `labkit generate "What is a hacker?" --model
#   tiny-llama-int4`. Then with `--group 32`, and with `--bits 8`.
# - Make one weight of the layer ten times as large. Which of the formats above suffers, and how far does it reach?
# - Give `gptq` inputs that do not depend on each other. What is left of its advantage?
#
# In the exercises for this lesson you predict what four bits keep, unpack AWQ's words, find the scales of groups, and
# multiply by codes that are unpacked in registers.

# %% [numbers]
# loss = {name: quantized[name].trained / quantized['bfloat16'].trained - 1 for name in quantized}
# nearest = loss['int4, rounded to nearest']
# calibrated = loss['int4, GPTQ']
# eight_bits_keep = max(loss['int8'], loss['fp8 (E4M3)']) < 0.01
# zeros_help = loss['int4 with zeros, rounded to nearest'] < nearest
# zeros_gain_little = abs(loss['int4 with zeros, GPTQ'] - calibrated) < 0.01
