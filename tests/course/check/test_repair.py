"""A small change that makes a wrong answer right: each kind is found, on its line, and nothing unproved is claimed."""

import ast
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda
from labkit.course import answer_cells
from labkit.course.check import cases, confined, examine, repair
from labkit.course.check.changes import changes, grows_itself
from labkit.course.check.vocabulary import Vocabulary
from labkit.course.exercises import FunctionExercise, KernelExercise

pytestmark = pytest.mark.cpu_device


ABOVE = "from numba import float32\nfrom labkit import cuda\n"
KERNEL = """
@cuda.jit
def {name}(x, out):
{body}
"""


def uniform(rng, *shape):
    return rng.uniform(0.5, 1.5, shape).astype(np.float32)


@cuda.jit
def zero_x(x, out):
    pass


def exercise_of(reference, shape, sizes, launch, inputs, **more):
    """An exercise for a kernel with as many parameters as there are inputs, and out."""
    return KernelExercise(name="made_here", reference=reference, inputs=inputs, shape=shape, sizes=sizes, launch=launch,
                          tolerance=lambda *given: 1e-4, wrong={"a": zero_x, "b": zero_x},
                          domain="It is made for a test, and small.", random_size=lambda rng: sizes[-1], **more)


DOUBLED = exercise_of(lambda x: 2.0 * x + 1, lambda n: (n,), ({"n": 1}, {"n": 33}, {"n": 70}),
                      lambda n: (-(-n // 32), 32), lambda rng, n: (uniform(rng, n),))
ROWS = exercise_of(lambda x: x.astype(np.float64).sum(1), lambda R, C: (R,), ({"R": 1, "C": 2}, {"R": 5, "C": 3}),
                   lambda R, C: (1, 32), lambda rng, R, C: (uniform(rng, R, C),))
FLIPPED = exercise_of(lambda x: x.reshape(-1, 64)[:, ::-1].reshape(-1), lambda n: (64 * n,), ({"n": 1}, {"n": 3}),
                      lambda n: (n, 64), lambda rng, n: (uniform(rng, 64 * n),))
TRANSPOSED = exercise_of(lambda x: x.T, lambda R, C: (C, R), ({"R": 2, "C": 3}, {"R": 5, "C": 4}),
                     lambda R, C: ((1, 1), (8, 8)), lambda rng, R, C: (uniform(rng, R, C),))
BODIES = {
    "doubled": """
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i] + 1""",
    "rows": """
    row = cuda.grid(1)
    if row < x.shape[0]:
        total = float32(0.0)
        for col in range(x.shape[1]):
            total += x[row, col]
        out[row] = total""",
    "flipped": """
    tile = cuda.shared.array(64, float32)
    i = cuda.grid(1)
    tile[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    out[i] = tile[63 - cuda.threadIdx.x]""",
    "transposed": """
    col, row = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        out[col, row] = x[row, col]""",
}
EXERCISES = {"doubled": DOUBLED, "rows": ROWS, "flipped": FLIPPED, "transposed": TRANSPOSED}


def kernel_line(source, line):
    return f"{ABOVE}{source}".splitlines()[line - 1]


def searched(exercise, source, tries=repair.TRIES):
    """The places that are found in the answer of this source."""
    answer = answer_cells.run(f"{ABOVE}{source}", "made_here", "<an answer to be repaired>")
    drawn = cases.draw_cases(exercise, 5)
    return repair.repairs(exercise, answer, "wrong_result", drawn[0], drawn, tries)


def kernel_source(which, old="", new=""):
    assert old in BODIES[which]
    return KERNEL.format(name="made_here", body=BODIES[which].replace(old, new, 1) if old else BODIES[which])


BARRIER_INSIDE = """
@cuda.jit
def made_here(x, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.grid(1)
    if {condition}:
        tile[cuda.threadIdx.x] = x[i]
        cuda.syncthreads()
        out[i] = tile[63 - cuda.threadIdx.x]
"""


@pytest.mark.parametrize("condition, offered", [("i < out.size and i < 5", False),
                                                ("out.size > 64 and x.size > 2", True)])  # fmt: skip
def test_no_other_condition_is_offered_where_a_barrier_stands_in_a_branch_of_some_threads(condition, offered):
    tree = ast.parse(BARRIER_INSIDE.format(condition=condition))
    found = [change for change in changes(tree, Vocabulary(tree.body[0], {}, True))
             if change.words.startswith("the condition")]
    assert found and {repair._asks_around_barrier(change) for change in found} == {not offered}


KINDS = (
    # exercise, what stands in the right answer, what stands there now, the line's text, a part of the words
    ("doubled", "2 * x[i] + 1", "2 * (x[i] + 1)", "out[i] =", "brackets"),
    ("doubled", "2 * x[i] + 1", "(x[i] + 1) * 2", "out[i] =", "brackets"),
    ("doubled", "2 * x[i] + 1", "2 * x[i]", "out[i] =", "missing"),
    ("doubled", "2 * x[i] + 1", "2 * x[i] - 1", "out[i] =", "operator"),
    ("doubled", "2 * x[i] + 1", "3 * x[i] + 2", "out[i] =", "two things"),
    ("doubled", "out[i] = ", "out[i] += ", "out[i] +=", "should be overwritten"),
    ("doubled", "i < x.size", "i <= x.size", "if i <=", "condition"),
    ("doubled", "i < x.size", "i < x.size - 1", "if i <", "condition"),
    ("doubled", "cuda.grid(1)", "cuda.threadIdx.x", "i = ", "counts within the block"),
    ("doubled", "    if i < x.size:\n        out", "    out", "out[i]", "condition is missing"),
    ("rows", "range(x.shape[1])", "range(x.shape[1] - 1)", "for col", "loop"),
    ("rows", "range(x.shape[1])", "range(x.shape[0])", "for col", "axis"),
    ("rows", "total += ", "total = ", "total = x", "should be added to"),
    ("rows", "float32(0.0)", "float32(1.0)", "total = float32", "begins with the wrong value"),
    ("rows", "x[row, col]", "x[col, row]", "total +=", "wrong order"),
    ("rows", "out[row] = ", "out[col] = ", "out[col]", "wrong variable"),
    ("rows", "        total = float32(0.0)\n        for col in range(x.shape[1]):\n",
     "        for col in range(x.shape[1]):\n            total = float32(0.0)\n", "total = float32", "before the loop"),
    ("flipped", "    cuda.syncthreads()\n", "", "tile[cuda", "a barrier is missing after"),
    ("flipped", "63 - ", "64 - ", "out[i] =", "off by one"),
    ("transposed", "out[col, row]", "out[row, col]", "out[row, col]", "wrong order"),
)


@pytest.mark.sampled(6, sweep=14)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}: {kind[4]}")
def test_each_kind_of_change_is_found_on_its_line(kind):
    which, old, new, line, words = kind
    source = kernel_source(which, old, new)
    found = searched(EXERCISES[which], source)
    assert line in kernel_line(source, found[0].line)
    assert words in found[0].words


def test_the_right_answer_and_one_with_two_mistakes_are_left_alone():
    assert searched(DOUBLED, kernel_source("doubled")) == ()
    source = kernel_source("flipped", "63 - ", "61 - ").replace("    cuda.syncthreads()\n", "")
    assert searched(FLIPPED, source, 100) == ()


def test_a_change_that_helps_in_the_failing_case_alone_is_not_named():
    """Where a row has two elements `range(2)` is right."""
    source = kernel_source("rows", "range(x.shape[1])", "range(1)")
    two = ({"R": 1, "C": 2}, {"R": 5, "C": 2})
    only_two = searched(replace(ROWS, sizes=two, random_size=lambda rng: two[1]), source)
    assert "number" in only_two[0].words or "loop" in only_two[0].words
    assert [found.words for found in searched(ROWS, source)] != [found.words for found in only_two]


def mean_of(values):
    total = 0.0
    for value in values:
        total += value
        return total / len(values)


MEAN = FunctionExercise(name="mean_of", reference=lambda x: np.asarray(x.mean()), inputs=lambda rng, n: (
    uniform(rng, n),), sizes=({"n": 1}, {"n": 2}, {"n": 9}), tolerance=lambda x: 1e-5,
    wrong={"a": lambda x: 0.0, "b": lambda x: 1.0}, domain="It is made for a test, and small.")


def test_a_function_of_the_host_is_searched_and_the_verdict_names_the_line():
    verdict = examine(MEAN, mean_of, seed=5, look=True)
    assert not verdict.passed
    assert "`return total / len(values)`. This statement belongs after the loop" in " ".join(verdict.details)
    plain = examine(MEAN, mean_of, seed=5)
    assert "belongs" not in " ".join(plain.details)


def mean_too_early(values):
    total = 0.0
    mean = total / len(values)
    count = len(values)
    for i in range(count):
        total += values[i]
    return mean


def mean_not_kept(values):
    total = 0.0
    for value in values:
        np.add(total, value)
    return total / len(values)


@pytest.mark.parametrize(("answer", "line", "words"), [
    (mean_too_early, "mean = total / len(values)", "This statement comes too early"),
    (mean_not_kept, "np.add(total, value)", "The result of `np.add(total, value)` is not kept")])
def test_a_statement_far_from_its_place_and_a_result_that_is_not_kept(answer, line, words):
    verdict = examine(MEAN, answer, seed=5, look=True)
    assert f"`{line}`. {words}" in " ".join(verdict.details)


def test_an_answer_that_does_more_than_compute_is_not_run_again():
    def writes(values):
        open("/dev/null", "w").close()
        return values.sum()

    drawn = cases.draw_cases(MEAN, 5)
    assert repair.repairs(MEAN, writes, "wrong_result", drawn[0], drawn) == ()
    assert not repair._can_be_changed(MEAN, writes)


def test_an_answer_of_another_process_is_never_run_here():
    from labkit.course.grade.remote import RemoteFunction, RemoteKernel

    remote = RemoteKernel("made_here", zero_x.py_func, None)
    assert not repair._can_be_changed(DOUBLED, remote)
    assert not repair._can_be_changed(MEAN, RemoteFunction("mean_of", mean_of, mean_of))


@pytest.mark.parametrize("factor", [0.01, 30.0])
def test_no_advice_depends_on_how_fast_the_machine_is(monkeypatch, factor):
    clock = time.thread_time
    monkeypatch.setattr(time, "thread_time", lambda: factor * clock())
    found = searched(ROWS, kernel_source("rows", "x[row, col]", "x[col, row]"))
    assert [(one.line, one.words) for one in found] == [(11, "the indices of `x` are in the wrong order")]


def test_the_sign_of_an_update_comes_before_everything_else_of_its_kind():
    tree = ast.parse(kernel_source("rows", "total += ", "total -= "))
    found = changes(tree, Vocabulary(tree.body[0], {"x": ("array", 2), "out": ("array", 1)}, True))
    place = next(k for k, change in enumerate(found) if "total += x[row, col]" in ast.unparse(change.tree()))
    assert found[place].words == "the operator of `total -= x[row, col]` is wrong" and found[place].rank < 1.0


def test_an_endless_loop_among_the_changes_ends(monkeypatch):
    source = kernel_source("rows", "for col in range(x.shape[1]):\n            total += x[row, col]",
                           "col = 0\n        while col < x.shape[1]:\n            total += x[row, col]\n"
                           "            col += 2")
    found = searched(ROWS, source)
    assert "col += 2" in kernel_line(source, found[0].line)


def test_an_interrupt_ends_the_search_and_not_the_check(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(repair._Search, "run", interrupted)
    assert not examine(MEAN, mean_of, seed=5, look=True).passed


def test_a_fault_of_the_search_is_not_the_learners(monkeypatch):
    def broken(self):
        raise RuntimeError

    monkeypatch.setattr(repair._Search, "run", broken)
    assert not examine(MEAN, mean_of, seed=5, look=True).passed


@pytest.mark.parametrize("body", [
    "x.append(x)", "x.extend(x)", "x.insert(0, [x])", "x += x", "x += [x]", "x = [x]", "x[0] = x", "x = [*x, 1]",
    "for a in x:\n        x.append(a)", "for a in x:\n        x += [a]"])
def test_nothing_that_grows_by_itself_is_tried(body):
    assert grows_itself(ast.parse(f"def f(x):\n    {body}"))


@pytest.mark.parametrize("body", ["y.append(x)", "x += 1", "x[0] += x[1]", "x = x + 1", "out[i] = x[i]",
                                  "for a in x:\n        y.append(a)", "x[i], x[j] = x[j], x[i]"])
def test_what_grows_by_something_else_is_tried(body):
    assert not grows_itself(ast.parse(f"def f(x):\n    {body}"))


def listed(x):
    rest = []
    for value in x:
        rest.append(value * 2)
    return rest


LISTED = FunctionExercise(name="listed", reference=lambda x: 3.0 * np.asarray(x), inputs=lambda rng, n: ([1.0] * n,),
                          sizes=({"n": 3}, {"n": 5}), wrong={"a": listed, "b": listed},
                          domain="It is made for a test, and small.")


def test_the_search_never_runs_a_change_that_grows_by_itself():
    drawn = cases.draw_cases(LISTED, 5)
    search = repair._Search(LISTED, listed, drawn[0], drawn, 1e9, lambda found: None)
    source = search.sources["listed"]
    search.visited, search.limit_s = set(), 0.2
    tree = ast.parse("def listed(x):\n    raise SystemExit\n    x.append(x)")
    ran = []
    assert not search._helps(source, tree, ran.append) and not ran


@pytest.mark.skipif(not confined.FORKS, reason="there is no fork")
@pytest.mark.parametrize("work", [
    lambda send: [send(1), (10 ** 9) ** (10 ** 9)],  # in C, which no exception reaches
    lambda send: [send(1), bytearray(1 << 33)],
    lambda send: [send(1), os._exit(3)]])
def test_a_process_that_hangs_or_grows_is_ended_and_what_it_sent_stays(work):
    begin = time.monotonic()
    assert list(confined.confined(work, cpu_s=0.2, memory_bytes=1 << 28, wall_s=30.0)) == [1]
    assert time.monotonic() - begin < 25


CAPPED = exercise_of(lambda x: 2.0 * x, lambda n: (n,), ({"n": 3}, {"n": 40}, {"n": 3000}),
                     lambda n: (-(-n // 32), 32), lambda rng, n: (uniform(rng, n),))


def test_a_repair_is_named_only_if_the_whole_check_passes(monkeypatch):
    source = kernel_source("doubled", "2 * x[i] + 1", "3 * x[i]")
    assert searched(CAPPED, source)
    from labkit.course.check import stages

    large = lambda exercise, answer, given: False  # noqa: E731
    monkeypatch.setattr(stages, "passes", large)
    assert not searched(CAPPED, source)


def test_a_loop_that_shares_its_work_is_not_made_one_that_does_all():
    tree = ast.parse(kernel_source("rows", "range(x.shape[1])", "range(row, x.shape[1], 32)"))
    found = changes(tree, Vocabulary(tree.body[0], {"x": ("array", 2), "out": ("array", 1)}, True))
    assert not any("x.shape[1], 1)" in ast.unparse(change.tree()) for change in found)


def test_changes_leave_the_tree_as_it_was_come_in_the_same_order_and_give_nothing_away():
    tree = ast.parse(kernel_source("rows"))
    before = ast.dump(tree)
    vocabulary = Vocabulary(tree.body[0], {"x": ("array", 2), "out": ("array", 1)}, True)
    found = changes(tree, vocabulary)
    for change in found:
        compile(change.tree(), "<changed>", "exec")
    assert ast.dump(tree) == before
    assert [(c.rank, c.words) for c in found] == [(c.rank, c.words) for c in changes(tree, vocabulary)]
    assert [c.rank for c in found] == sorted(c.rank for c in found)
    assert all(change.line for change in found)
