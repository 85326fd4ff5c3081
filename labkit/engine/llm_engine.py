"""Requests in, tokens and text out, step by step; vLLM's names.

    engine = LLMEngine(runner, tokenizer)
    engine.add_request("0", "A hacker is", SamplingParams(max_tokens=32))
    while engine.has_unfinished_requests():
        for output in engine.step(): ...

Each step launches the next one before it waits for the one that runs, so the device never waits for the host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import partial

from labkit._common.errors import short
from labkit.engine.block_manager import BlockManager
from labkit.engine.checks import parts_of_prompt, token_ids
from labkit.engine.detokenizer import Detokenizer
from labkit.engine.options import checked
from labkit.engine.outputs import CompletionOutput, Logprobs, RequestOutput, Sampled
from labkit.engine.runner import Handle, Runner
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler, Step
from labkit.engine.sequence import FinishReason, Request, Sequence


@dataclass
class Stats:
    """Of the engine since it began, or of its memory at this moment. Pages that are cached and held by no sequence
    are free."""

    steps: int = 0
    tokens: int = 0  # rows of the model: prompts and what was generated, once for each time that it was computed
    generated: int = 0  # tokens that were sampled for a sequence that had not ended
    discarded: int = 0  # tokens that were sampled one step too far
    preemptions: int = 0
    prompt_tokens: int = 0  # of the requests that have ended
    cached_tokens: int = 0  # of these, found in the prefix cache when the request began
    pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    most_pages: int = 0  # held at a time

    @property
    def page_use(self) -> float:
        """The part of the pages that sequences hold."""
        return (self.pages - self.free_pages) / self.pages


class _Texts(dict):
    """token -> its text: each is decoded once, since the most likely tokens come again and again."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str | None:
        text = self[token] = self._tokenizer and self._tokenizer.decode([token], marks=True)
        return text


_NO_TEXTS = _Texts(None)


class _Output:
    """State of one sequence's output other than its tokens."""

    def __init__(self, tokenizer, sequence: Sequence, texts: _Texts):
        """texts: of the tokens in logprobs."""
        params = sequence.request.params
        tokenizer = tokenizer if params.detokenize else None
        self.detokenizer = tokenizer and Detokenizer(
            partial(tokenizer.decode, marks=not params.skip_special_tokens), sequence.request.prompt,
            stop=params.stop, min_tokens=params.min_tokens, include_stop=params.include_stop_str_in_output)
        self._unread: list[int] = []  # tokens that are not in the detokenizer yet
        self._texts = texts
        self._logprobs: list[Sampled] | None = None if params.logprobs is None else []
        self.cumulative: float | None = None if params.logprobs is None else 0.0
        self.prompt_token_ids, self._prompt_logprobs = [], None
        if not sequence.index:
            self.prompt_token_ids = list(sequence.request.prompt)  # one list for all of the request's outputs
            if params.prompt_logprobs is not None:
                self._prompt_logprobs: list[Sampled | None] = [None] * len(sequence.request.prompt)
        self._num_missing = len(sequence.request.prompt) - 1  # tokens of the prompt without logprobs

    def add(self, sampled: Sampled, shown: bool) -> None:
        """shown: its text is part of the output's."""
        if shown:
            self._unread.append(sampled.token)
        if self._logprobs is None or sampled.logprob is None:
            return
        self.cumulative += sampled.logprob
        self._logprobs.append(sampled)

    def add_prompt(self, begin: int, tokens: list[Sampled]) -> None:
        """The prompt's tokens from position `begin` on. After a preemption they come again: the first ones stay, since
        they may have been returned already."""
        for position, sampled in enumerate(tokens, begin):
            if self._prompt_logprobs[position] is None:
                self._prompt_logprobs[position] = sampled
                self._num_missing -= 1

    @property
    def logprobs(self) -> Logprobs | None:
        """Those so far."""
        return None if self._logprobs is None else Logprobs(self._logprobs, self._texts)

    @property
    def prompt_logprobs(self) -> Logprobs | None:
        """Once all of the prompt is computed."""
        known = self._prompt_logprobs is not None and not self._num_missing
        return Logprobs(self._prompt_logprobs, self._texts) if known else None

    def text(self, finished: bool) -> str:
        """As far as no stop string may begin in it; all of it at the end."""
        self.read(finished)
        return self.detokenizer.text if finished else self.detokenizer.safe

    def read(self, finished: bool) -> str | None:
        """Decode the tokens received since the last call: one token if there are stop strings, else any number, up to
        the whole output at once. Return the stop string that the text completed."""
        if self._unread:
            self.detokenizer.push(*self._unread)
            self._unread.clear()
        return self.detokenizer.flush() if finished else self.detokenizer.stopped


