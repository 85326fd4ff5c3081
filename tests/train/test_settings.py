"""Every bad value of the settings is an error that names the key, the value and what is allowed."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.train.settings import Settings, Train
from labkit.train.texts import Texts, token_file, train_tokenizer
from labkit.train.trainer import bytes_needed, check_memory
from tests.train.tiny import GPT2, LLAMA, MODELS, TRAIN, settings_of, texts_of

DATA = {"tokens": ["ids.npy"], "tokenizer": "."}


@pytest.mark.parametrize("table, key, value, message", [
    ("train", "steps", 0, "train.steps is 0; it must be a whole number of at least 1"),
    ("train", "learning_rate", -1, "train.learning_rate is -1; it must be a number above 0"),
    ("train", "betas", [0.9], r"train.betas is \[0.9\]; it must be two numbers between 0 and 1"),
    ("train", "dtype", "float16", "train.dtype is 'float16'; it must be \"float32\" or \"bfloat16\""),
    ("train", "stepz", 3, "train.stepz is no setting; did you mean steps"),
    ("train", "warm_up", 7, "train.warm_up is 7; it must be at most train.steps, 6"),
    ("train", "least_rate", 1.0, "train.least_rate is 1.0; it must be at most train.learning_rate"),
    ("train", "length", 17, "train.length is 17; the model has 16 positions"),
    ("data", "held_out", 1.0, "data.held_out is 1.0; it must be a number between 0 and 1"),
    ("data", "text", ["a"], "exactly one of them must name files"),
    ("data", "tokenizer", "", "data.tokenizer is missing"),
    ("model", "model_type", "bert", "model.model_type is 'bert'; it must be 'gpt2' or 'llama'"),
    ("model", "head_dim", 16, "a head has 16 elements; 32, 64, 128 are allowed"),
    ("model", "hidden_size", 0, "hidden_size is 0; it must be a whole number"),
    ("model", "n_embd", 8, "model.n_embd is no setting of a llama"),
])
def test_bad_values_are_named(table, key, value, message):
    entries = {"model": dict(LLAMA), "data": dict(DATA), "train": dict(TRAIN)}
    entries[table][key] = value
    with pytest.raises(UserError, match=message):
        Settings.of(entries)


def test_files_that_are_missing_or_no_toml_are_named(tmp_path):
    with pytest.raises(UserError, match="minute.toml is an example"):
        Settings.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("steps = = 3")
    with pytest.raises(UserError, match="bad.toml is no TOML"):
        Settings.read(tmp_path / "bad.toml")


def test_the_example_is_valid():
    assert Settings.read(REPOSITORY / "data" / "minute.toml").train.steps == 250


def test_the_rate_rises_and_falls():
    rates = Train(steps=10, warm_up=2, learning_rate=1.0, least_rate=0.1).rates()
    assert rates.dtype == np.float32 and rates[:3].tolist() == [0.5, 1.0, 1.0]
    assert np.all(np.diff(rates[2:]) < 0) and 0.1 < rates[-1] < 0.15


def test_batches_depend_on_seed_and_step_alone():
    texts = texts_of(settings_of("llama"))
    ids, targets = texts.batch(3)
    assert ids.shape == targets.shape == (2, 32) and ids.dtype == np.int32
    assert np.array_equal(texts.batch(3)[0], ids) and not np.array_equal(texts.batch(4)[0], ids)
    assert np.array_equal(ids.reshape(2, 2, 16)[..., 1:], targets.reshape(2, 2, 16)[..., :-1])


def test_processes_draw_the_windows_of_a_larger_batch():
    whole = texts_of(settings_of("llama", batch=4))
    parts = [texts_of(settings_of("llama", batch=2), process=process, processes=2) for process in range(2)]
    for part in range(2):  # the windows, and what follows
        expected = whole.batch(3)[part].reshape(2, 4, 16)
        found = [one.batch(3)[part].reshape(2, 2, 16) for one in parts]
        assert np.array_equal(np.concatenate(found, axis=1), expected)
    with pytest.raises(ValueError, match="process is 2; it must be 0 to 1, of 2 processes"):
        texts_of(settings_of("llama"), process=2, processes=2)


def test_held_out_windows_are_counted_once():
    texts = texts_of(settings_of("llama"))
    batches = list(texts.held_out_batches())
    assert len(texts.held_out) == 60 and sum((targets >= 0).sum() for _, targets in batches) == 3 * 16


def test_too_few_tokens_are_an_error():
    with pytest.raises(UserError, match="data: 2 tokens are held out; at least 17 are needed"):
        Texts(settings_of("llama"), np.zeros(20, np.int64), None)
    with pytest.raises(UserError, match="token 64 is not in the vocabulary; model.vocab_size is 64"):
        Texts(settings_of("llama"), np.full(600, 64), None)


def test_a_tokenizer_is_trained_that_writes_every_text():
    tokenizer = train_tokenizer(["the cat and the dog"], 260)
    assert tokenizer.get_vocab_size() <= 260
    assert tokenizer.decode(tokenizer.encode("naïve cat").ids) == "naïve cat"
    with pytest.raises(UserError, match="model.vocab_size is 64; a tokenizer that is trained has at least 257"):
        train_tokenizer(["a"], 64)


@pytest.mark.parametrize("kind", MODELS)
def test_a_run_that_does_not_fit_is_refused_before_it_starts(kind):
    needed = bytes_needed(settings_of(kind))
    check_memory(settings_of(kind), free=needed)
    with pytest.raises(UserError, match="the run needs .* GB of the device's memory, and .* GB are free"):
        check_memory(settings_of(kind), free=needed - 1)


def test_windows_that_begin_with_a_text():
    settings = settings_of("gpt2", batch=4)
    settings = dataclasses.replace(settings, data=dataclasses.replace(settings.data, from_start=0.5))
    ids = np.arange(600) % 50 + 1
    ids[::70] = 0
    tokenizer = SimpleNamespace(token_to_id={"<|endoftext|>": 0}.get)
    texts = Texts(settings, ids, tokenizer)
    windows = texts.batch(3)[0].reshape(2, 4, 16)
    assert (windows[:, :2, 0] == 0).all() and len({*windows[:, :2, 1].flat}) > 1
    anywhere = Texts(settings_of("gpt2", batch=4), ids, tokenizer).batch(3)[0].reshape(2, 4, 16)
    assert (windows[:, 2:] == anywhere[:, 2:]).all()
    with pytest.raises(UserError, match="data.from_start is 0.5, but no text to train on begins with"):
        Texts(settings, ids[ids > 0], tokenizer)


@pytest.mark.parametrize("wrong", [-1, 64, 2**32 + 1])
def test_a_token_outside_the_vocabulary(wrong):
    settings = settings_of("gpt2")
    for part in ("ids", "held_out"):
        parts = {name: np.zeros(40, np.int64) for name in ("ids", "held_out")}
        parts[part][3] = wrong
        with pytest.raises(UserError, match=f"token {wrong} is not in the vocabulary"):
            Texts(settings, parts["ids"], None, held_out=parts["held_out"])


def test_files_that_are_held_out(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(40))
    np.save(tmp_path / "b.npy", np.arange(20))
    data = {"tokens": ["a.npy"], "held_out": ["b.npy"], "tokenizer": "t.json"}
    entries = {"model": GPT2, "train": TRAIN, "data": data}
    (tmp_path / "t.json").write_text(train_tokenizer(["abc"], 257).to_str())
    texts = Texts.read(Settings.of(entries, tmp_path))
    assert (texts.tokens == np.arange(40)).all() and (texts.held_out == np.arange(20)).all()


def test_token_files_that_cannot_be_read(tmp_path):
    (tmp_path / "text.npy").write_text("no numbers")
    np.save(tmp_path / "floats.npy", np.zeros(4))
    for name, message in (("none", "data.tokens: .*none.npy does not exist"),
                          ("text", "data.tokens: .*text.npy is no NumPy file that can be read"),
                          ("floats", "data.tokens: .*floats.npy must hold one array of whole numbers")):
        with pytest.raises(UserError, match=message):
            token_file(tmp_path / f"{name}.npy")
