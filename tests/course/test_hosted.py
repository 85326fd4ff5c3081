"""Colab and Kaggle: what their images have is recorded in hosted_images.json, and labkit must go in without replacing
what PyTorch and the session use."""

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.course import colab, hosted
from labkit.device import facts as machine
from labkit.device.facts import Facts, Gpu

RECORDED = json.loads((REPOSITORY / "tests" / "course" / "hosted_images.json").read_text())
IMAGES = {image["name"]: image for image in RECORDED["images"]}
ON_A_DRIVER = [(name, driver) for name, image in IMAGES.items() for driver in image["drivers"] or [None]]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
ADDRESS = "https://github.com/owner/name"
P100 = Gpu("Tesla P100-PCIE-16GB", (6, 0), 16 * 2**30, None, 56, 1024)
T4 = Gpu("Tesla T4", (7, 5), 15 * 2**30, None, 40, 1024)


def seen(packages: dict, driver_cuda: tuple | None, *gpus: Gpu) -> Facts:
    return Facts(packages={name: packages.get(name) for name in machine.PACKAGES + machine.TOOLKIT_PACKAGES},
                 driver_library=bool(gpus), driver_cuda=driver_cuda, gpus=list(gpus))


def plan_of(image: dict, driver: dict | None) -> hosted.Plan:
    gpus = [Gpu(image["gpu"], tuple(image["capability"]), 0, None, 0, 0)] if driver else []
    return hosted.plan(seen(image["packages"], tuple(driver["cuda"]) if driver else None, *gpus), image["packages"])


# --- The recorded images ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "driver"), ON_A_DRIVER, ids=lambda value: str(value)[:40])
def test_the_extra_fits_the_driver_and_what_the_image_has(name, driver):
    image = IMAGES[name]
    planned = plan_of(image, driver)
    assert planned.extra == image["extra"]
    if driver:
        major = int(planned.extra.removeprefix("cu"))
        assert major <= driver["cuda"][0] and Version(image["packages"]["cuda-toolkit"]).major == major
        assert image["gpu"] in planned.why and planned.extra in planned.why
    else:
        assert "no GPU" in planned.why


@pytest.mark.parametrize(("name", "driver"), ON_A_DRIVER, ids=lambda value: str(value)[:40])
def test_labkit_goes_in_and_changes_only_what_is_recorded(name, driver):
    image = IMAGES[name]
    assert SpecifierSet(PROJECT["requires-python"]).contains(image["python"])
    assert image["packages"]["packaging"]  # the one import of hosted.py that is not of the standard library
    planned = plan_of(image, driver)
    lines = PROJECT["dependencies"] + (PROJECT["optional-dependencies"][planned.extra] if planned.extra else [])
    changes = resolve(image, [Requirement(line) for line in lines], planned.constraints)
    known = {key.split("==")[0] for key in RECORDED["wheels"]}
    assert changes == {name: version for name, version in image["changes"].items() if name in known}
    assert not changes.keys() & set(hosted.KEPT) - {"cuda-bindings"}
    assert "cuda-bindings" not in changes or "cuda-bindings" not in image["packages"]


