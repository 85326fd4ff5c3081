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
from labkit.course.check.words import counted, quote_line, split_line, without_file

ARRAY_ATTRIBUTES = ("shape", "size", "ndim", "dtype", "strides", "itemsize", "nbytes", "T")
_ENGLISH = {"a", "an", "the", "whole", "no", "cannot", "keyword", "call", "its", "it", "failed", "one", "arguments",
            "default", "recursion", "await", "yield", "del", "match", "global", "nonlocal"}  # fmt: skip
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
              "matmul": "@", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "iadd": "+=",
              "isub": "-=", "imul": "*=", "itruediv": "/=", "and_": "&", "or_": "|", "xor": "^"}  # fmt: skip
MAKERS = {"zeros", "empty", "ones", "full", "array", "zeros_like", "empty_like", "ones_like", "full_like", "arange",
          "linspace", "asarray"}  # fmt: skip
ONE_BY_ONE = "A kernel computes single elements"


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
    message = without_file(re.sub(r"\x1b\[[0-9;]*m", "", str(error)))
    text, line = split_line(message)
    match = re.match(r"(\w+)(?:, line \d+)?: ", message)
    sources = sources_of(answer)
    source = sources.get(match.group(1)) if match else None
    if source is not None and line == 0:
        text = message[match.end() :]
    text = text.removeprefix("does not compile for these argument types: ")
    for candidate in [source] if source else sources.values():
        for rule in RULES:
            if result := rule(replace(candidate, axes=axes or {}), text, line):
                sentence, node = result
                return Complaint(sentence, getattr(node, "lineno", line), candidate.filename)
    source = source or next(iter(sources.values()), Source(None, "", ast.Module([], [])))
    return Complaint(_cleaned(text, source), line, source.filename)


# --- Rules: (source, text, line) -> (sentence, node), or None --------------------------------------------------------


def _matrix_product(source, text, line):
    products = [n for n in source.nodes((ast.BinOp, ast.AugAssign), line) if isinstance(n.op, ast.MatMult)]
    if not products or not (line or "scipy" in text or "matmul" in text or "@" in text):
        return None
    return matrix_product(products[0]), products[0]


def matrix_product(node) -> str:
    return (f"`{code_of(node)}`: a kernel has no `@`, which works on whole arrays. {ONE_BY_ONE}: add up the products "
            "in a loop, `total += a[row, k] * b[k, col]`.")


def _unknown_name(source, text, line):
    match = re.search(r"the name '(\w+)' is not defined", text)
    if not match:
        return None
    name = match.group(1)
    return f"There is no `{name}` here.{meant_name(name, source.names())}", None


def _missing_in_module(source, text, line):
    match = re.match(r"([\w.]+)\.(\w+) (?:does not exist|is not supported by the CPU device)|"
                     r"([\w.]+) has no attribute '(\w+)'", text)
    if not match:
        return None
    base, name = [part for part in match.groups() if part]
    suggestion = meant(name, _members(source, base), f"{base}.")
    if "not supported" in match.group() and not suggestion:
        return None  # of numba.cuda: it may exist on a GPU
    return f"There is no `{base}.{name}`.{suggestion}", None


def _members(source, base: str) -> list[str]:
    root, *rest = base.split(".")
    function = source.function
    value = getattr(function, "__globals__", {}).get(root, cuda if root == "cuda" else None)
    for name in rest:
        value = getattr(value, name, None)
    return [name for name in dir(value) if not name.startswith("_")]


