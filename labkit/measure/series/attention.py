"""What the lessons on attention show beside the ladders: attention over lengths and over caches, its three passes one
by one, its launches one by one where each step has its own, and linear attention beside it.

`labkit bench` takes these on a GPU and records them; the lessons take them at small sizes wherever they run. All times
are in microseconds, one launch in a CUDA graph where it is short, so that Python takes no part. float16 kernels are
left out on the CPU device: they take long to compile there, and float16 is no faster.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, device, measure
from labkit.device import gpus
from labkit.kernels.attention.decode import attention_decode
from labkit.kernels.attention.flash import attention_flash
from labkit.kernels.attention.half import attention_decode_half, attention_half
from labkit.kernels.attention.heads import keys_and_values
from labkit.kernels.attention.linear_attention import state_shape
from labkit.kernels.attention.three_pass import (
    BLOCK,
    attention_all_threads,
    attention_all_threads_kernel,
    attention_three_pass,
    attention_three_pass_kernel,
    weigh_keys,
)
from labkit.kernels.attention.unfused import AttentionInSteps
from labkit.kernels.attention.whole_matrix import attention_whole_matrix
from labkit.kernels.op import uniform
from labkit.kernels.ops.linear_attention import LINEAR_ATTENTION
from labkit.kernels.reduce import ZERO

HEADS, SIZE = 12, 64  # GPT-2 small
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CACHES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
HALF = "f16"  # in the name of a line: float16


def _us(launch, in_torch: bool = False) -> float:
    """Of launch(stream=...), or of launch() in PyTorch: in a graph if it is short, alone with a cold cache if not."""
    once = measure.time_kernel(launch, budget_s=0.03, min_runs=2, max_runs=20).p50
    short = None
    if once < measure.SMALL_MS:
        limits = {"launches": max(1, min(50, int(2 / once))), "runs": 10}
        short = (measure.time_torch_graph(launch, **limits) if in_torch else
                 measure.time_graph(lambda stream: launch(stream=stream), **limits))
    return 1000 * (short.p50 if short else once)


def _fused_by_torch(torch, queries, keys, values, causal: bool):
    """SDPA on (rows, heads, size) views of the same memory, without copies before or after."""
    parts = [part.movedim(0, 1)[None] for part in (queries, keys, values)]
    return functools.partial(torch.nn.functional.scaled_dot_product_attention, *parts, is_causal=causal)


def _torch_parts(torch, array, heads: int):
    """(rows, 3*H*D) or, of a cache, (rows, 2*H*D): views of it as (rows, heads, size)."""
    packed = torch.as_tensor(array, device="cuda")
    width = heads * SIZE
    return [packed[:, col : col + width].view(packed.shape[0], heads, SIZE) for col in range(0, packed.shape[1], width)]


def attention_sizes(lengths=None, heads: int | None = None) -> dict:
    """Attention of S tokens over S: three passes, the whole matrix, flash in float32 and float16, PyTorch's SDPA."""
    lengths = lengths or device.pick(gpu=LENGTHS, cpu=(16, 32, 64))
    heads = heads or device.pick(gpu=HEADS, cpu=1)
    torch = measure.torch_on_gpu()
    launchers = {"three passes": attention_three_pass, "whole matrix": attention_whole_matrix,
                 "flash": attention_flash}
    if device.on_gpu():
        launchers[f"flash, {HALF}"] = attention_half
    lines: dict = {}
    for S in measure.steps("attention over lengths", list(lengths)):
        host = 2 * uniform(np.random.default_rng(0), S, 3 * heads * SIZE)
        arrays = {dtype: (cuda.to_device(host.astype(dtype)), cuda.device_array((S, heads * SIZE), dtype))
                  for dtype in (np.float32, np.float16)}
        for causal in (False, True):
            for name, launch in launchers.items():
                fits = launch is not attention_whole_matrix or gpus.target().shared_per_block >= 4 * S * S
                qkv, out = arrays[np.float16 if HALF in name else np.float32]
                lines.setdefault((name, causal), []).append(
                    _us(functools.partial(launch, qkv, heads, out, causal=causal)) if fits else None)
            for name, dtype in (("SDPA", np.float32), (f"SDPA, {HALF}", np.float16)):
                if torch is not None:
                    call = _fused_by_torch(torch, *_torch_parts(torch, arrays[dtype][0], heads), causal)
                    lines.setdefault((name, causal), []).append(_us(call, in_torch=True))
    return measure.stamped({"S": list(lengths), "heads": heads, "size": SIZE, "lines": [
        {"name": name, "mask": "causal" if causal else "none", "us": us} for (name, causal), us in lines.items()]})


