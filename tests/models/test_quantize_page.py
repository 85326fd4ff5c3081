"""The page of what fewer bits cost, and how its figures are measured."""

import math

import numpy as np

from labkit._common.files import read_json, read_text
from labkit._common.paths import REPOSITORY
from labkit.kernels.linear.quantized import INT8
from labkit.models import quantize_page
from labkit.models.configs import LlamaConfig
from labkit.models.gpt2_reference import weights_of
from labkit.models.llama_reference import activations
from labkit.models.load import tensors
from labkit.models.quantize import Scheme
from labkit.models.tokenizer import Tokenizer
from tests.models.test_quantize import folder  # noqa: F401

TEXTS = {"held_out": ["a kernel is a loop", "foo"],
         "trained": ["<|user|>What?<|end|><|assistant|>A loop.<|end|>", "bar"],
         "calibration": ["a loop is a kernel"]}


def test_the_page_is_that_of_the_figures():
    recorded = read_json(REPOSITORY / "data" / "quantized.json")
    assert read_text(REPOSITORY / "data" / "quantized.md") == quantize_page.page(recorded)
    texts = read_json(REPOSITORY / "data" / "tiny-llama" / "texts.json")
    assert recorded["texts"] == {part: len(several) for part, several in texts.items()}
    assert [row["format"] for row in recorded["rows"]] == list(quantize_page.ROWS)
    assert not set(texts["trained"]) & set(texts["calibration"])


def test_figures_of_a_model(folder):  # noqa: F811
    config = LlamaConfig.read(folder / "config.json")
    rows = {"bfloat16": (None, False), "int8": (Scheme(INT8), True)}
    found = quantize_page.measure(folder, TEXTS, rows)
    exact, quantized = found["rows"]
    w, tokenizer = dict(weights_of(tensors(folder), config)), Tokenizer.of(folder)
    linear = sum(array.size for name, array in w.items() if "_proj" in name)
    rows_of_linear = sum(len(array) for name, array in w.items() if "_proj" in name)
    assert exact["bytes"] == 2 * config.parameters and exact["bits"] == 16
    assert quantized["linear_bytes"] == linear + 2 * rows_of_linear + 14 * 16  # and the shape of each
    assert quantized["bytes"] == exact["bytes"] - 2 * linear + quantized["linear_bytes"]

    total, count = 0.0, 0
    for text in TEXTS["held_out"]:
        ids = tokenizer.encode(text)
        logits = activations(config, w, ids)["logits"]
        for position in range(len(ids) - 1):
            total -= math.log(np.exp(logits[position, ids[position + 1]]) / np.exp(logits[position]).sum())
            count += 1
    assert abs(exact["held_out"] - total / count) < 1e-4
    assert 0 < abs(quantized["held_out"] - exact["held_out"]) < 0.2
    assert (found["prompts"], exact["same_answers"], exact["same_tokens"]) == (1, 1, found["answer_tokens"])


def test_an_answer_is_what_the_model_writes(folder):  # noqa: F811
    """Token by token, and each again from the ones before it; another answer is recognised at its first difference."""
    config = LlamaConfig.read(folder / "config.json")
    w = dict(weights_of(tensors(folder), config))
    answer = quantize_page.greedy(config, w, [5, 6, 7], stop=())
    assert len(answer) == quantize_page.TOKENS
    assert quantize_page.greedy(config, w, [5, 6, 7], stop=(int(answer[2]),)).tolist() == answer[
        : answer.tolist().index(answer[2]) + 1].tolist()
    assert quantize_page.chosen(config, w, [5, 6, 7], answer).tolist() == answer.tolist()
    changed = answer.copy()
    changed[4] = (changed[4] + 1) % config.vocab_size
    same = quantize_page.chosen(config, w, [5, 6, 7], changed) == changed
    assert same[:4].all() and not same[4]
