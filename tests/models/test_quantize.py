"""Rounding to 8 and 4 bits, GPTQ, and the folder that is written of a model."""

import json
from dataclasses import replace

import numpy as np
import pytest

from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.linear.quantized import E4M3, INT4, INT8, e4m3_codes, e4m3_value
from labkit.models.configs import LlamaConfig
from labkit.models.gpt2_reference import weights_of
from labkit.models.llama_reference import activations
from labkit.models.load import load
from labkit.models.quantize import (
    INPUTS,
    Scheme,
    fitting_groups,
    gptq,
    hessian_of,
    quantize,
    round_to_nearest,
    scales_of,
)
from labkit.models.quantized_folder import write_folder
from labkit.models.safetensors import read, write
from tests.models.test_llama import SMALL, random_prompts, random_tensors

SCHEMES = {"int4": Scheme(INT4, 32), "int4 with zeros": Scheme(INT4, 32, zeros=True), "int8": Scheme(INT8),
           "e4m3": Scheme(E4M3)}
# The largest error of a weight, in units of its scale: half a step; of +7.5 and -7.5, which become 7 and -8, too. With
# zeros, half a step more where the zero was rounded. FP8's step is 32 from 256 to 448.
LARGEST_ERROR = {"int4": 0.5, "int4 with zeros": 1.0, "int8": 0.5, "e4m3": 16.0}


def some_weights(rows=24, columns=96, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, columns)) * rng.uniform(0.1, 3, (rows, 1))


@pytest.mark.parametrize("name", SCHEMES)
def test_each_weight_has_the_nearest_code(name):
    """Among all codes that there are: no other is nearer."""
    scheme, weights = SCHEMES[name], some_weights()
    weights[3], weights[4, :32] = 0.0, 1.5
    found = round_to_nearest(weights, scheme)
    scales = (float32_of(found.scales) if scheme.format == INT4 else found.scales).astype(np.float64)
    width = weights.shape[1] // scales.shape[1]
    scales = np.repeat(scales, width, axis=1)
    zeros = 8.0 if found.zeros is None else np.repeat(found.zeros.astype(float), width, axis=1)
    if scheme.format == E4M3:
        values = e4m3_value(np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8))
        possible = values[:, None, None] * scales
    else:
        codes = np.arange(16) if scheme.format == INT4 else np.arange(-128, 128)
        possible = (codes[:, None, None] - (zeros if scheme.format == INT4 else 0.0)) * scales
    error = np.abs(found.dequantize() - weights)
    np.testing.assert_allclose(error, np.abs(possible - weights).min(axis=0), rtol=0, atol=1e-12)
    # A scale is rounded to bfloat16: to 1 part in 256, of codes of up to 8, 127 and 448.
    slack = {INT4: 16, INT8: 127, E4M3: 448}[scheme.format] / 256
    assert (error <= (LARGEST_ERROR[name] + slack) * scales).all()
    assert (found.dequantize()[3] == 0).all()


def test_scales_are_numbers_of_bfloat16():
    for scheme in SCHEMES.values():
        scales, zeros = scales_of(some_weights(), scheme)
        np.testing.assert_array_equal(float32_of(bfloat16_of(scales)), scales)
        assert (zeros is not None) == scheme.zeros
    assert scales_of(np.zeros((2, 32)), Scheme(INT4, 32))[0].tolist() == [[1.0], [1.0]]


def test_e4m3_codes():
    values = np.array([0.0, 2.0**-9, 2.0**-10, 2.0**-6, 1.0, 1.0625, 1.1875, 448.0, 1e9, -1.5, 0.0155])
    assert e4m3_codes(values).tolist() == [0, 1, 0, 0x08, 0x38, 0x38, 0x3A, 0x7E, 0x7E, 0xBC, 0x08]
    every = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    np.testing.assert_array_equal(e4m3_codes(e4m3_value(every))[1:], every[1:])


@pytest.mark.parametrize("name", SCHEMES)
def test_gptq_keeps_the_outputs_nearer_than_rounding(name):
    """With inputs that depend on each other, as activations do."""
    rng = np.random.default_rng(1)
    weights = some_weights()
    inputs = rng.standard_normal((300, 20)) @ rng.standard_normal((20, 96)) + 0.1 * rng.standard_normal((300, 96))

    def error(quantized):
        return np.square(inputs @ (quantized.dequantize() - weights).T).mean()

    nearest, better = (round_to_nearest(weights, SCHEMES[name]),
                       gptq(weights, hessian_of(inputs), SCHEMES[name]))
    assert error(better) < 0.6 * error(nearest)
    np.testing.assert_array_equal(better.scales, nearest.scales)


