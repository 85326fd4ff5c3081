# %% [markdown]
# # 25 · Flash attention
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a softmax is corrected after the fact, so that no row of scores has to be kept
# - flash attention at its plainest, then one change at a time: tiles in registers, tensor cores, products that overlap
#   with exponentials
# - how the same correction lets many blocks share one query
#
# ## The problem
#
# Lesson 24 ended with two programs. One keeps a row of scores in shared memory and loads every key again for every
# query. The other works in tiles, so that a key loaded once serves many queries, but it writes every score to memory.
# Softmax seems to leave no third way: before it can produce the first weight, it needs the maximum and the sum of the
# whole row.
#
# ## Prediction
#
# Take 4,096 tokens and 12 heads of 64. How long does the arithmetic take in float32, how long on tensor cores in
# float16, and how long would it take to write all scores and read them, twice?

# %%
from labkit import measure, table
from labkit.kernels.attention.three_pass import attention_reference
from labkit.kernels.ops.attention import ATTENTION, ATTENTION_CAUSAL

limits = measure.recorded("NVIDIA H200")["limits"]
flops = ATTENTION.work.flops(S=4096, H=12, D=64)
scores_mb = 4 * 12 * 4096**2 / 1e6
table([("arithmetic in float32", flops / limits["fp32_tflops"] / 1e6),
       ("arithmetic in float16, on tensor cores", flops / limits["f16_tflops"] / 1e6),
       (f"scores in float32, {scores_mb:,.0f} MB, twice out and in", 1000 * 4 * scores_mb / limits["bandwidth_gbs"])],
      {"": "", "us": ",.0f"}, note="NVIDIA H200")

# %% [markdown]
# In float32 the traffic of the scores takes as long as the arithmetic itself{{ if near(scores_over_flops, 1) }}. On
# tensor cores, with scores of {{ words(2 / 4) }} the size, it still takes {{ words(half_scores_over_flops) }} times as
# long. Fast attention must not write its scores to memory.
#
# ## A softmax that is corrected
#
# Lesson 16 joined two parts of a row, with the maxima $m$ and $m'$ and the sums $s$ and $s'$ of their exponentials: the
# sums are multiplied by $e^{m - M}$ and $e^{m' - M}$, with $M$ the larger of the two maxima, and added. Attention needs
# a third quantity, the weighted values, not yet divided by the sum: $u = \sum e^{x_j - m} v_j$. It is a sum of the same
# exponentials, so the same factors correct it:
#
# $$u_{\text{both}} = u \, e^{m - M} + u' \, e^{m' - M}$$
#
# So the keys can come in tiles. For each tile, compute its scores, the new maximum, the factor that corrects the sums
# so far, the exponentials, and the new sums. Then forget the tile. Here is one query with 96 keys in tiles of 16. After
# which tiles will the factor be 1?

# %%
import numpy as np

from labkit.course.drawings import flash_attention as pictures

rng = np.random.default_rng(2)
q, (keys, values) = 3 * rng.standard_normal(64), rng.standard_normal((2, 96, 64))
row_max, row_sum, acc = -np.inf, 0.0, np.zeros(64)
rows = []
for j in range(0, 96, 16):
    scores = keys[j : j + 16] @ q / 8
    new = max(row_max, scores.max())
    factor, exponentials = np.exp(row_max - new), np.exp(scores - new)
    row_sum = row_sum * factor + exponentials.sum()
    acc = acc * factor + exponentials @ values[j : j + 16]
    row_max = new

    row = np.exp(keys[: j + 16] @ q / 8)  # all keys so far, in one go
    off = abs(acc / row_sum - row @ values[: j + 16] / row.sum()).max()
    rows.append((j + 16, row_max, factor, row_sum, off))
table(rows, {"keys": "", "row_max": ".3f", "factor": ".4f", "row_sum": ".3f", "error": ".0e"},
      note="error: against attention over these keys")

# %% tags=["hide-input"]
pictures.running_maximum(keys @ q / 8, tile=16)

# %% [markdown]
# A factor of 1 means that the tile brought no larger score; the first factor is 0, since there was nothing to correct
# yet. After every tile, `acc / row_sum` is the attention over all the keys so far, to the last digits of a float64.
# However long the row, a query needs only two values and the 64 of `acc`.
#
# ## Tiles that many queries share
#
# A block can process many queries, and every tile of keys and values that it loads into shared memory serves all of
# them.

