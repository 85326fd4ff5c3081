"""A sentence encoder, whole: token ids in, embeddings out. Read it from top to bottom.

    model = MiniLM(Config.read("minilm/config.json"), read("minilm/model.safetensors"))
    embeddings = model.embed([[101, 7592, 102], [101, 2129, 2024, 2017, 102]])     # (2, 384), each row of length 1
    embeddings @ embeddings.T                                                      # their cosines

Any BERT of this kind: all-MiniLM-L6-v2 is 384 wide, with 6 layers, 12 heads of 32 and 1,536 inner. Embeddings of words,
positions and types; layers that normalise after each residual (Post-LN); the mean over a sentence's tokens.

Shapes at the ends of lines: T rows in a batch, B sentences, C the width of the model. Numbers are float16 with float32
accumulators, or float32.

A batch is T rows and, in device memory, the row where each sentence begins and its length: whether it is padded or
packed is decided before the first launch; kernels need not know. Rows of no sentence affect no result.

The same sentence has the same embedding, bit for bit, alone or in any batch, at any padding or packed, as long as no
kernel adds in an order that depends on the number of rows. On the CPU device none does. On a GPU the float16 kernels
that are the default (HALF) hold to it as well: each tile of theirs adds up K in steps of 16, from the first to the
last. Two others do not: `linear` of few_rows, which picks its kernel by the number of rows, and divides K among warps
and blocks (FEW_ROWS, and on a GPU all of float32); and the kernel that computes a sentence alone in one launch
(one_kernel=True). With them the last bits of a sentence depend on the size of its batch.

Source  J. Devlin et al., "BERT" (2018); W. Wang et al., "MiniLM" (2020); N. Reimers and I. Gurevych, "Sentence-BERT"
        (2019); parameters are named and laid out as in the files of transformers' BertModel
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from labkit import cuda
from labkit.device import gpus, graphs, launches
from labkit.kernels.attention.sentences import attention_sentences
from labkit.kernels.embedding_sum import embedding_layernorm
from labkit.kernels.gelu import gelu_erf
from labkit.kernels.linear import few_rows
from labkit.kernels.linear.layers import pipelined
from labkit.kernels.matmul.mma import unchanged as unchanged_mma
from labkit.kernels.matmul.wgmma import has_wgmma, multiply_specialised
from labkit.kernels.matmul.wgmma_tiles import unchanged
from labkit.kernels.norm.half import add_layernorm_half_warp
from labkit.kernels.norm.layernorm import add_layernorm_fused
from labkit.kernels.pooling import mean_pool, mean_pool_normalized
from labkit.models.blob import Blob, converted, is_bfloat16
from labkit.models.configs import PARTS, names_in
from labkit.models.configs import BertConfig as Config
from labkit.models.dtypes import chosen
from labkit.models.minilm_one_kernel import OneKernel
from labkit.models.watch import reporter

# --- The model -------------------------------------------------------------------------------------------------------


class MiniLM:
    """The weights of a BERT on the device, and the launches that make embeddings with them.

    tensors: name -> NumPy array, as labkit.models.safetensors.read gives them; any floating-point type.
    dtype: "float16", which "auto" is, or "float32". kernels: the launchers; left out, the fastest for this type and
    device. one_kernel: compute the embedding of one sentence of at most 128 tokens in one launch, with the default
    kernels in float16, from compute capability 9.0 on. It is not the default: the last bits of such an embedding differ
    from those of the same sentence in a batch, which runs launch by launch.
    """

    def __init__(self, config: Config, tensors: Mapping[str, np.ndarray], dtype="auto",
                 kernels: Kernels | None = None, one_kernel: bool = False):
        if one_kernel and kernels is not None:
            raise ValueError("one_kernel: the model has kernels of its own, and they would not be used")
        self.config, self.tensors = config, tensors
        self.dtype = np.dtype(chosen(dtype, config.kind))
        self.kernels = kernels or kernels_for(self.dtype, one_kernel)
        self.weights = Blob(arranged(tensors, config, self.dtype, self.kernels.in_out), finite=True)
        self.layers = [self.weights.under(f"encoder.layer.{layer}.") for layer in range(config.num_hidden_layers)]
        self.workspace: Workspace | None = None  # allocated for the first batch, and again for a larger one
        self.one_kernel = OneKernel(self) if one_kernel else None

    def with_kernels(self, kernels: Kernels) -> MiniLM:
        """The same model with other kernels, launch by launch; on the same weights, if these kernels take them as they
        are."""
        if kernels.in_out != self.kernels.in_out:
            return MiniLM(self.config, self.tensors, self.dtype, kernels)
        other = copy.copy(self)
        other.kernels, other.workspace, other.one_kernel = kernels, None, None
        return other

    def layer(self, index: int, x, out, b: SimpleNamespace, stream=0, watch=None) -> None:
        """One layer: out = norm(y + feed_forward(y)), where y = norm(x + attention(x)). `out` is not `x`."""
        run, w, epsilon = self.kernels, self.layers[index], self.config.layer_norm_eps
        linear = functools.partial(run.linear, parts=b.scratch.get("parts"), stream=stream)
        report = reporter(watch, f"layer.{index}.")

        run.self_attention(x, w, b, run, self.config.num_attention_heads, stream, report)  # (T, C) in b.attended
        linear(b.attended, w["attention.output.dense.weight"], w["attention.output.dense.bias"], b.projected)  # (T, C)
        report("attention.projected", b.projected)
        run.add_layernorm(b.projected, x, w["attention.output.LayerNorm.weight"], w["attention.output.LayerNorm.bias"],
                          out, epsilon=epsilon, stream=stream)  # (T, C)
        report("attention.normed", out)
        linear(out, w["intermediate.dense.weight"], w["intermediate.dense.bias"], b.inner, gelu="erf")  # (T, inner)
        report("gelu", b.inner)
        linear(b.inner, w["output.dense.weight"], w["output.dense.bias"], b.projected)  # (T, C)
        report("projected", b.projected)
        run.add_layernorm(b.projected, out, w["output.LayerNorm.weight"], w["output.LayerNorm.bias"], out,
                          epsilon=epsilon, stream=stream)  # (T, C), in place
        report("out", out)

    def forward(self, b: SimpleNamespace, normalize: bool = True, stream=0, watch=None) -> None:
        """Run all launches, from the inputs on the device to b.pooled. watch(name, array): called after each launch, to
        inspect its output."""
        run, w, report = self.kernels, self.weights, reporter(watch)
        x, out = b.ping, b.pong
        run.embed(b.ids, b.types, b.positions, w["embeddings.word_embeddings.weight"],
                  w["embeddings.position_embeddings.weight"], w["embeddings.token_type_embeddings.weight"],
                  w["embeddings.LayerNorm.weight"], w["embeddings.LayerNorm.bias"], x,
                  epsilon=self.config.layer_norm_eps, stream=stream)  # (T, C)
        report("embedding", x)
        for index in range(self.config.num_hidden_layers):
            self.layer(index, x, out, b, stream, watch)
            x, out = out, x
        (run.pool_normalized if normalize else run.pool)(x, b.begins, b.lengths, b.pooled, stream=stream)  # (B, C)
        report("pooled", b.pooled)

    def embed(self, sentences: Sequence[Sequence[int]], form: str = "packed", normalize: bool = True,
              workspace: Workspace | None = None, watch=None) -> np.ndarray:
        """The embeddings of one batch, (n, C) float32 on the host. A sentence without tokens has zeros.

        sentences: token ids of each. form: "packed", "padded" (to the longest, rounded up to 16) or "padded_to_128".
        normalize: rows of length 1. workspace: left out, the model's, which grows where a batch needs more.
        From its second use on, a shape runs as one graph.
        """
        sentences = self._checked(sentences, form)
        if not sentences:
            return np.zeros((0, self.config.hidden_size), np.float32)
        if (self.one_kernel and form == "packed" and workspace is None and watch is None
                and self.one_kernel.takes(sentences)):
            return self.one_kernel.embed(sentences[0], normalize)
        shape, host = lay_out(sentences, form)
        ws = workspace or self._workspace_for(shape)
        b = ws.batch(shape)
        b.inputs.copy_to_device(host)
        key = (self, shape, normalize)
        if watch is not None:
            self.forward(b, normalize, watch=watch)
        elif key in ws.graphs:
            ws.graphs[key].launch()
        else:  # this run compiles the kernels, so that they can be captured
            self.forward(b, normalize)
            if len(ws.graphs) >= MAX_GRAPHS:
                ws.graphs.pop(next(iter(ws.graphs)))
            ws.graphs[key] = graphs.capture(lambda stream: self.forward(b, normalize, stream), warm_up=False)
        return b.pooled.copy_to_host()[: len(sentences)]

    def needed(self, shape: Shape) -> list[tuple]:
        """List the kernels that a batch of this shape launches, for labkit.device.compile_ahead. Nothing runs."""
        b = self._workspace_for(Shape(*shape)).batch(Shape(*shape))
        return launches.needed(lambda: self.forward(b))

    def _workspace_for(self, shape: Shape) -> Workspace:
        """The model's own workspace, allocated again, half as large again, where the batch does not fit."""
        if self.workspace is None or not self.workspace.fits(shape):
            if self.workspace is not None:
                shape = Shape(*(capacity if size <= capacity else up(size * 3 // 2, ROUND)
                                for size, capacity in zip(shape, self.workspace.shape, strict=True)))
            self.workspace = None  # free its memory for the next one
            self.workspace = Workspace(self.config, shape, self.dtype, self.kernels)
        return self.workspace

    def _checked(self, sentences, form: str) -> list:
        if form not in FORMS:
            raise ValueError(f"form is {form!r}; {', '.join(map(repr, FORMS))} are allowed")
        if isinstance(sentences, str):
            raise TypeError("sentences is a text; it must be a list of lists of token ids")
        sentences = list(sentences)
        try:
            ids = flat(sentences) if sentences else np.zeros(0, np.int32)
            valid = ids.size == 0 or (ids.ndim == 1 and ids.dtype.kind in "iu" and ids.min() >= 0
                                      and ids.max() < self.config.vocab_size)
            valid = valid and max(map(len, sentences), default=0) <= self.config.max_position_embeddings
        except (TypeError, ValueError):  # of sentences that are no lists of numbers
            valid = False
        if not valid:
            for index, sentence in enumerate(sentences):
                self._check(index, np.asarray(sentence))
        return sentences

    def _check(self, index: int, ids: np.ndarray) -> None:
        """Raise ValueError if a sentence is invalid."""
        if ids.size > self.config.max_position_embeddings:
            raise ValueError(f"sentence {index} has {ids.size:,} tokens; the model has "
                             f"{self.config.max_position_embeddings:,} positions")
        if ids.size or ids.ndim != 1:
            self.config.checked_ids(ids, f"sentence {index}")


MAX_GRAPHS = 64  # of a workspace; the oldest is evicted first


# --- A batch ---------------------------------------------------------------------------------------------------------

ROUND = 16  # rows of a tile of the tensor cores: the number of rows is a multiple of it


class Shape(NamedTuple):
    """What a graph is captured for. Everything else about a batch lies in device memory."""

    rows: int  # T
    sentences: int  # B; surplus ones are empty
    longest: int  # at least the tokens of the longest sentence: how many tiles of queries it may have


def up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def few_values(count: int, multiple: int = 1) -> int:
    """`count` rounded up by at most a sixteenth, and to a multiple, so that few different values occur."""
    return up(count, max(multiple, 1 << max(0, count.bit_length() - 5)))


def padded_to(seq: int, lengths: np.ndarray) -> tuple[Shape, np.ndarray]:
    """(shape, begins) where every sentence takes `seq` rows."""
    return Shape(len(lengths) * seq, len(lengths), seq), np.arange(len(lengths)) * seq


def padded_to_128(lengths: np.ndarray) -> tuple[Shape, np.ndarray]:
    """Every sentence takes 128 rows, or as many as a longer one needs."""
    return padded_to(max(128, up(int(lengths.max()), ROUND)), lengths)


def padded(lengths: np.ndarray) -> tuple[Shape, np.ndarray]:
    """Every sentence takes as many rows as the longest, rounded up to 16."""
    return padded_to(max(ROUND, up(int(lengths.max()), ROUND)), lengths)


def packed(lengths: np.ndarray) -> tuple[Shape, np.ndarray]:
    """Sentences end to end, no row of padding between them. The shape is rounded up at the end, by rows of no sentence
    and empty sentences."""
    rows, longest = few_values(max(1, int(lengths.sum())), ROUND), max(ROUND, up(int(lengths.max()), ROUND))
    return Shape(rows, few_values(len(lengths)), longest), np.cumsum(lengths) - lengths


FORMS = {"packed": packed, "padded": padded, "padded_to_128": padded_to_128}


def flat(sentences: Sequence) -> np.ndarray:
    """The ids of all sentences, one after the other. One conversion: one for each sentence would cost more time than a
    GPU takes for it."""
    if all(isinstance(ids, np.ndarray) for ids in sentences):
        return np.concatenate(sentences)
    return np.array(list(itertools.chain.from_iterable(sentences)))


def lay_out(sentences: Sequence[Sequence[int]], form: str) -> tuple[Shape, np.ndarray]:
    """Lay out a batch for the device: its shape, and ids, types, positions (T each), begins and lengths (B each) as
    one array of int32, which is one copy."""
    lengths = np.array([len(one) for one in sentences], np.int64)
    shape, begins = FORMS[form](lengths)
    T, B = shape.rows, shape.sentences
    host = np.zeros(3 * T + 2 * B, np.int32)  # types are all 0: sentences, not pairs of them
    ids, _, positions, all_begins, all_lengths = np.split(host, (T, 2 * T, 3 * T, 3 * T + B))
    pos = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # in its sentence
    rows = pos + np.repeat(begins, lengths)
    ids[rows], positions[rows] = flat(sentences), pos
    all_begins[: len(begins)], all_lengths[: len(begins)] = begins, lengths
    return shape, host


# --- Its parameters --------------------------------------------------------------------------------------------------


def arranged(tensors: Mapping[str, np.ndarray], config: Config, dtype, in_out: bool) -> dict[str, np.ndarray]:
    """Arrange the parameters for the launches: queries, keys and values as one product, "attention.self.qkv".

    in_out: weights of linear layers are (in, out), transposed.
    """
    result = {}
    for param, tensor_name in names_in(tensors, config).items():
        result[param] = converted(tensors[tensor_name], np.dtype(dtype), is_bfloat16(tensors, tensor_name))
    for layer in range(config.num_hidden_layers):
        prefix = f"encoder.layer.{layer}.attention.self."
        for kind in ("weight", "bias"):
            result[f"{prefix}qkv.{kind}"] = np.concatenate([result.pop(f"{prefix}{part}.{kind}") for part in PARTS])
    if in_out:
        result |= {name: value.T for name, value in result.items() if name.startswith("encoder.") and value.ndim == 2}
    return result


# --- The kernels that it is made of ----------------------------------------------------------------------------------


def linear_half(x, weights, bias, out, *, gelu=False, parts=None, stream=0):
    """A float16 linear layer whose sums do not depend on how many rows there are: wgmma, or mma.sync where there is
    none. weights: (out, in)."""
    if has_wgmma():
        multiply_specialised(x, weights, bias, out, weights=True, activation=gelu_erf if gelu else unchanged,
                             stream=stream)
    else:
        pipelined(x, weights, bias, None, out, stream, activation=gelu_erf if gelu else unchanged_mma)


def attention_of_one_product(x, w, b, kernels, heads, stream, report) -> None:
    """Queries, keys and values as one product. Heads are read from it by strides and written side by side, without
    splitting or merging. (The ladder's first steps have another function here: minilm_steps.)"""
    kernels.linear(x, w["attention.self.qkv.weight"], w["attention.self.qkv.bias"], b.qkv,
                   parts=b.scratch.get("parts"), stream=stream)  # (T, 3C)
    report("qkv", b.qkv)
    kernels.attention(b.qkv, heads, b.begins, b.lengths, b.longest, b.attended,
                      **b.attention_scratch, stream=stream)  # (T, C)
    report("attended", b.attended)


def parts_of_few_rows(config: Config, shape: Shape, dtype) -> dict:
    """The memory that `linear` of few_rows needs for split K; fewer rows may need more of it."""
    rows = range(ROUND, shape.rows + 1, ROUND)
    return {"parts": (max(few_rows.scratch_size(T, *one, dtype) for T in rows for one in config.products), np.float32)}


@dataclass(frozen=True)
class Kernels:
    """The launchers of a model, each called with stream=. To try your own:

    MiniLM(config, tensors, kernels=replace(HALF, add_layernorm=mine))

    embed(ids, types, positions, words, places, kinds, weight, bias, out, epsilon=)     the sum and its LayerNorm
    linear(x, weights, bias, out, gelu=, parts=)                                        gelu: False or "erf"
    attention(qkv, heads, begins, lengths, longest, out)
    add_layernorm(x, residual, weight, bias, out, epsilon=)                             out may be the residual
    pool, pool_normalized(x, begins, lengths, out)
    """

    linear: Callable
    attention: Callable
    add_layernorm: Callable
    embed: Callable = embedding_layernorm
    pool: Callable = mean_pool
    pool_normalized: Callable = mean_pool_normalized
    in_out: bool = False  # linear takes weights as (in, out); files hold them (out, in)
    self_attention: Callable = attention_of_one_product
    scratch: tuple[Callable, ...] = ()  # each (config, shape, dtype) -> {name: (numbers, type)}: memory to work in
    attention_takes: tuple[str, ...] = ()  # of that memory, what attention is given by name


FLOAT32 = Kernels(few_rows.linear, attention_sentences, add_layernorm_fused, in_out=True,
                  scratch=(parts_of_few_rows,))
HALF = Kernels(linear_half, attention_sentences, add_layernorm_half_warp)
FEW_ROWS = Kernels(few_rows.linear, attention_sentences, add_layernorm_half_warp, in_out=True,
                   scratch=(parts_of_few_rows,))  # for a single short sentence; and the CPU device


def kernels_for(dtype, one_kernel: bool = False) -> Kernels:
    """Those to use for numbers of this type on this device. one_kernel: beside the kernel that computes one sentence,
    whose weights are (out, in)."""
    if np.dtype(dtype) == np.float32:
        return FLOAT32
    return HALF if one_kernel or gpus.chosen_on_gpu() else FEW_ROWS


# --- Its memory ------------------------------------------------------------------------------------------------------

OF_ROWS = ("ping", "pong", "attended", "projected", "qkv", "inner")  # buffers with a row for each of the batch


class Workspace:
    """All the memory that batches up to this shape need besides the weights, allocated once.

    Layers read one of two buffers and write the other, in turns.
    """

    def __init__(self, config: Config, shape: Shape, dtype=np.float16, kernels: Kernels | None = None):
        shape = Shape(*shape)
        if min(shape) < 1:
            raise ValueError(f"a workspace's rows, sentences and longest must be at least 1; they are {tuple(shape)}")
        self.config, self.shape, self.dtype = config, shape, np.dtype(dtype)
        T, B, C = shape.rows, shape.sentences, config.hidden_size
        self.inputs = cuda.device_array(3 * T + 2 * B, np.int32)  # ids, types, positions, begins, lengths
        # projected is a product, before LayerNorm adds the residual.
        self.ping, self.pong, self.attended, self.projected = (cuda.device_array((T, C), dtype) for _ in range(4))
        self.qkv = cuda.device_array((T, 3 * C), dtype)
        self.inner = cuda.device_array((T, config.intermediate_size), dtype)
        self.pooled = cuda.device_array((B, C), np.float32)
        needed, kernels = {}, kernels or kernels_for(dtype)
        for scratch_of in kernels.scratch:
            needed |= scratch_of(config, shape, self.dtype)
        self.scratch = {name: cuda.device_array(elements, kind)
                        for name, (elements, kind) in needed.items() if elements}
        self.attention_scratch = {name: self.scratch[name] for name in kernels.attention_takes}
        self.graphs: dict = {}  # of (model, shape, normalize)
        self.batch = functools.lru_cache(maxsize=256)(self._batch)

    def fits(self, shape: Shape) -> bool:
        return all(size <= capacity for size, capacity in zip(shape, self.shape, strict=True))

    def _batch(self, shape: Shape) -> SimpleNamespace:
        """A batch of this shape: its inputs, and the first rows of each buffer."""
        if not self.fits(shape):
            raise ValueError(f"the workspace's capacity is {self.shape}; the batch is {shape}")
        T, B = shape.rows, shape.sentences
        ids, types, positions = (self.inputs[i * T : (i + 1) * T] for i in range(3))  # (T,) int32
        # (B,) int32: the first row of each sentence, and how many tokens it has
        begins, lengths = (self.inputs[3 * T + i * B : 3 * T + (i + 1) * B] for i in range(2))
        return SimpleNamespace(
            ids=ids, types=types, positions=positions, begins=begins, lengths=lengths, longest=shape.longest,
            inputs=self.inputs[: 3 * T + 2 * B], pooled=self.pooled[:B], scratch=self.scratch,
            attention_scratch=self.attention_scratch, **{name: getattr(self, name)[:T] for name in OF_ROWS})

    @property
    def nbytes(self) -> int:
        arrays = (self.inputs, self.pooled, *(getattr(self, name) for name in OF_ROWS), *self.scratch.values())
        return sum(array.nbytes for array in arrays)
