"""Seats over time, without a model."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from labkit.engine.block_manager import BlockManager
from labkit.engine.scheduler import Scheduler
from labkit.measure.simulation import Cell, ChoosingScheduler, StepCost, Work, serve_trace, simulate
from labkit.measure.static_batching import ContiguousBlocks, StaticScheduler


def test_two_requests_written_out():
    timeline = simulate([Work(3, 2), Work(5, 1, arrival=1), Work(1, 2)], max_num_seqs=2, max_num_batched_tokens=4,
                        page_size=4)
    assert timeline.cells == (
        Cell(0, 0, 0, 3, "prefill"), Cell(0, 1, 2, 1, "prefill"),
        Cell(1, 0, 0, 1, "decode"), Cell(1, 1, 2, 1, "decode"),
        Cell(2, 0, 1, 4, "prefill"),
        Cell(3, 0, 1, 1, "prefill"),
    )
    assert timeline.ends == (1, 3, 1) and timeline.steps == 4 and timeline.idle == 2 / 8
    assert timeline.held == (2, 2, 1, 2) and timeline.preemptions == 0


def test_a_seat_that_waits_for_an_arrival_is_idle():
    timeline = simulate([Work(1, 1, arrival=3)], max_num_seqs=1)
    assert timeline.steps == 4 and timeline.idle == 3 / 4


def test_continuous_batching_leaves_fewer_seats_idle_than_static():
    work = [Work(20, output) for output in (5, 80, 10, 7, 60, 5, 9, 40, 6, 30, 12, 8)]
    static, continuous = (simulate(work, kind, max_num_seqs=4) for kind in (StaticScheduler, Scheduler))
    assert static.steps == 80 + 60 + 30 and continuous.steps < static.steps and continuous.idle < static.idle
    for timeline in (static, continuous):
        tokens = Counter()
        for cell in timeline.cells:
            tokens[cell.request] += cell.tokens
        assert [tokens[number] for number in range(12)] == [one.prompt + one.output - 1 for one in work]


def test_what_is_preempted_is_computed_again():
    timeline = simulate([Work(8, 24), Work(8, 24)], max_num_seqs=2, num_pages=3, page_size=16)
    assert timeline.preemptions == 1 and max(timeline.held) == 2
    assert sum(cell.tokens for cell in timeline.cells) > 2 * 31


def test_a_static_batch_is_filled_over_as_many_steps_as_its_prompts_take():
    timeline = simulate([Work(8, 9) for _ in range(6)], StaticScheduler, max_num_seqs=4, max_num_batched_tokens=10)
    begun = {}
    for cell in timeline.cells:
        begun.setdefault(cell.request, cell.step)
    assert [begun[number] for number in range(4)] == [0, 0, 1, 2], "10 tokens a step"
    assert begun[4] == max(timeline.ends[:4]) + 1, "the next batch waits for all of this one"


def test_a_contiguous_cache_seats_fewer_in_the_same_memory():
    work = [Work(10, 20) for _ in range(8)]
    paged, contiguous = (simulate(work, max_num_seqs=8, num_pages=16, page_size=4, blocks=blocks)
                         for blocks in (BlockManager, partial(ContiguousBlocks, longest=32)))
    assert max(Counter(cell.step for cell in contiguous.cells).values()) == 2 and contiguous.steps == 4 * 20
    assert max(Counter(cell.step for cell in paged.cells).values()) > 2 and paged.steps < contiguous.steps
    assert set(contiguous.held) == {16}


# --- Times -----------------------------------------------------------------------------------------------------------

COST = StepCost(step_ms=1.0, row_ms=0.25, cached_ms=0.125)


def test_a_step_takes_as_long_as_its_weights_or_its_rows_and_what_it_reads():
    assert COST.ms(rows=3, cached=8) == 1 + 1
    assert COST.ms(rows=8, cached=8) == 2 + 1


def test_the_times_of_two_requests_written_out():
    served = serve_trace([Work(6, 3, arrival=5), Work(2, 2, arrival=5.5)], COST, max_num_seqs=2,
                         max_num_batched_tokens=5)
    # From 5 on: 5 rows of the first prompt, 1.25 + 0.625 ms; its last row and the other prompt, 1 + (6 + 2) / 8; then
    # two decode, 1 + (7 + 3) / 8, and the first alone 1 + 8 / 8.
    ends = 5 + np.cumsum([1.875, 2.0, 2.25, 2.0])
    assert served.steps == 4
    assert served.first_ms.tolist() == [ends[1] - 5, ends[1] - 5.5]
    assert served.ends_ms.tolist() == [ends[3] - 5, ends[2] - 5.5]
    assert sorted(served.gaps_ms.tolist()) == [2.0, 2.25, 2.25]
    assert served.tokens_per_second == 1000 * 5 / (ends[3] - 5)


def test_time_passes_until_the_next_arrival_where_there_is_nothing_to_do():
    served = serve_trace([Work(1, 1, arrival=100), Work(1, 1)], COST)
    assert served.steps == 2 and served.total_ms == 101.125 and served.first_ms.tolist() == [1.125, 1.125]


def test_littles_law_holds_in_the_simulator():
    rng = np.random.default_rng(1)
    work = [Work(int(p), int(o), float(at)) for p, o, at in zip(
        rng.integers(1, 30, 60), rng.integers(1, 20, 60), np.cumsum(rng.exponential(8, 60)), strict=True)]
    served = serve_trace(work, COST, max_num_seqs=4)
    ends = np.array([one.arrival for one in work]) + served.ends_ms
    moments = np.linspace(work[0].arrival, ends.max(), 20_001)[:-1]
    inside = sum((one.arrival <= moments) & (moments < end) for one, end in zip(work, ends, strict=True)).mean()
    assert inside == pytest.approx(len(work) / served.total_ms * served.ends_ms.mean(), rel=1e-3)


def test_schedules_are_those_of_simulate():
    work = [Work(20, output) for output in (5, 8, 10, 7, 6)]
    assert serve_trace(work, COST, max_num_seqs=2).steps == simulate(work, max_num_seqs=2).steps


def test_a_choice_decides_who_is_next():
    work = [Work(prompt, 1) for prompt in (9, 4, 1, 7)]
    for choose, order in ((lambda prompts, waited: 0, [0, 1, 2, 3]), (lambda prompts, waited: prompts.argmin(),
                                                                    [2, 1, 3, 0]),
                          (lambda prompts, waited: len(prompts) - 1, [3, 2, 1, 0])):
        served = serve_trace(work, COST, partial(ChoosingScheduler, choose=choose), max_num_seqs=1)
        assert np.argsort(served.first_ms).tolist() == order


def test_a_choice_is_given_how_long_each_has_waited():
    seen = []

    def choose(prompts, waited):
        seen.append((prompts.tolist(), waited.tolist()))
        return 0

    serve_trace([Work(8, 1), Work(3, 1, arrival=2), Work(4, 1, arrival=2.5)], COST,
                partial(ChoosingScheduler, choose=choose), max_num_seqs=1)
    assert seen == [([8], [0.0]), ([3, 4], [1.0, 0.5]), ([4], [0.5 + 1.375])]


@pytest.mark.parametrize("value, kind, words", [(2, IndexError, "returned 2; with 2 waiting"),
                                                (-1, IndexError, "returned -1"), (0.0, TypeError, "whole number")])
def test_a_choice_that_is_none_is_named(value, kind, words):
    with pytest.raises(kind, match=words):
        serve_trace([Work(1, 1), Work(2, 1)], COST, partial(ChoosingScheduler, choose=lambda prompts, waited: value))


def test_the_cost_is_fitted_to_recorded_steps():
    true = StepCost(1.0, 0.004, 1e-5)
    decode = {"tokens": 1000, "rows": [{"sequences": count, "ms": {"p50": true.ms(count, 1000 * count)}}
                                       for count in (1, 8, 64, 256)]}
    prefill = {"rows": [{"tokens": tokens, "ms": {"p50": 0.004 * tokens}} for tokens in (1000, 4000)]}
    cost = StepCost.fitted(decode, prefill)
    assert cost.row_ms == true.row_ms and cost.step_ms == pytest.approx(1.0, rel=0.011)
    assert cost.cached_ms == pytest.approx(1e-5, rel=0.02)


def test_no_work_is_named():
    with pytest.raises(ValueError, match="no requests"):
        serve_trace([], COST)
