"""The typed tree of a kernel: Python's own nodes, and nodes for what Python does not have. Both runs start from it.

In the tree
- every name that is not a local of the kernel is resolved: constants are literals, special registers are `_tx`, `_bx`,
  `_bdx`, `_gdx` (threadIdx.x, blockIdx.x, blockDim.x, gridDim.x) and so on, global arrays are hidden arguments;
- shared and local arrays are declarations, apart from the code;
- a barrier or warp collective stands alone, as a `Sync` statement, never inside an expression;
- a device function that contains one (or a shared array) is inlined: an `Inline` statement that `Exit` leaves;
- other device functions stay functions.

A node holds nothing but its declared fields, and its position. `Name` and `Subscript` go by the names of the nodes
that they extend, so that `ast.unparse` and visitors take them for those.
"""

import ast
import math
from dataclasses import dataclass, field, fields, is_dataclass

import numpy as np
from numba.core import types
from numba.np import numpy_support

from labkit.simt import ptx
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.errors import UnsupportedError
from labkit.simt.settings import LIMITS

ID_NAMES = tuple(f"_{prefix}{axis}" for prefix in ("t", "b", "bd", "gd") for axis in "xyz")
BUILTINS = {"range", "len", "min", "max", "abs", "int", "float", "bool", "round", "pow", "divmod", "complex", "print",
            "enumerate", "zip", "slice", "sum", "tuple", "reversed"}  # fmt: skip
FOLDABLE = (ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.cmpop, ast.boolop, ast.unaryop,
            ast.operator)  # fmt: skip


def with_fields(cls):
    """Declares a class of nodes: its fields are those of the class that it extends, and its annotations."""
    cls._fields = (*cls._fields, *cls.__annotations__)
    cls._field_types = {**getattr(cls, "_field_types", {}), **cls.__annotations__}
    return cls


# ---------------------------------------------------------------- expressions


@with_fields
class Name(ast.Name):
    """A variable or an array of the kernel."""

    shown: str | None  # what an error calls it, where that is not its id


@with_fields
class Subscript(ast.Subscript):
    """An element, or a view, of an array. An inlined function may be in another file than the kernel."""

    filename: str


@with_fields
class BinOp(ast.BinOp):
    """An operator by the rule of unsigned.py. Goes by Python's name, as Name does."""

    with_constant: bool  # one of the operands is a constant that is no wider than 32 bits


@with_fields
class SyncCall(ast.expr):
    """A barrier or a collective within an expression: until it becomes a Sync."""

    op: str
    args: list


@with_fields
class InlineCall(ast.expr):
    """The call of a device function that will be inlined."""

    function: object  # a scope.Callee
    args: list


@with_fields
class AtomicCall(ast.expr):
    """An atomic: the array, the index, the values."""

    op: str
    args: list
    filename: str

    @property
    def function(self):
        return f"_atomic_{self.op}"


@with_fields
class IntrinsicCall(ast.expr):
    """An intrinsic of labkit.ptx that one thread executes; of an ldmatrix, the address of this thread's row."""

    intrinsic: str
    args: list
    filename: str

    @property
    def function(self):
        return "_ptx_row_address" if self.intrinsic.startswith("ldmatrix") else f"_ptx_{self.intrinsic}"


@with_fields
class DeviceCall(ast.expr):
    """The call of a device function that stays a function, by its name in the generated module."""

    function: str
    args: list


@with_fields
class OverloadCall(ast.expr):
    """The call of a function whose overload is not chosen yet. keywords: the names of its last arguments."""

    function: object
    site: object
    args: list
    keywords: list
    filename: str


# ---------------------------------------------------------------- statements


@with_fields
class Sync(ast.stmt):
    """target = op(*args), where threads wait for one another."""

    op: str
    target: Name | None
    args: list
    filename: str

    @property
    def kind(self):
        return sync_kind(self.op)


@with_fields
class Inline(ast.stmt):
    """The body of an inlined device function; `Exit(label)` leaves it."""

    label: str
    function: str
    body: list


@with_fields
class Exit(ast.stmt):
    """Return from the kernel (label "kernel") or from the Inline with this label."""

    label: str


# ---------------------------------------------------------------- a kernel


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
    """A kernel as a tree."""

    name: str
    filename: str
    line: int
    params: list
    body: list = field(default_factory=list)
    shared: dict = field(default_factory=dict)
    local: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)
    objects: dict = field(default_factory=dict)  # named tuples' classes, enums, intrinsics: by name in generated code
    devices: dict = field(default_factory=dict)
    overloads: list = field(default_factory=list)  # calls whose overload is not chosen yet
    cooperative: bool = False
    has_atomics: bool = False
    has_copies: bool = False  # cp.async
    prints: bool = False
    exceptions: dict = field(default_factory=dict)  # the classes that it raises, by name
    spins: bool = False  # a loop may wait for another thread (spins.py)
    interpreted: str = ""  # the intrinsic that keeps the kernel from being compiled, if there is one


