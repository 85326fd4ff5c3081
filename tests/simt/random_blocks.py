"""Random kernels of whole blocks, with barriers, shuffles, votes, atomics and shared memory, and what NumPy makes of
them: each step is a line of the kernel and a function of arrays with an entry for each thread. No step of the NumPy
side is shared with labkit.simt.
"""

import random
from dataclasses import dataclass, field

import numpy as np

THREADS, BLOCKS, WARP = 64, 2, 32
TOTAL = THREADS * BLOCKS
HEAD = """from numba import float32, int32, uint32

from labkit import cuda

FULL = 0xFFFFFFFF


@cuda.jit(device=True)
def rotated(value, by):
    return cuda.shfl_sync(FULL, value, (cuda.laneid + by) & 31)


@cuda.jit(device=True)
def exchanged(tile, value, other):
    t = cuda.threadIdx.x
    cuda.syncthreads()
    tile[t] = value
    cuda.syncthreads()
    return tile[other]
"""


@dataclass
class State:
    """What the threads have: variables by name, int32 or float32, one entry for each; the counters of each block."""

    values: dict
    totals: np.ndarray  # (BLOCKS, 8) int32: global counters, of which each block has 8
    lane: np.ndarray = field(default_factory=lambda: np.arange(TOTAL) % WARP)
    thread: np.ndarray = field(default_factory=lambda: np.arange(TOTAL) % THREADS)

    def of_warp(self, source):
        """The threads that stand at these lanes of each thread's own warp."""
        return np.arange(TOTAL) // WARP * WARP + source

    def of_block(self, source):
        return np.arange(TOTAL) // THREADS * THREADS + source


def _int32(values):
    return np.asarray(values).astype(np.int64).astype(np.int32)


