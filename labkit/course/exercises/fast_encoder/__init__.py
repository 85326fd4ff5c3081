"""Seven exercises. You work out what a score matrix in shared memory costs, write a residual and a LayerNorm in place
and, from a blank page, attention over packed sentences. Then you say which comparison with PyTorch is fair, pack a
padded batch, repair the sums that say where sentences begin, and round rows so that few graphs are enough. Two of your
kernels go into the encoder. `hint("add_norm")` gives a hint, and a second call a better one.
"""

import numpy as np

FIRST_CELL = """import math

import numpy as np
from numba import float32, int32

from labkit import check, cuda, hint
from labkit.course import yours
"""

# Sizes are B sentences of at most S tokens, T rows of C columns, H heads of 32 values.

UNTOUCHED = -7  # in elements of no sentence
GAP = 3  # rows of no sentence after each, at most


def some_lengths(rng, B, S):
    """One of them is S; the others may be 0."""
    lengths = rng.integers(0, S + 1, B).astype(np.int32)
    lengths[rng.integers(B)] = S
    return lengths


def some_begins(rng, lengths, gap=None):
    """Sentences of these lengths in any order, with up to GAP rows of no sentence after each, or exactly `gap`."""
    begins, end = np.zeros(len(lengths), np.int32), 0
    for sentence in rng.permutation(len(lengths)):
        begins[sentence] = end
        end += int(lengths[sentence]) + (int(rng.integers(0, GAP + 1)) if gap is None else gap)
    return begins


def rows_for(B, S):
    return B * (S + GAP)


# The properties of lengths: (in words, lengths from those drawn and S, the gap after each).
LENGTHS = (
    ("all sentences are empty", lambda old, S: 0 * old, None),
    ("every sentence has a single token", lambda old, S: 0 * old + 1, None),
    ("no sentence has padding", lambda old, S: 0 * old + S, 0),
    ("the first sentence is empty", lambda old, S: np.where(np.arange(len(old)) == 0, 0, S), None),
    ("the last sentence is empty", lambda old, S: np.where(np.arange(len(old)) == len(old) - 1, 0, S), None),
    ("sentences follow one another with no row between them", lambda old, S: old, 0),
    ("every sentence is followed by rows of no sentence", lambda old, S: old, GAP),
)
