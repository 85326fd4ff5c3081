"""One run of an answer on one case: launched or called on fresh copies, or run under observe."""

from __future__ import annotations

import ast
import contextlib
import copy
import re
from dataclasses import dataclass, replace

import numpy as np

from labkit import device
from labkit._common.tables import size_text
from labkit.course.check.compare import called_with, compared, shaped
from labkit.course.check.diagnose.compile_errors import store_that_adds
from labkit.course.check.diagnose.divergence import around
from labkit.course.check.diagnose.faults import explained, guard_question, question_outside
from labkit.course.check.draw import Attempt, Case, arguments_for
from labkit.course.check.limits import HostTimeout, host_limit, limited, wait
from labkit.course.check.verdict import bare_code, parsed, quote_line
from labkit.course.exercises import Exercise
from labkit.kernels.agree import guarded, is_poison, poison, same_bits, sentinel_of
from labkit.simt import step_limit

FUNCTION_LIMIT_S = 10.0  # for a host function
LAUNCHER_LIMIT_S = 20.0  # for a function that launches kernels, compiling left out; nbgrader gives a cell 30 s
PLAY_LIMIT_S = 45.0  # for a launch that is recorded, step by step
OBSERVED_STEPS = 1_500_000  # turns of loops of a launch under observe, which is known to end: a minute of work
OBSERVED_CPU_S = 300.0  # for the same, and never reached: where a thread makes a turn, steps are counted


def run_once(exercise: Exercise, answer, case: Case, order: str = "forward") -> Attempt:
    """One launch (or call) on fresh copies; everything that it could have touched is checked."""
    try:
        return attempted(exercise, answer, case, order)
    except (Exception, HostTimeout, SystemExit) as error:  # whatever the answer did wrong is the verdict
        return explained(exercise, answer, case, error)


def attempted(exercise: Exercise, answer, case: Case, order: str = "forward") -> Attempt:
    """As run_once, and raises what the answer raises."""
    if exercise.kind == "function" and exercise.shape is None:
        with host_limit(FUNCTION_LIMIT_S):
            arguments = copy.deepcopy(case.inputs)
            if exercise.judge is not None:
                return _judged(case, exercise.judge(answer, case.expected, *arguments))
            value = answer(*arguments)
        attempt = _returned(exercise, case, value)
        return inputs_changed(case, arguments) or attempt if attempt.good else attempt
    return _launched(exercise, answer, case, order)


def _judged(case: Case, missed: str | None) -> Attempt:
    if missed is None:
        return Attempt("passed")
    details = (missed, f"In this case {case.where}.") if case.where else (missed,)
    return Attempt("demand", "It runs, and misses what is asked for.", details, trace=(missed,), whole=(missed,))


def inputs_changed(case: Case, arguments: tuple) -> Attempt | None:
    """A function of the host may not change what belongs to its caller."""
    for index, (original, current) in enumerate(zip(case.inputs, arguments, strict=True), 1):
        same = same_bits(original, current) if isinstance(original, np.ndarray) else (
            original is current or original == current)
        if not same:
            head = f"Input number {index} was changed."
            cure = "It belongs to the caller: work on a copy, such as `x.copy()` of an array."
            return Attempt("input_changed", head, (cure,), trace=(index,))
    return None


def _launched(exercise: Exercise, answer, case: Case, order: str) -> Attempt:
    dtype = np.dtype(exercise.dtype)
    start = poison(case.expected.shape, dtype) if case.start is None else case.start
    out = guarded(start, sentinel_of(dtype))
    on_device = [guarded(v).array if isinstance(v, np.ndarray) else v for v in case.inputs]
    arguments = arguments_for(exercise, case, tuple(on_device), out.array)
    with limited(order):
        if exercise.kind == "kernel":
            answer[exercise.launch(**case.size)](*arguments)
        else:
            with host_limit(LAUNCHER_LIMIT_S):
                answer(*arguments)
        wait()
    got, outside = out.read()
    if outside.size:
        flat = int(outside[0])
        return Attempt("out_of_bounds", "A thread writes outside the output.",
                       (f"At {size_text(case.size)} element {flat} was written (counted in memory order), and the "
                        f"output has {got.size:,}.", *guard_question(exercise, case)),
                       trace=(got.shape,), exact=(outside.size, flat), whole=tuple(outside.tolist()))
    for index, (original, current) in enumerate(zip(case.inputs, on_device, strict=True), 1):
        if isinstance(original, np.ndarray) and not same_bits(original, current.copy_to_host()):
            return Attempt("input_changed", f"Input number {index} was written to.",
                           ("Inputs are only read here; write to the output.",), trace=(index,),
                           whole=(current.copy_to_host().tobytes(),))
    return compared(exercise, case, got, unwritten(case, got))


