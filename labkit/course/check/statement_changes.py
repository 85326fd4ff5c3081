"""Changes of statements: where they stand, under what condition, how often; see changes.py."""

from __future__ import annotations

import ast
import itertools

from labkit.course.check.vocabulary import Vocabulary
from labkit.course.syntax import Place, RankedChanges, quoted, short, with_fields

BLOCKS = ("body", "orelse")
BARRIER = "cuda.syncthreads"


def moved_statements(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Yield moves: a statement out of a loop or an `if` to before or after it, or into one; two neighbours
    swapped; an assignment a few statements later or earlier."""
    for field in BLOCKS:
        block = getattr(place.node, field, None)
        if not isinstance(block, list):
            continue
        for k, statement in enumerate(block):
            for rank, words, changed, moved in _moves(block, k, statement):
                new = with_fields(place.node, **{field: changed})
                new.moved = moved
                yield rank, words, new


def _moves(block: list, k: int, statement: ast.stmt):
    if isinstance(statement, (ast.For, ast.While, ast.If)):
        block_text = f"the {'if' if isinstance(statement, ast.If) else 'loop'} of line {statement.lineno}"
        inner = statement.body
        if len(inner) > 1:
            last, first = inner[-1], inner[0]
            yield 0.6, f"this statement belongs after {block_text}, not inside it", [
                *block[:k], with_fields(statement, body=inner[:-1]), last, *block[k + 1 :]], last
            yield 0.9, f"this statement belongs before {block_text}, not inside it", [
                *block[:k], first, with_fields(statement, body=inner[1:]), *block[k + 1 :]], first
        if isinstance(inner[-1], ast.Return) and len(inner) == 1:
            yield 0.9, f"this statement belongs after {block_text}, not inside it", [
                *block[:k], inner[0], *block[k + 1 :]], inner[0]
        if k + 1 < len(block):
            following = block[k + 1]
            yield 1.2, f"this statement belongs inside {block_text}", [
                *block[:k], with_fields(statement, body=[*inner, following]), *block[k + 2 :]], following
        if k > 0 and not isinstance(block[k - 1], (ast.For, ast.While)):
            preceding = block[k - 1]
            yield 1.2, f"this statement belongs inside {block_text}", [
                *block[: k - 1], with_fields(statement, body=[preceding, *inner]), *block[k + 1 :]], preceding
            for index in range(k - 1):  # set-up further above that belongs in each iteration
                if isinstance(statement, (ast.For, ast.While)) and isinstance(block[index], (ast.Assign, ast.For)):
                    yield 1.8, f"this statement belongs inside {block_text}", [
                        *block[:index], *block[index + 1 : k], with_fields(statement, body=[block[index], *inner]),
                        *block[k + 1 :]], block[index]
    if k + 1 < len(block):
        exchanged = [*block[:k], block[k + 1], statement, *block[k + 2 :]]
        barrier = next((one for one in (statement, block[k + 1]) if BARRIER in short(one)), None)
        if barrier is not None:
            yield 1.0, "the barrier is in the wrong place", exchanged, barrier
        else:
            yield 1.4, "this statement and the next are in the wrong order", exchanged, statement
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        for target in range(k + 2, min(k + 5, len(block))):
            yield 1.6, "this statement comes too early", [
                *block[:k], *block[k + 1 : target + 1], statement, *block[target + 1 :]], statement
        for target in range(max(k - 4, 0), k - 1):
            yield 1.6, "this statement comes too late", [
                *block[:target], statement, *block[target:k], *block[k + 1 :]], statement


def other_loops(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """The range of another loop."""
    if isinstance(place.node, ast.For):
        turns = place.node.iter
        if isinstance(turns, ast.Call) and len(turns.args) == 2:
            begins = with_fields(turns, args=[ast.Constant(0), turns.args[1]])
            yield 1.1, "this loop starts at the wrong value", with_fields(place.node, iter=begins)
        for other in vocabulary.ranges:
            if ast.dump(other) != ast.dump(place.node.iter):
                yield 1.1, "this loop runs over the wrong range", with_fields(place.node, iter=other)


def missing_steps(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """for offset in (8, 4, 2, 1): a step that is missing before the first or behind the last."""
    node = place.node
    if isinstance(node, ast.For) and isinstance(node.iter, (ast.Tuple, ast.List)) and node.iter.elts:
        steps = [getattr(each, "value", None) for each in node.iter.elts]
        if all(type(step) is int for step in steps):
            for extended in ([2 * steps[0], *steps], [steps[0] // 2, *steps], [*steps, 2 * steps[-1]],
                             [*steps, steps[-1] // 2]):
                other = ast.Tuple([ast.Constant(step) for step in extended], ast.Load())
                yield 1.1, "this loop lacks a step", with_fields(node, iter=other)


def parameters(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """Two parameters exchanged."""
    node = place.node
    if isinstance(node, ast.FunctionDef):
        arguments = node.args.args
        for i, j in itertools.combinations(range(len(arguments)), 2):
            other = list(arguments)
            other[i], other[j] = other[j], other[i]
            words = f"the parameters `{arguments[i].arg}` and `{arguments[j].arg}` are in the wrong order"
            yield 2.2, words, with_fields(node, args=with_fields(node.args, args=other))


def conditions(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """A statement that some threads or steps must not take part in; a condition that says too little or too much."""
    node = place.node
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.For, ast.While)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            return
        if BARRIER in ast.unparse(node):
            return
        for condition in vocabulary.conditions:
            yield 2.6, "this must not always be done: a condition is missing", ast.If(condition, [node], [])
    if isinstance(node, (ast.If, ast.While)):
        for condition in vocabulary.more_conditions:
            both = ast.BoolOp(ast.And(), [node.test, condition])
            yield 2.6, f"the condition {quoted(node.test)} is incomplete", with_fields(node, test=both)
    if isinstance(node, ast.If) and not node.orelse:
        yield 2.6, "this condition is not needed", node.body


def barriers(place: Place, vocabulary: Vocabulary) -> RankedChanges:
    """A barrier that is missing, where all threads of a block come by."""
    if not vocabulary.shares or any(place.node is block for block in vocabulary.divergent):
        return
    for field in BLOCKS:
        block = getattr(place.node, field, None)
        if not isinstance(block, list) or not block:
            continue
        for k in range(len(block) + 1):
            neighbours = block[max(0, k - 1) : k + 1]
            if any(isinstance(one, ast.Expr) and "sync" in ast.unparse(one) for one in neighbours):
                continue
            barrier = ast.parse(f"{BARRIER}()").body[0]
            new = with_fields(place.node, **{field: [*block[:k], barrier, *block[k:]]})
            new.moved = block[k - 1] if k else block[0]
            rank = 0.7 if isinstance(place.node, (ast.For, ast.While)) else 0.9
            yield rank, f"a barrier is missing {'after' if k else 'before'} this line", new


OPERATORS = (moved_statements, other_loops, missing_steps, parameters, conditions, barriers)
