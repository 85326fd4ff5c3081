"""The exercises of lesson 27: the longest cached prefix, a step under a token budget, a schedule with a preemption, the
threshold of top-p without a sort, sampling with whole numbers, and Philox.

Sizes are R rows of V tokens; n requests.
"""

import numpy as np
from numba import int32, int64

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import elements_of_argument, shuffles
from labkit.engine.simulation import Work, simulate
from labkit.kernels.philox import philox_reference

# --- The longest cached prefix ----------------------------------------------------------------------------------------

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

FOUND_TOKENS = FunctionExercise(
    name="found_tokens",
    reference=_found_tokens,
    inputs=_prompt_inputs,
    sizes=tuple({"n": n, "S": S, "page": page} for n, S, page in ((1, 4, 4), (4, 9, 2), (12, 20, 4), (20, 33, 8))),
    random_size=lambda rng: {"n": int(rng.integers(8, 24)), "S": int(rng.integers(8, 30)), "page": 4},
    domain=(_prompts("the same prompt comes twice, and its last page is full", [*A, *B], [*A, *B]),
            _prompts("a page has the same tokens as a cached one, after a different beginning", [*A, *B], [*C, *B, 0]),
            _prompts("a page is not cached, and the one behind it has the tokens of one that is", [*A, *B, *C],
                     [*A, *C, *C, 0]),
            _prompts("a prompt is a prefix of an earlier one", [*A, *B, *C], [*A, *B, 9], [*A, *B]),
            _prompts("all tokens are equal", [3] * 13, [3] * 9, [3] * 17),
            Reach("what stands behind a prompt in its row is how a later prompt goes on", _cut_off,
                  {"n": 4, "S": 12, "page": 4}),
            _prompts("no prompt fills a page", [1, 2, 3], [1, 2, 3], [1]),
            _prompts("a page is one token", [1, 2, 3], [1, 2, 4, 5], [2, 3], [1, 2, 3, 9], page=1)),
    wrong={
        "the digest is of the page alone: the same tokens after a different beginning are found":
            Edit("digest = hash((digest, *row[place : place + page]))", "digest = hash((*row[place : place + page],))"),
        "the last token may be found as well: its logits would be missing": Edit(" and place + page < length", ""),
        "a page that is not full is entered": Edit("while place + page <= length:", "while place < length:"),
        "the prompt finds its own pages: they are entered before the search": Edit(
            "if digest in cache and place + page < length:",
            "cache.add(digest)\nif digest in cache and place + page < length:"),
        "pages in place of tokens": Edit("tokens += page", "tokens += 1"),
        "a prompt enters only its first page": Edit("cache.add(digest)",
                                                    "if place == 0:\n    cache.add(digest)"),
    },
)

# --- A step under a token budget --------------------------------------------------------------------------------------

PAGE = 16


