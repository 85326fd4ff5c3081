"""The typed tree of a kernel: nodes hold what they declare, and the fingerprint sees all of it."""

import ast
import copy

import numpy as np
import pytest
from numba import float32

from labkit import cuda, ptx
from labkit.simt import ir
from labkit.simt.ir import Exit, Inline, IntrinsicCall, Name, Subscript, Sync, fingerprint_of
from labkit.simt.rewrite import rewrite

pytestmark = pytest.mark.cpu_device

TABLE = np.arange(4, dtype=np.float32)


@cuda.jit(device=True)
def scaled(x, k):
    return x * k


@cuda.jit(device=True)
def block_max(tile, t):
    """Inlined: it holds a barrier, and some threads leave it early."""
    tile[t] = scaled(tile[t], 2)
    if t > 3:
        return tile[0]
    cuda.syncthreads()
    return tile[t]


@cuda.jit
def everything(a, out):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    tile = cuda.shared.array(64, float32)
    mine = cuda.local.array(2, a.dtype)
    i = b * cuda.blockDim.x + t
    if i >= a.size:
        return
    x = t * 2
    mine[0] = a[x]
    x = a[i] + TABLE[t % 4]
    tile[t] = x + mine[0]
    for _ in range(3):
        x += cuda.shfl_xor_sync(0xFFFFFFFF, x, 1) if cuda.syncthreads_or(t > 2) else block_max(tile, t)
    cuda.atomic.add(out, 0, tile[0])
    w0, w1, w2, w3 = ptx.load_global4(a, 0)
    out[i] += w0 + w3


@pytest.fixture(scope="module")
def program():
    return rewrite(everything.py_func)


def nodes(program):
    bodies = [program.body, *(device.body for device in program.devices.values())]
    return [found for body in bodies for s in body for found in ast.walk(s)]


def test_a_node_holds_its_fields_and_its_position_and_nothing_else(program):
    for found in nodes(program):
        assert set(vars(found)) <= {*found._fields, *found._attributes}, ast.dump(found)
    kinds = {type(found) for found in nodes(program)}
    assert {Name, Subscript, Sync, Inline, Exit, IntrinsicCall} <= kinds


def test_statements_know_their_lines(program):
    first = everything.py_func.__code__.co_firstlineno
    for found in nodes(program):
        if isinstance(found, ast.stmt):
            assert found.lineno > 0
    assert min(s.lineno for s in program.body) > first


def test_the_fingerprint_is_the_same_each_time(program):
    assert fingerprint_of(program) == fingerprint_of(rewrite(everything.py_func))
    assert " at 0x" not in fingerprint_of(program)


CHANGES = {
    Name: ("id", "other"), Subscript: ("filename", "elsewhere.py"), Sync: ("op", "syncwarp"),
    IntrinsicCall: ("intrinsic", "load_nc4"), Exit: ("label", "elsewhere"), Inline: ("label", "elsewhere"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES, ids=lambda kind: kind.__name__)
def test_the_fingerprint_sees_every_declared_field(program, kind):
    changed = copy.deepcopy(program)
    found = next(n for n in nodes(changed) if type(n) is kind)
    assert fingerprint_of(changed) == fingerprint_of(program)
    setattr(found, *CHANGES[kind])
    assert fingerprint_of(changed) != fingerprint_of(program)


def test_the_fingerprint_sees_lines_and_flags(program):
    for change in (lambda p: setattr(nodes(p)[-1], "lineno", 1), lambda p: setattr(p, "has_atomics", False),
                   lambda p: setattr(p.shared["tile"], "shape", (32,)), lambda p: p.params.reverse()):
        changed = copy.deepcopy(program)
        change(changed)
        assert fingerprint_of(changed) != fingerprint_of(program)


def test_what_others_leave_on_a_node_is_not_followed():
    """Libraries that show tracebacks set the parent of nodes, and Python shares the node Load among all trees."""
    tree = ast.parse("x = [y]").body[0]
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node
    try:
        new = ir.copied(tree)
        assert ast.unparse(new) == "x = [y]" and new.value.elts[0] is not tree.value.elts[0]
    finally:
        for node in ast.walk(tree):
            vars(node).pop("parent", None)