def resolve(image: dict, requirements: list[Requirement], constraints: tuple[str, ...]) -> dict[str, str]:
    """{name: version} of what pip would add or change: of each package the version that the image has, or else the
    newest recorded wheel that the constraints allow."""
    limits = {canonicalize_name(r.name): r.specifier for r in map(Requirement, constraints)}
    environment = {"python_version": ".".join(image["python"].split(".")[:2]), "python_full_version": image["python"],
                   "sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}

    def applies(requirement, extras=("",)):
        return not requirement.marker or any(requirement.marker.evaluate({**environment, "extra": extra})
                                             for extra in extras or ("",))

    def needs(name, version, extras):
        listed = map(Requirement, RECORDED["wheels"].get(f"{name}=={version}", ()))
        return [each for each in listed if applies(each, ("", *extras))]

    def allowed(name, version, requirement):
        if not requirement.specifier.contains(version, prereleases=True):
            return False
        if name in limits and not limits[name].contains(version, prereleases=True):
            return False
        kept = ((canonicalize_name(r.name), r.specifier) for r in needs(name, version, requirement.extras))
        return all(other not in hosted.KEPT or other not in image["packages"]
                   or specifier.contains(image["packages"][other]) for other, specifier in kept)

    chosen, todo, done = {}, [r for r in requirements if applies(r)], set()
    while todo:
        requirement = todo.pop(0)
        if str(requirement) in done:
            continue
        done.add(str(requirement))
        name = canonicalize_name(requirement.name)
        recorded = sorted((key.split("==")[1] for key in RECORDED["wheels"] if key.startswith(f"{name}==")),
                          key=Version, reverse=True)
        candidates = [chosen[name]] if name in chosen else [v for v in (image["packages"].get(name), *recorded) if v]
        fitting = [version for version in candidates if allowed(name, version, requirement)]
        assert fitting, f"{requirement}: {image['name']} has {candidates}, and no recorded wheel fits"
        chosen[name] = fitting[0]
        todo += needs(name, fitting[0], requirement.extras)
    return {name: version for name, version in chosen.items() if image["packages"].get(name) != version}


def test_the_recorded_wheels_require_what_the_installed_ones_do():
    for key, requires in RECORDED["wheels"].items():
        name, version = key.split("==")
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.version == version:
            assert {str(Requirement(r)) for r in requires} <= {str(Requirement(r)) for r in installed.requires or ()}
    newest = {key for key in RECORDED["wheels"] if key.startswith("numba-cuda==")}
    pin = next(Requirement(line) for line in PROJECT["dependencies"] if line.startswith("numba-cuda"))
    assert any(pin.specifier.contains(key.split("==")[1]) for key in newest)


def test_every_image_has_its_date_and_source():
    for image in RECORDED["images"]:
        assert image["source"].startswith("https://github.com/") and image["date"] <= RECORDED["resolved"]
        assert all(driver["source"] for driver in image["drivers"])
        assert len(image["packages"]) > 20


# --- Made-up images ---------------------------------------------------------------------------------------------------

WHEELS_13 = {"numpy": "2.4.6", "torch": "2.11.0", "cuda-bindings": "13.0.3", "nvidia-cuda-nvrtc": "13.0.88",
             "nvidia-cuda-runtime": "13.0.96", "nvidia-nvjitlink": "13.0.88"}


@pytest.mark.parametrize(("packages", "driver", "gpu", "extra", "limit"), [
    (WHEELS_13, (13, 0), T4, "cu13", None),  # PyTorch from PyPI brings CUDA 13
    ({}, (12, 4), T4, "cu12", "cuda-toolkit<12.5"),
    ({}, (13, 0), T4, "cu13", "cuda-toolkit<13.1"),
    ({"numpy": "2.1.3"}, (12, 9), T4, "cu12", "cuda-toolkit<12.10"),
    ({}, (13, 0), P100, "", None),
], ids=["CUDA 13 wheels", "driver 12.4", "driver 13.0", "driver 12.9", "too old a GPU"])
def test_the_extra_for_images_that_are_made_up(packages, driver, gpu, extra, limit):
    planned = hosted.plan(seen(packages, driver, gpu), packages)
    assert planned.extra == extra
    assert planned.constraints == (*(f"{name}=={packages[name]}" for name in hosted.KEPT if name in packages),
                                   *([limit] if limit else []))
    assert gpu.name in planned.why


def test_nothing_but_the_standard_library_is_needed_before_the_installation():
    program = textwrap.dedent("""
        import sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] not in {*sys.stdlib_module_names, "labkit", "packaging"}:
                    raise ImportError(f"{name} is not installed yet")

        sys.meta_path.insert(0, Blocked())
        from labkit.course import hosted
        print(hosted.plan(hosted.machine.without_imports(), hosted.versions()).extra or "none")
    """)
    process = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() in ("cu12", "cu13", "none")


# --- The installation, with a stand-in for Python ---------------------------------------------------------------------

STAND_IN = """#!{python} -S
import pathlib, sys
folder = pathlib.Path({folder!r})
if "pip" in sys.argv:
    (folder / "pip.txt").write_text(" ".join(sys.argv[1:]))
    (folder / "constraints.txt").write_text(pathlib.Path(sys.argv[sys.argv.index("-c") + 1]).read_text())
    print((folder / "says").read_text())
    sys.exit(int((folder / "code").read_text()))
(folder / "doctor.txt").write_text(" ".join(sys.argv[1:]))
print((folder / "report").read_text())
"""
SOUND = {"findings": [], "facts": {"smoke": "ok", "device_name": "Tesla T4"}}


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A session on Colab with a T4. A script stands in for pip and `labkit doctor`: it prints what a test tells it."""
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable, folder=str(tmp_path)))
    python.chmod(0o755)
    before = {"numpy": "2.1.3", "numba-cuda": "0.22.2", "packaging": "26.3", "nvidia-cuda-nvrtc-cu12": "12.8.93"}
    state = SimpleNamespace(folder=tmp_path, before=before, after={**before, "numba-cuda": "0.30.4", "rich": "14.0"},
                            facts=seen(before, (13, 0), T4))

    def say(text: str = "Collecting numba-cuda", code: int = 0, report: dict | str = SOUND) -> None:
        (tmp_path / "says").write_text(text)
        (tmp_path / "code").write_text(str(code))
        (tmp_path / "report").write_text(report if isinstance(report, str) else json.dumps(report))

    state.say = say
    say()
    answers = iter((lambda: state.before, lambda: state.after))
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(hosted, "versions", lambda: next(answers)())
    monkeypatch.setattr(hosted.machine, "without_imports", lambda: state.facts)
    monkeypatch.setattr(hosted, "_in_use", lambda name: name == "packaging")
    monkeypatch.setitem(sys.modules, hosted.LOADED_AT_START, ModuleType(hosted.LOADED_AT_START))
    monkeypatch.delenv("LABKIT_DEVICE", raising=False)
    return state


def test_the_installation_tells_what_it_does_and_runs_a_kernel(session, capsys):
    hosted.install(session.folder)
    text = capsys.readouterr().out
    assert "Tesla T4, with a driver for CUDA 13.0: the extra cu12 fits" in text and "Collecting numba-cuda" in text
    assert "Added 1 packages; changed numba-cuda 0.22.2 to 0.30.4." in text
    assert text.endswith("The course is ready. Device: Tesla T4. A test kernel ran on it.\n")
    assert (session.folder / "pip.txt").read_text().endswith(f"-e {session.folder}[cu12]")
    assert (session.folder / "constraints.txt").read_text() == "numpy==2.1.3\nnvidia-cuda-nvrtc-cu12==12.8.93"
    assert (session.folder / "doctor.txt").read_text() == "-m labkit doctor --json"
    assert "LABKIT_DEVICE" not in os.environ


def test_without_a_gpu_no_toolkit_is_installed(session, capsys):
    session.facts = seen(session.before, None)
    session.say(report={"findings": [], "facts": {"smoke": "", "device_name": "labkit CPU device"}})
    hosted.install(session.folder)
    assert (session.folder / "pip.txt").read_text().endswith(f"-e {session.folder}")
    assert capsys.readouterr().out.endswith("Device: labkit CPU device.\n")


def test_a_gpu_that_is_too_old_is_left_alone(session, capsys, monkeypatch):
    monkeypatch.setenv("LABKIT_DEVICE", "auto")  # so that it is put back
    session.facts = seen(session.before, (13, 0), P100)
    hosted.install(session.folder)
    assert "compute capability 6.0, and labkit needs 7.5" in capsys.readouterr().out
    assert os.environ["LABKIT_DEVICE"] == "cpu"


def test_it_says_when_a_restart_is_needed(session, capsys):
    session.after = {**session.after, "packaging": "27.0"}
    hosted.install(session.folder)
    assert "RESTART NEEDED: packaging had been imported before." in capsys.readouterr().out
    assert not (session.folder / "doctor.txt").exists()


def test_packages_made_for_other_versions_are_named(session, capsys):
    session.say("cudf-cu12 26.2.1 requires numba-cuda<0.23.0, but you have numba-cuda 0.30.4 which is incompatible.")
    hosted.install(session.folder)
    assert "so they may fail in this session: cudf-cu12." in capsys.readouterr().out


def test_a_failure_of_pip_is_an_error_with_its_words(session):
    session.say("Collecting numba\nERROR: No matching distribution found for numba-cuda==0.30.*", code=1)
    with pytest.raises(UserError, match="(?s)pip could not install.*No matching distribution found for numba-cuda"):
        hosted.install(session.folder)


@pytest.mark.parametrize(("report", "words"), [
    ({"findings": [{"level": "error", "what": "nvvm was not found.", "why": "It compiles.", "fix": "pip install x"}],
      "facts": {}}, "(?s)nvvm was not found. It compiles.*run in a cell: !pip install x"),
    ("", "is installed, but does not start")], ids=["a fault", "a crash"])
def test_what_the_doctor_finds_is_an_error(session, report, words):
    session.say(report=report)
    with pytest.raises(UserError, match=words):
        hosted.install(session.folder)


def test_a_package_is_in_use_once_a_module_of_it_is_imported(monkeypatch):
    files = [Path("made_up/part/__init__.py"), Path("made_up.dist-info/METADATA"), Path("_numba_cuda_redirector.py")]
    monkeypatch.setattr(importlib.metadata, "files", lambda name: files)
    monkeypatch.setitem(sys.modules, "_numba_cuda_redirector", ModuleType("_numba_cuda_redirector"))
    assert not hosted._in_use("made-up")
    monkeypatch.setitem(sys.modules, "made_up.part", ModuleType("made_up.part"))
    assert hosted._in_use("made-up")


def test_versions_are_those_of_the_installed_packages_by_their_normal_names():
    found = hosted.versions()
    assert found["numba"] == importlib.metadata.version("numba") and "huggingface-hub" in found


def test_of_two_versions_the_one_that_python_imports_counts(tmp_path, monkeypatch):
    for folder, version in (("first", "2.0"), ("second", "1.0")):
        information = tmp_path / folder / f"Made_Up-{version}.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Made_Up\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert hosted.versions() == {"made-up": "2.0"}


# --- The cell ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """Runs the cell with a stand-in for git, where `course` is in tmp_path. calls: what git and install were given."""
    calls = []
    course = tmp_path / "course"
    source = colab.setup_source(ADDRESS)
    assert "/content/course" in source and "/tmp/course" in source
    source = source.replace('"/content"', repr(str(tmp_path))).replace("/content/course", str(course))

    def git(command, **_):
        calls.append(command)
        if failing:
            return SimpleNamespace(returncode=128, stderr="fatal: repository not found")
        course.mkdir()
        return SimpleNamespace(returncode=0, stderr="")

    failing = []
    monkeypatch.setattr(subprocess, "run", git)
    monkeypatch.setattr(hosted, "install", lambda folder: calls.append(("install", folder)))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    return SimpleNamespace(run=lambda: exec(compile(source, "cell", "exec"), {}), calls=calls, course=str(course),
                           failing=failing)


def test_the_cell_does_nothing_elsewhere(cell):
    cell.run()
    assert cell.calls == []


@pytest.mark.parametrize("where", ["Colab", "Kaggle"])
def test_the_cell_fetches_the_course_once_and_installs_it(cell, monkeypatch, where):
    if where == "Colab":
        monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    else:
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    cell.run()
    clone = ["git", "clone", "-q", "--depth", "1", ADDRESS, cell.course]
    assert cell.calls == [clone, ("install", cell.course)] and sys.path[0] == cell.course
    cell.run()
    assert cell.calls == [clone, ("install", cell.course), ("install", cell.course)]


def test_the_cell_says_why_the_course_could_not_be_fetched(cell, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    cell.failing.append(True)
    with pytest.raises(RuntimeError, match="could not be fetched. fatal: repository not found"):
        cell.run()
