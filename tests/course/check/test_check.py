"""What `check` says to right answers, to wrong ones and to nonsense."""

import ctypes
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

from labkit import cuda, device
from labkit._common import paths
from labkit._common.paths import REPOSITORY
from labkit.course import exercises, progress
from labkit.course import registry as course
from labkit.course.check import check, examine, limits, run, words
from labkit.course.check.compare import compare_attempt
from labkit.course.check.diagnose import faults
from labkit.course.check.diagnose.patterns import pattern
from labkit.course.check.verdict import CheckFailed, Verdict
from labkit.course.exercises import FunctionExercise, KernelExercise, PredictionExercise
from labkit.course.exercises.demands import asks
from labkit.simt.observer.report import KernelFinding, Report
from tests.course.check.written import COUNT, RIGHT, function_exercise, guarded, histogram, kernel, scaling

pytestmark = pytest.mark.cpu_device

MADE_UP = REPOSITORY / "tests" / "made_up_exercises"


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    monkeypatch.setenv("LABKIT_EXERCISES", str(MADE_UP))
    monkeypatch.setenv("LABKIT_PROGRESS", "0")


def examined(answer, name="scale_vector", **options) -> Verdict:
    return examine(exercises.find(name), answer, **options)


def plain(a, s, out):
    out[0] = a[0] * s


right = kernel("right")
stub = kernel("stub", "i = cuda.grid(1)\n### BEGIN SOLUTION\n# Your code here\npass\n### END SOLUTION")
nbgraders_stub = kernel("nbgraders_stub", "i = cuda.grid(1)\n# YOUR CODE HERE\nraise NotImplementedError()")
two_parameters = kernel("two_parameters", "out[0] = a[0]", parameters="a, out")
returns = kernel("returns", "i = cuda.grid(1)\nreturn a[i] * s")
no_attribute = guarded("no_attribute", "out[i] = a[i].wide * s")
uses_a_dictionary = kernel("uses_a_dictionary", "found = {}\nfound[0] = s\nout[0] = found[0]")
writes_its_input = guarded("writes_its_input", "a[i] *= s\nout[i] = a[i]")
barrier_in_a_branch = guarded("barrier_in_a_branch", "cuda.syncthreads()\nout[i] = a[i] * s")
neighbours_share = kernel("neighbours_share", "shared = cuda.shared.array(128, np.float32)\nt = cuda.threadIdx.x\n"
                          + RIGHT.replace("out[i] =", "shared[t] = s  # no barrier before it is read\n    out[i] =")
                          .replace("* s", "* (shared[t - 1] if t > 0 else s)"))
every_second = kernel("every_second", RIGHT.replace("i = ", "i = 2 * "))
first_block = kernel("first_block", RIGHT.replace("cuda.grid(1)", "cuda.threadIdx.x"))
never_ends = kernel("never_ends", RIGHT.replace("if", "while"))
cpu_only = pytest.mark.skipif(device.on_gpu(), reason="what the CPU device explains")


def test_a_right_kernel_passes_and_the_verdict_says_where():
    result = examined(right)
    assert result.passed and result.kind == "passed"
    assert "Correct at 5 sizes, from n=1" in result.headline
    assert f"Checked on {device.name() if device.on_gpu() else 'the CPU device'}" in result.footer


@cpu_only
@pytest.mark.parametrize(("answer", "offered"), [(right, False), (stub, False), (first_block, True),
                                                 (writes_its_input, True), (uses_a_dictionary, False)])
def test_a_failing_kernel_can_be_played_where_its_threads_can_be_watched(answer, offered, tmp_path):
    result = examined(answer, seed=1, play_in=str(tmp_path))
    assert result.can_play == offered and bool(result.player) == offered
    assert ([path.name for path in tmp_path.iterdir()] == ["scale_vector.html"]) == offered
    assert ("step through its threads: " in result.footer) == offered
    offer = "step through its threads: labkit check scale_vector --play"
    assert (offer in examined(answer, seed=1).footer) == offered


