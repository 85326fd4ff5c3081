"""One token through a GPT-2 in 3 + 5 * layers launches, where gpt2.py takes 5 + 8 * layers.

    embedding
    of each layer   norm, queries, keys and values, the latter into the cache
                    attention, in parts of the keys
                    the parts joined, linear layer, residual
                    norm, linear layer, GELU
                    linear layer, residual
    norm, logits, the largest of each block
    the most likely token of all

Parameters and cache are float32 or float16; activations between launches are float32, except the queries. While a
launch waits for its latencies, it fetches what a later one reads into L2 (linear/one_row.py): with 12 layers of GPT-2
small in float32, 2 to 9 MB in each. The order below keeps these about equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from labkit import cuda
from labkit.kernels.attention.one_query import Parts, one_query, one_row_attended, takes_head
from labkit.kernels.linear import next_token
from labkit.kernels.linear.next_token import pick_next, row_logits
from labkit.kernels.linear.one_row import allowed, one_row_embedding, one_row_gelu, one_row_qkv, one_row_residual

AHEAD_OF_LOGITS = 1 << 23  # bytes of the table that each of the last two launches before it fetches


class Memory:
    """The buffers of these launches besides those of a Workspace, allocated once."""

    def __init__(self, width: int, heads: int, dtype):
        self.q = cuda.device_array((1, width), dtype)
        self.parts = Parts(heads, width // heads)
        self.best = cuda.device_array(next_token.blocks_of(), np.int64)

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.parts.nbytes + self.best.nbytes


def problem(config, dtype) -> str:
    """Why there are no such kernels for a model of this shape; empty if there are."""
    if any(not allowed(depth, cols) for cols, depth in config.block.layers):
        return f"its layers are {config.n_embd} and {config.inner} wide; multiples of 8 up to 8,192 are allowed"
    if config.n_embd > next_token.WIDEST:
        return f"n_embd is {config.n_embd}; at most {next_token.WIDEST:,} is allowed"
    if not takes_head(config.n_embd // config.n_head, np.dtype(dtype) == np.float16):
        return f"heads of {config.n_embd // config.n_head} numbers; multiples of 8 up to 128 are allowed"
    return ""


def launches(model, ws) -> list[tuple[str, Callable]]:
    """(name, launch(stream=)) of every launch before the last, which pick makes; names are the same in each layer."""
    w, layers, rows, memory = model.weights, model.layers, ws.rows(1), ws.one_row
    added, hidden, heads = rows.block.added, rows.block.hidden, model.config.n_head
    table = model.head.reshape(model.head.size)
    num_ahead = min(AHEAD_OF_LOGITS // table.dtype.itemsize, table.size // 2)
    result = []

    def add(name, launch, *args, **options):
        result.append((name, functools.partial(launch, *args, **options)))

    add("embedding", one_row_embedding, rows.ids, w["wte.weight"], w["wpe.weight"], ws.start, rows.x)
    for layer, (p, cache) in enumerate(zip(layers, ws.caches, strict=True)):
        next_layer = layers[layer + 1] if layer + 1 < len(layers) else None
        add("attn.c_attn", one_row_qkv, rows.x, p["ln_1.weight"], p["ln_1.bias"], p["attn.c_attn.weight"],
            p["attn.c_attn.bias"], memory.q, cache, ws.start, ahead=None if layer else p["attn.c_proj.weight"])
        add("attn", one_query, memory.q, cache, ws.start, heads, memory.parts, ahead=p["mlp.c_fc.weight"])
        add("attn.added", one_row_attended, memory.parts, heads, p["attn.c_proj.weight"], p["attn.c_proj.bias"],
            rows.x, added, ahead=p["mlp.c_proj.weight"])
        add("mlp.gelu", one_row_gelu, added, p["ln_2.weight"], p["ln_2.bias"], p["mlp.c_fc.weight"],
            p["mlp.c_fc.bias"], hidden, ahead=next_layer["attn.c_attn.weight"] if next_layer else table[:num_ahead])
        add("out", one_row_residual, hidden, p["mlp.c_proj.weight"], p["mlp.c_proj.bias"], added, rows.x,
            ahead=next_layer["attn.c_proj.weight"] if next_layer else table[num_ahead : 2 * num_ahead])
    add("logits", row_logits, rows.x, w["ln_f.weight"], w["ln_f.bias"], model.head, ws.logits, memory.best)
    return result


def forward(model, ws, stream=0) -> None:
    """Process the token ws.ids[0], which follows those in the cache; ws.logits gets the logits after it."""
    for _, launch in launches(model, ws):
        launch(stream=stream)


def pick(ws, count: int = 1, stream=0) -> None:
    """ws.ids[0] becomes the most likely token by the last logits, and the text is `count` tokens longer."""
    pick_next(ws.one_row.best, ws.rows(1).ids, ws.start, count, stream=stream)
