"""Llama in NumPy and float64, the reference; and parity, which compares a model with it, launch by launch.

    activations(config, weights, ids)                     the truth
    activations(config, weights, ids, rounded=bfloat16)   the same, rounded wherever a model in bfloat16 rounds
    parity(model, prompts)                                a table of all launches; .first names the first that differs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from labkit.kernels.attention.pages import gather, pages_for
from labkit.kernels.dtypes import bfloat16_of, float32_of, float64_of
from labkit.kernels.elements import ELEMENTS
from labkit.kernels.rope import frequencies
from labkit.kernels.tolerance import EPS32
from labkit.models.configs import EMBEDDING, HEAD
from labkit.models.dtypes import DTYPES
from labkit.models.gpt2_reference import Compared, Difference, Parity, weights_of
from labkit.models.llama import Cache, Config, Llama, Workspace
from labkit.models.step import Inputs, Piece


def bfloat16(values) -> np.ndarray:
    """The nearest bfloat16 of each, in float64."""
    return float32_of(bfloat16_of(values)).astype(np.float64)


def float16(values) -> np.ndarray:
    """The nearest float16 of each, in float64."""
    return np.asarray(values, np.float16).astype(np.float64)


def unchanged(values):
    return values


ROUNDED = {"bfloat16": bfloat16, "float16": float16, "float32": unchanged}


# --- Its parts -------------------------------------------------------------------------------------------------------


def rmsnorm(x, weight, epsilon: float, rounded: Callable = unchanged) -> np.ndarray:
    """Divide each row by the root of its mean square, then multiply by the weights; round after both."""
    return rounded(weight * rounded(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)))


def rotate(heads, positions, config: Config) -> np.ndarray:
    """(T, heads, D): the pair (d, d + D/2) is rotated by the angle of its position."""
    per_position = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    angles = np.asarray(positions, np.float64)[:, None, None] * per_position
    cos, sin = np.cos(angles), np.sin(angles)
    x1, x2 = np.split(heads, 2, axis=-1)
    return np.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


def attention(q, keys, values) -> np.ndarray:
    """q (T, H, D): the last T of the n tokens of keys and values (n, K, D), with a causal mask. Return (T, H * D)."""
    tokens, heads, size = q.shape
    context_len, group_size = keys.shape[0], heads // keys.shape[1]
    keys, values = (np.repeat(array, group_size, axis=1) for array in (keys, values))
    scores = np.einsum("thd,nhd->htn", q, keys) / size**0.5
    hidden = np.arange(context_len)[None, :] > np.arange(context_len - tokens, context_len)[:, None]
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("htn,nhd->thd", weights, values).reshape(tokens, heads * size)


def swiglu(gate, up, rounded: Callable = unchanged) -> np.ndarray:
    return rounded(rounded(gate / (1 + np.exp(-gate))) * up)


# --- All of it -------------------------------------------------------------------------------------------------------


def layer_activations(config: Config, w: Mapping[str, np.ndarray], h: str, x: np.ndarray, positions, record: Callable,
                      rounded: Callable = unchanged) -> np.ndarray:
    """Return what the layer whose parameters' names begin with `h` makes of x (T, C). record(name, value) is called
    with the output of each launch, and returns what the next one computes with."""
    tokens, size = x.shape[0], config.head_dim
    queries = config.num_attention_heads * size
    keys_end = queries + config.num_key_value_heads * size

    def linear(x, *names):
        """Several of the file's products side by side."""
        return rounded(np.concatenate([x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0) for name in names], 1))

    def heads(x, norm):
        x = x.reshape(tokens, -1, size)
        return rmsnorm(x, w[norm], config.rms_norm_eps, rounded) if norm in w else x

    normed = record(h + "input_norm", rmsnorm(x, w[h + "input_layernorm.weight"], config.rms_norm_eps, rounded))
    qkv = record(h + "qkv", linear(normed, *(f"{h}self_attn.{part}_proj" for part in "qkv")))
    q, k, v = np.split(qkv, (queries, keys_end), axis=1)
    q = record(h + "q", rounded(rotate(heads(q, h + "self_attn.q_norm.weight"), positions, config)))
    keys = record(h + "keys", rounded(rotate(heads(k, h + "self_attn.k_norm.weight"), positions, config)))
    values = record(h + "values", heads(v, None))
    attended = record(h + "attended", rounded(attention(q, keys, values)))
    projected = record(h + "projected", linear(attended, h + "self_attn.o_proj"))
    x = record(h + "added", rounded(x + projected))
    normed = record(h + "post_norm", rmsnorm(x, w[h + "post_attention_layernorm.weight"], config.rms_norm_eps, rounded))
    gated = record(h + "gated", swiglu(*(linear(normed, f"{h}mlp.{part}_proj") for part in ("gate", "up")), rounded))
    down = record(h + "down", linear(gated, h + "mlp.down_proj"))
    return record(h + "out", rounded(x + down))


