"""Buffers that share memory: what is live, where each is placed, what overlaps, and a model that runs so."""

import numpy as np
import pytest

from labkit.models import buffers
from labkit.models.buffers import Launch, extent, first_fit, least, liveness, llama_launches, overlaps, placed, sizes_of
from labkit.models.configs import LLAMA_3_2_1B
from labkit.models.llama import Cache, Llama, Workspace
from labkit.models.step import Inputs, Piece
from tests.models.test_llama import SMALL, random_tensors

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

CHAIN = [Launch("first", (), ("a",)), Launch("second", ("a",), ("b",)), Launch("third", ("b",), ("c",)),
         Launch("fourth", ("c",), ("a",))]


def test_a_buffer_lives_from_its_writing_to_its_last_reading():
    assert liveness(CHAIN, kept=("a",)) == [{"a"}, {"a", "b"}, {"b", "c"}, {"a", "c"}]
    assert liveness(CHAIN, kept=("b",)) == [{"a"}, {"a", "b"}, {"b", "c"}, {"a", "b", "c"}]


def test_first_fit_uses_gaps_and_keeps_apart_what_lives_together():
    live = liveness(CHAIN, kept=("a",))
    sizes = {"a": 300, "b": 200, "c": 100}
    offsets = first_fit(sizes, live, alignment=100)
    assert offsets == {"a": 0, "b": 300, "c": 500}  # b and c live together, and so do c and a
    assert not overlaps(offsets, sizes, live)
    assert extent(offsets, sizes) == 600 and least(sizes, live) == 500
    assert overlaps(offsets | {"c": 499}, sizes, live) == [(2, "b", "c")]
    assert overlaps(offsets | {"b": 0}, sizes, live) == [(1, "a", "b")]


def test_random_plans_overlap_nowhere():
    rng = np.random.default_rng(0)
    for _ in range(50):
        names = [f"b{number}" for number in range(rng.integers(2, 12))]
        sizes = {name: int(rng.integers(1, 5000)) for name in names}
        live = [set(rng.choice(names, rng.integers(0, len(names) + 1), replace=False)) for _ in range(8)]
        offsets = first_fit(sizes, live)
        assert not overlaps(offsets, sizes, live)
        for these in live:
            taken = np.zeros(extent(offsets, sizes), int)
            for name in these:
                taken[offsets[name] : offsets[name] + sizes[name]] += 1
            assert taken.max(initial=0) <= 1
        assert least(sizes, live) <= extent(offsets, sizes)


@pytest.mark.parametrize("layers", [1, 2, 16])
def test_one_layers_plan_holds_for_any_number(layers):
    sizes = sizes_of(Workspace(LLAMA_3_2_1B, tokens=64, sequences=4))
    assert not overlaps(first_fit(sizes, liveness(llama_launches(1))), sizes, liveness(llama_launches(layers)))


# The launches that `watch` shows, by what it calls their output.
SHOWN = {"input_norm": "input norm", "qkv": "q, k, v", "q": "rope, to cache", "attended": "attention",
         "projected": "o", "post_norm": "post norm", "gated": "gate, up, SwiGLU", "down": "down", "norm": "last norm",
         "embedding": "embedding", "logits": "head"}


def steps_of(model, workspace, watch=None):
    """The logits of a prefill of two prompts, and of a step in which each decodes."""
    cache, inputs, found = Cache(model.config, 4, model.dtype), Inputs(16, 2, 2), []
    prompts = [Piece([3, 1, 4], 0, [0]), Piece([1, 5, 9, 2, 6], 0, [2])]
    for pieces in (prompts, [Piece([5], 3, [0]), Piece([3], 5, [2])]):
        found.append(model.forward(inputs.step(pieces), cache, workspace, watch=watch).copy_to_host())
    return found


@pytest.fixture(scope="module")
def model():
    return Llama(SMALL, random_tensors(SMALL), "float32")


def test_a_model_computes_the_same_in_shared_memory(model):
    workspace = Workspace(SMALL, 16, 2, "float32")
    sizes, live = sizes_of(workspace), liveness(llama_launches(SMALL.num_hidden_layers))
    offsets = first_fit(sizes, live)
    assert extent(offsets, sizes) < sum(sizes.values())
    for ours, theirs in zip(steps_of(model, placed(workspace, offsets)), steps_of(model, workspace), strict=True):
        assert np.array_equal(ours, theirs)


def test_what_is_not_live_may_be_overwritten(model):
    """After each launch NaN goes into every buffer that is not needed any more, and the logits stay the same."""
    workspace, launches = Workspace(SMALL, 16, 2, "float32"), llama_launches(SMALL.num_hidden_layers)
    live, order, poisoned = liveness(launches), [], set()

    def watch(name, array):
        shown = SHOWN.get(name.rpartition(".")[2])
        if shown is None:
            return
        if shown == "embedding":
            order.clear()
        number = next(n for n, launch in enumerate(launches) if launch.name == shown and n not in order)
        order.append(number)
        needed = live[number + 1] - set(launches[number + 1].writes) | set(launches[number + 1].reads) \
            if number + 1 < len(launches) else {"logits"}
        for buffer in set(buffers.BUFFERS) - needed:
            memory = getattr(workspace, buffer)
            memory.copy_to_device(np.full(memory.shape, np.nan, memory.dtype))
            poisoned.add(buffer)

    for ours, theirs in zip(steps_of(model, workspace, watch), steps_of(model, Workspace(SMALL, 16, 2, "float32")),
                            strict=True):
        assert np.array_equal(ours, theirs)
    assert poisoned == set(buffers.BUFFERS)
