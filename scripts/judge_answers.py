"""Judge answers that others wrote: does `check` reject the wrong ones, let the right ones pass, and explain?

    python scripts/judge_answers.py ANSWERS.jsonl ... --out VERDICTS.jsonl    # check each, in processes of their own
    python scripts/judge_answers.py ANSWERS.jsonl ... --sample 300 80 --seed 1 --out VERDICTS.jsonl    # a part of them
    python scripts/judge_answers.py --figures VERDICTS.jsonl                  # shares, times, and what to look at

A line of ANSWERS is {"id", "exercise", "kind": "right" or "wrong", "source", "what"}: the source of an answer's cell,
and in a sentence what is wrong. --sample WRONG RIGHT draws so many of each, by the seed and their ids alone. VERDICTS
has the same lines with the verdict. Answers already in --out are left out, so a run that was stopped goes on. Whether
an explanation is right is for a reader to say: --show prints what to read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np

SEED = 20_261_124
LIMIT_S = 180  # for one answer, compiling included


def key(answer: dict) -> str:
    return answer.get("id") or f"{answer['exercise']}: {zlib.crc32(answer['source'].encode()):08x}"


def drawn(answers: list[dict], wrong: int, right: int, seed: int) -> list[dict]:
    """So many of each kind, the same ones whatever the order of the files."""
    answers = sorted(answers, key=key)
    of_kind = {kind: [one for one in answers if one["kind"] == kind] for kind in ("wrong", "right")}
    chance = random.Random(seed)
    return [*chance.sample(of_kind["wrong"], wrong), *chance.sample(of_kind["right"], right)]


def judged(answer: dict) -> dict:
    """What check says of the answer, run after the cells above it as a learner would."""
    from labkit.course import answer_cells, exercise_files, exercises
    from labkit.course.check import examine

    exercise = exercises.find(answer["exercise"])
    begin, cpu_begin = time.perf_counter(), cpu_seconds()
    if exercise.kind == "predict":
        names: dict = {}
        above = exercise_files.solution(exercise.name).above
        exec(answer_cells.program(above, answer_cells.without_markers(answer["source"])), names)
        numbers = {name: names.get(name) for name in exercise.truth()}  # as check(name, idle=idle) passes them
        outcome = examine(exercise, None, seed=SEED, numbers=numbers)
    else:
        source = answer_cells.without_markers(answer["source"])
        try:
            made = exercise_files.solution(exercise.name).run(source, f"<{key(answer)}>")
        except Exception as error:
            return {"passed": False, "verdict": "cell", "headline": f"{type(error).__name__}: {error}", "seconds": 0.0}
        outcome = examine(exercise, made, seed=SEED)
    return {**outcome.result(), "table": None, "seconds": round(time.perf_counter() - begin, 2),
            "cpu_seconds": round(cpu_seconds() - cpu_begin, 2)}


def cpu_seconds() -> float:
    """Of this process, all its threads, and the processes it waited for."""
    return sum(os.times()[:4])


def worker() -> None:
    """Answers on standard input, verdicts on standard output, a line each."""
    from labkit.course.check.limits import announced_compiling

    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answer = json.loads(line)
        try:
            with announced_compiling():
                verdict = judged(answer)
        except BaseException as error:
            verdict = {"passed": None, "verdict": "failed", "headline": f"{type(error).__name__}: {error}",
                       "seconds": 0.0}
        print(json.dumps({**answer, "verdict": verdict}), file=lines, flush=True)


def run(answers: list[dict], out: Path) -> None:
    """One answer after the other in a process, which a hang ends."""
    process = None
    with out.open("a") as kept:
        for number, answer in enumerate(answers, 1):
            if process is None:
                process = subprocess.Popen([sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            line = _asked(process, answer)
            if line is None:
                process.kill()
                process.wait()
                process = None
                verdict = {"passed": None, "verdict": "failed", "seconds": LIMIT_S,
                           "headline": f"no verdict in {LIMIT_S} s"}
                line = json.dumps({**answer, "verdict": verdict})
            kept.write(line.rstrip() + "\n")
            kept.flush()
            print(f"\r{number} of {len(answers)}", end="", file=sys.stderr, flush=True)
    if process is not None:
        process.stdin.close()
        process.wait()


def _asked(process, answer: dict) -> str | None:
    import threading

    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    try:
        process.stdin.write(json.dumps(answer) + "\n")
        process.stdin.flush()
        return process.stdout.readline() or None
    except OSError:
        return None
    finally:
        timer.cancel()


def figures(verdicts: list[dict]) -> dict:
    by_kind = {kind: [one for one in verdicts if one["kind"] == kind] for kind in ("wrong", "right")}
    seconds = [one["verdict"]["seconds"] for one in verdicts]
    cpu = [one["verdict"].get("cpu_seconds", 0.0) for one in verdicts]
    wrong, right = by_kind["wrong"], by_kind["right"]
    return {"wrong": len(wrong), "wrong rejected": sum(one["verdict"]["passed"] is False for one in wrong),
            "right": len(right), "right refused": sum(one["verdict"]["passed"] is not True for one in right),
            "without a verdict": sum(one["verdict"]["passed"] is None for one in verdicts),
            "exercises": len({one["exercise"] for one in verdicts}),
            "seconds, median": float(np.median(seconds)), "seconds, most": max(seconds),
            "CPU seconds, median": float(np.median(cpu)), "CPU seconds, most": max(cpu)}


def misjudged(one: dict) -> bool:
    return one["verdict"]["passed"] is not (one["kind"] == "right")


def shown(one: dict) -> str:
    verdict = one["verdict"]
    exact = "does exactly" if verdict.get("mistake_is_exact") else "looks like"
    parts = [f"== {key(one)} [{one['kind']}] {one['what']}",
             f"   {verdict['verdict']} ({verdict['seconds']} s): {verdict['headline']}",
             *(f"     {detail}" for detail in verdict.get("details", ()))]
    return "\n".join([*parts, *([f"     {exact}: {verdict['mistake']}"] if verdict.get("mistake") else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sample", nargs=2, type=int, metavar=("WRONG", "RIGHT"), help="only so many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--figures", action="store_true", help="of files that --out wrote")
    parser.add_argument("--show", action="store_true", help="print the verdict on each as well")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker()
        return
    answers = [json.loads(line) for path in given.files for line in path.read_text().splitlines() if line.strip()]
    if given.sample:
        answers = drawn(answers, *given.sample, given.seed)
    if not given.figures:
        done = {key(json.loads(line)) for line in given.out.read_text().splitlines()} if given.out.exists() else set()
        left = [answer for answer in answers if key(answer) not in done]
        random.Random(SEED).shuffle(left)  # a part of a run is then a sample of it
        run(left, given.out)
        answers = [json.loads(line) for line in given.out.read_text().splitlines()]
    for one in answers:
        if given.show or misjudged(one):
            print(shown(one), end="\n\n")
    print(json.dumps(figures(answers), indent=1))


if __name__ == "__main__":
    main()