@cpu_only
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (None, "unchanged", "There is no kernel yet."),
        (stub, "unchanged", "`stub` has not been changed yet"),
        (nbgraders_stub, "unchanged", "`nbgraders_stub` has not been changed yet"),
        (plain, "not_a_kernel", "Put `@cuda.jit` on the line above `def plain(...)`"),
        (right[1, 1], "not_a_kernel", "Pass the kernel itself, without [grid, block]."),
        (cuda.jit(device=True)(plain), "not_a_kernel", "Remove `device=True` from"),
        (numba.njit(plain), "not_a_kernel", "put `@cuda.jit` above `def plain(...)` instead"),
        (type("AClass", (), {}), "not_a_kernel", "A kernel is a function"),
        (7, "not_a_kernel", "This exercise needs a kernel, not 7 (int)."),
        (two_parameters, "wrong_arguments", "Yours: a, out. Launched with: a, s, out, in this order."),
        (returns, "returns", "A kernel cannot return a value: it writes its result to an array."),
        (no_attribute, "wrong_types", "`a[i]` is a number (float32) here, so it has no `.wide`"),
        (uses_a_dictionary, "unsupported", "A kernel cannot create a dictionary: it cannot allocate memory"),
        (writes_its_input, "input_changed", "Input number 1 was written to."),
        (barrier_in_a_branch, "barrier", "Some threads of a block never reach a barrier"),
        (neighbours_share, "race", ""),
        (every_second, "wrong_result", "Starting at 1, every second element was never written"),
        (first_block, "wrong_result", "Only the first 128 elements are right, as many as a block has threads."),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_wrong_answers_are_explained_in_words(answer, kind, words):
    result = examined(answer)
    assert not result.passed and result.kind == kind
    text = " ".join([result.headline, *result.details])
    assert words in text
    assert "Traceback" not in text and str(Path.cwd()) not in text
    json.dumps(result.result())
    assert Verdict.from_result(result.result()).result() == result.result()


@cpu_only
def test_out_of_bounds_names_thread_index_shape_line_and_asks_for_the_guard():
    result = examined(exercises.find("scale_vector").wrong["no guard at the tail"])
    text = " ".join(result.details)
    assert result.headline == "A thread reaches outside `a`." and result.size == {"n": 1}
    assert "At n=1: thread 1 of block 0 uses `a[1]`, and `a` has the shape (1,): its last index is 0." in text
    assert "`out[i] = a[i] * s`" in text
    assert "The launch [1, 128] starts 128 threads for 1 element of the output. Is there a guard" in text


@cpu_only
def test_outside_of_an_array_of_the_kernels_own_its_size_is_asked_for_and_no_guard():
    result = examined(kernel("answer", "tile = cuda.shared.array(8, np.float32)\ntile[cuda.threadIdx.x] = s\n"
                             "cuda.syncthreads()\n" + RIGHT.replace("* s", "* tile[0]")))
    text = " ".join(result.details)
    assert result.headline == "A thread reaches outside `tile`." and "Is there a guard" not in text
    assert "creates `tile` of the shape (8,), and blocks have 128 threads. Is the array too small" in text


@cpu_only
def test_an_endless_loop_is_stopped_and_its_line_named(monkeypatch):
    monkeypatch.setattr(limits, "KERNEL_LIMIT_S", 0.3)
    begin = time.perf_counter()
    result = examined(never_ends)
    assert time.perf_counter() - begin < 10
    line = never_ends.py_func.__code__.co_firstlineno + 3
    assert result.kind == "never_ends" and result.headline == f"It never ends: line {line}."
    assert result.details[0] == f"Line {line}: `while i < out.size:`"


@cpu_only
def test_a_loop_that_observe_stops_is_reported_without_a_block():
    from labkit.simt.errors import KernelTimeout

    error = KernelTimeout("never_ends, line 4: stopped", kernel="never_ends", filename="", line=4, block=None,
                          thread=(1, 0, 0))
    case = SimpleNamespace(size={"n": 33}, where="x is 0")
    exercise, attempt = exercises.find("scale_vector"), run.Attempt(case, error=error)
    diagnosis = faults.describe_error(exercise, right, compare_attempt(exercise, attempt))
    assert diagnosis.kind == "never_ends"
    assert "At n=33, where x is 0: thread 1 was stopped there after 5 s." in diagnosis.details[1]


