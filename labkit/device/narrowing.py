"""The rule of labkit.simt.unsigned in Numba's IR, before types are inferred, for every compiler that has such IR.

`Narrowing` gives a function other operators: `operator.add` becomes one of ours, which has a uint32 for two uint32 and
Numba's own types for all else. What that operator is and becomes is the compiler's: labkit.device.unsigned for
numba-cuda, labkit.device.unsigned_mlir for numba-cuda-mlir.
"""

from __future__ import annotations

import itertools

import numpy as np

from labkit.simt import unsigned

NAMES = {function: name for name, function in unsigned.OPERATORS.items()}
_counter = itertools.count()


class _Constants:
    """The integers that variables of a function's IR are known to hold."""

    def __init__(self, ir, blocks):
        self.ir = ir
        self.values = {}  # a variable's name -> its assigned values
        for block in blocks.values():
            for statement in block.find_insts(self.ir.Assign):
                self.values.setdefault(statement.target.name, []).append(statement.value)
        self.returned = {value.value.name for values in self.values.values() for value in values
                         if isinstance(value, self.ir.Expr) and value.op == "cast"}

    def of(self, variable):
        """The value of a variable that is assigned once, to a constant; None for another."""
        assigned = self.values.get(variable.name, ())
        return self._value(assigned[0]) if len(assigned) == 1 else None

    def known(self, variable):
        """The object that a variable is: a global, one of the enclosing function, or a module's; None for another."""
        assigned = self.values.get(variable.name, ())
        only = assigned[0] if len(assigned) == 1 else None
        if isinstance(only, self.ir.Expr) and only.op == "getattr":
            return getattr(self.known(only.value), only.attr, None)
        return only.value if isinstance(only, (self.ir.Global, self.ir.FreeVar)) else None

    def _value(self, assigned):
        if isinstance(assigned, (self.ir.Const, self.ir.Global, self.ir.FreeVar)):
            return assigned.value if type(assigned.value) is int else None
        if isinstance(assigned, self.ir.Var):
            return self.of(assigned)
        if not isinstance(assigned, self.ir.Expr):
            return None
        if assigned.op == "binop" and assigned.fn in NAMES:
            return unsigned.folded(NAMES[assigned.fn], self.of(assigned.lhs), self.of(assigned.rhs))
        if assigned.op == "static_getitem":
            return self._item(assigned.value, assigned.index)
        return None

    def items(self, variable):
        """The variables of a tuple that stands in the call that it is an argument of; none for another value."""
        value = self.values.get(variable.name, (None,))[0]
        is_tuple = isinstance(value, self.ir.Expr) and value.op == "build_tuple"
        return value.items if is_tuple and variable.name.startswith("$") else ()

    def _item(self, variable, index):
        """An item of the tuple at the right of `a, b, c, d = ...`."""
        assigned = self.values.get(variable.name, (None,))[0]
        while isinstance(assigned, self.ir.Expr) and assigned.op == "exhaust_iter":
            assigned = self.values[assigned.value.name][0]
        if isinstance(assigned, self.ir.Expr) and assigned.op == "build_tuple" and type(index) is int:
            return self.of(assigned.items[index])
        if isinstance(assigned, self.ir.Const) and isinstance(assigned.value, tuple) and type(index) is int:
            return assigned.value[index] if type(assigned.value[index]) is int else None
        return None

    def is_returned(self, statement):
        """True for what a function returns, before it gets the type of all that it returns."""
        return statement.target.name in self.returned

    def merged(self, statement):
        """The constant that an assignment gives to a variable that has other values as well, or returns; else None."""
        if isinstance(statement.value, self.ir.Expr) and statement.value.op == "cast":  # what a return statement has
            return self.of(statement.value.value)
        return self._value(statement.value) if len(self.values[statement.target.name]) > 1 else None


class Narrowing:
    """Changes the IR of a function that has the rule. ir: the module of its classes; operators: (function, whether one
    operand is a constant) -> what replaces it."""

    def __init__(self, ir, operators: dict):
        self.ir, self.operators = ir, operators

    def change(self, blocks) -> None:
        constants = _Constants(self.ir, blocks)
        for block in blocks.values():
            body, block.body = block.body, []
            for statement in body:
                if isinstance(statement, self.ir.Assign):
                    block.body += self._assignment(statement, statement.value, constants)
                else:
                    block.body.append(statement)

    def _assignment(self, statement, value, constants):
        """The statements for an assignment, which is changed."""
        merged = constants.merged(statement)
        if unsigned.is_constant(merged):
            statement.value = self.ir.Const(np.uint32(merged), value.loc)
        elif isinstance(value, self.ir.Expr) and value.op in ("binop", "inplace_binop"):
            self._narrow(statement, value, constants)
        elif isinstance(value, self.ir.Expr) and value.op == "call":
            return [*self._narrow_arguments(value, constants), statement]
        elif isinstance(value, self.ir.Expr) and value.op == "build_tuple" and constants.is_returned(statement):
            value.items, assignments = self._narrowed(value.items, constants)
            return [*assignments, statement]
        return [statement]

    def _narrow_arguments(self, call, constants):
        """Make a uint32 of each constant for a device function with the rule, for min or for max; the assignments."""
        function = constants.known(call.func)
        if function not in unsigned.CHOOSING and not unsigned.follows(getattr(function, "py_func", None)):
            return []
        call.args, assignments = self._narrowed(call.args, constants)
        values, more = self._narrowed([arg for _, arg in call.kws], constants)
        call.kws = [(name, value) for (name, _), value in zip(call.kws, values, strict=True)]
        return assignments + more

    def _narrowed(self, variables, constants):
        """Replace constants, in tuples too, by new variables; return the variables and the assignments to new ones."""
        result, assignments = [], []
        for variable in variables:
            value, items = constants.of(variable), constants.items(variable)
            narrowed, of_items = self._narrowed(items, constants) if items else ((), [])
            if unsigned.is_constant(value):
                new = self.ir.Const(np.uint32(value), variable.loc)
            elif of_items:
                new = self.ir.Expr.build_tuple(narrowed, variable.loc)
            else:
                result.append(variable)
                continue
            variable = self.ir.Var(variable.scope, f"{variable.name}.narrow.{next(_counter)}", variable.loc)
            assignments += [*of_items, self.ir.Assign(new, variable, variable.loc)]
            result.append(variable)
        return result, assignments

    def _narrow(self, statement, expression, constants):
        is_update = expression.op == "inplace_binop"
        function = expression.immutable_fn if is_update else expression.fn
        if function not in NAMES:
            return
        left, right = constants.of(expression.lhs), constants.of(expression.rhs)
        value = unsigned.folded(NAMES[function], left, right)
        if value is not None:
            statement.value = self.ir.Const(value, expression.loc)
            return
        if left is None and right is None:
            narrow = self.operators[function, False]
        elif unsigned.is_constant(right if left is None else left):
            narrow = self.operators[function, True]
        else:
            return
        statement.value = self.ir.Expr("binop", expression.loc, fn=narrow, lhs=expression.lhs, rhs=expression.rhs,
                                  static_lhs=self.ir.UNDEFINED, static_rhs=self.ir.UNDEFINED)
