"""Which answers of a class are alike, once names, order and constants are left out: pairs for a teacher to look at.

As in winnowing (MOSS), an answer is a set of fingerprints, here of its syntax tree and not of its text: its
expressions of LEAST_NODES nodes or more, what each takes from another, and the condition or loop under which it stands.
In such a part variables are numbered, constants are one, operands of + and * are sorted, a > b is b < a, `x += y` is
x + y, and a helper that only returns is put in the place of its call; no part knows in which function or after which
statement it stands. So another order, other names, helper functions and dead code change few of them. Left out are the
parts of what was handed out and, from MAJORITY_OF answers on, what more than half of the class has; a part that many
share counts less. So does a part of the course's own answer, which is what most would write: EXPECTED.

Two answers are a pair if the parts that they share count LEAST or more and are SHARE of the shorter one's; where they
count MUCH, SHARE_OF_MUCH is enough, so that an edit hides no copy. Short answers that share less have one natural form,
in which a copy and a second thought look the same.
"""

from __future__ import annotations

import ast
import copy
import functools
import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

LEAST_NODES = 3
MOST_NODES = 400  # of an expression; and what helpers return is put into no larger one
MOST_DEFINITIONS = 8  # of a variable that are looked at
MOST_TEXT = 128 << 10  # characters of an answer, the cells above included
EXPECTED = 0.25
LEAST, SHARE = 4.0, 0.9
MUCH, SHARE_OF_MUCH = 12.0, 0.8
MAJORITY_OF = 8
BLOCK = 512  # answers that are compared with all others at a time
COMMUTE = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
MIRRORED = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}


# --- Parts ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def parts_of(source: str) -> dict[str, set[int]]:
    """Map each part of the source to its lines; not to be modified. Empty if the source is not valid Python."""
    if len(source) > MOST_TEXT:
        return {}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    parts: dict[str, set[int]] = {}
    try:
        tree = _inlined(tree)
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
            _Scope(scope, functions).read(parts)
    except RecursionError:
        return {}
    return parts


def _inlined(tree: ast.Module) -> ast.Module:
    """The tree with what helpers return in the place of their calls."""
    helpers = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and len(node.body) == 1 and isinstance(node.body[0], ast.Return) and (
                node.body[0].value is not None):
            helpers[node.name] = node
    if not helpers:
        return tree
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call)
              and isinstance(node.func, ast.Name)} & helpers.keys()
    tree.body = [node for node in tree.body if getattr(node, "name", "") not in called]
    return _Inline({name: helpers[name] for name in called}).visit(tree)


class _Inline(ast.NodeTransformer):
    DEPTH = 4  # of helpers that call helpers

    def __init__(self, helpers: dict[str, ast.FunctionDef], arguments: dict | None = None, depth: int = 0):
        self.helpers, self.arguments, self.depth = helpers, arguments or {}, depth

    def visit_Name(self, node):
        return self.arguments.get(node.id, node)

    def visit_Call(self, node):
        self.generic_visit(node)
        helper = self.helpers.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if helper is None or node.keywords or len(node.args) != len(helper.args.args) or self.depth >= self.DEPTH:
            return node
        bindings = {argument.arg: value for argument, value in zip(helper.args.args, node.args, strict=True)}
        if sum(map(_nodes, [node, helper.body[0].value])) > MOST_NODES:
            return node
        value = _Inline(self.helpers, bindings, self.depth + 1).visit(copy.deepcopy(helper.body[0].value))
        return _relocated(value, node)


def _relocated(value, node):
    """The expression as if it stood where `node` does."""
    for each in ast.walk(value):
        if isinstance(each, ast.expr):
            ast.copy_location(each, node)
    return value


