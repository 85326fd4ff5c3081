"""The intrinsics of labkit.ptx as functions for an interpreted kernel, and what its threads wait for."""

import functools
import sys
import time

import numpy as np

from labkit.simt.ptx import SWIZZLES, TensorMap
from labkit.simt.ptx_interpreted.matrices import (
    LAYOUT_BYTES,
    a_of_registers,
    accumulator_positions,
    swizzled,
    tile_offsets,
    words_of,
)
from labkit.simt.ptx_interpreted.under_way import WINDOW, AsyncCopy, MBarrier, Pending
from labkit.simt.ptx_interpreted.values import (
    VALUES,
    from_bf16,
    from_e4m3,
    from_tf32,
    pack_bf162,
    pack_half2,
    rounded_to_tf32,
)
from labkit.simt.typed_numbers import Uint32, Uint64


class Intrinsics:
    """The intrinsics that act at once, as functions for the kernel's namespace; and those that threads wait for."""

    def __init__(self, execution):
        self.execution, self.fault = execution, execution.fault

    def namespace(self):
        names = {f"_ptx_{f.__name__}": f for f in VALUES}
        for name in ("load_global4", "load_nc4", "load_shared4"):
            names[f"_ptx_{name}"] = functools.partial(self._load4, name)
        for name in ("store_global4", "store_shared4", "store_global2"):
            names[f"_ptx_{name}"] = functools.partial(self._store_words, name)
        names["_ptx_store_global_half2"] = functools.partial(self._store_pair, "store_global_half2", pack_half2)
        names["_ptx_store_global_bf162"] = functools.partial(self._store_pair, "store_global_bf162", pack_bf162)
        names["_ptx_cp_async_16"] = functools.partial(self._copy, "cp_async_16", 16)
        names["_ptx_cp_async_4"] = functools.partial(self._copy, "cp_async_4", 4)
        for name in ("cp_async_commit", "cp_async_wait", "wgmma_descriptor", "wgmma_commit", "fence_proxy_async",
                     "mbarrier_init", "mbarrier_arrive", "mbarrier_expect_tx", "tma_load_2d", "tma_store_2d",
                     "tma_store_commit", "tma_store_wait", "bulk_load", "load_acquire", "add_release",
                     "load_relaxed2", "store_relaxed", "trap", "store_timer"):  # fmt: skip
            names[f"_ptx_{name}"] = getattr(self, name)
        return names

    # ---------------- 128 bits at once

    def _check_words(self, name, array, line, count=4):
        if array.itemsize != 4 and (array.itemsize, count) != (2, 4):
            halves = ", and 2-byte types, which travel as four uint32 words" if count == 4 else ""
            self.fault("assertion", line, f"uses an array of {array.dtype} with ptx.{name}; allowed are 4-byte types"
                       f"{halves}")  # fmt: skip

    def _load4(self, name, array, i):
        frame = sys._getframe(1)
        self._check_words(name, array, frame.f_lineno)
        flat = self.execution.wide("load", name, array, int(i), 16, 16, frame.f_lineno, frame)
        if flat is None:
            zero = np.float32(0) if array.dtype == np.float32 else Uint32(0)
            return (zero,) * 4
        if flat.dtype == np.float32:
            return tuple(flat)
        if flat.dtype == np.int32:
            return tuple(flat.tolist())
        return tuple(map(Uint32, flat.view(np.uint32).tolist()))

    def _store_words(self, name, array, i, *values):
        frame, nbytes = sys._getframe(1), 4 * len(values)
        self._check_words(name, array, frame.f_lineno, len(values))
        flat = self.execution.wide("store", name, array, int(i), nbytes, nbytes, frame.f_lineno, frame)
        if flat is not None:
            if flat.dtype == np.float32:
                flat[...] = values
            else:
                flat.view(np.uint32)[...] = words_of(values)

    def _store_pair(self, name, pack, array, i, x, y):
        frame = sys._getframe(1)
        flat = self.execution.wide("store", name, array, int(i), 4, 4, frame.f_lineno, frame)
        if flat is not None:
            flat.view(np.uint32)[0] = int(pack(x, y))

    # ---------------- cp.async

    def _copy(self, name, size, shared, i, array, j, valid):
        frame, execution = sys._getframe(1), self.execution
        line, valid, i, j = frame.f_lineno, int(valid), int(i), int(j)
        if not 0 <= valid <= size:
            execution.fault("assertion", line, f"passes valid = {valid} to ptx.{name}; it must be 0 to {size} bytes")
        data = np.zeros(size, np.uint8)
        if valid:
            source = execution.wide("load", name, array, j, valid, size, line, frame)
            if source is None:
                return
            data[:valid] = source.view(np.uint8)[:valid]
        target = execution.wide("copy", name, shared, i, size, size, line, frame)
        if target is None:
            return
        copy = AsyncCopy(execution.current, line, target.view(np.uint8), i, data, name)
        execution.current.copies.start(copy)
        execution.started(shared, copy)

    def cp_async_commit(self):
        self.execution.current.copies.committed += 1

    def cp_async_wait(self, n):
        line, copies = sys._getframe(1).f_lineno, self.execution.current.copies
        copies.last_wait = (int(n), line)
        for copy in copies.wait(int(n)):
            copy.target[...] = copy.data
            self.execution.arrived(copy, line)

    # ---------------- wgmma

    def wgmma_descriptor(self, shared, i, leading_bytes, stride_bytes, swizzle):
        address = self.execution.address(shared) + int(i) * shared.itemsize
        line = sys._getframe(1).f_lineno
        self._in_window("wgmma_descriptor", shared, address, line)
        if address % 16:
            self.fault("misaligned", line, f"passes element {int(i)} of {self._name(shared)} to "
                                 "ptx.wgmma_descriptor, which is not at a multiple of 16 bytes")  # fmt: skip
        fixed = leading_bytes >> 4 << 16 | stride_bytes >> 4 << 32 | SWIZZLES[swizzle] << 62
        return Uint64((address & 0x3FFFF) >> 4 | fixed)

    def fence_proxy_async(self):
        self.execution.fenced_for_async()

    def wgmma_commit(self):
        self.execution.current.commits += 1

    def start_product(self, name, threads):
        """All 128 threads of a warpgroup have come to a wgmma."""
        first = threads[0]
        acc, *a, db, accumulate = first.request[2]
        from_registers = "_ra" in name
        for t in threads:
            if t.request[2][-2:] != (db, accumulate) or not from_registers and t.request[2][1:] != first.request[2][1:]:
                self.fault(
                    "assertion", first.request[1],
                    f"and thread {t.where[0]} of one warpgroup pass other descriptors or flags to ptx.{name}", first,
                )  # fmt: skip
        columns = int(name.split("n")[1].split("k")[0])
        arrays = [self.execution.raw(t.request[2][0]).reshape(-1) for t in threads]
        if acc.dtype != np.float32 or arrays[0].size != columns // 2:
            self.fault("assertion", first.request[1],
                                 f"passes {arrays[0].size} {acc.dtype} to ptx.{name} as acc; it takes "
                                 f"{columns // 2} float32", first)  # fmt: skip
        queue = self.execution.state.products.setdefault(first.linear // 128, Pending())
        queue.committed = first.commits
        line = first.request[1]
        a = a_of_registers(name, [t.request[2][1:5] for t in threads]) if from_registers else int(a[0])
        queue.start((name, columns, arrays, a, int(db), int(accumulate), line, first))
        for t in threads:
            self.execution.filled(t.request[2][0])
        if self.execution.sees_tiles:
            tiles = [(int(db), columns, name.endswith("_bmn"))] + (
                [] if from_registers else [(a, 64, "_amn" in name)])
            for descriptor, rows, mn_major in tiles:
                addresses = self._tile_addresses(name, descriptor, rows, mn_major, line, first) + WINDOW
                self.execution.reads_tile(name, addresses.reshape(-1).tolist(), line, first)

    def finish_products(self, threads):
        """All 128 threads of a warpgroup have come to a wgmma_wait."""
        queue = self.execution.state.products.setdefault(threads[0].linear // 128, Pending())
        queue.committed = threads[0].commits
        for product in queue.wait(int(threads[0].request[2][0])):
            self._multiply(*product)
        if self.execution.sees_tiles:
            self.execution.has_read_tiles([item[-2:] for _, item in queue.items], threads[0])

    def _multiply(self, name, columns, arrays, a, db, accumulate, line, thread):
        if "_ra" not in name:
            a = self._tile(name, a, 64, "_amn" in name, line, thread)
        b = self._tile(name, db, columns, name.endswith("_bmn"), line, thread)
        # In float64 these sums of 8 to 32 products are exact but for rare cases: a row's do not depend on the rows
        # beside it. A library's float32 product adds in an order that depends on where a row lies.
        d = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32)
        values = d[accumulator_positions(columns)]
        for array, new in zip(arrays, values, strict=True):
            array[...] = array + new if accumulate else new

    def _tile_addresses(self, name, descriptor, rows, mn_major, line, thread):
        """Where the elements of the rows x 16 operand (x 8 in TF32, x 32 in E4M3) lie that a descriptor points to, from
        the window's start."""
        start = (descriptor & 0x3FFF) << 4
        leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
        nbytes = LAYOUT_BYTES[descriptor >> 62 & 3]
        itemsize = 4 if "_tf32" in name else 1 if "_e4m3" in name else 2
        offsets = tile_offsets(rows, leading, stride, nbytes, mn_major, itemsize)
        addresses = swizzled(start + offsets, nbytes) - WINDOW
        window = self.execution.state.window
        if addresses.min() < 0 or addresses.max() + itemsize > window.size:
            self.fault(
                "bounds", line, f"starts ptx.{name} on a tile that reaches byte {addresses.max() + itemsize:,} of the "
                f"block's {window.size:,} bytes of shared memory (leading_bytes {leading}, stride_bytes {stride})",
                thread,
            )  # fmt: skip
        return addresses

    def _tile(self, name, descriptor, rows, mn_major, line, thread):
        """The operand that a descriptor points to, as float32."""
        addresses = self._tile_addresses(name, descriptor, rows, mn_major, line, thread)
        window = self.execution.state.window
        if "_tf32" in name:
            return from_tf32(window[: window.size // 4 * 4].view(np.uint32)[addresses // 4])
        if "_e4m3" in name:
            return from_e4m3(window[addresses])
        bits = window[: window.size // 2 * 2].view(np.uint16)[addresses // 2]
        return from_bf16(bits) if "_bf16" in name else bits.view(np.float16).astype(np.float32)

    # ---------------- mbarriers

    def _name(self, array):
        return getattr(array, "name", None) or self.execution.state.name_of(self.execution.address(array))[0]

    def _in_window(self, name, array, address, line):
        state = self.execution.state
        if not WINDOW <= address < WINDOW + max(state.window.size, 1):
            self.fault(
                "bounds", line, f"uses {self._name(array)} with ptx.{name} at an address that is not in the block's "
                "shared memory")  # fmt: skip

    def barrier(self, name, bars, i, line, thread=None):
        """The mbarrier bars[i]; a fault if it is none."""
        mbarrier = self.execution.state.barriers.get(self._barrier_address(name, bars, int(i), line, thread))
        if mbarrier is None:
            self.fault("assertion", line, f"uses {self._name(bars)}[{int(i)}] with ptx.{name} before any "
                                 "ptx.mbarrier_init of it", thread)  # fmt: skip
        return mbarrier

    def _barrier_address(self, name, bars, i, line, thread=None):
        if not 0 <= i < bars.size:
            self.fault("bounds", line, f"uses {self._name(bars)}[{i}] with ptx.{name}, and there are "
                                 f"{bars.size} barriers", thread)  # fmt: skip
        return self.execution.address(bars) + 8 * i

    def mbarrier_init(self, bars, i, count):
        i, line = int(i), sys._getframe(1).f_lineno
        if bars.itemsize != 8:
            self.fault("assertion", line, f"makes a barrier of an element of {bars.dtype}: mbarriers live in a "
                                 "shared array of uint64")  # fmt: skip
        address = self._barrier_address("mbarrier_init", bars, i, line)
        self._in_window("mbarrier_init", bars, address, line)
        self.execution.state.barriers[address] = MBarrier(f"{self._name(bars)}[{i}]", int(count))

    def mbarrier_arrive(self, bars, i):
        line = sys._getframe(1).f_lineno
        self._arrive(self.barrier("mbarrier_arrive", bars, i, line), 0, line)

    def mbarrier_expect_tx(self, bars, i, nbytes):
        line = sys._getframe(1).f_lineno
        self._arrive(self.barrier("mbarrier_expect_tx", bars, i, line), int(nbytes), line)

    def _arrive(self, barrier, nbytes, line):
        if barrier.missing == 0:
            self.fault("assertion", line, f"arrives at {barrier.name}, whose phase has all {barrier.count} of its "
                                 "arrivals already")  # fmt: skip
        barrier.arrive(nbytes)

    # ---------------- TMA

    def _box(self, name, tensor_map, array, i, line):
        """The addresses of a box's 16-byte chunks, (rows, chunks) from the start of the window, swizzled."""
        if not isinstance(tensor_map, TensorMap):
            self.fault("assertion", line, f"passes {type(tensor_map).__name__} to ptx.{name} as tensor_map: "
                                 "it takes what ptx.tensor_map_2d made")  # fmt: skip
        start = self.execution.address(array) + int(i) * array.itemsize
        self._in_window(name, array, start, line)
        if start % 128:
            self.fault("misaligned", line, f"passes {self._name(array)} from element {int(i)} on to ptx.{name}, "
                                 "which is not at a multiple of 128 bytes")  # fmt: skip
        if start - WINDOW + tensor_map.box_bytes > self.execution.state.window.size:
            self.fault("bounds", line, f"passes {self._name(array)} from element {int(i)} on to ptx.{name}: "
                                 f"the box of {tensor_map.box_bytes:,} bytes does not fit in the block's shared "
                                 "memory")  # fmt: skip
        width = tensor_map.box_bytes // tensor_map.box_rows
        chunks = start + np.arange(tensor_map.box_rows)[:, None] * width + np.arange(0, width, 16)
        return start, (swizzled(chunks, tensor_map.swizzle) - WINDOW) // 16

    @staticmethod
    def _part(tensor_map, col, row):
        """The slices of the matrix and of the box that lie in both."""
        rows, cols = tensor_map.array.shape
        slices = [], []
        for first, size, extent in ((row, tensor_map.box_rows, rows), (col, tensor_map.box_cols, cols)):
            low, high = max(first, 0), max(min(first + size, extent), max(first, 0))
            slices[0].append(slice(low, high))
            slices[1].append(slice(low - first, high - first))
        return tuple(slices[0]), tuple(slices[1])

    def tma_load_2d(self, shared, i, tensor_map, col, row, bars, b):
        line, state = sys._getframe(1).f_lineno, self.execution.state
        start, chunks = self._box("tma_load_2d", tensor_map, shared, i, line)
        barrier = self.barrier("tma_load_2d", bars, b, line)
        state.bytes_at(start, tensor_map.box_bytes)[...] = 0xFF
        state.loads.append(functools.partial(self._deliver_box, tensor_map, int(col), int(row), chunks, barrier))
        self.execution.filled_range(shared, start, tensor_map.box_bytes)

    def bulk_load(self, shared, i, array, j, nbytes, bars, b):
        frame, execution = sys._getframe(1), self.execution
        line, nbytes = frame.f_lineno, int(nbytes)
        if nbytes < 16 or nbytes % 16:
            self.fault("assertion", line, f"passes nbytes = {nbytes} to ptx.bulk_load; it must be a multiple of 16")
        source = execution.wide("load", "bulk_load", array, int(j), nbytes, 16, line, frame)
        target = execution.wide("copy", "bulk_load", shared, int(i), nbytes, 16, line, frame)
        barrier = self.barrier("bulk_load", bars, b, line)
        if source is None or target is None:
            return
        start = self.execution.address(shared) + int(i) * shared.itemsize
        self._in_window("bulk_load", shared, start, line)
        target.view(np.uint8)[:nbytes] = 0xFF
        execution.state.loads.append(functools.partial(self._deliver_bytes, source, target, nbytes, barrier))
        execution.filled_range(shared, start, nbytes)

    @staticmethod
    def _deliver_bytes(source, target, nbytes, barrier):
        target.view(np.uint8)[:nbytes] = source.view(np.uint8)[:nbytes]
        barrier.receive(nbytes)

    def deliver(self):
        """The oldest load by TMA arrives. False if there is none."""
        loads = self.execution.state.loads
        if loads:
            loads.pop(0)()
            return True
        return False

    def _deliver_box(self, tensor_map, col, row, chunks, barrier):
        state, matrix = self.execution.state, self.execution.raw(tensor_map.array)
        box = np.zeros((tensor_map.box_rows, tensor_map.box_cols), matrix.dtype)
        matrix_part, box_part = self._part(tensor_map, col, row)
        box[box_part] = matrix[matrix_part]
        if tensor_map.tf32:
            box = rounded_to_tf32(box)
        pieces = state.window[: state.window.size // 16 * 16].reshape(-1, 16)
        pieces[chunks] = box.view(np.uint8).reshape(*chunks.shape, 16)
        barrier.receive(tensor_map.box_bytes)

    def tma_store_2d(self, tensor_map, col, row, shared, i):
        line = sys._getframe(1).f_lineno
        start, chunks = self._box("tma_store_2d", tensor_map, shared, i, line)
        if self.execution.sees_tiles:
            addresses = range(start, start + tensor_map.box_bytes, 2)
            self.execution.reads_tile("tma_store_2d", addresses, line, self.execution.current, lasting=False)
        self.execution.current.stores.start((tensor_map, int(col), int(row), chunks, line))

    def tma_store_commit(self):
        self.execution.current.stores.committed += 1

    def tma_store_wait(self, n):
        for tensor_map, col, row, chunks, _ in self.execution.current.stores.wait(int(n)):
            window = self.execution.state.window
            pieces = window[: window.size // 16 * 16].reshape(-1, 16)
            matrix = self.execution.raw(tensor_map.array)
            box = np.ascontiguousarray(pieces[chunks]).reshape(tensor_map.box_rows, -1).view(matrix.dtype)
            matrix_part, box_part = self._part(tensor_map, col, row)
            matrix[matrix_part] = box[box_part]

    # ---------------- blocks that wait for one another

    def _counter(self, name, array, i, itemsize=4, does="load"):
        frame = sys._getframe(2)
        if array.itemsize != itemsize:
            self.fault("assertion", frame.f_lineno, f"uses an array of {array.dtype} with ptx.{name}; it takes "
                       f"uint{8 * itemsize}")  # fmt: skip
        if not 0 <= int(i) < array.size:
            self.execution._beyond(does, name, array, int(i), 1, frame.f_lineno, frame)
        return self.execution.raw(array).reshape(-1), int(i)

    def load_acquire(self, array, i):
        counters, i = self._counter("load_acquire", array, i)
        self.execution.acquired(array, i)
        return Uint32(int(counters[i]))

    def add_release(self, array, i, value):
        counters, i = self._counter("add_release", array, i)
        self.execution.released(array, i)
        counters[i] += np.uint32(int(value))

    def load_relaxed2(self, array, i):
        words, i = self._counter("load_relaxed2", array, i, itemsize=8)
        if i % 2 or i + 1 >= words.size:
            self.fault("assertion", sys._getframe(1).f_lineno, f"reads words {i} and {i + 1} of {words.size} with "
                       "ptx.load_relaxed2; the first must be even, and both inside")  # fmt: skip
        return Uint64(int(words[i])), Uint64(int(words[i + 1]))

    def store_relaxed(self, array, i, word):
        words, i = self._counter("store_relaxed", array, i, itemsize=8, does="store")
        words[i] = np.uint64(int(word))

    def trap(self):
        self.fault("assertion", sys._getframe(1).f_lineno, "reaches ptx.trap()")

    def store_timer(self, array, i):
        times, i = self._counter("store_timer", array, i, itemsize=8)
        times[i] = time.perf_counter_ns()

    # ---------------- the end of a block

    def check_finished(self, threads):
        """At the end of a block: a fault for a product or a store that no thread has waited for."""
        for queue in self.execution.state.products.values():
            for _, (name, *_, line, thread) in queue.items:
                self.fault(
                    "assertion", line, f"started ptx.{name}, and no ptx.wgmma_wait covered it before the block ended "
                    "(ptx.wgmma_commit() closes a group, ptx.wgmma_wait(0) waits for all groups)", thread)  # fmt: skip
        for thread in threads:
            for _, item in thread.stores.items:
                self.fault(
                    "assertion", item[-1], "started ptx.tma_store_2d, and no ptx.tma_store_wait covered it before the "
                    "block ended (ptx.tma_store_commit() closes a group, ptx.tma_store_wait(0) waits for all)",
                    thread)  # fmt: skip
