"""Tokens and latencies of the steps since the last time."""

from labkit.serve.engine_thread import SeatWork, StepReport
from labkit.serve.window.steps import MAX_STEPS, MAX_TIMES, Steps, thinned


def report(number, began, *chunks, seconds=0.1, preempted=0, generated=0):
    work = tuple(SeatWork(*chunk) for chunk in chunks)
    return StepReport(number, began, seconds, work, 0, len(work), preempted, generated, 0)


def test_each_step_counts_once():
    steps = Steps({"a": 10.0}.get)
    steps(report(1, 10.0, ("a", 0, 30, "prefill"), ("b", 1, 12, "prefill")))
    steps(report(2, 10.1, ("a", 0, 1, "decode"), ("b", 1, 4, "prefill"), generated=1, preempted=2))
    found = steps.take()
    assert found["steps"] == [[1, 42, 0, 0.1], [2, 4, 1, 0.1]]
    assert found["sums"] == {"generated": 1, "prompt": 46, "preempted": 2, "first_ms": [200.0], "gap_ms": []}
    assert found["step"] == {"number": 2, "seconds": 0.1, "chunks": [[0, 1, "decode"], [1, 4, "prefill"]]}
    empty = steps.take()
    assert empty["steps"] == [] and not any(empty["sums"].values()) and empty["step"] == found["step"]


def test_time_to_first_token_counts_once_for_a_request_and_gaps_are_between_its_tokens():
    steps = Steps({"a": 9.0, "b": 10.0}.get)
    steps(report(1, 10.0, ("a", 0, 1, "decode")))
    steps(report(2, 10.5, ("a", 0, 1, "decode"), ("b", 1, 1, "decode")))
    steps(report(3, 11.0, ("b", 1, 1, "decode")))
    steps(report(4, 12.0, ("a", 2, 1, "decode"), ("b", 1, 1, "decode")))  # a was preempted and has another seat
    sums = steps.take()["sums"]
    assert sums["first_ms"] == [600.0, 1100.0]
    assert sums["gap_ms"] == [500.0, 500.0, 1000.0]


def test_what_is_kept_is_bounded_however_long_it_is_not_taken():
    ended, steps = set(), Steps(lambda name: None if name in ended else 0.0)
    for number in range(2_000):
        names = [str(1_000 * (number // 100) + seat) for seat in range(50)]
        ended |= {str(1_000 * (number // 100 - 1) + seat) for seat in range(50)}
        steps(report(number, float(number), *((name, seat, 1, "decode") for seat, name in enumerate(names))))
    assert len(steps._last) < 500 and len(steps._begun) < 500
    found = steps.take()
    assert len(found["steps"]) == MAX_STEPS and found["steps"][-1][0] == 1_999
    assert len(found["sums"]["gap_ms"]) <= MAX_TIMES and len(found["sums"]["first_ms"]) <= MAX_TIMES


def test_of_many_times_some_of_all_sizes_are_kept():
    kept = thinned([number / 1000 for number in range(1_000)])
    assert len(kept) <= MAX_TIMES and kept == sorted(kept)
    assert kept[0] < 20 and kept[-1] > 980 and abs(kept[len(kept) // 2] - 500) < 20
    assert thinned([0.002, 0.001]) == [1.0, 2.0] and thinned([]) == []
