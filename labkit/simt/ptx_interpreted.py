"""What labkit.ptx's intrinsics do in interpreted kernels: those that `observe` runs, and those whose warps run
different loops and wait for one another at mbarriers.

Registers of a fragment are Python integers, float32 are NumPy's. Work that a GPU does beside its threads is done as
late as CUDA allows, so that a missing wait shows in the result: copies of cp.async at the thread's cp_async_wait,
products of wgmma at the wgmma_wait, TMA loads when no thread can go on without one, TMA stores at the tma_store_wait.

An execution (observed.py, interpreter.py) has: `current`, the thread that runs; `state`, the Block; `fault(...)`, which
raises; and hooks that see accesses: `wide`, `started`, `arrived`.
"""

import functools
import sys

import numpy as np

from labkit.simt.ptx import SWIZZLES, TensorMap
from labkit.simt.unsigned import Unsigned

WINDOW = 1024  # the address of the first byte of a block's shared memory
_LAYOUT_BYTES = {mode: nbytes for nbytes, mode in SWIZZLES.items()}
LANE = np.arange(32)
_G, _Q = LANE // 4, LANE % 4

# ---------------------------------------------------------------- numbers


def from_bf16(bits):
    """uint16 bits of bfloat16 -> float32."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    """float32 -> uint16 bits of the nearest bfloat16, ties to even."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def _pack(halves):
    low, high = halves.view(np.uint16).tolist()
    return Unsigned(low | high << 16)


def _halves(word, dtype):
    word = int(word)
    return np.array([word & 0xFFFF, word >> 16 & 0xFFFF], np.uint16).view(dtype)


def pack_half2(x, y):
    return _pack(np.array([x, y], np.float32).astype(np.float16))


def unpack_half2(word):
    return tuple(_halves(word, np.float16).astype(np.float32))


def pack_bf162(x, y):
    return _pack(to_bf16(np.array([x, y], np.float32)))


def unpack_bf162(word):
    return tuple(from_bf16(_halves(word, np.uint16)))


def float_bits(x):
    return Unsigned(np.float32(x).view(np.uint32))


def bits_float(u):
    return np.uint32(int(u) & 0xFFFFFFFF).view(np.float32)


def to_tf32(x):
    x = np.float32(x)
    if np.isnan(x):
        return Unsigned(0x7FFFFFFF)
    return Unsigned(int(x.view(np.uint32)) + 0x1000 & 0xFFFFE000)


def _flush(x):
    x = np.float32(x)
    return np.float32(np.copysign(0, x)) if abs(x) < np.finfo(np.float32).tiny else x


def tanh_approx(x):
    return np.tanh(np.float32(x))


def exp2_approx(x):
    return _flush(np.exp2(_flush(x)))


def rcp_approx(x):
    return _flush(np.float32(1) / _flush(x))


VALUES = (pack_half2, unpack_half2, pack_bf162, unpack_bf162, float_bits, bits_float, to_tf32, tanh_approx,
          exp2_approx, rcp_approx)  # fmt: skip

# ---------------------------------------------------------------- fragments of a warp

