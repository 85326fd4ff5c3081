"""labkit quantize: the folder it writes, what stops it, and that nothing is left then."""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit._common.paths import REPOSITORY
from tests import interrupts
from tests.models.test_load import parameters, path  # noqa: F401
from tests.models.test_quantize import folder  # noqa: F401


@pytest.fixture
def quantize(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli.app, ["quantize", *arguments])


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("arguments, format, method", [
    ((), "int4 in groups of 32", "rtn"), (("--zeros", "--calibration", "texts"), "int4 in groups of 32", "gptq"),
    (("--bits", "8"), "int8", "rtn"), (("--format", "fp8"), "fp8", "rtn"),
])
def test_it_writes_a_folder_that_generate_takes(quantize, folder, tmp_path, arguments, format, method):  # noqa: F811
    (tmp_path / "texts").write_text("a kernel is a loop\n\nkludge: n. a crock that works\n")
    done = quantize("source", "--out", "made/out", *arguments)
    assert done.exit_code == 0, done.output
    assert f"Wrote source in {format} to made/out, by {method}, in " in done.output
    before, after = ((tmp_path / name / "model.safetensors").stat().st_size for name in ("source", "made/out"))
    assert f"{before / 1e6:.1f} MB became {after / 1e6:.1f} MB" in done.output and after < before
    entries = json.loads((tmp_path / "made" / "out" / "config.json").read_text())
    weights = entries["quantization_config"]["config_groups"]["group_0"]["weights"]
    assert weights["num_bits"] == (4 if "int4" in format else 8)
    assert weights["symmetric"] == ("--zeros" not in arguments)
    if not arguments:
        done = CliRunner().invoke(cli.app, ["generate", "kludge", "--model", "made/out", "--tokens", "3", "--greedy"])
        assert done.exit_code == 0, done.output


def test_it_refuses_in_a_sentence_and_leaves_nothing(quantize, folder, path, tmp_path):  # noqa: F811
    (tmp_path / "empty").write_text("\n\n")
    before = sorted(file.name for file in tmp_path.iterdir())
    for arguments, words in (
            (("source", "--out", "empty"), "--out empty exists already"),
            (("source", "--out", "o", "--bits", "3"), "--bits 3 is not possible; allowed are 4 and 8"),
            (("source", "--out", "o", "--format", "int3"), "--format int3 is not known; allowed are int4, int8, fp8"),
            (("source", "--out", "o", "--bits", "4", "--format", "fp8"), "--format fp8 has 8 bits; leave out --bits"),
            (("source", "--out", "o", "--group", "64"), "--group 64 is not possible; for the layers of this model, "
                                                        "allowed are 32"),
            (("source", "--out", "o", "--bits", "8", "--group", "32"), "--group is for int4; int8 has a scale"),
            (("source", "--out", "o", "--format", "fp8", "--zeros"), "--zeros is for int4; fp8 has a scale"),
            (("source", "--out", "o", "--method", "awq"), "--method awq is not known; allowed are gptq, rtn"),
            (("source", "--out", "o", "--method", "gptq"), "--method gptq needs --calibration FILE"),
            (("source", "--out", "o", "--method", "rtn", "--calibration", "empty"), "--calibration is for --method"),
            (("source", "--out", "o", "--calibration", "none"), "--calibration none does not exist"),
            (("source", "--out", "o", "--calibration", "empty"), "--calibration empty has no text"),
            (("./none", "--out", "o"), "there is no folder ./none"),
            (("model", "--out", "o"), "MODEL is a GPT2; only a Llama or a Qwen3 can be quantised"),
            (("source", "--out", "empty/o"), "--out empty/o cannot be written: File exists"),
    ):
        done = quantize(*arguments)
        assert done.exit_code == 2 and words in done.output.replace("\n", " "), done.output
    assert sorted(file.name for file in tmp_path.iterdir()) == before
    assert quantize("source", "--out", "o").exit_code == 0
    done = quantize("o", "--out", "again")
    assert done.exit_code == 2 and "MODEL o is quantised already" in done.output


SLOW = """
import sys, threading
from labkit.models import quantize

def slow(*arguments, original=quantize.round_to_nearest):
    print("begun", flush=True)
    threading.Event().wait(30)

quantize.round_to_nearest = slow
sys.argv = ["labkit", "quantize", "source", "--out", "out"]
from labkit import cli
cli.main()
"""


@pytest.mark.sweep(every=True)
@pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")
def test_ctrl_c_leaves_nothing(folder, tmp_path):  # noqa: F811
    process = interrupts.popen([sys.executable, "-c", SLOW], cwd=tmp_path, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LABKIT_DEVICE": "cpu"})
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Stopped." in errors and "Traceback" not in errors
    assert [file.name for file in tmp_path.iterdir()] == ["source"]
