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
# Each step so far removed a part of that. Launched one by one from Python, a kernel costs the host several
# microseconds. A graph (lesson 13) leaves the host out. With programmatic dependent launch (lesson 43) a kernel begins
# while the one before it ends, and brings its first weights into L2 meanwhile. The graph in the table already does
# that. There is one step left: a single launch for the whole token. This lesson is about how to build such a kernel.
# Its time on a GPU has not been recorded yet.
#
# ## Blocks that stay
#
# The persistent blocks of lesson 10 stay on their SMs while they compute one part of a product after another. A
# *persistent kernel* for a token goes further: its blocks stay for all products, from the embedding to the last logit.
# There is one block for each SM. Each product is a *phase*, in which the blocks take tiles of eight rows of weights in
# turn: block b of 132 computes tiles b, b + 132, b + 264 and so on. How many tiles does the busiest block have in each
# phase of a layer, and which share of all blocks' time is spent working, if each tile takes equally long?

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
# Tiles of eight rows are small enough to be shared almost evenly, and the tail is a few percent.
#
# ## Joins
#
# The rows of a phase need all results of the phase before it. Launches gave that for nothing: a kernel sees all that
# the one before it has written. In a persistent kernel the blocks have to wait for one another. A *join* is a point
# that a block passes when all blocks have arrived there. A counter in global memory is enough for it. Each block that
# has finished its phase adds 1, and waits until the counter has reached the number of blocks. At the next join it waits
# for twice that number, and so on, so that nobody has to set the counter back in between.

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
# the program's, so a block could see the counter rise and still read old results. `add_release` adds to the counter
# after everything that was written before it. `load_acquire` reads the counter, and what is read after it is no older
# than what was released. These two are a *release* and an *acquire*. An ordinary load is wrong for two reasons: the
# compiler may read the counter once and keep it in a register, so that the loop never ends, and later loads may be
# served from an old line of L1.
#
# Numba has the same in two parts, `cuda.threadfence()` before an atomic addition, and an atomic that adds 0 to read.
# The next kernel subtracts the mean of an array from all of its elements. First each block adds up its part, and after
# a join it adds up what all blocks found. Four joins are tried: labkit's, the same with Numba's functions, one with the
# fence left out, and one that arrives and does not wait. Which of them give the right result on the CPU device, and
# which have a race according to `observe`?

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
# Three results are right, and only two of the kernels. The CPU device runs one thread at a time and forgets no write,
# so the missing fence changes nothing there, and on a GPU it may go well for a long time. `observe` does not look at
# the result. It looks for what orders the write before the read, and finds nothing.
#
# ## All blocks have to be resident
#
# A launch may have more blocks than the SMs can hold. The others start when earlier ones end. In a persistent kernel no
# block ends before all have arrived, and those that have not started never arrive: the kernel hangs. The same goes for
# a block that arrives at one join less than the others. So a launch has at most as many blocks as are resident at the
# same time. The kernel here takes nearly all of the shared memory of an SM, one block for each SM is all that fits, and
# that is how many are launched. CUDA's *cooperative* launches refuse a grid that is too large. The scan in lesson 19
# could do with less, because its blocks wait only for blocks that have already started.
#
# A launch that hangs tells you nothing. `wait` therefore gives up after seconds, by an instruction that stops the
# launch with an error. On the CPU device all blocks of such a launch take turns, so there are never too many. But a
# wait for a block that does not exist is found. What does the error name?

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
# So far, joins only replace launches: the blocks wait, start their loads, and wait for the first bytes. The gain is in
# what a block may do while it waits. Activations depend on the phase before. Weights do not depend on anything that the
# kernel computes. So one warp of each block does nothing but copy weights, into a ring of stages as in lesson 10. It
# never comes to a join. It only waits until a stage is empty, and goes on to the weights of the next phase, the next
# layer, and finally the logits. This is what [B. Spector et al.
# (2025)](https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles) call a *megakernel* without bubbles.
#
# `full` and `empty` are arrays with an mbarrier for each stage. `bulk_load` copies a row of a tile without a tensor
# map, 16 bytes or a multiple of that, and its bytes count at `full`. The warps that multiply arrive at `empty`. In lap
# 0 the copying warp waits for parity 1, which a new mbarrier has passed: all stages begin empty. This is the loop over
# the rows of a matrix:

