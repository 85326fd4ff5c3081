"""Count the launches, bytes and flops of a version of MiniLM, without running it.

    layer = launches_of_layer(step("one product"), Config(), lengths)
    len(layer), sum(one.bytes for one in layer), sum(one.flops for one in layer)

Bytes are what a launch cannot do without: each number that it needs read once, each result written once. What a kernel
reads again is not in them, nor is what a cache saves. Flops are those of products alone, attention's among them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from labkit.device import launches
from labkit.models.configs import shapes
from labkit.models.minilm import FORMS, Config, MiniLM, Workspace
from labkit.models.minilm_steps import Step

ITEM = 2  # bytes of a float16


@dataclass(frozen=True)
class Counted:
    """One launch. kind: "product", "copy", "attention", "elementwise" or "LayerNorm"."""

    what: str
    kind: str
    bytes: int
    flops: int = 0


@dataclass(frozen=True)
class Sizes:
    """What the costs of the launches below depend on. pairs: of a query and a key of one sentence."""

    rows: int
    tokens: int
    pairs: int
    width: int
    inner: int
    heads: int


# kernel -> (what it does, its kind, the numbers that it reads and writes, its flops).
COSTS: dict[str, tuple[str, str, Callable[[Sizes], int], Callable[[Sizes], int]]] = {
    "split_heads_kernel": ("split into heads", "copy", lambda s: 2 * s.rows * s.width, lambda s: 0),
    "merge_heads_kernel": ("merge heads", "copy", lambda s: 2 * s.rows * s.width, lambda s: 0),
    "sentence_scores_half_kernel": (
        "scores", "attention", lambda s: 2 * s.tokens * s.width + s.heads * s.pairs, lambda s: 2 * s.pairs * s.width),
    "sentence_softmax_kernel": ("softmax", "attention", lambda s: 2 * s.heads * s.pairs, lambda s: 0),
    "sentence_context_half_kernel": (
        "context", "attention", lambda s: s.heads * s.pairs + 2 * s.tokens * s.width, lambda s: 2 * s.pairs * s.width),
    "attention_sentences_flash_half_kernel": (
        "attention", "attention", lambda s: 4 * s.tokens * s.width, lambda s: 4 * s.pairs * s.width),
    "gelu_float16_kernel": ("GELU", "elementwise", lambda s: 2 * s.rows * s.inner, lambda s: 0),
    "add_float16_kernel": ("add", "elementwise", lambda s: 3 * s.rows * s.width, lambda s: 0),
    "layernorm_half_block_kernel": ("LayerNorm", "LayerNorm", lambda s: (2 * s.rows + 2) * s.width, lambda s: 0),
    "layernorm_half_kernel": ("add, LayerNorm", "LayerNorm", lambda s: (3 * s.rows + 2) * s.width, lambda s: 0),
}
COSTS["attention_sentences_whole_matrix_kernel"] = COSTS["attention_sentences_flash_half_kernel"]


def launches_of_layer(step: Step, config: Config, lengths: Sequence[int]) -> list[Counted]:
    """The launches of one layer, in their order, for a batch of sentences with these lengths."""
    model, b, sizes = _prepare(step, config, lengths)
    recorded: list[launches.Launch] = []
    products: dict[int, Counted] = {}  # by the number of the launch: only its launcher knows the sizes of a product

    def linear(x, weights, bias, out, *, gelu=False, parts=None, stream=0):
        index, (T, K), N = len(recorded), x.shape, out.shape[1]
        step.kernels.linear(x, weights, bias, out, gelu=gelu, parts=parts, stream=stream)
        in_epilogue = gelu and len(recorded) == index + 1
        products[index] = Counted("product" + ": Q, K, V" * (out is b.qkv) + ", GELU" * in_epilogue, "product",
                                  ITEM * (T * K + N * K + N + T * N), 2 * T * N * K)

    counting_model = model.with_kernels(replace(step.kernels, linear=linear))
    launches.planned(lambda: counting_model.layer(0, b.ping, b.pong, b), recorded)
    return [products.get(index) or _count(launch, sizes) for index, launch in enumerate(recorded)]


def _count(launch: launches.Launch, sizes: Sizes) -> Counted:
    name, kind, elements, flops = COSTS[launch.kernel.__name__]
    return Counted(name, kind, ITEM * elements(sizes), flops(sizes))


def _prepare(step: Step, config: Config, lengths) -> tuple[MiniLM, SimpleNamespace, Sizes]:
    lengths = np.asarray(lengths, np.int64)
    shape, _ = FORMS[step.form](lengths)
    model = _empty(replace(config, vocab_size=1, num_hidden_layers=1)).with_kernels(step.kernels)
    sizes = Sizes(shape.rows, int(lengths.sum()), int((lengths**2).sum()), config.hidden_size,
                  config.intermediate_size, config.num_attention_heads)
    return model, Workspace(model.config, shape, model.dtype, model.kernels).batch(shape), sizes


@functools.lru_cache(maxsize=2)
def _empty(config: Config) -> MiniLM:
    """A model of this shape whose weights are zeros: none of its launches runs."""
    tensors = {name: np.zeros(shape, np.float16) for name, shape in shapes(config).items()}
    return MiniLM(config, tensors, np.float16)
