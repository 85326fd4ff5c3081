"""What the generated code does with a kernel: its regions, branches, loops and waits."""

import ast
import copy
from dataclasses import dataclass, field, replace

from numba.core import types

from labkit.simt.codegen.types import collective_arguments, matrices
from labkit.simt.errors import UnsupportedError
from labkit.simt.ir import (
    FOLDABLE,
    DtypeOf,
    Exit,
    Inline,
    Sync,
    assign,
    at_line,
    check_local_bytes,
    contains,
    load,
    store,
    with_fields,
)
from labkit.simt.runtime.vector_types import is_vector
from labkit.simt.stubs import SHUFFLES

_PURE_CALLS = {"len", "min", "max", "int", "abs", "float", "bool", "_unsigned_shape"}



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
    """A barrier or a collective, between its two halves.

    names: what holds the values that threads contribute; None for one that is the same for all.
    result: what holds the registers that an ldmatrix loads.
    """

    sync: Sync
    names: list
    result: str | None = None

    @property
    def args(self):
        return [name for name in self.names if name]


@with_fields
class Read(ast.stmt):
    """The second half of a collective: each thread reads what the others left."""

    wait: Wait
    target: str | None


def reads(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def writes(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def is_range(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


def owns(statements, kind):
    """True if a break or continue (kind) among the statements belongs to the loop around them."""
    for s in statements:
        if isinstance(s, kind):
            return True
        if isinstance(s, (ast.If, Inline)) and (owns(s.body, kind) or owns(getattr(s, "orelse", []), kind)):
            return True
    return False


def tail_grid_syncs(statements, idle=True):
    """The grid barriers after which a thread on another branch can only return."""
    for k, s in enumerate(statements):
        if isinstance(s, Sync) and s.kind == "grid" and idle:
            yield s
        elif isinstance(s, ast.If):
            bypass_is_idle = idle and k == len(statements) - 1 and not s.orelse
            yield from tail_grid_syncs(s.body, bypass_is_idle)


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


class Flow:
    """What a region reads before it writes it, what it writes, and what it surely writes."""

    def __init__(self, statements):
        self.exposed, self.assigned, self.leaves = set(), set(), False
        defined = self._block(statements, set())
        self.surely = self.assigned if defined is None else defined

    def _read(self, node, defined):
        self.exposed |= reads(node) - defined

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
                    self._write(writes(target), defined)
            elif isinstance(s, ast.AugAssign):
                self._read(s.value, defined)
                self._read(s.target, defined)
                if isinstance(s.target, ast.Name):
                    self.exposed |= {s.target.id} - defined
                    self._write({s.target.id}, defined)
            elif isinstance(s, ast.If):
                self._read(s.test, defined)
                self._write(writes(s.test), defined)
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
                self._write(writes(s.target), inner)
                self._block(s.body, inner)
            else:
                self._read(s, defined)
                self._write(writes(s), defined)
        return defined


def targets(node):
    """Names that a statement assigns by itself, not in what it contains."""
    if isinstance(node, ast.Assign):
        return {n for t in node.targets for n in writes(t)}
    if isinstance(node, Sync):
        return {node.target.id} if node.target is not None else set()
    return writes(node.target)


class Plan:
    """How a kernel becomes loops over the threads of a block, for one set of argument types.

    body            the kernel's statements, settings folded; parameters that it assigns are locals
    tree            the same as regions, branches, loops, calls and waits
    uniform         variables that are computed once for a block: name -> its assignment
    rematerialised  variables that each region computes anew: name -> its assignment
    kept            variables that are kept for each thread: name -> the (array, type) pairs that hold its parts
    kept_views      those among them that are views of arrays: name -> type
    kept_classes    those that are of a vector type or named tuples: name -> what makes one of its parts
    local_per_thread  local arrays that outlive a region

    Where `needs_types` is true, `carry` must be called with the types of the variables.
    """

    def __init__(self, program, argument_types):
        self.program = program = _with_dtypes(program, argument_types)
        self.types = argument_types  # one for each constant and each parameter
        self.count = 0
        self.body = self._prepare(program.body)
        self.has_waits = contains(self.body, Sync, Inline)
        self.has_exit = any(isinstance(n, Exit) and n.label == "kernel" for s in self.body for n in ast.walk(s))
        self.absent_end = set(tail_grid_syncs(self.body))
        self.wait_of = {}  # each Sync of the body -> its Wait in the tree
        self.tree = self._build(self.body)
        self._classify()

    def _prepare(self, body):
        """Parameters that the kernel assigns become locals."""
        arrays = zip(self.program.params, self.types[len(self.program.constants) :], strict=True)
        ndims = {name: ty.ndim for name, ty in arrays if isinstance(ty, types.Array)}
        body = _Folder(ndims).block(copy.deepcopy(body))
        written = {name for s in body for n in ast.walk(s) for name in writes(n)}
        self.renamed_params = [p for p in self.program.params if p in written]
        prologue = []
        for p in self.renamed_params:
            copy_in = ast.Assign([store(p)], load(f"_given_{p}"))
            copy_in.lineno = self.program.line
            prologue.append(copy_in)
        return prologue + body

    @property
    def param_names(self):
        return [f"_given_{p}" if p in self.renamed_params else p for p in self.program.params]

    def _fresh(self, stem):
        self.count += 1
        return f"_{stem}{self.count}"

    def _build(self, statements):
        items = []

        def region():
            if not items or not isinstance(items[-1], Region):
                items.append(Region())
            return items[-1].statements

        for s in statements:
            if isinstance(s, Sync):
                names = []
                for k, argument in enumerate(collective_arguments(s)):
                    if s.op in SHUFFLES and k != 1 and type(getattr(argument, "value", None)) is int:
                        names.append(None)  # a mask or a distance, the same for all: nothing to keep
                        continue
                    name = self._fresh("a")
                    region().append(assign(name, argument, s))
                    names.append(name)
                wait = self.wait_of[s] = Wait(s, names)
                items.append(wait)
                if s.op not in ("syncthreads", "grid_sync"):
                    items.append(Region([at_line(Read(wait, s.target.id if s.target else None), s)]))
            elif not contains(s, Sync, Inline):
                region().append(s)
            elif isinstance(s, ast.If):
                items.append(Branch(s.test, self._build(s.body), self._build(s.orelse), s.lineno))
            elif isinstance(s, ast.While):
                items.append(Loop(s, self._build(s.body), {}))
            elif isinstance(s, ast.For):
                names = {k: self._fresh(k) for k in ("next", "stop", "step")}
                items.append(Loop(s, self._build(s.body), names))
            elif isinstance(s, Inline):
                items.append(Call(s.label, s.function, self._build(s.body)))
        return items

    def _regions(self, items):
        for item in items:
            if isinstance(item, Region):
                yield item.statements
            elif isinstance(item, Branch):
                yield [ast.Expr(item.test)]
                yield from self._regions(item.body)
                yield from self._regions(item.orelse)
            elif isinstance(item, Loop):
                if isinstance(item.node, ast.While):
                    yield [ast.Expr(item.node.test)]
                elif not item.uniform:
                    yield [ast.Expr(item.node.iter)]
                yield from self._regions(item.body)
            elif isinstance(item, Call):
                yield from self._regions(item.body)

    def waits(self):
        """Every Wait of the tree, in the order of the source."""
        return _items(self.tree, Wait)

    def _assignments(self, name):
        return [
            n for s in self.body for n in ast.walk(s)
            if isinstance(n, (ast.Assign, ast.AugAssign, ast.For, ast.NamedExpr, Sync)) and name in targets(n)
        ]  # fmt: skip

    # ------------------------------------------------ what becomes of each variable

    def _classify(self):
        """Which variables are kept for each thread, which recomputed in each region, which computed once per block."""
        self.uniform, self.rematerialised, self.kept, self.kept_views, self.kept_classes = {}, {}, {}, {}, {}
        self.variables = {name for s in self.body for name in writes(s)}
        self.exposed, self.local_per_thread = set(), set()
        if not self.has_waits:
            return
        self._find_pure()
        exposed = {name for wait in self.waits() for name in wait.args}
        used_in = {}
        for k, statements in enumerate(self._regions(self.tree)):
            flow = Flow(statements)
            exposed |= flow.exposed & self.variables
            for name in self.with_sources({n for s in statements for n in reads(s)}) & set(self.program.local):
                used_in.setdefault(name, set()).add(k)
        self.local_per_thread = {name for name, regions in used_in.items() if len(regions) > 1}
        for loop in _items(self.tree, Loop):
            if isinstance(loop.node, ast.For) and not loop.uniform:
                exposed |= {loop.node.target.id} if isinstance(loop.node.target, ast.Name) else set()
        exposed -= set(self.uniform) | set(self.rematerialised)
        self.exposed = exposed - {x.node.target.id for x in _items(self.tree, Loop) if x.uniform}

    @property
    def needs_types(self):
        """True if something is kept for each thread from one region to another."""
        counters = [n for x in _items(self.tree, Loop) if not x.uniform for n in x.names.values()]
        return self.has_waits and bool(self.exposed or counters)

    def carry(self, known):
        """Plan the data kept per thread. known: the types of the variables, by name."""
        for name in sorted(self.exposed):
            self._keep(name, known)
        for view in self.kept_views:  # a view of a local array may be of any thread's
            for assignment in self._assignments(view):
                self.local_per_thread |= reads(assignment.value) & set(self.program.local)
        for loop in _items(self.tree, Loop):
            if not loop.uniform and isinstance(loop.node, ast.For):
                for name in loop.names.values():
                    self.kept[name] = [(f"_v{name}", types.int64)]
        for wait in self.waits():
            if wait.sync.op.startswith("ptx.ldmatrix"):  # what the lanes get; mma leaves its result in c
                name = wait.result = f"{wait.args[0]}_r"
                self.kept[name] = [(f"_v{name}{k}", types.uint32) for k in range(matrices(wait.sync))]

    def _keep(self, name, known):
        ty = known.get(name)
        if ty is None:
            return  # read, never written: Numba will say so
        if isinstance(ty, (types.Array, types.Record)):  # a view: its address, shape and strides
            count = 1 + 2 * getattr(ty, "ndim", 0)
            self.kept[name] = [(f"_v{name}_{k}", types.int64) for k in range(count)]
            self.kept_views[name] = ty
            return
        parts = list(ty.types) if isinstance(ty, types.BaseTuple) else [ty]
        if not all(isinstance(p, (types.Number, types.Boolean, types.NPDatetime, types.NPTimedelta)) for p in parts):
            line = next((s.lineno for s in self._assignments(name)), self.program.line)
            raise UnsupportedError.at(
                self.program.name, self.program.filename, line,
                f"{name} ({ty}) is kept across a barrier; the CPU device can keep numbers and tuples of numbers",
            )  # fmt: skip
        if isinstance(ty, types.BaseTuple):
            self.kept[name] = [(f"_v{name}_{k}", p) for k, p in enumerate(parts)]
            if is_vector(ty):
                self.kept_classes[name] = f"_vector.{ty.instance_class.__name__}"
            elif isinstance(ty, types.BaseNamedTuple):
                objects = self.program.objects.items()
                self.kept_classes[name] = next((n for n, made in objects if made is ty.instance_class), "")
        else:
            self.kept[name] = [(f"_v{name}", ty)]

    def with_sources(self, names):
        """The names, and those that the rematerialised ones among them are made from."""
        known, todo = set(), list(names)
        while todo:
            name = todo.pop()
            if name not in known:
                known.add(name)
                node = self.rematerialised.get(name)
                todo += reads(node.value) if node is not None else ()
        return known

    def _find_pure(self):
        """Variables set once, from indices, sizes and constants alone: cheaper to compute again than to keep."""
        counts, candidates = {}, []
        for s in self.body:
            for n in ast.walk(s):
                if isinstance(n, (ast.Assign, ast.AugAssign, ast.For, ast.NamedExpr, Sync)):
                    for name in targets(n):
                        counts[name] = counts.get(name, 0) + 1
                        if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name):
                            candidates.append((name, n))
        self.pure = {}  # name -> atoms
        for name, node in candidates:
            if counts[name] == 1:
                atoms = self._atoms(node.value)
                if atoms is not None:
                    self.pure[name] = atoms
                    (self.rematerialised if _is_thread(atoms) else self.uniform)[name] = node
        if not self.program.cooperative:
            self._find_uniform_loops(self.tree, counts)
        else:  # the block index differs within a region
            self.rematerialised = {**self.uniform, **self.rematerialised}
            order = [name for name, _ in candidates if name in self.rematerialised]
            self.rematerialised = {name: self.rematerialised[name] for name in order}
            self.uniform = {}

    def _find_uniform_loops(self, items, counts):
        """A range over block-wide values that contains a barrier is a loop of the block, not of each thread."""
        for loop in _items(items, Loop):
            node = loop.node
            if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name) or counts[node.target.id] != 1:
                continue
            if is_range(node.iter):
                atoms = [self._atoms(a) for a in node.iter.args]
                loop.uniform = all(a is not None and not _is_thread(a) for a in atoms) and (
                    not jumps(node) or not self._is_read_outside(node)
                )

    def _is_read_outside(self, loop):
        """True if the loop's variable is used after it, where threads that left early have another value."""
        name = loop.target.id
        inside = sum(1 for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == name)
        everywhere = sum(1 for s in self.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == name)
        return everywhere > inside + 1

    def _atoms(self, node):
        """The indices and parameters that an expression is made of, through variables; None if it is not pure."""
        if isinstance(node, ast.Constant):
            return set()
        if isinstance(node, ast.Name):
            if node.id in self.pure:
                return self.pure[node.id]
            if node.id in self.variables:
                return None
            if node.id in self.program.local:
                return {"_t"}  # an array of each thread's own
            return {node.id}
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("_np", "_math"):
                return set()
            if node.attr not in ("shape", "size", "ndim"):
                return None
            return self._atoms(node.value)
        if isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
                return self._union([node.value, node.slice])
            return None
        if isinstance(node, ast.Call):
            func = node.func
            is_cast = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "_np"
            if not is_cast and not (isinstance(func, ast.Name) and func.id in _PURE_CALLS):
                return None
            return self._union(node.args)
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.Slice)):
            return self._union([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])
        return None

    def _union(self, nodes):
        parts = [self._atoms(node) for node in nodes]
        return None if None in parts else set().union(*parts)


def _with_dtypes(program, argument_types):
    """The program, with the dtype of each array that takes it from an argument."""

    def resolved(array):
        if not isinstance(array.dtype, DtypeOf):
            return array
        ty = argument_types[len(program.constants) + program.params.index(array.dtype.param)]
        if isinstance(ty, types.Array):
            return replace(array, dtype=ty.dtype)
        sentence = f"{array.dtype.param} is {ty}, and has no dtype"
        raise UnsupportedError.at(program.name, program.filename, array.line, sentence)

    shared = {name: resolved(array) for name, array in program.shared.items()}
    program = replace(program, shared=shared, local={name: resolved(array) for name, array in program.local.items()})
    check_local_bytes(program)
    return program


def _items(items, kind):
    """The items of one kind, at any depth."""
    for item in items:
        if isinstance(item, kind):
            yield item
        for part in ("body", "orelse"):
            yield from _items(getattr(item, part, []), kind)


def jumps(loop):
    return owns(loop.body, ast.Break) or owns(loop.body, ast.Continue) or contains(loop.body, Exit)


def _is_thread(atoms):
    return bool(atoms & {"_tx", "_ty", "_tz", "_t"})
