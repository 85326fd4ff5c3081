"""Text from a model, for many prompts at a time. With vLLM's names; data/vllm.md lists which of them do the same here.

    from labkit.engine import LLM, SamplingParams

    llm = LLM("path/to/folder")
    for output in llm.generate(["A hacker is", "A kernel is"], SamplingParams(temperature=0.8, max_tokens=64)):
        print(output.prompt, output.outputs[0].text)
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from numbers import Integral

import numpy as np

from labkit import device
from labkit._common.errors import short
from labkit.engine import vllm
from labkit.engine.block_manager import BlockManager
from labkit.engine.checks import boolean, is_list, number
from labkit.engine.llm_engine import LLMEngine, Stats
from labkit.engine.options import checked
from labkit.engine.outputs import RequestOutput
from labkit.engine.runner import Runner
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler

Prompt = str | Items[int] | dict
Message = dict[str, str]  # {"role": ..., "content": ...}


@vllm.takes_names_of("LLM")
class LLM:
    """model: its name as labkit.models.load takes it, or a runner that has one, with its tokenizer.

    dtype, max_model_len, gpu_memory_utilization, num_pages, enforce_eager, compiling, one_kernel: of a model that is
    loaded by its name; see labkit.engine.load_runner and ModelRunner. The others: of LLMEngine. What else vLLM's LLM
    takes is named in labkit.engine.vllm: it has no effect here, or is refused. Options are checked before anything is
    loaded: see labkit.engine.options.
    """

    def __init__(self, model: str | os.PathLike | Runner, tokenizer=None, *, max_num_seqs: int = 256,
                 max_num_batched_tokens: int = 2048, dtype: str = "auto", max_model_len: int | None = None,
                 gpu_memory_utilization: float = 0.9, num_pages: int | None = None, enforce_eager: bool = False,
                 compiling: Callable[[int, int], None] | None = None, one_kernel: bool = False,
                 enable_prefix_caching: bool | None = True, seed: int | None = 0, overlap: bool = True,
                 scheduler: type[Scheduler] = Scheduler, blocks: Callable[..., BlockManager] = BlockManager):
        checked(model=model, tokenizer=tokenizer)
        sizes = checked(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
        of_engine = checked(enable_prefix_caching=enable_prefix_caching, seed=seed, overlap=overlap,
                            scheduler=scheduler, blocks=blocks)
        of_runner = checked(dtype=dtype, max_model_len=max_model_len, gpu_memory_utilization=gpu_memory_utilization,
                            num_pages=num_pages, enforce_eager=enforce_eager, compiling=compiling,
                            one_kernel=one_kernel)
        runner = model
        if isinstance(model, str | os.PathLike):
            device.begin_context()
            from labkit.engine.load_runner import load_runner

            runner, own = load_runner(os.fspath(model), **sizes, **of_runner)
            tokenizer = tokenizer or own
        self.engine = LLMEngine(runner, tokenizer, **sizes, **of_engine)
        self._next_id = 0
        # Of the requests that a generate or a stream waits for: what a step brought that another one took.
        self._new_outputs: dict[str, RequestOutput | None] = {}

    def get_tokenizer(self):
        return self.engine.tokenizer

    @vllm.takes_names_of("LLM.generate")
    def generate(self, prompts: Prompt | Items[Prompt], sampling_params: SamplingParams | Items[SamplingParams] = None,
                 use_tqdm: bool = False) -> list[RequestOutput]:
        """Return the outputs of each prompt, in the order of the prompts. sampling_params: for all, or one per prompt.

        After Ctrl-C, or an error in one of the prompts, none of them is left in the engine.
        use_tqdm: show a progress bar of finished prompts.
        """
        use_tqdm = boolean("use_tqdm", use_tqdm)
        done: dict[str, RequestOutput] = {}
        ids = self._add(prompts, sampling_params)
        with self._aborting(ids), _bar(len(ids), use_tqdm) as advance:
            for output in self._steps(ids, every=math.inf):
                done[output.request_id] = output
                advance()
        return [done[request_id] for request_id in ids]

    @vllm.takes_names_of("LLM.chat")
    def chat(self, messages: Items[Message] | Items[Items[Message]],
             sampling_params: SamplingParams | Items[SamplingParams] = None,
             use_tqdm: bool = False) -> list[RequestOutput]:
        """Return the model's answers to a conversation, or to each of a list of them, as `generate` does.
        A conversation: {"role": "user", "content": "What is a hacker?"} and so on; the chat template makes it a prompt.
        Raise UserError if it is not a conversation, or if the model has no template."""
        several = isinstance(messages, list | tuple) and all(isinstance(each, list | tuple) for each in messages)
        return self.generate([self.prompt_of(each) for each in (messages if several else [messages])], sampling_params,
                             use_tqdm)

    def prompt_of(self, messages: Items[Message]) -> Prompt:
        """What `generate` and `stream` take for a conversation."""
        tokenizer = self.get_tokenizer()
        if tokenizer is None:
            raise ValueError("without a tokenizer there is no chat template; prompts must be token ids")
        ids = tokenizer.chat(messages)
        return {"prompt": tokenizer.decode(ids, marks=True), "prompt_token_ids": ids}

    def stream(self, prompts: Prompt | Items[Prompt],
               sampling_params: SamplingParams | Items[SamplingParams] = None, *,
               every: float = 0.0) -> Iterator[RequestOutput]:
        """Every request that a step brings on, with all of its output so far, from the first token to the last; the
        text up to where a stop string may begin. Requests are aborted when the iterator is closed.

        every: only one step in so many seconds is looked at for requests that go on, since the text of hundreds takes
        the host longer than a step takes the device; those that end are always returned.
        """
        number("every", every, lambda value: value >= 0, "0 or more")
        ids = self._add(prompts, sampling_params)
        with self._aborting(ids):
            yield from self._steps(ids, every)

    def abort(self, request_id: str) -> None:
        """Ends a request of a stream; its last output has the finish_reason "abort"."""
        self.engine.abort_request(request_id)

    def stats(self) -> Stats:
        return self.engine.stats()

    def _add(self, prompts, sampling_params) -> list[str]:
        """Add a request for each prompt and return their names. All are checked before the first is added."""
        prompts = _listed(prompts)
        one = sampling_params is None or isinstance(sampling_params, SamplingParams)
        if not one and not is_list(sampling_params):
            raise TypeError(f"sampling_params is {short(sampling_params)}; it must be a SamplingParams, or a list of "
                            f"them, one for each prompt")
        params = [sampling_params or SamplingParams()] * len(prompts) if one else sampling_params
        if len(params) != len(prompts):
            raise ValueError(f"sampling_params has {len(params)} entries for {len(prompts)} prompts; it must be one "
                             f"for all, or one for each")
        requests = [self.engine.request_of(str(number), prompt, each)
                    for number, (prompt, each) in enumerate(zip(prompts, params, strict=True), self._next_id)]
        self._next_id += len(requests)
        ids: list[str] = []
        try:
            for request in requests:
                self.engine.add(request)
                ids.append(request.request_id)
        except BaseException:
            self.engine.abort_request(ids)
            raise
        self._new_outputs |= dict.fromkeys(ids)
        return ids

    def _steps(self, ids: list[str], every: float) -> Iterator[RequestOutput]:
        missing, due = dict.fromkeys(ids), time.monotonic() + every
        while missing:
            if not any(self._new_outputs[request_id] for request_id in missing):
                if not self.engine.has_unfinished_requests():
                    raise RuntimeError(f"the engine was stopped before requests {', '.join(missing)} had ended")
                final_only = time.monotonic() < due
                if not final_only:
                    due = time.monotonic() + every
                self._new_outputs |= {output.request_id: output for output in self.engine.step(final_only)
                                      if output.request_id in self._new_outputs}
            for request_id in [each for each in missing if self._new_outputs[each]]:
                output, self._new_outputs[request_id] = self._new_outputs[request_id], None
                if output.finished:
                    del missing[request_id]
                if output.finished or every < math.inf:
                    yield output

    @contextlib.contextmanager
    def _aborting(self, ids: list[str]) -> Iterator[None]:
        try:
            yield
        finally:
            self.engine.abort_request(ids)  # those that have ended are passed over
            for request_id in ids:
                del self._new_outputs[request_id]


def _listed(prompts) -> Items[Prompt]:
    """Return what `generate` was given as a list of prompts: a text, a dictionary or a list of numbers is one alone."""
    if isinstance(prompts, np.ndarray):
        prompts = prompts.tolist()
    if isinstance(prompts, str | dict):
        return [prompts]
    if not is_list(prompts):
        raise TypeError(f"prompts is {short(prompts)}; it must be a prompt or a list of prompts: texts, lists of token "
                        f"ids, or dictionaries")
    return [prompts] if len(prompts) and isinstance(prompts[0], Integral) else prompts


@contextlib.contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[], None]]:
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("prompts", total=total)
        yield lambda: progress.advance(task)
