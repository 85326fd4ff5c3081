"""Random kernels of whole blocks: barriers, collectives and atomics within branches, loops and device functions.

reference.py has what each should give; differential.py compares.
"""

import random

import numpy as np

from tests.simt.reference import floats, ints

LEVELS = ("block", "warp", "thread")
HEADER = """
from numba import float32, int32, int64
from labkit import cuda

FULL = 0xFFFFFFFF


@cuda.jit(device=True)
def exchanged(tile, value, other):
    cuda.syncthreads()
    tile[cuda.threadIdx.x] = value
    cuda.syncthreads()
    return tile[other]

"""


class Program:
    """A random kernel, free of races and divergence by construction, and its launch.

    A statement is written at one of three levels: "block" (every thread of the block is here), "warp" (every thread of
    its warp) or "thread". Barriers stand at block level, collectives at warp level or above. Integer variables u are
    the same in a block, w in a warp, v differ; f are floats; z is now an integer, now a float. A shared array is
    written, own element only, between two barriers, and read, any element, between the next two.
    """

    def __init__(self, seed, size):
        self.seed, self.random, self.size = seed, random.Random(seed), size
        self.lines, self.depth, self.names = [], 1, 0
        self.level, self.loops, self.inside = "block", [], 0
        self.u, self.w, self.v, self.f = ["n", "bx"], ["warp"], ["t", "lane"], []
        self.fixed = {"n", "bx", "warp", "t", "lane"}
        self.writable, self.readable, self.floats, self.busy = [], [], [], set()
        self.functions, self.in_function = [], False
        self.operators = {}  # of the atomics on each total: two kinds on one give what their order gives
        self._source = self._drawn()

    def source(self):
        return self._source

    @property
    def launch(self):
        return 1 + self.seed % 3, 64 if self.seed % 3 else 96

    def inputs(self):
        """(arguments, outputs)"""
        blocks, threads = self.launch
        arguments = [ints(64, seed=self.seed), floats(64, seed=self.seed), ints(5, 4, seed=self.seed + 1)]
        outputs = [np.zeros((blocks * threads, 10), np.int64), np.zeros((blocks * threads, 2), np.float32)]
        return [*arguments, np.int64(self.seed % 4)], [np.zeros(blocks * 8, np.int64), *outputs]

    # ---------------- text

    def line(self, text):
        self.lines.append("    " * self.depth + text)

    def name(self, stem):
        self.names += 1
        return f"{stem}{self.names}"

    def chance(self, p):
        return self.random.random() < p

    def pick(self, *choices):
        return self.random.choice(choices)

    # ---------------- expressions

    def own(self, level):
        """The variables that are the same for this level, and for no wider one."""
        return {"block": self.u, "warp": self.w, "thread": self.v}[level]

    def pool(self, level):
        return [name for wide in LEVELS[: LEVELS.index(level) + 1] for name in self.own(wide)]

    def whole(self, level=None, deep=2):
        """An integer expression of small size, the same for all the threads of the level."""
        level = level or "thread"
        kind = self.random.randrange(10)
        if deep == 0 or kind < 3:
            return self.pick(*self.pool(level), str(self.random.randrange(10)))
        a, b = self.whole(level, deep - 1), self.whole(level, deep - 1)
        if kind < 6:
            return f"({a} {self.pick('+', '-', '*', '&', '|', '^')} {b}) % {self.pick(7, 64, 101)}"
        if kind == 6:
            test = self.test(level, deep - 1)
            self.inside += level == "thread"  # threads part: nothing to wait for beyond
            a, b = self.whole(level, deep - 1), self.whole(level, deep - 1)
            self.inside -= level == "thread"
            return f"({a} if {test} else {b})"
        if kind == 7:
            return self.pick(f"min({a}, {b})", f"max({a}, {b})", f"abs({a} - {b})", f"({a} // {self.pick(2, 3, 5)})")
        if kind == 8:
            return self.memory(level)
        return self.collective(level, deep - 1)

    def memory(self, level):
        if self.in_function:
            return self.whole(level, 0)
        if level == "thread":
            options = [f"a[({self.whole(level, 0)} + {self.random.randrange(50)}) % 64]", "row[lane % 4]"]
            options += [f"{s}[(t + {self.whole('thread', 0)}) % T]" for s in self.readable]
            options += [f"{s}[t]" for s in self.writable]
            options += [f"mine[{self.whole(level, 0)} % 4]"]
        else:
            options = [f"a[{self.whole(level, 0)} % 64]"]
            options += [f"{s}[{self.whole(level, 0)} % T]" for s in self.readable]
        return f"({self.pick(*options)} % 100)"

    def collective(self, level, deep):
        """Something that threads wait at, where they may; its value is the same for the level."""
        if self.level == "thread" or self.inside:
            return self.whole(level, 0)
        self.inside += 1
        value, test = self.whole("thread", deep), self.test("thread", deep)
        self.inside -= 1
        value, few = f"{self.pick('int32', 'int64')}({value})", f"int64({value}) % 4"
        each = [f"cuda.shfl_xor_sync(FULL, {value}, {self.pick(1, 2, 7)})", f"cuda.shfl_sync(FULL, {value}, lane // 2)",
                f"cuda.shfl_down_sync(FULL, {value}, {self.pick(1, 5)})",
                f"cuda.shfl_up_sync(FULL, {value}, {self.pick(1, 9)})",
                f"cuda.popc(cuda.match_any_sync(FULL, {few}))"]  # fmt: skip
        warp = [f"cuda.shfl_sync(FULL, {value}, {self.whole('warp', 0)} % 32)",
                f"(cuda.ballot_sync(FULL, {test}) >> {self.pick(0, 3, 30)}) % 64",
                f"cuda.popc(cuda.ballot_sync(FULL, {test}))", f"(5 if cuda.any_sync(FULL, {test}) else 2)",
                f"int64(cuda.all_sync(FULL, {test}))", f"int64(cuda.eq_sync(FULL, {test}))"]  # fmt: skip
        block = [f"cuda.syncthreads_{op}(int64({test}))" for op in ("count", "or", "and")]
        if level == "block":
            return self.pick(*block) if self.level == "block" else self.whole(level, 0)
        options = warp if level == "warp" else warp + each
        if level == "thread":
            options = options + [f"{name}({value}, {self.whole('warp', 0)})" for name in self.functions]
        return self.pick(*options)

    def test(self, level, deep=1):
        a, b = self.whole(level, deep), self.whole(level, 0)
        kind = self.random.randrange(6)
        if kind == 0 and deep:
            first = self.test(level, deep - 1)
            return f"({first} {self.pick('and', 'or')} {self.parted(level)})"
        if kind == 1:
            return f"(not {a} > {b})"
        if kind == 2:
            return f"{a} % {self.pick(2, 3)} == {self.pick(0, 1)}"
        return f"{a} {self.pick('<', '>', '>=', '!=')} {b}"

    def parted(self, level):
        """A test that only some of the threads of the level evaluate."""
        self.inside += level == "thread"
        test = self.test(level)
        self.inside -= level == "thread"
        return test

    def real(self):
        a = self.pick(*self.f)
        options = [f"{a} * float32(0.5)", f"{a} + float32({self.whole('thread', 0)})",
                   f"max({a}, {self.pick(*self.f)})", f"{a} - {self.pick(*self.f)} * float32(0.25)"]  # fmt: skip
        if not self.in_function:
            options.append(f"x[{self.whole('thread', 0)} % 64]")
            options += [f"{s}[(t + {self.whole('thread', 0)}) % T]" for s in self.floats]
        if self.level != "thread":
            options.append(f"cuda.shfl_xor_sync(FULL, {a}, {self.pick(1, 4)})")
        return f"({self.pick(*options)}) * float32(0.5)"

    # ---------------- statements

    def block(self, count, least=1):
        before = [list(p) for p in (self.u, self.w, self.v, self.f)]
        for _ in range(self.random.randint(least, count)):
            self.statement()
        self.u, self.w, self.v, self.f = before

    def at(self, level, count=2):
        """Statements below, at this level or a narrower one."""
        outer, self.level = self.level, max(self.level, level, key=LEVELS.index)
        self.depth += 1
        self.block(count)
        self.depth -= 1
        self.level = outer

    def statement(self):
        kind = self.random.random()
        if self.depth > 2 + self.size // 4 or kind < 0.35:
            self.assign()
        elif kind < 0.58:
            self.branch()
        elif kind < 0.74:
            self.loop()
        elif kind < 0.8 and self.loops:
            self.jump()
        elif kind < 0.86 and self.level == "warp":
            self.some_lanes()
        elif self.level == "block" and kind < 0.97:
            self.pick(self.exchange, self.exchange, self.exchange_floats, self.exchange_in_a_function)()
        elif kind < 0.99 and not self.in_function:
            self.atomic()
        else:
            self.assign()

    def targets(self, names):
        return [n for n in names if n not in self.fixed]

    def assign(self):
        level = self.pick(*LEVELS[LEVELS.index(self.level) :])
        kind = self.random.randrange(12)
        own = self.targets(self.own(level))
        if kind == 0:
            return self.line(f"{self.pick(*self.f)} = {self.real()}")
        if kind == 1 and len(own) > 1:
            a, b = self.random.sample(own, 2)
            return self.line(self.pick(f"{a}, {b} = {b}, {a}", f"{a} = {b} = {self.whole(level)} % 90"))
        if kind == 2 and self.writable:
            return self.line(f"{self.pick(*self.writable)}[t] {self.pick('=', '+=')} {self.whole()} % 90")
        if kind == 3 and not self.in_function:
            return self.line(f"mine[{self.whole('thread', 0)} % 4] = {self.whole()} % 90")
        if kind == 4:
            self.line(f"z = {self.pick(self.whole(), self.real())}")
            return self.line(f"{self.pick(*self.f)} += float32(z) * float32(0.125)")
        if kind == 5 and own:
            return self.line(f"{self.pick(*own)} += {self.whole(level, 1)} % 50")
        if kind == 6:
            new = self.name({"block": "u", "warp": "w", "thread": "v"}[level])
            self.line(f"{new} = {self.whole(level)}")
            return self.own(level).append(new)
        if own:
            self.line(f"{self.pick(*own)} = {self.whole(level)} % 1009")
        else:
            self.line(f"{self.pick(*self.targets(self.v))} = {self.whole()} % 1009")

    def branch(self):
        level = self.pick(*LEVELS)
        self.line(f"if {self.test(level)}:")
        self.at(level)
        if self.chance(0.3):
            self.line(f"elif {self.parted(level)}:")
            self.at(level)
        if self.chance(0.5):
            self.line("else:")
            self.at(level)

    def loop(self):
        level = self.pick(*LEVELS)
        effective = max(self.level, level, key=LEVELS.index)
        counter = self.name("k")
        jumps = self.chance(0.6)
        if self.chance(0.6):
            trips = f"{self.whole(level, 1)} % {self.pick(3, 4)}"
            bounds = self.pick(trips, trips, f"1, 2 + {trips}", f"{trips}, -2, -1", "3")
            after = self.chance(0.5)
            if after:
                self.line(f"{counter} = {self.random.randrange(9)}")
            self.line(f"for {counter} in range({bounds}):")
            self.own(effective).append(counter)
            self.fixed.add(counter)
            self.loops.append((effective, None) if jumps else None)
            self.at(level)
            self.loops.pop()
            self.own(effective).remove(counter)
            if after:
                self.line(f"{self.pick(*self.targets(self.v))} += {counter}")
        else:
            self.line(f"{counter} = 0")
            self.line(f"while {counter} < {self.pick(2, 3)} and {self.parted(level)}:" if self.chance(0.7)
                      else "while True:")  # fmt: skip
            self.line(f"    {counter} += 1")
            if self.lines[-2].endswith("while True:"):
                self.line(f"    if {counter} > {self.whole(level, 0)} % 3:")
                self.line("        break")
            self.loops.append((effective, None) if jumps else None)
            self.at(level)
            self.loops.pop()

    def jump(self):
        """break or continue, where all the threads that the loop needs together do the same."""
        if self.loops[-1] is None:
            return self.assign()
        level = self.loops[-1][0]
        if LEVELS.index(self.level) > LEVELS.index(level):
            return self.assign()
        self.line(f"if {self.test(level)}:")
        self.line(f"    {self.pick('break', 'continue')}")

    def some_lanes(self):
        count = self.pick(4, 8, 16)
        outer, self.level = self.level, "thread"
        self.line(f"if lane < {count}:")
        self.line(f"    {self.pick(*self.targets(self.v))} = cuda.shfl_xor_sync({(1 << count) - 1:#x}, "
                  f"int64({self.whole()}), {self.pick(1, 2, 3)})")  # fmt: skip
        self.level = outer

    def exchange(self):
        """Write own elements | barrier | read others' | barrier."""
        free = [s for s in ("s0", "s1") if s not in self.busy]
        if not free:
            return self.line("cuda.syncthreads()")
        s = self.pick(*free)
        self.busy.add(s)
        self.line(f"{s}[t] = {self.whole()} % 90")
        self.writable.append(s)
        self.spread()
        self.writable.remove(s)
        self.line("cuda.syncthreads()")
        self.readable.append(s)
        self.line(f"{self.pick(*self.targets(self.v))} = {s}[(t + {self.whole('thread', 0)}) % T]")
        self.spread()
        self.readable.remove(s)
        self.line("cuda.syncthreads()")
        self.busy.remove(s)

    def exchange_floats(self):
        if "f0" in self.busy or not self.f:
            return self.assign()
        self.busy.add("f0")
        self.line(f"s2[t] = {self.pick(*self.f)}")
        self.line("cuda.syncthreads()")
        self.floats.append("s2")
        self.spread()
        self.line(f"{self.pick(*self.f)} = {self.real()}")
        self.floats.remove("s2")
        self.line("cuda.syncthreads()")
        self.busy.remove("f0")

    def exchange_in_a_function(self):
        self.line(f"{self.pick(*self.targets(self.v))} = exchanged(s3, {self.whole()} % 90, {self.whole()} % T)")

    def atomic(self):
        cell = self.random.randrange(8)
        op = self.operators.setdefault(cell, self.pick("add", "max", "min", "xor"))
        self.line(f"cuda.atomic.{op}(totals, bx * 8 + {cell}, int64({self.whole()} % 1000))")

    def spread(self):
        loops, self.loops = self.loops, []  # a jump must not leave between the barriers
        for _ in range(self.random.randint(0, 2)):
            self.statement()
        self.loops = loops

    # ---------------- the whole

    def function(self):
        """A device function for warps: collectives, loops, returns from several places."""
        saved = (self.lines, self.u, self.w, self.v, self.f, self.level)
        name = self.name("helper")
        self.lines, self.level, self.in_function = [], "warp", True
        self.u, self.w, self.v, self.f = [], ["w0"], ["v0", "lane"], ["f0"]
        self.fixed = {"lane"}
        self.lines += ["@cuda.jit(device=True)", f"def {name}(v0, w0):"]
        for text in ("lane = cuda.laneid", "f0 = float32(v0 % 8)"):
            self.line(text)
        for _ in range(3):
            self.function_statement()
        self.line(f"return {self.whole()}")
        made, (self.lines, self.u, self.w, self.v, self.f, self.level) = self.lines, saved
        self.in_function = False
        self.functions.append(name)
        return made

    def function_statement(self):
        if self.chance(0.4):
            self.line(f"for k9 in range({self.whole('warp', 0)} % 3):")
            self.line(f"    if {self.test('warp')}:")
            self.line(f"        return {self.whole()}")
            self.line(f"    v0 = {self.whole()} % 1009")
        else:
            self.statement()

    def _drawn(self):
        text = []
        for _ in range(self.random.randrange(self.size // 3 + 1)):
            text += self.function()
        self.fixed = {"n", "bx", "warp", "t", "lane"}
        return "\n".join([HEADER, *text, *self._kernel(), ""])

    def _kernel(self):
        self.lines = ["", "@cuda.jit", "def kernel(a, x, g, n, totals, out, fout):"]
        start = ("s0 = cuda.shared.array(96, int64)", "s1 = cuda.shared.array((96,), int64)",
                 "s2 = cuda.shared.array(96, float32)", "s3 = cuda.shared.array(96, int64)",
                 "mine = cuda.local.array(4, int64)", "t, bx, T = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockDim.x",
                 "i = cuda.grid(1)", "lane, warp = t % 32, t // 32", "row = g[i % 5]", "u1, u2 = n + 1, bx",
                 "w1 = warp * 3", "w2 = (warp + bx) % 4", "v1, v2 = a[i % 64], t * 2", "v3 = 0", "f1 = x[i % 64]",
                 "f2 = float32(0.0)")  # fmt: skip
        for text in start:
            self.line(text)
        for k in range(4):
            self.line(f"mine[{k}] = v1 + {k}")
        self.u += ["u1", "u2"]
        self.w += ["w1", "w2"]
        self.v += ["v1", "v2", "v3"]
        self.f += ["f1", "f2"]
        for _ in range(self.random.randint(self.size // 2, self.size)):
            self.statement()
            if self.chance(0.08):
                self.line(f"if {self.test('block')}:")
                self.line("    out[i, 0] = -5")
                self.line("    return")
        values = ["v1", "v2", "v3", "u1", "u2", "w1", "w2", "mine[0]", "mine[3]"]
        for k, value in enumerate(values):
            self.line(f"out[i, {k}] = {value}")
        self.line("fout[i, 0], fout[i, 1] = f1, f2")
        self.level = "warp"
        self.line(f"if {self.test('warp')}:")
        self.line("    return")
        self.at_tail()
        return self.lines

    def at_tail(self):
        """After the last barrier warps, then threads, may leave."""
        self.statement()
        self.level = "thread"
        self.line(f"for k0 in range({self.whole()} % 5):")
        self.line(f"    if {self.test('thread')}:")
        self.line("        return")
        self.depth += 1
        self.statement()
        self.depth -= 1
        self.line("out[i, 9] = v1 + v2 + w1 + mine[1] % 7")
