"""How a request's tokens are drawn and when it ends, with vLLM's names, defaults and checks.

    SamplingParams(temperature=0.8, top_p=0.95, max_tokens=64, stop=["\\n\\n"], seed=1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real

from labkit._common.errors import short
from labkit.engine import vllm
from labkit.engine.checks import boolean, integer, is_list, number, token_ids
from labkit.kernels.logprobs import MOST

GREEDY_BELOW = 1e-5  # a lower temperature means the most likely token
MAX_LOGPROBS = MOST  # the most likely tokens that a step hands back for each sampled one, at most
MAX_N = 1024  # outputs of a request: each holds its prompt's tokens on the host
# From the least to the most. Kernels read top_k as an int32.
WHOLE = {"n": (1, MAX_N), "top_k": (-1, 2**31 - 1), "min_tokens": (0, None)}
OPTIONAL = {"seed": (None, None), "max_tokens": (1, None), "logprobs": (0, MAX_LOGPROBS),
            "prompt_logprobs": (0, MAX_LOGPROBS)}
SWITCHES = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize")
MAX_BIAS = 100  # of a logit, up or down, as OpenAI and vLLM have it
# What each may be, and in words. Logits that are divided or multiplied by these stay numbers in float32.
NUMBERS = {
    "presence_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "from -2 to 2"),
    "repetition_penalty": (lambda value: 0.01 <= value <= 100, "from 0.01 to 100"),
    "temperature": (lambda value: 0 <= value <= 100, "from 0 to 100"),
    "top_p": (lambda value: 0 < value <= 1, "more than 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
}


@vllm.takes_names_of("SamplingParams")
@dataclass(frozen=True)
class SamplingParams:
    """Raises TypeError for a value of the wrong type, ValueError for one that is out of range. NumPy's numbers become
    Python's.

    n: how many outputs, each drawn for itself; at most MAX_N. The prompt is computed once for all of them.
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
        itself; None: no logarithms. prompt_logprobs: the same for each token of the prompt but the first; all of the
        prompt is computed then, and nothing of it taken from the prefix cache.
    skip_special_tokens: special tokens leave no trace in the text. detokenize: False makes no text of the tokens.
    logit_bias: token id -> bias added to its logit, from -100 to 100. allowed_token_ids: only these may be drawn.
    bad_words: texts whose tokens the output must not have in a row: the last one is never drawn after the others. As in
        vLLM these are the tokens of the text alone and, where they begin with another one, of the text after a space.
        The same text may still come of other tokens, such as one that holds it and a letter more.
        All of these come before the penalties.

    What else vLLM's SamplingParams takes is named in labkit.engine.vllm: it has no effect here, or is refused.
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
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None

    def __post_init__(self):
        for name, (minimum, maximum) in WHOLE.items():
            self._set(name, integer(name, getattr(self, name), minimum, maximum))
        for name, (minimum, maximum) in OPTIONAL.items():
            if getattr(self, name) is not None:
                self._set(name, integer(name, getattr(self, name), minimum, maximum))
        for name, allowed in NUMBERS.items():
            self._set(name, number(name, getattr(self, name), *allowed))
        for name in SWITCHES:
            self._set(name, boolean(name, getattr(self, name)))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {short(self.min_tokens)}, more than max_tokens, which is "
                             f"{self.max_tokens}")
        if self.greedy and self.n > 1:
            raise ValueError(f"n is {self.n}; with temperature {self.temperature:g} all outputs would be the same: it "
                             f"must be 1")
        self._set("stop", stop_strings(self.stop))
        self._set("stop_token_ids", tuple(token_ids(
            "stop_token_ids", () if self.stop_token_ids is None else self.stop_token_ids)))

        self._set("logit_bias", biases(self.logit_bias))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", tuple(token_ids("allowed_token_ids", self.allowed_token_ids)))
            if not self.allowed_token_ids:
                raise ValueError("allowed_token_ids is empty; it must have a token, or be None")
        if self.bad_words is not None:
            if not is_list(self.bad_words) or not all(isinstance(each, str) for each in self.bad_words):
                raise TypeError(f"bad_words is {short(self.bad_words)}; it must be a list of texts")
            if not all(each.strip() for each in self.bad_words):
                raise ValueError(f"bad_words is {short(self.bad_words)}; none of them may be empty")
            self._set("bad_words", tuple(self.bad_words))
        if self.stop and not self.detokenize:
            raise ValueError(f"stop is {short(self.stop)}, and detokenize is False: without text there is nothing to "
                             f"find it in")

    def _set(self, name: str, value) -> None:
        object.__setattr__(self, name, value)

    def clone(self) -> SamplingParams:
        """Return a copy that shares nothing with this one."""
        return replace(self)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalized(self) -> bool:
        """Whether the tokens before have a say in which token comes next, beside the model."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


def stop_strings(stop) -> tuple[str, ...]:
    """Return the strings of SamplingParams' stop, which may be one of them, a list or None."""
    strings = (stop,) if isinstance(stop, str) else () if stop is None else stop
    allowed = "it must be a text or a list of texts, none of them empty"
    if not is_list(strings) or not all(isinstance(each, str) for each in strings):
        raise TypeError(f"stop is {short(stop)}; {allowed}")
    if "" in strings:
        raise ValueError(f"stop is {short(stop)}; {allowed}")
    return tuple(strings)


def biases(logit_bias) -> dict[int, float] | None:
    """Return SamplingParams' logit_bias with ints and floats. Its keys may be texts, as they are in JSON."""
    if logit_bias is None:
        return None
    if not isinstance(logit_bias, Mapping):
        raise TypeError(f"logit_bias is {short(logit_bias)}; it must be a dictionary of token ids and numbers")
    result = {}
    for key, bias in logit_bias.items():
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20 else key
        (token,) = token_ids("logit_bias", [token])
        if not isinstance(bias, Real) or isinstance(bias, bool):
            raise TypeError(f"logit_bias has {short(bias)} for the token {token}; it must be a number, from "
                            f"-{MAX_BIAS} to {MAX_BIAS}")
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(f"logit_bias has {short(bias)} for the token {token}; it must be from -{MAX_BIAS} to "
                             f"{MAX_BIAS}")
        if token in result:
            raise ValueError(f"logit_bias has the token {token} twice")
        result[token] = float(bias)
    return result
