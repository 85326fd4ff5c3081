"""What an observed launch did: findings in sentences, counts per source line, a table, a picture.

Counts are of accesses by threads; requests are of warps (the accesses that the lanes of a warp make together); sectors
are the 32-byte pieces of memory that a request touches, which is what a GPU moves. Coalescing efficiency is the bytes
that were asked for over the bytes of the sectors moved.
"""

import base64
import html
import io
import linecache
from dataclasses import asdict, dataclass, field

DRAWN = 256  # threads that a picture shows
KEPT = 50  # findings of one kind that are kept; the rest are counted
# The course's colours, for pictures: reads, writes, atomics; ink and faint text.
_KINDS = {"load": ("#0072B2", "reads"), "store": ("#D55E00", "writes"), "atomic": ("#009E73", "updates")}
INK, FAINT = "#22272B", "#66707A"
COUNTS = (
    "global_loads",
    "global_stores",
    "global_atomics",
    "shared_loads",
    "shared_stores",
    "shared_atomics",
    "bytes_loaded",
    "bytes_stored",
    "global_requests",
    "shared_requests",
    "sectors",
    "lines_128",
    "bytes_wanted",
    "bank_conflicts",
    "barriers",
    "branches",
    "divergent_branches",
)


@dataclass
class Finding:
    """Something wrong. kind: "race", "out_of_bounds", "divergent_barrier" or "uninitialized_read".

    lines: of the source; threads: (x, y, z) each; block: its number; array: its name; index: of the element.
    """

    kind: str
    kernel: str
    lines: list
    threads: list
    block: int | None
    array: str
    index: tuple | None
    sentence: str
    times: int = 1

    def __str__(self):
        return self.sentence if self.times == 1 else f"{self.sentence} ({self.times:,} times in this launch.)"


