"""labkit.simt.unsigned on a GPU: a pass over Numba's IR that gives the functions with the rule other operators.

The pass runs before types are inferred. It replaces `operator.add` by an operator of ours, which has a uint32 for two
uint32 and Numba's own types for all else. Sums, differences, products and bits are instructions of 32 bits; the rest is
computed as Numba computes it, in 64 bits, and truncated. Sums that were computed in 64 bits and truncated, too, took up
to 16% more instructions (matmul_pipelined), and so did an llvm.assume that they fit.
"""

from __future__ import annotations

import itertools
import operator

import numpy as np
from numba.cuda import types
from numba.cuda.compiler import CUDACompiler
from numba.cuda.core import ir
from numba.cuda.core.compiler_machinery import FunctionPass, register_pass
from numba.cuda.core.untyped_passes import IRProcessing
from numba.cuda.cudadecl import registry as typing
from numba.cuda.cudaimpl import registry as lowering
from numba.cuda.typing.templates import AbstractTemplate, signature

from labkit.simt import unsigned
from labkit.simt.runtime.operators import narrows

U32, U64 = types.uint32, types.uint64
IN_32_BITS = {operator.add: "add", operator.sub: "sub", operator.mul: "mul",
              operator.and_: "and_", operator.or_: "or_", operator.xor: "xor"}  # fmt: skip


def _operator(function, with_constant):
    """An operator for two uint32, or for a uint32 and a constant, as Numba sees it."""

    def narrow(left, right):
        raise TypeError(f"{function.__name__} of 32 bits is used only inside a kernel")

    class Typing(AbstractTemplate):
        key = narrow
        prefer_literal = False

        def generic(self, args, kws):
            if narrows(*(types.unliteral(arg) == U32 for arg in args), with_constant):
                return signature(U32, U32, U32)
            return self.context.resolve_function_type(self.context.resolve_value_type(function), args, kws)

    typing.register_global(narrow, types.Function(Typing))

    @lowering.lower(narrow, types.Any, types.Any)
    def as_numba(context, builder, sig, args):
        return context.get_function(context.typing_context.resolve_value_type(function), sig)(builder, args)

    @lowering.lower(narrow, U32, U32)
    def in_32_bits(context, builder, sig, args):
        if function in IN_32_BITS:
            return getattr(builder, IN_32_BITS[function])(*args)
        resolved = context.typing_context.resolve_value_type(function)
        wide = resolved.get_call_type(context.typing_context, (U64, U64), {})
        args = [context.cast(builder, arg, U32, target) for arg, target in zip(args, wide.args, strict=True)]
        result = context.get_function(resolved, wide)(builder, args)
        return context.cast(builder, result, wide.return_type, U32)

    return narrow


NARROW = {(function, with_constant): _operator(function, with_constant)
          for function in unsigned.OPERATORS.values() for with_constant in (False, True)}
NAMES = {function: name for name, function in unsigned.OPERATORS.items()}
_counter = itertools.count()


