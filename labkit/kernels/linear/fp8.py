"""A linear layer in FP8, out = (x * x_scales) @ (weight * weight_scales).T, and the quantisation of its x.

Shapes  x (M, K) and weight (N, K), uint8 that holds E4M3; x_scales (M,) and weight_scales (N,), float32, a scale for
        each row; out (M, N) bfloat16 in uint16. The x to quantise: (R, C) float32, float16 or bfloat16
Work    2*M*N*K flop, at twice the rate of 16 bits: at 4096 x 4096 x 4096, 69 us at the 1,979 TFLOP/s of an H200's data
        sheet. Quantising reads x twice, once from memory, and writes a byte an element
Source  Micikevicius et al., "FP8 Formats for Deep Learning" (2022); DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024),
        section 3.3.2, for the accumulation of 14 bits

Scales are constant along K, so codes are multiplied as they are and the accumulators scaled.
"""

import functools

import numpy as np
from numba import float32, uint8, uint32, uint64

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, blocks_for, check_array, dynamic_shared, product_sizes, unsigned
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS, in_eights
from labkit.kernels.elements import BFLOAT16, Element, bfloat16_bits, element_of
from labkit.kernels.linear.quantized import E4M3, e4m3_codes, e4m3_value
from labkit.kernels.linear.quantized_linear import make_number
from labkit.kernels.matmul.wgmma import TILES, block_count, choose_tile, has_wgmma
from labkit.kernels.matmul.wgmma_tiles import (
    BOX,
    DEPTH,
    ROW_GROUP,
    Tile,
    b_layout,
    bias_index,
    make_epilogue,
    make_load,
    make_tile_origin,
    unchanged,
)
from labkit.kernels.op import rung
from labkit.kernels.reduce import block_max
from labkit.kernels.scan_blocks import scratch_for
from labkit.kernels.tolerance import EPS32

ZERO, NAN = float32(0.0), float32(np.nan)
LARGEST = float32(448.0)  # of E4M3
SMALLEST_MAX = float32(2.0**-100)  # what a row's largest is taken to be at least: its reciprocal is finite
FLOAT_TO_E4M3 = float32(2.0**-120)  # a float32's exponent has a bias of 127, that of E4M3 one of 7



def quantize_rows_reference(x) -> tuple:
    """Return (codes, scales) of x."""
    x = float64_of(x)
    scales = np.maximum(np.abs(x).max(axis=1), float(SMALLEST_MAX)) / float(LARGEST)
    return e4m3_codes(x / scales[:, None]), scales


def scaled_values(x, weight, x_scales, weight_scales) -> tuple:
    """Return x and weight in float64."""
    return e4m3_value(x) * float64_of(x_scales)[:, None], e4m3_value(weight) * float64_of(weight_scales)[:, None]


def linear_fp8_reference(*inputs):
    x, weight = scaled_values(*inputs)
    return x @ weight.T


def linear_fp8_tolerance(*inputs, eps: float = 2 * EPS32):
    """Errors of sums grow like the root of their length; eps: of one addition, twice or more."""
    x, weight = scaled_values(*inputs)
    return eps * np.sqrt(x.shape[1]) * (np.abs(x) @ np.abs(weight).T) + BFLOAT16.rounding_error(x @ weight.T)


wgmma_tolerance = functools.partial(linear_fp8_tolerance, eps=2.0**-14)  # for random signs: sums are cut to 14 bits


# --- Numbers ----------------------------------------------------------------------------------------------------------

_number = make_number(E4M3)


@cuda.jit(device=True)
def e4m3_number(code):
    """The float32 of a code; NaN for 0x7F and 0xFF."""
    return NAN if code & 0x7F == 0x7F else _number(uint32(code), 0, ZERO)


@cuda.jit(device=True)
def e4m3_code(x):
    """The nearest E4M3 of a float32 of at most 448, ties to even, in the low byte of a uint32; NaN for what is not a
    number. Times 2^-120 a float32 has the exponent of E4M3, and is subnormal where E4M3 is."""
    bits = ptx.float_bits(abs(x) * FLOAT_TO_E4M3)
    rounded = (bits + 0x7FFFF + (bits >> 20 & 1)) >> 20
    return min(rounded, 0x7F) | ptx.float_bits(x) >> 24 & 0x80


# --- Quantise rows ----------------------------------------------------------------------------------------------------


