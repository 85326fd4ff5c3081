"""The exercises of lesson 37: a prediction about queues, chunks of prompts within a limit on the time between tokens, a
bug in what may be shown of a text, and a policy that has to beat first come, first served without starving anyone.
"""

from functools import partial

import numpy as np

from labkit.course.exercises import Edit, FunctionExercise, PredictionExercise, Reach
from labkit.measure.simulation import ChoosingScheduler, Served, StepCost, Work, serve_trace

# --- Predict: queues --------------------------------------------------------------------------------------------------


def _queue() -> dict:
    arrivals, stay_ms, queue_ms, step_ms = 40, 1500, 300, 2
    running = arrivals * (stay_ms - queue_ms) // 1000
    return {"inside": arrivals * stay_ms // 1000, "queued": arrivals * queue_ms // 1000,
            "tokens_per_second": running * 1000 // step_ms, "ms_at_75": _stay_ms(10, 75), "ms_at_95": _stay_ms(10, 95),
            "ms_faster": _stay_ms(8, 75)}


def _stay_ms(service_ms: int, arrivals: int) -> int:
    """Service over what the load leaves: with one server, and arrivals and service times that are exponential."""
    return service_ms * 1000 // (1000 - service_ms * arrivals)


TRUE_QUEUE = {"inside": 60, "queued": 12, "tokens_per_second": 24_000, "ms_at_75": 40, "ms_at_95": 200, "ms_faster": 20}

PREDICT_WAITING = PredictionExercise(
    name="predict_waiting",
    truth=_queue,
    how={"inside": "Little's law: 40 requests a second, each there for 1.5 seconds.",
         "queued": "The law holds for the queue alone as well: 40 a second, each in it for 0.3 seconds.",
         "tokens_per_second": "60 less 12 are running, so 48. Each gets a token in every step, and there are 500 steps "
                              "in a second.",
         "ms_at_75": "The load is 75 times 0.010 s = 0.75, and 10 ms / (1 - 0.75) = 40 ms.",
         "ms_at_95": "The load is 0.95, and 10 ms / 0.05 = 200 ms.",
         "ms_faster": "The load falls to 75 times 0.008 s = 0.6, and 8 ms / 0.4 = 20 ms."},
    wrong={"those that wait are counted as running": {**TRUE_QUEUE, "tokens_per_second": 30_000},
           "the time in the queue comes on top of the 1.5 seconds": {**TRUE_QUEUE, "inside": 72,
                                                                     "tokens_per_second": 30_000},
           "a token per step, whatever the batch": {**TRUE_QUEUE, "tokens_per_second": 500},
           "waiting grows in proportion to the load": {**TRUE_QUEUE, "ms_at_75": 7.5, "ms_at_95": 9.5,
                                                       "ms_faster": 6},
           "the time in the queue alone, without the service": {**TRUE_QUEUE, "ms_at_75": 30, "ms_at_95": 190,
                                                                "ms_faster": 12},
           "the faster server shortens the service, and the load stays": {**TRUE_QUEUE, "ms_faster": 32}},
)

# --- Chunks within a limit --------------------------------------------------------------------------------------------


def _chunks(contexts, done, left, limit, step, row, cached):
    chunks, rows, read = np.zeros(len(left), np.int64), len(contexts), int(contexts.sum())
    for place, (before, most) in enumerate(zip(done.tolist(), left.tolist(), strict=True)):
        sizes = np.arange(1, most + 1)
        times = np.maximum(step, (rows + sizes) * row) + (read + before + sizes) * cached
        chunks[place] = int((times <= limit).sum())
        if chunks[place] < most:
            break
        rows, read = rows + most, read + before + most
    return chunks


def _step_inputs(rng, n, m):
    contexts = rng.integers(1, 2500, n)
    done = np.where(rng.random(m) < 0.6, 0, rng.integers(1, 5000, m))
    left = np.where(rng.random(m) < 0.7, rng.integers(1, 400, m), rng.integers(400, 6000, m))
    return contexts, done, left, int(rng.integers(1_500_000, 9_000_000)), 1_000_000, 4_000, 12


def _step_with(words, contexts, done, left, limit, step=1_000_000, row=4_000, cached=12):
    given = [np.array(each, np.int64) for each in (contexts, done, left)]
    return Reach(words, lambda rng, *_: (*(each.copy() for each in given), limit, step, row, cached),
                 {"n": len(contexts), "m": len(left)})


