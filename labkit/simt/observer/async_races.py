"""Races with what a GPU does beside its threads: cp.async, wgmma, TMA, and loads through the read-only cache."""

import numpy as np

from labkit.simt.errors import shown_index
from labkit.simt.observer.report import KernelFinding


class AsyncRaceDetector:
    """Track which memory asynchronous work still reads or writes."""

    def start_async_races(self):
        self.read_only = {}  # (memory, address): (thread, line) of a load_nc4
        self.in_flight = {}  # (memory, address): the cp.async that still writes it
        self.sees_tiles = bool(self.program.interpreted)
        # shared memory: {address: (thread, line)} of stores with no fence_proxy_async behind them; and by thread
        self.unfenced, self.unfenced_by = {}, {}
        self.in_products = {}  # address in shared memory: (wgmma, its line, its thread) that may still read it

    def _report(self, lines, threads, block, array, index, sentence, key, reach, accesses=()):
        self.report.race(KernelFinding("race", self.program.name, sorted(set(lines)), [t.where for t in threads], block,
                                       array, index, f"race: {sentence}", accesses=accesses), key, reach)

    # ---------------- the read-only cache

    def _promised(self, observed, i, count, line):
        """load_nc4 says that nothing writes these elements while the kernel runs."""
        first = observed.origin + i * observed.itemsize
        for k in range(count):
            address = first + k * observed.itemsize
            cell = observed.memory.cells.get(address)
            written = [entry for kind in ("store", "atomic") for entry in (cell[kind] if cell else ())]
            if written:
                self._broken(observed, i + k, written[0][0], written[0][3], self.current, line)
            self.read_only[observed.memory, address] = (self.current, line)

    def _broken(self, observed, flat, writer, write, reader, read):
        index = tuple(map(int, np.unravel_index(flat, observed.shape)))
        element = f"{observed.shown}[{shown_index(index)}]"
        self._report(
            (write, read), (reader, writer), reader.block, observed.name, index,
            f"{self.who(reader)} reads {element} at line {read} with ptx.load_nc4, and {self.who(writer)} writes it at "
            f"line {write} in the same launch: that cache does not see stores. Use ptx.load_global4.",
            ("read only", observed.name, write, read), 2, ("reads", "writes"),
        )  # fmt: skip

    # ---------------- cp.async

    def started(self, observed, copy):
        """Mark the target as in flight: until the wait, these elements may change at any time."""
        first = observed.origin + copy.i * observed.itemsize
        copy.observed, copy.addresses = observed, range(first, first + copy.data.size, 2)
        for address in copy.addresses:
            self.in_flight[observed.memory, address] = copy

    def arrived(self, copy, line):
        """Record the copy as this thread's store, made at its cp_async_wait."""
        observed, memory = copy.observed, copy.observed.memory
        for address in copy.addresses:
            if self.in_flight.get((memory, address)) is copy:
                del self.in_flight[memory, address]
        for address in range(copy.addresses.start, copy.addresses.start + copy.data.size, observed.itemsize):
            self._record("store", memory, address, line)
            if self.sees_tiles:
                self._leave_unfenced(address, observed.itemsize, line)

    def _too_early(self, observed, address, index, line, verb):
        """Report an access to an element that a cp.async still writes: a race with the copy."""
        copy, thread = self.in_flight[observed.memory, address], self.current
        owner = copy.thread
        self.raced.add((observed.memory, address))
        element = f"{observed.shown}[{shown_index(index)}]"
        last = owner.copies.last_wait
        uncommitted = copy in [item for group, item in owner.copies.items if group == owner.copies.committed]
        if uncommitted:
            why = "it has not been committed: ptx.cp_async_commit() is missing"
        elif last is not None and last[1] > copy.line:
            why = f"ptx.cp_async_wait({last[0]}) at line {last[1]} leaves it under way"
        else:
            why = "no ptx.cp_async_wait follows it"
        which_copy = "its own copy" if owner is thread else f"the copy that {self.who(owner)} started"
        advice = f"Put ptx.cp_async_wait(0) and cuda.syncthreads() before line {line}."
        if uncommitted:
            advice = f"Put ptx.cp_async_commit() after line {copy.line}, and a wait that covers it before line {line}."
        elif owner is thread:
            advice = f"Put ptx.cp_async_wait(0) before line {line} (and cuda.syncthreads() for the other threads)."
        self._report(
            (copy.line, line), (owner, thread), thread.block, observed.name, index,
            f"{self.who(thread)} {verb} {element} at line {line}, and {which_copy} into it at line {copy.line} "
            f"(ptx.{copy.name}) may still be under way: {why}. {advice}",
            (observed.name, frozenset([(copy.line, "copy"), (line, verb)])), 0 if owner is thread else 1,
        )  # fmt: skip

    # ---------------- tiles that wgmma and TMA read

    def fenced_for_async(self):
        for address in self.unfenced_by.pop(self.current, ()):
            if self.unfenced.get(address, (None,))[0] is self.current:
                del self.unfenced[address]

    def reads_tile(self, name, addresses, line, thread, lasting=True):
        """wgmma or a TMA store reads shared memory, beside the threads; with `lasting`, until a wgmma_wait."""
        late = [address for address in addresses if address in self.unfenced]
        if late:
            writer, written = self.unfenced[late[0]]
            array = self.state.name_of(late[0])[0]
            self._report(
                (written, line), (writer, thread), thread.block, array, None,
                f"{self.who(writer)} writes {array} at line {written}, and ptx.{name} at line {line} reads it with no "
                f"ptx.fence_proxy_async() by the writer in between. Put ptx.fence_proxy_async() after line {written}, "
                "before the barrier.", ("fence", written, line), 1, ("writes", "reads"),
            )  # fmt: skip
        if lasting:
            self.in_products.update(dict.fromkeys(addresses, (name, line, thread)))

    def has_read_tiles(self, running, first):
        """A warpgroup has waited for its products, but for those `running`: (line, thread) each."""
        lines = {line for line, _ in running}
        group = first.linear // 128
        done = [address for address, (_, line, thread) in self.in_products.items()
                if thread.linear // 128 == group and line not in lines]  # fmt: skip
        for address in done:
            del self.in_products[address]

    def _leave_unfenced(self, address, size, line):
        parts = range(address, address + size, 2)
        self.unfenced.update(dict.fromkeys(parts, (self.current, line)))
        self.unfenced_by.setdefault(self.current, set()).update(parts)

    def _stores_for_async(self, observed, address, index, line):
        """A store to shared memory, in a kernel with wgmma or TMA."""
        self._leave_unfenced(address, observed.itemsize, line)
        for part in range(address, address + observed.itemsize, 2):
            if part in self.in_products:
                name, read, reader = self.in_products[part]
                element = f"{observed.shown}[{shown_index(index)}]"
                self._report(
                    (read, line), (reader, self.current), self.current.block, observed.name, index,
                    f"{self.who(self.current)} writes {element} at line {line}, and ptx.{name} of line {read} may "
                    "still read it: no ptx.wgmma_wait has covered it. Put ptx.wgmma_wait(0) (and a barrier) before "
                    f"line {line}.", ("product", read, line), 1,
                )  # fmt: skip
                return
