"""What the engine returns for a request, with vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import NamedTuple

import numpy as np

from labkit.kernels import logprobs


class Sampled(NamedTuple):
    """One token, drawn or of a prompt, as a step's handle returns it. logprob: the natural logarithm of its probability
    under the model; None if no logprobs were asked for. rows: the step's (B, COLUMNS) float32 of
    labkit.kernels.logprobs, row: the token's own."""

    token: int
    logprob: float | None = None
    rows: np.ndarray | None = None
    row: int = 0


def with_logprobs(tokens: Items[int], rows: np.ndarray) -> list[Sampled]:
    """Tokens with what labkit.kernels.logprobs wrote for them, a row each. The rows stay one array, which must not
    change afterwards: a step of 128 sequences makes no more objects with 20 logprobs a token than with one."""
    has_logprobs = rows[:, logprobs.RANK] > 0
    if not has_logprobs.all():
        sampled = iter(with_logprobs(np.asarray(tokens)[has_logprobs].tolist(), rows[has_logprobs]))
        return [next(sampled) if each else Sampled(token)
                for token, each in zip(tokens, has_logprobs.tolist(), strict=True)]
    # Sampled(...) would be a call of a Python function for each.
    values = rows[:, logprobs.LOGPROB].tolist()
    return list(map(partial(tuple.__new__, Sampled), zip(tokens, values, repeat(rows), range(len(rows)))))


@dataclass(slots=True)
class Logprob:
    """logprob: natural logarithm of the token's probability. rank: 1 for the most likely token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class Logprobs(Items):
    """A read-only sequence of dictionaries, token -> Logprob: for each token of an output or a prompt the tokens asked
    for, itself first. A dictionary is made when it is read, a new one each time; list(logprobs) keeps them all.

    entries: tokens with logprobs; None where there is no dictionary, as for the first token of a prompt. The list is
    not copied and may grow: this sequence keeps the length that it has now. texts: token -> its text. A slice is a
    Logprobs, too. Copies and pickles hold their own rows and texts, nothing of other requests.
    """

    __slots__ = ("_entries", "_length", "_texts")

    def __init__(self, entries: list[Sampled | None], texts: Mapping[int, str | None]):
        self._entries, self._texts, self._length = entries, texts, len(entries)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice) -> dict[int, Logprob] | None | Logprobs:
        try:
            chosen = range(self._length)[index]
        except IndexError:
            raise IndexError(f"index is {index}; there are logprobs of {self._length} tokens") from None
        if isinstance(chosen, range):
            return Logprobs([self._entries[each] for each in chosen], self._texts)
        return self._read(self._entries[chosen])

    def __iter__(self) -> Iterator[dict[int, Logprob] | None]:
        return (self._read(self._entries[each]) for each in range(self._length))

    def __eq__(self, other) -> bool:
        if not isinstance(other, Logprobs | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"Logprobs({list(self)!r})"

    def __reduce__(self):
        tokens, rows = self.packed()
        used = {*rows[:, logprobs.TOKENS :].astype(np.int32).flat, *tokens} - {-1, None}
        return _unpacked, (tokens, rows, {int(token): self._texts[token] for token in used})

    def packed(self, begin: int = 0) -> tuple[list[int | None], np.ndarray]:
        """(tokens, rows) from `begin` on, for `unpack`: a row for each token that is not None."""
        entries = self._entries[begin : self._length]
        rows = [each.rows[each.row] for each in entries if each is not None]
        return ([None if each is None else each.token for each in entries],
                np.array(rows, np.float32).reshape(-1, logprobs.COLUMNS))

    def _read(self, entry: Sampled | None) -> dict[int, Logprob] | None:
        if entry is None:
            return None
        row, texts = entry.rows[entry.row], self._texts
        result = {entry.token: Logprob(entry.logprob, int(row[logprobs.RANK]), texts[entry.token])}
        top = row[logprobs.TOP : logprobs.TOKENS].tolist()
        for rank, (token, logprob) in enumerate(zip(row[logprobs.TOKENS :].astype(np.int32).tolist(), top, strict=True),
                                                1):
            if token < 0:  # all that were asked for, or that the model has
                break
            if token not in result:
                result[token] = Logprob(logprob, rank, texts[token])
        return result


def unpack(tokens: list[int | None], rows: np.ndarray) -> list[Sampled | None]:
    """The entries of Logprobs.packed."""
    entries = iter(with_logprobs([token for token in tokens if token is not None], rows))
    return [None if token is None else next(entries) for token in tokens]


def _unpacked(tokens: list[int | None], rows: np.ndarray, texts: dict[int, str | None]) -> Logprobs:
    return Logprobs(unpack(tokens, rows), texts)


@dataclass
class CompletionOutput:
    """One of a request's n outputs.

    finish_reason: None while it runs, then "stop" (a stop string, a stop token or the model's end of text), "length"
    (max_tokens or the context is reached) or "abort". stop_reason: the stop string or the stop token that ended it;
    None for the model's end of text.
    logprobs: for each token the tokens asked for, itself among them, made when they are read.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Items[dict[int, Logprob]] | None = None
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
    prompt_logprobs: Items[dict[int, Logprob] | None] | None = None
