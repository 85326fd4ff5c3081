"""OpenAI's requests as pydantic models, and its answers as dictionaries.

A field that is null counts as left out. The ranges of sampling parameters are those of SamplingParams, which names what
is out of range; here are those that OpenAI sets lower.
"""

from __future__ import annotations

import math
import time
import uuid
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from labkit._common.errors import short
from labkit.engine.outputs import CompletionOutput, Logprob, RequestOutput
from labkit.engine.sampling_params import MAX_LOGPROBS, SamplingParams
from labkit.serve.errors import ApiError
from labkit.serve.settings import Settings

LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this
TEMPERATURE = 2  # at most, as OpenAI has it; the engine takes more
SEEDS = 1 << 63
SAMPLING = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p", "top_k",
            "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos", "include_stop_str_in_output", "logit_bias",
            "allowed_token_ids", "bad_words")


class Body(BaseModel):
    """Fields of another name or type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # OpenAI's, against who watches the network: nothing is obfuscated here


class Generation(Body):
    """What completions and chats have in common."""

    n: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Annotated[int, Field(ge=-SEEDS, lt=SEEDS)] | None = None
    max_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # vLLM's.
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    # This server's.
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    # Without an effect on the output.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Taken where they ask for nothing, by the values of `nothing`.
    store: bool | None = None

    nothing: ClassVar[dict[str, tuple]] = {"store": (False,)}

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self, settings: Settings) -> None:
        """Raises ApiError for what this server does not do, or not so much of."""
        for name, values in self.nothing.items():
            value = getattr(self, name)
            if value is not None and value not in values:
                raise ApiError(400, f"{name} is {short(value)}; this server cannot do that: leave it out", param=name,
                               code="unsupported_parameter")
        if self.stream_options and not self.stream:
            raise ApiError(400, "stream_options is given, and stream is not true", param="stream_options")
        if self.n is not None and self.n > settings.max_n:
            raise ApiError(400, f"n is {short(self.n)}; at most {settings.max_n} are allowed", param="n")
        if isinstance(self.stop, list) and len(self.stop) > settings.max_stop:
            raise ApiError(400, f"stop has {len(self.stop):,} strings; at most {settings.max_stop} are allowed",
                           param="stop")
        if self.temperature is not None and not 0 <= self.temperature <= TEMPERATURE:
            raise ApiError(400, f"temperature is {short(self.temperature)}; it must be from 0 to {TEMPERATURE}",
                           param="temperature")

    def sampling(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Raises ValueError or TypeError that begins with the field's name."""
        options = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        return SamplingParams(n=1 if self.n is None else self.n, max_tokens=max_tokens, logprobs=logprobs, **options)


