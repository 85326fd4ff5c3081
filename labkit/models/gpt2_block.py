"""One block of GPT-2, from its kernels: solve(x, out, weights, seq_len).

    weights = cuda.to_device(flat)                 # 7,087,872 numbers, one parameter after the other
    workspace = Workspace(GPT2_SMALL, 1024)        # allocated once
    solve(x, out, weights, 16, workspace=workspace)
    graph = graphs.capture(lambda stream: solve(x, out, weights, 16, workspace=workspace, stream=stream))

Seven launches, where a kernel for each step takes ten (KERNEL_FOR_EACH_STEP): GELU and the two residuals are done by
the kernels of the products before them. Shapes at the ends of lines: S tokens, C the width of the model.

Source  A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): normalise before each layer,
        with the residual around it (Pre-LN). R. Xiong et al., "On Layer Normalization in the Transformer Architecture"
        (2020): how that differs from the original Post-LN
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from labkit import cuda
from labkit.kernels.arguments import check_array
from labkit.kernels.attention.half import attention_half
from labkit.kernels.attention.three_pass import append_to_cache, attention, attention_reference, attention_three_pass
from labkit.kernels.gelu import gelu_per_thread, gelu_sigmoid_form
from labkit.kernels.linear.few_rows import linear, scratch_size
from labkit.kernels.linear.fused import fused_reference, fused_tiled
from labkit.kernels.norm.half import layernorm_half_warp
from labkit.kernels.norm.layernorm import layernorm, layernorm_block_tree, layernorm_reference
from labkit.kernels.residual_add import residual_add_per_thread, residual_add_vectorized
from labkit.kernels.tolerance import EPS16, EPS32
from labkit.models.watch import reporter

LONGEST = 4096  # tokens that solve takes

# --- Its shape and its parameters ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """How wide a block is, its heads, and how wide its MLP is between its two layers. The defaults: GPT-2 small."""

    width: int = 768
    heads: int = 12
    inner: int = 3072

    def __post_init__(self):
        for name in ("width", "heads", "inner"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more")
        if self.width % self.heads:
            raise ValueError(f"width is {self.width}, which {self.heads} heads cannot share equally")

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(out, in) of the four linear layers."""
        return ((3 * self.width, self.width), (self.width, self.width), (self.inner, self.width),
                (self.width, self.inner))

    @functools.cached_property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Every parameter and its shape, in the order in which the flat buffer holds them. Names as in transformers;
        weights are (in, out)."""
        C, inner = self.width, self.inner
        return {
            "ln_1.weight": (C,), "ln_1.bias": (C,),
            "attn.c_attn.weight": (C, 3 * C), "attn.c_attn.bias": (3 * C,),
            "attn.c_proj.weight": (C, C), "attn.c_proj.bias": (C,),
            "ln_2.weight": (C,), "ln_2.bias": (C,),
            "mlp.c_fc.weight": (C, inner), "mlp.c_fc.bias": (inner,),
            "mlp.c_proj.weight": (inner, C), "mlp.c_proj.bias": (C,),
        }  # fmt: skip

    @functools.cached_property
    def offsets(self) -> dict[str, int]:
        """Where each parameter begins in the flat buffer."""
        sizes = [math.prod(shape) for shape in self.parameters.values()]
        return dict(zip(self.parameters, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))

    @property
    def size(self) -> int:
        """How many numbers the flat buffer has: 7,087,872 for GPT-2 small."""
        return sum(math.prod(shape) for shape in self.parameters.values())

    def split(self, flat) -> dict:
        """Views of the flat buffer, on the host or the device, by name."""
        if flat.size != self.size:
            raise ValueError(f"weights has {flat.size:,} numbers; a block {self.width} wide, with {self.inner} between "
                             f"the layers of its MLP, has {self.size:,}")
        flat = flat.reshape(self.size)
        return {name: flat[self.offsets[name] : self.offsets[name] + math.prod(shape)].reshape(shape)
                for name, shape in self.parameters.items()}

    def random(self, rng: np.random.Generator, dtype=np.float32) -> np.ndarray:
        """A flat buffer of weights about as large as a trained block's."""
        parts = []
        for name, shape in self.parameters.items():
            values = rng.standard_normal(math.prod(shape), np.float32)
            if len(shape) == 2:
                values *= np.float32(0.6 / math.sqrt(shape[0]))
            else:
                values *= np.float32(0.1)
                values += np.float32(name.startswith("ln") and name.endswith("weight"))
            parts.append(values)
        return np.concatenate(parts).astype(dtype)


GPT2_SMALL = Shape()


# --- The block -------------------------------------------------------------------------------------------------------