# %%
pictures.tiles()

# %% [markdown]
# A block goes through all keys and values of its head once. There are 1,024 tokens and 12 heads of 64. How does the
# traffic of keys and values change if a block has 1, 16, 32, 64 or 128 queries?

# %%
rows = []
for queries in (1, 16, 32, 64, 128):
    blocks = 12 * 1024 // queries
    read = blocks * 2 * 1024 * 64 * 4  # keys and values, 64 float32 each
    rows.append((queries, blocks, read / 1e6, ATTENTION.work.flops(S=1024, H=12, D=64) / read))
table(rows, {"queries per block": "", "blocks": "", "MB of keys and values": ",.0f", "flops per byte": ".1f"})

# %% [markdown]
# In inverse proportion. The three passes of lesson 24 have one query per block. With 64, a kernel loads
# {{ 6442 // 100 }} times fewer bytes, and still no score goes to global memory.
#
# ## Flash attention, plain
#
# The plainest kernel gives each thread one query. The thread keeps its query and its accumulators in registers, 128
# elements for heads of 64, and its scores for the tile in a column of shared memory. The rest is the NumPy loop above.

# %%
pictures.plain_block()

# %%
from labkit import agree, observe, show_source
from labkit.kernels.attention.flash_plain import make_flash_plain

show_source(make_flash_plain(64))

# %% [markdown]
# A function makes the kernel, because the loops over `query` and `acc` need a constant length. Only then can the
# compiler unroll them and keep both arrays in registers. For an H200, `ptxas` gives the kernel 168
# registers{{ compiled }} per thread and spills none.
#
# The first barrier keeps a fast warp from reading a tile that is not complete, the second from overwriting a tile that
# a slow warp still needs. Under a causal mask the loop over tiles stops at `end`, just past the last query of the
# block. Here is one block, causal, with 48 queries of four elements each, in two tiles of keys. Which threads skip all
# of the second tile?

# %%
S, D = 48, 4
qkv, out = np.random.default_rng(0).random((S, 3 * D), np.float32), np.zeros((S, D), np.float32)
observe(make_flash_plain(D)[(1, 1), 64], qkv, out, np.float32(D**-0.5), np.uint32(True)).play()

# %% [markdown]
# Those of warp 0, with queries 0 to 31, which see only keys of the first tile. In warp 1, query 32 sees a single key of
# the second tile, query 47 sees sixteen, and the lanes without a query compute as well but store nothing.

# %%
sizes = ({"S": 1, "H": 1, "D": 64}, {"S": 33, "H": 2, "D": 64}, {"S": 130, "H": 1, "D": 64})
agree(ATTENTION, ["attention_flash_plain", "attention_flash"], sizes=sizes)

# %%
agree(ATTENTION_CAUSAL, ["attention_causal_flash_plain", "attention_causal_flash"], sizes=sizes)

# %% [markdown]
# `flash` is the kernel of the next section. What limits `flash_plain`? Every element of a key or a value comes from
# shared memory, four per load of 16 bytes, and is used in a single multiply-add. Assume that shared memory delivers 128
# bytes per clock. Then the load takes {{ words(32 * 16 / 128) }} clocks for the 32 lanes of a warp, and its four
# multiply-adds keep the SM busy for only one.
#
# ## A tile of scores in registers
#
# Lesson 07 had the cure for matrix products: a thread that computes a tile uses everything it loads several times. A
# thread of `flash` has four queries and eight keys, so 32 scores.

# %%
pictures.register_tiles()

# %% [markdown]
# That takes 12 loads instead of 32 for the same 128 multiply-adds. Which limit is the larger one for each kernel at
# 4,096 tokens, loads from shared memory or multiply-adds?

# %%
def h200(op, S):
    """name -> microseconds, as recorded for S tokens and 12 heads of 64."""
    rows = measure.recorded_ladder(op, {"S": S, "H": 12, "D": 64}, gpu="NVIDIA H200").rows
    names = (row.name.removeprefix(f"{op}_").replace("fused (SDPA, flash)", "FlashAttention-2") for row in rows)
    return {name.split(" (")[0]: 1000 * (row.graph or row.timing).p50 for name, row in zip(names, rows, strict=True)}