# %%
from labkit.kernels.persistent.ring import make_load_matrix

show_source(make_load_matrix, "for row0 in", "count = next_stage")

# %% [markdown]
# And this is the whole idea in one small kernel. It multiplies a vector by one matrix after another, with a join in
# between. The ring has two stages of one row each. Thread 32 copies, warp 0 multiplies. When the thread requests the
# first row of a matrix, it also writes down how many blocks have not arrived yet at the join before it. Are there any?

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
# In each block the first row of the next matrix was requested before all blocks had arrived, and by the time they have,
# it is there. `observe` runs the kernel in plain Python, warp by warp, so these counts are no times. But they show that
# the copies do not wait for the join.
#
# ## A token in one launch
#
# labkit's kernel has the phases of a whole Llama: `Llama(..., one_kernel=True)` uses it for steps with up to eight
# sequences of one token each, and launches kernels one by one for all others. It needs a GPU with bulk copies, of
# compute capability 9.0{{ hardware }} or later. These are the phases of a layer, with a join after each of the five:
#
# - the norm, and queries, keys and values
# - rotation, the cache, and attention; each block takes its share of the pairs of a sequence and a head
# - the output of attention, added to the residual stream
# - the norm, gate, up and SwiGLU
# - down, added to the residual stream
#
# Here is the model with tiny random weights, and three sequences of 20, 1 and 17 tokens, whose last ones are computed
# in one kernel. How many launches does a step have in each form, and how far are the logits from NumPy in float64?

# %%
from labkit import graphs
from labkit.kernels.elements import BFLOAT16
from labkit.measure.series.llama import TINY, RandomTensors
from labkit.models.gpt2_reference import Difference, Parity
from labkit.models.llama import Cache, Llama, Workspace
from labkit.models.llama_reference import activations, weights_of
from labkit.models.step import Inputs, Piece

models = {"launches": Llama(TINY, RandomTensors(TINY), "bfloat16"),
          "one kernel": Llama(TINY, RandomTensors(TINY), "bfloat16", one_kernel=True)}
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
# One launch instead of many, and both are a few roundings of bfloat16 from the truth.
#
# A row of activations is multiplied in the same way whatever rows are beside it: the columns are divided among the
# warps in the same way, and the sums of the warps are added in the same order. So a sequence should get the same bits
# in each batch. How many of its logits change when the third sequence is alone, or comes first?

# %%
together, _ = decode(models["one kernel"], (0, 1, 2))
table([(str(chosen), int((decode(models["one kernel"], chosen)[0][place] != together[2]).sum()), TINY.vocab_size)
       for chosen, place in (((2,), 0), ((2, 0), 0))], ["sequences of the step", "logits that differ", "of"])

# %% [markdown]
# None.
#
# ## What a ring can cover
#
# What should one expect of the ring? Here is a calculation, not a measurement. Divide the memory's bandwidth by the
# SMs: each of 132 can read {{ rate_kb:.0f }} KB in a microsecond. While the warps of a block wait for t us, the copying
# warp can read t times that, until the ring is full. With a ring of R bytes, a wait is covered up to R divided by that
# rate. The rest of it is lost, and if the phase has fewer weights than the ring, the ring covers several waits in a row
# together.
#
# For Llama 3.2 1B the kernel has a ring of {{ ring_kb:.0f }} KB. Suppose that a join takes 1.5 us{{ example }} after
# the last block has arrived, and attention 4 us{{ example }}. Between the product for queries, keys and values and the
# next one are a join, attention and another join. How many microseconds can the ring cover, and is that enough?