def check_local_bytes(program):
    """Raises UnsupportedError for more local memory than CUDA gives a thread; an unknown dtype does not count."""
    arrays = [*program.local.values(), *(array for device in program.devices.values() for array in device.local)]
    known = [array for array in arrays if not isinstance(array.dtype, DtypeOf)]
    total = sum(math.prod(a.shape) * numpy_support.as_dtype(a.dtype).itemsize for a in known)
    if total > LIMITS.local_per_thread:
        raise UnsupportedError.at(
            program.name, program.filename, known[-1].line,
            f"the local arrays of a thread take {total:,} bytes; CUDA gives it {LIMITS.local_per_thread:,}",
        )  # fmt: skip


def sync_kind(op):
    """Who waits for whom: "grid", "block", "warp"; for intrinsics also "warpgroup", and "wait" for what suspends."""
    if op == "grid_sync":
        return "grid"
    if op.startswith("ptx."):
        return ptx.INTRINSICS[op[4:]].kind
    return "block" if op.startswith("syncthreads") else "warp"


def full_name(op):
    """What an error calls a barrier or a collective."""
    return op if op.startswith("ptx.") else f"cuda.{op}"


def contains(nodes, *kinds):
    """True if any of these statements is, or holds, a node of one of these kinds."""
    nodes = nodes if isinstance(nodes, list) else [nodes]
    return any(isinstance(node, kinds) for top in nodes for node in ast.walk(top))


def integer_literal(node):
    """The value of an integer literal, optionally negated; else None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = integer_literal(node.operand)
        return None if value is None else -value
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def load(name):
    return Name(name, ast.Load(), None)


def store(name):
    return Name(name, ast.Store(), None)


def at_line(new, source):
    """Give a new node, and the new nodes below it, the line of `source`."""
    for child in ast.walk(new):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            ast.copy_location(child, source)
    return new


def assign(name, value, source):
    return at_line(ast.Assign([store(name)], value), source)


def without_positions(new):
    """Forget the positions of parsed helper code, so that `at_line` gives it the kernel's."""
    for child in ast.walk(new):
        for attribute in child._attributes:
            vars(child).pop(attribute, None)
    return new


def copied(tree):
    """Copy a tree, or a list of them, as copy.deepcopy does but several times as fast. Non-nodes stay the same."""
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(copied, tree))
    if not isinstance(tree, ast.AST):
        return tree
    new = type(tree).__new__(type(tree))
    for name, value in vars(tree).items():  # others may leave attributes on Python's nodes, such as the parent
        setattr(new, name, copied(value) if name in tree._fields else value)
    return new


def shown(name):
    """What an error calls a variable."""
    return getattr(name, "shown", None) or name.id


class Lowering(ast.NodeTransformer):
    """Lower the tree's calls to Python calls of the functions that implement them."""

    def hidden_arguments(self, call):
        """What the function takes beside the call's own arguments."""
        return []

    def visit_AtomicCall(self, call):
        hidden = self.hidden_arguments(call)  # first: a site is numbered before those inside it
        self.generic_visit(call)
        return ast.Call(ast.Name(call.function, ast.Load()), [*call.args, *hidden], [])

    visit_IntrinsicCall = visit_DeviceCall = visit_AtomicCall


def fingerprint_of(program):
    """Everything that the generated source depends on, as text: each declared field, and the line of each node."""
    parts = []

    def walk(part):
        if isinstance(part, ast.AST):
            parts.append(f"{type(part).__name__} {getattr(part, 'lineno', '')}(")
            for name in part._fields:
                walk(getattr(part, name, None))
            parts.append(")")
        elif is_dataclass(part):
            parts.append(f"{type(part).__name__}(")
            for declared in fields(part):
                walk(getattr(part, declared.name))
            parts.append(")")
        elif isinstance(part, dict):
            walk(list(part.items()))
        elif isinstance(part, (list, tuple)):
            parts.append("[")
            for item in part:
                walk(item)
            parts.append("]")
        elif isinstance(part, (np.ndarray, DeviceNDArray)):
            parts.append("array")  # a hidden argument: its type is known apart, its values are given at the launch
        else:
            parts.append(f"{part!r} {getattr(part, '_fields', '')}" if isinstance(part, type) else repr(part))

    walk(program)
    return "\n".join(parts)
