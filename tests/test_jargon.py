"""scripts/jargon.py: a dictionary becomes texts, conversations and tokens, that `labkit.train` turns into a model that
answers."""

import gzip
import random
import tomllib

import numpy as np
import pytest

from labkit._common.paths import REPOSITORY
from labkit.models.load import load
from labkit.train import checkpoint
from labkit.train.settings import Settings
from labkit.train.texts import Texts
from labkit.train.trainer import Trainer
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
def script():
    with loaded("jargon") as module:
        yield module


def entries_of(script, path, times=1):
    path.write_bytes(gzip.compress("".join(DICTIONARY.replace("foo", f"foo{n}") for n in range(times)).encode()))
    return script.texts_of(path)


def test_entries_become_texts(script, tmp_path):
    assert entries_of(script, tmp_path / "x.dict.dz") == [
        "foo0: /foo0/ 1. interj. Term of disgust. See bar.\n"
        "2. [very common] Used very generally. See metasyntactic variable.",
        "bar baz: n. Something else.",
    ]


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


def settings_of(name: str, folder, **model) -> Settings:
    """Those of data/NAME.toml for a smaller model and a few steps in float32, on the tokens in a folder."""
    entries = tomllib.loads((REPOSITORY / "data" / f"{name}.toml").read_text())
    entries["model"] |= model
    entries["data"] |= {"tokens": ["train.npy"], "held_out": ["held_out.npy"], "tokenizer": "."}
    entries["train"] |= {"steps": 2, "batch": 2, "length": 32, "warm_up": 1, "dtype": "float32", "held_out_every": 1}
    return Settings.of(entries, folder)


@pytest.mark.sweep(every=True)
def test_tokens_of_the_gpt2_become_a_model(script, tmp_path):
    script.for_gpt2(entries_of(script, tmp_path / "x.dict.dz", times=40), tmp_path, vocab_size=300)
    trained, held_out = (np.load(tmp_path / f"{part}.npy") for part in ("train", "held_out"))
    assert trained[0] == trained[-1] == held_out[0] == held_out[-1] == 0
    assert (trained == 0).sum() == 77 and (held_out == 0).sum() == 5  # one more than entries
    settings = settings_of("tiny-gpt2", tmp_path, vocab_size=300, n_positions=32, n_embd=32, n_layer=1, n_head=1)
    trainer = Trainer(settings, Texts.read(settings))
    first, last = (progress.held_out for progress in trainer.run())
    assert last < first
    checkpoint.save(tmp_path / "result", trainer)
    model = load(str(tmp_path / "result"))
    assert model.tokenizer.encode("foo1:")[0] == 0 and model.tokenizer.stop == (0,)
    stored = checkpoint.read(tmp_path / "result" / "model.safetensors")["transformer.wte.weight"]
    assert stored.dtype == np.float16  # what the file has, whatever the run computes in
    np.testing.assert_allclose(stored, trainer.buffer.tensors()["transformer.wte.weight"], rtol=2**-11, atol=1e-7)


def test_tokens_of_the_llama_become_a_model(script, tmp_path):
    script.for_llama(entries_of(script, tmp_path / "x.dict.dz", times=40), tmp_path, vocab_size=310)
    trained, held_out = (np.load(tmp_path / f"{part}.npy") for part in ("train", "held_out"))
    assert trained[0] == trained[-1] == held_out[0] == held_out[-1] == 0
    assert (trained == 0).sum() == 4 * 76 + 1 and (held_out == 0).sum() == 4 * 4 + 1  # an entry, three questions
    assert (trained == 1).sum() == (trained == 2).sum() == (trained == 3).sum() / 2 == 3 * 76
    settings = settings_of("tiny-llama", tmp_path, vocab_size=310, hidden_size=64, intermediate_size=96,
                           num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                           max_position_embeddings=64)
    checkpoint.save(tmp_path / "result", Trainer(settings, Texts.read(settings)))
    tokenizer = load(str(tmp_path / "result"), dtype="float32").tokenizer
    question = [{"role": "user", "content": "What is a foo1?"}]
    ids = tokenizer.chat(question)
    assert ids == tokenizer.encode("<|user|>What is a foo1?<|end|><|assistant|>")
    assert ids[:2] == [0, 1] and tokenizer.stop == (3, 0)

    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "result")
    assert list(theirs.apply_chat_template(question, add_generation_prompt=True, return_dict=False)) == ids
