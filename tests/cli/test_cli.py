"""The command, as a user meets it: quick help, plain sentences, exit codes that scripts can use."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
import types
import typing

import nbformat
import pytest
import typer.main
from typer.testing import CliRunner

from labkit import __version__, cli
from labkit._common import paths, recordings
from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.course import exercises, notebooks
from labkit.course import registry as course

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
    "build": "--check --readme --exercises --search --device",
    "learn": "--list --browser",
    "search": "--count --words --json --device",
    "check": "--json --device",
    "watch": "--device",
    "hint": "--tier",
    "reset": "--all",
    "progress": "--json",
    "solution": "--give-up",
    "grade": "--out --chapter --roster --gradebook --scheduler --workers --secret --isolation",
    "doctor": "--json",
    "bench": "--device --out --quick",
    "generate": "--model --prompts --raw --tokens --temperature --top-k --top-p --min-p --stop --seed --greedy --yours "
                "--device",
    "report": "--measure --prompts --model --sts --out --device --open",
    "embed": "--out --model --batch-size --device",
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


def test_run_on_a_gpu_goes_on_where_kernels_cannot_be_compiled_first(labkit, cpu_device, monkeypatch):
    cpu_device.kind = lambda: "gpu"
    monkeypatch.setitem(sys.modules, "labkit.measure", types.ModuleType("labkit.measure"))  # without operations
    monkeypatch.setitem(sys.modules, "labkit.measure.ops", None)  # nor, if an earlier test imported them, in there
    done = labkit("run")
    assert done.exit_code == 0 and "Kernels are compiled by each lesson: " in done.output
    assert "passed  01 Second" in done.output


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
    assert "ZeroDivisionError" in (course_dir / "build" / "site" / "index.html").read_text()


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
        (["run", "--device", "tpu"], "--device tpu is not known; allowed are auto, gpu, cpu"),
        (["learn", "0"], "notebooks/00_first.ipynb is not built yet: run labkit build 00"),
    ],
)
def test_wrong_use_is_a_sentence_and_code_2(labkit, arguments, words):
    done = labkit(*arguments)
    assert done.exit_code == 2
    assert f"labkit: {words}" in done.output
    assert "Traceback" not in done.output


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


def test_learn_opens_the_first_unfinished_lesson(labkit, course_dir, monkeypatch):
    calls = []
    monkeypatch.setattr(cli.lessons.subprocess, "call", lambda command: calls.append(command) or 0)
    small = course.load(course_dir)
    for chapter in small.chapters:
        notebooks.write_notebook(notebooks.to_notebook(chapter), chapter.built)
    done = labkit("learn")
    assert done.exit_code == 0 and "Lesson 00, First. 0 of 2 finished." in done.output
    assert calls[-1][1:3] == ["-m", "jupyterlab"] and calls[-1][-1].endswith("/lab/tree/notebooks/00_first.ipynb")

    for chapter in small.chapters:
        notebook = nbformat.read(chapter.built, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.execution_count = 1
        nbformat.write(notebook, chapter.built)
    assert labkit("learn", "--list").output.count("finished") == 2
    assert "You have finished every lesson" in labkit("learn").output
    assert len(calls) == 1
    assert labkit("learn", "1", "--no-browser", "--port", "9000").exit_code == 0
    assert calls[-1][4].endswith("01_second.ipynb") and calls[-1][5:] == ["--no-browser", "--port", "9000"]
    assert len(calls) == 2


JUPYTERLAB = """\
import json, sys
print("JupyterLab is given", json.dumps(sys.argv[1:]))
"""


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
    for chapter in course.load(course_dir).chapters:
        notebooks.write_notebook(notebooks.to_notebook(chapter), chapter.built)
    places = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-m", "labkit", *typed.split()], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": places, "LABKIT_COURSE": str(course_dir)})
    assert done.returncode == 0, done.stderr
    given = json.loads(done.stdout.split("JupyterLab is given ")[1])
    assert given == [f"--ServerApp.root_dir={course_dir}", f"--LabApp.default_url=/lab/tree/notebooks/{lesson}.ipynb",
                     *passed_on]


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
import sys, types
from pathlib import Path
from types import SimpleNamespace
device = types.ModuleType("labkit.device")
device.kind = lambda: "cpu"
device.name = lambda: "labkit CPU device"
device.choice = lambda: SimpleNamespace(reason="For a test.")
sys.modules["labkit.device"] = device
import labkit
labkit.device = device
from labkit import cli
from labkit._common import paths
root = Path(sys.argv.pop(1))
paths.find_root = lambda: root
cli.main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_stops_cleanly(course_dir):
    waiting = course_dir / "waiting"
    (course_dir / "notebooks" / "01_second.py").write_text(
        textwrap.dedent(f"""\
        # %%
        import os, pathlib, time
        pathlib.Path({str(waiting)!r}).write_text(str(os.getpid()))
        time.sleep(60)
        """)
    )
    command = [sys.executable, "-c", DRIVER, str(course_dir), "run"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 30
        while not (waiting.exists() and waiting.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=15)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "labkit: Stopped. The kernel was shut down; 1 finished lesson is kept" in " ".join(output.split())
    assert "Traceback" not in output
    kernel = int(waiting.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)
    names = sorted(path.name for path in (course_dir / "build").rglob("*"))
    assert names == ["00_first.ipynb", "lessons"]


# --- Exercises -----------------------------------------------------------------------------------------------------

MADE_UP = REPOSITORY / "tests" / "made_up_exercises"
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
    (root / "solutions").mkdir(parents=True)
    (root / "course.toml").write_text((MADE_UP / "course.toml").read_text())
    (root / "solutions" / "00_first.py").write_text((MADE_UP / "solutions_00.py").read_text())
    for name in ("00_first", "01_second"):
        (root / "notebooks").mkdir(exist_ok=True)
        (root / "notebooks" / f"{name}.py").write_text("# %%\n1\n")
    (root / "README.md").write_text(
        "<!-- chapters: made by labkit build -->\n<!-- end of chapters -->\n\n"
        "<!-- grading: made by labkit build -->\n<!-- end of grading -->\n\n"
        "<!-- targets: made by labkit build -->\n<!-- end of targets -->\n\n"
        "<!-- measured: made by labkit build -->\n<!-- end of measured -->\n"
    )
    monkeypatch.setenv("LABKIT_EXERCISES", str(MADE_UP))
    monkeypatch.setenv("LABKIT_COURSE", str(root))
    monkeypatch.setenv("COLUMNS", "200")
    runner = CliRunner()

    def command(*arguments):
        return runner.invoke(cli.app, list(arguments))

    def write(**answers):
        path = root / "exercises" / "00_first.ipynb"
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


@pytest.mark.cpu_device  # a GPU cannot tell two of the known mistakes apart: it does not see the stray thread
def test_a_learner_checks_makes_progress_and_resets(exercised):
    done = exercised("check")
    assert done.exit_code == 1 and "0 of 4 passed." in done.output
    assert "`scale_vector` is still as it was given" in done.output
    assert "0 of 4" in exercised("progress").output

    exercised.write(**RIGHT)
    done = exercised("check", "count_blocks")
    assert done.exit_code == 0 and "Passed  Count the blocks" in done.output and "Scale" not in done.output
    done = exercised("check", "00", "--json")
    assert done.exit_code == 1
    verdicts = {verdict["exercise"]: verdict for verdict in json.loads(done.output)}
    assert [verdict["passed"] for verdict in verdicts.values()] == [True, True, True, False]
    assert verdicts["scale_again"]["mistake"] == ""  # it is as it was given: the bug is not given away

    done = exercised("progress")
    assert "3 of 4" in done.output and "4 of 7" in done.output
    assert "Next: Find the bug, scale_again in exercises/00_first.ipynb" in done.output
    rows = json.loads(exercised("progress", "--json").output)
    assert rows[0]["open"] == ["scale_again"] and rows[0]["points"] == 4 and rows[1]["of_points"] == 0

    done = exercised("reset", "--all")
    assert done.exit_code == 0 and "what was there is kept as .labkit/backups/exercises/00_first-" in done.output
    assert "3 of 4" in exercised("progress").output  # what was passed stays passed
    assert exercised("check", "count_blocks").exit_code == 1


def test_hints_tell_more_each_time(exercised):
    first = exercised("hint", "scale_vector").output
    assert first == "Hint 1 of 3: Which element is this thread's? Ask again for more.\n"
    assert "Hint 2 of 3" in exercised("hint", "scale_vector").output
    assert "Hint 1 of 3" in exercised("hint", "scale_vector", "--tier", "1").output
    for _ in range(2):
        assert "Hint 3 of 3: if i < out.size: ..." in exercised("hint", "scale_vector").output


def test_a_solution_is_shown_after_passing_or_giving_up(exercised):
    done = exercised("solution", "count_blocks")
    assert done.exit_code == 1 and "count_blocks is not passed yet. Try: labkit hint count_blocks" in done.output
    assert "return" not in done.output
    done = exercised("solution", "scale_again", "--give-up")
    assert done.exit_code == 0 and done.output.count("def scale_again") == 1 and "if i < out.size" in done.output
    exercised.write(count_blocks=RIGHT["count_blocks"])
    exercised("check", "count_blocks")
    assert exercised("solution", "count_blocks").output == RIGHT["count_blocks"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "scale_vektor"], "there is no exercise 'scale_vektor'; did you mean scale_vector or scale_again?"),
        (["check", "01"], "chapter 01 has no exercises"),
        (["check", "7"], "there is no chapter '7'; the chapters are 00, 01"),
        (["hint", "scale_vector", "--tier", "4"], "tier is 4; the hints of scale_vector are 1 to 3"),
        (["reset"], "say which exercise or chapter, or --all"),
        (["reset", "scale_vector", "--all"], "say which exercise or chapter, or --all"),
        (["check", "--device", "tpu"], "--device tpu is not known; allowed are auto, gpu, cpu"),
        (["watch", "--device", "tpu"], "--device tpu is not known; allowed are auto, gpu, cpu"),
        (["solution", "nothing"], "there is no exercise 'nothing'"),
    ],
)
def test_wrong_use_of_the_exercises_is_a_sentence_and_code_2(exercised, arguments, words):
    done = exercised(*arguments)
    assert done.exit_code == 2 and f"labkit: {words}" in done.output


def test_a_notebook_that_is_gone_is_a_sentence(exercised):
    (exercised.root / "exercises" / "00_first.ipynb").unlink()
    done = exercised("check")
    assert done.exit_code == 2
    assert "exercises/00_first.ipynb is not there: labkit reset 00 makes it afresh" in done.output


def test_build_check_looks_at_the_exercises(exercised):
    def problems():
        done = exercised("build", "--check")
        assert done.exit_code == 1
        return done.output

    assert "exercises" not in problems()
    assert "00_first" in json.loads((exercised.root / ".labkit" / "verified.json").read_text())
    exercised.write(**RIGHT)
    assert "exercises/00_first.ipynb was edited by hand" in problems()
    done = exercised("build", "--exercises")
    assert "your edited 00_first.ipynb is kept as .labkit/backups/exercises/00_first-" in done.output
    path = exercised.root / "course.toml"
    path.write_text(path.read_text().replace('"Round up."', '""'))
    done = exercised("build", "--check")
    assert done.exit_code == 2 and "exercise 'count_blocks': 'hints' must be a list of three texts" in done.output


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_watch_checks_again_on_save_and_ends_on_ctrl_c(exercised):
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "labkit", "watch", "count_blocks"], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, cwd=exercised.root,
    )
    try:
        assert process.stdout.readline().startswith("Watching exercises/00_first.ipynb. Ctrl-C ends it.")
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


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_wrong_variable_is_named_in_one_sentence(variable):
    command, value, words = VARIABLES[variable]
    done = python_m_labkit(*command.split(), **{variable: value})
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and lines[-1].startswith(f"labkit: {variable} is '{value}'; {words}"), done.stderr
    assert "Traceback" not in done.stderr


def test_other_wrong_variables_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_EXERCISES", "/no/where")
    with pytest.raises(UserError, match="LABKIT_EXERCISES names '/no/where'; it must name a directory with files chNN"):
        exercises.load(own=False)
    monkeypatch.setenv("LABKIT_QUOTES", "/no/where/at/all")
    (tmp_path / "a.json").write_text('{"ops": {"matmul": 1}}')
    with pytest.raises(UserError, match="LABKIT_QUOTES is '/no/where/at/all'; it must name a file that can be written"):
        recordings.read(tmp_path / "a.json")["ops"]["matmul"]
    monkeypatch.setenv("LABKIT_COURSE", str(tmp_path))
    with pytest.raises(UserError, match=f"there is no course in {tmp_path}, which LABKIT_COURSE names"):
        course.load()
