"""linear_int4, linear_int8 and linear_fp8_weights: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.linear.quantized_linear."""

import functools

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16
from labkit.kernels.linear import quantized_linear
from labkit.kernels.linear.bf16 import linear_bf16_reference
from labkit.kernels.linear.quantized import E4M3, GROUPS, INT4, INT8, MIDDLE, STEP, TILE, Packed, unpack
from labkit.kernels.linear.quantized_linear import FEW, SIZES, SOME, make_tensor, make_thread, make_warp
from labkit.kernels.op import Op, Work, named, rung, sizes, uniform
from labkit.kernels.ops.linear_bf16 import linear_tolerance
from labkit.kernels.tolerance import EPS_BF16

SCALES = {INT4: BFLOAT16.dtype, INT8: np.dtype(np.float32), E4M3: np.dtype(np.float32)}
MAGNITUDE = {INT4: 4.6, INT8: 74.0, E4M3: 30.0}  # of codes, roughly: scales make sums as large as x


def random_codes(rng, format: str, *shape: int) -> np.ndarray:
    """Return words of random codes; of E4M3, without the highest bit of the exponent, and so without NaN."""
    words = rng.integers(0, 2**32, shape, np.uint32)
    return words & np.uint32(0xBFBFBFBF) if format == E4M3 else words


