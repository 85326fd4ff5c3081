"""A Llama of PyTorch's functions, written by hand: what the engine's steps are compared with.

    one = TorchLlama(torch, config, tensors)
    cache = one.cache(sequences, tokens)                        # contiguous, of exactly so many tokens
    logits, token = one.forward(ids, positions, cache)          # one token of each sequence, or a whole prompt

RMSNorm and rotary positions by hand, torch.nn.functional.scaled_dot_product_attention with enable_gqa on a contiguous
cache that is full: nothing is masked or gathered, and nothing of the cache is read in vain. Compiled it is compiled a
layer at a time: all layers have one shape, so one compilation serves all, and the sum with the residual belongs to the
layer that reads it, where it is fused with the norm.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping

import numpy as np

from labkit.kernels.rope import rope_table
from labkit.measure.series.beside_torch import still_compiling, why_not
from labkit.measure.timing import time_torch_graph
from labkit.models.configs import EMBEDDING, HEAD, names_in
from labkit.models.llama import Config

Cache = list  # of (keys, values) of each layer, (B, K, S, D)


class TorchLlama:
    """tensors: as a file of a Llama holds them, bfloat16 in uint16, or float32; the weights are of that type."""

    def __init__(self, torch, config: Config, tensors: Mapping[str, np.ndarray], place: str = "cuda"):
        self.torch, self.config, self.device = torch, config, place
        w = {key: self.tensor(np.ascontiguousarray(tensors[hf_key]))
             for key, hf_key in names_in(tensors, config).items()}
        self.embedding, self.norm = w.pop(EMBEDDING), w.pop("norm.weight")
        self.head, self.dtype = w.pop(HEAD, self.embedding), self.embedding.dtype
        self.layers = []
        for layer in range(config.num_hidden_layers):
            params = {name.removeprefix(f"layers.{layer}."): w.pop(name) for name in list(w)
                      if name.startswith(f"layers.{layer}.")}
            for joined, parts in (("qkv", [f"self_attn.{part}_proj.weight" for part in "qkv"]),
                                  ("gate_up", [f"mlp.{part}_proj.weight" for part in ("gate", "up")])):
                params[joined] = torch.cat([params.pop(part) for part in parts])
            self.layers.append(params)

    def tensor(self, array: np.ndarray):
        """On the device; uint16 holds bfloat16."""
        torch = self.torch
        if array.dtype == np.uint16:
            return torch.from_numpy(array.view(np.int16).copy()).to(self.device).view(torch.bfloat16)
        return torch.from_numpy(array.copy()).to(self.device)

    def cache(self, keys: np.ndarray) -> Cache:
        """Of each layer keys and values, all with these numbers (B, K, S, D)."""
        first = self.tensor(keys)
        return [(first.clone(), first.clone()) for _ in self.layers]

    def widened(self) -> TorchLlama:
        """The same weights in float32, which says how much of a difference is rounding."""
        wide = copy.copy(self)
        wide.__dict__.pop("compiled", None)
        wide.embedding, wide.norm, wide.dtype = self.embedding.float(), self.norm.float(), self.torch.float32
        wide.head = wide.embedding if self.head is self.embedding else self.head.float()
        wide.layers = [{name: each.float() for name, each in params.items()} for params in self.layers]
        return wide

    def angles(self, positions: np.ndarray) -> tuple:
        """(cos, sin), each (T, D / 2), of the model's type."""
        config = self.config
        table = rope_table(int(positions.max()) + 1, config.head_dim, config.rope_theta, config.rope_scaling)[positions]
        return tuple(self.tensor(np.ascontiguousarray(part)).to(self.dtype) for part in np.split(table, 2, axis=1))

    # --- The model ---------------------------------------------------------------------------------------------------

    def rmsnorm(self, x, weight):
        wide = x.float()
        scale = self.torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return (wide * scale).to(x.dtype) * weight

    def rotate(self, heads, cos, sin):
        """(B, heads, T, D): the pair (d, d + D / 2) is rotated by the angle of its position."""
        first, second = heads.chunk(2, -1)
        return self.torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def layer(self, w, x, residual, keys, values, place, cos, sin):
        """(what it adds, residual): x is what the layer before adds. place (1,): the token's position; a prompt (T > 1)
        fills its cache."""
        F, c = self.torch.nn.functional, self.config
        B, T, _ = x.shape
        H, K, D = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        residual = residual + x
        qkv = F.linear(self.rmsnorm(residual, w["input_layernorm.weight"]), w["qkv"])
        q, k, v = (part.view(B, T, -1, D).transpose(1, 2) for part in qkv.split((H * D, K * D, K * D), -1))
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        if T > 1:
            keys.copy_(k)
            values.copy_(v)
        else:
            keys[:, :, place] = k
            values[:, :, place] = v
        attended = F.scaled_dot_product_attention(q, keys, values, is_causal=T > 1, enable_gqa=True)
        attended = attended.transpose(1, 2).reshape(B, T, H * D)
        residual = residual + F.linear(attended, w["self_attn.o_proj.weight"])
        gate, up = F.linear(self.rmsnorm(residual, w["post_attention_layernorm.weight"]), w["gate_up"]).chunk(2, -1)
        return F.linear(F.silu(gate) * up, w["mlp.down_proj.weight"]), residual

    def finish(self, x, residual):
        """(logits, most likely token) after each sequence's last row."""
        logits = self.torch.nn.functional.linear(self.rmsnorm((residual + x)[:, -1], self.norm), self.head)
        return logits, logits.argmax(-1)

    def forward(self, ids, positions, cache: Cache, zeros, layer: Callable | None = None,
                finish: Callable | None = None):
        """ids (B, T). positions: (place, cos, sin). zeros (B, T, C). layer, finish: compiled ones."""
        layer, finish = layer or self.layer, finish or self.finish
        x, residual = self.torch.nn.functional.embedding(ids, self.embedding), zeros
        for w, (keys, values) in zip(self.layers, cache, strict=True):
            x, residual = layer(w, x, residual, keys, values, *positions)
        return finish(x, residual)

    def call(self, ids: np.ndarray, positions: np.ndarray, cache: Cache, **compiled) -> Callable:
        """forward() on these: ids (B, T), positions (T,)."""
        on_device = self.torch.from_numpy(ids.astype(np.int64)).to(self.device)
        place = self.torch.from_numpy(positions.astype(np.int64)).to(self.device)
        zeros = self.torch.zeros((*ids.shape, self.config.hidden_size), dtype=self.dtype, device=self.device)
        return functools.partial(self.forward, on_device, (place, *self.angles(positions)), cache, zeros, **compiled)

    @functools.cached_property
    def compiled(self) -> dict[str, Callable]:
        return {"layer": self.torch.compile(self.layer, dynamic=False),
                "finish": self.torch.compile(self.finish, dynamic=False)}

    def rows(self, ids: np.ndarray, positions: np.ndarray, cache: Cache, compile_until: float) -> dict:
        """Return milliseconds per pass in a CUDA graph, eager and compiled; where there is no time, "...: why not".
        compile_until: when to stop starting to compile, on time.monotonic's clock."""
        result: dict[str, float | str | None] = {}
        for name in ("eager", "compiled"):
            try:
                if name == "compiled":
                    still_compiling(compile_until)
                call = self.call(ids, positions, cache, **(self.compiled if name == "compiled" else {}))
                call()
                timing = time_torch_graph(call, launches=1)
                result[f"{name}, in a graph"] = None if timing is None else timing.p50
            except Exception as error:  # what cannot be compiled here must not cost the other rows
                result[f"{name}, in a graph"] = None
                result[f"{name}: why not"] = why_not(error)
        return result
