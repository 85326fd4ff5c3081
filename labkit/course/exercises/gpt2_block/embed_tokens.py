r"""From a blank page: tokens become rows

This is the first kernel of GPT-2. A token is an index, `ids[t]`, into the rows of a table. Its position in the text
matters, too, so the row of that position is added:

$$\text{out}_{t,c} = \text{tokens}_{\text{ids}_t,\,c} + \text{positions}_{s + t,\,c}$$

$s$ is the number of tokens that came before, in earlier calls. It is in device memory, as `start[0]`, so that a graph
can be replayed for the next token. `ids` and `start` hold int32, everything else float32.

Write `embed_tokens(ids, tokens, positions, start, out)` from the decorator down. There is one block of 128 threads per
token; a row may have any number of columns. For example, with `ids = [7, 3]` and `start = [10]`, row 1 of `out` is row
3 of `tokens` plus row 11 of `positions`.
"""

HINTS = ("Which block writes row t? And which columns does thread 5 of its 128 threads have, if a row has 300?",
         "t is cuda.blockIdx.x. Thread 5 has the columns 5, 133 and 261. The row of tokens is ids[t], and the row of "
         "positions is start[0] + t.",
         "for col in range(cuda.threadIdx.x, out.shape[1], 128): out[t, col] = tokens[ids[t], col] + "
         "positions[start[0] + t, col].")
POINTS = 3

from labkit import cuda

# %%
embed_tokens = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def embed_tokens(ids, tokens, positions, start, out):
    t = cuda.blockIdx.x
    for col in range(cuda.threadIdx.x, out.shape[1], 128):
        out[t, col] = tokens[ids[t], col] + positions[start[0] + t, col]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import HUGE_AND_TINY, NEGATIVE, Edit, KernelExercise, Reach, of, uniform
from labkit.kernels.embedding import embedding_reference


def _embedding_inputs(rng, T, C, before):
    ids = rng.integers(0, 50, T).astype(np.int32)
    return ids, uniform(rng, 50, C), uniform(rng, before + T + 3, C), np.array([before], np.int32)


EXERCISE = KernelExercise(
    name="embed_tokens",
    reference=embedding_reference,
    inputs=_embedding_inputs,
    shape=lambda T, C, before: (T, C),
    sizes=tuple({"T": T, "C": C, "before": before} for T, C, before in
                ((1, 1, 2), (2, 3, 0), (3, 5, 4), (4, 128, 1), (3, 129, 7), (5, 300, 2))),
    launch=lambda T, C, **_: (T, 128),
    observe_sizes=({"T": 4, "C": 128, "before": 1}, {"T": 3, "C": 129, "before": 7}),
    benign_races=False,  # each number is copied by one thread
    domain=(*of((1, 2), HUGE_AND_TINY, NEGATIVE),
            Reach("all tokens are the first of the table", lambda rng, ids, *others: (0 * ids, *others)),
            Reach("all tokens are the last of the table",
                  lambda rng, ids, tokens, *others: (0 * ids + np.int32(len(tokens) - 1), tokens, *others)),
            Reach("the table of positions extends past the last token",
                  lambda rng, ids, tokens, positions, start: (ids, tokens, positions, start // 2),
                  {"T": 3, "C": 5, "before": 4})),
    wrong={
        "positions count from 0: those before `start[0]` are tokens of an earlier call": Edit("start[0] + t", "t"),
        "the row of `tokens` is chosen by position, not by id": Edit("ids[t], col", "t % tokens.shape[0], col"),
        "the position is never added": Edit("[ids[t], col] + positions[start[0] + t, col]", "[ids[t], col]"),
        "every token gets the position of the first one": Edit("[0] + t, col", "[0], col"),
        "one element per thread: rows longer than 128 are left unfinished":
            Edit("for col in range(cuda.threadIdx.x, out.shape[1], 128):",
                 "col = cuda.threadIdx.x\n"
                 "if col < out.shape[1]:"),
        "no guard: the last round of a row goes beyond its end":
            Edit("for col in range(cuda.threadIdx.x, out.shape[1], 128):",
                 "for first in range(0, out.shape[1], 128):\n"
                 "    col = first + cuda.threadIdx.x"),
        "the first thread of each block does the work of all 128":
            Edit("range(cuda.threadIdx.x, out.shape[1], 128)", "range(out.shape[1] if cuda.threadIdx.x == 0 else 0)"),
    },
)

AFTER = """
Now put it into a model: a small GPT-2 that comes with the course, and that writes text in lesson 29. Your kernel
computes its rows, and all activations are compared.

# %%
from labkit.models.load import load

tiny = load("tiny")
prompt = tiny.tokenizer.encode("kernel: n.")
yours.one_by_one(yours.answers(embed_tokens=embed_tokens), tiny.model, prompt)
"""
