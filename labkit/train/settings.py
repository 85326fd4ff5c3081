"""The settings of a training run: a TOML file, each value of which is checked before anything runs.

    settings = Settings.read("data/minute.toml")
    settings.model                     # a GPT2Config or a LlamaConfig
    settings.train.rates()             # (steps,) float32: the learning rate of each step

Paths in the file are relative to its folder.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labkit._common.errors import UserError, did_you_mean, names_like, short
from labkit._common.files import read_text
from labkit.models.configs import GPT2Config, LlamaConfig

MODELS = {"gpt2": GPT2Config, "llama": LlamaConfig}
HEAD_SIZES = (32, 64, 128)  # of attention's kernels

COUNT = (lambda value: type(value) is int and value >= 1, "a whole number of at least 1")
NATURAL = (lambda value: type(value) is int and value >= 0, "a whole number of at least 0")
POSITIVE = (lambda value: type(value) in (int, float) and 0 < value < math.inf, "a number above 0")
NON_NEGATIVE = (lambda value: type(value) in (int, float) and 0 <= value < math.inf, "a number of at least 0")
SHARE = (lambda value: type(value) in (int, float) and 0 < value < 1, "a number between 0 and 1")
PART = (lambda value: type(value) in (int, float) and 0 <= value <= 1, "a number from 0 to 1")
PAIR = (lambda value: isinstance(value, list | tuple) and len(value) == 2 and all(map(SHARE[0], value)),
        "two numbers between 0 and 1")
DTYPE = (lambda value: value in ("float32", "bfloat16"), '"float32" or "bfloat16"')
STORED = (lambda value: value in ("", "float32", "bfloat16", "float16"), '"float32", "bfloat16" or "float16"')
PATHS = (lambda value: isinstance(value, list | tuple) and all(isinstance(path, str) for path in value),
         "a list of paths")
SHARE_OR_PATHS = (lambda value: SHARE[0](value) or bool(value) and PATHS[0](value), f"{SHARE[1]}, or {PATHS[1]}")
PATH = (lambda value: isinstance(value, str), "a path")


def setting(rule: tuple, default):
    return field(default=default, metadata={"rule": rule})


class Section:
    """The base of the dataclasses below, each a table of the file."""

    @classmethod
    def of(cls, entries, where: str):
        if not isinstance(entries, Mapping):
            raise UserError(f"{where} is {short(entries)}; it must be a table of settings")
        fields = {one.name: one for one in dataclasses.fields(cls)}
        for key, value in entries.items():
            if key not in fields:
                raise UserError(f"{where}.{key} is no setting; {did_you_mean(names_like(key, fields))} Allowed are "
                                f"{', '.join(fields)}")
            is_valid, description = fields[key].metadata["rule"]
            if not is_valid(value):
                raise UserError(f"{where}.{key} is {short(value)}; it must be {description}")
        return cls(**entries)


@dataclass(frozen=True)
class Data(Section):
    """text: files in UTF-8, or tokens: NumPy files (.npy) of token ids. held_out: the share at their end that is not
    trained on, or more files of the same kind. tokenizer: a folder with tokenizer.json, or that file; "" trains one of
    the model's vocab_size on the text. from_start: the share of each batch's windows that begin with a text, at
    <|endoftext|>; the others begin anywhere."""

    text: list[str] = setting(PATHS, ())
    tokens: list[str] = setting(PATHS, ())
    held_out: float | list[str] = setting(SHARE_OR_PATHS, 0.1)
    from_start: float = setting(PART, 0.0)
    tokenizer: str = setting(PATH, "")


@dataclass(frozen=True)
class Train(Section):
    """batch: sequences in a pass; accumulation: passes in a step; save_every, held_out_every: in steps. stored: the
    type of the weights in a checkpoint's model.safetensors; that of the run if left out."""

    steps: int = setting(COUNT, 1000)
    batch: int = setting(COUNT, 8)
    length: int = setting(COUNT, 128)
    accumulation: int = setting(COUNT, 1)
    learning_rate: float = setting(POSITIVE, 1e-3)
    least_rate: float = setting(NON_NEGATIVE, 1e-4)
    warm_up: int = setting(NATURAL, 100)
    weight_decay: float = setting(NON_NEGATIVE, 0.1)
    betas: list[float] = setting(PAIR, (0.9, 0.95))
    clip: float = setting(POSITIVE, 1.0)
    dtype: str = setting(DTYPE, "float32")
    stored: str = setting(STORED, "")
    seed: int = setting(NATURAL, 0)
    save_every: int = setting(COUNT, 500)
    held_out_every: int = setting(COUNT, 100)

    def rates(self) -> np.ndarray:
        """Rise linearly over warm_up steps, then fall along half a cosine to least_rate."""
        step = np.arange(self.steps)
        progress = np.clip((step - self.warm_up) / max(1, self.steps - self.warm_up), 0, 1)
        cosine = self.least_rate + (self.learning_rate - self.least_rate) * (1 + np.cos(np.pi * progress)) / 2
        rising = self.learning_rate * (step + 1) / max(1, self.warm_up)
        return np.where(step < self.warm_up, rising, cosine).astype(np.float32)


