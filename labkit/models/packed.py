"""Checkpoints with quantised linear layers, in the layouts in which they are published; and such weights in a Blob.

    tensors = opened(read("model.safetensors"), config.quantization_config)
    tensors["model.layers.0.mlp.down_proj.weight"].read()     # labkit.kernels.linear.quantized.Quantized, (N, K)

Of a layer with weights (N, K), for `quant_method` in config.json, with words of eight nibbles, low ones first:

    awq                 qweight (K, N / 8), qzeros (K / group, N / 8), scales (K / group, N); a word's nibbles are
                        columns 0, 2, 4, 6, 1, 3, 5, 7 of eight
    gptq                qweight (K / 8, N), qzeros (K / group, N / 8) less 1 but in gptq_v2, scales (K / group, N)
    compressed-tensors  pack-quantized: weight_packed (N, K / 8), weight_scale (N, K / group), and weight_zero_point
                        (N / 8, K / group) where it is not symmetric; or bytes, with a scale for each row
                        float-quantized, int-quantized: weight (N, K), FP8 or int8, weight_scale (N, 1) or (1,)

Activations are never quantised here, whatever the configuration says of them.

Source  AutoAWQ's awq/modules/linear/gemm.py; AutoGPTQ's and GPTQModel's nn_modules/qlinear; compressed-tensors'
        compressors/quantized_compressors
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from labkit._common.errors import short
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.linear.quantized import E4M3, GROUPS, INT4, INT8, MIDDLE, STEP, TILE, Packed, Quantized
from labkit.models.blob import converted, is_bfloat16, layout
from labkit.models.safetensors import Named

FLOATS = ("F16", "BF16", "F32")
IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)  # the nibble of a word in which each of eight columns is
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
METHODS = ("awq", "gptq", "compressed-tensors")


class QuantizedTensor(NamedTuple):
    """A layer's weights (N, K), read when they are asked for. scale_dtype: of INT4. zeros: whether groups have them."""

    format: str
    group: int
    shape: tuple[int, int]
    scale_dtype: np.dtype
    zeros: bool
    read: Callable[[], Quantized]

    @property
    def dtype(self) -> str:
        return self.format


class Opened(Named):
    """A file's tensors, with a QuantizedTensor in the place of the parts of each quantised layer."""

    def __init__(self, tensors: Mapping, layers: Mapping[str, QuantizedTensor], parts: set[str]):
        self.path = getattr(tensors, "path", None)
        self._tensors, self._layers = tensors, layers
        headers = getattr(tensors, "entries", tensors)
        self.entries = {name: headers[name] for name in tensors if name not in parts} | dict(layers)

    def __getitem__(self, name: str):
        return self._layers[name] if name in self._layers else self._tensors[name]


def opened(tensors: Mapping[str, np.ndarray], quantization: Mapping | None) -> Mapping:
    """Return the tensors with quantised layers under the names of their weights. quantization: quantization_config of
    config.json; None, or tensors that are opened already: they are returned as they are."""
    if quantization is None or isinstance(tensors, Opened):
        return tensors
    layers, parts = {}, set()
    for name in tensors:
        base, _, suffix = name.rpartition(".")
        header = getattr(tensors, "entries", {}).get(name)
        if suffix in ("qweight", "weight_packed") or (suffix == "weight" and header and header.dtype in EIGHT_BITS):
            layer = Layer(tensors, base)
            layers[f"{base}.weight"] = opener(quantization, base)(layer)
            parts |= {f"{base}.{each}" for each in (suffix, *PARTS) if f"{base}.{each}" in tensors}
    if not layers:
        raise ValueError(f"quantization_config names {quantization['quant_method']!r}, but none of the "
                         f"{len(tensors):,} tensors is quantised")
    return Opened(tensors, layers, parts)


EIGHT_BITS = {"F8_E4M3": E4M3, "I8": INT8}  # the type of a weight in a file -> its format
PARTS = ("qzeros", "scales", "g_idx", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
         "input_scale", "input_zero_point")


# --- The configuration ------------------------------------------------------------------------------------------------


def check_quantization(quantization: Mapping) -> None:
    """Raise ValueError, naming the setting, unless such checkpoints can be read."""
    method = quantization.get("quant_method")
    if method not in METHODS:
        raise _unsupported("quant_method", method, METHODS)
    if method == "compressed-tensors":
        groups = quantization.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise ValueError(f"quantization_config: config_groups is {short(groups)}; it must be an object with one "
                             f"group or more")
        for group in groups.values():
            _check_group(group)
        return
    _check_setting(quantization, "bits", (4,))
    if method == "awq":
        version = str(quantization.get("version", "gemm")).lower()
        _check_setting({"version": version}, "version", ("gemm",))
        _check_setting(quantization, "zero_point", (True,))
    else:
        _check_setting(quantization, "checkpoint_format", (None, "gptq", "gptq_v2"))


