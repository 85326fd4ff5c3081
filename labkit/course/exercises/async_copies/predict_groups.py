"""Predict: groups and stages

A kernel has a ring of stages and copies as the lesson's does: before the loop it closes one group of copies for each
stage but one, and in every step one more, which is empty when there is nothing left to copy. For 3 stages and 5 steps
the lesson's table says: each wait leaves 1 group in flight, in step 1 that is group 2, and 2 groups are empty.

Now there are 4 stages and 10 steps. Steps, tiles, groups and stages are counted from 0.

- `pending`: what is the n of `cp_async_wait(n)`, if as many copies as possible should be in flight?
- `newest`: when the wait of step 3 returns, what is the newest group that may be in flight?
- `stage`: into which stage goes the copy that step 3 starts?
- `empty`: how many of all groups are empty?
- `ring_bytes`: a stage holds 128 × 32 float16 values of `a` and 32 × 128 of `b`. How many bytes does the ring take?
"""

HINTS = ("Which group must be complete before step s multiplies tile s, and how many groups have been closed by then?",
         "Before the loop three groups are closed: 0, 1 and 2. After its wait, step s starts the copy of tile s + 3.",
         "pending = 4 - 2; newest = 3 + pending; stage = (3 + 3) % 4; 3 + 10 groups are closed for 10 tiles.")
POINTS = 2

# %%
pending = None
newest = None
stage = None
empty = None
ring_bytes = None
### BEGIN SOLUTION
pending = 4 - 2  # in step s, groups up to s + 2 are closed, and group s must be complete
newest = 3 + 2
stage = (3 + 3) % 4
empty = (3 + 10) - 10
ring_bytes = 4 * (128 * 32 + 32 * 128) * 2
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

GROUPS = {"pending": 2, "newest": 5, "stage": 2, "empty": 3, "ring_bytes": 65_536}

EXERCISE = PredictionExercise(
    name="predict_groups",
    truth=lambda: GROUPS,
    how={"pending": "in step s the groups up to s + 2 are closed, and group s has to be complete: two may be in flight",
         "newest": "two groups after group 3",
         "stage": "step 3 starts to copy tile 6, and tile t goes into stage t modulo 4",
         "empty": "three groups before the loop and one in each of ten steps, for ten tiles",
         "ring_bytes": "4 stages of 128 * 32 + 32 * 128 values of 2 bytes"},
    wrong={"three groups were left in flight: the tile of this step may be one of them": {"pending": 3, "newest": 6},
           "nothing was left in flight, as with two stages": {"pending": 0, "newest": 3},
           "it is the stage of the tile that is multiplied": {"stage": 3},
           "no group was counted where nothing is copied": {"empty": 0},
           "values were counted, not bytes": {"ring_bytes": 32_768}},
)

AFTER = """
A fourth stage needs another 16 KB and lets every copy take three steps. Whether it pays depends on how much waiting is
left with three.
"""
