"""The properties of a domain: each reaches what it says, and check has a case for each that an exercise names."""

from dataclasses import replace

import numpy as np
import pytest
from numba import float32

from labkit import cuda
from labkit.course import exercises
from labkit.course.check import examine
from labkit.course.check.draw import draw_cases
from labkit.course.check.run import observed_cases
from labkit.course.exercises import domains
from labkit.course.exercises.domains import Reach, at, of

pytestmark = pytest.mark.cpu_device

EXERCISES = {name: each for name, each in exercises.load().items() if each.kind != "predict"}


def is_subnormal(x):
    return (x != 0) & (np.abs(x) < np.finfo(np.float32).tiny)


HOLDS = {
    "EQUAL": lambda x: (x == x[:, :1]).all() and np.abs(x).max() > 1000,
    "LARGEST_APART": lambda x: len(set(x.argmax(axis=1))) == len(x) and (x.max(axis=1) > 1000).all(),
    "ONE_FAR_ABOVE": lambda x: ((x > 1000).sum(axis=1) == 1).all() and ((np.abs(x) <= 1).sum(axis=1) == 6).all(),
    "ONE_FAR_BELOW": lambda x: ((x < -1000).sum(axis=1) == 1).all(),
    "FAR_ABOVE_ZERO": lambda x: (x > 9000).all() and len(np.unique(x)) == x.size,
    "FAR_BELOW_ZERO": lambda x: (x < -9000).all() and len(np.unique(x)) == x.size,
    "ABOVE_EXP": lambda x: (x > 89).all() and (x < 709).all(),
    "NEGATIVE": lambda x: (x < 0).all(),
    "POSITIVE": lambda x: (x > 0).all(),
    "HUGE_AND_TINY": lambda x: np.abs(x).max() > 100 and np.abs(x).min() < 0.01 and (x < 0).any() and (x > 0).any(),
    "ZEROS": lambda x: (x == 0).all() and np.signbit(x).any() and not np.signbit(x).all(),
    "LOWEST": lambda x: (x < -3e38).all() and np.isfinite(x).all(),
    "TIES": lambda x: len(np.unique(x)) <= 3,
    "ODD_SUMS": lambda x: (np.abs(x) > 2**22).all() and (np.abs(x) % 2 == 1).all(),
    "ODD_INTEGERS": lambda x: (np.float32(x).astype(np.int64) != x).any(),
    "MOVED": lambda x: np.isnan(x).any() and np.isinf(x).any() and is_subnormal(x).any()
                       and ((x == 0) & np.signbit(x)).any(),
}


@pytest.mark.parametrize("name", [name for name, each in vars(domains).items() if isinstance(each, domains.Property)])
def test_a_property_reaches_what_it_says(name):
    x = np.zeros((5, 7), np.int32 if "INTEGERS" in name else np.float32)
    for seed in range(3):
        found = getattr(domains, name).applied_to(x, np.random.default_rng(seed))
        assert found.shape == x.shape and found.dtype == x.dtype
        assert HOLDS[name](found), found


# In parts that are not to be used:
HOLD_NAN = ("join_parts", "mean_pool", "attend_padded", "attend_packed", "attend_slots", "paged_attention",
            "join_attention", "attend_split")  # in parts that are not to be used


@pytest.mark.parametrize("name", EXERCISES)
def test_each_property_of_an_exercise_makes_a_case(name):
    """Of the shapes and types of ordinary inputs, and with a truth wherever the inputs are finite."""
    exercise = EXERCISES[name]
    reached = [case for case in draw_cases(exercise, seed=5) if case.where]
    declared = () if isinstance(exercise.domain, str) else exercise.domain
    assert [case.where for case in reached] == [reach.words for reach in declared]
    assert len({case.where for case in reached}) == len(reached)
    for case in reached:
        plain = exercise.inputs(np.random.default_rng(1), **case.size)
        plain = plain if isinstance(plain, tuple) else (plain,)
        for ordinary, value in zip(plain, case.inputs, strict=True):
            assert type(value) is type(ordinary)
            if isinstance(value, np.ndarray):
                assert value.dtype == ordinary.dtype and (value.shape == ordinary.shape or name == "read_tensor")
        if domains.MOVED.words not in case.where and name not in HOLD_NAN:
            assert all(np.isfinite(v).all() for v in case.inputs if isinstance(v, np.ndarray) and v.dtype.kind == "f")
        if domains.MOVED.words not in case.where:
            assert np.isfinite(case.expected).all() and np.isfinite(case.allowed).all()


@pytest.mark.parametrize(
    ("domain", "fine"),
    [(None, False), ((), False), ("", False), ("no", False), ((domains.EQUAL,), False),
     ("Its only input is a length.", True), (of(0, domains.EQUAL), True), ((at("n is even", n=4),), True)],
)
def test_an_exercise_names_its_domain_or_says_why_not(domain, fine):
    saxpy = exercises.find("saxpy")
    if fine:
        assert replace(saxpy, domain=domain).domain == domain
        return
    with pytest.raises(ValueError, match="exercise 'saxpy': domain names the properties"):
        replace(saxpy, domain=domain)


def test_the_inputs_depend_on_the_seed_alone_and_are_not_observed():
    exercise = exercises.find("padded_softmax")
    one, same, other = ([case for case in draw_cases(exercise, seed) if case.where] for seed in (5, 5, 6))
    assert all(np.array_equal(a.inputs[0], b.inputs[0]) for a, b in zip(one, same, strict=True))
    assert one[0].where == domains.FAR_ABOVE_ZERO.words and not np.array_equal(one[0].inputs[0], other[0].inputs[0])
    assert not any(case.where for case in observed_cases(exercise, draw_cases(exercise, 5)))


def test_several_arguments_and_a_size_of_its_own():
    (reach,) = of((0, 2), domains.ZEROS, at={"n": 3})
    a, b, c = reach.turn(np.random.default_rng(0), *np.ones((3, 4), np.float32))
    assert not a.any() and b.all() and not c.any()
    exercise = replace(exercises.find("saxpy"), domain=(Reach("it is long", lambda rng, *inputs: inputs, {"n": 77}),))
    assert draw_cases(exercise, 1)[-1].size == {"n": 77}


@cuda.jit
def lanes_of_the_grid(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        out[i] = i % 32


@cuda.jit
def row_sums_from_the_first(x, out):
    """Right but for numbers far below the first of a row, which stands in for 0."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    for col in range(lane, x.shape[1], 32):
        total += max(x[row, col], float32(-2.0))
    for offset in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, offset)
    if lane == 0:
        out[row] = total


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [("lane_numbers", lanes_of_the_grid, "It fails where a block is no multiple of 32 threads: at n=150, threads=48."),
     ("row_sums", row_sums_from_the_first, "It fails where some elements are large and others are small: at ")],
)
def test_the_verdict_names_the_property(name, answer, words):
    smallest = EXERCISES[name].sizes[0]
    verdict = examine(replace(EXERCISES[name], random_size=lambda rng: smallest), answer, seed=3)
    assert verdict.kind == "wrong_result" and verdict.details[0].startswith(words), str(verdict)
