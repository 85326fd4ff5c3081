"""A decoding step of a Llama with quantised linear layers beside the same step in bfloat16, in the shape of Llama 3.2
1B with random weights.

    llama_quantized()       1, 8 and 32 sequences with 1,024 tokens each: INT4 in groups of 128, INT8 and FP8 (E4M3)

The embedding, which is the head, too, stays bfloat16: 0.53 GB, 0.12 ms on an H200.

Prediction for one sequence on an H200. In bfloat16 a step took 0.93 ms in 106 launches, and its bytes take 0.59 at 4.2
TB/s: 3.2 us a launch on top of them. With quantised layers no norm is fused into the product after it, as with two
sequences in bfloat16, and SwiGLU is a launch of its own: 137 + 16 launches, 0.49 ms. INT4 has 1.06 GB to read, 0.25 ms,
and so takes 0.74 ms; 8 bits have 1.53 GB, 0.36 ms, and take 0.85.
"""

from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from labkit import cuda, device, measure
from labkit.device import gpus
from labkit.kernels.dtypes import bfloat16_of
from labkit.kernels.linear.quantized import E4M3, INT4, INT8, Quantized
from labkit.measure import roofline
from labkit.measure.series import llama
from labkit.measure.series.llama import BLOCK, RandomTensors, cache_bytes, random_model, repeated, say
from labkit.models.configs import EMBEDDING, LLAMA_3_2_1B
from labkit.models.llama import Config, Llama
from labkit.models.packed import Opened, QuantizedTensor
from labkit.models.quantize import LARGEST, Scheme, codes_of
from labkit.models.quantized_folder import configuration

BFLOAT16, GROUP = "bfloat16", 128
SCHEMES = {INT4: Scheme(INT4, GROUP), INT8: Scheme(INT8), E4M3: Scheme(E4M3)}
SEQUENCES = (1, 8, 32)
LARGEST_SIGMAS = 4.0  # the weight that the largest code stands for, in standard deviations
MEASURED_FROM = {E4M3: (8, 9)}  # the compute capability: the first whose tensor cores have this type
MOST_ROUNDINGS = 16.0  # of a right model; where a product is wrong, a hundred and more
TINY = replace(llama.TINY, hidden_size=128, head_dim=64, intermediate_size=256)  # inputs that are multiples of 128


# --- A model of random codes -----------------------------------------------------------------------------------------


