"""GPT-2, whole: token ids in, logits out. Read it from top to bottom.

    model = GPT2(Config.read("gpt2/config.json"), read("gpt2/model.safetensors"))
    workspace = Workspace(model.config)
    logits = model.prefill([464, 3280, 318], workspace)     # all tokens of a prompt at once
    logits = model.decode(7544, workspace)                  # one more token, which reads the others from the cache

Shapes at the ends of lines: T tokens in this call, N the capacity of the cache, C the width of the model, V the
size of its vocabulary. Numbers are float32; parameters and cache may be float16. Every multiplication is done by a
kernel of labkit.kernels.

A single token, a decoder's step, has launches of its own where there are kernels for its shape: gpt2_step.py. In
float16, from compute capability 9.0 on, it is one launch: gpt2_one_kernel.py. With `Kernels` of one's own each launch
is one of those.

Source  A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); parameters are named and laid
        out as in the files of transformers' GPT2LMHeadModel
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from numba import int32

from labkit import cuda
from labkit.device import gpus, graphs, launches
from labkit.device.memory import zeros
from labkit.kernels.argmax import argmax
from labkit.kernels.embedding import embedding_vectorized
from labkit.kernels.linear.projection import logits as project_on_vocabulary
from labkit.models import gpt2_block as block
from labkit.models import gpt2_one_kernel, gpt2_step
from labkit.models.blob import Blob
from labkit.models.configs import HEAD, names_in
from labkit.models.configs import GPT2Config as Config
from labkit.models.dtypes import chosen
from labkit.models.watch import reporter

# --- The model -------------------------------------------------------------------------------------------------------


class GPT2:
    """The weights of a GPT-2 on the device, and the launches that use them.

    tensors: name -> NumPy array, as labkit.models.safetensors.read gives them; any floating-point type. kernels: these
    are launched for every token. dtype: what parameters and cache become, "float32", which "auto" is, or "float16".
    one_row: whether a single token takes the launches of gpt2_step.py. None: with float16; and with float32 on a GPU,
    if there are kernels for the model's shape and none are given. On the CPU device, which has no launches to save,
    they are slower. one_kernel: whether a single token is one launch. None: with float16, on a GPU that can run it; in
    float32 the launches are faster. Such launches must not overlap: use one stream at a time.
    """

    def __init__(self, config: Config, tensors: Mapping[str, np.ndarray], kernels: Kernels | None = None, *,
                 dtype="auto", one_row: bool | None = None, one_kernel: bool | None = None):
        self.config, self.kernels = config, kernels or Kernels()
        self.dtype = np.dtype(chosen(dtype, config.kind))
        half, problem = self.dtype == np.float16, gpt2_step.problem(config, self.dtype)
        if half and (kernels is not None or one_row is False):
            raise ValueError("a token of a model in float16 takes no other kernels: leave kernels and one_row out")
        if one_row is None:
            one_row = kernels is None and not problem and gpus.chosen_on_gpu()
        self.one_row = half or one_row
        if self.one_row and (problem or kernels is not None):
            raise ValueError(f"one_row needs kernels that this model does not have: {problem or 'kernels are given'}")
        self.weights = Blob(tensors, dtype=self.dtype, names=names_in(tensors, config), finite=True)
        self.head = self.weights[HEAD if HEAD in self.weights else "wte.weight"]  # (V, C)
        self.layers = [self.weights.under(f"h.{layer}.") for layer in range(config.n_layer)]
        if one_kernel and kernels is not None:
            raise ValueError("one_kernel: the model has kernels of its own, and they would not be used")
        if one_kernel is None:
            one_kernel = half and gpus.chosen_on_gpu() and not gpt2_one_kernel.problem(self)
        self.one_kernel = gpt2_one_kernel.OneKernel(self) if one_kernel else None

    def with_kernels(self, kernels: Kernels) -> GPT2:
        """The same model, on the same weights, with other kernels, which are launched for every token."""
        if self.dtype != np.float32:
            raise ValueError(f"kernels are for float32; this model is in {self.dtype}")
        other = copy.copy(self)
        other.kernels, other.one_row, other.one_kernel = kernels, False, None
        return other

    def block(self, layer: int, ws: Workspace, count: int, stream=0, watch=None) -> None:
        """One layer (block.py), on the first `count` rows of ws.x, in place."""
        rows = ws.rows(count)
        block.forward(rows.x, rows.x, self.layers[layer], self.config.n_head, rows.block, causal=True,
                      cache=ws.caches[layer], start=ws.start, kernels=self.kernels, stream=stream,
                      watch=reporter(watch, f"h.{layer}."))

    def forward(self, ws: Workspace, count: int, stream=0, watch=None) -> None:
        """Process the tokens ws.ids[:count], which follow those in the cache; ws.logits gets the logits after the last.

        All that changes from call to call lies in device memory, so that a graph of these launches can be used again.
        watch(name, array): called after each launch, to inspect its output; the launches are those of self.kernels.
        """
        if count == 1 and self.one_kernel and watch is None:
            self.one_kernel.forward(ws, stream=stream)
            return
        if count == 1 and self.one_row and watch is None:
            gpt2_step.forward(self, ws, stream)
            return
        run, report, rows, w = self.kernels, reporter(watch), ws.rows(count), self.weights
        run.embedding(rows.ids, w["wte.weight"], w["wpe.weight"], ws.start, rows.x, stream=stream)  # (T, C)
        report("embedding", rows.x)
        for layer in range(self.config.n_layer):
            self.block(layer, ws, count, stream, watch)
        run.layernorm(rows.last, w["ln_f.weight"], w["ln_f.bias"], rows.last_normed, stream=stream)  # (1, C)
        report("ln_f", rows.last_normed)
        run.logits(rows.last_normed, self.head, ws.logits, stream=stream)  # (1, V)
        report("logits", ws.logits)

    def prefill(self, ids: Sequence[int], ws: Workspace, watch=None):
        """Process a prompt, after the tokens already in the cache. Return the logits after its last token, (1, V)."""
        ids = self._checked(ids, ws)
        if watch is not None and self.dtype != np.float32:
            raise ValueError(f"watch sees the launches of a model in float32; this one is in {self.dtype}")
        for begin in range(0, len(ids), ws.tokens):
            chunk = ids[begin : begin + ws.tokens]
            ws.rows(len(chunk)).ids.copy_to_device(chunk)
            self.forward(ws, len(chunk), watch=watch)
            ws.length += len(chunk)
            ws.start.copy_to_device(np.array([ws.length], np.int32))
        return ws.logits

    def decode(self, token: int, ws: Workspace, watch=None):
        """Process one more token. The work is that of one token and one pass over the cache."""
        return self.prefill([token], ws, watch)

    def step(self, ws: Workspace, stream=0) -> None:
        """Replace the token in ws.ids[0] by the most likely next one: a greedy step without the host.

        The caller updates ws.length.
        """
        if self.one_kernel:
            self.one_kernel.forward(ws, 1, stream)
            return
        self.forward(ws, 1, stream)
        if self.one_row:
            gpt2_step.pick(ws, stream=stream)
            return
        self.kernels.argmax(ws.logits, ws.rows(1).ids, stream=stream)
        advance_kernel[1, 1, stream](ws.start, np.int32(1))

    def needed(self, ws: Workspace, prompt: int) -> list[tuple]:
        """List the kernels that a prompt of this length and the steps after it launch, for labkit.device.compile_ahead.
        Nothing runs."""
        counts = {min(prompt, ws.tokens), prompt % ws.tokens or ws.tokens}

        def run_all():
            for count in counts:
                self.forward(ws, count)
            self.step(ws)

        return launches.needed(run_all)

    def _checked(self, ids: Sequence[int], ws: Workspace) -> np.ndarray:
        ids = self.config.checked_ids(ids)
        if ws.dtype != self.dtype:
            raise ValueError(f"the workspace is for {ws.dtype}; this model is in {self.dtype}")
        if ws.length + ids.size > ws.context:
            raise ValueError(f"{ids.size} tokens do not fit: {ws.length} of {ws.context} places are taken")
        return ids


class Decoder:
    """Decode token by token with a graph: the launches of one token are captured once and replayed for each.

    On a GPU a launch from Python costs ten microseconds, more than most kernels of a small model take.
    Creating a Decoder overwrites ws.logits.
    """

    def __init__(self, model: GPT2, ws: Workspace):
        self._ws, self._token = ws, ws.rows(1).ids
        self._token.copy_to_device(np.zeros(1, np.int32))
        # The warm-up processes a token, too. The first real token overwrites its row of the cache.
        self.graph = graphs.capture(lambda stream: model.step(ws, stream))
        ws.start.copy_to_device(np.array([ws.length], np.int32))

    def __call__(self, token: int | None = None):
        """Return the logits after one more token, (1, V). None: the most likely next token, already on the device."""
        if self._ws.length == self._ws.context:
            raise ValueError(f"1 token does not fit: {self._ws.context} of {self._ws.context} places are taken")
        if token is not None:
            self._token.copy_to_device(np.array([token], np.int32))
        self.graph.launch()
        self._ws.length += 1
        return self._ws.logits

    def likeliest(self) -> int:
        """The most likely token by the last logits."""
        return int(self._token.copy_to_host()[0])


# --- The kernels that it is made of ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernels(block.Kernels):
    """The launchers of a model: those of a block, and these, each called as launch(*inputs, out, stream=stream). To try
    one of your own:

    GPT2(config, tensors, Kernels(layernorm=mine))
    GPT2(config, tensors, Kernels(linear=block.separately(gelu=mine)))
    """

    embedding: Callable = embedding_vectorized
    logits: Callable = project_on_vocabulary
    argmax: Callable = argmax


@cuda.jit
def advance_kernel(start, count):
    start[0] += int32(count)


# --- Its memory ------------------------------------------------------------------------------------------------------


class Workspace:
    """All the memory that a sequence needs besides the weights, allocated once: nothing is allocated for a token.

    context: the capacity of the cache in tokens, at most n_positions. tokens: how many a single pass takes; a longer
    prompt goes in several. dtype: the model's; with float16 a pass takes one token.
    """

    def __init__(self, config: Config, context: int | None = None, tokens: int | None = None, dtype=np.float32):
        self.context = config.n_positions if context is None else context
        self.dtype = np.dtype(dtype)
        if tokens is None:
            tokens = 1 if self.dtype == np.float16 else min(self.context, 512)
        self.tokens = tokens
        if not 1 <= self.context <= config.n_positions:
            raise ValueError(f"context is {self.context}; the model has {config.n_positions} positions")
        if not 1 <= self.tokens <= self.context:
            raise ValueError(f"tokens is {self.tokens}; at least 1 and at most the context, {self.context}, can be "
                             f"taken at once")
        if self.tokens > 1 and self.dtype == np.float16:
            raise ValueError(f"tokens is {self.tokens}; with float16 a pass takes 1 token")
        T, C = self.tokens, config.n_embd
        self.ids = cuda.device_array(T, np.int32)
        self.start = cuda.to_device(np.zeros(1, np.int32))  # how many tokens are in the cache, for the kernels
        self.length = 0  # the same for the host
        self.x = cuda.device_array((T, C), np.float32)  # the residual stream
        self.block = block.Workspace(config.block, T)  # the intermediates of a layer
        self.logits = cuda.device_array((1, config.vocab_size), np.float32)
        # No row of the cache is read before it is written; zeros only make it easier to inspect.
        self.cache = zeros((config.n_layer, self.context, 2 * C), self.dtype)
        self.caches = tuple(self.cache[layer] for layer in range(config.n_layer))
        self.one_row = gpt2_step.Memory(C, config.n_head, self.dtype)
        self.rows = functools.cache(self._rows)

    def _rows(self, count: int) -> SimpleNamespace:
        """Views of the first `count` rows."""
        block_rows = self.block.rows(count)
        return SimpleNamespace(ids=self.ids[:count], x=self.x[:count], block=block_rows,
                               last=self.x[count - 1 : count], last_normed=block_rows.normed[count - 1 : count])

    @property
    def nbytes(self) -> int:
        arrays = (self.ids, self.start, self.x, self.block, self.logits, self.one_row)
        return sum(array.nbytes for array in (*arrays, self.cache))

    def reset(self, length: int = 0) -> None:
        """Forget all tokens but the first `length`."""
        if not 0 <= length <= max(self.length, 0):
            raise ValueError(f"length is {length}; the cache holds {self.length} tokens")
        self.length = length
        self.start.copy_to_device(np.array([length], np.int32))
