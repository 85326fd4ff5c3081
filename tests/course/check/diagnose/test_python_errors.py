"""What Python and NumPy raise in a learner's function, in words, with the learner's line."""

import numpy as np
import pytest

from labkit import cuda

pytestmark = pytest.mark.cpu_device


@cuda.jit
def store(n, out):
    out[0] = n


def endless(n, threads):
    return endless(n, threads)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda n, threads: thread, "There is no `thread` here. Did you mean `threads`?"),  # noqa: F821
        (lambda n, threads: n.lenght, "An integer has no `.lenght`."),
        (lambda n, threads: np.ciel(n / threads), "The module numpy has no `.ciel`. Did you mean `.ceil`?"),
        (lambda n, threads: None + n, "`+` is not defined for None and an integer. Where does the None come from"),
        (lambda n, threads: n(threads), "An integer is followed by ( ) as if it were a function."),
        (lambda n, threads: [n][threads], "The index is outside the list"),
        (lambda n, threads: np.zeros(3)[threads], "The index 128 is outside axis 0, which has 3 elements"),
        (lambda n, threads: {}[n], "The dictionary has no key 1."),
        (lambda n, threads: n // 0, "This divides by 0."),
        (lambda n, threads: np.zeros((2, 3)) + np.zeros((2, 2)), "(2,3) and (2,2) cannot be broadcast together"),
        (lambda n, threads: np.zeros((2, 3)) @ np.zeros((2, 3)), "as many columns on the left as there are rows"),
        (lambda n, threads: store(n, threads), "store is a kernel: launch it with a grid and a block"),
        (lambda n, threads: store[n / threads, 32](n, np.zeros(1)), "griddim must be a sequence of integers"),
        (lambda n, threads: max(k for k in range(0)), "At n=1: `max` has no values to compare here."),
        (endless, "The function calls itself forever"),
        (lambda n, threads: exit(), "End a function with `return`."),
        (lambda n, threads: endless[n, threads](n), "put `@cuda.jit` on the line above its `def`"),
        (lambda n: n, "`<lambda>` takes 1 argument, but is called with 2."),
        (lambda n, threads: int("x"), "ValueError: “invalid literal"),
    ],
)
def test_an_exception_in_words(examined, function, words):
    verdict = examined(function, "count_blocks")
    assert not verdict.passed
    unquoted = [detail for detail in verdict.details if not detail.startswith("Line ")]  # that line holds `words`
    assert words in " ".join(unquoted), str(verdict)


def test_the_line_is_the_learners(examined):
    def count_blocks(n, threads):
        parts = np.zeros(2)
        return parts[n:].reshape(threads)

    details = " ".join(examined(count_blocks, "count_blocks").details)
    assert "Line" in details and "`return parts[n:].reshape(threads)`" in details
    assert "1 element does not fill the shape (128,)" in details


def test_a_kernel_without_a_grid_is_no_limit_of_the_device(examined):
    verdict = examined(lambda n, threads: store(n, threads), "count_blocks")
    assert verdict.kind == "launch" and verdict.headline == "A kernel must be launched with a grid and a block."
