"""How a learner's own kernel is launched, for labkit.measure.fits: the types of its arguments and its block.

They come from what the caller says, from the kernel's signature, or from its last launch. What is still unknown then is
assumed, and the table says so: parameters that the kernel indexes are C-contiguous arrays of float32, the others
numbers, of int32 where they count or index.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from dataclasses import dataclass

from labkit._common.errors import UserError
from labkit.device import compiling

BLOCK = 256  # threads, where nothing says another number


@dataclass(frozen=True)
class Form:
    """A launch that need not be made. nbytes: of the arrays together, None where their sizes are unknown."""

    kernel: object
    signature: object
    threads: int
    shared_bytes: int = 0
    nbytes: int | None = None
    assumed: tuple[str, ...] = ()


def form_of(kernel, types, block, sizes: dict) -> Form:
    """Raises UserError for what is no kernel, and for types, a block or sizes that it cannot have."""
    if not _is_kernel(kernel):
        raise UserError(f"kernel is a {type(kernel).__name__}; it must be what @cuda.jit makes of a function")
    last = _last_launch(kernel)
    signature, assumed = _signature(kernel, types)
    threads, shared, of_block = _block(kernel, block, last)
    nbytes = _nbytes(kernel, signature, sizes)
    if nbytes is None and not assumed and types is None and last is not None:
        nbytes = last.nbytes
    return Form(kernel, signature, threads, shared, nbytes, (*assumed, *of_block))


def _is_kernel(kernel) -> bool:
    return hasattr(kernel, "py_func") and hasattr(kernel, "configure")


def parameters(kernel) -> tuple[str, ...]:
    return tuple(inspect.signature(kernel.py_func).parameters)


# --- Types ------------------------------------------------------------------------------------------------------------


def type_text(numba_type) -> str:
    """float32[:, ::1], as it is written in a signature."""
    if not hasattr(numba_type, "ndim"):
        return str(numba_type)
    axes = [":"] * numba_type.ndim
    if numba_type.layout in "CF" and axes:
        axes[-1 if numba_type.layout == "C" else 0] = "::1"
    return f"{numba_type.dtype}[{', '.join(axes)}]"


def _signature(kernel, given):
    """(the argument types, what was assumed)."""
    from numba import types

    if given is not None:
        return types.void(*_parsed(kernel, given)), ()
    known = list(getattr(kernel, "_given", ())) or list(getattr(kernel, "overloads", ()))
    if known:
        return types.void(*known[-1]), ()
    candidates = _guesses(kernel)
    problem = None
    for guess in candidates:
        try:
            compiling.ptx(kernel, types.void(*guess))
        except compiling.NoCompiler:  # whoever compiles it next says so
            pass
        except Exception as error:
            problem = problem or error
            continue
        return types.void(*guess), (f"Types are assumed: {', '.join(map(type_text, guess))}. Give others with types "
                                    "(--types), or launch the kernel first.",)
    raise UserError(f"{kernel.__name__} does not compile for {', '.join(map(type_text, candidates[0]))}, which was "
                    f"assumed: {explained(kernel, candidates[0], problem)}. Give its types with types (--types)")


def explained(kernel, argument_types, error) -> str:
    """Why a kernel does not compile for these types, in a sentence: the CPU device's, which names the line, or what
    Numba says."""
    from labkit.simt.errors import KernelError
    from labkit.simt.kernel import Kernel
    from labkit.simt.numba_report import read_report

    try:
        Kernel(kernel.py_func).compile(tuple(argument_types))
    except KernelError as own:
        return " ".join(str(own).split()).rstrip(".")
    except Exception:  # the sentence is a help only
        pass
    return read_report(str(error))[0].rstrip(".")


def _parsed(kernel, given) -> tuple:
    names = parameters(kernel)
    if not isinstance(given, str):
        argument_types = tuple(given.args if hasattr(given, "args") else given)
    else:
        from numba.core import sigutils

        text = given.strip()
        try:
            argument_types, _ = sigutils.normalize_signature(text if text.endswith(")") else f"void({text})")
        except Exception as error:
            raise UserError(f"types: {given!r} cannot be read ({str(error).splitlines()[0]}); write a type of Numba "
                            f'for each of {", ".join(names)}, such as "float32[::1], int32"') from None
    if len(argument_types) != len(names):
        raise UserError(f"types: {len(argument_types)} are given, and {kernel.__name__} has {len(names)} parameters: "
                        f"{', '.join(names)}")
    return argument_types


def _guesses(kernel) -> list[tuple]:
    """Types to try, the likeliest first."""
    from numba import types

    uses = _Uses.of(kernel.py_func)
    arrays = {name: types.Array(types.float32, axes, "C") for name, axes in uses.axes.items()}

    def with_numbers(number_of) -> tuple:
        return tuple(arrays.get(name) or number_of(name) for name in parameters(kernel))

    found = [with_numbers(lambda name: types.int32 if name in uses.counts else types.float32),
             with_numbers(lambda name: types.int32), with_numbers(lambda name: types.float32)]
    return list(dict.fromkeys(found))


class _Uses(ast.NodeVisitor):
    """What a function does with its parameters: axes, how many each array has; counts, those that count or index."""

    def __init__(self, function):
        self.scope = inspect.getclosurevars(function)
        self.names = set(inspect.signature(function).parameters)
        self.axes: dict[str, int] = {}
        self.counts: set[str] = set()

    @classmethod
    def of(cls, function) -> _Uses:
        found = cls(function)
        found.visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
        return found

    def _array(self, node, axes: int) -> None:
        if isinstance(node, ast.Name) and node.id in self.names:
            self.axes[node.id] = max(self.axes.get(node.id, 1), axes)

    def _count(self, node) -> None:
        self.counts |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in self.names}

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
            last = node.slice.value if isinstance(node.slice, ast.Constant) else 0
            self._array(node.value.value, last + 1)
        self._array(node.value, len(node.slice.elts) if isinstance(node.slice, ast.Tuple) else 1)
        self._count(node.slice)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in ("shape", "size", "ndim", "strides"):
            self._array(node.value, 1)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        value, (target, *_) = node.value, node.targets
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Attribute) and value.attr == "shape":
            self._array(value.value, len(target.elts))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self._count(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "range":
            for argument in node.args:
                self._count(argument)
        elif name == "len" and node.args:
            self._array(node.args[0], 1)
        called = self.scope.globals.get(name) or self.scope.nonlocals.get(name)
        if (function := getattr(called, "py_func", None)) is not None:  # a device function: what it does with them
            inner = _Uses.of(function)
            for argument, parameter in zip(node.args, inspect.signature(function).parameters, strict=False):
                if parameter in inner.axes:
                    self._array(argument, inner.axes[parameter])
                elif parameter in inner.counts:
                    self._count(argument)
        elif ast.unparse(node.func).startswith("cuda.atomic.") and len(node.args) > 1:
            index = node.args[1]
            self._array(node.args[0], len(index.elts) if isinstance(index, ast.Tuple) else 1)
            self._count(index)
        self.generic_visit(node)


# --- The block, and the bytes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Last:
    block: tuple
    shared_bytes: int
    nbytes: int | None


def _last_launch(kernel):
    """The last launch: block, shared_bytes and nbytes; None where there was none."""
    if (last := getattr(kernel, "last_launch", None)) is not None:
        return last
    shape = getattr(kernel, "_labkit_functions", {}).get("last")
    return None if shape is None else _Last(tuple(shape[3:6]), int(shape[6]), None)


def _block(kernel, given, last) -> tuple[int, int, tuple[str, ...]]:
    """(threads, dynamic shared memory, what was assumed)."""
    if given is not None:
        axes = tuple(given) if isinstance(given, tuple | list) else (given,)
        if not all(isinstance(length, int) and length > 0 for length in axes) or math.prod(axes) > 1024:
            raise UserError(f"block is {given!r}; it must have 1 to 1,024 threads, such as 256 or (16, 16)")
        return math.prod(axes), last.shared_bytes if last else 0, ()
    if last is not None:
        return math.prod(last.block), last.shared_bytes, ()
    options = getattr(kernel, "options", None) or getattr(kernel, "targetoptions", {})
    bounds = options.get("launch_bounds")
    if bounds:
        return (bounds[0] if isinstance(bounds, tuple) else bounds), 0, ()
    return BLOCK, 0, (f"A block of {BLOCK} threads is assumed. Give another with block (--block), or launch the kernel "
                      "first.",)


def _nbytes(kernel, signature, sizes: dict) -> int | None:
    """The bytes of the arrays, by their shapes; None without those."""
    arrays = {name: kind for name, kind in zip(parameters(kernel), signature.args, strict=True)
              if hasattr(kind, "ndim")}
    if unknown := set(sizes) - set(arrays):
        raise UserError(f"size: {', '.join(sorted(unknown))} is no array of {kernel.__name__}; its arrays are "
                        f"{', '.join(arrays)}")
    total = 0
    for name, kind in arrays.items():
        if name not in sizes:
            if sizes:
                raise UserError(f"size: {name} is missing; write the shape of each array, such as {name}="
                                f"{'x'.join(['64'] * kind.ndim)}")
            return None
        shape = sizes[name] if isinstance(sizes[name], tuple) else (sizes[name],)
        if len(shape) != kind.ndim:
            raise UserError(f"size: {name} has {kind.ndim} axes, and {len(shape)} lengths are given")
        total += math.prod(shape) * kind.dtype.bitwidth // 8
    return total if arrays else None
