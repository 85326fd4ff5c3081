"""Mutants of labkit's own code: drawn by seed, whole Python, and the tool that tries them leaves all as it was."""

import ast

import pytest

from labkit._common.paths import REPOSITORY
from tests.scripts import loaded

pytestmark = pytest.mark.sweep(every=True)  # about the repository: .ci/run runs it

SIGN = '''"""Signs."""


class Signs:
    def of(self, x):
        """1 or -1."""
        return 1 if x > 0 else -1  # of a number, ½ too
'''


@pytest.fixture(scope="module")
def tool():
    with loaded("mutate_labkit") as script:
        yield script


def checkout(folder):
    """A package of one class, and a test that looks at one of its two results; another is left to the sweep."""
    for name, text in {
        "labkit/cli/sign.py": SIGN,
        "tests/cli/test_sign.py": "import pytest\nfrom labkit.cli.sign import Signs\n\n\n"
                                  "def test_positive():\n    assert Signs().of(3) == 1\n\n\n"
                                  "@pytest.mark.sweep\ndef test_negative():\n    assert Signs().of(-3) == -1\n",
        "tests/cli/test_broken.py": "def test_broken():\n    raise OSError\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = \"-m 'not slow and not sweep'\"\n"
                          "markers = ['slow', 'sweep']\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_draw_of_labkit_is_the_same_each_time_and_changes_one_place(tool):
    drawn = tool.draw(60, seed=1)
    assert drawn == tool.draw(60, seed=1) != tool.draw(60, seed=2) and len(drawn) == 60
    assert {one.room for one in drawn} > {"simt", "kernels", "course", "models"}
    for one in drawn:
        before = (REPOSITORY / one.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(one.source)) != ast.dump(ast.parse(before))
        assert all((REPOSITORY / test).is_file() for test in one.tests) and one.tests
    assert {one.file.split("/")[2] for one in tool.draw(5, seed=1, words=["kernels/softmax"])} == {"softmax"}


def test_all_but_the_place_stays_as_it_stands(tool, tmp_path):
    drawn = tool.draw(50, seed=1, root=checkout(tmp_path))
    sources = {one.source for one in drawn}
    assert len(sources) == len(drawn) > 5
    assert SIGN.replace("x > 0", "(x >= 0)") in sources and SIGN.replace("-1  #", "(1)  #") in sources
    for one in drawn:
        assert one.tests == ("tests/cli/test_sign.py",) and one.line == 7
        assert one.source.split("\n")[:6] == SIGN.split("\n")[:6] and "# of a number, ½ too" in one.source


def test_killed_at_once_killed_by_the_sweep_survived_and_everything_as_it_was(tool, tmp_path):
    pristine = checkout(tmp_path / "pristine")
    before = {file: file.read_bytes() for file in pristine.rglob("*.py")}
    copies = [tool.Copy(pristine, tmp_path / "0", [])]
    tests = ("tests/cli/test_broken.py", "tests/cli/test_sign.py")
    copies[0].left_out += tool.failing(list(tests), copies, 60)
    assert copies[0].left_out == ["tests/cli/test_broken.py::test_broken"]
    mutants = [tool.Mutant("labkit/cli/sign.py", 7, "", "", SIGN.replace("1 if x > 0 else -1", new), tests)
               for new in ("-1", "1", "1 if x >= 0 else -1")]
    tried = tool.each_in_a_copy(mutants, lambda copy, one: copy.try_mutant(one, 60), copies)
    found = [(one.default, one.sweep, one.by.rpartition("::")[2], one.survived) for _, one in tried]
    assert found == [("killed", "not run", "test_positive", False), ("survived", "killed", "test_negative", False),
                     ("survived", "survived", "", True)]
    assert {file: file.read_bytes() for file in pristine.rglob("*.py")} == before
    assert (tmp_path / "0" / "checkout" / "labkit" / "cli" / "sign.py").read_bytes() == before[
        pristine / "labkit" / "cli" / "sign.py"]
