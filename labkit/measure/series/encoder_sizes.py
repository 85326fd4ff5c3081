"""Three kernels of a sentence encoder, each with its sizes as arguments and as compile-time constants.

    compiled()         PTX and registers of each, compiled for an H200 without a GPU; recorded in data/measurements/ptx
    encoder_sizes()    the time of each: what `labkit bench encoder_sizes` records

The sizes are all-MiniLM-L6-v2's: rows of 384, an inner width of 1,536, 12 heads of 32, sentences padded to 128. A
kernel's source is the same in both forms; all arrays are flat, so that every index is computed from the sizes. float16
in memory, float32 in registers.

    python -m labkit.measure.series.encoder_sizes     records what the compiler made (needs its wheels, and ptxas)
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import float32, uint32

from labkit import cuda, device, measure
from labkit._common import paths, recordings
from labkit._common.files import write_text
from labkit.device.lazy import kernel_factory
from labkit.kernels.gelu import gelu_erf, gelu_erf_reference
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.reduce import warp_sum

COMPILED = paths.MEASUREMENTS / "ptx" / "encoder-sizes.json"
CC = (9, 0)
TILE, PITCH, WARPS = 16, 17, 4
EPSILON = float32(1e-12)
FORMS = {"arguments": False, "constants": True}


class Sizes(NamedTuple):
    """rows: of the whole batch. width, inner: of a row and of the MLP. heads: of head_width numbers each. tokens: of a
    sentence, padding included."""

    rows: int
    width: int
    inner: int
    heads: int
    tokens: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


MINILM = Sizes(rows=64 * 128, width=384, inner=1536, heads=12, tokens=128)
SMALL = Sizes(rows=24, width=32, inner=48, heads=2, tokens=12)

# --- The kernels -----------------------------------------------------------------------------------------------------


@kernel_factory
def make_product(constant: bool, K: int, N: int):
    """out = gelu(x @ weights.T + bias): x (M, K), weights (N, K), by tiles of 16 x 16 in shared memory."""

    @cuda.jit
    def encoder_product_kernel(x, weights, bias, out, rows, depth, cols):
        if constant:
            depth, cols = uint32(K), uint32(N)
        x_tile = cuda.shared.array((TILE, TILE), float32)
        w_tile = cuda.shared.array((TILE, PITCH), float32)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        col0 = uint32(uint32(cuda.blockIdx.x) * uint32(TILE))
        row, col = uint32(uint32(cuda.blockIdx.y) * uint32(TILE) + ty), uint32(col0 + tx)
        acc = float32(0.0)
        start = uint32(0)
        while start < depth:
            k = uint32(start + tx)
            inside = row < rows and k < depth
            x_tile[ty, tx] = float32(x[uint32(row * depth + k)]) if inside else float32(0.0)
            inside = uint32(col0 + ty) < cols and k < depth
            w_tile[ty, tx] = float32(weights[uint32(uint32(col0 + ty) * depth + k)]) if inside else float32(0.0)
            cuda.syncthreads()
            for step in range(TILE):
                acc += x_tile[ty, step] * w_tile[tx, step]
            cuda.syncthreads()
            start = uint32(start + uint32(TILE))
        if row < rows and col < cols:
            out[uint32(row * cols + col)] = gelu_erf(acc + float32(bias[col]))

    return encoder_product_kernel


@kernel_factory
def make_norm(constant: bool, C: int):
    """out = layernorm(x + residual), a warp for each row, which reads it three times. columns: a multiple of 32."""

    @cuda.jit
    def encoder_norm_kernel(x, residual, weight, bias, out, rows, columns):
        if constant:
            columns = uint32(C)
        lane = uint32(cuda.threadIdx.x)
        row = uint32(uint32(cuda.blockIdx.x) * uint32(WARPS) + uint32(cuda.threadIdx.y))
        pieces = uint32(columns // uint32(32))
        if row < rows:
            base = uint32(uint32(row * columns) + lane)
            row_sum = float32(0.0)
            piece = uint32(0)
            while piece < pieces:
                i = uint32(base + uint32(piece * uint32(32)))
                row_sum += float32(x[i]) + float32(residual[i])
                piece += uint32(1)
            mean = warp_sum(row_sum) / float32(columns)
            squares = float32(0.0)
            piece = uint32(0)
            while piece < pieces:
                i = uint32(base + uint32(piece * uint32(32)))
                centered = float32(x[i]) + float32(residual[i]) - mean
                squares += centered * centered
                piece += uint32(1)
            scale = cuda.rsqrt(warp_sum(squares) / float32(columns) + EPSILON)
            piece = uint32(0)
            while piece < pieces:
                i, col = uint32(base + uint32(piece * uint32(32))), uint32(lane + uint32(piece * uint32(32)))
                centered = float32(x[i]) + float32(residual[i]) - mean
                out[i] = centered * scale * float32(weight[col]) + float32(bias[col])
                piece += uint32(1)

    return encoder_norm_kernel


@kernel_factory
def make_heads(constant: bool, S: int, H: int, D: int):
    """Queries, keys and values of a row, (B*S, 3*H*D), copied to (3, B, H, S, D): a thread for each number."""

    @cuda.jit
    def encoder_heads_kernel(qkv, out, tokens, heads, size):
        if constant:
            tokens, heads, size = uint32(S), uint32(H), uint32(D)
        i = uint32(cuda.grid(1))
        if i < uint32(qkv.size):
            width = uint32(heads * size)
            row, column = uint32(i // uint32(uint32(3) * width)), uint32(i % uint32(uint32(3) * width))
            part, column = uint32(column // width), uint32(column % width)
            head, n = uint32(column // size), uint32(column % size)
            sentence, t = uint32(row // tokens), uint32(row % tokens)
            sentences = uint32(uint32(qkv.size) // uint32(uint32(uint32(3) * width) * tokens))
            head_row = uint32(uint32(part * sentences + sentence) * heads + head)
            out[uint32(uint32(uint32(head_row * tokens) + t) * size + n)] = qkv[i]

    return encoder_heads_kernel


# --- Their launches --------------------------------------------------------------------------------------------------


class Launch(NamedTuple):
    """A kernel in one form, on arrays that lie on the device."""

    name: str
    form: str
    kernel: object
    grid: object
    block: object
    arguments: tuple
    expected: object  # the reference, in float64, flat; computed when it is called

    def __call__(self, stream=0) -> None:
        self.kernel[self.grid, self.block, stream](*self.arguments)


def host_arrays(sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def normal(*shape, scale=1.0):
        return (scale * rng.standard_normal(shape, np.float32)).astype(np.float16)

    return {"x": normal(sizes.rows, sizes.width), "residual": normal(sizes.rows, sizes.width),
            "weights": normal(sizes.inner, sizes.width, scale=sizes.width**-0.5), "bias": normal(sizes.inner),
            "gain": normal(sizes.width), "shift": normal(sizes.width), "qkv": normal(sizes.rows, 3 * sizes.width)}


def product_reference(host) -> np.ndarray:
    x, weights, bias = (host[name].astype(np.float64) for name in ("x", "weights", "bias"))
    return gelu_erf_reference(x @ weights.T + bias)


def norm_reference(host) -> np.ndarray:
    return layernorm_reference(host["x"].astype(np.float64) + host["residual"], host["gain"], host["shift"], 1e-12)


def heads_reference(host, sizes: Sizes) -> np.ndarray:
    split = host["qkv"].reshape(-1, sizes.tokens, 3, sizes.heads, sizes.head_width)
    return split.transpose(2, 0, 3, 1, 4).astype(np.float64)


def launches_of(sizes: Sizes) -> list[Launch]:
    """Each kernel in each form, on inputs of these sizes and outputs of its own."""
    host = host_arrays(sizes)
    on_device = {name: cuda.to_device(array.reshape(-1)) for name, array in host.items()}
    M, C, N, H, S = sizes
    scalars_u32 = [np.uint32(value) for value in (M, C, N, H, S, sizes.head_width)]
    rows, width, inner, heads, tokens, size = scalars_u32
    launches = []
    for form, constant in FORMS.items():
        def put(name, kernel, grid, block, inputs, count, scalars, expected, form=form):
            out = cuda.to_device(np.full(count, np.nan, np.float16))
            launches.append(Launch(name, form, kernel, grid, block,
                                   (*(on_device[one] for one in inputs), out, *scalars), expected))

        put("product and GELU", make_product(constant, C, N), (-(-N // TILE), -(-M // TILE)), (TILE, TILE),
            ("x", "weights", "bias"), M * N, (rows, width, inner), lambda: product_reference(host))
        put("residual and LayerNorm", make_norm(constant, C), -(-M // WARPS), (32, WARPS),
            ("x", "residual", "gain", "shift"), M * C, (rows, width), lambda: norm_reference(host))
        put("heads apart", make_heads(constant, S, H, sizes.head_width), -(-3 * M * C // 256), 256, ("qkv",),
            3 * M * C, (tokens, heads, size), lambda: heads_reference(host, sizes))
    return launches


def output_of(launch: Launch):
    """The array that a launch writes: the first after its inputs."""
    arrays = [argument for argument in launch.arguments if hasattr(argument, "copy_to_host")]
    return arrays[-1]


# --- Recording -------------------------------------------------------------------------------------------------------


def encoder_sizes(sizes: Sizes | None = None) -> dict:
    """Microseconds of each kernel in each form, in a graph; registers, where a GPU says."""
    from labkit.device import launches
    from labkit.measure.series.minilm import in_graph_us

    sizes = sizes or device.pick(gpu=MINILM, cpu=SMALL)
    rows = []
    for one in measure.steps("sizes of an encoder", launches_of(sizes)):
        row = {"name": one.name, "form": one.form, "us": in_graph_us(one)}
        result, expected = output_of(one).copy_to_host().astype(np.float64), one.expected().reshape(-1)
        row["error"] = float(np.abs(result - expected).max() / np.abs(expected).max())
        if device.on_gpu():
            row["resources"] = [launches.resources(each) for each in launches.of(one)]
        rows.append(row)
    return measure.stamped({"sizes": sizes._asdict(), "rows": rows})


def compiled(sizes: Sizes = MINILM, cc: tuple[int, int] = CC) -> dict:
    """What each kernel compiles to: instructions of its PTX by kind, and the registers that ptxas gives it.

    Needs no GPU. Raises labkit.device.compiling.NoCompiler where the compiler's wheels are not installed.
    """
    from numba import types

    from labkit.device import compiling

    half, u32 = types.float16[::1], types.uint32
    signatures = {"product and GELU": types.void(half, half, half, half, u32, u32, u32),
                  "residual and LayerNorm": types.void(half, half, half, half, half, u32, u32),
                  "heads apart": types.void(half, half, u32, u32, u32)}
    M, C, N, H, S = sizes
    rows = []
    for form, constant in FORMS.items():
        kernels = {"product and GELU": make_product(constant, C, N), "residual and LayerNorm": make_norm(constant, C),
                   "heads apart": make_heads(constant, S, H, sizes.head_width)}
        for name, kernel in kernels.items():
            text = compiling.ptx(kernel.build(), signatures[name], cc=cc)
            rows.append({"name": name, "form": form, **counted(text), **(compiling.resources(text) or {})})
    return {"cc": f"{cc[0]}.{cc[1]}", "sizes": sizes._asdict(), "rows": rows}


def counted(text: str) -> dict:
    """Instructions in a PTX text, by kind."""
    body = [line.strip() for line in text.splitlines() if line.startswith("\t") and not line.strip().startswith(".")]
    body = [re.sub(r"^@!?%p\d+\s+", "", line) for line in body if line not in ("{", "}")]
    kinds = {"branches": r"bra\b", "divisions": r"(div|rem)\.[us]", "loads": r"ld\.global", "multiply-adds": r"fma\."}
    return {"instructions": len(body)} | {kind: sum(bool(re.match(pattern, line)) for line in body)
                                          for kind, pattern in kinds.items()}


def recorded_compiled() -> dict | None:
    """What `compiled` found when it was recorded; None if it was not."""
    return recordings.read(COMPILED) if COMPILED.is_file() else None


def main(path: Path = COMPILED) -> None:
    import datetime

    import numba_cuda

    version = subprocess.run(["ptxas", "--version"], capture_output=True, text=True, check=True).stdout
    data = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "numba-cuda": numba_cuda.__version__,
            "ptxas": re.search(r"release ([\d.]+)", version)[1], **compiled()}
    write_text(path, json.dumps(data, indent=1) + "\n")
    for row in data["rows"]:
        print(row)


if __name__ == "__main__":
    main()
