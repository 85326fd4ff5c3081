"""A Llama's linear layers in 8 and 4 bits, on the host: round to nearest, or GPTQ.

    scheme = Scheme(INT4, group=64)
    round_to_nearest(weights, scheme)                       # (N, K) -> labkit.kernels.linear.quantized.Quantized
    gptq(weights, hessian_of(inputs), scheme)               # later columns make up for the errors of earlier ones
    for name, quantized in quantize(config, w, scheme, texts): ...      # every linear layer of a model

Shapes  weights (N, K), inputs (T, K) of the layer, hessian (K, K); float32 or float64 in NumPy
Work    GPTQ: K*K*(2*T + K) flop for a Hessian and its inverse, 2*N*K*K for the weights
Source  E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2023)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.linear.quantized import CODES, E4M3, GROUPS, INT4, INT8, MIDDLE, Quantized, e4m3_codes, e4m3_value
from labkit.models.configs import EMBEDDING, LlamaConfig
from labkit.models.llama_reference import layer_activations

# Each linear layer and the activation that is its input.
INPUTS = {
    "self_attn.q_proj": "input_norm", "self_attn.k_proj": "input_norm", "self_attn.v_proj": "input_norm",
    "self_attn.o_proj": "attended", "mlp.gate_proj": "post_norm", "mlp.up_proj": "post_norm",
    "mlp.down_proj": "gated",
}  # fmt: skip
LARGEST = {INT4: 7.5, INT8: 127.0, E4M3: 448.0}  # the code of the largest weight; +7.5 is rounded to 7, -7.5 to -8
DAMPING = 0.01  # added to the Hessian's diagonal, relative to its mean
BLOCK = 128  # columns whose errors reach the columns after them in one product


@dataclass(frozen=True)
class Scheme:
    """format: INT4, INT8 or E4M3. group: columns of INT4 that share a scale; 0 for the others, whose scales are of
    rows. zeros: of INT4, whether each group has a zero of its own; without, it is 8, and the codes are symmetric."""

    format: str
    group: int = 0
    zeros: bool = False

    def __post_init__(self):
        if self.format not in LARGEST:
            raise ValueError(f"format is {self.format!r}; it must be one of {', '.join(map(repr, LARGEST))}")
        allowed = GROUPS if self.format == INT4 else (0,)
        if self.group not in allowed:
            raise ValueError(f"group is {self.group}; for {self.format} it must be {' or '.join(map(str, allowed))}")
        if self.zeros and self.format != INT4:
            raise ValueError(f"zeros is true; {self.format} has none")


def fitting_groups(config: LlamaConfig) -> list[int]:
    """Return the groups that divide the inputs of every linear layer, the largest first. Raise ValueError if none
    does."""
    widths = {shape[1] for shape in config.layer_parameters.values() if len(shape) == 2}
    fitting = [group for group in sorted(GROUPS, reverse=True) if all(width % group == 0 for width in widths)]
    if not fitting:
        raise ValueError(f"the layers have {' and '.join(map(str, sorted(widths)))} inputs; 4 bits need multiples of "
                         f"{min(GROUPS)}")
    return fitting


# --- One layer --------------------------------------------------------------------------------------------------------


def round_to_nearest(weights: np.ndarray, scheme: Scheme) -> Quantized:
    """Return the nearest code of each weight."""
    scales, zeros = scales_of(weights, scheme)
    width = weights.shape[1] // scales.shape[1]
    codes = codes_of(weights, *(None if each is None else np.repeat(each, width, axis=1) for each in (scales, zeros)),
                     scheme.format)
    return _quantized(codes, scales, zeros, scheme)


def gptq(weights: np.ndarray, hessian: np.ndarray, scheme: Scheme, damping: float = DAMPING) -> Quantized:
    """Return codes with which the layer's outputs are near those of the weights, for inputs such as the Hessian's.

    Columns are rounded one after another, those with the largest inputs first; the error of each is made up for, as
    well as that can be done, by the columns that are not rounded yet. Scales are those of round_to_nearest.
    """
    columns = weights.shape[1]
    if hessian.shape != (columns, columns):
        raise ValueError(f"hessian has shape {hessian.shape}; weights with {columns} columns need {(columns, columns)}")
    if not np.isfinite(hessian).all():
        raise ValueError("hessian holds numbers that are not finite: the calibration texts overflow in float32")
    scales, zeros = scales_of(weights, scheme)
    order = np.argsort(-np.diag(hessian), kind="stable")
    group = order // (columns // scales.shape[1])  # of each column
    upper = _inverse_factor(hessian[np.ix_(order, order)], damping)
    left = weights[:, order].astype(np.float64)
    codes = np.empty(weights.shape, CODES[scheme.format])
    for begin in range(0, columns, BLOCK):
        end = min(begin + BLOCK, columns)
        errors = np.empty((weights.shape[0], end - begin))
        for at in range(begin, end):
            scale, zero = scales[:, group[at]], None if zeros is None else zeros[:, group[at]]
            code = codes_of(left[:, at], scale, zero, scheme.format)
            error = (left[:, at] - values_of(code, scale, zero, scheme.format)) / upper[at, at]
            left[:, at + 1 : end] -= np.outer(error, upper[at, at + 1 : end])
            codes[:, order[at]], errors[:, at - begin] = code, error
        left[:, end:] -= errors @ upper[begin:end, end:]
    return _quantized(codes, scales, zeros, scheme)


def hessian_of(inputs: np.ndarray) -> np.ndarray:
    """Return inputs.T @ inputs in float64: half the second derivative of the squared error of an output by a row of
    weights. Hessians of several batches add up."""
    inputs = inputs.astype(np.float64)
    return inputs.T @ inputs


def _inverse_factor(hessian: np.ndarray, damping: float) -> np.ndarray:
    """Return the upper triangular U with U.T @ U the inverse of the damped Hessian. Row i, divided by U[i, i], is what
    an error in column i makes of the columns after it."""
    diagonal = np.diag(hessian)
    unused = diagonal == 0  # inputs that are always 0: nothing can be made up for, nor needs it
    damped = hessian + np.diag(np.where(unused, 1.0, damping * diagonal.mean()))
    return np.linalg.cholesky(np.linalg.inv(damped)).T


def scales_of(weights: np.ndarray, scheme: Scheme) -> tuple[np.ndarray, np.ndarray | None]:
    """Return scales and zeros (N, K / group), float64: the scales are numbers that bfloat16 has, in which files hold
    them; zeros are None without."""
    rows, columns = weights.shape
    group = scheme.group or columns
    if columns % group:
        raise ValueError(f"weights has {columns} columns; it must be a multiple of group, {group}")
    groups = weights.reshape(rows, -1, group).astype(np.float64)
    if scheme.zeros:  # from the smallest to the largest, and 0 is a code
        low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
        scales = _in_bfloat16((high - low) / 15)
        return scales, np.clip(np.rint(-low / scales), 0, 15)
    return _in_bfloat16(np.abs(groups).max(axis=2) / LARGEST[scheme.format]), None


def _in_bfloat16(scales: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of each; 1 for 0, a group of zeros."""
    nearest = float32_of(bfloat16_of(scales)).astype(np.float64)
    return np.where(nearest == 0, 1.0, nearest)


