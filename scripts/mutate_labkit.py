"""Does the test suite notice? Each mutation of scripts/mutations.toml is made in a copy of the checkout, and the tests
beside the mutated file are run: a mutation that no test notices is a hole in the suite.

    python scripts/mutate_labkit.py                      all of them; a table, and build/mutations.json
    python scripts/mutate_labkit.py -k softmax -k cli    those whose name or file holds one of these words

A mutation is killed by a failing test, by an error in collecting the tests, and by the time limit, which stops a loop
that no longer ends. What survives the selection of README's command is run again with the rest of the sweeps, as
`.ci/run` runs them after it. The checkout itself is only read: after Ctrl-C nothing is left of the copies, and the JSON
holds what was tried so far.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LIST = REPOSITORY / "scripts" / "mutations.toml"
LEFT_OUT = shutil.ignore_patterns(".git", "build", ".labkit", ".venv", "venv", ".pytest_cache", ".ruff_cache")
REST = "sweep and not slow"  # what `-m "not slow"` selects beyond README's command
NO_TESTS = 5  # pytest's exit code where nothing was selected


@dataclass(frozen=True)
class Mutation:
    """`old` occurs exactly once in `file` and becomes `new`. tests: those that should notice.

    what: what would be wrong, in a line. equivalent: why no test can notice, where that is so.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    what: str
    equivalent: str = ""

    @property
    def room(self) -> str:
        return self.file.split("/")[1].removesuffix(".py")

    def applied(self, root: Path) -> str:
        return (root / self.file).read_text(encoding="utf-8").replace(self.old, self.new)


@dataclass
class Outcome:
    """default, sweep: "killed", "survived", "not run", or "no tests" where nothing was selected. by: the first test
    that failed, or "the time limit"."""

    mutation: Mutation
    default: str = "not run"
    sweep: str = "not run"
    by: str = ""
    seconds: float = 0.0

    @property
    def survived(self) -> bool:
        return "killed" not in (self.default, self.sweep)


# --- The list --------------------------------------------------------------------------------------------------------


def read(path: Path = LIST) -> list[Mutation]:
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def problems(mutations: list[Mutation], root: Path = REPOSITORY) -> list[str]:
    """What is wrong with the list, a sentence each: it has to follow the code."""
    found = []
    names = [mutation.name for mutation in mutations]
    found += [f"{name}: two mutations have this name" for name in sorted({n for n in names if names.count(n) > 1})]
    for mutation in mutations:
        file = root / mutation.file
        if not file.is_file():
            found.append(f"{mutation.name}: there is no file {mutation.file}")
            continue
        times = file.read_text(encoding="utf-8").count(mutation.old)
        if times != 1:
            found.append(f"{mutation.name}: its old text occurs {times} times in {mutation.file}, not once")
            continue
        try:
            same = ast.dump(ast.parse(mutation.applied(root))) == ast.dump(ast.parse(file.read_text(encoding="utf-8")))
        except SyntaxError as error:
            found.append(f"{mutation.name}: {mutation.file} is no Python with it: {error}")
        else:
            found += [f"{mutation.name}: it changes nothing"] * same
        found += [f"{mutation.name}: there is no test file {test}" for test in mutation.tests
                  if not (root / test.partition("::")[0]).is_file()]
    return found


# --- Copies of the checkout, and tests in them -----------------------------------------------------------------------


