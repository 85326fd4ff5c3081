"""labkit compare: what it shows, its files, and what stops it."""

import numpy as np
import pytest
from typer.testing import CliRunner

from labkit import cli
from tests.models.test_load import parameters, path  # noqa: F401


@pytest.fixture
def compare(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli.app, ["compare", *arguments])


@pytest.mark.sweep
def test_compare_agrees_and_dumps(compare, path, tmp_path):  # noqa: F811
    done = compare(str(path), "a kernel", "--dump", "dump")
    assert done.exit_code == 0, done.output
    assert "17 activations of" in done.output and "all agree" in done.output
    assert len(list((tmp_path / "dump").glob("*.npz"))) == 17 and "Wrote 17 files to dump" in done.output
    (tmp_path / "dump" / "016_logits.npz").rename(tmp_path / "dump" / "099_of_another_model.npz")
    done = compare(str(path), "a", "--dump", "dump")
    assert "Wrote 17 files to dump" in done.output and "activations of 1 token: all agree" in done.output


def test_an_error_of_a_file_is_one_of_the_dump_only_where_there_is_one(compare, monkeypatch):
    def fails(*arguments, **options):
        raise OSError(28, "No space left on device", "/cache/x")

    monkeypatch.setattr("labkit.models.compare.compare", fails)
    done = compare("tiny", "a")
    assert isinstance(done.exception, OSError) and "--dump" not in done.output
    assert "--dump d cannot be written" in compare("tiny", "a", "--dump", "d").output


def test_compare_names_the_models_that_are_here():
    assert "tiny-gpt2" in CliRunner().invoke(cli.app, ["compare", "--help"]).output


@pytest.mark.sweep(every=True)
def test_compare_names_the_launch_of_a_planted_kernel(compare, path, monkeypatch):  # noqa: F811
    from labkit.models import gpt2

    right = gpt2.Kernels()

    def forgets_the_bias(x, weight, bias, out, stream=0, **options):
        right.layernorm(x, weight, weight, out, stream=stream, **options)

    monkeypatch.setattr(gpt2, "Kernels", lambda: type(right)(layernorm=forgets_the_bias))
    done = compare(str(path), "a kernel")
    assert done.exit_code == 1 and "The first that differs is h.0.ln_1." in done.output
    assert "the worst is [" in done.output and "not all agree" in done.output


def test_compare_refuses_in_a_sentence(compare, path, tmp_path):  # noqa: F811
    (tmp_path / "taken").write_text("")
    for arguments, words in (
            (("./none", "a"), "there is no folder ./none"),
            ((str(path), ""), "the prompt has no token"),
            ((str(path), "a", "--dtype", "int8"),
             "dtype is 'int8'; for a GPT-2 it must be 'auto', 'float32' or 'float16'"),
            ((str(path), "a", "--dump", "taken"), "--dump taken is a file; it must be a folder"),
            ((str(path), "a", "--dump", "taken/below"), "--dump taken/below cannot be written")):
        done = compare(*arguments)
        assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output


@pytest.mark.sweep(every=True)
def test_ctrl_c_leaves_whole_dumps(compare, path, tmp_path, monkeypatch):  # noqa: F811
    from labkit.models import compare as comparison

    written = []

    def stopped(target, **arrays):
        if written:
            raise KeyboardInterrupt
        written.append(target)
        comparison_write(target, **arrays)

    comparison_write = comparison._write
    monkeypatch.setattr(comparison, "_write", stopped)
    done = compare(str(path), "a kernel", "--dump", "dump")
    assert done.exit_code == 130 and "Stopped." in done.output
    (only,) = (tmp_path / "dump").iterdir()
    assert sorted(np.load(only)) == ["ours", "reference"]