def forward(x, out, w: Mapping, heads: int, rows: SimpleNamespace, *, causal=False, cache=None, start=None,
            kernels: Kernels | None = None, stream=0, watch=None) -> None:
    """out = y + mlp(layernorm(y)), where y = x + attention(layernorm(x)). `out` may be `x`.

    w: the parameters by name. rows: as Workspace.rows gives them. cache, start: keys and values of earlier tokens, as
    attention_three_pass takes them. watch(name, array) is called after each launch, to inspect its output.
    """
    run, report = kernels or FUSED, reporter(watch)
    linear = functools.partial(run.linear, parts=rows.parts, stream=stream)

    run.layernorm(x, w["ln_1.weight"], w["ln_1.bias"], rows.normed, stream=stream)  # (S, C)
    report("ln_1", rows.normed)
    linear(rows.normed, w["attn.c_attn.weight"], w["attn.c_attn.bias"], rows.qkv)  # (S, C) x (C, 3C) -> (S, 3C)
    report("attn.c_attn", rows.qkv)
    if cache is None:
        run.attention(rows.qkv, heads, rows.attended, causal=causal, stream=stream)  # (S, C)
    else:
        run.append_to_cache(rows.qkv, start, cache, stream=stream)  # rows start to start + S of (N, 2C)
        run.attention(rows.qkv, heads, rows.attended, cache=cache, start=start, causal=causal, stream=stream)  # (S, C)
    report("attn", rows.attended)
    linear(rows.attended, w["attn.c_proj.weight"], w["attn.c_proj.bias"], rows.added, residual=x)  # (S, C)
    report("attn.added", rows.added)
    run.layernorm(rows.added, w["ln_2.weight"], w["ln_2.bias"], rows.normed, stream=stream)  # (S, C)
    report("ln_2", rows.normed)
    linear(rows.normed, w["mlp.c_fc.weight"], w["mlp.c_fc.bias"], rows.hidden, gelu=True)  # (S, inner)
    report("mlp.gelu", rows.hidden)
    linear(rows.hidden, w["mlp.c_proj.weight"], w["mlp.c_proj.bias"], out, residual=rows.added)  # (S, C)
    report("out", out)


def forward_post_ln(x, out, w: Mapping, heads: int, rows: SimpleNamespace, *, causal=False,
                    kernels: Kernels | None = None, stream=0, watch=None) -> None:
    """The first transformer's order: out = layernorm(y + mlp(y)), where y = layernorm(x + attention(x)).

    The same kernels, weights and buffers as forward, but a different result: the sum itself is normalised each time,
    where in a Pre-LN block it runs from the first layer to the last untouched. `out` may be `x`.
    """
    run, report = kernels or FUSED, reporter(watch)
    linear = functools.partial(run.linear, parts=rows.parts, stream=stream)

    linear(x, w["attn.c_attn.weight"], w["attn.c_attn.bias"], rows.qkv)  # (S, 3C)
    report("attn.c_attn", rows.qkv)
    run.attention(rows.qkv, heads, rows.attended, causal=causal, stream=stream)  # (S, C)
    report("attn", rows.attended)
    linear(rows.attended, w["attn.c_proj.weight"], w["attn.c_proj.bias"], rows.added, residual=x)  # (S, C)
    report("attn.added", rows.added)
    run.layernorm(rows.added, w["ln_1.weight"], w["ln_1.bias"], rows.normed, stream=stream)  # (S, C)
    report("ln_1", rows.normed)
    linear(rows.normed, w["mlp.c_fc.weight"], w["mlp.c_fc.bias"], rows.hidden, gelu=True)  # (S, inner)
    report("mlp.gelu", rows.hidden)
    linear(rows.hidden, w["mlp.c_proj.weight"], w["mlp.c_proj.bias"], rows.added, residual=rows.normed)  # (S, C)
    report("mlp.added", rows.added)
    run.layernorm(rows.added, w["ln_2.weight"], w["ln_2.bias"], out, stream=stream)  # (S, C)
    report("out", out)