def climb(*rungs):
    """A table of times, and how many times as fast each rung is as the last one above it that was recorded."""
    rows, before = [], {}
    for op, name in (rung.split(maxsplit=1) for rung in rungs):
        row = [f"{op} {name}"]
        for S in (128, 1024, 4096):
            us = h200(op, S).get(name)
            gain = f" ({before[S] / us:.1f}x)" if us and S in before and "PyTorch" not in name else ""
            before |= {S: us} if us else {}
            row.append(f"{us:,.1f}{gain}" if us else None)
        rows.append(row)
    return table(rows, ["us", "128 tokens", "1,024 tokens", "4,096 tokens"], note="NVIDIA H200")


clock_ghz = 1000 * limits["fp32_tflops"] / (132 * 128 * 2)  # SMs, multiply-adds per clock, flops of one
rows = []
for name, loads in (("flash_plain", 32), ("flash", 12)):
    of_warps = flops / 2 / 32 / 128 * loads  # multiply-adds, of 32 lanes, `loads` for each 128
    rows.append((name, of_warps * 4 / 132 / clock_ghz / 1000, flops / 2 / 132 / 128 / clock_ghz / 1000))
table(rows, {"predicted, us": "", "loads": ",.0f", "multiply-adds": ",.0f"})

# %%
climb("attention three_pass", "attention flash_plain", "attention flash", "attention PyTorch, fused")

# %% [markdown]
# Loads are the limit for both. Tiles alone make `flash_plain` {{ words(plain_gain) }} times as fast as the three passes
# at 4,096 tokens, and reuse in registers nearly doubles that{{ if near(flash_gain, 1.85) }}. With few tokens the second
# step matters far more than the first: at 128 tokens `flash_plain` has only 24 blocks, in each of which 64 threads work
# through every key, one after the other.
#
# "PyTorch, fused" is `scaled_dot_product_attention`, SDPA for short. On the H200 `flash` is faster at all three
# lengths{{ if flash_ahead }}. At 4,096 tokens it takes {{ over_loads:.1f }} times what its loads alone predict, and
# `flash_plain` {{ plain_over_loads:.1f }} times. That is less than predicted, because all lanes of its warps load the
# same 16 bytes: a *broadcast*, cheaper than the {{ words(32 * 16 / 128) }} clocks that I assumed.
#
# In `flash` eight threads share a query. Three shuffles give all eight the maximum of its scores. Each thread adds up
# its own part of `row_sum`; the correction is the same for all of them, so the parts are joined only once, after the
# last tile.

# %%
import inspect

from labkit.kernels.attention.flash import make_flash

attend = inspect.getclosurevars(make_flash(64, 4).py_func).nonlocals["attend"]
show_source(inspect.getclosurevars(attend.py_func).nonlocals["online_softmax_update"])

# %% [markdown]
# `exp2_approx` computes $2^x$, so `scale` includes $\log_2 e$. The rest is familiar: `cp.async` copies the values while
# the scores are computed, and then the next keys (lesson 09).
#
# ## Above the diagonal
#
# Under a causal mask the loop ends with the tile on the diagonal: ten of the 25 tiles in the first picture of tiles are
# white. At 1,024 and at 4,096 tokens, what share of the tiles of 64 × 64 is left, and what share of the time?

# %%
rows = []
for S in (1024, 4096):
    side = S // 64
    rows.append((S, side * (side + 1) / 2 / side**2,
                 h200("attention_causal", S)["flash"] / h200("attention", S)["flash"]))
table(rows, {"tokens": ",", "tiles left": ".0%", "time": ".0%"}, note="NVIDIA H200")

# %% [markdown]
# At 4,096 tokens the time follows the tiles{{ if as_tiles_say }}; at 1,024 it does not{{ if not_at_1024 }}. The last
# block has a whole row of tiles to process, the first only one. At 1,024 tokens all 192 blocks fit on an H200 at the
# same time, and the launch takes as long as its longest block. At 4,096 tokens there are 768, and where a short block
# ends, another begins. For this to work the long ones must come first, so `flash` numbers its blocks from the end.
#
# ## Exponentials that stay in their registers
#
# Both products can run on tensor cores, with float16 inputs and float32 accumulators. `mma.sync` leaves the scores
# spread over the lanes of a warp as accumulators, and the next product needs the exponentials spread over the lanes as
# its first factor. Lesson 08 drew both layouts (`mma_lanes`). Which lanes have to exchange values between the two
# products?