@dataclass(frozen=True)
class Settings:
    """entries: the file's tables as they are, which a checkpoint repeats. folder: what paths are relative to."""

    model: GPT2Config | LlamaConfig
    data: Data
    train: Train
    entries: dict
    folder: Path

    @classmethod
    def read(cls, path: Path) -> Settings:
        path = Path(path)
        try:
            entries = tomllib.loads(read_text(path))
        except FileNotFoundError:
            raise UserError(f"{path} does not exist; data/minute.toml is an example of such a file") from None
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path} is no TOML: {error}") from None
        try:
            return cls.of(entries, path.parent)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @classmethod
    def of(cls, entries: Mapping, folder: Path = Path()) -> Settings:
        tables = ("model", "data", "train")
        for key in entries:
            if key not in tables:
                raise UserError(f"{key} is no table; allowed are {', '.join(tables)}")
        train = Train.of(entries.get("train", {}), "train")
        data = Data.of(entries.get("data", {}), "data")
        if bool(data.text) == bool(data.tokens):
            raise UserError(f"data.text is {short(data.text)} and data.tokens {short(data.tokens)}; exactly one of "
                            f"them must name files")
        if data.tokens and not data.tokenizer:
            raise UserError("data.tokenizer is missing; with data.tokens it must name the tokenizer that made them")
        if train.warm_up > train.steps:
            raise UserError(f"train.warm_up is {train.warm_up:,}; it must be at most train.steps, {train.steps:,}")
        if train.least_rate > train.learning_rate:
            raise UserError(f"train.least_rate is {train.least_rate}; it must be at most train.learning_rate, "
                            f"{train.learning_rate}")
        return cls(model_of(entries.get("model", {}), train), data, train, dict(entries), Path(folder))


def model_of(entries, train: Train) -> GPT2Config | LlamaConfig:
    """The model's shape: model_type, and the fields of its config.json."""
    if not isinstance(entries, Mapping) or entries.get("model_type") not in MODELS:
        given = short(entries.get("model_type")) if isinstance(entries, Mapping) else short(entries)
        raise UserError(f"model.model_type is {given}; it must be {' or '.join(map(repr, MODELS))}")
    kind = MODELS[entries["model_type"]]
    fields = ["model_type", *(one.name for one in dataclasses.fields(kind))]
    for key in entries:
        if key not in fields:
            raise UserError(f"model.{key} is no setting of a {entries['model_type']}; allowed are {', '.join(fields)}")
    try:
        config = kind.of(entries, "model")
    except ValueError as error:
        raise UserError(str(error)) from None
    gpt2 = kind is GPT2Config
    positions = config.n_positions if gpt2 else config.max_position_embeddings
    size = config.n_embd // config.n_head if gpt2 else config.head_dim
    if size not in HEAD_SIZES:
        raise UserError(f"model: a head has {size} elements; {', '.join(map(str, HEAD_SIZES))} are allowed")
    if train.length > positions:
        raise UserError(f"train.length is {train.length:,}; the model has {positions:,} positions")
    return config
