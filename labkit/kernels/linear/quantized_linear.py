"""Linear layers with weights in 4 or 8 bits, out = x @ weight.T: a ladder, and which kernel to use for how many rows.

Shapes  x (T, K), packed weights (N, K) as linear/quantized.py lays them out, bias (N,), out (T, N); x float16, or
        bfloat16 in uint16; out of its type or float32. K a multiple of 8. Products exact, accumulators in float32
Work    2*T*N*K flop; N*K/2 bytes of INT4 and N*K/64 of its scales in groups of 128, or N*K bytes of 8 bits. At 4.2
        TB/s on an H200, 16,384 x 2,048 of INT4 takes 4.1 us; up to some 16 rows the weights are what limits
Source  Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on LLMs" (2024); Kim et al., "Who
        Says Elephants Can't Run" (2022), for integers placed in the mantissa of a float

Weights are not scaled before they are multiplied: a code less its zero is exact in 16 bits, and sums are scaled.
"""

import functools
import threading
from typing import NamedTuple

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, blocks_for, check_array, dynamic_shared, fits, resident
from labkit.kernels.elements import BFLOAT16, ELEMENTS, FLOAT16, FLOAT32, Element, element_of
from labkit.kernels.linear.bf16 import linear
from labkit.kernels.linear.quantized import GROUPS, INT4, INT8, MIDDLE, STEP, TILE, Packed
from labkit.kernels.linear.streamed import make_epilogue
from labkit.kernels.matmul.mma import ADD_PRODUCT
from labkit.kernels.op import missing
from labkit.kernels.pdl import load_of, uses_pdl

ZERO = float32(0.0)
BLOCK = 128
WARPS = 4  # of a block in which a warp computes a tile's 16 outputs
ALL_LANES = 0xFFFFFFFF
SLICE = 512  # columns that a warp adds up before its sum meets others
SLICES = 4  # whose sums are added in order, before the next four: so for any number of rows and every tile
E4M3_TO_FLOAT = float32(2.0**120)  # its exponent has a bias of 7, a float32's one of 127


class Magic(NamedTuple):
    """Constants of a type of 16 bits, two of each in a word. Its mantissa's last bit is worth 1 in `base`, so that an
    integer of a few bits placed there is base plus the integer; minus is -base. E4M3's exponent, shifted by `shift`, is
    too small by the factor `scale`."""

    base: int
    minus: int
    one: int
    shift: int
    scale: int


MAGIC = {
    FLOAT16: Magic(uint32(0x64006400), uint32(0xE400E400), uint32(0x3C003C00), 7, uint32(0x5C005C00)),  # 1,024; 2^8
    BFLOAT16: Magic(uint32(0x43004300), uint32(0xC300C300), uint32(0x3F803F80), 4, uint32(0x7B807B80)),  # 128; 2^120
}
FMA = {FLOAT16: ptx.fma_half2, BFLOAT16: ptx.fma_bf162}


# --- Codes ------------------------------------------------------------------------------------------------------------


def make_number(format: str):
    """A device function: the code that begins at bit `shift` of a word, less a zero, as float32."""

    @cuda.jit(device=True)
    def number(word, shift, zero):
        code = word >> shift
        if format == INT4:
            return float32(code & 15) - zero
        if format == INT8:
            return float32(code & 255 ^ 128) - float32(128.0)
        return ptx.bits_float((code & 0x7F) << 20 | (code & 0x80) << 24) * E4M3_TO_FLOAT

    return number


def make_place(format: str):
    """A device function: (word of a lane, shift) of the code of column k of a tile, for half of its rows, 0 or 1."""
    NIBBLES = format == INT4

    @cuda.jit(device=True)
    def place(half, k):
        product, pair, second = k % 8 // 4, k % 4 // 2, k % 2
        if NIBBLES:
            return k // 32 * 2 + product, 16 * second + 8 * pair + 4 * half
        return 2 * product + pair, 16 * second + 8 * half

    return place


def make_pair(scale_element: Element | None, zeros: bool):
    """Two device functions, of a word's index: the scales, and the zeros, of rows g and g + 8."""
    unpack_scales = (scale_element or FLOAT16).unpack  # of 8 bits: not called

    @cuda.jit(device=True)
    def scale_pair(scales, i):
        return unpack_scales(scales[i])

    @cuda.jit(device=True)
    def zero_pair(zero_words, i):
        if zeros:
            word = zero_words[i]
            return float32(word & 0xFFFF), float32(word >> 16)
        return float32(MIDDLE), float32(MIDDLE)

    return scale_pair, zero_pair


