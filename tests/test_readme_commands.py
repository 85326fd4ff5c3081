"""README's two commands, on one lesson and on one file of tests, as people start them: in the background of a script,
under nohup, with standard output or standard error closed, or a full output, without HOME, and in a path with spaces
and letters beyond ASCII. And what README quotes of what a command writes."""

import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit._common.paths import REPOSITORY

RUN = (sys.executable, "-m", "labkit", "run", "00")
# The command itself: `python -m pytest` would add the current directory to the import path, and it does not.
TESTS = (str(Path(sys.executable).with_name("pytest")), "-q", "-n", "2", "tests/_common/test_tables.py")


@pytest.fixture
def checkout(course_dir):
    """The small course, with this package and its tests in it, where a path is not plain."""
    root = course_dir.parent / "K\u00fcrs \u65e5\u672c, my copy"
    course_dir.rename(root)
    for name in ("labkit", "tests"):
        shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    return root


def start(command, root, out, preexec=None, without=(), **options) -> subprocess.CompletedProcess:
    # A kernel that finds pytest's variables opens standard streams of its own.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables |= {"LABKIT_COURSE": str(root), "LABKIT_DEVICE": "cpu"}
    if command is RUN:
        variables["PYTHONPATH"] = str(root)
    else:
        variables.pop("PYTHONPATH", None)
    return subprocess.run(command, cwd=root, stdout=out, stderr=subprocess.PIPE, text=True,
                          env={name: value for name, value in variables.items() if name not in without},
                          stdin=subprocess.DEVNULL, check=False, preexec_fn=preexec, **options)


def plainly(command, root):
    return start(command, root, subprocess.PIPE)


def in_a_terminal(command, root):
    ours, theirs = pty.openpty()
    with open(root / "seen", "wb") as seen:
        reader = subprocess.Popen(["cat"], stdin=ours, stdout=seen, stderr=subprocess.DEVNULL)  # or the terminal fills
        done = start(command, root, theirs)
        os.close(theirs)
        os.close(ours)
        reader.wait()
    return done


def in_the_background(command, root):
    return start(command, root, subprocess.PIPE, lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))


def under_nohup(command, root):
    def ignore():
        for one in (signal.SIGINT, signal.SIGHUP):
            signal.signal(one, signal.SIG_IGN)

    with open(root / "nohup.out", "w") as out:
        return start(command, root, out, ignore, start_new_session=True)


def with_a_closed_output(command, root):
    return start(command, root, None, lambda: os.close(1))


def with_closed_errors(command, root):
    done = start(command, root, subprocess.PIPE, lambda: os.close(2))
    assert not done.stderr
    return done


def with_a_full_output(command, root):
    with open("/dev/full", "w") as full:
        return start(command, root, full)


def without_home(command, root):
    return start(command, root, subprocess.PIPE, without=("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"))


WAYS = [plainly, in_a_terminal, in_the_background, under_nohup, with_a_closed_output, with_closed_errors,
        with_a_full_output, without_home]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.sweep
@pytest.mark.cpu_device
@pytest.mark.parametrize("way", WAYS)
def test_labkit_run(way, checkout):
    done = way(RUN, checkout)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert (checkout / "build" / "site" / "index.html").is_file()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.sweep
@pytest.mark.cpu_device
@pytest.mark.parametrize("way", WAYS)
def test_pytest(way, checkout):
    done = way(TESTS, checkout)
    assert done.returncode == 0 and "Traceback" not in done.stderr, (done.stdout, done.stderr)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.sweep
@pytest.mark.parametrize("way", [with_a_closed_output, with_a_full_output])
def test_a_failure_is_in_the_exit_code(way, checkout):
    (checkout / "tests" / "_common" / "test_tables.py").write_text("def test_that_fails():\n    assert False\n")
    assert way(TESTS, checkout).returncode == 1


@pytest.mark.cpu_device
@pytest.mark.parametrize("model", ["tiny", pytest.param("tiny-llama", marks=pytest.mark.sweep)])  # minutes to compile
def test_labkit_generate_writes_what_readme_quotes(model):
    """What begins as README shows it; [...] stands for what follows."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\$ labkit (generate .*)\n((?:(?!\$ |```).*\n)+)", readme, re.MULTILINE)
    (command, text), = [one for one in quoted if ("tiny-llama" in one[0]) == (model == "tiny-llama")]
    done = subprocess.run([sys.executable, "-m", "labkit", *shlex.split(command)], capture_output=True, text=True,
                          check=False, env={**os.environ, "LABKIT_DEVICE": "cpu"})
    shown, rest = " ".join(text.split()), ""
    if shown.endswith(" [...]"):
        shown, rest = shown.removesuffix(" [...]"), r" .+"
    assert done.returncode == 0 and re.fullmatch(re.escape(shown) + rest, " ".join(done.stdout.split())), done
