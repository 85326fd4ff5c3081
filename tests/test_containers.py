"""Dockerfile and devcontainer: Docker is not needed here. They run README's two commands, and name what exists."""

import fnmatch
import json
import re
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from labkit._common.paths import REPOSITORY

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
DEVCONTAINER = json.loads((REPOSITORY / ".devcontainer" / "devcontainer.json").read_text())
IGNORED = (REPOSITORY / ".dockerignore").read_text().split()
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def instructions() -> list[tuple[str, str]]:
    lines = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def all_of(kind: str) -> list[str]:
    return [text for name, text in instructions() if name == kind]


def copied() -> list[list[str]]:
    """The files of each COPY, without its flags and its target."""
    return [[word for word in text.split() if not word.startswith("--")][:-1] for text in all_of("COPY")]


def readme_commands() -> list[str]:
    block = re.search(r"^```\w*\n(.*?)^```", (REPOSITORY / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return block.group(1).splitlines()


def test_the_container_runs_the_first_command_and_its_head_shows_the_second():
    first, second = readme_commands()
    assert json.loads(all_of("CMD")[0]) == ["bash", "-c", first] and len(all_of("CMD")) == 1
    head = DOCKERFILE.split("FROM")[0]
    assert f'docker run --rm labkit bash -c "{second}"\n' in head
    assert "docker run --rm labkit\n" in head and "docker run --rm --gpus all labkit\n" in head


def test_the_page_shows_the_commands_of_the_dockerfile():
    page = (REPOSITORY / "data" / "places.md").read_text()
    assert re.findall(r"^docker .*", page, re.MULTILINE) == re.findall(r"^#   (docker .*)", DOCKERFILE, re.MULTILINE)
    assert f":{all_of('WORKDIR')[0]}/build" in page


def test_the_devcontainer_runs_both():
    first, second = readme_commands()
    assert (DEVCONTAINER["onCreateCommand"], DEVCONTAINER["postCreateCommand"]) == (first, second)
    folder = REPOSITORY / ".devcontainer"
    assert (folder / DEVCONTAINER["build"]["dockerfile"]).resolve() == REPOSITORY / "Dockerfile"
    assert (folder / DEVCONTAINER["build"]["context"]).resolve() == REPOSITORY
    assert DEVCONTAINER["remoteUser"] == all_of("USER")[-1]
    assert DEVCONTAINER["hostRequirements"] == {"gpu": "optional"}


def test_the_base_image_has_a_full_version_that_labkit_accepts():
    (base,) = all_of("FROM")
    version = re.fullmatch(r"python:(3\.\d+\.\d+)-slim-[a-z]+", base).group(1)
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(version)


def test_pip_runs_as_a_user_and_keeps_no_cache():
    kinds = [name for name, _ in instructions()]
    (user,) = all_of("USER")
    assert user not in ("root", "0") and any(f"useradd --create-home --uid 1000 {user} " in text
                                             for text in all_of("RUN"))
    for index, (name, text) in enumerate(instructions()):
        if name == "RUN" and "pip install" in text:
            assert "USER" in kinds[:index]
    assert "PIP_NO_CACHE_DIR=1" in " ".join(all_of("ENV"))
    for text in all_of("COPY"):
        assert text.startswith(f"--chown={user}:{user} ")
    assert "ADD" not in kinds and "sudo" not in DOCKERFILE and ":latest" not in DOCKERFILE


def test_dependencies_are_a_layer_of_their_own():
    steps = [(name, text) for name, text in instructions() if name == "COPY" or name == "RUN" and "pip install" in text]
    assert [name for name, _ in steps] == ["COPY", "COPY", "COPY", "RUN", "COPY"]
    (install,) = (text for name, text in steps if name == "RUN")
    extra = re.fullmatch(r"pip install -e '\.\[(\w+)\]'", install).group(1)
    assert extra in PROJECT["project"]["optional-dependencies"]
    assert copied()[-1] == ["."]
    # What setuptools reads to know the dependencies: pyproject.toml and each file that it names.
    first = {name for files in copied()[:-1] for name in files}
    version = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")[0].replace(".", "/")
    assert {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"],
            f"{version}.py"} <= first


@pytest.mark.parametrize("name", sorted({name for files in copied() for name in files}))
def test_what_is_copied_exists_and_is_not_ignored(name):
    assert (REPOSITORY / name).exists()
    assert not any(fnmatch.fnmatch(name, pattern.removeprefix("**/")) for pattern in IGNORED)


def test_the_gpu_of_the_host_is_asked_for():
    environment = " ".join(all_of("ENV"))
    assert "NVIDIA_VISIBLE_DEVICES=all" in environment and "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in environment


def test_nothing_that_git_ignores_goes_into_the_image():
    ignored = [line.strip("/") for line in (REPOSITORY / ".gitignore").read_text().splitlines()
               if line.startswith("/") or line.endswith("venv/")]
    assert {name for name in ignored if name != "dist"} <= set(IGNORED) and ".git" in IGNORED
