"""The kernels of paged_decode: a block has the query heads that share a head of keys and values, and reads these once.

Shapes  as in paged.py, where the launchers are; here q and out are matrices (B * H, D), keys and values (pages * K *
        PAGE, D). ratio: H // K. partial, arrived: as decode_parts allocates them, for paged_merge.py
"""

from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.attention.flash import make_copy_rows
from labkit.kernels.attention.flash_mma import make_mma_steps, rows_in_shared
from labkit.kernels.attention.heads import make_load_chunk
from labkit.kernels.attention.paged_merge import (
    LEAST_FINITE,
    SPLITS,
    THREADS,
    WARPS,
    find_parts,
    make_merge,
    split_range,
)
from labkit.kernels.attention.pages import PAGE, find_length
from labkit.kernels.elements import BFLOAT16, Element
from labkit.kernels.matmul.mma import CHUNK
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

MOST, MOST_MMA = 8, 16  # query heads of a block, at most


def blocks_of_group(group: int, max_heads: int) -> tuple[int, int]:
    """Return (blocks, query heads of each) for the query heads that share a head of keys and values: split evenly,
    though the last block may have fewer."""
    blocks = -(-group // max_heads)
    return blocks, -(-group // blocks)


@cuda.jit(device=True)
def find_heads(max_heads, ratio, kv_heads):
    """Return (head of keys and values, first row of q and out, query heads) of a block, of max_heads at most."""
    blocks_per_kv_head = u32.gridDim.y // kv_heads
    kv_head = u32.blockIdx.y // blocks_per_kv_head
    first_head = u32.blockIdx.y % blocks_per_kv_head * max_heads  # among those that share kv_head
    first_row = (u32.blockIdx.z * kv_heads + kv_head) * ratio + first_head
    return kv_head, first_row, min(max_heads, ratio - first_head)


@cuda.jit(device=True)
def first_row_of_page(page_table, sequence, page, kv_heads, kv_head):
    """Return where the head's keys, and values, of a page begin."""
    return (uint32(page_table[sequence, page]) * kv_heads + kv_head) * PAGE


# --- Products in registers --------------------------------------------------------------------------------------------


@kernel_factory
def make_paged_decode(size: int, heads: int, element: Element, splits: int):
    """Attention of `heads` query heads of `size` elements that share a head of keys and values.

    A warp takes every WARPS-th page of its block. LANES neighbours share a key, so that a warp reads KEYS keys in 16
    bytes each, and has a row_max, a row_sum and an acc for each of these groups of lanes: in the loop over pages the
    only shuffles are those that sum a dot product over a group.
    """
    VEC = element.per_load  # elements in 16 bytes
    SIZE, HEADS = size, heads
    CHUNKS = size // VEC
    LANES = 1 << (CHUNKS - 1).bit_length()
    KEYS = 32 // LANES
    FULL_GROUPS = LANES == CHUNKS  # otherwise some lanes of a group have no chunk
    REGISTER_HEAVY = heads * VEC > 32  # elements of queries in registers, and as many of acc
    ROUND = min(PAGE // KEYS, 2 if REGISTER_HEAVY else 4)  # keys of a group whose loads are in flight at once
    ROUNDS = PAGE // KEYS // ROUND
    SHUFFLES, GROUP_SHUFFLES = LANES.bit_length() - 1, KEYS.bit_length() - 1  # to reduce over a group, over all groups
    KV_ELEMENTS, QUERY_ELEMENTS, SCORES = ROUND * VEC, heads * VEC, ROUND * heads
    ACC_ELEMENTS, NUM_SUMS, THREAD_PAIRS = WARPS * heads * size, WARPS * heads, -(-heads * size // (2 * THREADS))
    write_zeros, acc_offset, merge_warps, reduce_splits = make_merge(size, heads, element, splits)
    load_chunk = make_load_chunk(element.unpack is not None, element.unpack)

    @cuda.jit(device=True)
    def score_key(scores, queries, elements, n, visible):
        """Compute the scores of the group's key n of this round, for each head, in all lanes of the group."""
        for head in range(HEADS):
            score = ZERO
            for i in range(VEC):
                score += queries[head * VEC + i] * elements[n * VEC + i]
            for i in range(SHUFFLES):
                score += cuda.shfl_xor_sync(ALL_LANES, score, 1 << i)
            scores[n * HEADS + head] = score if visible else NEG_INF

    @cuda.jit(device=True)
    def add_value(acc, scores, elements, n):
        for head in range(HEADS):
            for i in range(VEC):
                acc[head * VEC + i] += scores[n * HEADS + head] * elements[n * VEC + i]

    @cuda.jit(device=True)
    def add_round(queries, state, keys, values, offset, first_key, last_key):
        """Process the group's next ROUND keys, first_key, first_key + KEYS, ..., of a page that ends with last_key."""
        row_max, row_sum, acc = state
        k_frag = cuda.local.array(KV_ELEMENTS, float32)
        v_frag = cuda.local.array(KV_ELEMENTS, float32)
        scores = cuda.local.array(SCORES, float32)
        # No branches, so that all loads can be in flight at once.
        for n in u32.range(ROUND):
            load_chunk(k_frag, n * VEC, keys, offset + min(first_key + n * KEYS, last_key) * SIZE)
        for n in u32.range(ROUND):
            load_chunk(v_frag, n * VEC, values, offset + min(first_key + n * KEYS, last_key) * SIZE)
        for n in u32.range(ROUND):
            score_key(scores, queries, k_frag, n, first_key + n * KEYS <= last_key)
        for head in range(HEADS):
            new_max = row_max[head]
            for n in u32.range(ROUND):
                new_max = max(new_max, scores[n * HEADS + head])
            correction = ptx.exp2_approx(row_max[head] - new_max)
            row_max[head] = new_max
            part = ZERO
            for n in u32.range(ROUND):
                exponential = ptx.exp2_approx(scores[n * HEADS + head] - new_max)
                scores[n * HEADS + head] = exponential
                part += exponential
            row_sum[head] = row_sum[head] * correction + part
            for i in range(VEC):
                acc[head * VEC + i] *= correction
        for n in u32.range(ROUND):
            add_value(acc, scores, v_frag, n)

    @cuda.jit(device=True)
    def sum_over_groups(value):
        for n in range(GROUP_SHUFFLES):
            value += cuda.shfl_xor_sync(ALL_LANES, value, LANES << n)
        return value

    @cuda.jit(device=True)
    def merge_lanes(state, head):
        """Merge the results of all groups of lanes for a head, in every lane."""
        row_max, row_sum, acc = state
        new_max = row_max[head]
        for n in range(GROUP_SHUFFLES):
            new_max = max(new_max, cuda.shfl_xor_sync(ALL_LANES, new_max, LANES << n))
        weight = ptx.exp2_approx(row_max[head] - new_max)
        row_max[head] = new_max
        row_sum[head] = sum_over_groups(row_sum[head] * weight)
        for i in range(VEC):
            acc[head * VEC + i] = sum_over_groups(acc[head * VEC + i] * weight)

    @cuda.jit(launch_bounds=(THREADS, 2 if REGISTER_HEAVY else 3))
    def paged_decode_kernel(q, keys, values, page_table, lengths, out, scale, ratio, kv_heads, partial, arrived):
        warp_acc = cuda.shared.array(ACC_ELEMENTS, float32)
        warp_max, warp_sum = cuda.shared.array(NUM_SUMS, float32), cuda.shared.array(NUM_SUMS, float32)
        warp_offsets = cuda.shared.array(WARPS, uint32)
        queries = cuda.local.array(QUERY_ELEMENTS, float32)
        acc = cuda.local.array(QUERY_ELEMENTS, float32)
        row_max, row_sum = cuda.local.array(HEADS, float32), cuda.local.array(HEADS, float32)
        block_state = cuda.local.array((THREAD_PAIRS, 4), float32)
        thread = u32.threadIdx.x
        lane, warp, sequence = thread % 32, thread // 32, u32.blockIdx.z
        kv_head, first_row, num_heads = find_heads(HEADS, ratio, kv_heads)
        tokens, scale = find_length(lengths, sequence, u32.shape(page_table)[1], scale)
        pages, pages_per_split, num_splits = find_parts(max(tokens, 1), splits)  # an empty slot counts as one page
        split, split_end, active_blocks = split_range(num_splits, u32.blockIdx.x, u32.gridDim.x)
        if tokens == 0:
            if u32.blockIdx.x == 0:
                write_zeros(out, first_row, num_heads)
            return
        if split >= split_end:
            return  # the grid has blocks for a full page table
        chunk, key = lane % LANES, lane // LANES
        chunk_offset = (chunk if FULL_GROUPS else min(chunk, CHUNKS - 1)) * VEC
        for head in u32.range(HEADS):
            row = first_row + min(head, num_heads - 1)
            load_chunk(queries, head * VEC, q, row * SIZE + chunk_offset)
            for i in u32.range(VEC):
                queries[head * VEC + i] *= scale if FULL_GROUPS or chunk < CHUNKS else ZERO
        for n in range(THREAD_PAIRS):
            block_state[n, 0], block_state[n, 1], block_state[n, 2], block_state[n, 3] = LEAST_FINITE, ZERO, ZERO, ZERO
        if lane == 0:
            warp_offsets[warp] = warp * (HEADS * SIZE)

        while split < split_end:
            for head in u32.range(HEADS):
                row_max[head], row_sum[head] = LEAST_FINITE, ZERO
                for i in u32.range(VEC):
                    acc[head * VEC + i] = ZERO
            end = min((split + 1) * pages_per_split, pages)
            for page in u32.range(split * pages_per_split + warp, end, WARPS):
                first_row_of_keys = first_row_of_page(page_table, sequence, page, kv_heads, kv_head)
                offset = first_row_of_keys * SIZE + chunk_offset
                last_key = min(tokens - page * PAGE, PAGE) - 1
                for step in u32.range(ROUNDS):
                    add_round(queries, (row_max, row_sum, acc), keys, values, offset, key + step * ROUND * KEYS,
                              last_key)

            for head in u32.range(HEADS):
                merge_lanes((row_max, row_sum, acc), head)
                if key == 0 and (FULL_GROUPS or chunk < CHUNKS):
                    for i in u32.range(0, VEC, 4):
                        offset = warp * (HEADS * SIZE) + acc_offset(head, chunk_offset + i)
                        ptx.store_shared4(warp_acc, offset, acc[head * VEC + i], acc[head * VEC + i + 1],
                                          acc[head * VEC + i + 2], acc[head * VEC + i + 3])
                if lane == 0:
                    warp_max[warp * HEADS + head] = row_max[head]
                    warp_sum[warp * HEADS + head] = row_sum[head]
            merge_warps((warp_acc, warp_offsets, warp_max, warp_sum), block_state, split, active_blocks == 1, partial)
            split += 1
        reduce_splits(block_state, num_splits, active_blocks, partial, arrived, out, first_row, num_heads)

    paged_decode_kernel.threads, paged_decode_kernel.shared_bytes = THREADS, 0
    return paged_decode_kernel


# --- Tensor cores: bfloat16 and float16 -------------------------------------------------------------------------------


def mma_bytes(size: int, stages: int) -> int:
    """Return the bytes of shared memory that a launch of make_paged_decode_mma asks for: each warp's pages, and the
    queries."""
    pitch = rows_in_shared(size)[1]
    return 2 * (WARPS * stages * 2 * PAGE + 16) * pitch


def stages_for(size: int) -> int:
    """Return how many pages of each warp fit into the target's shared memory: three, two, or 0 where neither fits."""
    static = 1024  # at least what the kernel declares itself
    return next((n for n in (3, 2) if mma_bytes(size, n) + static <= gpus.target().shared_per_block), 0)


@kernel_factory
def make_paged_decode_mma(size: int, heads: int, early: bool = False, stages: int = 3, element: Element = BFLOAT16):
    """As make_paged_decode, for elements of 16 bits: the query heads are the 16 rows of an operand, a page is 16 keys.

    Each warp has its own ring of `stages` pages in shared memory, which cp.async fills while earlier ones are
    multiplied; it waits for no other warp. The matrix products take a tenth of the instructions that products in
    registers take, for any number of heads up to 16, which leaves issue slots for loads.

    early: as in kernels/pdl.py; meanwhile the first pages are prefetched into L2, where the step's later writes to
    them go, too.
    """
    SIZE, HEADS = size, heads
    SWIZZLED, PITCH, SHIFT, MASK = rows_in_shared(size)
    TILE = PAGE * PITCH
    STAGE, STAGES = 2 * TILE, stages
    PREFETCH = STAGES - 1  # pages in flight
    PENDING = STAGES - 2
    RING = STAGES * STAGE
    QUERIES_OFFSET = WARPS * RING
    K_STEPS, CHUNKS = size // 16, size // CHUNK
    LANE_ROWS = 1 if heads <= 8 else 2
    ACCUMULATORS, QUERY_WORDS = CHUNKS * 4, K_STEPS * 4
    NUM_SUMS, THREAD_PAIRS = WARPS * heads, -(-heads * size // (2 * THREADS))
    EARLY, PAGE_BYTES = early, 2 * PAGE * size
    copy_queries = make_copy_rows(16, SIZE, PITCH, THREADS, CHUNK, SWIZZLED)
    copy_page = make_copy_rows(PAGE, SIZE, PITCH, 32, CHUNK, SWIZZLED)
    read_queries, add_scores, mask_scores, online_softmax_update, add_values = make_mma_steps(
        SIZE, 1, PAGE, PITCH, element)
    write_zeros, acc_offset, merge_warps, reduce_splits = make_merge(size, heads, element, SPLITS)
    ELEMENT = element.dtype.type

    @cuda.jit(device=True)
    def start_page(shared, offset, source, page, end, tokens, lane):
        """Start the copies of a page, if there is one; rows beyond the sequence are zero-filled. Commit the group."""
        if page < end:
            keys, values, page_table, sequence, kv_heads, kv_head = source
            row = first_row_of_page(page_table, sequence, page, kv_heads, kv_head)
            end_row = row + min(tokens - page * PAGE, PAGE)
            copy_page(shared, offset, keys, row, end_row, 0, lane)
            copy_page(shared, offset + TILE, values, row, end_row, 0, lane)
        ptx.cp_async_commit()

    @cuda.jit(device=True)
    def prefetch_page(source, page, end):
        """Prefetch a page into L2, if there is one."""
        if page < end:
            keys, values, page_table, sequence, kv_heads, kv_head = source
            offset = first_row_of_page(page_table, sequence, page, kv_heads, kv_head) * SIZE
            ptx.prefetch_l2(keys, offset, PAGE_BYTES)
            ptx.prefetch_l2(values, offset, PAGE_BYTES)

    @cuda.jit(launch_bounds=(THREADS, 4 if size <= 64 else 2))
    def paged_decode_mma_kernel(q, keys, values, page_table, lengths, out, scale, ratio, kv_heads, partial, arrived):
        shared = cuda.shared.array(0, ELEMENT)
        warp_acc = cuda.shared.array(0, float32)  # the same memory: a warp's results overwrite its last page
        warp_max, warp_sum = cuda.shared.array(NUM_SUMS, float32), cuda.shared.array(NUM_SUMS, float32)
        warp_offsets = cuda.shared.array(WARPS, uint32)
        scores = cuda.local.array(8, float32)
        acc = cuda.local.array(ACCUMULATORS, float32)
        query_words, words = cuda.local.array(QUERY_WORDS, uint32), cuda.local.array(4, uint32)
        row_max, row_sum = cuda.local.array(2, float32), cuda.local.array(2, float32)
        block_state = cuda.local.array((THREAD_PAIRS, 4), float32)
        thread = u32.threadIdx.x
        lane, warp, sequence = thread % 32, thread // 32, u32.blockIdx.z
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
        kv_head, first_row, num_heads = find_heads(HEADS, ratio, kv_heads)
        tokens, scale = find_length(lengths, sequence, u32.shape(page_table)[1], scale)
        pages, pages_per_split, num_splits = find_parts(max(tokens, 1), SPLITS)  # an empty slot counts as one page
        split, split_end, active_blocks = split_range(num_splits, u32.blockIdx.x, u32.gridDim.x)
        page = split * pages_per_split + warp
        page_end = min(split_end * pages_per_split, pages)  # one past the block's last page
        if EARLY:
            if tokens > 0 and lane < PREFETCH:
                prefetch_page((keys, values, page_table, sequence, kv_heads, kv_head), page + lane * WARPS, page_end)
            ptx.griddepcontrol_wait()
        if tokens == 0:
            if u32.blockIdx.x == 0:
                write_zeros(out, first_row, num_heads)
            return
        if split >= split_end:
            return  # the grid has blocks for a full page table
        ring = warp * RING
        copy_queries(shared, QUERIES_OFFSET, q, first_row, first_row + num_heads, 0, thread)
        ptx.cp_async_commit()
        for n in u32.range(PREFETCH):
            start_page(shared, ring + n * STAGE, (keys, values, page_table, sequence, kv_heads, kv_head),
                       page + n * WARPS, page_end, tokens, lane)
        for n in range(THREAD_PAIRS):
            block_state[n, 0], block_state[n, 1], block_state[n, 2], block_state[n, 3] = LEAST_FINITE, ZERO, ZERO, ZERO

        swizzle = lane >> SHIFT & MASK
        row_offset = lane % 16 * PITCH
        query_chunk = lane // 16 ^ swizzle  # for queries and values: rows L % 16, right chunk from lane 16 on
        key_offset = (lane % 8 + lane // 16 * 8) * PITCH
        key_chunk = lane // 8 % 2 ^ swizzle  # for keys: the right chunk before the next eight rows
        ptx.cp_async_wait(PREFETCH)
        cuda.syncthreads()  # the queries have landed
        for k in range(K_STEPS):
            read_queries(query_words, shared, QUERIES_OFFSET + row_offset, query_chunk, k, 4 * k)
        stage, free_stage = 0, PREFETCH * STAGE  # offsets in the ring: of the next page, and of the free stage
        while split < split_end:
            end = min((split + 1) * pages_per_split, pages)
            for i in range(ACCUMULATORS):
                acc[i] = ZERO
            for r in u32.range(2):
                row_max[r], row_sum[r] = NEG_INF, ZERO
            while page < end:
                ptx.cp_async_wait(PENDING)
                cuda.syncwarp()  # this page has landed, and every lane has read the preceding one
                start_page(shared, ring + free_stage, (keys, values, page_table, sequence, kv_heads, kv_head),
                           page + PREFETCH * WARPS, page_end, tokens, lane)
                offset = ring + stage
                for i in range(8):
                    scores[i] = ZERO
                for k in range(K_STEPS):
                    add_scores(scores, query_words, shared, offset + key_offset, key_chunk, k, 4 * k)
                key = page * PAGE + lane % 4 * 2
                for r in u32.range(LANE_ROWS):
                    if (page + 1) * PAGE > tokens:
                        mask_scores(scores, key, tokens, r)
                    online_softmax_update(scores, acc, row_max, row_sum, scale, r)
                add_values(scores, acc, words, shared, offset + TILE + row_offset, query_chunk, 0)
                page += WARPS
                free_stage = stage
                stage = stage + STAGE if stage < PREFETCH * STAGE else 0

            cuda.syncwarp()  # every lane has read the last page, which the results overwrite
            warp_offset = (ring + free_stage) // 2  # in float32 elements
            if lane == 0:
                warp_offsets[warp] = warp_offset
            for r in u32.range(LANE_ROWS):
                denominator = row_sum[r]
                denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 1)
                denominator += cuda.shfl_xor_sync(ALL_LANES, denominator, 2)
                head = lane // 4 + 8 * r
                if head < HEADS:
                    for j in u32.range(CHUNKS):
                        dst = warp_offset + acc_offset(head, 8 * j + lane % 4 * 2)
                        warp_acc[dst] = acc[4 * j + 2 * r]
                        warp_acc[dst + 1] = acc[4 * j + 2 * r + 1]
                    if lane % 4 == 0:
                        warp_sum[warp * HEADS + head] = denominator
                        warp_max[warp * HEADS + head] = max(LEAST_FINITE, row_max[r] * scale)
            merge_warps((warp_acc, warp_offsets, warp_max, warp_sum), block_state, split, active_blocks == 1, partial)
            split += 1
        reduce_splits(block_state, num_splits, active_blocks, partial, arrived, out, first_row, num_heads)

    paged_decode_mma_kernel.threads, paged_decode_mma_kernel.uses_pdl = THREADS, early
    paged_decode_mma_kernel.shared_bytes = mma_bytes(size, stages)
    return paged_decode_mma_kernel
