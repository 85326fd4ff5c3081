"""The race detector.

Two accesses to one address are a race if different threads make them, one of them stores, and nothing orders them: no
barrier between them for threads of a block (or syncwarp, within a warp), and no fence followed by an atomic whose
element the other then updates: cuda.threadfence_block() and up within a block, cuda.threadfence() between blocks.

A race is benign where the stored value was there already: whichever comes first, every thread sees the same.
"""

import ast
import sys

import numpy as np

from labkit.simt.errors import shown_index
from labkit.simt.ir import IntrinsicCall
from labkit.simt.observer.report import KernelFinding
from labkit.simt.spins import is_spin

CONFLICTS = {"load": ("store", "atomic"), "store": ("store", "load", "atomic"), "atomic": ("store", "load")}


class RaceDetector:
    """Compare each access with those of other threads to the same address."""

    def start_races(self):
        nodes = [n for s in self.program.body for n in ast.walk(s)]
        self.time = 0
        self.raced = set()  # (memory, address) of races
        # With fences, an atomic shows a thread what those had fenced that updated the same element before it, and its
        # next fence makes that known to its block and its warp. Three kinds of groups: a block's number for what it
        # fenced for all; ("narrow", block), where a fence was of block scope; a warp. fences: {group: the time up to
        # which it fenced}; releases: {(memory, address): {group: time}}; seen: {thread, or block: {group: time}};
        # known: {block, or warp: {group: time}}.
        self.fenced, self.fences, self.releases = _has_fences(self.program), {}, {}
        self.seen, self.known = {}, {}
        self.narrow_line = None
        loops = [n for n in nodes if is_spin(n)]
        self.flag_lines = {n.lineno for loop in loops for n in ast.walk(loop) if isinstance(n, ast.Subscript)}
        self.stays = False  # True while checking a store that does not change the element
        updates = [n for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Subscript)]
        self.updating = {n.lineno for n in updates}

    def _race(self, kind, observed, address, index, line):
        """Compare with the last accesses of others to this address that nothing has ordered before this one."""
        thread = self.current
        if self.in_flight and (observed.memory, address) in self.in_flight:
            verb = {"load": "reads", "store": "writes", "atomic": "updates"}[kind]
            self._too_early(observed, address, index, line, verb)
        if kind != "load" and self.read_only and (observed.memory, address) in self.read_only:
            flat = np.ravel_multi_index(index, observed.shape)
            self._broken(observed, flat, thread, line, *self.read_only[observed.memory, address])
        if self.sees_tiles and kind != "load" and observed.memory.space == "shared":
            self._stores_for_async(observed, address, index, line)
        epochs = (thread.epoch, thread.warp_epoch, thread.grid_epoch)
        self.time += 1
        thread.step = self.time
        if self.fenced and kind == "atomic":
            self._exchange(observed.memory, address)
        stays, self.stays = self.stays and kind == "store", False
        visited = thread.visited.get(line)
        if visited is None or visited[0] != epochs:
            thread.visited[line] = (epochs, thread.step, visited is not None)
        mine = (thread, epochs, kind, line, thread.step)
        cell = self._cell(observed.memory, address)
        for entry in [e for k in CONFLICTS[kind] for e in cell[k]]:
            other = entry[0]
            if other is not thread and not self._ordered(entry, thread):
                self.raced.add((observed.memory, address))
                self._report_race(observed, index, entry, mine, self._is_benign(cell, kind, entry, thread, stays))
                break
        if kind != "load" and not stays:
            cell["change"] = mine
        self._keep(cell, kind, mine)

    def _is_benign(self, cell, kind, entry, thread, stays):
        """Return True if no thread sees another value in either order: stores of the same value, and loads of it."""
        if "atomic" in (kind, entry[2]):
            return False
        if kind == "store":
            return stays
        change = cell["change"]  # the last access that changed the value
        return change is None or change[0] is thread or self._ordered(change, thread)

    def fence(self, scope):
        self._fence(scope)
        thread, narrow = self.current, scope == "threadfence_block"
        self._know({("narrow", group) if narrow and isinstance(group, int) and group != thread.block else group: until
                    for group, until in self.seen.pop(thread, {}).items()})

    def _fence(self, scope):
        thread, until = self.current, self.time + 1
        self.fences[thread.warp] = until
        if scope == "threadfence_block":
            self.fences["narrow", thread.block] = until
            self.narrow_line = sys._getframe(2).f_lineno
        else:
            self.fences[thread.block] = until

    def released(self, counters, i):
        self._fence("threadfence")
        self._release(self._released_at(counters.memory, self.address(counters) + i * counters.itemsize))

    def acquired(self, counters, i):
        self._know(self._released_at(counters.memory, self.address(counters) + i * counters.itemsize))

    def _released_at(self, memory, address):
        return self.releases.setdefault((memory, address), {})

    def _know(self, released):
        for who in (self.current.block, self.current.warp):
            _learn(self.known.setdefault(who, {}), released)

    def _release(self, released):
        """Add what this thread's block and warp know, and what they fenced."""
        thread = self.current
        for who in (thread.block, thread.warp):
            _learn(released, self.known.get(who, {}))
        own = (thread.block, ("narrow", thread.block), thread.warp)
        _learn(released, {group: self.fences[group] for group in own if group in self.fences})

    def _exchange(self, memory, address):
        """An atomic."""
        released = self._released_at(memory, address)
        for who in (self.current, self.current.block):
            _learn(self.seen.setdefault(who, {}), released)
        self._release(released)

    @staticmethod
    def _cell(memory, address):
        cell = memory.cells.get(address)
        if cell is None:
            cell = memory.cells[address] = {"load": [], "store": [], "atomic": [], "change": None}
        return cell

    def _record(self, kind, memory, address, line):
        """Record an access that was checked before; from here on it counts as made now, at this line."""
        thread = self.current
        self.time += 1
        thread.step = self.time
        epochs = (thread.epoch, thread.warp_epoch, thread.grid_epoch)
        thread.visited[line] = (epochs, thread.step, line in thread.visited)
        self._keep(self._cell(memory, address), kind, (thread, epochs, kind, line, thread.step))

    @staticmethod
    def _keep(cell, kind, mine):
        previous, thread = cell[kind], mine[0]
        if not previous or (len(previous) == 1 and previous[0][0] is thread):
            cell[kind] = [mine]
            return
        # the last two of this warp, of other warps and of other blocks are enough to find any later conflict
        warp, block, blocks = [], [], []
        for entry in previous:
            other = entry[0]
            if other is not thread:
                (warp if other.warp == thread.warp else block if other.block == thread.block else blocks).append(entry)
        cell[kind] = [*blocks[-2:], *block[-2:], *warp[-1:], mine]

    def _ordered(self, entry, thread):
        """True if this earlier access happens before what the thread does now."""
        other, epochs, _, _, step = entry
        if other.block != thread.block:
            return epochs[2] != thread.grid_epoch or step < self._known_until(thread.block, other.block)
        if epochs[0] != thread.epoch or epochs[2] != thread.grid_epoch:
            return True
        if other.warp == thread.warp and epochs[1] != thread.warp_epoch:
            return True
        return step < self._known_until(thread.warp, other.warp)

    def _known_until(self, who, group):
        return self.known.get(who, {}).get(group, 0) if self.fenced else 0

    @staticmethod
    def _visited_before(line, entry):
        """True if the thread of this access had been at that line since the last barrier."""
        thread, epochs, _, _, step = entry
        visited = thread.visited.get(line)
        return visited is not None and visited[0] == epochs and visited[1] < step

    def _report_race(self, observed, index, first, second, benign=False):
        narrow = first[4] < self._known_until(second[0].block, ("narrow", first[0].block))
        seen = first[4] < self.seen.get(second[0].block, {}).get(first[0].block, 0)
        # in the program's order, which in a loop need not be that of the lines
        forth, back = self._visited_before(first[3], second), self._visited_before(second[3], first)
        if (back and not forth) or (forth == back and first[3] > second[3]):
            first, second = second, first
        (a, _, a_kind, a_line, _), (b, _, b_kind, b_line, _) = first, second
        element = f"{observed.shown}[{shown_index(index)}]"
        verb = {"load": "reads", "store": "writes", "atomic": "updates"}
        reach = 2 if a.block != b.block else 1 if a.warp != b.warp else 0
        updates = a_line == b_line and a_line in self.updating
        if benign:
            advice = (
                "Both store the same value, so the race cannot change the result. It is still cleaner to let only one "
                "thread store it, as in `if cuda.threadIdx.x == 0:`." if a_kind == b_kind else
                "The value does not change, so the race cannot change the result. It is still cleaner to put "
                "cuda.syncthreads() between them, or to store only where the value changes."
            )  # fmt: skip
        elif reach == 2 and narrow:
            advice = (
                f"cuda.threadfence_block() at line {self.narrow_line} orders memory only for the threads of its own "
                "block. For another block, use cuda.threadfence()."
            )
        elif reach == 2 and seen:
            advice = (
                f"An atomic has signalled {self.block_name(b.block)} that the other block is done. After it, the same "
                "thread must call cuda.threadfence() before its block goes on: otherwise later reads may get stale "
                "data from L1."
            )
        elif a_line in self.flag_lines and a_kind == "load" or b_line in self.flag_lines and b_kind == "load":
            advice = (
                "A loop that waits for a flag must read it with an atomic, such as cuda.atomic.add(flag, 0, 0), and "
                "the other thread must call cuda.threadfence() and then set it with an atomic, cuda.atomic.exch. "
                "Otherwise the compiler may move the read out of the loop, which then never ends."
            )
        elif a_kind == b_kind == "store" and a_line == b_line:
            advice = "Two threads must not store to the same element: give each a different one, or use an atomic."
        elif "atomic" in (a_kind, b_kind) and reach == 2:
            advice = "An atomic does not protect against a plain access: use atomics for both, or a second launch."
        elif reach == 2 and self.program.cooperative:
            advice = "Put a grid-wide barrier, cg.this_grid().sync(), between them."
        elif reach == 2 and self.program.has_atomics and b_kind == "load" and not self.fenced:
            advice = (
                "An atomic after the write orders the two only if cuda.threadfence() comes between the write and the "
                "atomic."
            )
        elif reach == 2:
            advice = "No barrier spans the blocks of an ordinary launch: use an atomic, or a second launch."
        elif updates:
            advice = (
                "If both should add to it, use cuda.atomic.add; otherwise read into a variable, call "
                "cuda.syncthreads(), then write."
            )
        elif a_line == b_line:
            advice = "Read into a variable, call cuda.syncthreads(), then write."
        elif a_line > b_line:
            again = " again" if b.visited[b_line][2] else ""
            advice = f"Put cuda.syncthreads() after line {a_line}, before line {b_line} is reached{again}."
        else:
            advice = f"Put cuda.syncthreads() between line {a_line} and line {b_line}."
        barrier = advice.startswith("Put cuda.syncthreads()")
        one_warp = "These threads are in the same warp, so cuda.syncwarp() is enough." if barrier and not reach else ""
        order_note = "and blocks run in any order" if reach == 2 else "with no barrier between them"
        line = f"it at line {b_line}" if a_line != b_line else "it at the same line"
        name = "benign race" if benign else "race"
        self.report.race(
            KernelFinding(
                name.replace(" ", "_"), self.program.name, sorted({a_line, b_line}), [a.where, b.where], b.block,
                observed.name, index,
                f"{name}: {self.who(a)} {verb[a_kind]} {element} at line {a_line}, and {self.who(b)} {verb[b_kind]} "
                f"{line}, {order_note}. {advice}{f' {one_warp}' if one_warp else ''}",
                accesses=(verb[a_kind], verb[b_kind]), advice=advice, barrier=barrier, one_warp=one_warp,
            ),
            (observed.name, frozenset([(a_line, a_kind), (b_line, b_kind)])),
            reach,
        )  # fmt: skip


def _has_fences(program):
    """True if a kernel, or a device function that it calls, has a cuda.threadfence() of some scope, or a release."""
    bodies = [program.body, *(device.body for device in program.devices.values())]
    return any((isinstance(n, ast.Name) and n.id == "_fence")
               or (isinstance(n, IntrinsicCall) and n.intrinsic == "add_release")
               for body in bodies for s in body for n in ast.walk(s))


def _learn(known, released):
    for group, until in released.items():
        if known.get(group, 0) < until:
            known[group] = until
