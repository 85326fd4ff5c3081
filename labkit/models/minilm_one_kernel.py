"""The embedding of one sentence in one launch: lays weights and inputs out for labkit.kernels.persistent.encode.

    one_kernel = OneKernel(model)               # raises ValueError where the kernel cannot compute the model
    one_kernel.takes(sentences)                 # one sentence of 1 to 128 tokens
    one_kernel.embed(ids)                       # (1, C) float32 on the host

    one_kernel.put(ids)                         # the same in parts: inputs to the device,
    one_kernel.forward(normalize, stream)       # one launch, which can be captured,
    one_kernel.buffers.pooled                   # (C,) float32

The weights are the model's own: of the blob, only the offsets are copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from labkit import cuda
from labkit.device import gpus, graphs
from labkit.kernels.op import missing
from labkit.kernels.persistent.encode import KINDS, Buffers, make_persistent_encode, persistent_encode
from labkit.kernels.persistent.encoder import MOST_TOKENS, Encoder

LINEAR = ("attention.self.qkv", "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense",
          "output.dense", "output.LayerNorm")  # of a layer, in the order of the kernel's offsets, each with a bias
MAX_STAGES = 24  # a ring above 48 KB even for the smallest model: only then does the launch ask to exceed that limit


def encoder_of(model, timed: bool = False) -> Encoder:
    """Return the sizes of a model, and as many stages as fit into shared memory beside the rest."""
    config = model.config
    encoder = Encoder(config.hidden_size, config.num_attention_heads, config.intermediate_size, config.vocab_size,
                      config.max_position_embeddings, config.layer_norm_eps, stages=MAX_STAGES, timed=timed)
    if encoder.problem():
        return encoder
    room = gpus.target().shared_per_block - encoder.static_bytes
    stages = range(MAX_STAGES, 1, -1)
    return next((one for one in (dataclasses.replace(encoder, stages=count) for count in stages)
                 if one.ring_bytes <= room), dataclasses.replace(encoder, stages=1))


class OneKernel:
    """timed: record when each block begins and ends each phase."""

    def __init__(self, model, timed: bool = False):
        if model.dtype != np.float16:
            raise ValueError(f"one_kernel: the weights are {model.dtype}; only float16 is allowed")
        if model.kernels.in_out:
            raise ValueError("one_kernel: the model's kernels take weights as (in, out); this one, as (out, in)")
        encoder, layers = encoder_of(model, timed), model.config.num_hidden_layers
        if problem := encoder.problem():
            raise ValueError(f"one_kernel: {problem}")
        if encoder.stages < 2:
            raise ValueError(f"one_kernel: inner is {encoder.inner}; two stages of the ring do not fit into shared "
                             f"memory")
        self.kernel = make_persistent_encode(encoder)
        if problem := missing(self.kernel):
            raise ValueError(f"one_kernel: {problem}")
        entries = model.weights.entries
        names = [[f"encoder.layer.{layer}.{name}.{kind}" for name in LINEAR for kind in ("weight", "bias")]
                 for layer in range(layers)]
        first = [f"embeddings.{name}.weight" for name in ("word_embeddings", "position_embeddings",
                                                          "token_type_embeddings", "LayerNorm")]
        first.append("embeddings.LayerNorm.bias")
        names.append(first + first[:1] * (KINDS - len(first)))
        self.encoder = encoder
        self.offsets = cuda.to_device(np.array([[entries[name].offset // 16 for name in row] for row in names],
                                               np.uint32))
        self.weights = model.weights.buffer[: model.weights.nbytes // 2 * 2].view(np.float16)
        self.buffers = Buffers(encoder, layers)
        self.graphs: dict = {}  # by normalize

    @staticmethod
    def takes(sentences: Sequence) -> bool:
        """Whether there is one sentence, and not too long or empty."""
        return len(sentences) == 1 and 1 <= len(sentences[0]) <= MOST_TOKENS

    def put(self, ids) -> None:
        """Copy a sentence to the device."""
        host = np.zeros(1 + MOST_TOKENS, np.int32)
        host[0], host[1 : 1 + len(ids)] = len(ids), ids
        self.buffers.inputs.copy_to_device(host)

    def forward(self, normalize: bool = True, stream=0) -> None:
        """Write the embedding of the sentence on the device to buffers.pooled. Nothing is allocated."""
        persistent_encode(self.buffers, self.weights, self.offsets, normalize, stream=stream)

    def embed(self, ids, normalize: bool = True) -> np.ndarray:
        """Return the embedding of a sentence, (1, C) on the host; from the second one on, by a graph."""
        self.put(ids)
        if normalize in self.graphs:
            self.graphs[normalize].launch()
        else:  # this run compiles the kernel, so that it can be captured
            self.forward(normalize)
            self.graphs[normalize] = graphs.capture(lambda stream: self.forward(normalize, stream), warm_up=False)
        return self.buffers.pooled.copy_to_host()[None]
