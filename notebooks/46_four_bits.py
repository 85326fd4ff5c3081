# %% [markdown]
# # 46 · Four bits
#
# *Lab notebook, 29 November 2026*
#
# You will learn
#
# - why smaller weights make decoding faster, and what four bits can hold
# - how codes, scales and zeros are packed, in files and for a kernel that unpacks them in registers
# - how much quality rounding costs, and how GPTQ lets later weights correct the errors of earlier ones
#
# ## The problem
#
# A decode step reads every weight of the model to produce one token per sequence (lesson 37). With few sequences it
# takes as long as reading the weights, and no better kernel changes that, only fewer bytes do. *Quantised weights* are
# small integers, called codes, and many of them share one scale. Activations stay in bfloat16.
#
# The linear layers of Llama 3.2 1B, without the embedding, have 973 million weights. How long does an H200 take to read
# them once in bfloat16, in 8 bits with a float32 scale per row, and in 4 bits with a 16-bit scale for every 128
# weights?

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
# Weights in 4 bits are read {{ 16 / 4.125:.2f }} times as fast as in bfloat16, not four times, because the scales add
# an eighth of a bit per weight.
#
# ## What four bits hold
#
# A code is one of sixteen integers. Symmetric codes represent $-8$ to $7$ times the scale. They are stored with 8
# added, as 0 to 15. If the scale is the largest absolute value divided by $7.5$, no weight is off by more than half a
# step. Asymmetric codes also have a zero per scale, the code that represents 0, so that the sixteen values can span the
# range from the smallest to the largest weight.
#
# The step between two neighbouring values is the scale, so one large weight makes the steps coarser for all weights
# that share its scale. These are its *group*: neighbours in the same row. A `Scheme` says which format is used, how
# large its groups are, and whether they have zeros. Take one layer of tiny-llama. Is the error with groups of 32 only a
# little smaller than with one scale for a whole row of 256, half as large, or an eighth? And how does it compare with 8
# bits?

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
# Only a little smaller: few rows of this layer have a weight far larger than the others. Zeros help more, for fewer
# bits: groups of 64 with zeros have a smaller error than groups of 32 without. INT8 has {{ 2**8 / 2**4:.0f }} times as
# many codes as INT4, and its error is about a sixteenth. FP8 in the E4M3 format has 8 bits too, but spends four of them
# on the exponent. That range is wasted on these weights, and with three bits of fraction the error is several times
# INT8's.
#
# ## Packed in files
#
# Files hold eight codes in a 32-bit word, in one of several orders. Three are common:
#
# - AWQ (activation-aware weight quantisation) packs eight neighbouring columns, from the lowest bits up in the order 0,
#   2, 4, 6, 1, 3, 5, 7.
# - GPTQ packs along the inputs instead, and most of its files store each zero less 1.
# - compressed-tensors, the layout of vLLM's tools, packs in plain order.
#
# `labkit.models.packed` reads all three, and `labkit quantize` writes the last. No published checkpoint was loaded for
# this lesson: the reader is tested with files that the tests pack themselves, bit by bit, as each format is documented.
#
# Suppose that a program reads one of AWQ's words in plain order. Below, each code is the index of its column. How many
# of the eight codes in such a word end up in the right column?

# %%
from labkit.models.packed import AWQ_ORDER, IN_ORDER, nibbles

word = np.array([[0x75316420]], np.uint32)
table([("from the lowest bits up", *nibbles(word, IN_ORDER)[0]), ("as columns", *nibbles(word, AWQ_ORDER)[0])],
      ["", *(f"code {i}" for i in range(8))])

# %% [markdown]
# Two, the first and the last. Nothing reports an error: the model loads, and writes nonsense. The next section shows
# the reason for AWQ's order.
#
# ## Unpacked in registers
#
# A kernel could write the weights to memory in bfloat16 before it multiplies them, but then it would move more bytes
# than before: the codes, and 16 bits per weight twice. So codes have to be converted in registers, between the load and
# the product. In the simplest kernel each thread computes one output. For each code it loads the word, shifts, masks,
# subtracts the zero and multiplies. Each group's sum is scaled once.

# %%
from labkit import show_source
from labkit.kernels.linear.quantized_linear import make_thread, make_warp

show_source(make_thread(INT4, 128, None, False))

