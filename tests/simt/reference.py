"""What a kernel means, as slowly and as plainly as possible: an oracle for the CPU device.

Each CUDA thread is a Python generator made from the kernel's own source. Every call in it goes through `call`; a
barrier or warp collective is a `yield` of its name and arguments, a device function is a `yield from`. A loop hands
each thread what it waits for. There is no typing, no compiling, no masking of control flow: Python does all of that.

Integers read from arrays are Python integers, so an oracle's integers never wrap. Floats are NumPy scalars.
"""

import ast
import inspect
import itertools
import random
import types as python_types

import numba
import numpy as np

from labkit import cuda

WARP = 32


class Deadlock(Exception):
    """Threads wait for one another in a way that CUDA leaves undefined."""


class Request:
    """A barrier or collective that a thread waits at: compared by name, mask and the line of its caller."""

    def __init__(self, op, args):
        self.op, self.args, self.answer = op, args, None


class Op:
    """A name of cuda that threads wait at."""

    def __init__(self, name):
        self.name = name


class Scalar:
    """A Numba type as device code uses it: float32(x) converts, shared.array(n, float32) takes its dtype."""

    def __init__(self, ty):
        self.dtype = np.dtype(ty.name if ty.name != "bool" else "bool")

    def __call__(self, value):
        if self.dtype.kind == "f":
            return self.dtype.type(value)
        if self.dtype.kind == "b":
            return bool(value)
        bits, signed = 8 * self.dtype.itemsize, self.dtype.kind == "i"
        value = int(value) & (1 << bits) - 1
        return value - (1 << bits) if signed and value >> bits - 1 else value


class _Names(python_types.SimpleNamespace):
    pass


BLOCK_OPS = ("syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or")
WARP_OPS = ("syncwarp", "shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync", "all_sync", "any_sync",
            "eq_sync", "ballot_sync", "match_any_sync", "match_all_sync")  # fmt: skip


class _ToGenerator(ast.NodeTransformer):
    """A function's source -> a generator function of (cuda, *its own parameters)."""

    def __init__(self, scope):
        self.scope = scope

    def visit_Call(self, node):
        where = (self.scope, node.lineno, node.col_offset)
        self.generic_visit(node)
        site = ast.Constant(where)
        inner = ast.Call(ast.Name("_call", ast.Load()), [ast.Name("cuda", ast.Load()), site, node.func, *node.args],
                         node.keywords)  # fmt: skip
        return ast.YieldFrom(inner)

    def visit_Subscript(self, node):
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        return ast.Call(ast.Name("_load", ast.Load()), [node.value, self._index(node.slice)], [])

    def _index(self, node):
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self._index(e) for e in node.elts], ast.Load())
        if isinstance(node, ast.Slice):
            parts = [p or ast.Constant(None) for p in (node.lower, node.upper, node.step)]
            return ast.Call(ast.Name("slice", ast.Load()), parts, [])
        return node


def _load(array, index):
    return _plain(array[index])


def _plain(value):
    if isinstance(value, np.bool_):
        return bool(value)
    return int(value) if isinstance(value, np.integer) else value


def _call(thread, site, function, *args, **kwargs):
    if isinstance(function, Op):
        return (yield Request(function.name, args))
    if hasattr(function, "py_func"):
        return (yield from generator_function(function.py_func)(thread, *args, **kwargs))
    if function is thread.shared.array:
        return thread.block.shared_array(site, *args, **kwargs)
    return function(*args, **kwargs)


_MADE = {}


def generator_function(function):
    """The generator function that means the same as a kernel or a device function."""
    known = _MADE.get(function)
    if known:
        return known
    lines, first = inspect.getsourcelines(function)
    indent = len(lines[0]) - len(lines[0].lstrip())
    tree = ast.parse("if True:\n" + "".join(lines) if indent else "".join(lines))
    definition = tree.body[0].body[0] if indent else tree.body[0]
    definition.decorator_list = []
    definition.args.args.insert(0, ast.arg("cuda"))
    definition.args.defaults = []
    scope = f"{function.__qualname__}:{first}:{id(function)}"
    definition.body = [_ToGenerator(scope).visit(s) for s in definition.body]
    never = ast.If(ast.Constant(False), [ast.Expr(ast.Yield(None))], [])
    definition.body.append(never)
    module = ast.fix_missing_locations(ast.Module([definition], []))
    environment = dict(function.__globals__)
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    environment |= {name: cell.cell_contents for name, cell in closure}
    environment = {name: _substitute(value) for name, value in environment.items()}
    environment |= {"_call": _call, "_load": _load}
    exec(compile(module, f"<reference of {function.__name__}>", "exec"), environment)
    made = environment[function.__name__]
    made.__defaults__ = function.__defaults__
    _MADE[function] = made
    return made