class Copy:
    """A copy of the checkout in which one mutation after the other is made and undone."""

    running: set = set()  # the processes of all copies
    stopping = threading.Event()

    def __init__(self, pristine: Path, folder: Path, left_out: list[str]):
        self.pristine, self.root, self.cache = pristine, folder / "checkout", folder / "cache"
        self.left_out = left_out  # tests that fail without any mutation; shared by all copies
        shutil.copytree(pristine, self.root)

    def pytest(self, tests: tuple[str, ...], limit_s: float, selection: str | None = None, *, own_cache: bool = False,
               whole: bool = False) -> tuple[str, list[str]]:
        """("killed", the tests that failed: the first, or with `whole` all), ("survived", []) or ("no tests", [])."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
        command += [*([] if whole else ["-x"]), *(["-m", selection] if selection else [])]
        command += [*(f"--deselect={test}" for test in self.left_out), *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "MPLBACKEND": "Agg"}
        if own_cache:  # what mutated code compiled is of no use to anybody
            environment["LABKIT_CACHE_DIR"] = str(self.cache)
        if self.stopping.is_set():
            return "not run", []
        process = subprocess.Popen(command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        self.running.add(process)
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            process.communicate()
            return "killed", ["the time limit"]
        finally:
            self.running.discard(process)
        if self.stopping.is_set():
            return "not run", []
        if process.returncode in (0, NO_TESTS):
            return ("no tests" if process.returncode else "survived"), []
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        return "killed", failed or output.strip().split("\n")[-1:]

    def try_mutation(self, mutation: Mutation, limit_s: float) -> Outcome:
        outcome, begin = Outcome(mutation), time.perf_counter()
        own_cache = mutation.room == "simt"  # a part of the key of whatever that compiles
        (self.root / mutation.file).write_text(mutation.applied(self.root), encoding="utf-8")
        try:
            outcome.default, failed = self.pytest(mutation.tests, limit_s, own_cache=own_cache)
            if outcome.default in ("survived", "no tests"):
                outcome.sweep, failed = self.pytest(mutation.tests, limit_s, REST, own_cache=own_cache)
            outcome.by = failed[0] if failed else ""
        finally:  # the package as it was, with what Numba keeps beside the files
            shutil.rmtree(self.root / "labkit")
            shutil.rmtree(self.cache, ignore_errors=True)
            shutil.copytree(self.pristine / "labkit", self.root / "labkit")
            shutil.copy(self.pristine / mutation.file, self.root / mutation.file)  # one beside the package
        outcome.seconds = time.perf_counter() - begin
        return outcome


def end(process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def each_in_a_copy(work: list, do, copies: list[Copy]):
    """do(copy, item) for every item, as many at a time as there are copies; yields the results as they come."""
    waiting, done = queue.SimpleQueue(), queue.SimpleQueue()
    for item in work:
        waiting.put(item)

    def keep_going(copy):
        with contextlib.suppress(queue.Empty):
            while not Copy.stopping.is_set():
                item = waiting.get_nowait()
                try:
                    done.put((item, do(copy, item)))
                except Exception as error:  # a worker that ends without a word would leave the others waiting
                    done.put((item, error))

    threads = [threading.Thread(target=keep_going, args=(copy,), daemon=True) for copy in copies]
    for thread in threads:
        thread.start()
    try:
        for _ in work:
            item, result = done.get()
            if isinstance(result, Exception):
                raise result
            yield item, result
    finally:
        Copy.stopping.set()
        for process in list(Copy.running):
            end(process)
        for thread in threads:
            thread.join(20)
        Copy.stopping.clear()


# --- The command -----------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="Does the test suite notice the mutations of scripts/mutations.toml?")
    parser.add_argument("-k", metavar="WORD", action="append", help="only those whose name or file holds this word")
    parser.add_argument("--list", action="store_true", help="show them and leave")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for the tests of one (300)")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "mutations.json", help="where the JSON goes")
    parser.add_argument("--deselect", metavar="TEST", action="append", default=[], help="a test to leave out")
    parser.add_argument("--no-baseline", action="store_true", help="don't run the tests without a mutation first")
    options = parser.parse_args()

    mutations = read()
    if wrong := problems(mutations):
        print("\n".join(wrong), file=sys.stderr)
        return 2
    if options.k:
        mutations = [m for m in mutations if any(word in f"{m.name} {m.file}" for word in options.k)]
    if options.list:
        print("\n".join(f"{m.name:36} {m.file:44} {m.what}" for m in mutations))
        return 0
    if not mutations:
        parser.error("no mutation has these words in its name or its file")

    for ending in (signal.SIGINT, signal.SIGTERM):  # also where a shell has put this into the background
        signal.signal(ending, signal.default_int_handler)
    outcomes: list[Outcome] = []
    stopped = False
    with tempfile.TemporaryDirectory(prefix="labkit-mutations-", ignore_cleanup_errors=True) as folder:
        try:
            pristine = Path(folder) / "pristine"
            shutil.copytree(REPOSITORY, pristine, ignore=LEFT_OUT)
            left_out = list(options.deselect)
            copies = [Copy(pristine, Path(folder) / str(n), left_out) for n in range(min(options.jobs, len(mutations)))]
            if not options.no_baseline:
                left_out += failing(sorted({test for m in mutations for test in m.tests}), copies, 3 * options.limit)
            tried = each_in_a_copy(mutations, lambda copy, m: copy.try_mutation(m, options.limit), copies)
            for number, (_, outcome) in enumerate(tried, 1):
                outcomes.append(outcome)
                print(f"{number:3} of {len(mutations)}  {line_of(outcome)}", flush=True)
        except KeyboardInterrupt:
            stopped = True
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(to_json(outcomes), indent=2) + "\n", encoding="utf-8")
    print(f"\n{summary(outcomes)}\n\n{options.out}")
    if stopped:
        print("Stopped.", file=sys.stderr)
        return 130
    return int(any(one.survived and not one.mutation.equivalent for one in outcomes))


def failing(tests: list[str], copies: list[Copy], limit_s: float) -> list[str]:
    """The tests that fail without any mutation: they would kill everything, and are left out."""
    found = []

    def run(copy, test):
        return copy.pytest((test,), limit_s, "not slow", whole=True)

    for number, (test, (_, failed)) in enumerate(each_in_a_copy(tests, run, copies), 1):
        print(f"{number:3} of {len(tests)}  without a mutation: {test}{' FAILED' if failed else ''}", flush=True)
        found += failed
    if found:
        print(f"Left out, since they fail without any mutation: {', '.join(found)}")
    return found


def line_of(one: Outcome) -> str:
    how = "SURVIVED" if one.survived else "killed" if one.default == "killed" else "by sweep"
    if one.survived and one.mutation.equivalent:
        how = "equivalent"
    return f"{how:10} {one.seconds:6.1f} s  {one.mutation.name:36} {one.by or one.mutation.what}"


def summary(outcomes: list[Outcome]) -> str:
    """A table with a row for each room, and the survivors by name."""
    rows = ["room      mutations  killed by default  and by the sweep  survived"]
    rooms = list(dict.fromkeys(one.mutation.room for one in outcomes))
    for room in [*rooms, "all"]:
        these = [one for one in outcomes if room in ("all", one.mutation.room) and not one.mutation.equivalent]
        default = sum(one.default == "killed" for one in these)
        every = sum(not one.survived for one in these)
        rows.append(f"{room:9} {len(these):9}  {default:17}  {every:16}  {len(these) - every:8}")
    for one in outcomes:
        if one.survived:
            why = f"equivalent: {one.mutation.equivalent}" if one.mutation.equivalent else one.mutation.what
            rows.append(f"survived  {one.mutation.name}  {one.mutation.file}: {why}")
    return "\n".join(rows)


def to_json(outcomes: list[Outcome]) -> dict:
    counted = [one for one in outcomes if not one.mutation.equivalent]
    return {
        "mutations": len(counted),
        "killed_by_default": sum(one.default == "killed" for one in counted),
        "killed_by_all": sum(not one.survived for one in counted),
        "survivors": [one.mutation.name for one in counted if one.survived],
        "outcomes": [asdict(one) for one in outcomes],
    }


if __name__ == "__main__":
    raise SystemExit(main())
