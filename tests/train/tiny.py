"""Tiny models for the tests of training, and their losses in float64."""

import numpy as np

from labkit.kernels.gelu import gelu_tanh_reference
from labkit.kernels.rope import rope_table
from labkit.models.configs import HEAD
from labkit.train.settings import Settings
from labkit.train.texts import Texts

GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 1}
LLAMA = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 16}
MODELS = {"gpt2": GPT2, "llama": LLAMA, "tied llama": LLAMA | {"tie_word_embeddings": True}}
TRAIN = {"steps": 6, "batch": 2, "length": 16, "accumulation": 2, "learning_rate": 1e-2, "least_rate": 1e-3,
         "warm_up": 2, "held_out_every": 3, "save_every": 2}


def settings_of(model: str, **train) -> Settings:
    return Settings.of({"model": MODELS[model], "data": {"tokens": ["ids.npy"], "tokenizer": "."},
                        "train": TRAIN | train})


def texts_of(settings: Settings, tokenizer=None, **processes) -> Texts:
    """Tokens that follow a rule, with a few that do not."""
    draw = np.random.default_rng(0)
    ids = (np.arange(600) * 7 + 3 * (draw.random(600) < 0.2)) % 64
    return Texts(settings, ids.astype(np.int64), tokenizer, **processes)


def rms(x, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def attend(q, k, v):
    """q (B, S, H, D), k and v (B, S, K, D): causal."""
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(one, group, axis=2) for one in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[3])
    scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v).reshape(*q.shape[:2], -1)


def loss64(config, w: dict, ids, targets) -> float:
    """The mean loss in float64. w: parameters by the names of the files. ids, targets (B, S)."""
    batch, length = ids.shape
    if hasattr(config, "n_embd"):
        def norm(x, name):
            centred = x - x.mean(-1, keepdims=True)
            return rms(centred, 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

        def product(x, name):
            return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

        x = w["wte.weight"][ids] + w["wpe.weight"][:length]
        for layer in range(config.n_layer):
            h = f"h.{layer}."
            parts = np.split(product(norm(x, h + "ln_1"), h + "attn.c_attn"), 3, axis=-1)
            heads = (one.reshape(batch, length, config.n_head, -1) for one in parts)
            x = x + product(attend(*heads), h + "attn.c_proj")
            x = x + product(gelu_tanh_reference(product(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
        logits = norm(x, "ln_f") @ w["wte.weight"].T
    else:
        cos, sin = np.split(rope_table(length, config.head_dim, config.rope_theta).astype(np.float64)[:, None], 2, -1)

        def rotated(x):
            first, second = np.split(x.reshape(batch, length, -1, config.head_dim), 2, -1)
            return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

        x = w["embed_tokens.weight"][ids]
        for layer in range(config.num_hidden_layers):
            h = f"layers.{layer}."
            normed = rms(x, config.rms_norm_eps) * w[h + "input_layernorm.weight"]
            q, k, v = (normed @ w[f"{h}self_attn.{part}_proj.weight"].T for part in "qkv")
            x = x + attend(rotated(q), rotated(k), v.reshape(batch, length, -1, config.head_dim)) @ w[
                h + "self_attn.o_proj.weight"].T
            normed = rms(x, config.rms_norm_eps) * w[h + "post_attention_layernorm.weight"]
            gate, up = (normed @ w[f"{h}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[h + "mlp.down_proj.weight"].T
        logits = (rms(x, config.rms_norm_eps) * w["norm.weight"]) @ w.get(HEAD, w["embed_tokens.weight"]).T
    logits = logits - logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return float((np.log(np.exp(logits).sum(-1)) - chosen).mean())
