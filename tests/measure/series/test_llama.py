"""Steps of a Llama and what runs beside them, with a tiny model: the paths that a GPU takes."""

import json
import math

import numpy as np
import pytest

from labkit.engine.model_runner import ModelRunner
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.measure import Timing, comparisons, validate
from labkit.measure.plots.engine import decode_steps
from labkit.measure.series import llama as series
from labkit.measure.series import torch_llama
from labkit.measure.series.torch_llama import TorchLlama
from labkit.models.configs import LLAMA_3_2_1B, names_in
from labkit.models.llama import Config
from labkit.models.llama_reference import activations, weights_of
from tests import made_up

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

ON_CPU = pytest.mark.cpu_device


def test_random_weights_are_those_of_a_file_and_no_two_rows_are_alike():
    tensors = series.RandomTensors(series.TINY)
    assert len(names_in(tensors, series.TINY)) == len(tensors) == 2 + 2 * 9
    table = float32_of(tensors["model.embed_tokens.weight"])
    assert table.shape == (61, 64) and len(np.unique(table, axis=0)) == 61
    assert abs(table.std() * math.sqrt(64) - 1) < 0.05
    assert (float32_of(tensors["model.norm.weight"]) == 1).all()
    begins = sorted((one.begin, one.end) for one in tensors.entries.values())
    assert all(one[1] == other[0] for one, other in zip(begins, begins[1:], strict=False))


def test_bytes_and_flops_of_llama_3_2_1b():
    """1.236e9 weights; a token's keys and values are 32 KB."""
    assert series.weight_bytes(LLAMA_3_2_1B) == 2 * LLAMA_3_2_1B.parameters
    assert series.cache_bytes(LLAMA_3_2_1B, 1) == 32 * 1024
    assert series.prefill_flops(LLAMA_3_2_1B, 1024) == pytest.approx(2.07e12, rel=0.01)


@pytest.fixture(scope="module")
def decoded():
    return json.loads(json.dumps(series.llama_decode(), allow_nan=False))


@ON_CPU
def test_decode(decoded):
    assert [row["sequences"] for row in decoded["rows"]] == [1, 3] and decoded["tokens"] == 20
    for row in decoded["rows"]:
        assert row["ms"]["p50"] > 0 and row["called_ms"] > 0 and row["torch"] is None
        assert row["launches"] == decoded["rows"][0]["launches"] > 20
    few, many = (row["bytes"] for row in decoded["rows"])
    assert many - few == 2 * series.cache_bytes(series.TINY, 20)


@ON_CPU
def test_a_recording_of_it_is_accepted(decoded):
    prefill = json.loads(json.dumps(series.llama_prefill((3,)), allow_nan=False))
    assert prefill["rows"][0]["tokens"] == 3 and prefill["rows"][0]["flops"] > 0
    recording = made_up.recording(llama_decode=decoded, llama_prefill=prefill)
    assert validate.problems(recording) == []
    found = comparisons.compare(recording)
    assert "a token of 1 sequence with 1,024" in found[0].work and all(one.ours[1] > 0 for one in found)


@ON_CPU
def test_each_sequence_of_a_step_owns_its_pages_and_the_cache_is_the_same_end_to_end():
    model = series.random_model()
    runner = ModelRunner(model, num_pages=9, max_num_seqs=3, max_num_batched_tokens=3, max_model_len=21)
    step = series.decoding(runner, 3, 20)
    pages = [page for chunk in step.chunks for page in chunk.sequence.pages]
    assert len(set(pages)) == 6 and sorted(pages) != pages and max(pages) < 9
    assert [(chunk.begin, chunk.length) for chunk in step.chunks] == 3 * [(19, 1)]
    numbers = series.random_cache(model.config, 9)
    end_to_end = series.contiguous(numbers, step, 20)
    assert end_to_end.shape == (3, 1, 20, 32)
    np.testing.assert_array_equal(end_to_end[2, 0, 17], numbers[step.chunks[2].sequence.pages[1], 0, 1])


# --- PyTorch on the same numbers -------------------------------------------------------------------------------------