def _unknown_attribute(source, text, line):
    match = re.search(r"^(.+) has no attribute (\w+)$", text) or re.search(r"^the method \.(\w+)\(\)", text)
    if not match:
        return None
    name = match.group(match.lastindex)
    nodes = [n for n in source.nodes(ast.Attribute, line) if n.attr == name]
    node = nodes[0] if nodes else None
    subject = f"`{code_of(node.value)}`" if node is not None else "It"
    if match.lastindex == 2 and "array" not in match.group(1):
        return f"{subject} is a number ({match.group(1)}) here, and has no `.{name}`.", node
    if name in ARRAY_ATTRIBUTES:
        return f"`{code_of(node)}` is a value, not a function: write it without ().", node
    sentence = f"{subject} has no `.{name}`{'()' if match.lastindex == 1 else ''} in a kernel."
    suggestion = meant(name, ARRAY_ATTRIBUTES, f"{code_of(node.value)}." if node is not None else ".")
    if not suggestion and name in ("lenght", "length", "len", "count"):
        suggestion = " Did you mean `.size`, the number of its elements, or `.shape[0]`, the length of its first axis?"
    return f"{sentence}{suggestion or ' An array has `.shape`, `.size`, `.ndim` and `.dtype` there.'}", node


def _grid(source, text, line):
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
            instead = f", or `{code_of(call.func)}(1)` for one"
        else:
            instead = f", or `{code_of(call.func)}({count})` for {count}"
        return (f"`{code_of(call)}` gives {counted(axes, 'number')}, and {counted(count, 'name')} "
                f"{'stands' if count == 1 else 'stand'} on the left. Write `{names} = {code_of(call)}`{instead}."), node
    return None


def _shape_whole(source, text, line):
    """i < out.shape"""
    if "UniTuple" not in text and "Tuple(" not in text:
        return None
    for node in source.nodes((ast.Compare, ast.BinOp), line):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.left, node.right]
        for side in sides:
            if isinstance(side, ast.Attribute) and side.attr == "shape":
                code = code_of(side)
                return (f"`{code}` is a tuple with the length of each axis. Compare with one of them, `{code}[0]`, or "
                        f"with the number of elements, `{code_of(side.value)}.size`."), node
    return None


def _unpacking(source, text, line):
    match = re.search(r"[Ff]ailed to unpack (.+)|wrong tuple length.*?expected (\d+), got (\d+)", text)
    if not match:
        return None
    nodes = [n for n in source.nodes(ast.Assign, line) if isinstance(n.targets[0], ast.Tuple)]
    if not nodes:
        return None
    names, value = len(nodes[0].targets[0].elts), nodes[0].value
    if isinstance(value, ast.Attribute) and value.attr == "shape" and match.group(3):
        subject = f"`{code_of(value.value)}` has {counted(int(match.group(3)), 'axis').replace('axiss', 'axes')}"
    else:
        subject = f"`{code_of(value)}` is {'one number' if match.group(1) else counted(int(match.group(3)), 'number')}"
    return f"{subject}, and {counted(names, 'name')} stand on the left.", nodes[0]


def _indices(source, text, line):
    match = re.search(r"cannot index array of (\S+) \((\d)D\) with (\d+) ind", text, re.IGNORECASE)
    if not match:
        return None
    axes, index_count = int(match.group(2)), int(match.group(3))
    nodes = [n for n in source.nodes(ast.Subscript, line) if _width(n.slice) == index_count
             and source.axes.get(code_of(n.value), axes) == axes]
    node = nodes[0] if len({code_of(n.value) for n in nodes}) == 1 else None
    subject = f"`{code_of(node.value)}`" if node is not None else "An array of this line"
    plural = "axis" if axes == 1 else "axes"
    return f"{subject} has {axes} {plural}, and gets {index_count} {'index' if index_count == 1 else 'indices'}.", node


def _width(index) -> int:
    return len(index.elts) if isinstance(index, ast.Tuple) else 1