def test_an_endless_function_of_the_host_is_stopped(monkeypatch):
    monkeypatch.setattr(run, "FUNCTION_LIMIT_S", 0.3)

    def count_blocks(n, threads):
        while True:
            n += 1

    result = examined(count_blocks, "count_blocks")
    assert result.kind == "never_ends" and "line" in result.headline


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (lambda n, threads: None, "no_value", "Is `return` missing?"),
        (lambda n, threads: [n, n], "wrong_shape", "The function returns 2 numbers; it should return one number."),
        (lambda n, threads: "many", "wrong_types", "The function returns str, not numbers."),
        (lambda n, threads: n // 0, "raised", "It raised ZeroDivisionError."),
        (lambda n: n, "raised", "`<lambda>` takes 1 argument, but is called with 2."),
        (lambda n, threads: n // threads + 1, "wrong_result", "It was called with 128, 128."),
        (right, "not_a_function", "`right` is a kernel; this exercise needs a host function."),
    ],
)
def test_functions_of_the_host(function, kind, words):
    result = examined(function, "count_blocks")
    assert result.kind == kind
    assert words in " ".join([result.headline, *result.details])


def test_predictions():
    def predicted(tries=2, **numbers):
        return examined(None, "idle_threads", numbers=numbers, tries=tries)

    assert predicted(idle=24, blocks=8).passed
    assert predicted(idle=None, blocks=8).headline == "No prediction yet for `idle`."
    result = predicted(idle=104, blocks=8)
    assert result.headline == "1 of 2 predictions is wrong." and "Take the elements from" in result.details[0]
    assert result.mistake == "counts the last block's busy threads"
    assert "24" not in json.dumps(result.result()["table"])  # the truth is not shown
    with pytest.raises(ValueError, match="has no 'idel'; allowed are idle, blocks"):
        predicted(idel=1)


@pytest.mark.parametrize(("idle", "right"), [(24, True), (24.0, True), (np.int64(24), True), (25, False), (23, False),
                                             (24.001, False), ("24 threads", False), ([24], False)])
def test_a_prediction_is_right_only_if_it_is_the_number(idle, right):
    verdict = examined(None, "idle_threads", numbers={"idle": idle, "blocks": 8})
    assert verdict.passed == right


def test_an_answer_may_keep_the_comment_that_it_stands_under():
    assert examined(kernel("answer", RIGHT.replace("if", "# Your code here\nif"))).passed
    assert examined(stub).kind == "unchanged"


def test_a_seed_repeats_the_inputs_and_without_one_they_are_fresh():
    short = exercises.find("scale_vector").wrong["`+` in place of `*`"]
    first = examined(short)
    assert examined(short, seed=first.seed).table == first.table
    assert examined(short).table != first.table


def test_the_table_stands_around_the_first_wrong_element():
    result = examined(first_block, seed=1)
    assert result.table["columns"] == ["index", "expected", "got", ""]
    indices = [int(row[0]) for row in result.table["rows"]]
    assert indices == list(range(125, 134))
    assert [row[2] for row in result.table["rows"]][3:] == ["not written"] * 6
    text = str(result)
    assert "129 of 257 elements were never written." in text and f"seed={result.seed}" in text


def test_a_nan_that_was_computed_counts_as_written():
    result = examined(guarded("answer", "big = np.float32(3e38) * (a[i] * a[i] + np.float32(10.0))\n"
                              "out[i] = big / big"))
    assert not result.passed and "written" not in str(result) and "NaN" in str(result)


def test_a_launchers_result_must_not_depend_on_the_order_of_threads():
    """observe sees kernels only: for a launcher the other orders are all there is."""
    last = kernel("last", "i = cuda.grid(1)\nif i < a.size:\n    out[0] = a[i]", parameters="a, out")
    exercise = function_exercise(
        "last", lambda a: a[-1:], lambda rng, n: np.arange(1, n + 1, dtype=np.float32), ({"n": 40},),
        shape=lambda n: (1,), tolerance=lambda a: 0.0,
        wrong={"writes nothing": lambda a, out: None, "takes the first": lambda a, out: last[1, 1](a, out)})
    verdict = examine(exercise, lambda a, out: last[1, 64](a, out))
    assert verdict.kind == "race" and "depends on the order in which threads run" in verdict.headline


