# %% [markdown]
# # 10 · Hopper's tensor cores
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how four warps multiply together with `wgmma`, straight from shared memory
# - how one thread requests a whole tile from the TMA unit, and how the others learn that it has arrived
# - what specialised warps and persistent blocks each add

# %% [markdown]
# ## The problem
#
# *pipelined*, the last rung of lesson 09, reaches {{ of_mma:.0% }} of what `mma.sync` can do on the H100 of this
# recording. But that is not what its tensor cores can do: `mma.sync`, whose operands all come from registers, reaches
# only three quarters{{ if near(h100.mma_f16_tflops / h100.f16_tflops, 3 / 4) }} of their peak. For the rest this
# generation, Hopper, has another instruction.

# %%
from labkit import measure, plots, show_source, table
from labkit.course.drawings import hopper as pictures
from labkit.kernels.ops.matmul_half import MATMUL_HALF
from labkit.measure.plots.matmul import climb

H100 = "NVIDIA H100 80GB HBM3"
recorded = measure.recorded_ladder("matmul_half", gpu=H100)
table([("matmul_half_pipelined", recorded.row("matmul_half_pipelined").tflops),
       ("peak of mma.sync", recorded.limits["mma_f16_tflops"]), ("peak of wgmma", recorded.limits["f16_tflops"]),
       ("cuBLAS", recorded.row("PyTorch (cuBLAS)").tflops)], {"": "", "TFLOP/s": ".0f"}, note=recorded.where)

# %% [markdown]
# cuBLAS is above what `mma.sync` can reach at all{{ if half['PyTorch'] > h100.mma_f16_tflops }}, so it must use
# something else.
#
# ## wgmma: products of four warps
#
# With `wgmma` four warps, a *warpgroup*, multiply 64 rows of `a` by up to 256 columns of `b`, for 16 steps of k. The
# tensor cores read both from shared memory. Only the accumulators are in registers.

# %%
pictures.warpgroup(columns=128)

# %% [markdown]
# An instruction that reads shared memory has to know where a tile begins and how it is swizzled. A *descriptor*, a
# value of 64 bits, says both. The address in it counts units of 16 bytes, so moving on by 16 float16 values in a row of
# `a` adds 2. In the kernel `a_desc` and `b_desc` are descriptors, and B_STEP is what 16 steps of k add in `b`. Here are
# the products of one stage, which has DEPTH = 64 steps of k:

# %%
from labkit.kernels.matmul.wgmma import make_wgmma, make_wgmma_specialised
from labkit.kernels.matmul.wgmma_cp_async import make_wgmma_cp_async
from labkit.kernels.matmul.wgmma_tiles import make_load

show_source(make_wgmma_cp_async, "ptx.cp_async_wait(PENDING)", "ptx.wgmma_wait")

# %% [markdown]
# The first half is lesson 09: wait for the oldest stage, pass a barrier, start the copy of another stage.
# `fence_proxy_async` is new. The tensor cores read shared memory by a different path from the threads, and the fence
# makes what this thread copied visible there.
#
# The second half has four `wgmma`. Each only starts a product, and the threads go on. As with `cp.async`,
# `wgmma_commit` closes the group of four, and `wgmma_wait(0)` waits for it. `scale_d` is 0 for the very first product,
# which overwrites whatever the registers hold. `wgmma_fence` makes sure that the products see the accumulators as the
# threads left them.
#
# The tiles are 128 × 128 with three stages, and two blocks share an SM. *pipelined* has larger tiles and the same
# copies. How fast is the product when `wgmma` needs no fragments?

# %%
climb(recorded, "wgmma_cp_async", against="pipelined")

# %% [markdown]
# {{ half['wgmma_cp_async'] / half['pipelined']:.2f }} times as fast, with the same kind of copies and smaller tiles. No
# `ldmatrix` is left, and one instruction, now of four warps, multiplies {{ 64 * 128 * 16 // (16 * 8 * 16) }} times as
# much: {{ 1 - cp_async.instructions / pipelined.instructions:.0% }} fewer instructions. That is already
# {{ half['wgmma_cp_async'] / h100.f16_tflops:.0% }} of the new peak. Now the threads wait at the barrier, for each
# other's copies and products{{ if barrier_leads }}.
#
# ## TMA: one thread requests a tile
#
# So far every thread computes addresses for its share of a copy. Hopper's *tensor memory accelerator*, TMA, copies
# whole boxes of a matrix. One thread requests a box by its coordinates. It arrives swizzled, with zeros for what is
# beyond the edges.

