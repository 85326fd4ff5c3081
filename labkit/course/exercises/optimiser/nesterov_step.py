"""From a blank page: Nesterov's momentum

SGD with Nesterov's momentum keeps one value per weight, its velocity. A step is

`velocity = mu * velocity + gradient`, then `weight = weight - rate * (gradient + mu * velocity)`

with the new velocity in the second formula. All weights of a model are in one flat buffer: `weights`, `velocities` and
`gradients` are (n,) float32, and `rate` and `mu` are float32 scalars. `out` is (2, n): store the new weights in
`out[0]` and the new velocities in `out[1]`, and do not change the inputs.

Write `nesterov_step(weights, velocities, gradients, rate, mu, out)` from the decorator down. Blocks have 128 threads,
and the grid is one-dimensional, with at least one thread per weight.
"""

HINTS = ("Which values does the thread of a weight need, and which does it need twice?",
         "Load the gradient once, into a variable, and compute the new velocity from it. The weight's formula uses the "
         "new velocity, not the old one.",
         "g = gradients[i]; velocity = mu * velocities[i] + g; out[0, i] = weights[i] - rate * (g + mu * velocity); "
         "out[1, i] = velocity.")
POINTS = 2
NEEDS = ("predict_vanished",)

from labkit import cuda

# %%
nesterov_step = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def nesterov_step(weights, velocities, gradients, rate, mu, out):
    i = cuda.grid(1)
    if i < weights.size:
        g = gradients[i]
        velocity = mu * velocities[i] + g
        out[0, i] = weights[i] - rate * (g + mu * velocity)
        out[1, i] = velocity


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import (
    EPS32,
    SUMMED,
    Edit,
    KernelExercise,
    asks,
    elements_of_argument,
    of,
    parameter,
    uniform,
)


def _step(weights, velocities, gradients, rate, mu):
    velocity = mu * velocities.astype(np.float64) + gradients
    return np.stack([weights - rate * (gradients + mu * velocity), velocity])


def _tolerance(weights, velocities, gradients, rate, mu):
    """Some roundings of each term."""
    g, velocity = np.abs(gradients), np.abs(mu * velocities) + np.abs(gradients)
    return 4 * EPS32 * np.stack([np.abs(weights) + rate * (g + mu * velocity), velocity])


@asks("Each value is loaded once.")
def _loads_each_once(report):
    loads, n = report.counts["global_loads"], elements_of_argument(report, 0)
    if loads <= 3 * n:
        return None
    return (f"For {n:,} weights it makes {loads:,} loads, and {3 * n:,} are enough. Keep the gradient and the new "
            "velocity in variables.")


EXERCISE = KernelExercise(
    name="nesterov_step",
    reference=_step,
    inputs=lambda rng, n: (uniform(rng, n), uniform(rng, n), uniform(rng, n), np.float32(0.1), np.float32(0.9)),
    shape=lambda n: (2, n),
    sizes=({"n": 1}, {"n": 5}, {"n": 128}, {"n": 300}, {"n": 513}),
    random_size=lambda rng: {"n": int(rng.integers(30, 600))},
    launch=lambda n: (-(-n // 128) + 1, 128),
    tolerance=_tolerance,
    observe_sizes=({"n": 300},),
    demand=_loads_each_once,
    domain=(*of((0, 1, 2), *SUMMED), *parameter(3, "rate", 0, 1, 0.003), *parameter(4, "mu", 0, 1, 0.5)),
    wrong={
        "plain momentum, without looking ahead": Edit("rate * (g + mu * velocity)", "rate * velocity"),
        "the weight is moved by the old velocity": Edit("rate * (g + mu * velocity)",
                                                        "rate * (g + mu * velocities[i])"),
        "the gradient is added, and the loss grows": Edit("weights[i] - rate", "weights[i] + rate"),
        "the gradient is left out of the velocity": Edit("mu * velocities[i] + g", "mu * velocities[i]"),
        "the gradient is weighted by 1 - mu, as in Adam": Edit("mu * velocities[i] + g",
                                                               "mu * velocities[i] + (float32(1.0) - mu) * g"),
        "the velocity already includes the rate": Edit("mu * velocities[i] + g", "mu * velocities[i] + rate * g",
                                                        "rate * (g + mu * velocity)", "(rate * g + mu * velocity)"),
        "weights and velocities are swapped": Edit("out[0, i] = ", "out[1, i] = ", "out[1, i] = velocity",
                                                     "out[0, i] = velocity"),
        "the old velocity is stored": Edit("out[1, i] = velocity", "out[1, i] = velocities[i]"),
        "the weights are updated in place": Edit("out[0, i] = weights[i] - rate * (g + mu * velocity)",
                                                 "weights[i] -= rate * (g + mu * velocity)\nout[0, i] = weights[i]"),
        "no guard: the last block has threads without a weight": Edit("if i < weights.size:", "if True:"),
    },
)
