"""A BERT of PyTorch's functions, written by hand: what MiniLM's passes are compared with.

    bert = TorchBert(torch, model)                              # ours' weights, float16
    bert.forward(*bert.inputs(sentences, 16))                   # padded, with a mask, by SDPA
    bert.forward_packed(bert.packed(sentences), bert.varlen)    # end to end, by variable-length FlashAttention
    torch_rows(...)         a batch, in every way to run it
    corpus_rows(...)        a corpus by size of batch, and packed into one batch: called, in graphs, compiled
    torch_texts(...)        texts to embeddings: the Rust tokenizer, then packed passes in graphs

Only what lies between two attentions is compiled for a corpus: `embed`, `project`, `finish_layer`, `pool` and
`normalize`. All layers share one compilation, a dozen serve every shape of padded batch, and attention would be a
kernel of its own in any case. A single batch is compiled as a whole instead (torch_rows).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from labkit import cuda, device, measure
from labkit.measure import time_host
from labkit.measure.series.beside_torch import graph_ms, still_compiling, why_not
from labkit.measure.timing import time_torch_graph
from labkit.models.configs import names_in, shapes
from labkit.models.minilm import Config, MiniLM, flat, up
from labkit.models.minilm_reference import cosines, embeddings, weights_of
from labkit.models.tokenizer import WHOLE, read_whole

MULTIPLE = 8  # padded lengths: an additive mask is read in vectors of eight
BLOCK = 128  # packed rows: a tile of a product, and a block of FlexAttention's mask
AUTOTUNED = "max-autotune-no-cudagraphs"  # GELU as the epilogue of a product; CUDA graphs are ours to capture
SAME = 0.999  # the smallest cosine with the embeddings that are right: what computes something else is no baseline
TEXT_BATCHES = 256, 2000
COMPILED = ("embed", "project", "finish_layer", "pool", "normalize")


class Packed(NamedTuple):
    """T packed rows of B sentences. What follows the last sentence belongs to none, and reaches no result."""

    ids: object  # (T,) int32
    positions: object  # (T,) int32
    begins: object  # (B + 1,) int32: the first row of each sentence, and the row after the last
    rows: object  # (T,) int32: 0, 1, 2, ...
    longest: int


class TorchBert:
    """The same model of PyTorch's functions, with our weights. dtype: float16; float64 to compare both with."""

    def __init__(self, torch, model: MiniLM, torch_device: str = "cuda", dtype: str = "float16"):
        self.torch, self.config, self.device, self.dtype = torch, model.config, torch_device, getattr(torch, dtype)
        self.w = {labkit_key: torch.as_tensor(np.array(model.tensors[hf_key], np.float32)).to(torch_device, self.dtype)
                  for labkit_key, hf_key in names_in(model.tensors, model.config).items()}
        self.layers = []
        for layer in range(model.config.num_hidden_layers):
            prefix = f"encoder.layer.{layer}."
            params = {name.removeprefix(prefix): value for name, value in self.w.items() if name.startswith(prefix)}
            for kind in ("weight", "bias"):
                params[f"qkv.{kind}"] = torch.cat([params.pop(f"attention.self.{part}.{kind}") for part in
                                                   ("query", "key", "value")])
            self.layers.append(params)

    # --- The compiled parts between two attentions. T rows, padded or packed ------------------------------------------

    def linear(self, w, x, name):
        return self.torch.nn.functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(self, w, x, name):
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"],
                                                   self.config.layer_norm_eps)

    def embed(self, ids, positions=None):
        """(T, C) of ids (T,); of ids (B, S), where position is column, (B * S, C)."""
        w, embedding = self.w, self.torch.nn.functional.embedding
        table = w["embeddings.position_embeddings.weight"]
        placed = table[: ids.shape[1]] if positions is None else embedding(positions, table)
        x = embedding(ids, w["embeddings.word_embeddings.weight"]) + placed
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        return self.norm(w, x, "embeddings.LayerNorm").view(-1, self.config.hidden_size)

    def project(self, w, x):
        """Queries, keys and values, (T, 3C)."""
        return self.linear(w, x, "qkv")

    def finish_layer(self, w, x, context):
        """The layer after its attention. (T, C) each."""
        x = self.norm(w, self.linear(w, context, "attention.output.dense") + x, "attention.output.LayerNorm")
        inner = self.torch.nn.functional.gelu(self.linear(w, x, "intermediate.dense"))
        return self.norm(w, self.linear(w, inner, "output.dense") + x, "output.LayerNorm")

    def pool(self, hidden, mask):
        """hidden: (B, S, C)."""
        return self.normalize(mean_over(hidden, mask))

    def normalize(self, means):
        means = means.float() if self.dtype == self.torch.float16 else means
        return self.torch.nn.functional.normalize(means, dim=1)

    def compiled(self, **options) -> SimpleNamespace:
        """Compile COMPILED anew, each at its first call. Without options a function is compiled again for the second
        number of rows, and then serves any number."""
        self.torch._dynamo.reset()
        return SimpleNamespace(**{name: self.torch.compile(getattr(self, name), **options) for name in COMPILED})

    # --- Padded ------------------------------------------------------------------------------------------------------

    def inputs(self, sentences, seq: int) -> tuple:
        """(ids, mask), each (B, seq); the mask is None where it would hide nothing, which PyTorch is faster with."""
        ids, mask = (np.zeros((len(sentences), seq), np.int64) for _ in range(2))
        for row, one in enumerate(sentences):
            ids[row, : len(one)], mask[row, : len(one)] = one, 1
        key_mask = None if mask.all() else self.torch.as_tensor(mask, device=self.device).bool()
        return self.torch.as_tensor(ids, device=self.device), key_mask

    def forward(self, ids, mask, sdpa: bool = True, parts=None):
        """The embeddings, (B, C) float32. parts: `compiled` ones; left out, PyTorch's functions."""
        parts, torch = parts or self, self.torch
        B, S = ids.shape
        H, C = self.config.num_attention_heads, self.config.hidden_size
        bias = None
        if mask is not None:  # added to the scores: a boolean mask would be converted in each layer
            bias = torch.zeros_like(mask, dtype=self.dtype).masked_fill(~mask, -65504.0)[:, None, None, :]
        x = parts.embed(ids)  # (B * S, C)
        for w in self.layers:
            q, k, v = parts.project(w, x).view(B, S, 3, H, -1).permute(2, 0, 3, 1, 4)  # (B, H, S, D) each
            if sdpa:
                context = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            else:
                scores = q @ k.transpose(-1, -2) * (C // H) ** -0.5  # (B, H, S, S)
                context = (scores if bias is None else scores + bias).softmax(-1) @ v
            x = parts.finish_layer(w, x, context.transpose(1, 2).reshape(B * S, C))
        return parts.pool(x.view(B, S, C), mask)

    # --- Packed ------------------------------------------------------------------------------------------------------

    def packed(self, sentences) -> Packed:
        lengths = np.array([len(one) for one in sentences])
        T, B = up(int(lengths.sum()), BLOCK), len(sentences)
        return self.split(self.torch.as_tensor(lay_out_packed(flat(sentences), lengths, T)).to(self.device), T, B,
                          int(lengths.max()))

    def split(self, inputs, T: int, B: int, longest: int) -> Packed:
        """inputs: as lay_out_packed gives them, on the device."""
        rows = self.torch.arange(T, dtype=self.torch.int32, device=self.device)
        return Packed(*inputs.split((T, T, B + 1)), rows, longest)

    def forward_packed(self, packed: Packed, attend: Callable, parts=None):
        """The embeddings, (B, C) float32. attend(qkv (T, 3C), packed) -> (T, C)."""
        parts = parts or self
        x = parts.embed(packed.ids, packed.positions)
        for w in self.layers:
            x = parts.finish_layer(w, x, attend(parts.project(w, x), packed))
        # The last bag is of the rows after the last sentence.
        bags = self.torch.nn.functional.embedding_bag(packed.rows, x, packed.begins, mode="mean")  # (B + 1, C)
        return parts.normalize(bags[:-1])

    def heads(self, qkv):
        """Queries, keys and values, (T, H, D) each: views."""
        return qkv.view(len(qkv), 3, self.config.num_attention_heads, -1).unbind(1)

    def varlen(self, qkv, packed: Packed):
        """FlashAttention on sequences of different lengths; on the host, which has none, SDPA and a mask."""
        q, k, v = self.heads(qkv)
        if self.device == "cpu":
            owner = owners(self.torch, packed)
            q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
            context = self.torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=owner[:, None] == owner[None, :])[0].transpose(0, 1)
        else:
            from torch.nn.attention.varlen import varlen_attn

            context = varlen_attn(q, k, v, packed.begins, packed.begins, packed.longest, packed.longest)
        return context.reshape(len(qkv), -1)

    def flex(self, packed: Packed, compile: Callable) -> Callable:
        """`attend` by FlexAttention, where a block of queries visits only the blocks of keys with sentences of its own.
        compile(function): not compiled it would take all scores, (H, T, T), into memory."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        owner, T = owners(self.torch, packed), len(packed.ids)
        mask = create_block_mask(lambda b, h, query, key: owner[query] == owner[key], None, None, T, T, self.device)
        attention = compile(flex_attention)

        def attend(qkv, packed):
            q, k, v = (each.transpose(0, 1)[None] for each in self.heads(qkv))  # (1, H, T, D)
            return attention(q, k, v, block_mask=mask)[0].transpose(0, 1).reshape(len(qkv), -1)

        return attend


def mean_over(hidden, mask):
    """The mean of each sentence's rows. hidden: (B, S, C)."""
    if mask is None:
        return hidden.mean(1)
    weights = mask[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def lay_out_packed(ids: np.ndarray, lengths: np.ndarray, T: int) -> np.ndarray:
    """ids and positions (T each), and begins (B + 1), as one array of int32, which is one copy. ids: of all sentences,
    end to end."""
    host = np.zeros(2 * T + len(lengths) + 1, np.int32)
    begins = host[2 * T :]
    np.cumsum(lengths, out=begins[1:])
    host[: len(ids)] = ids
    host[T : T + len(ids)] = np.arange(len(ids)) - np.repeat(begins[:-1], lengths)
    return host


def owners(torch, packed: Packed):
    """The sentence of each row, (T,); B for the rows of none."""
    return torch.searchsorted(packed.begins[1:], packed.rows, right=True)


def torch_bert(model: MiniLM) -> TorchBert | None:
    """PyTorch's model with the same weights; None without a GPU or PyTorch."""
    torch = measure.torch_on_gpu()
    if torch is None:
        return None
    torch.set_grad_enabled(False)
    return TorchBert(torch, model)


def called_us(call: Callable, after: Callable = cuda.synchronize) -> float:
    """Microseconds of one call from Python until the device is done."""
    limits = device.pick(gpu={"budget_s": 0.4, "min_runs": 10, "max_runs": 200},
                         cpu={"budget_s": 0.02, "min_runs": 1, "max_runs": 2})
    return 1000 * time_host(call, after=after, **limits).p50


def median_seconds(call: Callable, runs: int = 3) -> float:
    """One run that does not count, then the median of `runs`."""
    call()
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def smallest_cosine(labkit: np.ndarray, torch_out) -> float:
    return float(cosines(labkit, torch_out.double().cpu().numpy()).min())


def check_same(labkit: np.ndarray, torch_out) -> float:
    """The smallest cosine. Raises ValueError where PyTorch computes something else."""
    cosine = smallest_cosine(labkit, torch_out)
    if not cosine >= SAME:
        raise ValueError(f"its embeddings are wrong: the smallest cosine is {cosine:.4f}")
    return cosine


# --- A batch ---------------------------------------------------------------------------------------------------------


def torch_rows(bert: TorchBert, sentences, seq: int, compile_until: float = np.inf) -> dict[str, float | None | str]:
    """Return microseconds per pass of each way to run, called from Python and in a CUDA graph: "eager" and "SDPA" are
    PyTorch's functions, "transformers" is that library's model, and two of the three are compiled, too. Where there
    is no time, "...: why not" says why. compile_until: when to stop starting to compile, on time.monotonic's clock.
    """
    torch = bert.torch
    ids, mask = bert.inputs(sentences, seq)
    times: dict[str, float | None] = {}

    def both(name, call, until=np.inf):
        try:
            still_compiling(until)
            call()
            times[name] = called_us(call, torch.cuda.synchronize)
            timing = time_torch_graph(call, launches=4)
            times[f"{name}, in a graph"] = None if timing is None else 1000 * timing.p50
        except Exception as error:  # what cannot be compiled here must not cost the other rows
            times[name] = None
            times[f"{name}: why not"] = why_not(error)

    @functools.cache
    def compiled():
        torch._dynamo.reset()
        return torch.compile(bert.forward, dynamic=False)

    both("eager", lambda: bert.forward(ids, mask, sdpa=False))
    both("SDPA", lambda: bert.forward(ids, mask))
    both("transformers", transformers_call(bert, ids, mask, compiled=False))
    both("compiled", lambda: compiled()(ids, mask), compile_until)
    both("three lines", transformers_call(bert, ids, mask), compile_until)
    return times


def transformers_call(bert: TorchBert, ids, mask, compiled: bool = True) -> Callable:
    """What a user writes: the library's model in half precision on the GPU, compiled, and a mean."""
    torch = bert.torch

    @functools.cache
    def model():
        import transformers

        fields = {name: getattr(bert.config, name) for name in Config.__dataclass_fields__}
        with torch.device(bert.device):
            made = transformers.BertModel(transformers.BertConfig(**fields), add_pooling_layer=False).half().eval()
        made.load_state_dict({name: bert.w[name] for name in shapes(bert.config)}, strict=False)
        return torch.compile(made) if compiled else made

    def call():
        hidden = model()(input_ids=ids, attention_mask=None if mask is None else mask.long()).last_hidden_state
        return torch.nn.functional.normalize(mean_over(hidden, mask), dim=1)

    return call


# --- A corpus --------------------------------------------------------------------------------------------------------


def truth_of(model: MiniLM, sentences, size: int = 64) -> np.ndarray:
    """The embeddings of sentences in float64, from the weights as they are in the file: by PyTorch, in batches of
    `size`, where it is installed; else by NumPy, which takes seconds for a few."""
    torch = measure.import_library("torch")
    if torch is None:
        return embeddings(model.config, weights_of(model.tensors, model.config), sentences)
    with torch.no_grad():
        bert = TorchBert(torch, model, device.pick(gpu="cuda", cpu="cpu"), "float64")
        parts = [sentences[begin : begin + size] for begin in range(0, len(sentences), size)]
        return np.concatenate([bert.forward(*bert.inputs(part, max(map(len, part)))).cpu().numpy() for part in parts])


def corpus_rows(bert: TorchBert, sentences, batches: Sequence[int], truth: np.ndarray, compile_until: float
                ) -> list[dict]:
    """Sentences a second over the corpus, padded in batches of each size, then packed in one. truth: the embeddings,
    which each way has to give (`cosine` is its smallest). compile_until: as torch_rows takes it."""
    rows, make_parts = [], functools.cache(bert.compiled)
    for size in batches:
        groups = [sentences[begin : begin + size] for begin in range(0, len(sentences), size)]
        inputs = [bert.inputs(group, up(max(map(len, group)), MULTIPLE)) for group in groups]

        def run(parts=None, inputs=inputs):
            return bert.torch.cat([bert.forward(*one, parts=parts) for one in inputs])

        ways = {"compiled": lambda run=run: functools.partial(run, make_parts())}
        rows.append({"form": "padded", "batch": size, **rates(bert, run, ways, truth, compile_until)})
    packed = bert.packed(sentences)
    run = functools.partial(bert.forward_packed, packed)
    rows.append({"form": "packed", "batch": len(sentences),
                 **rates(bert, functools.partial(run, bert.varlen), packed_ways(bert, packed), truth, compile_until)})
    return rows


def packed_ways(bert: TorchBert, packed: Packed) -> dict[str, Callable[[], Callable]]:
    """way -> compile(), which gives the pass. Both kinds of attention, and products by cuBLAS or autotuned."""
    @functools.cache
    def parts(mode):
        return bert.compiled(dynamic=False, mode=mode)

    def varlen(mode):
        return functools.partial(bert.forward_packed, packed, bert.varlen, parts(mode))

    def flex(mode):
        made = parts(mode)  # first: it resets the compiler
        attend = bert.flex(packed, functools.partial(bert.torch.compile, dynamic=False, mode=mode))
        return functools.partial(bert.forward_packed, packed, attend, made)

    return {"varlen": lambda: varlen("default"), "FlexAttention": lambda: flex("default"),
            "FlexAttention, autotuned": lambda: flex(AUTOTUNED), "varlen, autotuned": lambda: varlen(AUTOTUNED)}


def rates(bert: TorchBert, run: Callable, ways: dict[str, Callable[[], Callable]], truth: np.ndarray,
          compile_until: float) -> dict:
    """Sentences a second of run(), called and in a graph, and in a graph of the fastest way to compile it; and the
    smallest cosine of its embeddings with the truth. What could not be measured is None, and "...: why not" says why.
    """
    torch = bert.torch
    row = {"cosine": None, "called_sentences_per_second": None, "graph_sentences_per_second": None,
           "compiled_graph_sentences_per_second": None, "compiled_ways": {}}

    def in_graph(call):
        return 1000 * len(truth) / graph_ms(call)

    try:
        row["cosine"] = check_same(truth, run())
        row["called_sentences_per_second"] = 1e6 * len(truth) / called_us(run, torch.cuda.synchronize)
        row["graph_sentences_per_second"] = in_graph(run)
    except Exception as error:  # one way that does not run here must not cost the series
        row["why_not"] = why_not(error)
    for way, compile in ways.items():
        try:
            still_compiling(compile_until)
            call = compile()
            check_same(truth, call())
            row["compiled_ways"][way] = in_graph(call)
        except Exception as error:
            row["compiled_ways"][way], row["compiled_ways"][f"{way}: why not"] = None, why_not(error)
    measured = [rate for rate in row["compiled_ways"].values() if isinstance(rate, float)]
    row["compiled_graph_sentences_per_second"] = max(measured, default=None)
    return row


# --- Texts -----------------------------------------------------------------------------------------------------------


def rust_tokenizer(folder: Path, limit: int):
    """The tokenizer of the library `tokenizers` that is in a model's folder, which pads nothing and cuts at `limit`
    tokens."""
    tokenizer = read_whole(folder / WHOLE)
    tokenizer.enable_truncation(limit)
    return tokenizer


class TorchTexts:
    """Texts to embeddings on the host, as fast as PyTorch's parts allow: the Rust tokenizer on all texts at once,
    batches packed by length, a CUDA graph for each shape of a batch, pinned copies.

    tokenizer: as rust_tokenizer gives it. parts: as forward_packed takes them.
    """

    def __init__(self, bert: TorchBert, tokenizer, parts=None):
        self.bert, self.torch, self.tokenizer, self.parts = bert, bert.torch, tokenizer, parts
        self.passes: dict[tuple, tuple] = {}

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        encode = getattr(self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch)  # without offsets
        return [one.ids for one in encode(texts)]

    def encode(self, texts: Sequence[str], batch_size: int) -> np.ndarray:
        """(n, C) float32, in the order of the texts."""
        torch, ids = self.torch, self.tokenize(texts)
        lengths = np.array([len(one) for one in ids])
        order = np.argsort(-lengths, kind="stable")
        inverse = np.empty(len(ids), np.int32)
        inverse[order] = np.arange(len(ids), dtype=np.int32)
        by_length = torch.empty((len(ids), self.bert.config.hidden_size), device=self.bert.device)
        for begin in range(0, len(ids), batch_size):
            batch = order[begin : begin + batch_size]
            by_length[begin : begin + len(batch)] = self.embed([ids[i] for i in batch], lengths[batch])
        return self.to_host(by_length.index_select(0, self.to_device(inverse)))

    def embed(self, ids: list[list[int]], lengths: np.ndarray):
        """(B, C) on the device; the next batch of this shape overwrites it."""
        shape = up(int(lengths.sum()), BLOCK), len(ids), up(int(lengths.max()), 16)
        host = self.to_device(lay_out_packed(flat(ids), lengths, shape[0]))
        if shape not in self.passes:
            self.passes[shape] = self.make_pass(host, *shape)
        inputs, run = self.passes[shape]
        inputs.copy_(host)
        return run()

    def make_pass(self, inputs, *shape) -> tuple:
        """(the inputs to overwrite, run() -> the embeddings)."""
        packed = self.bert.split(inputs, *shape)
        call = functools.partial(self.bert.forward_packed, packed, self.bert.varlen, self.parts)
        return inputs, call if self.bert.device == "cpu" else captured(self.torch, call)

    def to_device(self, array: np.ndarray):
        tensor = self.torch.from_numpy(array)
        return tensor if self.bert.device == "cpu" else tensor.pin_memory().to(self.bert.device, non_blocking=True)

    def to_host(self, tensor) -> np.ndarray:
        if self.bert.device == "cpu":
            return tensor.numpy()
        pinned = self.torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor).numpy()


