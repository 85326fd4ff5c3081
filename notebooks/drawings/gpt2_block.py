"""The figures of the lesson "The GPT-2 block", in the course's style.

    two_orders()              LayerNorm before the sum and after it
    ten_launches(tokens)      the launches of a block and the bytes that each moves
"""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.patches import Circle, FancyArrowPatch

from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALE,
    STYLE,
    TEXT,
    CourseFigure,
    canvas,
    draw_box,
    note,
)
from labkit.models.gpt2_block import GPT2_SMALL, Shape, traffic

# What a launch does: (name in block.traffic, as it is written in a box, colour, is the residual added at its end).
ATTENTION = (("attn.c_attn", "product: Q, K, V", BLUE, False), ("attn", "attention", GREEN, False),
             ("attn.added", "product, add", BLUE, True))
MLP = (("mlp.gelu", "product, GELU", BLUE, False), ("out", "product, add", BLUE, True))
PRE_LN = (("ln_1", "LayerNorm", ORANGE, False), *ATTENTION, ("ln_2", "LayerNorm", ORANGE, False), *MLP)
POST_LN = (*ATTENTION, ("ln_1", "LayerNorm", ORANGE, False), *MLP, ("ln_2", "LayerNorm", ORANGE, False))


def megabytes(count: float) -> str:
    return f"{number(count / 1e6)} MB" if count >= 1e6 else f"{number(count / 1e3)} KB"


def two_orders(shape: Shape = GPT2_SMALL, tokens: int = 1024) -> CourseFigure:
    """The seven launches of a block, Pre-LN and Post-LN: what runs past them, and the bytes that each has to move."""
    bytes_of = traffic(shape, tokens)
    total = sum(bytes_of.values())
    tall, pitch, top = 0.44, 0.66, 1.42
    bottom = top + 7 * pitch
    figure, ax = canvas(bottom + 0.98, "Pre-LN keeps a path from x to out without a norm",
                        f"Seven launches of a block {shape.width} wide with {tokens:,} tokens. Pre-LN: the sum runs "
                        f"past every launch. Post-LN: it goes through both LayerNorms. {megabytes(total)} moved.")
    with rc_context(STYLE):
        for left, name, order in ((0.16, "Pre-LN (GPT-2)", PRE_LN), (3.32, "Post-LN (2017)", POST_LN)):
            stream, box, wide = left + 0.20, left + 0.52, 2.40
            middle = box + wide / 2
            ax.text(left, 0.72, name, fontsize=13, fontweight="bold", va="center")
            _line(ax, (stream, 1.0), (stream, top))
            ax.text(stream + 0.14, 1.08, "x", fontsize=13, fontstyle="italic", va="center")
            begin = top  # where the branch leaves the stream
            branching = True
            for row, (key, text, colour, added) in enumerate(order):
                y = top + row * pitch
                normal = text == "LayerNorm"
                through = normal and order is POST_LN
                if through:
                    _line(ax, (stream, begin), (stream, y + tall / 2 - 0.07))
                    draw_box(ax, left, y, box + wide - left, tall, fill=PALE[colour], edge=colour)
                else:
                    _line(ax, (stream, begin), (stream, y + pitch))
                    draw_box(ax, box, y, wide, tall, fill=PALE[colour], edge=colour)
                ax.text(box + 0.10, y + tall / 2, text, fontsize=11.5, va="center_baseline", color=INK)
                ax.text(box + wide - 0.10, y + tall / 2, megabytes(bytes_of[key]), fontsize=11.5, ha="right",
                        va="center_baseline", color=TEXT[colour])
                begin = y + tall if through else y + pitch
                if through:
                    _line(ax, (stream, y + tall), (stream, y + pitch))
                    begin = y + pitch
                    branching = True
                    continue
                if branching:  # from the stream into the box
                    _arrow(ax, (stream, y + tall / 2), (box, y + tall / 2))
                    branching = False
                if added:  # back onto the stream
                    cy = y + tall + (pitch - tall) / 2
                    ax.plot([middle, middle, stream], [y + tall, cy, cy], color=INK, linewidth=1.3)
                    ax.add_patch(Circle((stream, cy), 0.105, facecolor="white", edgecolor=INK, linewidth=1.5, zorder=4))
                    ax.text(stream, cy, "+", fontsize=12, ha="center", va="center_baseline", zorder=5)
                    branching = order is PRE_LN
                else:
                    _arrow(ax, (middle, y + tall), (middle, y + pitch))
            _arrow(ax, (stream, bottom), (stream, bottom + 0.24), width=2.6)
            ax.text(stream + 0.14, bottom + 0.13, "out", fontsize=13, fontstyle="italic", va="center")
        notes = (f"MB: what a launch has to read and write, {tokens:,} tokens, float32;",
                 f"{megabytes(total)} in all, {megabytes(4 * shape.size)} of them weights")
        for y, note in zip((0.56, 0.78), notes, strict=True):
            ax.text(0.16, bottom + y, note, fontsize=11, color=FAINT, va="center")
    return figure