def attention_keys(caches=None, heads: int | None = None) -> dict:
    """One query against a cache of N keys, as for each token that a model writes."""
    caches = caches or device.pick(gpu=CACHES, cpu=(64, 256))
    heads = heads or device.pick(gpu=HEADS, cpu=1)
    torch = measure.torch_on_gpu()
    launchers = {"three passes": attention_three_pass, "flash": attention_flash, "decode": attention_decode}
    if device.on_gpu():
        launchers[f"decode, {HALF}"] = attention_decode_half
    lines: dict = {}
    for keys in measure.steps("one query over caches", list(caches)):
        rng = np.random.default_rng(0)
        hosts = [2 * uniform(rng, 1, 3 * heads * SIZE), 2 * uniform(rng, keys, 2 * heads * SIZE)]
        arrays = {dtype: [cuda.to_device(host.astype(dtype)) for host in hosts]
                  + [cuda.device_array((1, heads * SIZE), dtype)] for dtype in (np.float32, np.float16)}
        start = cuda.to_device(np.array([keys - 1], np.int32))
        for name, launch in launchers.items():
            qkv, cache, out = arrays[np.float16 if HALF in name else np.float32]
            lines.setdefault(name, []).append(_us(functools.partial(
                launch, qkv, heads, out, cache=cache, start=start, causal=True)))
        for name, dtype in (("SDPA", np.float32), (f"SDPA, {HALF}", np.float16)):
            if torch is not None:
                qkv, cache, _ = arrays[dtype]
                call = _fused_by_torch(torch, _torch_parts(torch, qkv, heads)[0], *_torch_parts(torch, cache, heads),
                                       False)
                lines.setdefault(name, []).append(_us(call, in_torch=True))
    return measure.stamped({"keys": list(caches), "heads": heads, "size": SIZE,
                            "lines": [{"name": name, "us": us} for name, us in lines.items()]})


# --- The three passes, one by one ------------------------------------------------------------------------------------


@cuda.jit
def scores_only_kernel(qkv, keys_values, start, out, first, size, scale, causal):
    """The first two passes of attention_three_pass_kernel, without a mask."""
    scores = cuda.shared.array(0, float32)
    head_column = uint32(uint32(cuda.blockIdx.y) * size)
    row_sum = weigh_keys(qkv, keys_values, first, head_column, size, uint32(keys_values.shape[0]), scale, scores)
    if cuda.threadIdx.x < size:
        out[cuda.blockIdx.x, head_column + uint32(cuda.threadIdx.x)] = row_sum


def make_values_only(all_threads: bool):
    """The third pass alone, every weight 1: by as many threads as a head has numbers, or by all of them."""
    @cuda.jit
    def values_only_kernel(qkv, keys_values, start, out, first, size, scale, causal):
        scores = cuda.shared.array(0, float32)
        sums = cuda.shared.array(BLOCK, float32)
        thread = uint32(cuda.threadIdx.x)
        head_column, width = uint32(uint32(cuda.blockIdx.y) * size), uint32(out.shape[1])
        keys = uint32(keys_values.shape[0])
        j = thread
        while j < keys:
            scores[j] = float32(1.0)
            j += uint32(BLOCK)
        cuda.syncthreads()

        groups = uint32(BLOCK) // size if all_threads else uint32(1)
        i, group = thread % size, thread // size
        column = uint32(first + width + head_column + i)
        acc = ZERO
        if group < groups:
            j = group
            while j < keys:
                acc += scores[j] * keys_values[j, column]
                j += groups
        sums[thread] = acc
        cuda.syncthreads()
        if group == uint32(0):
            other = uint32(1)
            while other < groups:
                acc += sums[uint32(other * size) + i]
                other += uint32(1)
            out[cuda.blockIdx.x, head_column + i] = acc

    return values_only_kernel


