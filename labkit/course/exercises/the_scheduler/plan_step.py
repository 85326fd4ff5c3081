"""A step under a token budget

Plan a step of at most `budget` tokens. `running` says, for each running sequence, how many of its tokens are not
computed yet: 1 if it is decoding, more in the middle of a prompt. `waiting` has the lengths of the waiting prompts. In
both arrays the oldest comes first, and either may be empty.

- Running sequences come first, in order. Each gets its tokens, as far as the budget allows.
- Then waiting prompts are admitted, in order, as long as the budget has tokens left. An admitted prompt gets its
  tokens, as far as the budget allows, one of `seats` free seats, and pages of 16 tokens for its *whole* prompt.
- To be admitted, a prompt needs enough `free` pages for itself and for one more per sequence that is already running,
  including those admitted in this step. Once a prompt cannot be admitted, those behind it are not admitted either.

Return an array with the number of tokens that each gets in this step, for all of `running`, then for all of `waiting`;
0 for those that get none.

An example: `running` [1, 1], `waiting` [6, 20, 4], budget 10, 8 seats and 9 free pages give `[1, 1, 6, 2, 0]`. The
first prompt needs 1 page, and 2 more for the running sequences. The second needs 2 and 3 more, and 8 are free; it gets
the last 2 tokens of the budget.
"""

HINTS = ("In the example, how many pages must be free for the third prompt, if the budget were 100? Which sequence "
         "is in the middle of its prompt afterwards?",
         "Two loops. In the first, min(left, budget). In the second, four conditions; a variable records that one of "
         "them has failed. After an admission, the budget, the seats, the free pages and the number of running "
         "sequences all change.",
         "queue_open = queue_open and budget > 0 and seats > 0 and -(-prompt // 16) + holders <= free; then "
         "min(prompt, budget) tokens, seats - 1, free less the pages of the whole prompt, holders + 1.")
POINTS = 2

import numpy as np


# %%
def plan_step(running, waiting, budget, seats, free):
    ### BEGIN SOLUTION
    planned = []
    for left in running.tolist():
        tokens = min(left, budget)
        planned.append(tokens)
        budget -= tokens
    holders = len(running)
    queue_open = True
    for prompt in waiting.tolist():
        pages = -(-prompt // 16)
        queue_open = queue_open and budget > 0 and seats > 0 and pages + holders <= free
        tokens = min(prompt, budget) if queue_open else 0
        planned.append(tokens)
        if queue_open:
            budget -= tokens
            seats -= 1
            free -= pages
            holders += 1
    return np.array(planned)
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach

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


EXERCISE = FunctionExercise(
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
            _queue("the first waiting prompt does not fit, but the second would", [1], [60, 4], 100, 8, 4),
            _queue("all pages are needed, and those of the prompts are just enough", [1, 1], [32, 16], 100, 8, 6),
            _queue("the pages are just enough for the only prompt", [1], [16], 100, 8, 2),
            _queue("a page is missing for a running sequence", [1, 1], [32, 16], 100, 8, 5),
            _queue("only part of a prompt is computed, and the pages would not hold all of it", [1], [60], 10, 8,
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
        "no page is kept for the running sequences": Edit("pages + holders <= free", "pages <= free"),
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

EQUIVALENT = {
    "guard: if queue_open: ... -> if True: ...":
        "Once the queue is closed nothing opens it again, whatever is counted then.",
    "type: budget -= tokens -> budget -= int32(tokens)": "The same whole number.",
    "type: budget -= tokens -> budget -= int32(tokens) (2)": "The same whole number.",
    "type: free -= pages -> free -= int32(pages)": "The same whole number.",
}
