"""Predict: 512 threads

A block of 512 threads adds up 512 values. On paper:

- `steps`: how many steps does the tree have?
- `shuffles`: with two levels, in how many shuffles does one thread take part?
- `stored`: with two levels, how many values do all threads together store in shared memory?
"""

HINTS = ("In the lesson's figure, sixteen threads need four steps. How many threads need five?",
         "How many warps are 512 threads? Each of them stores one value, and then the lanes of a warp have to add "
         "those.",
         "512 is 2 to the power of 9. A warp needs five shuffles, whether its lanes hold elements or the sums of "
         "warps.")
POINTS = 1

# %%
steps = None  # of the tree
shuffles = None  # of one thread, with two levels
stored = None  # values stored in shared memory, with two levels
### BEGIN SOLUTION
steps = 9  # 512 = 2 ** 9
shuffles = 10  # five within the warp, five over the warps' sums
stored = 16  # one for each warp
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise


def _steps():
    """From the kernels of the lesson, run by observe on 512 threads."""
    from labkit import observe
    from labkit.kernels.reduce import reduce_tree_kernel, reduce_two_level_kernel

    ones, out = np.ones((1, 512), np.float32), np.zeros(1, np.float32)
    tree = observe(reduce_tree_kernel[1, 512, 0, 4 * 512], ones, out).counts
    levels = observe(reduce_two_level_kernel[1, 512], ones, out).counts
    return {"steps": tree["barriers"] - 2, "shuffles": 2 * 5, "stored": levels["shared_stores"]}


EXERCISE = PredictionExercise(
    name="predict_steps",
    truth=_steps,
    how={"steps": "Each step halves the number of sums. How often can 512 be halved until 1 is left?",
         "shuffles": "Five within the thread's own warp. Then every warp adds the warps' sums, in another five.",
         "stored": "One value per warp, and a warp has 32 threads."},
    wrong={"steps as if one thread added them all": {"steps": 511, "shuffles": 10, "stored": 16},
           "the second level is forgotten": {"steps": 9, "shuffles": 5, "stored": 16},
           "every thread stores its value": {"steps": 9, "shuffles": 10, "stored": 512}},
)
