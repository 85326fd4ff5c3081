"""Does the test suite notice? So many small changes of labkit's code are drawn by seed, each is made in a copy of the
checkout, and the tests beside the changed file are run: a mutant that no test notices is a hole in the suite.

    python scripts/mutate_labkit.py --count 200 --seed 1     a table by room, and build/mutants.json
    python scripts/mutate_labkit.py -k softmax -k cli        of the files whose path holds one of these words

The changes are those that are made to the answers of exercises (labkit.course.mutants.operators). A mutant is killed
by a failing test, by an error in collecting the tests, and by the time limit, which stops a loop that no longer ends.
What survives the selection of README's command is run again with the rest of the sweeps, as `.ci/run` runs them after
it. The checkout itself is only read: after Ctrl-C nothing is left of the copies, and the JSON holds what was tried so
far. Not every survivor is a hole: some changes are equivalent, and say so only to a reader.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.course.mutants.operators import OPERATORS
from labkit.course.mutants.places import Place, compiles, places_in

REPOSITORY = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", "build", ".labkit", ".venv", "venv", ".pytest_cache", ".ruff_cache")
REST = "sweep and not slow"  # what `-m "not slow"` selects beyond README's command
NO_TESTS = 5  # pytest's exit code where nothing was selected
TRIES = 100  # places to look at for each mutant; at most of them no operator applies


@dataclass(frozen=True)
class Mutant:
    """`source` is the whole file with one change. tests: the files that should notice."""

    file: str
    line: int
    operator: str
    change: str
    source: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        return self.file.split("/")[1].removesuffix(".py")


@dataclass
class Outcome:
    """default, sweep: "killed", "survived", "not run", or "no tests" where nothing was selected. by: the first test
    that failed, or "the time limit"."""

    mutant: Mutant
    default: str = "not run"
    sweep: str = "not run"
    by: str = ""
    seconds: float = 0.0

    @property
    def survived(self) -> bool:
        return "killed" not in (self.default, self.sweep)


# --- The draw --------------------------------------------------------------------------------------------------------


def draw(count: int, seed: int, words: list[str] | None = None, root: Path = REPOSITORY) -> list[Mutant]:
    """The mutants, the same ones for the same code, seed and words; files in proportion to their length. Exercises
    are left to `labkit mutants`."""
    files = [path for path in sorted((root / "labkit").rglob("*.py"))
             if not path.match("labkit/course/exercises/*/*.py") and tests_of(path, root)
             and any(word in path.relative_to(root).as_posix() for word in words or [""])]
    if not files:
        return []
    sources = {path: path.read_text(encoding="utf-8") for path in files}
    lengths = [sources[path].count("\n") for path in files]
    rng, drawn, places = random.Random(seed), {}, {}
    for _ in range(TRIES * count):
        if len(drawn) == count:
            break
        path, = rng.choices(files, lengths)
        if path not in places:
            places[path] = list(_places_in_file(sources[path]))
        if not places[path]:
            continue
        place = rng.choice(places[path])
        changes = [(name, text, node) for name, operator in OPERATORS.items() for text, node in operator(place)]
        if not changes:
            continue
        name, text, node = rng.choice(changes)
        source = replaced(sources[path], place.node, node)
        if not compiles(source) or ast.dump(ast.parse(source)) == ast.dump(ast.parse(sources[path])):
            continue
        file = path.relative_to(root).as_posix()
        drawn[file, source] = Mutant(file, place.node.lineno, name, f"{place.text} -> {text}", source,
                                     tests_of(path, root))
    return list(drawn.values())


def _places_in_file(source: str) -> Iterator[Place]:
    """Every place in a function, or in a method of a class."""
    tree = ast.parse(source)
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    for body in bodies:
        yield from (place for place in places_in(ast.Module(body, [])) if hasattr(place.node, "lineno"))


def tests_of(path: Path, root: Path) -> tuple[str, ...]:
    """The test file that mirrors this one; else the one of its folder; else all in the folder that mirrors its."""
    inside = path.relative_to(root / "labkit")
    for part in (inside, *inside.parents[:-1]):
        mirrored = root / "tests" / part.parent / f"test_{part.stem}.py"
        if mirrored.is_file():
            return (mirrored.relative_to(root).as_posix(),)
    folder = root / "tests" / inside.parent
    return tuple(test.relative_to(root).as_posix() for test in sorted(folder.glob("test_*.py"))
                 if inside.parent.parts)


def replaced(source: str, node: ast.AST, new: ast.AST | list) -> str:
    """The source with other code in the node's place; all else stays as it stands, comments and lines too."""
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    if isinstance(new, list | ast.stmt):
        module = ast.Module(new if isinstance(new, list) else [new], [])
        text = ast.unparse(ast.fix_missing_locations(module)) or "pass"
        text = text.replace("\n", "\n" + " " * node.col_offset)
    else:
        text = ast.unparse(ast.fix_missing_locations(new))
        text = f"({text})" if isinstance(new, ast.expr) else text
    code = b"".join(lines)
    return (code[:start] + text.encode() + code[end:]).decode()


# --- Copies of the checkout, and tests in them -----------------------------------------------------------------------