def _float_index(source, text, line):
    if not re.search(r"index must be an integer|float\d* .*index|indices must be integers", text):
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
    return f"{code} is not an integer. Only integers are indices; `int(...)` makes one of a number.", (
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


def _operands(source, text, line):
    """An operator between types that it does not take."""
    match = re.match(r"(?:<built-in function )?(\w+)>? does not take the types \((.*)\)$", text)
    if not match or match.group(1) not in _OPERATORS:
        return None
    sign = _OPERATORS[match.group(1)]
    kinds = [_type_words(part) for part in _split(match.group(2))]
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


def _split(types_: str) -> list[str]:
    parts, depth = [""], 0
    for sign in types_:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


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


def _host_function(source, text, line):
    match = re.match(r"((?:np|numpy)\.\w+) cannot be called in device code", text)
    if match and match.group(1).rpartition(".")[2] in MAKERS:
        return (f"`{match.group(1)}` makes an array, and a kernel cannot ask for memory while it runs. A few numbers "
                "of one thread: `cuda.local.array(shape, float32)`. Numbers that a block shares: "
                "`cuda.shared.array(shape, float32)`. Both take a constant shape, and hold nothing until it is stored: "
                "set the elements to 0 in a loop."), None
    if match:
        return (f"`{match.group(1)}` works on whole arrays, on the CPU. {ONE_BY_ONE}: write the loop, with functions "
                "of `math` for one number."), None
    match = re.match(r"numba\.cuda does not compile (\S+) in a kernel(?:; use (.+))?$", text)
    if match:
        instead = f" Use `{match.group(2)}`, which takes one number." if "math." in (match.group(2) or "") else (
            f" Use `{match.group(2)}`." if match.group(2) else "")
        return f"A kernel has no `{match.group(1)}`.{instead}", None
    match = re.match(r"((?:numba\.)?cuda\.\w+) is a host function;", text)
    if match:
        barrier = " The barrier of a block is `cuda.syncthreads()`." if "synchronize" in match.group(1) else ""
        return f"`{match.group(1)}` is for the host: a kernel cannot call it.{barrier}", None
    match = re.match(r"(\S+) is a host function; (.*)", text)
    if match:
        return f"`{match.group(1)}` is a function of the host. To call it in a kernel, {match.group(2)}.", None
    match = re.match(r"(.+) cannot be called in device code$", text)
    if match and "[" in match.group(1):
        return (f"`{match.group(1)}(...)`: a kernel is launched by the host, not in a kernel. What a kernel calls is a "
                "function under `@cuda.jit(device=True)`, without [grid, block]."), None
    if match:
        return f"`{match.group(1)}` is no function. For an element of an array use [ ].", None
    return None


def _container(source, text, line):
    match = re.match(r"(a list|a dictionary|a set|a \w+ comprehension|a generator) cannot be used in device", text)
    if not match:
        return None
    return (f"A kernel cannot make {match.group(1)}: a thread can ask for no memory while it runs. Use variables, or "
            "`cuda.local.array(shape, dtype)` with a constant shape."), None


def _unset(source, text, line):
    match = re.match(r"(\w+) is read before it is set", text)
    if not match:
        return None
    return (f"`{match.group(1)}` is used here, and on some way to this line it has no value yet. Set it before, as in "
            f"`{match.group(1)} = float32(0.0)`."), None


def _whole_array(source, text, line):
    if not text.startswith("whole arrays cannot be"):
        return None
    return f"This computes with a whole array, or stores one. {ONE_BY_ONE}, `out[i] = ...`: is an index missing?", None


def _stored_array(source, text, line):
    match = re.match(r"cannot store a value of type (array|.*[Tt]uple)", text, re.IGNORECASE)
    if not match:
        return None
    kind = "a whole array" if match.group(1) == "array" else "a tuple"
    return f"What is stored here is {kind}, and an element holds one number: is an index missing?", None


def _stub_arguments(source, text, line):
    match = re.match(r"([\w.]+) takes \((.*)\), (\d+) given", text)
    if not match:
        return None
    name, parameters, count = match.groups()
    if name.endswith(("grid", "gridsize")):
        return f"`{name}` takes the number of axes, 1 to 3, as in `{name}(1)`.", None
    many = counted(len(parameters.split(", ")) if parameters else 0, "argument")
    return f"`{name}({parameters})` takes {many}, and is called with {count}.", None


def _too_many_types(source, text, line):
    match = re.match(r"(\w+) is (.+) on one path and (.+) on another", text)
    if not match:
        return None
    name, *kinds = match.groups()
    return (f"`{name}` is {_type_words(kinds[0])} on one path through the kernel and {_type_words(kinds[1])} on "
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
