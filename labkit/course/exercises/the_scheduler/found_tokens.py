"""From a blank page: what the prefix cache finds

Prompts arrive one after another: row i of `prompts` (n, S) int32 is a prompt of `lengths[i]` tokens, and the rest of
the row has no meaning. `page` is the number of tokens in a page. Once a prompt is computed, all of its *full* pages
stay in the cache for later prompts.

A prompt finds its pages in order, up to the first that is not in the cache. A page counts as found only if *all* tokens
up to its end are the same, not only its own. And a page that ends with the prompt's last token is never found: that
token has to be computed, since the next one is sampled from its logits.

An example with pages of 2 and the prompts [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 9] and [9, 9, 3, 4, 5]: the result is
`[0, 2, 2, 0]`. The second prompt may not find its last page, and the fourth must not find its second, since the tokens
before it are different.

Write `found_tokens(prompts, lengths, page)`. It returns an array with the number of tokens found for each prompt.
"""

HINTS = ("Two prompts with the same second page: when may the second one use the first one's? What has to be equal?",
         "Give each full page a digest of the digest before it and of its own tokens, and keep the digests in a set. "
         "Look up first, then add. After a page that is missing, can a later one be found?",
         "digest = hash((digest, *row[place : place + page])); if digest in cache and place + page < length: tokens += "
         "page; cache.add(digest). The digest is 0 at the start of each prompt.")
POINTS = 3

import numpy as np

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

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach


def _found_tokens(prompts, lengths, page):
    cache, found = set(), []
    for row, length in zip(prompts.tolist(), lengths.tolist(), strict=True):
        begins = [tuple(row[:end]) for end in range(page, length + 1, page)]
        hits = 0
        while hits < min(len(begins), (length - 1) // page) and begins[hits] in cache:
            hits += 1
        found.append(hits * page)
        cache.update(begins)
    return np.array(found)


def _padded(rng, prompts, width):
    """Rows filled up behind the prompts with tokens that occur in prompts."""
    rows = [[*prompt, *rng.integers(0, 2, width - len(prompt))] for prompt in prompts]
    return np.array(rows, np.int32).reshape(len(prompts), width)


def _prompt_inputs(rng, n, S, page):
    """Most continue a prefix of an earlier prompt; there are only two different tokens."""
    prompts = []
    for _ in range(n):
        base = prompts[rng.integers(len(prompts))] if prompts and rng.random() < 0.8 else []
        keep = int(rng.integers(0, len(base) + 1))
        more = int(rng.integers(1, S - keep + 1)) if keep < S else 0
        prompts.append([*base[:keep], *rng.integers(0, 2, more).tolist()])
    return _padded(rng, prompts, S), np.array([len(prompt) for prompt in prompts], np.int32), page


def _prompts(words, *given, page=4):
    """Prompts written out, at whatever size."""
    width = max(map(len, given))
    lengths = np.array([len(prompt) for prompt in given], np.int32)
    return Reach(words, lambda rng, *_: (_padded(rng, given, width), lengths, page),
                 {"n": len(given), "S": width, "page": page})


def _cut_off(rng, prompts, lengths, page):
    """All rows are the same; only the lengths differ."""
    row = rng.integers(0, 5, prompts.shape[1])
    return np.broadcast_to(row, prompts.shape).astype(np.int32), np.array([3, 6, 7, 12], np.int32), page


A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]

EXERCISE = FunctionExercise(
    name="found_tokens",
    reference=_found_tokens,
    inputs=_prompt_inputs,
    sizes=tuple({"n": n, "S": S, "page": page} for n, S, page in ((1, 4, 4), (4, 9, 2), (12, 20, 4), (20, 33, 8))),
    random_size=lambda rng: {"n": int(rng.integers(8, 24)), "S": int(rng.integers(8, 30)), "page": 4},
    domain=(_prompts("the same prompt comes twice, and its last page is full", [*A, *B], [*A, *B]),
            _prompts("a page has the same tokens as a cached one, after a different beginning", [*A, *B], [*C, *B, 0]),
            _prompts("a page is not cached, and the next one has the same tokens as a cached page", [*A, *B, *C],
                     [*A, *C, *C, 0]),
            _prompts("a prompt is a prefix of an earlier one", [*A, *B, *C], [*A, *B, 9], [*A, *B]),
            _prompts("all tokens are equal", [3] * 13, [3] * 9, [3] * 17),
            Reach("the rest of a prompt's row equals the continuation of a later prompt", _cut_off,
                  {"n": 4, "S": 12, "page": 4}),
            _prompts("no prompt fills a page", [1, 2, 3], [1, 2, 3], [1]),
            _prompts("a page holds one token", [1, 2, 3], [1, 2, 4, 5], [2, 3], [1, 2, 3, 9], page=1)),
    wrong={
        "the digest is of the page alone: the same tokens after a different beginning are found":
            Edit("digest = hash((digest, *row[place : place + page]))", "digest = hash((*row[place : place + page],))"),
        "the last token may be found as well: its logits would be missing": Edit(" and place + page < length", ""),
        "a page that is not full is added": Edit("while place + page <= length:", "while place < length:"),
        "the prompt finds its own pages: they are added before the lookup": Edit(
            "if digest in cache and place + page < length:",
            "cache.add(digest)\nif digest in cache and place + page < length:"),
        "pages are counted instead of tokens": Edit("tokens += page", "tokens += 1"),
        "only the first page of a prompt is added": Edit("cache.add(digest)",
                                                    "if place == 0:\n    cache.add(digest)"),
    },
)

EQUIVALENT = {
    "host: strict=True -> strict=False": "There is a length for each prompt.",
    "number: 0 -> -1": "The digest with which every chain begins may be any number.",
    "number: 0 -> 1": "The digest with which every chain begins may be any number.",
    "type: place += page -> place += int32(page)": "The same whole number.",
    "type: tokens += page -> tokens += int32(page)": "The same whole number.",
}
