"""Random well-typed programs of one thread, as source: what tests/simt/test_random_programs.py runs in three ways.

A program is a function of the thread's inputs, one of each type, that leaves its variables in two rows, of integers and
of floats. It holds what a GPU and Numba's CPU target compute alike: no shift by the width, no division by zero, no
float that an integer cannot hold, no sum or product that a signed integer cannot hold (Numba tells LLVM that there is
none). `Program.without(k)` drops a statement, so that a failure can be made small.
"""

import functools
import itertools
import math
import operator
import random
from dataclasses import dataclass, field

import numpy as np
from numba.core import registry, types
from numba.core.errors import NumbaError

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
INPUTS = {"bool_": "flag", **{name: name[0] + name.lstrip("uintfloa") for name in (*INTEGERS, *FLOATS)}}
OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne, "u-": operator.neg, "u~": operator.invert, "u+": operator.pos,
}  # fmt: skip
CALLS = {"abs": abs, "min": min, "max": max, "math.sqrt": math.sqrt, "math.fabs": math.fabs,
         "math.copysign": math.copysign, "int": int, "float": float, "bool": bool}  # fmt: skip
NUMBERS = (0, 1, 2, 3, 7, 31, 255, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 0.5, 2.0, 1e-3, 3.7, True)
COUNT = 8  # variables of each kind that a program can leave


class IllTyped(Exception):
    """Numba refuses this expression, or it is none that every run computes alike."""


def _type(name):
    return types.boolean if name == "bool_" else getattr(types, name)


def _is_integer(ty):
    return isinstance(ty, types.Integer)


@functools.cache
def _found(function, arguments):
    context = registry.cpu_target.typing_context
    context.refresh()
    try:
        return context.resolve_function_type(context.resolve_value_type(function), arguments, {}).return_type
    except (NumbaError, AttributeError):
        return None


def _resolve(function, *arguments):
    found = _found(function, arguments)
    if found is None:
        raise IllTyped
    return found


def _unified(*given):
    found = registry.cpu_target.typing_context.unify_types(*given)
    if not isinstance(found, (types.Number, types.Boolean)):
        raise IllTyped
    return found


# An expression is a tuple: its kind, then its parts. type_of says its type, text its source.


def type_of(e, env):
    kind, *parts = e
    if kind == "name":
        if parts[0] not in env:
            raise IllTyped
        return env[parts[0]]
    if kind == "number":
        value = parts[0]
        return types.boolean if isinstance(value, bool) else types.float64 if isinstance(value, float) else (
            types.uint64 if value >= 1 << 63 else types.int64)  # fmt: skip
    if kind == "cast":
        given, to = type_of(parts[1], env), _type(parts[0])
        if isinstance(given, types.Float) and not isinstance(to, types.Float):
            raise IllTyped
        return to
    if kind == "bounded":  # float -> integer, where it fits
        if not isinstance(type_of(("name", parts[1]), env), types.Float):
            raise IllTyped
        return _type(parts[0])
    if kind == "choose":
        type_of(parts[0], env)
    if kind in ("choose", "test"):
        return _unified(*(type_of(part, env) for part in parts[-2:]))
    if kind == "call":
        given = [type_of(part, env) for part in parts[1:]]
        is_float = any(isinstance(ty, types.Float) for ty in given)
        if parts[0].startswith("math.") and not is_float or parts[0] == "int" and is_float:
            raise IllTyped
        if parts[0] in ("min", "max") and types.boolean in given:
            raise IllTyped
        return _resolve(CALLS[parts[0]], *given)
    if kind == "device":
        return _device_type(parts[0], [type_of(part, env) for part in parts[1:]])
    if kind == "power":
        ty = type_of(parts[0], env)
        if not isinstance(ty, types.Float):
            raise IllTyped
        return ty
    if kind == "record":
        return _type(parts[0])
    if kind == "element":
        if not _is_integer(type_of(parts[1], env)):
            raise IllTyped
        return env["." + parts[0]]
    if not any(map(_has_name, parts)):  # Python folds it, and not as a kernel computes it
        raise IllTyped
    given = [type_of(part, env) for part in parts]
    if kind in ("<<", ">>") and not all(map(_is_integer, given)):
        raise IllTyped
    if kind in ("<<", ">>"):
        return _resolve(OPERATORS[kind], given[0], types.int64)
    if kind in ("//", "%") and any(isinstance(ty, types.Float) for ty in given):
        raise IllTyped
    if kind in ("//", "%"):
        if given[0] == types.uint64:
            raise IllTyped
        return _resolve(OPERATORS[kind], given[0], types.int64)
    found = _resolve(OPERATORS[kind], *given)
    if not isinstance(found, (types.Number, types.Boolean)):
        raise IllTyped
    return found