def test_gptq_makes_up_for_errors_as_the_formula_says():
    """Against the method in its first form (Frantar et al., equation 2): after each column, the inverse Hessian of the
    columns that are left, and their best correction."""
    rng = np.random.default_rng(2)
    weights, scheme = some_weights(5, 32), Scheme(INT4, 32)
    inputs = rng.standard_normal((64, 32)) * np.linspace(2, 1, 32)
    hessian = hessian_of(inputs)
    order = np.argsort(-np.diag(hessian))
    damped = hessian + 0.01 * np.diag(hessian).mean() * np.eye(32)
    scales, _ = scales_of(weights, scheme)
    left, expected = weights.copy(), np.zeros_like(weights)
    for at, column in enumerate(order):
        remaining = order[at:]
        inverse = np.linalg.inv(damped[np.ix_(remaining, remaining)])
        code = np.clip(np.rint(left[:, column] / scales[:, 0]), -8, 7)
        expected[:, column] = code * scales[:, 0]
        error = (left[:, column] - expected[:, column]) / inverse[0, 0]
        left[:, remaining] -= np.outer(error, inverse[0])
    np.testing.assert_array_equal(gptq(weights, hessian, scheme).dequantize(), expected)


def test_gptq_of_inputs_that_are_always_zero_rounds_to_nearest():
    weights, inputs = some_weights(), np.random.default_rng(0).standard_normal((200, 96))
    inputs[:, 7] = 0
    nearest, found = round_to_nearest(weights, SCHEMES["int4"]), gptq(weights, hessian_of(inputs), SCHEMES["int4"])
    np.testing.assert_array_equal(found.codes[:, 7], nearest.codes[:, 7])
    np.testing.assert_array_equal(gptq(weights, np.zeros((96, 96)), SCHEMES["int4"]).codes, nearest.codes)


@pytest.mark.parametrize("arguments, message", [
    (("int3",), "format is 'int3'; it must be one of 'int4', 'int8', 'e4m3'"),
    ((INT4, 16), "group is 16; for int4 it must be 32 or 64 or 128"),
    ((INT8, 32), "group is 32; for int8 it must be 0"), ((E4M3, 0, True), "zeros is true; e4m3 has none"),
])
def test_schemes_that_do_not_exist(arguments, message):
    with pytest.raises(ValueError, match=message):
        Scheme(*arguments)


def test_what_cannot_be_quantised_is_named():
    with pytest.raises(ValueError, match="weights has 96 columns; it must be a multiple of group, 64"):
        round_to_nearest(some_weights(), Scheme(INT4, 64))
    with pytest.raises(ValueError, match=r"hessian has shape \(3, 3\); weights with 96 columns need \(96, 96\)"):
        gptq(some_weights(), np.eye(3), SCHEMES["int8"])
    with pytest.raises(ValueError, match="hessian holds numbers that are not finite"):
        gptq(some_weights(), np.full((96, 96), np.nan), SCHEMES["int8"])
    w = dict(weights_of(random_tensors(SMALL), SMALL))
    w["layers.1.mlp.up_proj.weight"] = np.full((96, 64), np.inf)
    with pytest.raises(ValueError, match="layers.1.mlp.up_proj.weight holds numbers that are not finite"):
        list(quantize(SMALL, w, SCHEMES["int8"]))


def test_fitting_groups():
    assert fitting_groups(replace(SMALL, hidden_size=256, intermediate_size=704, num_attention_heads=8,
                                  num_key_value_heads=8, head_dim=32)) == [64, 32]
    with pytest.raises(ValueError, match="the layers have 64 and 88 inputs; 4 bits need multiples of 32"):
        fitting_groups(replace(SMALL, intermediate_size=88))


# --- A model ----------------------------------------------------------------------------------------------------------


