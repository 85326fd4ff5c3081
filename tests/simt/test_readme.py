"""labkit/simt/README.md: every command in it runs, in a folder with its files, and prints what it quotes."""

import os
import re
import subprocess
import sys

import pytest

from labkit._common.paths import PACKAGE
from labkit.simt import settings

pytestmark = pytest.mark.cpu_device
TEXT = (PACKAGE / "simt" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [(k, line) for k, (kind, body) in enumerate(BLOCKS) if kind == "bash" for line in body.splitlines()]
RUN = [(k, line) for k, line in COMMANDS if not line.startswith("pip ")]


def run(command, folder):
    """What a command prints: pytest and python are those of this environment."""
    words = command.split()
    words[:1] = [sys.executable, "-m", "pytest"] if words[0] == "pytest" else [sys.executable]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True,
                          env=variables | {"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that README shows, under the names in their first lines."""
    root = tmp_path_factory.mktemp("project")
    for kind, body in BLOCKS:
        if kind == "python":
            (root / body.partition("\n")[0].removeprefix("# ")).write_text(body, encoding="utf-8")
    (root / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return root


def test_it_has_what_it_promises():
    by_hand = re.sub(r"<!-- (\w+): made by labkit build -->.*?<!-- end of \1 -->", "", TEXT, flags=re.DOTALL)
    assert len(RUN) == 6 and len(COMMANDS) == 8 and by_hand.count("\n") < 270
    assert {kind for kind, _ in BLOCKS} == {"bash", "python", "text", "toml", "yaml"}


@pytest.mark.sampled(1, sweep=99, quick="python -m labkit.simt --observe program.py")
@pytest.mark.parametrize("place, command", RUN, ids=[command for _, command in RUN])
def test_a_command(place, command, folder):
    code, printed = run(command, folder)
    finds = "--cuda-observe test_total.py" in command
    assert code == (1 if finds else 0), printed
    if finds:
        assert BLOCKS[place + 1][1] in printed
    elif "--observe" in command:
        assert printed == BLOCKS[place + 1][1]


@pytest.mark.sweep(every=True)
def test_the_configuration_works(folder, tmp_path):
    (settings_of_pytest,) = [body for kind, body in BLOCKS if kind == "toml"]
    for name in ("test_total.py", "pyproject.toml"):
        text = settings_of_pytest if name == "pyproject.toml" else (folder / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text, encoding="utf-8")
    code, printed = run("pytest", tmp_path)
    assert code == 0 and "cuda: the CPU device of labkit.simt" in printed, printed


@pytest.mark.sweep(every=True)
def test_the_workflow_runs_the_commands(folder):
    yaml = pytest.importorskip("yaml")
    (workflow,) = [yaml.safe_load(body) for kind, body in BLOCKS if kind == "yaml"]
    commands = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert workflow["jobs"]["test"]["env"]["LABKIT_CACHE_DIR"].endswith("/.labkit-cache")
    pytest.importorskip("xdist")
    on_cpu, observed = [command.replace("-n auto", "-n 2") for command in commands if command.startswith("pytest ")]
    assert run(on_cpu, folder)[0] == 0
    code, printed = run(observed, folder)
    assert code == 1 and "1 failed, 1 passed" in printed, printed


def test_the_numbers_that_it_names():
    from labkit.simt.observer import launches

    for number in (launches.MOST_THREADS, launches.MOST_LAUNCHES, launches.MOST_STEPS, settings.time_limit_s()):
        assert f"{number:,.0f}" in TEXT
    assert f"compute capability 9.0, with {settings.LIMITS.shared_per_block // 1024} KB" in TEXT


def test_the_variables_are_those_that_settings_reads():
    named = set(re.findall(r"^\| `(LABKIT_\w+)`", TEXT, re.MULTILINE))
    assert named == set(re.findall(r"^(LABKIT_\w+)", settings.__doc__, re.MULTILINE))


def test_its_links_lead_somewhere():
    for link in re.findall(r"\]\((\.\.[^)]+)\)", TEXT):
        assert (PACKAGE / "simt" / link).resolve().exists()