class _Scope:
    """The statements of one function, without those of functions in it."""

    def __init__(self, scope, functions: set[str]):
        self.functions = functions
        self.statements = list(_statements(scope.body))
        self.uses: Counter = Counter()  # of each variable, in the expression that is read
        self.variables = {node.id for statement, _ in self.statements for node in ast.walk(statement)
                          if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        if isinstance(scope, ast.FunctionDef):
            self.variables |= {node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg)}

    def read(self, parts: dict[str, set[int]]) -> None:
        defined: dict[str, list[str]] = {}
        uses = []
        headers: dict[int, str] = {}  # of statements that hold others
        for statement, around in self.statements:
            for targets, value in _values(statement):
                if _nodes(value) > MOST_NODES:
                    continue
                text = self.text(value)
                uses.append((value, text))
                headers.setdefault(id(statement), text)
                if _nodes(value) >= LEAST_NODES:
                    parts.setdefault(f"{headers.get(id(around), '')}: {text}", set()).update(_lines(value))
                for name in targets:
                    defined.setdefault(name, []).append(text)
                for node in ast.walk(value):
                    if isinstance(node, ast.expr) and _nodes(node) >= LEAST_NODES:
                        parts.setdefault(self.text(node), set()).update(_lines(node))
        for value, text in uses:
            names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)} & defined.keys()
            for name in names if _nodes(value) >= LEAST_NODES else ():
                for source in defined[name][:MOST_DEFINITIONS]:
                    if source != text and len(source) > 4:
                        parts.setdefault(f"{source} => {text}", set()).update(_lines(value))

    def text(self, node) -> str:
        """The expression, with variables numbered in the order in which they come once operands are sorted."""
        self.uses = Counter(each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        labels: dict[str, str] = {}
        return "".join(labels.setdefault(part, f"v{len(labels)}") if part.startswith("\0") else part
                       for part in self._flat(node))

    def _flat(self, node) -> list[str]:
        """Its text in pieces, a variable's being a null byte and its name."""
        if isinstance(node, ast.Name):
            if node.id in self.variables:
                return [f"\0{node.id}"]
            return ["f" if node.id in self.functions else node.id]
        if isinstance(node, ast.Constant):
            return ["k"]
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            return ["k"]
        if isinstance(node, ast.BinOp):
            sides = [self._flat(node.left), self._flat(node.right)]
            if isinstance(node.op, COMMUTE):
                sides.sort(key=self._shape)
            return ["(", *sides[0], f" {type(node.op).__name__} ", *sides[1], ")"]
        if isinstance(node, ast.BoolOp):
            sides = sorted((self._flat(each) for each in node.values), key=self._shape)
            return ["(", *(piece for side in sides for piece in (*side, f" {type(node.op).__name__} ")), ")"]
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides = [self._flat(node.left), self._flat(node.comparators[0])]
            kind = type(node.ops[0])
            if kind in MIRRORED:
                sides, kind = sides[::-1], MIRRORED[kind]
            elif kind in (ast.Eq, ast.NotEq):
                sides.sort(key=self._shape)
            return ["(", *sides[0], f" {kind.__name__} ", *sides[1], ")"]
        if isinstance(node, ast.Attribute):
            return [*self._flat(node.value), f".{node.attr}"]
        pieces = [type(node).__name__, "("]
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context):
                pieces += [*self._flat(child), ","]
        return [*pieces, ")"]

    def _shape(self, pieces: list[str]) -> str:
        """By which operands are sorted, whatever variables are called."""
        return "".join(f"v{self.uses[piece[1:]]}" if piece.startswith("\0") else piece for piece in pieces)


