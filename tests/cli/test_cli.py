"""The command, as a user meets it: quick help, plain sentences, exit codes that scripts can use."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import tomllib
import typing

import nbformat
import pytest
import typer.main
from typer.testing import CliRunner

from labkit import __version__, cli
from labkit._common import paths, recordings
from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.course import (
    copies,
    exercises,
    expressions,  # noqa: F401  with the true labkit.device, before a test puts another in its place
)
from labkit.course import registry as course
from labkit.measure import ops
from tests import interrupts, made_up, made_up_exercises

ROOT = REPOSITORY


@pytest.fixture
def labkit(course_dir, cpu_device, monkeypatch):
    """Runs the command on the small course. Wide, so that no line is folded."""
    monkeypatch.setattr(paths, "find_root", lambda: course_dir)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LABKIT_WEIGHTS", str(course_dir / "no-weights"))
    monkeypatch.chdir(course_dir)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(cli.app, list(arguments))


def test_help_is_quick_and_lists_every_command():
    best = float("inf")
    for _ in range(3):  # the machine may be busy: CPU time, not the clock on the wall
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "labkit", "--help"], capture_output=True, text=True, check=True
        )
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        best = min(best, used)
    assert best < 0.5
    for command in OPTIONS:
        assert command.split()[0] in done.stdout


AFTER_HELP = """\
import sys
from labkit import cli
sys.argv = ["labkit", "--help"]
try:
    cli.main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_the_help_imports_nothing_heavy():
    """Modules are counted, not seconds, which depend on what else the machine does."""
    done = subprocess.run([sys.executable, "-c", AFTER_HELP], capture_output=True, text=True, check=True)
    modules = done.stderr.split()
    heavy = {"numba", "numpy", "matplotlib", "jupytext", "nbformat", "nbclient", "nbconvert", "transformers", "torch"}
    assert heavy & set(modules) == set()
    ours = {name for name in modules if name.startswith("labkit.")}
    assert {name for name in ours if not name.startswith(("labkit.cli", "labkit._common"))} == set()
    assert len(modules) < 450  # about 320: typer and rich, and the small files of the command


# Every option by its name: some versions of typer lose one whose name is only implied.
OPTIONS = {
    "run": "--device --open",
    "site": "--repository",
    "build": "--check --readme --exercises --search --prose --gpus --device",
    "learn": "--list --clean --browser",
    "search": "--count --words --json --device",
    "check": "--all --json --play --device",
    "watch": "--device",
    "hint": "--tier",
    "reset": "--all",
    "progress": "--json",
    "solution": "--give-up",
    "grade": "--out --chapter --roster --similar --gradebook --scheduler --workers --secret --isolation",
    "doctor": "--json",
    "fits": "--gpu --types --block --size --verbose",
    "bench": "--device --out --quick --share --check --kernels --url --model --dtype --api-key --rate --concurrency "
             "--requests --prompts --outputs --seed --slo --timeout",
    "train": "--out --resume --steps --yours --device",
    "generate": "--model --prompts --raw --tokens --temperature --top-k --top-p --min-p --stop --seed --greedy --yours "
                "--dtype --device",
    "serve": "--model --host --port --api-key --max-num-seqs --max-num-batched-tokens --max-model-len --dtype "
             "--one-kernel --engine-process --max-waiting --max-connections --deadline --allow-origin "
             "--window-control --device",
    "compare": "--dtype --transformers --dump --device",
    "quantize": "--out --bits --format --group --zeros --method --calibration",
    "embed": "--out --model --batch-size --dtype --device",
    "sts": "--model --dtype --device",
    "weights": "--from --cache",
    "exercises mutate": "--count --all --workers",
}


def test_every_option_has_its_name():
    commands = dict(typer.main.get_command(cli.app).commands)
    for group in [name for name, command in commands.items() if hasattr(command, "commands")]:
        commands |= {f"{group} {name}": command for name, command in commands.pop(group).commands.items()}
    found = {name: " ".join(parameter.opts[0] for parameter in command.params if parameter.param_type_name == "option")
             for name, command in commands.items()}
    assert found == OPTIONS
    browser = next(parameter for parameter in commands["learn"].params if parameter.name == "browser")
    assert browser.secondary_opts == ["--no-browser"]


def test_no_option_leaves_its_name_to_typer():
    unnamed = []
    for command in cli.COMMANDS:
        for parameter, annotation in typing.get_type_hints(command, include_extras=True).items():
            for about in getattr(annotation, "__metadata__", ()):
                # typer takes the first name for a default until it reads the annotation.
                if isinstance(about, typer.models.OptionInfo) and not str(about.default).startswith("--"):
                    unnamed.append(f"{command.__name__}: {parameter}")
    assert unnamed == []


