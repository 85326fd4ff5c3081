"""Mutation operators. Each takes the tree of an answer and yields changes, one node at a time.

    mutants(source)      -> every Mutant of an answer's source, none of them twice and none like the answer
    chosen(found, 30)    the same 30 in every run, every operator among them

A mutant is named by its operator, the old code and the new code, not by a line number: the name stays the same when
a line is inserted above.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from labkit.course.mutants.places import Place, compiles, is_launch, is_shape, places_in, plus, short, with_fields

Changes = Iterator[tuple[str, ast.AST | list]]  # the new code, in words or as code, and the node or nodes


@dataclass(frozen=True)
class Mutant:
    """`source` is the whole answer with one change."""

    operator: str
    change: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.operator}: {self.change}"


def mutants(source: str) -> list[Mutant]:
    """Every mutant of an answer: the source of its cell, without markers. ast.unparse loses comments, nothing else."""
    tree = ast.parse(source)
    seen, result, names = {ast.unparse(tree)}, [], defaultdict(int)
    for place in places_in(tree):
        for operator, change in OPERATORS.items():
            for new_code, node in change(place):
                mutated = place.with_node(node)
                if mutated in seen or not compiles(mutated):
                    continue
                seen.add(mutated)
                change_text = f"{place.text} -> {new_code}"
                names[operator, change_text] += 1
                suffix = f" ({names[operator, change_text]})" if names[operator, change_text] > 1 else ""
                result.append(Mutant(operator, f"{change_text}{suffix}", mutated))
    return result


def chosen(candidates: Iterable[Mutant], count: int) -> list[Mutant]:
    """`count` of them: round and round over the operators, within each in the order of a hash of the name."""
    queues = defaultdict(list)
    for one in candidates:
        queues[one.operator].append(one)
    for queue in queues.values():
        queue.sort(key=lambda one: hashlib.sha256(one.name.encode()).hexdigest(), reverse=True)
    picked = []
    while queues and len(picked) < count:
        for operator in list(queues):
            picked.append(queues[operator].pop())
            if not queues[operator]:
                del queues[operator]
    return picked[:count]


# --- Operators -------------------------------------------------------------------------------------------------------

COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv,
            ast.Div: ast.Mult, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.Pow: ast.Mult}
CALLS = {"max": "min", "min": "max", "math.exp": "math.sqrt", "math.sqrt": "abs", "math.log": "math.exp",
         "cuda.shfl_down_sync": "cuda.shfl_up_sync", "cuda.shfl_xor_sync": "cuda.shfl_down_sync",
         "cuda.shfl_up_sync": "cuda.shfl_down_sync", "cuda.atomic.add": "cuda.atomic.max",
         "cuda.atomic.max": "cuda.atomic.min", "cuda.atomic.min": "cuda.atomic.max", "cuda.gridsize": "cuda.grid",
         "np.zeros": "np.ones", "np.empty": "np.ones", "np.ones": "np.zeros", "np.maximum": "np.minimum"}
PLACES = {"threadIdx": "blockIdx", "blockIdx": "threadIdx", "blockDim": "gridDim", "gridDim": "blockDim",
          "x": "y", "y": "x", "z": "y"}
BARRIERS = ("cuda.syncthreads", "cuda.syncwarp", "cuda.synchronize", "ptx.wait", "ptx.commit", "ptx.fence")


def guards(place: Place) -> Changes:
    """Comparisons off by one or the other way round; conditions always and never true; and for or."""
    node = place.node
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
        yield from _as(node, ops=[COMPARED[type(node.ops[0])]()])
        yield from _as(node, comparators=[plus(node.comparators[0], 1)])
        yield from _as(node, comparators=[plus(node.comparators[0], -1)])
    if isinstance(node, ast.BoolOp):
        yield from _as(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for k in range(len(node.values)):
            others = node.values[:k] + node.values[k + 1 :]
            left = others[0] if len(others) == 1 else ast.BoolOp(node.op, others)
            yield short(left), left
    if isinstance(node, ast.If):
        yield from _as(node, test=ast.Constant(True))
        yield from _as(node, test=ast.UnaryOp(ast.Not(), node.test))


def indices(place: Place) -> Changes:
    """Indices exchanged, one too many or too few, negative, scaled, or always the first."""
    node = place.node
    if not isinstance(node, ast.Subscript) or is_launch(place) or is_shape(node):
        return
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for k in range(len(parts) - 1):
        other = parts[:k] + [parts[k + 1], parts[k]] + parts[k + 2 :]
        yield from _as(node, slice=ast.Tuple(other, ast.Load()))
    for k, part in enumerate(parts):
        if isinstance(part, ast.Slice):
            continue
        for changed in (plus(part, 1), plus(part, -1), ast.BinOp(part, ast.Mult(), ast.Constant(2)), ast.Constant(0),
                        ast.UnaryOp(ast.USub(), part)):
            other = [*parts[:k], changed, *parts[k + 1 :]]
            yield from _as(node, slice=ast.Tuple(other, ast.Load()) if len(parts) > 1 else changed)


def names(place: Place) -> Changes:
    """One coordinate or counter in the place of another."""
    node = place.node
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in place.names:
        index = place.names.index(node.id)
        for other in (place.names[index - 1], place.names[(index + 1) % len(place.names)]):
            if other != node.id:
                yield other, ast.Name(other, ast.Load())
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store) and len(node.elts) > 1:
        yield from _as(node, elts=node.elts[::-1])


def numbers(place: Place) -> Changes:
    """Constants off by one, doubled, halved. An array is made smaller only: a larger one does no harm."""
    node = place.node
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value, larger = node.value, not place.call.endswith(".array")
        for other in (value + 1, value - 1, value * 2, value // 2 if type(value) is int else value / 2):
            if other != value and (larger or other < value):
                yield repr(other), ast.Constant(other)


def arithmetic(place: Place) -> Changes:
    """Another operator, operands exchanged, an operand or a sign left out."""
    node = place.node
    if isinstance(node, ast.BinOp):
        if type(node.op) in COMPUTED:
            yield from _as(node, op=COMPUTED[type(node.op)]())
        if not isinstance(node.op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.MatMult)):
            yield from _as(node, left=node.right, right=node.left)
        yield short(node.left), node.left
        yield short(node.right), node.right
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield short(node.operand), node.operand


def identities(place: Place) -> Changes:
    """The number that an accumulator begins with."""
    node = place.node
    if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Call, ast.Constant, ast.UnaryOp, ast.Attribute)):
        text = ast.unparse(node.value)
        for old, new in (("-math.inf", "0.0"), ("math.inf", "0.0"), ("-np.inf", "0.0"), ("0.0", "1.0"), ("1.0", "0.0")):
            if f"({old})" in text or text == old:
                other = ast.parse(text.replace(old, new), mode="eval").body
                yield from _as(node, value=other)
                break


def types(place: Place) -> Changes:
    """A number of another type, and sums of numbers cut to integers. An accumulator that begins as int32(0) is none:
    Numba makes it a float64, which is slow and right."""
    node = place.node
    if isinstance(node, ast.AugAssign) and not isinstance(node.value, ast.Constant):
        yield from _as(node, value=ast.Call(ast.Name("int32", ast.Load()), [node.value], []))
    if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1
            and not isinstance(node.args[0], ast.Constant)):
        for old, new in (("float32", "int32"), ("float64", "int32"), ("uint32", "float32"), ("int32", "float32"),
                         ("float16", "int32")):
            if node.func.id == old:
                yield from _as(node, func=ast.Name(new, ast.Load()))


def barriers(place: Place) -> Changes:
    """A barrier left out."""
    if isinstance(place.node, ast.Expr) and ast.unparse(place.node).startswith(BARRIERS):
        yield "left out", []


def moved_barriers(place: Place) -> Changes:
    """A barrier before the statement that it stood behind, or behind the one that it stood before."""
    node = place.node
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if not isinstance(block, list):
            continue
        for k, statement in enumerate(block):
            if isinstance(statement, ast.Expr) and ast.unparse(statement).startswith(BARRIERS):
                for other in (k - 1, k + 1):
                    if 0 <= other < len(block):
                        changed = list(block)
                        changed[k], changed[other] = changed[other], changed[k]
                        mutated = copy.copy(node)
                        setattr(mutated, field, changed)
                        where = "before" if other < k else "behind"
                        yield f"{short(statement)} {where} {short(block[other])}", mutated


def omissions(place: Place) -> Changes:
    """A statement left out; an addition that became an assignment, and the other way round."""
    node = place.node
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)) and not ast.unparse(node).startswith(BARRIERS):
        stores = isinstance(node, ast.Expr) or isinstance(
            node.targets[0] if isinstance(node, ast.Assign) else node.target, ast.Subscript)
        if stores or isinstance(node, ast.AugAssign):
            yield "left out", []
    if isinstance(node, ast.AugAssign):
        changed = ast.Assign([node.target], node.value)
        yield short(ast.fix_missing_locations(changed)), changed
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
        changed = ast.AugAssign(node.targets[0], ast.Add(), node.value)
        yield short(ast.fix_missing_locations(changed)), changed


def loops(place: Place) -> Changes:
    """A loop that begins later, ends sooner or later, or goes by another step."""
    node = place.node
    if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "range":
        bounds = node.iter.args
        for k in range(len(bounds)):
            for delta in (1, -1) if k or len(bounds) == 1 else (1,):
                other = [*bounds[:k], plus(bounds[k], delta), *bounds[k + 1 :]]
                iterated = ast.Call(node.iter.func, other, [])
                yield f"for {short(node.target)} in {short(iterated)}", with_fields(node, iter=iterated)
        if len(bounds) == 3:
            for step in (ast.BinOp(bounds[2], ast.Mult(), ast.Constant(2)), ast.Constant(1)):
                iterated = ast.Call(node.iter.func, [*bounds[:2], step], [])
                yield f"for {short(node.target)} in {short(iterated)}", with_fields(node, iter=iterated)
    if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple) and len(node.iter.elts) > 1:
        for part in (node.iter.elts[1:], node.iter.elts[:-1]):
            iterated = ast.Tuple(part, ast.Load())
            yield f"for {short(node.target)} in {short(iterated)}", with_fields(node, iter=iterated)


def shapes(place: Place) -> Changes:
    """The length of another axis, or a number that fits one shape only."""
    node = place.node
    if isinstance(node, ast.Subscript) and is_shape(node) and isinstance(node.slice, ast.Constant):
        yield from _as(node, slice=ast.Constant(1 - node.slice.value if node.slice.value < 2 else 0))
        yield "128", ast.Constant(128)
    if isinstance(node, ast.Attribute) and node.attr == "size":
        yield "128", ast.Constant(128)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "len":
        yield "128", ast.Constant(128)


def launches(place: Place) -> Changes:
    """Grid and block exchanged, one block only, one thread a block, half a block."""
    node = place.node
    if is_launch(place):
        grid, block, *rest = node.slice.elts
        for parts in ((block, grid), (ast.Constant(1), block), (grid, ast.Constant(1)), (plus(grid, -1), block)):
            yield from _as(node, slice=ast.Tuple([*parts, *rest], ast.Load()))
        if rest:
            yield from _as(node, slice=ast.Tuple([grid, block], ast.Load()))


def calls(place: Place) -> Changes:
    """Another function, arguments exchanged, an argument in place of the call."""
    node = place.node
    if not isinstance(node, ast.Call):
        return
    if (name := ast.unparse(node.func)) in CALLS:
        yield from _as(node, func=ast.parse(CALLS[name], mode="eval").body)
    for k in range(len(node.args) - 1):
        if name not in ("max", "min", "range"):
            other = node.args[:k] + [node.args[k + 1], node.args[k]] + node.args[k + 2 :]
            yield from _as(node, args=other)
    if len(node.args) == 1 and (name.startswith("math.") or name == "abs"):
        yield short(node.args[0]), node.args[0]


def coordinates(place: Place) -> Changes:
    """Another coordinate of the thread: blockIdx for threadIdx, y for x, the block's own in place of the grid's."""
    node = place.node
    if isinstance(node, ast.Attribute) and node.attr in PLACES and ast.unparse(node).startswith("cuda."):
        yield from _as(node, attr=PLACES[node.attr])
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr in PLACES:
        yield from _as(node, value=with_fields(node.value, attr=PLACES[node.value.attr]))
    if isinstance(node, ast.Call) and ast.unparse(node) == "cuda.grid(1)":
        for other in ("cuda.threadIdx.x", "cuda.blockIdx.x"):
            yield other, ast.parse(other, mode="eval").body


def host_code(place: Place) -> Changes:
    """A function of the host that returns at once, or nothing."""
    node = place.node
    if isinstance(node, ast.Return) and node.value is not None:
        yield "return None", ast.Return(None)
    if isinstance(node, ast.Attribute) and node.attr == "T":
        yield short(node.value), node.value
    if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
        yield f"{node.arg}={not node.value.value}", ast.keyword(node.arg, ast.Constant(not node.value.value))


OPERATORS: dict[str, Callable[[Place], Changes]] = {
    "guard": guards, "index": indices, "name": names, "number": numbers, "arithmetic": arithmetic,
    "identity": identities, "type": types, "barrier": barriers, "barrier moved": moved_barriers,
    "omission": omissions, "loop": loops, "shape": shapes, "launch": launches, "call": calls,
    "coordinate": coordinates, "host": host_code,
}


def _as(node: ast.AST, **fields) -> Changes:
    changed = with_fields(node, **fields)
    yield short(ast.fix_missing_locations(copy.deepcopy(changed))), changed
