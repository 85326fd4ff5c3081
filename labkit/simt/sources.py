"""The source of a Python function, as a tree: of a file, a notebook's cell, `python -c`, or a text given to exec()."""

import ast
import inspect
import linecache
import sys
import textwrap
import types as python_types
import weakref

from labkit.simt.errors import UnsupportedError
from labkit.simt.ir import copied

_SOURCES = weakref.WeakKeyDictionary()
_TEXTS = {}  # (filename, text) of the latest texts that were compiled
_MOST_TEXTS = 5000


def read_source(function):
    """(FunctionDef with the line numbers of the file, filename) of a Python function.

    Read once, when the function is decorated: the file may be edited before the first launch.
    """
    known = _SOURCES.get(function) if isinstance(function, python_types.FunctionType) else None
    if known is None:
        known = _SOURCES[function] = _read_source(function)
    return copied(known[0]), known[1]


def keep_source(function, definition, filename):
    """Say what the source of a function is that was made from a tree."""
    _SOURCES[function] = copied(definition), filename


def _read_source(function):
    if not isinstance(function, python_types.FunctionType):
        raise UnsupportedError(f"a kernel must be a Python function, not {type(function).__name__} {function!r}")
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        lines, first_line = _lines_of_text(function), function.__code__.co_firstlineno
    if not lines:
        raise UnsupportedError(
            f"the source of {function.__name__} cannot be read ({filename}), and the CPU device needs it: define it in "
            "a file or a notebook cell, or import labkit.simt before the exec() that makes it"
        )
    if function.__code__.co_name == "<lambda>":
        return _as_definition(function, lines, first_line), filename
    if lines[0][:1].isspace():  # a nested function; its text may also have lines at the margin
        definition = ast.parse("if True:\n" + "".join(lines)).body[0].body[0]
        ast.increment_lineno(definition, first_line - 2)
    else:
        definition = ast.parse("".join(lines)).body[0]
        ast.increment_lineno(definition, first_line - 1)
    if not isinstance(definition, ast.FunctionDef):
        raise UnsupportedError(f"{function.__name__}: expected a def statement at {filename}:{first_line}")
    definition.decorator_list = []  # the host has run them
    return definition, filename


def _as_definition(function, lines, first_line):
    """The lambda in these lines as a FunctionDef. It gets a name, under which it can be called in generated code."""
    text = textwrap.dedent("".join(lines))
    try:
        tree = ast.parse(text)
    except SyntaxError:  # the lines begin or end within a statement
        tree = ast.Module([], [])
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)
             and [a.arg for a in node.args.args] == list(function.__code__.co_varnames[: len(node.args.args)])]
    if len(lambdas) > 1:
        start = _start(function.__code__, first_line, len(lines[0]) - len(text.splitlines(keepends=True)[0]))
        lambdas = [each for each in lambdas if (each.body.lineno, each.body.col_offset) == start]
    if len(lambdas) != 1:
        raise UnsupportedError(f"the lambda at line {first_line} cannot be read: write it with def")
    function.__name__ = "lambda_"
    body = ast.copy_location(ast.Return(lambdas[0].body), lambdas[0])
    definition = ast.FunctionDef(function.__name__, lambdas[0].args, [body], [], lineno=lambdas[0].lineno, col_offset=0)
    return ast.increment_lineno(ast.fix_missing_locations(definition), first_line - 1)


def _start(code, first_line, indent):
    """(line, column) where the expression of a lambda begins, in the text that its lines are without their indent."""
    found = code.co_positions()
    positions = [(line, column) for line, _, column, end in found if None not in (line, end) and end > column]
    line, column = min(positions, default=(0, 0))
    return line - first_line + 1, column - indent


def _lines_of_text(function):
    """The lines of a function that exec() or `python -c TEXT` made: Python itself does not keep them."""
    argv = getattr(sys, "orig_argv", [])
    texts = [argv[argv.index("-c") + 1]] if "-c" in argv[:-1] else []
    code = function.__code__
    for filename, text in (*reversed(_TEXTS), *(("<string>", text) for text in texts)):
        if filename == code.co_filename and _makes(text, code):
            return inspect.getblock(text.splitlines(keepends=True)[code.co_firstlineno - 1 :])
    return []


def _makes(text, code):
    """Whether the text, compiled, holds this code: other texts may have a function of the same name on that line."""
    try:
        todo = [compile(text, code.co_filename, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return False
    while todo:
        found = todo.pop()
        if found.co_name == code.co_name and found.replace(co_flags=code.co_flags) == code:
            return True
        todo += [constant for constant in found.co_consts if isinstance(constant, python_types.CodeType)]
    return False


def _keep_text(event, args):
    """Keep what a program gives to exec(): a kernel may be defined in it."""
    if event == "compile" and isinstance(args[1], str) and args[1].startswith("<") and args[0]:
        text = args[0].decode("utf-8", "replace") if isinstance(args[0], bytes) else args[0]
        if isinstance(text, str) and ("def " in text or "lambda" in text):
            _TEXTS[args[1], text] = None
            if len(_TEXTS) > _MOST_TEXTS:
                del _TEXTS[next(iter(_TEXTS))]


sys.addaudithook(_keep_text)
