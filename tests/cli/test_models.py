"""labkit report and compare: what they show, their files, and what stops them."""

import numpy as np
import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit.measure import page, sts
from labkit.measure import report_minilm as comparison
from labkit.measure.page import Page, Section
from labkit.measure.series.minilm import TINY
from tests.models.test_load import parameters, path  # noqa: F401

PAGE = Page("small", "", (), (Section("one", "", ("text",)),))


class Encoder:
    max_seq_length = 16

    def encode(self, texts, *, batch_size=32, progress=None):
        if progress:
            progress(len(texts), len(texts))
        return np.array([[len(text), 1.0] for text in texts])


@pytest.fixture
def labkit(monkeypatch, tmp_path):
    """Runs the command; the page of the encoder is made of nothing but the pairs."""
    def page_of(loaded, pairs=None, encode=None, judged=None):
        if pairs is not None:
            judged(sts.judged(pairs, encode))
        return PAGE

    monkeypatch.setattr(comparison, "page_of", page_of)
    monkeypatch.setattr(comparison, "load", lambda name=None: comparison.Loaded(
        name or "made up", TINY, {}, None if name is None else Encoder()))
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(cli.app, ["report", *arguments])


def test_the_encoders_page_goes_to_a_file_of_its_own(labkit, tmp_path):
    done = labkit("minilm")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "Wrote build/report-minilm.html"
    assert "<h1>small</h1>" in (tmp_path / "build" / "report-minilm.html").read_text()
    assert labkit("minilm", "--out", "other.html").exit_code == 0 and (tmp_path / "other.html").is_file()


def test_pairs_are_judged_and_bad_lines_named(labkit, tmp_path):
    (tmp_path / "sts.csv").write_text("5.0\ta\ta\n1.0\ta\tbbbb\n3.0\ta\tbb\n" + "x\ty\tz\n" * 12)
    done = labkit("minilm", "--model", "folder", "--sts", "sts.csv")
    assert done.exit_code == 0, done.output
    assert "Spearman's correlation over 3 pairs: 1.0000" in done.output
    assert "sts.csv: left out: line 4: the score is 'x', which is no number" in done.output
    assert "line 14" not in done.output and "and 2 lines more, which the page names" in done.output


def test_wrong_use_is_a_sentence(labkit, tmp_path):
    (tmp_path / "sts.csv").write_text("5.0\ta\ta\n1.0\ta\tb\n")
    for arguments, words in (
            (("bert",), "there is no comparison 'bert'; there are gpt2 and minilm"),
            (("gpt2", "--sts", "sts.csv"), "--sts is not for gpt2"),
            (("minilm", "--prompts", "x.txt"), "--prompts is not for minilm"),
            (("minilm", "--sts", "none.csv"), "--sts none.csv is not there"),
            (("minilm", "--sts", "sts.csv"), "--sts needs a model with a tokenizer"),
            (("minilm", "--out", "sts.csv/page.html"), "cannot be written")):
        done = labkit(*arguments)
        assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output
    assert not (tmp_path / "build").exists()


def test_ctrl_c_leaves_the_page_that_was_there(labkit, tmp_path, monkeypatch):
    (tmp_path / "page.html").write_text("before")

    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "page_of", stopped)
    done = labkit("minilm", "--out", "page.html")
    assert done.exit_code == 130 and "Stopped." in done.output
    assert (tmp_path / "page.html").read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_gpt2_is_what_is_meant_without_a_name(labkit, tmp_path, monkeypatch):
    from labkit.measure import report

    monkeypatch.setattr(report, "page_of", lambda here=None: PAGE)
    assert labkit().output.splitlines()[-1] == "Wrote build/report.html"
    assert page.render(PAGE) == (tmp_path / "build" / "report.html").read_text()


# --- labkit compare --------------------------------------------------------------------------------------------------


@pytest.fixture
def compare(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli.app, ["compare", *arguments])


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
            ((str(path), "a", "--dtype", "int8"), "dtype is 'int8'"),
            ((str(path), "a", "--dump", "taken"), "--dump taken is a file; it must be a folder"),
            ((str(path), "a", "--dump", "taken/below"), "--dump taken/below cannot be written")):
        done = compare(*arguments)
        assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output


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
