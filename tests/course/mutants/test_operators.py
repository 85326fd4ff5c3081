"""Each operator changes what it says, nothing twice, and never into the answer itself."""

import ast
import functools

import pytest

from labkit.course.mutants.operators import OPERATORS, chosen, mutants

ANSWER = '''
@cuda.jit
def total(x, out):
    """Rows of x, added up."""
    shared = cuda.shared.array(64, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    acc = float32(0.0)
    for col in range(thread, x.shape[1], 64):
        acc += x[row, col]
    shared[thread] = acc
    cuda.syncthreads()
    if thread == 0 and row < out.size:
        out[row] = max(acc, -shared[1])


def launch(x, out):
    total[x.shape[0], 64](x, out)
    cuda.synchronize()
    return np.ones(3)
'''


@functools.cache
def mutants_of(source):
    return mutants(source)


def changes(operator, source=ANSWER):
    return {one.change for one in mutants_of(source) if one.operator == operator}


@pytest.mark.parametrize(("operator", "change"), [
    ("guard", "row < out.size -> row <= out.size"),
    ("guard", "row < out.size -> row < out.size - 1"),
    ("guard", "thread == 0 and row < out.size -> thread == 0"),
    ("guard", "thread == 0 and row < out.size -> thread == 0 or row < out.size"),
    ("guard", "if thread == 0 and row < out.size: ... -> if True: ..."),
    ("index", "x[row, col] -> x[col, row]"),
    ("index", "x[row, col] -> x[row, col + 1]"),
    ("index", "x[row, col] -> x[row, -col]"),
    ("index", "shared[1] -> shared[2]"),
    ("name", "(row, thread) -> (thread, row)"),
    ("name", "col -> acc"),
    ("number", "64 -> 63"),
    ("number", "64 -> 128"),
    ("arithmetic", "-shared[1] -> shared[1]"),
    ("identity", "acc = float32(0.0) -> acc = float32(1.0)"),
    ("type", "acc += x[row, col] -> acc += int32(x[row, col])"),
    ("barrier", "cuda.syncthreads() -> left out"),
    ("omission", "acc += x[row, col] -> acc = x[row, col]"),
    ("omission", "shared[thread] = acc -> left out"),
    ("omission", "out[row] = max(acc, -shared[1]) -> out[row] += max(acc, -shared[1])"),
    ("loop", "for col in range(thread, x.shape[1], 64): ... -> for col in range(thread + 1, x.shape[1], 64)"),
    ("shape", "x.shape[1] -> x.shape[0]"),
    ("shape", "out.size -> 128"),
    ("launch", "total[x.shape[0], 64] -> total[64, x.shape[0]]"),
    ("launch", "total[x.shape[0], 64] -> total[1, 64]"),
    ("call", "max(acc, -shared[1]) -> min(acc, -shared[1])"),
    ("call", "total[x.shape[0], 64](x, out) -> total[x.shape[0], 64](out, x)"),
    ("coordinate", "cuda.threadIdx.x -> cuda.blockIdx.x"),
    ("coordinate", "cuda.blockIdx.x -> cuda.blockIdx.y"),
    ("host", "return np.ones(3) -> return None"),
])
def test_an_operator_makes_this_change(operator, change):
    assert change in changes(operator)


def test_a_barrier_is_moved_over_its_neighbours():
    moved = changes("barrier moved")
    assert moved >= {"total -> cuda.syncthreads() before shared[thread] = acc",
                     "total -> cuda.syncthreads() behind if thread == 0 and row < out.size: ..."}


def test_mutants_differ_from_the_answer_and_from_each_other():
    found = mutants(ANSWER)
    sources = [one.source for one in found]
    assert ast.unparse(ast.parse(ANSWER)) not in sources
    assert len(set(sources)) == len(sources)
    assert len({one.name for one in found}) == len(found)
    assert {one.operator for one in found} == set(OPERATORS)


def test_docstrings_and_decorators_stay():
    for one in mutants(ANSWER):
        (kernel, _) = ast.parse(one.source).body
        assert ast.get_docstring(kernel) == "Rows of x, added up."
        assert ast.unparse(kernel.decorator_list[0]) == "cuda.jit"


def test_the_same_few_are_chosen_every_time_and_every_operator_is_among_them():
    found = mutants(ANSWER)
    picked = chosen(found, len(OPERATORS))
    assert {one.operator for one in picked} == set(OPERATORS)
    assert [one.name for one in chosen(list(found), 40)] == [one.name for one in chosen(list(found), 40)]
    assert chosen(found, 10_000) and len(chosen(found, 10_000)) == len(found)


def test_a_shared_array_is_made_smaller_only():
    found = changes("number", "def f():\n    a = cuda.shared.array(24, float32)\n    return a[7] * 5\n")
    assert {change for change in found if change.startswith("24")} == {"24 -> 23", "24 -> 12"}
    assert "5 -> 10" in found
