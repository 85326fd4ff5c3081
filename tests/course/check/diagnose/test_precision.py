"""float64 arithmetic among float32 arrays is found by Numba's rules; refused where the text says so, else a remark."""

import numpy as np
import pytest

from labkit.course import answer_cells, exercise_files, exercises, registry
from labkit.course.check import examine
from labkit.course.check.diagnose.precision import float64_at

pytestmark = pytest.mark.cpu_device
ROW = np.ones(8, np.float32)
GIVEN = {"x": ROW, "out": ROW, "s": np.float32(1), "n": 8, "ids": np.ones(8, np.int32)}
HELPERS = """
import math
import numpy as np
from numba import float32, float64, int32
from labkit import cuda

@cuda.jit(device=True)
def doubled(a):
    return a * 2.0

@cuda.jit(device=True)
def halved(a):
    return a * float32(0.5)

@cuda.jit
def f(x, out, s, n, ids):
    i = cuda.grid(1)
"""


def kernel_of(body: str):
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return answer_cells.run(HELPERS + lines, "f", f"<precision: {body}>")


@pytest.mark.parametrize(("body", "code"), [
    ("total = 0.0\ntotal += x[i]", "total += x[i]"), ("out[i] = 0.5 * x[i]", "0.5 * x[i]"),
    ("out[i] = 2 * x[i]", "2 * x[i]"), ("out[i] = x[i] / n", "x[i] / n"), ("mean = x[i] / x.size", "x[i] / x.size"),
    ("t = cuda.shared.array(8, float32)\nt[0] = t[1] * 0.5", "t[1] * 0.5"),
    ("out[i] = math.exp(x[i]) + 1.0", "math.exp(x[i]) + 1.0"), ("out[i] = math.pow(x[i], 2)", "math.pow(x[i], 2)"),
    ("out[i] = round(x[i]) * x[i]", "round(x[i]) * x[i]"), ("out[i] = abs(x[i]) * 2.0", "abs(x[i]) * 2.0"),
    ("out[i] = doubled(x[i])", "a * 2.0"), ("t = float64(x[i])\nout[i] = t * t", "t * t"),
    ("out[i] = math.exp(0.5 * x[i])", "0.5 * x[i]"),
    ("total = 0\nfor k in range(n):\n    total += x[k]\nout[i] = total", "total += x[k]")])
def test_what_is_computed_in_float64_is_found(body, code):
    _, found = float64_at(kernel_of(body), GIVEN)
    assert found == code


@pytest.mark.parametrize("body", [
    "total = float32(0.0)\ntotal += x[i]", "out[i] = s * x[i]", "out[i] = x[i + 2 * n]", "i = n // 2 + 1",
    "out[i] = x[i] if i < n else 0.0", "out[i] = math.exp(x[i]) * s", "out[i] = max(x[i], 0.0)",
    "out[i] = float32(0.5) * x[i]", "out[i] = halved(x[i]) + x[i]", "value = ids[i] * 2", "out[i] = x[i] ** 2",
    "out[i] = x[i] ** n", "out[i] = float(x[i]) * x[i]", "out[i] = x[i] * (not n)", "v = 2\nv = x[i]\nout[i] = v * v",
    "out[i] = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1) * x[i]", "out[i] = x[i] * float32(1.0 / 64.0)",
    "t = cuda.local.array(4, float32)\nt[0] = x[i]\nout[i] = t[0] * s"])
def test_what_stays_in_float32_is_not(body):
    assert float64_at(kernel_of(body), GIVEN) is None


@pytest.mark.parametrize("body", ["out[i] = x[i] ** 2", "out[i] = x[i] ** n", "out[i] = math.pow(x[i], 2)",
                                  "out[i] = round(x[i]) * x[i]", "out[i] = float(x[i]) * x[i]"])
def test_it_is_what_numba_says(body):
    """Of the same expression on scalars, typed by Numba for the CPU."""
    import math

    from numba import float32, int64, njit

    space = {"math": math, "np": np}
    exec(f"def f(x, n):\n    return {body.partition(' = ')[2].replace('x[i]', 'x')}", space)
    compiled = njit(space["f"])
    compiled.compile((float32, int64))
    wide = str(compiled.nopython_signatures[0].return_type) == "float64"
    assert (float64_at(kernel_of(body), GIVEN) is not None) == wide


@pytest.mark.sweep(every=True)
def test_a_power_with_an_exponent_of_1_is_not_refused():
    solution = exercise_files.solution("partial_sums")
    assert "+= x[i]" in solution.answer
    answer = solution.run(solution.answer.replace("+= x[i]", "+= x[i] ** 1"), "<to the power of 1>")
    assert examine(exercises.find("partial_sums"), answer, seed=3).passed


@pytest.mark.sweep(every=True)
def test_lesson_01_refuses_it_and_others_remark_on_it():
    def verdict_on(name, old, new):
        solution = exercise_files.solution(name)
        assert old in solution.answer
        return examine(exercises.find(name), solution.run(solution.answer.replace(old, new), f"<{name}>"), seed=3)

    refused = verdict_on("partial_sums", "np.float32(0)", "0.0")
    assert refused.kind == "demand" and "float64" in refused.details[0] and "`float32(0.0)`" in refused.details[0]
    remarked = verdict_on("saxpy", "s * x[i]", "1.0 * s * x[i]")
    assert remarked.passed and "Note:" in remarked.details[-1]
    assert not any("float64" in text for text in verdict_on("saxpy", "s * x[i]", "x[i] * s").details)


def test_every_sum_of_the_matrix_products_stays_in_float32():
    """Its text says how, so it is a demand there."""
    course = registry.load()
    chapter = {each.name: exercises.find(each.name) for each in course.exercises_of(*course.called("06_matmul"))}
    assert [name for name, each in chapter.items() if each.kind == "kernel" and not each.in_float32] == [
        "transpose_tiled"]  # which moves numbers, and computes none
    solution = exercise_files.solution("matmul_bt")
    assert "float32(0.0)" in solution.answer
    answer = solution.run(solution.answer.replace("float32(0.0)", "0.0"), "<matmul_bt in float64>")
    verdict = examine(chapter["matmul_bt"], answer, seed=3)
    assert verdict.kind == "demand" and "float64" in verdict.details[0]
    assert "All arithmetic is in float32." in chapter["matmul_bt"].asked