def solve(x, out, weights, seq_len: int, *, shape: Shape = GPT2_SMALL, workspace: Workspace | None = None,
          causal: bool = False, post_ln: bool = False, kernels: Kernels | None = None, memory: Callable | None = None,
          stream=0, watch=None) -> None:
    """One block over the first seq_len rows of x, into those of out. `out` may be `x`.

    x, out: device arrays of shape (at least seq_len, width), or flat. weights: the flat buffer; its type, float32 or
    float16, is that of everything. Without a workspace one is allocated for this call, by memory(shape, seq_len, dtype)
    or by Workspace, and freed after it.
    """
    if isinstance(seq_len, bool) or not isinstance(seq_len, int | np.integer) or not 1 <= seq_len <= LONGEST:
        raise ValueError(f"seq_len is {seq_len!r}; it must be a whole number from 1 to {LONGEST:,}")
    dtype = np.dtype(getattr(weights, "dtype", np.float32))
    if dtype not in (np.float32, np.float16):
        raise TypeError(f"weights has dtype {dtype}; float32 and float16 are allowed")
    check_array("weights", weights, dtype=dtype)
    w = shape.split(weights)
    x, out = (_first_rows(name, array, seq_len, shape.width, dtype) for name, array in (("x", x), ("out", out)))
    if workspace is None:
        workspace = (memory or Workspace)(shape, seq_len, dtype)
    elif workspace.shape != shape or workspace.dtype != dtype:
        raise ValueError(f"the workspace is for {workspace.shape} in {workspace.dtype}; this block is {shape} in "
                         f"{dtype}")
    kernels = kernels or (HALF if dtype == np.float16 else FUSED)
    run = forward_post_ln if post_ln else forward
    run(x, out, w, shape.heads, workspace.rows(seq_len), causal=causal, kernels=kernels, stream=stream, watch=watch)


def _first_rows(name: str, array, count: int, width: int, dtype):
    """`array` as a matrix of `count` rows."""
    check_array(name, array, dtype=dtype)
    if len(array.shape) == 2 and array.shape[1] != width:
        raise ValueError(f"{name} has shape {tuple(array.shape)}; its rows must have {width} numbers")
    if array.size < count * width:
        raise ValueError(f"{name} has {array.size:,} numbers; {count} tokens of {width} need {count * width:,}")
    return array.reshape(array.size)[: count * width].reshape(count, width)


# --- The kernels that it is made of ----------------------------------------------------------------------------------


def separately(projection: Callable = fused_tiled, gelu: Callable = gelu_sigmoid_form,
               add: Callable = residual_add_vectorized) -> Callable:
    """A linear layer and what follows it, a launch for each. To put a kernel of your own into the block:

    Kernels(linear=separately(gelu=mine))

    projection(x, weights, bias, out, stream=), gelu(x, out, stream=), add(x, residual, out, stream=).
    """
    apply_gelu = gelu

    def linear_in_steps(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
        projection(x, weights, bias, out, stream=stream)
        if gelu:
            apply_gelu(out, out, stream=stream)
        if residual is not None:
            add(out, residual, out, stream=stream)

    return linear_in_steps


@dataclass(frozen=True)
class Kernels:
    """The launchers of a block.

    layernorm(x, weight, bias, out, stream=)
    linear(x, weights, bias, out, residual=, gelu=, parts=, stream=)       out is never the residual
    attention(qkv, heads, out, cache=, start=, causal=, stream=)
    append_to_cache(qkv, start, cache, stream=)
    """

    layernorm: Callable = layernorm
    linear: Callable = linear
    attention: Callable = attention
    append_to_cache: Callable = append_to_cache


FUSED = Kernels()
HALF = Kernels(layernorm_half_warp, linear, attention_half)
# A kernel for each of the ten steps, none of them tuned: where the ladders of the lessons begin.
KERNEL_FOR_EACH_STEP = Kernels(layernorm_block_tree, separately(fused_tiled, gelu_per_thread, residual_add_per_thread),
                               attention_three_pass)


def traffic(shape: Shape, tokens: int, *, fused: bool = True, itemsize: int = 4) -> dict[str, int]:
    """The bytes that each launch must read and write, by name: fused, or with a kernel for each step."""
    S, C, inner = tokens, shape.width, shape.inner
    layers = dict(zip(("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"), shape.layers, strict=True))
    product = {name: S * depth + depth * cols + cols + S * cols for name, (cols, depth) in layers.items()}
    norm = 2 * S * C + 2 * C
    elements = {"ln_1": norm, "attn.c_attn": product["attn.c_attn"], "attn": 4 * S * C}
    if fused:
        elements |= {"attn.added": product["attn.c_proj"] + S * C, "ln_2": norm, "mlp.gelu": product["mlp.c_fc"],
                     "out": product["mlp.c_proj"] + S * C}
    else:
        elements |= {"attn.c_proj": product["attn.c_proj"], "attn.added": 3 * S * C, "ln_2": norm,
                     "mlp.c_fc": product["mlp.c_fc"], "mlp.gelu": 2 * S * inner, "mlp.c_proj": product["mlp.c_proj"],
                     "out": 3 * S * C}
    return {name: itemsize * count for name, count in elements.items()}


# --- Its memory ------------------------------------------------------------------------------------------------------


class Workspace:
    """All the memory that a block needs besides weights, x and out, allocated once, for up to `tokens` tokens."""

    def __init__(self, shape: Shape, tokens: int, dtype=np.float32):
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; it must be at least 1")
        self.shape, self.tokens, self.dtype = shape, tokens, np.dtype(dtype)
        S, C = tokens, shape.width
        widths = {"normed": C, "qkv": 3 * C, "attended": C, "added": C, "hidden": shape.inner}  # added: x + attention
        self.buffers = {name: cuda.device_array((S, width), dtype) for name, width in widths.items()}
        # Where the K of a product is split: its parts. Fewer tokens may need more of them than many.
        lengths = [*range(1, min(S, 256)), *range(256, S, 64), S]
        num_partials = max(scratch_size(rows, *layer, dtype) for rows in lengths for layer in shape.layers)
        self.parts = cuda.device_array(num_partials, np.float32) if num_partials else None
        self.rows = functools.lru_cache(maxsize=64)(self._rows)

    def _rows(self, count: int) -> SimpleNamespace:
        """The first `count` rows of each buffer, by its name, and memory for the parts of products."""
        if count > self.tokens:
            raise ValueError(f"the workspace's capacity is {self.tokens} tokens; {count} were asked for")
        return SimpleNamespace(**{name: array[:count] for name, array in self.buffers.items()}, parts=self.parts)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.buffers.values()) + (0 if self.parts is None else self.parts.nbytes)