class CompletionBody(Generation):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    nothing: ClassVar[dict[str, tuple]] = Generation.nothing | {"echo": (False,), "suffix": ("",), "best_of": (1,)}

    @property
    def prompts(self) -> list[str | list[int]]:
        is_batch = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return self.prompt if is_batch else [self.prompt]

    def params(self) -> SamplingParams:
        return self.sampling(16 if self.max_tokens is None else self.max_tokens, self.logprobs)


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """refusal, tool_calls and what else an answer of OpenAI's has may come back with it, if it is null."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str
    content: str | list[TextPart]
    name: str | None = None
    refusal: None = None
    audio: None = None
    annotations: list[Any] | None = None
    function_call: None = None
    tool_calls: list[Any] | None = Field(None, max_length=0)

    @property
    def plain(self) -> dict[str, str]:
        """The message as chat templates take it. OpenAI's developer role is called system elsewhere."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(Generation):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None

    nothing: ClassVar[dict[str, tuple]] = Generation.nothing | {
        "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},), "modalities": (["text"],)}

    def params(self) -> SamplingParams:
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if self.max_tokens not in (None, max_tokens):
            raise ApiError(400, f"max_tokens is {short(self.max_tokens)} and max_completion_tokens is "
                                f"{short(max_tokens)}; they mean the same, so give one of them", param="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs is given, and logprobs is not true", param="top_logprobs")
        if not 0 <= (self.top_logprobs or 0) <= MAX_LOGPROBS:
            raise ApiError(400, f"top_logprobs is {short(self.top_logprobs)}; it must be from 0 to {MAX_LOGPROBS}",
                           param="top_logprobs")
        return self.sampling(max_tokens, (self.top_logprobs or 0) if self.logprobs else None)


class EmbeddingBody(Body):
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


# --- Answers ---------------------------------------------------------------------------------------------------------


class Shape:
    """Of the answers to one request: its id, and what each of its answers and chunks begins with."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, include_usage: bool = False):
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._model, self._created, self._include_usage = model, int(time.time()), include_usage

    def answer(self, choices: list[dict], usage: dict) -> dict:
        return self._head(self.whole) | {"choices": choices, "usage": usage}

    def part(self, choices: list[dict], usage: dict | None = None) -> dict:
        """A chunk of a stream. With include_usage all have the field, and only the last one its value."""
        return self._head(self.chunk) | {"choices": choices} | ({"usage": usage} if self._include_usage else {})

    def _head(self, kind: str) -> dict:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def choice(self, index: int, output: CompletionOutput) -> dict:
        return {"index": index, "text": output.text, "logprobs": self.logprobs(output, 0, 0),
                "finish_reason": output.finish_reason}

    def opening(self, index: int) -> list[dict]:
        """Choices that come before the first text."""
        return []

    def delta(self, index: int, text: str, logprobs: dict | None, finish_reason: str | None) -> dict:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def logprobs(self, output: CompletionOutput, begin: int, offset: int) -> dict | None:
        """Of the tokens from `begin` on. offset: characters of those before."""
        entries = chosen(output, begin)
        if entries is None:
            return None
        texts, offsets = [sampled.decoded_token or "" for sampled, _ in entries], []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {"tokens": texts, "token_logprobs": [finite(sampled.logprob) for sampled, _ in entries],
                "top_logprobs": [{candidate.decoded_token or "": finite(candidate.logprob) for candidate in candidates}
                                 for _, candidates in entries],
                "text_offset": offsets}


class ChatShape(Shape):
    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, include_usage: bool = False, top_logprobs: int = 0):
        super().__init__(model, include_usage)
        self._top = top_logprobs

    def choice(self, index: int, output: CompletionOutput) -> dict:
        return {"index": index, "message": {"role": "assistant", "content": output.text, "refusal": None},
                "logprobs": self.logprobs(output, 0, 0), "finish_reason": output.finish_reason}

    def opening(self, index: int) -> list[dict]:
        return [{"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
                 "finish_reason": None}]

    def delta(self, index: int, text: str, logprobs: dict | None, finish_reason: str | None) -> dict:
        return {"index": index, "delta": {"content": text} if text or logprobs else {}, "logprobs": logprobs,
                "finish_reason": finish_reason}

    def logprobs(self, output: CompletionOutput, begin: int, offset: int) -> dict | None:
        entries = chosen(output, begin)
        if entries is None:
            return None
        return {"content": [_entry(sampled) | {"top_logprobs": [_entry(candidate) for candidate in candidates
                                                                if candidate.rank and candidate.rank <= self._top]}
                            for sampled, candidates in entries], "refusal": None}


def _entry(entry: Logprob) -> dict:
    """bytes: None for a token that is a part of a character."""
    text = entry.decoded_token or ""
    is_complete = "\N{REPLACEMENT CHARACTER}" not in text
    return {"token": text, "logprob": finite(entry.logprob), "bytes": list(text.encode()) if is_complete else None}


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def chosen(output: CompletionOutput, begin: int) -> list[tuple[Logprob, list[Logprob]]] | None:
    """(the token that was drawn, all that are listed, the most likely first) for each from `begin` on. The token that
    ended the text is no part of it, so it is left out."""
    if output.logprobs is None:
        return None
    end = len(output.logprobs) - ended_by_token(output)
    return [(candidates[token], sorted(candidates.values(), key=lambda candidate: candidate.rank or 0))
            for token, candidates in zip(output.token_ids[begin:end], output.logprobs[begin:end], strict=False)]


def ended_by_token(output: CompletionOutput) -> bool:
    """Whether its last token is the model's end of text or a stop token."""
    return output.finish_reason == "stop" and not isinstance(output.stop_reason, str)


def usage(outputs: list[RequestOutput]) -> dict:
    """Token counts of a request's prompts, each counted once, and of all its outputs."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs)}}