# %% [markdown]
# The 32 threads of a warp load words that are far apart, and each word is loaded once for every code in it. The layout
# on the GPU was made for the next two kernels. A tile of 16 rows by 64 columns is 512 bytes: one coalesced load of 16
# bytes per lane of a warp. Each lane receives exactly the codes that it multiplies, in the order of mma.sync's
# fragments (lesson 08). In the second kernel a warp computes the 16 outputs of such a tile.

# %%
show_source(make_warp(INT4, 128, None, False))

# %% [markdown]
# The third kernel leaves the products to tensor cores, whose inputs are pairs of bfloat16. Shifting, masking and
# converting would take three instructions per code. There is a cheaper way, which needs no conversion. In bfloat16,
# 0x4300 is 128, and the last bit of its fraction is worth 1. What number is `0x4300 | code`?

# %%
from labkit.kernels.dtypes import float32_of

codes = np.arange(16, dtype=np.uint16)
words = np.uint16(0x4300) | codes
table([(int(code), f"0x{bits:04X}", value, value - 136)
       for code, bits, value in zip(codes[::5], words[::5], float32_of(words[::5]), strict=True)],
      {"code": "", "0x4300 | code": "", "as bfloat16": ".0f", "less 136": ".0f"})

# %% [markdown]
# It is 128 plus the code. A single instruction, `lop3`, masks a word with 0x000F000F and sets the bits of 0x4300 above
# both codes that are left, and one fused multiply-add subtracts 136 from both. So two weights take two instructions and
# a shift, and every value is exact. That is also the reason for AWQ's order: the mask selects columns 0 and 1, a pair.
#
# The scale is not applied here. Tensor cores add up codes times activations, and the sums of each group are scaled in
# float32.
#
# The three rungs agree with NumPy, also with zeros, and for shapes that are not multiples of a tile:

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
# Llama 3.2 1B's output layer has 128,256 rows of 2,048 weights: {{ 2 * 128256 * 2048 / 1e6:.0f }} MB in bfloat16, and
# {{ codes_bytes / 1e6:.0f }} MB in 4 bits. Both are far more than the {{ machine.l2_mb }} MB of an H200's L2 cache, so
# every launch reads them from memory. The ladder was recorded for one row of x. For comparison there are cuBLAS with
# the weights in bfloat16, and tinygemm, PyTorch's own kernel for INT4. Can a kernel that decodes one code at a time be
# slower than one that reads four times the bytes?

# %%
measure.recorded_ladder("linear_int4", {"M": 1, "N": 128256, "K": 2048}, gpu="NVIDIA H200")

# %% [markdown]
# It can: the first rung takes {{ head['thread'] / head['PyTorch (cuBLAS']:.1f }} times as long as cuBLAS. Coalesced
# loads bring a factor of {{ head['thread'] / head['warp']:.1f }}, and unpacking for tensor cores another
# {{ head['warp'] / head['tensor_cores']:.1f }}. In a CUDA graph the last rung takes {{ head['tensor_cores']:.0f }} us,
# tinygemm {{ head['PyTorch (tinygemm']:.0f }} us and cuBLAS {{ head['PyTorch (cuBLAS']:.0f }} us. Of the possible
# factor of {{ 16 / 4.125:.2f }} over bfloat16, the last rung reaches
# {{ head['PyTorch (cuBLAS'] / head['tensor_cores']:.1f }}. cuBLAS reads its bytes at nearly the rate of a
# copy{{ if cublas_near_copy }}; the last rung needs {{ head['tensor_cores'] / bound:.2f }} times the {{ bound:.0f }} us
# that a copy would take for the codes and scales.
#
# With more rows of x the same weights are used in more products. The times below are of single launches, with L2
# emptied before each, and include the few microseconds that any launch takes. Is INT4 still ahead with 32 rows, and
# with 256?

# %%
shapes = [(1, 16384, 2048), (32, 16384, 2048), (256, 16384, 2048), (1, 2048, 8192), (32, 2048, 8192)]
found = []
for M, N, K in shapes:
    us = {}
    for name in ("linear_int4", "linear_int8", "linear_fp8_weights"):
        for row in measure.recorded_ladder(name, {"M": M, "N": N, "K": K}, gpu="NVIDIA H200").rows:
            us[row.name] = 1e3 * row.timing.p50
    found.append((f"{M} x {N:,} x {K:,}", us["PyTorch (cuBLAS, weights in bfloat16)"], us["linear_int8_picked"],
                  us["linear_fp8_weights_picked"], us["linear_int4_picked"], us["PyTorch (tinygemm, INT4)"]))
