"""A model's config.json, and the names and shapes of its parameters: read, and checked before anything is computed.

    config = LlamaConfig.read("llama/config.json")      # GPT2Config, LlamaConfig, Qwen3Config, BertConfig
    shapes(config)["layers.0.mlp.down_proj.weight"]     # every parameter that is used
    names_in(tensors("llama"), config)                  # labkit's name of each parameter -> the file's

Fields have the names of config.json, and the defaults of transformers, or of GPT-2 small and all-MiniLM-L6-v2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np

from labkit._common.errors import short
from labkit._common.files import read_json
from labkit.kernels.norm.layernorm import EPSILON
from labkit.kernels.rope import frequencies
from labkit.models import gpt2_block
from labkit.models.blob import is_bfloat16
from labkit.models.packed import QuantizedTensor, check_quantization

LARGEST = 2**31 - 1  # kernels index with int32
HEAD = "lm_head.weight"  # (V, C); no file has it where it is the embedding's table
EMBEDDING = "embed_tokens.weight"  # (V, C), of a Llama
PARTS = ("query", "key", "value")  # three products in the files of a BERT

# What a field must be: a check, and in words.
COUNT = (lambda value: type(value) is int and 1 <= value <= LARGEST, f"a whole number from 1 to {LARGEST:,}")
SMALL = (lambda value: type(value) in (int, float) and 0 < value < 1, "a number between 0 and 1")
BASE = (lambda value: type(value) in (int, float) and 1 < value < math.inf, "a number above 1")
FLAG = (lambda value: type(value) is bool, "true or false")
OBJECT = (lambda value: isinstance(value, Mapping | None), "an object or null")


class Config:
    """The base of the dataclasses below."""

    kind: ClassVar[str]
    prefix: ClassVar[str]  # before every name but the head's, in files that hold more than the bare model
    layers: ClassVar[str]  # the field that counts them
    width: ClassVar[str] = "hidden_size"
    only: ClassVar[Mapping[str, tuple]]  # settings that would change the result, and the values that are supported
    required: ClassVar[tuple[str, ...]] = ()
    optional_shapes: ClassVar[Mapping[str, tuple[int, ...]]] = {}  # of parameters that a file may have or not

    @classmethod
    def read(cls, path):
        """From a model's config.json, if it describes a model that can be computed here."""
        return cls.of(read_json(path), str(path))

    @classmethod
    def of(cls, entries: Mapping, path: str = "config"):
        for name, allowed in cls.only.items():
            if entries.get(name, allowed[0]) not in allowed:
                raise ValueError(f"{path}: {name} is {short(entries[name])}; only {' and '.join(map(repr, allowed))} "
                                 f"can be computed here")
        field_names = {field.name for field in fields(cls)}
        kwargs = {name: value for name, value in entries.items() if name in field_names}
        missing = [name for name in cls.required if name not in kwargs]
        if missing:
            raise ValueError(f"{path}: {missing[0]} is missing")
        try:
            return cls(**kwargs | cls.derived(entries))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def derived(cls, entries: Mapping) -> dict:
        """Fields that files spell in more than one way."""
        return {}

    def check(self, rule: tuple, *names: str) -> None:
        """Raise ValueError unless these fields obey one of the rules above."""
        is_valid, description = rule
        for name in names:
            if not is_valid(getattr(self, name)):
                raise ValueError(f"{name} is {short(getattr(self, name))}; it must be {description}")

    def check_divides(self, heads: str, width: str) -> None:
        if getattr(self, width) % getattr(self, heads):
            raise ValueError(f"{width} is {getattr(self, width)}, which {getattr(self, heads)} heads cannot share "
                             f"equally")

    def checked_ids(self, ids, name: str = "ids") -> np.ndarray:
        """Return token ids as an array of int32. Raise ValueError unless there is one and all are in the vocabulary."""
        ids = np.asarray(ids)
        if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
            raise ValueError(f"{name} must be a list of token ids, one or more; it has shape {ids.shape}, type "
                             f"{ids.dtype}")
        invalid = ids[(ids < 0) | (ids >= self.vocab_size)]
        if invalid.size:
            raise ValueError(f"{name}: token {invalid[0]} is not in the vocabulary, which has {self.vocab_size:,}")
        return ids.astype(np.int32)

    @property
    def parameters(self) -> int:
        """How many elements the parameters have; a table that is the head, too, is counted once."""
        one, two = (sum(map(math.prod, shapes(replace(self, **{self.layers: count})).values())) for count in (1, 2))
        return one + (getattr(self, self.layers) - 1) * (two - one)

    @property
    def size(self) -> str:
        return f"{getattr(self, self.layers)} layers, {getattr(self, self.width)} wide"

    def check_file(self, tensors: Mapping[str, np.ndarray], names: Mapping[str, str]) -> None:
        """Raise ValueError if the file has something that contradicts the configuration."""


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Every parameter of the files that is used, and its shape."""
    return config.parameter_shapes


def names_in(tensors: Mapping[str, np.ndarray], config: Config) -> dict[str, str]:
    """labkit's name of each parameter -> the file's. Raise ValueError if one is missing, has another shape, or holds no
    floating-point numbers, and if the file contradicts the configuration."""
    layers = getattr(config, config.layers)
    if layers > len(tensors):  # before so many names are made
        raise ValueError(f"{config.layers} is {layers:,}, and the file has {len(tensors):,} tensors, fewer than one "
                         f"for each layer")
    optional = {name: shape for name, shape in config.optional_shapes.items() if name in tensors}
    expected = shapes(config) | optional
    prefix = config.prefix if config.prefix + next(iter(expected)) in tensors else ""
    names = {name: name if name == HEAD else prefix + name for name in expected}
    missing = [tensor_name for tensor_name in names.values() if tensor_name not in tensors]
    if missing:
        raise ValueError(f"{len(missing)} parameters of a {config.kind} with {layers} layers are not in the file: "
                         f"{', '.join(missing[:5])}")
    for param, tensor_name in names.items():
        tensor = tensors[tensor_name]
        if tuple(tensor.shape) != expected[param]:
            raise ValueError(f"{tensor_name} has shape {tuple(tensor.shape)}; the configuration says {expected[param]}")
        is_number = isinstance(tensor, QuantizedTensor) or tensor.dtype.kind == "f"
        if not is_number and not is_bfloat16(tensors, tensor_name):
            raise ValueError(f"{tensor_name} is of type {tensor.dtype}; it must be float16, bfloat16, float32 or "
                             f"float64")
    config.check_file(tensors, names)
    return names


# --- GPT-2 -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GPT2Config(Config):
    kind, prefix, layers, width = "GPT-2", "transformer.", "n_layer", "n_embd"
    only = {
        "model_type": ("gpt2",),
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of GELU's tanh form
        "layer_norm_epsilon": (EPSILON,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None  # None: four times n_embd

    def __post_init__(self):
        self.check(COUNT, "vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
        if self.n_inner is not None:
            self.check(COUNT, "n_inner")
        self.check_divides("n_head", "n_embd")

    @property
    def inner(self) -> int:
        """The width between the two layers of the MLP."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @functools.cached_property
    def block(self) -> gpt2_block.Shape:
        """The shape of each of its layers."""
        return gpt2_block.Shape(self.n_embd, self.n_head, self.inner)

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights of linear layers are (in, out): rows times weights, nothing transposed."""
        C = self.n_embd
        result = {"wte.weight": (self.vocab_size, C), "wpe.weight": (self.n_positions, C)}
        for layer in range(self.n_layer):
            result |= {f"h.{layer}.{name}": shape for name, shape in self.block.parameters.items()}
        return {**result, "ln_f.weight": (C,), "ln_f.bias": (C,)}

    @property
    def optional_shapes(self) -> dict[str, tuple[int, ...]]:
        """The head, where it is not the table of words."""
        return {HEAD: (self.vocab_size, self.n_embd)}


# --- Llama and Qwen3 -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LlamaConfig(Config):
    kind, prefix, layers = "Llama", "model.", "num_hidden_layers"
    only = {
        "model_type": ("llama",),
        "hidden_act": ("silu", "swish"),  # two names of x * sigmoid(x)
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "sliding_window": (None,),
        "partial_rotary_factor": (None, 1, 1.0),
        "rope_interleaved": (False, None),
    }
    required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None  # None: as many as there are heads of queries
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: Mapping | None = None  # as labkit.kernels.rope takes it; None: the angles as they are
    tie_word_embeddings: bool = False
    quantization_config: Mapping | None = None  # as labkit.models.packed takes it; None: no layer is quantised

    def __post_init__(self):
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        self.check(COUNT, *self.required, "num_key_value_heads", "max_position_embeddings")
        if self.head_dim is None:
            self.check_divides("num_attention_heads", "hidden_size")
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        self.check(COUNT, "head_dim")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary positions take pairs, so it must be even")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"num_attention_heads is {self.num_attention_heads}, which {self.num_key_value_heads} "
                             f"heads of keys and values cannot share equally")
        self.check(SMALL, "rms_norm_eps")
        self.check(BASE, "rope_theta")
        self.check(FLAG, "tie_word_embeddings")
        self.check(OBJECT, "rope_scaling")
        if self.rope_scaling is not None:
            object.__setattr__(self, "rope_scaling", self._checked_scaling(self.rope_scaling))
        self.check(OBJECT, "quantization_config")
        if self.quantization_config is not None:
            check_quantization(self.quantization_config)

    @classmethod
    def derived(cls, entries: Mapping) -> dict:
        """rope_theta and rope_scaling: from rope_parameters, as transformers writes them since version 5, or from the
        two keys of older files, which take precedence."""
        kinds = entries.get("layer_types") or []
        if any(kind != "full_attention" for kind in kinds):
            raise ValueError(f"layer_types is {short(kinds)}; only 'full_attention' can be computed here")
        for name in ("rope_scaling", "rope_parameters"):
            if not isinstance(entries.get(name), Mapping | None):
                raise ValueError(f"{name} is {short(entries[name])}; it must be an object or null")
        scaling = dict(entries.get("rope_scaling") or entries.get("rope_parameters") or {})
        theta = scaling.pop("rope_theta", None)
        if theta is None:
            theta = entries.get("rope_theta")
        return {"rope_theta": 10_000.0 if theta is None else theta, "rope_scaling": scaling or None}

    def _checked_scaling(self, scaling: Mapping) -> dict | None:
        """The scaling under the names of today; None for angles as they are."""
        result = {"rope_type": scaling.get("type", "default")} | {name: value for name, value in scaling.items()
                                                                  if name != "type" and value is not None}
        if result["rope_type"] == "llama3":
            result.setdefault("original_max_position_embeddings", self.max_position_embeddings)
        frequencies(self.head_dim, self.rope_theta, result)  # raises an error if invalid
        return None if result["rope_type"] == "default" else result

    @property
    def qkv(self) -> int:
        """The width of queries, keys and values as one product."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @property
    def layer_parameters(self) -> dict[str, tuple[int, ...]]:
        """Every parameter of a layer and its shape, as files hold them. Weights of linear layers are (out, in)."""
        C, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return {
            "input_layernorm.weight": (C,),
            "self_attn.q_proj.weight": (queries, C),
            "self_attn.k_proj.weight": (keys, C),
            "self_attn.v_proj.weight": (keys, C),
            "self_attn.o_proj.weight": (C, queries),
            "post_attention_layernorm.weight": (C,),
            "mlp.gate_proj.weight": (inner, C),
            "mlp.up_proj.weight": (inner, C),
            "mlp.down_proj.weight": (C, inner),
        }

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        result = {EMBEDDING: (self.vocab_size, self.hidden_size)}
        for layer in range(self.num_hidden_layers):
            result |= {f"layers.{layer}.{name}": shape for name, shape in self.layer_parameters.items()}
        result["norm.weight"] = (self.hidden_size,)
        return result if self.tie_word_embeddings else result | {HEAD: (self.vocab_size, self.hidden_size)}

    def check_file(self, tensors, names) -> None:
        prefix = names[EMBEDDING].removesuffix(EMBEDDING)
        biases = [name for name in tensors if name.removeprefix(prefix) not in names and name.endswith(".bias")]
        if biases:
            raise ValueError(f"the file has {biases[0]}, a bias that the configuration does not speak of")
        if HEAD in tensors and HEAD not in names and not np.array_equal(tensors[HEAD], tensors[names[EMBEDDING]]):
            raise ValueError(f"tie_word_embeddings is true, but the file's {HEAD} is another table than its "
                             f"{names[EMBEDDING]}")