WIDE = Config(vocab_size=61, hidden_size=96, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
              num_key_value_heads=2, head_dim=16, rope_theta=500.0, rms_norm_eps=1e-5,
              rope_scaling={"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 16})


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with torch.no_grad():
        yield torch


def test_its_model_computes_what_the_reference_does(torch):
    """A prompt at once, and its last token alone, in float32: three query heads for each head of keys."""
    tensors = {name: float32_of(array) for name, array in series.RandomTensors(WIDE).items()}
    one = TorchLlama(torch, WIDE, tensors, "cpu")
    ids = np.random.default_rng(0).integers(0, 61, 20)
    expected = activations(WIDE, weights_of(tensors, WIDE), ids)["logits"]
    cache = one.cache(np.zeros((1, 2, 20, 16), np.float32))
    logits, token = one.call(ids[None], np.arange(20), cache)()
    np.testing.assert_allclose(logits.numpy()[0], expected[-1], atol=2e-5)
    assert int(token) == expected[-1].argmax()
    for keys, values in cache:
        keys[:, :, 19] = values[:, :, 19] = 7
    again, _ = one.call(ids[None, -1:], np.array([19]), cache)()
    np.testing.assert_allclose(again.numpy()[0], expected[-1], atol=2e-5)


@ON_CPU
def test_both_compute_the_same_from_the_same_pages(torch, monkeypatch):
    """As on a GPU, where the clock is CUDA's; here PyTorch has no graph, and no time."""
    one = TorchLlama(torch, series.TINY, series.random_model().tensors, "cpu")
    monkeypatch.setattr(series, "torch_model", lambda: one)
    monkeypatch.setitem(vars(one), "compiled", {"layer": one.layer, "finish": one.finish})
    decoded, prefill = series.llama_decode((2, 8, 9), compared=(9,)), series.llama_prefill((20,))
    json.dumps([decoded, prefill], allow_nan=False)
    assert decoded["rows"][0]["torch"] is None
    row = decoded["rows"][-1]  # with the cache as PyTorch's is, whatever the steps before have written
    assert row["cosine"] > 0.999 and row["same_tokens"] > 0.6
    assert min(row["to_float32"].values()) > 0.999
    assert row["torch"] == {"eager, in a graph": None, "compiled, in a graph": None}
    assert prefill["rows"][0]["cosine"] > 0.999


@ON_CPU
def test_what_cannot_be_compiled_says_why(torch):
    one = TorchLlama(torch, series.TINY, series.RandomTensors(series.TINY), "cpu")
    cache = one.cache(bfloat16_of(np.zeros((1, 1, 5, 32))))
    late = one.rows(np.zeros((1, 5), int), np.arange(5), cache, compile_until=0.0)
    assert "used up" in late["compiled: why not"] and "eager: why not" not in late

    def fails(*_):
        raise RuntimeError("no compiler here")

    vars(one)["compiled"] = {"layer": fails, "finish": one.finish}
    assert "no compiler here" in one.rows(np.zeros((1, 5), int), np.arange(5), cache, math.inf)["compiled: why not"]


class Gpu:
    """labkit.device as a series sees it on a GPU."""

    on_gpu = staticmethod(lambda: True)
    kind = staticmethod(lambda: "gpu")
    pick = staticmethod(lambda gpu, cpu: gpu)


@ON_CPU
@pytest.mark.parametrize("compared", [False, True])
def test_the_lines_that_only_a_gpu_takes(monkeypatch, request, compared):
    """With the tiny model, whose kernels run on the CPU device: what a GPU's run would stumble over at its end."""
    model = series.random_model()
    one = None
    if compared:
        torch = request.getfixturevalue("torch")
        one = TorchLlama(torch, series.TINY, model.tensors, "cpu")
        monkeypatch.setitem(vars(one), "compiled", {"layer": one.layer, "finish": one.finish})
        monkeypatch.setattr(torch_llama, "time_torch_graph", lambda call, launches: Timing(1.0, 2.0, 3.0, 5, "x"))
    monkeypatch.setattr(series, "device", Gpu)
    monkeypatch.setattr(series, "config_here", lambda: series.TINY)
    monkeypatch.setattr(series, "random_model", lambda: model)
    monkeypatch.setattr(series, "torch_model", lambda: one)
    monkeypatch.setattr(series, "time_graph", lambda launch, launches: launch(0) and Timing(1.0, 2.0, 3.0, 5, "x"))
    taken = {"llama_decode": {**series.llama_decode((1, 32), 20), "where": "NVIDIA Imaginary"},
             "llama_prefill": {**series.llama_prefill((20,)), "where": "NVIDIA Imaginary"}}
    recording = made_up.recording(**json.loads(json.dumps(taken, allow_nan=False)))
    assert validate.problems(recording) == []
    rows = recording["series"]["llama_decode"]["rows"]
    for row in rows:
        assert row["gbs"] == pytest.approx(row["bytes"] / row["ms"]["p50"] / 1e6) and row["bound_ms"] > 0
    assert recording["series"]["llama_prefill"]["rows"][0]["tflops"] > 0
    assert len(decode_steps(recording["series"]["llama_decode"], None).axes[0].lines) == (5 if compared else 3)
    if compared:
        assert rows[1]["torch"] == {"eager, in a graph": 2.0, "compiled, in a graph": 2.0}
        assert rows[0]["cosine"] > 0.999
