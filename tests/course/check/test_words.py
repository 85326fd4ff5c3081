"""Words that are right of one thing, of an error after the definition, and of arrays that a kernel wants to make."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from labkit import cuda
from labkit.course import workbooks
from labkit.course.check.verdict import Verdict
from labkit.course.check.words import in_the_singular

pytestmark = pytest.mark.cpu_device


@pytest.mark.parametrize(("many", "one"), [
    ("Of 1 threads 1 numbers are wrong", "Of 1 thread 1 number is wrong"), ("1 threads make 11 loads", None),
    ("1 products, 1 lengths, 1 bins, 1 values", "1 product, 1 length, 1 bin, 1 value"),
    ("1 numbers that are wrong", "1 number that is wrong"), ("1 different numbers", "1 different number"),
    ("1 numbers that", "1 number that "[:-1]), ("1 threads have 1 loads", "1 thread has 1 load"),
    ("1 launches, 1 passes, 1 axes", "1 launch, 1 pass, 1 axis"),
    ("1,024 threads and 21 threads", "1,024 threads and 21 threads"), ("`x = 1 threads`", "`x = 1 threads`"),
    ("2 * 1 elements, 0.1 elements", "2 * 1 elements, 0.1 elements")])
def test_one_thing_is_in_the_singular(many, one):
    assert in_the_singular(many) == (one or "1 thread makes 11 loads")


def test_a_verdict_is_in_the_singular():
    verdict = Verdict("x", "X", False, "wrong_result", "1 elements are wrong.", ("The launch starts 1 threads.",))
    assert verdict.headline == "1 element is wrong." and verdict.details == ("The launch starts 1 thread.",)
    assert Verdict.from_result(verdict.result()) == verdict


def test_compiling_is_shown_apart_from_checking():
    common = ("x", "X", True, "passed", "Right.")
    assert "in 1.5 s and 2.0 s for compiling" in Verdict(*common, where="here", seconds=3.5, compiling=2.0).footer
    assert "compiling" not in Verdict(*common, where="here", seconds=3.5, compiling=0.1).footer


def test_an_error_after_the_definition_is_shown_beside_the_verdict():
    verdict = {"headline": "Right.", "details": [], "passed": True}
    lines = [json.dumps({"cell": 0, "error": "NameError: name 'y' is not defined", "verdict": None}),
             json.dumps({"cell": 1, "error": "", "verdict": verdict})]
    found, = workbooks._collect(SimpleNamespace(stdout=iter(lines)), [None, "scale"], ["scale"], None)
    assert "The cell above ended with an error" in found.verdict["details"][-1]
    assert "name 'y' is not defined" in found.verdict["details"][-1] and found.verdict["passed"]


@cuda.jit
def makes_an_array(a, s, out):
    kept = np.zeros(4)
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * s + kept[0]


def test_an_array_that_a_kernel_makes(examined):
    verdict = examined(makes_an_array)
    assert "makes an array" in verdict.details[0] and "cuda.local.array" in verdict.details[0]