def captured(torch, call: Callable) -> Callable:
    """run(): replays `call` as a CUDA graph, and returns what it returns."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # compiles, and libraries choose their kernels
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        result = call()

    def run():
        graph.replay()
        return result

    run.call = call  # keeps the arrays that the graph reads
    return run


def torch_texts(model: MiniLM, tokenizer, texts: Sequence[str], embeddings: np.ndarray) -> dict:
    """Seconds from texts to embeddings by size of batch, of the first way that runs: compiled on a GPU, or not; and of
    its tokenizer alone. ours: our embeddings. None for what could not be measured, and why not."""
    row = {f"torch_seconds_{size}": None for size in TEXT_BATCHES}
    for way in device.pick(gpu=("packed, compiled", "packed"), cpu=("packed",)):
        try:
            import torch

            with torch.no_grad():
                bert = TorchBert(torch, model, device.pick(gpu="cuda", cpu="cpu"))
                baseline = TorchTexts(bert, tokenizer, bert.compiled() if "compiled" in way else None)
                row["torch_tokenizing_seconds"] = median_seconds(lambda r=baseline: r.tokenize(texts))
                for size in TEXT_BATCHES:
                    check_same(embeddings, torch.from_numpy(baseline.encode(texts, size)))
                    row[f"torch_seconds_{size}"] = median_seconds(lambda r=baseline, size=size: r.encode(texts, size))
            return row | {"torch_way": way}
        except Exception as error:  # no PyTorch, no compiler, no FlashAttention
            row["torch_why_not"] = f"{way}: {why_not(error)}"
    return row
