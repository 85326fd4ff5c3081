"""Into the cache

B sequences decode together, and each has its own part of the cache, its *slot*, with room for N tokens. `cache`
(2, B, K, N, 64) float32 holds all keys, then all values, for K heads. Each sequence has one new token with the key and
value `k` and `v` (B, K, 64), and `lengths` (B,) int32 says how many of its tokens are already in its slot; this is also
the position of the new one.

Copy the value. Rotate the key, then store it: values d and d + 32 form a pair, and (low, high) becomes
(low · cos − high · sin, high · cos + low · sin). Row p of `table` (N, 64) holds the 32 cosines of position p, then its
32 sines. A slot without a sequence has length −1; write nothing to it, or to a full one.

For example, with `lengths = [2, -1]` the first key of sequence 0 goes, rotated by row 2 of `table`, to
`cache[0, 0, 0, 2]`, its value to `cache[1, 0, 0, 2]`, and slot 1 stays as it is. The grid is `(K, B)` with 32 threads
per block.
"""

HINTS = ("Which two elements of the key does lane 5 rotate, and with which cosine and sine? Where in the slot do they "
         "go, and which slots must not change?",
         "place = lengths[b] is both the row of the table and the index in the slot. Guard with 0 <= place < "
         "cache.shape[3]. Load both elements of a pair before you compute either: the second result needs the first "
         "element as it was.",
         "low, high = k[b, head, lane], k[b, head, 32 + lane]; cos, sin = table[place, lane], table[place, 32 + lane]; "
         "cache[0, b, head, place, lane] = low * cos - high * sin, and so on; the values go to cache[1, ...] "
         "unchanged.")
POINTS = 2

from labkit import cuda


# %%
@cuda.jit
def append_rotated(k, v, table, lengths, cache):
    head, b, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    ### BEGIN SOLUTION
    place = lengths[b]
    if 0 <= place < cache.shape[3]:
        low, high = k[b, head, lane], k[b, head, 32 + lane]
        cos, sin = table[place, lane], table[place, 32 + lane]
        cache[0, b, head, place, lane] = low * cos - high * sin
        cache[0, b, head, place, 32 + lane] = high * cos + low * sin
        cache[1, b, head, place, lane] = v[b, head, lane]
        cache[1, b, head, place, 32 + lane] = v[b, head, 32 + lane]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, asks, uniform
from labkit.course.exercises.domains import HUGE_AND_TINY, ZEROS, any_angles, of
from labkit.course.exercises.kv_cache import HALF, WIDE
from labkit.kernels.rope import rope_table

ANGLES = rope_table(128, WIDE, 10_000.0, None)
APPENDED = {"B": 3, "K": 2, "N": 5}


def _kept(k, v, table, lengths, cache):
    out = cache.copy()
    places = cache.shape[3]
    for b, place in enumerate(lengths):
        if 0 <= place < places:
            low, high = k[b, :, :HALF].astype(np.float64), k[b, :, HALF:].astype(np.float64)
            cos, sin = table[place, :HALF].astype(np.float64), table[place, HALF:].astype(np.float64)
            out[0, b, :, place] = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)
            out[1, b, :, place] = v[b]
    return out


def _kept_tolerance(k, v, table, lengths, cache):
    """Two products and a sum for a key; values are copied."""
    allowed = np.zeros(cache.shape)
    for b, place in enumerate(lengths.astype(int)):
        if 0 <= place < cache.shape[3]:
            size = np.abs(k[b, :, :HALF]) + np.abs(k[b, :, HALF:])
            allowed[0, b, :, place] = 4 * EPS32 * np.concatenate([size, size], axis=1)
    return allowed


def _kept_inputs(rng, B, K, N):
    lengths = rng.integers(0, N, B).astype(np.int32)
    return (uniform(rng, B, K, WIDE), uniform(rng, B, K, WIDE), ANGLES[:N].copy(), lengths,
            uniform(rng, 2, B, K, N, WIDE))


def _places(words, choose, **size):
    """Inputs with these lengths: choose(B, N) -> B of them."""
    def turn(rng, k, v, table, lengths, cache):
        return k, v, table, np.asarray(choose(len(lengths), cache.shape[3])).astype(np.int32), cache

    return Reach(words, turn, size or {"B": 4, "K": 2, "N": 6})


@asks("A block loads each element of key, value and table once.")
def _loads_a_pair_once(report) -> str | None:
    """Both numbers of a pair by one thread, with one cosine and one sine."""
    pairs = APPENDED["B"] * APPENDED["K"] * HALF
    loads, enough = report.counts["global_loads"], 10 * pairs
    if loads <= enough:
        return None
    return (f"It loads {loads:,} elements from global memory, and {enough:,} are enough. Let a thread compute both "
            f"elements of a pair: it loads the two of the key, one cosine, one sine, and two of the value.")


