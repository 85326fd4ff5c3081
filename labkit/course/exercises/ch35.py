"""The exercises of lesson 35: a step under a token budget, a schedule with a preemption, and the longest cached prefix.

n requests; n running sequences and m waiting prompts.
"""

import numpy as np

from labkit.course.exercises import Edit, FunctionExercise, PredictionExercise, Reach
from labkit.measure.simulation import Work, simulate

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
            _queue("the pages are just enough for the only prompt", [1], [16], 100, 8, 2),
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
        "a sequence admitted in this step is not counted as running": Edit("holders += 1", ""),
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

EXERCISES = (PLAN_STEP, PREDICT_PREEMPTION, FOUND_TOKENS)
