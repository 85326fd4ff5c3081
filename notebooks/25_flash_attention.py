# %% [markdown]
# # 25 · Flash attention
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a softmax is corrected after the fact, so that no row of scores has to be kept
# - flash attention at its plainest, then step by step: tiles in registers, tensor cores, products beside exponentials
# - how the same correction lets many blocks share one query
#
# ## The problem
#
# Lesson 24 ended with two programs. One keeps a row of scores in shared memory and loads every key again for every
# query. The other computes tiles, so that a key loaded once serves many queries, but it writes every score to memory.
# Softmax seems to force this choice: it needs a row's maximum and sum of exponentials before the first weight.
#
# ## Prediction
#
# For 4,096 tokens and 12 heads of 64, write down three numbers before you run the cell: the time that the arithmetic
# takes in float32, the same on tensor cores in float16, and the size of the matrix of scores in float32.

# %%
from labkit import measure
from labkit.kernels.attention.three_pass import attention_reference
from labkit.kernels.ops.attention import ATTENTION, ATTENTION_CAUSAL

limits = measure.recorded("NVIDIA H200")["limits"]
flops = ATTENTION.work.flops(S=4096, H=12, D=64)
for unit, rate in (("float32", limits["fp32_tflops"]), ("float16", limits["f16_tflops"])):
    print(f"{unit}: {flops / rate / 1e6:4,.0f} us on an H200 at {rate:.0f} TFLOP/s")
scores_mb = 4 * 12 * 4096**2 / 1e6
print(f"scores: {scores_mb:,.0f} MB; to write and read them twice takes "
      f"{1000 * 4 * scores_mb / limits['bandwidth_gbs']:,.0f} us")

# %% [markdown]
# In float32 the scores would take as long as the arithmetic itself{{ if near(scores_over_flops, 1) }}. On tensor cores,
# where they would be {{ words(2 / 4) }} as large, they would still take {{ words(half_scores_over_flops) }} times as
# long.
#
# ## A softmax that is corrected
#
# Lesson 15 joined two parts of a row, with the maxima $m$ and $m'$ and the sums $s$ and $s'$ of their exponentials:
# each sum is multiplied by $e^{m - M}$, with $M$ the larger of the two. Attention needs a third quantity, the weighted
# values, not yet divided by the sum: $u = \sum e^{x_j - m} v_j$. It is a sum of the same exponentials, so the same
# factor corrects it:
#
# $$u_{\text{both}} = u \, e^{m - M} + u' \, e^{m' - M}$$
#
# So the keys can come in tiles. For each tile compute its scores, the new maximum, the factor for the sums so far, the
# exponentials, and the new sums. Then the tile can be forgotten. Here is one query, with 96 keys in tiles of 16.

# %%
import numpy as np

from labkit.course.drawings import flash_attention as pictures

rng = np.random.default_rng(2)
q, (keys, values) = 3 * rng.standard_normal(64), rng.standard_normal((2, 96, 64))
row_max, row_sum, acc = -np.inf, 0.0, np.zeros(64)
print("keys    row_max   factor  row_sum    off from attention over these keys")
for j in range(0, 96, 16):
    scores = keys[j : j + 16] @ q / 8
    new = max(row_max, scores.max())
    factor, exponentials = np.exp(row_max - new), np.exp(scores - new)
    row_sum = row_sum * factor + exponentials.sum()
    acc = acc * factor + exponentials @ values[j : j + 16]
    row_max = new

    row = np.exp(keys[: j + 16] @ q / 8)  # all keys so far, in one go
    off = abs(acc / row_sum - row @ values[: j + 16] / row.sum()).max()
    print(f"{j + 16:4} {row_max:10.3f} {factor:8.4f} {row_sum:8.3f}    {off:.0e}")

pictures.running_maximum(keys @ q / 8, tile=16)

# %% [markdown]
# After each tile, `acc / row_sum` is the attention over all keys seen so far, to the last digits of a float64. A factor
# of 1 means that the tile brought no larger score. The first factor is 0, because there was nothing to correct. However
# long the row is, a query keeps two numbers and the 64 of `acc`.
#
# ## Tiles that many queries share
#
# Now let a block take many queries. Each tile of keys and values that it loads into shared memory serves all of them.

# %%
pictures.tiles()

