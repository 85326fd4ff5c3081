# %% [markdown]
# # 10 · Hopper's tensor cores
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how four warps multiply together with `wgmma`, straight from shared memory
# - how one thread requests a whole tile from the TMA unit, and how the others know that it has arrived
# - what specialised warps and persistent blocks add, each by itself

# %% [markdown]
# ## The problem
#
# *pipelined*, the last rung of lesson 09, gets {{ of_mma:.0% }} of what `mma.sync` can do on the H200. But that is not
# what its tensor cores can do: `mma.sync`, whose operands all come from registers, reaches only three
# quarters{{ if near(limits.mma_f16_tflops / limits.f16_tflops, 3 / 4) }} of their peak. For the rest this generation,
# Hopper, has another instruction.

# %%
from labkit import measure, plots, show_source, table
from labkit.course.drawings import hopper as pictures
from labkit.kernels.ops.matmul_half import MATMUL_HALF
from labkit.measure.plots.matmul import climb

recorded = measure.recorded_ladder("matmul_half", gpu="NVIDIA H200")
table([("matmul_half_pipelined", recorded.row("matmul_half_pipelined").tflops),
       ("peak of mma.sync", recorded.limits["mma_f16_tflops"]), ("peak of wgmma", recorded.limits["f16_tflops"]),
       ("cuBLAS", recorded.row("PyTorch (cuBLAS)").tflops)], {"": "", "TFLOP/s": ".0f"}, note=recorded.where)

# %% [markdown]
# ## wgmma: products of four warps
#
# With `wgmma` four warps, a *warpgroup*, multiply 64 rows of `a` by up to 256 columns of `b`, for 16 steps of k. The
# tensor cores read both from shared memory. Only the accumulators are in registers.

# %%
pictures.warpgroup(columns=128)

# %% [markdown]
# An instruction that reads shared memory has to know where a tile begins and how it is swizzled. A *descriptor*, a
# value of 64 bits, says both. The address in it counts units of 16 bytes, so 16 float16 values further along a row of
# `a` is 2 more. In the kernel `a_desc` and `b_desc` are descriptors, and B_STEP is what 16 steps of k are in `b`. Here
# are the products of one stage, which has DEPTH = 64 steps of k:

# %%
from labkit.kernels.matmul.wgmma import make_wgmma, make_wgmma_specialised
from labkit.kernels.matmul.wgmma_cp_async import make_wgmma_cp_async
from labkit.kernels.matmul.wgmma_tiles import make_load

show_source(make_wgmma_cp_async, "ptx.cp_async_wait(PENDING)", "ptx.wgmma_wait")

# %% [markdown]
# The first half is lesson 09: wait for the oldest stage, barrier, start the copy of another one. `fence_proxy_async` is
# new. The tensor cores read shared memory by another path than the threads, and the fence makes what this thread copied
# visible there.
#
# The second half has four `wgmma`. Each only starts a product, and the threads go on. As with `cp.async`,
# `wgmma_commit` closes the group of four, and `wgmma_wait(0)` waits for it. `scale_d` is 0 for the very first product,
# which overwrites whatever the registers hold. `wgmma_fence` makes sure that the products find the accumulators as the
# threads left them.
#
# The tiles are 128 × 128 with three stages, and two blocks share an SM. *pipelined* has larger tiles and the same
# copies. How fast is the product when `wgmma` needs no fragments?

# %%
climb(recorded, "wgmma_cp_async", against="pipelined")

# %% [markdown]
# WGMMA_RESULT
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
# so `b` needs one for every 64 columns, and BOX is the size of such a box.

# %%
show_source(make_load, "def load(", "tma_load_2d(tiles, b_offset + box")

# %% [markdown]
# The stages form a ring, and each has its own mbarrier, `loaded`. In the next lap the same mbarrier is used again, so a
# waiting thread must say which lap it means. One bit is enough: `parity` is 0 in even laps and 1 in odd ones. For a
# ring of three stages and seven steps, what does each step wait for?