@kernel_factory
def make_quantize_thread(element: Element):
    load = ACCESS[element].load

    @cuda.jit
    def quantize_rows_thread_kernel(x, codes, scales):  # x and codes are flat, here and below
        row, rows = u32.grid(1), u32.size(scales)
        if row < rows:
            cols = u32.size(x) // rows
            largest = SMALLEST_MAX
            for i in u32.range(row * cols, (row + 1) * cols):
                largest = max(largest, abs(load(x, i)))
            scales[row] = largest / LARGEST
            inv_scale = LARGEST / largest
            for i in u32.range(row * cols, (row + 1) * cols):
                codes[i] = uint8(e4m3_code(load(x, i) * inv_scale))

    return quantize_rows_thread_kernel


@kernel_factory
def make_quantize_block(element: Element):
    """A block has a row. The second time, x comes from the L1 cache."""
    load_eight, _ = ACCESS[element].eight

    @cuda.jit
    def quantize_rows_block_kernel(x, code_words, scales):
        """code_words: four codes each."""
        partial = cuda.shared.array(32, float32)
        eight = cuda.local.array(8, float32)
        row, thread, threads = u32.blockIdx.x, u32.threadIdx.x, u32.blockDim.x
        cols = u32.size(x) // u32.size(scales)
        begin, end = row * cols + 8 * thread, (row + 1) * cols
        largest = SMALLEST_MAX
        for i in u32.range(begin, end, 8 * threads):
            load_eight(eight, 0, x, i, 8)
            for e in range(8):
                largest = max(largest, abs(eight[e]))
        largest = block_max(largest, partial)
        if thread == 0:
            scales[row] = largest / LARGEST
        inv_scale = LARGEST / largest
        for i in u32.range(begin, end, 8 * threads):
            load_eight(eight, 0, x, i, 8)
            low, high = uint32(0), uint32(0)
            for e in range(4):
                low |= e4m3_code(eight[e] * inv_scale) << 8 * e
                high |= e4m3_code(eight[e + 4] * inv_scale) << 8 * e
            ptx.store_global2(code_words, i // 4, low, high)

    return quantize_rows_block_kernel


# --- Multiply: a thread for each output -------------------------------------------------------------------------------


@kernel_factory
def make_linear_fp8_thread():
    @cuda.jit
    def linear_fp8_thread_kernel(x, weight, x_scales, weight_scales, out):
        col, row = u32.grid(2)
        rows, cols = u32.shape(out)
        if row < rows and col < cols:
            total = ZERO
            for k in u32.range(u32.shape(x)[1]):
                total += e4m3_number(x[row, k]) * e4m3_number(weight[col, k])
            out[row, col] = bfloat16_bits(total * weight_scales[col] * x_scales[row])

    return linear_fp8_thread_kernel


# --- Multiply: Hopper's tensor cores ----------------------------------------------------------------------------------

STEP = 2 * DEPTH  # columns of K in a stage: 128 bytes, as 64 elements of 16 bits


@kernel_factory
def make_linear_fp8_wgmma(tile: Tile):
    """As make_wgmma_specialised: a producer, two consumers, a block for each SM. What differs:

    A stage has the same bytes and takes the tensor cores the same time, but holds twice as much of K. To Tile, and to
    the code that copies and stores, two codes are one element of 16 bits.

    The accumulators are scaled before they are rounded. A thread has the scales of its two rows in registers; those of
    the columns go to shared memory after the products, as a bias does: four of them are one load.

    The tensor cores keep about 14 bits of a sum. They are not added up in float32 every 128 columns, as DeepSeek-V3
    does: another 128 accumulators would not fit in the registers of a tile of 256 columns.
    """
    ROWS, COLS, STAGES, STAGE_SIZE = tile.rows, tile.cols, tile.stages, tile.stage_elements
    A_SIZE, DESC_STEP = ROWS * DEPTH, STAGE_SIZE * 2 // 16
    ACCUMULATORS, BOXES, SCALES = COLS // 2, tile.out_boxes(), 2 * COLS
    OUT_OFFSET = STAGES * STAGE_SIZE  # where the output begins
    B_LEADING, DESC_K = b_layout(weights=True)
    tile_origin, load = make_tile_origin(tile), make_load(tile, weights=True)
    wgmma, epilogue = getattr(ptx, f"wgmma_m64n{COLS}k32_f32_e4m3"), make_epilogue(unchanged, element=BFLOAT16)

    @cuda.jit(launch_bounds=(384, 1))  # so that setmaxnreg has registers to move: 168 a thread
    def linear_fp8_wgmma_kernel(x_map, weight_map, out_map, x_scales, weight_scales, rows, cols, depth):
        tiles = cuda.shared.array(0, np.uint16, alignment=1024)
        words = cuda.shared.array(0, uint32, alignment=1024)  # the same memory, two bfloat16 at a time
        loaded = cuda.shared.array(STAGES, np.uint64)
        freed = cuda.shared.array(STAGES, np.uint64)
        scale_tile = cuda.shared.array(SCALES, float32, alignment=16)  # of the columns, for each consumer
        thread = u32.threadIdx.x
        warpgroup, wg_thread = thread // 128, thread % 128
        is_leader = wg_thread == 0
        if thread == 0:
            for stage in u32.range(STAGES):
                ptx.mbarrier_init(loaded, stage, 1)
                ptx.mbarrier_init(freed, stage, 2)
            ptx.fence_mbarrier_init()
        if thread == 256:
            ptx.prefetch_tensor_map(x_map)
            ptx.prefetch_tensor_map(weight_map)
            ptx.prefetch_tensor_map(out_map)
        cuda.syncthreads()

        num_tiles = (rows + (ROWS - 1)) // ROWS * ((cols + (COLS - 1)) // COLS)
        tile_id = u32.blockIdx.x
        stage, parity = 0, 0

        if warpgroup == 2:
            ptx.setmaxnreg_decrease(24)
            if is_leader:
                while tile_id < num_tiles:
                    row, col = tile_origin(tile_id, rows, cols)
                    for k in u32.range(0, depth, STEP):
                        ptx.mbarrier_wait(freed, stage, 1 - parity)  # passes at once in the first round
                        load(tiles, loaded, stage, x_map, weight_map, row, col, k)
                        stage += 1
                        if stage == STAGES:
                            stage, parity = 0, 1 - parity
                    tile_id = tile_id + u32.gridDim.x
        else:
            ptx.setmaxnreg_increase(240)
            acc = cuda.local.array(ACCUMULATORS, float32)
            a_desc0 = ptx.wgmma_descriptor(tiles, warpgroup * BOX, 16, ROW_GROUP, 128)
            b_desc0 = ptx.wgmma_descriptor(tiles, A_SIZE, B_LEADING, ROW_GROUP, 128)

            # A thread's accumulators: rows thread_row and thread_row + 8 of its consumer's 64, columns
            # 8 * j + 2 * quad_lane and the next.
            lane, quad_lane = wg_thread % 32, wg_thread % 4
            swizzle_row = lane // 4  # row % 8, for the swizzle
            thread_row = wg_thread // 32 * 16 + swizzle_row
            out_offset = OUT_OFFSET + warpgroup * (BOXES * BOX)
            word_base = out_offset // 2 + thread_row * 32 + quad_lane
            scale_base = warpgroup * COLS

            while tile_id < num_tiles:
                row, col = tile_origin(tile_id, rows, cols)
                row += warpgroup * 64
                # Scales are used after the products: the loads are in flight meanwhile.
                upper, lower = x_scales[min(row + thread_row, rows - 1)], x_scales[min(row + thread_row + 8, rows - 1)]
                scale_lo = weight_scales[min(col + wg_thread, cols - 1)]
                scale_hi = weight_scales[min(col + wg_thread + 128, cols - 1)]

                for k in u32.range(0, depth, STEP):
                    ptx.mbarrier_wait(loaded, stage, parity)
                    a_desc = a_desc0 + uint64(stage * DESC_STEP)
                    b_desc = b_desc0 + uint64(stage * DESC_STEP)
                    ptx.wgmma_fence()
                    for i in range(STEP // 32):
                        wgmma(acc, a_desc + uint64(DESC_K * i), b_desc + uint64(DESC_K * i),
                              1 if i > 0 else uint32(k > 0))
                    ptx.wgmma_commit()
                    ptx.wgmma_wait(0)  # the other consumer's products keep the tensor cores busy meanwhile
                    if is_leader:
                        ptx.mbarrier_arrive(freed, stage)
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, 1 - parity

                if COLS >= 128 or wg_thread < COLS:
                    scale_tile[scale_base + bias_index(wg_thread)] = scale_lo
                if COLS > 128 and wg_thread < COLS - 128:
                    scale_tile[scale_base + bias_index(wg_thread + 128)] = scale_hi
                if is_leader:
                    ptx.tma_store_wait(0)  # the last tile has left shared memory
                ptx.named_barrier_sync(warpgroup + 1, 128)
                for j in u32.range(COLS // 16):
                    x, y, z, w = ptx.load_shared4(scale_tile, scale_base + 16 * j + quad_lane * 4)
                    for lower_row in range(2):
                        row_scale = lower if lower_row else upper
                        acc[8 * j + 2 * lower_row] *= x * row_scale
                        acc[8 * j + 2 * lower_row + 1] *= y * row_scale
                        acc[8 * j + 2 * lower_row + 4] *= z * row_scale
                        acc[8 * j + 2 * lower_row + 5] *= w * row_scale
                epilogue(acc, 0, words, word_base, swizzle_row)
                if BOXES > 1:
                    epilogue(acc, 1, words, word_base, swizzle_row)
                if BOXES > 2:
                    epilogue(acc, 2, words, word_base, swizzle_row)
                if BOXES > 3:
                    epilogue(acc, 3, words, word_base, swizzle_row)
                ptx.fence_proxy_async()
                ptx.named_barrier_sync(warpgroup + 1, 128)
                if is_leader:
                    for box in u32.range(BOXES):
                        ptx.tma_store_2d(out_map, col + box * 64, row, tiles, out_offset + box * BOX)
                    ptx.tma_store_commit()
                tile_id = tile_id + u32.gridDim.x
            if is_leader:
                ptx.tma_store_wait(0)

    return linear_fp8_wgmma_kernel


# --- Launchers --------------------------------------------------------------------------------------------------------

BLOCK = 128
SIZES = "K a multiple of 16, N of 8"


def quantize_rows(x, codes, scales, stream=0) -> None:
    """codes * scales[:, None] is about x: the largest of a row, in absolute value, becomes 448. A row below 2^-100 is
    scaled as if that were its largest. Infinity and NaN become NaN, and infinity leaves the rest of its row zeros.

    x: (R, C) float32, float16, or uint16 that holds bfloat16. codes: (R, C) uint8. scales: (R,) float32.
    """
    element = check_rows(x, codes, scales)
    quantize = quantize_by_block if in_eights(x.shape[1], x, codes) else quantize_by_thread
    quantize(x, codes, scales, element, stream)


def quantize_by_thread(x, codes, scales, element: Element, stream=0) -> None:
    kernel = make_quantize_thread(element)
    kernel[blocks_for(scales.shape, (BLOCK,)), BLOCK, stream](x.reshape(-1), codes.reshape(-1), scales)


def quantize_by_block(x, codes, scales, element: Element, stream=0) -> None:
    threads = min(32 * -(-x.shape[1] // 256), 256)  # eight elements each
    make_quantize_block(element)[scales.size, threads, stream](x.reshape(-1), codes.reshape(-1).view(np.uint32), scales)


def linear_fp8(x, weight, x_scales, weight_scales, out, stream=0) -> None:
    """out = (x * x_scales[:, None]) @ (weight * weight_scales[:, None]).T, rounded to bfloat16. How sums are added does
    not depend on M. NaN is 0x7F and 0xFF.

    By wgmma where TMA takes the arrays; on other GPUs, and on the CPU device, where it is the faster, by a thread for
    each output.
    """
    check_fp8(x, weight, x_scales, weight_scales, out)
    tensor_cores = gpus.chosen_on_gpu() and has_wgmma() and not refused_by_tma(x, weight, out)
    multiply = multiply_wgmma if tensor_cores else multiply_by_thread
    multiply(x, weight, x_scales, weight_scales, out, stream=stream)


def multiply_by_thread(x, weight, x_scales, weight_scales, out, stream=0) -> None:
    block = 32, 4
    make_linear_fp8_thread()[blocks_for(out.shape[::-1], block), block, stream](x, weight, x_scales, weight_scales, out)


def multiply_wgmma(x, weight, x_scales, weight_scales, out, *, tile: Tile | None = None, stream=0) -> None:
    """tile: one of TILES; without it the one that suits the sizes. The caller has checked the rest."""
    (rows, depth), cols = x.shape, weight.shape[0]
    tile = tile or choose_tile(rows, cols, -(-depth // 2), block_count())
    arguments = (ptx.tensor_map_2d(x, tile.rows, STEP), ptx.tensor_map_2d(weight, tile.cols, STEP),
                 ptx.tensor_map_2d(out, 64, 64), x_scales, weight_scales, *unsigned(rows, cols, depth))
    kernel, shared = make_linear_fp8_wgmma(tile), tile.shared_bytes()
    dynamic_shared(kernel, shared, *arguments)
    kernel[min(block_count(), tile.count(rows, cols)), 384, stream, shared](*arguments)


def check_rows(x, codes, scales) -> Element:
    """Raise an error that names what does not fit, or return the element of x."""
    element = element_of("x", x)
    check_array("x", x, ndim=2, dtype=element.dtype)
    check_array("codes", codes, shape=x.shape, dtype=np.uint8)
    check_array("scales", scales, shape=x.shape[:1])
    return element


def check_fp8(x, weight, x_scales, weight_scales, out) -> None:
    """Raise an error that names what does not fit."""
    rows, cols, _ = product_sizes(x, weight, weights=True, names=("x", "weight"), dtype=np.uint8)
    check_array("x_scales", x_scales, shape=(rows,))
    check_array("weight_scales", weight_scales, shape=(cols,))
    check_array("out", out, shape=(rows, cols), dtype=np.uint16)


def refused_by_tma(x, weight, out) -> str:
    """Return why TMA cannot copy these; empty if it can."""
    for name, size, multiple in (("K", x.shape[1], 16), ("N", out.shape[1], 8)):
        if size % multiple:
            return f"{name} is {size}; it must be a multiple of {multiple}: TMA takes rows of a multiple of 16 bytes"
    if not aligned(x, weight, out):
        return "x, weight and out must begin at multiples of 16 bytes, for TMA; one is a view that does not"
    return ""


# --- Rungs ------------------------------------------------------------------------------------------------------------


@rung(kernel=make_quantize_thread(BFLOAT16), idea="one thread a row, a code at a time")
def quantize_rows_fp8_thread(x, codes, scales=None, stream=0):
    """The largest of a row, then its codes. scales: (R,) float32, left out where only the codes matter."""
    scales = scratch_for(None, x.shape[0], np.float32) if scales is None else scales
    quantize_by_thread(x, codes, scales, check_rows(x, codes, scales), stream)


@rung(kernel=make_quantize_block(BFLOAT16), idea="one block a row: eight elements a load, eight codes a store",
      sizes="C a multiple of 8")
def quantize_rows_fp8_block(x, codes, scales=None, stream=0):
    """Neighbouring threads load neighbouring elements, and a row's largest is found by shuffles. The second time, x
    comes from the L1 cache."""
    scales = scratch_for(None, x.shape[0], np.float32) if scales is None else scales
    element = check_rows(x, codes, scales)
    if not in_eights(x.shape[1], x, codes):
        raise ValueError(f"C is {x.shape[1]}; it must be a multiple of 8, and x and codes must begin at multiples of "
                         f"16 bytes")
    quantize_by_block(x, codes, scales, element, stream)


@rung(kernel=make_linear_fp8_thread(), idea="one thread an output, decoded byte by byte")
def linear_fp8_thread(x, weight, x_scales, weight_scales, out, stream=0):
    """For every GPU: E4M3 becomes float32 by a shift and a product."""
    check_fp8(x, weight, x_scales, weight_scales, out)
    multiply_by_thread(x, weight, x_scales, weight_scales, out, stream=stream)


@rung(kernel=tuple(map(make_linear_fp8_wgmma, TILES)), sizes=SIZES, tolerance=wgmma_tolerance,
      idea="wgmma of E4M3: one warpgroup copies, two multiply and scale 128 rows at a time")
def linear_fp8_wgmma(x, weight, x_scales, weight_scales, out, stream=0):
    """Tensor cores take the codes as they are, 64 x 256 x 32 products an instruction, from tiles that TMA copies."""
    check_fp8(x, weight, x_scales, weight_scales, out)
    if reason := refused_by_tma(x, weight, out):
        raise ValueError(reason)
    multiply_wgmma(x, weight, x_scales, weight_scales, out, stream=stream)