# %% [markdown]
# A block goes through all keys and values of its head once. Before you run the cell: what happens to the bytes that all
# blocks together load, if a block takes more queries? (There are 1,024 tokens and 12 heads of 64.)

# %%
for queries in (1, 16, 32, 64, 128):
    blocks = 12 * 1024 // queries
    read = blocks * 2 * 1024 * 64 * 4  # keys and values, 64 float32 each
    print(f"{queries:3} queries a block: {blocks:6,} blocks read {read / 1e6:5,.0f} MB of keys and values, "
          f"{ATTENTION.work.flops(S=1024, H=12, D=64) / read:4.1f} flop a byte")

# %% [markdown]
# The three passes of lesson 24 have one query to a block. With 64 queries, blocks ask for {{ 6442 // 100 }} times fewer
# bytes, and still no score is in global memory.
#
# ## Flash attention, plain
#
# The plainest kernel gives each thread one query. The thread keeps the query and its accumulators in registers, 128
# numbers for heads of 64, and its scores of a tile in a column of shared memory. The rest is the NumPy loop above.

# %%
pictures.plain_block()

# %%
from labkit import agree, observe, show_source
from labkit.kernels.attention.flash_plain import make_flash_plain

show_source(make_flash_plain(64))

# %% [markdown]
# A function makes the kernel, because the loops over `query` and `acc` need a constant length: only then can the
# compiler unroll them and keep both arrays in registers. Compiled for an H200 by `ptxas`, it takes 168
# registers{{ compiled }} a thread and spills none. What would go wrong without each of the two barriers? And where does
# a causal mask end the loop early? Here is one block, causal, with 48 queries of four numbers.

# %%
S, D = 48, 4
qkv, out = np.random.default_rng(0).random((S, 3 * D), np.float32), np.zeros((S, D), np.float32)
observe(make_flash_plain(D)[(1, 1), 64], qkv, out, np.float32(D**-0.5), np.uint32(True)).play()

# %% [markdown]
# Step to the last tile. Which threads skip most of its keys?

# %%
sizes = ({"S": 1, "H": 1, "D": 64}, {"S": 33, "H": 2, "D": 64}, {"S": 130, "H": 1, "D": 64})
agree(ATTENTION, ["attention_flash_plain", "attention_flash"], sizes=sizes)

# %%
agree(ATTENTION_CAUSAL, ["attention_causal_flash_plain", "attention_causal_flash"], sizes=sizes)

# %% [markdown]
# (`flash` is the next section's kernel.) What limits `flash_plain`? Each number of a key or a value comes from shared
# memory, four in a load of 16 bytes, and each feeds a single multiply-add. Suppose that shared memory delivers 128
# bytes a clock. Then such a load takes {{ words(32 * 16 / 128) }} clocks for the 32 lanes of a warp, and in that time
# an SM could do sixteen multiply-adds of a warp instead of four.
#
# ## A tile of scores in registers
#
# Lesson 07 had the cure for matrix products: a thread that computes a tile uses each number that it loads several
# times. A thread of `flash` takes four queries and eight keys, so 32 scores.

# %%
pictures.register_tiles()

# %% [markdown]
# Predict both times at 4,096 tokens. Which limit is larger for each kernel, loads or multiply-adds?

# %%
def h200(op, S):
    """name -> microseconds, as recorded for S tokens and 12 heads of 64."""
    rows = measure.recorded_ladder(op, {"S": S, "H": 12, "D": 64}, gpu="NVIDIA H200").rows
    return {row.name.removeprefix(f"{op}_").split(" (")[0]: 1000 * (row.graph or row.timing).p50 for row in rows}


def climb(*rungs):
    """Times on the H200, and how many times as fast each rung is as the last one above it that was recorded."""
    print(f"{'us on an H200':28}" + "".join(f"{f'{S:,} tokens':>20}" for S in (128, 1024, 4096)))
    before = {}
    for op, name in (rung.split(maxsplit=1) for rung in rungs):
        line = f"{op + ' ' + name:28}"
        for S in (128, 1024, 4096):
            us = h200(op, S).get(name)
            gain = f"({before[S] / us:.1f}x) " if us and S in before and "PyTorch" not in name else ""
            before |= {S: us} if us else {}
            line += f"{f'{gain}{us:,.1f}' if us else '-':>20}"
        print(line)


