"""Text to token ids and back, by the library `tokenizers`; what it refuses is an error that names the file or the text.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from labkit._common.errors import UserError, short
from labkit._common.files import read_json

CONFIG = "config.json"


class TokenizerError(UserError, ValueError):
    """The library `tokenizers` refuses a file or a text."""


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """What the library raises, of whatever kind, as an error that says what failed."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of its Rust code is no Exception
        reason = str(error).strip() or type(error).__name__  # it quotes the file, whatever that holds
        raise TokenizerError(f"{what}: {''.join(c if c.isprintable() else repr(c)[1:-1] for c in reason)}") from None


class Tokenizer:
    """Text to token ids and back, by the library `tokenizers`.

    A token is a piece of a text's bytes, and a character may be spread over several tokens: decode them together.
    """

    def __init__(self, tokenizer, stop: tuple[int, ...] = ()):
        self._tokenizer = tokenizer
        self.stop = stop  # the ids that end a text

    @classmethod
    def of(cls, path: Path) -> Tokenizer:
        """From tokenizer.json, or from GPT-2's older pair of files."""
        import tokenizers

        whole, pair = path / "tokenizer.json", (path / "vocab.json", path / "merges.txt")
        if whole.is_file():
            with _named(f"{whole} cannot be read"):
                tokenizer = tokenizers.Tokenizer.from_file(str(whole))
                tokenizer.no_padding()  # a prompt stands alone, and is never cut off unsaid
                tokenizer.no_truncation()
        elif all(file.is_file() for file in pair):
            with _named(f"{pair[0]} with {pair[1].name} cannot be read"):
                tokenizer = tokenizers.ByteLevelBPETokenizer.from_file(*map(str, pair))
        else:
            raise FileNotFoundError("there is no tokenizer")
        end_ids = read_json(path / CONFIG).get("eos_token_id")
        end_ids = end_ids if isinstance(end_ids, list) else [] if end_ids is None else [end_ids]
        if not all(type(token) is int and token >= 0 for token in end_ids):
            raise ValueError(f"{path / CONFIG}: eos_token_id must be a token's number, a list of them, or null; it is "
                             f"{short(end_ids)}")
        return cls(tokenizer, tuple(end_ids))

    @functools.cached_property
    def largest_id(self) -> int:
        """-1 where it knows no token."""
        return max(self._tokenizer.get_vocab().values(), default=-1)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """With the marks that the tokenizer sets around a text, if any. Raises UserError for what is no text."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the prompt is no text: its character {error.start + 1} is {text[error.start]!r}, which "
                            f"belongs to no character") from None
        with _named("the tokenizer fails on this prompt"):
            return self._tokenizer.encode(text).ids

    def decode(self, ids) -> str:
        """Without the marks."""
        with _named("the tokenizer fails on what the model wrote"):
            return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def stream(self, ids) -> Iterator[str]:
        """The text of token after token; what is half a character waits for its other half."""
        waiting: list[int] = []
        for token in ids:
            waiting.append(token)
            text = self.decode(waiting)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):
                yield text
                waiting.clear()
        if waiting:
            yield self.decode(waiting)
