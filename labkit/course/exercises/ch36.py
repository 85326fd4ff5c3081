"""The exercises of lesson 36: what is sampled from a few tokens, the threshold of top-p without a sort, sampling with
whole numbers, and Philox.

Sizes are R rows of V tokens; n counters.
"""

import numpy as np
from numba import int32, int64

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, elements_of_argument, shuffles
from labkit.kernels.philox import philox_reference
from labkit.kernels.sampling_reference import kept_reference

# --- Predict: seven tokens --------------------------------------------------------------------------------------------

SEVEN = np.array([10, 20, 1, 40, 3, 25, 1])  # the weights, in the order of the vocabulary


def _sampled() -> dict:
    logits = np.log(SEVEN).astype(np.float32)
    kept, cold, both = (kept_reference(logits, temperature, 0, top_p, min_p) > 0
                        for temperature, top_p, min_p in ((1.0, 0.8, 0.0), (0.5, 0.8, 0.0), (1.0, 0.75, 0.3)))
    token_5, token_60 = _drawn(np.array([SEVEN * kept] * 2), np.array([5, 60])).tolist()
    return {"threshold": int(SEVEN[kept].min()), "passes": int(SEVEN.max()).bit_length(), "token_5": token_5,
            "token_60": token_60, "kept_cold": int(cold.sum()), "kept_both": int(both.sum())}


SAMPLED = {"threshold": 20, "passes": 6, "token_5": 1, "token_60": 5, "kept_cold": 2, "kept_both": 2}

PREDICT_SAMPLING = PredictionExercise(
    name="predict_sampling",
    truth=_sampled,
    how={"threshold": "40 + 25 are 65 and miss 80; with 20 it is 85. A threshold of 21 would keep 65.",
         "passes": "The largest weight, 40, has six bits, and each bit takes a pass.",
         "token_5": "Kept are tokens 1, 3 and 5 with weights 20, 40 and 25. The intervals lie in the order of the "
                    "tokens: 0 to 19, 20 to 59, 60 to 84.",
         "token_60": "60 is the first number of the third interval: 20 + 40.",
         "kept_cold": "At temperature 0.5 the logits are doubled, so the weights are squared: 1600 + 625 are 2225, and "
                      "the sum of all is 2736, of which 80% are 2189.",
         "kept_both": "min_p keeps weights of at least 0.3 * 40 = 12: 40, 25 and 20, together 85. 75% of these are "
                      "63.75, and 40 + 25 reach that."},
    wrong={"the token with which the mass is reached is left out": {
               **SAMPLED, "threshold": 25, "token_5": 3, "kept_cold": 1, "kept_both": 1},
           "the intervals are laid out in the order of the weights": {**SAMPLED, "token_5": 3},
           "tokens that are not kept have intervals as well": {**SAMPLED, "token_5": 0, "token_60": 3},
           "an interval includes the first number of the next": {**SAMPLED, "token_60": 3},
           "a lower temperature does not change how many tokens are kept": {**SAMPLED, "kept_cold": 3},
           "top_p is a part of all weights, not of those that min_p keeps": {**SAMPLED, "kept_both": 3},
           "min_p is a probability, not a part of the largest one": {**SAMPLED, "kept_both": 1},
           "a pass for each token": {**SAMPLED, "passes": 7}},
)

# --- Top-p without a sort ---------------------------------------------------------------------------------------------

HIGHEST = 2**31  # weights are below it


def _threshold_of(weights, need):
    """The largest number that is reached: one of the weights."""
    thresholds = []
    for row, wanted in zip(weights.tolist(), need.tolist(), strict=True):
        mass = 0
        for weight in sorted(row, reverse=True):
            mass += weight
            if mass >= wanted:
                break
        thresholds.append(weight)
    return np.array(thresholds, np.int32)


def _need(rng, weights):
    mass = weights.astype(np.int64).sum(1)
    return np.maximum(1, (mass * rng.random(len(mass))).astype(np.int64))