def activations(config: Config, w: Mapping[str, np.ndarray], ids: Sequence[int], *, positions=None,
                given: Mapping[str, np.ndarray] | None = None, rounded: Callable = unchanged,
                dtype=np.float64) -> dict[str, np.ndarray]:
    """The output of each launch of llama.py for the tokens `ids` of one sequence, by the name it is reported under;
    "logits" are those of all tokens. Keys and values are (tokens, K, D).

    w: as weights_of gives them. positions: of the tokens; left out, from 0 on. given: outputs of a model: each
    activation is then computed from the model's own inputs to its launch, so that an error shows only in the launch
    that made it. Its keys and values may include those of earlier tokens. rounded: applied wherever a model rounds.
    dtype: in which it is computed, if the parameters are of it, too.
    """
    given = given or {}
    positions = np.arange(len(ids)) if positions is None else np.asarray(positions)
    result: dict[str, np.ndarray] = {}

    def record(name, value):
        result[name] = value
        return np.asarray(given.get(name, value), dtype)

    x = record("embedding", w[EMBEDDING][np.asarray(ids)])
    for layer in range(config.num_hidden_layers):
        x = layer_activations(config, w, f"layers.{layer}.", x, positions, record, rounded)
    normed = record("norm", rmsnorm(x, w["norm.weight"], config.rms_norm_eps, rounded))
    record("logits", normed @ w[HEAD if HEAD in w else EMBEDDING].T)  # float32: not rounded
    return result


# --- A model against it ----------------------------------------------------------------------------------------------

def allowed_error(config: Config, expected: np.ndarray, dtype: str) -> float:
    """The error allowed in one launch, relative to the largest number that it writes: four roundings of the result, and
    in float32 those of a sum of as many products as the longest one of the model has."""
    longest = max(config.intermediate_size, config.hidden_size, config.num_attention_heads * config.head_dim)
    largest, element = float(np.abs(expected).max()), ELEMENTS[DTYPES[dtype]]
    return 2 * float(element.rounding_error(largest)) if element.eps else EPS32 * 2 * np.sqrt(longest) * largest


def parity(model: Llama, prompts: Sequence[Sequence[int]], before: Sequence[int] | None = None,
           compared: Compared | None = None) -> Parity:
    """Run prompts through a model in one step and compare the output of every launch with the reference, computed from
    the model's own inputs to that launch: so a wrong launch is one wrong row, and those after it are right.

    before: how many tokens of each prompt are computed in a step of their own, which is not compared. Prompts
    with one token left come first. compared: called for each launch, with the row, the model's array and the
    reference's, the rows of all prompts below each other.
    """
    config, prompts = model.config, [list(prompt) for prompt in prompts]
    before = [0] * len(prompts) if before is None else list(before)
    counts = [pages_for(len(prompt)) for prompt in prompts]
    order = np.random.default_rng(0).permutation(sum(counts))  # pages of a sequence may lie anywhere
    pages = [part.tolist() for part in np.split(order, np.cumsum(counts)[:-1])]
    tokens = sum(map(len, prompts))
    cache = Cache(config, sum(counts), model.dtype)
    inputs, workspace = Inputs(tokens, len(prompts), max(counts)), Workspace(config, tokens, len(prompts), model.dtype)
    for prompt, count, seq_pages in zip(prompts, before, pages, strict=True):
        if count:
            model.forward(inputs.step([Piece(prompt[:count], 0, seq_pages)]), cache, workspace)
    pieces = [Piece(prompt[count:], count, seq_pages)
              for prompt, count, seq_pages in zip(prompts, before, pages, strict=True)]
    written: dict[str, np.ndarray] = {}
    model.forward(inputs.step(pieces), cache, workspace,
                  watch=lambda name, array: written.setdefault(name, float64_of(array.copy_to_host())))

    w = weights_of(model.tensors, config, model.dtype)
    truth, begin = [], 0
    for index, (piece, seq_pages) in enumerate(zip(pieces, pages, strict=True)):
        rows = slice(begin, begin + len(piece.ids))
        begin = rows.stop
        given = {}
        for name, array in written.items():
            if name.endswith((".keys", ".values")):
                given[name] = gather(array, np.array(seq_pages), piece.before + len(piece.ids))
            else:
                given[name] = array[index : index + 1] if name == "logits" else array[rows]
        expected = activations(config, w, piece.ids, positions=np.arange(piece.before, piece.before + len(piece.ids)),
                               given=given, rounded=ROUNDED[model.dtype])
        truth.append((given, expected))
    differences = []
    for name in written:
        references = [expected[name][-1:] if name == "logits" else expected[name] for _, expected in truth]
        actual = [given[name][-len(ref) :] for (given, _), ref in zip(truth, references, strict=True)]
        actual, references = np.concatenate(actual), np.concatenate(references)
        differences.append(Difference.between(name, actual, references, allowed_error(config, references, model.dtype)))
        if compared:
            compared(differences[-1], actual, references)
    return Parity(tuple(differences))
