# %% [markdown]
# # 47 · One kernel for a token
#
# *Lab notebook, 30 November 2026*
#
# You will learn
#
# - why a token takes longer in a graph of launches than its bytes need
# - how the blocks of a kernel wait for one another, and why all of them have to be resident
# - how a block copies the next weights to shared memory while it waits
#
# ## The problem
#
# A decode step for one sequence reads every weight once, and the sequence's keys and values (lesson 37). It cannot take
# less time than these bytes do. How long does an H200 take to read them, for Llama 3.2 1B in bfloat16 and 1,024 tokens,
# and what share of a step in the graph of lesson 43 is that?

# %%
from labkit import measure, table
from labkit.measure.series.llama import cache_bytes, weight_bytes
from labkit.models.configs import LLAMA_3_2_1B as llama

bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"] * 1e9
step = measure.recorded_series("llama_decode", gpu="NVIDIA H200")["rows"][0]
step_us, bound_us = 1e3 * step["ms"]["p50"], 1e6 * (weight_bytes(llama) + cache_bytes(llama, 1024)) / bandwidth
table([(step["launches"], bound_us, step_us, bound_us / step_us, (step_us - bound_us) / step["launches"])],
      {"launches": "", "us for the bytes": ".0f", "us, measured": ".0f", "share": ".0%",
       "us above, per launch": ".1f"})

# %% [markdown]
# Memory is busy for less than two thirds of the step{{ if under_two_thirds }}. On average each of the
# {{ one.launches }} launches loses {{ above_us:.1f }} us. There are three causes:
#
# - *Between two launches.* A kernel starts when the last block of the previous one has finished. Even in a graph,
#   starting its blocks takes time.
# - *At the beginning.* Every block computes its indices, requests its first bytes and waits for them. All SMs do so at
#   the same time, so memory is idle.
# - *At the end.* Once some blocks have finished, only the others still use memory.
#
# Earlier lessons removed part of this loss. Launched one by one from Python, each kernel costs the host several
# microseconds; a graph (lesson 13) leaves the host out. With programmatic dependent launch (lesson 43) a kernel starts
# while the previous one finishes, and meanwhile brings its first weights into L2. The graph in the table already does
# that. One step is left: a single launch for the whole token. This lesson shows how to build such a kernel, estimates
# what it might save, and ends with its time on an H200.
#
# ## Blocks that stay
#
# The persistent blocks of lesson 10 stay on their SMs while they compute one tile of a product after another. A
# *persistent kernel* for a token goes further: its blocks, one per SM, stay for all products, from the embedding to the
# last logit. Each product is a *phase*, whose tiles of eight rows of weights go to the blocks in turn: block b of 132
# computes tiles b, b + 132, b + 264 and so on. `Decoder` holds the sizes of the model and of the kernel. How many tiles
# does the busiest block compute in each phase, and what share of the time is a block busy on average, if all tiles take
# equally long?

# %%
from labkit.course.drawings import one_kernel as pictures
from labkit.kernels.persistent.decoder import ROWS, Decoder

decoder = Decoder(llama.hidden_size, llama.num_attention_heads, llama.num_key_value_heads, llama.head_dim,
                  llama.intermediate_size, llama.vocab_size, llama.rms_norm_eps, llama.head_dim**-0.5)
rows_of = {"queries, keys, values": decoder.qkv_rows, "output of attention": decoder.hidden,
           "gate and up, in pairs": decoder.gate_up_rows // 2, "down, in pairs": decoder.hidden // 2,
           "logits": decoder.vocab}