def _substitute(value):
    if isinstance(value, numba.types.Type) and isinstance(value, (numba.types.Number, numba.types.Boolean)):
        return Scalar(value)
    return value


# ---------------------------------------------------------------- a block, a thread


class Block:
    """Shared memory of one block."""

    def __init__(self, index, dynamic):
        self.index, self.arrays = index, {}
        self.dynamic = np.full(dynamic, 0xFF, np.uint8)

    def shared_array(self, site, shape, dtype):
        dtype = dtype.dtype if isinstance(dtype, Scalar) else np.dtype(dtype)
        if shape == 0:
            return self.dynamic[: self.dynamic.size // dtype.itemsize * dtype.itemsize].view(dtype)
        if site not in self.arrays:
            self.arrays[site] = _poisoned(shape, dtype)
        return self.arrays[site]


def _poisoned(shape, dtype):
    dtype = dtype.dtype if isinstance(dtype, Scalar) else np.dtype(dtype)
    array = np.zeros(shape, dtype)
    array.view(np.uint8)[...] = 0xFF
    return array


class Thread:
    """The `cuda` of one thread."""

    def __init__(self, block, grid_dim, block_dim, position):
        self.block, self.position = block, position
        x, y, z = position
        self.linear = (z * block_dim[1] + y) * block_dim[0] + x
        self.warp, self.lane = divmod(self.linear, WARP)
        self.laneid, self.warpsize = self.lane, WARP
        self.threadIdx, self.blockIdx, self.blockDim, self.gridDim = (
            _Names(x=p[0], y=p[1], z=p[2]) for p in (position, block.index, block_dim, grid_dim)
        )
        self._axes = tuple(zip(position, block.index, block_dim, grid_dim, strict=True))
        self.shared, self.local = _Names(array=object()), _Names(array=_poisoned)
        self.atomic = _Names(add=self._atomic(lambda old, v: old + v), max=self._atomic(max), min=self._atomic(min),
                             exch=self._atomic(lambda old, v: v), xor=self._atomic(lambda old, v: old ^ v))  # fmt: skip
        self.cg = _Names(this_grid=lambda: _Names(sync=Op("grid_sync")))
        for name in (*BLOCK_OPS, *WARP_OPS):
            setattr(self, name, Op(name))
        self.generator, self.request, self.alive = None, None, True

    def grid(self, ndim):
        values = tuple(b * d + t for t, b, d, _ in self._axes[:ndim])
        return values[0] if ndim == 1 else values

    def gridsize(self, ndim):
        values = tuple(d * g for _, _, d, g in self._axes[:ndim])
        return values[0] if ndim == 1 else values

    def popc(self, value):
        return (value & 0xFFFFFFFF).bit_count()

    def ffs(self, value):
        return (value & -value).bit_length()

    @staticmethod
    def _atomic(compute):
        def operation(array, index, value):
            old = _plain(array[index])
            array[index] = compute(old, value)
            return old

        return operation

    def advance(self):
        answer = self.request.answer if self.request else None
        try:
            self.request = self.generator.send(answer)
        except StopIteration:
            self.request, self.alive = None, False


def _signed(bits):
    return bits - (1 << 32) if bits >> 31 else bits


def _warp_answer(op, lanes):
    """Fill in the answers of the lanes {lane: thread} that take part in a collective."""
    values = {lane: t.request.args[1] if len(t.request.args) > 1 else None for lane, t in lanes.items()}
    for lane, t in lanes.items():
        args = t.request.args
        if op == "syncwarp":
            answer = None
        elif op.startswith("shfl"):
            by = int(args[2])
            source = {"shfl_sync": by & 31, "shfl_up_sync": lane - by, "shfl_down_sync": lane + by,
                      "shfl_xor_sync": lane ^ by}[op]  # fmt: skip
            if 0 <= source < WARP and source not in lanes:
                raise Deadlock(f"lane {lane} reads absent lane {source}")
            answer = values.get(source, values[lane])
        elif op == "match_any_sync":
            answer = _signed(sum(1 << k for k, v in values.items() if v == values[lane]))
        elif op == "match_all_sync":
            same = all(v == values[lane] for v in values.values())
            answer = (_signed(sum(1 << k for k in lanes)), True) if same else (0, False)
        else:
            true = [bool(v) for v in values.values()]
            answer = {"all_sync": all(true), "any_sync": any(true), "eq_sync": len(set(true)) == 1,
                      "ballot_sync": _signed(sum(1 << k for k, v in values.items() if v))}[op]  # fmt: skip
        t.request.answer = answer


def _resolve_warp(threads):
    """Complete the collectives of one warp that all the lanes named by their masks have reached."""
    waiting = {t.lane: t for t in threads if t.alive and t.request.op in WARP_OPS}
    alive = {t.lane for t in threads if t.alive}
    done = False
    groups = {}
    for lane, t in waiting.items():
        mask = int(t.request.args[0] if t.request.args else 0xFFFFFFFF) & 0xFFFFFFFF
        groups.setdefault((t.request.op, mask), {})[lane] = t
    for (op, mask), lanes in groups.items():
        if set(lanes) == {k for k in range(WARP) if mask >> k & 1} & alive:
            _warp_answer(op, lanes)
            for t in lanes.values():
                t.advance()
            done = True
    return done


def _resolve_block(threads):
    """Complete a barrier of one block."""
    if not all(t.alive and t.request.op in BLOCK_OPS for t in threads):
        return False
    if len({t.request.op for t in threads}) > 1:
        raise Deadlock("different barriers")
    count = sum(bool(t.request.args[0]) for t in threads if t.request.args)
    value = {"count": count, "and": int(count == len(threads)), "or": int(count > 0)}
    for t in threads:
        t.request.answer = value.get(t.request.op.rpartition("_")[2])
        t.advance()
    return True


def _run_blocks(blocks):
    """Run blocks (lists of threads) to their end, together."""
    for t in itertools.chain(*blocks):
        t.advance()
    while any(t.alive for block in blocks for t in block):
        done = False
        for block in blocks:
            warps = {}
            for t in block:
                warps.setdefault(t.warp, []).append(t)
            for warp in warps.values():
                while any(t.alive for t in warp) and _resolve_warp(warp):
                    done = True
            if any(t.alive for t in block):
                done |= _resolve_block(block)
        if not done:
            everyone = list(itertools.chain(*blocks))
            if not all(t.alive and t.request.op == "grid_sync" for t in everyone):
                raise Deadlock({(t.alive, t.request and t.request.op) for t in everyone})
            for t in everyone:
                t.advance()


def run(kernel, grid, block, *args, shared_bytes=0, seed=None, cooperative=False):
    """Run a kernel on host arrays, in place. With a seed, threads and blocks take their turns in a random order."""
    grid, block = ((*(d if isinstance(d, tuple) else (d,)), 1, 1)[:3] for d in (grid, block))
    function = generator_function(kernel.py_func)
    args = [_plain(a) if isinstance(a, np.generic) else a for a in args]
    blocks = []
    for bz, by, bx in itertools.product(*map(range, reversed(grid))):
        home = Block((bx, by, bz), shared_bytes)
        threads = [
            Thread(home, grid, block, (tx, ty, tz)) for tz, ty, tx in itertools.product(*map(range, reversed(block)))
        ]
        for t in threads:
            t.generator = function(t, *args)
        blocks.append(threads)
    if seed is not None:
        shuffle = random.Random(seed)
        shuffle.shuffle(blocks)
        for threads in blocks:
            shuffle.shuffle(threads)
    with np.errstate(all="ignore"):
        for group in [blocks] if cooperative else [[b] for b in blocks]:
            _run_blocks(group)


def agree(kernel, grid, block, *args, shared_bytes=0, cooperative=False, rtol=2e-5, orders=(None, 1)):
    """Launch the kernel on the CPU device and run it here, on copies of the arrays; compare every array afterwards.

    The oracle runs in several orders of the threads first: a kernel whose result depends on the order is a bad test.
    """
    copies = [[np.array(a) if isinstance(a, np.ndarray) else a for a in args] for _ in orders]
    for seed, mine in zip(orders, copies, strict=True):
        run(kernel, grid, block, *mine, shared_bytes=shared_bytes, seed=seed, cooperative=cooperative)
    got = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in args]
    kernel[grid, block, 0, shared_bytes](*got)
    for name, value, *expected in zip(kernel.py_func.__code__.co_varnames, got, *copies, strict=False):
        if isinstance(expected[0], np.ndarray):
            for other in expected[1:]:
                _compare(f"{name} in another order of threads", other, expected[0], 1e-5)
            _compare(name, value.copy_to_host(), expected[0], rtol)


def _compare(name, got, expected, rtol):
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected, err_msg=name)
    else:
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol, err_msg=name)


def ints(*shape, seed=0, high=100):
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int64)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
