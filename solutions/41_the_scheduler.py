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
# Plan a step of at most `budget` tokens. `running` says, for each running sequence, how many of its tokens are not
# computed yet: 1 if it is decoding, more in the middle of a prompt. `waiting` has the lengths of the waiting prompts. In
# both arrays the oldest comes first, and either may be empty.
#
# - Running sequences come first, in order. Each gets its tokens, as far as the budget allows.
# - Then waiting prompts are admitted, in order, as long as the budget has tokens left. An admitted prompt gets its
#   tokens, as far as the budget allows, one of `seats` free seats, and pages of 16 tokens for its *whole* prompt.
# - To be admitted, a prompt needs enough `free` pages for itself and for one more per sequence that is already running,
#   including those admitted in this step. Once a prompt cannot be admitted, those behind it are not admitted either.
#
# Return an array with the number of tokens that each gets in this step, for all of `running`, then for all of `waiting`;
# 0 for those that get none.
#
# An example: `running` [1, 1], `waiting` [6, 20, 4], budget 10, 8 seats and 9 free pages give `[1, 1, 6, 2, 0]`. The
# first prompt needs 1 page, and 2 more for the running sequences. The second needs 2 and 3 more, and 8 are free; it gets
# the last 2 tokens of the budget.


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
# The memory has 6 pages of 4 tokens, a step computes at most 8 tokens, and there is no prefix cache. Request a has a
# prompt of 7 tokens and writes 8; b has a prompt of 5 and writes 6. Both are admitted in step 0:
#
# | step | a | b | tokens computed of a, b | pages |
# |---|---|---|---|---|
# | 0 | its prompt, 7 | what is left of the budget, 1 | 7, 1 | 2 + 1 |
# | 1 | 1 | the rest of its prompt, 4 | 8, 5 | 2 + 2 |
#
# The step that computes the last token of a prompt samples the first one of the output. Each sampled token is computed in
# a later step, except the last one, which is never computed. If no page is free when one is needed, the younger sequence
# gives back its pages and waits until there are pages for all of its tokens.
#
# How many pages are held in step 2? In which step is b preempted and left out? How many tokens are computed a second
# time? How many steps are there in all, and how many with 100 pages? Steps count from 0.

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
# Prompts arrive one after another: row i of `prompts` (n, S) int32 is a prompt of `lengths[i]` tokens, and the rest of
# the row has no meaning. `page` is the number of tokens in a page. Once a prompt is computed, all of its *full* pages
# stay in the cache for later prompts.
#
# A prompt finds its pages in order, up to the first that is not in the cache. A page counts as found only if *all* tokens
# up to its end are the same, not only its own. And a page that ends with the prompt's last token is never found: that
# token has to be computed, since the next one is sampled from its logits.
#
# An example with pages of 2 and the prompts [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 9] and [9, 9, 3, 4, 5]: the result is
# `[0, 2, 2, 0]`. The second prompt may not find its last page, and the fourth must not find its second, since the tokens
# before it are different.
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
