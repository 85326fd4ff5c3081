"""The parts of a model, and the part that each exercise's kernel can replace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

GPT2, ENCODER, LLAMA, TRAINING = "a GPT-2", "a sentence encoder", "a Llama", "the training of a model"
LINEAR = ("attn.c_attn", "attn.added", "mlp.gelu", "out")  # the steps that end a linear layer


@dataclass(frozen=True)
class Place:
    """The part of the model that an exercise's kernel can replace.

    part: its name in PARTS, which says what it is called with. size: from these arguments the exercise's size, which
    its launch configuration depends on. arguments: from the same those of the exercise's kernel. head: the only head
    size that it supports; None for any.
    """

    exercise: str
    part: str
    size: Callable
    arguments: Callable = lambda *arguments: arguments
    head: int | None = None

    @property
    def model(self) -> str:
        """The kind of model that it is a part of, or TRAINING."""
        for kind, parts in ((ENCODER, ENCODER_PARTS), (LLAMA, LLAMA_PARTS), (TRAINING, TRAINING_PARTS)):
            if self.part in parts:
                return kind
        return GPT2


# The parts of a sentence encoder, as PARTS has those of a GPT-2; labkit.models.minilm_reference names the steps. Called
# with:
#   encoder_embedding(ids, types, positions, words, places, kinds, weight, bias, out)   pool(x, begins, lengths, out)
#   encoder_attention(qkv, heads, begins, lengths, longest, out)    add_layernorm(x, residual, weight, bias, out)
ENCODER_PARTS = {
    "encoder_embedding": ("the encoder's embedding", ("embedding",)),
    "pool": ("tokens to sentences", ("mean", "pooled")),
    "encoder_attention": ("the encoder's attention", ("attended",)),
    "add_layernorm": ("residual and LayerNorm", ("attention.normed", "out")),
}

# Those of a Llama in float32; labkit.models.llama_reference names the steps. Called with:
#   rmsnorm(x, weight, epsilon, out)        rope(x, table, positions, out): x (T, heads, D), which is out as well
#   paged_attention(q, keys, values, page_table, lengths, scale, out): as labkit.kernels.attention.paged has it
LLAMA_PARTS = {
    "rmsnorm": ("RMSNorm", ("input_norm", "post_norm", "norm")),
    "rope": ("rotated queries and keys", ("q", "keys")),
    "paged_attention": ("attention of one new token", ("attended",)),
}

# Those of the backward passes of a GPT-2 and of a Llama, which compute no step of a forward pass. Called with:
#   gather_backward(order, starts, dout, dtable)    score_gradients(scores, lse, grad_weights, delta, scale, out)
TRAINING_PARTS = {
    "gather_backward": ("the gradient of the embedding", ()),
    "score_gradients": ("the gradients of attention's scores", ()),
}
# In training, these too. A Llama's launches have no biases, and a GPT-2's no angles.
TRAINED = {GPT2: ("layernorm", "logits", "bias", "gelu", "bias_gelu", "add", *TRAINING_PARTS),
           LLAMA: ("rmsnorm", "rope", "logits", "add", *TRAINING_PARTS)}

# part -> (in words, the steps that it writes; the names are those that labkit.models watches). Called with:
#   embedding(ids, tokens, positions, start, out)   layernorm(x, weight, bias, out)
#   product(x, weights, out)   bias(x, bias, out)   bias_gelu(x, bias, out)   gelu(x, out)   add(x, residual, out)
#   softmax(scores, out)   one_head(queries, keys, values, out)   attention(qkv, heads, out, cache=, start=, causal=)
#   append_to_cache(qkv, start, cache)
#   logits(x, table, out)   argmax(x, out)          and stream= each. Elementwise parts: out may be x
PARTS = {
    "embedding": ("tokens to rows", ("embedding",)),
    "layernorm": ("LayerNorm", ("ln_1", "ln_2", "ln_f")),
    "product": ("the products", LINEAR),
    "bias": ("the biases", LINEAR),
    "bias_gelu": ("bias and GELU", ("mlp.gelu",)),
    "gelu": ("GELU", ("mlp.gelu",)),
    "add": ("the residuals", ("attn.added", "out")),
    "softmax": ("attention's softmax", ("attn",)),
    "one_head": ("attention, head by head", ("attn",)),
    "attention": ("attention", ("attn",)),
    "append_to_cache": ("keys and values to the cache", ("attn",)),
    "logits": ("rows to logits", ("logits",)),
    "argmax": ("the likeliest token", ()),
    **ENCODER_PARTS,
    **LLAMA_PARTS,
    **TRAINING_PARTS,
}


def _rows(x, *_):
    return {"R": x.shape[0], "C": x.shape[1]}


def _transposed_product(x, table, out):
    return {"M": x.shape[0], "N": table.shape[0], "K": x.shape[1]}


def _flat(array):
    return array.reshape(array.size)


# In the order of the lessons. Where two replace the same part, the later one wins when all are used.
PLACES = [
    Place("saxpy", "add", lambda x, residual, out: {"n": out.size},
          lambda x, residual, out: (np.float32(1), _flat(residual), _flat(out))),  # y = 1 * residual + y
    Place("add_row", "bias", _rows),
    Place("matmul_bt", "logits", _transposed_product),
    Place("matmul_ahead", "product", lambda x, w, out: {"M": x.shape[0], "N": w.shape[1], "K": x.shape[1]}),
    Place("linear_patch", "logits", _transposed_product),
    Place("largest_seen", "softmax", lambda scores, out: {"B": scores.shape[0], "S": scores.shape[1]}),
    Place("layernorm_two_sums", "layernorm", _rows),
    Place("attend_warp", "one_head", lambda queries, keys, *_: {"Q": queries.shape[0], "N": keys.shape[0]}, head=64),
    Place("embed_tokens", "embedding", lambda *arrays: {"T": arrays[4].shape[0], "C": arrays[4].shape[1]}),
    Place("bias_gelu_tanh", "bias_gelu", _rows),
    Place("first_largest", "argmax", _rows),
    Place("append_rows", "append_to_cache", lambda qkv, start, cache: {"S": qkv.shape[0], "C": cache.shape[1] // 2,
                                                                       "N": cache.shape[0], "before": 0}),
    Place("embed_norm", "encoder_embedding", lambda *arrays: {"T": arrays[-1].shape[0], "C": arrays[-1].shape[1]}),
    Place("mean_pool", "pool", lambda x, begins, lengths, out: {"B": out.shape[0], "S": 0, "C": out.shape[1]}),
    Place("add_norm", "add_layernorm", lambda x, *_: {"T": x.shape[0], "C": x.shape[1]}),
    Place("attend_packed", "encoder_attention",
          lambda qkv, heads, begins, lengths, longest, out: {"B": lengths.size, "S": longest, "H": heads},
          lambda qkv, heads, begins, lengths, longest, out: (qkv, heads, begins, lengths, out), head=32),
    Place("rmsnorm_block", "rmsnorm", lambda x, *_: {"T": x.shape[0], "C": x.shape[1]}),
    Place("rope_heads", "rope", lambda x, *_: {"T": x.shape[0], "H": x.shape[1], "D": x.shape[2]}),
    Place("paged_attention", "paged_attention",
          lambda q, keys, *_: {"B": q.shape[0], "S": 0, "H": q.shape[1], "KV": keys.shape[1], "D": q.shape[2]},
          lambda q, keys, values, page_table, lengths, scale, out: (q, keys, values, page_table, lengths, out, scale)),
    Place("gather_backward", "gather_backward",
          lambda order, starts, dout, dtable: {"T": order.size, "V": dtable.shape[0], "C": dtable.shape[1]}),
    Place("score_gradients", "score_gradients", lambda scores, *_: {"S": scores.shape[0]}),
]


def in_model(model: str) -> list[str]:
    """The exercises with a place in a GPT2, an ENCODER or a LLAMA."""
    return [place.exercise for place in PLACES if place.model == model]


def in_training_of(model: str) -> list[str]:
    """Those with a place in the training of a GPT2 or a LLAMA."""
    return [place.exercise for place in PLACES if place.part in TRAINED[model]]


def place_of(exercise: str) -> Place:
    for place in PLACES:
        if place.exercise == exercise:
            return place
    raise ValueError(f"{exercise!r} has no place in the model; these have: "
                     f"{', '.join(place.exercise for place in PLACES)}")