def _check_group(group) -> None:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    targets = group.get("targets") if isinstance(group, Mapping) else None
    named = isinstance(targets, list) and all(isinstance(target, str) for target in targets)
    if not named or not isinstance(weights, Mapping):
        raise ValueError(f"quantization_config: a group of config_groups is {short(group)}; it must have targets, a "
                         f"list of names, and weights, an object")
    kind = (weights.get("type"), weights.get("num_bits"))
    if kind not in (("int", 4), ("int", 8), ("float", 8)):
        raise ValueError(f"quantization_config: weights are of type {short(kind[0])} with num_bits {short(kind[1])}; "
                         f"int with 4 or 8 and float with 8 can be computed here")
    _check_setting(weights, "strategy", ("group", "channel") if kind == ("int", 4) else ("channel", "tensor"))
    if kind != ("int", 4):
        _check_setting(weights | {"symmetric": weights.get("symmetric", True)}, "symmetric", (True,))


def _check_setting(settings: Mapping, name: str, allowed: tuple) -> None:
    if settings.get(name) not in allowed:
        raise _unsupported(name, settings.get(name), allowed)


def _unsupported(name: str, value, allowed: Sequence) -> ValueError:
    listed = [repr(one) for one in allowed if one is not None][:5]
    return ValueError(f"quantization_config: {name} is {short(value)}; only {' and '.join(listed)} can be computed "
                      f"here")


def opener(quantization: Mapping, base: str) -> Callable[[Layer], QuantizedTensor]:
    """Return the function that reads the layer called `base`."""
    if quantization["quant_method"] == "awq":
        return read_awq
    if quantization["quant_method"] == "gptq":
        offset = 0 if quantization.get("checkpoint_format") == "gptq_v2" else 1
        return lambda layer: read_gptq(layer, offset)
    for group in quantization["config_groups"].values():
        if any(target == "Linear" or base == target or base.endswith(f".{target}")
               or (target.startswith("re:") and re.match(target[3:], base)) for target in group["targets"]):
            return lambda layer: read_compressed(layer, group["weights"])
    raise ValueError(f"{base} is quantised, but no group of quantization_config targets it")


# --- One layer --------------------------------------------------------------------------------------------------------


