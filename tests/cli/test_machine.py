"""What a machine refuses to any command: a sentence and an exit code, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import DRIVER

# A disk that is full or read-only, where labkit makes the files and folders that it will put in place.
REFUSING = """\
import errno, os, sys, tempfile
number = getattr(errno, sys.argv.pop(1))
def refusing(make):
    def refuse(*arguments, dir=None, **options):
        if dir is not None:
            raise OSError(number, os.strerror(number), str(dir))
        return make(*arguments, **options)
    return refuse
tempfile.mkstemp, tempfile.mkdtemp = refusing(tempfile.mkstemp), refusing(tempfile.mkdtemp)
"""


def run(*command: str, cwd: Path, to=subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *command], cwd=cwd, stdout=to, stderr=subprocess.PIPE, text=True,
                          check=False, env={**os.environ, "LABKIT_DEVICE": "cpu", "COLUMNS": "200", **environment})


def assert_one_sentence(done: subprocess.CompletedProcess, words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("labkit: ") and words in lines[0], done.stderr


@pytest.mark.sampled(1, sweep=99, quick="--version")
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", ["learn --list", "progress --json", "--help", "--version"])
def test_an_output_that_is_full(arguments, course_dir):
    with open("/dev/full", "w") as full:
        done = run("-m", "labkit", *arguments.split(), cwd=course_dir, to=full, LABKIT_COURSE=str(course_dir))
    assert_one_sentence(done, "the output cannot be written or read: no space is left on the device")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no directory that is in use")
@pytest.mark.parametrize("arguments", ["learn --list", "progress", "build --check", "grade x", "--version"])
def test_a_directory_that_is_gone(arguments, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os, sys; os.rmdir({str(gone)!r}); from labkit.cli import main; main()"
    assert_one_sentence(run("-c", program, *arguments.split(), cwd=gone), "the current directory no longer exists")


@pytest.mark.parametrize("arguments", ["learn --list", "progress"])
def test_an_output_that_lacks_letters(arguments, course_dir):
    path = course_dir / "course.toml"
    path.write_text(path.read_text().replace('"First"', '"Fïrst \u2192 \U0001f600"'), encoding="utf-8")
    done = run("-m", "labkit", *arguments.split(), cwd=course_dir, LABKIT_COURSE=str(course_dir),
               PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "F?rst ? ?" in done.stdout, done.stderr


@pytest.mark.sampled(0, sweep=6)
@pytest.mark.parametrize(("error", "words"), [("ENOSPC", "no space is left on the device"),
                                              ("EROFS", "the file system is read-only")])
@pytest.mark.parametrize("command", ["build", "site", "run"])
def test_a_disk_that_refuses(command, error, words, course_dir):
    done = run("-c", REFUSING + DRIVER, error, str(course_dir), command, cwd=course_dir)
    assert_one_sentence(done, words)


def test_each_package_runs_the_command(course_dir):
    for package in ("labkit", "labkit.cli"):
        done = run("-m", package, "--version", cwd=course_dir)
        assert done.returncode == 0 and done.stdout.startswith("labkit "), done.stderr
