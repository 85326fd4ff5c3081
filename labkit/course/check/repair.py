"""Fault localization by repair: a small change to the answer's source that makes every result right.

The changes come from changes.py, the likeliest first. Each is tried on one small failing case, in plain Python and
without compiling; those that pass are tried on all small cases, in other thread orders and under observe, and then
have to pass the whole check. Only then does the verdict name the line and the mistake in it, but not the correction.
The search runs in a process of its own, with limits: see confined.py.

    found = repairs(exercise, answer, attempt.kind, case, cases)
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import itertools
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from labkit import device
from labkit.course.check import prefilter
from labkit.course.check.cases import Case, arguments_of, threads_of
from labkit.course.check.changes import Change, changes, grows_itself
from labkit.course.check.compare import compared
from labkit.course.check.confined import FORKS, confined
from labkit.course.check.diagnostics import Source, sources_of
from labkit.course.check.divergence import divergent_blocks
from labkit.course.check.limits import HostTimeout, announced, host_limit
from labkit.course.check.preflight import refused
from labkit.course.check.run import attempted, first_finding, inputs_changed, observed, unwritten
from labkit.course.check.verdict import quote_line
from labkit.course.check.vocabulary import Vocabulary
from labkit.course.exercises import Exercise
from labkit.simt import step_limit, thread_order
from labkit.simt.compiled_kernel import InterpretedKernel
from labkit.simt.kernel import DeviceFunction, Kernel
from labkit.simt.rewrite import rewrite
from labkit.simt.scope import remember_source

# How long the search goes on is counted in tries, which are the same on every machine: what a check says must not
# depend on what else a machine does. The limits in seconds end what hangs, and are far above what a search takes.
TRIES = 1_200  # runs of a small case in the prefilter, each 3 ms or so; other runs count as several
AFTER_FIRST = 250  # for another place, once one is found
PROVING = 600  # for all cases of one that is right where the answer failed
ENDLESS = 20  # for a function of the host that a limit ended
TURNS = (256, 1_024, 4_096, 16_384, 65_536)  # of loops, in a run of the answer; a case with more is too slow
MOST_TURNS = 8 * TURNS[-1]  # in a run of a changed answer, which may never end
PREFILTER_TURNS = 100_000  # the same, in the prefilter
CANDIDATE_S, LAUNCHED_S = 0.3, 10.0  # for a run of a function of the host, and of one that launches
CPU_S, WALL_S = 30.0, 90.0  # for the search process, in which repairs found are compiled and checked
MEMORY_BYTES = 1 << 30  # more than this process holds
SMALL_THREADS = 1_100  # the most threads run in plain Python
PAIRED_RANK, MOST_OF_A_LINE = 2.6, 60  # which changes are tried two at a time
NEAR = 0.5  # how much less likely another place may be that is named as well
NOT_LOOKED_AT = ("unsupported", "wrong_types", "wrong_arguments", "unchanged", "returns", "not_observed", "gpu_fault")
WITH_EFFECTS = {"open", "exec", "eval", "input", "os", "sys", "subprocess", "shutil", "pathlib", "Path", "socket",
                "requests", "urllib", "compile", "__import__", "globals", "setattr", "exit", "quit"}  # fmt: skip


@dataclass(frozen=True)
class Repair:
    """A place where a small change makes every result right. words: the mistake there, as a clause."""

    filename: str
    line: int
    words: str
    rank: float
    count: int = 1  # of changes


def sentences(fixes: tuple[Repair, ...]) -> tuple[str, ...]:
    """Paragraphs of a verdict."""
    if not fixes:
        return ()
    many = "one small change there makes" if fixes[0].count == 1 else "two small changes there make"
    ends = (f"{many} every result right.", "a small change there would do as well.")
    return tuple(f"{quote_line(one.filename, one.line).rstrip('.')}. {one.words[:1].upper()}{one.words[1:]}; {end}"
                 for one, end in zip(fixes[:2], ends, strict=False))


def repairs(exercise: Exercise, answer, attempt_kind: str, case: Case, cases: list[Case],
            tries: int = TRIES) -> tuple[Repair, ...]:
    """The places, at most two, at which one small change makes the answer right; () where none is found.

    Ctrl-C ends the search, not the check. Nothing runs on a GPU.
    """
    if attempt_kind in NOT_LOOKED_AT or not _can_be_changed(exercise, answer):
        return ()
    fixes: list[Repair] = []

    def work(send: Callable) -> None:
        with (warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"),
              host_limit(WALL_S)):
            warnings.simplefilter("ignore")
            _Search(exercise, answer, case, cases, tries, send).run()

    with announced("Looking for the place of the mistake. Interrupt, and the verdict comes without it ..."):
        try:
            if FORKS:
                limits = {"cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES, "wall_s": WALL_S}
                with contextlib.closing(confined(work, **limits)) as sent:
                    fixes.extend(sent)
            else:
                work(fixes.append)
        except (HostTimeout, KeyboardInterrupt):
            pass
        except Exception:  # a changed program can go wrong in any way, and the verdict does not depend on it
            return ()
    return chosen(fixes)


def chosen(fixes: list[Repair]) -> tuple[Repair, ...]:
    """The likeliest one, and that of another line if it is about as likely."""
    return (*fixes[:1], *[one for one in fixes if one.line != fixes[0].line][:1])


def _can_be_changed(exercise: Exercise, answer) -> bool:
    """A kernel or function of this process whose source is at hand, and that does nothing but compute."""
    if exercise.kind == "kernel":
        if not (isinstance(answer, Kernel) or type(answer).__name__ == "CUDADispatcher"):
            return False
    elif not isinstance(answer, types.FunctionType) or device.on_gpu():
        return False
    for source in sources_of(answer).values():
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.Global, ast.With, ast.ClassDef)) or (
                    isinstance(node, ast.Name) and node.id in WITH_EFFECTS):
                return False
    return True


# --- The search ------------------------------------------------------------------------------------------------------


class _Search:
    def __init__(self, exercise: Exercise, answer, case: Case, cases: list[Case], tries: float, send: Callable):
        """send: called with each Repair, once it is proved."""
        self.exercise, self.answer, self.case, self.cases, self.tries_left = exercise, answer, case, cases, tries
        self.send = send
        self.sources = {name: source for name, source in sources_of(answer).items() if source.tree is not None
                        and isinstance(getattr(source.tree, "body", [None])[:1], list) and _definition(source)}
        self.repairs: list[Repair] = []
        self.launches = exercise.kind == "function" and exercise.shape is not None
        self.limit_s = LAUNCHED_S if exercise.kind == "kernel" or self.launches else CANDIDATE_S
        self.turns = MOST_TURNS  # in a run
        self.cost = 1.0  # of a run of the case that is tried, in tries
        self.rough: list[Case] = []  # for rough runs; the first says as the CPU device does that the answer is wrong

    def run(self) -> None:
        name = getattr(self.answer, "__name__", "")
        if name not in self.sources:
            return
        test_failing = self._first_failing()
        if test_failing is None:
            return
        self.visited = {ast.dump(source.tree) for source in self.sources.values()}
        in_order = self._in_order()
        for source, change in in_order:
            if self.tries_left <= 0 or self._enough(change):
                return
            if self._helps(source, change.tree(), test_failing):
                self.tries_left = self.tries_left if self.repairs else min(self.tries_left, AFTER_FIRST)
                self._keep(Repair(source.filename, change.line, change.words, change.rank))
        if self.repairs:
            return
        for source, line, tree in pairs(in_order):
            if self.tries_left <= 0:
                return
            if self._helps(source, tree, test_failing):
                self._keep(Repair(source.filename, line, "two things are wrong", 9.0, count=2))
                return

    def _keep(self, repair: Repair) -> None:
        self.repairs.append(repair)
        self.send(repair)

    def _helps(self, source: Source, tree: ast.Module, test_failing: Callable) -> bool:
        """Whether the answer with this tree passes every test."""
        dumped = ast.dump(tree)
        if dumped in self.visited:
            return False
        self.visited.add(dumped)
        if grows_itself(tree):
            return False
        if not all(self._roughly_right(source, tree, case) for case in self.rough):
            return False
        candidate = self._made(source, tree)
        self.tries_left -= self.cost
        return (candidate is not None and test_failing(candidate) and self._proved(candidate)
                and self._passes(source, tree))

    def _passes(self, source: Source, tree: ast.Module) -> bool:
        """Whether the answer with this tree passes the whole check, compiled as an answer is."""
        if device.on_gpu():  # where nothing may run: what was observed has to do
            return True
        from labkit.course.check.stages import passes

        candidate = self._made(source, tree, compiled=True)
        return refused(self.exercise, candidate) is None and passes(self.exercise, candidate, self.cases)

    def _enough(self, change: Change) -> bool:
        return bool(self.repairs) and (len({one.line for one in self.repairs}) > 1
                                       or change.rank > self.repairs[0].rank + NEAR)

    def _in_order(self) -> list[tuple[Source, Change]]:
        """Return the changes, the likeliest first; none of a condition around a barrier, as the barrier must move."""
        ranked = []
        for source in self.sources.values():
            function = _definition(source)
            is_answer = source.function.__name__ == self.answer.__name__
            argument_kinds = self._parameter_kinds(function) if is_answer else {}
            in_kernel = self.exercise.kind == "kernel" or not is_answer
            vocabulary = Vocabulary(function, argument_kinds, in_kernel)
            ranked += [(change.rank + (0 if is_answer else NEAR), source, change)
                       for change in changes(source.tree, vocabulary) if not _asks_around_barrier(change)]
        ranked.sort(key=lambda one: one[0])
        return [(source, change) for _, source, change in ranked]

    def _parameter_kinds(self, function: ast.FunctionDef) -> dict[str, tuple[str, int]]:
        """Kind and number of axes of the parameters, from what the answer is called with."""
        case = self.case
        values = case.inputs
        if self.exercise.shape is not None:
            values = arguments_of(self.exercise, case.inputs, case.expected, case.size)
        kinds = {}
        for argument, value in zip(function.args.args, values, strict=False):
            if isinstance(value, np.ndarray) and value.ndim:
                kinds[argument.arg] = ("array", value.ndim)
            elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
                kinds[argument.arg] = ("int", 0)
            elif isinstance(value, (float, np.floating)):
                kinds[argument.arg] = ("float", 0)
        return kinds

    # --- Running

    def _first_failing(self) -> Callable | None:
        """Return a test on the cheapest case that the unchanged answer fails: (changed answer) -> whether it passes.
        None if it passes every test that is cheap enough."""
        unchanged = self._unchanged()
        if unchanged is None:
            return None
        small = [case for case in self.cases if self._is_small(case)]
        candidates = [self.case, *sorted((case for case in small if case is not self.case), key=self._threads)[:4]]
        for test in self._tests():
            failing = []
            for position, case in enumerate(candidates):
                turns = self._turns(unchanged, case)
                if turns is not None and not test(unchanged, case):
                    failing.append((self._cost(case, turns), position, case, turns))
            if failing:
                self.cost, _, cheapest, turns = min(failing)
                if test == self._right and self._can_be_rough(unchanged, cheapest):
                    others = [case for case in self.cases if self._is_small(case) and case is not cheapest]
                    self.rough = [cheapest, *sorted(others, key=self._threads)]
                return functools.partial(self._within, 8 * turns, test, case=cheapest)
        return None

    def _within(self, turns: int, test: Callable, candidate, case: Case) -> bool:
        """A test with another limit on the turns of its loops."""
        self.turns = turns
        try:
            return test(candidate, case)
        finally:
            self.turns = MOST_TURNS

    def _turns(self, unchanged, case: Case) -> int | None:
        """How many turns a run of the answer on this case may need, one of TURNS; None if more than all of them."""
        if self.exercise.kind == "function" and not self.launches:
            return TURNS[0]
        for turns in TURNS:
            with contextlib.suppress(Exception, HostTimeout), step_limit(turns):
                try:
                    attempted(self.exercise, unchanged, case, "forward", self.limit_s)
                except Exception as error:
                    if type(error).__name__ == "KernelTimeout":
                        continue
            return turns
        return None

    def _cost(self, case: Case, turns: int) -> float:
        """Of a run, in tries."""
        if self.exercise.kind == "kernel":
            return 1 + self._threads(case) / 32 + turns / 500
        return 10 + turns / 500 if self.launches else 0.5

    def _can_be_rough(self, unchanged, case: Case) -> bool:
        """Whether rough runs of the answer can be trusted to sort changes out."""
        if self.exercise.kind != "kernel" or not prefilter.works(self._trees(), self._names()):
            return False
        if self._roughly_right(None, None, case):
            return False
        if self.failed_roughly:  # only in the rough run, or on the CPU device, too?
            with contextlib.suppress(Exception, HostTimeout), step_limit(MOST_TURNS):
                attempted(self.exercise, unchanged, case, "forward", self.limit_s)
                return False
        return True

    def _trees(self) -> dict[str, ast.Module]:
        return {name: source.tree for name, source in self.sources.items()}

    def _names(self) -> dict:
        return _namespace(self.sources[self.answer.__name__].function)

    def _roughly_right(self, source: Source | None, tree, case: Case) -> bool:
        trees = self._trees()
        if source is not None:
            trees[source.function.__name__] = tree
        self.failed_roughly, run = False, None
        try:
            run = prefilter.Prefilter(self.exercise, self.answer.__name__, trees, self._names(), PREFILTER_TURNS)
            return run.right(case)
        except Exception:
            self.failed_roughly = True
            return False
        finally:
            self.tries_left -= 1 + (self._threads(case) + (run.ticks if run else 0)) / 2_000

    def _tests(self) -> tuple[Callable, ...]:
        if device.on_gpu():
            return (self._right_under_observe,)
        if self.exercise.kind == "kernel":
            return (self._right, lambda candidate, case: self._right(candidate, case, "reverse"),
                    self._right_under_observe)
        return (self._right, lambda candidate, case: self._right(candidate, case, "reverse"), self._meets_demand)

    def _proved(self, candidate) -> bool:
        """Whether it is right in every small case, whatever the order of the threads, and nothing is found by
        observe; at least in the first of them, and the whole check looks at all."""
        small = sorted((case for case in self.cases if self._is_small(case)), key=self._threads)
        with_order = [case for case in small if case.expected.size > 1][:2] or small[:1]
        kernel = self.exercise.kind == "kernel"
        steps = [] if device.on_gpu() and kernel else [(self._right, case) for case in small]
        if not device.on_gpu() and self.exercise.shape is not None:
            steps += [(lambda one, case: self._right(one, case, "reverse"), case) for case in with_order]
        if kernel:
            watched = small if device.on_gpu() else self._watched(small)
            steps += [(self._right_under_observe, case) for case in watched]
        elif self.exercise.demand is not None:
            steps += [(self._meets_demand, case) for case in small if not case.where]
        spent = 0.0
        for done, (test, case) in enumerate(steps):
            spent += self._cost(case, TURNS[0])
            if spent > PROVING and done >= 6:
                break
            if not test(candidate, case):
                return False
        return bool(steps)

    def _watched(self, small: list[Case]) -> list[Case]:
        """Those that check observes, and the one that failed."""
        result = [case for case in self._demanded() if self._is_small(case)]
        return result if self.case in result or not self._is_small(self.case) else [*result, self.case]

    def _is_small(self, case: Case) -> bool:
        return self.exercise.kind != "kernel" or threads_of(self.exercise, case) <= SMALL_THREADS

    def _threads(self, case: Case) -> int:
        return threads_of(self.exercise, case) if self.exercise.kind == "kernel" else case.expected.size

    def _right(self, candidate, case: Case, order: str = "forward") -> bool:
        try:
            with step_limit(self.turns):
                return attempted(self.exercise, candidate, case, order, self.limit_s).good
        except (Exception, SystemExit):
            return False
        except HostTimeout:
            self.tries_left -= ENDLESS
            return False

    def _right_under_observe(self, candidate, case: Case) -> bool:
        try:
            with thread_order("forward"):
                report, inputs, out = observed(self.exercise, candidate, case, steps=self.turns)
        except Exception:
            return False
        if first_finding(report) is not None or inputs_changed(case, inputs) is not None:
            return False
        if not case.where and case.size in [one.size for one in self._demanded()] and self.exercise.missing(report):
            return False
        return compared(self.exercise, case, out, unwritten(case, out)).good

    def _demanded(self) -> list[Case]:
        from labkit.course.check.stages import observed_cases

        return observed_cases(self.exercise, self.cases)

    def _meets_demand(self, candidate, case: Case) -> bool:
        if self.exercise.demand is None:
            return True
        from labkit.course.check.host_runs import host_observer

        return host_observer(self.exercise, case)(candidate).good

    # --- Making

    def _unchanged(self):
        source = self.sources[self.answer.__name__]
        return self._made(source, source.tree)

    def _made(self, changed: Source, tree: ast.Module, compiled: bool = False):
        """The answer with the function `changed` as `tree` has it; None if that is no function. compiled: its launches
        are, and are interpreted otherwise."""
        names = {}
        for name, source in self.sources.items():
            if changed.function.__name__ == self.answer.__name__ and name != self.answer.__name__:
                continue  # as it is, and compiled
            own_tree = tree if source is changed else source.tree
            try:
                names[name] = (own_tree, source)
            except SyntaxError:
                return None
        namespace = _namespace(self.sources[self.answer.__name__].function)
        try:
            for name, (own_tree, source) in names.items():
                namespace[name] = _kernel_or_function(own_tree, source, namespace, self._original(name),
                                                      compiled)
        except Exception:
            return None
        return namespace[self.answer.__name__]

    def _original(self, name: str):
        function = self.sources[name].function
        if name == self.answer.__name__:
            return self.answer
        result = _namespace(self.sources[self.answer.__name__].function).get(name)
        return result if result is not None else function


def pairs(in_order: list[tuple[Source, Change]]) -> Iterator[tuple[Source, int, ast.Module]]:
    """Two changes of expressions in one line, the likeliest first: (function, line, tree)."""
    lines: dict[tuple, list] = {}
    for source, change in in_order:
        if change.rank <= PAIRED_RANK and isinstance(change.node, ast.expr):
            lines.setdefault((source.filename, change.line), []).append((source, change))
    ranked = [(one.rank + other.rank, source, one, other) for changed in lines.values()
              for (source, one), (_, other) in itertools.combinations(changed[:MOST_OF_A_LINE], 2)
              if one.place.path != other.place.path[: len(one.place.path)]
              and other.place.path != one.place.path[: len(other.place.path)]]
    for _, source, one, other in sorted(ranked, key=lambda pair: pair[0]):
        place_in_changed = replace(other.place, tree=one.place.tree_with(one.node))
        yield source, one.line, ast.fix_missing_locations(place_in_changed.tree_with(other.node))


def _asks_around_barrier(change: Change) -> bool:
    """Whether the change makes another condition of an `if` that not all threads of a block take, and in which a
    barrier stands."""
    place, node, conditionals = change.place, change.place.tree, []
    for field, index in (*place.path, ("", None)):
        if isinstance(node, ast.If) and (field == "test" or (not field and isinstance(change.node, ast.If))):
            conditionals.append(node)
        node = node if not field else getattr(node, field) if index is None else getattr(node, field)[index]
    guarding = [one for one in conditionals if "syncthreads" in ast.unparse(one)]
    return bool(guarding) and any(one is block for function in place.tree.body if isinstance(function, ast.FunctionDef)
                                  for block in divergent_blocks(function) for one in guarding)


def _definition(source: Source) -> ast.FunctionDef | None:
    body = getattr(source.tree, "body", [])
    return body[0] if body and isinstance(body[0], ast.FunctionDef) else None


def _namespace(function) -> dict:
    closed = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    return {**function.__globals__, **closed}


def _kernel_or_function(tree: ast.Module, source: Source, namespace: dict, like, compiled: bool):
    """What the tree defines, of the kind of `like`. A kernel runs in plain Python, if it is not to be compiled."""
    definition = tree.body[0]
    bare = ast.FunctionDef(definition.name, _without_annotations(definition.args), definition.body, [], None)
    ast.fix_missing_locations(ast.copy_location(bare, definition))
    exec(compile(ast.Module([bare], []), source.filename, "exec", dont_inherit=True), namespace)
    function = namespace[definition.name]
    if not hasattr(like, "py_func"):
        return function
    remember_source(function, bare, source.filename)
    options = getattr(like, "targetoptions", None) or {}
    if type(like).__name__ == "DeviceFunction" or options.get("device"):
        return DeviceFunction(function, getattr(like, "signature", None))
    return Kernel(function, getattr(like, "_given", ()), getattr(like, "options", None)) if compiled else (
        _PlainKernel(function, like))


def _without_annotations(arguments: ast.arguments) -> ast.arguments:
    return ast.arguments(
        [ast.arg(a.arg) for a in arguments.posonlyargs], [ast.arg(a.arg) for a in arguments.args], arguments.vararg,
        [ast.arg(a.arg) for a in arguments.kwonlyargs], arguments.kw_defaults, arguments.kwarg, arguments.defaults)


class _PlainKernel(Kernel):
    """A kernel that is never compiled: its launches are interpreted."""

    def __init__(self, function, like):
        super().__init__(function, (), getattr(like, "options", None))
        self._given = getattr(like, "_given", [])
        self.dynamic_allowed = getattr(like, "dynamic_allowed", self.dynamic_allowed)
        self._program = None

    def _compile(self, argument_types, flat=False):
        if self._program is None:
            self._program = InterpretedKernel(rewrite(self.py_func))
        return self._program
