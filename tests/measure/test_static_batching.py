"""Sequences whose places lie side by side: the same outputs, one sequence a piece of memory."""

from functools import partial

import pytest

from labkit.engine import LLM, SamplingParams
from labkit.engine.scheduler import Scheduler
from labkit.engine.sequence import Request
from labkit.measure.static_batching import ContiguousBlocks, StaticScheduler
from tests.engine.fake_model import FakeRunner, alone


@pytest.mark.parametrize("scheduler", [Scheduler, StaticScheduler])
def test_every_output_is_that_of_the_request_alone(scheduler):
    """35 pages of 4 tokens are two pieces for 64 tokens: no third request runs, and every piece is used."""
    prompts = [[2 + number % 3] * (1 + 7 * number % 19) for number in range(9)]
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=3 + 11 * number % 40) for number in range(9)]
    llm = LLM(FakeRunner(35, 4, 4, 64), max_num_seqs=4, max_num_batched_tokens=16, enable_prefix_caching=False,
              scheduler=scheduler, blocks=partial(ContiguousBlocks, longest=64))
    outputs = llm.generate(prompts, params)
    for output, prompt, each in zip(outputs, prompts, params, strict=True):
        assert output.outputs[0].token_ids == alone(Request("", prompt, each, max_length=64))
    stats = llm.stats()
    assert stats.most_pages == 32 + 3 and stats.preemptions == 0 and llm.engine.blocks.num_free == 32


def test_what_a_sequence_holds_lies_side_by_side_and_comes_back():
    blocks = ContiguousBlocks(7, 4, longest=10)
    one, other = (Request(name, [1, 2], SamplingParams(max_tokens=8), max_length=10).sequences[0] for name in "ab")
    blocks.take(one, [])
    blocks.take(other, [])
    assert (one.pages, other.pages, blocks.num_free) == ([0, 1, 2], [3, 4, 5], 0)
    assert blocks.missing(one, 8) == 0 and blocks.grow(one, 8) is None and one.pages == [0, 1, 2]
    blocks.release(one)
    assert one.pages == [] and blocks.num_free == 3 and blocks.references(0) == 0 and blocks.references(3) == 1


def test_what_it_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="longest is 30 tokens, 8 pages; from 1 to 7 are there"):
        ContiguousBlocks(7, 4, longest=30)
    blocks = ContiguousBlocks(7, 4, longest=10)
    long = Request("a", [1, 2], SamplingParams(max_tokens=20), max_length=22).sequences[0]
    with pytest.raises(ValueError, match="request a may become 22 tokens long; longest is 10"):
        blocks.take(long, [])
    llm = LLM(FakeRunner(7, 4, 4, 10), max_num_seqs=4, max_num_batched_tokens=16,
              blocks=partial(ContiguousBlocks, longest=10))
    running = llm.stream([[1, 2]], SamplingParams(max_tokens=6, ignore_eos=True))
    next(running)
    with pytest.raises(ValueError, match="request 1 has n > 1; without pages"):
        llm.generate([[1, 2]], SamplingParams(n=2, max_tokens=2))
    llm.engine.runner.max_model_len = 20
    with pytest.raises(ValueError, match="request 1 may become 17 tokens long; longest is 10"):
        llm.generate([[1, 2]], SamplingParams(max_tokens=15))
    assert len(list(running)) == 5  # it ran on
