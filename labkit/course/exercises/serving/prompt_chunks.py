"""A limit on the time between tokens

The prompts in a step make it long, and readers wait. So before each step, compute how many prompt tokens fit into a
*time* limit. A step takes max(`step`, rows · `row`) + read · `cached` nanoseconds.

- *Rows* are the tokens that are computed: one per running sequence, and those of the prompts' chunks.
- *Read* are the tokens whose keys and values are read: all tokens of each running sequence, `contexts`, and for a chunk
  all tokens of its prompt that were computed before, and the chunk itself. A prompt without a token in the step costs
  nothing.

`done` and `left` say for each prompt how many of its tokens are computed and how many are not. Prompts are served in
order, and each gets as many of its tokens as fit, so that the step takes at most `limit` nanoseconds. Once a prompt
does not get all of its tokens, those behind it get none. Running sequences are never left out, even if the step takes
too long with them alone. Return an array with the size of each chunk; all values are integers.

An example: `contexts` [100, 200], `done` [0, 50], `left` [40, 500], `step` 1,000, `row` 10, `cached` 1 and a `limit` of
1,800. The first prompt gets all of its 40 tokens. Then there are 42 rows, and 340 tokens are read. The second prompt
reads the 50 that are done, and gets 90 of its own: max(1000, 132 · 10) + 480 = 1,800. The result is `[40, 90]`.
"""

HINTS = ("With step 1,000,000, row 4,000 and ten running sequences: how many rows of prompts can be added before the "
         "step gets longer, leaving aside what they read?",
         "max(a, b) + c <= limit means that a + c <= limit and b + c <= limit. So a chunk has three bounds: what is "
         "left of the prompt, one from the weights and one from the rows. It is the smallest of them, but at least 0.",
         "room = limit - cached * (read + done[i]); chunk = max(min(left[i], (room - step) // cached, (room - rows * "
         "row) // (row + cached)), 0). If chunk < left[i], stop; else rows += chunk and read += done[i] + chunk.")
POINTS = 3

import numpy as np


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

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach


def _chunks(contexts, done, left, limit, step, row, cached):
    chunks, rows, read = np.zeros(len(left), np.int64), len(contexts), int(contexts.sum())
    for place, (before, most) in enumerate(zip(done.tolist(), left.tolist(), strict=True)):
        sizes = np.arange(1, most + 1)
        times = np.maximum(step, (rows + sizes) * row) + (read + before + sizes) * cached
        chunks[place] = int((times <= limit).sum())
        if chunks[place] < most:
            break
        rows, read = rows + most, read + before + most
    return chunks


def _step_inputs(rng, n, m):
    contexts = rng.integers(1, 2500, n)
    done = np.where(rng.random(m) < 0.6, 0, rng.integers(1, 5000, m))
    left = np.where(rng.random(m) < 0.7, rng.integers(1, 400, m), rng.integers(400, 6000, m))
    return contexts, done, left, int(rng.integers(1_500_000, 9_000_000)), 1_000_000, 4_000, 12


def _step_with(words, contexts, done, left, limit, step=1_000_000, row=4_000, cached=12):
    given = [np.array(each, np.int64) for each in (contexts, done, left)]
    return Reach(words, lambda rng, *_: (*(each.copy() for each in given), limit, step, row, cached),
                 {"n": len(contexts), "m": len(left)})


EXERCISE = FunctionExercise(
    name="prompt_chunks",
    reference=_chunks,
    inputs=_step_inputs,
    sizes=tuple({"n": n, "m": m} for n, m in ((1, 1), (4, 3), (30, 6), (200, 4))),
    random_size=lambda rng: {"n": int(rng.integers(5, 120)), "m": int(rng.integers(2, 8))},
    domain=(_step_with("no prompt waits", [900, 40], [], [], 5_000_000),
            _step_with("nothing runs", [], [0, 0], [300, 4000], 5_000_000),
            _step_with("the running sequences alone take longer than the limit", 400 * [2000], [0, 0], [50, 50],
                       5_000_000),
            _step_with("all prompts fit", [100] * 8, [0, 16, 0], [100, 20, 90], 5_000_000),
            _step_with("the limit is met exactly", [1000], [0], [2000], 1_000_000 + 4_000 * 250 + 12 * 1249 + 12),
            _step_with("there are few rows, and they take less time than the weights", [20] * 10, [0], [500], 1_500_000,
                       row=400, cached=1_000),
            _step_with("a prompt's cache is so long that not one more token fits, and a shorter prompt waits behind it",
                       [1000] * 4, [200_000, 0], [800, 40], 3_000_000),
            _step_with("a prompt is cut, and a short one waits behind it", [500] * 20, [0, 0, 0], [100, 3000, 1],
                       3_000_000),
            _step_with("the cache of the prompts is most of what is read", [10] * 4, [60_000, 70_000, 9_000],
                       [30, 40, 900], 3_000_000),
            _step_with("times are beyond 2**31 nanoseconds", [2000] * 200, [0, 5000], [60_000, 80_000], 7_000_000_000,
                       1_000_000_000, 40_000, 8_000),
            _step_with("a prompt that was cut has as many tokens left as fit", [1] * 50, [4_000, 100], [200, 7],
                       1_000_000 + 12 * (50 + 4_200))),
    wrong={
        "the weights and the arithmetic are added up: the longer of the two counts": Edit(
            "(room - step) // cached, (room - rows * row) // (row + cached)",
            "(room - step - rows * row) // (row + cached)"),
        "the weights' time is left out: there may be few rows": Edit("(room - step) // cached, ", ""),
        "only the weights' time counts, and not the rows": Edit(", (room - rows * row) // (row + cached)", ""),
        "the rows of the running sequences are not counted": Edit("rows, read = len(contexts), int(contexts.sum())",
                                                                  "rows, read = 0, int(contexts.sum())"),
        "the cache of the running sequences is not counted": Edit("int(contexts.sum())", "0"),
        "a prompt's tokens that are done are not counted as read": Edit("limit - cached * (read + int(done[i]))",
                                                              "limit - cached * read"),
        "the chunk's own tokens are not counted as read": Edit(
            "(row + cached)", "row", "(room - step) // cached", "(left[i] if room >= step else 0)"),
        "the rows of earlier prompts are not counted": Edit("rows += chunk", ""),
        "the cache of earlier prompts is not counted": Edit("read += int(done[i]) + chunk", ""),
        "a chunk is negative": Edit("max(min(", "(min(", ", 0)", ")"),
        "prompts behind one that was cut get tokens as well": Edit("if chunk < left[i]:\n"
                                                         "    break",
                                                         "if not chunk:\n"
                                                         "    continue"),
        "a prompt is computed whole or not at all": Edit("chunks[i] = chunk",
                                                       "chunk = chunk if chunk == left[i] else 0\nchunks[i] = chunk"),
    },
)

EQUIVALENT = {
    "guard: chunk < left[i] -> chunk < left[i] - 1":
        "What a chunk that was cut costs is counted, and so nothing fits behind it in any case.",
}

AFTER = """
No step takes longer than the limit, unless decoding alone does. So the limit holds for the time between two tokens of
every running sequence, not only for 99 of 100.
"""