def _has_name(e):
    return e[0] in ("name", "bounded", "record") or any(_has_name(part) for part in e[1:] if isinstance(part, tuple))


DEVICE_FUNCTIONS = '''
def clamped(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x


def mixed(x, y, flag):
    found = x
    if flag:
        found = y
    return found + x


def bits_of(x):
    total = x
    for k in range(3):
        total = ~total ^ (total >> k)
    return total
'''


def _device_type(name, given):
    if name == "clamped":
        return _unified(*given)
    if name == "mixed":
        return _resolve(operator.add, _unified(*given[:2]), given[0])
    if not _is_integer(given[0]):
        raise IllTyped
    ty = given[0]
    while True:
        inverted, shifted = _resolve(operator.invert, ty), _resolve(operator.rshift, ty, types.int64)
        new = _unified(ty, _resolve(operator.xor, inverted, shifted))
        if new == ty:
            return ty
        ty = new


def text(e):
    kind, *parts = e
    if kind == "name":
        return parts[0]
    if kind == "number":
        return repr(parts[0])
    if kind == "cast":
        return f"{parts[0]}({text(parts[1])})"
    if kind == "bounded":
        return f"({parts[0]}({parts[1]}) if 0.0 <= {parts[1]} < 100.0 else {parts[0]}(7))"
    if kind == "choose":
        return f"({text(parts[1])} if {text(parts[0])} else {text(parts[2])})"
    if kind == "test":
        return f"({text(parts[1])} {parts[0]} {text(parts[2])})"
    if kind in ("call", "device"):
        return f"{parts[0]}({', '.join(map(text, parts[1:]))})"
    if kind == "power":
        return f"{text(parts[0])} ** {parts[1]}"
    if kind == "record":
        return f"records[t][{parts[1]!r}]" if parts[2] else f"records[t].{parts[1]}"
    if kind == "element":
        return f"{parts[0]}[{text(parts[1])} & 3]"
    if kind in ("<<", ">>"):
        return f"({text(parts[0])} {kind} ({text(parts[1])} & 31))" if parts[1][0] != "number" else (
            f"({text(parts[0])} {kind} {parts[1][1] % 32})")  # fmt: skip
    if kind in ("//", "%"):
        return f"({text(parts[0])} {kind} ((int64({text(parts[1])}) & 7) + 1))"
    if len(parts) == 1:
        return f"({kind[1:]}{text(parts[0])})" if parts[0][0] != "power" else f"({kind[1:]}({text(parts[0])}))"
    return f"({text(parts[0])} {kind} {text(parts[1])})"