# %%
pictures.factor_in_place(lane=13)

# %% [markdown]
# None. Two neighbouring accumulators, rounded to float16 and packed into a word, are already a register of that factor:
# no shuffle, no shared memory. `observe` runs a single warp of this kernel and looks for races and bank conflicts.

# %%
from labkit.kernels.attention.flash import scale_for_powers_of_two
from labkit.kernels.attention.half import make_flash_half
from labkit.kernels.ops.attention_half import ATTENTION_HALF

qkv, _ = ATTENTION_HALF.inputs(np.random.default_rng(3), S=16, H=1, D=64)
out, kernel, scale = np.zeros((16, 64), np.float16), make_flash_half(64, 1, 1), scale_for_powers_of_two(64)
launch = kernel[(1, 1), 32, 0, kernel.shared_bytes]
report = observe(launch, qkv, qkv, np.zeros(1, np.int32), out, np.uint32(64), scale, np.uint32(0))
error = abs(out - attention_reference(qkv, 1)) / ATTENTION_HALF.tolerance(qkv.astype(float), 1)
table([(error.max(), len(report.races), report.counts["bank_conflicts"], report.counts["shared_requests"])],
      {"largest error, of the allowed": ".2f", "races": "", "bank conflicts": "", "requests to shared memory": ""})

# %% [markdown]
# The peak of the tensor cores is {{ round(limits.f16_tflops / limits.fp32_tflops):.0f }} times that of float32, and
# half as many bytes move. How many times as fast will they make `flash` at 128, 1,024 and 4,096 tokens?

# %%
climb("attention flash", "attention_half flash", "attention_half PyTorch, FlashAttention-2")

# %% [markdown]
# At 4,096 tokens it is a factor of {{ mma_gain:.1f }}, two thirds{{ if near(mma_gain / peak_ratio, 0.66) }} of the
# peak's. At 128 tokens the kernel is not even twice as fast: there is too little work for 132 SMs.
# The last line is PyTorch's FlashAttention-2, which is also written with `mma.sync`. Ours is ahead of it at all three
# lengths{{ if ahead_of_fa2 }}. But at {{ mma_share:.0% }} of the tensor cores' rate there is still something to find.
#
# ## Products next to exponentials
#
# What limits this kernel? For a tile of 64 queries and 128 keys, an SM needs 512 clocks{{ hardware }} for both products
# at the full rate of its tensor cores, and 512 for the exponentials, of which it computes 16 per clock. Allow 400 for
# the rest: scaling, maximum, sum, rounding. One after the other that makes {{ 512 + 512 + 400:, }} clocks, in which the
# tensor cores are busy for {{ 512 / (512 + 512 + 400):.0% }}: just about what the recording
# shows{{ if near(mma_share, 512 / 1424) }}. How many clocks does a tile need if the product with the values runs at the
# same time as the softmax of the next tile?

# %%
pictures.schedules()

# %% [markdown]
# The product with the values is half of the tensor cores' work, and it disappears behind the exponentials:
# {{ 512 + 512 + 400 - 256:, }} clocks are left.
#
# With `mma.sync` a warp waits for its product, and only other warps can fill the gap. `wgmma` (lesson 10) merely starts
# a product, and the warps go on. `flash_wgmma` uses that as FlashAttention-3 does. One *warpgroup*, four warps, only
# copies tiles, by TMA (lesson 10). Up to three others have 64 queries each. They start the product with the values of
# one tile and compute the exponentials of the next while it runs. These are the steps of the loop, in order:

# %%
from labkit.kernels.attention.wgmma import make_flash_wgmma

loop = inspect.getsource(make_flash_wgmma).split("while tile_index < wg_tiles:")[1].split("tile_index += 1")[0]
wanted = ("start_qk", "start_pv", "wgmma_wait", "online_softmax_update", "scale_rows", "pack(")
print(*[line.strip() for line in loop.splitlines() if any(one in line for one in wanted)], sep="\n")

# %% [markdown]
# `wgmma_wait(1)` waits until at most one product is in flight: the scores have arrived, and the product with the
# previous tile's values is still running. Will `flash_wgmma` be faster than PyTorch, which runs cuDNN's kernel here?

# %%
climb("attention_half flash", "attention_half flash_wgmma", "attention_half PyTorch, fused")

