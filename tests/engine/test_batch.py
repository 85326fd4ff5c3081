"""A step as flat arrays, written out."""

import numpy as np
import pytest

from labkit.engine.batch import FLOATS, BatchBuilder, Layout, shape_needed
from labkit.engine.block_manager import BlockManager
from labkit.engine.outputs import Sampled
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler
from labkit.engine.sequence import Request
from labkit.models.step import Shape

CHANCE = {"top_k": 5, "top_p": 0.5, "min_p": 0.25, "presence_penalty": 1.5, "frequency_penalty": -0.5,
          "repetition_penalty": 2.0}


def begun():
    """Two requests: one decodes, of the other one four of six tokens are computed. Pages of 4 tokens."""
    scheduler = Scheduler(BlockManager(8, 4), max_num_seqs=4, max_num_batched_tokens=5)
    builder = BatchBuilder(max_num_seqs=4, max_pages=3, page_size=4)
    params = SamplingParams(temperature=0, top_k=-1, logprobs=2, ignore_eos=True)
    scheduler.add(Request("a", [7, 8, 9], params, max_length=12))
    builder.build(step := scheduler.schedule())
    scheduler.receive(step, [Sampled(5)])
    scheduler.add(Request("b", [1, 2, 3, 4, 5, 6], SamplingParams(n=2, temperature=0.5, **CHANCE), seed=2**32 - 1,
                          max_length=12))
    return scheduler, builder


def test_a_step_with_a_decode_and_a_chunk_written_out():
    scheduler, builder = begun()
    batch = builder.build(scheduler.schedule())
    assert batch.ids.tolist() == [5, 1, 2, 3, 4] and batch.positions.tolist() == [3, 0, 1, 2, 3]
    assert batch.slots.tolist() == [3, 4, 5, 6, 7]  # pages 0 and 1
    assert batch.begins.tolist() == [0, 1] and batch.lengths.tolist() == [1, 4] and batch.contexts.tolist() == [4, 4]
    assert batch.last.tolist() == [0, 4] and (batch.decoding, batch.longest) == (1, 4)
    assert batch.page_table.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert batch.seats.tolist() == [0, 4]  # of the chunk no token is drawn
    assert batch.steps.tolist() == [4, 4] and batch.temperature.tolist() == [0, 0]
    assert batch.top_k.tolist() == [0, 0] and batch.num_logprobs.tolist() == [2, -1]
    assert [(number, sequence.seat) for number, sequence in batch.samples] == [(0, 0)]
    assert [sequence.request.request_id for sequence in batch.fresh] == ["b"]


def test_the_other_outputs_of_a_prompt_stand_behind_and_have_no_rows():
    scheduler, builder = begun()
    builder.build(scheduler.schedule())
    batch = builder.build(scheduler.schedule(), tokens=6, sequences=4)
    assert batch.ids.tolist() == [-1, 5, 6, 0, 0, 0]  # the first one's last token lies on the device, at its seat
    assert batch.slots.tolist() == [8, 12, 13, -1, -1, -1]
    assert batch.lengths.tolist() == [1, 2, 0, 0] and batch.contexts.tolist() == [5, 6, 0, 0]
    assert batch.last.tolist() == [0, 2, 2, 0] and batch.steps.tolist() == [5, 6, 6, 0]
    assert batch.seats.tolist() == [0, 1, 2, 4] and batch.counted.tolist() == [-1, 1, 2, -1]
    assert batch.page_table.tolist() == [[0, 2, 0], [1, 3, 0], [0, 0, 0], [0, 0, 0]]
    assert batch.temperature.tolist() == [0, 0.5, 0.5, 0] and batch.top_k.tolist() == [0, 5, 5, 0]
    assert batch.seeds.tolist() == [[0, 0], [2**32 - 1, 0], [0, 1], [0, 0]]
    for name in FLOATS[1:]:
        default = getattr(SamplingParams(), name)
        assert getattr(batch, name).tolist() == [default, CHANCE[name], CHANCE[name], 0]
    assert [sequence.index for sequence in batch.fresh] == [1]  # the first output has its seat since its first chunk
    batch = builder.build(scheduler.schedule())
    assert batch.copies == [(3, 4)] and batch.page_table.tolist() == [[0, 2, 0], [1, 4, 0], [1, 3, 0]]
    assert batch.ids.tolist() == [-1, -2, -3] and batch.slots.tolist() == [9, 18, 14] and batch.decoding == 3


