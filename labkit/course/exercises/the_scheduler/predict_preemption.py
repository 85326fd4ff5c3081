"""Predict: a preemption

The memory has 6 pages of 4 tokens, a step computes at most 8 tokens, and there is no prefix cache. Request a has a
prompt of 7 tokens and writes 8; b has a prompt of 5 and writes 6. Both are admitted in step 0:

| step | a | b | tokens computed of a, b | pages |
|---|---|---|---|---|
| 0 | its prompt, 7 | what is left of the budget, 1 | 7, 1 | 2 + 1 |
| 1 | 1 | the rest of its prompt, 4 | 8, 5 | 2 + 2 |

The step that computes the last token of a prompt samples the first one of the output. Each sampled token is computed in
a later step, except the last one, which is never computed. If no page is free when one is needed, the younger sequence
gives back its pages and waits until there are pages for all of its tokens.

How many pages are held in step 2? In which step is b preempted and left out? How many tokens are computed a second
time? How many steps are there in all, and how many with 100 pages? Steps count from 0.
"""

HINTS = ("Continue the table: from step 2 on, a and b get one more token in each step. The pages are the tokens over "
         "four, rounded up.",
         "a has 7 after step 0, b has 1 after step 0 and 5 after step 1; then each has one more in every step. Where "
         "do the pages exceed 6? When b returns, its prompt and all tokens sampled so far have to be computed, at most "
         "8 in a step.",
         "a needs its fourth page in step 6, when b holds three pages with nine tokens. a ends in step 7. b computes "
         "its ten tokens in steps 8 and 9, and is done, since the last token is never computed.")
POINTS = 2
NEEDS = ("plan_step",)

# %%
held = None  # pages, in step 2
gone = None  # the step in which b is preempted
again = None  # tokens that are computed a second time
steps = None
steps_ample = None  # with 100 pages
### BEGIN SOLUTION
held = 3 + 2
gone = 6
again = 9
steps = 10
steps_ample = 8
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise
from labkit.measure.simulation import Work, simulate


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

EXERCISE = PredictionExercise(
    name="predict_preemption",
    truth=_schedule,
    how={"held": "In step 2, a's ninth token needs a third page, and b's sixth its second: 3 + 2.",
         "gone": "a has 7 tokens after step 0 and one more after each step: its thirteenth, in step 6, needs a fourth "
                 "page. By then b holds three, since its ninth token came in step 5, and 3 + 3 is all there are.",
         "again": "b's tokens up to the ninth had been computed. All nine are computed again.",
         "steps": "a computes its last token, the fourteenth, in step 7. b has ten tokens to compute then, 8 in step 8 "
                  "and 2 in step 9, and the token that step 9 samples is its last.",
         "steps_ample": "b needs steps 0 and 1 for its prompt, where step 1 samples its first token, and five more. a "
                        "needs step 0 and seven more, up to step 7: eight steps in all."},
    wrong={"the last token is computed as well: its keys and values are never needed": {
               **TRUE, "steps": 12, "steps_ample": 9},
           "all of b's prompt is computed in step 0, beyond the budget": {**TRUE, "gone": 6, "again": 10},
           "the older sequence is preempted": {**TRUE, "again": 12, "steps": 11},
           "only the prompt is computed again": {**TRUE, "again": 5, "steps": 14},
           "nothing is computed again: the pages are kept": {**TRUE, "again": 0, "steps": 9},
           "steps are counted from 1": {**TRUE, "gone": 7, "steps": 11, "steps_ample": 9},
           "a new page is allocated one token too early": {**TRUE, "held": 6, "gone": 5, "again": 8}},
)