def unwritten(case: Case, got: np.ndarray) -> np.ndarray:
    """Which elements of the output still hold poison."""
    return is_poison(got) if case.start is None else np.zeros(got.shape, bool)


def _returned(exercise: Exercise, case: Case, value) -> Attempt:
    """The verdict on what a host function returned."""
    if value is None:
        return Attempt("no_value", "The function returns nothing.", ("Is `return` missing?",))
    if hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    if _contains_itself(value):  # NumPy would follow it for ever
        return Attempt("wrong_types", "The function returns a list that contains itself.",
                       ("Is a list appended to itself?",))
    try:
        got = np.asarray(value)
        comparable = got.dtype.kind in "biufc"
    except ValueError:
        comparable = False
    if not comparable:
        return Attempt("wrong_types", f"The function returns {type(value).__name__}, not numbers.")
    if got.shape != case.expected.shape:
        return Attempt("wrong_shape", f"The function returns {shaped(got)}; expected is {shaped(case.expected)}.",
                       (f"It was called with {called_with(case)}.",), got=got, trace=(got.shape,))
    written = np.zeros(got.shape, bool)
    attempt = compared(None, case, got, written)
    if not attempt.good and exercise.alike is not None:
        expected, normalized = (exercise.alike(result, *case.inputs) for result in (case.expected, got))
        if compared(None, replace(case, expected=expected), normalized, written).good:
            return Attempt("passed", got=got)
    return attempt


def _contains_itself(value, enclosing: tuple = ()) -> bool:
    """Whether a list, through those that it holds, holds itself."""
    if not isinstance(value, (list, tuple)):
        return False
    path = (*enclosing, id(value))
    return any(id(each) in path or _contains_itself(each, path) for each in value
               if isinstance(each, (list, tuple)))


# --- What was there before -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Before:
    """A result that depends on what the output held before the launch. mask: the elements that do; right_from_zero:
    whether the result would be right if the output held zeros."""

    mask: np.ndarray
    right_from_zero: bool


def depends_on_before(exercise: Exercise, answer, case: Case, attempt: Attempt) -> Before | None:
    """Whether this wrong result has in it what the output held before: found by running again from other values. None
    if it has not, or if it cannot be known."""
    if exercise.shape is None or case.start is not None or attempt.kind != "wrong_result" or attempt.got is None:
        return None
    got, dtype = attempt.got, np.dtype(exercise.dtype)
    if got.dtype.kind == "f" and not np.isnan(got).any():
        return None  # NaN plus anything is NaN
    ones = run_once(exercise, answer, replace(case, start=np.ones(got.shape, dtype)))
    if ones.got is None or ones.got.shape != got.shape:
        return None
    left_alone = is_poison(got) & (ones.got == np.ones((), dtype))
    mask = ~left_alone & ~_same(got, ones.got)
    if not mask.any():
        return None
    return Before(mask, run_once(exercise, answer, replace(case, start=np.zeros(got.shape, dtype))).good)


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | ((a != a) & (b != b))


def explained_by_before(exercise: Exercise, answer, case: Case, attempt: Attempt, before: Before) -> Attempt:
    """The verdict on a result that has in it what the output held before."""
    count, total = int(before.mask.sum()), before.mask.size
    line, code = store_that_adds(answer)
    if code:
        why = f"`{code}` takes what the output holds already, and nothing was there: the output is not set to 0 before."
        line_text = (quote_line(line[0], line[1]),)
    else:
        why = ("What the output holds already is used, by an update such as `+=` or by an option such as beta of a "
               "library's call, and nothing was there: the output is not set to 0 before.")
        line_text = ()
    if before.right_from_zero:
        cure = "From an output full of zeros the result would be right. Store with `=`, or begin with a total of 0."
    else:
        cure = "From an output full of zeros the result would be wrong, too."
    head = "The result is added to what was in the output, and nothing was there." if before.right_from_zero else (
        "The result depends on what was in the output, and nothing was there.")
    how_many = "" if count == total else f" This is so for {count:,} of {total:,} elements."
    comparison = compared(exercise, case, attempt.got, attempt.unwritten & ~before.mask)
    return replace(attempt, headline=head, table=comparison.table,
                   details=(f"The smallest case that fails: {size_text(case.size)}. {why}{how_many}", *line_text, cure))


