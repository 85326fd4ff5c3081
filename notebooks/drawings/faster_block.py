"""What the lesson "A faster block" draws: the recorded times of a block over its tokens."""

from __future__ import annotations

from labkit import measure

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
