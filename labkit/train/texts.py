"""From files to batches: a text becomes token ids, and each step draws its windows from them by the run's seed.

    texts = Texts.read(settings)
    ids, targets = texts.batch(step=1)        # each (accumulation, batch * length) int32
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from labkit._common.errors import UserError
from labkit._common.files import read_text
from labkit.kernels.loss.cross_entropy import IGNORED
from labkit.models.tokenizer import WHOLE, read_whole
from labkit.train.settings import Settings

END = "<|endoftext|>"  # token 0 of a tokenizer that is trained here


class Texts:
    """tokens: what is trained on; held_out: the last share of a run's tokens, or those of data.held_out's files, in
    windows that do not overlap. process, processes: of a data-parallel run. Its processes draw different windows,
    together those that a single one with so many times the batch would draw."""

    def __init__(self, settings: Settings, ids: np.ndarray, tokenizer, *, held_out: np.ndarray | None = None,
                 process: int = 0, processes: int = 1):
        train, self.tokenizer, self.train = settings.train, tokenizer, settings.train
        if not 0 <= process < processes:
            raise ValueError(f"process is {process}; it must be 0 to {processes - 1}, of {processes} processes")
        self.process, self.processes = process, processes
        if held_out is None:
            ids, held_out = np.split(ids, [len(ids) - int(len(ids) * settings.data.held_out)])
        vocabulary = settings.model.vocab_size
        for name, part in (("to train on", ids), ("held out", held_out)):
            wrong = part[(part < 0) | (part >= vocabulary)]
            if wrong.size:
                raise UserError(f"token {wrong[0]} is not in the vocabulary; model.vocab_size is {vocabulary:,}")
            if len(part) <= train.length:
                raise UserError(f"data: {len(part):,} tokens are {name}; at least {train.length + 1:,} are needed, one "
                                f"more than train.length")
        self.tokens, self.held_out = ids.astype(np.int32), held_out.astype(np.int32)
        self.from_start = round(settings.data.from_start * train.batch)  # windows of a batch
        if self.from_start:
            self.starts = np.flatnonzero(self.tokens[: -train.length] == tokenizer.token_to_id(END))
            if not self.starts.size:
                raise UserError(f"data.from_start is {settings.data.from_start}, but no text to train on begins with "
                                f"{END}; it must be 0")

    @classmethod
    def read(cls, settings: Settings, **processes: int) -> Texts:
        data = settings.data
        files = data.text or data.tokens
        several = [files, [] if isinstance(data.held_out, int | float) else data.held_out]
        if data.tokens:
            tokenizer = tokenizer_of(settings.folder / data.tokenizer)
            parts = [[token_file(settings.folder / path) for path in paths] for paths in several]
        else:
            texts = [[text_file(settings.folder / path) for path in paths] for paths in several]
            tokenizer = (tokenizer_of(settings.folder / data.tokenizer) if data.tokenizer else
                         train_tokenizer(texts[0], settings.model.vocab_size))
            parts = [[np.array(tokenizer.encode(text).ids, np.int64) for text in part] for part in texts]
        ids, held_out = (np.concatenate(part) if part else None for part in parts)
        return cls(settings, ids, tokenizer, held_out=held_out, **processes)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The windows of a step, counted from 1, and the tokens that follow each token. They depend on the seed and on
        the step alone, so a resumed run draws those that the run would have drawn."""
        train = self.train
        draw = np.random.Generator(np.random.Philox(key=[train.seed, step]))
        size = train.accumulation, self.processes, train.batch
        begins = draw.integers(0, len(self.tokens) - train.length, size)
        if self.from_start:
            begins[..., : self.from_start] = draw.choice(self.starts, (*size[:2], self.from_start))
        begins = begins[:, self.process]
        windows = self.tokens[begins[..., None] + np.arange(train.length + 1)]
        return tuple(np.ascontiguousarray(part).reshape(train.accumulation, -1)
                     for part in (windows[..., :-1], windows[..., 1:]))

    def held_out_batches(self, most: int = 16) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """At most `most` batches of windows that were held out; the targets of windows that fill the last one up are
        IGNORED."""
        train = self.train
        begins = np.arange(0, len(self.held_out) - train.length, train.length)[: most * train.batch]
        for first in range(0, len(begins), train.batch):
            chosen = begins[first : first + train.batch]
            windows = self.held_out[np.resize(chosen, train.batch)[:, None] + np.arange(train.length + 1)]
            targets = np.ascontiguousarray(windows[:, 1:])
            targets[len(chosen) :] = IGNORED
            yield np.ascontiguousarray(windows[:, :-1]).reshape(-1), targets.reshape(-1)


def text_file(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise UserError(f"data.text: {path} does not exist") from None


def token_file(path: Path) -> np.ndarray:
    try:
        ids = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"data.tokens: {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"data.tokens: {path} is no NumPy file that can be read: {error}") from None
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise UserError(f"data.tokens: {path} must hold one array of whole numbers with one dimension")
    return ids.astype(np.int64)


def tokenizer_of(path: Path):
    path = path / WHOLE if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"data.tokenizer: {path} does not exist")
    return read_whole(path)


def train_tokenizer(texts: list[str], vocab_size: int, special: tuple[str, ...] = (END,)):
    """A byte-level BPE of this size. special: its first tokens. Every byte is a token, so that any text can be
    written."""
    import tokenizers

    if vocab_size < 257:
        raise UserError(f"model.vocab_size is {vocab_size}; a tokenizer that is trained has at least 257 tokens, one "
                        f"for each byte and {END}. Name a smaller one in data.tokenizer")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(special), show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer
