"""Answers to `scale_vector` as a learner's cell defines them, from the lines that differ; and made-up exercises."""

import numpy as np

from labkit.course import answer_cells
from labkit.course.exercises import FunctionExercise, KernelExercise

HEAD = "import math\nimport numpy as np\nfrom labkit import cuda\n\n\n"
RIGHT = "i = cuda.grid(1)\nif i < out.size:\n    out[i] = a[i] * s"


def kernel(name: str, body: str = RIGHT, *, above: str = "", parameters: str = "a, s, out"):
    """A kernel of this name with these lines. above: other functions, and imports."""
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    source = f"{HEAD}{above}@cuda.jit\ndef {name}({parameters}):\n{lines}"
    return answer_cells.run(source, name, f"<{name}: {body}>")


def guarded(name: str, store: str, **options):
    """One whose guard stands above these lines."""
    return kernel(name, "i = cuda.grid(1)\nif i < out.size:\n    " + store.replace("\n", "\n    "), **options)


def function_exercise(name: str, reference, inputs, sizes, **fields) -> FunctionExercise:
    """Its random size is the last of its sizes."""
    usual = {"domain": "Made up, for a test.", "random_size": lambda rng: sizes[-1], "wrong": {"a": abs, "b": abs}}
    return FunctionExercise(name, reference=reference, inputs=inputs, sizes=sizes, **usual | fields)


def scaling(name: str, **fields) -> FunctionExercise:
    """A function that launches kernels: it writes a * s into out, at one size."""
    return function_exercise(name, lambda a, s: a * s, lambda rng, n: (np.ones(n, np.float32), np.float32(2)),
                             ({"n": 40},), shape=lambda n: (n,), tolerance=lambda a, s: 0.0 * a, **fields)


COUNT = "i = cuda.grid(1)\nif i < values.size:\n    cuda.atomic.add(out, values[i], 1)"


def histogram(**fields) -> KernelExercise:
    """How often each of four values comes; its answer is COUNT."""
    return KernelExercise(
        "histogram", reference=lambda values: np.bincount(values, minlength=4).astype(np.int32),
        inputs=lambda rng, n: (rng.integers(0, 4, n).astype(np.int32),), shape=lambda n: (4,), dtype=np.int32,
        sizes=({"n": 40}, {"n": 130}), launch=lambda n: (-(-n // 64), 64), domain="Made up, for a test.", **fields)
