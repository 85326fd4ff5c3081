"""Series: one quantity over a range, which lessons read and `labkit bench` takes.

A series is a function of its name in a module of this package. It takes small sizes where there is no GPU, and returns
numbers and lists through measure.stamped, or None where it cannot be taken. SERIES lists them in the order in which all
are taken; data/measurements/README.md describes their keys.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """name: of the function, in the module `home`. op: the operation whose `labkit bench` takes it, too. quick: the
    arguments of a quick run; None: it is left out of one. plot: what the bench draws, as module.function of the plots.
    missing: a key that says what was not installed; where it says so, a recording that had it is kept."""

    name: str
    op: str
    home: str
    quick: dict | None = None
    plot: str = ""
    missing: str = ""

    def take(self, quick: bool = False) -> dict | None:
        """Import the module and measure."""
        measured = getattr(importlib.import_module(f"labkit.measure.series.{self.home}"), self.name)
        return measured(**(self.quick if quick else {}))

    def draw(self, series: dict):
        """Return the figure of what was measured; None for a series without one."""
        if not self.plot:
            return None
        module, _, function = self.plot.partition(".")
        return getattr(importlib.import_module(f"labkit.measure.plots.{module}"), function)(series)


def _several(names: str, op: str, home: str) -> tuple[Series, ...]:
    return tuple(Series(name, op, home) for name in names.split())


SERIES = {one.name: one for one in (
    Series("vector_add_sizes", "vector_add", "vector", {"exponents": (10, 14), "budget_s": 0.01}, "ladders.crossover"),
    *_several("launch_overhead copies", "vector_add", "overheads"),
    Series("machine", "vector_add", "machine"),
    Series("volume_add_block_shapes", "volume_add", "vector",
           {"size": {"nx": 16, "ny": 16, "nz": 16}, "shapes": ((16, 8, 8), (4, 4, 4)), "budget_s": 0.01},
           "ladders.block_shapes"),
    Series("matmul_sizes", "matmul", "matmul", {"sizes": (16, 32), "budget_s": 0.01}, "ladders.sizes"),
    Series("index_types", "matmul", "index_types"),
    Series("compilers", "vector_add", "compilers"),
    *_several("cold_start copy_sizes launch_sizes fair_baseline trace", "bias_gelu_add", "overheads"),
    *_several("streams streams_trace", "vector_add", "streams"),
    *_several("library_products bf16_projection", "matmul", "libraries"),
    Series("compile_lengths", "vector_add", "simt"),
    *_several("softmax_check softmax_rows", "softmax", "libraries"),
    *_several("softmax_cpu memory_latency", "softmax", "softmax"),
    Series("masked_softmax_sizes", "masked_softmax_causal", "softmax"),
    *_several("attention_sizes attention_keys attention_passes attention_steps", "attention", "attention"),
    Series("linear_attention_lengths", "linear_attention", "attention"),
    *_several("generation cache_curve step_launches", "attention_cached", "generation"),
    *_several("token_times gpt2_one_kernel", "one_row_attended", "generation"),
    *_several("minilm minilm_corpus minilm_ladder minilm_profile", "attention_sentences_half", "minilm"),
    Series("minilm_one_kernel", "attention_sentences_half", "minilm_one_kernel"),
    Series("llama_decode", "paged_decode_bf16", "llama", plot="engine.decode_steps"),
    Series("llama_prefill", "paged_decode_bf16", "llama"),
    Series("llama_one_kernel", "paged_decode_bf16", "one_kernel"),
    Series("llama_quantized", "paged_decode_bf16", "llama_quantized"),
    Series("engine", "paged_decode_bf16", "engine", plot="engine.seats"),
    *_several("nano_vllm_bench engine_logprobs engine_start", "paged_decode_bf16", "engine"),
    Series("serve", "paged_decode_bf16", "serve", plot="serve.load"),
    Series("serve_overload", "paged_decode_bf16", "serve", plot="serve.load"),
    Series("serve_cold", "paged_decode_bf16", "serve"),
    Series("train_step", "adamw_bf16", "training"),
    Series("block_calls", "gpt2_block", "gpt2_block"),
    Series("three_languages", "vector_add", "libraries", missing="cutile"),
    Series("tile_sizes", "vector_add", "libraries"),
    Series("tile_hints", "softmax", "libraries"),
)}
