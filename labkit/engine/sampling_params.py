"""How a request's tokens are drawn and when it ends, with vLLM's names, defaults and checks.

    SamplingParams(temperature=0.8, top_p=0.95, max_tokens=64, stop=["\\n\\n"], seed=1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

GREEDY_BELOW = 1e-5  # a lower temperature means the most likely token
MAX_LOGPROBS = 20  # the most likely tokens that a step hands back for each sampled one, at most
# What each may be, and in words.
NUMBERS = {
    "presence_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "more than 0"),
    "temperature": (lambda value: 0 <= value < math.inf, "0 or more"),
    "top_p": (lambda value: 0 < value <= 1, "more than 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
}


@dataclass(frozen=True)
class SamplingParams:
    """Raises ValueError for a value that is not allowed, TypeError for a fraction where a whole number belongs.

    n: how many outputs, each drawn for itself. The prompt is computed once for all of them.
    presence_penalty, frequency_penalty: subtracted from the logit of a token that was generated before; once, and once
        for each time. repetition_penalty: a positive logit of a token of prompt or output is divided by it, a negative
        one multiplied.
    temperature: logits are divided by it; 0 takes the most likely token. top_k: only the k most likely may be drawn;
        0 or -1: all. top_p: only as many of the most likely as together reach p. min_p: none that is less than min_p
        times as likely as the most likely one.
    seed: output i is drawn with seed + i. None: a seed of the engine, another for each request.
    stop: the output's text ends before the first of these strings that it completes, or after it with
        include_stop_str_in_output. stop_token_ids: the output ends with the first of these tokens. ignore_eos: the
        model's own end of text does not end the output.
    max_tokens: of the output; None: as many as the model's context allows. min_tokens: before so many, no token ends
        the output.
    logprobs: how many of the most likely tokens are returned with their logarithms of probabilities, beside the token
        itself; None: no logarithms.
    skip_special_tokens: special tokens leave no trace in the text.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self):
        self._whole("n", 1)
        for name, (right, allowed) in NUMBERS.items():
            value = getattr(self, name)
            if not isinstance(value, Real) or not right(value):
                raise ValueError(f"{name} is {value!r}; it must be {allowed}")
        self._whole("top_k", -1, "-1 or 0, for all tokens, or 1 or more")
        self._whole("min_tokens", 0)
        for name, least in (("seed", None), ("max_tokens", 1), ("logprobs", 0)):
            if getattr(self, name) is not None:
                self._whole(name, least)
        if self.logprobs is not None and self.logprobs > MAX_LOGPROBS:
            raise ValueError(f"logprobs is {self.logprobs}; at most {MAX_LOGPROBS} are returned")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")
        if self.greedy and self.n > 1:
            raise ValueError(f"n is {self.n}; with temperature {self.temperature} all outputs would be the same: it "
                             f"must be 1")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if not all(isinstance(text, str) and text for text in stop):
            raise ValueError(f"stop is {self.stop!r}; it must be a text or a list of texts, none of them empty")
        ids = tuple(self.stop_token_ids or ())
        if not all(isinstance(token, Integral) and token >= 0 for token in ids):
            raise ValueError(f"stop_token_ids is {self.stop_token_ids!r}; it must be a list of token ids")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(map(int, ids)))

    def _whole(self, name: str, least: int | None, allowed: str = "") -> None:
        value = getattr(self, name)
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; it must be a whole number")
        if least is not None and value < least:
            raise ValueError(f"{name} is {value}; it must be {allowed or f'{least} or more'}")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalized(self) -> bool:
        """Whether the tokens before have a say in which token comes next, beside the model."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)
