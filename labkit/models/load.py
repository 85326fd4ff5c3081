"""A model that writes, with its tokenizer: from a folder, from the Hugging Face hub, or a tiny one trained here.

    loaded = load("tiny")                    # or "tiny-gpt2": data/tiny-gpt2, made by labkit train
    loaded = load("tiny-llama")              # data/tiny-llama, made by labkit train
    loaded = load("path/to/folder")          # with config.json, *.safetensors and a tokenizer
    loaded = load("openai-community/gpt2")   # downloaded once
    loaded.model, loaded.tokenizer
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit._common.errors import UserError, did_you_mean, names_like, short
from labkit._common.files import read_json
from labkit.models import configs, gpt2, llama, qwen3
from labkit.models.chat import TEMPLATE, TOKENIZER_CONFIG
from labkit.models.dtypes import chosen
from labkit.models.safetensors import Named, SafetensorsError, read
from labkit.models.tokenizer import CONFIG, GENERATION, Tokenizer

# model_type in config.json -> the shape and the model.
ARCHITECTURES = {"gpt2": (configs.GPT2Config, gpt2.GPT2), "llama": (configs.LlamaConfig, llama.Llama),
                 "qwen3": (configs.Qwen3Config, qwen3.Qwen3)}
TINY, TINY_LLAMA = "tiny", "tiny-llama"
TRAINED_HERE = {TINY: "tiny-gpt2", "tiny-gpt2": "tiny-gpt2", TINY_LLAMA: "tiny-llama"}  # name -> its folder in data/
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PATTERNS = [CONFIG, GENERATION, "*.safetensors", INDEX, "tokenizer.json", "vocab.json", "merges.txt", TOKENIZER_CONFIG,
            TEMPLATE]
NEEDED = f"{CONFIG}, {WEIGHTS}, and tokenizer.json or vocab.json with merges.txt"


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to run. seconds: how long reading, copying to the device and the tokenizer took."""

    name: str
    folder: Path
    model: gpt2.GPT2 | llama.Llama
    tokenizer: Tokenizer
    seconds: float

    @property
    def log(self) -> str:
        """One line on what was loaded."""
        config, nbytes = self.model.config, self.model.weights.nbytes
        return (f"{self.name}: {config.parameters / 1e6:.1f} M parameters, {config.size}, {nbytes / 1e6:.0f} MB on the "
                f"device, loaded in {self.seconds:.2f} s")


def load(name: str = TINY, kernels=None, path: Path | None = None, dtype="auto", **options) -> Loaded:
    """The model called `name`. kernels, options: of its kind. path: where it is, if that is known. dtype: "auto", which
    is float32 for a GPT-2, and for a Llama bfloat16, or float16 below compute capability 8.0; or one of those in which
    this kind is computed. Raises UserError if there is none, or if it is invalid."""
    start = time.perf_counter()
    path = path or folder(name)
    with reading(path, NEEDED):
        shape, architecture = ARCHITECTURES[model_type(path)]
    try:
        dtype = chosen(dtype, shape.kind)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {error}") from None
    with reading(path, NEEDED):
        config = shape.read(path / CONFIG)
        model = on_device(path, lambda weights: architecture(config, weights, kernels=kernels, dtype=dtype, **options))
        tokenizer = Tokenizer.of(path)
    check_vocabulary(path, tokenizer, config.vocab_size)
    return Loaded(name, path, model, tokenizer, time.perf_counter() - start)


def model_type(path: Path) -> str:
    """The kind of model in a folder; without a word on it, GPT-2, whose oldest files have none."""
    kind = read_json(path / CONFIG).get("model_type", "gpt2")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"{path / CONFIG}: model_type is {short(kind)}; only {', '.join(ARCHITECTURES)} can be "
                         f"computed here")
    return kind


