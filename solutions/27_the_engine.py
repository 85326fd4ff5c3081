# %% [markdown]
# # 27 · The engine: exercises
#
# Six exercises: what a prefix cache finds, a step under a token budget, a schedule with a preemption, the threshold of
# top-p without a sort, sampling with whole numbers, and from a blank page a random generator without a state.
# `hint("found_tokens")` gives a hint, and a second call a better one.

# %%
import numpy as np
from numba import int32, int64, uint32, uint64

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · What the prefix cache finds
#
# Prompts arrive one after the other: row i of `prompts` (n, S) int32 is a prompt of `lengths[i]` tokens; what stands
# behind them in the row has no meaning. `page` is the number of tokens in a page. Once a prompt is computed, all of its
# *full* pages are in the cache for the prompts after it, and they stay there. A prompt finds its pages from the first
# one on, up to the first that is not in the cache. A page counts as found only if all tokens up to its end are the
# same, not only its own. The prompt's last token is never found, since the next token is sampled from its logits: a
# page that ends with it has to be computed. Return an array with the number of tokens found for each prompt.


# %%
def found_tokens(prompts, lengths, page):
    ### BEGIN SOLUTION
    cache, found = set(), []
    for row, length in zip(prompts.tolist(), lengths.tolist(), strict=True):
        digest, tokens, place = 0, 0, 0
        while place + page <= length:
            digest = hash((digest, *row[place : place + page]))  # of a page and of all before it
            if digest in cache and place + page < length:
                tokens += page
            cache.add(digest)
            place += page
        found.append(tokens)
    return np.array(found)
    ### END SOLUTION


# %%
check("found_tokens", found_tokens)

# %% [markdown]
# ## 2 · A step under a token budget
#
# `running` has a number for each running sequence, the oldest first: its tokens that are not computed yet. That is 1
# for a sequence that decodes and may be more for one in the middle of its prompt. `waiting` has the lengths of the
# prompts that wait, the oldest first. Both are arrays of whole numbers and may be empty. Plan a step of at most
# `budget` tokens:
#
# - First the running sequences, in their order. Each gets its tokens, as far as the budget allows. (There are pages for
#   them.)
# - Then the waiting prompts, in their order, as long as the budget has tokens left. A prompt that is admitted gets its
#   tokens, as far as the budget allows, takes one of `seats` free seats, and takes pages of 16 tokens for its *whole*
#   prompt from the `free` pages.
# - A prompt is admitted only if there is a seat, and if the free pages are enough for its pages and for one more page
#   for each sequence that runs by then, those admitted before it in this step included. If it cannot be admitted,
#   those behind it are not admitted either.
#
# Return an array with the tokens of each in this step, first for all of `running`, then for all of `waiting`; 0 for
# those that are not in it.


# %%
def plan_step(running, waiting, budget, seats, free):
    ### BEGIN SOLUTION
    planned = []
    for left in running.tolist():
        tokens = min(left, budget)
        planned.append(tokens)
        budget -= tokens
    holders = len(running)
    queue_open = True
    for prompt in waiting.tolist():
        pages = -(-prompt // 16)
        queue_open = queue_open and budget > 0 and seats > 0 and pages + holders <= free
        tokens = min(prompt, budget) if queue_open else 0
        planned.append(tokens)
        if queue_open:
            budget -= tokens
            seats -= 1
            free -= pages
            holders += 1
    return np.array(planned)
    ### END SOLUTION


# %%
check("plan_step", plan_step)

# %% [markdown]
# ## 3 · Predict: a preemption
#
# The memory has 6 pages of 4 tokens, a step computes at most 8 tokens, and there is no prefix cache. Two requests
# arrive at once: a has a prompt of 7 tokens and writes 8, b has a prompt of 5 and writes 6. Both are admitted in step
# 0, in which a gets its whole prompt and b what is left of the budget. The step that computes the last token of a
# prompt samples the first token of the output; each sampled token is computed in a later step, except the last one,
# which is never computed. A sequence takes a page when its first token in that page is computed. If no page is free,
# the younger one gives its own back and waits until there are pages for all of its tokens.
#
# How many pages are held in step 2? Which is the step in which b is preempted, and which runs without it? How many
# tokens are computed a second time? How many steps are there in all, and how many with a memory of 100 pages? Steps
# count from 0.

# %%
held = None  # pages, in step 2
gone = None  # the step in which b is preempted
again = None  # tokens that are computed a second time
steps = None
steps_ample = None  # with 100 pages
### BEGIN SOLUTION
held = 3 + 2
gone = 6
again = 9
steps = 10
steps_ample = 8
### END SOLUTION

# %%
check("predict_preemption", held=held, gone=gone, again=again, steps=steps, steps_ample=steps_ample)

# %% [markdown]
# ## 4 · Top-p without a sort
#
# `weights` (R, V) int32 are the weights of the tokens of each row, whole numbers from 0 to 2³¹ − 1, and `need` (R,)
# int64 is the mass that the kept tokens must reach, at least 1 and at most the sum of the row. Tokens are kept if their
# weight is at least a threshold. Find the largest threshold whose kept tokens together reach `need`, and write it to
# `thresholds` (R,) int32. The sum of a row may be far above 2³¹.
#
# The grid has a block of one warp for each row. Search bit by bit, from the highest on: a bit stays in the threshold if
# the tokens that weigh at least as much still reach `need`. Each bit takes one pass over the row, in which a lane adds
# up every 32nd weight, and shuffles that give every lane the sum.


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
# ## 5 · Sampling with whole numbers
#
# `weights` (R, V) int32 are the weights of the tokens, from 0 to 2³¹ − 1; a token that was not kept has 0.
# `at` (R,) int64 is a random number for each row, from 0 to the sum of its weights less 1. Laid end to end, the weights
# of a row are intervals, and the token is the one whose interval contains `at[row]`. With weights 3, 0 and 2, the
# numbers 0, 1 and 2 belong to token 0, and 3 and 4 to token 2. Write it to `tokens` (R,) int32. The sum of a row may be
# far above 2³¹.
#
# The grid has a block of one warp for each row. The warp goes through the row in chunks of 32 tokens. In each chunk a
# lane needs the sum of all lanes up to its own; `cuda.shfl_up_sync(0xFFFFFFFF, value, distance)` gives it the value of
# the lane `distance` before it. Load each weight once.


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
# ## 6 · From a blank page: Philox
#
# Philox4x32-10 makes four random words of 32 bits from a counter of four words (a, b, c, d) and a key of two words. In
# each of ten rounds two products of 64 bits are computed,
#
# `first = 0xD2511F53 * a` and `second = 0xCD9E8D57 * c`,
#
# and the four words become, in this order: the upper half of `second` ^ b ^ the first word of the key, the lower half
# of `second`, the upper half of `first` ^ d ^ the second word of the key, and the lower half of `first`. (`^` is XOR,
# and b and d are the old ones.) After each round, 0x9E3779B9 is added to the key's first word and 0xBB67AE85 to its
# second, both modulo 2³². The four words after the tenth round are the result.
#
# `counters` (n, 4), `keys` (n, 2) and `out` (n, 4) are uint32; row i of `out` is the result for row i of the other two.
# The launch has 64 threads a block, and a thread computes one row. Keep everything in variables: the counter and the
# key are loaded once, the result is stored once. In a kernel, `uint64(x) >> uint64(32)` is the upper half of x, and
# `uint32(x)` the lower one.
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
# With it, sampling a token needs no state from the samples before: the counter is the position, and the key the seed.
# `labkit.kernels.philox` has the function that the engine's kernels call; compare yours with it.
