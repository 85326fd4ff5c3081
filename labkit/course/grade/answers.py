"""The answers in a submitted file, read as text: nothing of it runs here.

An answer to a kernel exercise is vetted: functions, constants, and imports of an allow-list, and nothing else. It
runs no Python of the student's own, so that all observations of the kernel are the grader's.
"""

from __future__ import annotations

import ast
import builtins
import codecs
import hashlib
import json
import math
import operator
import re
from dataclasses import dataclass

import numpy as np

from labkit.course.answer_cells import checked_name, code_cells, program

MAX_FILE = 32 << 20  # bytes; a notebook with figures has some
MAX_CELL = 64 << 10  # characters
MAX_CELLS = 2_000


class Unreadable(Exception):
    """The file holds no cells. The message says why, for its author."""


class Refused(Exception):
    """The answer cannot be graded as it stands. The message says why, for its author."""


@dataclass(frozen=True)
class Answer:
    """The call check(exercise, ...) in a file, and the code above it."""

    exercise: str
    above: tuple[str, ...]
    call: str


@dataclass(frozen=True)
class Program:
    """What defines `name`. `answer` is the cell of the answer as it was written, `above` what that uses, from other
    cells."""

    name: str
    above: str
    answer: str

    @property
    def digest(self) -> str:
        """Equal for equal programs: neither comments and spaces count, nor what a function calls its variables."""
        try:
            text = "\0".join(normal_form(part) for part in (self.above, self.answer))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            text = f"{self.above}\0{self.answer}"
        stub = re.search(r"#\s*your code here", self.answer, re.IGNORECASE) is not None
        return hashlib.sha256(f"{self.name}\0{stub}\0{text}".encode("utf-8", "replace")).hexdigest()


# Within these a name may be of another scope, or appear in a place other than an ast.Name.
OTHER_NAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.ListComp, ast.SetComp,
               ast.DictComp, ast.GeneratorExp, ast.NamedExpr, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom,
               ast.Try, ast.Match)


def normal_form(source: str) -> str:
    """The source's statements, in which the variables of each function are numbered in place of their names. Arguments
    keep theirs, and so do variables of functions with other scopes in them."""
    tree = ast.parse(source)
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        nodes = [node for statement in function.body for node in ast.walk(statement)]
        if any(isinstance(node, OTHER_NAMES) for node in nodes):
            continue
        names = [node for node in nodes if isinstance(node, ast.Name)]
        arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        stored = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Store))
        numbers = {name: f"\0{k}" for k, name in enumerate(name for name in stored if name not in arguments)}
        for node in names:
            node.id = numbers.get(node.id, node.id)
    return ast.dump(tree)


def read_cells(data: bytes, suffix: str) -> list[str]:
    """The sources of the code cells of a notebook (.ipynb) or of a .py file."""
    if len(data) > MAX_FILE:
        raise Unreadable(f"the file has {len(data) >> 20} MiB; at most {MAX_FILE >> 20} are read")
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise Unreadable("the file is not UTF-8 text") from None
    cells = _notebook_cells(text) if suffix == ".ipynb" else _script_cells(re.sub("\r\n?", "\n", text))
    if len(cells) > MAX_CELLS:
        raise Unreadable(f"the file has {len(cells):,} code cells; at most {MAX_CELLS:,} are read")
    return [cell.replace("\r\n", "\n").replace("\r", "\n") for cell in cells]


