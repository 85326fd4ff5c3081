"""float64 arithmetic among float32 arrays is found by Numba's rules; refused where the text says so, else a remark."""

import ast

import pytest

from labkit.course import answer_cells, exercises
from labkit.course.check import examine
from labkit.course.check.precision import float64_at

pytestmark = pytest.mark.cpu_device
TYPES = {"x": "f4", "out": "f4", "s": "f4", "n": "i8", "ids": "i4"}


@pytest.mark.parametrize(("body", "code"), [
    ("total = 0.0\ntotal += x[i]", "total += x[i]"), ("out[i] = 0.5 * x[i]", "0.5 * x[i]"),
    ("out[i] = 2 * x[i]", "2 * x[i]"), ("out[i] = x[i] / n", "x[i] / n"), ("mean = x[i] / x.size", "x[i] / x.size"),
    ("t = cuda.shared.array(8, float32)\nt[0] = t[1] * 0.5", "t[1] * 0.5"),
    ("out[i] = math.exp(x[i]) + 1.0", "math.exp(x[i]) + 1.0")])
def test_what_is_computed_in_float64_is_found(body, code):
    lines = "\n    ".join(body.split("\n"))
    _, found = float64_at(ast.parse(f"def f(x, out, s, n, ids):\n    {lines}").body[0], TYPES)
    assert found == code


@pytest.mark.parametrize("body", [
    "total = float32(0.0)\ntotal += x[i]", "out[i] = s * x[i]", "out[i] = x[i + 2 * n]", "i = n // 2 + 1",
    "out[i] = x[i] if i < n else 0.0", "out[i] = math.exp(x[i]) * s", "out[i] = max(x[i], 0.0)",
    "out[i] = float32(0.5) * x[i]", "out[i] = helper(x[i]) + x[i]", "value = ids[i] * 2"])
def test_what_stays_in_float32_is_not(body):
    lines = "\n    ".join(body.split("\n"))
    assert float64_at(ast.parse(f"def f(x, out, s, n, ids):\n    {lines}").body[0], TYPES) is None


def test_lesson_01_refuses_it_and_others_remark_on_it():
    def verdict_on(name, old, new):
        solution = answer_cells.solution(name)
        assert old in solution.answer
        return examine(exercises.find(name), solution.run(solution.answer.replace(old, new), f"<{name}>"), seed=3)

    refused = verdict_on("partial_sums", "np.float32(0)", "0.0")
    assert refused.kind == "demand" and "float64" in refused.details[0] and "`float32(0.0)`" in refused.details[0]
    remarked = verdict_on("saxpy", "s * x[i]", "1.0 * s * x[i]")
    assert remarked.passed and "A remark." in remarked.details[-1]
    assert not any("float64" in text for text in verdict_on("saxpy", "s * x[i]", "x[i] * s").details)