def _weights(rng, R, V):
    weights = rng.integers(0, 1 << rng.integers(3, 22, (R, 1)), (R, V)).astype(np.int32)
    weights[:, rng.integers(V)] += 1  # none is a row of zeros
    return weights


def _mass_inputs(rng, R, V):
    weights = _weights(rng, R, V)
    return weights, _need(rng, weights)


def _masses(words, make, need=None, size=(3, 70)):
    """make(rng, R, V) -> weights; need(rng, weights) -> what has to be reached."""
    def turn(rng, weights, _):
        weights = make(rng, *weights.shape).astype(np.int32)
        return weights, (need or _need)(rng, weights).astype(np.int64)

    return Reach(words, turn, dict(zip("RV", size, strict=True)))


def _only(place):
    """Of all weights one is more than 0, at this place of each row."""
    def make(rng, R, V):
        weights = np.zeros((R, V))
        weights[:, place] = 77
        return weights

    return make


def _whole(rng, weights):
    return weights.astype(np.int64).sum(1)


def _one_likely(rng, R, V):
    weights = rng.integers(0, 3, (R, V))
    weights[np.arange(R), rng.integers(0, V, R)] = HIGHEST - 1
    return weights


def _reached_exactly(rng, weights):
    """By the largest few together."""
    ordered = -np.sort(-weights.astype(np.int64), axis=1)
    return np.cumsum(ordered, axis=1)[:, min(4, weights.shape[1] - 1)]


@asks("The row is read once for each bit of the threshold, and all lanes share the work.")
def _passes(report) -> str | None:
    """A pass over the row for each bit, with all lanes; and no pass for each token."""
    elements, loads = elements_of_argument(report, 0), report.counts["global_loads"]
    if loads > 60 * elements:
        return (f"It makes {loads:,} loads from global memory for {elements:,} weights. A weight has 31 bits, and one "
                f"pass over the row for each is enough, {31 * elements:,} loads.")
    name = next(iter(report.arrays))
    lanes = {thread % 32 for (array, space), cells in report.touched.items() if (array, space) == (name, "global")
             for (thread, _), kinds in cells.items() if "load" in kinds}
    if len(lanes) < 16:
        return (f"{len(lanes)} of the 32 lanes load all weights. Let each lane take every 32nd weight, and add their "
                f"sums up by shuffles.")
    return None


@cuda.jit
def top_p_threshold_counts(weights, need, thresholds):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    for col in range(lane, weights.shape[1], 32):
        above, mass = int64(0), int64(0)
        for other in range(weights.shape[1]):
            if weights[row, other] > weights[row, col]:
                above += weights[row, other]
            if weights[row, other] >= weights[row, col]:
                mass += weights[row, other]
        if above < need[row] and mass >= need[row]:
            thresholds[row] = weights[row, col]


@cuda.jit
def top_p_threshold_alone(weights, need, thresholds):
    row = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        threshold, bit = int32(0), int32(1 << 30)
        while bit > 0:
            mass = int64(0)
            for col in range(weights.shape[1]):
                if weights[row, col] >= threshold + bit:
                    mass += weights[row, col]
            if mass >= need[row]:
                threshold += bit
            bit //= 2
        thresholds[row] = threshold


