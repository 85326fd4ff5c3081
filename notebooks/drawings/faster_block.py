"""What the lesson "A faster block" draws.

    seven_launches(tokens=1024)    what each launch reads and writes, and what its epilogue does
    recorded_times()               the recorded times of a block over its tokens
"""

from __future__ import annotations

from matplotlib import rc_context

from labkit import measure
from labkit._common.tables import number
from labkit.measure.plots.style import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    PURPLE,
    STYLE,
    TEXT,
    CourseFigure,
    canvas,
    draw_box,
    note,
)
from labkit.models.gpt2_block import GPT2_SMALL, Shape, traffic

LENGTHS = (16, 128, 1024, 4096)
LESSON_ROWS = {  # as it is called in the lesson -> (operation, row of its ladder)
    "CUDA C++, eight allocations": ("gpt2_block", "CUDA C++ (ten kernels, eight allocations)"),
    "CUDA C++, ten kernels": ("gpt2_block", "CUDA C++ (ten kernels)"),
    "ten kernels": ("gpt2_block", "block_ten_kernels"),
    "PyTorch, float32": ("gpt2_block", "PyTorch (torch.nn)"),
    "PyTorch compiled, float32": ("gpt2_block", "PyTorch, compiled"),
    "seven, float32": ("gpt2_block", "block_fused"),
    "PyTorch, float16": ("gpt2_block_half", "PyTorch (torch.nn)"),
    "PyTorch compiled, float16": ("gpt2_block_half", "PyTorch, compiled"),
    "seven, float16": ("gpt2_block_half", "block_half"),
}


def recorded_times(gpu: str = "NVIDIA H200") -> dict[str, list[float | None]]:
    """Microseconds of a block at each of LENGTHS, in a graph, or called where no graph can hold it; None if it was not
    recorded."""
    def microseconds(operation: str, name: str, tokens: int) -> float | None:
        ladder = measure.recorded_ladder(operation, {"S": tokens}, gpu=gpu)
        row = next((row for row in ladder.rows if row.name == name), None) if ladder else None
        return 1000 * row.timing.p50 if row else None

    return {name: [microseconds(*where, tokens) for tokens in LENGTHS] for name, where in LESSON_ROWS.items()}


LAUNCHES = {  # name in traffic -> (what it does, what its epilogue adds)
    "ln_1": ("LayerNorm", ""), "attn.c_attn": ("product: Q, K, V", "bias"), "attn": ("attention", ""),
    "attn.added": ("product", "bias, + x"), "ln_2": ("LayerNorm", ""), "mlp.gelu": ("product", "bias, GELU"),
    "out": ("product", "bias, + y"),
}


def seven_launches(shape: Shape = GPT2_SMALL, tokens: int = 1024) -> CourseFigure:
    """The bytes of seven launches, weights and rows of tokens, and what the epilogues of the products do."""
    moved, separate = traffic(shape, tokens), traffic(shape, tokens, fused=False)
    layers = dict(zip(("attn.c_attn", "attn.added", "mlp.gelu", "out"), shape.layers, strict=True))
    top, pitch, tall, left, right = 0.96, 0.40, 0.26, 1.50, 4.60
    scale = (right - left) / max(moved.values())
    total, before = sum(moved.values()), sum(separate.values())
    figure, ax = canvas(top + 7 * pitch + 0.66, "Seven launches: the epilogues do the work of three kernels",
                        f"Bytes of each of seven launches with {tokens:,} tokens: " + ", ".join(
                            f"{LAUNCHES[key][0]} {number(count / 1e6)} MB" for key, count in moved.items()) + ".")
    with rc_context(STYLE):
        for x, colour, text in ((left, BLUE, "weights"), (left + 0.95, ORANGE, "rows of tokens"),
                                (right + 0.78, PURPLE, "epilogue")):
            ax.text(x, top - 0.24, text, fontsize=9.5, fontweight="bold", color=TEXT[colour], va="center")
        for row, (key, count) in enumerate(moved.items()):
            y, (outputs, inputs) = top + row * pitch, layers.get(key, (0, 0))
            weights = 4 * outputs * (inputs + 1)
            ax.text(left - 0.12, y + tall / 2, LAUNCHES[key][0], fontsize=9.5, ha="right", va="center_baseline",
                    color=INK)
            if weights:
                draw_box(ax, left, y, weights * scale, tall, fill=BLUE, edge=BLUE)
            draw_box(ax, left + weights * scale, y, (count - weights) * scale, tall, fill=ORANGE, edge=ORANGE)
            ax.text(left + count * scale + 0.08, y + tall / 2, f"{number(count / 1e6)} MB", fontsize=9,
                    va="center_baseline", color=FAINT)
            ax.text(right + 0.78, y + tall / 2, LAUNCHES[key][1], fontsize=9.5, va="center_baseline",
                    color=TEXT[PURPLE])
        note(ax, top + 7 * pitch + 0.12, f"{tokens:,} tokens, float32: {number(total / 1e6)} MB instead of the "
             f"{number(before / 1e6)} MB of ten launches.")
    return figure
