"""`labkit generate`: text that follows a prompt, piece by piece as it is made, and how fast that went.

    continuation = write(load("path/to/folder"), "A hacker is", print_piece)
    print(continuation)          # 64 tokens, as many as were asked for; the first after 0.31 s ..., then 49.0 a second
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit import device
from labkit._common.errors import UserError
from labkit.device import compile_ahead
from labkit.engine.sampler import GREEDY, Sampler, generate
from labkit.models.gpt2 import GPT2, Workspace
from labkit.models.load import Loaded


@dataclass
class Continuation:
    """What was generated, and its times in seconds. prefill_s ends with the first token, decode_s with the last.

    ended: why there is no more of it; "" if it was stopped.
    """

    prompt_tokens: int
    text: str = ""
    tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    ended: str = ""

    @property
    def per_second(self) -> float | None:
        """Tokens a second after the first; None if there was no second."""
        return (self.tokens - 1) / self.decode_s if self.tokens > 1 else None

    def __str__(self) -> str:
        ended = f", {self.ended}" if self.ended else ""
        rate = "" if self.per_second is None else f", then {self.per_second:,.1f} a second"
        return (f"{_tokens(self.tokens)}{ended}; the first after {self.prefill_s:.2f} s (prompt: "
                f"{_tokens(self.prompt_tokens)}){rate}. {device.where()}")


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def write(loaded: Loaded, prompt: str, show: Callable[[str], None], *, tokens: int = 64, sampler: Sampler = GREEDY,
          seed: int = 0, compiling: Callable[[int, int], None] | None = None) -> Continuation:
    """Generates up to `tokens` tokens after `prompt` and hands `show` each piece of text as soon as it is whole.

    compiling(done, of): called while kernels are compiled that are not kept from an earlier run. Their time is part of
    the time to the first token.
    Ends early where the model ends its text, or when its context is full. Stopped by Ctrl-C, what came so far is in the
    exception's `continuation`. Raises UserError for a prompt that has no token or does not fit.
    """
    if not isinstance(loaded.model, GPT2):
        raise UserError(f"{loaded.name} is no GPT-2, and no other model writes here yet")
    ids = loaded.tokenizer.encode(prompt)
    context = loaded.model.config.n_positions
    if not ids:
        raise UserError("the prompt has no token; give it a word to begin with")
    if len(ids) >= context:
        raise UserError(f"the prompt has {len(ids):,} tokens; {loaded.name} has a context of {context:,}, and at least "
                        f"one place must be left for what follows")
    continuation = Continuation(len(ids))

    def timed() -> Iterator[int]:
        last = time.perf_counter()
        workspace = Workspace(loaded.model.config)
        compile_ahead.prepare(loaded.model.needed(workspace, len(ids)), progress=compiling)
        for token in generate(loaded.model, ids, tokens, sampler, seed=seed, stop=loaded.tokenizer.stop,
                              workspace=workspace):
            now = time.perf_counter()
            if continuation.tokens:
                continuation.decode_s += now - last
            else:
                continuation.prefill_s = now - last
            last = now
            if token in loaded.tokenizer.stop:
                continuation.ended = "then the model ended its text"
            else:
                continuation.tokens += 1
                yield token

    try:
        for piece in loaded.tokenizer.stream(timed()):
            continuation.text += piece
            show(piece)
        continuation.ended = continuation.ended or ("as many as were asked for" if continuation.tokens == tokens
                                    else f"then the context of {context:,} was full")
    except KeyboardInterrupt as stopped:
        stopped.continuation = continuation
        raise
    return continuation
