"""Predict: what four bits keep

On paper: the weight with the largest absolute value in a group is +3.75. The scale is 3.75 divided by 7.5, and a weight
w gets the code round(w / scale) + 8, with ties to even, clamped to 0 to 15. Which code does 1.3 get? How far off is the
weight that this code represents? And how far off is 3.75 itself? A layer of 4,096 x 4,096 weights in groups of 128 has
a 16-bit scale per group: how many bytes does it need, and how many bits is that per weight?
"""

HINTS = ("Compute the scale first. Which integer is nearest to 1.3 divided by it, and what is that integer times the "
         "scale? The code of 3.75 would be 7.5 + 8, rounded: does it exist?",
         "The scale is 0.5: 2.6 is rounded to 3. And 7.5 is a tie that goes to 8, but the largest code, 15, means "
         "7. The layer has 4,096 * 4,096 / 2 bytes of codes, and 4,096 * 4,096 / 128 scales.",
         "1.3 becomes 3 * 0.5, and 3.75 becomes 7 * 0.5. 2 bytes for each of 131,072 scales; 4 bits per weight, and 16 "
         "bits shared by 128.")
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
    how={"code": "The scale is 0.5, and 1.3 / 0.5 = 2.6, which is rounded to 3; then 8 is added.",
         "off": "The code represents 3 times 0.5.",
         "largest_off": "3.75 / 0.5 is 7.5, a tie that goes to 8; but the largest code represents 7 times 0.5.",
         "layer_bytes": "Half a byte for each of 4,096 * 4,096 codes, and 2 bytes for every 128 of them.",
         "bits": "4 bits, plus 16 bits shared by 128 weights."},
    wrong={
        "the zero, 8, was not added": {"code": 3},
        "2.6 was truncated, not rounded": {"code": 10, "off": 0.3},
        "the tie was rounded to a code that does not fit in 4 bits": {"largest_off": -0.25},
        "the largest weight was taken to be exact": {"largest_off": 0},
        "one byte per code was counted": {"layer_bytes": 4096 * 4096 + 2 * 4096 * 4096 // 128, "bits": 8.125},
        "the scales were left out": {"layer_bytes": 4096 * 4096 // 2, "bits": 4},
        "one scale per row was counted, not one per group": {"layer_bytes": 4096 * 4096 // 2 + 2 * 4096},
    },
)
