# %% [markdown]
# # 33 · bfloat16, bit by bit
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how float32, float16 and bfloat16 store a number, and how a number is rounded to fit
# - why large models are published in bfloat16, and why no sum may be kept in it
# - how kernels work on a type that NumPy does not have, and load eight values with one instruction
#
# ## The problem
#
# In the last two parts of the course we build an inference engine for Llama, from a single number to many simultaneous
# conversations. They cover the ground of [tiny-vllm](https://github.com/jmaczan/tiny-vllm), a course by J. Maczan in
# CUDA C++ with cuBLAS. Ours is in Python, with our kernels throughout.
#
# The number comes first. A Llama is published in *bfloat16*, two bytes per parameter, and almost everything that its
# kernels read and write is bfloat16, too.

# %%
from labkit import table
from labkit.models.configs import LLAMA_3_2_1B

table([(name, size * LLAMA_3_2_1B.parameters / 1e9) for name, size in (("float32", 4), ("float16 or bfloat16", 2))],
      {"format": "", "GB": ".2f"}, f"Llama 3.2 1B has {LLAMA_3_2_1B.parameters:,} parameters")

# %% [markdown]
# Half the bytes take half the memory, and half the time to read. But a format of 16 bits has only 65,536 patterns for
# everything from the smallest gradient to the largest activation. So the question is which numbers it should represent.
#
# ## Prediction
#
# This lesson answers three questions. How many digits of 12.34{{ example }} survive in bfloat16? If 1 is added again
# and again in bfloat16, where does the sum stop growing? And what does float16, also 16 bits, do better than bfloat16,
# and what worse?
#
# ## A number in bits
#
# A floating-point number has three parts: a sign, an exponent and a fraction.
#
# $$\text{value} = (-1)^{\text{sign}} \cdot 1.\text{fraction} \cdot 2^{\,\text{exponent} - \text{bias}}$$
#
# float16 has 5 exponent bits, with a bias of 15, and 10 fraction bits. Here is 12.34{{ example }} by hand. We divide by
# 2 until the result is between 1 and 2, and count the divisions: that is the exponent without the bias, the power of 2
# in the formula. The leading 1 is always there, so it is not stored. The fraction is the rest. What are the 10 fraction
# bits of 12.34{{ example }}?

# %%
value, exponent = 12.34, 0
while value >= 2:
    value, exponent = value / 2, exponent + 1
print(f"12.34 = {value:.4f} * 2^{exponent}, and the exponent is stored as {exponent} + 15 = {exponent + 15}")
print(f"the fraction, in units of 2^-10: {value - 1:.4f} * 1024 = {(value - 1) * 1024:.2f}")
for kept in (555, 556):
    bits = (exponent + 15) << 10 | kept
    print(f"  {kept}: 0 {exponent + 15:05b} {kept:010b} = 0x{bits:X} = {(1 + kept / 1024) * 2**exponent}")

# %% [markdown]
# The fraction would have to be {{ (12.34 / 8 - 1) * 1024:.2f }}, but only whole numbers fit. tiny-vllm works through
# this example digit by digit and drops the digits that do not fit. That is *truncation*, and it gives 0x4A2B. The
# nearest float16 is 0x4A2C. IEEE 754, the standard for floating-point numbers, rounds to nearest by default, and so do
# GPUs and NumPy. How many of the digits of 12.34{{ example }} are left in bfloat16?

# %%
from labkit.course.drawings import bfloat16 as pictures
from labkit.kernels.dtypes import float_table

float_table(12.34)

# %%
pictures.bits_of(12.34)

# %% [markdown]
# Two or three. bfloat16 has the 8 exponent bits of float32, and 7 of its 23 fraction bits. Together with the leading 1
# that is 8 *significant bits*: 12.34{{ example }} becomes {{ round(12.34 * 16) / 16:.4f }}.
#
# ## Rounding
#
# The upper 16 bits of a float32 are a bfloat16, so truncation is a shift. To round to nearest, we add 0x7FFF before the
# shift, which carries into the upper half if the lower half is more than 0x8000. If it is exactly 0x8000, the number is
# halfway between two bfloat16 numbers. Such a *tie* goes to the neighbour whose last bit is 0; adding the last bit that
# is kept does that. The rule is called *round to nearest, ties to even*.
#
# Near 1, neighbouring bfloat16 numbers are 1/128 apart, so 1 + 1/256 and 1 + 3/256 are both ties. What do 1 + 1/256 and
# 1 + 3/256 become?

