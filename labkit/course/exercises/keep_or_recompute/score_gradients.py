r"""The gradients of scores

This is the middle of attention's backward pass, for one head of S tokens with a causal mask. `scores` (S, S) holds
$q_r \cdot k_c$, not yet scaled; `lse` (S,) is the log-sum-exp of each row of the visible scores times `scale`.
`grad_weights` (S, S) holds $dP$ and `delta` (S,) the sum that the softmax's gradient subtracts. For a key $c$ that
query $r$ sees, $c \le r$:

$$\text{out}_{r,c} = \text{scale} \cdot P_{r,c} \, (dP_{r,c} - \delta_r), \qquad
P_{r,c} = e^{\text{scale} \cdot \text{scores}_{r,c} - \text{lse}_r}$$

All other elements of `out` are 0, and the scores there may be anything. All arrays are float32. Blocks have 32 x 8
threads, and the grid's x runs along the keys.
"""

HINTS = ("Each thread computes one element. Which values of its row does it need?",
         "weight = math.exp(scale * scores[row, col] - lse[row]): subtract before exp, since exp of a score alone may "
         "be infinite.",
         "if col > row: out[row, col] = float32(0.0), else scale * weight * (grad_weights[row, col] - delta[row]); "
         "both inside a guard for rows and columns.")
POINTS = 2
NEEDS = ("predict_kept",)

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def score_gradients(scores, lse, grad_weights, delta, scale, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < out.shape[0] and col < out.shape[1]:
        gradient = float32(0.0)
        if col <= row:
            weight = math.exp(scale * scores[row, col] - lse[row])
            gradient = scale * weight * (grad_weights[row, col] - delta[row])
        out[row, col] = gradient
    ### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, uniform
from labkit.course.exercises.domains import HUGE_AND_TINY, NEGATIVE, ZEROS, of, parameter


def _weights(scores, lse, scale):
    """0 for keys that are not seen."""
    seen = np.tri(len(scores), dtype=bool)
    exponents = np.where(seen, float(scale) * scores.astype(np.float64), -np.inf) - lse.astype(np.float64)[:, None]
    return np.exp(exponents)


def _gradients(scores, lse, grad_weights, delta, scale):
    difference = grad_weights.astype(np.float64) - delta.astype(np.float64)[:, None]
    return float(scale) * _weights(scores, lse, scale) * difference


def _lse(scores, scale):
    visible = np.where(np.tri(len(scores), dtype=bool), float(scale) * scores.astype(np.float64), -np.inf)
    largest = visible.max(axis=1, keepdims=True)
    return (largest[:, 0] + np.log(np.exp(visible - largest).sum(axis=1))).astype(np.float32)


def _inputs(rng, S):
    scores, scale = 6 * uniform(rng, S, S), np.float32(0.25)
    return scores, _lse(scores, scale), uniform(rng, S, S), uniform(rng, S), scale


def _tolerance(scores, lse, grad_weights, delta, scale):
    """A weight's relative error is the absolute one of its exponent."""
    seen = np.where(np.tri(len(scores), dtype=bool), scores, 0)
    exponents = np.abs(float(scale) * seen) + np.abs(lse)[:, None]
    magnitudes = np.abs(grad_weights) + np.abs(delta)[:, None]
    return EPS32 * (8 + 2 * exponents) * float(scale) * _weights(scores, lse, scale) * magnitudes + 1e-30


def _far_above(rng, scores, lse, grad_weights, delta, scale):
    scores = scores + np.float32(2000)
    return scores, _lse(scores, scale), grad_weights, delta, scale


def _hidden_far_above(rng, scores, lse, grad_weights, delta, scale):
    return np.where(np.tri(len(scores), dtype=bool), scores, np.float32(1e4)), lse, grad_weights, delta, scale


EXERCISE = KernelExercise(
    name="score_gradients",
    reference=_gradients,
    inputs=_inputs,
    shape=lambda S: (S, S),
    sizes=tuple({"S": S} for S in (1, 3, 8, 32, 41)),
    random_size=lambda rng: {"S": int(rng.integers(2, 70))},
    launch=lambda S: ((-(-S // 32), -(-S // 8)), (32, 8)),
    tolerance=_tolerance,
    observe_sizes=({"S": 3}, {"S": 41}),
    domain=(Reach("all scores are near 2,000, and exp of them is infinite", _far_above),
            Reach("hidden scores are far above the visible ones", _hidden_far_above),
            *of(2, HUGE_AND_TINY, NEGATIVE), *of(3, ZEROS), *parameter(4, "scale", 1, 0.02)),
    wrong={
        "the mask is left out": Edit("col <= row", "True"),
        "the query's own key is hidden": Edit("col <= row", "col < row"),
        "earlier keys are hidden, instead of later ones": Edit("col <= row", "col >= row"),
        "hidden elements are not written":
            Edit("    out[row, col] = gradient", "    if col <= row:\n        out[row, col] = gradient"),
        "the scores are not scaled": Edit("math.exp(scale * scores[row, col]", "math.exp(scores[row, col]"),
        "the gradient is not scaled": Edit("scale * weight", "weight"),
        "the log-sum-exp is added": Edit("scores[row, col] - lse[row]", "scores[row, col] + lse[row]"),
        "the exponentials are divided: both may be infinite":
            Edit("math.exp(scale * scores[row, col] - lse[row])",
                 "math.exp(scale * scores[row, col]) / math.exp(lse[row])"),
        "delta is not subtracted": Edit("(grad_weights[row, col] - delta[row])", "grad_weights[row, col]"),
        "delta is indexed by the key": Edit("delta[row]", "delta[col]"),
        "the log-sum-exp is indexed by the key": Edit("lse[row]", "lse[col]"),
        "the guard of the columns is missing": Edit(" and col < out.shape[1]", ""),
    },
)

EQUIVALENT = {
    "shape: out.shape[1] -> out.shape[0]": "The matrix is square.",
    "shape: out.shape[0] -> out.shape[1]": "The matrix is square.",
}

AFTER = """
You can train with this kernel. In `labkit train data/minute.toml --out build/mine --yours` it computes the gradients of
the scores, one head of one sequence at a time, between products of whole matrices.
"""