@dataclass(eq=False)
class Program:
    """A program: its name and its statements, nested lists of tuples."""

    name: str
    seed: int
    statements: list = field(default_factory=list)

    def source(self):
        arguments = [*INPUTS.values(), "records", "t", "whole", "real"]
        variables = {}
        lines = list(_lines(self.statements, 1, _start(), variables))
        stores, counts = [], {"whole": itertools.count(), "real": itertools.count()}
        for name, ty in variables.items():
            row = "real" if isinstance(ty, types.Float) else "whole"
            k = next(counts[row])
            if k < COUNT:
                stores.append(f"    {row}[t, {k}] = {name}")
        return "\n".join([f"def {self.name}({', '.join(arguments)}):", *lines, *stores, "    return"])

    def without(self, k):
        """The program less its k-th statement of any depth; None if it has none or is not well typed any more."""
        count = itertools.count()

        def kept(statements):
            out = []
            for s in statements:
                if next(count) == k:
                    continue
                out.append(tuple(kept(part) if isinstance(part, list) else part for part in s))
            return out

        new = Program(self.name, self.seed, kept(self.statements))
        try:
            new.source()
        except IllTyped:
            return None
        return new if next(count) > k else None


def _start():
    return {name: _type(ty) for ty, name in INPUTS.items()}


def _lines(statements, depth, env, assigned):
    """The lines of statements; env: types of the names, which they change; assigned: those of top-level variables."""
    pad = "    " * depth
    for s in statements:
        kind = s[0]
        if kind == "let":
            env[s[1]] = type_of(s[2], env)
            if s[1] in assigned or depth == 1:
                assigned[s[1]] = env[s[1]]
            yield f"{pad}{s[1]} = {text(s[2])}"
        elif kind == "update":
            if s[1] not in env:
                raise IllTyped
            env[s[1]] = type_of((s[2], ("name", s[1]), s[3]), env)
            if s[1] in assigned:
                assigned[s[1]] = env[s[1]]
            yield f"{pad}{s[1]} {s[2]}= {text(s[3])}"
        elif kind == "array":
            env["." + s[1]] = _type(s[2])
            yield f"{pad}{s[1]} = local_array(4, {s[2]})"
            yield from (f"{pad}{s[1]}[{k}] = {s[2]}({k + 1})" for k in range(4))
        elif kind == "put":
            if "." + s[1] not in env or not _is_integer(type_of(s[2], env)):
                raise IllTyped
            value, to = type_of(s[3], env), env["." + s[1]]
            if isinstance(value, types.Float) and not isinstance(to, types.Float):
                raise IllTyped
            yield f"{pad}{s[1]}[{text(s[2])} & 3] = {text(s[3])}"
        elif kind == "branch":
            type_of(s[1], env)
            yes, no = dict(env), dict(env)
            yield f"{pad}if {text(s[1])}:"
            yield from [*_lines(s[2], depth + 1, yes, assigned)] or [f"{pad}    pass"]
            if s[3]:
                yield f"{pad}else:"
                yield from _lines(s[3], depth + 1, no, assigned)
            _join(env, yes, no, assigned)
        elif kind == "loop":
            _, counter, bound, body, leave = s
            if not _is_integer(type_of(bound, env)):
                raise IllTyped
            start = dict(env)
            while True:
                inner = dict(env)
                inner[counter] = types.int64
                lines = [*_lines(body, depth + 1, inner, {})]
                if leave is not None:
                    type_of(leave, inner)
                    lines += [f"{pad}    if {text(leave)}:", f"{pad}        break"]
                before = dict(env)
                _join(env, inner, start, assigned)
                if env == before:
                    break
            yield f"{pad}for {counter} in range({text(bound)} & 3):"
            yield from lines or [f"{pad}    pass"]


def _join(env, one, other, assigned):
    for name in [*env]:
        env[name] = _unified(one[name], other[name]) if one[name] != other[name] else one[name]
        if name in assigned:
            assigned[name] = env[name]


