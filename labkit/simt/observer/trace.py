"""A recording as compact data for the player's page: JSON, whose numbers in bulk are bytes in base64.

A block's steps are one stream of varints (7 bits a byte, the lowest first), where what repeats is a difference:

    step      head, warp, line, [mask], [waits], [ended], [name], [requests], [writes]
    head      kind + 4 new round + 8 mask + 16 waits + 32 ended + 64 name + 128 requests + 256 writes: what follows
    warp      difference from the step before; line: from the warp's last one, counted in lines that are shown
    request   4 * array + kind, 4 * cost + 2 * wide + other lanes, [mask], [width], elements
    writes    array and elements, for each array; their values follow in the array's own column
    elements  how many (writes alone), the first less the last one seen of this array, then runs: difference, how often

Differences are zigzag: 0, -1, 1, -2 are 0, 1, 2, 3. player.js reads this.
"""

import base64
import inspect
import linecache
from pathlib import PurePath

import numpy as np

from labkit.simt.errors import coordinates, short_position

MOST_CELLS = 16_384  # of an array that are shown
ALL_CELLS = 4_096  # an array up to this size is shown whole; of a larger one, what the launch touches
KINDS = ("load", "store", "atomic", "outside")
TITLES = {"race": "Race", "out_of_bounds": "Out of bounds", "divergent_barrier": "Divergent barrier",
          "uninitialized_read": "Read of unwritten memory"}  # fmt: skip


def encoded(recording, report, wrong=None):
    """The recording as an object for JSON. report: of the plain observation, for what the recording did not meet.
    wrong: {index of a step: {array: elements}} of what it writes that is shown as wrong."""
    encoder = _Encoder(recording)
    findings = recording.report.findings or report.findings
    return {
        "kernel": report.kernel,
        "file": _shown_file(report.filename),
        "grid": list(report.grid),
        "block": list(report.block),
        "source": encoder.source,
        "arrays": encoder.arrays,
        "names": encoder.names,
        "blocks": encoder.blocks,
        "first": next((k for k, b in enumerate(encoder.blocks) if b["number"] == recording.block_ids[0]), 0),
        "findings": [encoder.finding(finding) for finding in findings],
        "notes": _notes(recording, encoder),
        "wrong": {step: {encoder.array_ids[name]: elements for name, elements in arrays.items()}
                  for step, arrays in (wrong or {}).items()},
    }


def _shown_file(filename):
    return "this notebook" if "ipykernel_" in filename or filename.startswith("<") else PurePath(filename).name


def _notes(recording, encoder):
    notes = []
    if recording.blocks > len(encoder.blocks):
        one = len(encoder.blocks) == 1
        which = f"block {encoder.blocks[0]['label']} is" if one else f"{len(encoder.blocks)} blocks are"
        notes.append(f"Of the {recording.blocks:,} blocks of this launch, {which} recorded.")
    for trace in recording.traces.values():
        if not trace.is_complete:
            notes.append(f"Only the first {len(trace.steps):,} steps are recorded.")
    if recording.stopped:
        notes.append(f"The launch was stopped: {recording.stopped}.")
    clipped = [a["name"] for a in encoder.arrays if a["clipped"]]
    if clipped:
        notes.append(f"Only a part of {' and '.join(clipped)} is shown.")
    return notes


class Stream:
    """A byte buffer of varints."""

    def __init__(self):
        self.bytes = bytearray()

    def unsigned(self, *values):
        for n in values:
            while n > 0x7F:
                self.bytes.append(n & 0x7F | 0x80)
                n >>= 7
            self.bytes.append(n)

    def signed(self, n):
        self.unsigned(2 * n if n >= 0 else -2 * n - 1)

    def runs(self, values, last):
        """Write the values as run-length coded differences; return the last value."""
        k = 0
        previous = last
        differences = []
        for n in values:
            differences.append(n - previous)
            previous = n
        while k < len(differences):
            if k == 0:
                self.signed(differences[0])
                k = 1
                continue
            end = k
            while end < len(differences) and differences[end] == differences[k]:
                end += 1
            self.signed(differences[k])
            self.unsigned(end - k)
            k = end
        return previous