def _statements(body, around=None):
    """(a statement, the one in which it stands) of a function's, without those of functions in it."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            continue
        yield statement, around
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, ()), statement)


def _values(statement) -> list[tuple[list[str], ast.expr]]:
    """(the names that it is given to, an expression) for what a statement computes, stores or asks."""
    if isinstance(statement, ast.Assign):
        result = []
        for target in statement.targets:
            pairs = [(target, statement.value)]
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple) and len(target.elts) == len(
                    statement.value.elts):
                pairs = list(zip(target.elts, statement.value.elts, strict=True))
            for part, value in pairs:
                names = [node.id for node in ast.walk(part) if isinstance(node, ast.Name)
                         and isinstance(node.ctx, ast.Store)]
                result.append((names, value))
                result += [([], node) for node in ast.walk(part) if isinstance(node, ast.Subscript)]
        return result
    if isinstance(statement, ast.AugAssign):
        value = ast.copy_location(ast.BinOp(statement.target, statement.op, statement.value), statement)
        name = [statement.target.id] if isinstance(statement.target, ast.Name) else []
        return [(name, value)]
    if isinstance(statement, ast.For):
        return [([node.id for node in ast.walk(statement.target) if isinstance(node, ast.Name)], statement.iter)]
    if isinstance(statement, ast.If | ast.While):
        return [([], statement.test)]
    if isinstance(statement, ast.Expr | ast.Return | ast.AnnAssign) and statement.value is not None:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return []  # a docstring
        target = getattr(statement, "target", None)
        return [([target.id] if isinstance(target, ast.Name) else [], statement.value)]
    return []


def _nodes(node) -> int:
    return sum(not isinstance(each, ast.expr_context | ast.operator | ast.cmpop | ast.boolop | ast.unaryop)
               for each in ast.walk(node))


def _lines(node) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


# --- Pairs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answered:
    """An answer to be compared. source: what the student wrote, the cells above included."""

    student: str
    source: str


@dataclass(frozen=True)
class Pair:
    """Two answers that are alike. share: of the shorter one's parts. same: line of one -> lines of the other that hold
    the same parts."""

    exercise: str
    one: Answered
    other: Answered
    share: float
    parts: int
    same: dict[int, set[int]] = field(hash=False)


def pairs_among(exercise: str, answers: list[Answered], given: Sequence[str] = (), expected: str = "") -> list[Pair]:
    """The pairs of one exercise, most alike first. given: what was handed out, whose parts do not count. expected: the
    course's own answer."""
    left_out = {part for source in (*given, "\n".join(given)) for part in parts_of(source)}
    parts_of_each = [{part: lines for part, lines in parts_of(one.source).items() if part not in left_out}
                     for one in answers]
    counts = Counter(part for parts in parts_of_each for part in parts)
    answer_count = len(answers)
    if answer_count >= MAJORITY_OF:
        weights = {part: min(1.0, np.log(answer_count / count) / np.log(answer_count / 2))
                   for part, count in counts.items() if count <= answer_count / 2}
    else:
        weights = dict.fromkeys(counts, 1.0)
    shared = {part: k for k, part in enumerate(part for part in weights if counts[part] > 1)}
    total_weight = np.array([sum(weights.get(part, 0.0) for part in parts) for parts in parts_of_each])
    presence = np.zeros((answer_count, len(shared)), np.float32)
    for row, parts in zip(presence, parts_of_each, strict=True):
        row[[shared[part] for part in parts if part in shared]] = 1
    weight = np.array([weights[part] for part in shared], np.float32)
    expected_parts = parts_of(expected)
    value_weights = weight * np.array([EXPECTED if part in expected_parts else 1.0 for part in shared], np.float32)
    pairs = []
    for begin in range(0, answer_count, BLOCK):
        block = presence[begin : begin + BLOCK]
        shared_weight = (block * weight) @ presence.T
        shorter_weight = np.minimum(total_weight[begin : begin + BLOCK, None], total_weight[None, :])
        shared_value = (block * value_weights) @ presence.T
        alike = (shared_value >= LEAST) & (
            shared_weight >= np.where(shared_value >= MUCH, SHARE_OF_MUCH, SHARE) * shorter_weight)
        for a, b in np.argwhere(alike):
            one, other = int(a) + begin, int(b)
            if one < other and answers[one].student != answers[other].student:
                common_parts = [part for part in parts_of_each[one] if part in parts_of_each[other] and part in weights]
                same: dict[int, set[int]] = {}
                for part in common_parts:
                    for line in parts_of_each[one][part]:
                        same.setdefault(line, set()).update(parts_of_each[other][part])
                pairs.append(Pair(exercise, answers[one], answers[other],
                                  float(shared_weight[a, b] / shorter_weight[a, b]), len(common_parts), same))
    return sorted(pairs, key=lambda pair: (-pair.share * pair.parts, pair.one.student, pair.other.student))


