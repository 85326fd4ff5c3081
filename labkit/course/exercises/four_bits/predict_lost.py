"""Predict: what four bits keep

On paper: a group of weights has 3.75 as its largest absolute value, at +3.75. Its scale is that divided by 7.5, and a
weight w becomes the code round(w / scale) + 8, ties to even, and at least 0 and at most 15. Which code does 1.3 get?
How far off is the weight that the code stands for? And how far off is 3.75 itself? A layer of 4,096 x 4,096 in groups
of 128 has a scale of 16 bits for each group: how many bytes does it take, and how many bits is that for each weight?
"""

HINTS = ("Compute the scale first. Which integer is nearest to 1.3 divided by it, and what is that integer times the "
         "scale? The code of 3.75 would be 7.5 + 8, rounded: does it exist?",
         "The scale is 0.5: 2.6 is rounded to 3. And 7.5 is a tie that goes to 8, but the largest code, 15, stands for "
         "7. The layer has 4,096 * 4,096 / 2 bytes of codes, and 4,096 * 4,096 / 128 scales.",
         "1.3 becomes 3 * 0.5, and 3.75 becomes 7 * 0.5. 2 bytes for each of 131,072 scales; 16 bits shared by 128 "
         "weights, and 4 bits each.")
POINTS = 1

# %%
code = None  # of 1.3
off = None  # of 1.3, the distance to the weight that its code stands for
largest_off = None  # the same of 3.75
layer_bytes = None  # of the layer's codes and scales
bits = None  # for each weight
### BEGIN SOLUTION
code = 11
off = 0.2
largest_off = 0.25
layer_bytes = 8_650_752
bits = 4.125
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise


def _code(weight: float, scale: float) -> int:
    return int(np.clip(np.rint(weight / scale) + 8, 0, 15))


def _truth() -> dict:
    scale, size = 3.75 / 7.5, 4096 * 4096
    return {"code": _code(1.3, scale), "off": round(abs((_code(1.3, scale) - 8) * scale - 1.3), 9),
            "largest_off": 3.75 - (_code(3.75, scale) - 8) * scale, "layer_bytes": size // 2 + 2 * size // 128,
            "bits": 4 + 16 / 128}


EXERCISE = PredictionExercise(
    name="predict_lost",
    truth=_truth,
    how={"code": "The scale is 0.5, and 1.3 / 0.5 is 2.6, which is rounded to 3; and 8 is added.",
         "off": "The code stands for 3 times 0.5.",
         "largest_off": "3.75 / 0.5 is 7.5, a tie that goes to 8; but the largest code stands for 7 times 0.5.",
         "layer_bytes": "Half a byte for each of 4,096 * 4,096 codes, and 2 bytes for each 128 of them.",
         "bits": "4, and 16 bits shared by 128 weights."},
    wrong={
        "the zero, 8, was not added": {"code": 3},
        "2.6 was cut off, not rounded": {"code": 10, "off": 0.3},
        "the tie was taken to a code that 4 bits do not hold": {"largest_off": -0.25},
        "the largest weight was taken to be exact": {"largest_off": 0},
        "a byte was counted for each code": {"layer_bytes": 4096 * 4096 + 2 * 4096 * 4096 // 128, "bits": 8.125},
        "the scales were left out": {"layer_bytes": 4096 * 4096 // 2, "bits": 4},
        "a scale was counted for each row, not for each group": {"layer_bytes": 4096 * 4096 // 2 + 2 * 4096},
    },
)
