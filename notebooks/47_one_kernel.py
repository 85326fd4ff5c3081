# %% [markdown]
# # 47 · One kernel for a token
#
# *Lab notebook, 29 November 2026*
#
# You will learn
#
# - why a graph of launches takes longer for a token than its bytes need
# - how the blocks of a kernel wait for one another, and why all of them have to be resident
# - how shared memory fills with the weights of the next layer while a block waits
#
# ## The problem
#
# A decode step for one sequence reads every weight once, and the keys and values of the sequence (lesson 37). It cannot
# be faster than that. How long do these bytes take on an H200, for Llama 3.2 1B in bfloat16 and 1,024 tokens, and what
# share of the step is that in the graph of lesson 43?

# %%
from labkit import measure, table
from labkit.measure.series.llama import cache_bytes, weight_bytes
from labkit.models.configs import LLAMA_3_2_1B as llama

bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"] * 1e9
step = measure.recorded_series("llama_decode", gpu="NVIDIA H200")["rows"][0]
step_us, bound_us = 1e3 * step["ms"]["p50"], 1e6 * (weight_bytes(llama) + cache_bytes(llama, 1024)) / bandwidth
table([(step["launches"], bound_us, step_us, bound_us / step_us, (step_us - bound_us) / step["launches"])],
      {"launches": "", "us for the bytes": ".0f", "us, measured": ".0f", "share": ".0%",
       "us above, for each launch": ".1f"})

# %% [markdown]
# The memory works for less than two thirds of the step{{ if under_two_thirds }}. On average {{ above_us:.1f }} us are
# lost with each of {{ one.launches }} launches. They are lost in three ways:
#
# - *Between two launches.* A kernel begins after the last block of the one before it. Even in a graph, starting its
#   blocks takes time.
# - *At the beginning.* Every block computes its indices, requests its first bytes and waits for them. All SMs do so at
#   the same time, and the memory is idle.
# - *At the end.* When some blocks have finished and others have not, the memory serves only the others.
#
# Earlier lessons removed a part of that. Launched one by one from Python, each kernel costs the host several
# microseconds; a graph (lesson 13) leaves the host out. With programmatic dependent launch (lesson 43) a kernel begins
# while the one before it ends, and brings its first weights into L2 meanwhile. The graph in the table already does
# that. One step is left: a single launch for the whole token. This lesson shows how to build such a kernel, and
# calculates what it might save. Its time on a GPU has not been recorded yet.
#
# ## Blocks that stay
#
# The persistent blocks of lesson 10 stay on their SMs while they compute one part of a product after another. A
# *persistent kernel* for a token goes further: its blocks stay for all products, from the embedding to the last
# logit. There is one block for each SM. Each product is a *phase*, in which the blocks take tiles of eight rows of
# weights in turn: block b of 132 computes tiles b, b + 132, b + 264 and so on. `Decoder` holds the sizes of the
# model, and those of the kernel. How many tiles does the busiest block have in each phase of a layer, and for what
# share of the time do the blocks work on average, if all tiles take equally long?

# %%
from labkit.course.drawings import one_kernel as pictures
from labkit.kernels.persistent.decoder import ROWS, Decoder

decoder = Decoder(llama.hidden_size, llama.num_attention_heads, llama.num_key_value_heads, llama.head_dim,
                  llama.intermediate_size, llama.vocab_size, llama.rms_norm_eps, llama.head_dim**-0.5)
