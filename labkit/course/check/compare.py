"""Compare a run with the expected output. kernels/agree.py decides which elements are wrong."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import numpy as np

from labkit import device
from labkit.course.check.draw import Case
from labkit.course.check.run import OBSERVED, ORDERS, Attempt
from labkit.course.check.words import bare_code
from labkit.course.exercises import Exercise
from labkit.kernels.agree import differences, is_poison

FINDINGS = (  # attributes of observe's report, gravest first, and the kinds of difference that they are
    ("out_of_bounds", "out_of_bounds"),
    ("divergent_barriers", "barrier"),
    ("races", "race"),
    ("uninitialized_reads", "uninitialized"),
)
ERRORS = {"HostTimeout": "never_ends", "KernelTimeout": "never_ends", "OutOfBoundsError": "out_of_bounds",
          "BarrierError": "barrier", "DeadlockError": "barrier", "WarpError": "warp", "MisalignedError": "misaligned",
          "KernelAssertionError": "raised", "KernelValueError": "raised", "UnsupportedError": "unsupported",
          "ArgumentError": "wrong_arguments", "LaunchError": "launch",
          "LaunchFormError": "launch"}  # fmt: skip
KERNEL_FAULTS = ("BarrierError", "DeadlockError", "WarpError", "MisalignedError", "KernelAssertionError",
                 "KernelValueError")
NOT_COMPILED = ("KernelTypeError", "TypingError", "LoweringError", "UnsupportedBytecodeError", "NumbaValueError")


@dataclass(frozen=True, eq=False)
class Difference:
    """How a run differs from the expected result; its kind is "passed" if it does not. Two answers are compared
    by `got`, `trace`, `exact` and `whole`."""

    kind: str
    attempt: Attempt | None = None
    got: np.ndarray | None = None
    wrong: np.ndarray | None = None  # which elements of `got` are wrong
    unwritten: np.ndarray | None = None  # which of the wrong ones were never written, or hold what they held before
    miss: np.ndarray | None = None  # by how much each element is wrong
    trace: tuple = ()  # must be equal for two runs to be alike
    exact: tuple = ()  # the more of these are equal the more alike they are
    whole: tuple | None = ()  # two runs do exactly the same only if these are equal; None: this cannot be known

    @property
    def good(self) -> bool:
        return self.kind == "passed"


def compare_attempt(exercise: Exercise, attempt: Attempt, every: bool = False) -> Difference:
    """every: of what observe found compare every finding, not only how many there are of each kind."""
    if attempt.error is not None:
        difference = _of_error(attempt.error, attempt.how)
    elif attempt.report is not None:
        difference = _of_report(exercise, attempt.report, every)
    elif exercise.shape is None:
        difference = _of_value(exercise, attempt)
    else:
        difference = _of_output(attempt)
    if difference.good and attempt.host_run is not None:
        difference = _of_host_run(exercise, attempt)
    if difference.kind == "wrong_result" and attempt.how in ORDERS:
        difference = replace(difference, kind="race")
    return replace(difference, attempt=attempt)


def kind_of_error(error: BaseException) -> str:
    name = type(error).__name__
    if name in ERRORS:
        return ERRORS[name]
    if name in NOT_COMPILED or _is_compile_error(error):
        return "wrong_types"
    return "gpu_fault" if name.startswith("Cuda") or "CUDA_ERROR" in str(error) else "raised"


def _is_compile_error(error: BaseException) -> bool:
    """Also what Numba raises in a kernel that it is compiling, such as an ImportError for SciPy."""
    return type(error).__module__.startswith("numba.") and "Error" in type(error).__name__ or (
        isinstance(error, ImportError) and "scipy" in str(error))


def is_kernel_fault(error: BaseException) -> bool:
    """Whether a thread of a kernel was stopped by what it did."""
    name = type(error).__name__
    return name in KERNEL_FAULTS or name.startswith("Raised")


def sentence_of(error: BaseException) -> str:
    """What an error says, without the place that labkit's errors name as well."""
    return getattr(error, "sentence", "") or str(error).rstrip()


def _of_error(error: BaseException, how: str) -> Difference:
    kind, name = kind_of_error(error), type(error).__name__
    if how == OBSERVED and name in ("KernelTimeout", "HostTimeout") and not device.on_gpu():
        return Difference("not_observed", whole=None)
    if kind in ("never_ends", "gpu_fault"):
        return Difference(kind, whole=None)
    code = bare_code(getattr(error, "filename", ""), getattr(error, "line", 0))
    if name == "OutOfBoundsError":
        index, shape = tuple(error.index), tuple(error.shape)
        return Difference(kind, trace=(shape,), exact=(index,) if index else (),
                          whole=(error.thread, error.block, error.array, index, code))
    if is_kernel_fault(error):
        return Difference(kind, whole=(getattr(error, "thread", None), getattr(error, "block", None), code))
    if isinstance(error, SystemExit):
        return Difference(kind)
    return Difference(kind, trace=(name,) if kind == "raised" else (), whole=(sentence_of(error),))


