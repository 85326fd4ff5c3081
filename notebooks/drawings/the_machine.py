"""The figures of the lessons "The machine" and "Occupancy", in the course's style.

    split(side)                 which lanes of a warp work while it takes one branch after the other
    hidden(warps)               what a scheduler does while its warps wait
    schedule(blocks, places)    which block runs where and when, if all take equally long
    branches(series)            what two branches cost, and up to 32
    bytes_in_flight(series)     bandwidth over the bytes that are in flight, predicted and measured
    occupancy(series)           rates over occupancy, with little and with much work in each thread
    waves(series)               time over the number of blocks
    spills(series)              time over the registers that a thread may have
    memories(series)            registers, shared memory, L1, L2 and memory: size, latency, bandwidth
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    LINES,
    MARKERS,
    PALE,
    SMALLEST,
    STYLE,
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    count_of,
    draw_box,
    grid_along,
    label_line_ends,
    new_figure,
    note,
    panel_title,
    taken,
    widen_left,
    width_of,
)

DASHED = (0, (4, 3))
BARS = {GREY: "#CDD3D8", VERMILLION: "#F0C3A3", BLUE: "#A9CCE4"}  # paler than a bar that stands alone


class NotRecorded:
    """A placeholder for a figure."""

    def __init__(self, title: str):
        self.summary = f"{title}: not recorded yet. On a GPU, `labkit bench machine` records it."

    def __repr__(self) -> str:
        return self.summary


def split(side: Sequence[int], title: str = "While a warp runs one branch, the other lanes are masked") -> CourseFigure:
    """side: for each lane of a warp 0 or 1, which branch it takes. A row for each branch that some lane takes: the
    lanes that work in it, and those that are masked."""
    side = [int(lane) for lane in side]
    if len(side) != 32 or not set(side) <= {0, 1}:
        raise ValueError("side must hold 0 or 1 for each of the 32 lanes of a warp")
    rows = sorted(set(side))
    left, top = 0.60, 0.84
    cell = (WIDTH - left - 0.20) / len(side)
    figure, ax = canvas(top + 0.36 * len(rows) + 0.30, title, "; ".join(
        f"branch {row}: {side.count(row)} lanes work, {32 - side.count(row)} are masked" for row in rows) + ".")
    with rc_context(STYLE):
        for lane in (0, 8, 16, 24, 31):
            ax.text(left + (lane + 0.5) * cell, top - 0.12, lane, ha="center", fontsize=SMALLEST, color=FAINT)
        ax.text(left - 0.1, top - 0.12, "lane", ha="right", fontsize=SMALLEST, color=FAINT)
        for i, row in enumerate(rows):
            y, colour = top + 0.36 * i, (BLUE, VERMILLION)[row]
            ax.text(left - 0.1, y + 0.13, ("if", "else")[row], ha="right", va="center", fontsize=SMALLEST,
                    color=TEXT[colour])
            for lane, taken_by in enumerate(side):
                draw_box(ax, left + lane * cell, y, cell, 0.26, fill=colour if taken_by == row else PALE[GREY])
        note(ax, top + 0.36 * len(rows) + 0.12, "Time goes down. The pale lanes are masked: the instruction does "
             "nothing for them.")
    return figure


def issued(warps: int, wait: int, clocks: int) -> list[int | None]:
    """Which warp a scheduler issues an instruction of, in each clock: the one that has waited longest among those whose
    last instruction is more than `wait` clocks ago. None where there is none."""
    ready, order, schedule = [0] * warps, list(range(warps)), []
    for clock in range(clocks):
        warp = next((warp for warp in order if ready[warp] <= clock), None)
        schedule.append(warp)
        if warp is not None:
            ready[warp] = clock + wait + 1
            order.append(order.pop(order.index(warp)))
    return schedule


def hidden(warps: Sequence[int] = (1, 3, 6), wait: int = 5, clocks: int = 30) -> CourseFigure:
    """A panel for each number of warps: in which clocks each of them issues an instruction, and in which the scheduler
    issues none. After each instruction a warp waits `wait` clocks for its result."""
    schedules = [issued(count, wait, clocks) for count in warps]
    left, tall, gap = 0.92, 0.18, 0.46
    cell = (WIDTH - left - 0.20) / clocks
    height = 0.56 + sum(tall * (count + 1) + gap for count in warps)
    figure, ax = canvas(height, f"{wait + 1} warps hide a wait of {wait} clocks", "; ".join(
        f"{count_of(count, 'warp')}: an instruction in {sum(one is not None for one in row)} of {clocks} clocks"
        for count, row in zip(warps, schedules, strict=True)) + ".")
    with rc_context(STYLE):
        y = 0.70
        for count, row in zip(warps, schedules, strict=True):
            busy = sum(one is not None for one in row)
            ax.text(left, y - 0.04, f"{count_of(count, 'warp')}: an instruction in {busy} of {clocks} clocks",
                    fontsize=SMALLEST)
            for warp in range(count):
                for clock in range(clocks):
                    draw_box(ax, left + clock * cell, y + 0.04 + warp * tall, cell, tall,
                             fill=BLUE if row[clock] == warp else PALE[GREY])
                ax.text(left - 0.08, y + 0.04 + (warp + 0.5) * tall, f"warp {warp}", ha="right", va="center",
                        fontsize=SMALLEST, color=FAINT)
            y += 0.04 + tall * count
            for clock in range(clocks):
                draw_box(ax, left + clock * cell, y, cell, tall, fill=GREEN if row[clock] is not None else "white",
                         edge="#C9CED3")
            ax.text(left - 0.08, y + 0.5 * tall, "scheduler", ha="right", va="center", fontsize=SMALLEST)
            y += tall + gap - 0.04
    return figure


def schedule(blocks: int = 14, places: int = 6) -> CourseFigure:
    """A row for each block that the GPU can hold, time to the right; all blocks take equally long."""
    waves = -(-blocks // places)
    left, wide, tall, top = 0.76, min(1.6, 5.4 / waves), 0.25, 0.84
    figure, ax = canvas(top + tall * places + 0.36, f"{blocks} blocks, {places} at a time", (
        f"{blocks} blocks in {waves} waves of {places}: {blocks} of {waves * places} slots are used, and "
        f"{waves * places - blocks} in the last wave stay empty."))
    with rc_context(STYLE):
        for wave in range(waves):
            ax.text(left + (wave + 0.5) * wide, top - 0.10, f"wave {wave + 1}", ha="center", fontsize=SMALLEST,
                    color=FAINT)
            for slot in range(places):
                block = wave * places + slot
                draw_box(ax, left + wave * wide, top + slot * tall, wide, tall,
                         f"block {block}" if block < blocks else "", ink="white",
                         fill=(BLUE if wave < waves - 1 else VERMILLION) if block < blocks else PALE[GREY])
        for slot in range(places):
            ax.text(left - 0.08, top + (slot + 0.5) * tall, f"slot {slot}", ha="right", va="center_baseline",
                    fontsize=SMALLEST, color=FAINT)
        ax.text(left, top + tall * places + 0.16, "time \u2192", fontsize=SMALLEST, color=FAINT, va="center")
    return figure


def branches(series: dict | None) -> CourseFigure | NotRecorded:
    """Bars for one branch and two; below them the time over the number of branches, by lanes and by warps."""
    if series is None:
        return NotRecorded("What a split warp costs")
    rows, ways = series["branches"], series["ways"]
    one = rows[0]["us"]["p50"]
    figure, axes = new_figure([1.0, 1.9], "A warp pays for every branch that one of its lanes takes", "; ".join(
        f"{row['name']}: {number(row['us']['p50'])} us" for row in rows) + "; " + ", ".join(
        f"{row['ways']} branches: {number(row['lanes']['p50'])} us by lane, {number(row['warps']['p50'])} by warp"
        for row in ways) + ".", gap=0.62)
    with rc_context(STYLE):
        bars, lines = axes
        for y, row in enumerate(rows):
            bars.barh(y, row["us"]["p50"], color=(GREY, GREEN, VERMILLION)[y], height=0.62)
            times = f", {row['us']['p50'] / one:.2f} times" if y else ""
            bars.text(row["us"]["p50"], y, f" {number(row['us']['p50'])} \u00b5s{times}", va="center",
                      fontsize=SMALLEST)
        bars.set_yticks(range(len(rows)), [row["name"] for row in rows])
        bars.invert_yaxis()
        bars.set_xlim(0, 1.5 * max(row["us"]["p50"] for row in rows))
        _only_bars(bars)
        panel_title(bars, taken(series))
        counts = [row["ways"] for row in ways]
        one_lane_us = ways[0]["lanes"]["p50"]
        lines.plot(counts, [one_lane_us * n for n in counts], color=INK, linestyle=DASHED, linewidth=1.1)
        ends = [(counts[-1], one_lane_us * counts[-1], "branches \u00d7 one", INK)]
        for name, colour, marker in (("lanes", VERMILLION, "o"), ("warps", GREEN, "s")):
            values = [row[name]["p50"] for row in ways]
            lines.plot(counts, values, color=colour, marker=marker, linestyle="none")
            ends.append((counts[-1], values[-1], f"by {name[:-1]}", TEXT[colour]))
        _log(lines, counts, "branches that the lanes of a warp, or whole warps, take")
        lines.set_yscale("log")
        lines.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        lines.yaxis.set_minor_locator(NullLocator())
        _narrow(lines)
        grid_along(lines, "y")
        label_line_ends(lines, ends, gap=0.12)
        panel_title(lines, "\u00b5s over the number of branches")
        widen_left(bars, [row["name"] for row in rows])
    return figure


def _log(ax, ticks, name: str) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(name)


def _only_bars(ax) -> None:
    """No scale: each bar has its number behind it."""
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(length=0)


def _narrow(ax, by: float = 0.19) -> None:
    """Room on the right for the names of lines."""
    box = ax.get_position()
    ax.set_position((box.x0, box.y0, box.width - by, box.height))


def farthest(series: dict) -> dict:
    """The row of the GPU's memory itself: its latency, by a chain of addresses, and its bandwidth."""
    return next(row for row in series["memories"] if row["name"] == "memory")