# --- A thread for each output -----------------------------------------------------------------------------------------


@kernel_factory
def make_thread(format: str, group: int, scale_element: Element | None, zeros: bool, *, element: Element = BFLOAT16,
                out_element: Element = BFLOAT16, bias: bool = False):
    TILE_STEP, GROUP = STEP[format], group
    number, place, to_float = make_number(format), make_place(format), element.number
    scale_pair, zero_pair = make_pair(scale_element, zeros)
    epilogue = make_epilogue(element, out_element, bias)

    @cuda.jit
    def quantized_thread_kernel(x, words, scales, zero_words, bias_of, out):
        col, row = u32.grid(2)
        if col < u32.shape(out)[1]:
            depth = u32.shape(x)[1]
            steps = (depth + (TILE_STEP - 1)) // TILE_STEP
            tile, half, g = col // 16, col // 8 % 2, col % 8
            span = GROUP if GROUP else depth
            total, zero = ZERO, ZERO
            for group_idx in u32.range(depth // span):
                part = ZERO
                if GROUP:
                    zero_g, zero_h = zero_pair(zero_words, (tile * (depth // GROUP) + group_idx) * 8 + g)
                    zero = zero_h if half else zero_g
                for k in u32.range(group_idx * span, (group_idx + 1) * span):
                    word, shift = place(half, k % TILE_STEP)
                    lane = 4 * g + k % 32 // 8
                    code = words[((tile * steps + k // TILE_STEP) * 32 + lane) * 4 + word]
                    part += to_float(x[row, k]) * number(code, shift, zero)
                if GROUP:
                    scale_g, scale_h = scale_pair(scales, (tile * (depth // GROUP) + group_idx) * 8 + g)
                    total += part * (scale_h if half else scale_g)
                else:
                    total = part * scales[col]
            out[row, col] = epilogue(total, bias_of, col)

    return quantized_thread_kernel


# --- A warp for each tile of 16 outputs -------------------------------------------------------------------------------


@kernel_factory
def make_warp(format: str, group: int, scale_element: Element | None, zeros: bool, *, element: Element = BFLOAT16,
              out_element: Element = BFLOAT16, bias: bool = False):
    """A lane multiplies the codes of its 16 bytes, of rows g and g + 8; four lanes share the two sums."""
    TILE_STEP, GROUP = STEP[format], group
    number, place, unpack_pair = make_number(format), make_place(format), element.unpack
    scale_pair, zero_pair = make_pair(scale_element, zeros)
    epilogue = make_epilogue(element, out_element, bias)

    @cuda.jit
    def quantized_warp_kernel(x, words, scales, zero_words, bias_of, out):
        lane, row = u32.threadIdx.x, u32.blockIdx.y
        g, q = lane // 4, lane % 4
        cols, depth = u32.shape(out)[1], u32.shape(x)[1]
        tile = u32.blockIdx.x * WARPS + u32.threadIdx.y
        steps = (depth + (TILE_STEP - 1)) // TILE_STEP
        if tile * 16 < cols:  # the same for all lanes of a warp
            total_g, total_h, zero_g, zero_h = ZERO, ZERO, ZERO, ZERO
            for step in u32.range(steps):
                vec = ptx.load_nc4(words, ((tile * steps + step) * 32 + lane) * 4)
                for h in range(TILE_STEP // 32):
                    k = step * TILE_STEP + h * 32 + q * 8
                    inside = k < depth
                    x_vec = ptx.load_nc4(x, row * depth + (k if inside else 0))
                    part_g, part_h = ZERO, ZERO
                    if GROUP:
                        index = (tile * (depth // GROUP) + min(k, depth - 1) // GROUP) * 8 + g
                        zero_g, zero_h = zero_pair(zero_words, index)
                    for n in range(4):  # pairs of columns
                        low, high = unpack_pair(x_vec[n])
                        word, shift_g = place(0, h * 32 + 2 * n)
                        _, shift_h = place(1, h * 32 + 2 * n)
                        part_g += low * number(vec[word], shift_g, zero_g)
                        part_g += high * number(vec[word], shift_g + 16, zero_g)
                        part_h += low * number(vec[word], shift_h, zero_h)
                        part_h += high * number(vec[word], shift_h + 16, zero_h)
                    if inside:
                        if GROUP:
                            scale_g, scale_h = scale_pair(scales, index)
                            total_g += part_g * scale_g
                            total_h += part_h * scale_h
                        else:
                            total_g += part_g
                            total_h += part_h
            for offset in (1, 2):
                total_g += cuda.shfl_xor_sync(ALL_LANES, total_g, offset)
                total_h += cuda.shfl_xor_sync(ALL_LANES, total_h, offset)
            col = tile * 16 + g + 8 * q
            if q < 2 and col < cols:
                total = total_h if q else total_g
                if not GROUP:
                    total *= scales[col]
                out[row, col] = epilogue(total, bias_of, col)

    return quantized_warp_kernel


# --- Tensor cores -----------------------------------------------------------------------------------------------------

# INT4 in groups of 128 on an H200, predicted: the bytes of weights and scales at 4.2 TB/s, and what comes on top.
#
#     T x N x K            bytes alone     predicted    on top
#     1 x 16,384 x 2,048        4.1 us          6 us    a launch, the first loads' latency, and the last block's sums
#     1 x 2,048 x 8,192         2.1 us          4 us    the same
#     1 x 128,256 x 2,048        32 us         38 us    61 blocks' ends and beginnings on an SM, eight at a time
#     32 x 16,384 x 2,048       4.1 us          9 us    x, 128 KB for each SM from L2, at the time of its weights
#     32 x 2,048 x 8,192        2.1 us          7 us    the same, and the sums of four blocks through L2
#
# Codes cost the ALUs some 45 instructions for each 512 bytes that a warp reads: 3 us of 16,384 x 2,048, meanwhile.

SHARED_PERCENT = 75  # of an SM's memory that a graph asks to be shared: eight blocks of 16 KB, and L1 for x
PITCH = 20  # of 16 sums of a token: lanes that store a product's accumulators hit 32 different banks


class Tile(NamedTuple):
    """A block has row_warps x slices warps; each multiplies row_tiles * 16 rows of the weights by token_tiles * 8
    tokens, and one slice of K after another. It has `stages` tiles of weights a row tile in flight, and loads x for
    `batch` of them at once, or half as many where scales take more registers. An SM should hold `blocks`."""

    token_tiles: int
    row_tiles: int
    row_warps: int
    slices: int
    stages: int
    batch: int
    blocks: int

    @property
    def rows(self) -> int:
        return 16 * self.row_tiles * self.row_warps

    @property
    def tokens(self) -> int:
        return 8 * self.token_tiles

    @property
    def threads(self) -> int:
        return 32 * self.row_warps * self.slices

    @property
    def warp_words(self) -> int:
        """Words of shared memory of a warp: its stages, which its sums replace."""
        return self.row_tiles * max(128 * self.stages, self.tokens * PITCH)

    @property
    def shared_bytes(self) -> int:
        return self.threads // 32 * self.warp_words * 4


# For up to 8 tokens: the 32 warps of an SM have 128 KB of weights in flight, an H200's share of 16,384 x 2,048 of INT4.
FEW = tuple(Tile(1, 1, 1, slices, 8, 4, 32 // slices) for slices in (4, 8, 16))
# For more: each block reads x from L2, so that the more rows of weights it has, the fewer bytes pass there. The first
# that has a block for most SMs is used.
SOME = {token_tiles: tuple(Tile(token_tiles, *shape, SLICES, 4, batch, 1) for shape in ((2, 4), (1, 4), (1, 1)))
        for token_tiles, batch in ((2, 2), (4, 1))}
ENOUGH_BLOCKS = 96  # of an H200's 132 SMs


def make_fragments(format: str, group: int, element: Element, zeros: bool):
    """A device function: the words of a lane's 16 bytes as registers of A, four for each product of 16 columns.

    INT4, for every two weights: `and`, `or` (one lop3) and an FMA that subtracts the zero, exact in 16 bits. INT8: its
    lower seven bits, less its eighth, which is worth -128. E4M3: sign, exponent and fraction are shifted into place.
    """
    base, minus, one, shift, scale = MAGIC[element]
    fma = FMA[element]
    PRODUCTS_OF_ZERO = 2 if group == 32 else 4  # of 16 columns each
    SYMMETRIC = uint32(minus | MIDDLE << 16 | MIDDLE)

    @cuda.jit(device=True)
    def fragments(w_frag, words, zero_frag, offset):
        if format == INT4:
            for p in range(4):
                zero_g, zero_h = SYMMETRIC, SYMMETRIC
                if zeros:
                    zero_word = zero_frag[offset + p // PRODUCTS_OF_ZERO]
                    zero_g = minus | (zero_word & 15) * 0x10001
                    zero_h = minus | (zero_word >> 16) * 0x10001
                for r in range(4):
                    code = words[p] >> (4 * r) & 0x000F000F | base
                    w_frag[4 * p + r] = fma(code, one, zero_h if r % 2 else zero_g)
        else:
            for n in range(4):
                for half in range(2):
                    code = words[n] >> (8 * half)
                    if format == INT8:
                        w_frag[2 * n + half] = fma(code & 0x007F007F | base, one, code & 0x00800080 | minus)
                    else:
                        bits = (code & 0x007F007F) << shift | (code & 0x00800080) << 8
                        w_frag[2 * n + half] = fma(bits, scale, 0)

    return fragments


@kernel_factory
def make_tensor(format: str, group: int, scale_element: Element | None, zeros: bool, tile: Tile = FEW[0], *,
                element: Element = BFLOAT16, out_element: Element = BFLOAT16, bias: bool = False, whole: bool = False,
                split: bool = False, early: bool = False):
    """A block computes tile.rows rows of the weights for tile.tokens tokens: weights are the left factor.

    Each lane copies the 16 bytes that it will multiply itself, by cp.async: so stages take no registers, and no warp
    waits for another. Their codes go from shared memory to fragments in registers. x is loaded from L1 in the order of
    K that the weights have. Within 64 columns (32, in groups of 32) the tensor cores add; each sum is then scaled.
    Sums meet in the same order for any number of tokens and any tile: 512 columns, then four such slices, then those
    fours. The weights' copies begin while the previous kernel ends (kernels/pdl.py).

    whole: K is a multiple of what the warps of a block add up, so that no step is beyond it. split: a block adds up
    four slices, and the last block of a tile to arrive adds the sums of all, in order.
    """
    TILE_STEP, GROUP, EARLY, WHOLE, SPLIT = STEP[format], group, early, whole, split
    TILES, ROW_TILES, SLICES_HERE, STAGES, BATCH = (tile.token_tiles, tile.row_tiles, tile.slices, tile.stages,
                                                    max(1, tile.batch // 2) if group == 32 or zeros else tile.batch)
    TOKENS, ROWS, THREADS, WARP_WORDS = tile.tokens, tile.rows, tile.threads, tile.warp_words
    SPANS, IN_FLIGHT = TILE_STEP // 32, STAGES - 1  # spans of 32 columns: one load of x by four lanes
    SLICE_STEPS = SLICE // TILE_STEP
    ROUND = SLICES_HERE * SLICE_STEPS
    SCALES = (SPANS if group == 32 else 1) if group else 0  # words of scales of a step
    SAME = min(BATCH, 2) if group == 128 else 1  # steps in a row that have the same scale
    ACCUMULATORS, FRAGMENTS = 4 * TILES * ROW_TILES, 8 * SPANS
    X_REGS, SCALE_REGS = 4 * TILES * SPANS * BATCH, max(1, SCALES * ROW_TILES * BATCH // SAME)
    OUTPUTS = ROWS * TOKENS
    TOTALS = -(-OUTPUTS // THREADS)
    fragments, add_product, epilogue = (make_fragments(format, group, element, zeros), ADD_PRODUCT[element],
                                        make_epilogue(element, out_element, bias))
    scale_pair, _ = make_pair(scale_element, zeros)
    load_x = load_of(early)

    @cuda.jit(device=True)
    def copy_step(shared, offset, words, tile0, tiles, step, steps):
        """Start the copies of a step's tiles of weights; beyond the last step, zeros."""
        for j in u32.range(ROW_TILES):
            source = (min(tile0 + j, tiles - 1) * steps + step) * 128
            ptx.cp_async_16(shared, offset + j * (128 * STAGES), words, source + u32.threadIdx.x % 32 * 4,
                            16 if WHOLE or step < steps else 0)
        ptx.cp_async_commit()

    @cuda.jit(device=True)
    def scale_sums(acc, i, part, scale_words, offset):
        low, high = scale_pair(scale_words, offset)
        acc[i] += part[0] * low
        acc[i + 1] += part[1] * low
        acc[i + 2] += part[2] * high
        acc[i + 3] += part[3] * high
        part[0], part[1], part[2], part[3] = ZERO, ZERO, ZERO, ZERO

    @cuda.jit(launch_bounds=(THREADS, resident(tile.blocks, THREADS, tile.shared_bytes)))
    def quantized_tensor_kernel(x, words, scales, zero_words, bias_of, out, workspace, arrived):
        shared = cuda.shared.array(0, uint32)
        is_last = cuda.shared.array(1, uint32)
        partials = cuda.shared.array(0, float32)  # the same memory: a warp's sums replace its weights
        acc = cuda.local.array(ACCUMULATORS, float32)
        part = cuda.local.array(4, float32)
        totals = cuda.local.array(TOTALS, float32)
        w_frag = cuda.local.array(FRAGMENTS, uint32)
        x_frag = cuda.local.array(X_REGS, uint32)
        scale_words = cuda.local.array(SCALE_REGS, uint32)
        zero_frag = cuda.local.array(SCALE_REGS, uint32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        g, q = lane // 4, lane % 4
        cols, depth, tokens = u32.shape(out)[1], u32.shape(x)[1], u32.shape(x)[0]
        row0, token0 = u32.blockIdx.x * ROWS, u32.blockIdx.y * TOKENS
        tile0 = row0 // 16 + warp // SLICES_HERE * ROW_TILES
        tiles, steps = (cols + 15) // 16, (depth + (TILE_STEP - 1)) // TILE_STEP
        ring = warp * WARP_WORDS + lane * 4
        for n in u32.range(TOTALS):
            totals[n] = ZERO
        for n in range(4):
            part[n] = ZERO
        part_idx = u32.blockIdx.z
        first = warp % SLICES_HERE * SLICE_STEPS + part_idx * ROUND
        for s in u32.range(STAGES):
            copy_step(shared, ring + s * 128, words, tile0, tiles, first + s, steps)
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            ptx.griddepcontrol_wait()

        for round_idx in u32.range(1 if SPLIT else (steps + (ROUND - 1)) // ROUND):
            if round_idx > 0:
                cuda.syncthreads()  # the sums of the last round have been read
                first += ROUND
                for s in u32.range(STAGES):
                    copy_step(shared, ring + s * 128, words, tile0, tiles, first + s, steps)
            for i in u32.range(ACCUMULATORS):
                acc[i] = ZERO
            for s0 in u32.range(0, SLICE_STEPS, BATCH):
                for b in u32.range(BATCH):
                    k0 = (first + s0 + b) * TILE_STEP
                    for i in u32.range(TILES):
                        x_row = min(token0 + 8 * i + g, tokens - 1) * depth
                        for h in u32.range(SPANS):
                            k = k0 + 32 * h + 8 * q
                            x_vec = load_x(x, x_row + (k if WHOLE or k < depth else 0))
                            for n in u32.range(4):
                                x_frag[((b * TILES + i) * SPANS + h) * 4 + n] = x_vec[n]
                    for j in u32.range(ROW_TILES if b % SAME == 0 else 0):
                        for h in u32.range(SCALES):
                            group_idx = (k0 + 32 * h if WHOLE else min(k0 + 32 * h, depth - 1)) // GROUP
                            index = (min(tile0 + j, tiles - 1) * (depth // GROUP) + group_idx) * 8 + g
                            scale_words[(b // SAME * ROW_TILES + j) * SCALES + h] = scales[index]
                            if zeros:
                                zero_frag[(b // SAME * ROW_TILES + j) * SCALES + h] = zero_words[index]
                for b in u32.range(BATCH):
                    s = s0 + b
                    if not WHOLE:
                        for i in u32.range(TILES * SPANS):
                            inside = (first + s) * TILE_STEP + 32 * (i % SPANS) + 8 * q < depth
                            for n in u32.range(4):
                                x_frag[(b * TILES * SPANS + i) * 4 + n] = (
                                    x_frag[(b * TILES * SPANS + i) * 4 + n] if inside else 0)
                    ptx.cp_async_wait(IN_FLIGHT)
                    slot = ring + s % STAGES * 128
                    for j in u32.range(ROW_TILES):
                        fragments(w_frag, ptx.load_shared4(shared, slot + j * (128 * STAGES)),
                                  zero_frag, (b // SAME * ROW_TILES + j) * SCALES)
                        for i in u32.range(TILES):
                            total = (j * TILES + i) * 4
                            for h in u32.range(SPANS):
                                for p in u32.range(2):
                                    w, v = (2 * h + p) * 4, ((b * TILES + i) * SPANS + h) * 4 + 2 * p
                                    if GROUP:
                                        add_product(part, 0, w_frag[w], w_frag[w + 1], w_frag[w + 2], w_frag[w + 3],
                                                    x_frag[v], x_frag[v + 1])
                                    else:
                                        add_product(acc, total, w_frag[w], w_frag[w + 1], w_frag[w + 2], w_frag[w + 3],
                                                    x_frag[v], x_frag[v + 1])
                                if GROUP == 32 or (GROUP and h == SPANS - 1):
                                    scale_sums(acc, total, part, scale_words,
                                               (b // SAME * ROW_TILES + j) * SCALES + (h if GROUP == 32 else 0))
                    if s + STAGES < SLICE_STEPS:
                        copy_step(shared, slot, words, tile0, tiles, first + s + STAGES, steps)
                    else:
                        ptx.cp_async_commit()  # an empty group: a wait counts groups

            cuda.syncwarp()  # all lanes have read their weights
            for j in u32.range(ROW_TILES):
                for i in u32.range(TILES):
                    for n in u32.range(4):  # rows g and g + 8, tokens 2q and 2q + 1
                        token = j * TOKENS + 8 * i + 2 * q + n % 2
                        partials[warp * WARP_WORDS + token * PITCH + g + n // 2 * 8] = acc[(j * TILES + i) * 4 + n]
            cuda.syncthreads()  # the sums of all warps are written
            for n in u32.range(TOTALS):
                idx = thread + n * THREADS
                row, token = idx % ROWS, idx // ROWS
                row_warp, j = row // (16 * ROW_TILES), row // 16 % ROW_TILES
                offset = row_warp * (SLICES_HERE * WARP_WORDS) + (j * TOKENS + token) * PITCH + row % 16
                if idx < OUTPUTS:
                    for four in u32.range(0, SLICES_HERE, SLICES):
                        total = partials[offset + four * WARP_WORDS]
                        for n_slice in u32.range(1, SLICES):
                            total += partials[offset + (four + n_slice) * WARP_WORDS]
                        totals[n] += total

        if SPLIT:
            block_tile, parts = u32.blockIdx.y * u32.gridDim.x + u32.blockIdx.x, u32.gridDim.z
            for n in u32.range(TOTALS):
                idx = thread + n * THREADS
                if idx < OUTPUTS:
                    workspace[(block_tile * parts + part_idx) * OUTPUTS + idx] = totals[n]
            cuda.threadfence()  # the sums are visible before the count is
            cuda.syncthreads()
            if thread == 0:
                # The last block resets the count to 0 for the next launch.
                is_last[0] = 1 if uint32(cuda.atomic.inc(arrived, block_tile, parts - 1)) == parts - 1 else 0
                cuda.threadfence()
            cuda.syncthreads()
            if is_last[0] == 0:
                return
            for n in u32.range(TOTALS):
                idx = min(thread + n * THREADS, OUTPUTS - 1)
                totals[n] = ZERO
                for other in u32.range(parts):
                    totals[n] += workspace[(block_tile * parts + other) * OUTPUTS + idx]

        for n in u32.range(TOTALS):
            idx = thread + n * THREADS
            col, token = row0 + idx % ROWS, token0 + idx // ROWS
            if idx < OUTPUTS and col < cols and token < tokens:
                total = totals[n]
                if not GROUP:
                    total *= scales[col]
                out[token, col] = epilogue(total, bias_of, col)

    quantized_tensor_kernel.threads, quantized_tensor_kernel.shared_bytes = THREADS, tile.shared_bytes
    quantized_tensor_kernel.uses_pdl, quantized_tensor_kernel.carveout = early, SHARED_PERCENT
    return quantized_tensor_kernel


# --- Launching --------------------------------------------------------------------------------------------------------

SIZES = "K a multiple of 8, at most 65,535 rows"


def check_quantized(x, weights: Packed, bias, out) -> tuple[Element, Element]:
    """Return (Element of x, Element of out), or raise an error that names the argument and the allowed values."""
    element = element_of("x", x)
    if element is FLOAT32:
        raise TypeError("x has dtype float32; float16, and uint16, which holds bfloat16, are allowed")
    check_array("x", x, ndim=2, dtype=element.dtype)
    if not isinstance(weights, Packed):
        raise TypeError(f"weights is a {type(weights).__name__}; pass what Quantized.pack() returns, on the device")
    rows, columns = weights.rows, weights.columns
    if x.shape[1] != columns:
        raise ValueError(f"x has {x.shape[1]} columns and weights {columns}; they must have as many")
    if columns % 8 or not aligned(x):
        raise ValueError(f"x has {columns} columns; K must be a multiple of 8, and x begin at a multiple of 16 bytes")
    tiles = -(-rows // TILE)
    check_array("words", weights.words, shape=(tiles, -(-columns // STEP[weights.format]), 32, 4), dtype=np.uint32)
    if weights.format == INT4:
        if weights.group not in GROUPS or columns % weights.group:
            raise ValueError(f"group is {weights.group} and K {columns}; group must be 32, 64 or 128, and divide K")
        shape = (tiles, columns // weights.group, 8)
        check_array("scales", weights.scales, shape=shape, dtype=np.uint32)
        if weights.zeros is not None:
            check_array("zeros", weights.zeros, shape=shape, dtype=np.uint32)
    else:
        check_array("scales", weights.scales, shape=(rows,))
    out_element = element_of("out", out)
    if out_element not in (element, FLOAT32):
        raise TypeError(f"out has dtype {out.dtype}; {element.dtype} as x, or float32, is allowed")
    check_array("out", out, shape=(x.shape[0], rows), dtype=out_element.dtype)
    if bias is not None:
        check_array("bias", bias, shape=(rows,), dtype=element.dtype)
    return element, out_element


def options_of(weights: Packed) -> tuple:
    """Return what a factory takes of weights: the format, the group, the scales' Element, and whether zeros are."""
    scale_element = ELEMENTS[np.dtype(weights.scale_dtype)] if weights.format == INT4 else None
    return weights.format, weights.group, scale_element, weights.zeros is not None


def arguments_of(x, weights: Packed, bias, out) -> tuple:
    """Return a kernel's arguments; an array that it does not read stands for what is missing."""
    words, scales = weights.words.reshape(-1), weights.scales.reshape(-1)
    zeros = words if weights.zeros is None else weights.zeros.reshape(-1)
    return x, words, scales, zeros, out if bias is None else bias, out


def by_thread(x, weights, bias, out, elements, stream=0) -> None:
    kernel = make_thread(*options_of(weights), element=elements[0], out_element=elements[1], bias=bias is not None)
    grid = blocks_for(out.shape[::-1], (BLOCK, 1))
    kernel[grid, (BLOCK, 1), stream](*arguments_of(x, weights, bias, out))


def by_warp(x, weights, bias, out, elements, stream=0) -> None:
    kernel = make_warp(*options_of(weights), element=elements[0], out_element=elements[1], bias=bias is not None)
    grid = blocks_for(out.shape[::-1], (TILE * WARPS, 1))
    kernel[grid, (32, WARPS), stream](*arguments_of(x, weights, bias, out))


def tile_for(tokens: int, weights: Packed) -> tuple[Tile, int]:
    """Return the tile for a layer, and among how many blocks its K is split: 1 for up to 8 tokens, whose blocks have as
    many slices as K has. The bits of an output are the same for each. Two row tiles of a warp leave no registers for a
    split, zeros or more scales."""
    rows, depth = weights.rows, weights.columns
    if tokens <= FEW[0].tokens:
        return next((tile for tile in FEW if tile.slices * SLICE >= depth), FEW[-1]), 1
    tiles = SOME[2 if tokens <= 16 else 4]
    parts = -(-depth // (SLICES * SLICE))
    for tile in tiles:
        blocks = -(-rows // tile.rows) * -(-tokens // tile.tokens)
        if tile.row_tiles == 1:
            if blocks * parts >= ENOUGH_BLOCKS:
                return tile, 1 if blocks >= ENOUGH_BLOCKS else parts
        elif blocks >= ENOUGH_BLOCKS and weights.zeros is None and weights.group != 32 and fits(tile):
            return tile, 1
    return tiles[-1], parts


@functools.cache  # never freed: a captured graph may use it
def _scratch(partials: int, tiles: int, thread: int) -> tuple:
    """Return device memory for the partial sums of blocks, and for how many of a tile have arrived; for one thread,
    which must launch on one stream."""
    return cuda.device_array(partials, np.float32), cuda.to_device(np.zeros(tiles, np.uint32))


def by_tensor_cores(x, weights, bias, out, elements, stream=0, tile: Tile | None = None, parts: int = 1) -> None:
    """tile and parts: as tile_for returns them; K is split among `parts` blocks."""
    (tokens, depth), rows = x.shape, weights.rows
    if tile is None:
        tile, parts = tile_for(tokens, weights)
    kernel = make_tensor(*options_of(weights), tile, element=elements[0], out_element=elements[1],
                         bias=bias is not None, whole=depth % (tile.slices * SLICE) == 0, split=parts > 1,
                         early=uses_pdl(tokens))
    grid = *blocks_for((rows, tokens), (tile.rows, tile.tokens)), parts
    tiles = grid[0] * grid[1] if parts > 1 else 1
    scratch = _scratch(tiles * parts * tile.rows * tile.tokens if parts > 1 else 1, tiles, threading.get_ident())
    arguments = *arguments_of(x, weights, bias, out), *scratch
    dynamic_shared(kernel, tile.shared_bytes, *arguments)
    kernel[grid, tile.threads, stream, tile.shared_bytes](*arguments)


# --- The ladder -------------------------------------------------------------------------------------------------------


def quantized_thread(x, weights: Packed, out, stream=0) -> None:
    """One thread computes one output: it finds each code in its word, and scales the sum of each group."""
    by_thread(x, weights, None, out, check_quantized(x, weights, None, out), stream)


def quantized_warp(x, weights: Packed, out, stream=0) -> None:
    """As thread, but a warp computes the 16 outputs of a tile: a lane loads 16 bytes of codes, coalesced, and converts
    each to float32."""
    by_warp(x, weights, None, out, check_quantized(x, weights, None, out), stream)


def quantized_tensor_cores(x, weights: Packed, out, stream=0) -> None:
    """As warp, but codes become fragments two at a time, tensor cores multiply them by up to 32 rows of x, the warps of
    a block share K, and copies to shared memory are in flight meanwhile."""
    by_tensor_cores(x, weights, None, out, check_quantized(x, weights, None, out), stream)


# --- Many rows: 16-bit weights, once ----------------------------------------------------------------------------------


@kernel_factory
def make_dequantize(format: str, group: int, scale_element: Element | None, zeros: bool, element: Element):
    """A thread writes eight neighbours of a row, 16 bytes."""
    TILE_STEP, GROUP = STEP[format], group
    number, place, pack = make_number(format), make_place(format), element.pack
    scale_pair, zero_pair = make_pair(scale_element, zeros)

    @cuda.jit
    def dequantize_kernel(words, scales, zero_words, out):
        eight, row = u32.grid(2)
        rows, depth = u32.shape(out)
        k = 8 * eight
        if k < depth and row < rows:
            steps = (depth + (TILE_STEP - 1)) // TILE_STEP
            tile, half, g = row // 16, row // 8 % 2, row % 8
            scale, zero = ZERO, ZERO
            if GROUP:
                index = (tile * (depth // GROUP) + k // GROUP) * 8 + g
                scale_g, scale_h = scale_pair(scales, index)
                zero_g, zero_h = zero_pair(zero_words, index)
                scale, zero = scale_h if half else scale_g, zero_h if half else zero_g
            else:
                scale = scales[row]
            vec = cuda.local.array(4, uint32)
            offset = ((tile * steps + k // TILE_STEP) * 32 + 4 * g + k % 32 // 8) * 4
            for n in range(4):
                word, shift = place(half, k % TILE_STEP + 2 * n)
                code = words[offset + word]
                vec[n] = pack(number(code, shift, zero) * scale, number(code, shift + 16, zero) * scale)
            ptx.store_global4(out, row * depth + k, vec[0], vec[1], vec[2], vec[3])

    return dequantize_kernel


def dequantize(weights: Packed, out, stream=0) -> None:
    """Write the weights (N, K), each rounded to an element of out: float16, or bfloat16 in uint16."""
    kernel = make_dequantize(*options_of(weights), element_of("out", out))
    zeros = weights.words if weights.zeros is None else weights.zeros
    grid = blocks_for((weights.columns // 8, weights.rows), (32, 4))
    kernel[grid, (32, 4), stream](weights.words.reshape(-1), weights.scales.reshape(-1), zeros.reshape(-1), out)


@functools.cache  # never freed: a captured graph may use it
def _buffer(rows: int, columns: int, dtype, thread: int):
    """Return device memory for the weights of a layer, for one thread, which must launch on one stream."""
    return cuda.device_array((rows, columns), dtype)


MOST_TOKENS = 256  # that are multiplied by codes; more have 16-bit weights, whose rounding changes an output's bits


def quantized_linear(x, weights: Packed, out, bias=None, stream=0) -> None:
    """out = x @ weights.T + bias, by the kernel to use for so many rows on this device.

    x (T, K), bias (N,): bfloat16 (uint16) or float16. out (T, N): of their type, or float32. Up to 256 rows, an output
    has the same bits in every batch. More are multiplied by dequantised weights, which are rounded to 16 bits: on an
    H200, writing and reading 16,384 x 2,048 of them takes 30 us, where 4,096 rows take 400 us to multiply.
    """
    elements = check_quantized(x, weights, bias, out)
    if not gpus.chosen_on_gpu():
        by_thread(x, weights, bias, out, elements, stream)
    elif missing(make_tensor(*options_of(weights), element=elements[0])):
        by_warp(x, weights, bias, out, elements, stream)
    elif x.shape[0] <= MOST_TOKENS:
        by_tensor_cores(x, weights, bias, out, elements, stream)
    else:
        by_dequantized(x, weights, bias, out, elements, stream)


def by_dequantized(x, weights, bias, out, elements, stream=0) -> None:
    buffer = _buffer(weights.rows, weights.columns, elements[0].dtype, threading.get_ident())
    dequantize(weights, buffer, stream)
    linear(x, buffer, out, bias, stream)
