# %% [markdown]
# # 44 · Serving: exercises
#
# Four exercises: a prediction about queues, chunks of prompts within a limit on the time between tokens, a bug in what
# a client is shown, and from a blank page a policy that beats first come, first served.
# `hint("predict_waiting")` gives a hint, and a second call a better one.

# %%
import numpy as np

from labkit import check, hint

# %% [markdown]
# ## 1 · Predict: queues
#
# A server gets 40 requests per second. A request stays for 1,500 ms on average, from its arrival to its last token: first
# it waits in the queue for 300 ms, and then it runs. A step takes 2 ms, and every running request gets one token in each
# step. How many requests are inside on average, how many of them are queued, and how many tokens per second does the
# server write?
#
# Another server handles one request at a time, in 10 ms on average. Both the times between arrivals and the service times
# are exponentially distributed. At 50 arrivals per second, for example, the load is 0.5 and a request stays for 20 ms.
# How many milliseconds does it stay on average, waiting and service together, at 75 arrivals per second? At 95? And at 75
# again, if the server needs 20% less time, 8 ms?

# %%
inside = None  # requests
queued = None  # of these
tokens_per_second = None
ms_at_75 = None  # 75 arrivals a second
ms_at_95 = None
ms_faster = None  # 75 arrivals a second, 8 ms of service
### BEGIN SOLUTION
inside = 60
queued = 12
tokens_per_second = 24_000
ms_at_75 = 40
ms_at_95 = 200
ms_faster = 20
### END SOLUTION

# %%
check("predict_waiting", inside=inside, queued=queued, tokens_per_second=tokens_per_second, ms_at_75=ms_at_75,
      ms_at_95=ms_at_95, ms_faster=ms_faster)


# %% [markdown]
# ## 2 · A limit on the time between tokens
#
# The prompts in a step make it long, and readers wait. So before each step, compute how many prompt tokens fit into a
# *time* limit. A step takes max(`step`, rows · `row`) + read · `cached` nanoseconds.
#
# - *Rows* are the tokens that are computed: one per running sequence, and those of the prompts' chunks.
# - *Read* are the tokens whose keys and values are read: all tokens of each running sequence, `contexts`, and for a chunk
#   all tokens of its prompt that were computed before, and the chunk itself. A prompt without a token in the step costs
#   nothing.
#
# `done` and `left` say for each prompt how many of its tokens are computed and how many are not. Prompts are served in
# order, and each gets as many of its tokens as fit, so that the step takes at most `limit` nanoseconds. Once a prompt
# does not get all of its tokens, those behind it get none. Running sequences are never left out, even if the step takes
# too long with them alone. Return an array with the size of each chunk; all values are integers.
#
# An example: `contexts` [100, 200], `done` [0, 50], `left` [40, 500], `step` 1,000, `row` 10, `cached` 1 and a `limit` of
# 1,800. The first prompt gets all of its 40 tokens. Then there are 42 rows, and 340 tokens are read. The second prompt
# reads the 50 that are done, and gets 90 of its own: max(1000, 132 · 10) + 480 = 1,800. The result is `[40, 90]`.


