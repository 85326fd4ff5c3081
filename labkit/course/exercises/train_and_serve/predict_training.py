"""Predict: what a training run needs

On paper: a model of 1 billion parameters is trained in bfloat16, with float32 masters, gradients, m and v. On each of 4
GPUs, a small batch has 8 windows of 1,024 tokens, and a step adds up the gradients of 2 such batches before all GPUs
average theirs. How many GB (1e9 bytes) do parameters, gradients and AdamW's state need on each GPU? How many tokens
does a step train on, over all GPUs? If forward and backward pass together cost 6 flops per parameter and token, how
many TFLOP (1e12 flops) does each GPU compute in a step? How many GB does each GPU send for an all-reduce in a ring? And
a run of 1,000 steps that saved a checkpoint every 150 steps is killed after step 700: at which step does the resumed
run begin?
"""

HINTS = ("Every GPU holds the whole state. Which numbers are per GPU and step, and which are totals over all GPUs?",
         "18 bytes per parameter: 2 for the copy and 4 times 4. A GPU computes 2 * 8 * 1,024 tokens in a step. In "
         "a ring each of n GPUs sends 2 * (n - 1) / n times the gradients, which have 4 bytes.",
         "4 * 2 * 8 * 1,024 tokens; 6 * 1e9 * 2 * 8 * 1,024 / 1e12; 2 * 3 / 4 * 4 GB. The last checkpoint is of step "
         "600, and the run resumes with the next step.")
POINTS = 1

# %%
state_gb = None  # on each GPU
step_tokens = None  # of a step, all GPUs together
step_tflop = None  # of each GPU in a step
sent_gb = None  # by each GPU in a step
resumed_step = None  # the first step after resuming
### BEGIN SOLUTION
state_gb = 18
step_tokens = 65_536
step_tflop = 98.304
sent_gb = 6
resumed_step = 601
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

GPUS, PASSES, WINDOWS, LENGTH = 4, 2, 8, 1024


def _truth() -> dict:
    tokens = PASSES * WINDOWS * LENGTH
    return {"state_gb": 2 + 4 * 4, "step_tokens": GPUS * tokens, "step_tflop": 6e9 * tokens / 1e12,
            "sent_gb": 2 * (GPUS - 1) / GPUS * 4, "resumed_step": 700 // 150 * 150 + 1}


EXERCISE = PredictionExercise(
    name="predict_training",
    truth=_truth,
    how={"state_gb": "2 bytes for the copy, and 4 each for gradient, master, m and v. Every GPU has all of it.",
         "step_tokens": "4 GPUs, 2 batches, 8 windows, 1,024 tokens.",
         "step_tflop": "6 * 1e9 flops for each of the 16,384 tokens of its two batches.",
         "sent_gb": "2 * 3 / 4 of the 4 GB of float32 gradients, once per step: the batches were added up before.",
         "resumed_step": "The last checkpoint before step 700 is of step 600."},
    wrong={
        "the state was divided over the GPUs": {"state_gb": 4.5},
        "the copies in bfloat16 were left out": {"state_gb": 16},
        "the tokens of one GPU were counted": {"step_tokens": 16_384},
        "accumulation was forgotten": {"step_tokens": 32_768, "step_tflop": 49.152},
        "the flops of all GPUs were counted": {"step_tflop": 393.216},
        "only the forward pass was counted, 2 flops per parameter and token": {"step_tflop": 32.768},
        "one exchange per batch was counted": {"sent_gb": 12},
        "the gradients were counted in bfloat16, or as sent around once": {"sent_gb": 3},
        "the run was taken to resume where it was killed": {"resumed_step": 701},
        "step 600 was computed again": {"resumed_step": 600},
    },
)
