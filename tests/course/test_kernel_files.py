"""A kernel from a file or a notebook: definitions are run, launches are not."""

import json

import pytest

from labkit._common.errors import UserError
from labkit.course import kernel_files

SOURCE = """\
from labkit import cuda
import helper

FACTOR = helper.FACTOR
missing = unknown_name(3)

def make(n):
    @cuda.jit
    def made(out):
        out[0] = n
    return made

scale = make(FACTOR)

@cuda.jit(device=True)
def inner(x):
    return x

@cuda.jit
def first(out):
    out[0] = inner(FACTOR)

def plain(out):
    pass

raise SystemExit("it was run")
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "helper.py").write_text("FACTOR = 3\n")
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_kernels_of_a_file(file):
    assert kernel_files.kernel(file, "first").__name__ == "first"
    assert kernel_files.kernel(file, "scale").__name__ == "made"
    assert kernel_files.kernel(file, "first").py_func.__code__.co_filename == str(file)


@pytest.mark.parametrize(("name", "words"), [
    ("second", "has no kernel 'second'; its kernels are scale, first"),
    ("plain", "is a function without @cuda.jit and no kernel"), ("inner", "is a device function and no kernel"),
    ("FACTOR", "is of type int and no kernel"),
    ("missing", "cannot be made: line 5: name 'unknown_name' is not defined"),
    ("", "needs the name of a kernel, such as .*mine.py:scale"),
])
def test_what_is_no_kernel(file, name, words):
    with pytest.raises(UserError, match=words):
        kernel_files.kernel(file, name)


def test_kernels_of_a_notebook(tmp_path):
    cells = [("markdown", "# A title"), ("code", "%matplotlib inline\nfrom labkit import cuda\n"),
             ("code", "@cuda.jit\ndef twice(x, out):\n    out[0] = 2 * x[0]\n"), ("code", "twice[1, 1](3)")]
    path = tmp_path / "mine.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": kind, "source": text.splitlines(keepends=True)}
                                          for kind, text in cells]}))
    kernel = kernel_files.kernel(path, "")
    assert kernel.__name__ == "twice" and kernel.py_func.__code__.co_filename == "<cell 2 of mine.ipynb>"
    import inspect

    assert "2 * x[0]" in inspect.getsource(kernel.py_func)


@pytest.mark.parametrize(("name", "text", "words"), [
    ("a.ipynb", "{}", "is no notebook"), ("a.ipynb", "no", "is no notebook"),
    ("a.py", "def (", "line 1 is no Python"), ("a.py", "x = 1", "it defines no kernel")])
def test_files_without_kernels(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=words):
        kernel_files.kernel(tmp_path / name, "k")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="there is no file .*none.py"):
        kernel_files.kernel(tmp_path / "none.py", "k")
