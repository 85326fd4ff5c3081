"""What the generated code does with a kernel: its regions, branches, loops and waits."""

import ast
from dataclasses import dataclass, field

from labkit.simt.ir import FOLDABLE, Exit, Inline, Sync

_PURE_CALLS = {"len", "min", "max", "int", "abs", "float", "bool"}


class Read(ast.stmt):
    """The second half of a collective: each thread reads what the others left."""

    _fields = ()


@dataclass
class Region:
    """Statements without a barrier: one thread after the other."""

    statements: list = field(default_factory=list)


@dataclass
class Branch:
    test: ast.expr
    body: list
    orelse: list
    line: int


@dataclass
class Loop:
    """While a thread's test holds (or, for a range, while its counter runs)."""

    node: ast.stmt
    body: list
    names: dict
    uniform: bool = False


@dataclass
class Call:
    """An inlined device function that some threads may leave before others."""

    label: str
    name: str
    body: list


@dataclass
class Wait:
    """A barrier or a collective, between its two halves. `args` are the names of the values that threads contribute."""

    sync: Sync
    args: list


def _reads(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _writes(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _is_range(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


def _own(statements, kind):
    """True if a break or continue (kind) among the statements belongs to the loop around them."""
    for s in statements:
        if isinstance(s, kind):
            return True
        if isinstance(s, (ast.If, Inline)) and (_own(s.body, kind) or _own(getattr(s, "orelse", []), kind)):
            return True
    return False


class _Folder(ast.NodeTransformer):
    """Leaves out branches that the kernel's settings and the number of its arrays' axes decide, as Numba does."""

    def __init__(self, ndims):
        self.ndims = ndims

    def block(self, statements):
        return [new for s in statements for new in self._statements(self.visit(s))]

    @staticmethod
    def _statements(result):
        return result if isinstance(result, list) else [result]

    def visit_Attribute(self, node):
        if node.attr == "ndim" and isinstance(node.value, ast.Name) and node.value.id in self.ndims:
            return ast.copy_location(ast.Constant(self.ndims[node.value.id]), node)
        return self.generic_visit(node)

    def visit_If(self, node):
        node.test = self.visit(node.test)
        if all(isinstance(n, FOLDABLE) for n in ast.walk(node.test)):
            chosen = node.body if eval(compile(ast.Expression(node.test), "<setting>", "eval")) else node.orelse
            return self.block(chosen) or [ast.copy_location(ast.Pass(), node)]
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        return node


class _Flow:
    """What a region reads before it writes it, what it writes, and what it surely writes."""

    def __init__(self, statements):
        self.exposed, self.assigned, self.leaves = set(), set(), False
        defined = self._block(statements, set())
        self.surely = self.assigned if defined is None else defined

    def _read(self, node, defined):
        self.exposed |= _reads(node) - defined

    def _write(self, names, defined):
        self.assigned |= names
        defined |= names

    def _block(self, statements, defined):
        """The names that are set after the statements; None if the end is never reached."""
        for s in statements:
            if isinstance(s, (Exit, ast.Break, ast.Continue)):
                self.leaves |= not (isinstance(s, Exit) and s.label == "kernel")
                return None
            if isinstance(s, Read):
                self._write({s.target} if s.target else set(), defined)
            elif isinstance(s, ast.Assign):
                self._read(s.value, defined)
                for target in s.targets:
                    self._read(target, defined)
                    self._write(_writes(target), defined)
            elif isinstance(s, ast.AugAssign):
                self._read(s.value, defined)
                self._read(s.target, defined)
                if isinstance(s.target, ast.Name):
                    self.exposed |= {s.target.id} - defined
                    self._write({s.target.id}, defined)
            elif isinstance(s, ast.If):
                self._read(s.test, defined)
                self._write(_writes(s.test), defined)
                yes, no = self._block(s.body, set(defined)), self._block(s.orelse, set(defined))
                if yes is None and no is None:
                    return None
                defined = no if yes is None else yes if no is None else yes & no
            elif isinstance(s, ast.While):
                self._read(s.test, defined)
                self._block(s.body, set(defined))
            elif isinstance(s, ast.For):
                self._read(s.iter, defined)
                inner = set(defined)
                self._write(_writes(s.target), inner)
                self._block(s.body, inner)
            else:
                self._read(s, defined)
                self._write(_writes(s), defined)
        return defined


def _targets(node):
    """Names that a statement assigns by itself, not in what it contains."""
    if isinstance(node, ast.Assign):
        return {n for t in node.targets for n in _writes(t)}
    if isinstance(node, Sync):
        return {node.target.id} if node.target is not None else set()
    return _writes(node.target)
