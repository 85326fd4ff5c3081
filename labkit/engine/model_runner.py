"""Runs a model's steps: one copy in, launches without a word from the host between them, one copy out.

    runner = ModelRunner(load("tiny-llama").model, num_pages=256)
    handle = runner.launch(step)

A step in which each sequence has one token is padded to a bucket and replayed as a CUDA graph; the first of each bucket
runs launch by launch and is captured then. On a GPU a step with parts of prompts is padded, too, and captured when one
of its kind comes for the second time. With penalties, or with a wider page table, it is another graph. What only some
requests ask for, banned tokens and logprobs, runs without one; logprobs also wait for the step, since they are computed
on the host. Kernels that steps will launch are compiled side by side before the first of them.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from labkit import cuda, device
from labkit.device import compile_ahead, graphs, launches
from labkit.engine.batch import BatchBuilder, Layout, shape_needed
from labkit.engine.checks import whole
from labkit.engine.outputs import Sampled
from labkit.engine.runner import bucket, buckets, padded
from labkit.engine.scheduler import Step
from labkit.engine.sequence import Sequence
from labkit.kernels.attention.pages import PAGE, pages_for
from labkit.kernels.penalties import count_tokens, penalise, prompt_row
from labkit.kernels.sampling import Parameters, Scratch, sample
from labkit.kernels.steps import add_biases, ban_tokens, ban_tokens_after, copy_pages, fill_ids, keep_tokens
from labkit.models.llama import Cache, Llama, Workspace
from labkit.models.step import Shape, step_of

INPUTS = ("ids", "positions", "slots", "begins", "lengths", "contexts", "last", "page_table")  # as step_of takes them
IN_FLIGHT = 3  # steps whose memory on the host is kept apart: one more than run at a time
EMPTY = 16  # sequences that a padded step may have beyond those that run
MOST_GRAPHS = 256  # kept at a time, of up to 2 MB of device memory each; those that were not used for longest go first


class Kind(NamedTuple):
    """What the launches of a step depend on, beside what lies in device memory."""

    shape: Shape
    layout: Layout
    penalised: bool  # some of its sequences
    biased: bool = False  # some of them


class ModelRunner:
    """num_pages: of 16 tokens, in the cache of each layer. max_model_len: the longest sequence; None: the model's.

    enforce_eager: no graphs. compiling(done, of): called while kernels are compiled ahead of a step. pad_prompts: steps
    with parts of prompts are padded as graphs need it; None: on a GPU, where a replay is much cheaper than launches.
    """

    page_size = PAGE

    def __init__(self, model: Llama, *, num_pages: int, max_num_seqs: int = 256, max_num_batched_tokens: int = 2048,
                 max_model_len: int | None = None, enforce_eager: bool = False,
                 compiling: Callable[[int, int], None] | None = None, pad_prompts: bool | None = None):
        for name, value in (("num_pages", num_pages), ("max_num_seqs", max_num_seqs),
                            ("max_num_batched_tokens", max_num_batched_tokens)):
            whole(name, value, 1)
        self._pads = device.on_gpu() if pad_prompts is None else pad_prompts
        self._sequences = max_num_seqs + (EMPTY if self._pads else 0)  # of a step, at most
        config, rows = model.config, max(max_num_batched_tokens, self._sequences)
        self.model, self.num_pages, self.max_num_seqs = model, num_pages, max_num_seqs
        self.max_model_len, self.vocab_size = longest(model, max_model_len), config.vocab_size
        layout = Layout(rows, self._sequences, pages_for(self.max_model_len))
        self._rows, self._eager = rows, enforce_eager
        self._graphs: OrderedDict[Kind, object] = OrderedDict()  # None: a kind that came once and is not captured yet
        self._compiling, self._prepared = compiling, set()
        self._builder = BatchBuilder(max_num_seqs, layout.max_pages)
        self._cache = Cache(config, num_pages, model.dtype)
        self._pages = self._cache.memory.reshape(2 * config.num_hidden_layers, num_pages,
                                                 config.num_key_value_heads * PAGE * config.head_dim)
        self._workspace = Workspace(config, rows, self._sequences, model.dtype)
        self._memory = cuda.device_array(layout.size, np.int32)
        self._last = cuda.to_device(np.zeros(max_num_seqs + 1, np.int32))  # by seat; the last one is for padding
        self._tokens = cuda.device_array(self._sequences, np.int32)
        self._logprobs = cuda.device_array(self._sequences, np.float32)
        self._scratch = Scratch.allocate(self._sequences, config.vocab_size)
        self._counts = None  # (max_num_seqs, V) uint32, once a request has penalties
        self._biases = None  # (max_num_seqs, V) float32, once a request has some
        self._stream = cuda.stream()
        self._host = [(cuda.pinned_array(layout.size, np.int32), cuda.pinned_array(self._sequences, np.int32))
                      for _ in range(IN_FLIGHT)]
        self._launched = 0
        self._last_kind: Kind | None = None
        self._views = functools.lru_cache(maxsize=256)(self._device_views)
        self._inputs = functools.lru_cache(maxsize=256)(self._device_inputs)

    def launch(self, step: Step) -> Handle:
        """Returns before the step has run."""
        alike = all(chunk.length == 1 == len(chunk.samples) for chunk in step.chunks)
        shape = self._shape(step, alike)
        batch = self._builder.build(step, shape.rows, shape.sequences, shape.decoding)
        layout = batch.layout
        host, tokens = self._host[self._launched % IN_FLIGHT]
        self._launched += 1
        host[: layout.size] = batch.buffer
        self._memory[: layout.size].copy_to_device(host[: layout.size], stream=self._stream)
        if batch.copies:
            copy_pages(self._pages, cuda.to_device(np.array(batch.copies, np.int32), stream=self._stream), self._stream)

        begun = [sequence for sequence in batch.fresh if sequence.request.params.penalized]
        if begun:
            self._begin_counts(begun)
        for sequence in batch.fresh:
            if sequence.request.biased:
                self._set_biases(sequence)

        banned, after = batch.banned(), batch.banned_after()
        wanted = any(each.request.params.logprobs is not None for _, each in batch.samples)
        kind = Kind(shape, layout, *(bool((seats >= 0).any()) for seats in (batch.counted, batch.biased)))
        self._last_kind, graph, logits = kind, self._graphs.get(kind), None
        if banned or after or wanted:
            self._compile_ahead(kind, len(batch.samples))
            logits = self._run_with_host(kind, banned, after, wanted)
        elif graph is not None:
            self._graphs.move_to_end(kind)
            graph.launch(stream=self._stream)
        else:
            self._compile_ahead(kind, len(batch.samples))
            self._run(kind, self._stream)
            if (alike or self._pads) and not self._eager and not launches.imagined():
                self._keep_graph(kind, captured=alike or kind in self._graphs)
        self._tokens[: layout.sequences].copy_to_host(tokens[: layout.sequences], stream=self._stream)
        done = cuda.event()
        done.record(self._stream)
        return Handle(batch.samples, tokens, done, logits)

    def captured(self, sequences: int):
        """(graph, logits): of a step in which so many sequences have one token, once one has run. The graph does what
        the last step of its kind did, and writes these logits (B, V). Raises KeyError where there is none."""
        size = bucket(sequences, self.max_num_seqs)
        shape = Shape(size, size, size, 0)
        graph = {kind.shape: graph for kind, graph in self._graphs.items() if graph is not None}[shape]
        return graph, self._workspace.rows(shape).logits

    @property
    def last_shape(self) -> Shape | None:
        """Of the step that was launched last."""
        return self._last_kind and self._last_kind.shape

    def planned(self) -> list[launches.Launch]:
        """The launches of a step like the last one, in their order; none of them runs. For the thread that launches
        steps: while it looks, no kernel can be launched."""
        return launches.planned(functools.partial(self._run, self._last_kind, self._stream)) if self._last_kind else []

    def fill_cache(self, values: np.ndarray) -> None:
        """Writes (pages, K, PAGE, D), of the cache's type, to the keys and to the values of each layer."""
        for layer in (*self._cache.keys, *self._cache.values):
            layer.copy_to_device(values)

    def _shape(self, step: Step, alike: bool) -> Shape:
        """That in which a step runs. alike: each of its sequences has one token and samples one."""
        if alike:
            size = bucket(len(step.chunks), self.max_num_seqs)
            return Shape(size, size, size, 0)
        needed = shape_needed(step)
        return padded(needed, self._rows, self._sequences, self.max_num_seqs) if self._pads else needed

    def _keep_graph(self, kind: Kind, captured: bool) -> None:
        """Of a step that has just been launched; or only that it was, if it is not to be captured yet."""
        self._graphs[kind] = graphs.capture(functools.partial(self._run, kind), warm_up=False) if captured else None
        self._graphs.move_to_end(kind)
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)

    def _compile_ahead(self, kind: Kind, samples: int) -> None:
        """Compiles side by side what this step will launch, and what those after it will, when its sequences decode
        and end one by one. Which kernels these are depends on sizes; of those within a factor of two one is looked at,
        and what it does not show is compiled when it is launched."""
        kinds = [kind]
        if samples:
            kinds += [Kind(Shape(size, size, size, 0), Layout(size, size, kind.layout.max_pages), kind.penalised,
                           kind.biased)
                      for size in buckets(bucket(samples, self.max_num_seqs))]
        alike = {(each.shape.rows.bit_length(), each.shape.sequences.bit_length(), each.shape.decoding > 0,
                  each.shape.decoding < each.shape.sequences, each.penalised, each.biased): each for each in kinds}
        new = [each for key, each in alike.items() if key not in self._prepared]
        if new and not launches.imagined():
            needed = dict.fromkeys(one for each in new
                                   for one in launches.needed(functools.partial(self._run, each, self._stream)))
            compile_ahead.prepare(needed, progress=self._compiling)
            self._prepared |= alike.keys()

    def _device_views(self, layout: Layout) -> dict:
        return layout.views(self._memory[: layout.size])

    def _device_inputs(self, shape: Shape, layout: Layout):
        views = self._views(layout)
        return step_of(shape, *(views[name] for name in INPUTS))

    def _forward(self, kind: Kind, stream):
        inputs = self._inputs(kind.shape, kind.layout)
        fill_ids(inputs.ids, self._last, stream=stream)
        return self.model.forward(inputs, self._cache, self._workspace, stream=stream)

    def _penalise(self, logits, kind: Kind, stream) -> None:
        """As vLLM does: biases first."""
        if kind.biased:
            add_biases(logits, self._biases, self._views(kind.layout)["biased"], stream=stream)
        if kind.penalised:
            views = self._views(kind.layout)
            penalise(logits, self._counts, views["counted"], views["repetition_penalty"], views["frequency_penalty"],
                     views["presence_penalty"], logits, stream=stream)

    def _sample(self, logits, kind: Kind, stream) -> None:
        views, tokens = self._views(kind.layout), self._tokens[: kind.layout.sequences]
        parameters = Parameters(*(views[name] for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "steps")))
        sample(logits, parameters, tokens, self._logprobs[: kind.layout.sequences], self._scratch, stream=stream)
        keep_tokens(tokens, views["seats"], self._last, stream=stream)
        if kind.penalised:
            count_tokens(self._counts, views["counted"], tokens, stream=stream)

    def _run(self, kind: Kind, stream) -> None:
        """What a graph holds."""
        logits = self._forward(kind, stream)
        self._penalise(logits, kind, stream)
        self._sample(logits, kind, stream)

    def _run_with_host(self, kind: Kind, banned, after, wanted: bool):
        """With what the host has a part in. Returns the logits as the model gave them, on the host, if they are
        wanted."""
        stream = self._stream
        logits = self._forward(kind, stream)
        host = logits.copy_to_host(stream=stream) if wanted else None
        if wanted:
            stream.synchronize()
        self._penalise(logits, kind, stream)
        if banned:
            # The tokenizer may have ends of text that the model does not have: the kernel would write past the row.
            pairs = [(row, token) for row, tokens in banned for token in tokens if 0 <= token < self.vocab_size]
            if pairs:
                ban_tokens(logits, cuda.to_device(np.array(pairs, np.int32), stream=stream), stream=stream)
        if after:
            ban_tokens_after(logits, cuda.to_device(np.array(after, np.int32), stream=stream), self._last,
                             stream=stream)
        self._sample(logits, kind, stream)
        return host

    def _set_biases(self, sequence: Sequence) -> None:
        """Of a sequence that is new at its seat."""
        vocabulary = self.model.config.vocab_size
        if self._biases is None:
            self._biases = cuda.device_array((self.max_num_seqs, vocabulary), np.float32)
        self._biases[sequence.seat].copy_to_device(sequence.request.bias_row(vocabulary), stream=self._stream)

    def _begin_counts(self, begun: list[Sequence]) -> None:
        """The tokens so far of sequences that are new at their seats."""
        vocabulary = self.model.config.vocab_size
        if self._counts is None:
            self._counts = cuda.to_device(np.zeros((self.max_num_seqs, vocabulary), np.uint32), stream=self._stream)
        for sequence in begun:
            row = prompt_row(sequence.request.prompt, vocabulary)
            np.add.at(row, sequence.output, 1)
            self._counts[sequence.seat].copy_to_device(row, stream=self._stream)


