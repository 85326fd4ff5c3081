"""A decoding step of a Llama in one launch: lays weights and workspace out for labkit.kernels.persistent.

    one_kernel = OneKernel(model)               # raises ValueError where the kernel cannot compute the model
    one_kernel.takes(step)                      # up to eight sequences, each with one token
    one_kernel.forward(step, cache, logits)     # (B, V) float32; one_kernel.buffers.tokens: the greedy tokens

The weights are the model's own: of the blob, only the offsets are copied.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from labkit import cuda, device
from labkit.device import gpus
from labkit.kernels.attention.pages import pages_for
from labkit.kernels.elements import ELEMENTS
from labkit.kernels.op import missing
from labkit.kernels.persistent.decode import KINDS, Buffers, make_persistent_decode, persistent_decode
from labkit.kernels.persistent.decoder import ROWS, Decoder
from labkit.models.configs import EMBEDDING, HEAD
from labkit.models.dtypes import DTYPES
from labkit.models.step import Step

LAYER = ("input_layernorm", "self_attn.qkv_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_up_proj",
         "mlp.down_proj")
NOT_COMPUTED = ("self_attn.qkv_proj.bias", "self_attn.o_proj.bias", "self_attn.q_norm.weight",
                "self_attn.k_norm.weight")
CPU_WARPS = 2  # each thread of the CPU device is interpreted, and takes as long when it has nothing to do
MAX_STAGES = 6


def decoder_of(model, timed: bool = False) -> Decoder:
    """Return the sizes of a model, and as many stages as fit into shared memory beside the rest."""
    config = model.config
    decoder = Decoder(config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim,
                      config.intermediate_size, config.vocab_size, config.rms_norm_eps, model.scale,
                      ELEMENTS[np.dtype(DTYPES[model.dtype])], timed=timed,
                      warps=device.pick(gpu=Decoder.warps, cpu=CPU_WARPS))
    static = 4 * decoder.scratch + 2 * decoder.group_heads * decoder.head_dim + 2 * 8 * MAX_STAGES + 64
    stages = (gpus.target().shared_per_block - static) // (decoder.ring_bytes // decoder.stages)
    return dataclasses.replace(decoder, stages=min(MAX_STAGES, stages))


class OneKernel:
    """timed: record when each block begins and ends each phase."""

    def __init__(self, model, timed: bool = False):
        if type(model.kernels)() != model.kernels:
            raise ValueError("one_kernel: the model has kernels of its own, and they would not be used")
        if model.quantized:
            raise ValueError("one_kernel: the model has quantised weights, which the kernel does not compute")
        if others := sorted({name.split(".", 2)[-1] for name in model.weights.entries} & set(NOT_COMPUTED)):
            raise ValueError(f"one_kernel: the model has {', '.join(others)}, which the kernel does not compute")
        decoder, layers = decoder_of(model, timed), model.config.num_hidden_layers
        self.kernel = make_persistent_decode(decoder)
        if problem := decoder.problem() or missing(self.kernel):
            raise ValueError(f"one_kernel: {problem}")
        entries = model.weights.entries
        names = [[f"layers.{layer}.{name}.weight" for name in LAYER] for layer in range(layers)]
        head = EMBEDDING if model.config.tie_word_embeddings else HEAD
        names.append(["norm.weight", EMBEDDING, head] + [EMBEDDING] * (KINDS - 3))
        self.model, self.decoder = model, decoder
        self.offsets = cuda.to_device(np.array([[entries[name].offset // 16 for name in row] for row in names],
                                               np.uint32))
        nbytes = model.weights.nbytes // 2 * 2
        self.weights = model.weights.buffer[:nbytes].view(DTYPES[model.dtype])
        self.buffers = Buffers(decoder, layers, pages_for(model.positions))

    @staticmethod
    def takes(step: Step) -> bool:
        """Whether each sequence of the step has one token, and there are not too many."""
        return step.shape.rows == step.shape.sequences == step.shape.decoding <= ROWS

    def forward(self, step: Step, cache, logits, stream=0):
        """Write the logits (B, V) after each sequence's token, and return them."""
        layers = 2 * self.model.config.num_hidden_layers
        persistent_decode(self.buffers, self.weights, self.offsets, self.model.table, step.ids, step.positions,
                          step.slots, step.contexts, step.page_table,
                          cache.memory.reshape(layers, cache.memory.size // layers), logits, stream=stream)
        return logits
