"""A checkpoint: a folder in Hugging Face's form, with what a run needs to continue beside it.

    config.json, model.safetensors, tokenizer.json       the model: labkit generate, serve and transformers load it
    tokenizer_config.json                                of the tokenizer's folder, if it has one: a chat template, say
    optimizer.safetensors                                master, m, v: flat float32 arrays in the buffer's order
    training.json                                        the step, the settings and the losses so far

Each step's windows depend on the seed and the step's number, so these are the generator's whole state. The folder
is replaced as a whole: after a kill or on a full disk the one before stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from labkit import device
from labkit._common.errors import UserError, short
from labkit._common.files import read_json, read_text, recover_folder, whole_folder, write_text
from labkit.kernels.dtypes import float64_of, of_dtype
from labkit.models.chat import TOKENIZER_CONFIG, special_tokens
from labkit.models.configs import GPT2Config
from labkit.models.dtypes import DTYPES
from labkit.models.load import WEIGHTS
from labkit.models.safetensors import read, write
from labkit.models.tokenizer import CONFIG, WHOLE
from labkit.train.parameters import elements
from labkit.train.settings import Settings
from labkit.train.texts import END
from labkit.train.trainer import Trainer

OPTIMIZER, TRAINING = "optimizer.safetensors", "training.json"


def save(path: Path, trainer: Trainer, draw: Callable[[Path, list], None] | None = None) -> None:
    """Write the folder. draw(folder, log): adds pictures of the losses."""
    buffer, settings = trainer.buffer, trainer.settings
    with whole_folder(Path(path)) as folder:
        tokenizer_config = settings.folder / settings.data.tokenizer / TOKENIZER_CONFIG
        if settings.data.tokenizer and tokenizer_config.is_file():
            write_text(folder / TOKENIZER_CONFIG, read_text(tokenizer_config))
        marks = marks_of(tokenizer_config, trainer.texts.tokenizer)
        write_text(folder / CONFIG, json.dumps(config_json(settings) | marks, indent=1))
        tensors = buffer.tensors()
        if stored := settings.train.stored:
            tensors = {name: of_dtype(float64_of(one), DTYPES[stored]) for name, one in tensors.items()}
        write(folder / WEIGHTS, tensors, {name: "BF16" for name, one in tensors.items() if one.dtype == np.uint16})
        write(folder / OPTIMIZER, {name: getattr(buffer, name).copy_to_host() for name in ("master", "m", "v")})
        write_text(folder / WHOLE, trainer.texts.tokenizer.to_str())
        tokens = {"train": trainer.texts.tokens.size, "held_out": trainer.texts.held_out.size}
        write_text(folder / TRAINING, json.dumps({"step": trainer.step, "device": device.name(), "tokens": tokens,
                                                  "settings": settings.entries, "log": trainer.log}, indent=1))
        if draw is not None:
            draw(folder, trainer.log)


def config_json(settings: Settings) -> dict:
    """What a model's config.json says: the fields of the settings, and what transformers would assume otherwise."""
    gpt2 = isinstance(settings.model, GPT2Config)
    facts = ({"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
              "tie_word_embeddings": True} if gpt2 else
             {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "attention_bias": False, "mlp_bias": False})
    fields = {name: value for name, value in vars(settings.model).items() if not name.startswith("_")
              and name in type(settings.model).__dataclass_fields__ and value is not None}
    return facts | fields | {"model_type": settings.entries["model"]["model_type"],
                             "torch_dtype": settings.train.stored or settings.train.dtype}


def marks_of(tokenizer_config: Path, tokenizer) -> dict:
    """The tokens that begin and end a text, as config.json names them: tokenizer_config.json's, and END's."""
    special = special_tokens(read_json(tokenizer_config)) if tokenizer_config.is_file() else {}
    begin, *ends = (tokenizer.token_to_id(token) for token in (special.get("bos_token", END),
                                                               special.get("eos_token", END), END))
    ends = [*dict.fromkeys(token for token in ends if token is not None)]
    return {"bos_token_id": begin, "eos_token_id": ends if len(ends) > 1 else ends[0] if ends else None}


def load(path: Path, settings: Settings) -> dict:
    """What Trainer needs to continue: state, step and log. Raises UserError if there is no checkpoint, or if it is of
    other settings."""
    path = Path(path)
    recover_folder(path)
    try:
        training, tensors = read_json(path / TRAINING), read(path / OPTIMIZER)
    except FileNotFoundError as error:
        raise UserError(f"{path} holds no checkpoint to resume: {Path(error.filename).name} is missing") from None
    before = training.get("settings")
    for table in ("model", "data", "train"):
        old, new = (dict(one.get(table, {})) for one in (before, settings.entries))
        for key in sorted({*old, *new}):
            if key in ("save_every", "held_out_every"):
                continue
            if old.get(key) != json.loads(json.dumps(new.get(key))):
                raise UserError(f"{table}.{key} is {short(new.get(key))}; the run in {path} began with "
                                f"{short(old.get(key))}, and only the same settings continue it")
    state = {}
    for name in ("master", "m", "v"):
        if name not in tensors or tensors[name].shape != (elements(settings.model),):
            raise UserError(f"{path / OPTIMIZER}: {name} is missing, or is not of this model")
        state[name] = np.array(tensors[name])
    return {"state": state, "step": training["step"], "log": training["log"]}