def inputs(rng, M: int, N: int, K: int, *, format: str) -> tuple:
    """x, the fields of Packed that are arrays, group and N. INT4 has groups as long as K allows, and zeros unless they
    are of 128."""
    group = next(group for group in reversed(GROUPS) if K % group == 0) if format == INT4 else 0
    tiles = -(-N // TILE)
    words = random_codes(rng, format, tiles, -(-K // STEP[format]), 32, 4)
    scales = np.abs(uniform(rng, tiles, K // group, 16) if group else uniform(rng, N)) + np.float32(0.1)
    scales /= np.float32(MAGNITUDE[format] * np.sqrt(K))
    if group:
        scales = BFLOAT16.array_of(scales).view(np.uint32)
    zeros = None
    if group and group < GROUPS[-1]:
        zeros = rng.integers(0, 16, (tiles, K // group, 16), np.uint16).view(np.uint32)
    return BFLOAT16.array_of(uniform(rng, M, K)), words, scales, zeros, group, N


def packed(format: str, x, words, scales, zeros, group: int, rows: int) -> Packed:
    return Packed(format, group, rows, x.shape[1], words, scales, zeros, SCALES[format])


_last: dict = {}  # the words that were dequantised last, and the weights: a reference and its tolerances share them


def dequantized(format: str, x, words, scales, zeros, group, rows) -> np.ndarray:
    if _last.get("words") is not words:
        scales = scales if group else np.asarray(scales, np.float32)  # tolerances have float64
        weight = unpack(packed(format, x, words, scales, zeros, group, rows)).dequantize()
        _last.update(words=words, weight=weight)
    return _last["weight"]


def reference(*arguments, format: str):
    return linear_bf16_reference(arguments[0], dequantized(format, *arguments))


def tolerance(x, *arguments, format: str, weights_rounded: float = 0.0):
    """weights_rounded: relative, of weights that are rounded to bfloat16 before they are multiplied."""
    weight = dequantized(format, x, *arguments)
    return linear_tolerance(x, weight) + weights_rounded * (np.abs(x) @ np.abs(weight).T)


# --- PyTorch ----------------------------------------------------------------------------------------------------------

# The axes of codes in memory, and those of quantized.pack_codes's rows and columns among them.
EIGHT_BITS = (8, 4, 2, 2, 2, 2), (0, 7, 2, 1, 3, 4, 5, 6)
AXES = {INT4: ((8, 4, 2, 2, 2, 2, 2), (0, 8, 2, 1, 4, 3, 5, 7, 6)), INT8: EIGHT_BITS, E4M3: EIGHT_BITS}


def torch_codes(torch, format: str, words, rows: int, columns: int):
    """Return the codes as a tensor (N, K) of the format's type."""
    if format == INT4:
        shifts = torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)
        codes = (words.view(torch.int32)[..., None] >> shifts & 15).to(torch.uint8)
    else:
        codes = words.view(torch.int8 if format == INT8 else torch.float8_e4m3fn)
    tiles, steps = words.shape[:2]
    split, order = AXES[format]
    codes = codes.reshape(tiles, steps, *split).permute(order).reshape(tiles * TILE, -1)
    return codes[:rows, :columns]


def torch_groups(torch, words, rows: int):
    """Return the scales of groups as a bfloat16 tensor (N, groups)."""
    pairs = words.view(torch.bfloat16).reshape(*words.shape, 2)
    return pairs.permute(0, 3, 2, 1).reshape(-1, words.shape[1])[:rows]


def for_cublas(torch, x, words, scales, zeros, group, rows, out, *, format: str):
    """Return x, the weights in bfloat16, and out."""
    codes = torch_codes(torch, format, words, rows, x.shape[1])
    if group:
        values = (codes.to(torch.bfloat16) - MIDDLE).reshape(rows, -1, group)
        return x, (values * torch_groups(torch, scales, rows)[..., None]).reshape(rows, -1), out
    return x, (codes.to(torch.float32) * scales[:, None]).to(torch.bfloat16), out


def for_tinygemm(torch, x, words, scales, zeros, group, rows, out):
    codes = torch_codes(torch, INT4, words, rows, x.shape[1])
    pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).contiguous()
    scales = torch_groups(torch, scales, rows).T.contiguous()
    return x, torch._convert_weight_to_int4pack(pairs, 8), group, torch.stack([scales, torch.zeros_like(scales)], -1)


def cublas(format: str) -> Baseline:
    return Baseline("PyTorch", "torch", lambda torch, x, weight, out: torch.mm(x, weight.T, out=out),
                    note="cuBLAS, weights in bfloat16", prepare=functools.partial(for_cublas, format=format),
                    tolerance=functools.partial(tolerance, format=format, weights_rounded=EPS_BF16))


TINYGEMM = Baseline("PyTorch", "torch", lambda torch, x, weight, group, scales: torch._weight_int4pack_mm(
                        x, weight, group, scales), compile=False, note="tinygemm, INT4", prepare=for_tinygemm,
                    tolerance=functools.partial(tolerance, format=INT4, weights_rounded=2 * EPS_BF16))

# --- The operations ---------------------------------------------------------------------------------------------------


def rungs(name: str, format: str) -> tuple:
    """The launchers as an Op calls them: inputs, then out."""
    options = (INT4, 128, BFLOAT16, False) if format == INT4 else (format, 0, None, False)

    def bound(suffix, launch, kernel, idea, **fields):
        @rung(kernel=kernel, idea=idea, sizes=SIZES, **fields)
        @named(f"{name}_{suffix}", launch.__doc__)
        def launcher(x, words, scales, zeros, group, rows, out, stream=0):
            launch(x, packed(format, x, words, scales, zeros, group, rows), out, stream=stream)

        return launcher

    tensor = tuple(make_tensor(*options, tile, whole=True) for tile in (*FEW, *SOME[4][:2]))
    return (bound("thread", quantized_linear.quantized_thread, make_thread(*options),
                  "one thread an output, a code at a time"),
            bound("warp", quantized_linear.quantized_warp, make_warp(*options),
                  "one warp a tile of 16 outputs: 16 bytes of codes a load"),
            bound("tensor_cores", quantized_linear.quantized_tensor_cores, tensor,
                  "codes become fragments in registers: mma.sync, copies in flight, K shared"),
            bound("picked", quantized_linear.quantized_linear, (make_thread(*options), make_warp(*options),
                  tensor[0]), "the one to use, by the number of rows", picks=True))


def _op(name: str, format: str, title: str, size_of_weights, baselines):
    return Op(
        name,
        title=title,
        formula=f"out = x @ weight.T, weight in {format}",
        reference=functools.partial(reference, format=format),
        rungs=rungs(name, format),
        inputs=functools.partial(inputs, format=format),
        shape=lambda M, N, K: (M, N),
        awkward=sizes("M N K", (1, 3, 32), (3, 37, 704), (9, 50, 2208 if format == INT4 else 2216), (18, 40, 256)),
        tolerance=functools.partial(tolerance, format=format),
        dtype=np.uint16,
        by_row=(0,),
        work=Work(
            flops=lambda M, N, K: 2 * M * N * K,
            bytes=lambda M, N, K: size_of_weights(N, K) + 2 * (M * K + M * N),
            timed_gpu={"M": 1, "N": 16384, "K": 2048},
            timed_cpu={"M": 1, "N": 256, "K": 256},
            also_gpu=sizes("M N K", (1, 2048, 8192), *[(1, 128256, 2048)] * (format == INT4), (32, 16384, 2048),
                           (32, 2048, 8192), (256, 16384, 2048)),
            peak="f16",
        ),
        baselines=baselines,
    )


LINEAR_INT4 = _op("linear_int4", INT4, "A linear layer with weights in 4 bits", lambda N, K: N * K // 2 + N * K // 64,
                  (cublas(INT4), TINYGEMM))
LINEAR_INT8 = _op("linear_int8", INT8, "A linear layer with weights in 8-bit integers", lambda N, K: N * K + 4 * N,
                  (cublas(INT8),))
LINEAR_FP8_WEIGHTS = _op("linear_fp8_weights", E4M3, "A linear layer with weights in FP8, x in bfloat16",
                         lambda N, K: N * K + 4 * N, (cublas(E4M3),))
