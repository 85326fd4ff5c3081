"""From a blank page: a schedule of learning rates

A run of `total` steps needs a rate for each. In the first `warm_up` steps it rises linearly: step s, counted from 1,
has the rate `peak * s / warm_up`. Then it falls linearly, so that step `total` has the rate `least`: after the warm-up,
step s has the rate `peak + (least - peak) * (s - warm_up) / (total - warm_up)`. Steps after `total` have the rate
`least`.

`steps` (n,) int32 holds step numbers, in any order and each at least 1. Write their rates to `rates` (n,) float32.
`peak` and `least` are float32 scalars, `warm_up` and `total` are int32, with 0 <= `warm_up` < `total`.

Write `rates_of_steps(steps, peak, least, warm_up, total, rates)` from the decorator down. Blocks have 64 threads, and
the grid is one-dimensional, with at least one thread per step.
"""

HINTS = ("Which of the three phases is a step in? Can `warm_up` be 0 where the first phase divides by it?",
         "s <= warm_up is the first phase, s >= total the last. Divide as float32: float32(s) / float32(warm_up).",
         "progress = float32(s - warm_up) / float32(total - warm_up); rates[i] = peak + (least - peak) * "
         "min(progress, float32(1.0)) in the last two phases.")
POINTS = 2
NEEDS = ("predict_training",)

from numba import float32

from labkit import cuda

# %%
rates_of_steps = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def rates_of_steps(steps, peak, least, warm_up, total, rates):
    i = cuda.grid(1)
    if i < steps.size:
        s = steps[i]
        if s <= warm_up:
            rates[i] = peak * float32(s) / float32(warm_up)
        else:
            progress = float32(s - warm_up) / float32(total - warm_up)
            rates[i] = peak + (least - peak) * min(progress, float32(1.0))


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, parameter


def _rates(steps, peak, least, warm_up, total):
    s = steps.astype(np.float64)
    rising = peak * s / max(1, warm_up)
    falling = peak + (least - peak) * np.minimum((s - warm_up) / (total - warm_up), 1)
    return np.where(s <= warm_up, rising, falling)


def _inputs(rng, n):
    return rng.integers(1, 140, n).astype(np.int32), np.float32(0.003), np.float32(0.0002), np.int32(20), np.int32(100)


def _all_steps(rng, steps, *others):
    return (np.arange(1, 1 + steps.size, dtype=np.int32), *others)


EXERCISE = KernelExercise(
    name="rates_of_steps",
    reference=_rates,
    inputs=_inputs,
    shape=lambda n: (n,),
    sizes=({"n": 1}, {"n": 5}, {"n": 64}, {"n": 150}, {"n": 257}),
    random_size=lambda rng: {"n": int(rng.integers(60, 300))},
    launch=lambda n: (-(-n // 64) + 1, 64),
    tolerance=lambda steps, peak, least, warm_up, total: 8 * EPS32 * (abs(peak) + abs(least)),
    observe_sizes=({"n": 150},),
    domain=(Reach("the steps are 1, 2, 3 and so on, beyond the last one", _all_steps, {"n": 150}),
            Reach("all steps are the last one", lambda rng, steps, *others: (np.full_like(steps, 100), *others)),
            *parameter(1, "peak", 0, 1), *parameter(2, "least", 0, 1), *parameter(3, "warm_up", 0, 1, 99),
            *parameter(4, "total", 21, 5000)),
    wrong={
        "the warm-up begins at 0: steps were counted from 0": Edit("peak * float32(s)", "peak * float32(s - 1)"),
        "there is no warm-up": Edit("if s <= warm_up:", "if False:"),
        "the rate keeps falling after the last step": Edit("min(progress, float32(1.0))", "progress"),
        "the fall is counted from step 0": Edit("float32(s - warm_up) / float32(total - warm_up)",
                                                "float32(s) / float32(total)"),
        "the fall lasts `total` steps, not `total - warm_up`": Edit("float32(total - warm_up)", "float32(total)"),
        "the rate falls to 0": Edit("(least - peak) * min", "(float32(0.0) - peak) * min"),
        "the rate rises from least": Edit("peak * float32(s) / float32(warm_up)",
                                          "least + (peak - least) * float32(s) / float32(warm_up)"),
        "integers were divided: the rate stays at the peak": Edit(
            "float32(s - warm_up) / float32(total - warm_up)", "float32((s - warm_up) // (total - warm_up))"),
        "the index in the array was used as the step": Edit("s = steps[i]", "s = i + 1"),
        "no guard: the last block has threads without a step": Edit("if i < steps.size:", "if True:"),
    },
)

EQUIVALENT = {
    "type: float32(s) -> int32(s)":
        "The product with a float32 is then computed in float64: as exact, or more.",
    "type: float32(warm_up) -> int32(warm_up)":
        "The quotient is then computed in float64: as exact, or more.",
    "type: float32(total - warm_up) -> int32(total - warm_up)":
        "The quotient is then computed in float64: as exact, or more.",
}
