"""A model against its reference, launch by launch: which launch is the first that computes something else?

    result = compare("tiny", "recursion:")                        # a GPT-2, a Llama, a Qwen3 or a sentence encoder
    result.numpy.first                                           # None, or the first launch out of tolerance
    compare("minilm", "Why is my kernel slow?", transformers=True)   # beside it, what transformers computes

The reference is NumPy in float64, from the weights as the model's type rounds them. A Llama's launches are each given
the model's own earlier outputs; in GPT-2 and MiniLM errors accumulate, and so do the tolerances. transformers
computes whole layers in float64, from the weights as they are in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit._common.errors import UserError
from labkit._common.files import read_json, whole_file
from labkit.kernels.elements import ELEMENTS
from labkit.kernels.tolerance import EPS32
from labkit.models import gpt2_reference, llama_reference, minilm_reference, weights
from labkit.models.dtypes import DTYPES
from labkit.models.gpt2 import GPT2
from labkit.models.gpt2_block import allowed_error
from labkit.models.gpt2_reference import Difference, Parity
from labkit.models.llama import Llama
from labkit.models.load import CONFIG, folder, load
from labkit.models.minilm import MiniLM
from labkit.models.sentences import Encoder, folder_of

ENCODER = "bert"  # model_type of a sentence encoder
# Where transformers keeps the module whose output is this activation of ours; {} is the layer's number.
MODULES = {
    GPT2: {"embedding": "transformer.drop", "h.{}.out": "transformer.h.{}", "ln_f": "transformer.ln_f",
           "logits": "lm_head"},
    Llama: {"embedding": "model.embed_tokens", "layers.{}.out": "model.layers.{}", "norm": "model.norm",
            "logits": "lm_head"},
    MiniLM: {"embedding": "embeddings", "layer.{}.out": "encoder.layer.{}"},
}


@dataclass(frozen=True)
class Comparison:
    """numpy: every launch. transformers: the layers, if they were asked for."""

    model: object
    ids: list[int]
    numpy: Parity
    transformers: Parity | None = None

    @property
    def passed(self) -> bool:
        return self.numpy.passed and (self.transformers is None or self.transformers.passed)


def compare(name: str, text: str, *, dtype: str = "auto", transformers: bool = False, dump: Path | None = None,
            progress: Callable[[str], None] = lambda doing: None) -> Comparison:
    """Run `text` through the model called `name`, and compare what each launch wrote with the reference.

    name: as labkit.models.load takes it, or a sentence encoder's, such as minilm. dtype: of the model, as
    labkit.models.load takes it. dump: a folder; each launch becomes an .npz in it with `ours` and `reference`.
    progress: gets each step's name. Raises UserError for a model, a text or a dtype that cannot be computed.
    """
    progress(f"Loading {name}")
    model, ids, path = _open(name, text, dtype)
    return compare_model(model, ids, path if transformers else None, dump=dump, progress=progress)


def compare_model(model: GPT2 | Llama | MiniLM, ids: list[int], path: Path | None = None, *,
                  dump: Path | None = None, progress: Callable[[str], None] = lambda doing: None) -> Comparison:
    """Compare a model that is loaded, perhaps with kernels of your own. path: its folder, for transformers.

    The other arguments are those of `compare`.
    """
    written: dict[str, np.ndarray] = {}

    def compared(row: Difference, ours: np.ndarray, reference: np.ndarray) -> None:
        progress(f"Comparing {row.name}")
        if path is not None:
            written[row.name] = ours
        if dump is not None:
            _write(dump / f"{len(names):03}_{row.name}.npz", ours=ours, reference=reference)
        names.append(row.name)

    names: list[str] = []
    progress("Running the model and its reference (the first time, kernels are compiled)")
    if isinstance(model, MiniLM):
        numpy = minilm_reference.parity(model, [ids], compared=compared)
    elif isinstance(model, Llama):
        numpy = llama_reference.parity(model, [ids], compared=compared)
    else:
        numpy = gpt2_reference.parity(model, ids, compared)
    if path is None:
        return Comparison(model, ids, numpy)

    progress("Running transformers")
    rows = []
    for name, reference in _layers_of_transformers(model, path, ids).items():
        launches = names.index(name) + 1
        ours, reference = written[name], reference[-len(written[name]) :]  # of the logits, the last token's only
        rows.append(Difference.between(name, ours, reference, _allowed(model, reference, launches)))
        if dump is not None:
            _write(dump / f"{launches - 1:03}_{name}.transformers.npz", ours=ours, reference=reference)
    return Comparison(model, ids, numpy, Parity(tuple(rows), title="Layer by layer against transformers in float64"))


def _open(name: str, text: str, dtype: str) -> tuple:
    """The model, the token ids of the text, and the folder."""
    minilm = weights.MINILM
    if name in (minilm.name, minilm.repository, minilm.repository.rpartition("/")[2]):
        path = folder_of(name)
    else:
        path = folder(name)
    kind = read_json(path / CONFIG).get("model_type") if (path / CONFIG).is_file() else None
    if kind == "gpt2" and dtype == "float16":
        raise UserError(f"dtype is {dtype!r}; the launches of {name}, a GPT-2, are compared in 'float32'")
    if kind == ENCODER:
        encoder = Encoder.from_pretrained(path, dtype=dtype)
        return encoder.model, encoder.tokenizer.encode([text])[0].tolist(), path
    loaded = load(name, path=path, dtype=dtype)
    model = loaded.model
    ids = loaded.tokenizer.encode(text)
    if not ids:
        raise UserError("the prompt has no token; give it a word to begin with")
    max_tokens = model.positions if isinstance(model, Llama) else model.config.n_positions
    if len(ids) > max_tokens:
        raise UserError(f"the prompt has {len(ids):,} tokens; {name} has a context of {max_tokens:,}")
    return model, ids, path


def _write(path: Path, **arrays: np.ndarray) -> None:
    with whole_file(path) as file:
        np.savez(file, **arrays)


def _allowed(model, reference: np.ndarray, launches: int) -> float:
    """The error that may have added up after so many launches: one rounding of the type for each, as if independent."""
    config = model.config
    if isinstance(model, GPT2):
        return allowed_error(config, reference, launches)
    if isinstance(model, MiniLM):
        return allowed_error(config, reference, launches, model.dtype)
    largest = float(np.abs(reference).max())
    element = ELEMENTS[DTYPES[model.dtype]]
    if element.eps:
        return 4 * element.eps * np.sqrt(launches) * largest
    return EPS32 * np.sqrt(max(config.intermediate_size, config.hidden_size) * launches) * largest


def _layers_of_transformers(model, path: Path, ids: list[int]) -> dict[str, np.ndarray]:
    """What transformers computes of the same tokens in float64, by our names, without the batch axis."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UserError(f"--transformers needs PyTorch and transformers, and {error.name} is not installed: "
                        f"pip install torch transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    is_encoder = isinstance(model, MiniLM)
    kind = transformers.AutoModel if is_encoder else transformers.AutoModelForCausalLM
    try:
        hf_model = kind.from_pretrained(path, dtype=torch.float64, attn_implementation="eager", local_files_only=True)
    except Exception as error:  # the library has a kind of error for each
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"transformers cannot load {path}: {reason}") from None
    modules = next(names for ours, names in MODULES.items() if isinstance(model, ours))
    outputs: dict[str, np.ndarray] = {}  # in the order in which they are computed

    def record(name: str):
        def hook(module, args, output):
            output = output[0] if isinstance(output, tuple) else output
            outputs[name] = output.detach()[0].double().numpy()

        return hook

    for ours, module in modules.items():
        for layer in range(len(model.layers)) if "{}" in ours else (0,):
            hf_model.get_submodule(module.format(layer)).register_forward_hook(record(ours.format(layer)))
    with torch.inference_mode():
        hf_model.eval()(torch.tensor([ids]))
    return outputs