@pytest.mark.parametrize("element", [-1, 40, -4096, 4135])  # the guard zones have 4,096 elements
def test_one_element_written_beside_the_output_is_enough(element):
    """As a GPU lets a kernel do it: the CPU device stops it first."""

    def stray(a, s, out):
        right[1, 64](a, s, out)
        ctypes.c_float.from_address(out._array.ctypes.data + 4 * element).value = 0.5

    exercise = scaling("stray", wrong={"writes nothing": lambda a, s, out: None,
                                       "writes 1": lambda a, s, out: right[1, 64](a, 1.0, out)})
    verdict = examine(exercise, stray)
    assert verdict.kind == "out_of_bounds" and verdict.headline == "A thread writes outside the output."
    assert f"element {element} (in memory order) was written" in verdict.details[0]
    assert examine(exercise, lambda a, s, out: right[1, 64](a, s, out)).passed


def test_no_guard_is_asked_for_where_the_first_thread_fails():
    result = str(examined(guarded("answer", "out[i] = a[i + 1000] * s")))
    assert "very first thread" in result and "Is there a guard" not in result


def test_all_that_a_page_shows_is_escaped():
    result = Verdict("x", "<b>", False, "raised", "It raised <script>.", ("`a < b`",), mistake="<i>", where="on <x>")
    html = result._repr_mimebundle_()["text/html"]
    assert "<script>" not in html and "<b>" not in html and "<code>a &lt; b</code>" in html
    assert result._repr_mimebundle_()["application/vnd.labkit.result+json"]["exercise"] == "x"


