"""Replay a launch as a GPU would run it, statement by statement, and record it for `Report.play`.

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
AHEAD = 4_000  # steps of a warp that runs ahead between two barriers: it may wait for the others
ALONE = 1_000  # steps of a warp after which lanes that were left behind get a turn: the others may wait for them
COMPARED_BYTES = 1 << 18  # global arrays up to this size are checked for writes that no thread made
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
    COLLECTIVE by lanes of a warp; MEMORY holds what others wrote meanwhile: other blocks, asynchronous copies.

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
    """One of the accesses that make a fault: a thread (its index in the block), its line, and the step, if recorded.

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
    is_complete: bool = True
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
    """A report whose findings also have `sides`, the accesses that make the fault."""

    sides = ()

    def race(self, finding, key, reach):
        finding.sides = self.sides
        super().race(finding, key, reach)

    def outside(self, finding, array, line, writes):
        finding.sides = self.sides
        super().outside(finding, array, line, writes)


class Recording(Observation):
    """Replay a kept launch in lockstep. blocks: indices of the blocks to record, the first to show in front.

    The warps take turns, or, to play a race in either order: `ahead`, a warp that goes first, as far as it gets between
    two barriers; `held`, a line before which each warp waits for the others, as if a barrier stood there.
    """

    marks_statements, doing = True, "recorded"

    def __init__(self, launch, blocks, ahead=None, held=None):
        super().__init__(launch.function, launch.grid, launch.block, launch.shared_bytes, launch.args)
        self.report = RecordedReport(self.program.name, self.program.filename, launch.grid, launch.block)
        self.launch, self.block_ids, self.ahead, self.held = launch, list(blocks), ahead, held
        self.owners = [(Allocation("global", m.content.copy(), m.known, m.base)) for m in launch.memories]
        self.arrays, self.live, self.accesses, self.race_address = {}, {}, {}, 0
        self.traces, self.trace, self.step, self.round, self.stopped = {}, None, None, 0, ""
        self.step_at = {}  # the race detector's time: (block, index of the step)

    def record(self):
        try:
            self.run()
        except KernelError as error:  # what a race has led to, in this order of the threads
            self.stopped = str(error)
        first = self.block_ids[0]
        self.traces = {b: trace for b, trace in sorted(self.traces.items()) if trace.is_complete or b == first}
        return self

    # ---------------- memory

    def _snapshot(self, bound):
        return self.launch

    def _argument(self, name, value):
        if not isinstance(value, KeptArray):
            return super()._argument(name, value)
        memory = self.owners[value.memory]
        array = np.ndarray(value.shape, value.dtype, memory.owner, value.offset, value.strides)
        return self._register(SeenArray(self, memory, array, name))

    def _constant(self, name, array):
        return self._register(super()._constant(name, array))

    def _shared(self, declaration):
        return self._register(super()._shared(declaration))

    def _register(self, observed):
        if observed.name not in self.arrays:
            initial = observed.array.copy() if observed.memory.known else None
            self.arrays[observed.name] = SeenMemory(
                observed.name, observed.memory.space, observed.shape, observed.strides, observed.dtype,
                observed.origin, initial)
        self.live[observed.name] = observed.array
        return observed

    def _changes(self, name):
        """Return (elements, values) changed in an array since the trace last saw it, and record them in the trace."""
        array, shadow = np.ascontiguousarray(self.trace.live[name]), self.trace.shadows[name]
        if not array.size or array.dtype.hasobject:
            return [], []
        previous, now = (a.reshape(-1).view(np.uint8).reshape(a.size, -1) for a in (shadow, array))
        elements = np.flatnonzero((previous != now).any(axis=1))
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
        if self.ahead is not None and self.ahead < len(warps):
            for _ in range(AHEAD):
                self.round += 1
                if not self._turn(self.ahead, warps[self.ahead], ahead):
                    break
        going = True
        while going:
            self.round += 1
            free = [w for w, lanes in enumerate(warps) if self.held is None or self._next_line(lanes) != self.held]
            going = self._turns(free, warps, ahead)
            if not going:  # all that can go on have arrived
                going = self._turns([w for w in range(len(warps)) if w not in free], warps, ahead)

    def _turns(self, chosen, warps, ahead):
        """One step of each of these warps. False if none can go on."""
        going = False
        for w in chosen:
            going |= self._turn(w, warps[w], ahead)
        return going

    @staticmethod
    def _next_line(lanes):
        """The line of the statement that a warp executes in its next turn; None where it has none."""
        ready = [t.request for t in lanes if t.request is not None and t.request[0] == MARK]
        return min(ready, key=lambda request: request[1])[2] if ready else None

    def _record_block(self, b):
        """Start recording a block, or continue after a barrier."""
        self.trace = trace = self.traces.get(b)
        if b in self.block_ids and trace is None:
            self.trace = trace = self.traces[b] = BlockTrace(b)
            trace.live = dict(self.live)
            trace.shadows = {name: self._known(name) for name in trace.live}
            trace.changed = {name: changes for name in trace.live if (changes := self._changes(name))[0]}
        elif trace is not None:
            changes = {name: list(zip(*self._changes(name), strict=True)) for name, array in trace.live.items()
                     if self.arrays[name].space == "shared" or array.nbytes <= COMPARED_BYTES}  # fmt: skip
            changes = {name: values for name, values in changes.items() if values}
            if changes and self._begin(MEMORY, 0, trace.last_line.get(0, self.program.line), []):
                self.step.values, self.step = changes, None

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
            statement_id = group[0].request[1]
            for t in group:
                self._statement(t)
            requests = {t.request and t.request[:4] for t in group}
            request = requests.pop()
            if requests or not request or request[0] != MARK or request[1] <= statement_id or request[2] != line:
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
        statement_id, again = thread.request[1], thread.request[3]
        self._advance(thread)
        request = thread.request
        if request and request[0] == MARK and request[3] and request[1] == statement_id and not again:
            self._advance(thread)

    def _begin(self, kind, warp, line, threads, name=""):
        """False if this step is not recorded."""
        if self.trace is None or not self.trace.is_complete:
            return False
        if len(self.trace.steps) >= MOST_STEPS // (1 if self.trace.block == self.block_ids[0] else len(self.block_ids)):
            self.trace.is_complete = False
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
            in_bounds = [(lane, address, known.element(address)) for lane, address in accesses]
            in_bounds = [location for location in in_bounds if location[2] is not None]
            if not in_bounds:
                continue
            lanes, addresses, elements = map(list, zip(*in_bounds, strict=True))
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
        step.values = {name: list(changes.items()) for name, changes in step.values.items()}

    def passed_barrier(self, line):
        super().passed_barrier(line)
        if self.trace is not None:
            self.round += 1
            self._begin(BARRIER, 0, line, [], "cuda.syncthreads")
            self.step = None

    # ---------------- what happens in a step

    def access(self, kind, observed, address, index, frame):
        super().access(kind, observed, address, index, frame)
        if observed.memory.space != "local":
            self._note_access(kind, observed, address, frame, observed.itemsize)

    def widely(self, kind, name, observed, i, count, line, frame):
        super().widely(kind, name, observed, i, count, line, frame)
        if observed.memory.space != "local":
            kind = "store" if kind == "copy" else kind
            self._note_access(kind, observed, observed.origin + i * observed.itemsize, frame, count * observed.itemsize)

    def _note_access(self, kind, observed, address, frame, size):
        if self.step is None or observed.name not in self.arrays:
            return
        lane = self.current.linear % 32
        site, count = (kind, observed.name, size, id(frame.f_code), self._instruction(frame)), 0
        while any(lane == other for other, _ in self.accesses.get((*site, count), ())[-1:]):
            count += 1
        self.accesses.setdefault((*site, count), []).append((lane, address))

    # ---------------- both sides of a fault

    def _current_step(self):
        return (self.trace.block, len(self.trace.steps) - 1) if self.step is not None else (self.current.block, None)

    def _side(self, thread, line, verb, location, **more):
        return Side(thread.block, thread.linear, line, verb, location[1], **more)

    def _race(self, kind, observed, address, index, line):
        self.step_at[self.time + 1] = current = self._current_step()
        element = self._element(observed, address)
        self.report.sides = (
            self._side(self.current, line, VERBS[kind], current, array=observed.name, element=element),
        )
        self.race_address = address
        super()._race(kind, observed, address, index, line)
        self.report.sides = ()

    def _element(self, observed, address):
        return self.arrays[observed.name].element(address) if observed.name in self.arrays else None

    def _report_race(self, observed, index, first, second, benign=False):
        """Of several earlier accesses that race with this one, that of the thread that is furthest away is shown."""
        thread, _, kind, _, _ = second
        cell = self._cell(observed.memory, self.race_address)
        others = [entry for k in CONFLICTS[kind] for entry in cell[k]
                  if entry[0] is not thread and not self._ordered(entry, thread)]
        first = max(others, key=lambda entry: (entry[0].block != thread.block, entry[0].warp != thread.warp),
                    default=first)
        element = self.report.sides[0].element
        sides = [self._side(thread, line, VERBS[kind], self.step_at.get(time, (None, None)), array=observed.name,
                            element=element) for thread, _, kind, line, time in (first, second)]
        self.report.sides = tuple(sides)
        super()._report_race(observed, index, first, second, benign)

    def out_of_bounds(self, observed, index, frame, verb):
        parts = index if isinstance(index, tuple) else (index,)
        index = tuple(int(p) for p in parts) if all(isinstance(p, int) for p in parts) else None
        self.report.sides = (self._side(self.current, frame.f_lineno, verb, self._current_step(), array=observed.name,
                                        index=index),)
        super().out_of_bounds(observed, parts, frame, verb)
        self.report.sides = ()
        self._note_access("outside", observed, 0, frame, observed.itemsize)

    def _beyond(self, kind, name, array, i, count, line, frame):
        self.report.sides = (self._side(self.current, line, VERBS.get(kind, "writes"), self._current_step(),
                                        array=array.name, index=(i,)),)
        super()._beyond(kind, name, array, i, count, line, frame)
        self.report.sides = ()
        self._note_access("outside", array, 0, frame, array.itemsize)

    def _uninitialized(self, observed, index, line):
        finding = super()._uninitialized(observed, index, line)
        address = observed.origin + sum(i * stride for i, stride in zip(index, observed.strides, strict=True))
        finding.sides = (self._side(self.current, line, "reads", self._current_step(), array=observed.name,
                                    element=self._element(observed, address)),)
        return finding

    def stuck(self, kind, line, thread, op, sentence, lines=(), others=(), index=None, block=None):
        b = thread.block if thread else block
        last = len(self.traces[b].steps) - 1 if b in self.traces else None
        going = super().stuck(kind, line, thread, op, sentence, lines, others, index, block)
        sides = [Side(b, thread.linear, line, f"waits in {full_name(op)}()", last)] if thread else []
        for t in others[:1]:
            waiting_line = t.request[1] if t.request else self.program.line
            sides.append(Side(b, t.linear, waiting_line, "waits elsewhere" if t.request else "has ended", last))
        self.report.divergent_barriers[-1].sides = tuple(sides)
        return going
