"""Text to token ids and back, by the library `tokenizers`; its errors are raised with the file or the text named."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from labkit._common.errors import UserError, short
from labkit._common.files import read_json
from labkit.models.chat import ChatTemplate

CONFIG, GENERATION = "config.json", "generation_config.json"
WHOLE = "tokenizer.json"


class TokenizerError(UserError, ValueError):
    """The library `tokenizers` refuses a file or a text."""


@contextlib.contextmanager
def _wrap_errors(context: str) -> Iterator[None]:
    """Raise any exception of the library as a TokenizerError that says what failed."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        reason = str(error).strip() or type(error).__name__  # it may quote the file
        raise TokenizerError(f"{context}: {''.join(c if c.isprintable() else repr(c)[1:-1] for c in reason)}") from None


def read_whole(path: Path):
    """The library's tokenizer of a tokenizer.json, without the padding and the truncation that the file may ask for."""
    import tokenizers

    with _wrap_errors(f"{path} cannot be read"):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.no_truncation()
    return tokenizer


def check_text(text: str, name: str) -> None:
    """Raise UserError if a text holds half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{name} is no text: its character {error.start + 1} is {text[error.start]!r}, which belongs "
                        f"to no character") from None


class Vocabulary:
    """What both kinds of tokenizers below know of the library's."""

    @functools.cached_property
    def largest_id(self) -> int:
        """-1 where it knows no token."""
        return max(self._tokenizer.get_vocab().values(), default=-1)

    def fits(self, size: int) -> bool:
        """Whether all ids are below `size`. In most tokenizers they are 0, 1, 2, ..., which is checked in half the time
        that it takes to find the largest."""
        count = self._tokenizer.get_vocab_size()
        none_left_out = count <= size and None not in map(self._tokenizer.id_to_token, range(count))
        return none_left_out or self.largest_id < size


class Tokenizer(Vocabulary):
    """Text to token ids and back, by the library `tokenizers`.

    A token is a piece of a text's bytes, and a character may be spread over several tokens: decode them together.
    """

    def __init__(self, tokenizer, stop: tuple[int, ...] = (), template: ChatTemplate | None = None):
        self._tokenizer = tokenizer
        self.stop = stop  # the ids that end a text
        self.template = template  # of a model that holds conversations

    @classmethod
    def of(cls, path: Path) -> Tokenizer:
        """From tokenizer.json, or from GPT-2's older pair of files."""
        import tokenizers

        pair = path / "vocab.json", path / "merges.txt"
        if (path / WHOLE).is_file():
            tokenizer = read_whole(path / WHOLE)  # a single prompt: no padding, and no silent truncation
        elif all(file.is_file() for file in pair):
            with _wrap_errors(f"{pair[0]} with {pair[1].name} cannot be read"):
                tokenizer = tokenizers.ByteLevelBPETokenizer.from_file(*map(str, pair))
        else:
            raise FileNotFoundError("there is no tokenizer")
        stop = dict.fromkeys(token for file in (CONFIG, GENERATION) for token in end_ids(path / file))
        return cls(tokenizer, tuple(stop), ChatTemplate.of(path))

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str, marks: bool = True) -> list[int]:
        """Encode a text. marks: add the tokenizer's special tokens, if any. Raise UserError if it is no text."""
        check_text(text, "the prompt")
        with _wrap_errors("the tokenizer fails on this prompt"):
            return self._tokenizer.encode(text, add_special_tokens=marks).ids

    def chat(self, messages: Sequence[dict]) -> list[int]:
        """A conversation, up to where the model's answer begins. Raises UserError where the model has no template."""
        if self.template is None:
            raise UserError("this model has no chat template: it goes on with a text, and answers no questions")
        return self.encode(self.template.render(messages), marks=False)  # the template sets them itself

    def decode(self, ids, marks: bool = False) -> str:
        """Decode token ids. marks: keep the special tokens."""
        with _wrap_errors("the tokenizer fails on what the model wrote"):
            return self._tokenizer.decode(list(ids), skip_special_tokens=not marks)

    def stream(self, ids) -> Iterator[str]:
        """Yield the text of each token; an incomplete character waits for its remaining bytes."""
        pending: list[int] = []
        for token in ids:
            pending.append(token)
            text = self.decode(pending)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):
                yield text
                pending.clear()
        if pending:
            yield self.decode(pending)


def end_ids(path: Path) -> list[int]:
    """The tokens that end a text, as config.json or generation_config.json names them; none where there is no file."""
    if path.name != CONFIG and not path.is_file():
        return []
    ids = read_json(path).get("eos_token_id")
    ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise ValueError(f"{path}: eos_token_id must be a token's number, a list of them, or null; it is "
                         f"{short(ids)}")
    return ids


class SentenceTokenizer(Vocabulary):
    """Sentences to token ids, each truncated to `limit`, as the model was trained.

    The marks around a sentence, [CLS] and [SEP] of a BERT, are among them.
    """

    def __init__(self, tokenizer, limit: int):
        self._tokenizer, self.limit = tokenizer, limit
        marks = tokenizer.num_special_tokens_to_add(False)
        if limit <= marks:
            raise ValueError(f"at most {limit} tokens are allowed for a sentence, and the marks around it are {marks}")
        with _wrap_errors(f"the tokenizer cannot cut sentences at {limit:,} tokens"):
            tokenizer.enable_truncation(limit)

    @classmethod
    def of(cls, path: Path, limit: int) -> SentenceTokenizer:
        """From the tokenizer.json in a folder."""
        if not (path / WHOLE).is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path / WHOLE))
        return cls(read_whole(path / WHOLE), limit)

    def encode(self, sentences: Sequence[str], first: int = 0) -> list[np.ndarray]:
        """The token ids of each, int32. Raises UserError that names the sentence which is no text, counting from
        `first`."""
        for index, text in enumerate(sentences, first):
            check_text(text, f"sentences[{index}]")
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)  # without offsets
        with _wrap_errors("the tokenizer fails on these sentences"):
            return [np.array(encoding.ids, np.int32) for encoding in encode(sentences)]
