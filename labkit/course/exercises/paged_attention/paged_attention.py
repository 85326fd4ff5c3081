"""Attention over pages, a warp for each head

Let the newest token of each sequence attend to all of the sequence's tokens. The arrays are those of the engine's own
kernels, in float32:

- `q` and `out` (B, H, D): the query of each of B sequences in H heads, and the result.
- `keys` and `values` (pages, K, 16, D). Query head h reads their head h // (H // K).
- `lengths` (B,): how many tokens each sequence has. Token j of sequence b is in page `page_table[b, j // 16]`, at
  offset `j % 16`.

The scores are dot products times `scale`, their softmax gives the weights, and the result is the weighted sum of the
values. For a sequence of length 0 write zeros. After a sequence's last page the table may hold anything, and where
there is no token, keys and values are NaN.

An example: with H = 4, K = 2 and `page_table[0]` = [5, 2], query head 3 of sequence 0 reads head 1, and token 20 is in
page 2 at offset 4: its key is `keys[2, 1, 4]`.

The grid is `(H, B)` with 32 threads per block, and D is 32, 64, 96 or 128: a lane holds elements lane, lane + 32 and so
on of its head, in `query` and `acc`. Go over the tokens once, with the online softmax.
"""

HINTS = ("Which elements of which array does lane 5 need for token 20 of sequence b, in query head 3, if D is 64 and "
         "two query heads share a key head?",
         "A loop over j in range(lengths[b]): the page from the table, the lane's products, five shuffles, then the "
         "online softmax: the new maximum, the factor for row_sum and acc so far, and the weight of this token. acc "
         "has one element per column of the lane, and all of them are corrected.",
         "page = page_table[b, j // 16]; score += query[i] * keys[page, kv_head, j % 16, lane + 32 * i] for each i; "
         "after the shuffles acc[i] = acc[i] * factor + weight * values[page, kv_head, j % 16, lane + 32 * i]; at the "
         "end out[b, head, lane + 32 * i] = acc[i] / row_sum, or 0 where the length is 0.")