clock_ghz = 1000 * limits["fp32_tflops"] / (132 * 128 * 2)  # SMs, multiply-adds a clock, flops of one
for name, loads in (("flash_plain", 32), ("flash", 12)):
    of_warps = flops / 2 / 32 / 128 * loads  # multiply-adds, of 32 lanes, `loads` for each 128
    print(f"{name:12} loads {of_warps * 4 / 132 / clock_ghz / 1000:6,.0f} us, multiply-adds "
          f"{flops / 2 / 132 / 128 / clock_ghz / 1000:4,.0f} us")
climb("attention three_pass", "attention flash_plain", "attention flash", "attention PyTorch, fused")

# %% [markdown]
# "PyTorch, fused" is `scaled_dot_product_attention`, SDPA for short. On the H200 we recorded, `flash` is faster at all
# three lengths{{ if flash_ahead }}, and at 4,096 tokens it takes {{ over_loads:.1f }} times what its loads alone
# predict. `flash_plain` takes only {{ plain_over_loads:.1f }} times its prediction: all lanes of a warp load the same
# 16 bytes, a *broadcast*, which must take fewer than the {{ words(32 * 16 / 128) }} clocks that I assumed. It is still
# much slower than `flash`, in which eight threads share a query. Three shuffles give all eight the maximum of its
# scores. Each adds up its own part of `row_sum`. The factor is the same for all, so their parts are not added together
# before the last tile.

# %%
import inspect

from labkit.kernels.attention.flash import make_flash

attend = inspect.getclosurevars(make_flash(64, 4).py_func).nonlocals["attend"]
show_source(inspect.getclosurevars(attend.py_func).nonlocals["online_softmax_update"])

# %% [markdown]
# `exp2_approx` computes $2^x$, so `scale` includes $\log_2 e$. The rest is familiar: `cp.async` copies the values while
# the scores are computed, and the next keys after that (lesson 07).
#
# ## Above the diagonal
#
# Under a causal mask the loop ends with the tile on the diagonal: ten of the 25 tiles in the first picture of tiles are
# white. Before you run the cell: what share of the tiles of 64 × 64 is left at 1,024 tokens, and at 4,096?

# %%
for S in (1024, 4096):
    side = S // 64
    print(f"{S:5,} tokens: {side * (side + 1) / 2 / side**2:.0%} of the tiles, "
          f"{h200('attention_causal', S)['flash'] / h200('attention', S)['flash']:.0%} of the time")

# %% [markdown]
# At 4,096 tokens the time is what the tiles say{{ if as_tiles_say }}, at 1,024 it is not{{ if not_at_1024 }}. The last
# block has a whole row of tiles to do, the first a single one. At 1,024 tokens an H200 holds all 192 blocks at once,
# and the launch takes as long as its longest block. At 4,096 there are 768: where a short one ends, another begins. For
# that the long ones must come first, so `flash` numbers its blocks from the end.
#
# ## Exponentials that stay in their registers
#
# Both products can run on the tensor cores, with float16 inputs and float32 accumulators. `mma.sync` leaves the scores
# spread over the lanes as accumulators. The next product needs the exponentials spread over the lanes as its first
# factor. Do lanes have to exchange them? Look at the picture of lesson 08 (`mma_lanes`), and write down what
# lane 13 holds and what it needs.

# %%
pictures.factor_in_place(lane=13)

# %% [markdown]
# They do not. Two neighbouring accumulators, rounded to float16 and packed into a word, are a register of the factor:
# no shuffle, no shared memory. `observe` runs a single warp of this kernel, and looks for races and bank conflicts.

# %%
from labkit.kernels.attention.flash import scale_for_powers_of_two
from labkit.kernels.attention.half import make_flash_half
from labkit.kernels.ops.attention_half import ATTENTION_HALF

qkv, _ = ATTENTION_HALF.inputs(np.random.default_rng(3), S=16, H=1, D=64)
out, kernel, scale = np.zeros((16, 64), np.float16), make_flash_half(64, 1, 1), scale_for_powers_of_two(64)
launch = kernel[(1, 1), 32, 0, kernel.shared_bytes]
report = observe(launch, qkv, qkv, np.zeros(1, np.int32), out, np.uint32(64), scale, np.uint32(0))
error = abs(out - attention_reference(qkv, 1)) / ATTENTION_HALF.tolerance(qkv.astype(float), 1)
print(f"largest error {error.max():.2f} of the allowed, {len(report.races)} races, "
      f"{report.counts['bank_conflicts']} bank conflicts in {report.counts['shared_requests']} requests\n")
