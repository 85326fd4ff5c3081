"""A greedy GPT-2 step in PyTorch, to compare with gpt2_step.py.

    model = TorchGPT2(torch, config, tensors, np.float16)
    cache = model.cache(keys_and_values)        # (N, 2C), the last row belonging to the token that is decoded
    logits = model.step(cache)                  # (1, V); model.token becomes the most likely next token

A step does what GPT2.step does: embed the token that the device holds, append its keys and values to the cache,
attend to all N rows, compute the logits of the whole vocabulary and overwrite the token with their argmax. Parameters,
cache and activations have one type. The cache holds N rows and no more, so nothing is masked or read in vain, and the
position is a constant: a graph of these steps serves a single position, an advantage over ours, which reads it from
device memory.

Shapes at the ends of lines: N keys, H heads of D elements, C = H * D, V the size of the vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from labkit.kernels.norm.layernorm import EPSILON
from labkit.measure.series.beside_torch import graph_ms, still_compiling, why_not
from labkit.models.configs import HEAD, names_in
from labkit.models.gpt2 import Config
from labkit.models.minilm_reference import cosines

STEPS_IN_A_GRAPH = 10  # 2 ms or more, so that starting the replay does not count
MIN_COSINE = 0.99  # of PyTorch's logits and ours; a way below it is not timed
AUTOTUNED = "max-autotune-no-cudagraphs"  # sets coordinate_descent_tuning, which turns a GEMV into a tuned reduction

Cache = list  # of a tensor for each layer, keys and values: (2, 1, H, N, D)


# --- Attention of one query ------------------------------------------------------------------------------------------


def sdpa(torch, q, keys, values):
    """Call the fused kernel. Flash attention splits the keys, but has no float32, where each head gets one block."""
    return torch.nn.functional.scaled_dot_product_attention(q, keys, values)


def unfused(torch, q, keys, values):
    """Multiply by the keys, take the softmax and multiply by the values, which fills the GPU in float32 as well."""
    scores = (q * q.shape[-1] ** -0.5) @ keys.mT  # (1, H, 1, N)
    return torch.softmax(scores, -1) @ values  # (1, H, 1, D)


# --- Ways to run a step ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """Name one way to run a step. mode: torch.compile's, None for eager. whole: compile all layers as one function,
    instead of one layer that serves all."""

    name: str
    attend: Callable = sdpa
    mode: str | None = None
    whole: bool = False


WAYS = (
    Way("eager, in a graph"),
    Way("eager with unfused attention, in a graph", unfused),
    Way("compiled, in a graph", mode="default"),
    Way("compiled and autotuned, in a graph", mode=AUTOTUNED),
    Way("compiled and autotuned with unfused attention, in a graph", unfused, AUTOTUNED),
    Way("compiled with unfused attention, in a graph", unfused, "default"),
    Way("compiled whole and autotuned with unfused attention, in a graph", unfused, AUTOTUNED, whole=True),
)


# --- The model -------------------------------------------------------------------------------------------------------


class TorchGPT2:
    """Hold the weights in one type, float32 or float16, and the token that a step reads and replaces.

    tensors: as GPT2 takes them. Weights of linear layers are transposed once, to (out, in): a GEMV then sums along
    contiguous rows.
    """

    def __init__(self, torch, config: Config, tensors: Mapping[str, np.ndarray], dtype=np.float32,
                 device: str = "cuda"):
        self.torch, self.config, self.device = torch, config, device
        self.dtype = getattr(torch, np.dtype(dtype).name)
        weights = {key: self.tensor(tensors[hf_key]) for key, hf_key in names_in(tensors, config).items()}
        self.wte, self.wpe = weights["wte.weight"], weights["wpe.weight"]
        self.head = weights.get(HEAD, self.wte)  # (V, C)
        self.ln_f = {name: weights[name] for name in ("ln_f.weight", "ln_f.bias")}
        self.layers = []
        for layer in range(config.n_layer):
            own = {name: weights[f"h.{layer}.{name}"] for name in config.block.parameters}
            self.layers.append({name: each.t().contiguous() if each.ndim == 2 else each for name, each in own.items()})
        self.token = torch.zeros(1, dtype=torch.int64, device=device)

    def tensor(self, array: np.ndarray):
        return self.torch.tensor(array, dtype=self.dtype, device=self.device)

    def cache(self, keys_and_values: np.ndarray) -> Cache:
        """Give each layer a cache of its own with these (N, 2C), the layout of a gpt2.Workspace's caches."""
        rows = self.tensor(keys_and_values).view(len(keys_and_values), 2, 1, self.config.n_head, -1)
        rows = rows.permute(1, 2, 3, 0, 4).contiguous()  # (2, 1, H, N, D)
        return [rows.clone() for _ in self.layers]

    # --- A step ------------------------------------------------------------------------------------------------------

    def norm(self, x, w, name: str):
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], EPSILON)

    def linear(self, x, w, name: str):
        weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
        if self.torch.compiler.is_compiling():  # coordinate_descent_tuning rewrites mm, but not addmm
            return self.torch.nn.functional.linear(x, weight) + bias
        return self.torch.nn.functional.linear(x, weight, bias)

    def layer(self, w, x, residual, cache, attend):
        """Return (what this layer adds, residual). x: what the layer before adds; its sum with the residual belongs
        here, where the compiler fuses it with the norm."""
        _, _, heads, _, size = cache.shape
        residual = residual + x  # (1, C)
        qkv = self.linear(self.norm(residual, w, "ln_1"), w, "attn.c_attn").view(3, 1, heads, 1, size)
        cache[:, :, :, -1:] = qkv[1:]
        attended = attend(self.torch, qkv[0], cache[0], cache[1]).reshape(1, -1)  # (1, C)
        residual = residual + self.linear(attended, w, "attn.c_proj")
        hidden = self.linear(self.norm(residual, w, "ln_2"), w, "mlp.c_fc")
        hidden = self.torch.nn.functional.gelu(hidden, approximate="tanh")
        return self.linear(hidden, w, "mlp.c_proj"), residual

    def logits(self, x, residual):
        return self.torch.nn.functional.linear(self.norm(residual + x, self.ln_f, "ln_f"), self.head)  # (1, V)

    def forward(self, cache: Cache, attend: Callable, layer: Callable | None = None, logits: Callable | None = None):
        """Run self.token through the model. layer, logits: compiled ones."""
        layer, logits = layer or self.layer, logits or self.logits
        keys = cache[0].shape[3]
        x, residual = self.torch.nn.functional.embedding(self.token, self.wte), self.wpe[keys - 1 : keys]
        for w, own in zip(self.layers, cache, strict=True):
            x, residual = layer(w, x, residual, own, attend)
        return logits(x, residual)

    def step(self, cache: Cache, attend: Callable = sdpa, forward: Callable | None = None):
        """Return the logits and replace self.token. The argmax is never compiled: the compiler has one block do it."""
        logits = (forward or self.forward)(cache, attend)
        self.torch.argmax(logits, -1, out=self.token)
        return logits

    # --- Its time ----------------------------------------------------------------------------------------------------

    def call(self, cache: Cache, way: Way) -> Callable:
        """Return step() as `way` runs it, not yet compiled."""
        forward = self.forward
        if way.mode is not None:
            self.torch.compiler.reset()  # eight compilations of one function are allowed
            compiled = functools.partial(self.torch.compile, dynamic=False, fullgraph=True, mode=way.mode)
            forward = compiled(self.forward) if way.whole else functools.partial(
                self.forward, layer=compiled(self.layer), logits=compiled(self.logits))
        return functools.partial(self.step, cache, way.attend, forward)

    def row(self, way: Way, cache: Cache, token: int, key: np.ndarray, compile_until: float) -> dict:
        """Time a step in a CUDA graph, in microseconds; "why" says why there is no time. ours: logits after `token`.
        compile_until: on time.monotonic's clock, when not to begin to compile any more."""
        result = {"way": way.name, "us": None, "cosine": None}
        try:
            if way.mode is not None:
                still_compiling(compile_until)
            call = self.call(cache, way)
            self.token.fill_(token)
            cosine = float(cosines(key, call().double().cpu().numpy()).min())
            if not cosine > MIN_COSINE:
                raise ArithmeticError(f"logits unlike ours, cosine {cosine:.6f}")
            result["cosine"] = cosine
            result["us"] = 1000 * graph_ms(call, STEPS_IN_A_GRAPH)
        except Exception as error:  # what cannot be compiled here must not cost the other rows
            result["why"] = why_not(error)
        return result
