"""The kernels of attention for one or a few queries against many keys: slices of the keys first, then their results
combined.

Shapes  as in three_pass.py: qkv (S, 3*H*D), out (S, H*D), cache (N, 2*H*D), start (1,); float32 or float16; D a
        multiple of 16. The launcher is in flash.py
Source  T. Dao et al., "Flash-Decoding" (2023)
"""

from numba import float32, uint32

from labkit import cuda
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.reduce import ALL_LANES, NOTHING, ZERO, block_max, block_sum

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
    DISTANCES = (1,) if half else (1, 2)
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
        for k in range(4):
            if i0 + k < LOADS:
                read(query_part, CHUNK * (i0 + k), qkv, uint32(at + uint32(16 * (i0 + k))))

    @cuda.jit(device=True)
    def products(query_part, keys_values, at, i0):
        numbers = cuda.local.array(CHUNK, float32)
        score = ZERO
        for k in range(4):
            if i0 + k < LOADS:
                read(numbers, 0, keys_values, uint32(at + uint32(16 * (i0 + k))))
                for n in range(CHUNK):
                    score += query_part[CHUNK * (i0 + k) + n] * numbers[n]
        return score

    @cuda.jit(device=True)
    def score_of(query_part, keys_values, row, column):
        """This lane's share of the product of the query and the key in `row`."""
        at = uint32(row * uint32(keys_values.shape[1]) + column)
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
        thread = uint32(cuda.threadIdx.x)
        head, t = uint32(cuda.blockIdx.y), uint32(cuda.blockIdx.z)
        rows, width = uint32(out.shape[0]), uint32(out.shape[1])
        query_column = uint32(head * uint32(SIZE))
        key_column = uint32(first + query_column)
        columns = uint32(keys_values.shape[1])
        before = uint32(start[0])
        seen = min(uint32(before + (t + uint32(1) if causal else rows)), uint32(keys_values.shape[0]))
        key0 = uint32(uint32(cuda.blockIdx.x) * uint32(SLICE))
        if key0 < seen:  # the grid has slices for a full cache
            end = min(uint32(key0 + uint32(SLICE)), seen)
            part, key = uint32(thread % uint32(LANES)), uint32(thread // uint32(LANES))
            at = uint32(t * uint32(qkv.shape[1]) + query_column + part * uint32(CHUNK))
            read_query(query_part, qkv, at, 0)
            if LOADS > 4:
                read_query(query_part, qkv, at, 4)
            if LOADS > 8:
                read_query(query_part, qkv, at, 8)
            if LOADS > 12:
                read_query(query_part, qkv, at, 12)
            key_column, last = uint32(key_column + part * uint32(CHUNK)), uint32(end - uint32(1))
            # No branches, so that all loads can be under way at once.
            row = uint32(key0 + key)
            own_scores[0] = score_of(query_part, keys_values, min(row, last), key_column)
            own_scores[1] = score_of(query_part, keys_values, min(uint32(row + uint32(KEYS)), last), key_column)
            if STEPS == 4:
                own_scores[2] = score_of(query_part, keys_values, min(uint32(row + uint32(2 * KEYS)), last), key_column)
                own_scores[3] = score_of(query_part, keys_values, min(uint32(row + uint32(3 * KEYS)), last), key_column)
            row_max = NOTHING
            for step in range(STEPS):
                own = uint32(key + uint32(step * KEYS))
                score = own_scores[step] * scale
                for distance in DISTANCES:
                    score += cuda.shfl_xor_sync(ALL_LANES, score, distance)
                score = score if key0 + own < end else NOTHING
                row_max = max(row_max, score)
                if part == uint32(0):
                    scores[own] = score
            row_max = block_max(row_max, partial)  # its barriers also make the scores visible to all
            exponential = ptx.exp2_approx(scores[thread] - row_max)
            scores[thread] = exponential  # 0 for what is not seen
            if thread < uint32(SCORES - SLICE):
                scores[thread + uint32(SLICE)] = ZERO
            row_sum = block_sum(exponential, partial)

            group, column = uint32(thread // uint32(PARTS)), uint32(thread % uint32(PARTS) * uint32(CHUNK))
            if group < uint32(GROUPS):  # each takes every GROUPS-th key
                value_column = uint32(first + query_column + width + column)
                for n in range(CHUNK):
                    acc_part[n] = ZERO
                own = group
                while own < uint32(SCORES):
                    for _ in range(ROUND):
                        row = min(uint32(key0 + own), last)
                        read(numbers, 0, keys_values, uint32(row * columns + value_column))
                        exponential = scores[own]
                        for n in range(CHUNK):
                            acc_part[n] += exponential * numbers[n]
                        own = uint32(own + uint32(GROUPS))
                for n in range(0, CHUNK, 4):
                    ptx.store_shared4(sums, uint32(group * uint32(SIZE) + column + uint32(n)), acc_part[n],
                                      acc_part[n + 1], acc_part[n + 2], acc_part[n + 3])
            cuda.syncthreads()
            record = uint32((uint32(t * uint32(cuda.gridDim.y) + head) * uint32(cuda.gridDim.x)
                             + uint32(cuda.blockIdx.x)) * uint32(RECORD))
            i = thread
            while i < uint32(SIZE):
                acc = ZERO
                place = i
                while place < uint32(FOUND):
                    acc += sums[place]
                    place = uint32(place + uint32(SIZE))
                found[record + i] = acc
                i = uint32(i + uint32(DECODE_THREADS))
            if thread == uint32(0):
                found[record + uint32(SIZE)] = row_sum
                found[record + uint32(SIZE + 1)] = row_max

    @cuda.jit
    def attention_decode_combine_kernel(found, start, out, capacity, slices, causal):
        """A thread has one number of the head; TEAMS of them share the slices, corrected as tiles are."""
        team_max = cuda.shared.array(TEAMS, float32)
        team_sum = cuda.shared.array(TEAMS, float32)
        team_acc = cuda.shared.array(OF_TEAMS, float32)
        maxima = cuda.local.array(AT_ONCE, float32)
        row_sums = cuda.local.array(AT_ONCE, float32)
        parts = cuda.local.array(AT_ONCE, float32)
        thread = uint32(cuda.threadIdx.x)
        team, i = uint32(thread // uint32(SIZE)), uint32(thread % uint32(SIZE))
        head, t = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y)
        seen = uint32(uint32(start[0]) + (t + uint32(1) if causal else uint32(out.shape[0])))
        count = uint32((min(seen, capacity) + uint32(SLICE - 1)) // uint32(SLICE))
        first = uint32(uint32(uint32(t * uint32(cuda.gridDim.x)) + head) * slices)
        row_max, row_sum, acc = NOTHING, ZERO, ZERO
        slice_ = team
        while slice_ < count:
            for n in range(AT_ONCE):  # no branches, so that all loads can be under way at once
                one = uint32(slice_ + uint32(n * TEAMS))
                record = uint32(uint32(first + min(one, uint32(count - uint32(1)))) * uint32(RECORD))
                parts[n], row_sums[n] = found[record + i], found[record + uint32(SIZE)]
                maxima[n] = found[record + uint32(SIZE + 1)] if one < count else NOTHING
            new = row_max
            for n in range(AT_ONCE):
                new = max(new, maxima[n])
            correction = ptx.exp2_approx(row_max - new)
            row_sum, acc = row_sum * correction, acc * correction
            for n in range(AT_ONCE):
                weight = ptx.exp2_approx(maxima[n] - new)
                row_sum += row_sums[n] * weight
                acc += parts[n] * weight
            row_max = new
            slice_ = uint32(slice_ + uint32(AT_ONCE * TEAMS))
        team_acc[thread] = acc
        if i == uint32(0):
            team_max[team], team_sum[team] = row_max, row_sum
        cuda.syncthreads()
        if team == uint32(0):
            for other in range(1, TEAMS):
                new = max(row_max, team_max[other])
                correction, weight = ptx.exp2_approx(row_max - new), ptx.exp2_approx(team_max[other] - new)
                row_sum = row_sum * correction + team_sum[other] * weight
                acc = acc * correction + team_acc[uint32(other * SIZE) + i] * weight
                row_max = new
            out[t, uint32(head * uint32(SIZE)) + i] = acc / row_sum

    return attention_decode_slice_kernel, attention_decode_combine_kernel


def decode_workspace_numbers(rows: int, capacity: int, heads: int, size: int) -> int:
    """How many float32 numbers attention_decode needs between its two launches, for `capacity` keys at most."""
    return rows * heads * -(-capacity // SLICE) * (size + 4)