def test_check_prints_in_a_script_and_takes_names_it_knows(capsys):
    assert check("count_blocks", lambda n, threads: -(-n // threads)).passed
    assert capsys.readouterr().out.startswith("Passed  count_blocks")
    with pytest.raises(ValueError, match="there is no exercise 'scale_vektor'; did you mean 'scale_vector'"):
        check("scale_vektor", right)


def test_under_nbgrader_a_wrong_answer_raises_and_a_right_one_does_not(monkeypatch, capsys):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert check("count_blocks", lambda n, threads: -(-n // threads)).passed
    with pytest.raises(CheckFailed, match="count_blocks: The value is wrong.") as caught:
        check("count_blocks", lambda n, threads: n // threads)
    assert caught.value._render_traceback_() == ["CheckFailed: count_blocks: The value is wrong."]
    assert "Not yet  count_blocks" in capsys.readouterr().out


def test_under_nbgrader_a_verdict_is_shown_but_is_not_the_result_of_its_cell(monkeypatch):
    """nbgrader reads a test cell's result as the points that it gives."""
    shown, verdict = [], check("count_blocks", lambda n, threads: -(-n // threads))
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    data, _ = DisplayFormatter().format(verdict)
    assert data["text/plain"] == str(verdict) and not shown
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert DisplayFormatter().format(verdict) == ({}, {})
    assert [bundle["text/plain"] for bundle in shown] == [str(verdict)] and "text/html" in shown[0]


def test_a_pass_is_remembered(monkeypatch, tmp_path):
    (tmp_path / "course.toml").write_text((MADE_UP / "course.toml").read_text())
    monkeypatch.setenv("LABKIT_COURSE", str(tmp_path))
    monkeypatch.delenv("LABKIT_PROGRESS")
    check("count_blocks", lambda n, threads: n // threads)
    assert progress.read(course.load())["passed"] == {}
    assert check("count_blocks", lambda n, threads: -(-n // threads)).title == "Count the blocks"
    assert list(progress.read(course.load())["passed"]) == ["count_blocks"]


def test_without_a_checkout_check_works_and_remembers_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABKIT_COURSE", raising=False)
    monkeypatch.delenv("LABKIT_PROGRESS")
    verdict = check("count_blocks", lambda n, threads: -(-n // threads))
    assert verdict.passed and verdict.title == "count_blocks" and list(tmp_path.iterdir()) == []


def test_integer_outputs_and_outputs_that_start_with_something():
    count, once, nothing = (kernel("count", body, parameters="values, out") for body in (
        COUNT, COUNT.replace("cuda.atomic.add(out, values[i], 1)", "out[values[i]] = 1"), "pass"))
    counted = histogram(start=lambda values: np.zeros(4), wrong={"counts each value once": once,
                                                                 "counts nothing": nothing})
    assert examine(counted, count).passed
    assert examine(counted, once).mistake == "counts each value once"
    assert examine(counted, nothing).mistake == "counts nothing"


@pytest.mark.parametrize(
    ("missing", "message"),
    [({"launch": None}, "launch is missing"), ({"sizes": ()}, "sizes is missing"),
     ({"inputs": 3}, "inputs must be a function, not 3"), ({"wrong": {"one": right}}, "two known wrong answers"),
     ({"observe_sizes": ({"n": 7},)}, "observe_sizes has {'n': 7}, which is not one of sizes")],
)
def test_an_exercise_says_what_it_lacks(missing, message):
    whole = {**exercises.find("scale_vector").__dict__, **missing}
    with pytest.raises(ValueError, match=f"exercise 'scale_vector': .*{message}"):
        KernelExercise(**whole)


def test_each_kind_of_exercise_has_only_its_own_fields():
    numbers = {"one": {"idle": 1}, "two": {"idle": 2}}
    assert PredictionExercise("guess", truth=dict, wrong=numbers).kind == "predict"
    with pytest.raises(TypeError, match="unexpected keyword argument 'launch'"):
        PredictionExercise("guess", truth=dict, wrong=numbers, launch=lambda: (1, 1))
    with pytest.raises(ValueError, match=r"exercise 'guess': wrong\['two'\] must be a dictionary of numbers, not 2"):
        PredictionExercise("guess", truth=dict, wrong={**numbers, "two": 2})
    with pytest.raises(ValueError, match="start is for a launcher, which has a shape"):
        FunctionExercise("host", reference=abs, inputs=lambda rng, n: n, sizes=({"n": 1},), wrong=numbers, start=abs,
                         domain="Made up, for a test.")


GRID = np.arange(1.0, 26.0).reshape(5, 5) ** 1.5
LINE = np.sin(np.arange(1.0, 301.0)) * 3
CUBE = np.arange(1.0, 25.0).reshape(2, 3, 4) ** 1.5
MARKED = np.array([3, 5, 8, 9, 12, 15, 16, 19, -1, -1, -1, -1])


def changed(where, value=-1.0, base=LINE):
    got = base.copy()
    got[where] = value
    return got


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (LINE, np.full(300, np.nan), "No element was written."),
        (LINE, changed(slice(256, None)), "They are all in the last block: elements 256 to 299 are wrong."),
        (LINE, changed(slice(128, None), np.nan), "Only the first 128 elements"),
        (LINE, changed(slice(10, 20)), "elements 10 to 19 (in memory order) are wrong"),
        (LINE, changed(slice(1, None, 3)), "Starting at 1, every third element is wrong."),
        (LINE, changed(0), "Only the first element is wrong."),
        (LINE, changed(-1, np.nan), "Only the last element was never written."),
        (LINE, np.roll(LINE, 1), "shifted by one: element i holds what belongs at i - 1."),
        (LINE, np.roll(LINE, -1), "shifted by one: element i holds what belongs at i + 1."),
        (LINE, 2 * LINE, "Every element is 2 times what it should be."),
        (LINE, LINE + 1, "Every element is 1 too large."),
        (LINE, np.zeros(300), "Every element is 0."),
        (GRID, GRID.T.copy(), "The output is transposed"),
        (GRID, changed((slice(3, None), slice(None)), base=GRID), "Whole rows are wrong: 3, 4."),
        (GRID, changed((slice(None), 4), base=GRID), "Whole columns are wrong: 4."),
        (GRID, changed((slice(None), slice(3, None)), base=GRID), "Whole columns are wrong: 3, 4; 3 is K."),
        (CUBE, CUBE + (np.arange(3) == 1)[:, None] * 5, "All elements [:, k, :] with k = 1 are wrong, and no others. "
         "Each of these is 5 too large."),
        (CUBE, CUBE * np.where(np.arange(4) == 2, 3, 1), "[:, :, k] with k = 2 are wrong, and no others. Each of these "
         "is 3 times what it should be."),
        (LINE, changed(slice(10, 20)), "All of these hold -1."),
        (LINE, np.sort(LINE), "These are the right values in another order."),
        (MARKED, np.roll(MARKED, 4) + (np.roll(MARKED, 4) > 0), "-1 is at elements 0 to 3, but belongs at elements "
         "8 to 11."),
    ],
)
def test_patterns(expected, got, words):
    unwritten = np.isnan(got)
    wrong = ~(np.abs(got - expected) <= 1e-9)
    size = {"M": 5, "K": 3} if "K" in words else {}
    assert words in pattern(expected, got, wrong, unwritten, block=(128,), size=size)


def test_a_copy_of_an_input_is_recognised():
    wrong = np.ones(300, bool)
    assert pattern(LINE * 2 + 1, LINE, wrong, ~wrong, (7, LINE)) == "The output is a copy of input number 2."


@pytest.fixture
def report(monkeypatch):
    """A stand-in for observe: what it finds is set by the test; each kernel finds the same."""
    import labkit

    found = Report("kernel", "", (1, 1, 1), (128, 1, 1))
    monkeypatch.setitem(labkit.__dict__, "observe", lambda launch, *arguments: found)
    return found


@cpu_only
def test_what_observe_finds_is_a_verdict(report):
    report.races = [KernelFinding("race", "kernel", [], [], 0, "out", (0,), "Threads 0 and 1 both write out[0].")] * 3
    result = examined(right)
    assert result.kind == "race" and result.headline == "Two threads race for the same element."
    assert result.details[:2] == ("Threads 0 and 1 both write out[0].",) * 2
    assert "there are 3 such findings" in result.details[2]
    report.races = []
    assert examined(right).passed


@pytest.mark.sweep(every=True)
@cpu_only
def test_a_benign_race_passes_with_a_word_unless_the_exercise_forbids_it():
    exercise = exercises.find("scale_vector")
    stored_twice = kernel("stored_twice", "i = cuda.grid(1) // 2  # two threads for each element, with the same value\n"
                          "while i < out.size:\n    out[i] = a[i] * s\n    i += cuda.gridsize(1) // 2")
    verdict = examine(exercise, stored_twice)
    assert verdict.passed and any("benign race" in detail for detail in verdict.details)
    verdict = examine(replace(exercise, benign_races=False), stored_twice)
    assert verdict.kind == "race" and "benign race" in verdict.details[0]
    assert not any("benign race" in detail for detail in examine(exercise, right).details)


@cpu_only
def test_a_demand_is_made_of_what_observe_counted(report):
    @asks("Each element is loaded once.")
    def few_loads(report):
        return None if report.counts["global_loads"] <= 10 else "It loads each element more than once."

    careful = replace(exercises.find("scale_vector"), demand=few_loads)
    report.counts["global_loads"] = 20
    result = examine(careful, right)
    assert result.kind == "demand" and result.details == ("It loads each element more than once.",)
    report.counts["global_loads"] = 10
    assert examine(careful, right).passed


@pytest.mark.gpu
def test_on_a_gpu_the_time_and_the_ratio_are_given():
    timed = replace(exercises.find("scale_vector"), timed_gpu={"n": 2**24}, baseline=lambda xp, a, s, out: a * float(s))
    result = examine(timed, right)
    assert result.passed and result.where.startswith("measured on")
    assert result.time_ms > 0


def test_checking_is_quick_enough():
    examined(right)
    begin = time.perf_counter()
    assert examined(right).passed
    assert time.perf_counter() - begin < 5


def test_numbers_without_a_sign_are_bits_and_shown_so():
    assert [words.show_value(value) for value in (np.uint16(0x7FC0), np.uint32(255), np.int32(32_704))] == [
        "0x7FC0", "0x000000FF", "32,704"]
