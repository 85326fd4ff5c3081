"""Predict: Amdahl's law

A step of generation takes 200 us, 20 of them for the softmax. A prompt takes 1,000 us, 400 of them for the softmax.
Suppose that the softmax is made four times as fast. How long does a step take then, and how long the prompt? How long
would a step take if the softmax took no time at all? And if a step is to be twice as fast, how long may everything else
take at most, even if the softmax takes no time?
"""

HINTS = ("Which part of the 200 us changes, and which stays?",
         "The softmax's 20 us become a quarter, the other 180 us stay. What stays is also the least that a faster "
         "softmax can reach.",
         "180 + 20 / 4; 180; 600 + 400 / 4; and half of 200.")
POINTS = 1

# %%
step_us = None  # a step with the faster softmax
least_us = None  # a step if the softmax took no time at all
prompt_us = None  # the prompt with the faster softmax
needed_us = None  # all the rest, in a step that is twice as fast and has no softmax
### BEGIN SOLUTION
step_us = 180 + 20 / 4
least_us = 180
prompt_us = 600 + 400 / 4
needed_us = 200 / 2
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

EXERCISE = PredictionExercise(
    name="predict_amdahl",
    truth=lambda: {"step_us": 185, "least_us": 180, "prompt_us": 700, "needed_us": 100},
    how={"step_us": "20 us become 20 / 4 = 5, and the other 180 stay.",
         "least_us": "If the softmax took no time, the other 180 would be left.",
         "prompt_us": "400 us become 100, and the other 600 stay.",
         "needed_us": "Twice as fast is 100 us, all of them for the rest: 80 of its 180 us have to go."},
    wrong={"the whole step is divided by four": {"step_us": 50, "least_us": 180, "prompt_us": 250, "needed_us": 100},
           "the softmax is removed altogether": {"step_us": 180, "least_us": 180, "prompt_us": 600, "needed_us": 100},
           "what is saved, not what is left": {"step_us": 15, "least_us": 20, "prompt_us": 300, "needed_us": 80}},
)
