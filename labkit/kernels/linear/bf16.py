"""The linear layers of a Llama, out = x @ weight.T, with weights (out, in) as files have them: which kernel for what.

Shapes  x (T, K), weight (N, K), bias (N,), out (T, N); bfloat16 in arrays of uint16, float16 or float32; out may be
        float32 (logits). Accumulators in float32; 16 bits are rounded once, after the bias
Work    2*T*N*K flop; 2*(T*K + N*K + T*N) bytes of 16-bit elements
Source  torch.nn.functional.linear; LlamaMLP in transformers' modeling_llama.py

The order of additions in an output depends on the shape of the weights and on the kernel, never on the rest of a batch:
its bits change where _pick changes the kernel, and for layers with a split K at 64, 128 and 192 rows.
"""

import functools

import numpy as np

from labkit.device import gpus
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, ELEMENTS, FLOAT32, unchanged
from labkit.kernels.linear.streamed import (
    EIGHTS,
    GROUP,
    SEVERAL,
    by_tensor_cores,
    by_thread,
    by_warp,
    by_wide_warp,
    check_linear,
    check_wide,
    loads_whole,
    make_tensor,
    make_thread,
)
from labkit.kernels.linear.swap_ab import IDEA as IDEA_SWAP_AB
from labkit.kernels.linear.swap_ab import MOST_TOKENS, check_swap_ab, multiply_swap_ab, swap_ab_kernels
from labkit.kernels.linear.swap_ab import SIZES as SIZES_SWAP_AB
from labkit.kernels.matmul.half import PIPELINED_TILES, pipelined_tile
from labkit.kernels.matmul.mma import check_product, launch, make_pipelined
from labkit.kernels.matmul.wgmma import (
    SWIGLU_TILES,
    TILES,
    has_wgmma,
    make_wgmma_specialised,
    multiply_floats,
    multiply_specialised,
    multiply_swiglu,
)
from labkit.kernels.norm.rmsnorm import residual_sum
from labkit.kernels.op import missing, rung

MAX_STREAMED = 8  # tokens up to which weights are streamed
MAX_STREAMED_SMALL = 32
SMALL_ROWS = 8192  # rows of weights, below which a layer has fewer tiles than an H200 has SMs
LONG_DEPTH = 4096  # K from which on a small layer is faster with K split among blocks


# --- Any shape --------------------------------------------------------------------------------------------------------


def linear(x, weight, out, bias=None, stream=0):
    """out = x @ weight.T + bias, by the kernel to use for these sizes on this device.

    x (T, K), weight (N, K), bias (N,): all bfloat16 (uint16), float16 or float32. out (T, N): of their type, or
    float32.
    """
    elements = check_linear(x, weight, bias, out)
    _pick(x, weight, out, bias)(x, weight, bias, out, elements, stream=stream)


def linear_residual(x, weight, residual, out, bias=None, stream=0):
    """out = x @ weight.T + bias + residual: where tiles of 16 bits are multiplied, by one kernel that rounds once;
    elsewhere linear, and then the sum. residual and out: (T, N) of x's type, not the same array."""
    elements = check_linear(x, weight, bias, out)
    for name, array in (("out", out), ("residual", residual)):
        check_array(name, array, shape=out.shape, dtype=x.dtype)
    if residual is out:
        raise ValueError("residual is out; it must be another array, as products are stored in out before the sum")
    picked = _pick(x, weight, out, bias)
    if picked in (specialised, pipelined) and aligned(residual):
        picked(x, weight, bias, out, elements, residual=residual, stream=stream)
        return
    picked(x, weight, bias, out, elements, stream=stream)
    residual_sum(out, residual, out, stream)


def linear_swiglu(x, gate_up, out, stream=0):
    """out = silu(x @ gate.T) * (x @ up.T), rounded as transformers' modules round: both products, silu, and out.

    x (T, K), gate_up as arrange_gate_up makes it of gate and up (N, K), out (T, N): all of one type, as for linear.
    """
    elements = check_linear(x, gate_up, None, out, swiglu=True)
    _pick(x, gate_up, out, None, swiglu=True)(x, gate_up, None, out, elements, stream=stream)