# %%
pictures.tma()

# %% [markdown]
# How do the other threads know that the tile is complete? They wait at an *mbarrier*, a barrier in shared memory that
# counts bytes. The thread that requests the tile first says how many to expect. TMA counts what it has written, and
# once all bytes are there, the waiting threads go on. This is the whole copy of a stage. A box has rows of 128 bytes,
# so `b` needs one box per 64 columns. BOX is the size of such a box.

# %%
show_source(make_load, "def load(", "tma_load_2d(tiles, b_offset + box")

# %% [markdown]
# The stages form a ring, and each has its own mbarrier, `loaded`. In the next lap the same mbarrier is used again, so a
# waiting thread must say which lap it is waiting for. One bit is enough: `parity` is 0 in even laps and 1 in odd ones.
# For a ring of three stages and seven steps, what does each step wait for?

# %%
table([(step, step % 3, step // 3, step // 3 % 2) for step in range(7)], ["step", "stage", "lap", "parity"])

# %% [markdown]
# At step 3 the ring wraps, and the parity changes with it. A thread that still waited for parity 0 would find that lap
# finished and read the old tile: that is the bug in an exercise of this lesson. This is the end of a step in the
# kernel, when the stage has been read and may be filled again:

# %%
show_source(make_wgmma, "cuda.syncthreads()  # both", "stage, parity = 0, 1")

# %% [markdown]
# The products and the tiles are those of the previous rung; only the copies have changed. How much faster is the
# product when TMA copies its tiles?

# %%
climb(recorded, "wgmma", against="wgmma_cp_async")

# %% [markdown]
# {{ half['wgmma'] / half['wgmma_cp_async'] - 1:.0% }}. The copies were
# {{ 1 - tma.instructions / cp_async.instructions:.0% }} of the instructions: addresses, edges, and the copies
# themselves, in every thread. They are gone, and one thread makes a few requests instead. The barrier at the end of
# each step remains.
#
# ## Specialised warps
#
# All threads of a block still do the same, so while they wait for one another at the end of a step, the block has no
# product in flight. With *specialised warps* one warpgroup, the *producer*, only requests tiles, as far ahead as the
# ring allows. Two others, the *consumers*, multiply and store the result. While one waits, the products of the other
# are in flight. And *persistent* blocks, one per SM, compute one tile of `out` after another: while the consumers store
# one, the producer already requests tiles for the next.

# %%
pictures.specialised()

# %% [markdown]
# Producer and consumers wait for each other, so each stage has two mbarriers: `loaded` says that it may be read, and
# `freed` that it may be overwritten. `freed` counts not bytes but the consumers that have arrived. This is the
# producer. It needs few registers, and `setmaxnreg` leaves the rest to the consumers.

# %%
show_source(make_wgmma_specialised, "ptx.setmaxnreg_decrease", "tile_id = tile_id +")

# %% [markdown]
# `tile_id` is the tile of `out`, and the inner loop goes along k. `split` is for products with fewer tiles than SMs;
# here it is false. The consumers have the same two loops. Inside, they wait for `loaded`, multiply as above, and arrive
# at `freed`:

# %%
show_source(make_wgmma_specialised, "ptx.mbarrier_wait(loaded, stage, parity)", "ptx.mbarrier_arrive(freed")

# %% [markdown]
# Three rungs separate what this kernel does. *wgmma_roles* has a producer and two consumers, still with one block per
# tile of 128 × 128. *wgmma_persistent* has one block per SM. *wgmma_specialised* has tiles of 128 × 256. Which helps
# most: specialised warps, persistent blocks or larger tiles?

# %% tags=["hide-input"]
from labkit.measure import ncu

counted = {row["name"]: row for row in ncu.recorded(measure.slug(H100))["ops"]["matmul_half"]["rows"]}
rungs = [f"matmul_half_{name}" for name in ("wgmma", "wgmma_roles", "wgmma_persistent", "wgmma_specialised")]
table([(name.removeprefix("matmul_half_"), 1000 * row.timing.p50, 1000 * row.graph.p50, counted[name]["time_us"])
       for name in [*rungs, "PyTorch (cuBLAS)"] for row in [recorded.row(name)]],
      {"": "", "us, called once": ".0f", "us, in a graph": ".0f", "us, Nsight Compute": ".0f"},
      "All three steps together save a sixth of the time", note=recorded.where)

# %% [markdown]
# All three together save about a sixth of the time, however it is measured{{ if a_sixth }}. For the single steps the
# three ways of timing disagree: called once with cold caches, back to back in a CUDA graph (lesson 13), and under
# Nsight Compute (lesson 12), where each saves about {{ each:.0% }}. Called once, persistent blocks save most; in the
# graph they save nothing{{ if persistent_differs }}. The largest tile is ahead in every column{{ if largest_ahead }}.
# So I would not say which of the three matters most, only that each removes some of the idle time that the picture
# shows.
#
# ## Against cuBLAS

# %%
from labkit import agree, device, ladder

plots.ladder(ladder(MATMUL_HALF) if device.on_gpu() else recorded, None)

# %%
agree(MATMUL_HALF, ["matmul_half_wgmma_cp_async", "matmul_half_wgmma"], sizes=({"M": 37, "N": 24, "K": 40},))

# %% [markdown]
# The last rung reaches {{ of_cublas:.2f }} of the speed of cuBLAS when it is called once, and {{ graph_share:.2f }} in
# a graph.
#
# An article, *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, climbs such a ladder on an RTX 3090, which has
# `mma.sync` only (lesson 32 runs its model). There, too, tiles filled by hand are slower than no
# tiles{{ if by_hand_slower }}, and at equal precision its product stayed about 13%{{ quoted }} behind cuBLAS. On an
# H100 the gap is larger with `mma.sync`{{ if mma_sync_behind }}, because cuBLAS uses `wgmma` there.

# %% [markdown]
# ## What I learned
#
# - An operand that never passes through registers needs no instruction to load it: that is the step from `mma.sync` to
#   `wgmma`.
# - One thread can feed an SM. The others need a way to wait: an mbarrier, and one bit for the lap.
# - Every rung removed a detour: of operands through registers, of addresses through threads, of a tile through an empty
#   pipeline.

# %% [markdown]
# ## Resources
#
# - [PTX ISA: Asynchronous Warpgroup Level Matrix
#   Instructions](https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#asynchronous-warpgroup-level-matrix-instructions)
# - [NVIDIA CUTLASS: Efficient GEMM in CUDA](https://docs.nvidia.com/cutlass/media/docs/cpp/efficient_gemm.html), with a
#   section on Hopper's warp specialisation
# - *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, an article on an RTX 3090

# %% [markdown]
# ## Try it
#
# - Draw `pictures.specialised(load=3.0)`. Which warpgroups wait now? Would more stages help?
# - `pictures.tma(13, 11, (0, 0))`: how many pieces are zeros now, and how many bytes does the mbarrier expect?
#
# Next: **where the time goes**, when the product is fast and the program is slow.

# %% [numbers]
# h100 = limits_of(H100)
# half = rates_of('matmul_half', ('tensor_core', 'hand_blocked', 'pipelined', 'wgmma_cp_async', 'wgmma',
#                 'wgmma_specialised', 'PyTorch'), H100)
# of_mma = half['pipelined'] / h100.mma_f16_tflops
# pipelined = ncu('matmul_half', 'pipelined', H100)
# cp_async = ncu('matmul_half', 'wgmma_cp_async', H100)
# tma = ncu('matmul_half', 'wgmma', H100)
# barrier_leads = stall('matmul_half', 'wgmma_cp_async', 'barrier', H100) > max(
#                 stall('matmul_half', 'wgmma_cp_async', reason, H100)
#                 for reason in ('long_scoreboard', 'wait', 'gmma'))
# roles = ('wgmma', 'wgmma_roles', 'wgmma_persistent', 'wgmma_specialised')
# called = [row('matmul_half', name, H100).us for name in roles]
# in_graph = [row('matmul_half', name, H100).graph_us for name in roles]
# by_ncu = [ncu('matmul_half', name, H100).time_us for name in roles]
# a_sixth = all([near(1 - times[3] / times[0], 1 / 6, 0.15) for times in (called, in_graph, by_ncu)])
# each = 1 - (by_ncu[3] / by_ncu[0]) ** (1 / 3)
# persistent_differs = called[2] / called[1] < min(called[1] / called[0], called[3] / called[2]) and (
#                      in_graph[2] > in_graph[1])
# largest_ahead = all([times[3] < min(times[:3]) for times in (called, in_graph, by_ncu)])
# by_hand_slower = half['hand_blocked'] < half['tensor_core']
# of_cublas = half['wgmma_specialised'] / half['PyTorch']
# graph_share = row('matmul_half', 'PyTorch', H100).graph_us / in_graph[3]
# mma_sync_behind = half['pipelined'] / half['PyTorch'] < 0.87
