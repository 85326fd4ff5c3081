"""Predict the idle threads"""

HINTS = ("Count threads.", "Then elements.", "1,024 - 1,000")
POINTS = 1

# %%
idle = None  # threads without an element
blocks = None
### BEGIN SOLUTION
idle, blocks = 24, 8
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

EXERCISE = PredictionExercise(
    name="idle_threads",
    truth=lambda: {"idle": 24, "blocks": 8},
    how={"idle": "Take the elements from the number of threads that are started."},
    wrong={"counts the last block's busy threads": {"idle": 104}, "rounds down": {"blocks": 7}},
)
