"""environment.yml and pyproject.toml ask for the same packages, and README, CI, CONTRIBUTING and package agree on the
commands, the files and the rooms."""

import re
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labkit._common.paths import REPOSITORY
from labkit.device import doctor
from labkit.device.facts import Facts, Gpu
from labkit.device.gpus import GPUS, SUPPORTED

ROOT = REPOSITORY
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


def wanted() -> dict[str, str]:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    assert "labkit[fits]" in extras["test"]
    others = [text for text in extras["test"] if text != "labkit[fits]"]
    found = [Requirement(text) for text in project["dependencies"] + others + extras["fits"] + extras["grade"]]
    return {canonicalize_name(r.name): str(r.specifier) for r in found}


def offered() -> dict[str, str]:
    conda = [entry for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)]
    (pip,) = (entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict))
    found = [Requirement(text) for text in conda + [line for line in pip if line != "-e ."]]
    assert "-e ." in pip
    return {canonicalize_name(r.name): str(r.specifier) for r in found}


def test_the_conda_environment_has_the_same_dependencies():
    environment = offered()
    assert environment.pop("pip") == ""
    assert environment.pop("python") == PYPROJECT["project"]["requires-python"]
    assert environment == wanted()


def test_numba_cuda_is_pinned_in_every_extra_and_left_out_on_a_mac():
    project = PYPROJECT["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["cu12"]]
    lines += project["optional-dependencies"]["cu13"]
    requirements = [Requirement(line) for line in lines if line.startswith("numba-cuda")]
    assert len(requirements) == 3
    for requirement in requirements:
        assert str(requirement.specifier) == "==0.30.*"
        assert not requirement.marker.evaluate({"sys_platform": "darwin"})
        assert requirement.marker.evaluate({"sys_platform": "linux"})


def test_the_next_compiler_is_pinned_to_the_release_that_is_mended():
    compiler, linker = map(Requirement, PYPROJECT["project"]["optional-dependencies"]["mlir"])
    assert compiler.name == "numba-cuda-mlir" and linker.name == "nvidia-nvjitlink"
    assert not any(each.marker.evaluate({"sys_platform": "darwin"}) for each in (compiler, linker))
    source = (ROOT / "labkit" / "device" / "mlir.py").read_text()
    least = re.search(r"^NVJITLINK = \((\d+), (\d+)\)", source, re.MULTILINE)
    assert str(linker.specifier) == f">={least[1]}.{least[2]}"
    version = str(compiler.specifier).removeprefix("==")
    assert f"numba-cuda-mlir {version} lacks" in (ROOT / "tests" / "device" / "test_mlir_lacks.py").read_text()


def test_readme_begins_with_the_two_commands_and_ci_reads_the_second():
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"^```\w*\n(.*?)^```", readme, re.DOTALL | re.MULTILINE).group(1)
    assert block.splitlines() == ["pip install -e . && labkit run", "pip install -e '.[test]' && pytest"]
    script = (ROOT / ".ci" / "run").read_text()
    assert "README.md | sed -n 2p" in script
    sweep = r"""^(echo "\+ )?pytest -m 'sweep and not slow'"?$"""
    own = re.sub(rf"^ *#.*|.*&& pytest\".*|{sweep}", "", script, flags=re.MULTILINE)
    assert "pytest" not in own  # the sweep alone is its own; what comes before it stands in README


def test_every_extra_that_readme_names_exists():
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"\.\[(\w+)\]", readme))
    assert named <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_readme_names_the_gpus_that_are_supported():
    readme = (ROOT / "README.md").read_text().replace("\n", " ")
    sentence = re.search(r"labkit supports GPUs of compute capability (.*?)\. It", readme).group(1)
    expected = {}
    for gpu in GPUS.values():
        short = re.sub(r"^(NVIDIA |Tesla |GeForce )+|[ -](SXM\S*|\d+GB.*)$", "", gpu.name)
        expected.setdefault("{}.{}".format(*gpu.capability), []).append(short)
    listed = {capability: names.split(", ") for capability, names in re.findall(r"`(\d+\.\d)` \((.*?)\)", sentence)}
    assert listed == expected
    assert [tuple(map(int, capability.split("."))) for capability in listed] == list(SUPPORTED)


def test_the_page_on_places_names_extras_and_files_that_exist():
    page = (ROOT / "data" / "places.md").read_text()
    assert set(re.findall(r"\bcu\d+\b", page)) <= PYPROJECT["project"]["optional-dependencies"].keys()
    assert (ROOT / ".devcontainer" / "devcontainer.json").is_file() and "`.devcontainer/devcontainer.json`" in page
    assert "\n### What has not been tried\n" in (ROOT / "CONTRIBUTING.md").read_text()
    assert f"older than {Requirement(PYPROJECT['project']['dependencies'][0]).specifier}".replace(">=", "") in page


def test_readmes_words_about_drivers_are_the_doctors():
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"driver\s+for\s+CUDA\s+(\d+)\s+or\s+newer", readme).group(1) == str(doctor.OLDEST_DRIVER[0])
    oldest = Gpu("the oldest GPU that is supported", min(SUPPORTED), 0, None, 0, 0)
    extras = dict(re.findall(r"\.\[(cu\d+)\]' +# driver for CUDA (\d+)", readme))
    assert len(extras) == 2
    for extra, major in extras.items():
        assert doctor.fitting_extra(Facts(driver_cuda=(int(major), 0), gpus=[oldest])) == extra


# What CONTRIBUTING's recipes make: no file of it is there.
MADE = ("relu", "bigram", "clamp_below")


def test_every_file_that_contributing_names_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"\b((?:labkit|tests|notebooks|solutions|exercises|scripts|data)/[\w/.]*\w/?)", text))
    paths = {path for path in paths if not any(made in path for made in MADE)}
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_contributings_map_has_every_room_and_its_chain_is_the_one_that_is_tested():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    chain = re.search(r"^`(_common, .*)`$", text, re.MULTILINE).group(1)
    rooms = tuple(re.findall(r"\w+", chain.replace("cuda.py", "")))
    tested = re.search(r"^CHAIN = \((.*)\)$", (ROOT / "tests" / "test_imports.py").read_text(), re.MULTILINE).group(1)
    assert rooms == tuple(re.findall(r"\w+", tested))
    house = re.search(r"^```\nlabkit/\n(.*?)^```", text, re.DOTALL | re.MULTILINE).group(1)
    assert [line.split()[0].rstrip("/") for line in house.splitlines()] == [*rooms[:3], "cuda.py", *rooms[3:]]


def test_the_workflow_of_the_pages_installs_and_runs_the_command():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "pages.yml").read_text())
    steps = workflow["jobs"]["build"]["steps"]
    runs = [step["run"] for step in steps if "run" in step]
    assert runs[0] == "pip install -e ." and runs[1].startswith("labkit site --repository ")
    assert [step["with"]["path"] for step in steps if step.get("uses", "").startswith("actions/upload-pages-artifact@")
            ] == ["build/site"]
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", each) for each in used)
    assert any(each.startswith("actions/deploy-pages@") for each in used)
