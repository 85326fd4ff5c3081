"""A model against its reference: the first launch that diverges is named with its element, and dumped."""

import json
import sys
from types import ModuleType

import numpy as np
import pytest

from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.models import compare as comparison
from labkit.models.compare import compare, compare_model
from labkit.models.gpt2 import GPT2, Config, Kernels
from labkit.models.llama import Llama
from labkit.models.minilm import MiniLM
from labkit.models.qwen3 import Qwen3
from labkit.models.safetensors import read
from tests.models.test_llama_reference import golden
from tests.models.test_load import parameters, path  # noqa: F401
from tests.models.test_minilm import SMALL as SMALL_BERT
from tests.models.test_minilm import random_tensors as bert_tensors

GPT2_FOLDER = REPOSITORY / "tests" / "golden" / "gpt2-random"
IDS = json.loads((GPT2_FOLDER / "expected.json").read_text())["prompt"][:5]


def gpt2(kernels=None):
    return GPT2(Config.read(GPT2_FOLDER / "config.json"), read(GPT2_FOLDER / "model.safetensors"), kernels)


def spoils_one_element(call, index):
    """A LayerNorm that is right but for one element of one of its calls."""
    calls = []

    def layernorm(x, weight, bias, out, stream=0, **options):
        Kernels().layernorm(x, weight, bias, out, stream=stream, **options)
        calls.append(0)
        if len(calls) == call:
            wrong = out.copy_to_host()
            wrong[index] += 0.5
            out.copy_to_device(wrong)

    return layernorm


def test_the_launch_and_the_element_of_a_wrong_kernel_are_named(tmp_path):
    seen = []
    wrong = gpt2(Kernels(layernorm=spoils_one_element(4, (2, 3))))
    found = compare_model(wrong, IDS, dump=tmp_path / "dump", progress=seen.append)
    first = found.numpy.first
    assert not found.passed and found.transformers is None
    assert (first.name, first.index, first.outside) == ("h.1.ln_2", (2, 3), 1)
    assert first.ours - first.reference == pytest.approx(0.5, abs=1e-4) and 0 < first.allowed < 0.01
    text = str(found.numpy)
    assert "The first that differs is h.1.ln_2." in text
    assert f"the worst is [2, 3] of shape {first.shape}: ours {first.ours:.9g}, reference {first.reference:.9g}" in text
    assert "Comparing h.1.ln_2" in seen

    names = [row.name for row in found.numpy.rows]
    assert sorted(file.name for file in (tmp_path / "dump").iterdir()) == [
        f"{number:03}_{name}.npz" for number, name in enumerate(names)]
    arrays = np.load(tmp_path / "dump" / f"{names.index('h.1.ln_2'):03}_h.1.ln_2.npz")
    assert arrays["ours"][2, 3] == first.ours and arrays["reference"][2, 3] == first.reference


def test_what_is_not_finite_is_never_within_tolerance():
    def fills_with_nan(x, weight, bias, out, stream=0, **options):
        out.copy_to_device(np.full(out.shape, np.nan, np.float32))

    first = compare_model(gpt2(Kernels(layernorm=fills_with_nan)), IDS[:1]).numpy.first
    assert first.name == "h.0.ln_1" and first.error == np.inf and np.isnan(first.ours) and first.outside > 1


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen3"])
def test_beside_transformers(name, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    if name == "gpt2":
        model, ids, folder = gpt2(), IDS, GPT2_FOLDER
    else:
        known = golden(name)
        folder, ids = REPOSITORY / "tests" / "golden" / "llama" / name, list(known.prompt)[:5]
        model = (Qwen3 if name == "qwen3" else Llama)(known.config, known.tensors, "float32")
    found = compare_model(model, ids, folder, dump=tmp_path)
    found.numpy.check()
    found.transformers.check()
    layers = len(model.layers)
    assert len(found.transformers.rows) == layers + 3
    assert [row.name for row in found.transformers.rows][-1] == "logits"
    assert len(list(tmp_path.glob("*.transformers.npz"))) == layers + 3
    if name == "gpt2":  # a reference that is wrong in the same way as the model does not hide it
        model.layers[1]["ln_1.weight"].copy_to_device(np.zeros(model.config.n_embd, np.float32))
        wrong = compare_model(model, ids, folder)
        assert wrong.numpy.passed and wrong.transformers.first.name == "h.1.out" and not wrong.passed


@pytest.mark.sweep
def test_an_encoder():
    model = MiniLM(SMALL_BERT, bert_tensors(SMALL_BERT), np.float32)
    found = compare_model(model, [1, 2, 3])
    assert found.passed and found.numpy.rows[-1].name == "pooled"
    model.layers[1]["output.dense.bias"].copy_to_device(np.ones(SMALL_BERT.hidden_size, np.float32))
    assert compare_model(model, [1, 2, 3]).numpy.first.name == "layer.1.projected"


def test_by_name(path):  # noqa: F811
    found = compare(str(path), "a kernel")
    assert found.passed and isinstance(found.model, GPT2) and len(found.ids) > 1


def test_what_cannot_be_compared_is_a_sentence(path):  # noqa: F811
    for text, options, words in (
            ("", {}, "the prompt has no token"),
            ("a kernel " * 40, {}, "has a context of 32"),
            ("a", {"dtype": "int8"}, "dtype is 'int8'; for a GPT-2 it must be 'auto', 'float32' or 'float16'"),
            ("a", {"dtype": "float16"}, "dtype is 'float16'; the launches of .* are compared in 'float32'")):
        with pytest.raises(UserError, match=words):
            compare(str(path), text, **options)
    with pytest.raises(UserError, match="there is no folder ./none"):
        compare("./none", "a")


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_library_that_is_missing_is_named(monkeypatch, missing):
    for name in ("torch", "transformers"):  # whether the other one is installed here makes no difference
        monkeypatch.setitem(sys.modules, name, None if name == missing else ModuleType(name))
    with pytest.raises(UserError, match=f"and {missing} is not installed"):
        comparison._layers_of_transformers(gpt2(), GPT2_FOLDER, IDS)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["tiny", "tiny-llama"])
def test_trained_models_beside_transformers(name):
    pytest.importorskip("torch", reason="needs PyTorch")
    pytest.importorskip("transformers", reason="needs transformers")
    found = compare(name, "recursion: what is a kernel?", transformers=True)
    found.numpy.check()
    found.transformers.check()