table(found, {"rows of x, N, K": "", "cuBLAS, bfloat16": ".1f", "INT8": ".1f", "FP8": ".1f", "INT4": ".1f",
              "tinygemm, INT4": ".1f"})

# %% [markdown]
# With 32 rows INT4 is still ahead{{ if ahead_at_32 }}, and 8 bits are not{{ if eight_behind_at_32 }}. With 256 rows
# bfloat16 wins by a factor of {{ us['INT4', 256] / us['cuBLAS', 256]:.1f }}. A block multiplies at most 32 rows of x,
# so eight blocks decode the same weights. cuBLAS has nothing to decode. Above 256 rows `quantized_linear` therefore
# writes the weights to memory in bfloat16 once, and multiplies these as in lesson 36. For speed alone it could do so
# for fewer rows. But the weights are then rounded to bfloat16, which changes the bits of an output, and up to 256 rows
# a sequence should get the same bits in every batch.
#
# A warning about 16,384 x 2,048: repeated in a CUDA graph, one row in 4 bits takes only {{ warm['picked']:.1f }} us,
# against {{ warm['PyTorch (tinygemm']:.1f }} us for tinygemm and {{ warm['PyTorch (cuBLAS']:.1f }} us in bfloat16. But
# {{ small_bytes / 1e6:.0f }} MB of codes and scales stay in L2 from one launch to the next{{ if codes_fit }}, and
# {{ 2 * 16384 * 2048 / 1e6:.0f }} MB of bfloat16 do not fit{{ if bfloat16_does_not }}. In a model the other layers
# evict them, so none of these times says how long the layer takes there.
#
# ## GPTQ
#
# Rounding to nearest minimises the error of each weight. But the error that matters is that of the layer's outputs, for
# the inputs that it actually gets. If two inputs usually rise and fall together, an error in the weight of one can be
# corrected by the opposite error in the weight of the other. *GPTQ* ([E. Frantar et al.,
# 2022](https://arxiv.org/abs/2210.17323)) runs the model on some sample texts, for calibration, and computes
# $H = X^T X$ from the inputs $X$ of each layer: up to a factor, the Hessian of the outputs' squared error. Then it
# rounds the weights column by column. After each column it adjusts all columns that are not rounded yet; the inverse of
# $H$ says by how much. Below, 256 inputs are mixtures of only 40 random ones, plus noise. What does GPTQ do to the
# error of the outputs, and to that of the weights?

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
# The outputs get better and the weights worse: a weight may get another code than its nearest if that helps the sum.
# Only the codes change, not the format, so the kernels are the same.
#
# ## What rounding costs
#
# What counts in the end is the quality of the model. tiny-llama was quantised in six ways; its embedding stays in
# bfloat16. INT4 has groups of 64. The loss is the mean of $-\log p$ over the tokens of 60 texts from its training,
# which it knows by heart, and of 60 that it never saw. GPTQ was calibrated on 40 other training texts. The last column
# counts the questions that the model answers with the same tokens as in bfloat16. Which column will show the damage?
# And are zeros worth their bits?

# %%
from labkit._common.files import read_json
from labkit._common.paths import find_root

quality = read_json(find_root() / "data" / "quantized.json")
table([(row["format"], row["bits"], row["bytes"] / 1e6, row["trained"], row["held_out"],
        f"{row['same_answers']} of {quality['prompts']}") for row in quality["rows"]],
      {"linear layers": "", "bits a weight": ".2f", "MB": ".2f", "loss, trained on": ".4f", "held out": ".3f",
       "same answers": ""})