TOP_P_THRESHOLD = KernelExercise(
    name="top_p_threshold",
    reference=_threshold_of,
    inputs=_mass_inputs,
    shape=lambda R, V: (R,),
    dtype=np.int32,
    sizes=tuple({"R": R, "V": V} for R, V in ((1, 1), (2, 5), (3, 33), (3, 128), (2, 200))),
    random_size=lambda rng: {"R": int(rng.integers(1, 5)), "V": int(rng.integers(20, 260))},
    launch=lambda R, V: (R, 32),
    observe_sizes=({"R": 2, "V": 200},),
    demand=_passes,
    domain=(_masses("all of the mass has to be reached", _weights, _whole),
            _masses("the most likely token is enough", _one_likely),
            _masses("the mass of a few tokens is reached exactly", _weights, _reached_exactly),
            _masses("the mass of a few tokens is missed by one",
                    _weights, lambda rng, weights: _reached_exactly(rng, weights) + 1),
            _masses("all weights are equal", lambda rng, R, V: np.full((R, V), 1000)),
            _masses("many weights are equal", lambda rng, R, V: rng.integers(0, 3, (R, V)) + (np.arange(V) == 0)),
            _masses("weights are close to 2**31, and their sum is far above it",
                    lambda rng, R, V: HIGHEST - 1 - rng.integers(0, 9, (R, V))),
            _masses("only one weight is more than 0", _only(-1)),
            _masses("the largest weights stand behind the first 32",
                    lambda rng, R, V: np.where(np.arange(V) < 32, 3, 10_000) + rng.integers(0, 3, (R, V)))),
    wrong={
        "tokens that weigh as much as the threshold are left out": Edit(">= trial", "> trial"),
        "a mass that is reached exactly counts as missed": Edit(">= need[row]", "> need[row]"),
        "one bit too few: weights of 2**30 and more are never reached": Edit("int32(1 << 30)", "int32(1 << 29)"),
        "the lowest bit is never tried": Edit("while bit > 0:", "while bit > 1:"),
        "the tokens are counted, not weighed": Edit("mass += weights[row, col]", "mass += 1"),
        "32 bits for the sum: it overflows": Edit("mass = int64(0)", "mass = int32(0)", "mass += weights[row, col]",
                                                  "mass = int32(mass + weights[row, col])"),
        "each lane takes one weight, and the rest of the row is left out":
            Edit("range(lane, weights.shape[1], 32)", "range(lane, min(weights.shape[1], 32), 32)"),
        "every lane keeps the sum of its own weights": Edit("mass += cuda.shfl_xor_sync(0xFFFFFFFF, mass, distance)",
                                                          "pass"),
        "`shfl_down_sync` in place of xor, and the last lane stores": Edit("shfl_xor_sync(", "shfl_down_sync(",
                                                                           "lane == 0", "lane == 31"),
        "a round too few: half a warp": Edit("(16, 8, 4, 2, 1)", "(8, 4, 2, 1)"),
        "a bit is kept where the mass is missed": Edit(">= need[row]", "< need[row]"),
        "the sum is a float32: it is rounded": Edit("mass = int64(0)", "mass = float32(0)",
                                                    "mass += weights[row, col]", "mass += float32(weights[row, col])"),
        "a pass over the row for each token": top_p_threshold_counts,
        "one thread does it all": top_p_threshold_alone,
    },
)

# --- Sampling with whole numbers --------------------------------------------------------------------------------------


def _drawn(weights, at):
    through = np.cumsum(weights.astype(np.int64), axis=1)
    return np.array([np.searchsorted(row, place, side="right") for row, place in zip(through, at, strict=True)],
                    np.int32)


def _share(rng, weights):
    return (weights.astype(np.int64).sum(1) * rng.random(len(weights))).astype(np.int64)


def _first_of_a_token(rng, weights):
    """The number at which the interval of a token begins that weighs something, and is not the first one."""
    begins = np.cumsum(weights.astype(np.int64), axis=1) - weights
    return np.array([rng.choice(row[own > 0][1:] if (own > 0).sum() > 1 else [0])
                     for row, own in zip(begins, weights, strict=True)])


def _draw_inputs(rng, R, V):
    weights = _weights(rng, R, V) * (rng.random((R, V)) < 0.6).astype(np.int32)
    weights[:, rng.integers(V)] += 1
    return weights, np.where(np.arange(R) % 2 == 0, _first_of_a_token(rng, weights), _share(rng, weights))


def _draws(words, make, at=None, size=(3, 70)):
    def turn(rng, weights, _):
        weights = make(rng, *weights.shape).astype(np.int32)
        return weights, (at or _share)(rng, weights).astype(np.int64)

    return Reach(words, turn, dict(zip("RV", size, strict=True)))


