"""A model's parameters in one flat buffer, with their gradients and AdamW's state beside them.

    buffer = Buffer(config, dtype="float32")
    buffer.weights["h.0.attn.c_attn.weight"]      # a view, (out, in) as linear kernels take it
    buffer.gradients[...]                         # float32, of the same shape
    buffer.tensors()                              # under Hugging Face's names and in its shapes, for a checkpoint

A tensor begins at a multiple of SEGMENT elements, which AdamW needs. A GPT-2's files hold linear weights as (in, out):
they are transposed here. A Llama's queries, keys and values are one tensor, and so are the MLP's gate and up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from labkit import cuda
from labkit.device.memory import zeros
from labkit.kernels.dtypes import of_dtype
from labkit.kernels.optim.adamw import SEGMENT
from labkit.models.configs import HEAD, GPT2Config, LlamaConfig, shapes

STD = 0.02  # of the normal distribution that weights are drawn from
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(np.uint16)}
FUSED = {"self_attn.qkv_proj": [f"self_attn.{part}_proj" for part in "qkv"],
         "mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"]}


@dataclass(frozen=True)
class Tensor:
    """parts: labkit's names of the files' tensors in it, which lie one after the other along the first axis, and their
    shapes there. transposed: whether the files hold it as (in, out)."""

    name: str
    shape: tuple[int, ...]
    parts: dict[str, tuple[int, ...]]
    transposed: bool
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def layout(config: GPT2Config | LlamaConfig) -> list[Tensor]:
    """Every tensor of the flat buffer, in its order."""
    of_files, tensors, offset = shapes(config), [], 0
    gpt2 = isinstance(config, GPT2Config)
    groups: dict[str, list[str]] = {}
    for name in of_files:
        fused = next((name.replace(part, whole) for whole, parts in FUSED.items() for part in parts if part in name),
                     name)
        groups.setdefault(fused, []).append(name)
    for name, parts in groups.items():
        part_shapes = {part: of_files[part] for part in parts}
        transposed = gpt2 and name.startswith("h.") and len(of_files[parts[0]]) == 2
        first = of_files[parts[0]]
        shape = first[::-1] if transposed else (sum(one[0] for one in part_shapes.values()), *first[1:])
        tensors.append(Tensor(name, shape, part_shapes, transposed, offset))
        offset += -(-math.prod(shape) // SEGMENT) * SEGMENT
    return tensors


def elements(config) -> int:
    """How long the flat buffer is."""
    last = layout(config)[-1]
    return last.offset + -(-last.size // SEGMENT) * SEGMENT


def initial(config, seed: int) -> np.ndarray:
    """Return the flat buffer, float32, as GPT-2 and Llama begin: weights normal, biases 0, norms 1. GPT-2's products
    that are added to the residual stream begin smaller, the more layers there are."""
    draw, flat = np.random.default_rng(seed), np.zeros(elements(config), np.float32)
    for tensor in layout(config):
        values = flat[tensor.offset : tensor.offset + tensor.size]
        if len(tensor.shape) == 2:
            scale = (2 * config.n_layer) ** -0.5 if tensor.name.endswith("c_proj.weight") else 1.0
            values[:] = STD * scale * draw.standard_normal(tensor.size, np.float32)
        elif tensor.name.endswith(".weight"):
            values[:] = 1.0
    return flat


class Buffer:
    """master, m, v, gradient: (n,) float32. copy: what the launches read, of the run's type; with float32, master."""

    def __init__(self, config, dtype: str):
        self.config, self.layout, size = config, layout(config), elements(config)
        self.master, self.m, self.v, self.gradient = (zeros(size, np.float32) for _ in range(4))
        self.copy = self.master if dtype == "float32" else zeros(size, DTYPES[dtype])
        self.weights, self.gradients = self._views(self.copy), self._views(self.gradient)
        decayed = np.zeros(size // SEGMENT, np.uint8)  # the weights of products and tables; no norm and no bias
        for tensor in self.layout:
            if len(tensor.shape) == 2:
                decayed[tensor.offset // SEGMENT : -(-(tensor.offset + tensor.size) // SEGMENT)] = 1
        self.decayed = cuda.to_device(decayed)

    def _views(self, flat) -> dict:
        views = {one.name: flat[one.offset : one.offset + one.size].reshape(one.shape) for one in self.layout}
        if HEAD not in views:
            views[HEAD] = views[self.layout[0].name]  # the table of tokens is the head, too
        return views

    def load(self, master: np.ndarray) -> None:
        self.master.copy_to_device(master)
        if self.copy is not self.master:
            self.copy.copy_to_device(of_dtype(master, self.copy.dtype))

    def tensors(self) -> dict[str, np.ndarray]:
        """The parameters that the launches read, on the host, as Hugging Face's files have them."""
        flat, result = self.copy.copy_to_host(), {}
        for tensor in self.layout:
            values, begin = flat[tensor.offset : tensor.offset + tensor.size].reshape(tensor.shape), 0
            for name, shape in tensor.parts.items():
                part = values.T if tensor.transposed else values[begin : begin + shape[0]]
                result[name if name == HEAD else self.config.prefix + name] = part
                begin += shape[0]
        return result

    def first_not_finite(self, flat) -> str | None:
        """The name of the first tensor with an element that is not finite; None if there is none."""
        values = flat.copy_to_host()
        return next((one.name for one in self.layout
                     if not np.isfinite(values[one.offset : one.offset + one.size]).all()), None)