class Generator:
    """Random programs, from a seed."""

    def __init__(self, seed, length=5):
        self.random, self.seed, self.count, self.length = random.Random(seed), seed, itertools.count(), length

    def program(self, name):
        found = Program(name, self.seed)
        env = _start()
        while len(found.statements) < self.length:
            self._add(found.statements, env, 0)
        return found

    def _add(self, statements, env, depth):
        s = self._statement(env, depth)
        trial = dict(env)
        try:
            list(_lines([s], 1, trial, {}))
        except IllTyped:
            return
        statements.append(s)
        env.update(trial)

    def _body(self, env, depth):
        inner, body = dict(env), []
        for _ in range(self.random.randint(1, 2)):
            self._add(body, inner, depth + 1)
        return body

    def _statement(self, env, depth):
        r = self.random
        kind = r.choice(["let"] * 5 + ["set"] * 3 + ["update"] * 3 + ["branch"] * 2 + ["loop"] * 2 + ["array", "put"])
        own = [name for name in env if name[0] == "v"]
        if kind == "array" and depth == 0:
            return ("array", f"own{next(self.count)}", r.choice([*INTEGERS, *FLOATS]))
        if kind == "branch" and depth < 2:
            test, yes = self.test(env), self._body(env, depth)
            return ("branch", test, yes, self._body(env, depth) if r.random() < 0.5 else [])
        if kind == "loop" and depth < 2:
            leave = self.test(env) if r.random() < 0.3 else None
            return ("loop", f"k{next(self.count)}", self.expression(env, 1), self._body(env, depth), leave)
        if kind == "put":
            arrays = [name[1:] for name in env if name[0] == "."]
            if arrays:
                return ("put", r.choice(arrays), self.expression(env, 1), self.expression(env, 2))
        if kind == "update" and own:
            name, op = r.choice(own), r.choice("+-&|^")
            if op in "+-" and _is_integer(env[name]):
                return ("let", name, (op, self.narrow(("name", name), env, "*"), self.narrow(("name", "i16"), env)))
            return ("update", name, op, self.narrow(self.expression(env, 1), env))
        if kind == "set" and own:
            return ("let", r.choice(own), self.expression(env, 2))
        return ("let", f"v{next(self.count)}", self.expression(env, self.random.choice([1, 2, 2, 3])))

    def test(self, env):
        r = self.random
        return (r.choice(["<", "<=", ">", ">=", "==", "!="]), self.expression(env, 1), self.expression(env, 1))

    def expression(self, env, depth):
        """A well-typed expression over the names of env."""
        while True:
            e = self._expression(env, depth)
            try:
                type_of(e, env)
            except IllTyped:
                continue
            return e

    def narrow(self, e, env, op="+"):
        """An operand of a sum (a product, with op "*") of signed integers, of which none overflows."""
        ty = type_of(e, env)
        is_leaf = e[0] == "name" and ty.bitwidth <= 32 if _is_integer(ty) else False
        if not _is_integer(ty) or (is_leaf and op != "*") or (e[0] == "number" and e[1] < 256):
            return e
        names = ("int8", "int16", "uint8", "uint16", "int32", "uint32")
        return ("cast", self.random.choice(names[:4] if op == "*" else names), e)

    def _expression(self, env, depth):
        r = self.random
        inner = lambda: self.expression(env, depth - 1)  # noqa: E731
        if depth == 0 or r.random() < 0.15:
            if r.random() < 0.75:
                return ("name", r.choice([name for name in env if name[0] != "."]))
            return ("number", r.choice(NUMBERS))
        kind = r.choice(["arithmetic"] * 6 + ["bits"] * 3 + ["unary", "cast", "choose", "call"] * 2
                        + ["compare", "test", "bounded", "device", "power", "record", "element"])  # fmt: skip
        if kind == "arithmetic":
            op = r.choice(["+", "-", "*", "/", "//", "%"])
            return (op, self.narrow(inner(), env, op), self.narrow(inner(), env, op))
        if kind == "bits":
            return (r.choice(["&", "|", "^", "<<", ">>"]), inner(), inner())
        if kind == "unary":
            return (r.choice(["u-", "u~", "u+"]), self.narrow(inner(), env))
        if kind == "cast":
            return ("cast", r.choice([*INTEGERS, *FLOATS]), inner())
        if kind == "compare":
            return self.test(env)
        if kind == "choose":
            return ("choose", self.test(env), inner(), inner())
        if kind == "call":
            name = r.choice([*CALLS])
            count = 2 if name in ("min", "max", "math.copysign") else 1
            return ("call", name, *(self.narrow(inner(), env) for _ in range(count)))
        if kind == "test":
            return ("test", r.choice(["and", "or"]), self.test(env), self.test(env))
        if kind == "bounded":
            return ("bounded", r.choice(INTEGERS), r.choice([name for name in env if name[0] != "."]))
        if kind == "device":
            name = r.choice(["clamped", "mixed", "bits_of"])
            if name == "bits_of":
                return ("device", name, inner())
            if name == "mixed":
                return ("device", name, self.narrow(inner(), env), self.narrow(inner(), env), self.test(env))
            return ("device", name, inner(), inner(), inner())
        if kind == "power":
            return ("power", ("name", r.choice([name for name in env if name[0] != "."])), r.choice([2, 3]))
        if kind == "record":
            ty = r.choice(["int32", "float32", "uint8"])
            return ("record", ty, {"int32": "a", "float32": "x", "uint8": "small"}[ty], r.random() < 0.5)
        arrays = [name[1:] for name in env if name[0] == "."]
        if not arrays:
            return ("name", "")  # none that there is: another is drawn
        return ("element", r.choice(arrays), inner())


