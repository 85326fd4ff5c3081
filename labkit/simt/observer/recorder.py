"""A launch run once more as a GPU would, statement by statement, and recorded: what `Report.play` shows.

`observe` runs a thread up to its next barrier, then the next thread. Here the lanes of a warp go in lockstep. Where
they have diverged, those that are furthest behind in the source go first, so that they meet again after a branch or a
loop; the warps of a block take turns. What a step shows is what happened: the values, and which of two racing accesses
was first.
"""

from dataclasses import dataclass, field

import numpy as np

from labkit.simt.errors import KernelError
from labkit.simt.interpreted_source import MARK
from labkit.simt.ir import full_name, sync_kind
from labkit.simt.observer.kept_launch import KeptArray
from labkit.simt.observer.memory_requests import SECTOR, bank_conflicts
from labkit.simt.observer.observation import Observation
from labkit.simt.observer.races import CONFLICTS
from labkit.simt.observer.report import Report
from labkit.simt.observer.seen_arrays import Allocation, SeenArray

MOST_STEPS = 12_000  # that are recorded; of several blocks together
ALONE = 1_000  # steps of a warp after which lanes that were left behind get a turn: they may hold what it waits for
COMPARED_BYTES = 1 << 18  # global arrays up to this size are looked at for writes that no thread made
# kinds of steps
STATEMENT, BARRIER, COLLECTIVE, MEMORY = range(4)
VERBS = {"load": "reads", "store": "writes", "atomic": "updates"}


@dataclass
class Request:
    """What the lanes of a warp access together; of kind "outside", what they leave out since it is outside the array.

    elements: the first of each lane's, counted in C order of the array. cost: sectors in global memory; in shared
    memory the further passes that bank conflicts take.
    """

    kind: str
    array: str
    lanes: list
    elements: list
    width: int  # elements of each lane
    cost: int


@dataclass
class Step:
    """What a warp does between two points: a statement, by the lanes of `mask`. A BARRIER is passed by the block, a
    COLLECTIVE by lanes of a warp; in MEMORY is what others wrote meanwhile: other blocks, asynchronous copies.

    waits, ended: lanes that wait after it, and that have ended. values: {array: [(element, value)]} of what was written
    """

    kind: int
    round: int
    warp: int
    line: int
    mask: int
    name: str = ""  # of a barrier or a collective
    waits: int = 0
    ended: int = 0
    requests: list = field(default_factory=list)
    values: dict = field(default_factory=dict)


@dataclass
class Side:
    """One of the accesses that make a fault: a thread (its number in the block), its line, and the step, if recorded.

    index: of the element, where it is outside the array."""

    block: int
    thread: int
    line: int
    verb: str
    step: int | None
    array: str = ""
    element: int | None = None
    index: tuple | None = None


@dataclass
class BlockTrace:
    """One block: its steps, and how the arrays differ from the beginning of the launch when it begins.

    changed: {array: (elements, values)}. While it is recorded also: live, its arrays; shadows, what the steps say of
    them; last_line, of each warp.
    """

    block: int
    steps: list = field(default_factory=list)
    changed: dict = field(default_factory=dict)
    is_whole: bool = True
    live: dict = field(default_factory=dict)
    shadows: dict = field(default_factory=dict)
    last_line: dict = field(default_factory=dict)


@dataclass
class SeenMemory:
    """An array as the trace knows it. initial: its content at the beginning, None where nothing was written."""

    name: str
    space: str
    shape: tuple
    strides: tuple
    dtype: np.dtype
    origin: int
    initial: np.ndarray | None

    def element(self, address):
        """The element at an address, counted in C order; None outside."""
        offset, index = address - self.origin, [0] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda k: -self.strides[k]):
            if self.strides[axis] > 0:
                index[axis], offset = divmod(offset, self.strides[axis])
        if not all(0 <= i < n for i, n in zip(index, self.shape, strict=True)):
            return None
        flat = 0
        for i, n in zip(index, self.shape, strict=True):
            flat = flat * n + i
        return flat


class RecordedReport(Report):
    """A report whose findings know both sides of what they are about."""

    sides = ()

    def race(self, finding, key, reach):
        finding.sides = self.sides
        super().race(finding, key, reach)

    def outside(self, finding, array, line, writes):
        finding.sides = self.sides
        super().outside(finding, array, line, writes)