class _Encoder:
    def __init__(self, recording):
        self.recording, self.names = recording, []
        self.source, self.rows = _source(recording)
        touched = _touched(recording)
        shown = [known for name, known in recording.arrays.items() if name in touched or known.space == "shared"]
        self.array_ids = {known.name: k for k, known in enumerate(shown)}
        self.arrays = [self._array(known, touched.get(known.name)) for known in shown]
        self.blocks = [self._block(trace) for trace in recording.traces.values()]

    def _array(self, known, touched):
        cols = known.shape[-1] if known.shape else 1
        size = int(np.prod(known.shape))
        rows = size // cols if cols else 0
        window, clipped = (0, rows, 0, cols), False
        if size > ALL_CELLS and touched is not None:
            window = _window(touched, rows, cols, max(1, 32 // known.dtype.itemsize))
            clipped = window[0] > 0 or window[1] < rows or window[2] > 0 or window[3] < cols
        elif size > MOST_CELLS:
            window, clipped = (0, 1, 0, min(cols, MOST_CELLS)), True
        code = _code(known.dtype)
        described = {
            "name": known.name, "space": known.space, "shape": list(known.shape), "dtype": str(known.dtype),
            "type": code, "itemsize": known.dtype.itemsize, "origin": known.origin % 1024, "window": list(window),
            "clipped": clipped,
        }  # fmt: skip
        if list(known.strides) != _c_strides(known.shape, known.dtype.itemsize):
            described["strides"] = list(known.strides)
        if known.initial is not None and known.space != "shared":
            part = known.initial.reshape(rows, cols)[window[0] : window[1], window[2] : window[3]]
            described["initial"] = _column(part.reshape(-1), code) if code else ""
        return described

    def finding(self, finding):
        sides = []
        for side in getattr(finding, "sides", ()):
            array = self.array_ids.get(side.array, -1)
            sides.append({"block": side.block, "thread": side.thread, "row": self.rows.get(side.line, -1),
                          "line": side.line, "verb": side.verb, "step": side.step, "array": array,
                          "element": side.element, "index": None if side.index is None else list(side.index)})
        sides.sort(key=lambda side: (side["step"] is None, side["step"]))
        return {"kind": finding.kind, "title": TITLES[finding.kind], "text": str(finding), "block": finding.block,
                "array": finding.array or "", "sides": sides}

    # ---------------- a block

    def _block(self, trace):
        stream, columns, last = Stream(), {}, {}
        warp, round_, masks, lines = 0, None, {}, {}
        for step in trace.steps:
            name = self._name(step.name)
            row = self.rows.get(step.line, 0)
            has = (step.kind, step.round != round_, step.mask != masks.get(step.warp, 0), step.waits > 0,
                   step.ended > 0, bool(step.name), bool(step.requests), bool(step.values))
            head = has[0] + sum((4 << k) * flag for k, flag in enumerate(has[1:]))
            stream.unsigned(head)
            stream.signed(step.warp - warp)
            stream.signed(row - lines.get(step.warp, 0))
            optional = ((has[2], step.mask), (has[3], step.waits), (has[4], step.ended), (has[5], name))
            stream.unsigned(*(value for present, value in optional if present))
            if step.requests:
                stream.unsigned(len(step.requests))
                for request in step.requests:
                    self._request(stream, request, step.mask, last)
            if step.values:
                stream.unsigned(len(step.values))
                for array, pairs in step.values.items():
                    array_id = self.array_ids.get(array, 0)
                    elements = [element for element, _ in pairs]
                    stream.unsigned(array_id, len(elements))
                    last[array_id] = stream.runs(elements, last.get(array_id, 0))
                    columns.setdefault(array_id, []).extend(value for _, value in pairs)
            warp, round_, masks[step.warp], lines[step.warp] = step.warp, step.round, step.mask, row
        grid = self.recording.grid
        label = short_position(coordinates(trace.block, grid), grid)
        return {
            "number": trace.block, "label": label, "steps": len(trace.steps), "stream": _base64(stream.bytes),
            "values": {str(k): self._values(k, values) for k, values in columns.items()},
            "changed": {str(self.array_ids[name]): self._changed(name, *delta) for name, delta in trace.changed.items()
                        if name in self.array_ids},
        }  # fmt: skip

    def _request(self, stream, request, mask, last):
        array_id = self.array_ids[request.array]
        lanes = sum(1 << lane for lane in request.lanes)
        wide, others = request.width > 1, lanes != mask
        stream.unsigned(4 * array_id + KINDS.index(request.kind), 4 * request.cost + 2 * wide + others)
        if others:
            stream.unsigned(lanes)
        if wide:
            stream.unsigned(request.width)
        last[array_id] = stream.runs(request.elements, last.get(array_id, 0))

    def _changed(self, name, elements, values):
        stream = Stream()
        stream.unsigned(len(elements))
        stream.runs(elements, 0)
        return [_base64(stream.bytes), self._values(self.array_ids[name], values)]

    def _values(self, array_id, values):
        code = self.arrays[array_id]["type"]
        return _column(np.array(values), code) if code else ""

    def _name(self, name):
        if name and name not in self.names:
            self.names.append(name)
        return self.names.index(name) if name else 0


def _touched(recording):
    """{array: elements} that the recorded blocks touch."""
    touched = {}
    for trace in recording.traces.values():
        for step in trace.steps:
            for request in step.requests:
                if request.kind == "outside":
                    continue
                elements = touched.setdefault(request.array, set())
                for k in range(request.width):
                    elements.update(e + k for e in request.elements)
    for finding in recording.report.findings:  # an array that was accessed out of bounds only
        for side in getattr(finding, "sides", ()):
            if side.array in recording.arrays:
                touched.setdefault(side.array, set()).update(() if side.element is None else [side.element])
    return touched


def _window(touched, rows, cols, sector):
    """Return (first row, end, first column, end) of the touched elements, in whole sectors and limited in size."""
    if not touched:
        return 0, min(rows, 1), 0, min(cols, MOST_CELLS)
    elements = np.fromiter(touched, np.int64)
    row, col = elements // cols, elements % cols
    c0, c1 = int(col.min()) // sector * sector, min(cols, -(-int(col.max() + 1) // sector) * sector)
    c1 = min(c1, c0 + MOST_CELLS)
    r0 = int(row.min())
    return r0, min(int(row.max()) + 1, r0 + max(1, MOST_CELLS // (c1 - c0))), c0, c1


def _c_strides(shape, itemsize):
    strides = []
    for n in reversed(shape):
        strides.insert(0, itemsize)
        itemsize *= n
    return strides


def _code(dtype):
    """How values travel: as JavaScript's typed arrays have them. None: they are not shown."""
    if dtype.kind == "f":
        return "f8" if dtype.itemsize == 8 else "f4"
    if dtype.kind in "iu":
        return "f8" if dtype.itemsize == 8 else f"{dtype.kind}{dtype.itemsize}"
    return "u1" if dtype.kind == "b" else None


def _column(values, code):
    with np.errstate(all="ignore"):
        return _base64(np.ascontiguousarray(values).astype(f"<{code}").tobytes())


def _base64(content):
    return base64.b64encode(bytes(content)).decode()


# ---------------------------------------------------------------- the source


def _source(recording):
    """Return ([line, text] of each displayed line, {line: its row}); inlined functions follow the kernel."""
    lines = {step.line for trace in recording.traces.values() for step in trace.steps}
    lines |= {side.line for finding in recording.report.findings for side in getattr(finding, "sides", ())}
    shown, rows = [], {}
    for position, (name, filename, first_line, texts) in enumerate(_functions(recording.function)):
        own = {line for line in lines if first_line <= line < first_line + len(texts)} - rows.keys()
        if position and not own:
            continue
        if position:
            shown.append([0, f"# {name}, {_shown_file(filename)}"])
        for k, text in enumerate(texts):
            if first_line + k not in rows:
                rows[first_line + k] = len(shown)
            shown.append([first_line + k, text])
    for line in sorted(lines - rows.keys()):
        rows[line] = len(shown)
        shown.append([line, linecache.getline(recording.program.filename, line).rstrip()])
    return shown, rows


def _functions(function, depth=3):
    """(name, file, first line, its lines) of a kernel and of the device functions that it calls."""
    functions, visited = [], set()

    def visit(function, depth):
        if id(function) in visited:
            return
        visited.add(id(function))
        try:
            lines, first_line = inspect.getsourcelines(function)
        except (OSError, TypeError):
            lines, first_line = [], 0
        texts = _dedented([line.rstrip() for line in lines])
        functions.append((function.__name__, function.__code__.co_filename, first_line, texts))
        called = [function.__globals__.get(name) for name in function.__code__.co_names]
        called += [cell.cell_contents for cell in function.__closure__ or () if cell.cell_contents is not function]
        for other in called:
            if depth and hasattr(other, "py_func"):
                visit(other.py_func, depth - 1)

    visit(function, depth)
    return functions


def _dedented(texts):
    margin = min((len(text) - len(text.lstrip()) for text in texts if text.strip()), default=0)
    return [text[margin:] for text in texts]