# %%
import numpy as np

from labkit.kernels.dtypes import bfloat16_of, float32_of


def rounded_bits(bits):  # uint32: the bits of float32 numbers
    even = bits >> 16 & 1  # the last bit that is kept
    return ((bits + 0x7FFF + even) >> 16).astype(np.uint16)


for extra in (1, 3):
    tie = np.array([1 + extra / 256], np.float32)
    (bits,) = rounded_bits(tie.view(np.uint32))
    (kept,) = float32_of(np.array([bits]))
    print(f"1 + {extra}/256 = 0x{tie.view(np.uint32)[0]:08X} becomes 0x{bits:04X} = 1 + {128 * (kept - 1):.0f}/128")

# %% [markdown]
# One goes down and the other up. Take 100,000 numbers between 1 and 2. What are their mean error and their largest
# error, in units of the last bit, if they are truncated, and if they are rounded to nearest?

# %%
numbers = np.random.default_rng(0).uniform(1, 2, 100_000).astype(np.float32)
errors = {name: (float32_of(kept) - numbers) * 128  # in units of the last bit
          for name, kept in (("truncated", (numbers.view(np.uint32) >> 16).astype(np.uint16)),
                             ("rounded to nearest", rounded_bits(numbers.view(np.uint32))))}
table([(name, error.mean(), np.abs(error).max()) for name, error in errors.items()],
      {"": "", "mean error": "+.3f", "largest error": ".3f"})

# %% [markdown]
# Truncation moves every number towards zero, by half a unit on average, so in a long sum of positive terms its errors
# add up. The errors of rounding to nearest are at most half a unit, have either sign and tend to cancel.
#
# ## The one value that needs a test
#
# The formula fails for NaN, "not a number", whose exponent bits are all 1 and whose fraction is not 0; with a fraction
# of 0, the same exponent means infinity. What do the NaNs 0x7F800001 and 0x7FFFFFFF become?

# %%
for pattern in (0x7F800001, 0x7FFFFFFF):
    nan = np.array([pattern], np.uint32)
    print(f"0x{pattern:X} is {nan.view(np.float32)[0]}: the formula gives {float32_of(rounded_bits(nan))[0]}, "
          f"bfloat16_of {float32_of(bfloat16_of(nan.view(np.float32)))[0]}")

# %% [markdown]
# The first NaN has its fraction in the lower half and becomes infinity. In the second the carry runs through the
# exponent into the sign, and the result is -0. So NaN needs a separate test, and labkit's `bfloat16_of` has one.
# Without it, a fault in a model can come out as an ordinary zero and go unnoticed.
#
# ## Range and precision
#
# The two 16-bit formats divide their bits differently. The exponent bits decide how large and how small a number can
# be, the fraction bits how far apart neighbours are. What does each format make of 70,000 and of 1e-8?

# %%
pictures.spacing()

# %%
from labkit.kernels.dtypes import BFLOAT16, FLOAT16, FLOAT32, decode, encode

rows = []
for form in (FLOAT32, FLOAT16, BFLOAT16):
    patterns = 1, 1 << form.fraction_bits, form.infinity - 1, encode(1.0, form) + 1
    rows.append((form.name, *(decode(bits, form) for bits in patterns),
                 decode(encode(70_000, form), form), decode(encode(1e-8, form), form)))
table(rows, {"": "", "smallest": ".2g", "smallest normal": ".2g", "largest": ".3g", "next after 1": ".9g",
             "70,000": "g", "1e-8": ".3g"})