@contextlib.contextmanager
def reading(path: Path, needed: str) -> Iterator[None]:
    """Raise errors from reading a model's folder as a UserError that names it. needed: the files that it must have."""
    try:
        yield
    except FileNotFoundError as error:
        problem = f"{Path(error.filename).name} is missing" if error.filename else str(error)
        raise UserError(f"{path} holds no model that can be loaded: {problem}. What is needed: {needed}") from None
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # of the weights, too: SafetensorsError is one
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def on_device(path: Path, model: Callable[[Mapping[str, np.ndarray]], object]):
    """model(tensors) of the folder's tensors; a ValueError about their numbers names their file."""
    weights = tensors(path)
    try:
        return model(weights)
    except ValueError as error:
        raise ValueError(f"{weights.path}: {error}") from None


def check_vocabulary(path: Path, tokenizer, size: int) -> None:
    """Raise UserError if the tokenizer has tokens outside the model's vocabulary."""
    if not tokenizer.fits(size):
        raise UserError(f"{path}: the tokenizer has tokens up to {tokenizer.largest_id:,}, the model those below its "
                        f"vocab_size, {size:,}")


def folder(name: str) -> Path:
    """Where the files of a model are; those of a hub's model are downloaded, if they are not there yet."""
    if name in TRAINED_HERE:
        from labkit._common.paths import find_root

        path = find_root() / "data" / TRAINED_HERE[name]
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is missing; the first lines of scripts/jargon.py say how to make it. A folder, or "
                            f"a model's name on the hub, such as openai-community/gpt2, is loaded as well")
        return path
    if os.path.isdir(name):
        return Path(name)
    return from_hub(name, PATTERNS, like=[] if "/" in name else names_like(name, TRAINED_HERE))


def from_hub(name: str, patterns: list[str], like: Sequence[str] = ()) -> Path:
    """The folder of a model's files that fit the patterns; downloaded, if they are not there yet. like: what may have
    been meant."""
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise UserError(f"there is no folder {name}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the library raises many types of errors
        hint = f"; {did_you_mean(like)}" if like else ""
        raise UserError(f"there is no folder {name} here, and from the Hugging Face hub it could not be had: "
                        f"{_reason(error)}{hint}") from None


def _reason(error: Exception) -> str:
    """Explain why a model could not be downloaded from the hub."""
    from huggingface_hub import errors

    for kind, text in ((errors.GatedRepoError, "its owner gives it only to those who have agreed to terms there"),
                       (errors.RepositoryNotFoundError, "there is no model of this name, or it is private"),
                       (errors.HFValidationError, "this is no name of a model"),
                       (errors.LocalEntryNotFoundError, "the hub is out of reach, and nothing was downloaded before")):
        if isinstance(error, kind):
            return text
    message = (str(error).removeprefix("Got: ").strip().splitlines() or [type(error).__name__])[0]

    if isinstance(error, ConnectionError) or "Connect" in message:
        return f"{message}. Is this machine online?"
    return message


def tensors(path: Path) -> Mapping[str, np.ndarray]:
    """The tensors of a model's folder: of one file, or of several that an index names."""
    if (path / WEIGHTS).is_file() or not (path / INDEX).is_file():
        return read(path / WEIGHTS)
    index = read_json(path / INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(file, str) and file == Path(file).name and "\0" not in file
                                              for file in index.values()):  # no path leads out of the folder
        raise SafetensorsError(f"{path / INDEX}: weight_map must say of each tensor in which file of this folder it "
                               f"is; it is {short(index)}")
    files = {file: read(path / file) for file in sorted(set(index.values()))}
    missing = [name for name, file in index.items() if name not in files[file]]
    if missing:
        raise SafetensorsError(f"{path / INDEX}: {missing[0]} should be in {index[missing[0]]}, but is not")
    return Shards(path / INDEX, {name: files[file] for name, file in index.items()})


class Shards(Named):
    """The tensors of a sharded model as one mapping."""

    def __init__(self, path: Path, shards: dict):
        self.path = path  # the index
        self._shards = shards  # name -> the Tensors of its file
        self.entries = {name: shard.entries[name] for name, shard in shards.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._shards[name][name]
