"""A kernel run roughly and quickly, as plain Python on NumPy's arrays: to sort out changes that do not help.

It takes a fifth of the time of the CPU device's interpreter, because nothing is resolved or typed first. What it says
of a kernel is right as a rule and proves nothing: a negative index wraps around, and types are NumPy's.
"""

from __future__ import annotations

import ast
import itertools
import math
import types
from types import SimpleNamespace

import numpy as np
from numba.core.types import Type
from numba.np import numpy_support

from labkit.course.check.cases import Case, arguments_for
from labkit.course.exercises import Exercise
from labkit.kernels.agree import differences, is_poison, poison
from labkit.simt.ir import copied

WAITS = {"syncthreads", "syncwarp", "shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"}
KNOWN = WAITS | {"threadIdx", "blockIdx", "blockDim", "gridDim", "grid", "gridsize", "shared", "local", "atomic",
                 "laneid", "warpsize", "fma"}  # fmt: skip
MODULES = {"math", "numpy"}


MATH = SimpleNamespace(**{name: getattr(math, name) for name in dir(math) if not name.startswith("_")})
for _name in ("exp", "expm1", "log", "log2", "log10", "log1p", "sqrt", "tanh", "sinh", "cosh"):
    setattr(MATH, _name, getattr(np, _name))  # inf and NaN, where Python's raise
MATH.pow = np.power


class NotRough(Exception):
    """Something that only the CPU device does."""


