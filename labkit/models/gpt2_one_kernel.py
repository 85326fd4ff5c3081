"""A token of a GPT-2 in one launch: lays its weights out for labkit.kernels.persistent.gpt2.

    one_kernel = OneKernel(model)       # raises ValueError where the kernel cannot compute the model
    one_kernel.forward(ws)              # as gpt2_step.forward
    one_kernel.forward(ws, 1)           # and gpt2_step.pick

The layers' weights are copied: the files have (inputs, outputs), and the kernel reads the weights of an output as one
row, with its bias behind it; those of the MLP's second layer as the files have them.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from labkit.device import gpus, memory
from labkit.kernels.elements import ELEMENTS
from labkit.kernels.op import missing
from labkit.kernels.persistent.gpt2 import MAX_SPLITS, Buffers, Sizes, make_persistent_gpt2, persistent_gpt2
from labkit.kernels.persistent.joins import blocks_here

CPU_WARPS = 2  # each thread of the CPU device is interpreted, and takes as long when it has nothing to do
MAX_STAGES = 14
IN_FLIGHT = {2: 4, 4: 3}  # bytes of an element -> stages that an SM copies at once
LINEARS = {"qkv": "attn.c_attn", "o": "attn.c_proj", "fc": "mlp.c_fc"}  # a row for each output


def sizes_of(model, timed: bool = False) -> Sizes:
    """Return the sizes of a model, and as many stages as fit into shared memory beside the rest."""
    config = model.config
    sizes = Sizes(config.n_embd, config.n_head, config.inner, config.vocab_size, ELEMENTS[model.dtype], timed=timed,
                  blocks=blocks_here(), splits=max(1, min(MAX_SPLITS, blocks_here() // config.n_head)),
                  warps=Sizes.warps if gpus.chosen_on_gpu() else CPU_WARPS, in_flight=IN_FLIGHT[model.dtype.itemsize])
    if sizes.problem():
        return sizes
    sizes = dataclasses.replace(sizes, stages=MAX_STAGES)
    stages = (gpus.target().shared_per_block - sizes.static_bytes) // stage_bytes(sizes)
    return dataclasses.replace(sizes, stages=min(MAX_STAGES, stages))


def stage_bytes(sizes: Sizes) -> int:
    return sizes.stage * sizes.element.dtype.itemsize


def problem(model) -> str:
    """Why the kernel cannot compute a model, or why this GPU cannot run the kernel; empty if neither."""
    sizes = sizes_of(model)
    if reason := sizes.problem():
        return reason
    fewest = dataclasses.replace(sizes, stages=sizes.in_flight + 1)
    if sizes.stages >= fewest.stages:
        return missing(make_persistent_gpt2(sizes))
    if reason := missing(make_persistent_gpt2(fewest)):
        return reason
    return (f"shared memory has room for {sizes.stages} stages of {stage_bytes(sizes):,} bytes; {fewest.stages} are "
            f"needed")


class OneKernel:
    """timed: record when each block begins and ends each phase. Launches must not overlap, whatever their workspaces:
    they use the same buffers, and each needs all SMs."""

    def __init__(self, model, timed: bool = False):
        if reason := problem(model):
            raise ValueError(f"one_kernel: {reason}")
        self.sizes = sizes_of(model, timed)
        self.buffers = Buffers(self.sizes, len(model.layers))
        self.weights = arranged(model, self.sizes)
        self.launch = functools.partial(persistent_gpt2, self.buffers, self.weights, model.weights["wte.weight"],
                                        model.weights["wpe.weight"], model.head)

    def forward(self, ws, advance: int = 0, stream=0) -> None:
        """Process the token ws.ids[0], which follows those in the cache; ws.logits gets the logits after it. advance=1:
        ws.ids[0] becomes the most likely token, and the text is one token longer."""
        self.launch(ws.rows(1).ids, ws.start, ws.cache, ws.logits, advance, stream=stream)


def arranged(model, sizes: Sizes):
    """Return the weights of all layers in one device array, as Sizes.layer has them, and the last norm's."""
    size = sizes.layer["end"]
    weights = memory.zeros(len(model.layers) * size + 2 * sizes.hidden, model.dtype)
    for number, layer in enumerate(model.layers):
        host = np.zeros(size, model.dtype)
        for part, name in LINEARS.items():
            matrix, bias = (layer[f"{name}.{kind}"].copy_to_host() for kind in ("weight", "bias"))
            inputs, outputs = matrix.shape
            pitch = inputs + sizes.element.per_load
            rows = host[sizes.layer[part] :][: outputs * pitch].reshape(outputs, pitch)
            rows[:, :inputs], rows[:, inputs] = matrix.T, bias
        proj = _flat(layer, "mlp.c_proj")  # the MLP's second layer stays as it is: a row for each input
        host[sizes.layer["proj"] :][: proj.size] = proj
        for part in ("ln_1", "ln_2"):
            host[sizes.layer[part] :][: 2 * sizes.hidden] = _flat(layer, part)
        weights[number * size : (number + 1) * size].copy_to_device(host)
    weights[len(model.layers) * size :].copy_to_device(_flat(model.weights, "ln_f"))
    return weights


def _flat(weights, name: str) -> np.ndarray:
    """The weights, and the biases behind them."""
    return np.concatenate([weights[f"{name}.{kind}"].copy_to_host().reshape(-1) for kind in ("weight", "bias")])
