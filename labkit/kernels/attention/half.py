"""Attention in float16 on tensor cores, in tiles of keys. The sums are float32.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), float16; start (1,) int32
Sizes   D a multiple of 16, at most 256; any other
Source  as flash_mma.py, which has the loop over tiles of keys
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import resident
from labkit.kernels.attention.decode import launch_decode, make_decode
from labkit.kernels.attention.flash import SIZES, check_flash, launch_flash
from labkit.kernels.attention.flash_mma import KEYS, MmaTile, make_contiguous_mma_loop, make_copy_elements, mma_form
from labkit.kernels.attention.heads import check_heads
from labkit.kernels.attention.three_pass import FEW
from labkit.kernels.attention.wgmma import attention_flash_wgmma, takes_flash_wgmma
from labkit.kernels.op import rung


@kernel_factory
def make_flash_half(size: int, warps: int, m_tiles: int, keys: int = KEYS):
    """Attention for heads of `size` float16 values; each of `warps` warps has `m_tiles` tiles of 16 queries."""
    TILE = MmaTile(size, warps, m_tiles, keys)
    SIZE, THREADS, ROWS, WARP_ROWS = size, TILE.threads, TILE.rows, 16 * m_tiles
    ACCUMULATORS, LANE_ROWS = TILE.accumulators, TILE.lane_rows
    copy_queries = make_copy_elements(TILE, ROWS)
    attend, store_rows = make_contiguous_mma_loop(TILE)

    blocks = 65_536 // (TILE.registers * THREADS)

    @cuda.jit(launch_bounds=(THREADS, resident(blocks, THREADS, TILE.shared_bytes)))
    def attention_flash_half_kernel(qkv, keys_values, start, out, kv_offset, scale, causal):
        shared = cuda.shared.array(0, np.float16)
        acc = cuda.local.array(ACCUMULATORS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        row_max = cuda.local.array(LANE_ROWS, float32)
        thread = u32.threadIdx.x
        rows, width = u32.shape(out)
        head_column = u32.blockIdx.x * SIZE
        key_column = kv_offset + head_column
        row0 = (u32.gridDim.y - 1 - u32.blockIdx.y) * ROWS  # causal: the most work comes first
        context_len = uint32(start[0])
        num_keys = min(context_len + rows, u32.shape(keys_values)[0])  # rows beyond may hold anything
        min_visible = min(context_len + row0 + 1, num_keys) if causal else num_keys
        end = min(context_len + row0 + ROWS, num_keys) if causal else num_keys  # the most that any query here sees
        # Of this lane's row 0:
        causal_end = context_len + row0 + thread // 32 * WARP_ROWS + thread % 32 // 4 + 1 if causal else num_keys
        copy_queries(shared, 0, qkv, row0, rows, head_column, thread)
        attend(shared, 0, acc, row_sum, row_max, (keys_values, 0, key_column, key_column + width),
               (end, min_visible, num_keys, causal_end, num_keys), scale, thread)
        store_rows(shared, 0, acc, row_sum, out, (0, row0, rows), head_column, thread)

    attention_flash_half_kernel.rows, attention_flash_half_kernel.threads = ROWS, THREADS
    attention_flash_half_kernel.shared_bytes = TILE.shared_bytes
    return attention_flash_half_kernel


@rung(kernel=make_flash_half(64, 4, 1, KEYS), sizes=SIZES,
      idea="tensor cores: scores become exponentials, and a factor of the next product, in registers")
def attention_flash_half(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """A block takes 16 to 128 queries of one head, a warp 16 or 32 of them, and the keys in tiles of 64. cp.async
    copies the next tile, swizzled, while this one is multiplied. Tiles that no query sees are skipped."""
    size, _ = check_flash(qkv, heads, out, cache, start, np.float16)
    kernel = make_flash_half(size, *mma_form(size, heads, out.shape[0]))
    launch_flash(kernel, qkv, heads, out, cache, start, causal, stream)


@rung(kernel=make_decode(64, True), sizes=f"{SIZES}, and at most 65,535 rows",
      idea="for a query or a few: blocks share the keys, a second launch combines what they found")
def attention_decode_half(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0, workspace=None):
    """As attention_decode, which also explains workspace: 16 bytes hold eight float16 values, and all sums are
    float32."""
    launch_decode(qkv, heads, out, cache, start, causal, stream, workspace, np.float16)


SHORT = 64  # queries: for so few, blocks of 16 are done sooner; 3.2 us for 64 of 12 heads on an H200, wgmma takes 3.6


def attention_half(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """The rung to use."""
    size, _ = check_heads(qkv, heads, out, cache, start, np.float16)
    if cache is not None and out.shape[0] <= FEW:
        pick = attention_decode_half
    elif gpus.chosen_on_gpu() and out.shape[0] > SHORT and takes_flash_wgmma(size, qkv, out, cache):
        pick = attention_flash_wgmma
    else:
        pick = attention_flash_half
    pick(qkv, heads, out, cache=cache, start=start, causal=causal, stream=stream)
