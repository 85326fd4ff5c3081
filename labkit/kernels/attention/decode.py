"""The kernels of attention for one or a few queries against many keys: slices of the keys first, then their results
combined.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), start (1,); float32 or float16; D a
        multiple of 16. The launcher is in flash.py
Source  T. Dao et al., "Flash-Decoding" (2023)
"""

from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO, block_max, block_sum

DECODE_THREADS = 128
SLICE = 128  # keys of a block


def teams_of(size: int) -> int:
    return max(1, 256 // size)


@kernel_factory
def make_decode(size: int, half: bool = False):
    """Two kernels for heads of `size` numbers: the first for a slice of the keys, the second to combine the slices.
    half: the numbers are float16, of which 16 bytes hold eight."""
    CHUNK = 8 if half else 4  # numbers in 16 bytes
    SIZE, LOADS = size, size // 16
    LANES = 16 // CHUNK  # neighbours that share a key: 16 numbers in a step
    PARTS = size // CHUNK  # threads that share a value
    GROUPS = DECODE_THREADS // PARTS
    QUERY = CHUNK * LOADS
    TURNS = -(-SLICE // GROUPS)  # keys of a thread, when the values are added up, in rounds as long as are unrolled
    ROUND = min(TURNS, 4 if half else 8)
    TURNS = -(-TURNS // ROUND) * ROUND
    SCORES, FOUND = TURNS * GROUPS, GROUPS * SIZE
    STEPS, KEYS = SLICE * LANES // DECODE_THREADS, DECODE_THREADS // LANES  # keys of a thread, and of all, for scores
    XOR_OFFSETS = (1,) if half else (1, 2)
    TEAMS, AT_ONCE = teams_of(size), 4  # threads that combine slices, for each number; slices that one loads at once
    OF_TEAMS = TEAMS * size
    RECORD = SIZE + 4  # of a slice: its weighted values, its row_sum, its row_max and two numbers that are never read

    @cuda.jit(device=True)
    def read(numbers, to, array, at):
        """numbers[to], ... = the numbers in 16 bytes of an array."""
        four = ptx.load_global4(array, at)
        for n in range(4):
            if half:
                numbers[to + 2 * n], numbers[to + 2 * n + 1] = ptx.unpack_half2(four[n])
            else:
                numbers[to + n] = four[n]

    # Four steps a call, and the calls written out: a loop over all would not be unrolled for every size of a head.

    @cuda.jit(device=True)
    def read_query(query_part, qkv, at, i0):
        for k in u32.range(4):
            if i0 + k < LOADS:
                read(query_part, CHUNK * (i0 + k), qkv, at + 16 * (i0 + k))

    @cuda.jit(device=True)
    def products(query_part, keys_values, at, i0):
        numbers = cuda.local.array(CHUNK, float32)
        score = ZERO
        for k in u32.range(4):
            if i0 + k < LOADS:
                read(numbers, 0, keys_values, at + 16 * (i0 + k))
                for n in range(CHUNK):
                    score += query_part[CHUNK * (i0 + k) + n] * numbers[n]
        return score

    @cuda.jit(device=True)
    def score_of(query_part, keys_values, row, column):
        """This lane's share of the product of the query and the key in `row`."""
        at = row * u32.shape(keys_values)[1] + column
        score = products(query_part, keys_values, at, 0)
        if LOADS > 4:
            score += products(query_part, keys_values, at, 4)
        if LOADS > 8:
            score += products(query_part, keys_values, at, 8)
        if LOADS > 12:
            score += products(query_part, keys_values, at, 12)
        return score

    @cuda.jit
    def attention_decode_slice_kernel(qkv, keys_values, start, out, first, scale, causal, found):
        scores = cuda.shared.array(SCORES, float32)
        partial = cuda.shared.array(32, float32)
        sums = cuda.shared.array(FOUND, float32, 16)
        query_part = cuda.local.array(QUERY, float32)
        own_scores = cuda.local.array(STEPS, float32)
        numbers = cuda.local.array(CHUNK, float32)
        acc_part = cuda.local.array(CHUNK, float32)
        thread = u32.threadIdx.x
        head, t = u32.blockIdx.y, u32.blockIdx.z
        rows, width = u32.shape(out)
        query_column = head * SIZE
        key_column = first + query_column
        columns = u32.shape(keys_values)[1]
        before = uint32(start[0])
        seen = min(before + (t + 1 if causal else rows), u32.shape(keys_values)[0])
        key0 = u32.blockIdx.x * SLICE
        if key0 < seen:  # the grid has slices for a full cache
            end = min(key0 + SLICE, seen)
            part, key = thread % LANES, thread // LANES
            at = t * u32.shape(qkv)[1] + query_column + part * CHUNK
            read_query(query_part, qkv, at, 0)
            if LOADS > 4:
                read_query(query_part, qkv, at, 4)
            if LOADS > 8:
                read_query(query_part, qkv, at, 8)
            if LOADS > 12:
                read_query(query_part, qkv, at, 12)
            key_column, last = key_column + part * CHUNK, end - 1
            # No branches, so that all loads can be under way at once.
            row = key0 + key
            own_scores[0] = score_of(query_part, keys_values, min(row, last), key_column)
            own_scores[1] = score_of(query_part, keys_values, min(row + KEYS, last), key_column)
            if STEPS == 4:
                own_scores[2] = score_of(query_part, keys_values, min(row + 2 * KEYS, last), key_column)
                own_scores[3] = score_of(query_part, keys_values, min(row + 3 * KEYS, last), key_column)
            row_max = NEG_INF
            for step in u32.range(STEPS):
                own = key + step * KEYS
                score = own_scores[step] * scale
                for distance in XOR_OFFSETS:
                    score += cuda.shfl_xor_sync(ALL_LANES, score, distance)
                score = score if key0 + own < end else NEG_INF
                row_max = max(row_max, score)
                if part == 0:
                    scores[own] = score
            row_max = block_max(row_max, partial)  # its barriers also make the scores visible to all
            exponential = ptx.exp2_approx(scores[thread] - row_max)
            scores[thread] = exponential  # 0 for masked keys
            if thread < SCORES - SLICE:
                scores[thread + SLICE] = ZERO
            row_sum = block_sum(exponential, partial)

            group, column = thread // PARTS, thread % PARTS * CHUNK
            if group < GROUPS:  # each takes every GROUPS-th key
                value_column = first + query_column + width + column
                for n in u32.range(CHUNK):
                    acc_part[n] = ZERO
                own = group
                while own < SCORES:
                    for _ in range(ROUND):
                        row = min(key0 + own, last)
                        read(numbers, 0, keys_values, row * columns + value_column)
                        exponential = scores[own]
                        for n in u32.range(CHUNK):
                            acc_part[n] += exponential * numbers[n]
                        own += GROUPS
                for n in u32.range(0, CHUNK, 4):
                    ptx.store_shared4(sums, group * SIZE + column + n, acc_part[n],
                                      acc_part[n + 1], acc_part[n + 2], acc_part[n + 3])
            cuda.syncthreads()
            record = (((t * u32.gridDim.y + head) * u32.gridDim.x
                             + u32.blockIdx.x) * RECORD)
            for i in u32.range(thread, SIZE, DECODE_THREADS):
                acc = ZERO
                for place in u32.range(i, FOUND, SIZE):
                    acc += sums[place]
                found[record + i] = acc
            if thread == 0:
                found[record + SIZE] = row_sum
                found[record + (SIZE + 1)] = row_max

    @cuda.jit
    def attention_decode_combine_kernel(found, start, out, capacity, slices, causal):
        """A thread has one number of the head; TEAMS of them share the slices, corrected as tiles are."""
        team_max = cuda.shared.array(TEAMS, float32)
        team_sum = cuda.shared.array(TEAMS, float32)
        team_acc = cuda.shared.array(OF_TEAMS, float32)
        maxima = cuda.local.array(AT_ONCE, float32)
        row_sums = cuda.local.array(AT_ONCE, float32)
        parts = cuda.local.array(AT_ONCE, float32)
        thread = u32.threadIdx.x
        team, i = thread // SIZE, thread % SIZE
        head, t = u32.blockIdx.x, u32.blockIdx.y
        seen = uint32(start[0]) + (t + 1 if causal else u32.shape(out)[0])
        count = (min(seen, capacity) + (SLICE - 1)) // SLICE
        first = (t * u32.gridDim.x + head) * slices
        row_max, row_sum, acc = NEG_INF, ZERO, ZERO
        for slice_ in u32.range(team, count, AT_ONCE * TEAMS):
            for n in u32.range(AT_ONCE):  # no branches, so that all loads can be under way at once
                one = slice_ + n * TEAMS
                record = (first + min(one, count - 1)) * RECORD
                parts[n], row_sums[n] = found[record + i], found[record + SIZE]
                maxima[n] = found[record + (SIZE + 1)] if one < count else NEG_INF
            new = row_max
            for n in u32.range(AT_ONCE):
                new = max(new, maxima[n])
            correction = ptx.exp2_approx(row_max - new)
            row_sum, acc = row_sum * correction, acc * correction
            for n in u32.range(AT_ONCE):
                weight = ptx.exp2_approx(maxima[n] - new)
                row_sum += row_sums[n] * weight
                acc += parts[n] * weight
            row_max = new
        team_acc[thread] = acc
        if i == 0:
            team_max[team], team_sum[team] = row_max, row_sum
        cuda.syncthreads()
        if team == 0:
            for other in u32.range(1, TEAMS):
                new = max(row_max, team_max[other])
                correction, weight = ptx.exp2_approx(row_max - new), ptx.exp2_approx(team_max[other] - new)
                row_sum = row_sum * correction + team_sum[other] * weight
                acc = acc * correction + team_acc[other * SIZE + i] * weight
                row_max = new
            out[t, head * SIZE + i] = acc / row_sum

    return attention_decode_slice_kernel, attention_decode_combine_kernel


def decode_workspace_numbers(rows: int, capacity: int, heads: int, size: int) -> int:
    """How many float32 numbers attention_decode needs between its two launches, for `capacity` keys at most."""
    return rows * heads * -(-capacity // SLICE) * (size + 4)