RECORD = np.dtype([("a", np.int32), ("x", np.float32), ("small", np.uint8)], align=True)


def inputs(rng, threads):
    """One array for each input, and the records: small numbers, and the ends of each type."""
    arrays = [rng.random(threads) < 0.5]
    for name in INTEGERS:
        ends = np.iinfo(name)
        values = rng.integers(-9, 10, threads) if ends.min else rng.integers(0, 10, threads)
        edges = rng.choice(np.array([ends.min, ends.max, ends.max - 1], dtype=name), threads)
        arrays.append(np.where(rng.random(threads) < 0.3, edges, values.astype(name)))
    arrays += [rng.normal(size=threads).astype(name) * 8 for name in FLOATS]
    records = np.zeros(threads, RECORD)
    records["a"], records["x"] = rng.integers(-50, 50, threads), rng.normal(size=threads)
    records["small"] = rng.integers(0, 256, threads)
    return [*arrays, records]


IMPORTS = """import math

import numpy as np
from numba import float32, float64, int8, int16, int32, int64, njit, uint8, uint16, uint32, uint64

from labkit import cuda
"""


def module(programs, decorator, local_array, head, foot=""):
    """The source of a module: the programs, and a function that runs one of them for a thread t, after `head`."""
    names = ", ".join(INPUTS.values())
    branches = [f"    {'elif' if k else 'if'} which == {k}:\n        {p.name}({names}, records, t, whole, real)"
                for k, p in enumerate(programs)]  # fmt: skip
    run = [f"{decorator}\ndef run(which, {names}, records, t, whole, real):", *branches]
    functions = [f"{decorator}\n{text.strip()}" for text in DEVICE_FUNCTIONS.split("\n\n\n")]
    functions += [f"{decorator}\n{p.source()}" for p in programs]
    loads = ", ".join(f"{name}[t]" for name in INPUTS.values())
    body = f"run(which, {loads}, records, t, whole, real)"
    main = f"{head}(which, n, {names}, records, whole, real):\n{foot.replace('BODY', body)}"
    return "\n\n\n".join([IMPORTS, *functions, "\n".join(run), main]).replace("local_array", local_array) + "\n"


def kernel_source(programs):
    foot = "    t = cuda.grid(1)\n    if t < n:\n        BODY"
    return module(programs, "@cuda.jit(device=True)", "cuda.local.array", "@cuda.jit\ndef kernel", foot)


def oracle_source(programs):
    """The same functions for Numba's own compiler, and a loop over the threads."""
    decorator, foot = "@njit(error_model='numpy', cache=True)", "    for t in range(n):\n        BODY"
    return module(programs, decorator, "np.empty", f"{decorator}\ndef oracle", foot)
