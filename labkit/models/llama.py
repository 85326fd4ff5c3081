"""Llama, whole: token ids of several sequences in, logits out. Read it from top to bottom.

    model = Llama(Config.read("llama/config.json"), tensors("llama"), dtype="bfloat16")
    cache = Cache(model.config, pages=64)
    inputs, workspace = Inputs(tokens=512, sequences=8, pages=8), Workspace(model.config, tokens=512, sequences=8)
    step = inputs.step([Piece(prompt, 0, pages=[3, 17])])         # these tokens; keys and values go to these pages
    logits = model.forward(step, cache, workspace)                # (1, V) float32, those after the last token

Llama 2 to 3.2, TinyLlama, SmolLM2 and whatever else has this shape: RMSNorm before attention and before the MLP, rotary
positions, any number of query heads for each head of keys and values, SwiGLU, and a head of its own or the embedding's
table. Numbers are bfloat16 (uint16 in NumPy) or float16, with float32 accumulators, or float32. float16 ends at 65,504:
in a few models the residual stream has larger numbers, which become infinite, and the logits NaN; bfloat16 and float32
hold them.

Shapes at the ends of lines: T rows of tokens in a step, B sequences, C the width of the model, H heads of queries and K
heads of keys and values, D numbers in each, I the width of the MLP, V the size of the vocabulary.

A step (labkit.models.step) is T rows and, in device memory, which of them belong to which sequence and where its keys
and values lie: pages of PAGE tokens, in any order, possibly shared. Nothing that changes from step to step is an
argument on the host, except the shape; so the launches of a shape can be captured as a graph.

Source  H. Touvron et al., "LLaMA" (2023); A. Dubey et al., "The Llama 3 Herd of Models" (2024); pages: W. Kwon et al.,
        "Efficient Memory Management for Large Language Model Serving with PagedAttention" (2023); parameters are named
        and laid out as in the files of transformers' LlamaForCausalLM
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from labkit import cuda
from labkit.device import gpus, launches
from labkit.device.memory import zeros
from labkit.kernels.attention.paged import decode_parts, paged_decode
from labkit.kernels.attention.paged_prefill import paged_prefill
from labkit.kernels.attention.pages import cache_shape, pages_for
from labkit.kernels.elements import ELEMENTS
from labkit.kernels.embedding import token_embedding
from labkit.kernels.linear.bf16 import arrange_gate_up, linear, linear_swiglu
from labkit.kernels.linear.normed import ROWS, fits_normed, linear_normed, make_normed
from labkit.kernels.linear.quantized import Packed
from labkit.kernels.linear.quantized_linear import quantized_linear
from labkit.kernels.norm.rmsnorm import add_rmsnorm, rmsnorm
from labkit.kernels.op import missing
from labkit.kernels.rope import rope_split_cache, rope_table
from labkit.kernels.swiglu import swiglu
from labkit.models.blob import Blob, LazyTensor, converted, is_bfloat16
from labkit.models.configs import EMBEDDING, HEAD, LARGEST, names_in, shapes
from labkit.models.configs import LlamaConfig as Config
from labkit.models.dtypes import DTYPES, chosen
from labkit.models.one_kernel import OneKernel
from labkit.models.packed import QuantizedTensor, arrays_of, as_bytes, opened, stacked
from labkit.models.packed import views as packed_views
from labkit.models.step import Inputs, Piece, Shape, Step
from labkit.models.watch import reporter

ONE_KERNEL = False  # whether steps of up to eight decoding sequences are one launch, labkit.models.one_kernel

# --- The model -------------------------------------------------------------------------------------------------------


class Llama:
    """The weights of a Llama on the device, and the launches that use them.

    tensors: name -> NumPy array, as labkit.models.safetensors.read gives them; any floating-point type, or quantised as
    the configuration says (labkit.models.packed): these are multiplied as they are, and the others are of `dtype`.
    dtype: "bfloat16", "float16", "float32", or "auto", of which the attribute says what it was (labkit.models.dtypes).
    positions: how many of them the table of angles has; at most the model's.
    one_kernel: compute a step of up to eight sequences with one token each in one launch, with the default kernels and
    unquantised weights, from compute capability 9.0 on. Other steps run launch by launch; their logits differ in the
    last bits.
    """

    def __init__(self, config: Config, tensors: Mapping[str, np.ndarray], dtype: str = "auto",
                 kernels: Kernels | None = None, positions: int | None = None, one_kernel: bool = ONE_KERNEL):
        dtype = chosen(dtype, config.kind)
        self.config, self.dtype, self.kernels = config, dtype, kernels or Kernels()
        self.tensors = opened(tensors, config.quantization_config)
        if self.tensors is not tensors and dtype == "float32":
            raise ValueError("dtype is 'float32'; with quantised weights it must be 'bfloat16' or 'float16'")
        arrays, self.quantized = arranged(self.tensors, config, DTYPES[dtype], self.kernels.arrange_gate_up)
        self.weights = Blob(arrays, finite=True)
        self.head = self._param(EMBEDDING if config.tie_word_embeddings else HEAD)  # (V, C)
        self.layers = [self._params(f"layers.{layer}.") for layer in range(config.num_hidden_layers)]
        self.positions = min(positions or config.max_position_embeddings, config.max_position_embeddings)
        self.table = cuda.to_device(rope_table(self.positions, config.head_dim, config.rope_theta, config.rope_scaling))
        self.scale = config.head_dim**-0.5
        self.fused_rows = self._fused_rows()
        self.one_kernel = OneKernel(self) if one_kernel else None

    def with_kernels(self, kernels: Kernels) -> Llama:
        """The same model with other kernels, launch by launch; on the same weights, if these kernels take them as they
        are."""
        if kernels.arrange_gate_up is not self.kernels.arrange_gate_up:
            return type(self)(self.config, self.tensors, self.dtype, kernels, self.positions)
        other = copy.copy(self)
        other.kernels = kernels
        other.fused_rows, other.one_kernel = other._fused_rows(), None
        return other

    def _fused_rows(self) -> int:
        """Return up to how many rows a step's norms are fused into the products after them: one, with the default
        kernels and no biases, on a GPU with tensor cores; else none."""
        run = self.kernels
        default = (run.add_rmsnorm, run.linear, run.linear_swiglu) == (add_rmsnorm, linear, linear_swiglu)
        return int(default and not self.quantized and type(self).linear is Llama.linear and self.dtype != "float32"
                   and fits_normed(1, self.config.hidden_size) and gpus.chosen_on_gpu()
                   and not missing(make_normed(self.config.hidden_size, 1, self.config.rms_norm_eps,
                                               element=ELEMENTS[DTYPES[self.dtype]])))

    def _param(self, name: str):
        """A parameter on the device: an array, or Packed if it is quantised."""
        array = self.weights[name]
        return packed_views(self.quantized[name], array) if name in self.quantized else array

    def _params(self, prefix: str) -> dict:
        return {name.removeprefix(prefix): self._param(name) for name in self.weights if name.startswith(prefix)}

    # What other architectures override: see qwen3.py.

    def linear(self, x, w, name: str, out, stream) -> None:
        """A linear layer of attention; a Llama's have no biases."""
        self.multiply(x, w[f"{name}.weight"], out, stream)

    def split_heads(self, w, step: Step, keys, values, b: SimpleNamespace, stream) -> None:
        """Queries to b.q, rotated; keys, rotated, and values to the cache."""
        self.kernels.rope_split_cache(b.qkv, self.table, step.positions, step.slots, b.q, keys, values, stream=stream)

    # Common to all architectures.

    def multiply(self, x, weight, out, stream, bias=None) -> None:
        """out = x @ weight.T + bias, by the launcher for weights of this kind."""
        run = self.kernels
        launch = run.quantized_linear if isinstance(weight, Packed) else run.linear
        launch(x, weight, out, **({} if bias is None else {"bias": bias}), stream=stream)

    def gate_and_up(self, w, b: SimpleNamespace, stream) -> None:
        """The first two products of the MLP, and SwiGLU; of quantised weights in two launches."""
        run, weight = self.kernels, w["mlp.gate_up_proj.weight"]
        if isinstance(weight, Packed):
            run.quantized_linear(b.normed, weight, b.gate_up, stream=stream)  # (T, 2I)
            run.swiglu(b.gate_up, b.gated, stream=stream)
        else:
            run.linear_swiglu(b.normed, weight, b.gated, stream=stream)

    def attend(self, step: Step, keys, values, b: SimpleNamespace, stream) -> None:
        """Write b.attended: sequences with one row by a kernel that splits the cache among blocks, the others by one
        that splits the rows. Rows attend causally, within their sequence. The decode kernel runs first: for an empty
        sequence it writes zeros, to a row that may belong to another one."""
        run, shape = self.kernels, step.shape
        if shape.decoding:
            run.paged_decode(b.q_decoding, keys, values, *step.of_decoding, b.attended_decoding, self.scale, b.parts,
                             stream=stream)
        if shape.decoding < shape.sequences:
            run.paged_prefill(b.q, keys, values, *step.of_others, b.attended, self.scale, shape.longest, stream=stream)

    def layer(self, index: int, step: Step, cache: Cache, b: SimpleNamespace, stream=0, watch=None) -> None:
        """One layer: x += attention(norm(x)), x += mlp(norm(x)). The next norm, which reads x
        anyway, does the second sum."""
        run, w, eps = self.kernels, self.layers[index], self.config.rms_norm_eps
        keys, values = cache.keys[index], cache.values[index]
        report = reporter(watch, f"layers.{index}.")

        if index == 0:
            run.rmsnorm(b.x, w["input_layernorm.weight"], b.normed, eps, stream=stream)  # (T, C)
        else:
            run.add_rmsnorm(b.projected, b.x, w["input_layernorm.weight"], b.normed, eps, stream=stream)  # both (T, C)
            reporter(watch, f"layers.{index - 1}.")("out", b.x)
        report("input_norm", b.normed)
        self.linear(b.normed, w, "self_attn.qkv_proj", b.qkv, stream)  # (T, (H + 2K) * D)
        report("qkv", b.qkv)
        self.split_heads(w, step, keys, values, b, stream)  # (T, H, D), and to the pages
        report("q", b.q)
        report("keys", keys)
        report("values", values)
        self.attend(step, keys, values, b, stream)  # (T, H, D)
        report("attended", b.flat)
        self.linear(b.flat, w, "self_attn.o_proj", b.projected, stream)  # (T, C)
        report("projected", b.projected)
        run.add_rmsnorm(b.projected, b.x, w["post_attention_layernorm.weight"], b.normed, eps, stream=stream)  # both
        report("added", b.x)
        report("post_norm", b.normed)
        self.gate_and_up(w, b, stream)  # (T, I)
        report("gated", b.gated)
        self.multiply(b.gated, w["mlp.down_proj.weight"], b.projected, stream)  # (T, C)
        report("down", b.projected)

    def layer_of_one_row(self, index: int, step: Step, cache: Cache, b: SimpleNamespace, stream=0) -> None:
        """As `layer` for a single row: a norm and the sum before it are fused into the product after them. x alternates
        between b.x and b.summed; the results are bitwise the same."""
        run, w, eps = self.kernels, self.layers[index], self.config.rms_norm_eps
        keys, values = cache.keys[index], cache.values[index]

        if index == 0:
            run.rmsnorm(b.x, w["input_layernorm.weight"], b.normed, eps, stream=stream)
            self.linear(b.normed, w, "self_attn.qkv_proj", b.qkv, stream)
        else:
            linear_normed(b.projected, b.summed, w["input_layernorm.weight"], b.x, w["self_attn.qkv_proj.weight"],
                          b.qkv, eps, stream=stream)
        self.split_heads(w, step, keys, values, b, stream)
        self.attend(step, keys, values, b, stream)
        self.linear(b.flat, w, "self_attn.o_proj", b.projected, stream)
        linear_normed(b.projected, b.x, w["post_attention_layernorm.weight"], b.summed, w["mlp.gate_up_proj.weight"],
                      b.gated, eps, swiglu=True, stream=stream)
        run.linear(b.gated, w["mlp.down_proj.weight"], b.projected, stream=stream)

    def forward(self, step: Step, cache: Cache, ws: Workspace, stream=0, watch=None):
        """Return the logits after the last token of each sequence in the step, (B, V) float32 on the device, and write
        the keys and values of its tokens to the cache. Nothing is allocated.

        watch(name, array): called after each launch, to inspect its output.
        """
        run, report, w, shape = self.kernels, reporter(watch), self.weights, step.shape
        b = ws.rows(shape)
        if self.one_kernel and watch is None and self.one_kernel.takes(step):
            return self.one_kernel.forward(step, cache, b.logits, stream)
        run.embedding(step.ids, w[EMBEDDING], b.x, stream=stream)  # (T, C)
        report("embedding", b.x)
        fused = shape.rows <= self.fused_rows and watch is None
        for index in range(self.config.num_hidden_layers):
            if fused:
                self.layer_of_one_row(index, step, cache, b, stream)
            else:
                self.layer(index, step, cache, b, stream, watch)
        residual = b.summed if fused else b.x
        run.add_rmsnorm(b.projected, residual, w["norm.weight"], b.normed, self.config.rms_norm_eps, stream=stream)
        report(f"layers.{self.config.num_hidden_layers - 1}.out", b.x)
        report("norm", b.normed)
        last = b.normed
        if shape.decoding < max(shape.rows, shape.sequences):  # else every row is the last of its sequence
            run.embedding(step.last, b.normed, b.last, stream=stream)  # (B, C)
            last = b.last
        self.multiply(last, self.head, b.logits, stream)  # (B, V)
        report("logits", b.logits)
        return b.logits

    def logits_of_rows(self, ws: Workspace, begin: int, end: int, stream=0):
        """The logits after rows begin .. end of the step that `forward` ran last, (end - begin, V) float32, for at most
        ws.sequences rows. They overwrite those that it returned."""
        logits = ws.logits[: end - begin]
        self.multiply(ws.normed[begin:end], self.head, logits, stream)
        return logits

    def needed(self, step: Step, cache: Cache, ws: Workspace) -> list[tuple]:
        """List the kernels that such a step launches, for labkit.device.compile_ahead. Nothing runs."""
        return launches.needed(lambda: self.forward(step, cache, ws))


