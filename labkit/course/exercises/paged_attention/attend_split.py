"""From a blank page: attention split over blocks

The arguments are those of exercise 2, with heads of 32 elements, and an int `share`. A block now attends to `share`
pages of one sequence: block p to entries p × share to (p + 1) × share - 1 of its row of the table, as far as there are
tokens. And it computes all H // K query heads, at most 4, that read the same head of keys and values.

For each of its query heads it writes a record to `out` (B, H, P, 34): 32 elements of `acc`, then `row_max`, then
`row_sum`, as in exercise 3. A block whose pages hold no token writes nothing.

An example: a sequence of 70 tokens has 5 pages. With `share` 2, block 0 has tokens 0 to 31, block 1 tokens 32 to 63,
block 2 tokens 64 to 69, and block 3, if there is one, has none.

The grid is `(P, K, B)` with 32 threads per block. Write
`attend_split(q, keys, values, page_table, lengths, scale, share, out)` from the decorator down.
"""

HINTS = ("Which tokens belong to block p, if the sequence has 70 and share is 2? For which p are there none?",
         "It is the loop of paged_attention, from p * share * 16 to the smaller of (p + 1) * share * 16 and the "
         "length. What that kernel has once, query, row_max, row_sum and acc, you now need for each query head of the "
         "group, in local arrays of 4. Load key and value before the loop over the heads.",
         "first, end = part * share * 16, min((part + 1) * share * 16, lengths[b]); query head n of the group is "
         "kv_head * (q.shape[1] // keys.shape[1]) + n; if first < end, out[b, head, part, lane] = acc[n], and lane 0 "
         "writes row_max[n] to column 32 and row_sum[n] to column 33.")
POINTS = 3
NEEDS = ("paged_attention", "join_attention")

import math

from numba import float32

from labkit import cuda