def longest(model: Llama, max_model_len: int | None) -> int:
    """Return how long a sequence may be, in tokens: a prompt of one and one that follows at least, and no more than the
    model has positions."""
    return model.positions if max_model_len is None else min(whole("max_model_len", max_model_len, 2), model.positions)


class Handle:
    """A step that was launched."""

    def __init__(self, samples, tokens: np.ndarray, done, logits: np.ndarray | None):
        self._samples, self._tokens, self._done, self._logits = samples, tokens, done, logits

    def tokens(self) -> list[Sampled]:
        """Raises ValueError where the model's logits are no numbers."""
        self._done.synchronize()
        return [self._sampled(number, sequence) for number, sequence in self._samples]

    def _sampled(self, number: int, sequence) -> Sampled:
        token, wanted = int(self._tokens[number]), sequence.request.params.logprobs
        if token < 0:
            raise ValueError(f"request {sequence.request.request_id}: the model's logits are NaN, or no token is "
                             f"allowed")
        if wanted is None:
            return Sampled(token)
        x = self._logits[number].astype(np.float64)
        x -= x.max()
        x -= np.log(np.exp(x).sum())
        best = np.argsort(-x, kind="stable")[:wanted]
        rank = int((x > x[token]).sum()) + 1
        return Sampled(token, float(x[token]), rank, tuple((int(each), float(x[each])) for each in best))
