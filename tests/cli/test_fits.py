"""labkit fits: what it can be asked, and its sentences for what it cannot."""

import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit.device import compiling
from labkit.device.gpus import GPUS

SOURCE = """\
from labkit import cuda

@cuda.jit
def blur(x, out):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        out[i] = (x[i - 1] + x[i] + x[i + 1]) / 3
"""


@pytest.fixture
def labkit(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli.app, ["fits", *arguments])


def needs_compiler():
    try:
        compiling.ptx(lambda out: None, "void(float32[::1])")
    except compiling.NoCompiler as error:
        pytest.skip(str(error))
    if compiling.ptxas() is None:
        pytest.skip("ptxas is not installed")


def test_without_a_name_the_gpus_are_listed(labkit):
    done = labkit()
    assert done.exit_code == 0 and all(name in done.output for name in GPUS)


@pytest.mark.sweep(every=True)
def test_a_kernel_in_a_file(labkit):
    needs_compiler()
    done = labkit("mine.py:blur", "--gpu", "t4,h100", "--block", "16,16", "--size", "x=1000000,out=1000000")
    assert done.exit_code == 0, done.output
    assert "blur(float32[::1], float32[::1]), 256 threads a block" in done.output
    assert "Types are assumed" in done.output and "(bytes)" in done.output and "of 256 threads is" not in done.output
    done = labkit("mine.py", "--gpu", "t4", "--types", "float64[::1], float64[::1]")
    assert "blur(float64[::1], float64[::1])" in done.output and "Types are assumed" not in done.output


@pytest.mark.sweep(every=True)
def test_a_rung_a_lesson_and_every_table(labkit):
    needs_compiler()
    done = labkit("vector_add", "--gpu", "t4", "--size", "n=4096")
    assert done.exit_code == 0 and "t4 (7.5)" in done.output and "registers" not in done.output
    done = labkit("01", "--gpu", "t4", "--verbose")
    assert done.exit_code == 0 and "registers" in done.output and "bound, ms" in done.output


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(("arguments", "words"), [
    (["--gpu", "t4"], "--gpu needs a kernel, a lesson or a file"),
    (["mine.py:blurr"], "mine.py has no kernel 'blurr'; its kernels are blur"),
    (["yours.py:blur"], "there is no file yours.py"),
    (["mine.py:blur", "--gpu", "gtx970"], "'gtx970' is no GPU known here"),
    (["mine.py:blur", "--block", "16x16"], "--block '16x16' is no block; write 256, or 16,16"),
    (["mine.py:blur", "--types", "float32[::1]"], "types: 1 are given, and blur has 2 parameters: x, out"),
    (["mine.py:blur", "--size", "x:3"], "--size: 'x:3' is no length"),
    (["softmax_online", "--types", "float32"], "--types is for a kernel in a file of yours"),
    (["softmax_online", "--block", "32"], "--block is for a kernel in a file of yours"),
    (["softmax_online", "--size", "M=3"], "size: softmax takes R=8,192, C=8,192, not M=3"),
    (["01", "--size", "n=3"], "--size is for an operation, a rung or a kernel; a lesson has several"),
    (["99"], "there is no chapter '99'"),
    (["softmax_onlin"], "did you mean softmax_online"),
])
def test_a_sentence_for_what_it_cannot_do(labkit, arguments, words):
    if "--types" in arguments and arguments[0].startswith("mine"):
        needs_compiler()
    done = labkit(*arguments)
    assert done.exit_code == 2, done.output
    assert words in " ".join((done.output + done.stderr).split())


def test_the_help_has_every_option(labkit):
    done = labkit("--help")
    assert all(f"--{name}" in done.output for name in ("gpu", "types", "block", "size", "verbose"))
