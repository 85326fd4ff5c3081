"""The kernels of paged_prefill that take keys in tiles: float32, and on tensor cores bfloat16 and float16.

Shapes  as in paged_prefill.py, where the launchers are; here q and out are matrices (T, H * D), keys and values
        (pages * K * PAGE, D)
Source  as flash.py and flash_mma.py, whose loops over tiles of keys these are

Tiles of keys begin at the sequence's first token, 64 keys each (32 where D is no multiple of 32, in float32; fewer
where the GPU has little shared memory), for any tile of queries. A key that a row does not see adds an exact zero. So a
row has the same result, bit for bit, in one launch for the whole prompt, in parts, and in any company.
"""

from numba import float32, uint32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import resident
from labkit.kernels.attention.flash import THREADS, FlashTile, make_copy_rows, make_flash_loop
from labkit.kernels.attention.flash_mma import KEYS, MmaTile, make_copy_elements, make_mma_loop, rows_in_shared
from labkit.kernels.attention.heads import find_sentence
from labkit.kernels.attention.pages import PAGE, find_context
from labkit.kernels.elements import BFLOAT16, Element


def make_copy_pages(copy_page, keys: int, pitch: int):
    """Make a device function that starts the copies of keys, or values, key0 to key0 + keys - 1 of one head of a
    sequence from its pages to shared memory; from `end` on they are zero-filled. copy_page: of make_copy_rows, for a
    page. cache: (pages * K * PAGE, D). where: (page table, sequence, heads of the cache, head)."""
    PAGES, ROWS = keys // PAGE, PAGE * pitch

    @cuda.jit(device=True)
    def copy_pages(shared, offset, cache, where, key0, end, thread):
        page_table, sequence, kv_heads, kv_head = where
        for n in u32.range(PAGES):
            key = key0 + n * PAGE
            # Past the last page the table may hold anything: clamp the index; the data of that page is not read.
            physical_page = uint32(page_table[sequence, min(key, end - 1) // PAGE])
            row = (physical_page * kv_heads + kv_head) * PAGE
            num_rows = min(end - key, PAGE) if key < end else 0
            copy_page(shared, offset + n * ROWS, cache, row, row + num_rows, 0, thread)

    return copy_pages


# --- float32 ----------------------------------------------------------------------------------------------------------


@kernel_factory
def make_paged_prefill(size: int, queries: int, keys_each: int = 8):
    """Attention for heads of `size` float32 elements, with a FlashTile of `queries` queries of a thread."""
    TILE = FlashTile(size, queries, keys_each)
    SIZE, QUERIES, ROWS, LANES, ACCUMULATORS = size, queries, TILE.rows, TILE.lanes, queries * TILE.columns
    copy_queries = make_copy_rows(ROWS, SIZE, TILE.pitch, THREADS, 4)
    copy_pages_of_keys = make_copy_pages(make_copy_rows(PAGE, SIZE, TILE.pitch, THREADS, 4), TILE.keys, TILE.pitch)
    copy_pages_of_values = make_copy_pages(make_copy_rows(PAGE, SIZE, SIZE, THREADS, 4), TILE.keys, SIZE)

    @cuda.jit(device=True)
    def copy_keys(shared, offset, source, key0, end, thread):
        keys, _, where = source
        if end > 0:
            copy_pages_of_keys(shared, offset, keys, where, key0, end, thread)

    @cuda.jit(device=True)
    def copy_values(shared, offset, source, key0, end, thread):
        _, values, where = source
        copy_pages_of_values(shared, offset, values, where, key0, end, thread)

    attend, store_rows = make_flash_loop(TILE, copy_keys, copy_values)

    @cuda.jit(launch_bounds=(THREADS, resident(TILE.blocks, THREADS, TILE.shared_bytes)))
    def paged_prefill_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, kv_heads):
        shared = cuda.shared.array(0, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        row_sum = cuda.local.array(QUERIES, float32)
        thread = u32.threadIdx.x
        head, sequence = u32.blockIdx.x, u32.blockIdx.z
        head_column = head * SIZE
        kv_head = head // (u32.gridDim.x // kv_heads)
        begin, tokens, scale = find_sentence(begins, lengths, sequence, u32.shape(out)[0], longest, scale)
        context_len, num_keys, scale = find_context(contexts, sequence, tokens, u32.shape(page_table)[1], scale)
        row0 = (u32.gridDim.y - 1 - u32.blockIdx.y) * ROWS  # the tiles with the most work first
        if row0 >= tokens:
            return
        causal_end = context_len + row0 + thread // LANES + 1
        min_visible = min(context_len + row0 + 1, num_keys)
        end = min(context_len + row0 + ROWS, num_keys)  # no query here sees more
        copy_queries(shared, 0, q, begin + row0, begin + tokens, head_column, thread)
        attend(shared, acc, row_sum, (keys, values, (page_table, sequence, kv_heads, kv_head)),
               (end, min_visible, causal_end, num_keys), scale, thread)
        store_rows(out, begin, row0, tokens, head_column, acc, row_sum, thread)

    paged_prefill_kernel.rows, paged_prefill_kernel.threads = ROWS, THREADS
    paged_prefill_kernel.shared_bytes = TILE.shared_bytes
    return paged_prefill_kernel


# --- Tensor cores: bfloat16 and float16 -------------------------------------------------------------------------------


@kernel_factory
def make_paged_prefill_mma(size: int, warps: int, m_tiles: int, keys: int = KEYS, element: Element = BFLOAT16):
    """Attention for heads of `size` elements of 16 bits; each of `warps` warps has `m_tiles` times 16 queries, as in
    make_flash_half. While a tile of keys is multiplied, the next is in flight."""
    TILE = MmaTile(size, warps, m_tiles, keys, element=element)
    SIZE, THREADS, ROWS, WARP_ROWS = size, TILE.threads, TILE.rows, 16 * m_tiles
    ACCUMULATORS, LANE_ROWS, PITCH = TILE.accumulators, TILE.lane_rows, rows_in_shared(size)[1]
    VALUES = keys * PITCH
    ELEMENT, REGISTERS = element.dtype.type, 168 if size <= 64 and m_tiles == 1 else 256
    copy_queries = make_copy_elements(TILE, ROWS)
    copy_pages = make_copy_pages(make_copy_elements(TILE, PAGE), keys, PITCH)

    @cuda.jit(device=True)
    def copy_tile(shared, offset, source, key0, end, thread):
        keys, values, where = source
        copy_pages(shared, offset, keys, where, key0, end, thread)
        copy_pages(shared, offset + VALUES, values, where, key0, end, thread)

    attend, store_rows = make_mma_loop(TILE, copy_tile)

    blocks = max(1, 65_536 // (REGISTERS * THREADS))

    @cuda.jit(launch_bounds=(THREADS, resident(blocks, THREADS, TILE.shared_bytes)))
    def paged_prefill_mma_kernel(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, kv_heads):
        shared = cuda.shared.array(0, ELEMENT)
        acc = cuda.local.array(ACCUMULATORS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        row_max = cuda.local.array(LANE_ROWS, float32)
        thread = u32.threadIdx.x
        head, sequence = u32.blockIdx.x, u32.blockIdx.z
        head_column = head * SIZE
        kv_head = head // (u32.gridDim.x // kv_heads)
        begin, tokens, scale = find_sentence(begins, lengths, sequence, u32.shape(out)[0], longest, scale)
        context_len, num_keys, scale = find_context(contexts, sequence, tokens, u32.shape(page_table)[1], scale)
        row0 = (u32.gridDim.y - 1 - u32.blockIdx.y) * ROWS  # the tiles with the most work first
        if row0 >= tokens:
            return
        warp_row0 = row0 + thread // 32 * WARP_ROWS  # the warp's first row
        min_visible = min(context_len + warp_row0 + 1, num_keys)
        max_visible = min(context_len + warp_row0 + WARP_ROWS, num_keys) if warp_row0 < tokens else 0
        end = min(context_len + row0 + ROWS, num_keys)  # no query here sees more
        causal_end = context_len + warp_row0 + thread % 32 // 4 + 1  # of the lane's row 0
        copy_queries(shared, 0, q, begin + row0, begin + tokens, head_column, thread)
        attend(shared, 0, acc, row_sum, row_max, (keys, values, (page_table, sequence, kv_heads, kv_head)),
               (end, min_visible, max_visible, causal_end, num_keys), scale, thread)
        store_rows(shared, 0, acc, row_sum, out, (begin, row0, tokens), head_column, thread)

    paged_prefill_mma_kernel.rows, paged_prefill_mma_kernel.threads = ROWS, THREADS
    paged_prefill_mma_kernel.shared_bytes = TILE.shared_bytes
    return paged_prefill_mma_kernel