def random_layers(config: Config, format: str) -> Opened:
    """The tensors of a Llama whose linear layers are quantised. As in RandomTensors, codes and scales are a block of
    random numbers over and over, so that they are made in seconds; weights have the same variance as there, but for the
    scales, which differ by a quarter either way."""
    scheme, rng, tensors = SCHEMES[format], np.random.default_rng(1), RandomTensors(config)
    step = LARGEST_SIGMAS / LARGEST[format]
    codes = codes_of(rng.standard_normal(BLOCK), step, None, format)
    scales = step / math.sqrt(config.hidden_size) * rng.uniform(0.75, 1.25, BLOCK)
    scales = bfloat16_of(scales) if scheme.group else scales.astype(np.float32)

    def read(begin: int, shape: tuple[int, int]) -> Quantized:
        groups = shape[1] // scheme.group if scheme.group else 1
        return Quantized(format, scheme.group, repeated(codes, begin, shape),
                         repeated(scales, begin, (shape[0], groups)))

    layers = {name: QuantizedTensor(format, scheme.group, entry.shape, scales.dtype, False,
                                    functools.partial(read, entry.begin // 2, entry.shape))
              for name, entry in tensors.entries.items() if name.endswith("_proj.weight")}
    return Opened(tensors, layers, set(layers))


def quantized_model(config: Config, format: str) -> Llama:
    """format: of SCHEMES."""
    config = replace(config, quantization_config=configuration(SCHEMES[format]))
    return Llama(config, random_layers(config, format), BFLOAT16, positions=min(8192, config.max_position_embeddings))


def model_here(format: str) -> Llama:
    """The one to measure here. format: of SCHEMES, or bfloat16."""
    if format == BFLOAT16:
        return random_model() if device.on_gpu() else Llama(TINY, RandomTensors(TINY), BFLOAT16)
    began = time.perf_counter()
    model = quantized_model(device.pick(gpu=LLAMA_3_2_1B, cpu=TINY), format)
    cuda.synchronize()
    say(f"random {format}, {model.weights.nbytes / 1e9:.2f} GB on the device in {time.perf_counter() - began:.1f} s")
    return model


def checked_model(format: str) -> Llama:
    """A small one to compare with NumPy: on a GPU one layer as wide as those that are timed, so that the same kernels
    run; elsewhere tiny."""
    config = device.pick(gpu=replace(LLAMA_3_2_1B, num_hidden_layers=1, vocab_size=1024), cpu=TINY)
    return Llama(config, RandomTensors(config), BFLOAT16) if format == BFLOAT16 else quantized_model(config, format)


def read_bytes(model: Llama) -> int:
    """What a step reads of the weights, as they lie on the device: all but the embedding, which is read as the head
    where there is no other."""
    skipped = () if model.config.tie_word_embeddings else (EMBEDDING,)
    return sum(entry.nbytes for name, entry in model.weights.entries.items() if name not in skipped)


def why_left_out(format: str) -> str:
    """Why a format is left out on this GPU; empty if it is not. Our kernels multiply FP8 as bfloat16, and would run on
    older GPUs, too; it is timed where the hardware has the type."""
    needed, capability = MEASURED_FROM.get(format), gpus.target().capability
    if needed is None or not gpus.limited() or capability >= needed:
        return ""
    dotted = [".".join(map(str, one)) for one in (needed, capability)]
    return f"{format} is measured from compute capability {dotted[0]} on; this GPU has {dotted[1]}"


# --- Its steps -------------------------------------------------------------------------------------------------------


def llama_quantized(sequences: Sequence[int] | None = None, tokens: int | None = None) -> dict:
    """Milliseconds of a step in the engine's graph, with each format of the linear layers and with none; and how far
    the logits of a small model with such layers are from NumPy's. Raise AssertionError if they are wrong."""
    sequences = list(sequences or device.pick(gpu=SEQUENCES, cpu=(1, 3)))
    tokens = tokens or device.pick(gpu=llama.TOKENS, cpu=20)
    left_out = {format: reason for format in SCHEMES if (reason := why_left_out(format))}
    for reason in left_out.values():
        say(f"llama_quantized: left out: {reason}")
    rows, roundings = [], {}
    for format in (BFLOAT16, *SCHEMES):
        if format in left_out:
            continue
        roundings[format] = llama.roundings_from_float64(checked_model(format))
        say(f"llama_quantized: {format}: a small model is {roundings[format]:.1f} roundings from NumPy in float64")
        if not roundings[format] < MOST_ROUNDINGS:
            raise AssertionError(f"llama_quantized: {format}: the logits of a small model are {roundings[format]:.1f} "
                                 f"roundings from NumPy's; at most {MOST_ROUNDINGS:g} are right")
        model = model_here(format)
        rows += steps_of(format, model, sequences, tokens)
        shape = model.config.size
        del model
        gc.collect()  # a runner is part of a cycle, and holds a cache on the device
    return measure.stamped({"weights": "random", "shape": shape, "tokens": tokens, "group": GROUP, "rows": rows,
                            "roundings_from_float64": roundings, "left_out": left_out})


def steps_of(format: str, model: Llama, sequences: Sequence[int], tokens: int) -> list[dict]:
    """The rows of one model."""
    runner, _, steps = llama.prepared(model, sequences, tokens)
    rows = []
    for count, step in steps.items():
        runner.launch(step).tokens()  # raises ValueError where logits are no numbers
        graph, _ = runner.captured(count)
        nbytes = read_bytes(model) + cache_bytes(model.config, count * tokens)
        row = {"format": format, "sequences": count, "ms": llama._replayed_ms(graph), "launches": graph.nodes,
               "bytes": nbytes}
        if device.on_gpu():
            row |= {"gbs": nbytes / row["ms"]["p50"] / 1e6, "bound_ms": nbytes / roofline.limits().bandwidth_gbs / 1e6}
        say(f"llama_quantized: {format}, {count} sequences, {row['ms']['p50']:.3f} ms in a graph of {graph.nodes}, "
            f"{row.get('bound_ms', 0):.3f} by its bytes")
        rows.append(row)
    return rows