def prompt_chunks_past_a_cut(contexts, done, left, limit, step, row, cached):
    chunks = np.zeros(len(left), np.int64)
    rows, read = len(contexts), int(contexts.sum())
    for i in range(len(left)):
        room = limit - cached * (read + int(done[i]))
        chunk = max(min(int(left[i]), (room - step) // cached, (room - rows * row) // (row + cached)), 0)
        chunks[i] = chunk
        if chunk:
            rows += chunk
            read += int(done[i]) + chunk
    return chunks


PROMPT_CHUNKS = FunctionExercise(
    name="prompt_chunks",
    reference=_chunks,
    inputs=_step_inputs,
    sizes=tuple({"n": n, "m": m} for n, m in ((1, 1), (4, 3), (30, 6), (200, 4))),
    random_size=lambda rng: {"n": int(rng.integers(5, 120)), "m": int(rng.integers(2, 8))},
    domain=(_step_with("no prompt waits", [900, 40], [], [], 5_000_000),
            _step_with("nothing runs", [], [0, 0], [300, 4000], 5_000_000),
            _step_with("the running sequences alone take longer than the limit", 400 * [2000], [0, 0], [50, 50],
                       5_000_000),
            _step_with("all prompts fit", [100] * 8, [0, 16, 0], [100, 20, 90], 5_000_000),
            _step_with("the limit is met exactly", [1000], [0], [2000], 1_000_000 + 4_000 * 250 + 12 * 1249 + 12),
            _step_with("the rows are few, and take no time beside the weights", [20] * 10, [0], [500], 1_500_000,
                       row=400, cached=1_000),
            _step_with("a prompt's cache is so long that not one more token fits, and a shorter prompt waits behind it",
                       [1000] * 4, [200_000, 0], [800, 40], 3_000_000),
            _step_with("a prompt is cut, and one that is short waits behind it", [500] * 20, [0, 0, 0], [100, 3000, 1],
                       3_000_000),
            _step_with("the cache of the prompts is most of what is read", [10] * 4, [60_000, 70_000, 9_000],
                       [30, 40, 900], 3_000_000),
            _step_with("times are beyond 2**31 nanoseconds", [2000] * 200, [0, 5000], [60_000, 80_000], 7_000_000_000,
                       1_000_000_000, 40_000, 8_000),
            _step_with("a prompt that was cut has as many tokens left as fit", [1] * 50, [4_000, 100], [200, 7],
                       1_000_000 + 12 * (50 + 4_200))),
    wrong={
        "the weights and the arithmetic are added up: the longer of the two counts": Edit(
            "(room - step) // cached, (room - rows * row) // (row + cached)",
            "(room - step - rows * row) // (row + cached)"),
        "the weights' time is left out: there may be few rows": Edit("(room - step) // cached, ", ""),
        "only the weights' time counts, and not the rows": Edit(", (room - rows * row) // (row + cached)", ""),
        "the rows of the running sequences are not counted": Edit("rows, read = len(contexts), int(contexts.sum())",
                                                                  "rows, read = 0, int(contexts.sum())"),
        "the cache of the running sequences is not counted": Edit("int(contexts.sum())", "0"),
        "what is done of a prompt is not counted as read": Edit("limit - cached * (read + int(done[i]))",
                                                              "limit - cached * read"),
        "the chunk's own tokens are not counted as read": Edit(
            "(row + cached)", "row", "(room - step) // cached", "(left[i] if room >= step else 0)"),
        "the rows of the prompts before are not counted": Edit("rows += chunk", ""),
        "the cache of the prompts before is not counted": Edit("read += int(done[i]) + chunk", ""),
        "a chunk below 0": Edit("max(min(", "(min(", ", 0)", ")"),
        "those behind a prompt that was cut go on": prompt_chunks_past_a_cut,
        "a prompt is computed whole or not at all": Edit("chunks[i] = chunk",
                                                       "chunk = chunk if chunk == left[i] else 0\nchunks[i] = chunk"),
    },
)

# --- Find the bug: what may be shown ----------------------------------------------------------------------------------


def _shown(tokens, stops):
    """Character after character, and where a character may not be shown yet is found by trying every beginning."""
    text, end, counts = "", None, []
    for token in tokens:
        for character in token:
            if end is None:
                text += character
                ends = [len(text) - len(stop) for stop in stops if text.endswith(stop)]
                end = min(ends, default=None)
        begins = [at for at in range(len(text)) if any(stop.startswith(text[at:]) for stop in stops)]
        counts.append(end if end is not None else min(begins, default=len(text)))
    return np.array(counts)


def _cut(rng, text, longest):
    """The text in tokens of 1 to `longest` characters."""
    tokens, at = [], 0
    while at < len(text):
        size = int(rng.integers(1, longest + 1))
        tokens.append(text[at : at + size])
        at += size
    return tuple(tokens)


def _text_inputs(rng, n, longest):
    """Of two letters, so that stop strings occur and nearly occur. n: characters."""
    stops = {"".join(rng.choice(["a", "b"], int(rng.integers(3, 8)))) for _ in range(int(rng.integers(1, 4)))}
    text = "".join(rng.choice(["a", "b"], n))
    return _cut(rng, text, longest), tuple(sorted(stops))


def _texts(words, tokens, *stops):
    return Reach(words, lambda rng, *_: (tuple(tokens), stops), {"n": len("".join(tokens)), "longest": 1})


SHOWN_AFTER = FunctionExercise(
    name="shown_after",
    reference=_shown,
    inputs=_text_inputs,
    sizes=tuple({"n": n, "longest": longest} for n, longest in ((1, 1), (6, 2), (12, 1), (12, 5), (30, 3), (40, 12))),
    random_size=lambda rng: {"n": int(rng.integers(10, 40)), "longest": int(rng.integers(1, 6))},
    domain=(_texts("a stop string is spread over several tokens", ["Hi", " S", "T", "O", "P", " x"], "STOP"),
            _texts("a stop string begins the text, and is spread over two tokens", ["S", "TOP x"], "STOP"),
            _texts("a stop string nearly comes, twice", ["a ST", "O", "x S", "T", "a"], "STOP"),
            _texts("a stop string lies within one token", ["one", " two STOP three", " four"], "STOP"),
            _texts("there is no stop string", ["Hi", " there"]),
            _texts("of two stop strings one begins in the other's end", ["x\n", "\nUs", "er:", " y"], "\n\n",
                   "\nUser:"),
            _texts("a stop string of one character", ["a", "b.", "c"], "."),
            _texts("two stop strings end with the same character", ["ab", "cd", "e"], "cd", "bcd"),
            _texts("of several stop strings the first one ends last in the text", ["one", " two", " three"], "three",
                   "tw"),
            _texts("in one token a stop string is complete before one that began earlier", ["a", "bcdef"], "bcde",
                   "cd"),
            _texts("a stop string repeats its own beginning", ["a", "a", "a", "b", "a"], "aab"),
            _texts("the text ends with the beginning of a stop string", ["we", " ST"], "STOP", "Ex"),
            _texts("the beginning of the shorter stop string is longer, as it stands", ["ab", "a"], "abab", "bax")),
    wrong={
        "the beginning of a stop string is looked for in the last token alone": Edit(
            "text.endswith(stop[:size])", "token.endswith(stop[:size])"),
        "a stop string is looked for in the last token alone": Edit(
            "at = text.find(stop, max(0, begin - len(stop) + 1))", "at = text.find(stop, begin)"),
        "always as many characters are held as a stop string may have before it is whole": Edit(
            "if text.endswith(stop[:size]):\n    held = max(held, size)", "held = max(held, size)"),
        "of several stop strings the last one decides how many are held": Edit("held = max(held, size)", "held = size"),
        "the shortest beginning is held, not the longest": Edit(
            "held = max(held, size)", "held = size if held == 0 else min(held, size)"),
        "a whole stop string but for its last character is shown": Edit("range(1, len(stop))",
                                                                      "range(1, len(stop) - 1)"),
        "the stop string stays in the text": Edit("end = min(found)[1]", "end = min(found)[0]"),
        "the stop string that begins first ends the text, not the one that ends first": Edit(
            "found.append((at + len(stop), at))", "found.append((at, at))"),
        "what comes after the stop string is shown": Edit(
            "counts.append(end)\ncontinue",
            "text += token if begin == len(text) else ''\ncounts.append(len(text))\ncontinue"),
        "nothing is held": Edit("held = max(held, size)", "pass"),
    },
)

# --- From a blank page: a policy --------------------------------------------------------------------------------------

COST = StepCost(step_ms=1.0, row_ms=0.004, cached_ms=1e-5)
LONGEST = 1.5  # times as long as with FIFO one request may wait at most


class _Missed(Exception):
    """What the answer returned is no choice."""


def _serve(arrivals, prompts, outputs, choose=None) -> Served:
    work = [Work(*each) for each in zip(prompts.tolist(), outputs.tolist(), arrivals.tolist(), strict=True)]
    scheduler = {} if choose is None else {"scheduler": partial(ChoosingScheduler, choose=choose)}
    return serve_trace(work, COST, max_num_seqs=8, max_num_batched_tokens=256, **scheduler)


def _in_order(arrivals, prompts, outputs, share):
    """The times to the first token with first come, first served."""
    return _serve(arrivals, prompts, outputs).first_ms


def _goal_missed(answer, in_order, arrivals, prompts, outputs, share) -> str | None:
    """share: of the mean time with FIFO, that the mean must not exceed."""
    def choose(lengths, waited):
        value = answer(lengths, waited)
        number = np.asarray(value)
        if number.ndim or number.dtype.kind not in "iu":
            raise _Missed(f"With {len(lengths)} waiting it returned {value!r}; asked for is one whole number.")
        if not 0 <= number < len(lengths):
            raise _Missed(f"With {len(lengths)} waiting it returned {int(number)}; they are numbered from 0 to "
                          f"{len(lengths) - 1}.")
        return int(number)

    try:
        first = _serve(arrivals, prompts, outputs, choose).first_ms
    except _Missed as missed:
        return str(missed)
    worst, most = int(first.argmax()), LONGEST * in_order.max()
    if first[worst] > most:
        return (f"Of {len(first)} requests, number {worst} with a prompt of {prompts[worst]:,} tokens waits "
                f"{first[worst]:.1f} ms for its first token. With FIFO the longest wait is {in_order.max():.1f} ms, so "
                f"at most {most:.1f} ms are allowed.")
    if first.mean() > share * in_order.mean():
        return (f"The mean time to the first token of {len(first)} requests is {first.mean():.1f} ms. With FIFO it is "
                f"{in_order.mean():.1f} ms; it must be at most {share:.0%} of that, {share * in_order.mean():.1f} ms.")
    return None


def _trace(rng, n, load):
    """Short prompts, and one in seven long. load: in percent of what the server can do."""
    prompts = np.where(rng.random(n) < 0.15, rng.integers(2000, 4000, n), rng.integers(20, 200, n))
    between = 100 * COST.row_ms * prompts.mean() / load
    return np.cumsum(rng.exponential(between, n)), prompts, rng.integers(1, 9, n), 0.85


def _traces(words, turn, n=150, load=150):
    return Reach(words, turn, {"n": n, "load": load})


def _equal_prompts(rng, arrivals, prompts, outputs, share):
    return np.cumsum(rng.exponential(0.8, len(prompts))), np.full(len(prompts), 300), outputs, 1.02


def _regular(rng, arrivals, prompts, outputs, share):
    n = len(prompts)
    prompts = rng.integers(20, 200, n)
    prompts[3::12] = 1500
    return 0.7 * np.arange(n), prompts, np.full(n, 2), share


CHOOSE_NEXT = FunctionExercise(
    name="choose_next",
    reference=_in_order,
    inputs=_trace,
    judge=_goal_missed,
    sizes=({"n": 150, "load": 150}, {"n": 170, "load": 160}, {"n": 200, "load": 145}),
    random_size=lambda rng: {"n": int(rng.integers(150, 220)), "load": int(rng.integers(145, 165))},
    domain=(_traces("there is one request", lambda rng, *given: (*given[:3], 1.0), n=1),
            _traces("the load is low, and most requests find an empty queue", lambda rng, *given: (*given[:3], 1.02),
                    n=60, load=5),
            _traces("all prompts are equally long", _equal_prompts),
            _traces("all requests arrive at once", lambda rng, arrivals, *rest: (np.zeros(len(arrivals)), *rest)),
            _traces("every twelfth prompt is long, and requests arrive evenly", _regular),
            _traces("requests arrive in groups, at the same millisecond", lambda rng, arrivals, *rest: (
                arrivals[np.arange(len(arrivals)) // 4 * 4], *rest))),
    wrong={
        "first come, first served": Edit("np.argmin(0.01 * prompts - waited)", "0"),
        "the shortest prompt is next: a long one waits as long as shorter ones come": Edit(
            "np.argmin(0.01 * prompts - waited)", "np.argmin(prompts)"),
        "the longest prompt is next": Edit("np.argmin(0.01 * prompts - waited)", "np.argmax(prompts)"),
        "the one that came last is next": Edit("np.argmin(0.01 * prompts - waited)", "len(prompts) - 1"),
        "the one that has waited least is preferred: the sign is wrong": Edit("prompts - waited", "prompts + waited"),
        "waiting hardly counts": Edit("0.01 * prompts", "10 * prompts"),
        "the length hardly counts: it is nearly FIFO": Edit("0.01 * prompts", "0.0005 * prompts"),
        "the smallest value is returned, not its place": Edit("np.argmin(", "np.min("),
    },
)

EXERCISES = (PREDICT_WAITING, PROMPT_CHUNKS, SHOWN_AFTER, CHOOSE_NEXT)