FINDINGS = (
    # attribute of the report, kind, headline
    ("out_of_bounds", "out_of_bounds", "A thread reaches outside an array."),
    ("divergent_barriers", "barrier", "Some threads of a block never reach a barrier that others wait at."),
    ("races", "race", "Two threads race for the same element."),
    ("uninitialized_reads", "uninitialized", "A thread reads memory that nothing has written."),
)


ADVICE = re.compile(r" Put cuda\.syncthreads\(\)[^.]*\.")  # where a barrier is missing
# Of a race that changes nothing by itself: beside a wrong result it is a symptom, and no matter of tidiness.
BENIGN = re.compile(r"^benign race: | (?:Both leave|The value is) the same .*?(?:== 0:`|changes)\.")
ONE_WARP = re.compile(r" These threads are of one warp: for them cuda\.syncwarp\(\) is enough\.")


def observed(exercise: Exercise, answer, case: Case, steps: int | None = None) -> tuple:
    """(report, inputs, output) of a kernel run under observe on fresh copies. Raises whatever the answer raises, and
    KernelTimeout on the CPU device after limits.KERNEL_LIMIT_S of a block or, where they are given, after so many steps
    of all threads."""
    from labkit import observe  # looked up late, so that a test can put another in its place

    out = poison(case.expected.shape, np.dtype(exercise.dtype)) if case.start is None else case.start.copy()
    inputs = tuple(v.copy() if isinstance(v, np.ndarray) else v for v in case.inputs)
    counted = contextlib.nullcontext() if steps is None else step_limit(steps)
    with host_limit(LAUNCHER_LIMIT_S if steps is None else OBSERVED_CPU_S), limited("forward"), counted:
        report = observe(answer[exercise.launch(**case.size)], *arguments_for(exercise, case, inputs, out))
    return report, inputs, out


def played(exercise: Exercise, answer, case: Case):
    """The Player of a kernel on this case; None where it cannot be watched."""
    try:
        report, _, _ = observed(exercise, answer, case, steps=OBSERVED_STEPS)
        with host_limit(PLAY_LIMIT_S), limited("forward", PLAY_LIMIT_S):
            return report.play()
    except (Exception, HostTimeout):  # the verdict reports the error
        return None


def first_finding(report) -> tuple[str, str, list] | None:
    """(kind, headline, the findings of this kind) of the gravest kind that a report holds."""
    for name, kind, headline in FINDINGS:
        if findings := getattr(report, name):
            return kind, headline, findings
    return None


def observer(exercise: Exercise, case: Case, whole: bool = False):
    """A run under observe. whole: compare every finding, not only their kinds."""

    def run(answer) -> Attempt:
        try:
            report, _, _ = observed(exercise, answer, case, steps=None if device.on_gpu() else OBSERVED_STEPS)
        except (Exception, HostTimeout) as error:  # as in run_once
            if type(error).__name__ in ("KernelTimeout", "HostTimeout") and not device.on_gpu():
                return _not_observed(case)
            return explained(exercise, answer, case, error)
        kinds = tuple((kind, len(getattr(report, name))) for name, kind, _ in FINDINGS)
        all_findings = tuple(sorted(_finding_key(f, report) for name, _, _ in FINDINGS for f in getattr(report, name)))
        if (gravest := first_finding(report)) is not None:
            kind, headline, findings = gravest
            details = [_sentence(finding, findings, report) for finding in findings[:2]]
            if kind == "race" and (warp_alone := _where_a_warp_alone_waits(findings[0], answer)):
                details = [ADVICE.sub("", detail) for detail in details] + [*warp_alone]
            elif kind == "race":
                details += _where_no_barrier_may_stand(findings[0], answer)
            if len(findings) > 2:
                details.append(f"There are {len(findings)} such findings at {size_text(case.size)}; these are the "
                               "first two.")
            if kind == "out_of_bounds":
                details += question_outside(exercise, answer, case, getattr(findings[0], "array", ""),
                                            *_first_outside(findings[0], report))
            compared_exactly = tuple(sorted((f.kind, str(f.index)) for f in findings)) if whole else kinds
            return Attempt(kind, headline, tuple(details), trace=_orders(findings), exact=compared_exactly,
                           whole=all_findings)
        benign = tuple(map(str, getattr(report, "benign_races", ())))
        if benign and not exercise.benign_races:
            head = "Several threads store to the same element; here one of them should."
            return Attempt("race", head, benign[:2], exact=benign, whole=benign)
        if missing := exercise.missing(report):
            return Attempt("demand", "The result is right, but one thing is asked for besides.", (missing,),
                           trace=(missing,), whole=tuple(sorted(report.counts.items())))
        return Attempt("passed", details=_about_benign(benign))

    return run


