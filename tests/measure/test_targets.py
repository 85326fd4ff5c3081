"""Goals: what each is judged by, and that each names a workload that is timed."""

import pytest

from labkit.measure import targets
from labkit.measure.comparisons import SERIES
from labkit.measure.ops import HOMES, op
from labkit.measure.targets import AFTER, BASELINE, GBS, GOALS, US, Goal, evaluate
from tests import made_up
from tests.measure.test_comparisons import ladder_with

SIZE = {"n": 10**9}


def judged(figure, unit, ladder=None, **more):
    ladder = ladder or ladder_with(("PyTorch", 30.0), ("PyTorch, compiled", 12.0))
    goal = Goal("addition", "vector_add", SIZE, figure, unit, **more)
    (verdict,) = evaluate({"ops": {"vector_add": [ladder.to_json()]}}, (goal,))
    return verdict


def test_a_figure_is_a_floor_for_rates_and_a_ceiling_for_times():
    assert judged(15_001.0, US).met is True and judged(14_999.0, US).met is False
    assert judged(15.1, "ms").value == pytest.approx(15.0)
    assert judged(790.0, GBS).met is True and judged(810.0, GBS).met is False


def test_shares_are_of_the_fastest_baseline():
    assert judged(0.8, BASELINE).value == pytest.approx(0.8) and judged(0.8, BASELINE).met is True
    assert judged(0.3, BASELINE, rung="vector_add_slow").value == pytest.approx(0.4)


def test_what_was_not_measured_is_named():
    verdict = judged(1.0, BASELINE, made_up.ladder())
    assert (verdict.value, verdict.met) == (None, None), "no ratio without a compiled PyTorch"
    goal = Goal("addition", "vector_add", {"n": 5}, 1.0, US)
    missing = evaluate({"ops": {}, "series": {}}, (goal,))
    shown = targets.table([*missing, judged(0.9, BASELINE), judged(0.5, BASELINE, set=AFTER)])
    assert [row[-1] for row in shown.rows] == ["no", "not measured yet", "yes"], "what is missed comes first"
    assert [row[2] for row in shown.rows] == ["before", "before", "after"]
    assert "1 of 2 met" in shown.notes[0] and shown.rows[0][1] == "0.9 of the baseline's speed"


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.work)
def test_each_goal_names_a_workload_that_is_timed(goal):
    if goal.source in HOMES:
        one = op(goal.source)
        assert goal.size in (one.work.timed_gpu, *one.work.also_gpu)
        assert not goal.rung or one.rung(goal.rung)
    else:
        assert goal.read is not None or goal.source in SERIES


def test_no_goal_is_set_twice():
    found = [(goal.source, tuple(goal.size.items()), goal.rung, goal.read) for goal in GOALS]
    assert len(found) == len(set(found))


def test_a_quantised_step_is_that_of_its_format_and_its_number_of_sequences():
    rows = [{"format": format, "sequences": count, "ms": {"p5": 0.1, "p50": ms, "p95": 9.0}}
            for format, count, ms in (("bfloat16", 1, 0.9), ("int4", 8, 0.5), ("int4", 1, 0.34), ("int8", 1, 0.6))]

    def found(rows):
        return [(one.value, one.met) for one in evaluate({"ops": {}, "series": {"llama_quantized": {"rows": rows}}})
                if one.goal.source == "llama_quantized"]

    assert found(rows) == [(0.34, True)] and found(rows[:2]) == [(None, None)]


def test_logprobs_are_held_against_none():
    rows = [{"name": "none", "share_of_none": 1.0}, {"name": "logprobs=20", "share_of_none": 0.91},
            {"name": "logprobs=5", "share_of_none": 0.89}]
    found = evaluate({"ops": {}, "series": {"engine_logprobs": {"rows": rows}}})
    assert [(one.value, one.met) for one in found if one.goal.source == "engine_logprobs"] == [(0.89, False)]


def test_the_server_is_held_against_the_engine_alone():
    series = {"share_of_alone": 0.9, "engine_process_share_of_alone": 0.8, "half_load": {"median_ttft_ms": 90.0},
              "loop_lag": {"closed": {"p50": 1.0, "p99": 21.0}}}

    def found(serve):
        return [(one.value, one.met) for one in evaluate({"ops": {}, "series": {"serve": serve}})
                if one.goal.source == "serve"]

    assert found(series) == [(0.8, False), (90.0, True), (21.0, False)]
    series["engine_process_share_of_alone"], series["loop_lag"]["closed"] = 0.852, None
    assert found(series) == [(0.852, True), (90.0, True), (None, None)]
