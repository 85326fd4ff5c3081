"""On a GPU: the time of a right answer at a large size, and its ratio to the baseline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit import cuda, device
from labkit._common.tables import size_text
from labkit.course.check.draw import arguments_of
from labkit.course.exercises import Exercise


@dataclass(frozen=True)
class Timing:
    """The time of an answer; ratio: to the baseline's."""

    ms: float | None = None
    ratio: float | None = None
    sentence: str = ""


NOT_TIMED = Timing()


def time_answer(exercise: Exercise, answer, seed: int) -> Timing:
    """At the exercise's large size; NOT_TIMED without a GPU."""
    if not device.on_gpu() or exercise.kind != "kernel" or exercise.timed_gpu is None:
        return NOT_TIMED
    from labkit.measure import import_library, time_kernel

    size = exercise.timed_gpu
    inputs = exercise.inputs(np.random.default_rng([seed, 99]), **size)
    on_device = tuple(cuda.to_device(v) if isinstance(v, np.ndarray) else v for v in inputs)
    out = cuda.device_array(tuple(exercise.shape(**size)), exercise.dtype)
    arguments = arguments_of(exercise, on_device, out, size)
    launch = answer[exercise.launch(**size)]
    answer_ms = time_kernel(lambda: launch(*arguments)).p50
    sentence = f"{answer_ms:.3g} ms at {size_text(size)}, measured on {device.name()}."
    for library, label in (("torch", "PyTorch"), ("cupy", "CuPy")):
        xp = import_library(library)
        if exercise.baseline is None or xp is None:
            continue

        def convert(v, xp=xp, library=library):
            if not hasattr(v, "copy_to_host"):
                return v
            return xp.as_tensor(v, device="cuda") if library == "torch" else xp.asarray(v)

        try:
            baseline_args = [convert(v) for v in (*on_device, out)]
            baseline_ms = time_kernel(lambda call=exercise.baseline, xp=xp, a=baseline_args: call(xp, *a)).p50
        except Exception:  # a baseline that fails is left out
            continue
        return Timing(answer_ms, answer_ms / baseline_ms, (
            f"{sentence} {label} takes {baseline_ms:.3g} ms, yours takes {answer_ms / baseline_ms:.2f} times as long."))
    return Timing(answer_ms, None, sentence)
