"""What can be found wrong with an answer before anything runs."""

from __future__ import annotations

import ast
import inspect
import re

from labkit.course import answer_cells, exercise_files
from labkit.course.check.diagnose.compile_errors import matrix_product
from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.words import counted, parsed, quote_line
from labkit.course.exercises import Exercise

STUB = re.compile(r"#\s*your code here", re.IGNORECASE)


def _is_kernel(answer) -> bool:
    return (hasattr(answer, "py_func") and hasattr(answer, "__getitem__") and not inspect.isclass(answer)
            and type(answer).__name__ != "CPUDispatcher" and not _is_device_function(answer))


def _is_device_function(answer) -> bool:
    """As the CPU device makes them, or as numba.cuda does."""
    options = getattr(answer, "targetoptions", None) or {}
    return type(answer).__name__ == "DeviceFunction" or bool(options.get("device"))


def refused(exercise: Exercise, answer) -> Diagnosis | None:
    """Return the fault found without running the answer, or None."""
    noun = "kernel" if exercise.kind == "kernel" else "function"
    if answer is None or answer is Ellipsis:
        return Diagnosis("unchanged", f"There is no {noun} yet.",
                       (f"The name passed to check is still {answer}. Write the {noun} in the cell above, run that "
                        "cell, then this one.",))
    if exercise.kind == "function":
        if _is_kernel(answer):
            return Diagnosis("not_a_function", f"`{answer.__name__}` is a kernel; this exercise needs a host function.",
                           ("It runs on the CPU, without `@cuda.jit`, and can launch kernels.",))
        if inspect.isclass(answer):
            return Diagnosis("not_a_function", f"`{answer.__name__}` is a class; this exercise needs a function.",
                           (f"Define it as `def {answer.__name__}(...)`, and return the result.",))
        if not callable(answer):
            return Diagnosis("not_a_function", f"This exercise needs a function, not {_kind_of(answer)}.")
        return _not_started(answer) if _unchanged(answer) else None
    if not _is_kernel(answer):
        if type(answer).__name__ in ("ConfiguredKernel", "_LaunchConfiguration"):
            return Diagnosis("not_a_kernel", "Pass the kernel itself, without [grid, block].",
                           ("check chooses the grid and block, and launches it at many sizes.",))
        name = getattr(answer, "__name__", "it")
        if _is_device_function(answer):
            return Diagnosis("not_a_kernel", f"`{name}` is a device function; this exercise needs a kernel.",
                           ("Remove `device=True` from `@cuda.jit(...)`.",))
        if inspect.isclass(answer):
            return Diagnosis("not_a_kernel", f"`{name}` is a class; this exercise needs a kernel.",
                           (f"A kernel is a function: write `@cuda.jit`, and `def {name}(...)` on the line below.",))
        if type(answer).__name__ in ("CPUDispatcher", "DUFunc", "GUFunc"):
            return Diagnosis("not_a_kernel", f"`{name}` is compiled for the CPU, by Numba's `@njit` or `@vectorize`.",
                           (f"A kernel is compiled for the GPU: put `@cuda.jit` above `def {name}(...)` instead, and "
                            "run that cell again.",))
        if callable(answer):
            return Diagnosis("not_a_kernel", f"`{name}` is a plain Python function, not a kernel.",
                           (f"Put `@cuda.jit` on the line above `def {name}(...)`, and run that cell again.",))
        return Diagnosis("not_a_kernel", f"This exercise needs a kernel, not {_kind_of(answer)}.",
                       ("Pass the function decorated with `@cuda.jit`, by name.",))
    if _unchanged(answer):
        return _not_started(answer)
    return _wrong_parameters(exercise, answer) or _returns(answer) or _multiplies_arrays(answer)


def _kind_of(value) -> str:
    return f"{value!r} ({type(value).__name__})" if len(repr(value)) < 40 else f"a {type(value).__name__}"


def _wrong_parameters(exercise: Exercise, answer) -> Diagnosis | None:
    actual = list(inspect.signature(answer.py_func).parameters)
    wrong = next(iter(exercise.wrong.values()), None)
    if wrong is None:  # all are edits of the answer, and it is not at hand
        return None
    expected = list(inspect.signature(wrong.py_func).parameters)
    if len(actual) == len(expected):
        return None
    return Diagnosis("wrong_arguments", f"`{answer.__name__}` has {counted(actual, 'parameter')}; it is launched with "
                   f"{len(expected)}.", (f"Yours: {', '.join(actual) or 'none'}. Launched with: {', '.join(expected)}, "
                                         "in this order.",))


def _returns(answer) -> Diagnosis | None:
    tree, first_line = parsed(answer)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            line = first_line + node.lineno - 1
            return Diagnosis("returns", "A kernel cannot return a value: it writes its result to an array.",
                           (quote_line(inspect.getsourcefile(answer.py_func), line),
                            "Store the value in the output array instead, at this thread's index."))
    return None


def _multiplies_arrays(answer) -> Diagnosis | None:
    """`@` in a kernel: where SciPy is installed the CPU device computes it, and no GPU does."""
    tree, first_line = parsed(answer)
    for node in ast.walk(tree) if tree else ():
        if isinstance(getattr(node, "op", None), ast.MatMult):
            return Diagnosis("unsupported", "A kernel cannot do this.",
                           (matrix_product(node),
                            quote_line(inspect.getsourcefile(answer.py_func), first_line + node.lineno - 1)))
    return None


def _is_none(node) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _unchanged(answer) -> bool:
    """The stub is still there, and nothing is stored, called or returned beside it."""
    function = getattr(answer, "py_func", answer)
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return False
    if not STUB.search(source):
        return False
    tree, _ = parsed(answer)
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            return False
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Subscript) for target in targets):
                return False
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return False  # an atomic, a launch
    return True


def _not_started(answer) -> Diagnosis:
    name = getattr(answer, "__name__", "It")
    return Diagnosis("unchanged", f"`{name}` has not been changed yet: it computes nothing.",
                   ("Replace the line under `# Your code here`, run that cell, then this one.",))


AS_GIVEN = "This code has not been changed yet, so the bug is still in it: find the line, and fix it."


def as_given(exercise: Exercise, answer) -> bool:
    """Whether the answer is what the learner starts from, where that is whole: a kernel with a bug to be found."""
    try:
        solution = exercise_files.solution(exercise.name)
    except KeyError:  # made up in a test
        return False
    actual = _definition(parsed(answer)[0], exercise.name)
    if solution is None or not solution.above or actual is None:
        return False
    try:
        start = ast.parse(solution.above[-1].split(answer_cells.BEGIN)[0].rstrip("# "))
    except SyntaxError:
        return False
    original = _definition(start, exercise.name)
    is_known = any(answer is wrong for wrong in exercise.wrong.values())  # which may have the same bug
    return original is not None and ast.unparse(original) == ast.unparse(actual) and not is_known


def _definition(tree, name: str):
    functions = (node for node in (tree.body if tree else ()) if isinstance(node, ast.FunctionDef))
    return next((node for node in functions if node.name == name), None)
