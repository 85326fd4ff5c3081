"""From padded to packed

`ids` (B, S) int32 is a padded batch: sentence b has its tokens in the first `lengths[b]` columns of row b; the rest of
the row is padding. Copy each sentence into the packed batch: `out` (T,) int32 holds the tokens of sentence b from
`begins[b]` on. `begins` and `lengths` are (B,) int32. Elements of `out` that belong to no sentence keep what they hold.
Sentences may be in any order, and a length may be 0. The grid has one block of 32 threads per sentence.
"""

HINTS = ("Thread 5 of a sentence's block copies tokens 5, 37, 69 and so on. Which element of `ids` is each, and "
         "where does it go?",
         "A loop from cuda.threadIdx.x to lengths[b] in steps of 32. From lengths[b] on there is no token of the "
         "sentence, and that element of out belongs to another one.",
         "out[begins[b] + place] = ids[b, place], for each place of range(cuda.threadIdx.x, lengths[b], 32).")
POINTS = 1

from labkit import cuda


# %%
@cuda.jit
def pack_ids(ids, begins, lengths, out):
    b = cuda.blockIdx.x
    ### BEGIN SOLUTION
    for place in range(cuda.threadIdx.x, lengths[b], 32):
        out[begins[b] + place] = ids[b, place]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach
from labkit.course.exercises.fast_encoder import LENGTHS, UNTOUCHED, rows_for, some_begins, some_lengths


def _packed_ids(ids, begins, lengths):
    out = _untouched(ids)
    for row, begin, length in zip(ids, begins, lengths, strict=True):
        out[begin : begin + length] = row[:length]
    return out


def _untouched(ids, *_):
    """What out holds before, and keeps where there is no token."""
    return np.full(rows_for(*ids.shape), UNTOUCHED, np.int32)


def _id_inputs(rng, B, S):
    lengths = some_lengths(rng, B, S)
    return rng.integers(1, 30_000, (B, S)).astype(np.int32), some_begins(rng, lengths), lengths


def _ids_with(words, lengths, gap):
    def turn(rng, ids, begins, old):
        new = lengths(old, ids.shape[1]).astype(np.int32)
        return ids, some_begins(rng, new, gap), new

    return Reach(words, turn, {"B": 4, "S": 9})


EXERCISE = KernelExercise(
    name="pack_ids",
    reference=_packed_ids,
    inputs=_id_inputs,
    shape=lambda B, S: (rows_for(B, S),),
    dtype=np.int32,
    start=_untouched,
    sizes=tuple({"B": B, "S": S} for B, S in ((1, 1), (2, 3), (4, 9), (3, 33), (2, 100))),
    launch=lambda B, S: (B, 32),
    benign_races=False,  # each id is copied by one thread
    domain=tuple(_ids_with(*each) for each in LENGTHS),
    wrong={
        "sentences are put where padded sentences would begin": Edit("begins[b] + place", "b * ids.shape[1] + place"),
        "the tokens are those of the first sentence, for all of them": Edit("ids[b, place]", "ids[0, place]"),
        "32 tokens per sentence, and the rest is left out": Edit("lengths[b], 32)", "min(lengths[b], 32), 32)"),
        "the last token is left out": Edit("lengths[b]", "lengths[b] - 1"),
        "the length is used as the end": Edit("range(cuda.threadIdx.x, lengths[b], 32)",
                                              "range(cuda.threadIdx.x, lengths[b] - begins[b], 32)"),
        "the first token is left out: places begin at 0": Edit("range(cuda.threadIdx.x, lengths[b], 32)",
                                                               "range(cuda.threadIdx.x + 1, lengths[b], 32)"),
    },
)