def first_finding(report) -> tuple[str, list] | None:
    """(kind, the findings of this kind) of the gravest kind that a report holds."""
    return next(((kind, findings) for name, kind in FINDINGS if (findings := getattr(report, name))), None)


def benign_races(report) -> tuple:
    return tuple(getattr(report, "benign_races", ()))


def _of_report(exercise: Exercise, report, every: bool) -> Difference:
    if (gravest := first_finding(report)) is not None:
        kind, findings = gravest
        counts = tuple((kind, len(getattr(report, name))) for name, kind in FINDINGS)
        whole = sorted(_finding_key(one, report) for name, _ in FINDINGS for one in getattr(report, name))
        return Difference(kind, trace=orders(findings), whole=tuple(whole),
                          exact=tuple(sorted((one.kind, str(one.index)) for one in findings)) if every else counts)
    benign = tuple(map(str, benign_races(report)))
    if benign and not exercise.benign_races:
        return Difference("race", exact=benign, whole=benign)
    if missing := exercise.missing(report):
        return Difference("demand", trace=(missing,), whole=tuple(sorted(report.counts.items())))
    return Difference("passed")


def orders(findings: list) -> tuple:
    """Of races, which access comes first: a barrier that is missing after a store is another than one after a load."""
    return tuple(sorted({one.accesses for one in findings if one.accesses}))


def _finding_key(finding, report) -> tuple:
    """Everything that a finding says but the numbers of its lines, whose text stands for them."""
    return (finding.kind, finding.array, str(finding.index), str(finding.threads), str(finding.block),
            *(bare_code(report.filename, line) for line in finding.lines))


def _of_value(exercise: Exercise, attempt: Attempt) -> Difference:
    """What a function returned."""
    if exercise.judge is not None:
        missed = (attempt.missed,)
        return Difference("demand", trace=missed, whole=missed) if attempt.missed else Difference("passed")
    case, got = attempt.case, attempt.got
    if attempt.value is None:
        return Difference("no_value")
    if got is None:
        return Difference("wrong_types")
    if got.shape != case.expected.shape:
        return Difference("wrong_shape", got=got, trace=(got.shape,))
    written = np.zeros(got.shape, bool)
    difference = compared(case, got, written)
    if not difference.good and exercise.alike is not None:
        with contextlib.suppress(Exception):  # a wrong result may be nothing that `alike` can take
            expected, normalized = (exercise.alike(result, *case.inputs) for result in (case.expected, got))
            if compared(replace(case, expected=expected), normalized, written).good:
                difference = Difference("passed", got=got)
    if difference.good and attempt.changed:
        return Difference("input_changed", trace=attempt.changed[:1])
    return difference


def _of_output(attempt: Attempt) -> Difference:
    """What a launch wrote."""
    if attempt.outside:
        return Difference("out_of_bounds", trace=(attempt.got.shape,), whole=attempt.outside,
                          exact=(len(attempt.outside), attempt.outside[0]))
    if attempt.changed:
        number, content = attempt.changed
        return Difference("input_changed", trace=(number,), whole=(content,))
    got = attempt.got
    return compared(attempt.case, got, is_poison(got) if attempt.case.start is None else np.zeros(got.shape, bool))


def compared(case: Case, got: np.ndarray, unwritten: np.ndarray) -> Difference:
    """The elements that are wrong. unwritten: those that hold what marks an element that was never written."""
    result = differences(got, case.expected, case.allowed, unwritten)
    wrong, unwritten = result.wrong, result.unwritten
    if wrong.any() and case.start is not None:
        unwritten = wrong & (got == case.start)
    return Difference("wrong_result" if wrong.any() else "passed", got=got, wrong=wrong, unwritten=unwritten,
                      miss=result.miss)


def _of_host_run(exercise: Exercise, attempt: Attempt) -> Difference:
    """What a function of the host did on the device, where its result is right."""
    host_run = attempt.host_run
    if host_run.streams.unordered:
        return Difference("race", trace=host_run.streams.conflicts[0], whole=None)
    if missing := missing_of_host_run(exercise, attempt):
        return Difference("demand", trace=(missing,))
    return Difference("passed")


def missing_of_host_run(exercise: Exercise, attempt: Attempt) -> str | None:
    """The requirement that the function did not meet."""
    if exercise.demand is None:
        return None
    right_without = attempt.while_idle is not None and compare_attempt(exercise, attempt.while_idle).good
    return exercise.demand(replace(attempt.host_run, right_without=right_without))