def _planned_step(running, waiting, budget, seats, free):
    planned = []
    for left in running.tolist():
        planned.append(min(left, budget))
        budget -= planned[-1]
    holders, open_ = len(running), True
    for prompt in waiting.tolist():
        pages = -(-prompt // PAGE)
        open_ = open_ and budget > 0 and seats > 0 and pages + holders <= free
        planned.append(min(prompt, budget) if open_ else 0)
        if open_:
            budget, seats, free, holders = budget - planned[-1], seats - 1, free - pages, holders + 1
    return np.array(planned)


def _queue_inputs(rng, n, m):
    """n running sequences, m waiting prompts."""
    running, waiting = np.where(rng.random(n) < 0.7, 1, rng.integers(1, 60, n)), rng.integers(1, 60, m)
    return running, waiting, int(rng.integers(0, 200)), int(rng.integers(0, 6)), int(rng.integers(0, 30))


def _queue(words, running, waiting, budget, seats, free):
    return Reach(words, lambda rng, *_: (np.array(running, np.int64), np.array(waiting, np.int64), budget, seats, free),
                 {"n": len(running), "m": len(waiting)})


PLAN_STEP = FunctionExercise(
    name="plan_step",
    reference=_planned_step,
    inputs=_queue_inputs,
    sizes=tuple({"n": n, "m": m} for n, m in ((1, 1), (2, 3), (5, 4), (3, 9))),
    random_size=lambda rng: {"n": int(rng.integers(2, 10)), "m": int(rng.integers(2, 10))},
    domain=(_queue("nothing runs", [], [5, 40, 7], 48, 8, 100),
            _queue("nothing waits", [1, 30, 1], [], 20, 8, 100),
            _queue("the budget ends within a waiting prompt", [1, 1], [10, 50, 5], 30, 8, 100),
            _queue("the budget ends within the prompt of a running sequence", [1, 70, 1], [5], 40, 8, 100),
            _queue("the budget has one token left for a prompt", [1, 1], [9], 3, 8, 100),
            _queue("the budget is used up exactly", [1, 1], [8, 5], 10, 8, 100),
            _queue("the first waiting prompt does not fit, and the second would", [1], [60, 4], 100, 8, 4),
            _queue("all pages are needed, and those of the prompts are just enough", [1, 1], [32, 16], 100, 8, 6),
            _queue("a page is missing for a running sequence", [1, 1], [32, 16], 100, 8, 5),
            _queue("only a part of a prompt is computed, and the whole would not fit into the pages", [1], [60], 10, 8,
                   3),
            _queue("a running sequence is in the middle of its prompt, and a page is missing for it", [1, 20], [32],
                   100, 8, 3),
            _queue("there is one seat", [1], [4, 4, 4], 100, 1, 100),
            _queue("there is no seat", [1], [4], 100, 0, 100)),
    wrong={
        "a prompt is computed whole or not at all": Edit(
            "min(prompt, budget) if queue_open", "prompt if queue_open and prompt <= budget"),
        "a waiting prompt is admitted before an older one that does not fit":
            Edit("queue_open = queue_open and", "queue_open ="),
        "the seats are not counted down": Edit("seats -= 1", ""),
        "no page is left for the running sequences": Edit("pages + holders <= free", "pages <= free"),
        "a sequence in the middle of its prompt is not counted as running":
            Edit("holders = len(running)", "holders = int((running == 1).sum())"),
        "the pages of an admitted prompt stay free": Edit("free -= pages", ""),
        "pages are counted for the chunk, not for the prompt": Edit("pages = -(-prompt // 16)",
                                                                    "pages = -(-min(prompt, budget) // 16)"),
        "pages are rounded down": Edit("-(-prompt // 16)", "prompt // 16"),
        "every running sequence gets one token, even in the middle of its prompt":
            Edit("tokens = min(left, budget)", "tokens = min(1, budget)"),
        "the tokens of the running sequences are not subtracted from the budget":
            Edit("planned.append(tokens)\nbudget -= tokens", "planned.append(tokens)"),
    },
)

# --- Predict: a preemption --------------------------------------------------------------------------------------------


def _schedule() -> dict:
    work = Work(prompt=7, output=8), Work(prompt=5, output=6)
    tight = simulate(work, max_num_seqs=2, max_num_batched_tokens=8, num_pages=6, page_size=4)
    ample = simulate(work, max_num_seqs=2, max_num_batched_tokens=8, num_pages=100, page_size=4)
    second = {cell.step for cell in tight.cells if cell.request == 1}
    gone = next(step for step in range(tight.steps) if step not in second)
    return {"held": tight.held[2], "gone": gone, "again": sum(cell.tokens for cell in tight.cells) - sum(
                each.prompt + each.output - 1 for each in work),
            "steps": tight.steps, "steps_ample": ample.steps}


TRUE = {"held": 5, "gone": 6, "again": 9, "steps": 10, "steps_ample": 8}

PREDICT_PREEMPTION = PredictionExercise(
    name="predict_preemption",
    truth=_schedule,
    how={"held": "In step 2, a's ninth token needs a third page, and b's sixth its second: 3 + 2.",
         "gone": "a has 7 tokens after step 0 and one more after each step: its thirteenth, in step 6, needs a fourth "
                 "page. By then b holds three, since its ninth token came in step 5, and 3 + 3 are all.",
         "again": "b had computed all of its tokens up to the ninth. All nine are computed again.",
         "steps": "a computes its last token, the fourteenth, in step 7. b has ten tokens to compute then, 8 in step 8 "
                  "and 2 in step 9, and the token that step 9 samples is its last.",
         "steps_ample": "b needs steps 0 and 1 for its prompt, where step 1 samples its first token, and five more. a "
                        "needs step 0 and seven more, up to step 7: eight steps in all."},
    wrong={"the last token is computed as well: its keys and values are never needed": {
               **TRUE, "steps": 12, "steps_ample": 9},
           "all of b's prompt is computed in step 0, beyond the budget": {**TRUE, "gone": 6, "again": 10},
           "the older one is preempted": {**TRUE, "again": 12, "steps": 11},
           "a prompt is all that is computed again": {**TRUE, "again": 5, "steps": 14},
           "nothing is computed again: the pages are kept": {**TRUE, "again": 0, "steps": 9},
           "steps are counted from 1": {**TRUE, "gone": 7, "steps": 11, "steps_ample": 9},
           "a page is taken one token too early": {**TRUE, "held": 6, "gone": 5, "again": 8}},
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


def _scans(report) -> str | None:
    elements, loads = elements_of_argument(report, 0), report.counts["global_loads"]
    rows, stores = elements_of_argument(report, 1), report.counts["global_stores"]
    if stores > rows:
        return (f"For {rows} rows it stores {stores} tokens: the intervals of two tokens share a number. An interval "
                f"ends before the first number of the next.")
    if loads > 3 * elements + 200:
        return (f"It makes {loads:,} loads from global memory for {elements:,} weights. Load each weight once, and get "
                f"the sums of the lanes before by shuffles.")
    return shuffles(report)


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
        "the low halves are scrambled with the key, not the high ones": Edit(
            "uint32(second >> uint64(32)) ^ b ^ key_0", "uint32(second) ^ b ^ key_0"),
        "the second word of the key is not used": Edit("^ d ^ key_1", "^ d ^ key_0"),
        "the words of the counter are taken in the opposite order": Edit(
            "a, b, c, d = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]",
            "d, c, b, a = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]"),
        "products of 32 bits: their upper halves are lost": Edit(
            "uint64(0xD2511F53) * uint64(a)", "uint64(uint32(uint32(0xD2511F53) * uint32(a)))",
            "uint64(0xCD9E8D57) * uint64(c)", "uint64(uint32(uint32(0xCD9E8D57) * uint32(c)))"),
        "no guard: the last block has threads without a counter": Edit("if i < counters.shape[0]:", "if True:"),
    },
)

EXERCISES = (FOUND_TOKENS, PLAN_STEP, PREDICT_PREEMPTION, TOP_P_THRESHOLD, DRAW_TOKENS, PHILOX_WORDS)
