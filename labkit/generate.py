"""`labkit generate`: text that follows a prompt, piece by piece as it is made, and how fast that went.

    told = write(load("path/to/folder"), "A hacker is", print_piece)
    print(told)          # 64 tokens in 1.3 s, 49 a second, ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit import measure
from labkit.errors import UserError
from labkit.models.load import Loaded
from labkit.models.sampling import GREEDY, Sampler, generate


@dataclass
class Told:
    """What was generated, and its times in seconds. prefill_s ends with the first token, decode_s with the last."""

    prompt_tokens: int
    text: str = ""
    tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def per_second(self) -> float | None:
        """Tokens a second after the first; None if there was no second."""
        return (self.tokens - 1) / self.decode_s if self.tokens > 1 else None

    def __str__(self) -> str:
        rate = "" if self.per_second is None else f", then {self.per_second:,.1f} tokens a second"
        return (f"{self.tokens} tokens: the first after {self.prefill_s:.2f} s with its prompt of {self.prompt_tokens}"
                f"{rate} ({measure.where()})")


def write(loaded: Loaded, prompt: str, show: Callable[[str], None], *, tokens: int = 64, sampler: Sampler = GREEDY,
          seed: int = 0) -> Told:
    """Generates up to `tokens` tokens after `prompt` and hands `show` each piece of text as soon as it is whole.

    Ends early where the model ends its text, or when its context is full. Stopped by Ctrl-C, what came so far is in the
    exception's `told`. Raises UserError for a prompt that has no token or does not fit.
    """
    ids = loaded.tokenizer.encode(prompt)
    context = loaded.model.config.n_positions
    if not ids:
        raise UserError("the prompt has no token; give it a word to begin with")
    if len(ids) >= context:
        raise UserError(f"the prompt has {len(ids):,} tokens; {loaded.name} has a context of {context:,}, and at least "
                        f"one place must be left for what follows")
    told = Told(len(ids))

    def timed() -> Iterator[int]:
        last = time.perf_counter()
        for token in generate(loaded.model, ids, tokens, sampler, seed=seed, stop=loaded.tokenizer.stop):
            now = time.perf_counter()
            if told.tokens:
                told.decode_s += now - last
            else:
                told.prefill_s = now - last
            last = now
            if token not in loaded.tokenizer.stop:
                told.tokens += 1
                yield token

    try:
        for piece in loaded.tokenizer.stream(timed()):
            told.text += piece
            show(piece)
    except KeyboardInterrupt as stopped:
        stopped.told = told
        raise
    return told
