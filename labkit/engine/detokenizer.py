"""Token after token to text, and the strings that end it, wherever the boundaries between tokens lie.

    detokenizer = Detokenizer(tokenizer, prompt_ids, stop=("\\n\\n",))
    stop = detokenizer.push(token)      # the stop string that the text now completes, or None
    detokenizer.text, detokenizer.safe  # all of it; the part that can be shown, since no stop string begins in it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

CONTEXT = 6  # tokens of the prompt that are decoded along: whether a word begins with a space depends on those before
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for the first bytes of a character


class Detokenizer:
    """decode: ids to text. stop: the strings that end the text; `min_tokens` tokens long none of them counts.

    include_stop: the stop string stays in the text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = (), *,
                 stop: Sequence[str] = (), min_tokens: int = 0, include_stop: bool = False):
        self._decode, self._stop, self._include_stop = decode, tuple(stop), include_stop
        self._min_tokens, self._tokens = min_tokens, 0
        self._longest = max(map(len, self._stop), default=1)
        # Tokens from the last but one position at which the text was complete. Decoding from there to the last such
        # position, and to the end, gives two texts; what the second one adds is new.
        self._ids = list(prompt[-CONTEXT:])
        self._read_offset = len(self._ids)
        self._prefix_text = decode(self._ids).rstrip(UNFINISHED) if self._ids else ""
        self._search_start = 0  # stop strings that end before this position of the text do not count
        self.text = ""
        self.stopped: str | None = None

    def push(self, *tokens: int) -> str | None:
        """Appends a token's text, or keeps it until the character that it begins is whole. Returns the stop string
        that the text completed first, if it did; the text then ends there. Several tokens at a time cost one decoding,
        and the end of the text may then lie before the last of them."""
        self._ids += tokens
        self._tokens += len(tokens)
        text = self._decode(self._ids)
        if len(text) > len(self._prefix_text) and not text.endswith(UNFINISHED):
            self._advance(text)
        return self.stopped

    def flush(self) -> str | None:
        """The same for tokens held back, at the end of the output, where nothing will complete them."""
        if self._read_offset < len(self._ids):
            self._advance(self._decode(self._ids))
        return self.stopped

    @property
    def safe(self) -> str:
        """The text without what may become part of a stop string."""
        holdback = 0 if self.stopped or self._include_stop else self._longest - 1
        return self.text[: max(0, len(self.text) - holdback)]

    def _advance(self, text: str) -> None:
        added = text[len(self._prefix_text) :]
        self._ids = self._ids[self._read_offset :]
        self._read_offset = len(self._ids)
        self._prefix_text = self._decode(self._ids)
        begin = len(self.text)
        self.text += added
        if self._tokens <= self._min_tokens:
            self._search_start = len(self.text)
            return
        self._find_stop(begin)

    def _find_stop(self, begin: int) -> None:
        """Of the stop strings that end after `begin`, the one that ends first, and of these the longest: what a reader
        of character after character would find, however the text is cut into tokens."""
        matches = []
        for stop in self._stop:
            start = self.text.find(stop, max(self._search_start, begin - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        if matches:
            end, start, self.stopped = min(matches)
            self.text = self.text[: end if self._include_stop else start]
