"""What a recording says of a schedule, against one that was worked out by hand."""

from labkit.engine import LLM, SamplingParams
from labkit.engine.recording import Part, RecordingScheduler
from tests.engine.fake_model import FakeRunner


def served(prompts, params, pages=30, seats=4, budget=16, **options):
    llm = LLM(FakeRunner(pages, 4, seats, 64), max_num_seqs=seats, max_num_batched_tokens=budget,
              scheduler=RecordingScheduler, **options)
    return llm.generate(prompts, params), llm.engine.scheduler.history, llm.stats()


def test_a_prompt_in_chunks_beside_one_that_decodes():
    params = [SamplingParams(temperature=0, max_tokens=4, ignore_eos=True),
              SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)]
    _, history, _ = served([[7], [8] * 6], params, budget=4, overlap=False)
    one, other = ("0", 0), ("1", 0)
    assert [step.parts for step in history] == [
        (Part(one, "prefill", 1), Part(other, "prefill", 3)),
        (Part(one, "decode", 1), Part(other, "prefill", 3)),
        (Part(one, "decode", 1),), (Part(one, "decode", 1),)]
    assert [step.held for step in history] == [2, 3, 1, 1]
    assert [step.tokens("prefill") for step in history] == [4, 3, 0, 0] and history[1].tokens() == 4
    assert not any(step.preempted or step.waiting for step in history)


def test_what_is_computed_again_is_marked_and_counted():
    prompts, params = [[5] * 6, [6] * 6, [7] * 6], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    outputs, history, stats = served(prompts, params, pages=9, enable_prefix_caching=False)
    assert stats.preemptions == sum(len(step.preempted) for step in history) > 0
    assert stats.tokens == sum(step.tokens() for step in history)
    again = sum(step.tokens("again") for step in history)
    assert again == stats.tokens - 3 * (6 + 12 - 1) > 0  # all but the last token of each, once
    for step in history:
        assert not {part.name for part in step.parts} & set(step.waiting)
    gone = next(step for step in history if step.preempted)
    assert gone.preempted == (("2", 0),) == gone.waiting  # the youngest


def test_outputs_of_one_prompt_begin_where_it_ends():
    params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=3, ignore_eos=True)
    (output,), history, _ = served([[2, 3, 4, 5, 6]], params)
    assert history[0].parts == (Part(("0", 0), "prefill", 5),)
    assert history[1].parts == tuple(Part(("0", index), "decode", 1) for index in range(3))
    assert [len(one.token_ids) for one in output.outputs] == [3, 3, 3]