@pytest.mark.parametrize("command", OPTIONS)
def test_the_help_of_each_command_shows_its_options(labkit, command):
    done = labkit(*command.split(), "--help")
    assert done.exit_code == 0
    for option in OPTIONS[command].split():
        assert option in done.output


def test_the_command_is_installed_under_its_name():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"labkit": "labkit.cli:main"}
    assert callable(cli.main)


def test_version(labkit):
    assert labkit("--version").output == f"labkit {__version__}\n"


@pytest.mark.sweep(every=True)
def test_run_on_a_gpu_goes_on_where_kernels_cannot_be_compiled_first(labkit, cpu_device, monkeypatch):
    cpu_device.kind = lambda: "gpu"
    monkeypatch.setattr(ops, "compile_ahead", lambda progress: 1 / 0)
    done = labkit("run")
    assert done.exit_code == 0 and "Kernels are compiled by each lesson: ZeroDivisionError" in done.output
    assert "passed  01 Second" in done.output


@pytest.mark.sweep(every=True)
def test_run_shows_what_passed_and_writes_the_site(labkit, course_dir):
    source = course_dir / "notebooks" / "01_second.py"
    source.write_text(source.read_text() + "\n# %%\nimport os\nassert os.environ['LABKIT_DEVICE'] == 'cpu'\n1 / 0\n")
    done = labkit("run", "--device", "cpu")
    assert done.exit_code == 1, done.output
    assert "passed  00 First" in done.output
    assert "FAILED  01 Second" in done.output
    assert "of notebooks/01_second.py: `1 / 0` gave ZeroDivisionError: division by zero" in done.output
    assert "2.5e-07" in done.output
    assert "build/site/index.html" in done.output
    assert (course_dir / "build" / "site" / "01_second.html").is_file()

    done = labkit("run", "0")
    assert done.exit_code == 0, done.output
    # The other lesson's result is kept.
    assert "ZeroDivisionError" in (course_dir / "build" / "site" / "results.html").read_text()


@pytest.mark.sweep(every=True)
def test_site_executes_nothing_and_names_what_has_no_results(labkit, course_dir):
    done = labkit("site")
    assert done.exit_code == 0 and "Site: build/site/index.html" in done.output
    assert "2 have no results, because their notebooks are stale or missing: labkit build 00 01" in done.output
    assert (course_dir / "build" / "site" / ".nojekyll").is_file()
    assert not (course_dir / "build" / "lessons").exists()
    source = course_dir / "notebooks" / "00_first.py"
    source.write_text(source.read_text() + "\n# %% [markdown]\n# See [the second](01_second.ipynb#no-such-section).\n")
    done = labkit("site")
    assert done.exit_code == 1
    assert "00_first.html: the link to 01_second.html#no-such-section leads to no anchor of that page" in done.output


@pytest.mark.sweep(every=True)
def test_a_missing_lesson_does_not_stop_the_others(labkit, course_dir):
    (course_dir / "notebooks" / "00_first.py").unlink()
    done = labkit("run")
    assert done.exit_code == 1
    assert "notebooks/00_first.py is missing" in done.output
    assert "passed  01 Second" in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "9"], "there is no chapter '9'; the chapters are 00, 01"),
        (["site", "--repository", "x.org"], "--repository must look like https://github.com/owner/name, not 'x.org'"),
        (["run", "--device", "tpu"], "--device tpu is not known; allowed are auto, gpu, cpu"),
        (["learn", "9"], "there is no chapter '9'; the chapters are 00, 01"),
        (["run", "first"], "there is no chapter 'first'; did you mean 00_first or 01_second?"),
        (["run", "07_Secnod"], "there is no chapter '07_Secnod'; did you mean 01_second or 00_first?"),
    ],
)
def test_wrong_use_is_a_sentence_and_code_2(labkit, arguments, words):
    done = labkit(*arguments)
    assert done.exit_code == 2
    assert f"labkit: {words}" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(("asked", "words"), [("sofmax", "softmax, "), ("flash", "")])
def test_three_operations_are_suggested_for_one_that_is_not_known(asked, words):
    done = CliRunner().invoke(cli.app, ["bench", asked])
    output = " ".join(done.output.split())
    assert done.exit_code == 2 and f"there is no operation '{asked}'; did you mean {words}" in output
    assert output.count(", ") == 1 and " or " in output


def test_times_with_another_gpus_kernels_are_not_recorded(monkeypatch):
    monkeypatch.setenv("LABKIT_PRETEND", "7.5")
    done = CliRunner().invoke(cli.app, ["bench", "vector_add"])
    assert done.exit_code == 2
    assert "LABKIT_PRETEND is set: kernels are those of another GPU" in " ".join(done.output.split())


