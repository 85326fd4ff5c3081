"""python -m labkit.simt: programs run as Python runs them, with the CPU device in the place of numba.cuda."""

import os
import signal
import subprocess
import sys

import pytest

from labkit.simt.__main__ import main
from tests import interrupts

pytestmark = pytest.mark.cpu_device
PROGRAM = """
import os, sys
import numpy as np
from numba import cuda

@cuda.jit
def add_up(a, total):
    i = cuda.grid(1)
    total[0] += a[i]

@cuda.jit
def fill(a):
    a[cuda.grid(1)] = 1

a, total = np.zeros(32), np.zeros(1)
fill[1, 64 if "beyond" in sys.argv else 32](a)
if "race" in sys.argv:
    add_up[1, 32](a, total)
print(__name__, sys.argv[1:], os.path.basename(__file__), sys.path[0], a.sum())
if "raise" in sys.argv:
    1 / 0
sys.exit(7 if "exit" in sys.argv else None)
"""


def simt(*args, cwd=None, text=None):
    return subprocess.run([sys.executable, "-m", "labkit.simt", *args], capture_output=True, text=True, cwd=cwd,
                          input=text, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def test_a_script(program):
    done = simt(program, "exit", "-m", "--observe")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == f"__main__ ['exit', '-m', '--observe'] program.py {program.parent} 32.0\n"


def test_a_module(program):
    done = simt("-m", "program", "x", cwd=program.parent)
    assert (done.returncode, done.stdout) == (0, f"__main__ ['x'] program.py {program.parent} 32.0\n")


@pytest.mark.sweep(every=True)
def test_text_and_standard_input():
    text = "import sys\nfrom numba import cuda\n@cuda.jit\ndef k(): pass\nk[1, 1]()\nprint(sys.argv, sys.path[:1])"
    assert simt("-c", text, "x").stdout == "['-c', 'x'] ['']\n"
    assert simt("-", "x", text=text).stdout == "['-', 'x'] ['']\n"


def test_a_traceback_begins_with_the_program(program):
    done = simt(program, "raise")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1] == f'  File "{program}", line 21, in <module>'
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_the_traceback_of_a_kernel_ends_with_the_launch(program):
    done = simt(program, "beyond")
    files = [line for line in done.stderr.splitlines() if line.startswith("  File")]
    assert files == [f'  File "{program}", line 16, in <module>']
    assert "fill, line 13: block 0, thread 32 uses a[32], outside its shape (32,)" in done.stderr


def test_what_python_itself_says(tmp_path):
    assert "can't open file" in simt("nothing.py").stderr and simt("nothing.py").returncode == 2
    assert simt("-m", "nothing_at_all").stderr.endswith("No module named nothing_at_all\n")
    (tmp_path / "wrong.py").write_text("a b", encoding="utf-8")
    assert simt(tmp_path / "wrong.py").stderr.startswith(f'  File "{tmp_path / "wrong.py"}", line 1\n')


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_it_as_it_ends_python(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import time\nfrom numba import cuda\nprint('begun', flush=True)\ntime.sleep(60)", encoding="utf-8")
    with interrupts.popen([sys.executable, "-m", "labkit.simt", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:  # fmt: skip
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert said.splitlines()[1].startswith(f'  File "{path}", line ')
    assert said.endswith("KeyboardInterrupt\n")


def test_the_processes_that_a_program_starts(tmp_path):
    text = ("import subprocess, sys\ncode = 'from numba import cuda; print(cuda.get_current_device().name)'\n"
            "print(subprocess.run([sys.executable, '-c', code], cwd='/', capture_output=True, text=True).stdout)")
    assert simt("-c", text).stdout.strip() == "labkit CPU device"


def test_observe_reports_and_fails(program):
    done = simt("--observe", program, "race")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "labkit.simt: 2 launches observed; 1 finding."
    assert lines[2].endswith("program.py:9: race in add_up") and lines[3].strip() == "9 | total[0] += a[i]"
    assert lines[4].startswith("  What happens: Thread ") and "reads total[0] at line 9" in lines[4]
    assert lines[5].startswith("  What to do:   If both should add to it, use cuda.atomic.add;")
    assert lines[6] == "  Seen:         add_up[1, 32], 31 times in this launch"


@pytest.mark.sweep(every=True)
def test_observe_keeps_the_exit_code_of_the_program(program):
    assert simt("--observe", program, "race", "exit").returncode == 7
    done = simt("--observe", program)
    assert (done.returncode, done.stderr) == (0, "labkit.simt: 1 launch observed; nothing wrong was seen.\n")


def test_large_launches_are_run_compiled_and_counted(program):
    done = simt("--observe", "--threads", "31", program, "race")
    said = ("0 launches observed; too large or too many to observe, so run compiled: add_up (1), fill (1); nothing "
            "wrong was seen.")
    assert (done.returncode, done.stderr) == (0, f"labkit.simt: {said}\n")


@pytest.mark.parametrize("args, said", [
    (["--threads"], "--threads needs a number"), (["-m"], "-m needs a module"), (["-c"], "-c needs a text"),
    (["--nonsense"], "there is no option --nonsense"), (["nothing.py"], "can't open file"),
])  # fmt: skip
def test_mistakes(args, said, capsys):
    assert main(args) == 2
    assert said in capsys.readouterr().err


def test_help_names_every_option(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for option in ("-m module", "-c text", "--observe", "--threads", "--launches", "--enable", "--disable"):
        assert option in text
