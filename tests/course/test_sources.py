"""The files of labkit that a source depends on."""

import os

import pytest

import labkit
from labkit._common import paths
from labkit.course.sources import sources_of

FILES = {
    "__init__.py": "from labkit.measure import never_followed\n",
    "measure/__init__.py": "",
    "kernels/__init__.py": "",
    "kernels/gelu.py": "from labkit.kernels.op import Op\nimport numpy\n",
    "kernels/op.py": "def late():\n    from labkit._common import tables\n",
    "kernels/rope.py": "from . import gelu\nfrom ..measure import timing\n",
    "_common/__init__.py": "",
    "_common/tables.py": "from labkit.kernels import op\n",  # a circle ends
    "course/__init__.py": "",
    "course/check/__init__.py": "NAMED = 'labkit.kernels.gelu'\n",
    "cuda.py": "import labkit.simt as simt\n",
    "simt/__init__.py": "",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / "labkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "labkit")
    return tmp_path / "labkit"


OP = ["__init__.py", "_common/__init__.py", "_common/tables.py", "kernels/__init__.py", "kernels/op.py"]
GELU = ["__init__.py", "_common/__init__.py", "_common/tables.py", "kernels/__init__.py", "kernels/gelu.py",
        "kernels/op.py"]


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("import numpy as np\nfrom os import path\n", []),
        ("import labkit\ni = undefined(\n", []),
        ("import labkit\n", ["__init__.py"]),
        ("from labkit.kernels.gelu import gelu_per_thread\n", GELU),
        ("def f():\n    from labkit.kernels import gelu\n", GELU),
        ("import labkit.kernels.op\n", OP),
        ("from labkit import check, cuda\n",
         ["__init__.py", "course/__init__.py", "course/check/__init__.py", "cuda.py", "simt/__init__.py"]),
        ("import labkit\nlabkit.observe(1)\n", ["__init__.py", "simt/__init__.py"]),
    ],
)
def test_a_text(package, text, files):
    assert labkit._HOMES["check"] == "labkit.course.check:check" and labkit._HOMES["observe"] == "labkit.simt:observe"
    assert [path.relative_to(package).as_posix() for path in sources_of(text)] == files


def test_a_file_in_the_package_with_relative_imports(package):
    assert [path.relative_to(package).as_posix() for path in sources_of(package / "kernels" / "rope.py")] == sorted(
        [*GELU, "measure/__init__.py"])


def test_a_file_that_changes_is_read_again(package):
    gelu = package / "kernels" / "gelu.py"
    text = "from labkit.kernels import gelu\n"
    assert package / "cuda.py" not in sources_of(text)
    gelu.write_text("from labkit import cuda\n")
    os.utime(gelu, (1, 1))
    assert package / "cuda.py" in sources_of(text)


def test_the_real_package():
    files = [path.relative_to(paths.PACKAGE).as_posix() for path in sources_of("from labkit import check\n")]
    assert {"course/check/run.py", "course/exercises/edits.py", "simt/launch.py", "cuda.py"} <= set(files)
    assert "models/gpt2.py" not in files


def test_a_lesson_depends_on_what_it_draws():
    text = "from labkit.course.drawings import the_machine as pictures\n"
    assert paths.REPOSITORY / "notebooks" / "drawings" / "the_machine.py" in sources_of(text)