def test_gptq_is_calibrated_with_the_inputs_of_each_layer():
    """The second layer's inputs are those that the quantised first one makes."""
    w = dict(weights_of(random_tensors(SMALL), SMALL))
    w = {name: array.astype(np.float32) for name, array in w.items()}
    texts, scheme, calls = random_prompts(SMALL, (40, 30)), SCHEMES["int4"], []
    found = dict(quantize(SMALL, w, scheme, texts, lambda *call: calls.append(call)))
    assert calls == [(n, 14) for n in range(1, 15)]
    assert sorted(found) == sorted(f"layers.{layer}.{name}.weight" for layer in range(2) for name in INPUTS)
    first = {name: quantized.dequantize() for name, quantized in found.items() if name.startswith("layers.0.")}
    for layer, model in ((0, w), (1, w | first)):
        for name, source in INPUTS.items():
            param = f"layers.{layer}.{name}.weight"
            inputs = np.concatenate([activations(SMALL, model, ids)[f"layers.{layer}.{source}"] for ids in texts])
            expected = gptq(w[param], hessian_of(inputs), scheme)
            different = found[param].codes != expected.codes  # float32 against float64: a code on the edge
            assert different.mean() < 0.01, param


@pytest.fixture
def folder(tmp_path):
    """A model in bfloat16, with the files of data/tiny-llama's tokenizer for a vocabulary as large."""
    import shutil

    from labkit._common.paths import REPOSITORY

    tiny = REPOSITORY / "data" / "tiny-llama"
    config = replace(SMALL, vocab_size=4096)
    path = tmp_path / "source"
    path.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, path)
    entries = {name: getattr(config, name) for name in LlamaConfig.required} | {
        "model_type": "llama", "num_key_value_heads": 1, "tie_word_embeddings": True, "eos_token_id": 0}
    (path / "config.json").write_text(json.dumps(entries))
    arrays = {name: bfloat16_of(array) for name, array in random_tensors(config).items()}
    write(path / "model.safetensors", arrays, dict.fromkeys(arrays, "BF16"))
    return path


@pytest.mark.parametrize("name", SCHEMES)
def test_a_folder_is_read_back_as_it_was_quantised(folder, tmp_path, name):
    config = LlamaConfig.read(folder / "config.json")
    w = dict(weights_of(read(folder / "model.safetensors"), config))
    write_folder(folder, tmp_path / "out", config, SCHEMES[name])
    loaded = load(str(tmp_path / "out"), dtype="bfloat16")
    found = weights_of(loaded.model.tensors, loaded.model.config)
    quantized = dict(quantize(config, w, SCHEMES[name]))
    for param in w:
        expected = quantized[param].dequantize() if param in quantized else w[param]
        np.testing.assert_array_equal(found[param], expected)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    with pytest.raises(ValueError, match="the model is quantised already"):
        write_folder(tmp_path / "out", tmp_path / "again", loaded.model.config, SCHEMES[name])


def test_the_words_of_the_folder_are_as_compressed_tensors_has_them(folder, tmp_path):
    """pack_to_int32 of compressed-tensors: 8 is added to signed codes, and the first is in the lowest bits."""
    config = LlamaConfig.read(folder / "config.json")
    w = weights_of(read(folder / "model.safetensors"), config)
    write_folder(folder, tmp_path / "out", config, Scheme(INT4, 32, zeros=True))
    found = read(tmp_path / "out" / "model.safetensors")
    expected = round_to_nearest(w["layers.0.mlp.down_proj.weight"], Scheme(INT4, 32, zeros=True))
    base = "model.layers.0.mlp.down_proj."
    packed, zeros = found[f"{base}weight_packed"].view(np.uint32), found[f"{base}weight_zero_point"].view(np.uint32)
    assert packed.shape == (64, 12) and zeros.shape == (8, 3) and found[f"{base}weight_shape"].tolist() == [64, 96]
    for column in range(96):
        np.testing.assert_array_equal(packed[:, column // 8] >> 4 * (column % 8) & 15, expected.codes[:, column])
    for row in range(64):
        np.testing.assert_array_equal(zeros[row // 8] >> 4 * (row % 8) & 15, expected.zeros[row])
    assert found.entries[f"{base}weight_scale"].dtype == "BF16"
    entries = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert entries["config_groups"]["group_0"]["weights"]["group_size"] == 32 and entries["format"] == "pack-quantized"


def test_nothing_is_left_when_it_is_stopped(folder, tmp_path):
    def stops(done, total):
        if done == 5:
            raise KeyboardInterrupt

    config = LlamaConfig.read(folder / "config.json")
    with pytest.raises(KeyboardInterrupt):
        write_folder(folder, tmp_path / "out", config, SCHEMES["int4"], None, stops)
    assert [file.name for file in tmp_path.iterdir()] == ["source"]