def _about_benign(races: tuple) -> tuple[str, ...]:
    """A remark for a right answer with races that cannot change its result."""
    if not races:
        return ()
    return (f"Nothing to worry about, but worth knowing. {races[0]}",)


def _orders(findings: list) -> tuple:
    """Of races, which access comes first: a barrier that is missing after a store is another than one after a load."""
    matches = (re.search(r"\b(reads|writes|updates)\b.* and .*\b(reads|writes|updates)\b", str(one))
               for one in findings)
    return tuple(sorted({match.groups() for match in matches if match}))


def _not_observed(case: Case) -> Attempt:
    """The kernel ended when it was launched, in every order: only watching all its steps is too much. The count of
    steps is the same on every machine."""
    return Attempt("not_observed", "The result is right, but its threads do far more work than is needed.",
                   (f"At {size_text(case.size)} the turns of all their loops together are more than "
                    f"{OBSERVED_STEPS:,}, and watching was stopped there. Does a thread go through much more of the "
                    "input than it needs?",), whole=None)


def _finding_key(finding, report) -> tuple:
    """Everything that a finding says but the numbers of its lines, whose text stands for them."""
    file = getattr(report, "filename", "")
    return (finding.kind, getattr(finding, "array", ""), str(finding.index), str(getattr(finding, "threads", "")),
            str(getattr(finding, "block", "")), *(bare_code(file, line) for line in getattr(finding, "lines", ())))


def _sentence(finding, findings: list, report) -> str:
    """What the finding says; that syncwarp is enough only if it is for all that race, in blocks of more than a warp."""
    threads = int(np.prod(getattr(report, "block", (1,))))
    text = str(finding)
    if threads <= 32 or any(getattr(one, "reach", 0) for one in findings):
        text = ONE_WARP.sub("", text)
    return text


def _where_a_warp_alone_waits(finding, answer) -> tuple[str, ...]:
    """The cuda.syncwarp() between two lines that threads of different warps race for, or in a loop around both."""
    tree, first_line = parsed(answer)
    lines = [line - first_line + 1 for line in getattr(finding, "lines", ())]
    text = str(finding)
    if tree is None or not lines or not ADVICE.search(text) or ONE_WARP.search(text):
        return ()
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While))
             and all(node.lineno < line <= node.end_lineno for line in lines)]
    begin, end = (loops[-1].lineno, loops[-1].end_lineno) if loops else (min(lines), max(lines))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "syncwarp" and begin < node.lineno <= end:
            return (f"{quote_line(answer.py_func.__code__.co_filename, node.lineno + first_line - 1)} makes the "
                    "threads of one warp wait, and these are of two warps: all threads of the block must wait there, "
                    "at cuda.syncthreads().",)
    return ()


def _where_no_barrier_may_stand(finding, answer) -> tuple[str, ...]:
    """Suggest another fix where both lines of a race are in one branch that not all threads of the block take."""
    tree, first_line = parsed(answer)
    definition = next((node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.FunctionDef)),
                      None)
    lines = [line - first_line + 1 for line in getattr(finding, "lines", ())]
    if definition is None or not lines or "Put cuda.syncthreads()" not in str(finding):
        return ()
    block = around(definition, *lines)
    if block is None:
        return ()
    block_text = {ast.If: "`if`", ast.While: "loop", ast.For: "loop"}[type(block)]
    return (f"But not inside the {block_text} of line {block.lineno + first_line - 1}: not all threads of the block "
            f"come by there, and a barrier needs all of them. End the {block_text} before it, and begin another after "
            "it.",)


def _first_outside(finding, report) -> tuple:
    """(shape of the array, thread, block) of the first access outside an array, for the question after the guard."""
    array = getattr(report, "arrays", {}).get(getattr(finding, "array", ""))
    block, threads = getattr(finding, "block", None), getattr(finding, "threads", None)
    if array is None or block is None or not threads:
        return ()
    x, y, _ = report.grid
    return array[1], threads[0], (block % x, block // x % y, block // (x * y))