class Blocks:
    """A random kernel: lines of source, and as many functions of a State."""

    def __init__(self, name, seed, length=6):
        self.name, self.seed, self.random = name, seed, random.Random(seed)
        self.lines, self.steps, self.names = [], [], {"i0": np.int32, "i1": np.int32, "x0": np.float32}
        self.count, self.operators = 2, {}  # of the atomics on each total: two kinds on one give what their order gives
        for _ in range(length):
            self._step()

    def source(self):
        stores = [f"    out_{'real' if ty is np.float32 else 'whole'}[{k}, g] = {name}"
                  for k, (name, ty) in enumerate(self.names.items())]  # fmt: skip
        return "\n".join([
            "@cuda.jit(device=True)", f"def {self.name}(i0, i1, x0, totals, tile, reals, out_whole, out_real):",
            "    t, g, lane = cuda.threadIdx.x, cuda.grid(1), cuda.laneid", *self.lines, *stores])  # fmt: skip

    def expected(self, i0, i1, x0):
        state = State({"i0": i0, "i1": i1, "x0": x0}, np.zeros((BLOCKS, 8), np.int32))
        for step in self.steps:
            step(state)
        whole, real = np.zeros((16, TOTAL), np.int32), np.zeros((16, TOTAL), np.float32)
        for k, (name, ty) in enumerate(self.names.items()):
            (real if ty is np.float32 else whole)[k] = state.values[name]
        return state.totals.reshape(-1), whole, real

    # ---------------- steps

    def _new(self, ty):
        self.count += 1
        name = f"{'x' if ty is np.float32 else 'i'}{self.count}"
        return name

    def _pick(self, ty=np.int32):
        return self.random.choice([name for name, kind in self.names.items() if kind is ty])

    def _set(self, ty, text, compute):
        name = self._new(ty)
        self.names[name] = ty
        self.lines.append(f"    {name} = {text}")

        def step(state):
            state.values[name] = np.asarray(compute(state)).astype(ty)

        self.steps.append(step)

    def _step(self):
        r = self.random
        kind = r.choice([
            "arithmetic", "shuffle", "shuffle", "shuffle_float", "half_warp", "vote", "ballot", "match", "count",
            "exchange", "loop", "atomic", "branch", "local", "device", "while", "inline"])  # fmt: skip
        getattr(self, f"_{kind}")()

    def _arithmetic(self):
        a, b, op = self._pick(), self._pick(), self.random.choice("+-&|^")
        apply = {"+": np.add, "-": np.subtract, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[op]
        self._set(np.int32, f"int32({a} {op} {b})",
                  lambda s: _int32(apply(*(s.values[n].astype(np.int64) for n in (a, b)))))

    def _shuffle(self, ty=np.int32):
        name, by = self._pick(ty), self.random.randint(0, 31)
        op = self.random.choice(["sync", "up_sync", "down_sync", "xor_sync"])

        def compute(s):
            source = {"sync": s.lane * 0 + by, "up_sync": s.lane - by, "down_sync": s.lane + by,
                      "xor_sync": s.lane ^ by}[op]  # fmt: skip
            source = np.where((source < 0) | (source > 31), s.lane, source)
            return s.values[name][s.of_warp(source)]

        self._set(ty, f"cuda.shfl_{op}(FULL, {name}, {by})", compute)

    def _shuffle_float(self):
        self._shuffle(np.float32)

    def _half_warp(self):
        """A sum over half of each warp, under a mask that leaves out the other half."""
        name, new = self._pick(), self._new(np.int32)
        self.names[new] = np.int32
        self.lines += [f"    {new} = int32({name} & 1023)", "    if lane < 16:", "        for k in range(4):",
                       f"            {new} += cuda.shfl_down_sync(0xFFFF, int32({new}), 8 >> k)",
                       f"    {new} = int32({new}) if lane == 0 else int32(5)"]  # fmt: skip

        def step(s):
            low = np.where(s.lane < 16, s.values[name] & 1023, 0).reshape(-1, WARP).sum(1)
            s.values[new] = np.where(s.lane == 0, np.repeat(low, WARP), 5).astype(np.int32)

        self.steps.append(step)

    def _vote(self):
        name, limit, op = self._pick(), self.random.randint(-5, 5), self.random.choice(["all", "any", "eq"])

        def compute(s):
            votes = (s.values[name] > limit).reshape(-1, WARP)
            result = {"all": votes.all(1), "any": votes.any(1), "eq": votes.all(1) | ~votes.any(1)}[op]
            return np.repeat(result, WARP)

        self._set(np.int32, f"int32(1) if cuda.{op}_sync(FULL, {name} > {limit}) else int32(0)", compute)

    def _ballot(self):
        name, limit, by = self._pick(), self.random.randint(-5, 5), self.random.randint(0, 31)

        def compute(s):
            votes = (s.values[name] > limit).reshape(-1, WARP).astype(np.int64)
            bits = _int32((votes << np.arange(WARP)).sum(1))
            counts = votes.sum(1)
            return np.repeat(_int32((bits >> by) + counts), WARP)

        ballot = f"cuda.ballot_sync(FULL, {name} > {limit})"
        self._set(np.int32, f"int32(({ballot} >> {by}) + cuda.popc({ballot}))", compute)

    def _match(self):
        name = self._pick()

        def compute(s):
            few = (s.values[name] & 3).reshape(-1, WARP).astype(np.int64)
            same = few[:, :, None] == few[:, None, :]
            return _int32((same.astype(np.int64) << np.arange(WARP)).sum(2)).reshape(-1)

        self._set(np.int32, f"cuda.match_any_sync(FULL, int32({name} & 3))", compute)

    def _count(self):
        name, limit = self._pick(), self.random.randint(-5, 5)
        op = self.random.choice(["count", "and", "or"])

        def compute(s):
            votes = (s.values[name] > limit).reshape(BLOCKS, THREADS)
            return np.repeat({"count": votes.sum(1), "and": votes.all(1), "or": votes.any(1)}[op], THREADS)

        self._set(np.int32, f"cuda.syncthreads_{op}(int32({name} > {limit}))", compute)

    def _exchange(self):
        """Through shared memory, with barriers."""
        ty = self.random.choice([np.int32, np.float32])
        name, by = self._pick(ty), self.random.randint(1, 63)
        tile, new = "reals" if ty is np.float32 else "tile", self._new(ty)
        self.names[new] = ty
        self.lines += ["    cuda.syncthreads()", f"    {tile}[t] = {name}", "    cuda.syncthreads()",
                       f"    {new} = {tile}[(t * 5 + {by}) & 63]"]  # fmt: skip

        def step(s):
            s.values[new] = s.values[name][s.of_block((s.thread * 5 + by) & 63)]

        self.steps.append(step)

    def _inline(self):
        name, by = self._pick(), self.random.randint(1, 63)
        self._set(np.int32, f"exchanged(tile, {name}, (t + {by}) & 63)",
                  lambda s: s.values[name][s.of_block((s.thread + by) & 63)])

    def _device(self):
        name, by = self._pick(), self.random.randint(0, 31)
        self._set(np.int32, f"rotated({name}, {by})", lambda s: s.values[name][s.of_warp((s.lane + by) & 31)])

    def _loop(self):
        """A tree reduction over a block: a loop that holds a barrier."""
        name, new = self._pick(), self._new(np.int32)
        self.names[new] = np.int32
        self.lines += ["    cuda.syncthreads()", f"    tile[t] = {name} & 4095", "    cuda.syncthreads()",
                       "    step = 32", "    while step > 0:", "        if t < step:",
                       "            tile[t] += tile[t + step]",
                       "        cuda.syncthreads()", "        step >>= 1", f"    {new} = tile[0]"]  # fmt: skip

        def step(s):
            sums = (s.values[name] & 4095).reshape(BLOCKS, THREADS).sum(1)
            s.values[new] = np.repeat(sums, THREADS).astype(np.int32)

        self.steps.append(step)

    def _atomic(self):
        name, cell, op = self._pick(), self.random.randint(0, 7), self.random.choice(["add", "max", "min", "xor"])
        op = self.operators.setdefault(cell, op)
        self.lines.append(f"    cuda.atomic.{op}(totals, cuda.blockIdx.x * 8 + {cell}, int32({name} & 1023))")

        def step(s):
            given = (s.values[name] & 1023).reshape(BLOCKS, THREADS).astype(np.int64)
            apply = {"add": np.add, "max": np.maximum, "min": np.minimum, "xor": np.bitwise_xor}[op]
            s.totals[:, cell] = apply(s.totals[:, cell], apply.reduce(given, axis=1))

        self.steps.append(step)

    def _branch(self):
        """A branch of whole warps that holds a shuffle, of threads that hold none."""
        name, by, new = self._pick(), self.random.randint(1, 31), self._new(np.int32)
        self.names[new] = np.int32
        self.lines += [f"    {new} = {name}", f"    if t < {WARP}:",
                       f"        {new} = cuda.shfl_xor_sync(FULL, {name}, {by})", f"    elif lane < {by}:",
                       f"        {new} = int32(lane)"]  # fmt: skip

        def step(s):
            values = s.values[name]
            other = np.where(s.lane < by, s.lane, values)
            s.values[new] = np.where(s.thread < WARP, values[s.of_warp(s.lane ^ by)], other).astype(np.int32)

        self.steps.append(step)

    def _while(self):
        """Loops of different lengths, with a vote that says when all lanes are done."""
        name, new = self._pick(), self._new(np.int32)
        self.names[new] = np.int32
        self.lines += [f"    {new} = int32(0)", f"    while cuda.any_sync(FULL, {new} < ({name} & 7)):",
                       f"        {new} = int32({new} + 1)"]  # fmt: skip

        def step(s):
            s.values[new] = np.repeat((s.values[name] & 7).reshape(-1, WARP).max(1), WARP).astype(np.int32)

        self.steps.append(step)

    def _local(self):
        name, at = self._pick(), self.random.randint(0, 3)
        new = self._new(np.int32)
        self.names[new] = np.int32
        self.lines += [f"    own{new} = cuda.local.array(4, int32)", "    for k in range(4):",
                       f"        own{new}[k] = int32({name} + k)", "    cuda.syncwarp()",
                       f"    {new} = own{new}[(t + {at}) & 3]"]  # fmt: skip

        def step(s):
            s.values[new] = _int32(s.values[name].astype(np.int64) + ((s.thread + at) & 3))

        self.steps.append(step)


def kernel_source(programs):
    """A module with a kernel that runs one of the programs."""
    arguments = "i0, i1, x0, totals"
    calls = [f"    {'elif' if k else 'if'} which == {k}:\n        {p.name}(i0[g], i1[g], x0[g], totals, tile, reals, "
             "out_whole, out_real)" for k, p in enumerate(programs)]  # fmt: skip
    kernel = ["@cuda.jit", f"def kernel(which, {arguments}, out_whole, out_real):", "    g = cuda.grid(1)",
              f"    tile = cuda.shared.array({THREADS}, int32)", f"    reals = cuda.shared.array({THREADS}, float32)",
              *calls]  # fmt: skip
    return "\n\n\n".join([HEAD.strip(), *(p.source() for p in programs), "\n".join(kernel)]) + "\n"


def inputs(seed):
    rng = np.random.default_rng(seed)
    small = [rng.integers(-9, 10, TOTAL).astype(np.int32) for _ in range(2)]
    return [*small, rng.normal(size=TOTAL).astype(np.float32)]