def pairs_of_class(course, collected, plan) -> list[Pair]:
    """The pairs of every exercise that was set but predictions, which are numbers."""
    from labkit.course import exercise_files, exercises, workbooks
    from labkit.course.grade.answers import Refused, program_of

    pairs, handed_out = [], {}
    for entry in plan.entries:
        if exercises.find(entry.name).kind == "predict":
            continue
        if entry.chapter.name not in handed_out:
            handed_out[entry.chapter.name] = [cell.source for cell in workbooks.to_notebook(course, entry.chapter).cells
                                              if cell.cell_type == "code"]
        solution = exercise_files.solution(entry.name)
        answers = []
        for task in plan.tasks:
            if task.exercise == entry.name:
                try:
                    program = program_of(task.answer)
                except Refused:
                    continue
                if program is not None:
                    source = f"{program.above}\n{program.answer}" if program.above else program.answer
                    answers.append(Answered(collected.students[task.student].shown, source))
        pairs += pairs_among(entry.name, answers, handed_out[entry.chapter.name], solution.answer if solution else "")
    return pairs


# --- What a teacher reads ------------------------------------------------------------------------------------------

INTRODUCTION = (
    "Answers of different students that are alike once names, order and constants are left out. This changes no "
    "score, and proves nothing: two people may have worked together as they were allowed to, or used the same source. "
    "Read the passages. Not counted is what was handed out and what more than half of the class has; what the course's "
    "own answer has counts a quarter. Short answers are pairs only if what they share is unusual, for they have one "
    "natural form.")


def as_text(pairs: list[Pair]) -> str:
    """The pairs, with both answers side by side, as plain text."""
    lines = [INTRODUCTION, "", f"{len(pairs)} pairs." if len(pairs) != 1 else "1 pair."]
    for pair in pairs:
        lines += ["", _title(pair), ""]
        left, right = (answer.source.split("\n") for answer in (pair.one, pair.other))
        width = min(max(map(len, left), default=0), 90)
        marked = {line for lines_there in pair.same.values() for line in lines_there}
        for k in range(max(len(left), len(right))):
            one, other = (side[k] if k < len(side) else "" for side in (left, right))
            mates = ",".join(map(str, sorted(pair.same.get(k + 1, ()))[:3]))
            lines.append(f"{k + 1:4} {'=' + mates if mates else '':8} {one[:width]:{width}} | {k + 1:4} "
                         f"{'=' if k + 1 in marked else ' '} {other}".rstrip())
    return "\n".join(lines) + "\n"


def as_html(pairs: list[Pair]) -> str:
    """The same as the body of a page. A line that is marked names its mates in the other answer."""
    parts = ["<style>.sides{display:grid;grid-template-columns:1fr 1fr;gap:1em}pre{overflow-x:auto;margin:0}"
             "mark{background:#f5d90a66;color:inherit}body{max-width:110em!important}</style>",
             f"<p>{html.escape(INTRODUCTION)}</p>", f"<p>{len(pairs)} pair{'' if len(pairs) == 1 else 's'}.</p>"]
    for pair in pairs:
        back: dict[int, set[int]] = {}
        for line, mates in pair.same.items():
            for mate in mates:
                back.setdefault(mate, set()).add(line)
        parts.append(f"<h2>{html.escape(_title(pair))}</h2><div class=sides>")
        for answer, same in ((pair.one, pair.same), (pair.other, back)):
            rows = []
            for line_number, line in enumerate(answer.source.split("\n"), 1):
                text = f"{line_number:4}  {html.escape(line)}"
                mates = ", ".join(map(str, sorted(same.get(line_number, ()))[:4]))
                rows.append(f'<mark title="the same parts: line {mates} of the other">{text}</mark>' if mates else text)
            parts.append(f"<div><h3>{html.escape(answer.student)}</h3><pre>{chr(10).join(rows)}</pre></div>")
        parts.append("</div>")
    return "\n".join(parts)


def _title(pair: Pair) -> str:
    return (f"{pair.exercise}: {pair.one.student} and {pair.other.student} share {pair.parts} parts, "
            f"{pair.share:.0%} of the shorter answer")