@dataclass
class Report:
    """The result of `observe`. `ok` is True if nothing wrong was seen."""

    kernel: str
    filename: str
    grid: tuple
    block: tuple
    races: list = field(default_factory=list)
    out_of_bounds: list = field(default_factory=list)
    divergent_barriers: list = field(default_factory=list)
    uninitialized_reads: list = field(default_factory=list)
    counts: dict = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    lines: dict = field(default_factory=dict)
    touched: dict = field(default_factory=dict)
    seen: dict = field(default_factory=dict)
    arrays: dict = field(default_factory=dict)  # name: (address of the first element, shape, bytes of an element)

    @property
    def findings(self):
        return [*self.races, *self.out_of_bounds, *self.divergent_barriers, *self.uninitialized_reads]

    @property
    def ok(self):
        return not self.findings

    @property
    def coalescing(self):
        """Bytes asked for over bytes moved in global memory, 0 to 1; None without global accesses."""
        return self.counts["bytes_wanted"] / (32 * self.counts["sectors"]) if self.counts["sectors"] else None

    # ---------------- filled while a kernel is observed

    def count(self, name, line, amount=1, space="global"):
        if name.startswith("bytes_") and space != "global":
            name = f"shared_{name}"
        self.counts[name] = self.counts.get(name, 0) + amount
        per_line = self.lines.setdefault(line, {})
        per_line[name] = per_line.get(name, 0) + amount

    def touch(self, name, space, kind, thread, address):
        """Remembered for `draw`: thread is numbered in the whole launch."""
        cells = self.touched.setdefault((name, space), {})
        if thread < DRAWN and len(cells) < 8192:
            cells.setdefault((thread, address), set()).add(kind)

    def _note(self, into, finding, key):
        known = self.seen.get((finding.kind, key))
        if known is not None:
            known.times += 1
        elif len(into) < KEPT:
            self.seen[finding.kind, key] = finding
            into.append(finding)

    def race(self, finding, key, reach):
        """reach: 0 within a warp, 1 within a block, 2 between blocks. Of one pair of lines the widest is told."""
        finding.reach = reach
        known = self.seen.get(("race", key))
        if known is not None and reach > known.reach:
            finding.times = known.times + 1
            known.__dict__.update(finding.__dict__)
        else:
            self._note(self.races, finding, key)

    def outside(self, finding, array, line):
        self._note(self.out_of_bounds, finding, (array, line))

    def uninitialized(self, finding, array, line):
        self._note(self.uninitialized_reads, finding, (array, line))

    # ---------------- shown

    def to_json(self):
        """The report as plain Python objects, for tools."""
        kinds = ("races", "out_of_bounds", "divergent_barriers", "uninitialized_reads")
        found = {kind: [asdict(f) | {"text": str(f)} for f in getattr(self, kind)] for kind in kinds}
        return {
            "kernel": self.kernel,
            "grid": list(self.grid),
            "block": list(self.block),
            "ok": self.ok,
            **found,
            "counts": self.counts,
            "coalescing": self.coalescing,
            "lines": {str(line): counts for line, counts in sorted(self.lines.items())},
        }

    def rows(self):
        """(line, source text, {column: number}) for each line that touches memory or branches."""
        for line, counts in sorted(self.lines.items()):
            sectors, requests = counts.get("sectors", 0), counts.get("global_requests", 0)
            yield (
                line,
                linecache.getline(self.filename, line).strip(),
                {
                    "loads": counts.get("global_loads", 0) + counts.get("shared_loads", 0),
                    "stores": counts.get("global_stores", 0)
                    + counts.get("shared_stores", 0)
                    + counts.get("global_atomics", 0)
                    + counts.get("shared_atomics", 0),
                    "sectors a request": sectors / requests if requests else None,
                    "bank conflicts": counts.get("bank_conflicts", 0) if counts.get("shared_requests") else None,
                    "barriers": counts.get("barriers") or None,
                    "divergent": counts.get("divergent_branches") or None,
                },
            )

    def _headline(self):
        counts = self.counts
        parts = [f"{counts['global_loads']:,} loads and {counts['global_stores']:,} stores in global memory"]
        if counts["shared_loads"] or counts["shared_stores"]:
            parts.append(f"{counts['shared_loads']:,} and {counts['shared_stores']:,} in shared memory")
        if counts["sectors"]:
            parts.append(f"{counts['sectors']:,} sectors of 32 bytes moved, {self.coalescing:.0%} of them asked for")
        return "; ".join(parts)

    def _verdict(self):
        if self.ok:
            return (
                "Nothing wrong was seen: no race, nothing out of bounds, no divergent barrier, "
                "no read of memory that nothing had written."
            )
        return "\n".join(f"- {finding}" for finding in self.findings)

    def __repr__(self):
        lines = [
            f"{self.kernel}, grid {self.grid}, block {self.block}, observed",
            self._verdict(),
            "",
            self._headline(),
            "",
        ]
        names = ["loads", "stores", "sectors a request", "bank conflicts", "barriers", "divergent"]
        rows = [(str(line), *(_text(values[n]) for n in names), text[:60]) for line, text, values in self.rows()]
        header = ("line", *names, "source")
        widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(header))]
        for row in [header, *rows]:
            cells = [
                cell.ljust(w) if k == len(header) - 1 else cell.rjust(w)
                for k, (cell, w) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_html_(self):
        names = ["loads", "stores", "sectors a request", "bank conflicts", "barriers", "divergent"]
        findings = "".join(f"<li>{html.escape(str(f))}</li>" for f in self.findings)
        verdict = f"<ul>{findings}</ul>" if findings else f"<p>{html.escape(self._verdict())}</p>"
        head = "".join(f"<th>{n}</th>" for n in names)
        body = "".join(
            f"<tr><td>{line}</td>"
            + "".join(f"<td>{_text(values[n])}</td>" for n in names)
            + f"<td style='text-align:left'><code>{html.escape(text)}</code></td></tr>"
            for line, text, values in self.rows()
        )
        title = f"{self.kernel}, grid {self.grid}, block {self.block}, observed"
        return (
            f"<div><strong>{html.escape(title)}</strong>{verdict}<p>{self._headline()}</p>"
            f"<table><thead><tr><th>line</th>{head}<th style='text-align:left'>source</th></tr></thead>"
            f"<tbody>{body}</tbody></table></div>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def draw(self, array=None):
        """A figure of who reads and writes what: threads on the left, an array's elements on the right.

        Takes the name of an array, or draws the one with the most accesses. Elements stand in their order in memory;
        in global memory grey bands are sectors of 32 bytes, what a GPU moves. Shows the first 256 threads.
        """
        names = {key[0]: key for key, cells in self.touched.items() if cells}
        if not names:
            raise ValueError(f"{self.kernel} touched no array that threads share: there is nothing to draw")
        if array is not None and array not in names:
            raise ValueError(f"array is {array!r}; this launch touched {', '.join(sorted(names))}")
        name, space = names[array] if array else max(names.values(), key=lambda k: len(self.touched[k]))
        cells = self.touched[name, space]
        kinds = [k for k in _KINDS if any(k in seen for seen in cells.values())]
        threads = sorted({thread for thread, _ in cells})
        elements, gaps = self._elements(name, {address for _, address in cells})
        rows = max(len(threads), len(elements))
        height = min(9.5, max(1.6, 0.15 * rows)) + 0.9
        figure = _new_figure(height, f"{self.kernel}: who touches {name}, {space} memory")
        figure.text(0.02, 1 - 0.25 / height, f"{self.kernel}: who touches {name}", fontsize=12, fontweight="bold",
                    color=INK, va="center")  # fmt: skip
        where = f"{space} memory, shape {self.arrays[name][1]}"
        if space == "global":
            where += "; grey bands are sectors of 32 bytes"
        if self.block[0] * self.block[1] * self.block[2] * self.grid[0] * self.grid[1] * self.grid[2] > DRAWN:
            where += f"; the first {DRAWN} threads"
        figure.text(0.02, 1 - 0.47 / height, where, fontsize=9, color=FAINT, va="center")
        for k, kind in enumerate(kinds):
            axes = figure.add_axes((k / len(kinds), 0.02, 1 / len(kinds), 1 - 0.6 / height - 0.02))
            pairs = [pair for pair, seen in cells.items() if kind in seen]
            self._draw_panel(axes, kind, pairs, threads, elements, gaps, name, space, height - 1.0, len(kinds))
        return figure

    def _elements(self, name, addresses):
        """The addresses to draw, and which of them follow a gap: neighbours that nothing touched, if they are few."""
        itemsize = self.arrays[name][2]
        first, last = min(addresses), max(addresses)
        span = (last - first) // itemsize + 1
        if span <= max(64, 4 * len(addresses)) and span <= 4 * DRAWN:
            return [first + k * itemsize for k in range(span)], set()
        elements = sorted(addresses)
        return elements, {b for a, b in zip(elements, elements[1:], strict=False) if b - a > itemsize}

    def _draw_panel(self, axes, kind, pairs, threads, elements, gaps, name, space, inches, panels):
        from matplotlib.collections import LineCollection, PatchCollection
        from matplotlib.patches import Rectangle

        start, shape, itemsize = self.arrays[name]
        colour, verb = _KINDS[kind]
        left, right, wide = 0.24, 0.74, 0.024 * panels
        tall = 1 / len(elements)
        where_thread = {t: (k + 0.5) / len(threads) for k, t in enumerate(threads)}
        where_cell = {address: (k + 0.5) * tall for k, address in enumerate(elements)}
        many = len(pairs) > 600
        axes.add_collection(LineCollection(
            [[(left, where_thread[t]), (right, where_cell[a])] for t, a in pairs],
            colors=colour, linewidths=0.5 if many else 0.9, alpha=0.35 if many else 0.75, zorder=2,
        ))  # fmt: skip
        if space == "global":  # bands of a sector each, every other one darker
            sectors = {}
            for address, y in where_cell.items():
                sectors.setdefault(address // 32, []).append(y)
            for k, ys in enumerate(sectors.values()):
                low, high = min(ys) - tall / 2, max(ys) + tall / 2
                shade = "#CDD3D8" if k % 2 else "#E8EBED"
                axes.add_patch(Rectangle((right - 0.025, low), wide + 0.05, high - low, color=shade, lw=0, zorder=1))
        used = {address for _, address in pairs}
        boxes = [Rectangle((right, y - 0.4 * tall), wide, 0.8 * tall) for y in where_cell.values()]
        axes.add_collection(PatchCollection(
            boxes, facecolors=[colour if a in used else "white" for a in where_cell],
            edgecolors=[colour if a in used else "#C9CED3" for a in where_cell], linewidths=0.5, zorder=3,
        ))  # fmt: skip
        active = {thread for thread, _ in pairs}
        size = max(3, min(16, 200 * inches / len(threads) / 4))
        axes.scatter([left] * len(threads), list(where_thread.values()), s=size, zorder=3, linewidths=0.5,
                     color=[INK if t in active else "#C9CED3" for t in threads])  # fmt: skip
        room = max(1, int(inches / 0.14))  # labels that fit
        step = _step(len(threads), room)
        many_blocks = self.grid != (1, 1, 1)
        for t, y in where_thread.items():
            linear = t % self._block_size()
            if linear % step == 0 or len(threads) <= room:
                axes.text(left - 0.02, y, self._thread_name(linear), ha="right", va="center", fontsize=7, color=FAINT)
        group_of = (lambda t: t // self._block_size()) if many_blocks else (lambda t: t // 32)
        groups = {}
        for t, y in where_thread.items():
            groups.setdefault(group_of(t), []).append(y)
        for group, ys in groups.items() if many_blocks or len(groups) > 1 else ():
            axes.plot([0.115, 0.115], [min(ys), max(ys)], color="#C9CED3", linewidth=2, solid_capstyle="butt")
            axes.text(0.10, (min(ys) + max(ys)) / 2, f"{'block' if many_blocks else 'warp'} {group}", rotation=90,
                      ha="right", va="center", fontsize=7.5, color=FAINT)  # fmt: skip
        step = _step(len(elements), room)
        for k, (address, y) in enumerate(where_cell.items()):
            number = (address - start) // itemsize
            if k % step == 0:
                axes.text(right + wide + 0.035, y, _index(number, shape), ha="left", va="center", fontsize=7,
                          color=FAINT)  # fmt: skip
            if address in gaps:
                axes.plot([right - 0.01, right + wide + 0.01], [y - tall / 2] * 2, color=INK, linewidth=0.6, ls=":")
        axes.text(left, -0.012, "threads", ha="center", va="bottom", fontsize=8.5, color=INK)
        axes.text((left + right) / 2, -0.012, verb, ha="center", va="bottom", fontsize=9.5, color=colour,
                  fontweight="bold")  # fmt: skip
        axes.text(right + wide / 2, -0.012, name, ha="center", va="bottom", fontsize=8.5, color=INK, family="monospace")
        axes.set_xlim(0, 1)
        axes.set_ylim(1.005, -0.02 - 0.16 / inches)
        axes.axis("off")

    def _block_size(self):
        return self.block[0] * self.block[1] * self.block[2]

    def _thread_name(self, linear):
        x, y, z = self.block
        if y == z == 1:
            return str(linear)
        position = (linear % x, linear // x % y, linear // (x * y))
        return ", ".join(map(str, position[: 2 if z == 1 else 3]))


def _new_figure(height, summary):
    """A figure 7 inches wide that a notebook shows by itself, with or without pyplot."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_mimebundle_(self, include=None, exclude=None):
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
            encoded = base64.b64encode(buffer.getvalue()).decode()
            return {"image/png": encoded, "text/plain": summary}, {"image/png": {"width": 700}}

        def __repr__(self):
            return summary

    return Picture(figsize=(7, height), facecolor="white")


def _step(count, room):
    """Every how many of them a label stands: a power of two."""
    step = 1
    while count / step > room:
        step *= 2
    return step


def _index(number, shape):
    """The index of the element with this number in an array of this shape, in C order."""
    parts = []
    for length in reversed(shape[1:]):
        number, part = divmod(number, max(length, 1))
        parts.append(part)
    return ", ".join(map(str, [number, *reversed(parts)]))


def _text(value):
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