class LLMEngine:
    """tokenizer: encode(text), decode(ids, marks) and stop, the ids that end a text, as Tokenizer in
    labkit.models.tokenizer has them; None: prompts are token ids, and there is no text. seed: for requests without a
    seed of their own.

    overlap: False waits for each step before the next one is scheduled; the outputs are the same.
    scheduler, blocks: called for a new one; lessons compare others.
    """

    def __init__(self, runner: Runner, tokenizer=None, *, max_num_seqs: int = 256, max_num_batched_tokens: int = 2048,
                 enable_prefix_caching: bool | None = True, seed: int | None = 0, overlap: bool = True,
                 scheduler: type[Scheduler] = Scheduler, blocks: Callable[..., BlockManager] = BlockManager):
        sizes = checked(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
        options = checked(tokenizer=tokenizer, enable_prefix_caching=enable_prefix_caching, seed=seed, overlap=overlap,
                          scheduler=scheduler, blocks=blocks)
        self.runner, self.tokenizer, self.seed, self.overlap = runner, tokenizer, options["seed"], options["overlap"]
        self.vocab_size = getattr(runner, "vocab_size", 2**31)  # without one: what an int32 holds
        self._new_blocks = partial(blocks, runner.num_pages, runner.page_size, options["enable_prefix_caching"])
        self._new_scheduler = partial(scheduler, **sizes)
        self._texts = _Texts(tokenizer)
        self._added = 0
        self.watch: Callable[[Step], None] | None = None  # is called with each step as it is launched
        self._stats = Stats(pages=runner.num_pages)
        self._reset()

    def _reset(self) -> None:
        """Reset everything but the statistics: no request, and nothing in the prefix cache."""
        self.blocks = self._new_blocks()
        self.scheduler = self._new_scheduler(self.blocks)
        self._requests: dict[str, Request] = {}
        self._outputs: dict[Sequence, _Output] = {}
        self._aborted: list[RequestOutput] = []
        self._in_flight: tuple[Step, Handle] | None = None

    # --- Requests ----------------------------------------------------------------------------------------------------

    def add_request(self, request_id: str, prompt: str | Items[int] | dict, params: SamplingParams) -> Request:
        """prompt: a text, token ids, or {"prompt": text} or {"prompt_token_ids": ids}; with both, the ids of that text.
        Token ids may be a NumPy array. Raises TypeError and ValueError for what could not run."""
        request = self.request_of(request_id, prompt, params)
        self.add(request)
        return request

    def request_of(self, request_id: str, prompt: str | Items[int] | dict, params: SamplingParams) -> Request:
        """Check a request and return it without adding it. Any thread may call this: nothing of the engine changes.

        All checks of requests are made here, so what `add` takes can run: a step that fails ends every request of its
        batch. Raises TypeError and ValueError.
        """
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params is {short(params)}; it must be a SamplingParams")
        text, ids = parts_of_prompt(prompt, None if self.tokenizer is None else self.tokenizer.encode)
        ids = token_ids("prompt", ids, self.vocab_size)
        token_ids("stop_token_ids", params.stop_token_ids, self.vocab_size)
        token_ids("logit_bias", tuple(params.logit_bias or ()), self.vocab_size)
        token_ids("allowed_token_ids", params.allowed_token_ids or (), self.vocab_size)
        for name in ("stop", "bad_words"):
            if self.tokenizer is None and getattr(params, name):
                raise ValueError(f"{name} is {getattr(params, name)}; without a tokenizer there is no text to find it "
                                 f"in")
        bad_words = self._bad_words(params)
        request = Request(request_id, ids, params, seed=params.seed or 0, stop_ids=getattr(self.tokenizer, "stop", ()),
                          max_length=self.runner.max_model_len, text=text, bad_words=bad_words)
        banned = set(request.ending) if params.min_tokens else set()
        if self._bans_all(params, banned):
            which = "that are allowed" if params.allowed_token_ids else "of the model"
            raise ValueError(f"min_tokens is {params.min_tokens}, and all tokens {which} end the output: none may come "
                             f"first")
        if self._bans_all(params, banned | {word[-1] for word in bad_words}):
            raise ValueError("bad_words has words that end with every token that is allowed; some token must be left")
        self.scheduler.check(request)
        return request

    def _bans_all(self, params: SamplingParams, banned: set[int]) -> bool:
        """Whether banning these leaves no token to draw."""
        if params.allowed_token_ids:
            return banned.issuperset(params.allowed_token_ids)
        return sum(token < self.vocab_size for token in banned) == self.vocab_size

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        """The token ids of bad words, as vLLM makes them: of each, and of each after a space where that is as many
        tokens and begins with another one. Without those that have a token which is the tokenizer's alone: the model
        never writes them."""
        token_lists = []
        for word in params.bad_words or ():
            plain, spaced = (self.tokenizer.encode(prefix + word.lstrip(), False) for prefix in ("", " "))
            if not plain:
                raise ValueError(f"bad_words has {short(word)}, which has no token")
            token_lists.append(plain)
            if spaced and spaced[0] != plain[0] and len(spaced) == len(plain):
                token_lists.append(spaced)
        return [word for word in token_lists if max(word) < self.vocab_size]

    def add(self, request: Request) -> None:
        """A request of request_of, that has not run."""
        if request.request_id in self._requests:
            raise ValueError(f"request_id is {request.request_id!r}, and the request of this name has not ended yet")
        texts = self.texts_of(request.params)
        outputs = {sequence: _Output(self.tokenizer, sequence, texts) for sequence in request.sequences}
        if request.params.seed is None:
            request.seed = self._seed()
        self.scheduler.add(request)  # what may raise comes before this
        self._added += 1
        self._requests[request.request_id] = request
        self._outputs |= outputs

    def texts_of(self, params: SamplingParams) -> _Texts:
        """token -> its text, in a request's logprobs."""
        return self._texts if params.detokenize else _NO_TEXTS

    def _seed(self) -> int:
        """Of a request without one: another for each, the same ones in each run."""
        return int.from_bytes(hashlib.blake2b(f"{self.seed} {self._added}".encode(), digest_size=8).digest(), "little")

    def abort_request(self, request_ids: str | Items[str]) -> None:
        """At any moment; those that have ended, or never were, are passed over. The next step returns what there is of
        the outputs."""
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            request = self._requests.get(request_id)
            if request:
                self.scheduler.abort(request)
                self._aborted.append(self._output(request))
                self._forget(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests or self._aborted)

    def _forget(self, request: Request) -> None:
        if request.num_cached_tokens is not None:
            self._stats.prompt_tokens += len(request.prompt)
            self._stats.cached_tokens += request.num_cached_tokens
        del self._requests[request.request_id]
        for sequence in request.sequences:
            del self._outputs[sequence]

    # --- Steps -------------------------------------------------------------------------------------------------------

    def step(self, final_only: bool = False, due: Callable[[Request], bool] | None = None) -> list[RequestOutput]:
        """Launches the next step, waits for the one before it, and returns the requests that it brought on, each with
        all of its output so far; with final_only those that have ended.

        due: of the requests that go on, which are returned; None: all. The text of the others is not decoded yet.
        """
        try:
            received = self._advance()
        except BaseException:
            self._reset()  # Ctrl-C, too: it may have come in the middle of anything
            raise
        touched = dict.fromkeys(sequence.request for sequence in received)
        outputs, self._aborted = self._aborted, []
        outputs += [self._output(request) for request in touched
                    if request.finished or not (final_only or due and not due(request))]
        for request in touched:
            if request.finished:
                self._forget(request)
        return outputs

    def _advance(self) -> list[Sequence]:
        """Launch a step, receive the one before; return the sequences that have a new token."""
        step = self.scheduler.schedule()
        launched = (step, self.runner.launch(step)) if step.chunks else None
        if launched:
            self._count(step)
            if self.watch:
                self.watch(step)
        elif self._in_flight is None and self._requests:
            raise RuntimeError(f"nothing can run, with {self.blocks.num_free} of {self.blocks.num_pages} pages free")
        previous, self._in_flight = self._in_flight, launched
        received = self._receive(*previous) if previous else []
        if not self.overlap and launched:
            self._in_flight = None
            received += self._receive(*launched)
        return received

    def _receive(self, step: Step, handle: Handle) -> list[Sequence]:
        tokens = handle.tokens()
        if any(chunk.scored for chunk in step.chunks):
            for chunk, prompt_tokens in handle.prompt_tokens():
                if chunk.sequence in self._outputs:  # else it was aborted
                    self._outputs[chunk.sequence].add_prompt(chunk.scored.start, prompt_tokens)
        alive = self.scheduler.receive(step, tokens)
        self._stats.generated += len(alive)
        self._stats.discarded += len(tokens) - len(alive)
        for sequence, sampled in alive:
            reason = self._append(sequence, sampled)
            if reason:
                self.scheduler.finish(sequence, reason)
        return [sequence for sequence, _ in alive]

    def _append(self, sequence: Sequence, sampled: Sampled) -> FinishReason | None:
        """Why the output ends with this token, if it does."""
        output, params, reason = self._outputs[sequence], sequence.request.params, sequence.ended_by_last()
        stop_token = reason is FinishReason.STOP
        output.add(sampled, shown=not stop_token or params.include_stop_str_in_output)
        stopped = output.read(finished=reason is not None) if params.stop else None
        if stopped is not None and not stop_token:
            sequence.stop_reason, reason = stopped, FinishReason.STOP
        return reason

    # --- Outputs -----------------------------------------------------------------------------------------------------

    def _output(self, request: Request) -> RequestOutput:
        outputs = [self._completion(sequence) for sequence in request.sequences]
        first = self._outputs[request.sequences[0]]
        return RequestOutput(request.request_id, request.text, first.prompt_token_ids, outputs, request.finished,
                             request.num_cached_tokens, first.prompt_logprobs)

    def _completion(self, sequence: Sequence) -> CompletionOutput:
        output = self._outputs[sequence]
        reason = sequence.finish_reason and sequence.finish_reason.value
        text = output.text(reason is not None) if output.detokenizer else ""
        return CompletionOutput(sequence.index, text, sequence.output, output.cumulative, output.logprobs, reason,
                                sequence.stop_reason)

    def _count(self, step: Step) -> None:
        stats = self._stats
        stats.steps += 1
        stats.tokens += step.tokens
        stats.preemptions += step.preempted
        stats.most_pages = max(stats.most_pages, self.blocks.num_pages - self.blocks.num_free)

    def stats(self) -> Stats:
        return replace(self._stats, free_pages=self.blocks.num_free, cached_pages=self.blocks.num_cached)