def eight_buffers(shape: Shape, tokens: int, dtype=np.float32) -> Workspace:
    """solve(..., memory=eight_buffers): allocates as a separate kernel for each step would, eight arrays in each call.
    Two of them are not used: what they would hold is added in the kernel that computes it."""
    workspace = Workspace.__new__(Workspace)
    workspace.shape, workspace.tokens, workspace.dtype = shape, tokens, np.dtype(dtype)
    C = shape.width
    normed, qkv, attended, _, added, _, hidden, _ = (
        cuda.device_array((tokens, width), dtype) for width in (C, 3 * C, C, C, C, C, shape.inner, C))
    workspace.buffers = {"normed": normed, "qkv": qkv, "attended": attended, "added": added, "hidden": hidden}
    workspace.parts, workspace.rows = None, workspace._rows
    return workspace


# --- Reference -------------------------------------------------------------------------------------------------------


def block_steps(x, weights: Mapping, heads: int, *, causal=False, post_ln=False) -> dict[str, np.ndarray]:
    """The output of each launch in float64, by the name that it is reported under. weights: by name, as split gives."""
    x = x.astype(np.float64)

    def norm(value, name):
        return layernorm_reference(value, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def product(value, name, **epilogue):
        return fused_reference(value, weights[f"{name}.weight"], weights[f"{name}.bias"], **epilogue)

    s = {}
    if not post_ln:
        s["ln_1"] = norm(x, "ln_1")
    s["attn.c_attn"] = product(x if post_ln else s["ln_1"], "attn.c_attn")
    s["attn"] = attention_reference(s["attn.c_attn"], heads, causal=causal)
    s["attn.added"] = product(s["attn"], "attn.c_proj", residual=x)
    if post_ln:
        s["ln_1"] = norm(s["attn.added"], "ln_1")
        s["mlp.gelu"] = product(s["ln_1"], "mlp.c_fc", gelu=True)
        s["mlp.added"] = product(s["mlp.gelu"], "mlp.c_proj", residual=s["ln_1"])
        s["out"] = norm(s["mlp.added"], "ln_2")
    else:
        s["ln_2"] = norm(s["attn.added"], "ln_2")
        s["mlp.gelu"] = product(s["ln_2"], "mlp.c_fc", gelu=True)
        s["out"] = product(s["mlp.gelu"], "mlp.c_proj", residual=s["attn.added"])
    return s


def allowed_error(shape, expected: np.ndarray, launches: int, dtype=np.float32) -> float:
    """The error allowed after so many launches, relative to the largest number that they wrote. shape: of a block, or
    a model's configuration; its longest sum has shape.inner products.

    float32: one sum of K products has an error of about sqrt(K) * eps/2 of what it adds up, and the errors of the
    launches before it are independent, so that they add up like a random walk. Allowed is twice that. float16: the sums
    are in float32, but every launch rounds what it writes, and LayerNorm and the sums spread that; allowed is eight
    times the walk of these roundings.
    """
    largest = float(np.abs(expected).max())
    if np.dtype(dtype) == np.float16:
        return 4 * EPS16 * math.sqrt(launches) * largest
    return EPS32 * math.sqrt(shape.inner * launches) * largest
