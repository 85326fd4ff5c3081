"""Seats over time, without a model."""

from collections import Counter
from functools import partial

from labkit.engine.block_manager import BlockManager
from labkit.engine.contiguous import ContiguousBlocks
from labkit.engine.scheduler import Scheduler, StaticScheduler
from labkit.engine.simulation import Cell, Work, simulate


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