# register r, half h of a lane -> (row, column); one row of the tables for each lane
_A16 = [(_G + 8 * (r % 2), 2 * _Q + 8 * (r // 2)) for r in range(4)]
_B16 = [(2 * _Q + 8 * r, _G) for r in range(2)]
_C = [(_G + 8 * (j // 2), 2 * _Q + j % 2) for j in range(4)]


def _words(registers):
    return np.array([int(x) & 0xFFFFFFFF for x in registers], np.uint32)


def _numbers(words, kind):
    """(low, high) halves of the words of A or B, as float32."""
    parts = [(words & 0xFFFF).astype(np.uint16), (words >> 16).astype(np.uint16)]
    return [from_bf16(p) if kind == "bf16" else p.view(np.float16).astype(np.float32) for p in parts]


def mma(name, lanes):
    """The results of mma.sync for the 32 lanes of a warp, each given as a tuple of its registers."""
    columns = list(zip(*lanes, strict=True))
    words = [_words(c) for c in columns[:6]]
    c = np.empty((16, 8), np.float32)
    half_sums = name == "mma_m16n8k16_f16_f16"
    if half_sums:
        for r, word in enumerate(_words(x) for x in columns[6:]):
            row, col = _C[2 * r]
            c[row, col], c[row, col + 1] = _numbers(word, "f16")
    else:
        for (row, col), values in zip(_C, columns[6:], strict=True):
            c[row, col] = np.array(values, np.float32)
    if name.endswith("tf32"):
        a, b = np.empty((16, 8), np.float32), np.empty((8, 8), np.float32)
        numbers = [(w & np.uint32(0xFFFFE000)).view(np.float32) for w in words]
        for r in range(4):
            a[_G + 8 * (r % 2), _Q + 4 * (r // 2)] = numbers[r]
        for r in range(2):
            b[_Q + 4 * r, _G] = numbers[4 + r]
    else:
        kind = "bf16" if name.endswith("bf16") else "f16"
        a, b = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32)
        for (row, k), word in zip(_A16, words[:4], strict=True):
            a[row, k], a[row, k + 1] = _numbers(word, kind)
        for (k, col), word in zip(_B16, words[4:], strict=True):
            b[k, col], b[k + 1, col] = _numbers(word, kind)
    for k in range(a.shape[1]):  # in the order of the compiled form: the same bits
        c += a[:, k : k + 1] * b[k]
    if half_sums:
        d = c.astype(np.float16).view(np.uint16).astype(np.uint32)
        words = [d[row, col] | d[row, col + 1] << 16 for row, col in _C[::2]]
        return list(zip(*(map(Unsigned, w.tolist()) for w in words), strict=True))
    return list(zip(*(c[row, col] for row, col in _C), strict=True))


def ldmatrix(rows, count, trans):
    """The registers of 32 lanes; rows: (8 * count, 8) uint16, the rows that the lanes named."""
    out = []
    for m in range(count):
        matrix = rows[8 * m : 8 * m + 8].astype(np.uint32)
        if trans:
            matrix = matrix.T
        words = matrix[_G, 2 * _Q] | matrix[_G, 2 * _Q + 1] << 16
        out.append(map(Unsigned, words.tolist()))
    return list(zip(*out, strict=True))


# ---------------------------------------------------------------- tiles in shared memory


def swizzled(addresses, nbytes):
    """Addresses in a tile with this swizzle (0, 32, 64 or 128 bytes): chunks of 16 bytes are exchanged in a row."""
    if not nbytes:
        return addresses
    return addresses ^ ((addresses >> 3) & (nbytes - 16))


@functools.lru_cache(256)
def _tile_offsets(rows, leading, stride, nbytes, mn_major):
    """Where element (row, k) of a tile of rows x 16 halves lies, in bytes from its start, before the swizzle.

    Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
    """
    row, k = np.arange(rows)[:, None], np.arange(16)
    if not nbytes:
        blocks = (row // 8) * stride + (k // 8) * leading
        return blocks + ((k % 8) * 16 + (row % 8) * 2 if mn_major else (row % 8) * 16 + (k % 8) * 2)
    if mn_major:
        columns = nbytes // 2
        return (row // columns) * leading + (k // 8) * stride + (k % 8) * nbytes + (row % columns) * 2
    return (row // 8) * stride + (row % 8) * nbytes + k * 2


@functools.lru_cache(16)
def accumulator_places(columns):
    """(rows, columns) of the elements that the 128 threads of a warpgroup hold: (128, columns / 2) each."""
    t, j = np.arange(128)[:, None], np.arange(columns // 2)
    row = 16 * (t // 32) + t % 32 // 4 + 8 * (j // 2 % 2)
    return np.broadcast_to(row, (128, columns // 2)), 8 * (j // 4) + 2 * (t % 4) + j % 2


def a_of_registers(name, lanes):
    """The first factor of a wgmma, 64 x 16 in float32, of the four words of each of 128 threads."""
    a = np.empty((64, 16), np.float32)
    for warp in range(4):
        words = [_words(column) for column in zip(*lanes[32 * warp : 32 * warp + 32], strict=True)]
        for (row, k), word in zip(_A16, words, strict=True):
            low, high = _numbers(word, "bf16" if "_bf16" in name else "f16")
            a[16 * warp + row, k], a[16 * warp + row, k + 1] = low, high
    return a


class Barrier:
    """An mbarrier."""

    def __init__(self, name, count):
        self.name, self.count = name, count
        self.phase, self.missing, self.bytes = 0, count, 0

    def passes(self, parity):
        return (self.phase & 1) != (int(parity) & 1)

    def arrive(self, expected=0):
        self.bytes += expected
        self.missing -= 1
        self._complete()

    def receive(self, nbytes):
        self.bytes -= nbytes
        self._complete()

    def _complete(self):
        if self.missing == 0 and self.bytes == 0:
            self.phase += 1
            self.missing = self.count

    def __str__(self):
        text = f"{self.name}: in phase {self.phase} (parity {self.phase & 1}), {self.count - self.missing} of "
        text += f"{self.count} arrived"
        if self.bytes:
            text += f", {self.bytes:,} bytes expected that no TMA load has brought" if self.bytes > 0 else (
                f", {-self.bytes:,} bytes more than expected")  # fmt: skip
        return text


class Block:
    """What a block has beside its threads: the window of shared memory, barriers, work under way."""

    def __init__(self, size):
        raw = np.full(size + 1024, 0xFF, np.uint8)
        start = -raw.ctypes.data % 1024
        self.window = raw[start : start + size]
        self.address = self.window.ctypes.data - WINDOW
        self.arrays = []  # (first address, end, name) of the shared arrays
        self.barriers, self.loads = {}, []
        self.products = {}  # warpgroup -> wgmma under way

    def bytes_at(self, first, size):
        return self.window[first - WINDOW : first - WINDOW + size]

    def name_of(self, address):
        for first, end, name in self.arrays:
            if first <= address < end:
                return name, first
        return "shared memory", WINDOW


class Pending:
    """What one thread has started and not waited for: cp.async, or TMA stores. Groups are counted."""

    def __init__(self):
        self.items, self.committed, self.last_wait = [], 0, None

    def start(self, item):
        self.items.append((self.committed, item))

    def wait(self, newest):
        """The items that must be complete when at most the `newest` groups may be under way."""
        reached = self.committed - newest
        done = [item for group, item in self.items if group < reached]
        self.items = [(group, item) for group, item in self.items if group >= reached]
        return done


class Copy:
    """A cp.async under way."""

    def __init__(self, thread, line, target, i, data, name):
        self.thread, self.line, self.target, self.i, self.data, self.name = thread, line, target, i, data, name


# ---------------------------------------------------------------- the functions that a kernel calls


class Intrinsics:
    """The intrinsics that act at once, as functions for the kernel's namespace; and those that threads wait for."""

    def __init__(self, execution):
        self.execution, self.fault = execution, execution.fault

    def namespace(self):
        names = {f"_ptx_{f.__name__}": f for f in VALUES}
        for name in ("load_global4", "load_nc4", "load_shared4"):
            names[f"_ptx_{name}"] = functools.partial(self._load4, name)
        for name in ("store_global4", "store_shared4"):
            names[f"_ptx_{name}"] = functools.partial(self._store4, name)
        names["_ptx_store_global_half2"] = functools.partial(self._store_pair, "store_global_half2", pack_half2)
        names["_ptx_store_global_bf162"] = functools.partial(self._store_pair, "store_global_bf162", pack_bf162)
        names["_ptx_cp_async_16"] = functools.partial(self._copy, "cp_async_16", 16)
        names["_ptx_cp_async_4"] = functools.partial(self._copy, "cp_async_4", 4)
        for name in ("cp_async_commit", "cp_async_wait", "wgmma_descriptor", "wgmma_commit", "fence_proxy_async",
                     "mbarrier_init", "mbarrier_arrive", "mbarrier_expect_tx", "tma_load_2d", "tma_store_2d",
                     "tma_store_commit", "tma_store_wait"):  # fmt: skip
            names[f"_ptx_{name}"] = getattr(self, name)
        return names

    # ---------------- 128 bits at once

    def _check_words(self, name, array, line):
        if array.itemsize not in (2, 4):
            self.fault("assertion", line, f"uses an array of {array.dtype} with ptx.{name}; allowed are 4-byte types, "
                       "and 2-byte types, which travel as four uint32 words")  # fmt: skip

    def _load4(self, name, array, i):
        frame = sys._getframe(1)
        self._check_words(name, array, frame.f_lineno)
        flat = self.execution.wide("load", name, array, int(i), 16, 16, frame.f_lineno, frame)
        if flat is None:
            zero = np.float32(0) if array.dtype == np.float32 else Unsigned(0)
            return (zero,) * 4
        if flat.dtype == np.float32:
            return tuple(flat)
        if flat.dtype == np.int32:
            return tuple(flat.tolist())
        return tuple(map(Unsigned, flat.view(np.uint32).tolist()))

    def _store4(self, name, array, i, *values):
        frame = sys._getframe(1)
        self._check_words(name, array, frame.f_lineno)
        flat = self.execution.wide("store", name, array, int(i), 16, 16, frame.f_lineno, frame)
        if flat is not None:
            if flat.dtype == np.float32:
                flat[...] = values
            else:
                flat.view(np.uint32)[...] = _words(values)

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
        copy = Copy(execution.current, line, target.view(np.uint8), i, data, name)
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
        return Unsigned((address & 0x3FFFF) >> 4 | fixed)

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
            tiles = [(int(db), columns, name.endswith("_bmn"))] + ([] if from_registers else [(a, 64, False)])
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
            a = self._tile(name, a, 64, False, line, thread)
        b = self._tile(name, db, columns, name.endswith("_bmn"), line, thread)
        d = a @ b.T
        values = d[accumulator_places(columns)]
        for array, new in zip(arrays, values, strict=True):
            array[...] = array + new if accumulate else new

    def _tile_addresses(self, name, descriptor, rows, mn_major, line, thread):
        """Where the elements of the rows x 16 operand lie that a descriptor points to, from the window's start."""
        start = (descriptor & 0x3FFF) << 4
        leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
        nbytes = _LAYOUT_BYTES[descriptor >> 62 & 3]
        addresses = swizzled(start + _tile_offsets(rows, leading, stride, nbytes, mn_major), nbytes) - WINDOW
        window = self.execution.state.window
        if addresses.min() < 0 or addresses.max() + 2 > window.size:
            self.fault(
                "bounds", line, f"starts ptx.{name} on a tile that reaches byte {addresses.max() + 2:,} of the block's "
                f"{window.size:,} bytes of shared memory (leading_bytes {leading}, stride_bytes {stride})", thread,
            )  # fmt: skip
        return addresses

    def _tile(self, name, descriptor, rows, mn_major, line, thread):
        """The operand that a descriptor points to, as float32."""
        addresses = self._tile_addresses(name, descriptor, rows, mn_major, line, thread)
        window = self.execution.state.window
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
        i = int(i)
        address = self.execution.address(bars) + 8 * i
        if not 0 <= i < bars.size:
            self.fault("bounds", line, f"uses {self._name(bars)}[{i}] with ptx.{name}, and there are "
                                 f"{bars.size} barriers", thread)  # fmt: skip
        found = self.execution.state.barriers.get(address)
        if found is None:
            self.fault("assertion", line, f"uses {self._name(bars)}[{i}] with ptx.{name} before any "
                                 "ptx.mbarrier_init of it", thread)  # fmt: skip
        return found

    def mbarrier_init(self, bars, i, count):
        i, line = int(i), sys._getframe(1).f_lineno
        if bars.itemsize != 8:
            self.fault("assertion", line, f"makes a barrier of an element of {bars.dtype}: mbarriers live in a "
                                 "shared array of uint64")  # fmt: skip
        if not 0 <= i < bars.size:
            self.fault("bounds", line, f"uses {self._name(bars)}[{i}] with ptx.mbarrier_init, and there are "
                                 f"{bars.size} barriers")  # fmt: skip
        address = self.execution.address(bars) + 8 * i
        self._in_window("mbarrier_init", bars, address, line)
        self.execution.state.barriers[address] = Barrier(f"{self._name(bars)}[{i}]", int(count))

    def mbarrier_arrive(self, bars, i):
        line = sys._getframe(1).f_lineno
        self._arrive(self.barrier("mbarrier_arrive", bars, i, line), 0, line)

    def mbarrier_expect_tx(self, bars, i, nbytes):
        line = sys._getframe(1).f_lineno
        self._arrive(self.barrier("mbarrier_expect_tx", bars, i, line), int(nbytes), line)

    def _arrive(self, barrier, nbytes, line):
        if barrier.missing == 0:
            self.fault("assertion", line, f"arrives at {barrier.name}, where all {barrier.count} have arrived "
                                 "that its phase takes")  # fmt: skip
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
        state.loads.append((tensor_map, int(col), int(row), chunks, barrier))
        self.execution.filled_range(shared, start, tensor_map.box_bytes)

    def deliver(self):
        """The oldest TMA load arrives. False if there is none."""
        state = self.execution.state
        if not state.loads:
            return False
        tensor_map, col, row, chunks, barrier = state.loads.pop(0)
        matrix = self.execution.raw(tensor_map.array)
        box = np.zeros((tensor_map.box_rows, tensor_map.box_cols), matrix.dtype)
        there, here = self._part(tensor_map, col, row)
        box[here] = matrix[there]
        pieces = state.window[: state.window.size // 16 * 16].reshape(-1, 16)
        pieces[chunks] = box.view(np.uint8).reshape(*chunks.shape, 16)
        barrier.receive(tensor_map.box_bytes)
        return True

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
            there, here = self._part(tensor_map, col, row)
            matrix[there] = box[here]

    def check_finished(self, threads):
        """At the end of a block: a fault for a product or a store that nobody has waited for."""
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