# %% [markdown]
# Near 1, float16 has the finer steps. Its range is narrow: 70,000 overflows to infinity, and 1e-8 becomes 0. bfloat16
# keeps both, roughly. Below the smallest normal number the spacing stays the same, in the flat parts of the lines. The
# numbers there are *subnormal*, with a leading 0 instead of the 1.
#
# Rounding to bfloat16 changes a weight by at most one part in 256, too little to matter to the output of a trained
# network. Overflow is worse: the next norm or softmax turns an infinity into NaN. Training needs both ends of the
# range, for tiny gradients and large activations. So large models are trained in bfloat16, and published as they were
# trained.
#
# ## What it costs in a sum
#
# A weight is rounded once. A 16-bit accumulator is rounded after every addition. Keep adding 1: where does the sum stop
# growing in bfloat16, and where in float16?

# %%
def as_bfloat16(x):
    return float32_of(bfloat16_of(x))


for name, rounded in (("bfloat16", as_bfloat16), ("float16", lambda x: x.astype(np.float16).astype(np.float32))):
    total = np.zeros(1, np.float32)
    while rounded(total + 1) > total:
        total = rounded(total + 1)
    print(f"{name}: 1 + 1 + 1 + ... = {total[0]:,.0f}")

# %% [markdown]
# From 256 on, neighbouring bfloat16 numbers are 2 apart. 257 is a tie and goes to 256, whose last bit is 0. In float16,
# with 11 significant bits, the same happens at 2,048.
#
# The sums of a model are dot products, whose terms have either sign. That helps. How large is the relative error of a
# bfloat16 accumulator after 2,048 terms, and how much smaller is that of a float32 accumulator?

# %%
rng = np.random.default_rng(1)
x, w = (as_bfloat16(rng.standard_normal((200, 2048)).astype(np.float32)) for _ in range(2))
exact = np.cumsum(x.astype(np.float64) * w, axis=1)
lengths, rows = (32, 256, 2048), []
for name, rounded in (("bfloat16", as_bfloat16), ("float32", lambda acc: acc)):
    acc, errors = np.zeros(200, np.float32), []
    for k in range(2048):
        acc = rounded(acc + x[:, k] * w[:, k])
        if k + 1 in lengths:
            errors.append(np.sqrt(np.mean((acc - exact[:, k]) ** 2) / np.mean(exact[:, k] ** 2)))
    rows.append((f"{name} accumulator", *errors))
table(rows, {"relative error after": "", **{f"{length:,} terms": ".1e" for length in lengths}})

# %% [markdown]
# It is a few percent with a bfloat16 accumulator, and a hundred thousand times less with a float32 one. The longer the
# sum, the larger the error, and a Llama's dot products have thousands of terms. So kernels load and store bfloat16 but
# keep their accumulators in float32. The products are exact there: two significands of 8 bits have a product of at most
# 16 bits, and a float32 has 24.
#
# ## Two numbers in a word
#
# NumPy has no bfloat16, so our arrays are `uint16`: they hold the bits. Two neighbours form a 32-bit word, the first
# one in its low half. A shift and a mask turn it into two float32 numbers:

# %%
pair = bfloat16_of([12.34, -1.5])
(word,) = pair.view(np.uint32)
first, second = np.array([word << 16, word & 0xFFFF0000]).view(np.float32)
print(f"0x{word:08X}: {first}, {second}")

# %% [markdown]
# ## Eight numbers in a load
#
# A thread can load 128 bits with one instruction: eight bfloat16 values. The first kernel of a Llama only copies rows:
# `out[t]` is row `ids[t]` of a table, the embedding of token t (lesson 28). There is one version with one value per
# load, and this one with eight. `VEC` is 8, and `NAN_VALUE` is a word of two NaNs, for an id that is not in the table.

# %%
from labkit import show_source
from labkit.kernels import embedding
from labkit.kernels.elements import BFLOAT16 as BF16
from labkit.kernels.ops.embedding import TOKEN_EMBEDDING_BF16

by_one, by_eight = embedding.make_token_embedding_strided(BF16), embedding.make_token_embedding(BF16)
show_source(by_eight)

