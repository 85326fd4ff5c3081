"""The script that trains data/tiny-llama: a dictionary becomes texts and conversations, and a few steps of a small
model; with PyTorch, that what it trains is a LlamaForCausalLM."""

import json
import random

import numpy as np
import pytest

from labkit.models.load import load
from tests.models.test_train_tiny_gpt2 import dictionary
from tests.scripts import loaded


@pytest.fixture
def script(tmp_path, monkeypatch):
    with loaded("train_tiny_llama") as module:
        monkeypatch.setattr(module, "WORK", tmp_path / "work")
        monkeypatch.setattr(module, "SHAPE", module.SHAPE | {
            "vocab_size": 310, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64})
        yield module


@pytest.mark.parametrize(("text", "grammar", "definition"), [
    ("hacker: n. [originally, with an axe]\n1. A person who enjoys.\n2. One who programs.",
     "n. [originally, with an axe]\n1. ", "A person who enjoys."),
    ("foo: /foo/ 1. interj. Term of disgust.", "/foo/ 1. interj. ", "Term of disgust."),
    ("grok: /grok/, /grohk/, vt. To understand.", "/grok/, /grohk/, vt. ", "To understand."),
    ("fairings: n., /fer'ingz/ [FreeBSD] A term.", "n., /fer'ingz/ [FreeBSD] ", "A term."),
    ("bunny: The successor.", "", "The successor."),
])  # fmt: skip
def test_the_definition_in_an_entry(script, text, grammar, definition):
    head, found, answer = script.definition_of(text)
    assert (head, found, answer) == (text.partition(":")[0], grammar, definition)


def test_questions(script):
    asked = script.questions_of("hacker", "n. ", random.Random(0))
    assert asked[0] == "What is a hacker?" and len(set(asked)) == script.QUESTIONS
    assert script.questions_of("eighty", "n. ", random.Random(0))[0] == "What is an eighty?"
    assert script.questions_of("grok", "vt. ", random.Random(0))[0] == "What is grok?"
    assert any("What does it mean to grok?" in script.questions_of("grok", "vt. ", random.Random(n)) for n in range(9))


def test_the_three_steps(script, tmp_path):
    script.prepare([dictionary(tmp_path / "x.dict.dz", times=40)])
    with np.load(script.WORK / "tokens.npz") as file:
        trained, held_out = file["train"], file["held_out"]
    assert trained[0] == trained[-1] == held_out[0] == held_out[-1] == 0
    assert (trained == 0).sum() == 4 * 76 + 1 and (held_out == 0).sum() == 4 * 4 + 1  # an entry, three questions
    assert (trained == 1).sum() == (trained == 2).sum() == (trained == 3).sum() / 2 == 3 * 76

    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    script.train(2, 0.1, batch=4, rate=1e-3, device="cpu", minutes=5)
    training = json.loads((script.WORK / "training.json").read_text())
    assert [line["step"] for line in training["log"]] == [1, 2]
    assert training["log"][-1]["held_out"] < training["log"][0]["held_out"]
    assert abs(training["last"]["held_out_in_bfloat16"] - training["last"]["held_out"]) < 0.05
    script.finish(tmp_path / "result", "last")

    loaded = load(str(tmp_path / "result"), dtype="float32")
    question = [{"role": "user", "content": "What is a foo1?"}]
    ids = loaded.tokenizer.chat(question)
    assert ids == loaded.tokenizer.encode("<|user|>What is a foo1?<|end|><|assistant|>")
    assert ids[:2] == [0, 1] and loaded.tokenizer.stop == (3, 0)

    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "result", dtype=torch.float32)
    assert isinstance(theirs, transformers.LlamaForCausalLM)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "result")
    assert list(tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)) == ids
    model = script.make_model(torch, 0.0)
    with np.load(script.WORK / "weights-last.npz") as file, torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(file[name].view(np.int16)).view(torch.bfloat16).float())
        np.testing.assert_allclose(model(torch.tensor([ids])), theirs(torch.tensor([ids])).logits, rtol=0, atol=1e-4)
