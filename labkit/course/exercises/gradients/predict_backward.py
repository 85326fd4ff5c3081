r"""Predict: terms and bytes of a backward pass

On paper: a linear layer, $\text{out} = x W^T + b$, has 2,048 tokens, 1,024 inputs and 4,096 outputs. Each element of
`dx`, of `dW` and of `db` is a sum: of how many terms? A GELU follows the layer, in bfloat16. How many bytes does its
backward kernel move at least, if it reads `dout` and what the forward pass kept, and writes `dx`? And a batch of five
tokens has the ids 3, 1, 3, 3 and 0: how many rows of the embedding's gradient are not 0?
"""

HINTS = ("An element of dx is a sum over the axis that dout and W share, and that x does not have. Which one is it "
         "for dW?",
         "dx is summed over the outputs, dW and db over the tokens. GELU's arrays have 2,048 x 4,096 elements of 2 "
         "bytes.",
         "The GELU moves three arrays. A row of the embedding's gradient is not 0 if its id occurs.")
POINTS = 1

# %%
dx_terms = None  # in an element of dx
dweight_terms = None  # in an element of dW
dbias_terms = None  # in an element of db
gelu_bytes = None  # moved by the GELU's backward kernel
rows = None  # of the embedding's gradient that are not 0
### BEGIN SOLUTION
dx_terms = 4096
dweight_terms = 2048
dbias_terms = 2048
gelu_bytes = 50_331_648
rows = 3
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise

TOKENS, INPUTS, OUTPUTS = 2048, 1024, 4096


def _truth() -> dict:
    return {"dx_terms": OUTPUTS, "dweight_terms": TOKENS, "dbias_terms": TOKENS,
            "gelu_bytes": 3 * 2 * TOKENS * OUTPUTS, "rows": len(np.unique([3, 1, 3, 3, 0]))}


EXERCISE = PredictionExercise(
    name="predict_backward",
    truth=_truth,
    how={"dx_terms": "An input changes all outputs of its token, so dx is a sum over the 4,096 outputs.",
         "dweight_terms": "A weight changes one output of each token, so dW is a sum over the 2,048 tokens.",
         "dbias_terms": "A bias is added to one output of each token, so db is a sum over the 2,048 tokens.",
         "gelu_bytes": "x and dout are read and dx is written: three arrays of 2,048 x 4,096 elements of 2 bytes.",
         "rows": "Ids 0, 1 and 3 occur; the three rows of id 3 are added to one."},
    wrong={
        "dx was summed over the inputs, like the forward pass": {"dx_terms": INPUTS},
        "dW was summed over the outputs": {"dweight_terms": OUTPUTS},
        "dW was summed over the inputs": {"dweight_terms": INPUTS},
        "db was taken to be a single term": {"dbias_terms": 1},
        "only x and dx were counted, not dout": {"gelu_bytes": 2 * 2 * TOKENS * OUTPUTS},
        "4 bytes per element were counted, as in float32": {"gelu_bytes": 3 * 4 * TOKENS * OUTPUTS},
        "a row was counted for every token": {"rows": 5},
    },
)
