"""Follows undefined values through tests: what an `if` chooses by one is undefined, and what it does by one is wrong.

A shuffle gives an undefined value for a lane that its mask leaves out. Right kernels compute with such values in lanes
whose result is never used; that goes on here until one reaches memory, or decides whether something is stored. Numbers
carry their mark through operators (typed_numbers.py). A kernel with shuffles is lowered for `observe` so that
comparisons propagate the mark, and tests pass it to what they choose.
"""

import ast
import operator

from labkit.simt.interpreted_source import ToPython
from labkit.simt.ir import AtomicCall, DeviceCall, IntrinsicCall, load, store
from labkit.simt.typed_numbers import defined, is_undefined, undefined_of
from labkit.simt.typed_tree import Convert

_CALLS = (AtomicCall, DeviceCall, IntrinsicCall)


class ToTracked(ToPython):
    """The tree -> Python, with tests that say what depends on them."""

    def visit_Compare(self, node):
        name = type(node.ops[0]).__name__
        if name in ("Is", "IsNot"):
            return super().visit_Compare(node)
        self.generic_visit(node)
        if len(node.ops) > 1 or name not in _COMPARISONS:
            return node
        return _call(f"_{name}", node.left, node.comparators[0])

    def visit_BoolOp(self, node):
        is_free = not any(isinstance(n, (ast.Subscript, ast.Call, *_CALLS)) for v in node.values[1:]
                          for n in ast.walk(v))  # fmt: skip
        self.generic_visit(node)
        return _call(f"_{type(node.op).__name__}", *node.values) if is_free else _call("_defined", node)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Not):
            return _call("_Not", self.visit(node.operand))
        return super().visit_UnaryOp(node)

    def visit_IfExp(self, node):
        test, value = self._saved_test(self.visit(node.test))
        return _call("_chosen", test, ast.IfExp(self._branch(value), self.visit(node.body), self.visit(node.orelse)))

    def visit_If(self, node):
        if not all(map(_only_assigns, [*node.body, *node.orelse])):
            return super().visit_If(node)
        stores = (n for s in (*node.body, *node.orelse) for n in ast.walk(s))
        names = sorted({n.id for n in stores if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)})
        test, value = self._saved_test(self.visit(node.test))
        chooses = ast.If(self._branch(test), self.block(node.body) or [ast.Pass()], self.block(node.orelse))
        unset = ast.ExceptHandler(ast.Name("UnboundLocalError", ast.Load()), None, [ast.Pass()])
        marks = [ast.Try([ast.Assign([store(n)], _call("_chosen", value, load(n)))], [unset], [], []) for n in names]
        return [chooses, ast.If(_call("_is_undefined", value), marks, [])] if marks else chooses

    def _test(self, node):
        return self._branch(_call("_decide", self.visit(node)))

    def _saved_test(self, test):
        """(an expression that evaluates a test and saves its value, a load of that value)."""
        self.tests = getattr(self, "tests", 0) + 1
        return ast.NamedExpr(store(f"_test{self.tests}"), test), load(f"_test{self.tests}")


def _call(name, *arguments):
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _only_assigns(s):
    """True for a statement that changes nothing but variables."""
    if isinstance(s, ast.If):
        return all(map(_only_assigns, [*s.body, *s.orelse]))
    targets = s.targets if isinstance(s, ast.Assign) else [s.target] if isinstance(s, ast.AugAssign) else []
    is_assignment = bool(targets) and not any(isinstance(n, ast.Subscript) for t in targets for n in ast.walk(t))
    return (is_assignment or isinstance(s, (ast.Pass, Convert))) and not any(isinstance(n, _CALLS) for n in ast.walk(s))


# ---------------------------------------------------------------- what the lowered kernel calls


def _chosen(test, value):
    return undefined_of(value) if is_undefined(test) else value


def _compare(function):
    def compare(a, b):
        result = function(a, b)
        return undefined_of(result) if is_undefined(a) or is_undefined(b) else result

    return compare


def _decided_by(ends):
    """Return `and`, which ends at a false value, or `or`: undefined unless a defined value decides."""

    def decide(*values):
        known = [value for value in values if not is_undefined(value)]
        result = next((value for value in known if bool(value) is ends), values[-1])
        undefined = len(known) < len(values) and not any(bool(value) is ends for value in known)
        return undefined_of(bool(result)) if undefined else result

    return decide


_COMPARISONS = {"Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge, "Eq": operator.eq,
                "NotEq": operator.ne}  # fmt: skip
FUNCTIONS = {
    **{f"_{name}": _compare(function) for name, function in _COMPARISONS.items()},
    "_And": _decided_by(False), "_Or": _decided_by(True), "_Not": lambda x: _chosen(x, not x),
    "_chosen": _chosen, "_defined": defined, "_is_undefined": is_undefined,
}  # fmt: skip
