"""Runs a kernel in plain Python and sees every access: what `observe` is made of.

interpreter.py runs the threads, which take turns from one barrier to the next. Here arrays are wrapped, so that each
load and store is seen with its line, thread and address. Two accesses to one address are a race if different threads
make them, one of them stores, and nothing orders them: no barrier between them for threads of a block (or syncwarp,
within a warp), nothing at all for two blocks.

Work    about 2 us for each access: meant for launches of up to some ten thousand threads
"""

import ast
import bisect
import dis
import sys

import numpy as np

from labkit.simt import launch as launching
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.interpreted_values import converter, new_value
from labkit.simt.interpreter import Interpreter
from labkit.simt.report import Finding, Report
from labkit.simt.rewrite import rewrite
from labkit.simt.unsigned import Unsigned

SECTOR, LINE, BANKS = 32, 128, 32
_CONFLICTS = {"load": ("store", "atomic"), "store": ("store", "load", "atomic"), "atomic": ("store", "load")}


def observe(configured, *args):
    """Run a launch in plain Python and report what its threads did.

    Takes `kernel[grid, block]` (also with stream and shared_bytes) and the arguments of the launch; arrays are changed
    as the launch would change them. On a GPU the arrays are copied to the host and back.
    Returns a Report. Raises as a launch does for wrong arguments, and KernelTimeout for an endless loop.
    """
    function, grid, block, shared_bytes = _configuration(configured)
    return _Observation(function, grid, block, shared_bytes, args).run()


def _same_memory(one, other):
    keys = ("data", "shape", "strides", "typestr")
    return all(one.__cuda_array_interface__[k] == other.__cuda_array_interface__[k] for k in keys)


def _has_fences(function, depth=3):
    """True if a kernel, or a device function that it calls, has a cuda.threadfence()."""
    code = function.__code__
    if any(name.startswith("threadfence") for name in (*code.co_names, *code.co_freevars)):
        return True
    called = [function.__globals__.get(name) for name in code.co_names] if depth else []
    return any(_has_fences(f.py_func, depth - 1) for f in called if hasattr(f, "py_func"))


def _configuration(configured):
    if isinstance(configured, launching.Launch):
        return configured.kernel.py_func, configured.grid, configured.block, configured.sharedmem
    dispatcher = getattr(configured, "dispatcher", None)  # numba.cuda's launch configuration
    if dispatcher is not None and hasattr(dispatcher, "py_func"):
        full = [tuple((*np.atleast_1d(d).tolist(), 1, 1)[:3]) for d in (configured.griddim, configured.blockdim)]
        return dispatcher.py_func, *full, int(configured.sharedmem or 0)
    raise TypeError(f"observe takes kernel[grid, block] and the launch's arguments, not {type(configured).__name__}")


# ---------------------------------------------------------------- arrays that see


class _Memory:
    """One allocation: what was written, who touched what last."""

    def __init__(self, space, array, known, base=0):
        self.space, self.base = space, base
        self.start = _address(array)
        self.known = known  # True: the host wrote it; False: only what this launch writes is there
        self.written, self.cells = set(), {}


def _address(array):
    return array.__array_interface__["data"][0]


