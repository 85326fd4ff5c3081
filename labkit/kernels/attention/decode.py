"""Attention for one or a few queries against many keys: first slices of the keys, then a merge of their partial
results.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), start (1,); float32 or float16; D a
        multiple of 16
Source  T. Dao et al., "Flash-Decoding" (2023)
"""

import functools

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ
from labkit.kernels.attention.flash import SIZES, check_flash, scale_for_powers_of_two
from labkit.kernels.attention.heads import keys_and_values, make_load_chunk
from labkit.kernels.op import rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO, block_max, block_sum

DECODE_THREADS = 128
SLICE = 128  # keys of a block


def teams_of(size: int) -> int:
    return max(1, 256 // size)


@kernel_factory
def make_decode(size: int, half: bool = False):
    """Make two kernels for heads of `size` elements: one for a slice of the keys, one to combine the slices. half:
    elements are float16, of which 16 bytes hold eight."""
    CHUNK = 8 if half else 4  # elements in 16 bytes
    SIZE, LOADS = size, size // 16
    LANES = 16 // CHUNK  # neighbours that share a key: 16 elements in a step
    VALUE_LANES = size // CHUNK  # threads that share a value
    GROUPS = DECODE_THREADS // VALUE_LANES
    QUERY_ELEMENTS = CHUNK * LOADS
    KEYS_PER_THREAD = -(-SLICE // GROUPS)  # when the values are added up; a multiple of UNROLL
    UNROLL = min(KEYS_PER_THREAD, 4 if half else 8)
    KEYS_PER_THREAD = -(-KEYS_PER_THREAD // UNROLL) * UNROLL
    SCORES, ACC_ELEMENTS = KEYS_PER_THREAD * GROUPS, GROUPS * SIZE
    STEPS, KEYS = SLICE * LANES // DECODE_THREADS, DECODE_THREADS // LANES  # keys of a thread, and of all, for scores
    XOR_OFFSETS = (1,) if half else (1, 2)
    TEAMS, SLICES_AT_ONCE = teams_of(size), 4  # threads that combine slices, for each element; slices in flight
    TEAM_ELEMENTS = TEAMS * size
    PARTIAL_STRIDE = SIZE + 4  # of a slice: acc, row_sum, row_max and two elements of padding
    load_chunk = make_load_chunk(half)

    # Four steps a call, with explicit calls: a loop over all steps would not be unrolled for every head size.

    @cuda.jit(device=True)
    def load_query(query_part, qkv, offset, i0):
        for k in u32.range(4):
            if i0 + k < LOADS:
                load_chunk(query_part, CHUNK * (i0 + k), qkv, offset + 16 * (i0 + k))

    @cuda.jit(device=True)
    def dot(query_part, keys_values, offset, i0):
        elements = cuda.local.array(CHUNK, float32)
        score = ZERO
        for k in u32.range(4):
            if i0 + k < LOADS:
                load_chunk(elements, 0, keys_values, offset + 16 * (i0 + k))
                for n in range(CHUNK):
                    score += query_part[CHUNK * (i0 + k) + n] * elements[n]
        return score

    @cuda.jit(device=True)
    def partial_score(query_part, keys_values, row, column):
        """Compute the lane's part of the dot product of the query and the key in `row`."""
        offset = row * u32.shape(keys_values)[1] + column
        score = dot(query_part, keys_values, offset, 0)
        if LOADS > 4:
            score += dot(query_part, keys_values, offset, 4)
        if LOADS > 8:
            score += dot(query_part, keys_values, offset, 8)
        if LOADS > 12:
            score += dot(query_part, keys_values, offset, 12)
        return score

    @cuda.jit
    def attention_decode_slice_kernel(qkv, keys_values, start, out, base, scale, causal, partials):
        scores = cuda.shared.array(SCORES, float32)
        partial = cuda.shared.array(32, float32)
        group_acc = cuda.shared.array(ACC_ELEMENTS, float32, 16)
        query_part = cuda.local.array(QUERY_ELEMENTS, float32)
        thread_scores = cuda.local.array(STEPS, float32)
        elements = cuda.local.array(CHUNK, float32)
        thread_acc = cuda.local.array(CHUNK, float32)
        thread = u32.threadIdx.x
        head, t = u32.blockIdx.y, u32.blockIdx.z
        rows, width = u32.shape(out)
        query_column = head * SIZE
        key_column = base + query_column
        columns = u32.shape(keys_values)[1]
        context_len = uint32(start[0])
        num_visible = min(context_len + (t + 1 if causal else rows), u32.shape(keys_values)[0])
        key0 = u32.blockIdx.x * SLICE
        if key0 < num_visible:  # the grid has slices for a full cache
            end = min(key0 + SLICE, num_visible)
            lane, key = thread % LANES, thread // LANES
            offset = t * u32.shape(qkv)[1] + query_column + lane * CHUNK
            load_query(query_part, qkv, offset, 0)
            if LOADS > 4:
                load_query(query_part, qkv, offset, 4)
            if LOADS > 8:
                load_query(query_part, qkv, offset, 8)
            if LOADS > 12:
                load_query(query_part, qkv, offset, 12)
            key_column, last_key = key_column + lane * CHUNK, end - 1
            # No branches, so that all loads can be in flight at once.
            row = key0 + key
            thread_scores[0] = partial_score(query_part, keys_values, min(row, last_key), key_column)
            thread_scores[1] = partial_score(query_part, keys_values, min(row + KEYS, last_key), key_column)
            if STEPS == 4:
                thread_scores[2] = partial_score(query_part, keys_values, min(row + 2 * KEYS, last_key), key_column)
                thread_scores[3] = partial_score(query_part, keys_values, min(row + 3 * KEYS, last_key), key_column)
            row_max = NEG_INF
            for step in u32.range(STEPS):
                j = key + step * KEYS
                score = thread_scores[step] * scale
                for distance in XOR_OFFSETS:
                    score += cuda.shfl_xor_sync(ALL_LANES, score, distance)
                score = score if key0 + j < end else NEG_INF
                row_max = max(row_max, score)
                if lane == 0:
                    scores[j] = score
            row_max = block_max(row_max, partial)  # its barriers also make the scores visible to all
            exponential = ptx.exp2_approx(scores[thread] - row_max)
            scores[thread] = exponential  # 0 for masked keys
            if thread < SCORES - SLICE:
                scores[thread + SLICE] = ZERO
            row_sum = block_sum(exponential, partial)

            group, column = thread // VALUE_LANES, thread % VALUE_LANES * CHUNK
            if group < GROUPS:  # each takes every GROUPS-th key
                value_column = base + query_column + width + column
                for n in u32.range(CHUNK):
                    thread_acc[n] = ZERO
                j = group
                while j < SCORES:
                    for _ in range(UNROLL):
                        row = min(key0 + j, last_key)
                        load_chunk(elements, 0, keys_values, row * columns + value_column)
                        exponential = scores[j]
                        for n in u32.range(CHUNK):
                            thread_acc[n] += exponential * elements[n]
                        j += GROUPS
                for n in u32.range(0, CHUNK, 4):
                    ptx.store_shared4(group_acc, group * SIZE + column + n, thread_acc[n],
                                      thread_acc[n + 1], thread_acc[n + 2], thread_acc[n + 3])
            cuda.syncthreads()
            partial_offset = ((t * u32.gridDim.y + head) * u32.gridDim.x + u32.blockIdx.x) * PARTIAL_STRIDE
            for i in u32.range(thread, SIZE, DECODE_THREADS):
                acc = ZERO
                for src in range(i, ACC_ELEMENTS, SIZE):
                    acc += group_acc[src]
                partials[partial_offset + i] = acc
            if thread == 0:
                partials[partial_offset + SIZE] = row_sum
                partials[partial_offset + (SIZE + 1)] = row_max

    @cuda.jit
    def attention_decode_combine_kernel(partials, start, out, capacity, slices, causal):
        """Merge the slices: a thread has one element of the head, and TEAMS threads share the slices."""
        team_max = cuda.shared.array(TEAMS, float32)
        team_sum = cuda.shared.array(TEAMS, float32)
        team_acc = cuda.shared.array(TEAM_ELEMENTS, float32)
        partial_max = cuda.local.array(SLICES_AT_ONCE, float32)
        partial_sum = cuda.local.array(SLICES_AT_ONCE, float32)
        partial_acc = cuda.local.array(SLICES_AT_ONCE, float32)
        thread = u32.threadIdx.x
        team, i = thread // SIZE, thread % SIZE
        head, t = u32.blockIdx.x, u32.blockIdx.y
        num_visible = uint32(start[0]) + (t + 1 if causal else u32.shape(out)[0])
        count = (min(num_visible, capacity) + (SLICE - 1)) // SLICE
        base = (t * u32.gridDim.x + head) * slices
        row_max, row_sum, acc = NEG_INF, ZERO, ZERO
        for slice_ in u32.range(team, count, SLICES_AT_ONCE * TEAMS):
            for n in u32.range(SLICES_AT_ONCE):  # no branches, so that all loads can be in flight at once
                index = slice_ + n * TEAMS
                partial_offset = (base + min(index, count - 1)) * PARTIAL_STRIDE
                partial_acc[n], partial_sum[n] = partials[partial_offset + i], partials[partial_offset + SIZE]
                partial_max[n] = partials[partial_offset + (SIZE + 1)] if index < count else NEG_INF
            new_max = row_max
            for n in u32.range(SLICES_AT_ONCE):
                new_max = max(new_max, partial_max[n])
            correction = ptx.exp2_approx(row_max - new_max)
            row_sum, acc = row_sum * correction, acc * correction
            for n in u32.range(SLICES_AT_ONCE):
                weight = ptx.exp2_approx(partial_max[n] - new_max)
                row_sum += partial_sum[n] * weight
                acc += partial_acc[n] * weight
            row_max = new_max
        team_acc[thread] = acc
        if i == 0:
            team_max[team], team_sum[team] = row_max, row_sum
        cuda.syncthreads()
        if team == 0:
            for other in u32.range(1, TEAMS):
                new_max = max(row_max, team_max[other])
                correction, weight = ptx.exp2_approx(row_max - new_max), ptx.exp2_approx(team_max[other] - new_max)
                row_sum = row_sum * correction + team_sum[other] * weight
                acc = acc * correction + team_acc[other * SIZE + i] * weight
                row_max = new_max
            out[t, head * SIZE + i] = acc / row_sum

    return attention_decode_slice_kernel, attention_decode_combine_kernel


def decode_workspace_numbers(rows: int, capacity: int, heads: int, size: int) -> int:
    """Return how many float32 elements attention_decode needs between its two launches, for `capacity` keys at most."""
    return rows * heads * -(-capacity // SLICE) * (size + 4)


@functools.cache
def _decode_workspace(num_elements: int):
    return cuda.device_array(num_elements, np.float32)


@rung(kernel=make_decode(64), sizes=f"{SIZES}, and at most 65,535 rows",
      idea="for a query or a few: blocks share the keys, a second launch combines what they found")
def attention_decode(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0, workspace=None):
    """For generation, where a token has one query and a long cache: a block for each head would leave most of the GPU
    idle. So a block takes 128 keys of a head, and a second kernel combines the slices, with the correction of flash.

    workspace: decode_workspace_numbers float32 elements in device memory; if left out, one is made for each size and
    kept, and launches in two streams at the same time must not share it. The number of keys is read from `start`, so
    that one captured graph serves every token.
    """
    launch_decode(qkv, heads, out, cache, start, causal, stream, workspace)


def launch_decode(qkv, heads, out, cache, start, causal, stream, workspace, dtype=np.float32) -> None:
    size, capacity = check_flash(qkv, heads, out, cache, start, dtype)
    rows, slices = out.shape[0], -(-capacity // SLICE)
    if rows > MAX_GRID_YZ:
        raise ValueError(f"{rows:,} rows are too many; at most {MAX_GRID_YZ:,} are allowed")
    num_elements = decode_workspace_numbers(rows, capacity, heads, size)
    if workspace is None:
        workspace = _decode_workspace(num_elements)
    elif np.dtype(workspace.dtype) != np.float32 or workspace.size < num_elements:
        raise ValueError(f"workspace has {workspace.size:,} elements of {workspace.dtype}; it must have "
                         f"{num_elements:,} of float32")
    keys_values, start, kv_offset = keys_and_values(qkv, out, cache, start)
    slice_kernel, combine_kernel = make_decode(size, dtype == np.float16)
    slice_kernel[(slices, heads, rows), DECODE_THREADS, stream](
        qkv, keys_values, start, out, kv_offset, scale_for_powers_of_two(size), np.uint32(causal), workspace)
    combine_kernel[(heads, rows), size * teams_of(size), stream](
        workspace, start, out, np.uint32(capacity), np.uint32(slices), np.uint32(causal))