# %%
def prompt_chunks(contexts, done, left, limit, step, row, cached):
    ### BEGIN SOLUTION
    chunks = np.zeros(len(left), np.int64)
    rows, read = len(contexts), int(contexts.sum())
    for i in range(len(left)):
        room = limit - cached * (read + int(done[i]))  # for the chunk: weights or arithmetic, and its own cache
        chunk = max(min(int(left[i]), (room - step) // cached, (room - rows * row) // (row + cached)), 0)
        chunks[i] = chunk
        if chunk < left[i]:
            break
        rows += chunk
        read += int(done[i]) + chunk
    return chunks
    ### END SOLUTION


# %%
check("prompt_chunks", prompt_chunks)

# %% [markdown]
# No step takes longer than the limit, unless decoding alone does. So the limit holds for the time between two tokens of
# every running sequence, not only for 99 of 100.
#
# ## 3 · Find the bug: text that is taken back
#
# A text comes as `tokens`, a tuple of strings, and ends where one of the strings in `stops` is complete. `stops` may be
# empty. After each token, how many characters of the text so far may a client see? Nothing of a stop string may be shown,
# not even its first character, and nothing that can still become part of one. Everything else must be shown. If several
# stop strings occur, the one that is complete first ends the text; if two are complete with the same character, the
# longer one does. From there on the count stays the same: the characters before the stop string.
#
# With the stop string `STOP` and the tokens `"Hi"`, `" S"`, `"TOP"` the counts are 2, 3 and 3. This function returns
# exactly that. And yet a user complains: in the chat `ST` appeared and vanished again. Find out which tokens cause that,
# and fix the function.


# %%
def shown_after(tokens, stops):
    text, end, counts = "", None, []
    for token in tokens:
        begin = len(text)
        if end is None:
            text += token
            found = []
            for stop in stops:
                at = text.find(stop, max(0, begin - len(stop) + 1))
                if at >= 0:
                    found.append((at + len(stop), at))
            if found:
                end = min(found)[1]
        if end is not None:
            counts.append(end)
            continue
        held = 0
        for stop in stops:
            for size in range(1, len(stop)):
                if token.endswith(stop[:size]):
                    held = max(held, size)
        counts.append(len(text) - held)
    return np.array(counts)


### BEGIN SOLUTION
def shown_after(tokens, stops):
    text, end, counts = "", None, []
    for token in tokens:
        begin = len(text)
        if end is None:
            text += token
            found = []
            for stop in stops:
                at = text.find(stop, max(0, begin - len(stop) + 1))
                if at >= 0:
                    found.append((at + len(stop), at))
            if found:
                end = min(found)[1]
        if end is not None:
            counts.append(end)
            continue
        held = 0
        for stop in stops:
            for size in range(1, len(stop)):
                if text.endswith(stop[:size]):  # of the text, not of its last token: a stop string may be in several
                    held = max(held, size)
        counts.append(len(text) - held)
    return np.array(counts)


### END SOLUTION

# %%
check("shown_after", shown_after)

# %% [markdown]
# The engine's detokenizer always holds back as many characters as the longest stop string has, less one, whatever they
# are. That is simpler, and a client sees each character a little later.
#
# ## 4 · From a blank page: who is next?
#
# Write a policy. Whenever the scheduler can admit a request, it calls `choose_next(prompts, waited)` with two NumPy
# arrays. They have one element per waiting request, in the order of arrival: the number of tokens in its prompt, and the
# milliseconds that it has waited so far. Return the index of the request to admit next, from 0 on. At least one request
# is waiting.
#
# An example: with `prompts` [900, 30, 60] and `waited` [80, 20, 5], first come, first served (FIFO) returns 0, and
# shortest prompt first returns 1.
#
# The policy runs in a simulator, on traces of 150 requests or more: most prompts have 20 to 200 tokens, one in seven has
# 2,000 to 4,000, and for a while more requests arrive than the server can serve. A thousand prompt tokens need 4 ms, and
# FIFO keeps requests waiting for 50 to 150 ms. On such traces
#
# - the *mean* time to the first token must be at most 85% of FIFO's, and
# - *no* request may wait for its first token more than 1.5 times as long as the longest wait with FIFO.
#
# If all prompts are equally long, or hardly any request waits, no policy can be better than FIFO. Then the mean must not
# be worse.

# %%
choose_next = None  # write the function


### BEGIN SOLUTION
def choose_next(prompts, waited):
    return np.argmin(0.01 * prompts - waited)  # a thousand tokens more are worth ten milliseconds of waiting


### END SOLUTION

# %%
check("choose_next", choose_next)

# %% [markdown]
# To see your policy in the lesson's simulator, pass `partial(ChoosingScheduler, choose=choose_next)` as the scheduler.