def arrange_gate_up(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Return the weights for linear_swiglu, of gate and up (N, K), on the host: eight rows of gate, the eight of up,
    the next eight of gate, and so on, (2N, K). Where N is no multiple of 8, rows of zeros fill the last eight of both.

    So a tile of 16 rows on the tensor cores has gate and up of eight outputs, both in the registers of one thread.
    """
    for name, array in (("gate", gate), ("up", up)):
        if not isinstance(array, np.ndarray) or array.ndim != 2:
            raise TypeError(f"{name} must be a NumPy array (N, K), not {type(array).__name__} of shape "
                            f"{getattr(array, 'shape', None)}")
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(f"gate is {gate.dtype} of shape {gate.shape}, up {up.dtype} of {up.shape}; they must be alike")
    (N, K), whole = gate.shape, gate.shape[0] // GROUP
    both = np.zeros((-(-N // GROUP), 2, GROUP, K), gate.dtype)
    for index, rows in enumerate((gate, up)):
        both[:whole, index] = rows[: whole * GROUP].reshape(whole, GROUP, K)
        both[whole:, index, : N % GROUP] = rows[whole * GROUP :]
    return both.reshape(-1, K)


def _pick(x, weight, out, bias, swiglu: bool = False):
    """Return a launcher (x, weight, bias, out, elements, stream). On a GPU, of 16 bits with K a multiple of 8: up to 8
    rows, or 32 of a small layer, stream the weights to mma.sync (streamed.py); up to 256 are the columns of a product
    by wgmma (swap_ab.py); more are its rows (matmul/wgmma.py), or on other GPUs tiles of mma.sync (matmul/mma.py).
    Measured on an H200, in a decoder's step. Otherwise, and without tensor cores for bfloat16, a warp computes an
    output or several, on the CPU device a thread one."""
    wide = loads_whole(x, weight)
    options = {"swiglu": True} if swiglu else {}
    if not gpus.chosen_on_gpu():
        return functools.partial(by_thread, wide=wide, **options)
    element = ELEMENTS[np.dtype(x.dtype)]
    if element is FLOAT32 or not wide or missing(make_tensor(1, 1, element=element)):
        if wide and not swiglu:
            return functools.partial(by_wide_warp, outputs=SEVERAL)
        return functools.partial(by_warp, **options)
    tokens, rows = x.shape[0], weight.shape[0]
    floats = np.dtype(out.dtype) == np.float32
    small, long = rows < gpus.for_sms(SMALL_ROWS), weight.shape[1] >= LONG_DEPTH
    if tokens <= (MAX_STREAMED_SMALL if small and not long else MAX_STREAMED):
        return functools.partial(by_tensor_cores, **options)
    if tokens <= MOST_TOKENS and bias is None and has_wgmma():
        return functools.partial(swap_ab, **options)
    if out.shape[1] % 8 or not aligned(out):
        return functools.partial(by_tensor_cores, **options)
    if not has_wgmma() or (floats and bias is not None):
        return functools.partial(by_tensor_cores, **options) if swiglu or floats else pipelined
    return specialised_swiglu if swiglu else specialised_floats if floats else specialised


def swap_ab(x, weight, bias, out, elements=None, *, swiglu: bool = False, stream=0):
    multiply_swap_ab(x, weight, out, swiglu=swiglu, stream=stream)


def specialised(x, weight, bias, out, elements=None, *, residual=None, stream=0):
    multiply_specialised(x, weight, bias, out, weights=True, residual=residual, stream=stream)


def specialised_floats(x, weight, bias, out, elements=None, stream=0):
    multiply_floats(x, weight, out, stream=stream)


def specialised_swiglu(x, gate_up, bias, out, elements=None, stream=0):
    multiply_swiglu(x, gate_up, out, stream=stream)


def pipelined(x, weight, bias, out, elements=None, *, residual=None, stream=0):
    """Multiply by mma.sync, 16-bit elements in and out."""
    sizes = check_product(x, weight, bias, residual, out, weights=True, dtype=x.dtype, out_dtype=x.dtype)
    kernel = make_pipelined(pipelined_tile(*sizes), weights=True, bias=bias is not None, residual=residual is not None,
                            element=ELEMENTS[np.dtype(x.dtype)])
    launch(kernel, x, weight, bias, residual, out, stream)


# --- Rungs ------------------------------------------------------------------------------------------------------------

SIZES = "K and N multiples of 8"
IDEA_WGMMA = "wgmma: one warpgroup copies, two multiply 128 rows at a time"


@rung(kernel=tuple(make_pipelined(tile, weights=True, element=BFLOAT16) for tile in PIPELINED_TILES),
      idea="mma.sync: tiles in a pipeline of four stages, rounded and stored whole", sizes=SIZES)
def linear_bf16_pipelined(x, weight, out, stream=0):
    """Multiply many rows: a block computes a tile of 128 x 256 or so, and prefetches the next stage meanwhile."""
    pipelined(x, weight, None, out, stream=stream)


@rung(kernel=tuple(make_wgmma_specialised(tile, weights=True, bias=False, activation=unchanged, element=BFLOAT16)
                   for tile in TILES), sizes=SIZES, idea=IDEA_WGMMA)
def linear_bf16_wgmma(x, weight, out, stream=0):
    """As pipelined, on Hopper's tensor cores: float16's kernel of matmul/wgmma.py with bfloat16's instruction."""
    specialised(x, weight, None, out, stream=stream)


@rung(kernel=swap_ab_kernels(), idea=IDEA_SWAP_AB, sizes=SIZES_SWAP_AB)
def linear_bf16_left(x, weight, out, stream=0):
    """For some tens of rows, where reading the weights takes the time: a tile has 128 rows of them."""
    check_linear(x, weight, None, out)
    check_swap_ab(x, weight)
    multiply_swap_ab(x, weight, out, stream=stream)


@rung(kernel=(make_thread(BFLOAT16, BFLOAT16, wide=True), make_thread(BFLOAT16, BFLOAT16), make_tensor(1, 1)),
      idea="the one to use, by the number of rows")
def linear_bf16_picked(x, weight, out, stream=0):
    """Streamed weights for few rows, tiles for many."""
    linear(x, weight, out, stream=stream)


@rung(kernel=tuple(make_tensor(tokens, rows, swiglu=True) for tokens, rows in ((1, 1), (2, 2), (4, 2))),
      idea="streamed: a thread adds up gate and up of the same output", sizes=EIGHTS)
def linear_swiglu_streamed(x, gate_up, out, stream=0):
    """For few rows: the kernel of streamed_tensor_cores, where eight rows of gates and their ups are a tile."""
    elements = check_linear(x, gate_up, None, out, swiglu=True)
    check_wide(x, gate_up)
    by_tensor_cores(x, gate_up, None, out, elements, swiglu=True, stream=stream)


@rung(kernel=tuple(make_wgmma_specialised(tile, weights=True, bias=False, activation=unchanged, element=BFLOAT16,
                                          swiglu=True) for tile in SWIGLU_TILES), sizes=SIZES, idea=IDEA_WGMMA)
def linear_swiglu_wgmma(x, gate_up, out, stream=0):
    """For many rows: SwiGLU while the next tile is copied. The output is half as wide, which leaves shared memory for
    another stage."""
    specialised_swiglu(x, gate_up, None, out, stream=stream)


@rung(kernel=swap_ab_kernels(swiglu=True), idea=IDEA_SWAP_AB, sizes=SIZES_SWAP_AB)
def linear_swiglu_left(x, gate_up, out, stream=0):
    """As linear_bf16_left: a thread has the gates and ups of its outputs among its accumulators."""
    check_linear(x, gate_up, None, out, swiglu=True)
    check_swap_ab(x, gate_up)
    multiply_swap_ab(x, gate_up, out, swiglu=True, stream=stream)


@rung(kernel=(make_thread(BFLOAT16, BFLOAT16, wide=True, swiglu=True), make_thread(BFLOAT16, BFLOAT16, swiglu=True)),
      idea="the one to use, by the number of rows")
def linear_swiglu_picked(x, gate_up, out, stream=0):
    """Streamed weights for few rows, tiles for many."""
    linear_swiglu(x, gate_up, out, stream=stream)


@rung(kernel=tuple(make_tensor(tokens, tokens, out_element=FLOAT32) for tokens in (1, 2)),
      idea="streamed to tensor cores, accumulators stored as they are", sizes=EIGHTS)
def lm_head_streamed(x, weight, out, stream=0):
    """The kernel of streamed_tensor_cores, whose accumulators are not rounded."""
    elements = check_linear(x, weight, None, out)
    check_wide(x, weight)
    by_tensor_cores(x, weight, None, out, elements, stream=stream)


@rung(kernel=tuple(make_wgmma_specialised(tile, weights=True, bias=False, activation=unchanged, element=BFLOAT16,
                                          floats=True) for tile in TILES), sizes=SIZES, idea=IDEA_WGMMA)
def lm_head_wgmma(x, weight, out, stream=0):
    """For many rows: tiles, whose threads store their accumulators unrounded."""
    specialised_floats(x, weight, None, out, stream=stream)


@rung(kernel=swap_ab_kernels(floats=True), idea=IDEA_SWAP_AB, sizes=SIZES_SWAP_AB)
def lm_head_left(x, weight, out, stream=0):
    """As linear_bf16_left; accumulators are stored unrounded."""
    check_linear(x, weight, None, out)
    check_swap_ab(x, weight)
    multiply_swap_ab(x, weight, out, stream=stream)


@rung(kernel=make_thread(BFLOAT16, FLOAT32, wide=True), idea="the one to use, by the number of rows")
def lm_head_picked(x, weight, out, stream=0):
    """Streamed weights for few rows, tiles for many."""
    linear(x, weight, out, stream=stream)


# --- References -------------------------------------------------------------------------------------------------------


def linear_bf16_reference(x, weight):
    return float64_of(x) @ float64_of(weight).T


def gate_and_up(products: np.ndarray) -> tuple:
    """Return the columns of gates and those of ups, each (T, N rounded up to a multiple of 8), of x @ gate_up.T."""
    groups = products.reshape(products.shape[0], -1, 2, GROUP)
    return tuple(groups[:, :, i].reshape(products.shape[0], -1) for i in range(2))


def silu(x):
    """Return x / (1 + exp(-x)), without an exponential that overflows."""
    return x * np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def linear_swiglu_reference(x, gate_up):
    """Not rounded in between. Where N is no multiple of 8, the columns of zeros at its end belong to no output."""
    gate, up = gate_and_up(linear_bf16_reference(x, gate_up))
    return silu(gate) * up
