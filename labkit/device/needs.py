"""Which compute capability a kernel needs, by the instructions of labkit.ptx that it and its device functions use.

    of(kernel)                # (8, 0); (9, 0, "a") for what only that variant has; None: every GPU
    lacks((7, 5), (8, 0))     # "needs compute capability 8.0; this GPU has 7.5"

labkit.simt.ptx gives what each instruction needs. Tests assemble each of them, and every kernel, for every GPU that is
supported, and compare. A branch whose condition is a constant of the kernel's factory counts as the compiler sees it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types

from labkit.device.kernel_key import instruction_name
from labkit.device.lazy import built
from labkit.simt.ptx import INTRINSICS

CONSTANTS = (bool, int, float, str, tuple, type(None))


def lacks(capability: tuple[int, int], needs: tuple | None) -> str:
    """Why a GPU of this compute capability does not run what needs that one; empty if it does. (9, 0, "a") exists on
    9.0 alone."""
    if needs is None:
        return ""
    exact = len(needs) > 2
    if capability == tuple(needs[:2]) or (capability > tuple(needs) and not exact):
        return ""
    return (f"needs compute capability {needs[0]}.{needs[1]}{' exactly' if exact else ''}; this GPU has "
            f"{capability[0]}.{capability[1]}")


@functools.cache
def has_all(capability: tuple[int, int]) -> bool:
    """Whether a GPU of this compute capability has every instruction of labkit.ptx, and so runs any kernel. To read the
    sources of the kernels of a model's first step takes 0.1 s."""
    return not any(lacks(capability, instruction.needs) for instruction in INTRINSICS.values())


def of(*kernels) -> tuple | None:
    """The least compute capability that runs all of these kernels; None if every supported GPU does. Nothing is known
    of kernels in other languages than Numba's."""
    kernels = [kernel for kernel in map(built, kernels) if hasattr(kernel, "py_func")]
    needed = [need for kernel in kernels for name in instructions(kernel) if (need := INTRINSICS[name].needs)]
    return max(needed, default=None)


@functools.cache
def instructions(kernel) -> frozenset[str]:
    """The names of the instructions of labkit.ptx that a kernel, or a device function, uses."""
    function = kernel.py_func
    return frozenset(_Uses(function).visited(ast.parse(textwrap.dedent(inspect.getsource(function)))))


class _Uses(ast.NodeVisitor):
    """Collects the instructions in a function's code, without the branches that its constants rule out."""

    def __init__(self, function: types.FunctionType):
        code = function.__code__
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        self.scope = function.__globals__ | {name: cell.cell_contents for name, cell in cells}
        self.own, self.found = function, set()

    def visited(self, tree: ast.AST) -> set[str]:
        self.visit(tree)
        return self.found

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        known, value = self._constant(node.test)
        parts = [node.test, node.body, node.orelse] if not known else [node.body if value else node.orelse]
        for part in parts:
            for child in part if isinstance(part, list) else [part]:
                self.visit(child)

    visit_IfExp = visit_If

    def _constant(self, test: ast.expr) -> tuple[bool, object]:
        """(True, its value) of a condition that names nothing but constants."""
        names = [node.id for node in ast.walk(test) if isinstance(node, ast.Name)]
        if any(isinstance(node, ast.Call | ast.Attribute) for node in ast.walk(test)) or not all(
                isinstance(self.scope.get(name, self), CONSTANTS) for name in names):
            return False, None
        return True, eval(compile(ast.Expression(test), "<condition>", "eval"), {}, dict(self.scope))

    def visit_Name(self, node: ast.Name) -> None:
        self._use(self.scope.get(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        base = self.scope.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if isinstance(base, types.ModuleType) and base.__name__.startswith("labkit"):
            self._use(getattr(base, node.attr, None))
        self.generic_visit(node)

    def _use(self, value) -> None:
        if isinstance(value, tuple):
            for each in value:
                self._use(each)
        elif (name := instruction_name(value)) in INTRINSICS:
            self.found.add(name)
        elif isinstance(getattr(value, "py_func", None), types.FunctionType) and value.py_func is not self.own:
            self.found |= instructions(value)
