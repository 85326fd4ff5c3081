"""The typed tree of a kernel: Python's own nodes, and the statements that Python does not have."""

import ast
from dataclasses import dataclass, field

from numba.core import types

from labkit.simt import ptx

ID_NAMES = tuple(f"_{prefix}{axis}" for prefix in ("t", "b", "bd", "gd") for axis in "xyz")
BUILTINS = {"range", "len", "min", "max", "abs", "int", "float", "bool", "round", "pow", "divmod", "complex", "print",
            "enumerate", "zip", "slice", "sum", "tuple", "reversed"}  # fmt: skip
FOLDABLE = (ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.cmpop, ast.boolop, ast.unaryop,
            ast.operator)  # fmt: skip


class Sync(ast.stmt):
    """target = op(*args), where threads wait for one another. target may be None. `kind`: "block", "warp" or "grid"."""

    _fields = ("target", "args")


class Inline(ast.stmt):
    """The body of an inlined device function; `Exit(label)` leaves it."""

    _fields = ("body",)


class Exit(ast.stmt):
    """Return from the kernel (label "kernel") or from the Inline with this label."""

    _fields = ()


@dataclass(frozen=True)
class DtypeOf:
    """The dtype of a parameter, known when the kernel is compiled for its arguments."""

    param: str


@dataclass
class ArrayDeclaration:
    """A shared or local array. shape is a tuple of ints, (0,) is dynamic shared memory; dtype a type, or a DtypeOf."""

    name: str
    space: str
    shape: tuple
    dtype: types.Type
    line: int
    alignment: int = 16


@dataclass
class DeviceSource:
    """A device function that stays a function."""

    name: str
    params: list
    body: list
    local: list
    filename: str


@dataclass
class Program:
    """A kernel in normal form."""

    name: str
    filename: str
    line: int
    params: list
    body: list = field(default_factory=list)
    shared: dict = field(default_factory=dict)
    local: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)
    devices: dict = field(default_factory=dict)
    cooperative: bool = False
    has_atomics: bool = False
    has_copies: bool = False  # cp.async
    interpreted: str = ""  # the intrinsic that keeps the kernel from being compiled, if there is one


def sync_kind(op):
    """Who waits for whom: "grid", "block", "warp"; for intrinsics also "warpgroup", and "wait" for what suspends."""
    if op == "grid_sync":
        return "grid"
    if op.startswith("ptx."):
        return ptx.INTRINSICS[op[4:]].kind
    return "block" if op.startswith("syncthreads") else "warp"


def contains(nodes, *kinds):
    """True if any of these statements is, or holds, a node of one of these kinds."""
    nodes = nodes if isinstance(nodes, list) else [nodes]
    return any(isinstance(node, kinds) for top in nodes for node in ast.walk(top))


def _at(node, where):
    """Give a new node, and the new nodes below it, the line of `where`."""
    for child in ast.walk(node):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            ast.copy_location(child, where)
        elif isinstance(child, (Sync, Inline, Exit)) and not hasattr(child, "lineno"):
            child.lineno = where.lineno
    return node


def _assign(name, value, where):
    return _at(ast.Assign([ast.Name(name, ast.Store())], value), where)


def _strip(node):
    """Forget the positions of parsed helper code, so that `_at` gives it the kernel's."""
    for child in ast.walk(node):
        for attribute in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            if hasattr(child, attribute):
                delattr(child, attribute)
    return node
