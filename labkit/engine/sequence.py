"""A request and its sequences: the state that the scheduler, the block manager and the engine share.

    request = Request("7", prompt_ids, SamplingParams(n=2, temperature=1.0), seed=3, stop_ids=(2,), max_length=128)
    request.sequences[0].tokens         # the prompt; sampled tokens are appended
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from collections.abc import Sequence as Items

import numpy as np

from labkit._common.errors import short
from labkit.engine.sampling_params import SamplingParams


class State(enum.Enum):
    HELD = "held"  # an output that waits until its prompt is computed for the first output
    WAITING = "waiting"
    RUNNING = "running"  # it has a seat and pages
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Sequence:
    """The prompt and what follows it: one of a request's n outputs.

    The host may be a step or more behind the device. `tokens` are those that it knows, `pending` counts those that
    were sampled in steps whose results have not been read yet; the last one of these lies on the device, at the
    sequence's seat. `length` counts both.
    """

    __slots__ = ("request", "index", "order", "state", "tokens", "pending", "computed", "pages", "digests",
                 "registered", "seat", "admission", "followers", "finish_reason", "stop_reason")

    def __init__(self, request: Request, index: int):
        self.request, self.index = request, index
        self.order = (0, index)  # the scheduler's: by arrival
        self.state = State.HELD if index else State.WAITING
        self.tokens = list(request.prompt)
        self.pending = 0
        self.computed = 0  # tokens whose K and V are in pages once the steps launched so far have run
        self.pages: list[int] = []  # token i lies in pages[i // page_size]
        self.digests: list[bytes] = []  # of its full pages, for the prefix cache, as far as they were needed
        self.registered = 0  # pages that the prefix cache knows
        self.seat = -1  # the place in the batch; -1 without one
        self.admission = 0  # another number each time that any sequence is given a seat
        self.followers: list[Sequence] = []  # the outputs that are held until this one's prompt is computed
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    def __lt__(self, other: Sequence) -> bool:
        return self.order < other.order

    def __repr__(self) -> str:
        return (f"<{self.request.request_id}/{self.index} {self.state.value}: {len(self.tokens)} + {self.pending} "
                f"tokens, {self.computed} computed, pages {self.pages}>")

    @property
    def length(self) -> int:
        return len(self.tokens) + self.pending

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def output_length(self) -> int:
        """Of the output tokens that the host knows."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def seed(self) -> int:
        return (self.request.seed + self.index) % 2**64

    @property
    def complete(self) -> bool:
        """Whether its last token is sampled or being sampled, as far as its length goes."""
        return self.length >= self.request.max_length

    def banned(self, position: int) -> tuple[int, ...]:
        """What the token at a position, counted from the prompt's first, must not be: the tokens that would end the
        output before min_tokens."""
        early = position - len(self.request.prompt) < self.request.params.min_tokens
        return self.request.ending if early else ()

    def bad_words(self, position: int) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
        """Which last tokens of bad words must not come at a position, counted from the prompt's first: those whose
        tokens before are the end of the output; and (before, token) where that hangs on the token before, which only
        the device knows yet."""
        known, unknown = self.output, position - len(self.tokens)
        tokens, conditions = [], []
        for *prefix, token in self.request.bad_words:
            size = len(prefix) - unknown  # of its tokens that the host can compare
            if len(prefix) <= len(known) + unknown and (size <= 0 or known[len(known) - size :] == prefix[:size]):
                if unknown:
                    conditions.append((prefix[-1], token))
                else:
                    tokens.append(token)
        return tuple(tokens), conditions

    def ended_by_last(self) -> FinishReason | None:
        """Why the token that was appended last is the end, if it is; a stop token is noted in stop_reason. None comes
        before min_tokens: it is banned."""
        request, last = self.request, self.tokens[-1]
        if last in request.ending:
            self.stop_reason = last if last in request.params.stop_token_ids else None
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= request.max_length else None


class Request:
    """A prompt, how its tokens are drawn, and the sequences that come of it.

    stop_ids: the model's ends of text. max_length: of prompt and output together, in tokens. bad_words: token ids of
    words that the output must not have; those of one token are part of what `bias_row` bans.
    """

    __slots__ = ("request_id", "prompt", "params", "seed", "stop_ids", "ending", "max_length", "sequences", "text",
                 "bad_tokens", "bad_words", "num_cached_tokens")

    def __init__(self, request_id: str, prompt: Items[int], params: SamplingParams, *, seed: int = 0,
                 stop_ids: Collection[int] = (), max_length: int, text: str | None = None,
                 bad_words: Items[Items[int]] = ()):
        if not len(prompt):
            raise ValueError(f"request {request_id}: the prompt has no token")
        self.request_id, self.params, self.seed, self.text = request_id, params, seed, text
        self.prompt = tuple(map(int, prompt))
        self.max_length = min(max_length, len(self.prompt) + (params.max_tokens or max_length))
        if self.max_length <= len(self.prompt):
            raise ValueError(f"request {request_id}: the prompt has {len(self.prompt):,} tokens; at most "
                             f"{max_length - 1:,} fit, so that one may follow")
        max_output = max_length - len(self.prompt)
        if params.min_tokens > max_output:
            raise ValueError(f"min_tokens is {short(params.min_tokens)}; after a prompt of {len(self.prompt):,} tokens "
                             f"at most {max_output:,} fit")
        self.ending = (*params.stop_token_ids, *(() if params.ignore_eos else stop_ids))
        self.bad_tokens = tuple(word[0] for word in bad_words if len(word) == 1)
        self.bad_words = [tuple(word) for word in bad_words if len(word) > 1]
        self.num_cached_tokens: int | None = None
        self.sequences = [Sequence(self, index) for index in range(params.n)]

    @property
    def biased(self) -> bool:
        """Whether `bias_row` changes any logit."""
        return bool(self.params.logit_bias or self.params.allowed_token_ids or self.bad_tokens)

    def bias_row(self, vocab_size: int) -> np.ndarray:
        """Return the bias added to the logits of each of its tokens, (vocab_size,) float32; -inf where not allowed."""
        row = np.zeros(vocab_size, np.float32)
        if self.params.allowed_token_ids:
            row[:] = -np.inf
            row[list(self.params.allowed_token_ids)] = 0
        for token, bias in (self.params.logit_bias or {}).items():
            row[token] += np.float32(bias)
        row[list(self.bad_tokens)] = -np.inf
        return row

    @property
    def finished(self) -> bool:
        return all(sequence.state is State.FINISHED for sequence in self.sequences)
