"""The quantised series with a tiny model: its random codes, its bytes, its check, and the lines of a GPU alone."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from labkit.device import gpus
from labkit.kernels.linear.quantized import E4M3, INT4, INT8
from labkit.measure import validate
from labkit.measure.series import llama
from labkit.measure.series import llama_quantized as series
from labkit.models.configs import EMBEDDING, LLAMA_3_2_1B, names_in
from labkit.models.llama import Llama
from labkit.models.packed import QuantizedTensor, arrays_of
from tests import made_up

FORMATS = (INT4, INT8, E4M3)
ON_CPU = pytest.mark.cpu_device


@pytest.mark.parametrize("format", FORMATS)
def test_random_codes_stand_for_numbers_like_those_in_bfloat16(format):
    tensors = series.random_layers(series.TINY, format)
    assert len(names_in(tensors, series.TINY)) == len(tensors) == 2 + 2 * 9
    layers = {name: tensor.read() for name in tensors if isinstance(tensor := tensors[name], QuantizedTensor)}
    assert len(layers) == 2 * 7 and all(name.endswith("_proj.weight") for name in layers)
    for name, layer in layers.items():
        weights = layer.dequantize()
        assert weights.shape == tensors[name].shape and layer.format == format and np.isfinite(weights).all()
        assert abs(weights.std() * math.sqrt(128) - 1) < 0.1
        assert len(np.unique(weights, axis=0)) == len(weights), "no two rows are alike"
    first, second = (layers[f"model.layers.{n}.mlp.down_proj.weight"] for n in (0, 1))
    assert (first.codes != second.codes).any() and len(np.unique(first.scales)) > 50
    assert first.group == (128 if format == INT4 else 0)


def test_a_step_of_llama_3_2_1b_reads_1_06_gb_with_int4():
    """Of each weight half a byte, and of each group of 128 a scale of two; of 8 bits a byte, and a row's scale of four.
    The head, the norms and a token's 32 KB of keys and values are bfloat16."""
    tensors = series.random_layers(LLAMA_3_2_1B, INT4)
    in_int4, others = 0, 0
    for entry in tensors.entries.values():
        if isinstance(entry, QuantizedTensor):
            in_int4 += arrays_of(entry)[1]
        else:
            others += 2 * math.prod(entry.shape)
    weights = LLAMA_3_2_1B.num_hidden_layers * sum(
        math.prod(shape) for shape in LLAMA_3_2_1B.layer_parameters.values() if len(shape) == 2)
    assert in_int4 == weights // 2 + weights // 64
    assert in_int4 + others + llama.cache_bytes(LLAMA_3_2_1B, 1024) == pytest.approx(1.06e9, rel=0.01)


def test_the_embedding_is_read_if_it_is_the_head():
    tied = Llama(series.TINY, llama.RandomTensors(series.TINY), "bfloat16")
    assert series.read_bytes(tied) == llama.weight_bytes(series.TINY)
    assert series.read_bytes(series.quantized_model(series.TINY, INT8)) < 0.6 * llama.weight_bytes(series.TINY)
    entries = {EMBEDDING: SimpleNamespace(nbytes=100), "lm_head.weight": SimpleNamespace(nbytes=10)}
    model = SimpleNamespace(config=SimpleNamespace(tie_word_embeddings=False), weights=SimpleNamespace(entries=entries))
    assert series.read_bytes(model) == 10


@ON_CPU
@pytest.mark.sweep
def test_the_check_sees_weights_that_are_others():
    """Those of INT8 come from the same normal numbers as those of INT4, but are rounded to other codes."""
    model = series.quantized_model(series.TINY, INT4)
    assert llama.roundings_from_float64(model) < 8
    model.tensors = series.random_layers(series.TINY, INT8)
    assert llama.roundings_from_float64(model) > series.MOST_ROUNDINGS