def _owner(array):
    """The array whose memory this one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Seen:
    """An array, or a view of one, whose loads and stores are recorded. `name` is what the kernel calls it."""

    def __init__(self, observation, memory, array, name):
        self.observation, self.memory, self.array, self.name = observation, memory, array, name
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype
        self.size, self.strides, self.itemsize = array.size, array.strides, array.itemsize
        self.origin = memory.base - memory.start + _address(array)  # of the first element, as a GPU would place it
        if memory.space != "local" and name not in observation.report.arrays:
            observation.report.arrays[name] = (self.origin, array.shape, array.itemsize)

    def __len__(self):
        return len(self.array)

    @property
    def T(self):
        return Seen(self.observation, self.memory, self.array.T, self.name)

    def reshape(self, *shape):
        return Seen(self.observation, self.memory, self.array.reshape(*shape), self.name)

    def view(self, dtype):
        return Seen(self.observation, self.memory, self.array.view(getattr(dtype, "dtype", dtype)), self.name)

    def _place(self, index):
        """(byte address, index) of an element; None and a view for fewer indices; OutOfBounds is recorded."""
        parts = index if type(index) is tuple else (index,)
        if len(parts) < self.ndim:
            return None, None
        address, plain = self.origin, []
        for part, length, stride in zip(parts, self.shape, self.strides, strict=True):
            if type(part) is not int:
                if isinstance(part, slice):
                    return None, None
                part = int(part)
            if not -length <= part < length:
                return -1, parts
            if part < 0:
                part += length
            plain.append(part)
            address += part * stride
        return address, tuple(plain)

    def __getitem__(self, index):
        return self._load(index, sys._getframe(1))

    def __iter__(self):
        frame = sys._getframe(1)  # the kernel's
        for k in range(len(self)):
            yield self._load(k, frame)

    def _load(self, index, frame):
        address, plain = self._place(index)
        if address is None:
            try:
                return Seen(self.observation, self.memory, self.array[index], self.name)
            except IndexError:
                self.observation.out_of_bounds(self, index, frame, "reads")
                return self
        if address < 0:
            self.observation.out_of_bounds(self, plain, frame, "reads")
            if self.dtype.names:
                return _Record(self, (0,) * self.ndim)
            return self._number(self.dtype.type(0))
        if self.dtype.names:
            return _Record(self, plain)
        self.observation.access("load", self, address, plain, frame)
        return self._number(self.array[plain])

    def __setitem__(self, index, value):
        address, plain = self._place(index)
        if address is None:
            part = self.array[index]
            for position in np.ndindex(part.shape):
                Seen(self.observation, self.memory, part, self.name)._store(position, value, sys._getframe(1))
            return
        if address < 0:
            self.observation.out_of_bounds(self, plain, sys._getframe(1), "writes")
            return
        self._store(plain, value, sys._getframe(1))

    def _store(self, plain, value, frame):
        address, plain = self._place(plain)
        self.observation.access("store", self, address, plain, frame)
        self._write(plain, value)

    def _write(self, plain, value):
        try:
            self.array[plain] = value
        except (OverflowError, ValueError):
            self.array[plain] = converter(self.dtype)(value)

    def _number(self, value):
        kind = self.dtype.kind
        if kind == "u":
            return Unsigned(value)
        return int(value) if kind == "i" else bool(value) if kind == "b" else value

    def atomic(self, op, index, value, extra, frame):
        address, plain = self._place(index)
        if address is None or address < 0:
            self.observation.out_of_bounds(self, index, frame, "updates")
            return self._number(self.dtype.type(0))
        self.observation.access("atomic", self, address, plain, frame)
        old = self._number(self.array[plain])
        self._write(plain, new_value(op, old, value, extra))
        return old


class _Local(Seen):
    """An array of one thread: no race, no request. Only its bounds are looked at, and what was never written.

    written: True for each element that was.
    """

    def __init__(self, observation, memory, array, name, written=None):
        super().__init__(observation, memory, array, name)
        self.written = np.zeros(array.shape, bool) if written is None else written

    @property
    def T(self):
        return _Local(self.observation, self.memory, self.array.T, self.name, self.written.T)

    def reshape(self, *shape):
        array, written = self.array.reshape(*shape), self.written.reshape(*shape)
        return _Local(self.observation, self.memory, array, self.name, written)

    def view(self, dtype):
        self.written[...] = True  # which bytes of other elements were written is not kept
        array = self.array.view(getattr(dtype, "dtype", dtype))
        return _Local(self.observation, self.memory, array, self.name, np.ones(array.shape, bool))

    def __getitem__(self, index):
        return self._load(index, sys._getframe(1))

    def _load(self, index, frame):
        try:
            value, written = self.array[index], self.written[index]
        except IndexError:
            self.observation.out_of_bounds(self, index, frame, "reads")
            return self._number(self.dtype.type(0))
        if isinstance(value, np.ndarray):
            return _Local(self.observation, self.memory, value, self.name, written)
        if not written:
            place = index if isinstance(index, tuple) else (index,)
            self.observation.unwritten_local(self, place, frame.f_lineno)
        return self._number(value)

    def __setitem__(self, index, value):
        self._store(index, value, sys._getframe(1))

    def _store(self, index, value, frame):
        try:
            self.written[index] = True
        except IndexError:
            self.observation.out_of_bounds(self, index, frame, "writes")
        else:
            self._write(index, value)


class _Record:
    """An element of an array of records: its fields are loaded and stored as elements of an array of that field."""

    __slots__ = ("_index", "_seen")

    def __init__(self, seen, index):
        object.__setattr__(self, "_seen", seen)
        object.__setattr__(self, "_index", index)

    def _field(self, name):
        seen = self._seen
        return Seen(seen.observation, seen.memory, seen.array[name], seen.name)

    def __getitem__(self, name):
        return self._field(name)._load(self._index, sys._getframe(1))

    def __getattr__(self, name):
        return self._field(name)._load(self._index, sys._getframe(1))

    def __setitem__(self, name, value):
        self._field(name)._store(self._index, value, sys._getframe(1))

    def __setattr__(self, name, value):
        self._field(name)._store(self._index, value, sys._getframe(1))


class _Observation(Interpreter):
    counts_branches, doing = True, "observed"

    def __init__(self, function, grid, block, shared_bytes, args):
        super().__init__(rewrite(function), grid, block, shared_bytes, args)
        self.report = Report(self.program.name, self.program.filename, grid, block)
        self.requests, self.branches, self.starts, self.memories, self.copies = {}, {}, {}, {}, []
        # With fences, an atomic shows a block what the blocks saw that updated the same element before it.
        self.fenced, self.known, self.released = _has_fences(function), {}, {}
        self.time = 0
        self.raced, self.unwritten = set(), []  # (memory, address) of races; reads of memory that nothing wrote
        self.read_only = {}  # (memory, address): (thread, line) of a load_nc4
        self.under_way = {}  # (memory, address): the cp.async that has not brought it yet
        self.sees_tiles = bool(self.program.interpreted)
        # shared memory: {address: (thread, line)} of stores with no fence_proxy_async behind them; and by thread
        self.unfenced, self.unfenced_by = {}, {}
        self.in_products = {}  # address in shared memory: (wgmma, its line, its thread) that may still read it

    # ---------------- running

    def run(self):
        copies = self.copies
        bound = {n: self._argument(n, value) for n, value in zip(self.program.params, self.args, strict=True)}
        nodes = [n for s in self.program.body for n in ast.walk(s)]
        updates = [n for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Subscript)]
        self.updating = {n.lineno for n in updates}
        self.shown = {n.id: n.shown for n in nodes if isinstance(n, ast.Name) and getattr(n, "shown", None)}
        self._run_blocks(bound)
        for memory, address, finding in self.unwritten:
            if (memory, address) not in self.raced:  # what a race explains is not said twice
                self.report.uninitialized(finding, finding.array, finding.lines[0])
        self._count_requests()
        for device_array, host in copies:
            device_array.copy_to_device(host)
        return self.report

    def _argument(self, name, value):
        if isinstance(value, DeviceNDArray):
            array = value._array
        elif isinstance(value, np.ndarray):
            array = value
        elif hasattr(value, "copy_to_host"):  # numba.cuda's device array, on a GPU
            twin = next((host for original, host in self.copies if _same_memory(original, value)), None)
            array = value.copy_to_host() if twin is None else twin
            if twin is None:
                self.copies.append((value, array))
        elif isinstance(value, tuple):
            return tuple(self._argument(f"{name}[{k}]", part) for k, part in enumerate(value))
        elif isinstance(value, np.integer):
            return converter(value.dtype)(value)
        else:
            return value
        owner = _owner(array)
        if _address(owner) not in self.memories:  # two arguments may be views of one allocation
            # the CPU device aligns its arrays as a GPU does; a host array counts as if it were copied to one
            base = _address(owner) if isinstance(value, DeviceNDArray) else 0
            self.memories[_address(owner)] = _Memory("global", owner, self._is_known(array), base)
        return Seen(self, self.memories[_address(owner)], array, name)

    @staticmethod
    def _is_known(array):
        """For floats: which elements the host has written. Fresh memory of the CPU device is all 0xFF bytes."""
        if array.dtype.kind != "f" or not array.size:
            return True
        width = np.dtype(f"u{array.itemsize}")
        fresh = np.ascontiguousarray(array).view(width) == np.iinfo(width).max
        return not fresh.all()

    def _constant(self, name, array):
        data = array._array if isinstance(array, DeviceNDArray) else np.array(array)
        return Seen(self, _Memory("global", data, True), data, self.shown.get(name, name))

    @staticmethod
    def _atomic(op):
        return lambda a, i, value: a.atomic(op, i, value, None, sys._getframe(1))

    @staticmethod
    def _compare_and_swap(a, i, old, new):
        return a.atomic("cas", i, old, new, sys._getframe(1))

    def _shared(self, declaration):
        array, address = self._shared_array(declaration)
        memory = _Memory("shared", array, False, address)
        if declaration.shape == (0,):  # several declarations are one memory
            memory = self.__dict__.setdefault("dynamic_memory", memory)
        return Seen(self, memory, array, declaration.name)

    def _local(self, name):
        return self._local_array(self.program.local[name])

    def _local_of_device(self, device, name):
        return self._local_array(next(a for a in self.program.devices[device].local if a.name == name))

    def _local_array(self, declaration):
        array = self._new_local(declaration)
        return _Local(self, _Memory("local", array, True), array, declaration.name)

    def _ended(self, shared):
        self.__dict__.pop("dynamic_memory", None)
        for known in (self.under_way, self.unfenced, self.unfenced_by, self.in_products):
            known.clear()
        for seen in shared:
            seen.memory.cells.clear()

    def passed_barrier(self, line):
        self.report.count("barriers", line)

    def stuck(self, kind, line, thread, op, sentence, lines=(), others=(), index=None, block=None):
        self.report.divergent_barriers.append(
            Finding(
                "divergent_barrier", self.program.name, list(lines) or [line],
                [t.where for t in others] or ([thread.where] if thread else []),
                thread.block if thread else block, op, index, f"line {line}: {sentence}",
            )
        )  # fmt: skip
        return []

    # ---------------- what intrinsics ask

    @staticmethod
    def raw(array):
        return array.array if isinstance(array, Seen) else Interpreter.raw(array)

    def address(self, array):
        return array.origin

    _placed = address

    def _array_name(self, array, frame):
        return array.name

    def _beyond(self, kind, name, array, i, count, line, frame):
        verb = "reads" if kind == "load" else "writes"
        thread = self.current
        self.report.outside(
            Finding(
                "out_of_bounds", self.program.name, [line], [thread.where], thread.block, array.name, (i,),
                f"line {line}: {self.who(thread)} {verb} elements {i} to {i + count - 1} of {array.name} with "
                f"ptx.{name}, and its shape {array.shape} has {array.size:,} elements.",
            ),
            array.name, line,
        )  # fmt: skip

    def widely(self, kind, name, seen, i, count, line, frame):
        """One request of the warp, as wide as its elements together; each of them is an access for races."""
        memory, kind = seen.memory, "store" if kind == "copy" else kind
        if name == "load_nc4":
            self._promised(seen, i, count, line)
        first = seen.origin + i * seen.itemsize
        self._request(kind, seen, first, line, frame, count * seen.itemsize)
        for k in range(count):
            address, index = first + k * seen.itemsize, np.unravel_index(i + k, seen.shape)
            index = tuple(map(int, index))
            self._race(kind, seen, address, index, line)
            if kind == "load":
                self._check_written(seen, address, index, line)
            elif not memory.known:
                memory.written.update(range(address, address + seen.itemsize))

    def _promised(self, seen, i, count, line):
        """load_nc4 says that nothing writes these elements while the kernel runs."""
        first = seen.origin + i * seen.itemsize
        for k in range(count):
            address = first + k * seen.itemsize
            cell = seen.memory.cells.get(address)
            written = [entry for kind in ("store", "atomic") for entry in (cell[kind] if cell else ())]
            if written:
                self._broken(seen, i + k, written[0][0], written[0][3], self.current, line)
            self.read_only[seen.memory, address] = (self.current, line)

    def _broken(self, seen, flat, writer, write, reader, read):
        index = tuple(map(int, np.unravel_index(flat, seen.shape)))
        place = f"{seen.name}[{', '.join(map(str, index))}]"
        self.report.race(
            Finding(
                "race", self.program.name, sorted({write, read}), [reader.where, writer.where], reader.block, seen.name,
                index,
                f"race: {self.who(reader)} reads {place} at line {read} with ptx.load_nc4, and {self.who(writer)} "
                f"writes it at line {write} in the same launch: that cache does not see stores. Use ptx.load_global4.",
            ),
            ("read only", seen.name, write, read), 2,
        )  # fmt: skip

    def started(self, seen, copy):
        """From here to the wait, these elements may change at any time."""
        first = seen.origin + copy.i * seen.itemsize
        copy.seen, copy.addresses = seen, range(first, first + copy.data.size, 2)
        for address in copy.addresses:
            self.under_way[seen.memory, address] = copy

    def arrived(self, copy, line):
        """The copy is this thread's store, made at its cp_async_wait."""
        seen, memory = copy.seen, copy.seen.memory
        for address in copy.addresses:
            if self.under_way.get((memory, address)) is copy:
                del self.under_way[memory, address]
        for address in range(copy.addresses.start, copy.addresses.start + copy.data.size, seen.itemsize):
            self._record("store", memory, address, line)
            if self.sees_tiles:
                self._leave_unfenced(address, seen.itemsize, line)

    def fenced_for_async(self):
        for address in self.unfenced_by.pop(self.current, ()):
            if self.unfenced.get(address, (None,))[0] is self.current:
                del self.unfenced[address]

    def reads_tile(self, name, addresses, line, thread, lasting=True):
        """wgmma or a TMA store reads shared memory, beside the threads; with `lasting`, until a wgmma_wait."""
        late = [address for address in addresses if address in self.unfenced]
        if late:
            writer, written = self.unfenced[late[0]]
            self.report.race(
                Finding(
                    "race", self.program.name, sorted({written, line}), [writer.where, thread.where], thread.block,
                    self.state.name_of(late[0])[0], None,
                    f"race: {self.who(writer)} writes {self.state.name_of(late[0])[0]} at line {written}, and "
                    f"ptx.{name} at line {line} reads it with no ptx.fence_proxy_async() by the writer in between. Put "
                    f"ptx.fence_proxy_async() after line {written}, before the barrier.",
                ),
                ("fence", written, line), 1,
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

    def _stores_for_async(self, seen, address, index, line):
        """A store to shared memory, in a kernel with wgmma or TMA."""
        self._leave_unfenced(address, seen.itemsize, line)
        for part in range(address, address + seen.itemsize, 2):
            if part in self.in_products:
                name, read, reader = self.in_products[part]
                place = f"{seen.name}[{', '.join(map(str, index))}]"
                self.report.race(
                    Finding(
                        "race", self.program.name, sorted({read, line}), [reader.where, self.current.where],
                        self.current.block, seen.name, index,
                        f"race: {self.who(self.current)} writes {place} at line {line}, and ptx.{name} of line {read} "
                        "may still read it: no ptx.wgmma_wait has covered it. Put ptx.wgmma_wait(0) (and a barrier) "
                        f"before line {line}.",
                    ),
                    ("product", read, line), 1,
                )  # fmt: skip
                return

    def unwritten_local(self, seen, index, line):
        address = seen.memory.start, index
        self.unwritten.append((seen.memory, address, self._uninitialized(seen, index, line)))

    def filled(self, seen):
        if isinstance(seen, _Local):
            seen.written[...] = True
            return
        seen.memory.written.update(range(seen.origin, seen.origin + seen.size * seen.itemsize))

    def filled_range(self, seen, first, size):
        seen.memory.written.update(range(first, first + size))

    def _too_early(self, seen, address, index, line, verb):
        """An access to an element that a cp.async still writes: a race with the copy."""
        copy, thread = self.under_way[seen.memory, address], self.current
        owner = copy.thread
        self.raced.add((seen.memory, address))
        place = f"{seen.name}[{', '.join(map(str, index))}]"
        last = owner.copies.last_wait
        uncommitted = copy in [item for group, item in owner.copies.items if group == owner.copies.committed]
        if uncommitted:
            why = "it has not been committed: ptx.cp_async_commit() is missing"
        elif last is not None and last[1] > copy.line:
            why = f"ptx.cp_async_wait({last[0]}) at line {last[1]} leaves it under way"
        else:
            why = "no ptx.cp_async_wait has come after it"
        whose = "its own copy" if owner is thread else f"the copy that {self.who(owner)} started"
        advice = f"Put ptx.cp_async_wait(0) and cuda.syncthreads() before line {line}."
        if uncommitted:
            advice = f"Put ptx.cp_async_commit() after line {copy.line}, and a wait that covers it before line {line}."
        elif owner is thread:
            advice = f"Put ptx.cp_async_wait(0) before line {line} (and cuda.syncthreads() for the other threads)."
        self.report.race(
            Finding(
                "race", self.program.name, sorted({copy.line, line}), [owner.where, thread.where], thread.block,
                seen.name, index,
                f"race: {self.who(thread)} {verb} {place} at line {line}, and {whose} into it at line {copy.line} "
                f"(ptx.{copy.name}) may still be under way: {why}. {advice}",
            ),
            (seen.name, frozenset([(copy.line, "copy"), (line, verb)])),
            0 if owner is thread else 1,
        )  # fmt: skip

    def _branch(self, test):
        thread, frame = self.current, sys._getframe(1)
        site = ("branch", frame.f_lineno, self._instruction(frame))
        count = thread.occurrence[site] = thread.occurrence.get(site, 0) + 1
        key = (thread.warp, site, count)
        outcome = bool(test)
        self.branches[key] = self.branches.get(key, 0) | (2 if outcome else 1)
        return outcome

    # ---------------- accesses

    def access(self, kind, seen, address, index, frame):
        memory = seen.memory
        line = frame.f_lineno
        if memory.space != "local":
            self._request(kind, seen, address, line, frame, seen.itemsize)
            self._race(kind, seen, address, index, line)
        if kind != "store":
            self._check_written(seen, address, index, line)
        if kind != "load" and not memory.known:
            memory.written.update(range(address, address + seen.itemsize))

    def _request(self, kind, seen, address, line, frame, width):
        """This thread's part of a request that the lanes of its warp make together."""
        thread = self.current
        site = (line, self._instruction(frame), seen.name, kind)
        count = thread.occurrence[site] = thread.occurrence.get(site, 0) + 1
        key = (thread.warp, site, count)
        self.requests.setdefault(key, (seen.memory.space, kind, line, width, [], seen.name))[4].append(
            (thread.linear, address)
        )

    def _check_written(self, seen, address, index, line):
        memory = seen.memory
        if not memory.known and address not in memory.written:
            self.unwritten.append((memory, address, self._uninitialized(seen, index, line)))

    def _instruction(self, frame):
        """The instruction that a frame is at: f_lasti, less what Python's specialised instructions add to it."""
        place = (id(frame.f_code), frame.f_lasti)
        found = self.starts.get(place)
        if found is None:
            starts = [i.offset for i in dis.get_instructions(frame.f_code)]
            found = self.starts[place] = bisect.bisect_right(starts, frame.f_lasti)
        return found

    def _uninitialized(self, seen, index, line):
        thread = self.current
        place = f"{seen.name}[{', '.join(map(str, index))}]"
        kinds = {"shared": "shared memory", "local": "an element of its local array", "global": "fresh device memory"}
        kind = kinds[seen.memory.space]
        return Finding(
            "uninitialized_read",
            self.program.name,
            [line],
            [thread.where],
            thread.block,
            seen.name,
            index,
            f"line {line}: {self.who(thread)} reads {place}, {kind} that nothing has written yet.",
        )

    def out_of_bounds(self, seen, index, frame, verb):
        parts = index if isinstance(index, tuple) else (index,)
        thread, line = self.current, frame.f_lineno
        shown = ", ".join(map(str, parts))
        why = ": an unsigned number went below zero" if any(isinstance(p, int) and p >= 1 << 63 for p in parts) else ""
        self.report.outside(
            Finding(
                "out_of_bounds",
                self.program.name,
                [line],
                [thread.where],
                thread.block,
                seen.name,
                tuple(parts),
                f"line {line}: {self.who(thread)} {verb} {seen.name}[{shown}], outside its shape {seen.shape}{why}.",
            ),
            seen.name,
            line,
        )

    def _race(self, kind, seen, address, index, line):
        """Compare with the last accesses of others to this address that nothing has ordered before this one."""
        thread = self.current
        if self.under_way and (seen.memory, address) in self.under_way:
            verb = {"load": "reads", "store": "writes", "atomic": "updates"}[kind]
            self._too_early(seen, address, index, line, verb)
        if kind != "load" and self.read_only and (seen.memory, address) in self.read_only:
            flat = np.ravel_multi_index(index, seen.shape)
            self._broken(seen, flat, thread, line, *self.read_only[seen.memory, address])
        if self.sees_tiles and kind != "load" and seen.memory.space == "shared":
            self._stores_for_async(seen, address, index, line)
        epochs = (thread.epoch, thread.warp_epoch, thread.grid_epoch)
        self.time += 1
        thread.step = self.time
        if self.fenced and kind == "atomic" and seen.memory.space == "global":
            released = self.released.setdefault((seen.memory, address), {})
            known = self.known.setdefault(thread.block, {})
            for block, until in released.items():
                known[block] = max(known.get(block, 0), until)
            released.update(known)
            released[thread.block] = self.time
        visited = thread.visited.get(line)
        if visited is None or visited[0] != epochs:
            thread.visited[line] = (epochs, thread.step, visited is not None)
        mine = (thread, epochs, kind, line, thread.step)
        cell = self._cell(seen.memory, address)
        for entry in [e for k in _CONFLICTS[kind] for e in cell[k]]:
            other = entry[0]
            if other is not thread and not self._ordered(entry, thread):
                self.raced.add((seen.memory, address))
                self._report_race(seen, index, entry, mine)
                break
        self._keep(cell, kind, mine)

    @staticmethod
    def _cell(memory, address):
        cell = memory.cells.get(address)
        if cell is None:
            cell = memory.cells[address] = {"load": [], "store": [], "atomic": []}
        return cell

    def _record(self, kind, memory, address, line):
        """An access that was looked at before; from here on it counts as made now, at this line."""
        thread = self.current
        self.time += 1
        thread.step = self.time
        epochs = (thread.epoch, thread.warp_epoch, thread.grid_epoch)
        thread.visited[line] = (epochs, thread.step, line in thread.visited)
        self._keep(self._cell(memory, address), kind, (thread, epochs, kind, line, thread.step))

    @staticmethod
    def _keep(cell, kind, mine):
        before, thread = cell[kind], mine[0]
        if not before or (len(before) == 1 and before[0][0] is thread):
            cell[kind] = [mine]
            return
        # the last two of this warp, of other warps and of other blocks are enough to find any later conflict
        warp, block, blocks = [], [], []
        for entry in before:
            other = entry[0]
            if other is not thread:
                (warp if other.warp == thread.warp else block if other.block == thread.block else blocks).append(entry)
        cell[kind] = [*blocks[-2:], *block[-2:], *warp[-1:], mine]

    def _ordered(self, entry, thread):
        """True if something makes this earlier access come before what the thread does now."""
        other, epochs, _, _, step = entry
        if other.block != thread.block:
            seen_until = self.known.get(thread.block, {}).get(other.block, 0) if self.fenced else 0
            return epochs[2] != thread.grid_epoch or step < seen_until
        if epochs[0] != thread.epoch or epochs[2] != thread.grid_epoch:
            return True
        return other.warp == thread.warp and epochs[1] != thread.warp_epoch

    @staticmethod
    def _came_before(line, entry):
        """True if the thread of this access had been at that line since the last barrier."""
        thread, epochs, _, _, step = entry
        visited = thread.visited.get(line)
        return visited is not None and visited[0] == epochs and visited[1] < step

    def _report_race(self, seen, index, first, second):
        # in the program's order, which in a loop need not be that of the lines
        forth, back = self._came_before(first[3], second), self._came_before(second[3], first)
        if (back and not forth) or (forth == back and first[3] > second[3]):
            first, second = second, first
        (a, _, a_kind, a_line, _), (b, _, b_kind, b_line, _) = first, second
        place = f"{seen.name}[{', '.join(map(str, index))}]"
        verb = {"load": "reads", "store": "writes", "atomic": "updates"}
        reach = 2 if a.block != b.block else 1 if a.warp != b.warp else 0
        updates = a_line == b_line and a_line in self.updating
        if a_kind == b_kind == "store" and a_line == b_line:
            advice = "Two threads must not store to one element: give each its own, or use an atomic."
        elif "atomic" in (a_kind, b_kind) and reach == 2:
            advice = "An atomic and a plain access do not see each other: use atomics for both, or a second launch."
        elif reach == 2 and self.program.cooperative:
            advice = "Put a barrier of the whole grid, cg.this_grid().sync(), between them."
        elif reach == 2 and self.program.has_atomics and b_kind == "load" and not self.fenced:
            advice = "An atomic after the write orders the two only if cuda.threadfence() stands before it."
        elif reach == 2:
            advice = "Blocks cannot wait for one another within a launch: use an atomic, or a second launch."
        elif updates:
            advice = "If both mean to add to it, use cuda.atomic.add; else put cuda.syncthreads() between them."
        elif a_line == b_line:
            advice = "Read into a variable, put cuda.syncthreads(), then write."
        elif a_line > b_line:
            again = " again" if b.visited[b_line][2] else ""
            advice = f"Put cuda.syncthreads() after line {a_line}, before line {b_line} is reached{again}."
        else:
            advice = f"Put cuda.syncthreads() between line {a_line} and line {b_line}."
        if reach == 0 and "Put cuda.syncthreads()" in advice:
            advice += " These threads are of one warp: for them cuda.syncwarp() is enough."
        rest = "and blocks run in any order" if reach == 2 else "with no barrier between them"
        line = f"it at line {b_line}" if a_line != b_line else "it at the same line"
        self.report.race(
            Finding(
                "race", self.program.name, sorted({a_line, b_line}), [a.where, b.where], b.block, seen.name, index,
                f"race: {self.who(a)} {verb[a_kind]} {place} at line {a_line}, and {self.who(b)} {verb[b_kind]} "
                f"{line}, {rest}. {advice}",
            ),
            (seen.name, frozenset([(a_line, a_kind), (b_line, b_kind)])),
            reach,
        )  # fmt: skip

    # ---------------- counting

    def _count_requests(self):
        """Sectors, lines and bank conflicts of each warp's requests: the lanes that make one access together."""
        report = self.report
        for (warp, *_), (space, kind, line, itemsize, accesses, name) in self.requests.items():
            addresses = [address for _, address in accesses]
            what = "stores" if kind == "store" else "loads" if kind == "load" else "atomics"
            report.count(f"{space}_{what}", line, len(addresses))
            report.count("bytes_stored" if kind == "store" else "bytes_loaded", line, len(addresses) * itemsize, space)
            report.count(f"{space}_requests", line)
            if space == "global":
                first, last = zip(*((a // SECTOR, (a + itemsize - 1) // SECTOR) for a in addresses), strict=True)
                sectors = {*first, *last}
                report.count("sectors", line, len(sectors))
                report.count("lines_128", line, len({s * SECTOR // LINE for s in sectors}))
                report.count("bytes_wanted", line, len(set(addresses)) * itemsize)
            else:
                report.count("bank_conflicts", line, _conflicts(accesses, itemsize))
            step = report.arrays[name][2] if name in report.arrays else itemsize
            for linear, address in accesses:
                for part in range(0, itemsize, step):  # a wide access touches several elements
                    report.touch(name, space, kind, warp[0] * self.threads + linear, address + part)
        for (_, (_, line, _), _), outcome in self.branches.items():
            report.count("branches", line)
            if outcome == 3:
                report.count("divergent_branches", line)


def _conflicts(accesses, width):
    """How often a shared-memory request of a warp has to be repeated: the most distinct words in one bank, less one.

    accesses: (thread, address) each, of `width` bytes. Accesses of 8 and 16 bytes go in two and four steps by
    themselves, with a half and a quarter of the lanes each.
    """
    steps = max(1, width // 4)
    words = {}
    for thread, address in accesses:
        step = thread % 32 * steps // 32
        for part in range(steps):
            word = address // 4 + part
            words.setdefault((step, word % BANKS), set()).add(word)
    most = {}
    for (step, _), found in words.items():
        most[step] = max(most.get(step, 0), len(found))
    return sum(most.values()) - len(most)
