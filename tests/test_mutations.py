"""The list of scripts/mutations.toml follows the code, and the tool that runs it leaves everything as it was."""

import importlib.util
import sys

import pytest

from labkit._common.paths import REPOSITORY

pytestmark = pytest.mark.sweep(every=True)  # about the repository: .ci/run runs it

SCRIPT = REPOSITORY / "scripts" / "mutate_labkit.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("mutate_labkit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_each_mutation_still_has_its_place_and_its_tests(tool):
    mutations = tool.read()
    assert tool.problems(mutations) == []
    rooms = {"_common", "simt", "device", "kernels", "models", "engine", "serve", "measure", "course", "cli"}
    assert {mutation.room for mutation in mutations if mutation.file.startswith("labkit/")} == rooms


def checkout(folder):
    """A package of one function, and a test that looks at one of its two results; another is left to the sweep."""
    for name, text in {
        "labkit/cli/sign.py": "def sign(x):\n    return 1 if x > 0 else -1\n",
        "tests/test_sign.py": "import pytest\nfrom labkit.cli.sign import sign\n\n\n"
                              "def test_positive():\n    assert sign(3) == 1\n\n\n"
                              "@pytest.mark.sweep\ndef test_negative():\n    assert sign(-3) == -1\n",
        "tests/test_broken.py": "def test_broken():\n    raise OSError\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = \"-m 'not slow and not sweep'\"\n"
                          "markers = ['slow', 'sweep']\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_list_that_no_longer_fits_is_named(tool, tmp_path):
    def one(name="a", file="labkit/cli/sign.py", old="x > 0", new="x >= 0", tests=("tests/test_sign.py",)):
        return tool.Mutation(name, file, old, new, tests, "zero is positive")

    checkout(tmp_path)
    assert tool.problems([one()], tmp_path) == []
    wrong = [one(), one(), one("gone", old="x < 0"), one("twice", old="1"), one("same", new="x >  0"),
             one("no Python", new="x >"), one("no file", file="labkit/cli/no.py"),
             one("no test", tests=("tests/no.py",))]
    messages = "\n".join(tool.problems(wrong, tmp_path))
    assert messages.count("\n") == 6
    for part in ("a: two mutations have this name", "gone: its old text occurs 0 times in labkit/cli/sign.py, not once",
                 "twice: its old text occurs 2 times", "same: it changes nothing",
                 "no Python: labkit/cli/sign.py is no Python with it", "no file: there is no file labkit/cli/no.py",
                 "no test: there is no test file tests/no.py"):
        assert part in messages


@pytest.mark.sweep
def test_killed_at_once_killed_by_the_sweep_survived_and_everything_as_it_was(tool, tmp_path):
    pristine = checkout(tmp_path / "pristine")
    before = {file: file.read_bytes() for file in pristine.rglob("*.py")}
    copies = [tool.Copy(pristine, tmp_path / "0", [])]
    tests = ("tests/test_broken.py", "tests/test_sign.py")
    copies[0].left_out += tool.failing(list(tests), copies, 60)
    assert copies[0].left_out == ["tests/test_broken.py::test_broken"]
    mutations = [tool.Mutation(new, "labkit/cli/sign.py", "1 if x > 0 else -1", new, tests, "")
                 for new in ("-1", "1", "1 if x >= 0 else -1")]
    tried = tool.each_in_a_copy(mutations, lambda copy, one: copy.try_mutation(one, 60), copies)
    found = [(one.default, one.sweep, one.by.rpartition("::")[2], one.survived) for _, one in tried]
    assert found == [("killed", "not run", "test_positive", False), ("survived", "killed", "test_negative", False),
                     ("survived", "survived", "", True)]
    assert {file: file.read_bytes() for file in pristine.rglob("*.py")} == before
    assert (tmp_path / "0" / "checkout" / "labkit" / "cli" / "sign.py").read_bytes() == before[
        pristine / "labkit" / "cli" / "sign.py"]