@cuda.jit
def append_number_by_number(k, v, table, lengths, cache):
    head, b = cuda.blockIdx.x, cuda.blockIdx.y
    place = lengths[b]
    if 0 <= place < cache.shape[3]:
        for d in range(cuda.threadIdx.x, 64, 32):
            cos, sin = table[place, d % 32], table[place, 32 + d % 32]
            if d < 32:
                cache[0, b, head, place, d] = k[b, head, d] * cos - k[b, head, d + 32] * sin
            else:
                cache[0, b, head, place, d] = k[b, head, d] * cos + k[b, head, d - 32] * sin
            cache[1, b, head, place, d] = v[b, head, d]


LOW, HIGH = "low * cos - high * sin", "high * cos + low * sin"

EXERCISE = KernelExercise(
    name="append_rotated",
    reference=_kept,
    inputs=_kept_inputs,
    shape=lambda B, K, N: (2, B, K, N, WIDE),
    start=lambda k, v, table, lengths, cache: cache,
    arguments=lambda inputs, out, size: (*inputs[:4], out),
    sizes=tuple({"B": B, "K": K, "N": N} for B, K, N in ((1, 1, 3), (2, 1, 7), (3, 2, 5), (4, 3, 40))),
    random_size=lambda rng: {"B": int(rng.integers(1, 6)), "K": int(rng.integers(1, 4)), "N": int(rng.integers(2, 30))},
    launch=lambda B, K, N: ((K, B), 32),
    tolerance=_kept_tolerance,
    observe_sizes=(APPENDED,),
    demand=_loads_a_pair_once,
    domain=(any_angles(2, {"B": 4, "K": 2, "N": 6}), _places("all slots are empty", lambda B, N: [-1] * B),
            _places("the first slot is empty", lambda B, N: [-1] + [2] * (B - 1)),
            _places("the last slot is empty", lambda B, N: [2] * (B - 1) + [-1]),
            _places("every sequence is at its first token", lambda B, N: [0] * B),
            _places("every slot is full", lambda B, N: [N] * B),
            _places("only the first slot is full", lambda B, N: [N] + [1] * (B - 1)),
            _places("each slot has room for one more token", lambda B, N: [N - 1] * B),
            *of((0, 1), HUGE_AND_TINY, ZEROS)),
    wrong={
        "neighbours form pairs, as in other models: here an element's partner is 32 away": Edit(
            "low, high = k[b, head, lane], k[b, head, 32 + lane]",
            "low, high = k[b, head, 2 * lane], k[b, head, 2 * lane + 1]",
            "cache[0, b, head, place, lane] =", "cache[0, b, head, place, 2 * lane] =",
            "cache[0, b, head, place, 32 + lane] =", "cache[0, b, head, place, 2 * lane + 1] ="),
        "the rotation goes the other way: the signs of the sines are swapped": Edit(
            LOW, "low * cos + high * sin", HIGH, "high * cos - low * sin"),
        "the second element is computed from the rotated first one": Edit(
            "cache[0, b, head, place, lane] = low * cos - high * sin",
            "low = low * cos - high * sin\ncache[0, b, head, place, lane] = low"),
        "the keys are stored without rotation": Edit(LOW, "low", HIGH, "high"),
        "cosine and sine are swapped": Edit("cos, sin = table[place, lane], table[place, 32 + lane]",
                                            "sin, cos = table[place, lane], table[place, 32 + lane]"),
        "the angles are those of the previous token": Edit(
            "table[place, lane]", "table[max(place - 1, 0), lane]",
            "table[place, 32 + lane]", "table[max(place - 1, 0), 32 + lane]"),
        "the new token overwrites the last one": Edit("place = lengths[b]",
                                                      "place = lengths[b] - 1"),
        "every sequence is as long as the first one": Edit("place = lengths[b]", "place = lengths[0]"),
        "a slot without a sequence: index -1 is the slot's last element": Edit("if 0 <= place < cache.shape[3]:",
                                                                                "if place < cache.shape[3]:"),
        "no guard for a full slot: the token goes into the next head, or out of the array": Edit(
            "if 0 <= place < cache.shape[3]:", "if 0 <= place:"),
        "the values are the keys": Edit("= v[b, head, lane]", "= k[b, head, lane]",
                                       "= v[b, head, 32 + lane]", "= k[b, head, 32 + lane]"),
        "the second half of the values is left out": Edit(
            "cache[1, b, head, place, 32 + lane] = v[b, head, 32 + lane]", ""),
        "element by element: each key and each angle is loaded twice": append_number_by_number,
    },
)