def _notebook_cells(text: str) -> list[str]:
    try:
        notebook = json.loads(text)
    except RecursionError:
        raise Unreadable("the notebook's JSON is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"the notebook is not JSON: {error}") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("the file is JSON, but not a notebook of format 4: it has no list of cells")
    sources = []
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise Unreadable("a cell's source is not text")
        sources.append(source)
    return sources


def _script_cells(text: str) -> list[str]:
    """py:percent cells; without any, the file cut at its top-level calls of check."""
    if re.search(r"^# ?%%", text, re.MULTILINE):
        return code_cells(text)
    tree = parsed(text)
    if tree is None:
        return [text]
    lines, cells, begin = text.split("\n"), [], 0
    for node in tree.body:
        if isinstance(node, ast.Expr) and _check_call(node.value) is not None:
            cells += ["\n".join(lines[begin : node.lineno - 1]), "\n".join(lines[node.lineno - 1 : node.end_lineno])]
            begin = node.end_lineno
    return [*cells, "\n".join(lines[begin:])]


def parsed(source: str) -> ast.Module | None:
    """None where the source is no Python, or more than is read."""
    if len(source) > MAX_CELL * 8 or "\0" in source:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _check_call(node) -> ast.Call | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check" and node.args:
        name = node.args[0]
        return node if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
    return None


def answers_in(cells: list[str]) -> dict[str, Answer]:
    """Exercise -> its answer. Where one is checked twice, the last counts."""
    answers: dict[str, Answer] = {}
    above: list[str] = []
    for cell in cells:
        name = None
        if len(cell) <= MAX_CELL and "\0" not in cell:
            try:
                name = checked_name(cell)
            except (ValueError, RecursionError, MemoryError):
                continue
        if name is None:
            above.append(cell)
        else:
            answers[name] = Answer(name, tuple(above), cell)
    return answers


def _call_of(answer: Answer) -> ast.Call:
    tree = parsed(answer.call)
    for node in ast.walk(tree) if tree else ():
        if (call := _check_call(node)) is not None and call.args[0].value == answer.exercise:
            return call
    raise Refused(f"the cell with check({answer.exercise!r}, ...) is not Python")


# --- Programs ------------------------------------------------------------------------------------------------------


def program_of(answer: Answer) -> Program | None:
    """The program behind check(name, answer); None where None is passed. Raises Refused."""
    call = _call_of(answer)
    if len(call.args) < 2:
        raise Refused(f"check({answer.exercise!r}, ...) is called without an answer")
    argument = call.args[1]
    if isinstance(argument, ast.Constant) and argument.value in (None, ...):
        return None
    if not isinstance(argument, ast.Name):
        raise Refused(f"check({answer.exercise!r}, ...) must get the answer by its name, not "
                      f"`{ast.unparse(argument)[:60]}`")
    cells = [_without_magics(cell) for cell in answer.above]
    for position in reversed(range(len(cells))):
        cell = cells[position]
        if argument.id not in cell:
            continue
        if len(cell) > MAX_CELL:
            raise Refused(f"a cell with `{argument.id}` has {len(cell):,} characters; at most {MAX_CELL:,} are read")
        if "\0" in cell:
            raise Refused(f"a cell with `{argument.id}` holds a null byte")
        try:
            tree = ast.parse(cell)
        except SyntaxError as error:
            if re.search(rf"^\s*(def\s+{argument.id}\b|{argument.id}\s*=)", cell, re.MULTILINE):
                raise Refused(f"the answer's cell is not Python: {error.msg}, line {error.lineno}") from None
            continue
        except (ValueError, RecursionError, MemoryError):
            raise Refused(f"a cell with `{argument.id}` is nested too deeply") from None
        if argument.id not in {name for statement in tree.body for name in _bound(statement)}:
            continue
        small = [above for above in cells[:position] if len(above) <= MAX_CELL and parsed(above) is not None]
        try:
            source = program(small, cell)
        except (ValueError, RecursionError, MemoryError, SyntaxError):
            raise Refused("the cells above the answer cannot be read") from None
        return Program(argument.id, source[: len(source) - len(cell) - 1], cell)
    raise Refused(f"`{argument.id}`, which is passed to check, is not defined in a cell above")


def _without_magics(cell: str) -> str:
    return re.sub(r"^([ \t]*)[%!].*$", r"\1pass", cell, flags=re.MULTILINE) if re.search(
        r"^[ \t]*[%!]", cell, re.MULTILINE) and parsed(cell) is None else cell


def _bound(statement) -> set[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [
        statement.target] if isinstance(statement, ast.AnnAssign) else []
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


# --- What may run beside the grader --------------------------------------------------------------------------------

MODULES = ("math", "cmath", "numpy", "numba", "labkit", "labkit.ptx", "labkit.cuda")
FROM_LABKIT = {"cuda", "ptx"}
NUMBA = re.compile(r"(u?int|float|complex)(8|16|32|64|128)|boolean|bool_|types|cuda|void|byte|intc|uintc|intp|uintp")
BUILTINS = {"range", "len", "min", "max", "abs", "int", "float", "bool", "complex", "round", "sum", "tuple", "list",
            "pow", "divmod", "zip", "enumerate", "print", "True", "False", "None", "Ellipsis", "str", "slice"}
ARRAYS = {"arange", "array", "zeros", "ones", "dtype", "full", "eye", "newaxis", "finfo", "iinfo"}
EXPRESSIONS = (ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.Dict, ast.UnaryOp, ast.BinOp,
               ast.Compare, ast.BoolOp, ast.IfExp, ast.Subscript, ast.Slice, ast.Call, ast.keyword, ast.Load,
               ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
NOT_IN_BODIES = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.AsyncFunctionDef, ast.Await, ast.Yield, ast.YieldFrom,
                 ast.Global, ast.Nonlocal, ast.With, ast.AsyncWith, ast.Try, ast.Delete, ast.NamedExpr)


def vetted(submitted: Program) -> tuple[ast.Module, ast.Module]:
    """The statements of a kernel's program that its name needs: (above, answer). Raises Refused with the line."""
    return _vetted(submitted.name, [ast.parse(submitted.above), ast.parse(submitted.answer)])


def _vetted(target: str, trees: list[ast.Module]) -> tuple[ast.Module, ast.Module]:
    parts = []
    needed = {target}
    imported: dict[str, str] = {}
    ambiguous_imports, other_names = set(), set()  # names that two imports give, or that something else gives
    for tree in trees:
        for statement in tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for name, source in _imported(statement).items():
                    if imported.setdefault(name, source) != source:
                        ambiguous_imports.add(name)
            else:
                other_names |= _bound(statement)
    defined = {name for tree in trees for statement in tree.body for name in _bound(statement)}
    for tree in reversed(trees):
        statements = []
        for statement in reversed(tree.body):
            bound = _bound(statement)
            if isinstance(statement, ast.Import | ast.ImportFrom):
                statement = _pruned(statement, needed)
                if statement is not None:
                    statements.append(statement)
            elif bound & needed:
                statements.append(_statement(statement, imported, defined))
                needed |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
        if clashing := needed & (ambiguous_imports | other_names & imported.keys()):
            raise Refused(f"`{min(clashing)}` is imported and then means something else")
        parts.append(ast.fix_missing_locations(ast.Module(list(reversed(statements)), [])))
    return parts[1], parts[0]


TILES = "labkit.kernels.libraries.cutile_model"
OF_TILES = {"bid", "num_blocks", "load", "store", "full", "exp", "max", "sum", "mma", "cdiv", "float32", "PaddingMode",
            "Constant", "ZERO", "NAN", "NEG_INF", "UNDETERMINED"}
OF_ARRAYS = {"shape", "dtype", "ndim", "size", "T"}
CALLED = {"range", "min", "max", "int", "float", "len", "abs"}


def vetted_tiles(submitted: Program) -> tuple[ast.Module, ast.Module]:
    """As vetted, for a tile program. The CPU device runs it as Python, so it may call nothing but what tiles have."""
    trees = [ast.parse(part) for part in (submitted.above, submitted.answer)]
    imported: dict[str, str] = {}
    for tree in trees:
        for statement in tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                imported |= _imported(statement)
            elif isinstance(statement, ast.FunctionDef):
                statement.decorator_list = [one for one in statement.decorator_list
                                            if _dotted(one, imported) != f"{TILES}.kernel"]
    parts = _vetted(submitted.name, trees)
    functions = {each.name for part in parts for each in part.body if isinstance(each, ast.FunctionDef)}
    for part in parts:
        for node in (node for statement in part.body if isinstance(statement, ast.FunctionDef)
                     for node in ast.walk(statement)):
            dotted = _dotted(node, imported) or "" if isinstance(node, ast.Attribute) else ""
            of_tiles = dotted.startswith(f"{TILES}.") and set(dotted[len(TILES) + 1 :].split(".")) <= OF_TILES
            if isinstance(node, ast.Attribute) and not of_tiles and node.attr not in OF_ARRAYS:
                _refuse(node, f"`{ast.unparse(node)[:60]}` cannot be used in a graded tile program")
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                if not (name in functions | CALLED or name == "" and (_dotted(node.func, imported) or "").startswith(
                        f"{TILES}.")):
                    _refuse(node, f"`{ast.unparse(node)[:60]}` cannot be called in a graded tile program")
            if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                _refuse(node, "a tile program that is graded holds loops and no comprehensions")
    return parts


def _refuse(node, why: str):
    raise Refused(f"line {getattr(node, 'lineno', '?')}: {why}")


def _imported(statement) -> dict[str, str]:
    if isinstance(statement, ast.Import):
        return {(alias.asname or alias.name).split(".")[0]: alias.name for alias in statement.names}
    module = "labkit" if statement.module == "numba" else statement.module  # where cuda and the types are the same
    return {alias.asname or alias.name: f"{module}.{alias.name}" for alias in statement.names}


def _pruned(statement, needed: set[str]):
    """The import without the names that are not needed; None if it is left empty. Raises Refused."""
    names = [alias for alias in statement.names if (alias.asname or alias.name).split(".")[0] in needed]
    if not names:
        return None
    if isinstance(statement, ast.Import):
        for alias in names:
            if alias.name not in MODULES or alias.name == "labkit":
                _refuse(statement, f"a kernel's program cannot import {alias.name}")
        return ast.copy_location(ast.Import(names), statement)
    module = statement.module or ""
    for alias in names:
        allowed = not statement.level and not alias.name.startswith("_") and alias.name != "*" and (
            module == "labkit" and alias.name in FROM_LABKIT or module in ("math", "cmath", "labkit.ptx")
            or module == "labkit.cuda" and alias.name != "os"
            or module == "numpy" and _is_of_numpy(alias.name)
            or module in ("numba", "numba.types") and NUMBA.fullmatch(alias.name)
            or module.startswith("labkit.kernels."))
        if not allowed:
            _refuse(statement, f"a kernel's program cannot import {alias.name} from {module or 'here'}")
    if module == "numba" and any(alias.name == "cuda" for alias in names):  # the first line of most examples
        if len(names) > 1:
            _refuse(statement, "import cuda from labkit")
        module = "labkit"
    return ast.copy_location(ast.ImportFrom(module, names, 0), statement)


def _is_of_numpy(name: str) -> bool:
    value = getattr(np, name, None)
    return name in ARRAYS or isinstance(value, np.ufunc | float) or (
        isinstance(value, type) and issubclass(value, np.generic))


def _statement(statement, imported: dict[str, str], defined: set[str]):
    """The statement as it may run: without annotations. Raises Refused."""
    if isinstance(statement, ast.FunctionDef):
        for decorator in statement.decorator_list:
            jit = decorator.func if isinstance(decorator, ast.Call) else decorator
            if not _is_jit(jit, imported):
                _refuse(decorator, f"`@{ast.unparse(decorator)[:60]}`: only @cuda.jit is allowed above a graded kernel")
            _expressions(decorator, imported, defined)
        arguments = statement.args
        for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            _expressions(default, imported, defined)
        _body(statement, imported, defined)
        for each in ast.walk(arguments):
            if isinstance(each, ast.arg):
                each.annotation = None
        statement.returns = None
        return statement
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if not all(isinstance(name, ast.Name) for name in names):
                _refuse(statement, "only names may be assigned around a graded kernel")
            if any(name.id.startswith("__") for name in names):
                _refuse(statement, "a name that begins with two underscores cannot be assigned")
        value = statement.value
        if (isinstance(value, ast.Call) and _is_jit(value.func.func if isinstance(value.func, ast.Call) else value.func,
                                                    imported)):
            functions = [a for a in value.args if isinstance(a, ast.Lambda)]
            for function in functions:
                _body(function, imported, defined)
            for part in (value.func, *(a for a in value.args if a not in functions), *value.keywords):
                _expressions(part, imported, defined)
        else:
            _expressions(value, imported, defined)
        return ast.copy_location(ast.Assign(targets, value), statement)
    _refuse(statement, "only imports, constants and functions may define what a graded kernel uses")


def _is_jit(node, imported: dict[str, str]) -> bool:
    return _dotted(node, imported) == "labkit.cuda.jit"


def _dotted(node, imported: dict[str, str]) -> str | None:
    """ "numpy.float32" of `np.float32`; a name that is not imported stands for itself."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([imported.get(node.id, node.id), *reversed(parts)])


def _expressions(tree, imported: dict[str, str], defined: set[str]) -> None:
    """Demand an expression that only computes a constant."""
    for node in ast.walk(tree):
        if not isinstance(node, EXPRESSIONS):
            _refuse(node, f"`{ast.unparse(tree)[:60]}` is no constant")
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and len(node.value) > 4096:
            _refuse(node, "a text is too long")
        if isinstance(node, ast.Call):
            _call(node, imported, defined)
    _names(tree, imported, defined)


def _call(node: ast.Call, imported: dict[str, str], defined: set[str]) -> None:
    if isinstance(node.func, ast.Call) and _is_jit(node.func.func, imported):
        return
    dotted = _dotted(node.func, imported) or ""
    root, _, attribute = dotted.partition(".")
    allowed = (_is_jit(node.func, imported) or root in ("math", "cmath") and "." not in attribute
            or root == "numpy" and _is_of_numpy(attribute)
            or root in ("numba", "labkit") and NUMBA.fullmatch(attribute.removeprefix("cuda.").removeprefix("types."))
            or not attribute and root in BUILTINS - {"print"} and root not in defined)
    if not allowed:
        _refuse(node, f"`{ast.unparse(node)[:60]}` cannot be called around a graded kernel")


def _body(function, imported: dict[str, str], defined: set[str]) -> None:
    """The inside of a kernel: it is compiled, never run by Python, and must hold nothing that only Python could do."""
    for node in ast.walk(function):
        if isinstance(node, NOT_IN_BODIES):
            _refuse(node, f"{type(node).__name__.lower()} cannot stand in a kernel")
    _names(function, imported, defined)


def _names(tree, imported: dict[str, str], defined: set[str]) -> None:
    local = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr.startswith("_"):
                _refuse(node, f"`{node.attr}` cannot be used in a graded kernel")
            dotted = _dotted(node, imported) or ""
            if dotted.startswith("numpy.") and not _is_of_numpy(dotted.split(".")[1]):
                _refuse(node, f"`{ast.unparse(node)}` cannot be used in a graded kernel")
        name = node.id if isinstance(node, ast.Name) else ""
        if name.startswith("__") or (name in dir(builtins) and name not in BUILTINS and name not in defined | local):
            _refuse(node, f"`{name}` cannot be used in a graded kernel")


# --- Predictions ---------------------------------------------------------------------------------------------------

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_}
COMPARISONS = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
               ast.Eq: operator.eq, ast.NotEq: operator.ne}
FUNCTIONS = {"int": int, "float": float, "round": round, "abs": abs, "min": min, "max": max, "sum": sum, "len": len,
             "math.ceil": math.ceil, "math.floor": math.floor, "math.sqrt": math.sqrt, "math.log2": math.log2,
             "math.prod": math.prod}
HUGE = 1e30
STEPS = 200_000  # of arithmetic in one prediction


def numbers_of(answer: Answer) -> tuple[object, dict[str, object]]:
    """What check(name, 3, idle=24) passes: (the answer or None, numbers by name), from constants and arithmetic alone.
    Raises Refused."""
    call = _call_of(answer)
    arithmetic = Arithmetic()
    for cell in answer.above:
        tree = parsed(_without_magics(cell)) if len(cell) <= MAX_CELL else None
        for statement in tree.body if tree else ():
            arithmetic.assign(statement)
    argument = arithmetic.value(call.args[1]) if len(call.args) > 1 else None
    return argument, {k.arg: arithmetic.value(k.value) for k in call.keywords if k.arg not in (None, "seed")}


class Arithmetic:
    """Values of expressions of numbers, computed without Python's eval, and at most STEPS of them."""

    def __init__(self):
        self.known: dict[str, object] = {}
        self.steps = 0

    def assign(self, statement) -> None:
        """Remember the numbers that a statement gives names to; for anything else, why there is none."""
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            return
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            pairs = [(target, statement.value)]
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                pairs = list(zip(target.elts, statement.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    self.steps = 0
                    try:
                        self.known[name.id] = self.value(value)
                    except Refused as error:
                        self.known[name.id] = error

    def value(self, node):
        """A number, a list or dictionary of numbers, or None. Raises Refused."""
        try:
            return self._value(node)
        except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
            raise Refused(f"`{ast.unparse(node)[:60]}` cannot be computed: {error}") from None

    def _value(self, node):
        self.steps += 1
        if self.steps > STEPS:
            raise Refused("a prediction takes too many steps to compute")
        if isinstance(node, ast.Constant) and (node.value is None or node.value is ...):
            return None
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str):
            return _bounded(node.value)
        if isinstance(node, ast.Name):
            value = self.known.get(node.id, Refused(f"`{node.id}` is not set to a number in a cell above"))
            if isinstance(value, Refused):
                raise value
            return value
        if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) <= 1000:
            return [self._value(each) for each in node.elts]
        if isinstance(node, ast.Dict) and len(node.keys) <= 64 and all(isinstance(k, ast.Constant) for k in node.keys):
            return {k.value: self._value(v) for k, v in zip(node.keys, node.values, strict=True)}
        if isinstance(node, ast.GeneratorExp | ast.ListComp) and len(node.generators) == 1:
            return self._each(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = self._value(node.operand)
            return -value if isinstance(node.op, ast.USub) else +value
        if isinstance(node, ast.IfExp):
            return self._value(node.body if self._value(node.test) else node.orelse)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            return COMPARISONS[type(node.ops[0])](self._value(node.left), self._value(node.comparators[0]))
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left), self._value(node.right)
            if any(not isinstance(side, int | float) for side in (left, right)):
                raise Refused(f"`{ast.unparse(node)[:60]}` is not a number")
            if isinstance(node.op, ast.Pow) and abs(right) <= 64 and abs(left) <= 1e6:
                return _bounded(left**right)
            if type(node.op) in OPERATORS:
                return _bounded(OPERATORS[type(node.op)](left, right))
        if isinstance(node, ast.Call) and not node.keywords:
            name = _dotted(node.func, {})
            if name in FUNCTIONS and name not in self.known:
                return _bounded(FUNCTIONS[name](*(self._value(each) for each in node.args)))
            if name == "range":
                numbers = range(*(self._value(each) for each in node.args))
                if len(numbers) <= STEPS:
                    return list(numbers)
        raise Refused(f"a prediction is a number that you write down, not `{ast.unparse(node)[:60]}`")

    def _each(self, node) -> list:
        """`expression for name in values if condition`."""
        (loop,) = node.generators
        if not isinstance(loop.target, ast.Name):
            raise Refused(f"`{ast.unparse(node)[:60]}` is not a number")
        name, results = loop.target.id, []
        previous = self.known.get(name)
        for value in self._value(loop.iter):
            self.known[name] = value
            if all(self._value(condition) for condition in loop.ifs):
                results.append(self._value(node.elt))
        self.known[name] = previous
        return results


def _bounded(value):
    if isinstance(value, str) and len(value) > 200 or isinstance(value, int | float) and abs(value) > HUGE:
        raise Refused("a value of the prediction is too large")
    if not isinstance(value, bool | int | float | str) or value != value:
        raise Refused("a value of the prediction is no number")
    return value