# %%
kb_per_us, ring_kb, join_us, attention_us = bandwidth / 132 / 1e9, decoder.ring_bytes / 1e3, 1.5, 4.0
table([("the ring", ring_kb / kb_per_us), ("one join", join_us), ("join, attention, join", 2 * join_us + attention_us)],
      {"": "", "us": ".1f"})

# %% [markdown]
# A join alone is covered {{ words(ring_us / 1.5) }} times over. The stretch with attention is longer than the ring, and
# {{ 7 - ring_us:.1f }} us of it are lost. Then come the tiles of the next product, which are already there, and the
# next join.
#
# To follow this through a layer we need two more numbers. Let an SM multiply from shared memory three{{ example }}
# times as fast as memory delivers, and let the first bytes of a phase take 0.8 us{{ example }} to arrive if none were
# requested before. Every SM gets its own share of the bandwidth, even while others wait. How much of the layer does the
# ring save?

# %%
phases = pictures.decode_phases(decoder, 132, attention_us)
assumed = {"kb_per_us": kb_per_us, "join_us": join_us, "start_us": 0.8, "speed": 3.0}
pictures.with_and_without(phases, ring_kb, shown=(0, 120, 131), **assumed)

# %% [markdown]
# SM 0 belongs to those with one tile more than the others. Without a ring every phase begins with an empty pipeline.
# With one, `qkv` and `o` are mostly there when they begin, and SMs that finish early use the time to copy. The ring
# itself is full only around attention. In this calculation the ring saves a third of a
# layer's time.
#
# Shared memory limits the ring. How much would a smaller or a larger one change? The last column is the time that the
# bytes need, as a share of the calculated time of all 16 layers.

# %%
found = []
for size in (0, 50, ring_kb, 400):
    spans = pictures.simulate(phases * llama.num_hidden_layers, size, **assumed)
    us = spans[-1].end.max()
    needed = llama.num_hidden_layers * sum(phase.kb.mean() for phase in phases) / kb_per_us
    found.append((f"{size:,.0f}", us, needed / us))
table(found, {"KB in the ring of an SM": "", "us, calculated": ".0f", "memory works": ".0%"})

# %% [markdown]
# A quarter of the ring is enough for the joins, and the rest is for attention. Twice the ring adds little.
#
# The calculation leaves out much: that a copy through bulk loads may not reach the memory's full bandwidth, that norms
# and sums take time, and that all SMs load the same activations after a join. Whether the kernel comes close to it, or
# is even faster than the graph of launches, is for a measurement to say. `labkit bench llama_one_kernel` takes it, and
# also records when each block begins and ends each phase. If that has been recorded, the next figure shows it. Compare
# it with the calculation: which phases take longer than their bytes, and where do blocks wait?

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
# - A launch ends with a barrier for the whole GPU and an empty pipeline. A persistent kernel needs the barrier, but not
#   the empty pipeline.
# - A counter says that others have arrived. Only release and acquire say that their results can be read.
# - Blocks that wait for one another all have to be resident.
# - Weights depend on nothing, so they can be requested before they are needed. How far ahead, the size of a ring says.
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
# - In `chain`, let all threads wait at the join before the next row is copied. What do the counts say now?
# - Give `chain` a ring of four stages. Which counts change?
# - Draw the calculation with `join_us=5`, and with attention of 12 us{{ example }}. Which phases are still covered?
# - With a GPU: `labkit bench llama_one_kernel`.
#
# In the exercises for this lesson you predict what a ring covers and which launches hang, compute a softmax with two
# joins in one launch, let blocks wait only for their neighbours, and write the copying warp of a ring.

# %% [numbers]
# one = series.llama_decode.rows[0]
# above_us = 1000 * (one.ms.p50 - one.bound_ms) / one.launches
# under_two_thirds = one.bound_ms / one.ms.p50 < 2 / 3
# rate_kb = limits.bandwidth_gbs / 132
# ring_kb = 12 * 8 * (16 * 2 * 32 + 32) * 2 / 1000
# ring_us = ring_kb / rate_kb
