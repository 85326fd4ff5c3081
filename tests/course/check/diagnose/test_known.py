"""Which known mistake an answer makes, and how sure that is; what an output held before; who went outside."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numba import int32

from labkit import cuda
from labkit.course import exercise_files, exercises
from labkit.course.check import check, examine, limits, run
from labkit.course.check.compare import compared, orders
from labkit.course.check.diagnose import known
from labkit.course.check.diagnose.faults import guard_question
from labkit.course.check.draw import Case
from labkit.course.check.verdict import Verdict
from labkit.simt.errors import KernelTimeout
from labkit.simt.observer.report import KernelFinding, Report
from tests.course.check.written import COUNT, RIGHT, function_exercise, guarded, histogram, kernel

pytestmark = [pytest.mark.cpu_device, pytest.mark.usefixtures("made_up")]


# --- Exactly, or only alike ------------------------------------------------------------------------------------------

EARLY = "thread = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x\nif thread >= out.size:\n    return\n"
adds_in_its_own_words = kernel("adds_in_its_own_words", f"{EARLY}out[thread] = s + a[thread]")
right = kernel("right")


def test_equal_outputs_at_every_size_are_exact(examined):
    verdict = examined(adds_in_its_own_words)
    assert (verdict.mistake, verdict.mistake_is_exact) == ("`+` in place of `*`", True)
    assert "A known mistake does exactly this: `+` in place of `*`." in str(verdict)


def test_a_result_that_is_near_a_known_mistakes_is_another_mistake(examined):
    verdict = examined(guarded("answer", "out[i] = a[i] + s + 0.25"))
    assert verdict.kind == "wrong_result" and verdict.mistake == ""


@pytest.mark.sweep(every=True)
def test_of_mistakes_with_the_same_kind_of_fault_the_one_with_the_same_numbers_is_named():
    wrong = {"one": guarded("one_behind", "out[i + 1] = a[i] * s"),
             "five": guarded("five_behind", "out[i + 5] = a[i] * s")}
    exercise = replace(exercises.find("scale_vector"), wrong=wrong)
    in_other_words = kernel("answer", f"{EARLY}out[thread + 5] = s * a[thread]")
    assert examine(exercise, in_other_words, seed=5).mistake == "five"


@pytest.mark.sweep(every=True)
def test_a_fault_at_another_line_is_alike_at_most(examined):
    verdict = examined(kernel("answer", "i = cuda.grid(1)\nvalue = a[i] * s\nif i < out.size:\n    out[i] = value"))
    assert verdict.kind == "out_of_bounds" and verdict.mistake and not verdict.mistake_is_exact
    assert "This looks like a known mistake: " in str(verdict) and "does exactly" not in str(verdict)
    html = verdict._repr_mimebundle_()["text/html"]
    assert "This looks like a known mistake" in html
    assert verdict.result()["mistake_is_exact"] is False
    assert Verdict.from_result(verdict.result()).mistake_is_exact is False


def test_an_output_that_was_not_written_has_many_causes(examined):
    exercise = replace(exercises.find("scale_vector"),
                       wrong={"writes nothing": kernel("nothing", "pass"), "adds": adds_in_its_own_words})
    verdict = examine(exercise, kernel("never_true", RIGHT.replace("if i", "if out.size < i")))
    assert verdict.mistake == "writes nothing" and not verdict.mistake_is_exact


def test_two_known_mistakes_that_do_the_same_are_alike_only():
    twin = cuda.jit(adds_in_its_own_words.py_func)
    exercise = replace(exercises.find("scale_vector"), wrong={"one": adds_in_its_own_words, "two": twin})
    verdict = examine(exercise, adds_in_its_own_words)
    assert verdict.mistake == "one, or: two" and not verdict.mistake_is_exact


def test_a_known_mistake_fails_nowhere_where_the_answer_is_right():
    """The two give the same in every case from the first that fails; one of them fails before."""
    added = "out[i] = a[i] * s + (1 if {} else 0)"
    wrong = {"in a single element, too": guarded("two", added.format("cuda.gridDim.x > 1 or out.size == 1")),
             "in several blocks": guarded("one", added.format("cuda.gridDim.x > 1"))}
    exercise = replace(exercises.find("scale_vector"), wrong=wrong)
    in_other_words = guarded("answer", "out[i] = s * a[i]\nif cuda.gridDim.x != 1:\n    out[i] += 1")
    assert examine(exercise, in_other_words, seed=5).mistake == "in several blocks"


@pytest.mark.sweep
def test_a_known_mistake_of_an_exercise_fails_nowhere_where_the_answer_is_right():
    """As above, at a seed at which two mistakes of a real exercise differ before the first failing case alone."""
    exercise, mistake = exercises.find("attend_packed"), "the first maximum is 0, and scores far below it vanish"
    assert examine(exercise, exercise.wrong[mistake], seed=1560955437).mistake == mistake


@pytest.mark.parametrize(("expected", "got", "start", "tells"), [
    ([1, 2, 3], [1, 5, 6], None, True),
    ([1, 2, 3], [1, 0, 0], None, False),  # 0 where it is wrong
    ([1, 2, 3], [1, np.nan, np.nan], None, False),
    ([1, 2, 3], [7, 8, 9], [7, 8, 9], False),  # as before the launch
])
def test_which_wrong_outputs_tell_their_cause(expected, got, start, tells):
    start = None if start is None else np.array(start, float)
    case = Case({"n": 3}, (), np.array(expected, float), np.zeros(3), start)
    difference = compared(case, np.array(got, float), np.zeros(3, bool))
    assert known._tells([(difference, difference)]) == tells


# --- What the output held before -------------------------------------------------------------------------------------


def test_an_output_that_is_added_to_is_not_called_unwritten(examined):
    verdict = examined(guarded("answer", "out[i] += a[i] * s"))
    text = str(verdict)
    assert verdict.headline == "The result is added to an output that was never set to 0."
    assert "`out[i] += a[i] * s`" in text and "With an output full of zeros, the result would be right." in text
    assert "written" not in text and verdict.mistake == ""


def test_zeros_are_not_promised_where_they_would_not_do(examined):
    text = str(examined(guarded("answer", "out[i] += 2 * a[i] * s")))
    assert "depends on what was in the output" in text and "the result would be wrong." in text


def test_one_that_writes_nothing_beside_it_stays_unwritten(examined):
    some = kernel("answer", "i = cuda.grid(1)\nif i < out.size - 1:\n    out[i] += a[i] * s")
    assert "was not written" in examined(some).headline  # at n=1 it does nothing at all


def test_integers_and_functions_of_the_host_add_as_well():
    count, nothing = (kernel("count", body, parameters="values, out") for body in (COUNT, "pass"))
    verdict = examine(histogram(wrong={"writes nothing": nothing, "writes nothing either": nothing}), count)
    assert "`cuda.atomic.add(out, values[i], 1)` uses the value already in the output" in verdict.details[0]
    host = function_exercise(
        "host", lambda a: a, lambda rng, n: (np.ones(n, np.float32),), ({"n": 40},), shape=lambda n: (n,),
        tolerance=lambda a: 0.0 * a, wrong={"writes nothing": lambda a, out: None, "copies": lambda a, out: None})

    def blas(a, out, beta=1):
        out.copy_to_device(a.copy_to_host() + beta * out.copy_to_host())

    verdict = examine(host, blas)
    assert "beta" in verdict.details[0] and "the result would be right" in str(verdict) and verdict.mistake == ""


# --- Who went outside ------------------------------------------------------------------------------------------------


def test_the_guard_is_asked_after_only_where_it_is_wrong(examined):
    first = " ".join(examined(guarded("answer", "out[i] = a[i + 1] * s")).details)
    assert "Is there a guard" not in first and "This is the very first thread" in first
    exercise, case = exercises.find("scale_vector"), SimpleNamespace(size={"n": 100}, expected=np.zeros(100))
    asked = guard_question(exercise, case, (100,), (101, 0, 0), (0, 0, 0))
    assert "Is there a guard" in asked[0]
    inside = guard_question(exercise, case, (50,), (60, 0, 0), (0, 0, 0))
    assert len(inside) == 1 and "Is the index right?" in inside[0] and "a separate guard" in inside[0]


@pytest.mark.parametrize(("thread", "question"), [((0, 5, 0), True), ((9, 0, 0), True), ((6, 4, 0), False)])
def test_in_two_dimensions_each_axis_has_its_end(thread, question):
    exercise = SimpleNamespace(kind="kernel", launch=lambda: ((1, 1), (16, 16)))
    case = SimpleNamespace(size={}, expected=np.zeros((5, 9)))
    asked = guard_question(exercise, case, (), thread, (0, 0, 0))
    assert ("Is there a guard" in asked[0]) == question


# --- What observe says -----------------------------------------------------------------------------------------------


def race(reach):
    advice, one_warp = ("Put cuda.syncthreads() between line 1 and line 2.",
                        "These threads are in the same warp, so cuda.syncwarp() is enough.")
    finding = KernelFinding("race", "kernel", [], [], 0, "out", (0,), f"race: it races. {advice} {one_warp}",
                            advice=advice, barrier=True, one_warp=one_warp)
    finding.reach = reach
    return finding


@pytest.mark.parametrize(("reaches", "block", "enough"), [((0,), (64, 1, 1), True), ((0, 1), (64, 1, 1), False),
                                                          ((0,), (32, 1, 1), False)])
def test_syncwarp_is_enough_only_if_it_is_for_all(monkeypatch, examined, reaches, block, enough):
    import labkit

    found = Report("kernel", "", (1, 1, 1), block, races=[race(reach) for reach in reaches])
    monkeypatch.setitem(labkit.__dict__, "observe", lambda launch, *arguments: found)
    verdict = examined(right)
    assert verdict.kind == "race" and ("syncwarp" in str(verdict)) == enough


def test_a_kernel_that_could_not_be_observed_in_time_does_not_count_as_endless(monkeypatch, examined):
    import labkit

    def observe(launch, *arguments):
        raise KernelTimeout("right, line 4: stopped", kernel="right", filename="", line=4, block=None, thread=(1, 0, 0))

    monkeypatch.setitem(labkit.__dict__, "observe", observe)
    verdict = examined(right)
    assert not verdict.passed and verdict.kind == "not_observed"
    assert f"{run.OBSERVED_STEPS:,}" in verdict.details[0] and "busy" not in str(verdict)


def test_what_is_watched_is_limited_by_steps_and_never_by_time(monkeypatch, examined):
    many_turns = guarded("answer", "turns = 0\nwhile turns < 40:\n    turns += 1\nout[i] = a[i] * s")
    monkeypatch.setattr(limits, "KERNEL_LIMIT_S", 1e-6)  # what is compiled ends before it is asked for
    assert examined(many_turns).passed
    monkeypatch.setattr(run, "OBSERVED_STEPS", 39)
    assert examined(many_turns).kind == "not_observed"


# --- Nothing is given away -------------------------------------------------------------------------------------------


def test_a_bug_hunt_as_it_was_given_is_not_given_away():
    exercise = exercises.find("scale_again")
    verdict = examine(exercise, kernel("scale_again", "i = cuda.grid(1)\nout[i] = a[i] * s"))
    assert verdict.mistake == "" and "has not been changed yet, so the bug is still in it" in verdict.details[-1]
    assert verdict.kind == "out_of_bounds"  # what happens is still to be seen
    assert examine(exercise, exercise.wrong["no guard at the tail"]).mistake == "no guard at the tail"


def test_the_working_of_a_prediction_is_shown_after_the_third_try(capsys, monkeypatch):
    from labkit.course import check as checks

    monkeypatch.setattr(checks, "_TRIED", {})
    shown = []
    for idle in (104, 104, 99, 98):  # the same number again is no new try
        check("idle_threads", idle=idle, blocks=8)
        shown.append("Take the elements from" in capsys.readouterr().out)
    assert shown == [False, False, False, True]


def test_a_hint_is_asked_for_as_the_place_allows(examined):
    verdict = examined(adds_in_its_own_words)
    assert "for a hint: labkit hint scale_vector" in verdict.footer
    assert 'hint("scale_vector")' in verdict._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("accesses", [("reads", "writes"), ("writes", "reads")])
def test_a_missing_barrier_is_known_by_which_access_comes_first(accesses):
    assert orders([SimpleNamespace(accesses=accesses)] * 2) == (accesses,)


def test_what_does_not_compile_is_compared_with_no_known_mistake(monkeypatch):
    """Each would be compiled for it: sums_since took 15 s to say that float32 is not imported."""
    def never(*_):
        raise AssertionError("a known mistake was run")

    monkeypatch.setattr(known, "_alike", never)
    solution = exercise_files.solution("sums_since")
    answer = solution.run(solution.answer.replace("before, head_before = 0, 0", "before, head_before = flaot32(0), 0"),
                          "<a name that is not there>")
    verdict = examine(exercises.find("sums_since"), answer, seed=3)
    assert verdict.kind in ("unsupported", "wrong_types") and not verdict.mistake and "flaot32" in str(verdict)


@cuda.jit
def packs_in_the_order_of_its_atomics(x, out):
    count = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        count[0] = 0
    cuda.syncthreads()
    if i < x.size and x[i] > 0:
        out[cuda.atomic.add(count, 0, 1)] = x[i]


@pytest.mark.sweep(every=True)
def test_a_race_of_atomics_does_not_ask_for_an_atomic():
    verdict = examine(exercises.find("pack_positive"), packs_in_the_order_of_its_atomics)
    assert verdict.kind == "race" and "what an atomic returns depends on it" in verdict.details[0]
    assert "(or an atomic)" not in verdict.details[0]