def test_a_recording_is_shared_and_checked(tmp_path, monkeypatch):
    from labkit import measure
    from labkit.measure import share

    def asked(*words):
        done = CliRunner().invoke(cli.app, ["bench", *words])
        return done.exit_code, " ".join(done.output.split())

    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path)
    monkeypatch.setenv("LABKIT_DEVICE", "auto")  # put back at the end: --device sets it
    assert asked("--share", "--quick") == (2, "labkit: --share measures nothing; leave out --quick")
    code, output = asked("--share", "generation")
    assert code == 2 and "only operations are shared, and there is no operation 'generation'" in output
    assert "times of the CPU device are not shared" in asked("--share", "--device", "cpu")[1]

    monkeypatch.setattr(share.device, "on_gpu", lambda: True)
    monkeypatch.setattr(measure, "machine", lambda: made_up.CARD_MACHINE)
    (tmp_path / "nvidia-geforce-rtx-4060.json").write_text(json.dumps(made_up.card()))
    code, output = asked("--share", "matmul")
    file = tmp_path / "shared" / "nvidia-geforce-rtx-4060.json"
    assert code == 0 and f"Wrote {file}" in output and "1 operation on NVIDIA GeForce RTX 4060" in output
    assert asked("--check", str(file)) == (
        0, f"{file} can be shared: 1 operation on NVIDIA GeForce RTX 4060, 2026-01-02")
    file.write_text(file.read_text().replace('"bandwidth_gbs":251', '"bandwidth_gbs":2510'))
    code, output = asked("--check", str(file))
    assert code == 2 and " cannot be shared: " in output
    assert "bandwidth_gbs is 2,510; the data sheet of NVIDIA GeForce RTX 4060 says 272" in output


@pytest.mark.parametrize("code", [0, 1])
def test_a_fault_that_was_found_is_the_exit_code_of_doctor_and_bench(monkeypatch, code):
    from labkit.device import doctor
    from labkit.measure import bench

    asked = []
    monkeypatch.setattr(doctor, "main", lambda console, as_json: asked.append(as_json) or code)
    monkeypatch.setattr(bench, "main", lambda ops, out, quick: asked.append((ops, out, quick)) or code)
    for words in (("doctor",), ("doctor", "--json"), ("bench", "vector_add", "--quick")):
        assert CliRunner().invoke(cli.app, list(words)).exit_code == code
    assert asked == [False, True, (["vector_add"], None, True)]


@pytest.mark.sweep(every=True)
def test_the_device_that_was_asked_for_is_the_one_of_every_process(labkit, cpu_device, monkeypatch):
    monkeypatch.setenv("LABKIT_DEVICE", "auto")
    assert labkit("run", "0", "--device", "cpu").exit_code == 0
    assert os.environ["LABKIT_DEVICE"] == "cpu"


def test_a_device_that_cannot_be_had_is_a_sentence(labkit, cpu_device):
    def refuse():
        raise RuntimeError("LABKIT_DEVICE=gpu, but there is no GPU. Run `labkit doctor`.")

    cpu_device.kind = refuse
    done = labkit("run", "--device", "gpu")
    assert done.exit_code == 2
    assert "labkit: LABKIT_DEVICE=gpu, but there is no GPU. Run `labkit doctor`." in done.output


@pytest.mark.sweep(every=True)
def test_build_then_check_then_stale(labkit, course_dir):
    assert labkit("build", "--check").exit_code == 1
    done = labkit("build")
    assert done.exit_code == 0, done.output
    assert "wrote   notebooks/00_first.ipynb" in done.output and "wrote   README.md" in done.output
    assert labkit("build", "--check").exit_code == 0
    source = course_dir / "notebooks" / "00_first.py"
    source.write_text(source.read_text() + "\n# %%\n1 / 0\n")
    done = labkit("build", "--check")
    assert done.exit_code == 1
    assert "notebooks/00_first.ipynb is stale" in done.output
    done = labkit("build", "00")
    assert done.exit_code == 1
    assert "gave ZeroDivisionError" in done.output


@pytest.mark.sweep(every=True)
def test_build_prose_writes_the_prose_and_keeps_the_outputs(labkit, course_dir):
    labkit("build")
    path, source = course_dir / "notebooks" / "00_first.ipynb", course_dir / "notebooks" / "00_first.py"
    source.write_text(source.read_text().replace("## The problem", "## {{ 3 * 13 }} steps"))
    done = labkit("build", "--prose", "0")
    assert done.exit_code == 0 and "wrote   notebooks/00_first.ipynb" in done.output
    assert "## 39 steps" in path.read_text() and "hello\\n" in path.read_text()
    source.write_text(source.read_text() + "\n# %%\n1 / 1\n")
    assert "left    notebooks/00_first.ipynb: its outputs are not from this" in labkit("build", "--prose").output
    source.write_text(source.read_text().replace("3 * 13", "3 / 0"))
    done = labkit("build", "--prose", "0")
    assert done.exit_code == 2 and "ZeroDivisionError" in done.output and "{{ 3 / 0 }} steps" in done.output


