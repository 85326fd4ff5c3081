# %% [markdown]
# # 41 · The scheduler: exercises
#
# Three exercises: a step under a token budget, a schedule with a preemption, and from a blank page what a prefix cache
# finds. `hint("plan_step")` gives a hint, and a second call a better one.

# %%
import numpy as np

from labkit import check, hint

# %% [markdown]
# ## 1 · A step under a token budget
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
# ## 2 · Predict: a preemption
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
# ## 3 · From a blank page: what the prefix cache finds
#
# Prompts arrive one after the other: row i of `prompts` (n, S) int32 is a prompt of `lengths[i]` tokens; what stands
# behind them in the row has no meaning. `page` is the number of tokens in a page. Once a prompt is computed, all of its
# *full* pages are in the cache for the prompts after it, and they stay there. A prompt finds its pages from the first
# one on, up to the first that is not in the cache. A page counts as found only if all tokens up to its end are the
# same, not only its own. The prompt's last token is never found, since the next token is sampled from its logits: a
# page that ends with it has to be computed.
#
# Write `found_tokens(prompts, lengths, page)`. It returns an array with the number of tokens found for each prompt.

# %%
found_tokens = None  # write the function


### BEGIN SOLUTION
def found_tokens(prompts, lengths, page):
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
