"""A ladder on a lesson's page, for the reader's GPU: its own recording, or the bound that its data sheet gives.

The page's script shows the list of GPUs and keeps the choice; without it a page shows the ladder that the notebook has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from labkit._common.tables import number, size_text

if TYPE_CHECKING:
    from labkit.measure import Ladder
    from labkit.measure.roofline import Limits

# The summary of a figure as labkit.measure.plots.ladder writes it, the first of its GPUs.
_LADDER = re.compile(r"Ladder of (?P<op>\w+): (?P<rows>.*?)\. Measured on (?P<gpu>.+?)(?:, \d{4}-\d\d-\d\d)?; "
                     r"(?P<size>[\w=,^ ]+)[.;]")


@dataclass(frozen=True)
class Shown:
    """A ladder that a figure shows. rows: its bars, as "softmax_naive 812 GB/s, ..."; gpu: where it was recorded."""

    op: str
    rows: str
    gpu: str
    size: str

    @property
    def rungs(self) -> list[str]:
        return re.findall(r"(?:^|, )(\w+) [\d.,]+ \w+/s", self.rows)


def shown_in(summary: str) -> Shown | None:
    """The ladder that a figure of this summary shows; None if it shows another thing."""
    found = _LADDER.match(summary)
    return found and Shown(**found.groupdict())


def with_choice(figure: str, summary: str, put_figure: Callable[[str, str, str], str]) -> str:
    """The HTML of a figure, and behind a choice of GPUs what each of them has in its place. A figure that is no
    recorded ladder stays as it is. put_figure(svg, summary, key) gives the HTML of a GPU's own."""
    shown = shown_in(summary)
    if shown is None:
        return figure
    from labkit.device.gpus import GPUS  # these import Numba: only a page with a ladder needs it
    from labkit.measure import plots, slug
    from labkit.measure.recorded import recordings_by_gpu
    from labkit.measure.roofline import Limits, of_data_sheet

    recordings = recordings_by_gpu()
    ladders = {gpu: found for gpu, files in recordings.items() if (found := _recorded(shown, files))}
    if shown.gpu not in ladders:  # measured by the run that this page shows
        return figure
    course_gpu = escape(shown.gpu)
    panels, recorded, bounds = [], [], []
    for gpu, ladder in ladders.items():
        key = slug(gpu)
        recorded.append((key, gpu))
        if gpu != shown.gpu:
            drawn = plots.ladder(ladder, None)
            panels.append(f'<div data-gpu="{key}" class="instead" hidden>{put_figure(drawn.svg(), drawn.summary, key)}'
                          f'<p class="aside">The text quotes {course_gpu}.</p></div>')
    limits = {gpu.name: of_data_sheet(gpu) for gpu in GPUS.values()}
    limits |= {gpu: Limits(**files[0]["limits"]) for gpu, files in recordings.items() if gpu not in limits}
    for gpu, known in limits.items():
        if gpu not in ladders:
            key = slug(gpu)
            bounds.append((key, gpu))
            panels.append(f'<p data-gpu="{key}" class="bound" hidden>{_bound(ladders[shown.gpu], known)} '
                          f"The plot below is of {course_gpu}.</p>")
    first = f'<option value="">{course_gpu}, as in the text</option>'
    return (f'<div class="ladder"><label hidden>Your GPU <select>{first}{_group("Recorded", recorded)}'
            f'{_group("Not recorded: bounds only", bounds)}</select></label>{"".join(panels)}'
            f'<div class="default">{figure}</div></div>')


def _recorded(shown: Shown, files: list[dict]) -> Ladder | None:
    """The first recording of the same operation at the same size, with the rungs that are shown."""
    from labkit.measure import Ladder

    for entry in (entry for file in files for entry in file["ops"].get(shown.op, ())):
        if size_text(entry["size"]) == shown.size:
            ladder = Ladder.from_json(entry)
            return ladder.only(*(row.name for row in ladder.rungs if row.name in shown.rungs))
    return None


def _bound(ladder: Ladder, limits: Limits) -> str:
    """The least time of this ladder's operation and size on a GPU of these limits, as a sentence in HTML."""
    from labkit.measure.roofline import PEAK_NAMES, bound_of

    gpu = escape(limits.gpu)
    try:
        bound = bound_of(ladder.bytes, ladder.flops, ladder.peak, limits)
    except ValueError:  # its tensor cores have no such type
        return f"<strong>{gpu}: no bound.</strong> Its data sheet has no {PEAK_NAMES[ladder.peak]}."
    size = escape(size_text(ladder.size))
    if bound.binds == "bytes":
        why = f"{number(bound.bytes / 1e6)} MB ({size}) from and to memory at {number(limits.bandwidth_gbs)} GB/s"
    else:
        peak = f"{PEAK_NAMES[ladder.peak]}, {number(limits.peak(ladder.peak))} TFLOP/s"
        why = f"{number(bound.flops / 1e9)} GFLOP ({size}) at the {peak}"
    source = "its data sheet" if limits.source.startswith("data sheet") else "the limits that were measured on it"
    return (f"<strong>{gpu}: at least {_time(bound.time_ms)}, at most {number(bound.rate(ladder.unit))} {ladder.unit}."
            f"</strong> This is a bound from {source}, not a measurement: {why}. On this GPU, <code>labkit bench "
            f"{ladder.op}</code> measures it.")


def _time(ms: float) -> str:
    return f"{number(ms)} ms" if ms >= 0.1 else f"{number(1000 * ms)} \u00b5s"


def _group(label: str, gpus: list[tuple[str, str]]) -> str:
    options = "".join(f'<option value="{key}">{escape(gpu)}</option>' for key, gpu in gpus)
    return f'<optgroup label="{label}">{options}</optgroup>' if gpus else ""