LLAMA_3_2_1B = LlamaConfig(
    vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
    num_key_value_heads=8, head_dim=64, max_position_embeddings=131_072, rms_norm_eps=1e-5, rope_theta=500_000.0,
    rope_scaling={"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192}, tie_word_embeddings=True)


@dataclass(frozen=True)
class Qwen3Config(LlamaConfig):
    kind = "Qwen3"
    only = {
        **{name: allowed for name, allowed in LlamaConfig.only.items()
           if name not in ("attention_bias", "sliding_window")},
        "model_type": ("qwen3",),
        "use_sliding_window": (False,),  # sliding_window and max_window_layers say nothing then
    }

    head_dim: int | None = 128
    attention_bias: bool = False

    def __post_init__(self):
        super().__post_init__()
        self.check(FLAG, "attention_bias")

    @property
    def layer_parameters(self) -> dict[str, tuple[int, ...]]:
        result = super().layer_parameters
        if self.attention_bias:
            result |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in result.items()
                       if name.startswith("self_attn.")}
        return result | {f"self_attn.{part}_norm.weight": (self.head_dim,) for part in "qk"}


# --- BERT ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BertConfig(Config):
    kind, prefix, layers = "BERT", "bert.", "num_hidden_layers"
    only = {
        "model_type": ("bert",),
        "hidden_act": ("gelu",),  # the exact one, with erf
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
    }

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_size: int = 384
    num_hidden_layers: int = 6
    num_attention_heads: int = 12
    intermediate_size: int = 1536
    layer_norm_eps: float = 1e-12

    def __post_init__(self):
        self.check(COUNT, "vocab_size", "max_position_embeddings", "type_vocab_size", "hidden_size",
                   "num_hidden_layers", "num_attention_heads", "intermediate_size")
        self.check(SMALL, "layer_norm_eps")
        self.check_divides("num_attention_heads", "hidden_size")

    @property
    def inner(self) -> int:
        return self.intermediate_size

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """(out, in) of a layer's four products, queries, keys and values being one."""
        return gpt2_block.Shape(self.hidden_size, self.num_attention_heads, self.intermediate_size).layers

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights of linear layers are (out, in)."""
        C, inner = self.hidden_size, self.intermediate_size
        result = {
            "embeddings.word_embeddings.weight": (self.vocab_size, C),
            "embeddings.position_embeddings.weight": (self.max_position_embeddings, C),
            "embeddings.token_type_embeddings.weight": (self.type_vocab_size, C),
            "embeddings.LayerNorm.weight": (C,), "embeddings.LayerNorm.bias": (C,),
        }  # fmt: skip
        for layer in range(self.num_hidden_layers):
            layer_shapes = {f"attention.self.{part}": (C, C) for part in PARTS}
            layer_shapes |= {"attention.output.dense": (C, C), "attention.output.LayerNorm": (C,),
                             "intermediate.dense": (inner, C), "output.dense": (C, inner), "output.LayerNorm": (C,)}
            for name, shape in layer_shapes.items():
                result[f"encoder.layer.{layer}.{name}.weight"] = shape
                result[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]
        return result