found = []
for name, rows in rows_of.items():
    tiles = pictures.tiles_of(rows // ROWS, 132)
    found.append((name, f"{tiles.sum():,}", tiles.max(), tiles.mean() / tiles.max()))
table(found, {"phase": "", "tiles": "", "of the busiest block": "", "working": ".1%"})

# %% [markdown]
# Tiles of eight rows are small enough to be divided almost evenly. The tail of a phase is a few percent.
#
# ## Joins
#
# Each phase needs all results of the previous one. Separate launches guarantee that: a kernel sees everything that the
# previous kernel wrote. In a persistent kernel the blocks have to wait for one another. A *join* is a barrier for the
# whole grid, a point that no block passes until all blocks have arrived there. A counter in global memory is enough. A
# block that has finished its phase adds 1, and waits until the counter has reached the number of blocks. At the next
# join it waits for twice that number, and so on, so the counter need not be reset in between.

# %%
from labkit import cuda, observe, ptx, show_source, u32
from labkit.kernels.persistent.joins import arrive, wait

show_source(arrive)

# %%
show_source(wait)

# %% [markdown]
# `named_barrier_sync` is a `syncthreads` for some warps of a block. In `arrive` it makes sure that all of them have
# written their results before thread 0 adds 1, and in `wait` that none of them reads before thread 0 has seen all
# blocks arrive.
#
# But a counter alone is not enough. A GPU may make a thread's writes visible to other SMs in a different order from the
# program's, so a block could see the counter rise and still read old results. *Release and acquire* prevent that.
# `add_release` adds to the counter only after everything before it has been written. `load_acquire` reads the counter,
# and everything read after it is at least as new as what was released. With an ordinary load two things can go wrong:
# the compiler may load the counter once and keep it in a register, so that the loop never ends, and later loads may be
# served from a stale line in L1.
#
# Numba has the parts: `cuda.threadfence()` before an atomic addition; to read the counter, an atomic addition of 0; and
# when the wait is over another `cuda.threadfence()`, so that nothing read later is stale.
# The next kernel subtracts the mean of an array from all of its elements. First each block adds up its part of the
# array, and after a join each adds up the sums of all blocks. It is run with four joins: labkit's, the same with
# Numba's functions, one without the fences, and one that arrives but does not wait. Which of the four joins give the
# right result on the CPU device, and which have a race according to `observe`?

# %%
import numpy as np
from numba import float32


def make_centre(join):
    @cuda.jit
    def centre(x, partial, counters, out):
        total = float32(0.0)
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            total += x[i]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        if cuda.threadIdx.x == 0:
            partial[cuda.blockIdx.x] = total
        join(counters)
        mean = float32(0.0)
        for block in range(cuda.gridDim.x):
            mean += partial[block] / x.size
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            out[i] = x[i] - mean

    return centre


@cuda.jit(device=True)
def labkits(counters):
    arrive(counters, u32.threadIdx.x, 32)
    wait(counters, u32.gridDim.x, u32.threadIdx.x, 32)


@cuda.jit(device=True)
def with_a_fence(counters):
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        cuda.atomic.add(counters, 0, 1)
        while cuda.atomic.add(counters, 0, 0) < cuda.gridDim.x:
            pass
        cuda.threadfence()
    cuda.syncthreads()


@cuda.jit(device=True)
def without_a_fence(counters):
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(counters, 0, 1)
        while cuda.atomic.add(counters, 0, 0) < cuda.gridDim.x:
            pass
    cuda.syncthreads()


@cuda.jit(device=True)
def without_waiting(counters):
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        cuda.atomic.add(counters, 0, 1)


x = np.random.default_rng(0).random(1000, np.float32)
found, reports = [], {}
for join in (labkits, with_a_fence, without_a_fence, without_waiting):
    out, name = np.full_like(x, np.nan), join.py_func.__name__
    reports[name] = observe(make_centre(join)[3, 32], x, np.zeros(3, np.float32), np.zeros(1, np.uint32), out)
    found.append((name, np.abs(out - (x - x.mean(dtype=np.float64))).max(), len(reports[name].races)))
table(found, {"join": "", "largest error": ".0e", "races": ""})

# %%
print(reports["without_a_fence"].races[0].sentence)

# %% [markdown]
# Three results are right, but only two of the kernels are. The CPU device runs one thread at a time, and all others see
# its writes immediately, so the missing fences change nothing there. On a GPU the mistake may go unnoticed for a long
# time. `observe` does not compare results. It looks for something that orders the write before the read, and finds
# nothing.
#
# ## All blocks have to be resident
#
# An ordinary launch may have more blocks than the SMs can hold. The rest start as earlier ones finish. In a persistent
# kernel no block finishes before all have arrived, and those that have not started never arrive: the kernel hangs. It
# also hangs if one block skips a join at which the others wait. So a launch must have no more blocks than can be
# resident at the same time. A block of this kernel needs nearly all of an SM's shared memory, so only one fits, and the
# launch has one per SM. CUDA's *cooperative* launches refuse a grid that is too large. The scan of lesson 19 needed no
# such limit, because its blocks wait only for blocks that have already started.
#
# A launch that hangs reports nothing. So `wait` gives up after a few seconds and stops the launch with an error. On the
# CPU device all blocks of such a launch take turns, so there are never too many. But a wait that nothing can end is a
# `DeadlockError`. Below, two blocks wait for a third. Which threads will the error name, and what are they waiting for?

# %%
from labkit import device
from labkit.simt.errors import DeadlockError


@cuda.jit
def one_too_many(counters):
    arrive(counters, u32.threadIdx.x, 32)
    wait(counters, u32.gridDim.x + 1, u32.threadIdx.x, 32)


if not device.on_gpu():
    try:
        one_too_many[2, 32](np.zeros(1, np.uint32))
    except DeadlockError as error:
        print(error.sentence)

# %% [markdown]
# It names the waiting threads of a block and their lines in `joins.py`: one spins in the loop of `wait`, and the others
# are at the barrier after it.
#
# ## A ring that runs ahead
#
# So far, joins only replace launches: the blocks wait, start their loads, and wait for the first bytes. What matters is
# what a block can do while it waits. Activations depend on the previous phase. Weights depend on nothing that the
# kernel computes, and neither do the keys and values of older tokens. So one warp of each block does nothing but copy
# them, into a ring of stages as in lesson 10. It takes no part in the joins. It waits until a stage is empty, fills it,
# and goes on to the weights of the next phase, the next layer, and finally the logits. [B. Spector et al.
# (2025)](https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles) built such a *megakernel* for Llama 1B, to
# remove what they call bubbles.
#
# `full` and `empty` are arrays with one mbarrier per stage. The copying warp announces the bytes of a stage with
# `ptx.mbarrier_expect_tx` and starts bulk copies with `ptx.bulk_load`: of a multiple of 16 bytes, without a tensor map.
# `full` counts the bytes that have arrived. The warps that multiply wait for it with `ptx.mbarrier_wait`, and when they
# have read a stage they arrive at `empty` with `ptx.mbarrier_arrive`. In lap 0 the copying warp waits for parity 1 of
# `empty`. On a new mbarrier such a wait passes at once, so all stages are empty to begin with.
#
# This is how the copying warp takes a stage. Its waits give up after a while, as `wait` does. The second one limits the
# stages that are in flight: `IN_FLIGHT`, two, are enough for the memory's full rate. While the block is at a join there
# is only one, because the reads and writes of a join queue behind the copies:

# %%
from labkit.kernels.persistent.ring import make_claim, make_load_matrix

show_source(make_claim, "stage, lap =", "cuda.syncwarp()")

# %% [markdown]
# And this is the loop over a matrix. The eight rows of a tile are neighbours in memory. If they fit into a stage, a
# single copy brings them; of longer rows each of eight lanes copies a part:

# %%
show_source(make_load_matrix, "for unit in", "count = next_stage")

# %% [markdown]
# Here is the whole idea in one small kernel. It multiplies a vector by one matrix after another, with a join in
# between. The ring has two stages of one row each. Thread 32 copies, and warp 0 multiplies. At the start
# `ptx.mbarrier_init` sets how many arrivals complete a phase of an mbarrier, and `ptx.fence_mbarrier_init` makes the
# new mbarriers visible to the copies. When thread 32 requests the first row of the second or third matrix, it also
# stores how many blocks have not yet arrived at the join before that matrix. Will blocks be missing at the join when
# the first row of the next matrix is requested?

# %%
from numba import uint64

SIZE, STAGES, RING = 64, 2, 128


@cuda.jit
def chain(weights, x, counters, missing):
    """x[n + 1] = weights[n] @ x[n] for each matrix n in turn."""
    ring = cuda.shared.array(RING, float32, alignment=16)
    full, empty = cuda.shared.array(STAGES, uint64), cuda.shared.array(STAGES, uint64)
    thread, block, blocks = u32.threadIdx.x, u32.blockIdx.x, u32.gridDim.x
    if thread == 0:
        for stage in range(STAGES):
            ptx.mbarrier_init(full, stage, 1)
            ptx.mbarrier_init(empty, stage, 1)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    count = 0  # rows so far
    for phase in range(weights.shape[0]):
        for row in range(block, SIZE, blocks):
            stage, parity = count % STAGES, count // STAGES % 2
            if thread == 32:
                ptx.mbarrier_wait(empty, stage, parity ^ 1)
                ptx.mbarrier_expect_tx(full, stage, 4 * SIZE)
                ptx.bulk_load(ring, stage * SIZE, weights, (phase * SIZE + row) * SIZE, 4 * SIZE, full, stage)
                if row == block:
                    missing[phase, block] = phase * blocks - ptx.load_acquire(counters, 0)
            elif thread < 32:
                ptx.mbarrier_wait(full, stage, parity)
                total = float32(0.0)
                for col in range(thread, SIZE, 32):
                    total += ring[stage * SIZE + col] * x[phase, col]
                for distance in (16, 8, 4, 2, 1):
                    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
                if thread == 0:
                    x[phase + 1, row] = total
                    ptx.mbarrier_arrive(empty, stage)
            count += 1
        if thread < 32:
            arrive(counters, thread, 32)
            wait(counters, (phase + 1) * blocks, thread, 32)


rng = np.random.default_rng(0)
weights = (rng.standard_normal((3, SIZE, SIZE)) / np.sqrt(SIZE)).astype(np.float32)
x, missing = np.full((4, SIZE), np.nan, np.float32), np.zeros((3, 4), np.int32)
x[0] = truth = rng.standard_normal(SIZE)
report = observe(chain[4, 64], weights, x, np.zeros(1, np.uint32), missing)
for matrix in weights.astype(np.float64):
    truth = matrix @ truth
print(f"largest error {np.abs(x[3] - truth).max():.0e}, races: {len(report.races)}")
table([(phase, *missing[phase]) for phase in (1, 2)], ["matrix", *(f"block {block}: missing" for block in range(4))])

# %% [markdown]
# In every block the first row of the next matrix was requested before all blocks had arrived at the join. `observe`
# runs the kernel in plain Python, one thread after another, so the counts say nothing about time. But they show that
# the copies do not wait for the join.
#
# ## A token in one launch
#
# labkit's kernel computes all phases of a Llama: `Llama(..., one_kernel=True)` uses it for steps with up to eight
# sequences of one token each, and launches kernels one by one for all others. It needs a GPU with bulk copies, of
# compute capability 9.0{{ hardware }} or later; on an older one, both models below launch kernels one by one. These are
# the phases of a layer, with a join after each of the five:
#
# - the norm, and queries, keys and values
# - rotation, the cache, and attention
# - the output of attention, added to the residual stream
# - the norm, gate, up and SwiGLU
# - down, added to the residual stream
#
# Here is a tiny model with random weights from `RandomTensors`, and three sequences of 20, 1 and 17 tokens. A step
# processes the last token of each. `Difference` compares its logits with NumPy in float64, and allows an error of eight
# roundings of the largest logit. How many launches does the step need in each form, and will both forms be within eight
# roundings?

# %%
from labkit import graphs
from labkit.device import gpus
from labkit.kernels.elements import BFLOAT16
from labkit.measure.series.llama import TINY, RandomTensors
from labkit.models.gpt2_reference import Difference, Parity
from labkit.models.llama import Cache, Llama, Workspace
from labkit.models.llama_reference import activations, weights_of
from labkit.models.step import Inputs, Piece

models = {"launches": Llama(TINY, RandomTensors(TINY), "bfloat16"),
          "one kernel": Llama(TINY, RandomTensors(TINY), "bfloat16", one_kernel=gpus.target().capability >= (9, 0))}
prompts = [np.random.default_rng(length).integers(0, TINY.vocab_size, length) for length in (20, 1, 17)]
pages = [[3, 0], [4], [1, 2]]


def decode(model, chosen):
    """The logits after the chosen prompts, and how many launches the step of their last tokens has."""
    cache, inputs, ws = Cache(TINY, 5, "bfloat16"), Inputs(64, 3, 2), Workspace(TINY, 64, 3, "bfloat16")
    for n in chosen:
        if len(prompts[n]) > 1:
            model.forward(inputs.step([Piece(prompts[n][:-1], 0, pages[n])]), cache, ws)
    last = inputs.step([Piece(prompts[n][-1:], len(prompts[n]) - 1, pages[n]) for n in chosen])
    logits = model.forward(last, cache, ws).copy_to_host()
    return logits, graphs.capture(lambda stream: model.forward(last, cache, ws, stream), warm_up=False).nodes


weights = weights_of(models["launches"].tensors, TINY, "bfloat16")
truth = np.array([activations(TINY, weights, prompt)["logits"][-1] for prompt in prompts])
differences = []
for model in models.values():
    logits, nodes = decode(model, (0, 1, 2))
    differences.append(Difference.between(f"logits, {nodes} launch{'es' * (nodes > 1)}", logits, truth,
                                          8 * BFLOAT16.eps * np.abs(truth).max()))
Parity(tuple(differences), title="The last tokens of three sequences, against NumPy in float64").check()

# %% [markdown]
# One launch instead of many, and both are well within what is allowed.
#
# Users of an engine would like a sequence to get the same bits in every batch. How many logits of the third sequence
# change when it is alone in the step, or comes first?

# %%
together, _ = decode(models["one kernel"], (0, 1, 2))
table([(str(chosen), int((decode(models["one kernel"], chosen)[0][place] != together[2]).sum()), TINY.vocab_size)
       for chosen, place in (((2,), 0), ((2, 0), 0))], ["sequences of the step", "logits that differ", "of"])

# %% [markdown]
# None. A row of activations is multiplied in the same way no matter what the other rows are: its columns are always
# divided among the warps in the same way, and the warps' sums are added in the same order.
#
# ## What a ring can cover
#
# How much can the ring save? Here is a calculation, not a measurement. Divided evenly, the memory's bandwidth lets each
# of 132 SMs read {{ rate_kb:.0f }} KB per microsecond. While the other warps of a block wait, the copying warp reads at
# that rate until the ring is full. So a ring of R bytes covers a wait of R divided by the rate, and the rest of a
# longer wait is lost. If a phase has fewer weights than the ring holds, the ring does not run empty in that phase, and
# has to cover the waits before and after it together.
#
# For Llama 3.2 1B the kernel has a ring of {{ ring_kb:.0f }} KB. Suppose that a join takes 1.5 us{{ example }} after
# the last block has arrived, and attention 4 us{{ example }}. Between the product for queries, keys and values and the
# next product come a join, attention and another join. How many microseconds of waiting can the ring cover, and is that
# enough for a join, attention and another join?

# %%
kb_per_us, ring_kb, join_us, attention_us = bandwidth / 132 / 1e9, decoder.ring_bytes / 1e3, 1.5, 4.0
table([("the ring", ring_kb / kb_per_us), ("one join", join_us), ("join, attention, join", 2 * join_us + attention_us)],
      {"": "", "us": ".1f"})

# %% [markdown]
# The ring could cover a join {{ words(ring_us / 1.5) }} times over. The stretch with attention is too long for it: for
# {{ 7 - ring_us:.1f }} us no weights are copied.
#
# To follow this through a layer, two more assumptions are needed. Let an SM multiply what is in shared memory
# three{{ example }} times as fast as memory delivers, and let the first bytes of a phase take 0.8 us{{ example }} to
# arrive if none were requested in advance. No SM reads faster than its share, even while others wait. How much of a
# layer's time does the ring save in this calculation?

# %%
phases = pictures.decode_phases(decoder, 132, attention_us)
assumed = {"kb_per_us": kb_per_us, "join_us": join_us, "start_us": 0.8, "speed": 3.0}
pictures.with_and_without(phases, ring_kb, shown=(0, 120, 131), **assumed)

# %% [markdown]
# It saves nearly a third. SM 0 is one of those with the most tiles. Without a ring every phase begins with nothing in
# flight. With one, all of `o` and half of `qkv` are in shared memory when the phase begins, and SMs that finish early
# use the time to copy. The ring is full only around attention.
#
# Shared memory limits the size of the ring. The next table gives the calculated time of all 16 layers for rings of
# other sizes, and what share of it the bytes alone would need. Is a quarter of the ring enough, and does a ring of
# twice the size help?

# %%
found = []
for size in (0, 50, ring_kb, 400):
    spans = pictures.simulate(phases * llama.num_hidden_layers, size, **assumed)
    us = spans[-1].end.max()
    needed = llama.num_hidden_layers * sum(phase.kb.mean() for phase in phases) / kb_per_us
    found.append((f"{size:,.0f}", us, needed / us))
table(found, {"KB in the ring of an SM": "", "us, calculated": ".0f", "memory works": ".0%"})

# %% [markdown]
# A quarter of the ring covers the joins, and most of the rest is for attention. Doubling the ring adds little.
#
# ## On a GPU
#
# The calculation leaves out a lot. Bulk copies may not reach the bandwidth of a plain copy, attention reads keys and
# values, norms and sums take time, and after each join all SMs load the same activations. Only a measurement can tell
# whether the kernel comes close, and whether it is faster than the graph of launches. `labkit bench llama_one_kernel`
# measures that, and also records when each block begins and ends each phase. The next figure shows one layer of a step
# with one sequence and with eight, recorded on an H200, with one line per block. Where do the blocks wait longest?

# %%
recorded = measure.recorded_series("llama_one_kernel")
pictures.recorded_layer(recorded) if recorded else print("llama_one_kernel has not been recorded on a GPU yet")

# %% [markdown]
# Around attention, where the ring is full. With one sequence only {{ items }} blocks have keys and values to read.
#
# One kernel is faster than the graph: a step of one sequence takes {{ first.one_kernel_ms.p50:.2f }} ms instead of
# {{ first.launches_ms.p50:.2f }}, one of eight {{ last.one_kernel_ms.p50:.2f }} instead of
# {{ last.launches_ms.p50:.2f }}. But its bytes alone would need {{ first.bound_ms:.2f }} ms. In a layer of
# {{ layer_us:.0f }} us a block waits {{ wait_us:.0f }} us at joins, where {{ 5 * 1.5 }} us were assumed: while copies
# are in flight, the reads and writes of a join queue behind them.
#
# ## Without a counter
#
# In float16 a layer of GPT-2 small has {{ gpt2_mb:.0f }} MB of weights, which memory delivers in {{ gpt2_us:.1f }} us,
# less than five joins take. A join is a chain of four trips to L2: one block writes its results, and then raises the
# counter; another one reads the counter, and then the results. Two of the trips can be saved. A GPU writes and reads an
# aligned word of 64 bits as a whole. So a float32 can carry its own flag in the other half: the *epoch*, here the
# number of the layer that wrote it, counted from token to token. A block that needs a row reads its words again and
# again until all of them have the right epoch, and then it has the values as well. NCCL, NVIDIA's library for
# communication between GPUs, calls this protocol LL, for low latency.

# %%
from labkit.kernels.persistent.gpt2 import publish

show_source(publish)

# %% [markdown]
# `store_relaxed` promises only that the word is written whole. Nothing else has to be visible with it, so it needs no
# fence.
#
# labkit's kernel for a token of GPT-2 exchanges rows in this way, six times per layer. `labkit bench gpt2_one_kernel`
# measures it beside a graph with five launches per layer. Will it be faster in float32, where a layer has twice as many
# bytes, or in float16?

# %%
series = measure.recorded_series("gpt2_one_kernel", gpu="NVIDIA H200")
table([(row["dtype"], f"{row['position']:,}", row["us"]["launches"], row["us"]["one_kernel"],
        row["us"]["launches"] / row["us"]["one_kernel"]) for row in series["rows"]],
      {"": "", "tokens before": "", "us, five launches a layer": ".0f", "us, one kernel": ".0f",
       "times as fast": ".2f"})

# %% [markdown]
# In float16 the kernel is faster{{ if half_faster }}, by {{ half_gain:.0% }} after 16 tokens, and labkit uses it. In
# float32 it is not{{ if single_not }}: copies are in flight all the time, and the reads that wait for words queue
# behind them. There labkit stays with the launches.
#
# The shortest work gains the most. MiniLM (lesson 31) turns a sentence into a vector, with far fewer bytes per layer.
# In one kernel, whose joins are the counters from above, a sentence of 16 tokens takes
# {{ short.us.one_kernel.p50:.0f }} us instead of {{ short.us.launches.p50:.0f }}, and one of 128 tokens
# {{ long.us.one_kernel.p50:.0f }} instead of {{ long.us.launches.p50:.0f }}.
#
# ## What was implemented
#
# - a decode step of a Llama as one persistent kernel, for up to eight sequences: joins, a ring, and five phases per
#   layer
# - a token of GPT-2 in one kernel, whose blocks exchange words that carry their epoch, and a sentence of MiniLM in one
# - `observe` understands release and acquire, and finds a missing fence between blocks without a GPU
#
# ## What I learned
#
# - Between two launches there is a barrier for the whole GPU, and after it nothing is in flight. A persistent kernel
#   keeps the barrier, but its copies do not stop for it.
# - A counter shows that other blocks have arrived. To read their results safely takes release and acquire as well.
# - Blocks that wait for one another must all be resident.
# - A value that carries its own flag needs no counter, no fence and no second read.
# - Weights depend on nothing that the kernel computes, so they can be requested early. The size of the ring limits how
#   early.
#
# ## Resources
#
# - [B. Spector et al.: Look Ma, No Bubbles! (2025)](https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles), the
#   megakernel for Llama 1B
# - [PTX ISA: Memory Consistency
#   Model](https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#memory-consistency-model), release and
#   acquire
# - [CUDA C++ Programming Guide: Cooperative
#   Groups](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cooperative-groups), launches whose blocks
#   are all resident
#
# ## Try it
#
# - In `chain`, let warp 1 wait at the join, too: `arrive` and `wait` then need 64 threads. What are the counts now?
# - Draw the calculation with `join_us=5`, and with attention of 12 us{{ example }}. Which phases are still covered?
# - With a GPU of compute capability 9.0{{ hardware }}: `labkit bench llama_one_kernel`, and the engine with
#   `labkit serve --one-kernel` or `LLM(..., one_kernel=True)`. `MiniLM(..., one_kernel=True)` and
#   `GPT2(..., one_row=True, one_kernel=True)` do the same for the other two models.
#
# In the exercises for this lesson you predict what a ring covers and which launches hang, compute a softmax with two
# joins in one launch, let blocks wait only for their neighbours, and write the copying warp of a ring.

# %% [numbers]
# one = series.llama_decode.rows[0]
# bound_us = one.bytes / limits.bandwidth_gbs / 1000
# above_us = (1000 * one.ms.p50 - bound_us) / one.launches
# under_two_thirds = bound_us / one.ms.p50 / 1000 < 2 / 3
# rate_kb = limits.bandwidth_gbs / 132
# ring_kb = 6 * 8 * 16 * 2 * 64 * 2 / 1000
# ring_us = ring_kb / rate_kb
# first = series.llama_one_kernel.rows[0]
# last = series.llama_one_kernel.rows[-1]
# phases = series.llama_one_kernel.timelines[0].phases
# wait_us = sum(phase.wait_us for phase in phases)
# layer_us = wait_us + sum(phase.work_us for phase in phases)
# items = 8 * 1024 // 128
# gpt2_mb = 2 * 12 * 768 * 768 / 1e6
# gpt2_us = 1e3 * gpt2_mb / limits.bandwidth_gbs
# gains = [row.us.launches / row.us.one_kernel for row in series.gpt2_one_kernel.rows]
# half_gain = gains[2] - 1
# half_faster = min(gains[2:]) > 1.02
# single_not = max(gains[:2]) < 1.0
# short = series.minilm_one_kernel.rows[0]
# long = series.minilm_one_kernel.rows[-1]
