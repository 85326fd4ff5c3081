"""From logits to the next token: the most likely, or one drawn at random with a seed; and text from a prompt.

    for token in generate(model, prompt_ids, 64, Sampler(temperature=0.8, top_k=40), seed=1): ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.models.gpt2 import GPT2, Decoder, Workspace


@dataclass(frozen=True)
class Sampler:
    """How a token is drawn. temperature 0 takes the most likely; of equally likely ones, the first.

    temperature: logits are divided by it; below 1 the likely tokens become more likely.
    top_k: only the k most likely are drawn. top_p: of these, only as many of the most likely as together reach p.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        if not 0 <= self.temperature < np.inf:
            raise ValueError(f"temperature is {self.temperature}; it must be 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; it must be 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be more than 0 and at most 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """The probability of each token, in float64; zero for those that are not drawn."""
        logits = np.asarray(logits, np.float64)
        if np.isnan(logits).any():
            raise ValueError(f"logits of {int(np.isnan(logits).sum()):,} tokens are NaN: something before went wrong")
        result = np.zeros(logits.size)
        if self.greedy:
            result[np.argmax(logits)] = 1.0
            return result
        chosen = np.arange(logits.size) if self.top_k is None else likeliest(logits, self.top_k)
        exponentials = np.exp((logits[chosen] - logits.max()) / self.temperature)
        probs = exponentials / exponentials.sum()
        if self.top_p is not None and self.top_p < 1:
            # Sorting all takes milliseconds; tokens below an even part of the excluded mass cannot be needed.
            candidates = np.flatnonzero(probs >= 0.5 * (1 - self.top_p) / probs.size)
            order = candidates[np.argsort(-probs[candidates], kind="stable")]  # likeliest first, ties by index
            cutoff = int(np.searchsorted(np.cumsum(probs[order]), self.top_p)) + 1  # the one that reaches p is kept
            chosen, probs = chosen[order[:cutoff]], probs[order[:cutoff]]
        result[chosen] = probs / probs.sum()
        return result

    def choose(self, logits: np.ndarray, rng: np.random.Generator) -> int:
        """A token id. Draws one number from rng, unless greedy."""
        if self.greedy and not np.isnan(logits).any():
            return int(np.argmax(logits))
        probs = np.cumsum(self.probabilities(logits))
        return int(np.searchsorted(probs, rng.random() * probs[-1], side="right"))


def likeliest(logits: np.ndarray, count: int) -> np.ndarray:
    """The indices of the `count` largest, in their order; of equal ones the first."""
    if count >= logits.size:
        return np.arange(logits.size)
    threshold = np.partition(logits, logits.size - count)[logits.size - count]
    above, equal = np.flatnonzero(logits > threshold), np.flatnonzero(logits == threshold)
    return np.sort(np.concatenate([above, equal[: count - above.size]]))


GREEDY = Sampler(temperature=0)


def generate(model: GPT2, prompt: Sequence[int], count: int, sampler: Sampler = GREEDY, *, seed: int = 0,
             stop: Collection[int] = (), workspace: Workspace | None = None) -> Iterator[int]:
    """Up to `count` tokens that follow the prompt, each as soon as it is known.

    Ends early after a token of `stop`, and when the model's context is full. workspace: its cache is emptied first.
    """
    if count < 1:
        raise ValueError(f"count is {count}; it must be 1 or more")
    workspace = workspace or Workspace(model.config, dtype=model.dtype)
    workspace.reset()
    rng = np.random.default_rng(seed)
    logits = model.prefill(prompt, workspace)
    decoder = None
    for done in range(1, count + 1):
        on_device = sampler.greedy and decoder is not None
        # The likeliest is four bytes; all logits are hundreds of kilobytes.
        token = decoder.likeliest() if on_device else sampler.choose(logits.copy_to_host()[0], rng)
        last = token in stop or done == count or workspace.length == workspace.context
        if not last and decoder is None:
            decoder = Decoder(model, workspace)  # before the first token is shown, so that the others follow evenly
        yield token
        if last:
            return
        logits = decoder(None if on_device else token)