def codes_of(weights, scales, zeros, format: str) -> np.ndarray:
    """Return the nearest code of each weight; scales and zeros are of the weights' shape, or broadcast to it."""
    scaled = weights / scales
    if format == INT4:
        return np.clip(np.rint(scaled) + (MIDDLE if zeros is None else zeros), 0, 15).astype(np.uint8)
    return np.clip(np.rint(scaled), -128, 127).astype(np.int8) if format == INT8 else e4m3_codes(scaled)


def values_of(codes, scales, zeros, format: str) -> np.ndarray:
    """Return the float64 weights that codes stand for."""
    if format == E4M3:
        return e4m3_value(codes) * scales
    return (codes.astype(np.float64) - (0 if format == INT8 else MIDDLE if zeros is None else zeros)) * scales


def _quantized(codes, scales, zeros, scheme: Scheme) -> Quantized:
    if scheme.format != INT4:
        return Quantized(scheme.format, 0, codes, scales.astype(np.float32))
    return Quantized(INT4, scheme.group, codes, bfloat16_of(scales), None if zeros is None else zeros.astype(np.uint8))


# --- A model ----------------------------------------------------------------------------------------------------------


def quantize(config: LlamaConfig, w: Mapping[str, np.ndarray], scheme: Scheme,
             texts: Sequence[Sequence[int]] | None = None,
             progress: Callable[[int, int], None] = lambda done, total: None) -> Iterator[tuple[str, Quantized]]:
    """Yield the name of each linear layer's weight, as in labkit.models.configs, and the quantised one.

    w: as weights_of gives them. texts: token ids to calibrate GPTQ with; None: round to nearest. A layer is calibrated
    with what the quantised layers before it make of the texts. progress(done, total): called after each weight.
    """
    hidden = None if texts is None else [w[EMBEDDING][np.asarray(ids)].astype(np.float32) for ids in texts]
    total = config.num_hidden_layers * len(INPUTS)
    for layer in range(config.num_hidden_layers):
        h = f"layers.{layer}."
        params = {h + name: np.asarray(w[h + name], np.float32) for name in config.layer_parameters}
        hessians = None if hidden is None else _hessians(config, params, h, hidden)
        for index, (name, source) in enumerate(INPUTS.items()):
            param = f"{h}{name}.weight"
            if not np.isfinite(params[param]).all():
                raise ValueError(f"{param} holds numbers that are not finite")
            quantized = (round_to_nearest(params[param], scheme) if hessians is None else
                         gptq(params[param], hessians[h + source], scheme))
            params[param] = quantized.dequantize().astype(np.float32)
            progress(layer * len(INPUTS) + index + 1, total)
            yield param, quantized
        if hidden is not None:
            hidden = [layer_activations(config, params, h, x, np.arange(len(x)), in_float32) for x in hidden]


def in_float32(name: str, value: np.ndarray) -> np.ndarray:
    return np.asarray(value, np.float32)


def _hessians(config: LlamaConfig, params: Mapping[str, np.ndarray], h: str, hidden) -> dict[str, np.ndarray]:
    """Run the layer over all texts and return the Hessian of each activation that is the input of a linear layer."""
    result = {}

    def record(name, value):
        value = in_float32(name, value)
        if name.removeprefix(h) in INPUTS.values():
            result[name] = result.get(name, 0.0) + hessian_of(value)
        return value

    for x in hidden:
        layer_activations(config, params, h, x, np.arange(len(x)), record)
    return result
