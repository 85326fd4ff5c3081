"""Requests, arrivals and objectives: the same for a seed, of the lengths and the rate that were asked for."""

import math

import numpy as np
import pytest

from labkit._common.errors import UserError
from labkit.measure.serving.load import FIRST_ID, Load, Slo, poisson, positive, random_work, rates, span


def test_requests_are_of_all_lengths_and_the_same_for_a_seed():
    work = random_work(400, (3, 9), (5, 5), vocabulary=20, seed=4)
    assert {len(one.prompt) for one in work} == set(range(3, 10)) and {one.output for one in work} == {5}
    assert {token for one in work for token in one.prompt} == set(range(FIRST_ID, 20))
    assert work == random_work(400, (3, 9), (5, 5), vocabulary=20, seed=4)
    assert work != random_work(400, (3, 9), (5, 5), vocabulary=20, seed=5)


def test_arrivals_are_a_poisson_process():
    moments = np.array(poisson(20_001, 8.0, seed=1))
    gaps = np.diff(moments)
    assert moments[0] == 0 and (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03) and gaps.std() == pytest.approx(1 / 8, rel=0.03)
    assert np.mean(gaps > 1 / 8) == pytest.approx(math.exp(-1), abs=0.01)  # no other process is without memory
    assert poisson(3, math.inf) == [0.0] * 3 and poisson(1, 2.0) == [0.0]


def test_how_requests_come():
    work = random_work(4, (2, 2), (2, 2))
    assert Load(work, concurrency=2).arrivals() == [None] * 4
    assert Load(work, math.inf).arrivals() == [0.0] * 4
    names = [Load(work, *given).name for given in ((None, 8), (math.inf,), (2.5,), (2.5, 8))]
    assert names == ["8 at a time", "all at once", "2.5 a second", "2.5 a second, 8 at a time at most"]


def test_an_objective_is_met_by_what_is_no_later():
    slo = Slo.of("ttft=200, itl=50")
    assert slo.limits_ms == {"ttft": 200.0, "itl": 50.0} and Slo.of(None).limits_ms == {}
    times = {"ttft": 200.0, "tpot": 1e9, "itl": 50.0, "e2el": 1e9}
    assert slo.met(times) and not slo.met(times | {"ttft": 200.1}) and not slo.met(times | {"itl": 50.1})
    assert slo.met(times | {"itl": None})  # of a single token


@pytest.mark.parametrize("wrong", ["ttft", "ttft=", "ttft=-1", "ttft=nan", "latency=3", "ttft=1,ttft=2", "ttft=1,,"])
def test_an_objective_that_cannot_be_read(wrong):
    with pytest.raises(UserError, match="--slo"):
        Slo.of(wrong)


def test_ranges_and_rates():
    assert span("--prompts", "100-1024") == (100, 1024) and span("--prompts", " 7 ") == (7, 7)
    assert rates("1,2.5,inf") == [1.0, 2.5, math.inf]
    for wrong in ("", "0", "5-2", "-3", "a-b", "1-2-3", "1.5"):
        with pytest.raises(UserError, match="--outputs"):
            span("--outputs", wrong)
    for wrong in ("", "0", "-1", "nan", "1,,2", "fast"):
        with pytest.raises(UserError, match="--rate"):
            rates(wrong)
    with pytest.raises(UserError, match="--x: it must be a number above 0; it is 'y'"):
        positive("--x", "y")