def works(trees: dict[str, ast.Module], namespace: dict) -> bool:
    """Return whether these functions, the only ones that may be called, use known constructs only."""
    for tree in trees.values():
        for node in (each for statement in tree.body[0].body for each in ast.walk(statement)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cuda":
                if node.attr not in KNOWN:
                    return False
            elif isinstance(node, ast.Name) and node.id in namespace and node.id != "cuda" and node.id not in trees:
                value = namespace[node.id]
                module = isinstance(value, types.ModuleType)
                if hasattr(value, "py_func") or (module and value.__name__ not in MODULES):
                    return False
    return "cuda" in namespace


class Prefilter:
    """Launches of one kernel. trees: it and the device functions that it names."""

    def __init__(self, exercise: Exercise, name: str, trees: dict[str, ast.Module], namespace: dict, most: int):
        """most: how many turns its loops may make in one run."""
        self.exercise, self.most, self.ticks = exercise, most, 0
        waiting = _that_wait(trees)
        self.waits = name in waiting
        self.shared: dict[int, np.ndarray] = {}
        self.cuda = SimpleNamespace(
            threadIdx=SimpleNamespace(x=0, y=0, z=0), blockIdx=SimpleNamespace(x=0, y=0, z=0), warpsize=32,
            blockDim=SimpleNamespace(x=1, y=1, z=1), gridDim=SimpleNamespace(x=1, y=1, z=1), grid=self._grid,
            gridsize=self._gridsize, laneid=0, local=SimpleNamespace(array=_local), fma=lambda a, b, c: a * b + c,
            atomic=SimpleNamespace(add=_atomic(np.add), max=_atomic(np.maximum), min=_atomic(np.minimum),
                                   sub=_atomic(np.subtract)))
        space = {name: MATH if value is math else value for name, value in namespace.items()}
        space |= {"cuda": self.cuda, "_tick": self._tick, "_shared": self._shared}
        numbers = itertools.count()
        for each, tree in trees.items():
            definition = _Roughly(waiting, numbers).visit(copied(tree.body[0]))
            definition.decorator_list, definition.returns = [], None
            for argument in ast.walk(definition.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            exec(compile(ast.fix_missing_locations(ast.Module([definition], [])), f"<{each}>", "exec"), space)
        self.kernel = space[name]

    def right(self, case: Case) -> bool:
        """Whether the result is right. Raises what the kernel raises."""
        out = poison(case.expected.shape, np.dtype(self.exercise.dtype)) if case.start is None else case.start.copy()
        inputs = tuple(v.copy() if isinstance(v, np.ndarray) else v for v in case.inputs)
        arguments = arguments_for(self.exercise, case, inputs, out)
        grid, block, *more = self.exercise.launch(**case.size)
        if len(more) > 1 and more[1]:
            raise NotRough
        self.ticks = 0
        self._launch(_three(grid), _three(block), arguments)
        unwritten = is_poison(out) if case.start is None else np.zeros(out.shape, bool)
        return not differences(out, case.expected, case.allowed, unwritten).wrong.any()

    # --- Threads

    def _launch(self, grid, block, arguments) -> None:
        _place(self.cuda.gridDim, grid)
        _place(self.cuda.blockDim, block)
        threads = [place[::-1] for place in itertools.product(*map(range, block[::-1]))]
        for of_block in itertools.product(*map(range, grid[::-1])):
            _place(self.cuda.blockIdx, of_block[::-1])
            self.shared.clear()
            if self.waits:
                self._together(threads, arguments)
                continue
            for number, place in enumerate(threads):
                _place(self.cuda.threadIdx, place)
                self.cuda.laneid = number % 32
                self.kernel(*arguments)

    def _together(self, threads, arguments) -> None:
        """The threads of a block, each as far as it comes alone, then what they wait for."""
        running = dict(enumerate(self.kernel(*arguments) for _ in threads))
        replies: dict[int, object] = {}
        requests: dict[int, tuple] = {}
        while running:
            for number in [number for number in running if number not in requests]:
                _place(self.cuda.threadIdx, threads[number])
                self.cuda.laneid = number % 32
                try:
                    requests[number] = running[number].send(replies.pop(number, None))
                except StopIteration:
                    del running[number]
            if requests:
                replies = _answered(requests)

    def _grid(self, axes: int):
        cuda = self.cuda
        places = [getattr(cuda.blockIdx, a) * getattr(cuda.blockDim, a) + getattr(cuda.threadIdx, a) for a in "xyz"]
        return places[0] if axes == 1 else tuple(places[:axes])

    def _gridsize(self, axes: int):
        sizes = [getattr(self.cuda.gridDim, a) * getattr(self.cuda.blockDim, a) for a in "xyz"]
        return sizes[0] if axes == 1 else tuple(sizes[:axes])

    def _shared(self, number: int, shape, dtype) -> np.ndarray:
        if number not in self.shared:
            if shape == 0:
                raise NotRough
            self.shared[number] = _local(shape, dtype)
        return self.shared[number]

    def _tick(self) -> None:
        self.ticks += 1
        if self.ticks > self.most:
            raise TimeoutError


def _that_wait(trees: dict[str, ast.Module]) -> set[str]:
    """The functions with a barrier or a shuffle, and those that call them."""
    called = {name: {each.attr if isinstance(each, ast.Attribute) else each.id for each in ast.walk(tree)
                     if isinstance(each, (ast.Attribute, ast.Name))} for name, tree in trees.items()}
    found = {name for name, names in called.items() if names & WAITS}
    for _ in trees:
        found |= {name for name, names in called.items() if names & found}
    return found


def _answered(requests: dict[int, tuple]) -> dict:
    """Takes the requests that can be met out of `requests`: a barrier's when all wait for it, a shuffle's when all
    lanes that are not at a barrier do. Returns what the threads get."""
    if all(request[0] == "syncthreads" for request in requests.values()):
        requests.clear()
        return {}
    replies, before = {}, len(requests)
    for warp in sorted({number // 32 for number in requests}):
        lanes = {number: request for number, request in requests.items()
                 if number // 32 == warp and request[0] != "syncthreads"}
        if len({request[0] for request in lanes.values()}) != 1:
            continue
        for number, (kind, *values) in lanes.items():
            if kind != "syncwarp":
                replies[number] = lanes.get(_source(kind, number, values), lanes[number])[2]
            del requests[number]
    if len(requests) == before:
        raise RuntimeError("they wait for one another")
    return replies


def _source(kind: str, number: int, values: list) -> int:
    lane, base, by = number % 32, number // 32 * 32, int(values[2])
    at = {"shfl_sync": by % 32, "shfl_up_sync": lane - by, "shfl_down_sync": lane + by}.get(kind, lane ^ by)
    return base + at if 0 <= at < 32 else number


class _Roughly(ast.NodeTransformer):
    """Barriers and shuffles become `yield`, shared arrays are found by their number, loops tick."""

    def __init__(self, waiting: set[str], numbers):
        self.waiting, self.numbers = waiting, numbers

    def visit_Call(self, node):
        self.generic_visit(node)
        called = ast.unparse(node.func)
        word = called.removeprefix("cuda.")
        if word in WAITS and word != called:
            return ast.Yield(ast.Tuple([ast.Constant(word), *node.args], ast.Load()))
        if called == "cuda.shared.array":
            return ast.Call(ast.Name("_shared", ast.Load()), [ast.Constant(next(self.numbers)), *node.args],
                            node.keywords)
        if called in self.waiting:
            return ast.YieldFrom(node)
        return node

    def visit_For(self, node):
        self.generic_visit(node)
        return self._ticking(node)

    def visit_While(self, node):
        self.generic_visit(node)
        return self._ticking(node)

    @staticmethod
    def _ticking(node):
        node.body = [ast.Expr(ast.Call(ast.Name("_tick", ast.Load()), [], [])), *node.body]
        return node


def _local(shape, dtype) -> np.ndarray:
    dtype = numpy_support.as_dtype(dtype) if isinstance(dtype, Type) else np.dtype(dtype)
    return poison(shape if isinstance(shape, tuple) else (shape,), dtype)


def _atomic(operation):
    def update(array, index, value):
        old = array[index]
        array[index] = operation(old, value)
        return old

    return update


def _place(where: SimpleNamespace, place: tuple) -> None:
    where.x, where.y, where.z = place


def _three(value) -> tuple[int, int, int]:
    parts = tuple(int(v) for v in value) if isinstance(value, (tuple, list)) else (int(value),)
    return (*parts, 1, 1)[:3]
