"""Reading a submission as text: its cells, its answers, its numbers."""

import json

import pytest

from labkit.course.grade.answers import (
    Answer,
    Refused,
    Unreadable,
    answers_in,
    numbers_of,
    program_of,
    read_cells,
    vetted,
)
from tests.course.grade.made_up import FIRST, RIGHT_KERNEL, kernel_cells, notebook


def program(answer: str, above: str = FIRST, name: str = "saxpy"):
    return program_of(Answer("saxpy", (above, answer), f'check("saxpy", {name})'))


@pytest.mark.parametrize(("data", "message"), [
    (b"\xff\xfe\x00", "not UTF-8|not JSON"),
    ("é".encode("latin-1") * 3, "not UTF-8"),
    (b"{", "not JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b"[]", "no list of cells"),
    (b'{"cells": 3}', "no list of cells"),
    (b'{"cells": [{"cell_type": "code", "source": {"a": 1}}]}', "not text"),
    (b'{"cells": [' + b'{"cell_type": "code"},' * 3000 + b'{"cell_type": "code"}]}', "3,001 code cells"),
    (b" " * (33 << 20), "33 MiB"),
])
def test_what_is_no_notebook_is_named(data, message):
    with pytest.raises(Unreadable, match=message):
        read_cells(data, ".ipynb")


def test_cells_are_read_from_notebooks_and_scripts():
    cells = [FIRST, "x = 1", 'check("a", x)']
    lines = json.dumps({"cells": [{"cell_type": "code", "source": ["x = 1\n", "y = 2"]}, {"cell_type": "markdown"}, 7]})
    assert read_cells(notebook(*cells).encode(), ".ipynb") == cells
    assert read_cells(lines.encode("utf-16"), ".ipynb") == ["x = 1\ny = 2"]
    assert read_cells("\n\n".join(f"# %%\n{cell}" for cell in cells).encode(), ".py") == cells
    plain = answers_in(read_cells("\r\n".join(cells).encode(), ".py"))
    assert plain["a"].above == ("from labkit import check, cuda, hint\nx = 1",)


def test_the_last_check_of_an_exercise_counts():
    found = answers_in(["x = 1", 'check("a", x)', "x = 2", 'check("a", x)', "def check(*a): pass"])
    assert found["a"].above == ("x = 1", "x = 2")


def test_equal_programs_have_equal_digests():
    one = program(RIGHT_KERNEL)
    assert program(RIGHT_KERNEL.replace("    i =", "    # mine\n\n    i  =")).digest == one.digest
    assert program(RIGHT_KERNEL.replace("s * x", "x")).digest != one.digest


SWAPS = RIGHT_KERNEL.replace("y[i] = s * x[i] + y[i]", "a = x[i]\n        b = y[i]\n        y[i] = s * a + b")


@pytest.mark.parametrize(("one", "other", "equal"), [
    (RIGHT_KERNEL, RIGHT_KERNEL.replace("i ", "row ").replace("[i]", "[row]"), True),
    (SWAPS, SWAPS.replace("a = x", "b = x").replace("b = y", "a = y").replace("s * a + b", "s * b + a"), True),
    (SWAPS, SWAPS.replace("s * a + b", "s * b + a"), False),  # the names now mean one another's values
    (SWAPS, SWAPS.replace("b = y[i]", "a = y[i]").replace("+ b", "+ a"), False),  # one variable in place of two
    (RIGHT_KERNEL, RIGHT_KERNEL.replace("x[i]", "i[i]"), False),  # a variable in place of an argument
    (RIGHT_KERNEL, RIGHT_KERNEL.replace("(s, x, y)", "(s, y, x)"), False),
    (SWAPS, SWAPS.replace("a = x[i]", "cuda = x[i]").replace("s * a", "s * cuda"), False),  # what @cuda.jit names
    (f"K = 2\n{SWAPS}", f"K = 2\n{SWAPS.replace('a =', 'K =').replace('s * a', 's * K')}", True),  # hides the global
    (f"K = 2\n{SWAPS}", f"K = 3\n{SWAPS}", False),
])
def test_what_variables_are_called_does_not_count_and_what_they_mean_does(one, other, equal):
    assert (program(one).digest == program(other).digest) == equal


@pytest.mark.parametrize("line", ["b = [a for a in x]", "b = lambda a: a", "global a", "import a", "def a(): pass"])
def test_where_there_are_other_scopes_names_count(line):
    one = SWAPS.replace("    b = y", f"    {line}\n        b = y")
    renamed = one.replace("i ", "row ").replace("[i]", "[row]")
    assert program(one).digest == program(one).digest != program(renamed).digest


@pytest.mark.parametrize(("call", "message"), [
    ('check("saxpy")', "without an answer"),
    ('check("saxpy", make())', "by its name"),
    ('check("saxpy", other)', "`other`, which is passed to check, is not defined"),
    ('check("saxpy", saxpy', "not Python"),
])
def test_a_call_of_check_that_cannot_be_graded_says_why(call, message):
    with pytest.raises(Refused, match=message):
        program_of(Answer("saxpy", (FIRST, RIGHT_KERNEL), call))


def test_none_is_no_answer():
    assert program_of(Answer("saxpy", (FIRST,), 'check("saxpy", None)')) is None


@pytest.mark.parametrize("extra", [
    "import numpy as np\nN = np.float32(0.5)", "import math\nN = math.sqrt(2) * 3", "N = (1, 2)[0] + len((1, 2))",
    "from numba import float32, int32\nN = float32(1)", 'N = "axpy" == "axpy"', "N: int = 3",
    "@cuda.jit(device=True)\ndef N(a: int, b=2) -> int:\n    return a", "N = cuda.jit(device=True)(lambda a: a)",
    "from numba import cuda\nN = 1", "A = [1, 2]\nN = max(A)",
])
def test_what_kernels_need_is_allowed(extra):
    above, answer = vetted(program(RIGHT_KERNEL.replace("y.size:", "y.size and N:"), f"{FIRST}\n{extra}"))
    assert above.body and answer.body


def test_what_is_not_needed_is_left_out():
    above, answer = vetted(program(RIGHT_KERNEL + "\nout = open('x')\nsaxpy[1, 32](1, 2, 3)", FIRST + "\nimport os"))
    assert [type(node).__name__ for node in answer.body] == ["FunctionDef"]
    assert [alias.name for alias in above.body[0].names] == ["cuda"]


def test_a_parameter_may_be_named_like_a_builtin():
    answer = RIGHT_KERNEL.replace("s, x, y", "input, x, y").replace("s * x", "input * x")
    assert vetted(program(answer))


@pytest.mark.parametrize(("text", "value"), [
    ("24", 24), ("4 * 128 - 500", 12), ("-(-1000 // 96)", 11), ("2**5", 32), ("1e3", 1000.0), ("None", None),
    ("(1, 2)", [1, 2]), ("sum(range(10, 60))", sum(range(10, 60))), ("sum(q + 1 for q in range(32))", 528),
    ("len([k for k in range(9) if k % 2 == 0])", 5), ("min(3, 4)", 3), ("3 if 2 > 1 else 4", 3), ("True", True),
])
def test_predictions_are_arithmetic(text, value):
    assert numbers_of(Answer("p", (f"idle = {text}",), 'check("p", idle=idle)')) == (None, {"idle": value})
    assert numbers_of(Answer("p", (), f'check("p", {text})'))[0] == value


@pytest.mark.parametrize("text", [
    "open('x')", "9**9**9", "10**400", "1 / 0", "'x' * 10**9", "[0] * 10**9", "__import__('os')", "(lambda: 1)()",
    "sum(1 for a in range(10**9))", "sum(a * b for a in range(999) for b in range(999))", "x.y", "unknown",
    "[k for k in range(10**5) if [j for j in range(10**5)]]", "float('nan')", "'a' * 3", "min([])",
])
def test_what_is_no_arithmetic_is_refused(text):
    with pytest.raises(Refused):
        numbers_of(Answer("p", (f"idle = {text}",), 'check("p", idle=idle)'))


def test_a_number_may_use_those_above_and_the_last_counts():
    above = ("a = 3\nb, c = 4, a", "d = open('x')", "a = b * c")
    assert numbers_of(Answer("p", above, 'check("p", x=a, y=c)')) == (None, {"x": 12, "y": 3})


def test_the_made_up_notebook_answers_saxpy():
    assert set(answers_in(read_cells(notebook(*kernel_cells()).encode(), ".ipynb"))) == {"saxpy"}