@pytest.mark.sweep(every=True)
def test_build_says_where_an_edited_notebook_is_kept(labkit, course_dir):
    assert labkit("build", "00").exit_code == 0
    path = course_dir / "notebooks" / "00_first.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source = "my_own_kernel()"
    nbformat.write(notebook, path)
    done = labkit("build", "00")
    assert "your edited 00_first.ipynb is kept as .labkit/backups/00_first-" in done.output
    (copy,) = (course_dir / ".labkit" / "backups").iterdir()
    assert "my_own_kernel()" in copy.read_text()


def run_it_all(path):
    """As a learner does, who saves the notebook then."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = 1
    nbformat.write(notebook, path)


def test_learn_opens_the_first_unfinished_lesson(labkit, course_dir, monkeypatch):
    calls = []
    monkeypatch.setattr(cli.lessons, "open_jupyterlab", lambda _, *given: calls.append(given) or 0)
    small = course.load(course_dir)
    first, second = small.chapters
    done = labkit("learn")
    assert done.exit_code == 0 and "Lesson 00, First. 0 of 2 finished.\n" in done.output
    assert "Next: read and run the lesson, each prediction before its result, and save it\n" in done.output
    assert done.output.endswith("Next: labkit learn 00 opens the lesson, First\n")  # not a cell of it was run
    assert calls == [(course_dir, first.own_lesson, True, [])]
    run_it_all(first.own_lesson)
    assert labkit("learn").output.endswith("Next: labkit learn 01 opens the lesson, Second\n")
    run_it_all(second.own_lesson)
    assert labkit("learn", "--list").output.count("finished") == 2 + 1  # and in the next step
    assert "You have finished every lesson" in labkit("learn").output
    assert len(calls) == 2
    assert labkit("learn", "1", "--no-browser", "--port", "9000").exit_code == 0
    assert calls[2:] == [(course_dir, second.own_lesson, False, ["--port", "9000"])]


JUPYTERLAB = """\
import json, os, sys
print("JupyterLab is given", json.dumps(sys.argv[1:]))
print("and finds settings in", json.dumps(os.environ["JUPYTER_CONFIG_PATH"]))
"""


@pytest.mark.sampled(1, sweep=1)
@pytest.mark.parametrize(
    ("typed", "lesson", "passed_on"),
    [
        ("learn --port 9000", "00_first", ["--port", "9000"]),
        ("learn --port 9000 --no-browser 01", "01_second", ["--no-browser", "--port", "9000"]),
    ],
)
def test_learn_as_a_user_types_it(course_dir, tmp_path, typed, lesson, passed_on):
    """In a process of its own, with a JupyterLab that only says what it is given."""
    (tmp_path / "jupyterlab.py").write_text(JUPYTERLAB)
    places = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-m", "labkit", *typed.split()], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": places, "LABKIT_COURSE": str(course_dir),
                               "JUPYTER_CONFIG_PATH": "/own"})
    assert done.returncode == 0, done.stderr
    own, ours = json.loads(done.stdout.split("finds settings in ")[1].splitlines()[0]).split(os.pathsep)
    with open(os.path.join(ours, "labconfig", "page_config.json")) as file:
        settings = json.load(file)
    assert own == "/own" and settings["disabledExtensions"] == {  # which would ask whether it may fetch news
        "@jupyterlab/apputils-extension:announcements": True}
    given = json.loads(done.stdout.split("JupyterLab is given ")[1].splitlines()[0])
    assert given[:2] == [f"--ServerApp.root_dir={course_dir}",
                         f"--LabApp.default_url=/lab/tree/work/lessons/{lesson}.ipynb"]
    assert given[-len(passed_on):] == passed_on


SERVER = """\
import json, os, pathlib, signal, socket, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as if Ctrl-C reached labkit alone
folder = pathlib.Path(os.environ["JUPYTER_RUNTIME_DIR"])
if "--fail" in sys.argv:
    sys.exit(3)
note = folder / f"jpserver-{os.getpid()}.json"
note.write_text("{")
time.sleep(0.3)
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
port = listener.getsockname()[1]
note.write_text(json.dumps({"url": f"http://127.0.0.1:{port}/", "port": port, "token": "abc"}))
time.sleep(0.5)  # JupyterLab, too, writes its record before it listens
signal.signal(signal.SIGTERM, lambda *_: ((folder / "ended").touch(), sys.exit(0)))
listener.listen()
while True:
    time.sleep(0.1)
