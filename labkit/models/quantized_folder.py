"""Write a model's folder with its linear layers quantised, in the layout of compressed-tensors, as packed.py reads it.

    write_folder(Path("llama"), Path("llama-int4"), Scheme(INT4, 64), texts)

Linear layers are those of INPUTS (quantize.py); the embedding, the head and the norms stay as they are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from labkit._common.files import read_json, whole_folder
from labkit.kernels.dtypes import bfloat16_of
from labkit.kernels.linear.quantized import E4M3, INT4, INT8, Quantized
from labkit.models.configs import LlamaConfig, names_in
from labkit.models.gpt2_reference import weights_of
from labkit.models.load import INDEX, PATTERNS, WEIGHTS, tensors
from labkit.models.quantize import Scheme, quantize
from labkit.models.safetensors import write
from labkit.models.tokenizer import CONFIG


def write_folder(source: Path, out: Path, config: LlamaConfig, scheme: Scheme,
                 texts: Sequence[Sequence[int]] | None = None,
                 progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Quantise the model in the folder `source` into the new folder `out`, which is written whole or not at all.

    texts: token ids to calibrate GPTQ with; None: round to nearest. Raises ValueError for what cannot be quantised.
    """
    if config.quantization_config is not None:
        raise ValueError("the model is quantised already")
    files = tensors(source)
    names, w = names_in(files, config), weights_of(files, config)
    with whole_folder(out) as folder:
        arrays, dtypes = {}, {}
        for param, quantized in quantize(config, w, scheme, texts, progress):
            base = names[param].removesuffix(".weight")
            for part, (array, dtype) in parts_of(quantized).items():
                arrays[f"{base}.{part}"], dtypes[f"{base}.{part}"] = array, dtype
            del names[param]
        for name in names.values():
            arrays[name], dtypes[name] = files[name], files.entries[name].dtype
        write(folder / WEIGHTS, arrays, dtypes)
        entries = read_json(source / CONFIG) | {"quantization_config": configuration(scheme)}
        (folder / CONFIG).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
        for pattern in PATTERNS:
            for file in source.glob(pattern):
                if file.suffix != ".safetensors" and file.name not in (CONFIG, INDEX):
                    shutil.copyfile(file, folder / file.name)


def parts_of(quantized: Quantized) -> dict[str, tuple[np.ndarray, str]]:
    """The tensors of a layer by the ends of their names, each with the name of its type in a file."""
    scales = quantized.scales if quantized.format == INT4 else bfloat16_of(quantized.scales)  # exact: see scales_of
    if quantized.format == E4M3:
        return {"weight": (quantized.codes, "F8_E4M3"), "weight_scale": (scales, "BF16")}
    parts = {"weight_packed": (words_of(quantized.codes, quantized.format), "I32"), "weight_scale": (scales, "BF16"),
             "weight_shape": (np.array(quantized.codes.shape, np.int64), "I64")}
    if quantized.zeros is not None:
        zeros = words_of(np.ascontiguousarray(quantized.zeros.T), INT4).T
        parts["weight_zero_point"] = (np.ascontiguousarray(zeros), "I32")
    return parts


def words_of(codes: np.ndarray, format: str) -> np.ndarray:
    """Codes (R, K) as words of int32, the first in the lowest bits: (R, K / 8) of INT4, (R, K / 4) of INT8."""
    if format == INT8:
        padded = np.pad(codes.view(np.uint8) ^ 0x80, ((0, 0), (0, -codes.shape[1] % 4)))
        return padded.view(np.int32)
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8)))
    pairs = padded.reshape(codes.shape[0], -1, 2)
    return np.ascontiguousarray(pairs[:, :, 0] | pairs[:, :, 1] << 4).view(np.int32)


def configuration(scheme: Scheme) -> Mapping:
    """What config.json says of the layers, with the names and the defaults of compressed-tensors."""
    is_float = scheme.format == E4M3
    weights = {
        "num_bits": 4 if scheme.format == INT4 else 8, "type": "float" if is_float else "int",
        "symmetric": not scheme.zeros, "strategy": "group" if scheme.group else "channel",
        "group_size": scheme.group or None, "dynamic": False, "actorder": None, "block_structure": None,
        "observer": "minmax", "observer_kwargs": {},
    }  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": "float-quantized" if is_float else "pack-quantized",
            "quantization_status": "compressed", "config_groups": {"group_0": group}, "ignore": ["lm_head"],
            "kv_cache_scheme": None, "global_compression_ratio": None}
