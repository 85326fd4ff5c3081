"""Changes of names, indices, numbers and expressions; see changes.py."""

from __future__ import annotations

import ast
import itertools
import math

from labkit.course.check.vocabulary import Vocabulary
from labkit.course.syntax import Place, RankedChanges, is_launch, is_shape, plus, quoted, short, with_fields
from labkit.simt.ir import copied

SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)


def other_names(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """A name of the same kind."""
    node = place.node
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and place.path[-1][0] != "func":
        for other in vocabulary.like(node.id):
            yield 1.5, f"`{node.id}` is the wrong variable", ast.Name(other, ast.Load())
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and isinstance(place.parent, ast.Assign):
        for other in vocabulary.like(node.id):
            yield 3.5, f"the value is assigned to the wrong variable, `{node.id}`", ast.Name(other, ast.Store())
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store) and len(node.elts) > 1:
        for other in itertools.permutations(node.elts):
            if other != tuple(node.elts):
                yield 0.5, f"the names {quoted(node)} are in the wrong order", ast.Tuple(list(other), ast.Store())


def index_orders(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Indices in another order."""
    node = place.node
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and not is_launch(place):
        for other in itertools.permutations(node.slice.elts):
            if other != tuple(node.slice.elts):
                changed = with_fields(node, slice=ast.Tuple(list(other), ast.Load()))
                yield 0.5, f"the indices of {quoted(node.value)} are in the wrong order", changed


def index_orders_throughout(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Swap the two indices of an array wherever it is read."""
    node = place.node
    if not isinstance(node, (ast.FunctionDef, *SIMPLE)):
        return
    read = [n for n in ast.walk(node) if _is_pair(n)]
    for name in dict.fromkeys(n.value.id for n in read):
        first, *more = [n for n in read if n.value.id == name]
        if more:
            changed = _Transposed(name).visit(copied(node))
            changed.moved = first
            yield 0.9, f"the indices of `{name}` are in the wrong order, here and where it is read again", changed


def _is_pair(node) -> bool:
    return (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load)
            and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2)


class _Transposed(ast.NodeTransformer):
    def __init__(self, name: str):
        self.name = name

    def visit_Subscript(self, node):
        self.generic_visit(node)
        if _is_pair(node) and node.value.id == self.name:
            node.slice.elts = node.slice.elts[::-1]
        return node


def renamed_throughout(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Replace a name throughout a statement, or swap two names in it."""
    node = place.node
    if not isinstance(node, SIMPLE):
        return
    used = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    for name in dict.fromkeys(used):
        for other in vocabulary.like(name):
            if used.count(name) > 1:
                yield 2.0, f"`{name}` is the wrong variable in this statement", _Renamed({name: other}).on(node)
            if other in used and name < other:
                exchange = _Renamed({name: other, other: name})
                yield 1.5, f"`{name}` and `{other}` are swapped", exchange.on(node)
                if isinstance(node, (ast.Assign, ast.AugAssign)):
                    yield 1.5, f"`{name}` and `{other}` are swapped", with_fields(node, value=exchange.on(node.value))


def expressions_throughout(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Replace an integer expression that occurs several times, in a statement or in the function, by another."""
    node = place.node
    if not isinstance(node, (ast.FunctionDef, *SIMPLE)):
        return
    scope_text = "here and where it occurs again" if isinstance(node, ast.FunctionDef) else "in this statement"
    used: dict[str, list] = {}
    for each in ast.walk(node):
        if isinstance(each, (ast.Attribute, ast.BinOp, ast.Subscript)) and vocabulary.kind(each) == "int":
            used.setdefault(ast.dump(each), []).append(each)
    for original, occurrences in used.items():
        for other in vocabulary.pool("int") if len(occurrences) > 1 else ():
            if ast.dump(other) != original:
                changed = _Replaced(original, other).visit(copied(node))
                changed.moved = next((each for each in occurrences if not _sets(node, each, other)), occurrences[0])
                rank = 1.8 if isinstance(other, ast.Name) else 2.4
                yield rank, f"{quoted(occurrences[0])} is wrong, {scope_text}", changed
                if isinstance(other, ast.Name):  # where it stands alone: as an index, or compared
                    alone = _Replaced(original, other, alone=True).visit(copied(node))
                    alone.moved = changed.moved
                    yield rank, f"{quoted(occurrences[0])} is wrong, {scope_text}", alone


def _sets(node: ast.AST, each: ast.AST, other: ast.expr) -> bool:
    """Return whether `each` is part of an assignment to the variable `other`."""
    return any(isinstance(one, ast.Assign) and ast.dump(other) == ast.dump(_loaded(one.targets[0]))
               and each in ast.walk(one) for one in ast.walk(node))


def _loaded(target: ast.expr) -> ast.expr:
    return ast.Name(target.id, ast.Load()) if isinstance(target, ast.Name) else target


class _Replaced(ast.NodeTransformer):
    def __init__(self, same: str, other: ast.expr, alone: bool = False):
        self.same, self.other, self.alone = same, other, alone

    def visit(self, node):
        if self.alone and isinstance(node, ast.BinOp):
            return node
        if isinstance(node, ast.Assign) and ast.dump(_loaded(node.targets[0])) == ast.dump(self.other):
            return node  # the variable's own value
        return self.other if isinstance(node, ast.expr) and ast.dump(node) == self.same else super().generic_visit(node)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]):
        self.names = names

    def on(self, node: ast.AST) -> ast.AST:
        return self.visit(copied(node))

    def visit_Name(self, node):
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)


