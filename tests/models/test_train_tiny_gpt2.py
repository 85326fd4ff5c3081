"""The script that trains data/tiny-gpt2: a dictionary becomes texts and tokens, and a few steps of a small model."""

import gzip
import json

import numpy as np
import pytest

from labkit.engine.sampler import generate
from labkit.models.load import load
from tests.scripts import loaded

DICTIONARY = """\
00-database-short
     A dictionary
foo
 /foo/

    1. interj. Term of
    disgust. See {
    bar}.

        +---+   +---+
        | f |   | o |

    2. [very common] Used very generally. See {metasyntactic variable}.

bar baz
 //, n.

    Something else.

empty

"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    with loaded("train_tiny_gpt2") as module:
        monkeypatch.setattr(module, "WORK", tmp_path / "work")
        monkeypatch.setattr(module, "SHAPE", module.SHAPE | {"vocab_size": 300, "n_positions": 32, "n_embd": 16,
                                                             "n_layer": 2, "n_head": 2})
        yield module


def dictionary(path, times=1):
    entries = "".join(DICTIONARY.replace("foo", f"foo{n}") for n in range(times))
    path.write_bytes(gzip.compress(entries.encode()))
    return path


def test_entries_become_texts(script, tmp_path):
    assert script.texts_of(dictionary(tmp_path / "x.dict.dz")) == [
        "foo0: /foo0/ 1. interj. Term of disgust. See bar.\n"
        "2. [very common] Used very generally. See metasyntactic variable.",
        "bar baz: n. Something else.",
    ]


def test_the_three_steps(script, tmp_path):
    script.prepare([dictionary(tmp_path / "x.dict.dz", times=40)])
    with np.load(script.WORK / "tokens.npz") as file:
        trained, held_out = file["train"], file["held_out"]
    assert trained[0] == trained[-1] == held_out[0] == held_out[-1] == 0
    assert (trained == 0).sum() == 77 and (held_out == 0).sum() == 5  # one more than entries

    pytest.importorskip("torch", reason="PyTorch is not installed")
    script.train([4], [0.1], batch=4, rate=1e-3, device="cpu", minutes=5)
    training = json.loads((script.WORK / "training.json").read_text())
    assert [line["step"] for line in training["runs"][0]["log"]] == [1, 2, 3, 4]
    assert training["runs"][0]["log"][-1]["held_out"] < training["runs"][0]["log"][0]["held_out"]
    script.finish(tmp_path / "result", "last")
    loaded = load(str(tmp_path / "result"))
    assert loaded.tokenizer.encode("foo1:")[0] == 0  # the mark at the beginning of a text
    assert len(list(generate(loaded.model, loaded.tokenizer.encode("foo1:"), 4))) >= 1
