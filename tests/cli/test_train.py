"""labkit train, as a user runs it."""

import json
import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit.course import yours
from labkit.models import safetensors
from labkit.train.checkpoint import OPTIMIZER, TRAINING

CONFIG = """
[model]
model_type = "llama"
vocab_size = 300
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 32
max_position_embeddings = 16

[data]
text = ["text.txt"]

[train]
steps = 4
batch = 2
length = 16
accumulation = 2
warm_up = 1
held_out_every = 2
save_every = 1
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs the command in a folder with settings and a text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    (tmp_path / "tiny.toml").write_text(CONFIG)
    (tmp_path / "text.txt").write_text("".join(f"{i} times {i} is {i * i}.\n" for i in range(200)))
    return lambda *arguments: CliRunner().invoke(cli.app, ["train", "tiny.toml", *arguments])


@pytest.mark.sweep
def test_a_run_that_was_stopped_ends_with_the_same_bits(train, tmp_path):
    assert train("--out", "whole").exit_code == 0
    assert train("--out", "parts", "--steps", "1").exit_code == 0
    # A writer killed between the two moves of a folder: the old one stands aside, nothing in its place.
    aside = tmp_path / ".parts-labkit-old-abcdefgh"
    aside.mkdir()
    (tmp_path / "parts").rename(aside / "old")
    done = train("--out", "parts", "--resume")
    assert done.exit_code == 0
    assert "Step 4 of 4: the checkpoint is in parts" in done.stdout and "held out" in done.stdout
    whole, parts = (safetensors.read(tmp_path / name / OPTIMIZER) for name in ("whole", "parts"))
    for name in ("master", "m", "v"):
        assert np.array_equal(whole[name].view(np.uint8), parts[name].view(np.uint8))
    training = json.loads((tmp_path / "parts" / TRAINING).read_text())
    assert training["step"] == 4 and training["settings"] == tomllib.loads(CONFIG)
    assert "Loss of training" in (tmp_path / "parts" / "loss.svg").read_text()


@pytest.mark.sweep
def test_a_run_with_the_kernels_of_exercises(train, tmp_path, monkeypatch):
    seen, read = [], yours.answers

    def answers(*names):
        seen.extend(names)
        return read("gather_backward", "score_gradients", solutions=True)

    monkeypatch.setattr("labkit.course.yours.answers", answers)
    done = train("--out", "mine", "--yours", "--steps", "2")
    assert done.exit_code == 0, done.output
    assert "Your kernels: gather_backward (the gradient of the embedding), score_gradients" in done.stderr
    assert {"rmsnorm_block", "rope_heads", "gather_backward"} <= set(seen) and "layernorm_two_sums" not in seen
    assert train("--out", "own", "--steps", "2").exit_code == 0
    mine, own = (json.loads((tmp_path / name / TRAINING).read_text())["log"] for name in ("mine", "own"))
    assert [entry["loss"] for entry in mine] == pytest.approx([entry["loss"] for entry in own], abs=1e-5)
    (tmp_path / "tiny.toml").write_text(CONFIG + 'dtype = "bfloat16"\n')
    done = train("--out", "half", "--yours")
    assert done.exit_code == 2 and "--yours needs train.dtype float32, not bfloat16" in done.stderr


@pytest.mark.sweep
def test_a_vocabulary_that_is_slow_in_16_bits_is_named(train, tmp_path):
    sentence = "model.vocab_size is 300, no multiple of 8: in bfloat16 the products with the embedding are slower"
    assert sentence not in train("--out", "single", "--steps", "1").stderr
    (tmp_path / "tiny.toml").write_text(CONFIG + 'dtype = "bfloat16"\n')
    done = train("--out", "half", "--steps", "1")
    assert done.exit_code == 0 and f"{sentence}; 304 leaves the last rows unused" in done.stderr


def test_a_run_that_cannot_begin_ends_with_a_sentence(train, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for arguments, sentence in [
        (("--out", "taken"), "--out taken is there already; --resume continues its run"),
        (("--out", "new", "--resume"), "new holds no checkpoint to resume"),
    ]:
        done = train(*arguments)
        assert done.exit_code == 2 and sentence in done.stderr
    (tmp_path / "text.txt").write_text("too short")
    done = train("--out", "new")
    assert done.exit_code == 2 and "at least 17 are needed" in done.stderr
    (tmp_path / "text.txt").unlink()
    done = train("--out", "new")
    assert done.exit_code == 2 and "text.txt does not exist" in done.stderr
    assert not (tmp_path / "new").exists()
