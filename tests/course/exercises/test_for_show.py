"""What an exercise teaches is not met by a line that does nothing: a tile that is not needed, a shuffle of what every
lane has, blocks and threads that wait for one. The result of each answer here is right."""

import numpy as np
import pytest
from numba import float32, int32

from labkit import cuda
from labkit.course import exercise_files, exercises
from labkit.course.check.draw import draw_cases
from labkit.course.check.run import observed, observed_cases
from labkit.course.exercises import Edit
from labkit.device import ptx

pytestmark = pytest.mark.cpu_device
ALL, ZERO = 0xFFFFFFFF, float32(0.0)


@cuda.jit
def gram_beside_a_tile(a, out):
    tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    tile[y, x] = 0
    total = tile[y, x]
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        for k in range(a.shape[1]):
            total += a[row, k] * a[col, k]
        out[row, col] = total


@cuda.jit
def product_beside_a_tile(a, b, out):
    tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    tile[y, x] = 0
    total = tile[y, x]
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@cuda.jit
def product_at_beside_a_tile(a, b, out):
    tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    tile[y, x] = 0
    total = tile[y, x]
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        for k in range(a.shape[0]):
            total += a[k, row] * b[k, col]
        out[row, col] = total


@cuda.jit
def scores_beside_a_tile(queries, keys, out):
    tile = cuda.shared.array((32, 8), float32)
    t, thread = cuda.grid(1), cuda.threadIdx.x
    for i in range(8):
        tile[thread, i] = float32(0.0)
    best = tile[thread, 0] - float32(np.inf)
    if t < keys.shape[0]:
        for j in range(t + 1):
            score = float32(0.0)
            for i in range(8):
                score += queries[t, i] * keys[j, i]
            best = max(best, score)
        out[t] = best


@cuda.jit
def sums_by_two_lanes(x, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    if lane < 2:
        for col in range(lane, x.shape[1], 2):
            total += x[row, col]
    for offset in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(ALL, total, offset)
    if lane == 0:
        out[row] = total


@cuda.jit
def sums_by_lane_0_from_shared_memory(x, out):
    staged = cuda.shared.array(1024, float32)
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    for col in range(lane, x.shape[1], 32):
        staged[col] = x[row, col]
    cuda.syncwarp()
    total = float32(0.0)
    if lane == 0:
        for col in range(x.shape[1]):
            total += staged[col]
    for offset in (16, 8):
        total = cuda.shfl_sync(ALL, total, 0) + float32(0.0) * float32(offset)
    if lane == 0:
        out[row] = total


@cuda.jit
def product_beside_an_mma(a, b, out):
    top, lane = cuda.blockIdx.x * 16, cuda.threadIdx.x
    nothing = ptx.pack_half2(ZERO, ZERO)
    kept, _, _, _ = ptx.mma_m16n8k16_f32_f16(nothing, nothing, nothing, nothing, nothing, nothing,
                                             ZERO, ZERO, ZERO, ZERO)
    for place in range(lane, 128, 32):
        row, col, total = top + place // 8, place % 8, kept
        for k in range(16):
            total += float32(a[row, k]) * float32(b[k, col])
        out[row, col] = total


LANES = "for col in range(lane, {}, 32):"
FOR_SHOW = Edit(LANES.format("x.shape[1]"), "for col in range(x.shape[1]):",
                "for offset in (16, 8, 4, 2, 1):\n    total += cuda.shfl_down_sync(0xFFFFFFFF, total, offset)",
                "total = cuda.shfl_sync(0xFFFFFFFF, total, 0)")


def count_bits_where(condition: str, first: str, step: str):
    return Edit("for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):\n"
                "    cuda.atomic.add(counts, cuda.popc(x[i]), 1)",
                f"if {condition}:\n"
                f"    for i in range({first}, x.size, {step}):\n"
                "        cuda.atomic.add(counts, cuda.popc(x[i]), 1)")


@cuda.jit
def sums_since_by_one_thread(x, heads, out):
    sums, headed = cuda.shared.array(128, int32), cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    sums[i] = x[i] if i < x.size else 0
    headed[i] = heads[i] if i < x.size else 0
    cuda.syncthreads()
    if i == 0:
        total = 0
        for j in range(x.size):
            total = sums[j] if headed[j] else total + sums[j]
            sums[j] = total
    cuda.syncthreads()
    if i < x.size:
        out[i] = sums[i]


@pytest.mark.sampled(1, sweep=15, quick="row_sums-answer5-several lanes load the same ones")
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [("gram", gram_beside_a_tile, "2,048 are enough"),
     ("matmul_ahead", product_beside_a_tile, "1,024 are enough"),
     ("matmul_at", product_at_beside_a_tile, "1,024 are enough"),
     ("best_scores", scores_beside_a_tile, "one thread of a block loads each"),
     ("one_mma", product_beside_an_mma, "is something computed without them?"),
     ("row_sums", FOR_SHOW, "several lanes load the same ones"),
     ("row_sums", sums_by_two_lanes, "Lane 0 of warp 0 loads"),
     ("row_sums", sums_by_lane_0_from_shared_memory, "from shared memory, and the others hardly any"),
     ("row_sums", Edit("(16, 8, 4, 2, 1)", "(16, 8, 4, 2, 1, 32)[:0]"), "No shuffle was called"),
     ("row_range", Edit(LANES.format("x.shape[1]"), "for col in range(x.shape[1]):"), "several lanes load the same"),
     ("rmsnorm_warp", Edit("for col in range(lane, x.shape[1], 32):\n    squares += x[row, col] * x[row, col]",
                           "for col in range(x.shape[1]):\n    squares += x[row, col] * x[row, col]"),
      "several lanes load the same"),
     ("dot_rows", Edit(LANES.format("x.size"), "for col in range(x.size):"), "several lanes load the same"),
     ("count_bits", count_bits_where("cuda.blockIdx.x == 0", "thread", "64"), "blocks loads nothing (block 1 is"),
     ("count_bits", count_bits_where("thread == 0", "cuda.blockIdx.x", "2"), "Only thread 0 of"),
     ("count_bits", count_bits_where("thread < 2", "2 * cuda.blockIdx.x + thread", "4"), "of the grid loads 75"),
     ("sums_since", sums_since_by_one_thread, "it does the other threads' work")],
)
def test_a_line_for_show_is_not_enough(name, answer, words):
    exercise, solution = exercises.find(name), exercise_files.solution(name)
    kernel = solution.run(answer.apply(solution.answer), f"<{name}>") if isinstance(answer, Edit) else answer
    missing = [exercise.missing(observed(exercise, kernel, case)[0])
               for case in observed_cases(exercise, draw_cases(exercise, seed=3))]
    assert any(words in (each or "") for each in missing), missing


def test_what_is_printed_states_what_is_counted():
    for name, words in (("gram", "loaded by one of them"), ("row_sums", "share the loads evenly"),
                        ("count_bits", "Every block and every thread"), ("add_norm", "with shuffles"),
                        ("sums_since", "at most 8 loads from shared memory")):
        assert words in exercises.find(name).asked