POINTS = 3
NEEDS = ("attend_padded", "store_slots")

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def paged_attention(q, keys, values, page_table, lengths, out, scale):
    head, b, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    query, acc = cuda.local.array(4, float32), cuda.local.array(4, float32)
    ### BEGIN SOLUTION
    kv_head = head // (q.shape[1] // keys.shape[1])
    own = q.shape[2] // 32
    for i in range(own):
        query[i] = q[b, head, lane + 32 * i] * scale
        acc[i] = float32(0.0)
    row_max, row_sum = float32(-math.inf), float32(0.0)
    for j in range(lengths[b]):
        page, place = page_table[b, j // 16], j % 16
        score = float32(0.0)
        for i in range(own):
            score += query[i] * keys[page, kv_head, place, lane + 32 * i]
        for distance in (16, 8, 4, 2, 1):
            score += cuda.shfl_xor_sync(0xFFFFFFFF, score, distance)
        new = max(row_max, score)
        factor, weight = math.exp(row_max - new), math.exp(score - new)
        row_sum = row_sum * factor + weight
        for i in range(own):
            acc[i] = acc[i] * factor + weight * values[page, kv_head, place, lane + 32 * i]
        row_max = new
    for i in range(own):
        out[b, head, lane + 32 * i] = acc[i] / row_sum if row_sum > 0 else float32(0.0)
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, KernelExercise, asks, shuffles
from labkit.course.exercises.paged_attention import DOMAIN, attention_inputs
from labkit.kernels.attention.paged import paged_decode_reference
from labkit.kernels.elements import FLOAT32
from labkit.kernels.ops.paged_decode import tolerance_decode

ATTENDED = {"B": 1, "S": 32, "H": 2, "KV": 1, "D": 64}  # with one sequence, S is its length

SMALL_ATTENTION = tuple(dict(zip(("B", "S", "H", "KV", "D"), size, strict=True)) for size in (
    (1, 16, 1, 1, 32), (3, 20, 4, 2, 32), (1, 32, 2, 1, 64), (2, 40, 3, 3, 96), (1, 70, 4, 1, 128)))


@asks("Each element of the query, the keys and the values is loaded once.", shuffles)
def _loaded_once(report) -> str | None:
    """Keys, values and query once; each lane may look up the table for each token."""
    _, tokens, heads, _, size = ATTENDED.values()
    loads, allowed = report.counts["global_loads"], heads * (tokens * (2 * size + 32 + 16) + size + 6 * 32)
    if loads <= allowed:
        return None
    return (f"For {tokens} tokens in {heads} heads of {size} your kernel makes {loads:,} loads, and {allowed:,} are "
            f"enough. Load each element of the query, the keys and the values once: keep the query in `query`, and "
            f"instead of a second pass correct `acc` where the maximum grows.")


EXERCISE = KernelExercise(
    name="paged_attention",
    reference=paged_decode_reference,
    inputs=attention_inputs,
    arguments=lambda inputs, out, size: (*inputs[:-1], out, inputs[-1]),
    shape=lambda B, S, H, KV, D: (B, H, D),
    sizes=SMALL_ATTENTION,
    random_size=lambda rng: {"B": int(rng.integers(1, 4)), "S": int(rng.integers(17, 60)), "H": 4, "KV": 2, "D": 32},
    launch=lambda B, S, H, KV, D: ((H, B), 32),
    tolerance=lambda *inputs: 2 * tolerance_decode(*inputs, element=FLOAT32),
    observe_sizes=(ATTENDED,),
    demand=_loaded_once,
    domain=DOMAIN,
    wrong={
        "the pages are taken in the order of memory, not of the table": Edit("page_table[b, j // 16]", "j // 16"),
        "all sequences use the first one's table": Edit("page_table[b, j // 16]", "page_table[0, j // 16]"),
        "the whole row of the table is read, to its last entry":
            Edit("range(lengths[b])", "range(16 * page_table.shape[1])"),
        "the last page is taken to be full": Edit("range(lengths[b])", "range((lengths[b] + 15) // 16 * 16)"),
        "the newest token is left out": Edit("range(lengths[b])", "range(lengths[b] - 1)"),
        "every query head reads the first key head": Edit("head // (q.shape[1] // keys.shape[1])", "0"),
        "head % K: neighbouring query heads read different key heads":
            Edit("head // (q.shape[1] // keys.shape[1])", "head % keys.shape[1]"),
        "the scores are not scaled": Edit("* scale", ""),
        "the values are the keys": Edit("weight * values[", "weight * keys["),
        "acc is not corrected when the maximum grows": Edit("acc[i] * factor + weight", "acc[i] + weight"),
        "row_sum is not corrected when the maximum grows": Edit("row_sum * factor + weight", "row_sum + weight"),
        "the first maximum is 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "a sequence of length 0 becomes 0 / 0": Edit(" if row_sum > 0 else float32(0.0)", ""),
        "the division by the sum of the weights is missing": Edit("acc[i] / row_sum", "acc[i]"),
        "the query is loaded again for each token": Edit("score += query[i] *",
                                                         "score += scale * q[b, head, lane + 32 * i] *",
                                                         "query[i] = q[b, head, lane + 32 * i] * scale", ""),
        "`shfl_down_sync`: only lane 0 has the score": Edit("cuda.shfl_xor_sync(", "cuda.shfl_down_sync("),
    },
)

EQUIVALENT = {
    "identity: acc[i] = float32(0.0) -> acc[i] = float32(1.0)":
        "The first token's factor is exp of minus infinity, which is 0: acc's earlier contents are gone.",
    "identity: score = float32(0.0) -> score = float32(1.0)":
        "Every lane begins with 1, so each score is larger by 32, and a softmax is the same if all its scores grow "
        "alike.",
}

AFTER = """
Here it computes the attention of each new token of a small Llama in float32. Every launch is compared with NumPy in
float64.

# %%
llama = yours.small_llama()
prompts = [[3, 1, 4, 1, 5], [9, 2]]
yours.one_by_one(yours.answers(paged_attention=paged_attention), llama, prompts)
"""