@asks("Each weight is loaded once, and one token of a row is stored.", shuffles)
def _scans(report) -> str | None:
    elements, loads = elements_of_argument(report, 0), report.counts["global_loads"]
    rows, stores = elements_of_argument(report, 1), report.counts["global_stores"]
    if stores > rows:
        return (f"For {rows} rows it stores {stores} tokens: the intervals of two tokens share a number. An interval "
                f"ends before the first number of the next.")
    if loads > 3 * elements + 200:
        return (f"It makes {loads:,} loads from global memory for {elements:,} weights. Load each weight once, and get "
                f"the sums of the lanes before by shuffles.")
    return None


@cuda.jit
def draw_tokens_alone(weights, at, tokens):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    for col in range(lane, weights.shape[1], 32):
        before = int64(0)
        for other in range(col):
            before += weights[row, other]
        if before <= at[row] and at[row] < before + weights[row, col]:
            tokens[row] = col


DRAW_TOKENS = KernelExercise(
    name="draw_tokens",
    reference=_drawn,
    inputs=_draw_inputs,
    shape=lambda R, V: (R,),
    dtype=np.int32,
    sizes=tuple({"R": R, "V": V} for R, V in ((1, 1), (2, 5), (3, 32), (5, 33), (4, 200))),
    random_size=lambda rng: {"R": int(rng.integers(1, 8)), "V": int(rng.integers(20, 260))},
    launch=lambda R, V: (R, 32),
    observe_sizes=({"R": 4, "V": 200},),
    demand=_scans,
    domain=(_draws("the random number is 0", lambda rng, R, V: _draw_inputs(rng, R, V)[0],
                   lambda rng, w: np.zeros(len(w))),
            _draws("the random number is the sum less 1", lambda rng, R, V: _draw_inputs(rng, R, V)[0],
                   lambda rng, weights: weights.astype(np.int64).sum(1) - 1),
            _draws("the random number is the first of a token's interval",
                   lambda rng, R, V: _draw_inputs(rng, R, V)[0], _first_of_a_token),
            _draws("all weights are 1", lambda rng, R, V: np.ones((R, V))),
            _draws("only the last token weighs something", _only(-1)),
            _draws("only the first token weighs something", _only(0)),
            _draws("weights are close to 2**31, and their sum is far above it",
                   lambda rng, R, V: HIGHEST - 1 - rng.integers(0, 9, (R, V)))),
    wrong={
        "an interval ends one too late: it includes the first number of the next": Edit(
            "at[row] < before + through", "at[row] <= before + through"),
        "an interval begins one too late": Edit("before + through - own <= at[row]",
                                                    "before + through - own < at[row]"),
        "the own weight is counted as one before": Edit("before + through - own <= at[row]",
                                                        "before + through <= at[row]",
                                                        "at[row] < before + through",
                                                        "at[row] < before + through + own"),
        "each chunk begins at 0 again": Edit("before += cuda.shfl_sync(0xFFFFFFFF, through, 31)", ""),
        "the sum of a chunk is that of lane 0": Edit("through, 31)", "through, 0)"),
        "every lane adds its own running sum, not the chunk's sum":
            Edit("before += cuda.shfl_sync(0xFFFFFFFF, through, 31)", "before += through"),
        "lanes that have no lane at that distance before them add something as well":
            Edit("if lane >= distance:", "if True:"),
        "a round too few: half a warp": Edit("(1, 2, 4, 8, 16)", "(1, 2, 4, 8)"),
        "32 bits for the sums: they overflow": Edit(
            "before = int64(0)", "before = int32(0)",
            "int64(weights[row, col]) if col < weights.shape[1] else int64(0)",
            "weights[row, col] if col < weights.shape[1] else int32(0)",
            "before += cuda.shfl_sync(0xFFFFFFFF, through, 31)",
            "before = int32(before + cuda.shfl_sync(0xFFFFFFFF, through, 31))"),
        "the token's index in the chunk is stored, not that in the row":
            Edit("tokens[row] = col", "tokens[row] = lane"),
        "every lane adds up all weights before its own": draw_tokens_alone,
    },
)

# --- From a blank page: Philox ----------------------------------------------------------------------------------------


def _words(counters, keys):
    return np.array([philox_reference(counter, key) for counter, key in zip(counters, keys, strict=True)], np.uint32)