class _Constants:
    """The integers that variables of a function's IR are known to hold."""

    def __init__(self, blocks):
        self.values = {}  # a variable's name -> its assigned values
        for block in blocks.values():
            for statement in block.find_insts(ir.Assign):
                self.values.setdefault(statement.target.name, []).append(statement.value)
        self.returned = {value.value.name for values in self.values.values() for value in values
                         if isinstance(value, ir.Expr) and value.op == "cast"}

    def of(self, variable):
        """The value of a variable that is assigned once, to a constant; None for another."""
        assigned = self.values.get(variable.name, ())
        return self._value(assigned[0]) if len(assigned) == 1 else None

    def known(self, variable):
        """The object that a variable is: a global, one of the enclosing function, or a module's; None for another."""
        assigned = self.values.get(variable.name, ())
        only = assigned[0] if len(assigned) == 1 else None
        if isinstance(only, ir.Expr) and only.op == "getattr":
            return getattr(self.known(only.value), only.attr, None)
        return only.value if isinstance(only, (ir.Global, ir.FreeVar)) else None

    def _value(self, assigned):
        if isinstance(assigned, (ir.Const, ir.Global, ir.FreeVar)):
            return assigned.value if type(assigned.value) is int else None
        if isinstance(assigned, ir.Var):
            return self.of(assigned)
        if not isinstance(assigned, ir.Expr):
            return None
        if assigned.op == "binop" and assigned.fn in NAMES:
            return unsigned.folded(NAMES[assigned.fn], self.of(assigned.lhs), self.of(assigned.rhs))
        if assigned.op == "static_getitem":
            return self._item(assigned.value, assigned.index)
        return None

    def items(self, variable):
        """The variables of a tuple that stands in the call that it is an argument of; none for another value."""
        value = self.values.get(variable.name, (None,))[0]
        is_tuple = isinstance(value, ir.Expr) and value.op == "build_tuple"
        return value.items if is_tuple and variable.name.startswith("$") else ()

    def _item(self, variable, index):
        """An item of the tuple at the right of `a, b, c, d = ...`."""
        assigned = self.values.get(variable.name, (None,))[0]
        while isinstance(assigned, ir.Expr) and assigned.op == "exhaust_iter":
            assigned = self.values[assigned.value.name][0]
        if isinstance(assigned, ir.Expr) and assigned.op == "build_tuple" and type(index) is int:
            return self.of(assigned.items[index])
        if isinstance(assigned, ir.Const) and isinstance(assigned.value, tuple) and type(index) is int:
            return assigned.value[index] if type(assigned.value[index]) is int else None
        return None

    def is_returned(self, statement):
        """True for what a function returns, before it gets the type of all that it returns."""
        return statement.target.name in self.returned

    def merged(self, statement):
        """The constant that an assignment gives to a variable that has other values as well, or returns; else None."""
        if isinstance(statement.value, ir.Expr) and statement.value.op == "cast":  # the value of a return statement
            return self.of(statement.value.value)
        return self._value(statement.value) if len(self.values[statement.target.name]) > 1 else None


@register_pass(mutates_CFG=False, analysis_only=False)
class NarrowOperators(FunctionPass):
    _name = "labkit_narrow_operators"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        if not unsigned.follows(state.func_id.func):
            return False
        blocks = state.func_ir.blocks
        constants = _Constants(blocks)
        for block in blocks.values():
            body, block.body = block.body, []
            for statement in body:
                if isinstance(statement, ir.Assign):
                    block.body += self._assignment(statement, statement.value, constants)
                else:
                    block.body.append(statement)
        return True

    def _assignment(self, statement, value, constants):
        """The statements for an assignment, which is changed."""
        merged = constants.merged(statement)
        if unsigned.is_constant(merged):
            statement.value = ir.Const(np.uint32(merged), value.loc)
        elif isinstance(value, ir.Expr) and value.op in ("binop", "inplace_binop"):
            self._narrow(statement, value, constants)
        elif isinstance(value, ir.Expr) and value.op == "call":
            return [*self._narrow_arguments(value, constants), statement]
        elif isinstance(value, ir.Expr) and value.op == "build_tuple" and constants.is_returned(statement):
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
                new = ir.Const(np.uint32(value), variable.loc)
            elif of_items:
                new = ir.Expr.build_tuple(narrowed, variable.loc)
            else:
                result.append(variable)
                continue
            variable = ir.Var(variable.scope, f"{variable.name}.narrow.{next(_counter)}", variable.loc)
            assignments += [*of_items, ir.Assign(new, variable, variable.loc)]
            result.append(variable)
        return result, assignments

    @staticmethod
    def _narrow(statement, expression, constants):
        is_update = expression.op == "inplace_binop"
        function = expression.immutable_fn if is_update else expression.fn
        if function not in NAMES:
            return
        left, right = constants.of(expression.lhs), constants.of(expression.rhs)
        value = unsigned.folded(NAMES[function], left, right)
        if value is not None:
            statement.value = ir.Const(value, expression.loc)
            return
        if left is None and right is None:
            narrow = NARROW[function, False]
        elif unsigned.is_constant(right if left is None else left):
            narrow = NARROW[function, True]
        else:
            return
        statement.value = ir.Expr("binop", expression.loc, fn=narrow, lhs=expression.lhs, rhs=expression.rhs,
                                  static_lhs=ir.UNDEFINED, static_rhs=ir.UNDEFINED)


def install():
    """Let Numba run the pass in every kernel that it compiles; only functions with the rule are changed by it."""
    if getattr(CUDACompiler, "narrows", False):
        return
    original = CUDACompiler.define_pipelines

    def define_pipelines(self):
        pipelines = original(self)
        for pipeline in pipelines:
            pipeline.add_pass_after(NarrowOperators, IRProcessing)
            pipeline.finalize()
        return pipelines

    CUDACompiler.define_pipelines, CUDACompiler.narrows = define_pipelines, True
