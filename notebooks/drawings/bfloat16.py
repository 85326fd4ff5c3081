"""The figures of the lesson "bfloat16, bit by bit", in the course's style.

    bits_of(value)    sign, exponent and fraction of a number in each of the three formats
    spacing()         the distance between neighbouring numbers, over their magnitude
"""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from labkit.kernels.dtypes import BFLOAT16, FLOAT16, FLOAT32, FloatFormat, decode, encode, split
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    STYLE,
    TEXT,
    VERMILLION,
    WIDTH,
    CourseFigure,
    canvas,
    draw_box,
    new_figure,
)

FORMATS = (FLOAT32, FLOAT16, BFLOAT16)
COLOURS = {FLOAT32: BLUE, FLOAT16: VERMILLION, BFLOAT16: GREEN}
PARTS = (("sign", GREY), ("exponent", ORANGE), ("fraction", BLUE))


def bits_of(value: float) -> CourseFigure:
    """The bits of the nearest number in each format, one row for each, all beginning at the sign."""
    left, cell, tall, pitch, top = 0.98, (WIDTH - 1.12) / 32, 0.30, 0.86, 0.80
    rows = []
    for format in FORMATS:
        bits = int(encode(value, format))
        rows.append((format, bits, float(decode(bits, format)), [int(part) for part in split(bits, format)]))
    summary = "; ".join(f"{format.name} 0x{bits:0{format.bits // 4}X}, which is {stored:.10g}"
                        for format, bits, stored, _ in rows)
    figure, ax = canvas(top + len(rows) * pitch + 0.30, f"{value!r} in three formats", f"{value!r} in bits: {summary}.")
    with rc_context(STYLE):
        for row, (format, bits, stored, (_, exponent, _)) in enumerate(rows):
            y = top + row * pitch
            ax.text(left - 0.12, y + tall / 2, format.name, fontsize=10, fontweight="bold", ha="right",
                    va="center_baseline")
            digits, bit = f"{bits:0{format.bits}b}", 0
            for (name, colour), width in zip(PARTS, (1, format.exponent_bits, format.fraction_bits), strict=True):
                ax.text(left + (bit + width / 2) * cell, y - 0.11, name if width > 1 or row == 0 else "",
                        fontsize=9, ha="center", va="center_baseline", color=TEXT[colour])
                for _ in range(width):
                    draw_box(ax, left + bit * cell, y, cell, tall, digits[bit], size=9, fill=PALE[colour])
                    bit += 1
            text, power = f"0x{bits:0{format.bits // 4}X}   =   ", max(exponent, 1)  # 0: subnormal
            if np.isfinite(stored):
                significand = stored / 2.0 ** (power - format.bias)
                text += rf"{significand:.9g} $\times\ 2^{{{power}-{format.bias}}}$   =   "
            ax.text(left, y + tall + 0.13, f"{text}{stored:.10g}", fontsize=9, va="center_baseline",
                    color=FAINT)
        ax.text(0.14, top + len(rows) * pitch + 0.08, "A bfloat16 is the upper half of a float32, rounded to "
                "nearest.", fontsize=9, color=FAINT, va="center_baseline")
    return figure


def spacings(format: FloatFormat) -> tuple[np.ndarray, np.ndarray]:
    """(magnitudes, distance to the next larger number) at each power of two of the format, and at its ends."""
    exponents = np.arange(1, 2**format.exponent_bits - 1)
    normal = 2.0 ** (exponents - format.bias)
    smallest = 2.0 ** (1 - format.bias - format.fraction_bits)
    largest = decode(format.infinity - 1, format)
    steps = normal * 2.0**-format.fraction_bits
    return np.concatenate([[smallest], normal, [largest]]), np.concatenate([[smallest], steps, [steps[-1]]])


def spacing() -> CourseFigure:
    """Both axes logarithmic. Each line runs from the smallest positive number of its format to the largest."""
    figure, (ax,) = new_figure([3.5], "float16 has finer steps near 1, bfloat16 the wider range",
                               "Spacing of neighbours over magnitude: "
                               + "; ".join(f"{one.name} from {spacings(one)[0][0]:.1e} to {spacings(one)[0][-1]:.3g}, "
                                           f"{spacings(one)[1][spacings(one)[0] == 1.0][0]:.2g} apart at 1"
                                           for one in FORMATS) + ".", bottom=0.62)
    with rc_context(STYLE):
        for format, label_xy in zip(FORMATS, ((1e23, 2e6), (3e-8, 2e-4), (1e7, 2e13)), strict=True):
            x, y = spacings(format)
            ax.plot(x, y, color=COLOURS[format], linewidth=1.8)  # through the powers of two: each is a step of its own
            ax.plot([x[0], x[-1]], [y[0], y[-1]], "o", color=COLOURS[format], markersize=4)
            ax.text(*label_xy, format.name, color=TEXT[COLOURS[format]], fontsize=10, fontweight="bold", ha="center")
        ax.axvline(1.0, color=GREY, linewidth=0.8, linestyle=":")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ticks = [10.0**power for power in range(-45, 46, 15)]
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"$10^{{{round(np.log10(value))}}}$"))
        ax.set_xlim(1e-47, 1e41)
        ax.set_ylim(1e-47, 1e37)
        ax.set_xlabel("magnitude")
        ax.set_ylabel("distance to the next number")
        ax.grid(True)
        ax.tick_params(length=0)
    return figure