# %%
attend_split = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def attend_split(q, keys, values, page_table, lengths, scale, share, out):
    part, kv_head, b, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z, cuda.threadIdx.x
    query, acc = cuda.local.array(4, float32), cuda.local.array(4, float32)
    row_max, row_sum = cuda.local.array(4, float32), cuda.local.array(4, float32)
    group = q.shape[1] // keys.shape[1]
    first, end = part * share * 16, min((part + 1) * share * 16, lengths[b])
    for n in range(group):
        query[n] = q[b, kv_head * group + n, lane] * scale
        acc[n], row_max[n], row_sum[n] = float32(0.0), float32(-math.inf), float32(0.0)
    for j in range(first, end):
        page = page_table[b, j // 16]
        key, value = keys[page, kv_head, j % 16, lane], values[page, kv_head, j % 16, lane]
        for n in range(group):
            score = query[n] * key
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
            new = max(row_max[n], score)
            factor, weight = math.exp(row_max[n] - new), math.exp(score - new)
            row_sum[n] = row_sum[n] * factor + weight
            acc[n] = acc[n] * factor + weight * value
            row_max[n] = new
    if first < end:
        for n in range(group):
            head = kv_head * group + n
            out[b, head, part, lane] = acc[n]
            if lane == 0:
                out[b, head, part, 32] = row_max[n]
                out[b, head, part, 33] = row_sum[n]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, asks, shuffles
from labkit.course.exercises.paged_attention import DOMAIN, attention_inputs
from labkit.kernels.attention.pages import PAGE, gather, pages_for

UNTOUCHED = -7.0  # where no record is written
WIDE = 32
SPLIT = {"B": 1, "S": 32, "H": 4, "KV": 1, "share": 1}


def _split_inputs(rng, B, S, H, KV, share):
    return *attention_inputs(rng, B, S, H, KV, WIDE), share


def _parts_of_table(table, share) -> int:
    return -(-table.shape[1] // share)


def _parts_of_size(S, share) -> int:
    return -(-(pages_for(S) + 1) // share)


def _split(q, keys, values, table, lengths, scale, share, measure=None):
    """The records of all parts; measure: their largest errors instead."""
    B, H, D = q.shape
    out = np.full((B, H, _parts_of_table(table, share), D + 2), UNTOUCHED if measure is None else 0.0)
    group = H // keys.shape[1]
    for b, tokens in enumerate(lengths.astype(int)):
        k, v = (gather(cache, table[b], tokens).astype(np.float64) for cache in (keys, values))
        for first in range(0, tokens, share * PAGE):
            part, seen = first // (share * PAGE), slice(first, first + share * PAGE)
            for head in range(H):
                query, key, value = q[b, head].astype(np.float64), k[seen, head // group], v[seen, head // group]
                scores = key @ query * float(scale)
                weights = np.exp(scores - scores.max())
                out[b, head, part] = (np.r_[weights @ value, scores.max(), weights.sum()] if measure is None
                                      else measure(np.abs(key) @ np.abs(query) * float(scale), scores, weights, value))
    return out


def _split_tolerance(q, keys, values, table, lengths, scale, share):
    def errors(sizes, scores, weights, value):
        score = 2 * math.sqrt(WIDE) * sizes  # of each score, in units of EPS32
        below = np.abs(scores) + np.abs(scores).max()
        weight = weights * (score + score.max() + below + 4 + 2 * math.sqrt(len(scores)))
        return 2 * EPS32 * np.r_[weight @ np.abs(value), score.max(), weight.sum()]

    return _split(q, keys, values, table, lengths, scale, share, errors)


@asks("A block loads each element of its keys and values once, for all of its query heads.", shuffles)
def _group_loads_once(report) -> str | None:
    tokens, group, blocks = SPLIT["S"], SPLIT["H"] // SPLIT["KV"], _parts_of_size(SPLIT["S"], SPLIT["share"])
    loads = report.counts["global_loads"]
    allowed = tokens * (2 * WIDE + 2 * 32) + blocks * (group * WIDE + 6 * 32)
    if loads <= allowed:
        return None
    return (f"For {tokens} tokens your kernel makes {loads:,} loads, and {allowed:,} are enough. The {group} query "
            f"heads of a block read the same keys and values: load a key once, and use it for all of them.")


EXERCISE = KernelExercise(
    name="attend_split",
    reference=_split,
    inputs=_split_inputs,
    shape=lambda B, S, H, KV, share: (B, H, _parts_of_size(S, share), WIDE + 2),
    start=lambda q, keys, values, table, lengths, scale, share: np.full(
        (*q.shape[:2], _parts_of_table(table, share), WIDE + 2), UNTOUCHED),
    sizes=tuple(dict(zip(("B", "S", "H", "KV", "share"), size, strict=True)) for size in (
        (1, 1, 1, 1, 1), (3, 40, 4, 2, 1), (1, 32, 4, 1, 1), (2, 70, 3, 3, 3))),
    random_size=lambda rng: {"B": int(rng.integers(1, 4)), "S": int(rng.integers(17, 70)), "H": 4, "KV": 2,
                             "share": int(rng.integers(1, 4))},
    launch=lambda B, S, H, KV, share: ((_parts_of_size(S, share), KV, B), 32),
    tolerance=_split_tolerance,
    observe_sizes=(SPLIT,),
    demand=_group_loads_once,
    domain=DOMAIN,
    wrong={
        "every block goes over the whole sequence": Edit("part * share * 16, min((part + 1) * share * 16, lengths[b])",
                                                         "0, lengths[b]"),
        "the last part goes to the end of its pages, past the last token": Edit(
            "min((part + 1) * share * 16, lengths[b])", "(part + 1) * share * 16", "first < end", "first < lengths[b]"),
        "`share` is taken for a number of tokens, not pages": Edit(
            "part * share * 16, min((part + 1) * share * 16, lengths[b])",
                                                                   "part * share, min((part + 1) * share, lengths[b])"),
        "a part without tokens is written": Edit("if first < end:", "if True:"),
        "pages are counted from the part's beginning": Edit("page_table[b, j // 16]",
                                                            "page_table[b, (j - first) // 16]"),
        "row_max and row_sum are swapped": Edit("out[b, head, part, 32] = row_max[n]",
                                                "out[b, head, part, 32] = row_sum[n]",
                                                "out[b, head, part, 33] = row_sum[n]",
                                                "out[b, head, part, 33] = row_max[n]"),
        "acc is already divided by the sum of the weights": Edit("lane] = acc[n]", "lane] = acc[n] / row_sum[n]"),
        "neighbouring query heads read different key heads": Edit(
            "q[b, kv_head * group + n, lane]", "q[b, n * keys.shape[1] + kv_head, lane]",
            "head = kv_head * group + n", "head = n * keys.shape[1] + kv_head"),
        "acc is not corrected when the maximum grows": Edit("acc[n] * factor + weight", "acc[n] + weight"),
        "the first maximum is 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "the scores are not scaled": Edit("* scale", ""),
        "the keys are loaded again for each query head": Edit("score = query[n] * key",
                                                              "score = query[n] * keys[page, kv_head, j % 16, lane]"),
    },
)

AFTER = """
Together your two kernels compute attention with split sequences. Here they and the kernel of exercise 2 are compared
with NumPy, for three sequences, one of them empty.

# %%
from labkit.kernels.attention import paged
from labkit.kernels.ops.paged_decode import PAGED_DECODE

size = {"B": 3, "S": 150, "shortest": 0, "H": 4, "KV": 2, "D": 32}
q, keys, values, page_table, lengths, scale = PAGED_DECODE.inputs(np.random.default_rng(0), **size)
on_device = [cuda.to_device(each) for each in (q, keys, values, page_table, lengths)]
share, P = 4, -(-page_table.shape[1] // 4)
parts, joined, whole = (cuda.to_device(np.full(shape, np.nan, np.float32))
                        for shape in ((3, 4, P, 34), (12, 32), q.shape))
counts = np.repeat(-(-lengths // (16 * share)), 4).astype(np.int32)
attend_split[(P, 2, 3), 32](*on_device, np.float32(scale), share, parts)
join_attention[12, 32](parts.reshape(12, P, 34), cuda.to_device(counts), joined)
paged_attention[(4, 3), 32](*on_device, whole, np.float32(scale))
truth = paged.paged_decode_reference(q, keys, values, page_table, lengths, scale)
for name, found in (("split and joined", joined), ("a warp for each head", whole)):
    print(f"{name}: largest error {np.abs(found.copy_to_host().reshape(q.shape) - truth).max():.0e}")
"""
