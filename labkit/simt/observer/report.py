"""What an observed launch did: findings in sentences, counts per source line, a table, a picture.

Counts are of accesses by threads; requests are of warps (the accesses that the lanes of a warp make together); sectors
are the 32-byte pieces of memory that a request touches, which is what a GPU moves. Coalescing efficiency is the bytes
that were asked for over the bytes of the sectors moved.
"""

import html
import linecache
from collections import Counter
from dataclasses import asdict, dataclass, field

from labkit.simt.observer.drawing import DRAWN, draw_accesses

KEPT = 50  # findings of one kind that are kept; the rest are counted
COUNTS = ("global_loads", "global_stores", "global_atomics", "shared_loads", "shared_stores", "shared_atomics",
          "bytes_loaded", "bytes_stored", "global_requests", "shared_requests", "sectors", "lines_128", "bytes_wanted",
          "bank_conflicts", "barriers", "branches", "divergent_branches", "out_of_bounds_writes",
          "out_of_bounds_reads")  # fmt: skip
COLUMNS = ("loads", "stores", "sectors a request", "bank conflicts", "barriers", "divergent")  # of the table of lines


@dataclass
class KernelFinding:
    """Something wrong. kind: "race", "out_of_bounds", "divergent_barrier" or "uninitialized_read". Or what need not be
    wrong: a "benign_race" or a "warning".

    lines: of the source; threads: (x, y, z) each; block: its number; array: its name; index: of the element.
    Of a race: accesses: what the two threads do, such as ("writes", "reads"); advice and one_warp: the parts of
    `sentence` that say what to do, for all threads and for those of a warp; barrier: whether the advice is a barrier.
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
    accesses: tuple = ()
    advice: str = ""
    barrier: bool = False
    one_warp: str = ""

    def __str__(self):
        return self.sentence if self.times == 1 else f"{self.sentence} ({self.times:,} times in this launch.)"


@dataclass
class Report:
    """The result of `observe`. `ok` is True if nothing wrong was seen; `warnings` are of what may be meant, and
    `benign_races` are races in which all threads store the value that is there. An atomic out of bounds is a write."""

    kernel: str
    filename: str
    grid: tuple
    block: tuple
    races: list = field(default_factory=list)
    out_of_bounds_writes: list = field(default_factory=list)
    out_of_bounds_reads: list = field(default_factory=list)
    divergent_barriers: list = field(default_factory=list)
    uninitialized_reads: list = field(default_factory=list)
    warnings: list = field(default_factory=list)
    benign_races: list = field(default_factory=list)
    counts: dict = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    lines: dict = field(default_factory=dict)
    touched: dict = field(default_factory=dict)
    seen: dict = field(default_factory=dict)
    arrays: dict = field(default_factory=dict)  # name: (address of the first element, shape, bytes of an element)
    instructions: dict = field(default_factory=dict)  # "shfl_xor_sync", "ptx.cp_async_4": how many threads' calls
    launch: object = None  # what it began with, a KeptLaunch, for `play`
    player: object = None  # what plays it; observe sets it

    @property
    def out_of_bounds(self):
        """All accesses out of bounds, writes first: they change what belongs to something else."""
        return [*self.out_of_bounds_writes, *self.out_of_bounds_reads]

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

    def used(self, instruction):
        self.instructions[instruction] = self.instructions.get(instruction, 0) + 1

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
        """reach: 0 within a warp, 1 within a block, 2 between blocks. Of one pair of lines the widest is kept, and
        one that can change a result rather than a benign one."""
        finding.reach = reach
        if finding.kind == "benign_race":
            if ("race", key) not in self.seen:
                self._note(self.benign_races, finding, key)
            return
        benign = self.seen.pop(("benign_race", key), None)
        if benign is not None:
            self.benign_races.remove(benign)
        known = self.seen.get(("race", key))
        if known is not None and reach > known.reach:
            finding.times = known.times + 1
            known.__dict__.update(finding.__dict__)
        else:
            self._note(self.races, finding, key)

    def outside(self, finding, array, line, writes):
        """writes: whether the access out of bounds writes; a line that reads and writes has two findings."""
        name = "out_of_bounds_writes" if writes else "out_of_bounds_reads"
        self.count(name, line)
        self._note(getattr(self, name), finding, (array, line, writes))

    def uninitialized(self, finding, array, line):
        self._note(self.uninitialized_reads, finding, (array, line))

    def wrapped_index(self, finding, array, line):
        self._note(self.warnings, finding, (array, line))

    # ---------------- shown

    def to_json(self):
        """The report as plain Python objects, for tools."""
        kinds = ("races", "out_of_bounds_writes", "out_of_bounds_reads", "divergent_barriers", "uninitialized_reads",
                 "benign_races", "warnings")  # fmt: skip
        by_kind = {kind: [asdict(f) | {"text": str(f)} for f in getattr(self, kind)] for kind in kinds}
        return {
            "kernel": self.kernel, "grid": list(self.grid), "block": list(self.block), "ok": self.ok, **by_kind,
            "counts": self.counts, "coalescing": self.coalescing,
            "lines": {str(line): counts for line, counts in sorted(self.lines.items())},
        }  # fmt: skip

    def rows(self):
        """(line, source text, {column: number}) for each line that touches memory or branches."""
        for line, counts in sorted(self.lines.items()):
            number = Counter(counts)
            values = (
                number["global_loads"] + number["shared_loads"],
                sum(number[f"{space}_{kind}"] for space in ("global", "shared") for kind in ("stores", "atomics")),
                number["sectors"] / number["global_requests"] if number["global_requests"] else None,
                number["bank_conflicts"] if number["shared_requests"] else None,
                number["barriers"] or None,
                number["divergent_branches"] or None,
            )
            yield line, linecache.getline(self.filename, line).strip(), dict(zip(COLUMNS, values, strict=True))

    def _headline(self):
        counts = self.counts
        parts = [f"{counts['global_loads']:,} loads and {counts['global_stores']:,} stores in global memory"]
        if counts["shared_loads"] or counts["shared_stores"]:
            parts.append(f"{counts['shared_loads']:,} and {counts['shared_stores']:,} in shared memory")
        if counts["sectors"]:
            parts.append(f"{counts['sectors']:,} sectors of 32 bytes moved, {self.coalescing:.0%} of these bytes used")
        if self.out_of_bounds:
            writes, reads = counts["out_of_bounds_writes"], counts["out_of_bounds_reads"]
            parts.append(f"out of bounds: {_counted(writes, 'write')} and {_counted(reads, 'read')}")
        return "; ".join(parts)

    def _verdict(self):
        lines = [f"- {finding}" for finding in self.findings]
        if self.ok:
            race = "no race that could change a result" if self.benign_races else "no race"
            lines = [
                f"Nothing wrong was seen: {race}, nothing out of bounds, no divergent barrier, "
                "no read of memory that nothing had written."
            ]
        lines += [f"- {race}" for race in self.benign_races]
        return "\n".join([*lines, *(f"- warning: {warning}" for warning in self.warnings)])

    def _title(self):
        return f"{self.kernel}, grid {self.grid}, block {self.block}, observed"

    def __repr__(self):
        rows = [("line", *COLUMNS, "source")]
        rows += [(str(line), *map(_text, values.values()), text[:60]) for line, text, values in self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self._title(), self._verdict(), "", self._headline(), ""]
        for *numbers, text in rows:
            lines.append("  ".join([*(n.rjust(w) for n, w in zip(numbers, widths, strict=False)), text]).rstrip())
        return "\n".join(lines)

    def _repr_html_(self):
        lines = self._verdict().split("\n")
        verdict = "".join(f"<li>{html.escape(line.removeprefix('- '))}</li>" for line in lines)
        verdict = f"<ul>{verdict}</ul>" if self.findings or len(lines) > 1 else f"<p>{html.escape(lines[0])}</p>"
        head = "".join(f"<th>{column}</th>" for column in COLUMNS)
        body = "".join(
            f"<tr><td>{line}</td>{''.join(f'<td>{_text(value)}</td>' for value in values.values())}"
            f"<td style='text-align:left'><code>{html.escape(text)}</code></td></tr>"
            for line, text, values in self.rows()
        )
        return (
            f"<div><strong>{html.escape(self._title())}</strong>{verdict}<p>{self._headline()}</p>"
            f"<table><thead><tr><th>line</th>{head}<th style='text-align:left'>source</th></tr></thead>"
            f"<tbody>{body}</tbody></table></div>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def draw(self, array=None):
        """Draw which threads read and write which elements: threads on the left, an array's elements on the right.

        Takes the name of an array, or draws the one with the most accesses. Elements are in memory order;
        in global memory grey bands are sectors of 32 bytes, the unit of a GPU's transfers. Shows the first 256 threads.
        """
        return draw_accesses(self, array)

    def play(self, block=None):
        """The launch step by step: a page element with the source, the threads of a block and the arrays.

        block: the number of the block to show first, or its (x, y, z); the first with a fault if None, else block 0.
        All blocks can be chosen in a launch of up to 16 with 2,048 threads together; of a larger one, one is recorded.
        A race between warps of a block can also be played in an order that gives a wrong result, and in a right one.
        Returns a Player, which a notebook shows; its save("file.html") writes one HTML file. The launch runs once more,
        on a copy of what it began with. Raises ValueError for arrays of more than 16 MB together.
        """
        if self.player is None:
            raise ValueError(f"{self.kernel}: this report has no launch to play; play is for what observe returns")
        return self.player(self, block)


def _counted(count, noun):
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _text(value):
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