# %% [markdown]
# On the texts that it knows, 8 bits hardly change the loss{{ if eight_bits_keep }}. Four bits rounded to nearest add
# {{ nearest:.0% }} to it, GPTQ {{ calibrated:.0% }}, and GPTQ with zeros {{ both:.0% }}. On unseen texts the model is
# little better than a uniform guess among its 4,096 tokens, and no format makes it worse{{ if no_worse }}: that column
# shows nothing. The answers do: rounded to nearest, {{ changed }} of {{ prompts }} change; with GPTQ,
# none{{ if gptq_keeps }}. Zeros help about as much as GPTQ does{{ if zeros_help }}, and the two together more than
# either{{ if both_best }}.
#
# ## What was implemented
#
# - INT4, INT8 and FP8 weights: rounded to nearest or by GPTQ, packed, and read from three file layouts
# - a ladder of three kernels that unpack codes in registers, down to two instructions and a shift for two weights
#
# ## What I learned
#
# - With few rows, a linear layer takes as long as reading its weights. 4 bits with a scale for every 128 are
#   {{ 4 + 16 / 128:.3f }} bits per weight.
# - Codes have to be converted in registers, and cheaply. An integer in the fraction of a float needs no conversion.
# - Smaller groups and zeros reduce the error, but cost bits.
# - What fits into L2 looks faster in a benchmark than it is in a model.
# - Measure quality on a model's outputs, with texts that the model can predict.
#
# ## Resources
#
# - [E. Frantar et al.: GPTQ (2022)](https://arxiv.org/abs/2210.17323), and [MARLIN
#   (2024)](https://arxiv.org/abs/2408.11743), a kernel for such weights
# - [J. Lin et al.: AWQ (2023)](https://arxiv.org/abs/2306.00978)
# - [Y. J. Kim et al.: Who Says Elephants Can't Run (2022)](https://arxiv.org/abs/2211.10017), integers in the fraction
#   of a float
#
# ## Try it
#
# - `labkit quantize tiny-llama --bits 4 --out tiny-llama-int4`, and
#   `labkit generate "What is a hacker?" --model tiny-llama-int4`. Then quantise with `--group 32`, and with `--bits 8`.
# - Make one weight of the layer ten times as large. Which formats suffer, and how many weights get worse?
# - Give `gptq` independent inputs. What is left of its advantage?
# - With a GPU: `labkit bench linear_int4`.
#
# In the exercises for this lesson you predict what four bits keep, unpack AWQ's words, compute the scales of groups,
# and multiply by codes that are unpacked in registers.

# %% [numbers]
# loss = {name: quantized[name].trained / quantized['bfloat16'].trained - 1 for name in quantized}
# nearest = loss['int4, rounded to nearest']
# calibrated = loss['int4, GPTQ']
# eight_bits_keep = max(loss['int8'], loss['fp8 (E4M3)']) < 0.02
# both = loss['int4 with zeros, GPTQ']
# zeros_help = abs(loss['int4 with zeros, rounded to nearest'] - calibrated) < 0.03
# both_best = both < min(calibrated, loss['int4 with zeros, rounded to nearest']) - 0.03
# prompts = quantized['bfloat16'].same_answers
# changed = prompts - quantized['int4, rounded to nearest'].same_answers
# gptq_keeps = quantized['int4, GPTQ'].same_answers == quantized['int4 with zeros, GPTQ'].same_answers == prompts
# names = ('thread', 'warp', 'tensor_cores', 'picked', 'PyTorch (cuBLAS', 'PyTorch (tinygemm')
# head = {name: row('linear_int4', name, M=1, N=128256, K=2048).graph_us for name in names}
# bound = 1000 * row('linear_int4', 'tensor_cores', M=1, N=128256, K=2048).bound_ms
# cublas_near_copy = 2 * 128256 * 2048 / head['PyTorch (cuBLAS'] / 1000 > 0.95 * limits.bandwidth_gbs
# warm = {name: row('linear_int4', name, M=1, N=16384, K=2048).graph_us for name in ('picked', 'PyTorch (cuBLAS',
#         'PyTorch (tinygemm')}
# us = {(kind, M): row('linear_int4', name, M=M, N=16384, K=2048).us for kind, name in (('INT4', 'picked'), ('cuBLAS',
#       'PyTorch (cuBLAS')) for M in (32, 256)}
# narrow = {name: row('linear_int4', name, M=32, N=2048, K=8192).us for name in ('picked', 'PyTorch (cuBLAS')}
# ahead_at_32 = us['INT4', 32] < us['cuBLAS', 32] and narrow['picked'] < narrow['PyTorch (cuBLAS']
# eight_behind_at_32 = min([row(op, 'picked', M=32, N=N, K=K).us / row(op, 'PyTorch (cuBLAS', M=32, N=N, K=K).us for
#                           op in ('linear_int8', 'linear_fp8_weights') for N, K in ((16384, 2048), (2048, 8192))]) > 1
# codes_bytes = row('linear_int4', 'picked', M=1, N=128256, K=2048).bytes
# small_bytes = row('linear_int4', 'picked', M=1, N=16384, K=2048).bytes
# codes_fit = small_bytes < machine.l2_mb * 2**20
# no_worse = max([abs(quantized[name].held_out - quantized['bfloat16'].held_out) for name in quantized]) < 0.05
# bfloat16_does_not = 2 * 16384 * 2048 > machine.l2_mb * 2**20
