"""The losses of a training run over its steps: of each step, and of what was held out."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context

from labkit.measure.plots.style import (
    BLUE,
    STYLE,
    TEXT,
    VERMILLION,
    CourseFigure,
    label_line_ends,
    leave_right,
    new_figure,
)

CURVE = "loss.svg"


def loss_curve(log: list[dict]) -> CourseFigure:
    """log: dictionaries with step and loss, and some with held_out."""
    held_out = [entry for entry in log if "held_out" in entry]
    summary = f"loss {log[0]['loss']:.2f} at step {log[0]['step']}, {log[-1]['loss']:.2f} at step {log[-1]['step']}"
    if held_out:
        summary += f"; held out {held_out[-1]['held_out']:.2f}"
    figure, (ax,) = new_figure([2.8], "Loss of training", f"Loss of training: {summary}")
    with rc_context(STYLE):
        leave_right(ax, ["training", "held out"])
        ends = []
        for entries, key, words, colour in ((log, "loss", "training", BLUE),
                                            (held_out, "held_out", "held out", VERMILLION)):
            if entries:
                steps, losses = ([entry[name] for entry in entries] for name in ("step", key))
                ax.plot(steps, losses, color=colour)
                ends.append((steps[-1], losses[-1], words, TEXT[colour]))
        ax.set_xlabel("step")
        ax.set_ylabel("nats a token")
        ax.get_ylim()  # settles the limits, which the names' places depend on
        label_line_ends(ax, ends)
    return figure


def save_curve(folder: Path, log: list[dict]) -> None:
    """Write the picture into a folder."""
    if log:
        loss_curve(log).save(folder / CURVE)