def predicted_gbs(bytes_in_flight: float, latency_ns: float, most_gbs: float) -> float:
    """Little's law, and the limit above which more in flight only queue: bytes / ns are GB/s."""
    return min(bytes_in_flight / latency_ns, most_gbs)


def bytes_in_flight(series: dict | None) -> CourseFigure | NotRecorded:
    """Dots: measured, a colour for each number of loads per thread. The line: bytes over latency, up to what the memory
    gives at most in the same recording."""
    if series is None:
        return NotRecorded("Bandwidth over bytes in flight")
    rows, memory = series["in_flight"], farthest(series)
    latency, peak = memory["latency_ns"], memory["gbs"]
    need = peak * latency
    figure, (ax,) = new_figure([2.9], "Bandwidth grows with the bytes in flight, up to the memory's limit", (
        f"Bandwidth over bytes in flight: with {number(latency)} ns and at most {number(peak)} GB/s, the line bends at "
        f"{need / 1e3:,.0f} KB. Measured: from {number(min(row['gbs'] for row in rows))} to "
        f"{number(max(row['gbs'] for row in rows))} GB/s."))
    with rc_context(STYLE):
        loads = sorted({row["loads"] for row in rows})
        for k, colour, marker in zip(loads, LINES, MARKERS, strict=False):
            these = [row for row in rows if row["loads"] == k]
            ax.plot([row["bytes_in_flight"] / 1e3 for row in these], [row["gbs"] for row in these], color=colour,
                    marker=marker, linestyle="none", markersize=6, alpha=0.85, label=f"{k}")
        xs = np.geomspace(min(row["bytes_in_flight"] for row in rows), max(row["bytes_in_flight"] for row in rows), 200)
        ax.plot(xs / 1e3, [predicted_gbs(x, latency, peak) for x in xs], color=INK, linestyle=DASHED, linewidth=1.2,
                label="predicted")
        ax.axvline(need / 1e3, color=GREY, linewidth=0.9)
        ax.text(need / 1e3, peak * 0.012, f" {need / 1e3:,.0f} KB", fontsize=SMALLEST, color=FAINT)
        ax.set_xscale("log")
        ax.set_yscale("log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("KB in flight on the whole GPU: SMs \u00d7 threads \u00d7 loads \u00d7 4 bytes")
        grid_along(ax, "y")
        ax.legend(title="loads per thread", frameon=False, fontsize=SMALLEST, title_fontsize=SMALLEST, loc="upper left")
        panel_title(ax, f"GB/s. {taken(series)}")
    return figure


def occupancy(series: dict | None) -> CourseFigure | NotRecorded:
    """Two panels, reading and multiply-adds, each over occupancy with little and with much work in a thread."""
    if series is None:
        return NotRecorded("Rates over occupancy")
    rows = series["occupancy"]
    works = list(dict.fromkeys(row["work"] for row in rows))
    figure, axes = new_figure([1.7] * len(works), "Occupancy helps where each thread has little in flight", "; ".join(
        f"{row['work']} {row['each']}, occupancy {row['occupancy']:.0%}: {number(row['rate'])} {row['unit']}"
        for row in rows) + ".", gap=0.62)
    nouns = {"reading": "load", "multiply-adds": "chain"}
    with rc_context(STYLE):
        for ax, work in zip(axes, works, strict=True):
            of_work = [row for row in rows if row["work"] == work]
            ends = []
            for each, colour, marker in zip(sorted({row["each"] for row in of_work}), (VERMILLION, BLUE), "os",
                                            strict=False):
                these = sorted((row for row in of_work if row["each"] == each), key=lambda row: row["occupancy"])
                xs, ys = [row["occupancy"] for row in these], [row["rate"] for row in these]
                ax.plot(xs, ys, color=colour, marker=marker, clip_on=False)
                noun = nouns.get(work, "")
                ends.append((xs[-1], ys[-1], f"{each} {noun}{'s' if each > 1 else ''} per thread", TEXT[colour]))
            ticks = sorted({row["occupancy"] for row in of_work})
            _log(ax, ticks, "")
            ax.set_xticks(ticks, [f"{tick:.0%}" if tick > 0.1 else f"{tick:.1%}" for tick in ticks])
            ax.set_ylim(0, 1.1 * max(row["rate"] for row in of_work))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            _narrow(ax, 0.22)
            grid_along(ax, "y")
            label_line_ends(ax, ends, gap=0.12)
            suffix = f". {taken(series)}" if ax is axes[0] else ""
            panel_title(ax, f"{work}, {of_work[0]['unit']}{suffix}")
        axes[-1].set_xlabel("occupancy")
    return figure


def waves(series: dict | None) -> CourseFigure | NotRecorded:
    """Time over the number of blocks, with a line where a wave is full, and the prediction: one step for each wave."""
    if series is None:
        return NotRecorded("Time over the number of blocks")
    data = series["waves"]
    blocks, us, wave = data["blocks"], data["us"], data["per_wave"]
    one = us[max(k for k, count in enumerate(blocks) if count <= wave)]
    figure, (ax,) = new_figure([2.3], "One block too many costs a whole wave", (
        f"Blocks of equal work, {wave} at once: {number(us[0])} us for {blocks[0]}, {number(one)} us for one full "
        f"wave, {number(us[-1])} us for {blocks[-1]:,}."))
    with rc_context(STYLE):
        num_waves = -(-blocks[-1] // wave)
        for k in range(num_waves):
            ax.plot([wave * k, wave * (k + 1)], [one * (k + 1)] * 2, color=INK, linestyle=DASHED, linewidth=1.1,
                    label="predicted" if k == 0 else None)
            ax.axvline(wave * (k + 1), color=GREY, linewidth=0.7)
        ax.plot(blocks, us, color=BLUE, marker="o", linestyle="none", label="measured", clip_on=False)
        ax.set_ylim(0, 1.12 * max(us[-1], one * num_waves))
        ax.set_xlim(0, 1.02 * blocks[-1])
        ax.set_xticks([wave * k for k in range(num_waves + 1)], [f"{wave * k:,}" for k in range(num_waves + 1)])
        ax.set_xlabel(f"blocks; an SM holds {data['blocks_per_sm']}, the GPU {wave:,}")
        grid_along(ax, "y")
        ax.legend(frameon=False, fontsize=SMALLEST, loc="upper left")
        panel_title(ax, f"\u00b5s. {taken(series)}")
    return figure


def spills(series: dict | None) -> CourseFigure | NotRecorded:
    """A bar for each limit on registers, with the bytes of a thread that went to local memory."""
    if series is None:
        return NotRecorded("Time over registers")
    rows = series["spills"]
    one = rows[0]["us"]["p50"]
    figure, (ax,) = new_figure([0.34 * len(rows) + 0.30], "Spilling costs more than occupancy brings", "; ".join(
        f"{row['registers']} registers, {row['local_bytes']} bytes spilled: {number(row['us']['p50'])} us"
        for row in rows) + ".", bottom=0.25)
    columns = ((0.86, "registers", "{registers}"), (1.80, "bytes spilled", "{local_bytes:,}"),
               (2.60, "occupancy", "{occupancy:.0%}"))  # (inches from the left to the end of the text, heading, cell)
    texts = [f"{number(row['us']['p50'])} \u00b5s" + (f", {number(row['us']['p50'] / one)} times" if i else "")
             for i, row in enumerate(rows)]
    left, wide = 2.80, WIDTH - 2.80 - 0.20
    with rc_context(STYLE):
        box = ax.get_position()
        ax.set_position((left / WIDTH, box.y0, wide / WIDTH, box.height))
        ax.set_ylim(len(rows) - 0.55, -1.2)
        for x, name, cell in columns:
            for y, text in ((-0.85, name), *((y, cell.format(**row)) for y, row in enumerate(rows))):
                ax.annotate(text, (x / WIDTH, y), xycoords=("figure fraction", "data"), ha="right", va="center",
                            fontsize=SMALLEST, color=FAINT if y < 0 else INK, annotation_clip=False)
        ax.text(0, -0.85, "time", fontsize=SMALLEST, color=FAINT, va="center")
        for y, (row, text) in enumerate(zip(rows, texts, strict=True)):
            ax.barh(y, row["us"]["p50"], color=VERMILLION if row["local_bytes"] else GREEN, height=0.62)
            ax.annotate(text, (row["us"]["p50"], y), xytext=(5, 0), textcoords="offset points", va="center",
                        fontsize=SMALLEST)
        ax.set_xlim(0, max(row["us"]["p50"] * wide / (wide - width_of(text, SMALLEST) - 0.15)
                           for row, text in zip(rows, texts, strict=True)))
        ax.set_yticks([])
        _only_bars(ax)
        ax.spines["left"].set_bounds(len(rows) - 0.55, -0.45)
        panel_title(ax, taken(series))
    return figure


def bytes_text(nbytes: float | None) -> str:
    """In units of 1,024."""
    if nbytes is None:
        return "size unknown"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:,.0f} {unit}"
    return f"{nbytes:,} bytes"


def memories(series: dict | None) -> CourseFigure | NotRecorded:
    """One row for each memory, nearest first: how large it is on the whole GPU, how long a load takes, how many bytes
    come in a second. The bars are to a logarithmic scale."""
    if series is None:
        return NotRecorded("The memories of this GPU")
    rows, sms = series["memories"], series["gpu"]["multiprocessors"]
    total_bytes = [row["bytes"] and row["bytes"] * (sms if row["per_sm"] else 1) for row in rows]
    rise, top = 0.58, 1.12
    figure, ax = canvas(top + rise * len(rows) + 0.28, "Each step away from the threads is slower", "; ".join(
        f"{row['name']}: {bytes_text(size)} in all, {number(row['latency_ns'])} ns, {number(row['gbs'])} GB/s"
        for row, size in zip(rows, total_bytes, strict=True)) + ".")
    columns = (("size", total_bytes, [bytes_text(size) for size in total_bytes], GREY),
               ("latency", [row["latency_ns"] for row in rows],
                [f"{number(row['latency_ns'])} ns" for row in rows], VERMILLION),
               ("bandwidth", [row["gbs"] for row in rows], [f"{number(row['gbs'])} GB/s" for row in rows], BLUE))
    left, gap = 1.70, 0.20
    wide = (WIDTH - left - 0.20 - gap * (len(columns) - 1)) / len(columns)
    with rc_context(STYLE):
        ax.text(0.14, 0.50, taken(series), fontsize=SMALLEST, color=FAINT, va="center")
        for i, row in enumerate(rows):
            y = top + rise * i
            ax.text(0.14, y + 0.14, row["name"], fontsize=SMALLEST + 0.5, fontweight="bold", va="center")
            ax.text(0.14, y + 0.36, _whose(row), fontsize=SMALLEST, color=FAINT, va="center")
        for number_of, (name, values, texts, colour) in enumerate(columns):
            x = left + number_of * (wide + gap)
            ax.text(x, top - 0.18, name, fontsize=SMALLEST, color=TEXT[colour], fontweight="bold", va="center")
            known = [value for value in values if value]
            low, high = np.log(min(known)), np.log(max(known))
            for i, (value, text) in enumerate(zip(values, texts, strict=True)):
                y = top + rise * i
                if value:
                    fraction = 0.12 + 0.88 * (np.log(value) - low) / max(high - low, 1e-9)
                    draw_box(ax, x, y + 0.04, wide * fraction, 0.20, fill=BARS[colour])
                ax.text(x, y + 0.36, text, fontsize=SMALLEST, va="center", color=INK)
        note(ax, top + rise * len(rows) + 0.10, "Sizes and bandwidths are those of the whole GPU. The bars are to a "
             "logarithmic scale.")
    return figure


def _whose(row: dict) -> str:
    if not row["per_sm"]:
        return "shared by all SMs"
    return "in each SM" if row["bytes"] is None else f"{bytes_text(row['bytes'])} in each SM"
