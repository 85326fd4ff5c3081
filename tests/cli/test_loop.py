"""The learner's loop: from a clone to the first passed exercise, as README lists the commands."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import nbformat
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import registry as courses
from tests import interrupts

pytestmark = [pytest.mark.sweep, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")]

FIRST = "count_down"
LIMIT_S = 300


def readmes_commands() -> list[str]:
    """Each command of the block under "Begin", one for each line or part of it between &&."""
    section = (REPOSITORY / "README.md").read_text(encoding="utf-8").split("## Begin\n")[1].split("\n## ")[0]
    block = re.search(r"```bash\n(.*?)```", section, re.DOTALL)[1]
    lines = [line.partition("  #")[0].strip() for line in block.splitlines() if line.strip()]
    return [part.strip() for line in lines for part in line.split("&&")]


class Learner:
    """Types commands in a clone, and edits through JupyterLab's own interface, as its page does."""

    def __init__(self, folder):
        self.folder = folder
        self.home = folder.parent / "home"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LABKIT_", "JUPYTER_"))},
            "PYTHONPATH": str(folder), "HOME": str(self.home), "PYTHONUNBUFFERED": "1", "COLUMNS": "200",
            "LABKIT_DEVICE": "cpu", "LABKIT_CACHE_DIR": str(folder.parent / "cache")}  # nothing is compiled yet
        self.home.mkdir()

    def run(self, command: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-m", *command.split()], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True)

    def learn(self, command: str, edit) -> str:
        """Runs the command, calls edit(address) once it says the address of JupyterLab, and types Ctrl-C."""
        as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        process = interrupts.popen([sys.executable, "-m", *command.split(), "--no-browser", *as_root],
                                   cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        output = ""
        try:
            while "Ctrl-C here ends it." not in output:
                line = process.stdout.readline()
                assert line, output
                output += line
            edit(re.search(r"^JupyterLab: (\S+)$", output, re.MULTILINE)[1])
            os.killpg(process.pid, signal.SIGINT)  # the terminal sends it to both
            output += process.communicate(timeout=60)[0]
        finally:
            process.kill()
        assert process.returncode == 0, output
        return output


def answer_through(address: str, path: str, exercise: str, answer: str) -> None:
    """Get a notebook from the running JupyterLab, write the answer into its cell, save it."""
    parts = urllib.parse.urlsplit(address)
    token = urllib.parse.parse_qs(parts.query)["token"][0]
    url = f"{parts.scheme}://{parts.netloc}/api/contents/{path}"
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as reply:
        notebook = json.load(reply)["content"]
    (cell,) = [cell for cell in notebook["cells"]
               if cell["metadata"].get("labkit") == {"exercise": exercise, "role": "answer"}]
    assert "Your code here" in cell["source"]
    cell["source"] = answer
    body = json.dumps({"type": "notebook", "format": "json", "content": notebook}).encode()
    urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), timeout=60).close()


@pytest.fixture
def clone(tmp_path):
    """What git clone gives, with the changes that are not committed yet."""
    folder = tmp_path / "labkit"
    kept_out = shutil.ignore_patterns(".git", "build", "work", ".labkit", "grades", "__pycache__", ".*_cache", "venv",
                                      ".venv", "*.egg-info")
    shutil.copytree(REPOSITORY, folder, ignore=kept_out)
    return folder


def test_from_a_clone_to_the_first_passed_exercise(clone):
    """README's commands, of which the clone and the install are taken as done: pip downloads what the tests have."""
    commands = readmes_commands()
    assert len(commands) <= 5 and commands[0].startswith("git clone ") and commands[1].startswith("cd ")
    assert commands[2] == "pip install -e ."
    learn, check = commands[3:]
    assert learn == "labkit learn" and check == f"labkit check {FIRST}"
    course = courses.load(clone)
    answer = course.exercise(FIRST).file.solution.answer
    workbook = course.chapters[0].own_workbook.relative_to(clone).as_posix()

    learner, begin = Learner(clone), time.monotonic()
    output = learner.learn(learn, lambda address: answer_through(address, workbook, FIRST, answer))
    assert f"then answer {FIRST} in {workbook}" in output
    assert output.endswith(f"Next: {check} checks what you wrote\n")
    done = learner.run(check)
    seconds = time.monotonic() - begin
    assert done.returncode == 0 and "Passed" in done.stdout, done.stdout + done.stderr
    assert re.search(r"^Next: answer (\w+) in .* then: labkit check \1$", done.stdout, re.MULTILINE)
    print(f"{len(commands)} commands; {seconds:.0f} s from labkit learn to the first passed exercise")
    assert seconds < LIMIT_S

    # The lesson's copy shows no result before it is run, and what is shipped was not touched.
    cells = nbformat.read(course.chapters[0].own_lesson, as_version=4).cells
    assert not any(cell.outputs for cell in cells if cell.cell_type == "code")
    for pattern in ("notebooks/**/*.py", "notebooks/*.ipynb", "exercises/*.ipynb"):
        for path in REPOSITORY.glob(pattern):
            assert (clone / path.relative_to(REPOSITORY)).read_bytes() == path.read_bytes()

    # Every command of the loop ends with the one next step.
    for command in ("check 00", f"hint {FIRST}", "progress", f"reset {FIRST}", f"solution {FIRST}", "doctor",
                    "learn --list"):
        done = learner.run(f"labkit {command}")
        last = (done.stderr if command.startswith("solution") else done.stdout).splitlines()[-1]
        assert last.startswith("Next: ") and "labkit " in last, (command, done.stdout, done.stderr)
