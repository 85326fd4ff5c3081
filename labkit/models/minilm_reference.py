"""MiniLM in NumPy and float64, the reference; and parity, which compares a model with it, launch by launch.

    parity(model, sentences)      a table of all activations; .first names the first that differs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from labkit.kernels.attention.three_pass import attention_reference
from labkit.kernels.gelu import gelu_erf_reference
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.models import gpt2_reference
from labkit.models.configs import PARTS
from labkit.models.gpt2_block import allowed_error
from labkit.models.gpt2_reference import Compared, Difference, Parity
from labkit.models.minilm import Config, MiniLM, lay_out


def weights_of(tensors: Mapping[str, np.ndarray], config: Config, dtype=np.float32) -> dict[str, np.ndarray]:
    """The parameters in float64, as of any model, but each converted once: every sentence needs them."""
    return dict(gpt2_reference.weights_of(tensors, config, dtype))


def activations(config: Config, w: Mapping[str, np.ndarray], ids: Sequence[int]) -> dict[str, np.ndarray]:
    """The output of each launch of minilm.py for one sentence, by the name it is reported under, and "mean".

    w: as weights_of gives them. A sentence without tokens has zeros.
    """
    ids = np.asarray(ids, np.int64)
    if ids.size == 0:
        return {"mean": np.zeros(config.hidden_size), "pooled": np.zeros(config.hidden_size)}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def normed(x, name):
        return layernorm_reference(x, w[f"{name}.weight"], w[f"{name}.bias"], config.layer_norm_eps)

    s = {}
    total = (w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
             + w["embeddings.token_type_embeddings.weight"][0])
    s["embedding.sum"] = total
    x = s["embedding"] = normed(total, "embeddings.LayerNorm")
    for layer in range(config.num_hidden_layers):
        prefix, h = f"encoder.layer.{layer}.", f"layer.{layer}."
        for part in PARTS:
            s[h + part] = linear(x, f"{prefix}attention.self.{part}")
        s[h + "qkv"] = np.concatenate([s[h + part] for part in PARTS], axis=1)
        s[h + "attended"] = attention_reference(s[h + "qkv"], config.num_attention_heads)
        s[h + "attention.projected"] = linear(s[h + "attended"], f"{prefix}attention.output.dense")
        y = s[h + "attention.normed"] = normed(s[h + "attention.projected"] + x, f"{prefix}attention.output.LayerNorm")
        s[h + "gelu"] = gelu_erf_reference(linear(y, f"{prefix}intermediate.dense"))
        s[h + "projected"] = linear(s[h + "gelu"], f"{prefix}output.dense")
        x = s[h + "out"] = normed(s[h + "projected"] + y, f"{prefix}output.LayerNorm")
    s["mean"] = x.mean(axis=0)
    s["pooled"] = s["mean"] / np.linalg.norm(s["mean"])
    return s


def embeddings(config: Config, w: Mapping[str, np.ndarray], sentences: Sequence, normalize: bool = True) -> np.ndarray:
    """(n, C) float64, each sentence by itself."""
    name = "pooled" if normalize else "mean"
    return np.array([activations(config, w, ids)[name] for ids in sentences])


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The cosine of each row with the other's; 1 where both are zeros."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    both_zero = ~one.any(axis=1) & ~other.any(axis=1)
    return np.where(both_zero, 1.0, (one * other).sum(axis=1) / np.where(lengths > 0, lengths, 1.0))


def parity(model: MiniLM, sentences: Sequence, form: str = "packed", normalize: bool = True,
           times: float = 1.0, compared: Compared | None = None) -> Parity:
    """Run a batch through the model and compare the output of every launch with the reference; rows of no sentence are
    left out. times: how many times the usual error is allowed, for kernels that round more often. compared: called
    after each launch, with the row, the model's array and the reference's."""
    w = weights_of(model.tensors, model.config, model.dtype)
    truth = [activations(model.config, w, ids) for ids in sentences]
    shape, host = lay_out([np.asarray(ids, np.int32) for ids in sentences], form)
    begins = host[3 * shape.rows :][: len(sentences)]
    rows = []

    def watch(name, array):
        actual = array.copy_to_host().astype(np.float64)
        if name == "pooled":
            expected = np.array([one["pooled" if normalize else "mean"] for one in truth])
            actual = actual[: len(sentences)]
        else:
            nonempty = [(begin, one[name]) for begin, one in zip(begins, truth, strict=True) if "embedding" in one]
            actual = np.concatenate([actual[begin : begin + len(values)] for begin, values in nonempty])
            expected = np.concatenate([values for _, values in nonempty])
        allowed = times * allowed_error(model.config, expected, len(rows) + 1, model.dtype)
        rows.append(Difference.between(name, actual, expected, allowed))
        if compared:
            compared(rows[-1], actual, expected)

    model.embed(sentences, form, normalize, watch=watch)
    return Parity(tuple(rows))
