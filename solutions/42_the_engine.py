# %% [markdown]
# # 42 · The engine: exercises
#
# Four exercises: a prediction of what is sampled, the threshold of top-p without a sort, sampling with whole numbers,
# and from a blank page a stateless random generator. `hint("predict_sampling")` gives a hint, and a second call a
# better one.

# %%
import numpy as np
from numba import int32, int64, uint32, uint64

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: seven tokens
#
# The weights of seven tokens, in the order of the vocabulary, are 10, 20, 1, 40, 3, 25 and 1. They are the exponentials
# of the logits at temperature 1, scaled so that their sum is 100. Tokens are numbered from 0.
#
# - `top_p` = 0.8 keeps the tokens whose weight is at least a threshold. What is the largest threshold with which they
#   still reach 80? For 0.4 it would be 40: token 3 alone. How many passes over the row does a bit-by-bit search make if
#   it starts with the highest bit of the largest weight?
# - The kept weights are then laid end to end, in the order of the vocabulary, and a random number below their sum is
#   drawn. Which token does the number 5 select, and which does 60?
# - How many tokens does `top_p` = 0.8 keep at temperature 0.5, by which each logit is divided? And how many do `min_p` =
#   0.3 and `top_p` = 0.75 keep together, at temperature 1? `min_p` comes first, and `top_p` is a fraction of the weights
#   that it leaves.

# %%
threshold = None
passes = None
token_5 = None  # the token for the random number 5
token_60 = None
kept_cold = None  # tokens, at temperature 0.5
kept_both = None  # tokens, with min_p and top_p
### BEGIN SOLUTION
threshold = 20
passes = 6
token_5 = 1
token_60 = 5
kept_cold = 2
kept_both = 2
### END SOLUTION

# %%
check("predict_sampling", threshold=threshold, passes=passes, token_5=token_5, token_60=token_60, kept_cold=kept_cold,
      kept_both=kept_both)


# %% [markdown]
# ## 2 · Top-p without a sort
#
# `weights` (R, V) int32 holds the weights of the tokens of each row, from 0 to 2³¹ − 1. `need` (R,) int64 is the mass
# that the kept tokens must reach, at least 1 and at most the sum of the row. Tokens are kept if their weight is at least
# a threshold. Find the largest threshold whose kept tokens together reach `need`, and write it to `thresholds` (R,)
# int32. The sum of a row may be far above 2³¹.
#
# An example: of the weights 5, 9, 2 and 9, with a need of 20, the threshold is 5. With 6 or more only the nines are kept,
# and 18 is too little; with 5 the sum is 23.
#
# The grid has one block of one warp per row. Search bit by bit, from the highest down: a bit stays in the threshold if
# the tokens with at least that weight still reach `need`. Each bit needs one pass over the row, in which a lane adds up
# every 32nd weight, and shuffles that give every lane the sum.


# %%
@cuda.jit
def top_p_threshold(weights, need, thresholds):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    ### BEGIN SOLUTION
    threshold, bit = int32(0), int32(1 << 30)
    while bit > 0:
        trial = threshold + bit
        mass = int64(0)
        for col in range(lane, weights.shape[1], 32):
            if weights[row, col] >= trial:
                mass += weights[row, col]
        for distance in (16, 8, 4, 2, 1):
            mass += cuda.shfl_xor_sync(0xFFFFFFFF, mass, distance)
        if mass >= need[row]:
            threshold = trial
        bit //= 2
    if lane == 0:
        thresholds[row] = threshold
    ### END SOLUTION


# %%
check("top_p_threshold", top_p_threshold)

# %% [markdown]
# ## 3 · Sampling with whole numbers
#
# `weights` (R, V) int32 holds the weights of the tokens, from 0 to 2³¹ − 1; a token that was not kept has 0. `at` (R,)
# int64 holds one random number per row, at least 0 and below the sum of its weights. Laid end to end, the weights of a
# row are intervals, and the sampled token is the one whose interval contains `at[row]`. Write it to `tokens` (R,) int32.
# The sum of a row may be far above 2³¹.
#
# An example: with weights 3, 0 and 2, the numbers 0, 1 and 2 select token 0, and 3 and 4 select token 2.
#
# The grid has one block of one warp per row. The warp goes through the row in chunks of 32 tokens. In each chunk a lane
# needs the sum over all lanes up to its own; `cuda.shfl_up_sync(0xFFFFFFFF, value, distance)` gives it the value of the
# lane `distance` below it.


# %%
@cuda.jit
def draw_tokens(weights, at, tokens):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    ### BEGIN SOLUTION
    before = int64(0)  # what all chunks before weigh
    for first in range(0, weights.shape[1], 32):
        col = first + lane
        own = int64(weights[row, col]) if col < weights.shape[1] else int64(0)
        through = own
        for distance in (1, 2, 4, 8, 16):
            other = cuda.shfl_up_sync(0xFFFFFFFF, through, distance)
            if lane >= distance:
                through += other
        if before + through - own <= at[row] and at[row] < before + through:
            tokens[row] = col
        before += cuda.shfl_sync(0xFFFFFFFF, through, 31)
    ### END SOLUTION


# %%
check("draw_tokens", draw_tokens)

# %% [markdown]
# ## 4 · From a blank page: Philox
#
# Philox4x32-10 makes four random words of 32 bits from a counter of four words (a, b, c, d) and a key of two. Each of ten
# rounds begins with two 64-bit products:
#
# `first = 0xD2511F53 * a` and `second = 0xCD9E8D57 * c`
#
# The new a, b, c and d are, in order:
#
# 1. the upper half of `second` ^ b ^ the first word of the key
# 2. the lower half of `second`
# 3. the upper half of `first` ^ d ^ the second word of the key
# 4. the lower half of `first`
#
# `^` is XOR, and b and d are the old ones. After each round, 0x9E3779B9 is added to the key's first word and 0xBB67AE85
# to its second, both modulo 2³². The four words after the tenth round are the result. With counter and key 0 it is
# 0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8.
#
# `counters` (n, 4), `keys` (n, 2) and `out` (n, 4) are uint32, and each thread computes one row; blocks have 64 threads.
# Keep everything in variables. In a kernel, `uint64(x) >> uint64(32)` is the upper half of x, and `uint32(x)` is the
# lower half.
#
# Write `philox_words(counters, keys, out)` from the decorator down.

# %%
philox_words = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def philox_words(counters, keys, out):
    i = cuda.grid(1)
    if i < counters.shape[0]:
        a, b, c, d = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]
        key_0, key_1 = keys[i, 0], keys[i, 1]
        for _ in range(10):
            first = uint64(0xD2511F53) * uint64(a)
            second = uint64(0xCD9E8D57) * uint64(c)
            a = uint32(uint32(second >> uint64(32)) ^ b ^ key_0)
            b = uint32(second)
            c = uint32(uint32(first >> uint64(32)) ^ d ^ key_1)
            d = uint32(first)
            key_0 = uint32(key_0 + uint32(0x9E3779B9))
            key_1 = uint32(key_1 + uint32(0xBB67AE85))
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = a, b, c, d


### END SOLUTION

# %%
check("philox_words", philox_words)

# %% [markdown]
# With Philox, sampling a token needs no state from earlier samples: the counter is the position, and the key is the seed.
# `labkit.kernels.philox` has the function that the engine's kernels call; compare yours with it.