# %%
table([(step, step % 3, step // 3, step // 3 % 2) for step in range(7)], ["step", "stage", "lap", "parity"])

# %% [markdown]
# At step 3 the ring wraps, and the parity changes with it. A thread that still asked for parity 0 would find that lap
# finished and read the old tile: that is the bug in an exercise of this lesson. In the kernel this is the end of a
# step, when the stage has been read and may be filled again:

# %%
show_source(make_wgmma, "cuda.syncthreads()  # both", "stage, parity = 0, 1")

# %% [markdown]
# The products are those of the rung before, and so are the tiles; only the copies changed. How much faster is the
# product when TMA copies its tiles?

# %%
climb(recorded, "wgmma", against="wgmma_cp_async")

# %% [markdown]
# TMA_RESULT
#
# ## Specialised warps
#
# All threads of a block still do the same, so while they wait for one another at the end of a step, no product of
# theirs is under way. With *specialised warps* one warpgroup, the *producer*, only requests tiles, as far ahead as the
# ring allows. Two others, the *consumers*, multiply and store the result. While one waits, the products of the other
# are under way. And *persistent* blocks, one for each SM, compute one part of `out` after another: while the consumers
# store one part, the producer already requests tiles for the next.

# %%
pictures.specialised()

# %% [markdown]
# Producer and consumers wait for each other, so each stage has two mbarriers: `loaded` says that it may be read, and
# `freed` that it may be overwritten. `freed` counts no bytes but the consumers that arrive. This is the producer. It
# needs few registers, and `setmaxnreg` leaves the rest to the consumers.

# %%
show_source(make_wgmma_specialised, "ptx.setmaxnreg_decrease", "tile_id = tile_id +")

# %% [markdown]
# `tile_id` is the part of `out`, and the inner loop goes along k. `split` is for products with fewer parts than SMs;
# here it is false. The consumers have the same two loops. Inside, they wait for `loaded`, multiply as above, and arrive
# at `freed`:

# %%
show_source(make_wgmma_specialised, "ptx.mbarrier_wait(loaded, stage, parity)", "ptx.mbarrier_arrive(freed")

# %% [markdown]
# Three rungs separate what this kernel does. *wgmma_roles* has a producer and two consumers, still with a block for
# each tile of 128 × 128. *wgmma_persistent* has one block for each SM. *wgmma_specialised* has tiles of 128 × 256.
# Which helps most: specialised warps, persistent blocks or larger tiles?

# %%
rungs = ("wgmma", "wgmma_roles", "wgmma_persistent", "wgmma_specialised")
rates = [recorded.row(f"matmul_half_{name}").tflops for name in rungs]
table([(name, rate, rate / before) for name, rate, before in zip(rungs, rates, [rates[0], *rates], strict=False)],
      {"": "", "TFLOP/s": ".0f", "of the rung before": ".2f"}, note=recorded.where)

# %% [markdown]
# ROLES_RESULT
#
# ## Against cuBLAS

# %%
from labkit import agree, device, ladder

plots.ladder(ladder(MATMUL_HALF) if device.on_gpu() else recorded, None)

# %%
agree(MATMUL_HALF, ["matmul_half_wgmma_cp_async", "matmul_half_wgmma"], sizes=({"M": 37, "N": 24, "K": 40},))

# %% [markdown]
# The last rung reaches {{ of_cublas:.2f }} of the speed of cuBLAS, called from Python, one product at a time. Back to
# back in a CUDA graph (lesson 13) cuBLAS needs {{ cublas_us:.0f }} us for each and `wgmma_specialised`
# {{ wgmma_us:.0f }}: {{ graph_share:.2f }} of its speed.
#
# An article, *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, climbs such a ladder on an RTX 3090, which has
# `mma.sync` only (lesson 32 runs its model). There, too, tiles that are filled by hand are slower than
# none{{ if by_hand_slower }}, and at equal precision its product stayed about 13%{{ quoted }} behind cuBLAS. With
# `mma.sync` the distance is larger on an H200{{ if mma_sync_behind }}, whose cuBLAS uses `wgmma`.

# %% [markdown]
# ## What I learned
#
# - An operand that never passes through registers needs no instruction to load it: that is the step from `mma.sync` to
#   `wgmma`.
# - One thread can feed an SM. The others need a way to wait: an mbarrier, and a bit for the lap.
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
# half = rates_of('matmul_half', ('tensor_core', 'hand_blocked', 'pipelined', 'wgmma_specialised', 'PyTorch'))
# of_mma = half['pipelined'] / limits.mma_f16_tflops
# by_hand_slower = half['hand_blocked'] < half['tensor_core']
# of_cublas = half['wgmma_specialised'] / half['PyTorch']
# cublas_us = row('matmul_half', 'PyTorch').graph_us
# wgmma_us = row('matmul_half', 'wgmma_specialised').graph_us
# graph_share = cublas_us / wgmma_us
# mma_sync_behind = half['pipelined'] / half['PyTorch'] < 0.87