class SingleSequence:
    """A single sequence with its own cache, in pages 0, 1, 2, ...: runs a model without an engine.

        sequence = SingleSequence(model, context=256)
        logits = sequence(prompt)            # (1, V) on the device; the tokens are appended to those of earlier calls
        logits = sequence([token])
    """

    def __init__(self, model: Llama, context: int, tokens: int | None = None):
        if not 1 <= context <= model.positions:
            raise ValueError(f"context is {context}; the model has {model.positions} positions")
        self.model, self.context, self.length = model, context, 0
        self.tokens = min(context, tokens or 512)  # in one step; a longer prompt takes several
        self.pages = list(range(pages_for(context)))
        self.cache = Cache(model.config, len(self.pages), model.dtype)
        self.inputs = Inputs(self.tokens, 1, len(self.pages))
        self.workspace = Workspace(model.config, self.tokens, 1, model.dtype)

    def __call__(self, ids: Sequence[int], watch=None):
        ids = self.model.config.checked_ids(ids)
        if self.length + ids.size > self.context:
            raise ValueError(f"{ids.size} tokens do not fit: {self.length} of {self.context} places are taken")
        for begin in range(0, ids.size, self.tokens):
            chunk = ids[begin : begin + self.tokens]
            step = self.inputs.step([Piece(chunk, self.length, self.pages)])
            logits = self.model.forward(step, self.cache, self.workspace, watch=watch)
            self.length += chunk.size
        return logits

    def reset(self, length: int = 0) -> None:
        """Forget all tokens but the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length is {length}; the cache holds {self.length} tokens")
        self.length = length


# --- Its parameters --------------------------------------------------------------------------------------------------


def arranged(
    tensors: Mapping[str, np.ndarray], config: Config, dtype, arrange_gate_up: Callable,
) -> tuple[dict[str, LazyTensor], dict[str, QuantizedTensor]]:
    """Arrange the parameters for the launches: queries, keys and values as one product, "self_attn.qkv_proj", and the
    MLP's gate and up as one, "mlp.gate_up_proj". Each is read and arranged when it is copied to the device. Return
    them, quantised ones as bytes, and of those what the bytes are."""
    names, expected, dtype = names_in(tensors, config), shapes(config), np.dtype(dtype)
    sources = {param: tensors[name] for param, name in names.items()}
    quantized = {param: source for param, source in sources.items() if isinstance(source, QuantizedTensor)}

    def read(param: str) -> np.ndarray:
        return converted(tensors[names[param]], dtype, is_bfloat16(tensors, names[param]))

    def merge(parts: list[str], merged: str, shape: tuple, stack: Callable) -> None:
        """Put one parameter in the place of several with the same input. shape, stack: of arrays."""
        makers = [result.pop(part).make for part in parts]
        result[merged] = LazyTensor(shape, dtype, lambda: stack([make() for make in makers]))
        layers = [quantized.pop(part, None) for part in parts]
        if any(layers):
            if len({layer and (layer.format, layer.group, layer.scale_dtype) for layer in layers}) > 1:
                raise ValueError(f"{' and '.join(parts)} are not quantised alike; with the same input they are one "
                                 f"product here")
            quantized[merged] = stacked(layers)

    result = {param: LazyTensor(expected[param], dtype, functools.partial(read, param)) for param in names}
    gate_up_rows = 0
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        for kind in ("weight", "bias"):
            parts = [f"{prefix}self_attn.{part}_proj.{kind}" for part in "qkv"]
            if parts[0] in result:
                shape = (config.qkv, *expected[parts[0]][1:])
                merge(parts, f"{prefix}self_attn.qkv_proj.{kind}", shape, np.concatenate)
        parts = [f"{prefix}mlp.{part}_proj.weight" for part in ("gate", "up")]
        rows, columns = expected[parts[0]]
        gate_up_rows = gate_up_rows or len(arrange_gate_up(*(np.empty((rows, 1), dtype) for _ in parts)))
        merge(parts, f"{prefix}mlp.gate_up_proj.weight", (gate_up_rows, columns),
              lambda arrays: arrange_gate_up(*arrays))
    for param, tensor in quantized.items():
        if tensor.shape[1] % 8:
            raise ValueError(f"{param} has {tensor.shape[1]} columns; quantised weights need a multiple of 8")
        result[param] = LazyTensor((arrays_of(tensor)[1],), np.dtype(np.uint8), functools.partial(as_bytes, tensor))
    return result, quantized


# --- The kernels that it is made of ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernels:
    """The launchers of a model, each called with stream=. To try one of your own:

    Llama(config, tensors, kernels=Kernels(rmsnorm=mine))

    embedding(ids, table, out)                                              out[t] = table[ids[t]]
    rmsnorm(x, weight, out, eps)
    add_rmsnorm(x, residual, weight, out, eps)                              residual += x, and that normalised
    linear(x, weight, out, bias=None)                                       out may be float32: logits
    quantized_linear(x, packed, out, bias=None)                             as linear, with weights in 8 or 4 bits
    swiglu(gate_up, out)                                                    after that: silu(gate) * up
    linear_swiglu(x, gate_up, out)                                          gate_up as arrange_gate_up(gate, up) has it
    rope_split_cache(qkv, table, positions, slots, q, keys, values, q_norm=None, k_norm=None, eps=)
    paged_decode(q, keys, values, page_table, contexts, out, scale, parts)
    paged_prefill(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest)
    """

    embedding: Callable = token_embedding
    rmsnorm: Callable = rmsnorm
    add_rmsnorm: Callable = add_rmsnorm
    linear: Callable = linear
    quantized_linear: Callable = quantized_linear
    swiglu: Callable = swiglu
    linear_swiglu: Callable = linear_swiglu
    arrange_gate_up: Callable = arrange_gate_up
    rope_split_cache: Callable = rope_split_cache
    paged_decode: Callable = paged_decode
    paged_prefill: Callable = paged_prefill


# --- Its memory ------------------------------------------------------------------------------------------------------


class Cache:
    """The keys and values of all layers, in pages, initialised to zeros."""

    def __init__(self, config: Config, pages: int, dtype: str = "auto"):
        shape = cache_shape(pages, config.num_key_value_heads, config.head_dim)
        if pages < 1 or math.prod(shape) > LARGEST:
            raise ValueError(f"pages is {pages:,}; from 1 to {LARGEST // math.prod(shape[1:]):,} are allowed, for "
                             f"kernels index a layer with int32")
        self.pages, layers = pages, config.num_hidden_layers
        kind = DTYPES[chosen(dtype, config.kind)]
        self.memory = zeros(2 * layers * math.prod(shape), kind)
        size = math.prod(shape)
        parts = [self.memory[i * size : (i + 1) * size].reshape(shape) for i in range(2 * layers)]
        self.keys, self.values = parts[::2], parts[1::2]  # of each layer, (pages, K, PAGE, D)

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes


OF_ROWS = ("x", "summed", "normed", "qkv", "q", "attended", "projected", "gated")  # buffers with a row for each token
OF_SEQUENCES = ("last", "logits")


class Workspace:
    """All the memory that steps up to this size need besides the weights, the cache and the inputs, allocated once."""

    def __init__(self, config: Config, tokens: int, sequences: int, dtype: str = "auto"):
        if not 1 <= sequences <= tokens:
            raise ValueError(f"sequences is {sequences}; a step of {tokens} tokens has at least 1 and at most {tokens}")
        self.tokens, self.sequences, self.of_rows = tokens, sequences, OF_ROWS
        kind = DTYPES[chosen(dtype, config.kind)]
        C, H, D = config.hidden_size, config.num_attention_heads, config.head_dim
        # x is the residual stream, summed the same in the middle of a layer whose norms are fused into products, and
        # projected what a product adds to it. Attention never writes rows of padding, but the other launches read them.
        self.x, self.normed, self.projected = (zeros((tokens, C), kind) for _ in range(3))
        self.summed = zeros((min(tokens, ROWS), C), kind)
        self.q, self.attended = (zeros((tokens, H, D), kind) for _ in range(2))
        self.qkv = cuda.device_array((tokens, config.qkv), kind)  # (T, (H + 2K) * D)
        self.gated = cuda.device_array((tokens, config.intermediate_size), kind)
        if config.quantization_config is not None:  # with SwiGLU in a launch of its own
            self.gate_up = cuda.device_array((tokens, 2 * config.intermediate_size), kind)
            self.of_rows = (*OF_ROWS, "gate_up")
        self.last = cuda.device_array((sequences, C), kind)
        self.logits = cuda.device_array((sequences, config.vocab_size), np.float32)
        self.parts = decode_parts(sequences, H, D, kind)
        self.rows = functools.lru_cache(maxsize=256)(self._rows)

    def _rows(self, shape: Shape) -> SimpleNamespace:
        """The first rows of each buffer, for a step of this shape. flat is attended as (T, H * D); the rows of the
        decoding sequences come first."""
        if shape.rows > self.tokens or shape.sequences > self.sequences:
            raise ValueError(f"the step has {shape.rows} rows of {shape.sequences} sequences; memory was allocated for "
                             f"{self.tokens} of {self.sequences}")
        rows = {name: getattr(self, name)[: shape.rows] for name in self.of_rows}
        rows |= {name: getattr(self, name)[: shape.sequences] for name in OF_SEQUENCES}
        return SimpleNamespace(**rows, q_decoding=self.q[: shape.decoding], parts=self.parts,
                               attended_decoding=self.attended[: shape.decoding],
                               flat=rows["attended"].reshape(shape.rows, math.prod(self.attended.shape[1:])))

    @property
    def nbytes(self) -> int:
        arrays = (getattr(self, name) for name in self.of_rows + OF_SEQUENCES)
        return sum(array.nbytes for array in (*arrays, *self.parts))
