"""Four exercises: a prediction, attention over pages with one warp per head, parts of a softmax joined, and from a
blank page attention split over blocks. Your attention then runs in a small Llama. `hint("predict_parts")` gives a
hint, and a second call a better one.
"""

import math

import numpy as np

from labkit.course.exercises import Reach, parameter, uniform
from labkit.kernels.attention.pages import PAGE, pages_for
from labkit.kernels.ops.pages import paged_inputs

FIRST_CELL = """import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours
"""

# Sizes are B sequences of at most S tokens, H query heads and KV heads of keys and values, with D numbers each; R rows
# of P parts.


def random_lengths(rng, B, S):
    """One of them is S; the others may be 0."""
    lengths = rng.integers(0, S + 1, B).astype(np.int32)
    lengths[rng.integers(B)] = S
    return lengths


def attention_inputs(rng, B, S, H, KV, D):
    return with_pages(rng, uniform(rng, B, H, D), random_lengths(rng, B, S), KV, pages_for(S) + 1)


def with_pages(rng, q, lengths, kv_heads, width):
    """Inputs for sequences of these lengths, of which none fills a row of `width` pages, with as many pages as they may
    need at most. NaN and numbers of no page stand wherever nothing may be read."""
    *used, narrow = paged_inputs(rng, lengths, kv_heads, q.shape[2], np.float32)
    pages = len(lengths) * (width - 1) + 1
    moved = rng.permutation(pages)[: len(used[0])]  # page p is now moved[p]
    caches = [np.full((pages, *each.shape[1:]), np.nan, np.float32) for each in used]
    for cache, each in zip(caches, used, strict=True):
        cache[moved] = each
    table = rng.choice(np.array([-1, -(2**31), 2**31 - 1], np.int32), (len(lengths), width))
    for row, old, tokens in zip(table, narrow, lengths, strict=True):
        row[: pages_for(tokens)] = moved[old[: pages_for(tokens)]]
    return 2 * q, *caches, table, lengths, np.float32(1 / math.sqrt(q.shape[2]))


def with_lengths(words, choose):
    """choose(lengths, how many tokens a sequence may have at most) -> other lengths."""
    def turn(rng, q, keys, values, table, lengths, scale, *rest):
        most = (table.shape[1] - 1) * PAGE
        new = np.asarray(choose(lengths, most), np.int32)
        return *with_pages(rng, uniform(rng, *q.shape), new, keys.shape[1], table.shape[1]), *rest

    return Reach(words, turn)


def scaled(words, queries=1.0, keys=1.0, values=1.0, shift=0.0):
    """Each of the three multiplied; shift: queries at least so far below 0, and keys as far above."""
    def turn(rng, q, k, v, table, lengths, scale, *rest):
        if shift:
            q, k = -np.abs(q) - np.float32(shift), np.abs(k) + np.float32(shift)
        return (*(np.float32(factor) * each for factor, each in ((queries, q), (keys, k), (values, v))), table, lengths,
                scale, *rest)

    return Reach(words, turn)


def equal_keys(rng, q, keys, values, *rest):
    return q, np.where(np.isnan(keys), keys, np.float32(0.5)), values, *rest


DOMAIN = (
    with_lengths("every sequence is empty", lambda lengths, most: 0 * lengths),
    with_lengths("every sequence has a single token", lambda lengths, most: 0 * lengths + 1),
    with_lengths("the last page of each sequence is full", lambda lengths, most: 0 * lengths + most),
    with_lengths("the last page of each sequence has one token", lambda lengths, most: 0 * lengths + most - 15),
    with_lengths("only the first sequence has tokens",
                 lambda lengths, most: np.where(np.arange(len(lengths)) == 0, most, 0)),
    scaled("scores are thousands apart", queries=100, keys=100),
    scaled("values are large", values=10_000),
    scaled("all scores are far below 0", shift=9),
    scaled("all scores are 0", queries=0),
    Reach("all keys are equal", equal_keys),
    *parameter(5, "scale", 1, 0.03),
)