climb("attention flash", "attention_half flash")

# %% [markdown]
# ## Products beside exponentials
#
# What limits this kernel? For a tile of 64 queries and 128 keys, an SM needs 512 clocks{{ hardware }} for both products
# at the full rate of its tensor cores, and 512 for the exponentials, of which it computes 16 a clock. I allow 400 for
# the rest: scaling, maximum, sum, rounding. One after the other, that is {{ 512 + 512 + 400:, }}. What would be left of
# it if the product with the values ran beside the softmax of the next tile?

# %%
pictures.schedules()

# %% [markdown]
# With `mma.sync` a warp waits for its product, and only other warps can fill the gap. `wgmma` (lesson 08) only starts a
# product, and the warps go on. `flash_wgmma` uses that as FlashAttention-3 does: one *warpgroup*, four warps, only
# copies tiles, by TMA (lesson 08). Up to three others have 64 queries each. They start the product with the values of a
# tile, and take the exponentials of the next tile while it runs. These are the steps in their order, and the times:

# %%
from labkit.kernels.attention.wgmma import make_flash_wgmma

loop = inspect.getsource(make_flash_wgmma).split("while tile_index < wg_tiles:")[1].split("tile_index += 1")[0]
wanted = ("start_qk", "start_pv", "wgmma_wait", "online_softmax_update", "scale_rows", "pack(")
print(*[line.strip() for line in loop.splitlines() if any(one in line for one in wanted)], "", sep="\n")
climb("attention_half flash", "attention_half flash_wgmma", "attention_half PyTorch, fused")

# %% [markdown]
# `wgmma_wait(1)` waits until at most one product is in flight: the scores are there, the values of the tile before are
# still being added. On the H200 we recorded, `flash` with `mma.sync` is ahead of PyTorch up to 128 tokens and well
# behind it from 1,024 on{{ if ahead_then_behind }}; `flash_wgmma` is ahead at all of these lengths{{ if wgmma_ahead }}.
# Most of the gain comes from overlap between warpgroups: while one takes exponentials, the tensor cores multiply for
# another. A version without any overlap inside a warpgroup was only a little slower.
#
# ## Many blocks for one query
#
# A model that writes has one new query at a time, and a *cache* of the keys and values of all earlier tokens (lesson
# 29). One query and 12 heads are twelve blocks on 132 SMs. But the correction joins any two parts of a row, no matter
# which block computed them. So in `decode` a block takes 128 keys of a head and stores its `row_max`, `row_sum` and
# `acc`, and a second kernel joins them. Predict: a cache of 1,024 tokens holds 2 × 768 float32 for each. How long does
# an H200 take to read it at {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s?

# %%
pictures.over_caches(measure.recorded_series("attention_keys", gpu="NVIDIA H200"))

# %% [markdown]
# With the keys split, a cache of two thousand costs little more than one of a hundred{{ if split_flat }}. The bytes of
# 1,024 keys take {{ bytes_us:.1f }} us, and `decode` takes some {{ words(decode_us) }}: two launches in a row, with
# loads in each that wait for others. The line bends at 8,192 keys in float32 and at 16,384 in float16, where the cache
# has grown to {{ 2 * 8192 * 768 * 4 / 1e6:.0f }} MB and no longer stays in L2.
#
# In float32 SDPA does not split the keys, and its line rises from the start{{ if unsplit }}. In float16 it
# does{{ if split_f16 }}, and there `decode` loses: with 1,024 keys it takes a tenth{{ if near(decode_longer, 0.1) }}
# longer than SDPA, which runs cuDNN's kernel{{ if cudnn_runs }}. It is ahead by a few percent from 2,048 to 8,192
# keys{{ if ahead_between }}, and with more it loses again{{ if loses_again }}. What cuDNN does better I have not found
# out; a second launch is one thing that costs ours time.
#
# ## Over the number of tokens

# %%
pictures.over_lengths(measure.recorded_series("attention_sizes", gpu="NVIDIA H200"))

