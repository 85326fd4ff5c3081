"""Kernels to time the CPU device with: 200 drawn by seed, and ten beside the same loop written by hand.

A drawn kernel takes float32 arrays `a`, `b` and `out` of `n` elements, one for each thread; its blocks have 64 threads.
Its kinds are those of small test suites. Numba's simulator has no warp shuffles, so that none of them has.
"""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

BLOCK = 64
HEAD = """import math

import numpy as np
from numba import float32, int32, njit
from {package} import {name} as cuda

"""
OURS, NUMBAS = HEAD.format(package="labkit.simt", name="api"), HEAD.format(package="numba", name="cuda")


def _constant(rng: random.Random) -> str:
    return f"float32({rng.randint(-640, 640) / 256})"


def _expression(rng: random.Random, names: list[str], depth: int) -> str:
    if depth == 0:
        return rng.choice([*names, _constant(rng)])
    left, right = (_expression(rng, names, depth - 1) for _ in range(2))
    operator = rng.choice(["+", "-", "*", "min", "max"])
    return f"{operator}({left}, {right})" if operator in ("min", "max") else f"({left} {operator} {right})"


def _elementwise(rng):
    return f"""
    i = cuda.grid(1)
    if i < n:
        x = a[i]
        y = b[i]
        out[i] = {_expression(rng, ["x", "y"], rng.randint(2, 3))}
"""


def _stencil(rng):
    terms = " + ".join(f"{_constant(rng)} * a[(i + {rng.randint(0, 9)}) % n]" for _ in range(rng.randint(2, 5)))
    return f"""
    i = cuda.grid(1)
    if i < n:
        out[i] = {terms}
"""


def _branches(rng):
    values = [_expression(rng, ["x", "b[i]"], 1) for _ in range(3)]
    return f"""
    i = cuda.grid(1)
    if i >= n:
        return
    x = a[i]
    if i % {rng.randint(2, 5)} == 0:
        out[i] = {values[0]}
    elif x > {_constant(rng)}:
        out[i] = {values[1]}
    else:
        out[i] = {values[2]}
"""


def _loop(rng):
    return f"""
    i = cuda.grid(1)
    if i < n:
        total = float32(0)
        for k in range({rng.randint(4, 12)}):
            total = total * {_constant(rng)} / float32(4) + a[(i + k) % n] * b[k % n]
        out[i] = total
"""


def _distances(rng):
    return f"""
    i = cuda.grid(1)
    if i < n:
        nearest = float32(1e9)
        for k in range({rng.randint(3, 8)}):
            x = a[i] - b[(i + k * {rng.randint(1, 7)}) % n]
            nearest = min(nearest, math.sqrt(x * x + {_constant(rng)} * {_constant(rng)} + float32(8)))
        out[i] = nearest
"""


def _reduction(rng):
    fold = rng.choice(["s[t] + s[t + width]", "max(s[t], s[t + width])", "min(s[t], s[t + width])"])
    return f"""
    s = cuda.shared.array({BLOCK}, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i] * {_constant(rng)} + b[i]
    cuda.syncthreads()
    width = {BLOCK // 2}
    while width > 0:
        if t < width:
            s[t] = {fold}
        cuda.syncthreads()
        width //= 2
    out[i] = s[0]
"""


def _scan(rng):
    return f"""
    s = cuda.shared.array({BLOCK}, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i] + {_constant(rng)}
    cuda.syncthreads()
    step = 1
    while step < {BLOCK}:
        x = float32(0)
        if t >= step:
            x = s[t - step]
        cuda.syncthreads()
        s[t] {rng.choice(["+=", "-="])} x
        cuda.syncthreads()
        step *= 2
    out[i] = s[t]
"""


def _tiles(rng):
    return f"""
    a_tile = cuda.shared.array((8, 8), float32)
    b_tile = cuda.shared.array((8, 8), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for step in range({rng.randint(1, 4)}):
        start = (cuda.blockIdx.x + step) % cuda.gridDim.x * {BLOCK} + y * 8 + x
        a_tile[y, x] = a[start]
        b_tile[y, x] = b[start] * {_constant(rng)}
        cuda.syncthreads()
        for k in range(8):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    out[cuda.blockIdx.x * {BLOCK} + y * 8 + x] = total
"""