class Recording(Observation):
    """A kept launch, run in lockstep. blocks: the numbers of those that are recorded, the most wanted first."""

    marks_statements, doing = True, "recorded"

    def __init__(self, kept, blocks):
        super().__init__(kept.function, kept.grid, kept.block, kept.shared_bytes, kept.args)
        self.report = RecordedReport(self.program.name, self.program.filename, kept.grid, kept.block)
        self.kept, self.wanted = kept, list(blocks)
        self.owners = [(Allocation("global", m.content.copy(), m.known, m.base)) for m in kept.memories]
        self.arrays, self.live, self.accesses, self.raced_at = {}, {}, {}, 0
        self.traces, self.trace, self.step, self.round, self.stopped = {}, None, None, 0, ""
        self.place_at = {}  # the race detector's time: (block, number of the step)

    def record(self):
        try:
            self.run()
        except KernelError as error:  # what a race has led to, in this order of the threads
            self.stopped = str(error)
        first = self.wanted[0]
        self.traces = {b: trace for b, trace in sorted(self.traces.items()) if trace.is_whole or b == first}
        return self

    # ---------------- memory

    def _kept(self, bound):
        return self.kept

    def _argument(self, name, value):
        if not isinstance(value, KeptArray):
            return super()._argument(name, value)
        memory = self.owners[value.memory]
        array = np.ndarray(value.shape, value.dtype, memory.owner, value.offset, value.strides)
        return self._met(SeenArray(self, memory, array, name))

    def _constant(self, name, array):
        return self._met(super()._constant(name, array))

    def _shared(self, declaration):
        return self._met(super()._shared(declaration))

    def _met(self, seen):
        if seen.name not in self.arrays:
            initial = seen.array.copy() if seen.memory.known else None
            self.arrays[seen.name] = SeenMemory(
                seen.name, seen.memory.space, seen.shape, seen.strides, seen.dtype, seen.origin, initial)
        self.live[seen.name] = seen.array
        return seen

    def _changes(self, name):
        """Return (elements, values) changed in an array since the trace last saw it, and record them in the trace."""
        array, shadow = np.ascontiguousarray(self.trace.live[name]), self.trace.shadows[name]
        if not array.size or array.dtype.hasobject:
            return [], []
        before, now = (a.reshape(-1).view(np.uint8).reshape(a.size, -1) for a in (shadow, array))
        elements = np.flatnonzero((before != now).any(axis=1))
        values = array.reshape(-1)[elements]
        shadow.reshape(-1)[elements] = values
        return elements.tolist(), values.tolist()

    def _known(self, name):
        """What the trace knows of an array at the beginning of a block."""
        known, array = self.arrays[name], self.live[name]
        if known.space == "shared" or known.initial is None:
            fresh = np.full(array.size * array.itemsize, 0xFF, np.uint8).view(array.dtype)
            return fresh.reshape(array.shape)
        return known.initial.copy()

    # ---------------- a block, in lockstep

    def _run_to_waits(self, runnable, threads):
        self._record_block(threads[0].block)
        for thread in runnable:  # to its first mark: no statement is executed
            self._advance(thread)
        warps = [threads[w : w + 32] for w in range(0, len(threads), 32)]
        for w, lanes in enumerate(warps):
            ended = [t for t in lanes if t.done and t in runnable]
            if ended and self.trace is not None:
                self._begin(STATEMENT, w, self.trace.last_line.get(w, self.program.line), ended)
                self._end(ended)
        ahead = [0] * len(warps)  # steps of each warp in which some lanes were left behind
        going = True
        while going:
            self.round += 1
            going = False
            for w, lanes in enumerate(warps):
                going |= self._turn(w, lanes, ahead)

    def _record_block(self, b):
        """Begin to record a block, or go on with it after a barrier."""
        self.trace = trace = self.traces.get(b)
        if b in self.wanted and trace is None:
            self.trace = trace = self.traces[b] = BlockTrace(b)
            trace.live = dict(self.live)
            trace.shadows = {name: self._known(name) for name in trace.live}
            trace.changed = {name: found for name in trace.live if (found := self._changes(name))[0]}
        elif trace is not None:
            found = {name: list(zip(*self._changes(name), strict=True)) for name, array in trace.live.items()
                     if self.arrays[name].space == "shared" or array.nbytes <= COMPARED_BYTES}  # fmt: skip
            found = {name: values for name, values in found.items() if values}
            if found and self._begin(MEMORY, 0, trace.last_line.get(0, self.program.line), []):
                self.step.values, self.step = found, None

    def _turn(self, w, lanes, ahead):
        """One step of a warp. False if no lane of it can go on."""
        ready = [t for t in lanes if t.request is not None and t.request[0] == MARK]
        if not ready:
            return self._collective(w, lanes)
        first = min(t.request[1] for t in ready)
        group = [t for t in ready if t.request[1] == first]
        ahead[w] = ahead[w] + 1 if len(group) < len(ready) else 0
        if ahead[w] > ALONE:
            last = max(t.request[1] for t in ready)
            group, ahead[w] = [t for t in ready if t.request[1] == last], 0
        line = group[0].request[2]
        self._begin(STATEMENT, w, line, group)
        while True:
            number = group[0].request[1]
            for t in group:
                self._statement(t)
            requests = {t.request and t.request[:4] for t in group}
            request = requests.pop()
            if requests or not request or request[0] != MARK or request[1] <= number or request[2] != line:
                break
        self._end(group)
        return True

    def _collective(self, w, lanes):
        waiting = next((t for t in lanes if not t.done and sync_kind(t.request[0]) == "warp"), None)
        if waiting is None:
            return False
        self._begin(COLLECTIVE, w, waiting.request[1], [], full_name(waiting.request[0]))
        group = self.scheduler.resolve_warp(lanes)
        if not group and self.step is not None:
            self.trace.steps.pop()
            self.step = None
        elif self.step is not None:
            self.step.mask = sum(1 << t.linear % 32 for t in group)
        for t in group:
            self._advance(t)
        self._end(group)
        return bool(group)

    def _statement(self, thread):
        """Advance a thread to its next mark. A loop's first pass belongs to the step of its header."""
        number, again = thread.request[1], thread.request[3]
        self._advance(thread)
        request = thread.request
        if request and request[0] == MARK and request[3] and request[1] == number and not again:
            self._advance(thread)

    def _begin(self, kind, warp, line, threads, name=""):
        """False if this step is not recorded."""
        if self.trace is None or not self.trace.is_whole:
            return False
        if len(self.trace.steps) >= MOST_STEPS // (1 if self.trace.block == self.wanted[0] else len(self.wanted)):
            self.trace.is_whole = False
            return False
        self.step = Step(kind, self.round, warp, line, sum(1 << t.linear % 32 for t in threads), name)
        self.accesses = {}
        self.trace.last_line[warp] = line
        self.trace.steps.append(self.step)
        return True

    def _end(self, group):
        step, self.step = self.step, None
        if step is None:
            return
        for t in group:
            if t.done:
                step.ended |= 1 << t.linear % 32
            elif t.request[0] != MARK:
                step.waits |= 1 << t.linear % 32
                step.name = step.name or full_name(t.request[0])
        for (kind, name, size, *_), accesses in self.accesses.items():
            if kind == "outside":
                step.requests.append(Request(kind, name, [lane for lane, _ in accesses], [0] * len(accesses), 1, 0))
                continue
            known = self.arrays[name]
            places = [(lane, address, known.element(address)) for lane, address in accesses]
            places = [place for place in places if place[2] is not None]
            if not places:
                continue
            lanes, addresses, elements = map(list, zip(*places, strict=True))
            if known.space == "global":
                cost = len({s for a in addresses for s in range(a // SECTOR, (a + size - 1) // SECTOR + 1)})
            else:
                cost = bank_conflicts(list(zip(lanes, addresses, strict=True)), size)
            width = max(1, size // known.dtype.itemsize)
            step.requests.append(Request(kind, name, lanes, elements, width, cost))
            if kind != "load":
                written = step.values.setdefault(name, {})
                array, shadow = self.trace.live[name].flat, self.trace.shadows[name].reshape(-1)
                for k in (k for e in elements for k in range(e, min(e + width, shadow.size))):
                    shadow[k] = array[k]
                    written[k] = array[k].item()
        step.values = {name: list(found.items()) for name, found in step.values.items()}

    def passed_barrier(self, line):
        super().passed_barrier(line)
        if self.trace is not None:
            self.round += 1
            self._begin(BARRIER, 0, line, [], "cuda.syncthreads")
            self.step = None

    # ---------------- what happens in a step

    def access(self, kind, seen, address, index, frame):
        super().access(kind, seen, address, index, frame)
        if seen.memory.space != "local":
            self._noted(kind, seen, address, frame, seen.itemsize)

    def widely(self, kind, name, seen, i, count, line, frame):
        super().widely(kind, name, seen, i, count, line, frame)
        if seen.memory.space != "local":
            kind = "store" if kind == "copy" else kind
            self._noted(kind, seen, seen.origin + i * seen.itemsize, frame, count * seen.itemsize)

    def _noted(self, kind, seen, address, frame, size):
        if self.step is None or seen.name not in self.arrays:
            return
        lane = self.current.linear % 32
        site, count = (kind, seen.name, size, id(frame.f_code), self._instruction(frame)), 0
        while any(lane == other for other, _ in self.accesses.get((*site, count), ())[-1:]):
            count += 1
        self.accesses.setdefault((*site, count), []).append((lane, address))

    # ---------------- both sides of a fault

    def _here(self):
        return (self.trace.block, len(self.trace.steps) - 1) if self.step is not None else (self.current.block, None)

    def _side(self, thread, line, verb, place, **more):
        return Side(thread.block, thread.linear, line, verb, place[1], **more)

    def _race(self, kind, seen, address, index, line):
        self.place_at[self.time + 1] = here = self._here()
        element = self._element(seen, address)
        self.report.sides = (self._side(self.current, line, VERBS[kind], here, array=seen.name, element=element),)
        self.raced_at = address
        super()._race(kind, seen, address, index, line)
        self.report.sides = ()

    def _element(self, seen, address):
        return self.arrays[seen.name].element(address) if seen.name in self.arrays else None

    def _report_race(self, seen, index, first, second, benign=False):
        """Of several earlier accesses that race with this one, that of the thread that is furthest away is shown."""
        thread, _, kind, _, _ = second
        cell = self._cell(seen.memory, self.raced_at)
        others = [entry for k in CONFLICTS[kind] for entry in cell[k]
                  if entry[0] is not thread and not self._ordered(entry, thread)]
        first = max(others, key=lambda entry: (entry[0].block != thread.block, entry[0].warp != thread.warp),
                    default=first)
        element = self.report.sides[0].element
        sides = [self._side(thread, line, VERBS[kind], self.place_at.get(time, (None, None)), array=seen.name,
                            element=element) for thread, _, kind, line, time in (first, second)]
        self.report.sides = tuple(sides)
        super()._report_race(seen, index, first, second, benign)

    def out_of_bounds(self, seen, index, frame, verb):
        parts = index if isinstance(index, tuple) else (index,)
        index = tuple(int(p) for p in parts) if all(isinstance(p, int) for p in parts) else None
        self.report.sides = (self._side(self.current, frame.f_lineno, verb, self._here(), array=seen.name,
                                        index=index),)
        super().out_of_bounds(seen, parts, frame, verb)
        self.report.sides = ()
        self._noted("outside", seen, 0, frame, seen.itemsize)

    def _beyond(self, kind, name, array, i, count, line, frame):
        self.report.sides = (self._side(self.current, line, VERBS.get(kind, "writes"), self._here(), array=array.name,
                                        index=(i,)),)
        super()._beyond(kind, name, array, i, count, line, frame)
        self.report.sides = ()
        self._noted("outside", array, 0, frame, array.itemsize)

    def _uninitialized(self, seen, index, line):
        finding = super()._uninitialized(seen, index, line)
        address = seen.origin + sum(i * stride for i, stride in zip(index, seen.strides, strict=True))
        finding.sides = (self._side(self.current, line, "reads", self._here(), array=seen.name,
                                    element=self._element(seen, address)),)
        return finding

    def stuck(self, kind, line, thread, op, sentence, lines=(), others=(), index=None, block=None):
        b = thread.block if thread else block
        last = len(self.traces[b].steps) - 1 if b in self.traces else None
        going = super().stuck(kind, line, thread, op, sentence, lines, others, index, block)
        sides = [Side(b, thread.linear, line, f"waits in {full_name(op)}()", last)] if thread else []
        for t in others[:1]:
            where = t.request[1] if t.request else self.program.line
            sides.append(Side(b, t.linear, where, "waits elsewhere" if t.request else "has ended", last))
        self.report.divergent_barriers[-1].sides = tuple(sides)
        return going
