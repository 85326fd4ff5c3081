"""Qwen3: a Llama whose queries and keys are normalised, head by head, before they are rotated; and whose attention may
have biases. All that is not below is Llama's: its step, its cache, its memory, its launches.

Source  A. Yang et al., "Qwen3 Technical Report" (2025); parameters are named as in the files of transformers'
        Qwen3ForCausalLM
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from labkit._common.errors import short
from labkit.models import llama
from labkit.models.step import Step


@dataclass(frozen=True)
class Config(llama.Config):
    """The shape of a Qwen3; the names are those of its config.json, the defaults those of transformers."""

    only: ClassVar[Mapping[str, tuple]] = {
        **{name: allowed for name, allowed in llama.Config.only.items()
           if name not in ("attention_bias", "sliding_window")},
        "model_type": ("qwen3",),
        "use_sliding_window": (False,),  # sliding_window and max_window_layers say nothing then
    }

    head_dim: int | None = 128
    attention_bias: bool = False

    def __post_init__(self):
        super().__post_init__()
        if type(self.attention_bias) is not bool:
            raise ValueError(f"attention_bias is {short(self.attention_bias)}; it must be true or false")

    @property
    def layer_parameters(self) -> dict[str, tuple[int, ...]]:
        found = super().layer_parameters
        if self.attention_bias:
            found |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in found.items()
                      if name.startswith("self_attn.")}
        return found | {f"self_attn.{part}_norm.weight": (self.head_dim,) for part in "qk"}


class Qwen3(llama.Llama):
    def linear(self, x, w, name: str, out, stream) -> None:
        self.kernels.linear(x, w[f"{name}.weight"], out, bias=w.get(f"{name}.bias"), stream=stream)

    def split_heads(self, w, step: Step, keys, values, b: llama.Rows, stream) -> None:
        self.kernels.rope_split_cache(
            b.qkv, self.table, step.positions, step.slots, b.q, keys, values, q_norm=w["self_attn.q_norm.weight"],
            k_norm=w["self_attn.k_norm.weight"], eps=self.config.rms_norm_eps, stream=stream)