rows_of = {"queries, keys, values": decoder.qkv_rows, "output of attention": decoder.hidden,
           "gate and up, in pairs": decoder.gate_up_rows // 2, "down": decoder.hidden, "logits": decoder.vocab}
found = []
for name, rows in rows_of.items():
    tiles = pictures.tiles_of(rows // ROWS, 132)
    found.append((name, f"{tiles.sum():,}", tiles.max(), tiles.mean() / tiles.max()))
table(found, {"phase": "", "tiles": "", "of the busiest block": "", "working": ".1%"})

# %% [markdown]
# Tiles of eight rows are small enough to be shared almost evenly. The tail of a phase is a few percent.
#
# ## Joins
#
# Each phase needs all results of the phase before it. Launches give that for nothing: a kernel sees all that the one
# before it has written. In a persistent kernel the blocks have to wait for one another. A *join* is a point that a
# block passes when all blocks have arrived there. All it takes is a counter in global memory. A block that has finished
# its phase adds 1, and waits until the counter has reached the number of blocks. At the next join it waits for twice
# that number, and so on, so the counter need not be set back in between.

# %%
from labkit import cuda, observe, ptx, show_source, u32
from labkit.kernels.persistent.joins import arrive, wait

show_source(arrive)

# %%
show_source(wait)

# %% [markdown]
# `named_barrier_sync` is a `syncthreads` for some warps of a block. It makes sure that all of them have written their
# results before thread 0 arrives, and that none of them reads before thread 0 has seen the others.
#
# But a counter alone is not enough. A GPU may make the writes of a thread visible to other SMs in another order than
# the program's, so a block could see the counter rise and still read old results. *Release and acquire* are the cure.
# `add_release` adds to the counter only after everything before it has been written. `load_acquire` reads the counter,
# and everything read after it is at least as new as what was released. With an ordinary load two things can go wrong:
# the compiler may load the counter once and keep it in a register, so that the loop never ends, and later loads may be
# served from an old line of L1.
#
# Numba has the same in two parts, `cuda.threadfence()` before an atomic addition, and an atomic that adds 0 to read.
# The next kernel subtracts the mean of an array from all of its elements. First each block adds up its part, and
# after a join it adds up what all blocks found. Four joins are tried: labkit's, the same with Numba's functions, one
# with the fence left out, and one that arrives and does not wait. Which of the four joins give the right result on
# the CPU device, and which have a race according to `observe`?

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
# its writes immediately, so the missing fence changes nothing there. On a GPU it may go well for a long time. `observe`
# does not compare results. It looks for something that orders the write before the read, and finds nothing.
#
# ## All blocks have to be resident
#
# An ordinary launch may have more blocks than the SMs can hold. The rest start when earlier ones end. In a persistent
# kernel no block ends before all have arrived, and those that have not started never arrive: the kernel hangs. It hangs
# as well if a block skips a join that the others wait at. So a launch may only have as many blocks as can be resident
# at the same time. A block of this kernel needs nearly all of an SM's shared memory, so only one fits, and the launch
# has one for each SM. CUDA's *cooperative* launches refuse a grid that is too large. The scan of lesson 19 needed no
# such limit, because its blocks wait only for blocks that have already started.
#
# A launch that hangs reports nothing. So `wait` gives up after some seconds, with an instruction that stops the launch
# with an error. On the CPU device all blocks of such a launch take turns, so there are never too many. But a wait that
# nothing can end is a `DeadlockError`. Below, two blocks wait for a third. Which threads will the error name, and what
# do they wait for?

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
# It names the threads that wait, and their lines in `joins.py`: one spins in the loop of `wait`, and the others have
# come to the barrier behind it.
#
# ## A ring that runs ahead
#
# So far, joins only replace launches: the blocks wait, start their loads, and wait for the first bytes. What matters is
# what a block can do while it waits. Activations depend on the phase before. Weights do not depend on anything that the
# kernel computes. So one warp of each block does nothing but copy weights, into a ring of stages as in lesson 10. It
# takes no part in the joins. It waits until a stage is empty, fills it, and goes on to the weights of the next phase,
# the next layer, and finally the logits. [B. Spector et al.
# (2025)](https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles) built such a *megakernel* for Llama 1B, to be
# rid of what they call bubbles.
#
# `full` and `empty` are arrays with an mbarrier for each stage. The copying warp announces the bytes of a stage with
# `ptx.mbarrier_expect_tx`. Then each lane starts a bulk copy of one row of the tile with `ptx.bulk_load`: 16 bytes or a
# multiple of that, without a tensor map. The bytes count at `full`. The warps that multiply wait there with
# `ptx.mbarrier_wait`, and when they have read a stage they arrive at `empty` with `ptx.mbarrier_arrive`. In lap 0 the
# copying warp waits for parity 1 of `empty`. A new mbarrier lets such a wait pass, so all stages are empty to begin
# with. This is the loop over the rows of a matrix:

# %%
from labkit.kernels.persistent.ring import make_load_matrix

show_source(make_load_matrix, "for row0 in", "count = next_stage")

# %% [markdown]
# And this is the whole idea in one small kernel. It multiplies a vector by one matrix after another, with a join in
# between. The ring has two stages of one row each. Thread 32 copies, warp 0 multiplies. At the start
# `ptx.mbarrier_init` sets how many threads end a phase of an mbarrier by arriving, and `ptx.fence_mbarrier_init`
# makes the new mbarriers visible to the copies. When thread 32 requests the first row of the second and the third
# matrix, it also stores how many blocks are still missing at the join before it. Will blocks be missing when the
# first row of the next matrix is requested?

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
# labkit's kernel has the phases of a whole Llama: `Llama(..., one_kernel=True)` uses it for steps with up to eight
# sequences of one token each, and launches kernels one by one for all others. It needs a GPU with bulk copies, of
# compute capability 9.0{{ hardware }} or later; on an older one, both models below launch kernels one by one. These
# are the phases of a layer, with a join after each of the five:
#
# - the norm, and queries, keys and values
# - rotation, the cache, and attention
# - the output of attention, added to the residual stream
# - the norm, gate, up and SwiGLU
# - down, added to the residual stream
#
# Here is a tiny model, for which `RandomTensors` makes random weights, and three sequences of 20, 1 and 17 tokens. A
# step computes the last token of each. `Difference` compares its logits with NumPy in float64, and allows eight
# roundings of the largest logit. How many launches does the step have in each form, and will both forms be within
# eight roundings?

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
# One launch instead of many, and both are well within the roundings of bfloat16.
#
# A row of activations is multiplied in the same way whatever the other rows are: its columns are always divided among
# the warps in the same way, and the warps' sums are added in the same order. So a sequence should get the same bits in
# every batch. How many of its logits change when the third sequence is alone, or comes first?

# %%
together, _ = decode(models["one kernel"], (0, 1, 2))
table([(str(chosen), int((decode(models["one kernel"], chosen)[0][place] != together[2]).sum()), TINY.vocab_size)
       for chosen, place in (((2,), 0), ((2, 0), 0))], ["sequences of the step", "logits that differ", "of"])

# %% [markdown]
# None.
#
# ## What a ring can cover
#
# How much can the ring save? Here is a calculation, not a measurement. Divide the memory's bandwidth among the SMs:
# each of 132 can read {{ rate_kb:.0f }} KB in a microsecond. While the other warps of a block wait, the copying warp
# reads at that rate until the ring is full. So a ring of R bytes covers a wait of R divided by the rate, and what is
# longer is lost. If a phase has fewer weights than the ring holds, the ring does not become empty in between, and has
# to cover the waits before and after that phase together.
#
# For Llama 3.2 1B the kernel has a ring of {{ ring_kb:.0f }} KB. Suppose that a join takes 1.5 us{{ example }} after
# the last block has arrived, and attention 4 us{{ example }}. Between the product for queries, keys and values and
# the next one are a join, attention and another join. For how many microseconds can the ring cover a wait, and is
# that enough for a join, attention and another join?

# %%
kb_per_us, ring_kb, join_us, attention_us = bandwidth / 132 / 1e9, decoder.ring_bytes / 1e3, 1.5, 4.0
table([("the ring", ring_kb / kb_per_us), ("one join", join_us), ("join, attention, join", 2 * join_us + attention_us)],
      {"": "", "us": ".1f"})

# %% [markdown]
# The ring could cover a join {{ words(ring_us / 1.5) }} times over. The stretch with attention is longer than that, and
# for {{ 7 - ring_us:.1f }} us of it the memory is idle.
#
# To follow this through a layer, two more assumptions are needed. Let an SM multiply what is in shared memory
# three{{ example }} times as fast as memory delivers, and let the first bytes of a phase take 0.8 us{{ example }} to
# arrive if none were requested before. No SM reads faster than its share, even while others wait. How much of a
# layer's time does the ring save in this calculation?

# %%
phases = pictures.decode_phases(decoder, 132, attention_us)
assumed = {"kb_per_us": kb_per_us, "join_us": join_us, "start_us": 0.8, "speed": 3.0}
pictures.with_and_without(phases, ring_kb, shown=(0, 120, 131), **assumed)

# %% [markdown]
# It saves nearly a third. SM 0 is one of those with the most tiles. Without a ring every phase begins with nothing in
# flight. With one, all of `o` and half of `qkv` are there when the phase begins, and SMs that finish early use the time
# to copy. The ring is full only around attention.
#
# Shared memory limits the ring. The next table has the calculated time of all 16 layers for rings of other sizes, and
# the time that the bytes alone would need, as a share of it. Is a quarter of the ring enough, and does a ring of twice
# the size help?

# %%
found = []
for size in (0, 50, ring_kb, 400):
    spans = pictures.simulate(phases * llama.num_hidden_layers, size, **assumed)
    us = spans[-1].end.max()
    needed = llama.num_hidden_layers * sum(phase.kb.mean() for phase in phases) / kb_per_us
    found.append((f"{size:,.0f}", us, needed / us))
table(found, {"KB in the ring of an SM": "", "us, calculated": ".0f", "memory works": ".0%"})

# %% [markdown]
# A quarter of the ring covers the joins, and most of the rest is for attention. Twice the ring adds little.
#
# ## On a GPU
#
# The calculation leaves out a lot. Bulk copies may not reach the bandwidth of a plain copy, norms and sums take time,
# and after each join all SMs load the same activations. Only a measurement can tell whether the kernel comes close, and
# whether it is faster than the graph of launches. `labkit bench llama_one_kernel` makes it, and also records when each
# block begins and ends each phase. If there is such a recording, the next figure shows a layer of it, with a line for
# each block.

# %%
recorded = measure.recorded_series("llama_one_kernel")
pictures.recorded_layer(recorded) if recorded else print("llama_one_kernel has not been recorded on a GPU yet")

# %% [markdown]
# ## What was implemented
#
# - a decode step of a Llama as one persistent kernel, for up to eight sequences: joins, a ring, and five phases a layer
# - `observe` knows release and acquire, so a missing fence between blocks is found without a GPU
#
# ## What I learned
#
# - Between two launches lies a barrier for the whole GPU, and after it nothing is in flight. A persistent kernel keeps
#   the barrier, but its copies go on.
# - A counter tells that other blocks have arrived. Only with release and acquire can their results be read.
# - Blocks that wait for one another must all be resident.
# - Weights depend on nothing that is computed, so they can be requested early. The size of the ring limits how early.
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
# - In `chain`, let thread 32 wait at the join, too: `arrive` and `wait` then need 64 threads. What are the counts now?
# - Draw the calculation with `join_us=5`, and with attention of 12 us{{ example }}. Which phases are still covered?
# - With a GPU: `labkit bench llama_one_kernel`.
#
# In the exercises for this lesson you predict what a ring covers and which launches hang, compute a softmax with two
# joins in one launch, let blocks wait only for their neighbours, and write the copying warp of a ring.

# %% [numbers]
# one = series.llama_decode.rows[0]
# bound_us = one.bytes / limits.bandwidth_gbs / 1000
# above_us = (1000 * one.ms.p50 - bound_us) / one.launches
# under_two_thirds = bound_us / one.ms.p50 / 1000 < 2 / 3
# rate_kb = limits.bandwidth_gbs / 132
# ring_kb = 12 * 8 * (16 * 2 * 32 + 32) * 2 / 1000
# ring_us = ring_kb / rate_kb