def _counter_inputs(rng, n):
    return rng.integers(0, 2**32, (n, 4), np.uint32), rng.integers(0, 2**32, (n, 2), np.uint32)


def _counters(words, counters, key):
    """counters: (40, 4), or what can be made so; key: two words, the same for all."""
    def turn(rng, *_):
        return np.broadcast_to(np.uint32(counters), (40, 4)).copy(), np.broadcast_to(np.uint32(key), (40, 2)).copy()

    return Reach(words, turn, {"n": 40})


POSITIONS = np.stack([np.arange(40), *np.zeros((3, 40), np.int64)], axis=1)


@asks("The counter and the key are loaded once, and the result is stored once.")
def _in_registers(report) -> str | None:
    n = elements_of_argument(report, 0) // 4
    loads, stores = report.counts["global_loads"], report.counts["global_stores"]
    if loads <= 6 * n and stores <= 4 * n:
        return None
    return (f"For {n} counters it makes {loads:,} loads and {stores:,} stores in global memory; {6 * n:,} and "
            f"{4 * n:,} are enough. Keep the four words and the key in variables during the ten rounds.")


PHILOX_WORDS = KernelExercise(
    name="philox_words",
    reference=_words,
    inputs=_counter_inputs,
    shape=lambda n: (n, 4),
    dtype=np.uint32,
    sizes=tuple({"n": n} for n in (1, 5, 64, 100, 257)),
    random_size=lambda rng: {"n": int(rng.integers(30, 200))},
    launch=lambda n: (-(-n // 64), 64),
    observe_sizes=({"n": 100},),
    demand=_in_registers,
    domain=(_counters("counter and key are 0", (0, 0, 0, 0), (0, 0)),
            _counters("all bits of counter and key are 1", (2**32 - 1,) * 4, (2**32 - 1,) * 2),
            _counters("counters are positions, and the key is a small seed", POSITIONS, (1, 0))),
    wrong={
        "nine rounds": Edit("range(10)", "range(9)"),
        "the key stays the same in all rounds": Edit("key_0 = uint32(key_0 + uint32(0x9E3779B9))", "",
                                                     "key_1 = uint32(key_1 + uint32(0xBB67AE85))", ""),
        "the key is bumped before the first round": Edit(
            "key_0 = uint32(key_0 + uint32(0x9E3779B9))\nkey_1 = uint32(key_1 + uint32(0xBB67AE85))", "",
            "first = uint64(0xD2511F53) * uint64(a)",
            "key_0 = uint32(key_0 + uint32(0x9E3779B9))\nkey_1 = uint32(key_1 + uint32(0xBB67AE85))\n"
            "first = uint64(0xD2511F53) * uint64(a)"),
        "the two products are exchanged": Edit("uint32(second >> uint64(32)) ^ b ^ key_0",
                                               "uint32(first >> uint64(32)) ^ b ^ key_0",
                                               "uint32(first >> uint64(32)) ^ d ^ key_1",
                                               "uint32(second >> uint64(32)) ^ d ^ key_1"),
        "the lower 32 bits are mixed with the key, not the upper ones": Edit(
            "uint32(second >> uint64(32)) ^ b ^ key_0", "uint32(second) ^ b ^ key_0"),
        "the second word of the key is not used": Edit("^ d ^ key_1", "^ d ^ key_0"),
        "the words of the counter are taken in the opposite order": Edit(
            "a, b, c, d = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]",
            "d, c, b, a = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]"),
        "products of 32 bits: their upper 32 bits are lost": Edit(
            "uint64(0xD2511F53) * uint64(a)", "uint64(uint32(uint32(0xD2511F53) * uint32(a)))",
            "uint64(0xCD9E8D57) * uint64(c)", "uint64(uint32(uint32(0xCD9E8D57) * uint32(c)))"),
        "no guard: the last block has threads without a counter": Edit("if i < counters.shape[0]:", "if True:"),
    },
)

EXERCISES = (PREDICT_SAMPLING, TOP_P_THRESHOLD, DRAW_TOKENS, PHILOX_WORDS)
