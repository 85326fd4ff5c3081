"""Every form of MiniLM's ladder against NumPy, launch by launch; what each of them launches."""

import numpy as np
import pytest

from labkit import device
from labkit.device import graphs
from labkit.models.minilm import MiniLM, lay_out
from labkit.models.minilm_reference import cosines, embeddings, parity, weights_of
from labkit.models.minilm_steps import ATTENTIONS, CONTROL, STEPS, step
from tests.models.test_minilm import SENTENCES, SMALL, random_tensors

LAUNCHES = {  # of a model of two layers: embedding and pooling besides what is in each layer
    "simple": 3 + 2 * (3 + 3 + 3 + 1 + 3 + 2 + 3), "cp.async": 3 + 2 * 18, "one product": 3 + 2 * (1 + 3 + 3 + 2 + 3),
    "warp LayerNorm": 3 + 2 * (1 + 3 + 2 + 2 + 2), "GELU fused": 3 + 2 * (1 + 3 + 2 + 1 + 2),
    "scores in registers": 3 + 2 * 9, "float16 accumulators": 3 + 2 * 9, "no padding to 128": 3 + 2 * 9,
    "wgmma": 2 + 2 * 9, "tiled attention": 2 + 2 * 7, "packed": 2 + 2 * 7,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return MiniLM(SMALL, random_tensors(SMALL), np.float16, STEPS[0].kernels)


@pytest.mark.sweep  # each has kernels of its own; test_minilm.py does the same with those that a model runs
@pytest.mark.parametrize("one", STEPS, ids=lambda one: one.name)
def test_every_launch_of_a_step_is_right(model, one):
    form = model.with_kernels(one.kernels)
    assert form.weights is model.weights
    padding = "padded" if one.form == "padded_to_128" else one.form  # 128 rows a sentence are slow to emulate
    parity(form, SENTENCES, padding, times=2 if "float16 acc" in one.name or one.name == "no padding to 128" else 1
           ).check()
    expected = embeddings(SMALL, weights_of(model.tensors, SMALL), SENTENCES)
    assert cosines(form.embed(SENTENCES, padding), expected).min() >= 0.9999


@pytest.mark.parametrize("one", STEPS, ids=lambda one: one.name)
def test_what_a_step_launches(model, one):
    form = model.with_kernels(one.kernels)
    padding = "padded" if one.form == "padded_to_128" else one.form
    shape, _ = lay_out([np.array(ids, np.int32) for ids in SENTENCES], padding)
    b = form._workspace_for(shape).batch(shape)
    graph = graphs.capture(lambda stream: form.forward(b, True, stream), warm_up=device.on_gpu())  # descriptors of TMA
    assert graph.nodes == LAUNCHES[one.name]


@pytest.mark.sweep
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_in_each_form(model, name):
    form = model.with_kernels(ATTENTIONS[name])
    table = parity(form, SENTENCES).check()
    assert "layer.1.attended" in [row.name for row in table.rows]


def test_every_step_says_what_changes_and_has_its_control():
    assert len(STEPS) == 11 and len({one.changes for one in STEPS}) == len(STEPS)
    for name, control in CONTROL.items():
        one, other = step(name), step(control)
        assert (one.form, one.kernels.attention, one.kernels.add_layernorm) == (
            other.form, other.kernels.attention, other.kernels.add_layernorm)
    with pytest.raises(ValueError, match="no step is called 'fast'; there are 'simple'"):
        step("fast")


def test_three_products_need_padded_sentences(model):
    with pytest.raises(ValueError, match="6 sentences padded to 80 are needed here"):
        model.embed(SENTENCES, "packed")
