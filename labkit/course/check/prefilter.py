"""Run a kernel quickly and approximately, as plain Python on NumPy arrays, to discard changes that do not help.

It takes a fifth of the time of the CPU device's interpreter, because nothing is resolved or typed first. Its answer
is usually right and proves nothing: a negative index wraps around, and types are NumPy's.
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

    def __init__(self, exercise: Exercise, name: str, trees: dict[str, ast.Module], namespace: dict, max_turns: int):
        """max_turns: of all loops in one run."""
        self.exercise, self.max_turns, self.ticks = exercise, max_turns, 0
        waiting_functions = _waiting_functions(trees)
        self.waits = name in waiting_functions
        self.shared: dict[int, np.ndarray] = {}
        self.cuda = SimpleNamespace(
            threadIdx=SimpleNamespace(x=0, y=0, z=0), blockIdx=SimpleNamespace(x=0, y=0, z=0), warpsize=32,
            blockDim=SimpleNamespace(x=1, y=1, z=1), gridDim=SimpleNamespace(x=1, y=1, z=1), grid=self._grid,
            gridsize=self._gridsize, laneid=0, local=SimpleNamespace(array=_local), fma=lambda a, b, c: a * b + c,
            atomic=SimpleNamespace(add=_atomic(np.add), max=_atomic(np.maximum), min=_atomic(np.minimum),
                                   sub=_atomic(np.subtract)))
        globals_ = {name: MATH if value is math else value for name, value in namespace.items()}
        globals_ |= {"cuda": self.cuda, "_tick": self._tick, "_shared": self._shared}
        array_ids = itertools.count()
        for function_name, tree in trees.items():
            definition = _Generators(waiting_functions, array_ids).visit(copied(tree.body[0]))
            definition.decorator_list, definition.returns = [], None
            for argument in ast.walk(definition.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            exec(compile(ast.fix_missing_locations(ast.Module([definition], [])), f"<{function_name}>", "exec"),
                 globals_)
        self.kernel = globals_[name]

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
        _set_xyz(self.cuda.gridDim, grid)
        _set_xyz(self.cuda.blockDim, block)
        threads = [position[::-1] for position in itertools.product(*map(range, block[::-1]))]
        for block_index in itertools.product(*map(range, grid[::-1])):
            _set_xyz(self.cuda.blockIdx, block_index[::-1])
            self.shared.clear()
            if self.waits:
                self._run_together(threads, arguments)
                continue
            for index, position in enumerate(threads):
                _set_xyz(self.cuda.threadIdx, position)
                self.cuda.laneid = index % 32
                self.kernel(*arguments)

    def _run_together(self, threads, arguments) -> None:
        """Run each thread of a block up to its next barrier or shuffle, then serve those."""
        running = dict(enumerate(self.kernel(*arguments) for _ in threads))
        replies: dict[int, object] = {}
        requests: dict[int, tuple] = {}
        while running:
            for index in [index for index in running if index not in requests]:
                _set_xyz(self.cuda.threadIdx, threads[index])
                self.cuda.laneid = index % 32
                try:
                    requests[index] = running[index].send(replies.pop(index, None))
                except StopIteration:
                    del running[index]
            if requests:
                replies = _served(requests)

    def _grid(self, axes: int):
        cuda = self.cuda
        positions = [getattr(cuda.blockIdx, a) * getattr(cuda.blockDim, a) + getattr(cuda.threadIdx, a) for a in "xyz"]
        return positions[0] if axes == 1 else tuple(positions[:axes])

    def _gridsize(self, axes: int):
        sizes = [getattr(self.cuda.gridDim, a) * getattr(self.cuda.blockDim, a) for a in "xyz"]
        return sizes[0] if axes == 1 else tuple(sizes[:axes])

    def _shared(self, index: int, shape, dtype) -> np.ndarray:
        if index not in self.shared:
            if shape == 0:
                raise NotRough
            self.shared[index] = _local(shape, dtype)
        return self.shared[index]

    def _tick(self) -> None:
        self.ticks += 1
        if self.ticks > self.max_turns:
            raise TimeoutError


def _waiting_functions(trees: dict[str, ast.Module]) -> set[str]:
    """The functions with a barrier or a shuffle, and those that call them."""
    called = {name: {each.attr if isinstance(each, ast.Attribute) else each.id for each in ast.walk(tree)
                     if isinstance(each, (ast.Attribute, ast.Name))} for name, tree in trees.items()}
    waiting = {name for name, names in called.items() if names & WAITS}
    for _ in trees:
        waiting |= {name for name, names in called.items() if names & waiting}
    return waiting


def _served(requests: dict[int, tuple]) -> dict:
    """Remove the requests that can be served: a barrier's when all threads wait for it, a shuffle's when all lanes
    that are not at a barrier do. Return the replies, by thread."""
    if all(request[0] == "syncthreads" for request in requests.values()):
        requests.clear()
        return {}
    replies, count_before = {}, len(requests)
    for warp in sorted({thread // 32 for thread in requests}):
        lanes = {thread: request for thread, request in requests.items()
                 if thread // 32 == warp and request[0] != "syncthreads"}
        if len({request[0] for request in lanes.values()}) != 1:
            continue
        for thread, (kind, *values) in lanes.items():
            if kind != "syncwarp":
                replies[thread] = lanes.get(_source(kind, thread, values), lanes[thread])[2]
            del requests[thread]
    if len(requests) == count_before:
        raise RuntimeError("they wait for one another")
    return replies


def _source(kind: str, thread: int, values: list) -> int:
    lane, base, delta = thread % 32, thread // 32 * 32, int(values[2])
    source_lane = {"shfl_sync": delta % 32, "shfl_up_sync": lane - delta, "shfl_down_sync": lane + delta}.get(
        kind, lane ^ delta)
    return base + source_lane if 0 <= source_lane < 32 else thread


class _Generators(ast.NodeTransformer):
    """Turn barriers and shuffles into `yield`, look up shared arrays by index, count turns of loops."""

    def __init__(self, waiting: set[str], array_ids):
        self.waiting, self.array_ids = waiting, array_ids

    def visit_Call(self, node):
        self.generic_visit(node)
        called = ast.unparse(node.func)
        name = called.removeprefix("cuda.")
        if name in WAITS and name != called:
            return ast.Yield(ast.Tuple([ast.Constant(name), *node.args], ast.Load()))
        if called == "cuda.shared.array":
            return ast.Call(ast.Name("_shared", ast.Load()), [ast.Constant(next(self.array_ids)), *node.args],
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


def _set_xyz(target: SimpleNamespace, position: tuple) -> None:
    target.x, target.y, target.z = position


def _three(value) -> tuple[int, int, int]:
    parts = tuple(int(v) for v in value) if isinstance(value, (tuple, list)) else (int(value),)
    return (*parts, 1, 1)[:3]
