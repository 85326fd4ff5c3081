"""How paged_decode splits a sequence's pages over lanes, warps and blocks, and merges their partial results.

A sequence is cut into up to 16 splits of 8 pages or more, by its own length alone. A block takes one split after the
other: all of them where the batch keeps the GPU busy, or one where it would leave it idle. Warps take the pages of a
split in turn, and are merged at its end; splits are merged in order, by the block that has them all or by the last one
to finish: the same operations in the same order, so that the result has the same bits in any batch. A partial result is

    row_max = max s        row_sum = sum of 2**(s - row_max)        acc = sum of 2**(s - row_max) * v

of a query head's scores s and values v; two are merged by rescaling both to the larger row_max and adding them.
"""

from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.attention.pages import PAGE
from labkit.kernels.elements import Element
from labkit.kernels.reduce import ZERO

WARPS, THREADS = 4, 128
SPLITS = 16  # of a sequence, at most
MIN_SPLIT_PAGES = 8  # pages of a split, at least: two for each warp
LEAST_FINITE = float32(-3e38)  # below every score, and finite: the difference of two such maxima is never NaN


def partial_stride(size: int) -> int:
    """Return the elements of a partial result, of one query head and split: acc, row_sum, row_max and two of
    padding."""
    return size + 4


@cuda.jit(device=True)
def find_parts(tokens, max_splits):
    """Return (pages, pages_per_split, num_splits) of a sequence; all splits but the last are a multiple of WARPS
    long."""
    pages = (tokens + (PAGE - 1)) // PAGE
    pages_per_split = (pages + (max_splits - 1)) // max_splits
    pages_per_split = max(MIN_SPLIT_PAGES, (pages_per_split + (WARPS - 1)) // WARPS * WARPS)
    if max_splits == 1:
        pages_per_split = pages
    return pages, pages_per_split, (pages + pages_per_split - 1) // pages_per_split


@cuda.jit(device=True)
def split_range(num_splits, block, num_blocks):
    """Return (first split, end, blocks with any splits) for a block, one of num_blocks that share the sequence."""
    splits_per_block = (num_splits + num_blocks - 1) // num_blocks
    start = block * splits_per_block
    return start, min(start + splits_per_block, num_splits), (num_splits + splits_per_block - 1) // splits_per_block


@cuda.jit(device=True)
def merge_split(state, n, split):
    """Merge a split's (row_max, row_sum, acc0, acc1) into the preceding ones, for the thread's pair n. The FMAs are
    explicit, so that any block gets the same bits, whether it has all splits or is the last one."""
    split_max, split_sum, split_acc0, split_acc1 = split
    new_max = max(state[n, 0], split_max)
    correction, weight = ptx.exp2_approx(state[n, 0] - new_max), ptx.exp2_approx(split_max - new_max)
    state[n, 0] = new_max
    state[n, 1] = cuda.fma(state[n, 1], correction, split_sum * weight)
    state[n, 2] = cuda.fma(state[n, 2], correction, split_acc0 * weight)
    state[n, 3] = cuda.fma(state[n, 3], correction, split_acc1 * weight)


def make_merge(size: int, heads: int, element: Element, splits: int):
    """Make the device functions that merge: write_zeros, for an empty slot; acc_offset, of an element of acc in shared
    memory; merge_warps, at the end of a split; reduce_splits, at the end of a block.

    A thread has up to THREAD_PAIRS pairs of neighbouring columns of a query head. state[n]: (row_max, row_sum, acc0,
    acc1) of pair n, over the block's splits so far. first_row, num_rows: the block's rows of out, a matrix (B * H, D).
    """
    HEADS, SIZE, PARTIAL_STRIDE = heads, size, partial_stride(size)
    HEAD_PAIRS = size // 2  # pairs of columns of a head
    NUM_PAIRS, THREAD_PAIRS = heads * HEAD_PAIRS, -(-heads * HEAD_PAIRS // THREADS)
    SPLIT, store_pair, packed = splits > 1, element.store_pair, element.store_pair is not None
    # Rows of 64 elements begin in the same bank: the eight rows that a warp writes at once are swizzled.
    SWIZZLE = 8 if size & (size - 1) == 0 else 0
    SWIZZLE_MASK = min(7, size // 8 - 1)

    @cuda.jit(device=True)
    def write(out, row, col, acc0, acc1):
        if packed:
            store_pair(out, row * SIZE + col, acc0, acc1)
        else:
            out[row, col], out[row, col + 1] = acc0, acc1

    @cuda.jit(device=True)
    def write_zeros(out, first_row, num_rows):
        for pair in u32.range(u32.threadIdx.x, num_rows * HEAD_PAIRS, THREADS):
            row, col = pair // HEAD_PAIRS, pair % HEAD_PAIRS * 2
            write(out, first_row + row, col, ZERO, ZERO)

    @cuda.jit(device=True)
    def acc_offset(head, col):
        return head * SIZE + (col ^ (head & SWIZZLE_MASK) * SWIZZLE)

    @cuda.jit(device=True)
    def partial_offset(split, head):
        group = u32.blockIdx.z * u32.gridDim.y + u32.blockIdx.y
        return ((group * SPLITS + split) * HEADS + head) * PARTIAL_STRIDE

    @cuda.jit(device=True)
    def merge_warps(results, state, split, single_block, partial):
        """Merge the warps' results of a split: (acc, offsets, maxima, sums), where a warp has acc[offsets[warp] +
        acc_offset(head, col)], and the rest at [warp * HEADS + head]. single_block: the block has all splits of the
        sequence, and accumulates this one in `state`; otherwise the split is written to `partial`."""
        warp_acc, warp_offsets, warp_max, warp_sum = results
        cuda.syncthreads()  # the results of all warps are complete
        for n in u32.range(THREAD_PAIRS):
            pair = u32.threadIdx.x + n * THREADS
            if pair < NUM_PAIRS:
                head, col = pair // HEAD_PAIRS, pair % HEAD_PAIRS * 2
                split_max, split_sum, acc0, acc1 = LEAST_FINITE, ZERO, ZERO, ZERO
                for warp in u32.range(WARPS):
                    split_max = max(split_max, warp_max[warp * HEADS + head])
                for warp in u32.range(WARPS):
                    offset = warp_offsets[warp] + acc_offset(head, col)
                    weight = ptx.exp2_approx(warp_max[warp * HEADS + head] - split_max)
                    split_sum += warp_sum[warp * HEADS + head] * weight
                    acc0 += warp_acc[offset] * weight
                    acc1 += warp_acc[offset + 1] * weight
                if not SPLIT or single_block:
                    merge_split(state, n, (split_max, split_sum, acc0, acc1))
                else:
                    base = partial_offset(split, head)
                    partial[base + col], partial[base + col + 1] = acc0, acc1
                    if col == 0:
                        partial[base + SIZE], partial[base + (SIZE + 1)] = split_sum, split_max
        cuda.syncthreads()  # and has been read by every thread

    @cuda.jit(device=True)
    def reduce_splits(state, num_splits, num_blocks, partial, arrived, out, first_row, num_rows):
        """Merge the splits, if they have several blocks, and write the output. num_blocks: those that share a sequence
        and its heads."""
        is_last_block = cuda.shared.array(1, uint32)
        thread = u32.threadIdx.x
        if SPLIT and num_blocks > 1:
            if thread == 0:
                cuda.threadfence()  # the partials of this block are visible before the count is
                # The count wraps to 0 at the last block, ready for the next launch.
                group = u32.blockIdx.z * u32.gridDim.y + u32.blockIdx.y
                ticket = uint32(cuda.atomic.inc(arrived, group, num_blocks - 1))
                is_last_block[0] = 1 if ticket == num_blocks - 1 else 0
                cuda.threadfence()
            cuda.syncthreads()
            if is_last_block[0] == 0:
                return
            for n in u32.range(THREAD_PAIRS):
                pair = min(thread + n * THREADS, NUM_PAIRS - 1)
                head, col = pair // HEAD_PAIRS, pair % HEAD_PAIRS * 2
                head_offset = partial_offset(0, head)
                # No branches, so that all loads can be in flight at once: a missing split has weight 0.
                for split in u32.range(SPLITS):
                    base = head_offset + min(split, num_splits - 1) * (HEADS * PARTIAL_STRIDE)
                    split_max = partial[base + (SIZE + 1)] if split < num_splits else LEAST_FINITE
                    merge_split(state, n, (split_max, partial[base + SIZE], partial[base + col],
                                           partial[base + col + 1]))
        for n in u32.range(THREAD_PAIRS):
            pair = thread + n * THREADS
            head, col = pair // HEAD_PAIRS, pair % HEAD_PAIRS * 2
            if head < num_rows:
                inv_row_sum = float32(1.0) / state[n, 1]
                write(out, first_row + head, col, state[n, 2] * inv_row_sum, state[n, 3] * inv_row_sum)

    return write_zeros, acc_offset, merge_warps, reduce_splits
