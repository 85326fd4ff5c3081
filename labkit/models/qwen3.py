"""Qwen3: a Llama whose queries and keys are normalised, head by head, before they are rotated; and whose attention may
have biases. All that is not below is Llama's: its step, its cache, its memory, its launches.

Source  A. Yang et al., "Qwen3 Technical Report" (2025); parameters are named as in the files of transformers'
        Qwen3ForCausalLM
"""

from __future__ import annotations

from types import SimpleNamespace

from labkit.models import llama
from labkit.models.step import Step


class Qwen3(llama.Llama):
    def linear(self, x, w, name: str, out, stream) -> None:
        self.multiply(x, w[f"{name}.weight"], out, stream, bias=w.get(f"{name}.bias"))

    def split_heads(self, w, step: Step, keys, values, b: SimpleNamespace, stream) -> None:
        self.kernels.rope_split_cache(
            b.qkv, self.table, step.positions, step.slots, b.q, keys, values, q_norm=w["self_attn.q_norm.weight"],
            k_norm=w["self_attn.k_norm.weight"], eps=self.config.rms_norm_eps, stream=stream)