class Copy:
    """A copy of the checkout in which one mutant after the other is made and undone."""

    running: set = set()  # the processes of all copies
    stopping = threading.Event()

    def __init__(self, pristine: Path, folder: Path, left_out: list[str]):
        self.pristine, self.root, self.cache = pristine, folder / "checkout", folder / "cache"
        self.left_out = left_out  # tests that fail without any mutant; shared by all copies
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

    def try_mutant(self, mutant: Mutant, limit_s: float) -> Outcome:
        outcome, begin = Outcome(mutant), time.perf_counter()
        own_cache = mutant.room == "simt"  # a part of the key of whatever that compiles
        (self.root / mutant.file).write_text(mutant.source, encoding="utf-8")
        try:
            outcome.default, failed = self.pytest(mutant.tests, limit_s, own_cache=own_cache)
            if outcome.default in ("survived", "no tests"):
                outcome.sweep, failed = self.pytest(mutant.tests, limit_s, REST, own_cache=own_cache)
            outcome.by = failed[0] if failed else ""
        finally:  # the package as it was, with what Numba keeps beside the files
            shutil.rmtree(self.root / "labkit")
            shutil.rmtree(self.cache, ignore_errors=True)
            shutil.copytree(self.pristine / "labkit", self.root / "labkit")
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
    parser = argparse.ArgumentParser(description="Does the test suite notice small changes of labkit's code?")
    parser.add_argument("-k", metavar="WORD", action="append", help="only files whose path holds this word")
    parser.add_argument("--count", type=int, default=50, help="how many mutants (50)")
    parser.add_argument("--seed", type=int, default=1, help="draws others (1)")
    parser.add_argument("--list", action="store_true", help="show them and leave")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for the tests of one (300)")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "mutants.json", help="where the JSON goes")
    parser.add_argument("--no-baseline", action="store_true", help="don't run the tests without a mutant first")
    options = parser.parse_args()

    mutants = draw(options.count, options.seed, options.k)
    if options.list:
        print("\n".join(f"{one.file}:{one.line}  {one.operator}: {one.change}" for one in mutants))
        return 0
    if not mutants:
        parser.error(f"no file of labkit with tests has {' or '.join(options.k or [])} in its path")

    for ending in (signal.SIGINT, signal.SIGTERM):  # also where a shell has put this into the background
        signal.signal(ending, signal.default_int_handler)
    outcomes: list[Outcome] = []
    stopped = False
    with tempfile.TemporaryDirectory(prefix="labkit-mutants-", ignore_cleanup_errors=True) as folder:
        try:
            pristine = Path(folder) / "pristine"
            shutil.copytree(REPOSITORY, pristine, ignore=LEFT_OUT)
            left_out: list[str] = []
            copies = [Copy(pristine, Path(folder) / str(n), left_out) for n in range(min(options.jobs, len(mutants)))]
            if not options.no_baseline:
                left_out += failing(sorted({test for m in mutants for test in m.tests}), copies, 3 * options.limit)
            tried = each_in_a_copy(mutants, lambda copy, mutant: copy.try_mutant(mutant, options.limit), copies)
            for number, (_, outcome) in enumerate(tried, 1):
                outcomes.append(outcome)
                print(f"{number:3} of {len(mutants)}  {line_of(outcome)}", flush=True)
        except KeyboardInterrupt:
            stopped = True
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(to_json(outcomes), indent=2) + "\n", encoding="utf-8")
    print(f"\n{summary(outcomes)}\n\n{options.out}")
    if stopped:
        print("Stopped.", file=sys.stderr)
        return 130
    return 0


def failing(tests: list[str], copies: list[Copy], limit_s: float) -> list[str]:
    """The tests that fail without any mutant: they would kill everything, and are left out."""
    found = []

    def run(copy, test):
        return copy.pytest((test,), limit_s, "not slow", whole=True)

    for number, (test, (_, failed)) in enumerate(each_in_a_copy(tests, run, copies), 1):
        print(f"{number:3} of {len(tests)}  without a mutant: {test}{' FAILED' if failed else ''}", flush=True)
        found += failed
    if found:
        print(f"Left out, since they fail without any mutant: {', '.join(found)}")
    return found


def line_of(one: Outcome) -> str:
    how = "SURVIVED" if one.survived else "killed" if one.default == "killed" else "by sweep"
    what = f"{one.mutant.file}:{one.mutant.line} {one.mutant.operator}: {one.mutant.change}"
    return f"{how:10} {one.seconds:6.1f} s  {what}{f'  ({one.by})' if one.by else ''}"


def summary(outcomes: list[Outcome]) -> str:
    """A table with a row for each room."""
    rows = ["room      mutants  killed by default  and by the sweep  survived"]
    rooms = sorted({one.mutant.room for one in outcomes})
    for room in [*rooms, "all"]:
        these = [one for one in outcomes if room in ("all", one.mutant.room)]
        default = sum(one.default == "killed" for one in these)
        every = sum(not one.survived for one in these)
        rows.append(f"{room:9} {len(these):7}  {default:17}  {every:16}  {len(these) - every:8}")
    return "\n".join(rows)


def to_json(outcomes: list[Outcome]) -> dict:
    return {
        "mutants": len(outcomes),
        "killed_by_default": sum(one.default == "killed" for one in outcomes),
        "killed_by_all": sum(not one.survived for one in outcomes),
        "outcomes": [{name: value for name, value in asdict(one).items() if name != "mutant"}
                     | {"file": one.mutant.file, "line": one.mutant.line, "operator": one.mutant.operator,
                        "change": one.mutant.change} for one in outcomes],
    }


if __name__ == "__main__":
    raise SystemExit(main())