def attention_passes(S: int | None = None, heads: int | None = None) -> dict:
    """What the passes of the three-pass kernel take by themselves."""
    S, heads = S or device.pick(gpu=1024, cpu=32), heads or device.pick(gpu=HEADS, cpu=1)
    qkv = cuda.to_device(2 * uniform(np.random.default_rng(0), S, 3 * heads * SIZE))
    out = cuda.device_array((S, heads * SIZE), np.float32)
    keys_values, start, base = keys_and_values(qkv, out, None, None)
    arguments = (qkv, keys_values, start, out, base, np.uint32(SIZE), np.float32(1 / math.sqrt(SIZE)), np.uint32(0))

    def us(kernel):
        return _us(lambda stream=0: kernel[(S, heads), BLOCK, stream, 4 * S](*arguments))

    return measure.stamped({"S": S, "heads": heads, "size": SIZE, "us": {
        "scores and exponentials": us(scores_only_kernel),
        "values, a head's width of threads": us(make_values_only(False)),
        "values, all threads": us(make_values_only(True)),
        attention_three_pass.__name__: us(attention_three_pass_kernel),
        attention_all_threads.__name__: us(attention_all_threads_kernel)}})


# --- A launch for each step ------------------------------------------------------------------------------------------


def attention_steps(S: int | None = None, heads: int | None = None) -> dict:
    """Attention with its scores in global memory: each launch by itself, with softmax in two launches and in one."""
    S, heads = S or device.pick(gpu=1024, cpu=32), heads or device.pick(gpu=HEADS, cpu=1)
    qkv = cuda.to_device(2 * uniform(np.random.default_rng(0), S, 3 * heads * SIZE))
    out = cuda.device_array((S, heads * SIZE), np.float32)
    rows = []
    for form, fused in (("scale and softmax apart", False), ("scale inside softmax", True)):
        for name, launch in AttentionInSteps(fused, tiled=True).launches(qkv, heads, out):
            rows.append({"form": form, "step": name, "us": _us(lambda stream=0, launch=launch: launch(stream))})
    return measure.stamped({"S": S, "heads": heads, "size": SIZE, "rows": rows})


# --- Linear attention beside it --------------------------------------------------------------------------------------

LINEAR_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
MOST_PAIRS = 4096  # tokens: beyond, all pairs take too long


def linear_attention_lengths(lengths=None, heads: int | None = None) -> dict:
    """Causal attention of S tokens over S in float32: each form of linear attention, flash and PyTorch's SDPA."""
    lengths = lengths or device.pick(gpu=LINEAR_LENGTHS, cpu=(16, 64))
    heads = heads or device.pick(gpu=HEADS, cpu=1)
    torch = measure.torch_on_gpu()
    lines: dict = {}
    for S in measure.steps("linear attention over lengths", list(lengths)):
        rng = np.random.default_rng(0)
        inputs = [cuda.to_device(array) for array in LINEAR_ATTENTION.inputs(rng, H=heads, N=S, D=SIZE)]
        out = cuda.device_array((heads, S, SIZE), np.float32)
        states = cuda.device_array(state_shape(heads, S, SIZE), np.float32)
        for rung in LINEAR_ATTENTION.rungs:
            name = rung.__name__.removeprefix("linear_attention_")
            kwargs = {"states": states} if name == "chunked" else {}
            fits = name != "quadratic" or S <= MOST_PAIRS
            lines.setdefault(f"linear, {name}", []).append(
                _us(functools.partial(rung, *inputs, out, **kwargs)) if fits else None)
        qkv = cuda.to_device(2 * uniform(rng, S, 3 * heads * SIZE))
        flat = cuda.device_array((S, heads * SIZE), np.float32)
        lines.setdefault("flash", []).append(_us(functools.partial(attention_flash, qkv, heads, flat, causal=True)))
        if torch is not None:
            call = _fused_by_torch(torch, *_torch_parts(torch, qkv, heads), True)
            lines.setdefault("SDPA", []).append(_us(call, in_torch=True))
    return measure.stamped({"S": list(lengths), "heads": heads, "size": SIZE,
                            "lines": [{"name": name, "us": us} for name, us in lines.items()]})
