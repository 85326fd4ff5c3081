"""Run a model's steps: one copy in, launches without synchronizing with the host between them, one copy out.

    runner = ModelRunner(load("tiny-llama").model, num_pages=256)
    handle = runner.launch(step)

A step in which each sequence has one token is padded to a bucket and replayed as a CUDA graph; the first of each bucket
runs launch by launch and is captured then. On a GPU a step with parts of prompts is padded, too, and captured when one
of its kind comes for the second time. With penalties, with logprobs, or with a wider page table, it is another graph.
Banned tokens run without one, and logprobs of a prompt are launched behind it: their logits are computed piece by piece
in the memory of the step's own. Kernels that steps will launch are compiled side by side before the first of them.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from labkit import cuda, device
from labkit.device import compile_ahead, graphs, launches
from labkit.device.memory import zeros
from labkit.engine.batch import BatchBuilder, Layout, shape_needed
from labkit.engine.checks import integer
from labkit.engine.options import checked
from labkit.engine.outputs import Sampled, with_logprobs
from labkit.engine.runner import bucket, buckets, padded, row_bucket
from labkit.engine.scheduler import Chunk, Step
from labkit.engine.sequence import Sequence
from labkit.kernels import logprobs
from labkit.kernels.attention.pages import PAGE, pages_for
from labkit.kernels.penalties import count_tokens, penalise, prompt_row
from labkit.kernels.sampling import Parameters, Scratch, sample
from labkit.kernels.steps import add_biases, ban_tokens, ban_tokens_after, copy_pages, fill_ids, keep_tokens
from labkit.models.configs import LARGEST
from labkit.models.llama import Cache, Llama, Workspace
from labkit.models.step import Shape, step_of

INPUTS = ("ids", "positions", "slots", "begins", "lengths", "contexts", "last", "page_table")  # as step_of takes them
IN_FLIGHT = 3  # steps whose memory on the host is kept apart: one more than run at a time
EMPTY = 16  # sequences that a padded step may have beyond those that run
MAX_GRAPHS = 256  # at a time, of up to 2 MB of device memory each; the least recently used are dropped


class Kind(NamedTuple):
    """What the launches of a step depend on, beside what lies in device memory."""

    shape: Shape
    layout: Layout
    penalised: bool  # some of its sequences
    biased: bool = False  # some of them
    listed: bool = False  # logprobs of some of them


class ModelRunner:
    """num_pages: of 16 tokens, in the cache of each layer. max_model_len: the longest sequence; None: the model's.

    enforce_eager: no graphs. compiling(done, of): called while kernels are compiled ahead of a step. pad_prompts: steps
    with parts of prompts are padded as graphs need it; None: on a GPU, where a replay is much cheaper than launches.
    """

    page_size = PAGE

    def __init__(self, model: Llama, *, num_pages: int, max_num_seqs: int = 256, max_num_batched_tokens: int = 2048,
                 max_model_len: int | None = None, enforce_eager: bool = False,
                 compiling: Callable[[int, int], None] | None = None, pad_prompts: bool | None = None):
        checked(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, enforce_eager=enforce_eager,
                compiling=compiling, pad_prompts=pad_prompts)
        integer("num_pages", num_pages, 1, most_pages(model))
        self._pads = device.on_gpu() if pad_prompts is None else pad_prompts
        self._sequences = max_num_seqs + (EMPTY if self._pads else 0)  # of a step, at most
        config, rows = model.config, max(max_num_batched_tokens, self._sequences)
        self.model, self.num_pages, self.max_num_seqs = model, num_pages, max_num_seqs
        self.max_model_len, self.vocab_size = longest(model, max_model_len), config.vocab_size
        layout = Layout(rows, self._sequences, pages_for(self.max_model_len))
        self._rows, self._eager = rows, enforce_eager
        self._graphs: OrderedDict[Kind, object] = OrderedDict()  # None: a kind that came once and is not captured yet
        self._compiling, self._prepared, self._all_prepared = compiling, set(), False
        self._builder = BatchBuilder(max_num_seqs, layout.max_pages)
        self._workspace = Workspace(config, rows, self._sequences, model.dtype)
        self._memory = cuda.device_array(layout.size, np.int32)
        self._last = cuda.to_device(np.zeros(max_num_seqs + 1, np.int32))  # by slot; the last one is for padding
        self._tokens = cuda.to_device(np.zeros(self._sequences, np.int32))  # tokens, where a plan launches nothing
        self._logprobs = cuda.device_array(self._sequences, np.float32)  # under the adjusted logits
        self._scratch = Scratch.allocate(self._sequences, config.vocab_size)
        self._logprob_rows = cuda.device_array((self._sequences, logprobs.COLUMNS), np.float32)  # the model's
        self._logprob_scratch = logprobs.Scratch.allocate(self._sequences, config.vocab_size)
        self._stream = cuda.stream()
        self._host = [(cuda.pinned_array(layout.size, np.int32), cuda.pinned_array(self._sequences, np.int32),
                       cuda.pinned_array((self._sequences, logprobs.COLUMNS), np.float32)) for _ in range(IN_FLIGHT)]
        # After all copies to the device: the next one waits until the cache, most of its memory, is filled with zeros.
        self._cache = Cache(config, num_pages, model.dtype)
        self._pages = self._cache.memory.reshape(2 * config.num_hidden_layers, num_pages,
                                                 config.num_key_value_heads * PAGE * config.head_dim)
        self._launched = 0
        self._last_kind: Kind | None = None
        self._views = functools.lru_cache(maxsize=256)(self._device_views)
        self._inputs = functools.lru_cache(maxsize=256)(self._device_inputs)

    def prepare(self) -> int:
        """Compile in parallel, and load, the kernels of every step that may come, whatever its requests ask for, so
        that none of them waits for a compiler. Return how many were compiled."""
        needed = dict.fromkeys(one for work in self._works() for one in launches.needed(work))
        compiled = compile_ahead.prepare(needed, progress=self._compiling)
        self._all_prepared = True
        return compiled

    def launch(self, step: Step) -> Handle:
        """Returns before the step has run."""
        is_pure_decode = all(chunk.length == 1 == len(chunk.samples) for chunk in step.chunks)
        shape = self._shape(step, is_pure_decode)
        batch = self._builder.build(step, shape.rows, shape.sequences, shape.decoding)
        layout = batch.layout
        host, tokens, logprob_rows = self._host[self._launched % IN_FLIGHT]
        self._launched += 1
        host[: layout.size] = batch.buffer
        self._memory[: layout.size].copy_to_device(host[: layout.size], stream=self._stream)
        if batch.copies:
            copy_pages(self._pages, cuda.to_device(np.array(batch.copies, np.int32), stream=self._stream), self._stream)

        new_penalized = [sequence for sequence in batch.fresh if sequence.request.params.penalized]
        if new_penalized:
            self._begin_counts(new_penalized)
        for sequence in batch.fresh:
            if sequence.request.biased:
                self._set_biases(sequence)

        banned, banned_after = batch.banned(), batch.banned_after()
        kind = Kind(shape, layout, *(bool((rows >= 0).any()) for rows in (batch.counted, batch.biased,
                                                                          batch.num_logprobs)))
        self._last_kind, graph = kind, self._graphs.get(kind)
        if banned or banned_after or kind.listed and kind.biased:
            self._compile_ahead(kind, len(batch.samples))
            self._run(kind, self._stream, banned, banned_after)
        elif graph is not None:
            self._graphs.move_to_end(kind)
            graph.launch(stream=self._stream)
        else:
            self._compile_ahead(kind, len(batch.samples))
            self._run(kind, self._stream)
            if (is_pure_decode or self._pads) and not self._eager and not launches.imagined():
                self._keep_graph(kind, captured=is_pure_decode or kind in self._graphs)
        self._tokens[: layout.sequences].copy_to_host(tokens[: layout.sequences], stream=self._stream)
        if kind.listed:
            self._logprob_rows[: layout.sequences].copy_to_host(logprob_rows[: layout.sequences], stream=self._stream)
        prompt_logprobs = [(chunk, self._score(first_row, chunk)) for first_row, chunk in batch.scored]
        done = cuda.event()
        done.record(self._stream)
        return Handle(batch.samples, tokens, done, logprob_rows if kind.listed else None, prompt_logprobs)

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

    def last_listed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(logits, tokens, out as of labkit.kernels.logprobs) of the step that was launched last, on the host. Raises
        ValueError if none of its sequences had logprobs."""
        if not self._last_kind or not self._last_kind.listed:
            raise ValueError("no sequence of the last step has logprobs")
        count = self._last_kind.shape.sequences
        logits = self._workspace.rows(self._last_kind.shape).logits
        return tuple(each.copy_to_host() for each in (logits, self._tokens[:count], self._logprob_rows[:count]))

    def planned(self) -> list[launches.Launch]:
        """The launches of a step like the last one, in their order; none of them runs. For the thread that launches
        steps: no kernel can be launched meanwhile."""
        return launches.planned(functools.partial(self._run, self._last_kind, self._stream)) if self._last_kind else []

    def fill_cache(self, values: np.ndarray) -> None:
        """Writes (pages, K, PAGE, D), of the cache's type, to the keys and to the values of each layer."""
        for layer in (*self._cache.keys, *self._cache.values):
            layer.copy_to_device(values)

    def _shape(self, step: Step, is_pure_decode: bool) -> Shape:
        """Return the shape in which a step runs. is_pure_decode: every sequence has one token and samples
        one."""
        if is_pure_decode:
            size = bucket(len(step.chunks), self.max_num_seqs)
            return Shape(size, size, size, 0)
        needed = shape_needed(step)
        return padded(needed, self._rows, self._sequences, self.max_num_seqs) if self._pads else needed

    def _keep_graph(self, kind: Kind, captured: bool) -> None:
        """Capture the step that has just been launched; if not captured, only record that its kind was launched."""
        self._graphs[kind] = graphs.capture(functools.partial(self._run, kind), warm_up=False) if captured else None
        self._graphs.move_to_end(kind)
        if len(self._graphs) > MAX_GRAPHS:
            self._graphs.popitem(last=False)

    def _compile_ahead(self, kind: Kind, samples: int) -> None:
        """Compile in parallel what this step will launch, and what later steps will, as its sequences decode and finish
        one by one. Which kernels these are depends on sizes: one of each power of two is tried, and kernels that it
        misses are compiled when they are launched."""
        if self._all_prepared:
            return
        kinds = [kind]
        if samples:
            kinds += [Kind(Shape(size, size, size, 0), Layout(size, size, kind.layout.max_pages), kind.penalised,
                           kind.biased, kind.listed)
                      for size in buckets(bucket(samples, self.max_num_seqs))]
        kinds_by_size = {(each.shape.rows.bit_length(), each.shape.sequences.bit_length(), each.shape.decoding > 0,
                          each.shape.decoding < each.shape.sequences, each.penalised, each.biased, each.listed): each
                         for each in kinds}
        new = [each for key, each in kinds_by_size.items() if key not in self._prepared]
        if new and not launches.imagined():
            needed = dict.fromkeys(one for each in new
                                   for one in launches.needed(functools.partial(self._run, each, self._stream)))
            compile_ahead.prepare(needed, progress=self._compiling)
            self._prepared |= kinds_by_size.keys()

    def _works(self) -> Iterator[Callable]:
        """Yield the launches of steps of every size, of decoding sequences and of parts of prompts, each with all that
        requests may ask for."""
        shapes = [Shape(size, size, size, 0) for size in buckets(self.max_num_seqs)]
        for rows in sorted({row_bucket(rows, self._rows) for rows in range(1, self._rows + 1)}):
            for longest in {rows, max(1, rows // 4), max(1, rows // 16)}:
                shapes.append(padded(Shape(rows, 1, 0, longest), self._rows, self._sequences, self.max_num_seqs))
        stream = self._stream
        for shape in dict.fromkeys(shapes):
            kind = Kind(shape, Layout(shape.rows, shape.sequences, self._builder.max_pages), True, True, True)
            yield functools.partial(self._run, kind, stream, [(0, (0,))], [(0, 0, 0, 0)])
        numbers = cuda.to_device(np.zeros(self._sequences, np.int32))
        for count in buckets(self._sequences):
            yield functools.partial(self._score_rows, 0, numbers[:count], numbers[:count])
        yield lambda: copy_pages(self._pages, cuda.to_device(np.zeros((1, 2), np.int32)), stream)

    @functools.cached_property
    def _counts(self):
        """(max_num_seqs, V) uint32: the tokens of sequences with penalties."""
        return zeros((self.max_num_seqs, self.vocab_size), np.uint32)

    @functools.cached_property
    def _biases(self):
        """(max_num_seqs, V): of the requests that have some."""
        return zeros((self.max_num_seqs, self.vocab_size), np.float32)

    @functools.cached_property
    def _adjusted_logits(self):
        """(B, V): a copy to adjust where the model's are needed as well."""
        return zeros((self._sequences, self.vocab_size), np.float32)

    def _device_views(self, layout: Layout) -> dict:
        return layout.views(self._memory[: layout.size])

    def _device_inputs(self, shape: Shape, layout: Layout):
        views = self._views(layout)
        return step_of(shape, *(views[name] for name in INPUTS))

    def _forward(self, kind: Kind, stream):
        inputs = self._inputs(kind.shape, kind.layout)
        fill_ids(inputs.ids, self._last, stream=stream)
        return self.model.forward(inputs, self._cache, self._workspace, stream=stream)

    def _adjust_logits(self, logits, kind: Kind, banned, banned_after, stream):
        """Apply biases, penalties and bans to the logits, biases first, as vLLM does. With logprobs, which are the
        model's, the adjusted ones lie in memory of their own."""
        views, adjusted = self._views(kind.layout), logits
        if kind.listed and (kind.penalised or kind.biased or banned or banned_after):
            adjusted = self._adjusted_logits[: kind.layout.sequences]
            if kind.biased or not kind.penalised:  # never in a graph, see launch
                adjusted.copy_to_device(logits, stream=stream)
        if kind.biased:
            add_biases(adjusted, self._biases, views["biased"], stream=stream)
            logits = adjusted
        if kind.penalised:
            penalise(logits, self._counts, views["counted"], views["repetition_penalty"], views["frequency_penalty"],
                     views["presence_penalty"], adjusted, stream=stream)
        # The tokenizer may have ends of text that the model does not have.
        pairs = [(row, token) for row, tokens in banned for token in tokens if 0 <= token < self.vocab_size]
        if pairs:
            ban_tokens(adjusted, cuda.to_device(np.array(pairs, np.int32), stream=stream), stream=stream)
        if banned_after:
            ban_tokens_after(adjusted, cuda.to_device(np.array(banned_after, np.int32), stream=stream), self._last,
                             stream=stream)
        return adjusted

    def _sample(self, logits, kind: Kind, stream) -> None:
        views, tokens = self._views(kind.layout), self._tokens[: kind.layout.sequences]
        parameters = Parameters(*(views[name] for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "steps")))
        sample(logits, parameters, tokens, self._logprobs[: kind.layout.sequences], self._scratch, stream=stream)
        keep_tokens(tokens, views["seats"], self._last, stream=stream)
        if kind.penalised:
            count_tokens(self._counts, views["counted"], tokens, stream=stream)

    def _run(self, kind: Kind, stream, banned=(), banned_after=()) -> None:
        """The launches of a step; a graph holds these, if nothing is banned."""
        logits = self._forward(kind, stream)
        self._sample(self._adjust_logits(logits, kind, banned, banned_after, stream), kind, stream)
        if kind.listed:
            count = kind.layout.sequences
            logprobs.logprobs(logits, self._tokens[:count], self._views(kind.layout)["num_logprobs"],
                              self._logprob_rows[:count], self._logprob_scratch, stream=stream)

    def _score(self, first_row: int, chunk: Chunk) -> np.ndarray:
        """Launches the logprobs of a prompt's tokens, and returns where on the host they will be: a row of
        labkit.kernels.logprobs for each. first_row: the chunk's, in the step that was launched last."""
        stream, prompt, positions = self._stream, chunk.sequence.request.prompt, chunk.scored
        host = cuda.pinned_array((len(positions), logprobs.COLUMNS), np.float32)
        tokens = cuda.to_device(np.array(prompt[positions.start : positions.stop], np.int32), stream=stream)
        num_logprobs = cuda.to_device(np.full(len(positions), chunk.sequence.request.params.prompt_logprobs, np.int32),
                                      stream=stream)
        for begin in range(0, len(positions), self._sequences):
            end = min(begin + self._sequences, len(positions))
            logprob_rows = self._score_rows(first_row + begin, tokens[begin:end], num_logprobs[begin:end])
            logprob_rows.copy_to_host(host[begin:end], stream=stream)
        return host

    def _score_rows(self, first_row: int, tokens, num_logprobs):
        """Launch the logprobs of tokens after the rows from first_row on of the last step, and return them."""
        logits = self.model.logits_of_rows(self._workspace, first_row, first_row + tokens.size, stream=self._stream)
        logprob_rows = self._logprob_rows[: tokens.size]
        logprobs.logprobs(logits, tokens, num_logprobs, logprob_rows, self._logprob_scratch, stream=self._stream)
        return logprob_rows

    def _set_biases(self, sequence: Sequence) -> None:
        """Copy the biases of a sequence that is new in its slot."""
        self._biases[sequence.seat].copy_to_device(sequence.request.bias_row(self.vocab_size), stream=self._stream)

    def _begin_counts(self, new_penalized: list[Sequence]) -> None:
        """Count the tokens so far of sequences that are new in their slots."""
        for sequence in new_penalized:
            row = prompt_row(sequence.request.prompt, self.vocab_size)
            np.add.at(row, sequence.output, 1)
            self._counts[sequence.seat].copy_to_device(row, stream=self._stream)


def longest(model: Llama, max_model_len: int | None) -> int:
    """Return how long a sequence may be, in tokens: a prompt of one and one that follows at least, and no more than the
    model has positions."""
    return model.positions if max_model_len is None else integer("max_model_len", max_model_len, 2, model.positions)


def most_pages(model: Llama) -> int:
    """Return the number of pages up to which kernels can index a layer of the cache."""
    return LARGEST // (model.config.num_key_value_heads * PAGE * model.config.head_dim)


class Handle:
    """A step that was launched. logprob_rows: (B, COLUMNS) of labkit.kernels.logprobs, if there are logprobs;
    prompt_logprobs: the same for each chunk that is scored."""

    def __init__(self, samples, tokens: np.ndarray, done, logprob_rows: np.ndarray | None,
                 prompt_logprobs: list[tuple[Chunk, np.ndarray]]):
        self._samples, self._tokens, self._done, self._logprob_rows = samples, tokens, done, logprob_rows
        self._prompt_logprobs = prompt_logprobs

    def tokens(self) -> list[Sampled]:
        """Raises ValueError where the model's logits are no numbers."""
        self._done.synchronize()
        indices = [index for index, _ in self._samples]
        tokens = self._tokens[indices].tolist()
        for token, (_, sequence) in zip(tokens, self._samples, strict=True):
            if token < 0:
                raise ValueError(f"request {sequence.request.request_id}: the model's logits are NaN, or no token is "
                                 f"allowed")
        if self._logprob_rows is None:
            return list(map(Sampled, tokens))
        return with_logprobs(tokens, self._logprob_rows[indices])  # a copy: a later step writes there

    def prompt_tokens(self) -> list[tuple[Chunk, list[Sampled]]]:
        self._done.synchronize()
        result = []
        for chunk, rows in self._prompt_logprobs:
            tokens = chunk.sequence.request.prompt[chunk.scored.start : chunk.scored.stop]
            result.append((chunk, with_logprobs(tokens, rows.copy())))  # pinned memory is not kept
        return result
