"""Arrays that threads make ahead of their use."""

import threading

import pytest

from labkit._common.chunks import made_ahead


def test_results_come_in_order_and_few_wait():
    begun, most = [], []

    def maker(i):
        def make():
            begun.append(i)
            return i
        return make

    for i in made_ahead((maker(i) for i in range(50)), threads=3):
        assert i in begun
        most.append(len(begun) - i)
    assert sorted(begun) == list(range(50)) and max(most) <= 4


def test_an_error_is_raised_in_its_turn_and_nothing_is_made_after_the_last_that_waited():
    made, gate = [], threading.Event()

    def slow():
        assert gate.wait(20)
        return "slow"

    def wrong():
        raise ValueError("the second")

    found = made_ahead([slow, wrong, *[lambda i=i: made.append(i) for i in range(20)]], threads=2)
    gate.set()
    assert next(found) == "slow"
    with pytest.raises(ValueError, match="the second"):
        next(found)
    assert len(made) <= 3
