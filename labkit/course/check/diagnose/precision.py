"""Where a kernel computes in float64 although its arrays are float32, by the types that Numba gives to its operations.

A Python number with a point is a float64, an integer an int64, and float32 with either gives float64: `total = 0.0`,
`0.5 * x[i]`, `2 * x[i]`. On most GPUs float64 takes 32 or 64 times as long. The types are found as the CPU device finds
them: through branches and loops, and through the device functions that a kernel calls.
"""

from __future__ import annotations

import ast
import inspect

import numpy as np
from numba.core import types

from labkit.course.check.draw import Case, arguments_of
from labkit.course.check.sources import sources_of
from labkit.course.exercises import Exercise
from labkit.simt import typed_tree
from labkit.simt.ir import Inline
from labkit.simt.rewrite import rewrite

CONVERSIONS = {"float64", "float", "max", "min", "_selp"}  # what they are given is not computed with


def computes_in_float64(exercise: Exercise, answer, case: Case) -> tuple[str, ...]:
    """Where a kernel on float32 arrays computes in float64, and how not to; () where it does not."""
    if exercise.kind != "kernel":
        return ()
    values = arguments_of(exercise, case.inputs, np.zeros(case.expected.shape, exercise.dtype), case.size)
    arguments = dict(zip(inspect.signature(answer.py_func).parameters, values, strict=False))
    kinds = {np.dtype(getattr(value, "dtype", type(value))).str[1:] for value in arguments.values()
             if isinstance(value, (np.ndarray, np.number))}
    result = float64_at(answer, arguments) if "f4" in kinds and "f8" not in kinds else None
    if result is None:
        return ()
    line, code = result
    return (f"Line {line}: `{code}` is computed in float64, which is many times slower than "
            "float32 on most GPUs. A number such as `0.0` or `2` makes the whole operation float64: write "
            "`float32(0.0)`, `float32(2)`.",)


def float64_at(kernel, arguments: dict[str, object]) -> tuple[int, str] | None:
    """(line, code) of the operation that is computed in float64: the first of those that make a float32 wider, or the
    first of all; None if there is none. arguments: what the parameters are given, by name."""
    try:
        program = rewrite(kernel.py_func)
        argument_types = {name: typed_tree.type_of_value(value)
                          for name, value in (arguments | program.constants).items()}
        sources = sources_of(kernel)
        operations = _Operations(program, set(sources))
        operations.body(program.body, {**dict.fromkeys(typed_tree.ID_NAMES, types.int64), **argument_types, **{
            array.name: typed_tree._array_type(array, argument_types)
            for array in (*program.shared.values(), *program.local.values())}}, None)
    except Exception:  # what cannot be typed here says nothing of its types
        return None
    if not operations.found:
        return None
    operation, _ = min(operations.found, key=lambda one: (not one[1], *_span(one[0])))
    source_nodes = {_span(node): node for source in sources.values() for node in ast.walk(source.tree)
                    if type(node) is type(operation)}
    return operation.lineno, ast.unparse(source_nodes.get(_span(operation), operation))


def _span(node: ast.AST) -> tuple:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


class _Operations(typed_tree._Types):
    """Types a program as the CPU device does; finds float64 operations: (node, whether it had float32)."""

    def __init__(self, program, own: set[str]):
        """own: the names of the functions whose operations are looked at; not those of the library."""
        super().__init__(program, chosen=None)
        self.own = own
        self.found: list[tuple[ast.AST, bool]] = []

    def body(self, statements, env, device):
        flow = _Flow(self, device)
        flow.block(statements, dict(env))
        flow.rewriting = True  # all types of loops are known
        flow.returned = flow.returned and [typed_tree.unified(*flow.returned)]
        flow.block(statements, dict(env))
        return flow.returned[0] if flow.returned else None


class _Flow(typed_tree._Flow):
    def __init__(self, owner, device):
        super().__init__(owner, device)
        self.types: dict[int, object] = {}
        self.looks = device is None or device.name.rpartition("_d")[0] in owner.own

    def type(self, e, env):
        result_type = self.types[id(e)] = super().type(e, env)
        return result_type

    def statement(self, s, env):
        if isinstance(s, Inline) and s.function not in self.owner.own and self.looks:
            self.looks = False
            try:
                return super().statement(s, env)
            finally:
                self.looks = True
        previous_env = dict(env)
        done = super().statement(s, env)
        if isinstance(s, ast.AugAssign):
            operand_types = [self.type(s.target, previous_env), self.type(s.value, previous_env)]
            self._note(s, (s.target, s.value), self.operation(s.op, operand_types))
        return done

    def _binop(self, e, env):
        result_type = super()._binop(e, env)
        self._note(e, (e.left, e.right), result_type)
        return result_type

    def _call(self, e, env):
        result_type = super()._call(e, env)
        name = e.func.attr if isinstance(e.func, ast.Attribute) else getattr(e.func, "id", "")
        if name not in CONVERSIONS:
            self._note(e, e.args, result_type)
        return result_type

    def _note(self, node, operands, result) -> None:
        operand_types = [self.types.get(id(each)) for each in operands]
        is_wide = result == types.float64 or isinstance(result, types.UniTuple) and result.dtype == types.float64
        of_floats = any(isinstance(each, types.Float) for each in operand_types)
        is_literal = all(isinstance(each, ast.Constant) for each in operands)
        if self.rewriting and self.looks and is_wide and of_floats and not is_literal:
            self.owner.found.append((node, any(each in (types.float32, types.float16) for each in operand_types)))
