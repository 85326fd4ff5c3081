"""What observe found, in words: the first findings, and what to do where the usual advice would not help."""

from __future__ import annotations

import ast

import numpy as np

from labkit._common.tables import size_text
from labkit.course.check.compare import Difference, benign_races, first_finding
from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.diagnose.divergence import around
from labkit.course.check.diagnose.faults import question_outside
from labkit.course.check.words import parsed, quote_line
from labkit.course.exercises import Exercise

HEADLINES = {
    "out_of_bounds": "A thread reaches outside an array.",
    "barrier": "Some threads of a block never reach a barrier where others are waiting.",
    "race": "Two threads race for the same element.",
    "uninitialized": "A thread reads memory that nothing has written.",
}
ONE_OF_SEVERAL = "Several threads store to the same element; only one should."


def describe_report(exercise: Exercise, answer, difference: Difference) -> Diagnosis:
    """What a kernel did under observe."""
    report, case = difference.attempt.report, difference.attempt.case
    gravest = first_finding(report)
    if gravest is None and difference.kind == "race":
        return Diagnosis("race", ONE_OF_SEVERAL, tuple(map(str, benign_races(report)))[:2])
    if gravest is None:
        return Diagnosis("demand", "The result is right, but one requirement is not met.", difference.trace)
    kind, findings = gravest
    warp_alone = _where_a_warp_alone_waits(findings[0], answer) if kind == "race" else ()
    details = [_sentence(finding, findings, report, advice=not warp_alone) for finding in findings[:2]]
    details += warp_alone
    if kind == "race" and not warp_alone:
        details += _where_no_barrier_may_stand(findings[0], answer)
    if len(findings) > 2:
        details.append(f"At {size_text(case.size)} there are {len(findings)} such findings; these are the first two.")
    if kind == "out_of_bounds":
        details += question_outside(exercise, answer, case, findings[0].array,
                                    *_first_outside(findings[0], report))
    return Diagnosis(kind, HEADLINES[kind], tuple(details))


def about_benign(report) -> tuple[str, ...]:
    """A remark for a right answer with races that cannot change its result."""
    races = benign_races(report)
    return (f"This does no harm, but you should know about it. {races[0]}",) if races else ()


def beside_a_wrong_result(exercise: Exercise, answer, report, has_barriers: bool) -> tuple[str, ...]:
    """The gravest finding, where it explains a wrong result. has_barriers: whether threads of a block exchange
    anything; else two of them have one index, and no barrier helps."""
    kind, findings = first_finding(report) or ("", [])
    if not kind and benign_races(report) and not exercise.benign_races:
        first = benign_races(report)[0]  # beside a wrong result it is a symptom, and no matter of tidiness
        text, headline = _without(str(first).removeprefix("benign race: "), first.advice), ONE_OF_SEVERAL
    elif kind in ("race", "uninitialized", "barrier"):
        advice = has_barriers and not (kind == "race" and _where_a_warp_alone_waits(findings[0], answer))
        text, headline = _sentence(findings[0], findings, report, advice), HEADLINES[kind]
    else:
        return ()
    return (f"{headline} {text[:1].upper()}{text[1:]}",)


def _sentence(finding, findings: list, report, advice: bool = True) -> str:
    """What the finding says; that syncwarp is enough only if it is for all that race, in blocks of more than a warp.
    advice: with the barrier that it says is missing."""
    text, threads = str(finding), int(np.prod(getattr(report, "block", (1,))))
    if not advice or threads <= 32 or any(getattr(one, "reach", 0) for one in findings):
        text = _without(text, finding.one_warp)
    return text if advice or not finding.barrier else _without(text, finding.advice)


def _without(text: str, sentence: str) -> str:
    return text.replace(f" {sentence}", "") if sentence else text


def _where_a_warp_alone_waits(finding, answer) -> tuple[str, ...]:
    """The cuda.syncwarp() between two lines that threads of different warps race for, or in a loop around both."""
    tree, first_line = parsed(answer)
    lines = [line - first_line + 1 for line in finding.lines]
    if tree is None or not finding.barrier or finding.one_warp:
        return ()
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While))
             and all(node.lineno < line <= node.end_lineno for line in lines)]
    begin, end = (loops[-1].lineno, loops[-1].end_lineno) if loops else (min(lines), max(lines))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "syncwarp" and begin < node.lineno <= end:
            return (f"{quote_line(answer.py_func.__code__.co_filename, node.lineno + first_line - 1)} makes the "
                    "threads of one warp wait, but these two belong to different warps: all threads of the block must "
                    "wait there, at cuda.syncthreads().",)
    return ()


def _where_no_barrier_may_stand(finding, answer) -> tuple[str, ...]:
    """Suggest another fix where both lines of a race are in one branch that not all threads of the block take."""
    tree, first_line = parsed(answer)
    definition = next((node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.FunctionDef)),
                      None)
    lines = [line - first_line + 1 for line in finding.lines]
    if definition is None or not finding.barrier:
        return ()
    block = around(definition, *lines)
    if block is None:
        return ()
    block_text = {ast.If: "`if`", ast.While: "loop", ast.For: "loop"}[type(block)]
    return (f"But do not put it inside the {block_text} on line {block.lineno + first_line - 1}: not all threads of "
            f"the block get there, and a barrier needs all of them. End the {block_text} before the barrier, and "
            "start another after it.",)


def _first_outside(finding, report) -> tuple:
    """(shape of the array, thread, block) of the first access outside an array, for the question after the guard."""
    array, block = report.arrays.get(finding.array), finding.block
    if array is None or block is None or not finding.threads:
        return ()
    x, y, _ = report.grid
    return array[1], finding.threads[0], (block % x, block // x % y, block // (x * y))
