"""Diagnostics for a kernel that does not compile: the line, its probable intent, and what to write instead.

The compiler's report says what did not fit; the learner's own source says what was written. RULES reads both.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from dataclasses import dataclass, replace

from labkit import cuda
from labkit.course.check.sources import Source, code_of, sources_of
from labkit.course.check.words import counted, quote_line
from labkit.simt.errors import KernelTypeError
from labkit.simt.numba_report import read_report

ARRAY_ATTRIBUTES = ("shape", "size", "ndim", "dtype", "strides", "itemsize", "nbytes", "T")
_ENGLISH = {"a", "an", "the", "whole", "no", "cannot", "keyword", "call", "its", "it", "failed", "one", "arguments",
            "default", "recursion", "await", "yield", "del", "match", "global", "nonlocal"}  # fmt: skip
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
              "matmul": "@", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "iadd": "+=",
              "isub": "-=", "imul": "*=", "itruediv": "/=", "and_": "&", "or_": "|", "xor": "^"}  # fmt: skip
MAKERS = {"zeros", "empty", "ones", "full", "array", "zeros_like", "empty_like", "ones_like", "full_like", "arange",
          "linspace", "asarray"}  # fmt: skip
CONTAINERS = ("a list", "a dictionary", "a set", "a generator")
ONE_BY_ONE = "A kernel works on single elements"


@dataclass(frozen=True)
class Complaint:
    """A sentence, the line that it is about, the file of that line."""

    sentence: str
    line: int
    filename: str

    @property
    def quote_line(self) -> tuple[str, ...]:
        return (quote_line(self.filename, self.line),) if self.line else ()


def complaint(answer, error: Exception, axes: dict[str, int] | None = None) -> Complaint:
    """Explain why a kernel does not compile. axes: the number of axes of its array parameters, where known."""
    if not hasattr(error, "problem"):  # Numba's own
        sentence, problem, facts = read_report(re.sub(r"\x1b\[[0-9;]*m", "", str(error)))
        error = KernelTypeError(sentence, problem=problem, **facts)
    sources = sources_of(answer)
    source = sources.get(error.kernel)
    for candidate in [source] if source else sources.values():
        for rule in RULES:
            if result := rule(replace(candidate, axes=axes or {}), error, error.line):
                sentence, node = result
                return Complaint(sentence, getattr(node, "lineno", error.line), candidate.filename)
    source = source or next(iter(sources.values()), Source(None, "", ast.Module([], [])))
    return Complaint(_cleaned(error.sentence, source), error.line, source.filename)


# --- Rules: (source, error, line) -> (sentence, node), or None -------------------------------------------------------


def _matrix_product(source, error, line):
    products = [n for n in source.nodes((ast.BinOp, ast.AugAssign), line) if isinstance(n.op, ast.MatMult)]
    if not products or not (line or any(word in error.sentence for word in ("scipy", "matmul", "@"))):
        return None
    return matrix_product(products[0]), products[0]


def matrix_product(node) -> str:
    return (f"`{code_of(node)}`: kernels do not support `@`, which works on whole arrays. {ONE_BY_ONE}: add up "
            "the products in a loop, `total += a[row, k] * b[k, col]`.")


def _unknown_name(source, error, line):
    if error.problem != "unknown name":
        return None
    name = error.facts["name"]
    return f"There is no `{name}` here.{meant_name(name, source.names())}", None


def _missing_in_module(source, error, line):
    if error.problem != "unknown member":
        return None
    base, name = error.facts["base"], error.facts["name"]
    suggestion = meant(name, _members(source, base), f"{base}.")
    if error.facts["elsewhere"] and not suggestion:
        return None
    return f"There is no `{base}.{name}`.{suggestion}", None


def _members(source, base: str) -> list[str]:
    root, *rest = base.split(".")
    function = source.function
    value = getattr(function, "__globals__", {}).get(root, cuda if root == "cuda" else None)
    for name in rest:
        value = getattr(value, name, None)
    return [name for name in dir(value) if not name.startswith("_")]


def _unknown_attribute(source, error, line):
    if error.problem not in ("unknown attribute", "unknown method"):
        return None
    name, kind = error.facts["name"], error.facts.get("type")  # a method is refused before types are known
    nodes = [n for n in source.nodes(ast.Attribute, line) if n.attr == name]
    node = nodes[0] if nodes else None
    subject = f"`{code_of(node.value)}`" if node is not None else "It"
    if kind and "array" not in kind:
        return f"{subject} is a number ({kind}) here, so it has no `.{name}`.", node
    if name in ARRAY_ATTRIBUTES:
        return f"`{code_of(node)}` is a value, not a function: remove the ().", node
    sentence = f"{subject} has no `.{name}`{'' if kind else '()'} in a kernel."
    suggestion = meant(name, ARRAY_ATTRIBUTES, f"{code_of(node.value)}." if node is not None else ".")
    if not suggestion and name in ("lenght", "length", "len", "count"):
        suggestion = " Did you mean `.size`, the number of elements, or `.shape[0]`, the length of the first axis?"
    return f"{sentence}{suggestion or ' In a kernel, arrays have `.shape`, `.size`, `.ndim` and `.dtype`.'}", node


def _grid(source, error, line):
    """cuda.grid(2) in one name, cuda.grid(1) in two."""
    for node in source.nodes(ast.Assign):
        call = node.value
        is_grid = isinstance(call, ast.Call) and code_of(call.func).rpartition(".")[2] in ("grid", "gridsize")
        if not is_grid or not call.args or not isinstance(call.args[0], ast.Constant) or len(node.targets) != 1:
            continue
        axes, target = call.args[0].value, node.targets[0]
        count = len(target.elts) if isinstance(target, ast.Tuple) else 1
        is_subscripted = isinstance(target, ast.Name) and any(
            isinstance(n.value, ast.Name) and n.value.id == target.id for n in source.nodes(ast.Subscript))
        if axes == count or axes not in (1, 2, 3) or (is_subscripted and axes > 1):
            continue
        names = ", ".join(("x", "y", "z")[:axes])
        if axes == 1:
            names = code_of(target).strip("()").split(",")[0]
        if count == 1:
            instead = f", or call `{code_of(call.func)}(1)` for one"
        else:
            instead = f", or call `{code_of(call.func)}({count})` for {count}"
        return (f"`{code_of(call)}` returns {counted(axes, 'number')}, but there {'is' if count == 1 else 'are'} "
                f"{counted(count, 'name')} on the left. Write `{names} = {code_of(call)}`{instead}."), node
    return None


def _shape_whole(source, error, line):
    """i < out.shape"""
    if "Tuple(" not in error.sentence:
        return None
    for node in source.nodes((ast.Compare, ast.BinOp), line):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.left, node.right]
        for side in sides:
            if isinstance(side, ast.Attribute) and side.attr == "shape":
                code = code_of(side)
                return (f"`{code}` is a tuple with the length of each axis. Compare with one length, `{code}[0]`, or "
                        f"with the number of elements, `{code_of(side.value)}.size`."), node
    return None


def _unpacking(source, error, line):
    if error.problem not in ("unpacked", "unpacked number"):
        return None
    count = error.facts.get("count")  # None of a number
    nodes = [n for n in source.nodes(ast.Assign, line) if isinstance(n.targets[0], ast.Tuple)]
    if not nodes:
        return None
    names, value = len(nodes[0].targets[0].elts), nodes[0].value
    if isinstance(value, ast.Attribute) and value.attr == "shape" and count is not None:
        subject = f"`{code_of(value.value)}` has {counted(count, 'axis').replace('axiss', 'axes')}"
    else:
        subject = f"`{code_of(value)}` is {'one number' if count is None else counted(count, 'number')}"
    return f"{subject}, but there are {counted(names, 'name')} on the left.", nodes[0]


def _indices(source, error, line):
    if error.problem != "indices":
        return None
    axes, index_count = error.facts["axes"], error.facts["count"]
    nodes = [n for n in source.nodes(ast.Subscript, line) if _width(n.slice) == index_count
             and source.axes.get(code_of(n.value), axes) == axes]
    node = nodes[0] if len({code_of(n.value) for n in nodes}) == 1 else None
    subject = f"`{code_of(node.value)}`" if node is not None else "An array on this line"
    plural = "axis" if axes == 1 else "axes"
    return f"{subject} has {axes} {plural}, but gets {index_count} {'index' if index_count == 1 else 'indices'}.", node


def _width(index) -> int:
    return len(index.elts) if isinstance(index, ast.Tuple) else 1


def _float_index(source, error, line):
    if error.problem != "index type":
        return None
    for node in source.nodes(ast.Subscript, line):
        for part in ast.walk(node.slice):
            divides = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div)
            if divides:
                return f"The index `{code_of(node.slice)}` is not an integer: `/` always gives a float. Use `//`.", node
            if isinstance(part, ast.Name) and (value := _divided(source, part.id)) is not None:
                return (f"The index `{part.id}` is not an integer: `{code_of(value)}` has a `/`, which always gives a "
                        "float. Use `//`."), node
    nodes = source.nodes(ast.Subscript, line)
    code = f"The index in `{code_of(nodes[0])}`" if line and nodes else "An index"
    return f"{code} is not an integer. An index must be an integer; convert a number with `int(...)`.", (
        nodes[0] if line and nodes else None)


def _divided(source, name: str):
    """The value that is assigned to the name, if it holds a division."""
    for node in source.nodes((ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            nodes = [*ast.walk(node.value), node]
            if any(isinstance(getattr(n, "op", None), ast.Div) for n in nodes):
                return node.value
    return None


def _operands(source, error, line):
    """An operator between types that it does not take."""
    if error.problem != "operands" or error.facts["name"] not in _OPERATORS:
        return None
    sign = _OPERATORS[error.facts["name"]]
    kinds = [_type_words(part) for part in error.facts["types"]]
    nodes = [n for n in source.nodes((ast.BinOp, ast.AugAssign, ast.Compare), line) if _sign_of(n) == sign]
    node = nodes[0] if nodes and (line or len(nodes) == 1) else None
    prefix = f"`{code_of(node)}`: " if node is not None else ""
    operand_text = " and ".join(kinds)
    hint = f" {ONE_BY_ONE}: is an index missing?" if "whole array" in operand_text else ""
    return f"{prefix}`{sign}` cannot be used with {operand_text} in a kernel.{hint}", node


def _sign_of(node) -> str:
    op = node.ops[0] if isinstance(node, ast.Compare) else node.op
    signs = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
             ast.MatMult: "@", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
             ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"}  # fmt: skip
    return signs.get(type(op), "") + ("=" if isinstance(node, ast.AugAssign) else "")


def _type_words(name: str) -> str:
    if match := re.match(r"array of (\w+) \((\d)D\)", name):
        return f"a whole array of {match.group(1)}"
    if match := re.match(r"UniTuple\((.+) x (\d+)\)", name):
        return f"a tuple of {counted(int(match.group(2)), 'number')}"
    if name.startswith("Tuple("):
        return "a tuple"
    if re.fullmatch(r"(u?int|float|bool|complex)\d*", name):
        return f"a number ({name})"
    return "nothing (None)" if name == "none" else f"`{name}`"


def _host_function(source, error, line):
    name = error.facts.get("name", "")
    if error.problem == "call" and name.startswith(("np.", "numpy.")) and name.rpartition(".")[2] in MAKERS:
        return (f"`{name}` makes an array, but a kernel cannot allocate memory while it runs. For a few "
                "values of one thread, use `cuda.local.array(shape, float32)`; for values that a block shares, use "
                "`cuda.shared.array(shape, float32)`. Both need a constant shape and start out uninitialised: set the "
                "elements to 0 in a loop."), None
    if error.problem == "call" and name.startswith(("np.", "numpy.")):
        return (f"`{name}` works on whole arrays, on the CPU. {ONE_BY_ONE}: write a loop, and use the "
                "functions of `math` for single numbers."), None
    if error.problem == "ufunc":
        better = error.facts["better"]
        instead = f" Use `{better}`{', which works on one number' if 'math.' in better else ''}." if better else ""
        return f"Kernels do not support `{name}`.{instead}", None
    if error.problem == "host function" and name.startswith(("cuda.", "numba.cuda.")):
        barrier = " The block barrier is `cuda.syncthreads()`." if "synchronize" in name else ""
        return f"`{name}` is for the host: a kernel cannot call it.{barrier}", None
    if error.problem == "host function":
        return (f"`{name}` is a host function. To call it from a kernel, decorate it with "
                "@cuda.jit(device=True)."), None
    if error.problem == "call" and "[" in name:
        return (f"`{name}(...)`: only the host launches kernels. A kernel can call a function decorated with "
                "`@cuda.jit(device=True)`, without [grid, block]."), None
    if error.problem == "call":
        return f"`{name}` is not a function. To get an element of an array, use [ ].", None
    return None


def _container(source, error, line):
    construct = error.facts.get("name", "")
    if error.problem != "construct" or not (construct in CONTAINERS or construct.endswith("comprehension")):
        return None
    return (f"A kernel cannot create {construct}: it cannot allocate memory while it runs. Use variables, or "
            "`cuda.local.array(shape, dtype)` with a constant shape."), None


def _unset(source, error, line):
    if error.problem != "unset":
        return None
    name = error.facts["name"]
    return (f"`{name}` is used here, but it may not have a value yet. Set it first on every path, as in "
            f"`{name} = float32(0.0)`."), None


def _whole_array(source, error, line):
    if error.problem != "whole array":
        return None
    return f"This computes or stores a whole array. {ONE_BY_ONE}, `out[i] = ...`: is an index missing?", None


def _stored_array(source, error, line):
    if error.problem != "stored":
        return None
    kind = "a whole array" if error.facts["type"] == "array" else "a tuple"
    return f"This stores {kind}, but an element holds one number: is an index missing?", None


def _stub_arguments(source, error, line):
    if error.problem != "arguments":
        return None
    name, parameters, count = error.facts["name"], error.facts["parameters"], error.facts["count"]
    if name.endswith(("grid", "gridsize")):
        return f"`{name}` takes the number of axes, 1 to 3, as in `{name}(1)`.", None
    many = counted(parameters, "argument")
    return f"`{name}({', '.join(parameters)})` takes {many}, but is called with {count}.", None


def _too_many_types(source, error, line):
    if error.problem != "several types":
        return None
    name, one, other = (error.facts[key] for key in ("name", "type", "other"))
    return (f"`{name}` is {_type_words(one)} on one path through the kernel and {_type_words(other)} on "
            "another. A variable has one type: use two names."), None


RULES = (_matrix_product, _unknown_name, _missing_in_module, _grid, _unknown_attribute,
         _shape_whole, _unpacking, _indices, _float_index, _operands, _host_function, _container, _unset, _whole_array,
         _stored_array, _stub_arguments, _too_many_types)


# --- Words -----------------------------------------------------------------------------------------------------------


def meant(name: str, known, prefix: str = "") -> str:
    """" Did you mean `size`?", or "" where no known name is near."""
    lower = {one.lower(): one for one in sorted(known, reverse=True)}
    matches = difflib.get_close_matches(name.lower(), [*lower], 1, 0.7)
    return f" Did you mean `{prefix}{lower[matches[0]]}`?" if matches else ""


IMPORTS = {"np": "import numpy as np", "math": "import math", "cuda": "from labkit import cuda",
           **{name: f"from numba import {name}" for name in ("float16", "float32", "float64", "int32", "int64",
                                                             "uint32", "uint64", "uint8")}}  # fmt: skip


def meant_name(name: str, own) -> str:
    """What may be meant by a name that nothing has: one of the function's own, an import, one of Python's."""
    if name in IMPORTS:
        return f" Import it: `{IMPORTS[name]}`."
    return meant(name, own) or meant(name, dir(builtins))


def _cleaned(text: str, source: Source) -> str:
    """The compiler's own sentence, where no rule knows it: types in words, and names as they were written."""
    lines = [part.strip() for part in text.splitlines() if part.strip()]
    text = " ".join(lines[:4])
    text = re.sub(r"UniTuple\(.+? x (\d+)\)", lambda m: f"a tuple of {counted(int(m.group(1)), 'number')}", text)
    text = re.sub(r"array of (\w+) \((\d)D\)", r"an array of \1", text)
    text = re.sub(r"\$?\b\d+\w+(\.\d+)+\b:?", "", text)
    first_word = text.split(" ")[0]
    if first_word.lower() in _ENGLISH:
        text = text[:1].upper() + text[1:]
    elif first_word in source.names() or re.search(r"[.\[(]", first_word.rstrip(".,;")):
        text = f"`{first_word}`{text[len(first_word):]}"
    text = text.rstrip(" .")
    return f"{text}." if text.startswith(("`",)) or first_word.lower() in _ENGLISH else f"{text[:1].upper()}{text[1:]}."