@ON_CPU
@pytest.mark.sweep
def test_the_series_with_a_tiny_model():
    found = json.loads(json.dumps(series.llama_quantized(), allow_nan=False))
    assert [(row["format"], row["sequences"]) for row in found["rows"]] == [
        (format, count) for format in ("bfloat16", *FORMATS) for count in (1, 3)]
    assert (found["tokens"], found["group"], found["left_out"]) == (20, 128, {})
    assert list(found["roundings_from_float64"]) == ["bfloat16", *FORMATS]
    assert all(0 < error < 8 for error in found["roundings_from_float64"].values())
    for few, many in zip(found["rows"][::2], found["rows"][1::2], strict=True):
        assert many["bytes"] - few["bytes"] == 2 * llama.cache_bytes(series.TINY, 20)
        assert few["launches"] == many["launches"] > 20 and few["ms"]["p50"] > 0
    bfloat16, int4, int8, e4m3 = (row["bytes"] for row in found["rows"][::2])
    assert int4 < int8 == e4m3 < bfloat16
    assert validate.problems(made_up.recording(llama_quantized=found)) == []


# --- Formats that are left out, errors, and the lines that only a GPU runs ------------------------------------------


@pytest.fixture
def without_steps(monkeypatch):
    """No model is made; each format has a row."""
    model = SimpleNamespace(config=series.TINY)
    monkeypatch.setattr(series, "checked_model", lambda format: model)
    monkeypatch.setattr(series, "model_here", lambda format: model)
    monkeypatch.setattr(series, "steps_of", lambda format, *_: [{"format": format, "sequences": 1}])
    monkeypatch.setattr(llama, "roundings_from_float64", lambda model: 1.5)


def test_fp8_is_left_out_before_compute_capability_8_9(monkeypatch, without_steps, capsys):
    monkeypatch.setattr(gpus, "limited", lambda: True)
    for name, formats in (("a100", ("bfloat16", INT4, INT8)), ("l4", ("bfloat16", *FORMATS))):
        monkeypatch.setattr(gpus, "target", lambda name=name: gpus.GPUS[name])
        found = series.llama_quantized()
        assert tuple(row["format"] for row in found["rows"]) == formats == tuple(found["roundings_from_float64"])
        assert (E4M3 in found["left_out"]) == (E4M3 not in formats)
        reason = "e4m3 is measured from compute capability 8.9 on; this GPU has 8.0"
        assert (reason in capsys.readouterr().err) == (name == "a100")


@pytest.mark.parametrize("error", [16.0, 200.0, math.nan])
def test_wrong_logits_are_not_timed(monkeypatch, without_steps, error):
    monkeypatch.setattr(llama, "roundings_from_float64", lambda model: error)
    with pytest.raises(AssertionError, match=r"bfloat16: the logits of a small model are .* roundings from NumPy's"):
        series.llama_quantized()


class Gpu:
    """labkit.device as a series sees it on a GPU."""

    on_gpu = staticmethod(lambda: True)
    pick = staticmethod(lambda gpu, cpu: gpu)


@ON_CPU
@pytest.mark.sweep
def test_the_lines_that_only_a_gpu_takes(monkeypatch):
    """With the tiny model, whose kernels run on the CPU device: what a GPU's run would stumble over at its end."""
    model = Llama(series.TINY, llama.RandomTensors(series.TINY), "bfloat16")
    monkeypatch.setattr(llama, "device", Gpu)
    monkeypatch.setattr(series, "device", Gpu)
    monkeypatch.setattr(series, "LLAMA_3_2_1B", series.TINY)
    monkeypatch.setattr(series, "random_model", lambda: model)
    taken = {**series.llama_quantized((1, 8), 20), "where": "NVIDIA Imaginary"}
    recording = made_up.recording(llama_quantized=json.loads(json.dumps(taken, allow_nan=False)))
    assert validate.problems(recording) == []
    assert len(taken["rows"]) == 8
    for row in taken["rows"]:
        assert row["gbs"] == pytest.approx(row["bytes"] / row["ms"]["p50"] / 1e6) and row["bound_ms"] > 0
