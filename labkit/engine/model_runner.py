"""Runs a model's steps: one copy in, launches without a word from the host between them, one copy out.

    runner = ModelRunner(load("tiny-llama").model, num_pages=256)
    handle = runner.launch(step)

A step in which each sequence has one token is padded to a bucket and replayed as a CUDA graph; the first of each bucket
runs launch by launch and is captured then. What only some requests ask for, penalties, banned tokens and logprobs, runs
without a graph; logprobs also wait for the step, since they are computed on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from labkit import cuda
from labkit.device import compile_ahead, graphs, launches
from labkit.engine.batch import Batch, BatchBuilder, Layout
from labkit.engine.outputs import Sampled
from labkit.engine.runner import bucket, buckets
from labkit.engine.scheduler import Step
from labkit.engine.sequence import Sequence
from labkit.kernels.attention.pages import PAGE, pages_for
from labkit.kernels.penalties import count_tokens, penalise, prompt_row
from labkit.kernels.sampling import Parameters, Scratch, sample
from labkit.kernels.steps import ban_tokens, copy_pages, fill_ids, keep_tokens
from labkit.models.llama import Cache, Llama, Workspace
from labkit.models.step import Shape, step_of

INPUTS = ("ids", "positions", "slots", "begins", "lengths", "contexts", "last", "page_table")  # as step_of takes them
IN_FLIGHT = 3  # steps whose memory on the host is kept apart: one more than run at a time


class ModelRunner:
    """num_pages: of 16 tokens, in the cache of each layer. max_model_len: the longest sequence; None: the model's.

    enforce_eager: no graphs. compiling(done, of): called while kernels are compiled ahead of a step.
    """

    page_size = PAGE

    def __init__(self, model: Llama, *, num_pages: int, max_num_seqs: int = 256, max_num_batched_tokens: int = 2048,
                 max_model_len: int | None = None, enforce_eager: bool = False,
                 compiling: Callable[[int, int], None] | None = None):
        config, rows = model.config, max(max_num_batched_tokens, max_num_seqs)
        self.model, self.num_pages, self.max_num_seqs = model, num_pages, max_num_seqs
        self.max_model_len = min(max_model_len or model.positions, model.positions)
        layout = Layout(rows, max_num_seqs, pages_for(self.max_model_len))
        self._eager, self._graphs = enforce_eager, {}
        self._compiling, self._prepared = compiling, set()
        self._builder = BatchBuilder(max_num_seqs, layout.max_pages)
        self._cache = Cache(config, num_pages, model.dtype)
        self._pages = self._cache.memory.reshape(2 * config.num_hidden_layers, num_pages,
                                                 config.num_key_value_heads * PAGE * config.head_dim)
        self._workspace = Workspace(config, rows, max_num_seqs, model.dtype)
        self._memory = cuda.device_array(layout.size, np.int32)
        self._last = cuda.to_device(np.zeros(max_num_seqs + 1, np.int32))  # by seat; the last one is for padding
        self._tokens = cuda.device_array(max_num_seqs, np.int32)
        self._logprobs = cuda.device_array(max_num_seqs, np.float32)
        self._scratch = Scratch.allocate(max_num_seqs, config.vocab_size)
        self._counts = None  # (max_num_seqs, V) uint32, once a request has penalties
        self._stream = cuda.stream()
        self._host = [(cuda.pinned_array(layout.size, np.int32), cuda.pinned_array(max_num_seqs, np.int32))
                      for _ in range(IN_FLIGHT)]
        self._launched = 0
        self._views = functools.lru_cache(maxsize=256)(self._device_views)
        self._inputs = functools.lru_cache(maxsize=256)(self._device_inputs)

    def launch(self, step: Step) -> Handle:
        """Returns before the step has run."""
        alike = all(chunk.length == 1 == len(chunk.samples) for chunk in step.chunks)
        size = bucket(len(step.chunks), self.max_num_seqs) if alike else 0
        batch = self._builder.build(step, size, size)
        layout = batch.layout
        shape = Shape(layout.tokens, layout.sequences, size or batch.decoding, batch.longest)
        self._compile_ahead(shape, layout, len(batch.samples))
        host, tokens = self._host[self._launched % IN_FLIGHT]
        self._launched += 1
        host[: layout.size] = batch.buffer
        self._memory[: layout.size].copy_to_device(host[: layout.size], stream=self._stream)
        if batch.copies:
            copy_pages(self._pages, cuda.to_device(np.array(batch.copies, np.int32), stream=self._stream), self._stream)

        begun = [sequence for sequence in batch.fresh if sequence.request.params.penalized]
        if begun:
            self._begin_counts(begun)

        banned, wanted = batch.banned(), any(each.request.params.logprobs is not None for _, each in batch.samples)
        logits = None
        if banned or wanted or (batch.counted >= 0).any():
            logits = self._run_with_extras(shape, layout, batch, banned, wanted)
        elif shape in self._graphs:
            self._graphs[shape].launch(stream=self._stream)
        else:
            self._run(shape, layout, self._stream)
            if alike and not self._eager:
                self._graphs[shape] = graphs.capture(functools.partial(self._run, shape, layout), warm_up=False)
        self._tokens[: layout.sequences].copy_to_host(tokens[: layout.sequences], stream=self._stream)
        done = cuda.event()
        done.record(self._stream)
        return Handle(batch.samples, tokens, done, logits)

    def _compile_ahead(self, shape: Shape, layout: Layout, samples: int) -> None:
        """Compiles side by side what this step will launch, and what those after it will, when its sequences decode
        and end one by one. Which kernels these are depends on sizes; of those within a factor of two one is looked at,
        and what it does not show is compiled when it is launched."""
        steps = [(shape, layout)]
        if samples:
            steps += [(Shape(size, size, size, 0), Layout(size, size, layout.max_pages))
                      for size in buckets(bucket(samples, self.max_num_seqs))]
        kinds = {(each.rows.bit_length(), each.sequences.bit_length(), each.decoding > 0,
                  each.decoding < each.sequences): (each, where) for each, where in steps}
        new = [step for kind, step in kinds.items() if kind not in self._prepared]
        if new:
            self._prepared |= kinds.keys()
            needed = dict.fromkeys(one for step in new
                                   for one in launches.needed(lambda step=step: self._run(*step, self._stream)))
            compile_ahead.prepare(needed, progress=self._compiling)

    def _device_views(self, layout: Layout) -> dict:
        return layout.views(self._memory[: layout.size])

    def _device_inputs(self, shape: Shape, layout: Layout):
        views = self._views(layout)
        return step_of(shape, *(views[name] for name in INPUTS))

    def _forward(self, shape: Shape, layout: Layout, stream):
        inputs = self._inputs(shape, layout)
        fill_ids(inputs.ids, self._last, stream=stream)
        return self.model.forward(inputs, self._cache, self._workspace, stream=stream)

    def _sample(self, logits, layout: Layout, stream) -> None:
        views, count = self._views(layout), layout.sequences
        parameters = Parameters(*(views[name] for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "steps")))
        sample(logits, parameters, self._tokens[:count], self._logprobs[:count], self._scratch, stream=stream)
        keep_tokens(self._tokens[:count], views["seats"], self._last, stream=stream)

    def _run(self, shape: Shape, layout: Layout, stream) -> None:
        """What a graph holds; run twice, it does the same."""
        self._sample(self._forward(shape, layout, stream), layout, stream)

    def _run_with_extras(self, shape: Shape, layout: Layout, batch: Batch, banned, wanted: bool):
        """Returns the logits as the model gave them, on the host, if they are wanted."""
        views, stream = self._views(layout), self._stream
        logits = self._forward(shape, layout, stream)
        host = logits.copy_to_host(stream=stream) if wanted else None
        if wanted:
            stream.synchronize()
        counts = views["counted"]
        if (batch.counted >= 0).any():
            penalise(logits, self._counts, counts, views["repetition_penalty"], views["frequency_penalty"],
                     views["presence_penalty"], logits, stream=stream)
        if banned:
            pairs = np.array([(row, token) for row, tokens in banned for token in tokens], np.int32)
            ban_tokens(logits, cuda.to_device(pairs, stream=stream), stream=stream)
        self._sample(logits, layout, stream)
        if (batch.counted >= 0).any():
            count_tokens(self._counts, counts, self._tokens[: layout.sequences], stream=stream)
        return host

    def _begin_counts(self, begun: list[Sequence]) -> None:
        """The tokens so far of sequences that are new at their seats."""
        vocabulary = self.model.config.vocab_size
        if self._counts is None:
            self._counts = cuda.to_device(np.zeros((self.max_num_seqs, vocabulary), np.uint32), stream=self._stream)
        for sequence in begun:
            row = prompt_row(sequence.request.prompt, vocabulary)
            np.add.at(row, sequence.output, 1)
            self._counts[sequence.seat].copy_to_device(row, stream=self._stream)


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