class Layer:
    """The parts of a quantised layer in a file, each checked as it is taken."""

    def __init__(self, tensors: Mapping[str, np.ndarray], base: str):
        self.tensors, self.base = tensors, base

    def __contains__(self, part: str) -> bool:
        return f"{self.base}.{part}" in self.tensors

    def bad(self, part: str, problem: str) -> ValueError:
        return ValueError(f"{self.base}.{part} {problem}")

    def words(self, part: str, shape: tuple | None = None) -> np.ndarray:
        """Words of int32, as uint32."""
        array = self.array(part, shape)
        if array.dtype not in (np.int32, np.uint32):
            raise self.bad(part, f"is of type {array.dtype}; it must be int32")
        return array.view(np.uint32)

    def scales(self, part: str, shape: tuple | None = None) -> np.ndarray:
        """Scales as float16, or as bfloat16 in uint16, to which float32 is rounded."""
        array, name = self.array(part, shape), f"{self.base}.{part}"
        bfloat16 = is_bfloat16(self.tensors, name)
        if array.dtype.kind != "f" and not bfloat16:
            raise self.bad(part, f"is of type {array.dtype}; it must be float16, bfloat16 or float32")
        if not np.isfinite(float32_of(array) if bfloat16 else array).all():
            raise self.bad(part, "holds numbers that are not finite")
        return array if bfloat16 or array.dtype == np.float16 else bfloat16_of(array)

    def float32_scales(self, part: str, rows: int) -> np.ndarray:
        """A scale for each row, (rows, 1); a file may have one for all."""
        array, name = self.array(part, ...), f"{self.base}.{part}"
        if array.shape not in ((rows, 1), (rows,), (1, 1), (1,), ()):
            raise self.bad(part, f"has shape {array.shape}; a scale for each of {rows} rows, or one for all, can be "
                                 f"computed here")
        self.scales(part, array.shape)  # the checks
        scales = converted(array, np.float32, is_bfloat16(self.tensors, name))
        return np.ascontiguousarray(np.broadcast_to(scales.reshape(-1, 1), (rows, 1)))

    def check_order(self, part: str, columns: int, groups: int) -> None:
        """Raise ValueError unless column k belongs to group k // group."""
        if part in self:
            expected = np.arange(columns) // (columns // groups)
            if not np.array_equal(self.array(part, (columns,)), expected):
                raise self.bad(part, "puts columns into groups out of their order (desc_act, or actorder='group'); "
                                     "only columns in order can be computed here")

    def array(self, part: str, shape: tuple | None = None) -> np.ndarray:
        """shape: which it must have; None: any of two axes; ...: any."""
        name = f"{self.base}.{part}"
        if name not in self.tensors:
            raise ValueError(f"{name} is missing, which the quantised layer needs")
        array = self.tensors[name]
        fits = array.ndim == 2 if shape is None else shape is ... or array.shape == shape
        if not fits or array.size == 0:
            raise self.bad(part, f"has shape {array.shape}; it must be {shape or 'of two axes'}, none empty")
        return array

    def in_groups(self, part: str, codes: Callable[[], np.ndarray], shape: tuple[int, int], scales: np.ndarray,
                  zeros: np.ndarray | None) -> QuantizedTensor:
        """Return the layer in INT4. part: which is named if no group size suits. scales and zeros: (N, groups). Groups
        that are larger than those of the kernels become several with the same scale."""
        rows, columns = shape
        width, uneven = divmod(columns, scales.shape[1])
        group = max((size for size in GROUPS if width % size == 0), default=0)
        if uneven or not group:
            raise self.bad(part, f"makes {scales.shape[1]} groups of {columns} columns; groups must be of 32, 64, 128 "
                                 f"or a multiple of those")
        if zeros is not None and (zeros == MIDDLE).all():
            zeros = None
        scales, zeros = (None if each is None else np.ascontiguousarray(np.repeat(each, width // group, axis=1))
                         for each in (scales, zeros))
        return QuantizedTensor(INT4, group, shape, scales.dtype, zeros is not None,
                               lambda: Quantized(INT4, group, np.ascontiguousarray(codes()), scales, zeros))


def nibbles(words: np.ndarray, order: Sequence[int] = IN_ORDER) -> np.ndarray:
    """(R, W) words of 32 bits -> (R, 8 * W) nibbles as uint8. order: the nibble in which each of eight columns is."""
    shifts = 4 * np.array(order, np.uint32)
    return (words[:, :, None] >> shifts & 15).astype(np.uint8).reshape(words.shape[0], -1)


def read_awq(layer: Layer) -> QuantizedTensor:
    qweight = layer.words("qweight")
    columns, rows = qweight.shape[0], 8 * qweight.shape[1]
    scales = layer.scales("scales")
    groups = scales.shape[0]
    scales = layer.scales("scales", (groups, rows))
    zeros = nibbles(layer.words("qzeros", (groups, rows // 8)), AWQ_ORDER)
    return layer.in_groups("scales", lambda: nibbles(qweight, AWQ_ORDER).T, (rows, columns), scales.T, zeros.T)


def read_gptq(layer: Layer, offset: int) -> QuantizedTensor:
    """offset: what the file's zeros are less than those that are meant; 0 is 15 plus 1 there."""
    qweight = layer.words("qweight")
    columns, rows = 8 * qweight.shape[0], qweight.shape[1]
    groups = layer.scales("scales").shape[0]
    scales = layer.scales("scales", (groups, rows))
    zeros = nibbles(layer.words("qzeros", (groups, -(-rows // 8))))[:, :rows] + np.uint8(offset) & 15
    layer.check_order("g_idx", columns, groups)
    return layer.in_groups("scales", lambda: nibbles(np.ascontiguousarray(qweight.T)), (rows, columns), scales.T,
                           zeros.T)


def read_compressed(layer: Layer, weights: Mapping) -> QuantizedTensor:
    """weights: the settings of the layer's group."""
    if "weight_packed" not in layer:
        return _read_bytes(layer, weights)
    shape = tuple(map(int, layer.array("weight_shape", (2,))))
    rows, columns = shape
    per_word = 32 // weights["num_bits"]
    if min(shape) < 1:
        raise layer.bad("weight_shape", f"is {shape}; both must be at least 1")
    packed = layer.words("weight_packed", (rows, -(-columns // per_word)))
    if weights["num_bits"] == 8:
        def codes() -> np.ndarray:  # -128 is stored as 0
            return (np.ascontiguousarray(packed).view(np.uint8)[:, :columns] ^ 0x80).view(np.int8)

        scales = layer.float32_scales("weight_scale", rows)
        return QuantizedTensor(INT8, 0, shape, np.dtype(np.float32), False, lambda: Quantized(INT8, 0, codes(), scales))
    groups = layer.scales("weight_scale").shape[1]
    scales = layer.scales("weight_scale", (rows, groups))
    zeros = None
    if not weights.get("symmetric", True):
        if layer.array("weight_zero_point").dtype == np.int8:  # as older versions write them
            zeros = layer.array("weight_zero_point", (rows, groups)).view(np.uint8) + np.uint8(MIDDLE) & 15
        else:
            zeros = nibbles(layer.words("weight_zero_point", (-(-rows // 8), groups)).T)[:, :rows].T
    layer.check_order("weight_g_idx", columns, groups)
    return layer.in_groups("weight_scale", lambda: nibbles(packed)[:, :columns], shape, scales, zeros)


def _read_bytes(layer: Layer, weights: Mapping) -> QuantizedTensor:
    """A weight of FP8 or int8 under its own name."""
    codes = layer.array("weight")
    format = EIGHT_BITS[layer.tensors.entries[f"{layer.base}.weight"].dtype]
    if format != (E4M3 if weights["type"] == "float" else INT8) or weights["num_bits"] != 8:
        raise layer.bad("weight", f"is {format}; quantization_config says {weights['type']} with num_bits "
                                  f"{weights['num_bits']}")
    if format == E4M3 and (codes & 0x7F == 0x7F).any():
        raise layer.bad("weight", "holds NaN (0x7F or 0xFF)")
    scales = layer.float32_scales("weight_scale", codes.shape[0])
    return QuantizedTensor(format, 0, codes.shape, np.dtype(np.float32), False,
                           lambda: Quantized(format, 0, codes, scales))


# --- In a Blob --------------------------------------------------------------------------------------------------------


def stacked(parts: Sequence[QuantizedTensor], stack: Callable = np.concatenate) -> QuantizedTensor:
    """Return several layers with the same input as one. stack: a list of arrays (N, ...) -> one."""
    first = parts[0]
    with_zeros = any(part.zeros for part in parts)

    def read() -> Quantized:
        layers = [part.read() for part in parts]
        zeros = None
        if with_zeros:
            zeros = stack([np.full(one.scales.shape, MIDDLE, np.uint8) if one.zeros is None else one.zeros
                           for one in layers])
        return Quantized(first.format, first.group, stack([one.codes for one in layers]),
                         stack([one.scales for one in layers]), zeros)

    rows = stack([np.empty((part.shape[0], 1), np.uint8) for part in parts]).shape[0]
    return first._replace(shape=(rows, first.shape[1]), zeros=with_zeros, read=read)


def arrays_of(tensor: QuantizedTensor):
    """Return where words, scales and zeros lie in the bytes of a packed weight, and how many bytes these are."""
    tiles, columns = -(-tensor.shape[0] // TILE), tensor.shape[1]
    shapes = {"words": (tiles, -(-columns // STEP[tensor.format]), 32, 4)}
    if tensor.format == INT4:
        shapes |= dict.fromkeys(("scales", "zeros")[: 1 + tensor.zeros], (tiles, columns // tensor.group, 8))
    else:
        shapes["scales"] = tensor.shape[:1]
    return layout(shapes, {name: np.uint32 if name != "scales" or tensor.format == INT4 else np.float32
                           for name in shapes})


def as_bytes(tensor: QuantizedTensor) -> np.ndarray:
    """Read a weight, and return it as the kernels take it, in one array of bytes."""
    entries, nbytes = arrays_of(tensor)
    packed, result = tensor.read().pack(), np.zeros(nbytes, np.uint8)
    for name, entry in entries.items():
        array = np.ascontiguousarray(getattr(packed, name), entry.dtype)
        result[entry.offset : entry.offset + entry.nbytes] = array.reshape(-1).view(np.uint8)
    return result


def views(tensor: QuantizedTensor, memory) -> Packed:
    """Return the packed weight whose bytes lie in device memory."""
    entries, _ = arrays_of(tensor)
    arrays = {name: memory[entry.offset : entry.offset + entry.nbytes].view(entry.dtype).reshape(entry.shape)
              for name, entry in entries.items()}
    return Packed(tensor.format, tensor.group, *tensor.shape, arrays["words"], arrays["scales"], arrays.get("zeros"),
                  tensor.scale_dtype)
