"""The tests and the lessons on a GPU that labkit takes for an older one, so that code for the older one runs.

    python scripts/pretended.py                     all, into data/pretended.json
    python scripts/pretended.py 7.5 --only engine   some of it; what else the file holds stays
    python scripts/pretended.py --failed            the recorded failures once more, after they were mended
    python scripts/pretended.py --failed --only lessons

With LABKIT_PRETEND=7.5 labkit chooses kernels as on a T4 and compiles PTX for compute capability 7.5; the driver
assembles it for the GPU that is there. It shows that the choices and the code are right, not how fast they are.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from labkit._common.files import write_text
from labkit._common.paths import REPOSITORY

RECORD = REPOSITORY / "data" / "pretended.json"
TARGETS = ("7.5", "8.0", "8.6", "8.9")
SUITES = ("kernels", "models", "engine")
WITH_LESSONS = ("7.5", "8.6")  # the two with the least shared memory
LESSONS_AT_ONCE = 6  # nothing that a lesson times is kept

RUN_LESSONS = f"""
import json, sys
from labkit.course import registry
from labkit.course.lessons import run_lessons
course = registry.load()
results = run_lessons(course, course.pick(sys.argv[2:]), "gpu", at_once={LESSONS_AT_ONCE},
                      on_end=lambda chapter, result: print(chapter.name, result.problem or "passed", flush=True))
json.dump({{result.name: result.problem for result in results}}, open(sys.argv[1], "w"))
"""


def counts(report: Path) -> dict:
    """{"passed", "failed", "skipped", "failures"} of pytest's report in JUnit's format."""
    cases = [case for suite in ElementTree.parse(report).getroot() for case in suite.iter("testcase")]
    failures = [f"{case.get('classname')}::{case.get('name')}" for case in cases
                if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - len(failures) - skipped, "failed": len(failures), "skipped": skipped,
            "failures": failures}


def run_tests(tests: list[str], environment: dict) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, f"--junitxml={report}"],
                       cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL)
        return counts(report)


def once_more(before: dict, environment: dict) -> dict:
    """Run the recorded failures again. What now passes, or is skipped for what the GPU lacks, is counted so."""
    tests = [f"{module.replace('.', '/')}.py::{test}" for module, _, test in
             (failure.partition("::") for failure in before["failures"])]
    found = run_tests(tests, environment)
    assert found["passed"] + found["failed"] + found["skipped"] == before["failed"], found
    return {**found, "passed": before["passed"] + found["passed"], "skipped": before["skipped"] + found["skipped"]}


def run_lessons(names: list[str], environment: dict) -> dict:
    """Run the named lessons, or all of them if none is named."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "lessons.json"
        subprocess.run([sys.executable, "-c", RUN_LESSONS, str(report), *names], cwd=REPOSITORY, env=environment)
        problems = json.loads(report.read_text())
    failures = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    return {"passed": len(problems) - len(failures), "failed": len(failures), "skipped": 0, "failures": failures}


def lessons_once_more(before: dict, environment: dict) -> dict:
    """Run the lessons that failed again; the others are counted as they were."""
    found = run_lessons([failure.partition("_")[0] for failure in before["failures"]], environment)
    return {**found, "passed": before["passed"] + found["passed"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS, help="compute capabilities")
    parser.add_argument("--only", nargs="+", default=[*SUITES, "lessons"], choices=[*SUITES, "lessons"])
    parser.add_argument("--failed", action="store_true", help="only what is recorded to have failed")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    from labkit import device
    from labkit.measure.machine import machine

    if not device.on_gpu():
        print("this needs an NVIDIA GPU", file=sys.stderr)
        return 2
    record = json.loads(options.out.read_text()) if options.out.exists() else {}
    facts = machine()
    stamp = {"gpu": facts["gpu"], "date": datetime.date.today().isoformat(), "numba-cuda": facts["numba-cuda"],
             "driver": facts["driver"]}
    failed = 0
    for target in options.targets:
        environment = {**os.environ, "LABKIT_PRETEND": target, "LABKIT_DEVICE": "gpu", "LABKIT_PROGRESS": "0"}
        for part in options.only:
            if part == "lessons" and target not in WITH_LESSONS:
                continue
            before = record.get(target, {}).get(part)
            if options.failed and (not before or not before["failed"]):
                continue
            if part == "lessons":
                found = lessons_once_more(before, environment) if options.failed else run_lessons([], environment)
            else:
                found = once_more(before, environment) if options.failed else run_tests([f"tests/{part}"], environment)
            record.setdefault(target, {})[part] = stamp | found
            write_text(options.out, json.dumps(record, indent=1) + "\n")
            print(target, part, {name: found[name] for name in ("passed", "failed", "skipped")}, *found["failures"],
                  sep="\n  ", flush=True)
            failed += found["failed"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