def _shared_moves(rng):
    return f"""
    s = cuda.shared.array({BLOCK}, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i] - b[i]
    cuda.syncthreads()
    out[i] = s[(t * {rng.choice([1, 3, 5, 7, 9])} + {rng.randint(1, 63)}) % {BLOCK}] * {_constant(rng)}
"""


def _histogram(rng):
    value = rng.choice(["float32(1)", "float32(t % 4)", "float32(2)"])
    call = f"cuda.atomic.{rng.choice(['add', 'max'])}"
    return f"""
    bins = cuda.shared.array({BLOCK}, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    bins[t] = float32(0)
    cuda.syncthreads()
    {call}(bins, int(abs(a[i]) * float32({rng.randint(5, 60)})) % {BLOCK}, {value})
    cuda.syncthreads()
    cuda.atomic.add(out, (t * {rng.choice([1, 3, 5])}) % n, bins[t])
"""


KINDS = {
    "elementwise": _elementwise, "stencil": _stencil, "branches": _branches, "loop": _loop, "distances": _distances,
    "reduction": _reduction, "scan": _scan, "tiles": _tiles, "shared moves": _shared_moves, "histogram": _histogram,
}  # fmt: skip
WITH_BARRIERS = ("reduction", "scan", "tiles", "shared moves", "histogram")


def kind(k: int) -> str:
    """The kind of the k-th drawn kernel."""
    return [*KINDS][k % len(KINDS)]


def program(k: int) -> str:
    """The source of the k-th drawn kernel, without its head."""
    body = KINDS[kind(k)](random.Random(f"kernel {k}"))
    return f"@cuda.jit\ndef kernel(a, b, out, n):{body}"


def launch_shape(k: int, threads: int) -> tuple:
    """(grid, block) of the k-th drawn kernel."""
    return threads // BLOCK, (8, 8) if kind(k) == "tiles" else BLOCK


def imported(source: str, folder: str | Path, name: str) -> ModuleType:
    """The module of this source, written into the folder: kernels are read from their file."""
    path = Path(folder) / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- kernels, and the same as a loop written by hand

_ONE_AXIS = "for block in range(blocks):\n        for t in range(64):\n            i = block * 64 + t\n            "
_TWO_AXES = ("for block in range(blocks):\n        for y in range(8):\n            for x in range(8):\n"
             "                row, col = block * 8 + y, x\n                ")  # fmt: skip
