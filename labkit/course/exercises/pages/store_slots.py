"""Keys to their slots

`rows` (T, K, D) float32 holds the keys of T new tokens, for K heads of D values, and `slots` (T,) int32 says where they
go. A slot is page × 16 + offset, and a row with slot -1 goes nowhere. Write the keys to the cache `out`
(pages, K, 16, D), and leave the rest of it unchanged. For example, a row with slot 118 goes to `out[7, :, 6]`, since
118 is 7 × 16 + 6.

The grid has one block of 32 threads per row, and neighbouring lanes should store neighbouring values.
"""

HINTS = ("Which page and which offset is slot 63? And which element of out is element 3 of head 1 there?",
         "page = slot // 16 and offset = slot % 16, if the slot is not negative. Two loops: over the heads, and over "
         "the elements of a head, from the one of its lane in steps of 32.",
         "out[page, head, offset, i] = rows[t, head, i], for each head of range(rows.shape[1]) and each i of "
         "range(cuda.threadIdx.x, rows.shape[2], 32).")
POINTS = 1

from labkit import cuda


# %%
@cuda.jit
def store_slots(rows, slots, out):
    t = cuda.blockIdx.x
    ### BEGIN SOLUTION
    slot = slots[t]
    if slot >= 0:
        page, offset = slot // 16, slot % 16
        for head in range(rows.shape[1]):
            for i in range(cuda.threadIdx.x, rows.shape[2], 32):
                out[page, head, offset, i] = rows[t, head, i]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import MOVED, Edit, KernelExercise, Reach, asks, of, uniform
from labkit.kernels.attention.pages import PAGE, pages_for

UNTOUCHED = -7.0  # what nothing is written to


def _cache_of(rows) -> np.ndarray:
    """What the cache holds before: nothing that a row could hold."""
    tokens, heads, size = rows.shape
    return np.full((_cache_pages(tokens), heads, PAGE, size), UNTOUCHED, np.float32)


def _cache_pages(tokens: int) -> int:
    return pages_for(tokens) + 2


def _stored(rows, slots):
    out = _cache_of(rows)
    for row, slot in zip(rows, slots, strict=True):
        if slot >= 0:
            out[slot // PAGE, :, slot % PAGE] = row
    return out


def _slot_inputs(rng, T, K, D):
    slots = rng.permutation(_cache_pages(T) * PAGE)[:T].astype(np.int32)
    slots[rng.random(T) < 0.2] = -1
    return uniform(rng, T, K, D), slots


def _slots_with(words, choose):
    """choose(rng, T, how many slots there are) -> slots."""
    def turn(rng, rows, slots):
        return rows, choose(rng, len(slots), _cache_pages(len(slots)) * PAGE).astype(np.int32)

    return Reach(words, turn, {"T": 6, "K": 2, "D": 8})


STORED = {"T": 4, "K": 2, "D": 64}


@asks("Neighbouring lanes load and store neighbouring values.")
def _whole_sectors(report) -> str | None:
    T, K, D = STORED.values()
    least = 2 * T * K * D * 4 // 32  # of rows and of the cache
    if report.counts["sectors"] <= 1.5 * least:
        return None
    return (f"Your requests touch {report.counts['sectors']:,} sectors of 32 bytes; about {least:,} are enough. In "
            f"each request of a warp, let lane 0 access element 0 of a head, lane 1 element 1, and so on.")


@cuda.jit
def store_slots_strided(rows, slots, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    slot = slots[t]
    if slot >= 0:
        each = (rows.shape[2] + 31) // 32
        for head in range(rows.shape[1]):
            for i in range(lane * each, min((lane + 1) * each, rows.shape[2])):
                out[slot // 16, head, slot % 16, i] = rows[t, head, i]


EXERCISE = KernelExercise(
    name="store_slots",
    reference=_stored,
    inputs=_slot_inputs,
    shape=lambda T, K, D: (_cache_pages(T), K, PAGE, D),
    start=lambda rows, slots: _cache_of(rows),
    sizes=tuple({"T": T, "K": K, "D": D} for T, K, D in ((1, 1, 1), (3, 2, 5), (6, 2, 8), (4, 2, 64), (20, 3, 40))),
    launch=lambda T, K, D: (T, 32),
    observe_sizes=(STORED,),
    demand=_whole_sectors,
    domain=(_slots_with("all rows are padding", lambda rng, T, count: np.full(T, -1)),
            _slots_with("no row is padding", lambda rng, T, count: rng.permutation(count)[:T]),
            _slots_with("the rows go to consecutive slots", lambda rng, T, count: np.arange(T)),
            _slots_with("the first slot and the last one are used",
                        lambda rng, T, count: np.where(np.arange(T) % 2, count - 1 - np.arange(T), np.arange(T))),
            _slots_with("the slots fall while the tokens rise", lambda rng, T, count: count - 1 - np.arange(T)),
            _slots_with("all rows but the last are padding",
                        lambda rng, T, count: np.where(np.arange(T) == T - 1, 17, -1)),
            *of(0, MOVED)),
    wrong={
        "a row of padding is written, before the cache's beginning": Edit("if slot >= 0:", "if True:"),
        "slot 0 is taken for padding": Edit("if slot >= 0:", "if slot > 0:"),
        "page and offset are swapped": Edit("slot // 16, slot % 16", "slot % 16, slot // 16"),
        "row t goes to slot t": Edit("slot = slots[t]", "slot = t if slots[t] >= 0 else -1"),
        "the slot is taken for the page, with the offset 0": Edit("slot // 16, slot % 16", "slot, 0"),
        "only the first 32 values of a head": Edit("range(cuda.threadIdx.x, rows.shape[2], 32)",
                                                   "range(cuda.threadIdx.x, min(32, rows.shape[2]), 32)"),
        "all heads get the first one's keys": Edit("rows[t, head, i]", "rows[t, 0, i]"),
        "only the first head": Edit("range(rows.shape[1])", "range(1)"),
        "each lane stores several neighbouring values: a request's lanes are far apart": store_slots_strided,
    },
)