def test_empty_sequences_stand_between_those_that_decode_and_the_others_and_take_no_rows():
    scheduler, builder = begun()
    step = scheduler.schedule()
    assert shape_needed(step) == Shape(5, 2, 1, 4)
    plain, batch = builder.build(step), builder.build(step, tokens=8, sequences=6, decoding=3)
    assert batch.layout == Layout(8, 6, 3) and (batch.decoding, batch.longest) == (3, 4)
    assert batch.slots.tolist() == [3, 4, 5, 6, 7, -1, -1, -1] and batch.ids.tolist() == [5, 1, 2, 3, 4, 0, 0, 0]
    for name in ("begins", "lengths", "contexts", "last", "steps", "temperature", "page_table", "seeds"):
        padded, real = getattr(batch, name), getattr(plain, name)
        assert padded[[0, 3]].tolist() == real.tolist() and not padded[[1, 2, 4, 5]].any()
    assert batch.seats.tolist() == [0, 4, 4, 4, 4, 4] and batch.counted.tolist() == [-1] * 6
    assert [(number, sequence.seat) for number, sequence in batch.samples] == [(0, 0)]
    step = scheduler.schedule()  # the rest of the prompt, of which another output begins
    assert shape_needed(step) == Shape(3, 3, 1, 2)
    batch = builder.build(step, decoding=2)
    assert batch.begins.tolist() == [0, 0, 1, 3] and batch.last.tolist() == [0, 0, 2, 2]
    assert [number for number, _ in batch.samples] == [0, 2, 3] and batch.seats.tolist() == [0, 4, 1, 2]


def test_everything_lies_in_one_buffer_one_behind_the_other():
    layout = Layout(tokens=5, sequences=3, max_pages=4)
    assert layout.size == 3 * 5 + 4 * 3 + 3 * 4 + 12 * 3 + 2 * 3
    views = layout.views(np.arange(layout.size, dtype=np.int32))
    assert views["ids"].tolist() == [0, 1, 2, 3, 4] and views["begins"][0] == 15 and views["page_table"][0, 0] == 27
    assert views["page_table"].shape == (3, 4) and views["seeds"].shape == (3, 2)
    assert views["seeds"].dtype == np.uint32 and views["top_p"].dtype == np.float32
    assert sum(view.size for view in views.values()) == layout.size


@pytest.mark.parametrize("seed", [-1, 0, 2**64 - 1, 2**64 + 5])
def test_any_seed_becomes_two_numbers(seed):
    scheduler = Scheduler(BlockManager(8, 4), max_num_seqs=1)
    scheduler.add(Request("a", [7], SamplingParams(), seed=seed, max_length=12))
    (low, high), = BatchBuilder(1, 3, 4).build(scheduler.schedule()).seeds.tolist()
    assert low + (high << 32) == seed % 2**64


def test_a_page_table_is_as_wide_as_its_longest_sequence_needs_of_few_sizes():
    builder = BatchBuilder(max_num_seqs=4, max_pages=100)
    sequences = [Request("a", [7], SamplingParams(), max_length=12).sequences[0] for _ in range(2)]
    found = {}
    for pages in range(101):
        sequences[1].pages = [0] * pages
        found.setdefault(builder.width(sequences), pages)
    assert found == {8: 0, 32: 9, 100: 33}


def test_what_would_end_an_output_too_early_is_banned():
    scheduler, builder = Scheduler(BlockManager(8, 4), max_num_seqs=2), BatchBuilder(2, 3, 4)
    scheduler.add(Request("a", [7], SamplingParams(min_tokens=2, stop_token_ids=[3]), stop_ids=(1,), max_length=12))
    scheduler.add(Request("b", [7], SamplingParams(), stop_ids=(1,), max_length=12))
    assert [builder.build(scheduler.schedule()).banned() for _ in range(3)] == [[(0, (3, 1))], [(0, (3, 1))], []]


def test_a_builder_that_serves_another_engine_takes_none_of_its_sequences_for_the_former_ones():
    """As after Ctrl-C, when the engine begins anew on the same runner."""
    _, builder = begun()
    other = Scheduler(BlockManager(8, 4), max_num_seqs=4, max_num_batched_tokens=5)
    other.add(Request("c", [1, 2], SamplingParams(temperature=1.5), seed=9, max_length=12))
    batch = builder.build(other.schedule())
    assert [sequence.request.request_id for sequence in batch.fresh] == ["c"]
    assert batch.temperature.tolist() == [1.5] and batch.seeds.tolist() == [[9, 0]]