def constants_throughout(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Replace a number, also everywhere that it occurs."""
    node = place.node
    is_shape_index = isinstance(place.parent, ast.Subscript) and is_shape(place.parent)
    is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    if is_number and not is_shape_index and not place.call.endswith(".array"):
        if node.value == 0 and vocabulary.in_kernel:
            for other in (ast.UnaryOp(ast.USub(), ast.Constant(math.inf)), ast.Constant(math.inf)):
                yield 1.2, f"the number `{node.value}` is wrong", other
        for other in vocabulary.numbers:
            if other != node.value:
                rank = 1.5 if node.value in (0, 1) and other in (0, 1) else 2.5
                yield rank, f"the number `{node.value}` is wrong", ast.Constant(other)
        if type(node.value) is int:
            for name in vocabulary.of_kind("int"):
                words = f"`{node.value}` is the same for every thread: a variable belongs there"
                yield 2.5, words, ast.Name(name, ast.Load())
    if isinstance(node, ast.FunctionDef):
        values = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is int]
        for value in dict.fromkeys(n for n in values if values.count(n) > 1 and n > 1):
            for other in (value // 2, value * 2, value + 1, value - 1):
                changed = _Renumbered(value, other).visit(copied(node))
                changed.moved = next(n for n in ast.walk(node) if isinstance(n, ast.Constant) and n.value == value)
                yield 2.5, f"the number `{value}` is wrong, here and where it occurs again", changed


class _Renumbered(ast.NodeTransformer):
    def __init__(self, value: int, other: int):
        self.value, self.other = value, other

    def visit_Constant(self, node):
        same = type(node.value) is int and node.value == self.value
        return ast.copy_location(ast.Constant(self.other), node) if same else node


def expressions(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Replace an expression by another one of the answer."""
    node = place.node
    if not _is_value(place) or isinstance(node, (ast.Name, ast.Slice)):
        return
    kind = vocabulary.kind(node)
    for other in vocabulary.pool(kind):
        if ast.dump(other) != ast.dump(node):
            rank = 2.5 if isinstance(node, (ast.Attribute, ast.Subscript, ast.Constant)) else 3.0
            yield rank, f"{quoted(node)} is not what is needed there", other


def names_become_expressions(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    node = place.node
    if isinstance(node, ast.Name) and _is_value(place):
        for other in vocabulary.pool(vocabulary.kind(node)):
            if not isinstance(other, ast.Name):
                yield 3.0, f"`{node.id}` is not what is needed there", other


def elements(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Replace an index by the element at that index."""
    node = place.node
    if _is_value(place) and vocabulary.kind(node) == "int" and not _is_index(place) and not _in_index(place):
        for name, (kind, axes) in vocabulary.kinds.items():
            if kind == "array" and axes == 1:
                element = ast.Subscript(ast.Name(name, ast.Load()), node, ast.Load())
                yield 2.0, f"{quoted(node)} is an index, not the element at that index", element


def _in_index(place: Place) -> bool:
    return any(field == "slice" for field, _ in place.path)


def missing_parts(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """A factor or a term that is missing: one that the answer has elsewhere, or 1, 2 or a half."""
    node = place.node
    if not _is_value(place) or isinstance(node, ast.Constant) or _is_index_tuple(node):
        return
    kind = vocabulary.kind(node)
    is_outermost = not isinstance(place.parent, ast.BinOp)
    words = f"a factor or a term is missing at {quoted(node)}"
    if kind == "int":
        for op, operand in ((ast.Add, 1), (ast.Sub, 1)):
            rank = 1.4 if _is_index(place) else 2.2 if is_outermost else 2.8
            yield rank, f"{quoted(node)} is off by one", ast.BinOp(node, op(), ast.Constant(operand))
    elif is_outermost and kind == "float":
        for op, operand in ((ast.Mult, 0.5), (ast.Mult, 2), (ast.Add, 1), (ast.Sub, 1)):
            yield 2.4, words, ast.BinOp(node, op(), ast.Constant(operand))
    signs = (ast.Mult, ast.Add, ast.Sub) if kind == "int" else (ast.Mult, ast.Add, ast.Sub, ast.Div)
    for other in vocabulary.pool(kind, short_ones=True):
        for op_type in signs:
            likely = isinstance(other, (ast.Name, ast.Subscript)) and op_type in (ast.Mult, ast.Add)
            yield (2.4 if likely else 3.5) + (0 if is_outermost else 0.3), words, ast.BinOp(node, op_type(), other)
        if kind != "int":
            yield 4.0, words, ast.BinOp(other, ast.Sub(), node)
    if is_outermost:
        yield 2.5, f"{quoted(node)} is not what is needed there", ast.UnaryOp(ast.USub(), node)


def _is_index(place: Place) -> bool:
    """An index of an array, whole."""
    return place.path[-1][0] == "slice" or (place.path[-1][0] == "elts" and place.path[-2][0] == "slice")


def _is_index_tuple(node) -> bool:
    return isinstance(node, (ast.Tuple, ast.Slice, ast.List, ast.Dict))


def _is_value(place: Place) -> bool:
    """An expression that is read, and no function, type, launch configuration or shape."""
    node = place.node
    if not isinstance(node, ast.expr) or isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
        return False
    field = place.path[-1][0]
    if field in ("func", "keywords") or place.call.endswith((".array", "range")) and field == "func":
        return False
    parent = place.parent
    if isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Subscript) and field == "value"):
        return False
    return not isinstance(node, (ast.Compare, ast.BoolOp, ast.Tuple, ast.Lambda)) and not place.call.endswith(".array")


def brackets(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """(a / b) * c and a / (b * c); a * (b - c) and a * b - c; a - (b - c) and a - b - c; (a + b) * c and a * c + b."""
    node = place.node
    if not isinstance(node, ast.BinOp):
        return
    words = f"brackets are missing or misplaced in {quoted(node)}"
    if isinstance(node.left, ast.BinOp):
        yield 0.8, words, ast.BinOp(node.left.left, node.left.op, ast.BinOp(node.left.right, node.op, node.right))
    if isinstance(node.right, ast.BinOp):
        yield 0.8, words, ast.BinOp(ast.BinOp(node.left, node.op, node.right.left), node.right.op, node.right.right)
    sums, products = (ast.Add, ast.Sub), (ast.Mult, ast.Div)
    if isinstance(node.left, ast.BinOp):
        (a, inner, b), outer, c = (node.left.left, node.left.op, node.left.right), node.op, node.right
        if isinstance(inner, sums) and isinstance(outer, products):  # (a + b) * c
            yield 0.9, words, ast.BinOp(ast.BinOp(a, outer, c), inner, b)  # a * c + b
        if isinstance(inner, products) and isinstance(outer, sums):  # a * b + c
            yield 0.9, words, ast.BinOp(ast.BinOp(a, outer, c), inner, b)  # (a + c) * b
    for side, other in (("left", node.right), ("right", node.left)):
        call = getattr(node, side)
        if isinstance(call, ast.Call) and len(call.args) == 1:  # f(a) * b and f(a * b)
            inner = ast.BinOp(call.args[0], node.op, other) if side == "left" else ast.BinOp(other, node.op,
                                                                                             call.args[0])
            yield 1.5, f"{quoted(other)} is on the wrong side of the brackets of {quoted(call.func)}", with_fields(
                call, args=[inner])


def brackets_of_calls(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    node = place.node
    if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.BinOp):
        inner = node.args[0]
        for side, other in (("left", "right"), ("right", "left")):
            call = with_fields(node, args=[getattr(inner, side)])
            yield 1.8, f"something is on the wrong side of the brackets of {quoted(node.func)}", with_fields(
                inner, **{side: call, other: getattr(inner, other)})


def rounding(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """// that should round up, and / in the place of //."""
    node = place.node
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Div)):
        words = f"{quoted(node)} is rounded the wrong way, or not at all"
        up = ast.BinOp(ast.BinOp(node.left, ast.Add(), ast.BinOp(node.right, ast.Sub(), ast.Constant(1))),
                       ast.FloorDiv(), node.right)
        yield 0.8, words, up
        yield 1.5, words, with_fields(node, op=ast.Div() if isinstance(node.op, ast.FloorDiv) else ast.FloorDiv())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        yield 2.2, f"in {quoted(node)} the operator is wrong", with_fields(node, op=ast.Mult())


def operators_of_any_kind(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Every other operator of + - * /, also in an addition to a variable."""
    node = place.node
    signs = (ast.Add, ast.Sub, ast.Mult, ast.Div)
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, signs):
        words = f"the operator of {quoted(node)} is wrong"
        for sign in signs:
            if not isinstance(node.op, sign):
                flipped = isinstance(node, ast.AugAssign) and isinstance(node.op, signs[:2]) and sign in signs[:2]
                yield 0.9 if flipped else 2.0, words, with_fields(node, op=sign())
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        for name in ("max", "min"):
            call = ast.Call(ast.Name(name, ast.Load()), [ast.Name(node.target.id, ast.Load()), node.value], [])
            yield 3.0, f"the operator of {quoted(node)} is wrong", ast.Assign([node.target], call)
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        target = node.targets[0]
        if vocabulary.kind(target) not in ("int", "array") or vocabulary.is_set_again(target.id):
            yield 1.2, f"`{target.id}` is overwritten where it should be added to", ast.AugAssign(target, ast.Add(),
                                                                                           node.value)
        if isinstance(node.value, ast.Call) and short(node.value.func) in ("max", "min") and len(node.value.args) == 2:
            for argument in node.value.args:
                if ast.dump(argument) != ast.dump(ast.Name(target.id, ast.Load())):
                    yield 3.0, f"{quoted(node.value.func)} is not what `{target.id}` should be updated with", (
                        ast.AugAssign(target, ast.Add(), argument))


FUNCTIONS = ("exp", "log", "sqrt", "tanh", "erf", "fabs")
SHUFFLES = ("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync")
ATOMICS = ("add", "max", "min", "sub", "exch")
WHOLE = ("sum", "max", "min", "mean", "prod", "argmax", "argmin", "cumsum", "maximum", "minimum", "floor", "ceil",
         "argsort", "sort", "zeros", "ones", "empty")


def functions(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Another function of the same family; a call of one that is missing."""
    node = place.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        for family in (FUNCTIONS, SHUFFLES, ATOMICS, WHOLE):
            if node.func.attr in family:
                for other in family:
                    if other != node.func.attr:
                        yield 2.0, f"{quoted(node.func)} is the wrong function here", with_fields(
                            node, func=with_fields(node.func, attr=other))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
        for argument in node.args:
            yield 2.0, f"{quoted(node.func)} is not needed here", argument
    if _is_value(place) and vocabulary.uses_math and vocabulary.kind(node) == "float" and not isinstance(
            node, ast.Constant):
        for name in FUNCTIONS[:3]:
            call = ast.Call(ast.Attribute(ast.Name("math", ast.Load()), name, ast.Load()), [node], [])
            yield 3.8, f"{quoted(node)} needs a function applied to it", call


def coordinates(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Replace a thread's index in its block by its index in the grid."""
    node = place.node
    if not isinstance(node, ast.Attribute) or node.attr not in "xyz" or not isinstance(node.value, ast.Attribute):
        return
    if node.value.attr == "threadIdx":
        names = {word: ast.Attribute(ast.Attribute(ast.Name("cuda", ast.Load()), word, ast.Load()), node.attr,
                                     ast.Load()) for word in ("blockIdx", "blockDim")}
        global_index = ast.BinOp(ast.BinOp(names["blockIdx"], ast.Mult(), names["blockDim"]), ast.Add(), node)
        yield 0.8, f"{quoted(node)} counts within the block only", global_index


def coordinates_throughout(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """x for y in a whole statement."""
    node = place.node
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
        used = [n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr in ("x", "y", "z")]
        for axis in dict.fromkeys(used):
            for other in "xyz":
                if other != axis and used.count(axis) > 1:
                    yield 2.0, f"`.{axis}` is the wrong axis in this statement", _Axis(axis, other).visit(copied(node))


class _Axis(ast.NodeTransformer):
    def __init__(self, axis: str, other: str):
        self.axis, self.other = axis, other

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if node.attr == self.axis and short(node).startswith("cuda."):
            return ast.copy_location(ast.Attribute(node.value, self.other, node.ctx), node)
        return node


def host_functions(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """What goes wrong in functions of the host: a launch without ( ), an axis, a slice, a transposed matrix."""
    node = place.node
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Name, ast.Attribute, ast.Subscript)):
        yield 0.1, "a function is named but never called: ( ) is missing", ast.Expr(ast.Call(node.value, [], []))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        for argument in node.value.args:
            if isinstance(argument, ast.Name) and vocabulary.set_often.get(argument.id):
                yield 1.0, f"the result of {quoted(node.value)} is not kept", ast.Assign(
                    [ast.Name(argument.id, ast.Store())], node.value)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and not is_shape(node):
        lower, upper = node.slice.lower, node.slice.upper
        words = f"the slice {quoted(node)} begins or ends in the wrong place"
        for bounds in ((upper, lower), (None, upper), (lower, None)):
            yield 1.5, words, with_fields(node, slice=ast.Slice(*bounds, node.slice.step))
        for k, bound in enumerate((lower, upper)):
            if bound is not None:
                for other in (plus(bound, 1), plus(bound, -1), ast.UnaryOp(ast.USub(), bound)):
                    bounds = [lower, upper]
                    bounds[k] = other
                    yield 1.5, words, with_fields(node, slice=ast.Slice(*bounds, node.slice.step))
    if isinstance(node, ast.keyword) and node.arg == "axis":
        for axis in (0, 1, -1, None):
            yield 1.2, "`axis` is wrong", ast.keyword("axis", ast.Constant(axis))
    if (isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant)
            and type(node.value.value) in (int, float)):
        for value in (0, 1, 0.0, 1.0):
            yield 2.0, f"`{node.arg}` is wrong", ast.keyword(node.arg, ast.Constant(value))
    if isinstance(node, ast.Call) and node.keywords:
        for k, keyword in enumerate(node.keywords):
            yield 2.5, f"`{keyword.arg}` is wrong here", with_fields(
                node, keywords=node.keywords[:k] + node.keywords[k + 1 :])
    if (isinstance(node, ast.Name) and _is_value(place) and vocabulary.kind(node) == "array"
            and not vocabulary.in_kernel):
        yield 2.5, f"`{node.id}` is used without being transposed", ast.Attribute(node, "T", ast.Load())


OPERATORS = (other_names, index_orders, index_orders_throughout, renamed_throughout, expressions_throughout,
             constants_throughout, expressions, names_become_expressions, elements, missing_parts, brackets,
             brackets_of_calls, rounding, operators_of_any_kind, functions, coordinates, coordinates_throughout,
             host_functions)