PAIRS = {  # name: (the kernel's body, the loop's)
    "axpy": ("""
    i = cuda.grid(1)
    if i < n:
        out[i] = float32(2) * a[i] + b[i]
""", f"""
    {_ONE_AXIS}if i < n:
                out[i] = float32(2) * a[i] + b[i]
"""),
    "stencil": ("""
    i = cuda.grid(1)
    if 0 < i < n - 1:
        out[i] = (a[i - 1] + a[i] + a[i + 1]) * float32(0.25)
""", f"""
    {_ONE_AXIS}if 0 < i < n - 1:
                out[i] = (a[i - 1] + a[i] + a[i + 1]) * float32(0.25)
"""),
    "branches": ("""
    i = cuda.grid(1)
    if i >= n:
        return
    if a[i] > b[i]:
        out[i] = a[i] - b[i]
    elif i % 3 == 0:
        out[i] = a[i] + b[i]
    else:
        out[i] = b[i] * float32(3)
""", f"""
    {_ONE_AXIS}if i >= n:
                continue
            if a[i] > b[i]:
                out[i] = a[i] - b[i]
            elif i % 3 == 0:
                out[i] = a[i] + b[i]
            else:
                out[i] = b[i] * float32(3)
"""),
    "dot of rows": ("""
    i = cuda.grid(1)
    if i < n:
        total = float32(0)
        for k in range(n):
            total += a[(i + k) % n] * b[k]
        out[i] = total
""", f"""
    {_ONE_AXIS}if i < n:
                total = float32(0)
                for k in range(n):
                    total += a[(i + k) % n] * b[k]
                out[i] = total
"""),
    "two axes": ("""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.x * 8 + y, x
    if row * 8 + col < n:
        out[row * 8 + col] = a[col * 8 + row % 8] * b[row * 8 + col]
""", f"""
    {_TWO_AXES}if row * 8 + col < n:
                    out[row * 8 + col] = a[col * 8 + row % 8] * b[row * 8 + col]
"""),
    "reduction": ("""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    width = 32
    while width > 0:
        if t < width:
            s[t] += s[t + width]
        cuda.syncthreads()
        width //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]
""", """
    s = np.empty(64, np.float32)
    for block in range(blocks):
        for t in range(64):
            s[t] = a[block * 64 + t]
        width = 32
        while width > 0:
            for t in range(64):
                if t < width:
                    s[t] += s[t + width]
            width //= 2
        for t in range(64):
            if t == 0:
                out[block] = s[0]
"""),
    "scan": ("""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    step = 1
    while step < 64:
        x = float32(0)
        if t >= step:
            x = s[t - step]
        cuda.syncthreads()
        s[t] += x
        cuda.syncthreads()
        step *= 2
    out[i] = s[t]
""", """
    s = np.empty(64, np.float32)
    x = np.empty(64, np.float32)
    for block in range(blocks):
        for t in range(64):
            s[t] = a[block * 64 + t]
        step = 1
        while step < 64:
            for t in range(64):
                x[t] = 0
                if t >= step:
                    x[t] = s[t - step]
            for t in range(64):
                s[t] += x[t]
            step *= 2
        for t in range(64):
            out[block * 64 + t] = s[t]
"""),
    "tiles": ("""
    a_tile = cuda.shared.array((8, 8), float32)
    b_tile = cuda.shared.array((8, 8), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for step in range(4):
        start = (cuda.blockIdx.x + step) % cuda.gridDim.x * 64 + y * 8 + x
        a_tile[y, x] = a[start]
        b_tile[y, x] = b[start]
        cuda.syncthreads()
        for k in range(8):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    out[cuda.blockIdx.x * 64 + y * 8 + x] = total
""", """
    a_tile = np.empty((8, 8), np.float32)
    b_tile = np.empty((8, 8), np.float32)
    total = np.empty((8, 8), np.float32)
    for block in range(blocks):
        for y in range(8):
            for x in range(8):
                total[y, x] = 0
        for step in range(4):
            for y in range(8):
                for x in range(8):
                    start = (block + step) % blocks * 64 + y * 8 + x
                    a_tile[y, x] = a[start]
                    b_tile[y, x] = b[start]
            for y in range(8):
                for x in range(8):
                    for k in range(8):
                        total[y, x] += a_tile[y, k] * b_tile[k, x]
        for y in range(8):
            for x in range(8):
                out[block * 64 + y * 8 + x] = total[y, x]
"""),
    "shared moves": ("""
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i]
    cuda.syncthreads()
    out[i] = s[63 - t] + b[i]
""", """
    s = np.empty(64, np.float32)
    for block in range(blocks):
        for t in range(64):
            s[t] = a[block * 64 + t]
        for t in range(64):
            out[block * 64 + t] = s[63 - t] + b[block * 64 + t]
"""),
    "histogram": ("""
    bins = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    bins[t] = float32(0)
    cuda.syncthreads()
    cuda.atomic.add(bins, int(a[i] * float32(64)), float32(1))
    cuda.syncthreads()
    cuda.atomic.add(out, t, bins[t])
""", """
    bins = np.empty(64, np.float32)
    for block in range(blocks):
        for t in range(64):
            bins[t] = 0
        for t in range(64):
            bins[int(a[block * 64 + t] * float32(64))] += float32(1)
        for t in range(64):
            out[t] += bins[t]
"""),
}  # fmt: skip
_PLANE_PAIRS = ("two axes", "tiles")


def pair(name: str) -> str:
    """The source of a kernel and of the same loop, `loop`, without its head."""
    kernel, loop = PAIRS[name]
    return f"@cuda.jit\ndef kernel(a, b, out, n):{kernel}\n\n@njit\ndef loop(blocks, a, b, out, n):{loop}"


def pair_shape(name: str, threads: int) -> tuple:
    """(grid, block) of a pair's kernel."""
    return threads // BLOCK, (8, 8) if name in _PLANE_PAIRS else BLOCK