# %% [markdown]
# It is, at every length. `flash` with `mma.sync` is ahead of PyTorch up to 128 tokens and well behind it from 1,024
# on{{ if ahead_then_behind }}; `flash_wgmma` is ahead at all of these lengths{{ if wgmma_ahead }}. At 4,096 tokens it
# reaches {{ wgmma_share:.0% }} of the tensor cores' rate. That is more than overlap within a warpgroup can explain,
# {{ 512 / (512 + 512 + 400 - 256):.0% }} by the count above: warpgroups overlap with each other as well. While one
# computes exponentials, the tensor cores multiply for another.
#
# ## Many blocks for one query
#
# A model that writes text has one new query at a time, and a *cache* of the keys and values of all earlier tokens
# (lesson 29). One query and 12 heads make twelve blocks on 132 SMs. But the correction joins any two parts of a row, no
# matter which blocks computed them. So in `decode` a block processes 128 keys of a head and stores its `row_max`,
# `row_sum` and `acc`, and a second kernel joins the parts. For 1,024 tokens the cache holds 2 × 768 float32 each. How
# long does an H200 take to read it at {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s, and how does the time grow with
# the cache?

# %%
pictures.over_caches(measure.recorded_series("attention_keys", gpu="NVIDIA H200"))

# %% [markdown]
# With the keys split, a cache of two thousand tokens takes little longer than one of a hundred{{ if split_flat }}. The
# bytes of 1,024 keys take {{ bytes_us:.1f }} us, and `decode` takes some {{ words(decode_us) }}: two launches in a row,
# each with loads that depend on others. The line bends at 8,192 keys in float32 and at 16,384 in float16, where the
# cache has grown to {{ 2 * 8192 * 768 * 4 / 1e6:.0f }} MB, close to the {{ machine.l2_mb }} MB of L2, and apparently no
# longer stays there.
#
# In float32 SDPA does not split the keys, and its line rises from the start{{ if unsplit }}. In float16 it
# does{{ if split_f16 }}, and there `decode` loses with 1,024 keys, by a tenth{{ if near(decode_longer, 0.1) }}; SDPA
# runs cuDNN's kernel{{ if cudnn_runs }}. From 2,048 to 8,192 keys `decode` is ahead by a few
# percent{{ if ahead_between }}, and with more it loses again{{ if loses_again }}.
#
# ## Over the number of tokens
#
# Finally, all float32 kernels over the number of tokens. Both axes are logarithmic. What slope do you expect at the
# right end of the plot, and what at the left?

# %%
pictures.over_lengths(measure.recorded_series("attention_sizes", gpu="NVIDIA H200"))

# %% [markdown]
# At the right the GPU is full, and the lines are straight, with a slope of 2: twice the tokens, four times the time. At
# the left they are flatter: there a launch takes as long as one of its blocks, and more blocks cost nothing until every
# SM has one.
#
# ## What I learned
#
# - The correction of a softmax is one multiplication. Tiles, split keys and caches all depend on it.
# - Flash attention is two ideas: no score leaves the SM, and each tile serves many queries.
# - Count the loads per multiply-add. They can be the limit, even from shared memory.
# - Look at the layout of registers first: the accumulators of one product are the factor of the next, lane by lane.
# - When the parts are fast, what remains is the time they wait for each other. Overlap them.
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
# - `show_source(attend)` is the loop over tiles in registers. Which lines of `flash_plain` do you recognise?
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
# plain_gain = row('attention', 'three_pass', S=4096, H=12, D=64).us / us['attention', 'flash_plain'][2]
# flash_gain = us['attention', 'flash_plain'][2] / us['attention', 'flash'][2]
# peak_ratio = limits.f16_tflops / limits.fp32_tflops
# mma_gain = us['attention', 'flash'][2] / us['attention_half', 'flash'][2]
# mma_share = flops / us['attention_half', 'flash'][2] / limits.f16_tflops / 1e6
# wgmma_share = flops / us['attention_half', 'flash_wgmma'][2] / limits.f16_tflops / 1e6
# ahead_of_fa2 = all(row('attention_half', 'PyTorch, fused (SDPA, flash)', S=S, H=12, D=64).graph_us >
#                    row('attention_half', 'flash', S=S, H=12, D=64).graph_us for S in (128, 1024, 4096))
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