"""


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_learn_on_a_server_says_the_address_and_ctrl_c_ends_jupyterlab(course_dir, tmp_path):
    (tmp_path / "jupyterlab.py").write_text(SERVER)
    places = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": places, "LABKIT_COURSE": str(course_dir), "PYTHONUNBUFFERED": "1",
                   "JUPYTER_RUNTIME_DIR": str(tmp_path), "COLUMNS": "40"}
    command = [sys.executable, "-m", "labkit", "learn", "--no-browser"]
    process = interrupts.popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        lines = [process.stdout.readline()]
        while lines[-1] and not lines[-1].startswith("Ctrl-C here ends it"):
            lines.append(process.stdout.readline())
        (port,) = (int(found[1]) for line in lines if (found := re.fullmatch(
            r"JupyterLab: http://127\.0\.0\.1:(\d+)/lab/tree/work/lessons/00_first\.ipynb\?token=abc\n", line)))
        socket.create_connection(("127.0.0.1", port), timeout=30).close()  # whoever follows the address is answered
        assert any(line.startswith(f"From another machine, first: ssh -L {port}:localhost:{port} ") for line in lines)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0 and (tmp_path / "ended").exists()
    assert rest.endswith("JupyterLab has stopped. Your saved work is in work/.\n"
                         "Next: labkit learn 00 opens the lesson, First\n")  # before it, rich may repeat a line

    done = subprocess.run([*command, "--fail"], capture_output=True, text=True, env=environment)
    assert done.returncode == 3 and done.stdout.splitlines()[-1].startswith("Next: ")
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("typed", "lesson", "passed_on"),
    [
        ("", None, ""),
        ("04", "04", ""),
        ("04 --port 9000", "04", "--port 9000"),
        ("--port 9000", None, "--port 9000"),
        ("--port 9000 04", "04", "--port 9000"),
        ("--port=9000 04", "04", "--port=9000"),
        ("--port 9000 --debug", None, "--port 9000 --debug"),
    ],
)
def test_the_lesson_is_distinguished_from_the_options_of_jupyterlab(typed, lesson, passed_on):
    assert cli.lessons.lesson_among(typed.split()) == (lesson, passed_on.split())


def test_outside_a_checkout_the_lessons_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="run the command inside a checkout"):
        paths.find_root()
    (tmp_path / "course.toml").write_text("")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    assert paths.find_root() == tmp_path


DRIVER = """\
import os, sys
from pathlib import Path
os.environ["LABKIT_DEVICE"] = "cpu"
from labkit import cli
from labkit._common import paths
root = Path(sys.argv.pop(1))
paths.find_root = lambda: root
cli.main()
"""


@pytest.mark.sweep(every=True)
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_stops_cleanly(course_dir):
    waiting = course_dir / "waiting"
    (course_dir / "notebooks" / "01_second.py").write_text(
        textwrap.dedent(f"""\
        # %%
        import os, pathlib, time
        while not pathlib.Path({str(course_dir / "build" / "lessons" / "00_first.ipynb")!r}).exists():
            time.sleep(0.02)
        pathlib.Path({str(waiting)!r}).write_text(str(os.getpid()))
        time.sleep(600)
        """)
    )
    command = [sys.executable, "-c", DRIVER, str(course_dir), "run"]
    process = interrupts.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while not (waiting.exists() and waiting.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "labkit: Stopped. Running lessons were shut down; 1 finished lesson is kept" in " ".join(output.split())
    assert "Traceback" not in output
    kernel = int(waiting.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)
    names = sorted(path.name for path in (course_dir / "build").rglob("*"))
    assert names == ["00_first.ipynb", "lessons"]


# --- Exercises -----------------------------------------------------------------------------------------------------

RIGHT = {
    "scale_vector": "@cuda.jit\ndef scale_vector(a, s, out):\n    i = cuda.grid(1)\n    if i < out.size:\n"
                    "        out[i] = a[i] * s\n",
    "count_blocks": "def count_blocks(n, threads):\n    return -(-n // threads)\n",
    "idle_threads": "idle, blocks = 24, 8",
}


@pytest.fixture
def exercised(tmp_path, monkeypatch):
    """The command on a course with exercises, built: exercised("check"), exercised.write(count_blocks="...")."""
    root = tmp_path / "small"
    made_up_exercises.copy_to(root, monkeypatch)
    for name in ("00_first", "01_second"):
        (root / "notebooks").mkdir(exist_ok=True)
        (root / "notebooks" / f"{name}.py").write_text("# %%\n1\n")
    (root / "README.md").write_text(
        "<!-- chapters: made by labkit build -->\n<!-- end of chapters -->\n\n"
        "<!-- highlights: made by labkit build -->\n<!-- end of highlights -->\n"
    )
    monkeypatch.setenv("LABKIT_COURSE", str(root))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(root)
    runner = CliRunner()

    def command(*arguments):
        return runner.invoke(cli.app, list(arguments))

    def write(folder="work/exercises", **answers):
        path = root / folder / "00_first.ipynb"
        copies.workbook(course.load(root), course.load(root).chapters[0])
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            about = cell.metadata.get("labkit", {})
            if about.get("role") == "answer" and about["exercise"] in answers:
                cell.source = answers[about["exercise"]]
        nbformat.write(notebook, path)

    command.write, command.root = write, root
    done = command("build", "--exercises")
    assert done.exit_code == 0 and "wrote   exercises/00_first.ipynb" in done.output
    return command


@pytest.mark.sweep(every=True)
@pytest.mark.cpu_device  # a GPU cannot tell two of the known mistakes apart: it does not see the stray thread
def test_a_learner_checks_makes_progress_and_resets(exercised):
    done = exercised("check", "--all")
    assert done.exit_code == 1 and "0 of 4 passed." in done.output
    assert "`scale_vector` has not been changed yet" in done.output
    assert done.output.endswith("Next: answer scale_vector in work/exercises/00_first.ipynb (labkit learn scale_vector "
                                "opens it), save it, then: labkit check scale_vector\n")
    assert "0 of 4" in exercised("progress").output
    assert exercised("progress").output.endswith("Next: labkit learn 00 opens the lesson, First\n")

    exercised.write(**RIGHT)
    done = exercised("check", "count_blocks", "--play")
    assert done.exit_code == 0 and "Passed  Count the blocks" in done.output and "Scale" not in done.output
    assert "Next: answer scale_vector in work/exercises/00_first.ipynb" in done.output  # the first that is open
    assert "There is nothing to play" in done.output
    done = exercised("check", "00", "--json", "--play")
    assert done.exit_code == 1
    verdicts = {verdict["exercise"]: verdict for verdict in json.loads(done.output)}
    assert [verdict["passed"] for verdict in verdicts.values()] == [True, True, True, False]
    assert verdicts["scale_again"]["mistake"] == ""  # it is as it was given: the bug is not given away
    player = exercised.root / ".labkit" / "play" / "scale_again.html"
    assert [verdict["player"] for verdict in verdicts.values()] == ["", "", "", str(player)]
    assert "out_of_bounds" in player.read_text(encoding="utf-8")
    assert "step through its threads: labkit check scale_again --play" in exercised("check", "scale_again").output

    done = exercised("progress")
    assert "3 of 4" in done.output and "4 of 7" in done.output
    assert "Next: answer scale_again in work/exercises/00_first.ipynb" in done.output
    rows = json.loads(exercised("progress", "--json").output)
    assert rows[0]["open"] == ["scale_again"] and rows[0]["points"] == 4 and rows[1]["of_points"] == 0

    done = exercised("reset", "--all")
    assert done.exit_code == 0 and "your version is kept as .labkit/backups/exercises/00_first-" in done.output
    assert "3 of 4" in exercised("progress").output  # what was passed stays passed
    assert exercised("check", "count_blocks").exit_code == 1


@pytest.mark.sweep(every=True)
def test_check_without_arguments_checks_what_was_begun(exercised, monkeypatch):
    assert str(exercised.root) not in exercised("check").output
    with monkeypatch.context() as patched:
        patched.setattr("labkit.course.workbooks.run_cells", None)  # an untouched course runs nothing
        done = exercised("check")
        assert done.exit_code == 1 and "00  First: not started\nNext: labkit learn 00" in done.output
        assert not (exercised.root / "work").exists(), "looking makes no copy"
        assert exercised("check", "--json").output == "[]\n"
    exercised.write(count_blocks=RIGHT["count_blocks"])
    done = exercised("check")
    assert done.exit_code == 0 and "Passed  Count the blocks" in done.output and "Scale" not in done.output
    monkeypatch.chdir(exercised.root.parent)  # from outside of the course, its paths are absolute
    assert f"in {exercised.root}/work/exercises/00_first.ipynb (labkit learn" in exercised("check").output
    done = exercised("check", "--all", "00")
    assert done.exit_code == 2 and "use either --all or '00', not both" in done.output


def test_hints_tell_more_each_time(exercised):
    first = exercised("hint", "scale_vector").output
    assert first == ("Hint 1 of 3: Which element is this thread's? Ask again for more.\n"
                     "Next: labkit learn scale_vector opens the exercise, Scale a vector\n")
    assert "Hint 2 of 3" in exercised("hint", "scale_vector").output
    assert "Hint 1 of 3" in exercised("hint", "scale_vector", "--tier", "1").output
    for _ in range(2):
        assert "Hint 3 of 3: if i < out.size: ..." in exercised("hint", "scale_vector").output


@pytest.mark.sweep(every=True)
def test_a_solution_is_shown_after_passing_or_giving_up(exercised):
    done = exercised("solution", "count_blocks")
    assert done.exit_code == 1 and "You have not passed count_blocks yet. Try: labkit hint count_blocks" in done.output
    assert "return" not in done.output
    done = exercised("solution", "scale_again", "--give-up")
    assert done.exit_code == 0 and done.output.count("def scale_again") == 1 and "if i < out.size" in done.output
    exercised.write(count_blocks=RIGHT["count_blocks"])
    exercised("check", "count_blocks")
    done = exercised("solution", "count_blocks")
    assert done.stdout == RIGHT["count_blocks"]
    assert done.stderr.startswith("Next: answer scale_vector in work/exercises/00_first.ipynb (")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "scale_vektor"], "there is no exercise 'scale_vektor'; did you mean scale_vector, scale_"),
        (["reset", "foo"], "there is no exercise 'foo'; did you mean "),
        (["check", "first_thing"], "there is no exercise 'first_thing'; did you mean 00_first, "),
        (["learn", "sclae_vector"], "there is no exercise 'sclae_vector'; did you mean scale_vector, "),
        (["check", "01"], "chapter 01 has no exercises"),
        (["check", "7"], "there is no chapter '7'; the chapters are 00, 01"),
        (["check", "00_frist"], "there is no chapter '00_frist'; did you mean 00_first or 01_second?"),
        (["hint", "scale_vector", "--tier", "4"], "tier is 4; the hints of scale_vector are 1 to 3"),
        (["learn", "scale_vector", "--clean"], "--clean is for a lesson; to restore the original exercise"),
        (["reset"], "name an exercise or a chapter, or use --all"),
        (["reset", "scale_vector", "--all"], "name an exercise or a chapter, or use --all"),
        (["check", "--device", "tpu"], "--device tpu is not known; allowed are auto, gpu, cpu"),
        (["watch", "--device", "tpu"], "--device tpu is not known; allowed are auto, gpu, cpu"),
        (["solution", "nothing"], "there is no exercise 'nothing'"),
    ],
)
def test_wrong_use_of_the_exercises_is_a_sentence_and_code_2(exercised, arguments, words):
    done = exercised(*arguments)
    assert done.exit_code == 2 and f"labkit: {words}" in done.output


@pytest.mark.sweep(every=True)
def test_a_copy_that_cannot_be_read_is_a_sentence_and_stays(exercised):
    path = exercised.root / "work" / "exercises" / "00_first.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text("{ mine")
    done = exercised("check")
    assert done.exit_code == 2 and path.read_text() == "{ mine"
    assert "work/exercises/00_first.ipynb cannot be read: labkit reset 00 gives you the exercises afresh" in done.output
    assert exercised("reset", "00").exit_code == 0
    (backup,) = (exercised.root / ".labkit" / "backups" / "exercises").iterdir()
    assert backup.read_text() == "{ mine" and exercised("check", "count_blocks").exit_code == 1


def test_a_copy_that_cannot_be_read_does_not_stop_the_others(exercised):
    toml = exercised.root / "course.toml"
    toml.write_text(toml.read_text().replace(', "scale_again"]', "]") + 'exercises = ["scale_again"]\n')
    path = exercised.root / "work" / "exercises" / "00_first.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text("{ mine")
    done = exercised("check")
    assert done.exit_code == 2 and "00_first.ipynb cannot be read" in done.stderr
    assert "01  Second: not started" in done.stdout
    done = exercised("check", "--json")
    assert done.exit_code == 2 and done.stdout == "[]\n"


@pytest.mark.sweep
def test_what_was_written_into_the_shipped_notebook_is_checked(exercised):
    exercised.write("exercises", count_blocks=RIGHT["count_blocks"])
    done = exercised("check", "count_blocks")
    assert done.exit_code == 0
    assert ("What you wrote in exercises/00_first.ipynb (count_blocks) is now in work/exercises/00_first.ipynb, which "
            "is the copy that is checked.") in done.output
    assert "is now in" not in exercised("check", "count_blocks").output
    assert [one["exercise"] for one in json.loads(exercised("check", "--json").stdout)] == ["count_blocks"]


@pytest.mark.sweep
def test_build_check_looks_at_the_exercises(exercised):
    def problems():
        done = exercised("build", "--check")
        assert done.exit_code == 1
        return done.output

    assert "exercises" not in problems()
    assert "first" in json.loads((exercised.root / ".labkit" / "verified.json").read_text())
    exercised.write(**RIGHT)
    assert "exercises" not in problems()  # a learner's own copy is none of its business
    exercised.write("exercises", **RIGHT)
    assert "exercises/00_first.ipynb was edited by hand" in problems()
    done = exercised("build", "--exercises")
    assert "your edited 00_first.ipynb is kept as .labkit/backups/exercises/00_first-" in done.output
    path = exercised.root / "own" / "first" / "count_blocks.py"
    path.write_text(path.read_text().replace('"Round up."', '""'))
    done = exercised("build", "--check")
    assert done.exit_code == 2 and "count_blocks.py: HINTS must be a tuple of three texts" in done.output


def test_build_names_an_exercise_that_no_chapter_lists(exercised):
    toml = exercised.root / "course.toml"
    toml.write_text(toml.read_text().replace(', "scale_again"', ""))
    done = exercised("build", "--exercises", "00")
    assert done.exit_code == 0 and "wrote   exercises/00_first.ipynb" in done.stdout
    assert "scale_again.py: course.toml does not list it; add 'scale_again' to the `exercises`" in done.stderr


def test_build_check_of_one_lesson_names_its_problems_once(exercised):
    toml, folder = exercised.root / "course.toml", exercised.root / "own" / "first"
    (folder / "last.py").write_text((folder / "count_blocks.py").read_text().replace("EXERCISE", "EXAMPLE")
                                    .replace("count_blocks", "last"))
    toml.write_text(toml.read_text().replace('"scale_again"', '"scale_again", "last"'))
    done = exercised("build", "--check", "00")
    assert done.exit_code == 1 and done.stderr.count("last.py: EXERCISE is missing below") == 1
    assert "01_second" not in done.stderr
    done = exercised("build", "--check", "01")
    assert "00_first.ipynb" not in done.stderr and "01_second.ipynb is missing" in done.stderr


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_watch_checks_again_on_save_and_ends_on_ctrl_c(exercised):
    process = interrupts.popen(
        [sys.executable, "-u", "-m", "labkit", "watch", "count_blocks"], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, cwd=exercised.root,
    )
    try:
        assert process.stdout.readline().startswith("Watching work/exercises/00_first.ipynb. Ctrl-C ends it.")
        assert process.stdout.readline().startswith("Next: answer count_blocks in work/exercises/00_first.ipynb")
        exercised.write(count_blocks=RIGHT["count_blocks"])
        lines = [process.stdout.readline() for _ in range(2)]
        assert lines[1].strip() == "Passed  Count the blocks"
        while "waiting for the next save" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=15)
    finally:
        process.kill()
    assert process.returncode == 130 and rest.strip() == "labkit: Stopped."


# --- Damaged files and wrong variables -------------------------------------------------------------------------------


def python_m_labkit(*arguments, **variables):
    return subprocess.run([sys.executable, "-m", "labkit", *arguments], capture_output=True, text=True,
                          env={**os.environ, "LABKIT_DEVICE": "cpu", "COLUMNS": "200", **variables})


@pytest.mark.sweep(every=True)
def test_a_damaged_model_is_a_sentence(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"n_layer": 10**9}))
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    done = python_m_labkit("generate", "hello", "--model", str(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"labkit: {tmp_path}/model.safetensors: n_layer is 1,000,000,000"), done.stderr


def test_damaged_progress_is_a_sentence_and_what_it_says_stays(labkit, course_dir):
    (course_dir / ".labkit").mkdir()
    (course_dir / ".labkit" / "progress.json").write_text('{"finished": {"00_first": "2026-01-02",}}')
    done = labkit("progress")
    assert done.exit_code == 0 and "finished" in done.stdout
    assert done.stderr.startswith("labkit: .labkit/progress.json is no JSON: ") and ".py" not in done.stderr
    assert labkit("progress").stderr == ""


VARIABLES = {  # nonsense in each, and what says so
    "LABKIT_DEVICE": ("generate x", "abc", "it must be one of auto, gpu, cpu"),
    "LABKIT_WORKERS": ("generate x", "abc", "it must be a number of threads"),
    "LABKIT_COURSE": ("progress", "/no/where", "it must be a directory, with a course.toml in it"),
}


@pytest.mark.parametrize("variable", ["LABKIT_DEVICE", "LABKIT_COURSE",
                                      pytest.param("LABKIT_WORKERS", marks=pytest.mark.sweep)])  # loads a model first
def test_a_wrong_variable_is_named_in_one_sentence(variable):
    command, value, words = VARIABLES[variable]
    done = python_m_labkit(*command.split(), **{variable: value})
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and lines[-1].startswith(f"labkit: {variable} is '{value}'; {words}"), done.stderr
    assert "Traceback" not in done.stderr


def test_other_wrong_variables_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_EXERCISES", "/no/where")
    with pytest.raises(UserError, match="LABKIT_EXERCISES names '/no/where'; it must name a directory with folders"):
        exercises.load(own=False)
    monkeypatch.setenv("LABKIT_QUOTES", "/no/where/at/all")
    (tmp_path / "a.json").write_text('{"ops": {"matmul": 1}}')
    with pytest.raises(UserError, match="LABKIT_QUOTES is '/no/where/at/all'; it must name a file that can be written"):
        recordings.read(tmp_path / "a.json")["ops"]["matmul"]
    monkeypatch.setenv("LABKIT_COURSE", str(tmp_path))
    with pytest.raises(UserError, match=f"there is no course in {tmp_path}, which LABKIT_COURSE names"):
        course.load()
