"""Four exercises for tests: a kernel, a host function, a prediction, a bug to find. Never shown to a reader."""

from dataclasses import replace

import numpy as np

from labkit import cuda
from labkit.course.exercises import FunctionExercise, KernelExercise, PredictionExercise
from labkit.course.exercises.domains import SUMMED, of, parameter
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to


@cuda.jit
def no_guard(a, s, out):
    i = cuda.grid(1)
    out[i] = a[i] * s


@cuda.jit
def one_too_far(a, s, out):
    i = cuda.grid(1)
    if i <= out.size:
        out[i] = a[i] * s


@cuda.jit
def one_short(a, s, out):
    i = cuda.grid(1)
    if i < out.size - 1:
        out[i] = a[i] * s


@cuda.jit
def adds(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + s


SCALE = KernelExercise(
    name="scale_vector",
    reference=lambda a, s: a.astype(np.float64) * s,
    inputs=lambda rng, n: (uniform(rng, n), np.float32(1.7)),
    shape=lambda n: (n,),
    sizes=({"n": 1}, {"n": 33}, {"n": 257}, {"n": 1000}),
    domain=(*of(0, *SUMMED), *parameter(1, "s", 1)),
    launch=lambda n: ((n + 127) // 128, 128),
    tolerance=relative_to(lambda a, s: np.abs(a) * s, roundings=1),
    wrong={"no guard at the tail": no_guard, "`<=` in place of `<` in the guard": one_too_far,
           "the last element left out": one_short, "`+` in place of `*`": adds},
)

EXERCISES = (
    SCALE,
    replace(SCALE, name="scale_again"),
    FunctionExercise(
        name="count_blocks",
        reference=lambda n, threads: -(-n // threads),
        inputs=lambda rng, n: (n, 128),
        sizes=({"n": 1}, {"n": 127}, {"n": 128}, {"n": 129}, {"n": 1000}),
        domain="Its inputs are lengths, and `sizes` has them.",
        wrong={"rounds down": lambda n, threads: n // threads, "always one more": lambda n, threads: n // threads + 1},
    ),
    PredictionExercise(
        name="idle_threads",
        truth=lambda: {"idle": 24, "blocks": 8},
        how={"idle": "Take the elements from the number of threads that are started."},
        wrong={"counts the last block's busy threads": {"idle": 104}, "rounds down": {"blocks": 7}},
    ),
)
