"""`labkit generate`: the text comes piece by piece, the same for the same seed, and stops cleanly."""

import json

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file
from typer.testing import CliRunner

from labkit import cli
from labkit._common.errors import UserError
from labkit.engine.sampler import Sampler, generate
from labkit.engine.text import Continuation, write
from labkit.models.configs import shapes
from labkit.models.gpt2 import Config
from labkit.models.load import load

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

SHAPE = {"vocab_size": 300, "n_positions": 24, "n_embd": 8, "n_layer": 1, "n_head": 2}
CHANCE = Sampler(temperature=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    rng = np.random.default_rng(5)
    (path / "config.json").write_text(json.dumps(SHAPE | {"model_type": "gpt2", "eos_token_id": 0}))
    save_file({name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes(Config(**SHAPE)).items()},
              path / "model.safetensors")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["a kernel is a loop"], vocab_size=300, special_tokens=["<|endoftext|>"],
                                  show_progress=False)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def loaded(folder):
    return load(str(folder))


def test_the_pieces_are_the_tokens_as_text(loaded):
    pieces = []
    continuation = write(loaded, "a kernel", pieces.append, tokens=12, sampler=CHANCE, seed=3)
    ids = list(generate(loaded.model, loaded.tokenizer.encode("a kernel"), 12, CHANCE, seed=3, stop=(0,)))
    ids = [token for token in ids if token != 0]
    assert continuation.text == "".join(pieces) == loaded.tokenizer.decode(ids)
    assert continuation.tokens == len(ids) > 1
    assert continuation.prompt_tokens == len(loaded.tokenizer.encode("a kernel"))
    assert continuation.prefill_s > 0 and continuation.per_second > 0
    assert f"{continuation.tokens} tokens, {continuation.ended}; the first after" in str(continuation)


def test_the_rate_is_of_the_tokens_after_the_first():
    """The first one's time is that of the prompt."""
    assert Continuation(3, tokens=5, prefill_s=100.0, decode_s=2.0).per_second == 2.0
    assert Continuation(3, tokens=1, prefill_s=1.0).per_second is None


def test_why_it_ended_is_reported(loaded, monkeypatch):
    def ended(tokens):
        return write(loaded, "a kernel", lambda piece: None, tokens=tokens).ended

    assert ended(2) == "as many as were asked for"
    assert ended(200) == "then the context of 24 was full"
    third = list(generate(loaded.model, loaded.tokenizer.encode("a kernel"), 3))[2]
    monkeypatch.setattr(loaded.tokenizer, "stop", (third,))
    assert ended(200) == "then the model ended its text"


def test_the_text_before_a_stop_is_kept(loaded):
    def stop_at_once(piece):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        write(loaded, "a loop", stop_at_once, tokens=12, sampler=CHANCE, seed=3)
    assert stopped.value.continuation.tokens >= 1 and stopped.value.continuation.text


@pytest.mark.parametrize(("prompt", "message"), [("", "the prompt has no token"),
                                                 ("a kernel is a loop " * 30, "has a context of 24")])
def test_a_prompt_that_cannot_be_gone_on_from_is_refused(loaded, prompt, message):
    with pytest.raises(UserError, match=message):
        write(loaded, prompt, print)


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(cli.app, ["generate", *arguments])


def test_the_command_writes_the_prompt_and_what_follows(run, folder):
    options = ("a kernel", "--model", str(folder), "--tokens", "6", "--temperature", "1")
    first, second, other = run(*options), run(*options), run(*options, "--seed", "8")
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("a kernel") and first.stdout.endswith("\n")
    assert first.stdout == second.stdout != other.stdout
    status = " ".join(first.stderr.split())
    assert "1 layers, 8 wide" in status and "6 tokens, as many as were asked for" in status and "a second" in status


def test_a_prompt_that_is_refused_is_not_written(run, folder):
    done = run("a kernel is a loop " * 30, "--model", str(folder))
    assert done.exit_code == 2 and not done.stdout and "has a context of 24" in " ".join(done.stderr.split())


@pytest.mark.parametrize("pieces", [0, 2])
def test_stopped_by_ctrl_c_the_line_is_ended(run, folder, monkeypatch, pieces):
    from labkit.engine import text as generating

    def stopped(loaded, prompt, show, **options):
        continuation = generating.Continuation(2, decode_s=0.5)
        for continuation.tokens in range(1, pieces + 1):
            show("x")
        error = KeyboardInterrupt()
        error.continuation = continuation
        raise error

    monkeypatch.setattr(generating, "write", stopped)
    done = run("a kernel", "--model", str(folder))
    assert done.exit_code == 130 and done.stdout == ("a kernelxx\n" if pieces else "")
    assert ("2 tokens; the first after" in done.stderr) is bool(pieces) and done.stderr.endswith("labkit: Stopped.\n")


@pytest.mark.parametrize(("options", "message"), [
    (("--temperature", "-1"), "temperature is -1"), (("--top-p", "2"), "top_p is 2"),
    (("--model", "./nowhere"), "there is no folder ./nowhere"), (("--device", "tpu"), "tpu is not known")])
def test_wrong_use_is_named(run, folder, options, message):
    done = run("a kernel", *(options if "--model" in options else ("--model", str(folder), *options)))
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_the_kernels_of_the_exercises_write_the_same_text(run, folder, monkeypatch):
    from labkit.course import yours

    arguments = ("a kernel", "--model", str(folder), "--greedy", "--tokens", "6")
    without = run(*arguments)
    done = yours.answers("saxpy", "add_row", "layernorm_two_sums", solutions=True)
    monkeypatch.setattr(yours, "answers", lambda *names: done)
    with_them = run(*arguments, "--yours")
    assert without.exit_code == with_them.exit_code == 0, with_them.output
    assert with_them.stdout == without.stdout
    assert "Your kernels: saxpy (the residuals), add_row (the biases)" in " ".join(with_them.stderr.split())