# %% [markdown]
# Suppose there are four tokens, and rows of 2,048 values, 4,096 bytes. A request is one load or store of a whole warp.
# By what factor do the two kernels differ in the 32-byte sectors that they move, and by what factor in their requests?

# %%
from labkit import agree, cuda, observe

words = cuda.to_device(bfloat16_of(rng.standard_normal((97, 2048)).astype(np.float32)))
ids, rows = cuda.to_device(np.array([5, 96, 0, 5], np.int32)), cuda.device_array((4, 2048), np.uint16)
for name, kernel in (("one number per load", by_one), ("eight numbers per load", by_eight)):
    counts = observe(kernel[4, 256], ids, words, rows).counts
    print(f"{name:24}{counts['sectors']:7,} sectors{counts['global_requests']:7,} requests")
agree(TOKEN_EMBEDDING_BF16)

# %% [markdown]
# They move the same sectors, and the wide loads need far fewer requests for them: a warp gets 512 bytes per request,
# rather than 64. The ratio stays below eight because each warp also loads an id.
#
# On a GPU, the bytes in flight decide how much bandwidth a kernel reaches (lesson 02), and wide loads put more of them
# in flight. SwiGLU, a kernel that the Llama needs later (lesson 36), was measured on an H200 in both forms. It computes
# each output from two inputs, all in bfloat16. How much faster is SwiGLU with eight values per load?

# %%
from labkit import measure

swiglu = measure.recorded_ladder("swiglu_bf16", gpu="NVIDIA H200")
swiglu

# %% [markdown]
# `swiglu_per_thread` loads one value at a time and stays far below the bandwidth of a copy. With eight values per load
# the same arithmetic is {{ narrow.ms / wide.ms:.1f }} times as fast and gets close to a copy. PyTorch, which launches
# two kernels for it, has to write the intermediate result and read it again. Compiled, it is one kernel, and as fast as
# ours{{ if compiled_as_fast }}.
#
# ## What was implemented
#
# - numbers split into bits and rounded by hand, in three formats
# - sums with accumulators of 16 and of 32 bits
# - the embedding of a Llama in bfloat16, with one and with eight values per load
#
# ## What I learned
#
# - bfloat16 is float32 with its lower half rounded away: the same range, and two or three digits.
# - Round to nearest even, and test for NaN.
# - Never accumulate in 16 bits: load and store bfloat16, add in float32.
# - Wide loads move the same sectors with fewer requests, and that keeps more bytes in flight.
#
# ## Resources
#
# - [J. Maczan: tiny-vllm](https://github.com/jmaczan/tiny-vllm), the source of the example 12.34{{ example }}
# - [D. Goldberg: What Every Computer Scientist Should Know About Floating-Point Arithmetic
#   (1991)](https://doi.org/10.1145/103162.103163)
# - [S. Wang, P. Kanwar: BFloat16, the secret to high performance on Cloud TPUs
#   (2019)](https://cloud.google.com/blog/products/ai-machine-learning/bfloat16-the-secret-to-high-performance-on-cloud-tpus)
#
# ## Try it
#
# - `float_table(0.1)`, `float_table(65_520.0)`, `float_table(1e-7)`: predict the row of float16 first.
# - Find the smallest whole number that bfloat16 cannot hold. And float16? And float32?
# - Repeat the dot products with `np.abs(x)` and `np.abs(w)`, so that nothing cancels. Which accumulator suffers?
#
# In the exercises you round to bfloat16 with integers, predict what survives rounding, repair a sum, and write a kernel
# with wide loads from a blank page.
#
# Next: **a model in bytes**: several files, one buffer, and how long a token must take to read them.

# %% [numbers]
# narrow = row('swiglu_bf16', 'swiglu_per_thread', T=4096, F=8192)
# wide = row('swiglu_bf16', 'swiglu_vectorized', T=4096, F=8192)
# compiled_as_fast = abs(row('swiglu_bf16', 'PyTorch, compiled', T=4096, F=8192).ms / wide.ms - 1) < 0.03