# %% [markdown]
# Both axes are logarithmic. Where the GPU is full, the lines are straight: twice the tokens, four times the work. With
# few tokens a launch takes as long as one of its blocks, however many there are.
#
# ## What I learned
#
# - The correction of a softmax is one multiplication. Tiles, split keys and caches all depend on it.
# - Two ideas make flash attention: no score leaves the SM, and each tile serves many queries.
# - Count the loads for each multiply-add. They can be the limit, from shared memory too.
# - Look at the layout of registers first: accumulators of one product are the factor of the next, lane by lane.
# - Whatever is done one after the other becomes the limit once the rest is fast.
#
# ## Resources
#
# - [T. Dao et al.: FlashAttention (2022)](https://arxiv.org/abs/2205.14135)
# - [T. Dao: FlashAttention-2 (2023)](https://arxiv.org/abs/2307.08691)
# - [J. Shah et al.: FlashAttention-3 (2024)](https://arxiv.org/abs/2407.08608)
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
#
# ## Try it
#
# - In the NumPy loop, sort the keys by their score, ascending and then descending. What happens to the factors?
# - With the keys in their old order, leave the factor out of `acc`. From which tile on is the result wrong?
# - `show_source(attend)` is the loop over tiles in registers. Which lines of `flash_plain` do you find?
#
# Next: **the GPT-2 block**, where attention meets the layers around it.

# %% [numbers]
# flops = 4 * 4096**2 * 12 * 64
# scores_us = 4 * 4 * 12 * 4096**2 / limits.bandwidth_gbs / 1000
# keys = series.attention_keys
# us = {(op, name): [row(op, name, S=S, H=12, D=64).graph_us or row(op, name, S=S, H=12, D=64).us for S in (128, 1024,
#       4096)] for op, name in (('attention', 'flash'), ('attention', 'flash_plain'), ('attention', 'PyTorch, fused'),
#       ('attention_causal', 'flash'), ('attention_half', 'flash'), ('attention_half', 'flash_wgmma'),
#       ('attention_half', 'PyTorch, fused'))}
# half = {name: us['attention_half', name] for name in ('flash', 'flash_wgmma', 'PyTorch, fused')}
# scores_over_flops = scores_us * limits.fp32_tflops * 1e6 / flops
# half_scores_over_flops = scores_us / 2 * limits.f16_tflops * 1e6 / flops
# over_loads = (us['attention', 'flash'][2] / (flops / 2 / 32 / 128 * 12 * 4 / (1000 * limits.fp32_tflops * 1e9 / (128 *
#               2)) * 1e6))
# plain_over_loads = (us['attention', 'flash_plain'][2] / (flops / 2 / 32 / 128 * 32 * 4 / (1000 * limits.fp32_tflops *
#                     1e9 / (128 * 2)) * 1e6))
# flash_ahead = all(us['attention', 'flash'][at] < us['attention', 'PyTorch, fused'][at] for at in (0, 1, 2))
# as_tiles_say = abs(us['attention_causal', 'flash'][2] / us['attention', 'flash'][2] - 65 / 128) < 0.02
# not_at_1024 = us['attention_causal', 'flash'][1] / us['attention', 'flash'][1] > 0.7
# ahead_then_behind = (half['flash'][0] < half['PyTorch, fused'][0] and all(half['flash'][at] > 1.3 *
#                      half['PyTorch, fused'][at] for at in (1, 2)))
# wgmma_ahead = all(half['flash_wgmma'][at] < half['PyTorch, fused'][at] for at in (0, 1, 2))
# bytes_us = 2 * 1024 * 768 * 4 / limits.bandwidth_gbs / 1000
# decode_us = row('attention_cached', 'decode').graph_us
# unsplit = keys.lines['SDPA'].us[4] / keys.lines['SDPA'].us[0] > 10
# split_f16 = keys.lines['SDPA, f16'].us[6] / keys.lines['SDPA, f16'].us[0] < 3
# decode_longer = keys.lines['decode, f16'].us[4] / keys.lines['SDPA, f16'].us[4] - 1
# cudnn_runs = (abs(row('attention_half_cached', 'PyTorch, fused (SDPA)').graph_us / row('attention_half_cached',
#               'PyTorch, fused (SDPA, cuDNN)').graph_us - 1) < 0.02)
# ahead_between = all([1 < keys.lines['SDPA, f16'].us[at] / keys.lines['decode, f16'].us[at] < 1.07 for at in (5, 6,
#                     7)])
# loses_again = all([keys.lines['SDPA, f16'].us[at] < keys.lines['decode, f16'].us[at] for at in (8, 9)])
# split_flat = keys.lines['decode'].us[5] / keys.lines['decode'].us[1] < 1.2
