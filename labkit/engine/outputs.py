"""What the engine returns for a request, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Sampled(NamedTuple):
    """One token, drawn or of a prompt, as a step's handle returns it. logprob: the natural logarithm of its probability
    under the model, rank: 1 for the most likely token; None if no logarithms were asked for. top: the most likely
    tokens with their logarithms, the most likely first."""

    token: int
    logprob: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Logprob:
    """logprob: natural logarithm of the token's probability. rank: 1 for the most likely token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One of a request's n outputs.

    finish_reason: None while it runs, then "stop" (a stop string, a stop token or the model's end of text), "length"
    (max_tokens or the context is reached) or "abort". stop_reason: the stop string or the stop token that ended it;
    None for the model's end of text.
    logprobs: for each token the tokens asked for, itself among them.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """num_cached_tokens: how many of the prompt's tokens were found in the prefix cache; None before it began.
    prompt_logprobs: for each token of the prompt the tokens asked for, itself among them; None for the first, which
    nothing comes before. None if they were not asked for, or not all of the prompt was computed.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