def _line(ax, start, end):
    ax.plot([start[0], end[0]], [start[1], end[1]], color=INK, linewidth=2.6, solid_capstyle="butt", zorder=1)


def _arrow(ax, start, end, width=1.3):
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, linewidth=width, color=INK,
                                 shrinkA=0, shrinkB=0, zorder=3))


STEPS = {"ln_1": "LayerNorm", "attn.c_attn": "product: Q, K, V", "attn": "attention", "attn.c_proj": "product",
         "attn.added": "add x", "ln_2": "LayerNorm", "mlp.c_fc": "product", "mlp.gelu": "GELU",
         "mlp.c_proj": "product", "out": "add y"}
GONE = ("attn.added", "mlp.gelu", "out")  # the steps that the epilogue of the product before them takes over


def ten_launches(shape: Shape = GPT2_SMALL, tokens: int = 1024) -> CourseFigure:
    """The bytes of ten launches: weights, and rows of tokens. Hatched: what goes when epilogues do three of them."""
    separate, fused = (traffic(shape, tokens, fused=fused) for fused in (False, True))
    layers = dict(zip(("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"), shape.layers, strict=True))
    saved = sum(separate.values()) - sum(fused.values())
    rows_outweigh = sum(separate.values()) > 8 * shape.size  # more than twice the weights' four bytes
    top, pitch, tall, left, right = 0.96, 0.36, 0.24, 1.75, 5.50
    largest = max(separate.values())
    figure, ax = canvas(top + 10 * pitch + 0.72, f"{tokens:,} tokens: " + (
        "rows outweigh weights" if rows_outweigh else "only the weights are left"),
                        f"Bytes of each of ten launches with {tokens:,} tokens: " + ", ".join(
                            f"{STEPS[key]} {megabytes(count)}" for key, count in separate.items())
                        + f". Fusing three of them away saves {megabytes(saved)}.")
    with rc_context(STYLE):
        for x, colour, text in ((left, BLUE, "weights"), (left + 1.05, ORANGE, "rows of tokens")):
            ax.text(x, top - 0.24, text, fontsize=11.5, fontweight="bold", color=TEXT[colour], va="center")
        for row, (key, count) in enumerate(separate.items()):
            y = top + row * pitch
            outputs, inputs = layers.get(key, (0, 0))
            weights = 4 * outputs * (inputs + 1)
            scale = (right - left) / largest
            removed = key in GONE
            ax.text(left - 0.12, y + tall / 2, STEPS[key], fontsize=11.5, ha="right", va="center_baseline",
                    color=FAINT if removed else INK)
            if weights:
                draw_box(ax, left, y, weights * scale, tall, fill=BLUE, edge=BLUE)
            draw_box(ax, left + weights * scale, y, (count - weights) * scale, tall, edge=ORANGE,
                     fill="white" if removed else ORANGE, **({"hatch": "////"} if removed else {}))
            ax.text(left + count * scale + 0.08, y + tall / 2, megabytes(count), fontsize=11, va="center_baseline",
                    color=FAINT if removed else INK)
        y = top + 10 * pitch
        note(ax, y + 0.12, f"Hatched: goes into the epilogue of the product above. {megabytes(saved)} fewer of "
             f"{megabytes(sum(separate.values()))}: an addition still reads its residual there.")
    return figure
