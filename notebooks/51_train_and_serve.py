# %% [markdown]
# # 51 · Train, cut to four bits, serve
#
# *Lab notebook, 29 November 2026*
#
# You will learn
#
# - how batches, the two passes and the optimiser become a training loop, and how far its loss can fall
# - why a run that was killed resumes with the same bits
# - what a model loses in four bits, and when more GPUs make training faster
#
# ## The problem
#
# All parts are there: kernels for both passes, an optimiser, and an engine that writes and serves (lesson 44). This
# lesson puts them together. In about a minute it trains a small Llama, saves it, quantises it and lets it write.
#
# A minute on a CPU is enough for a small language. Each line of ours lists days or months in order, from a random one
# on. After each name the line continues with a probability of 7/8, and otherwise ends.

# %%
import tempfile
from pathlib import Path

import numpy as np

folder, draw = Path(tempfile.mkdtemp()), np.random.default_rng(0)
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December"]


def line() -> str:
    names = (DAYS, MONTHS)[draw.integers(2)]
    first, count = draw.integers(len(names)), draw.geometric(1 / 8)
    return " ".join(names[(first + i) % len(names)] for i in range(count))


text = "\n".join(line() for _ in range(1500))
(folder / "text.txt").write_text(text, encoding="utf-8")
print(text[:200])

# %% [markdown]
# ## How far a loss can fall
#
# The loss of a token is $-\log p$, where $p$ is the probability that the model gave it (lesson 48). A model that has
# learned nothing gives each of its 448 tokens the same probability: a loss of $\ln 448$, about six. Here even a perfect
# model cannot know which name a line begins with, or where the line ends. A line has eight names on average, and a
# token that ends it. What is the lowest loss per token that a model can reach on such lines?

# %%
first_name = np.log(2) + (np.log(7) + np.log(12)) / 2  # days or months, and which of them
goes_on = -(7 / 8 * np.log(7 / 8) + 1 / 8 * np.log(1 / 8))  # after each of eight names
lowest = (first_name + 8 * goes_on) / 9
print(f"{lowest:.2f}")

# %% [markdown]
# That is the entropy of the language per token. If the loss on held-out text comes close to it, there is nothing left
# to learn. If the loss on the training text falls below it, the model has begun to memorise that text.
#
# ## The settings
#
# Three tables describe a run, for the model, the data and the training. `labkit train` reads them from a TOML file,
# such as `data/minute.toml`. `Settings` checks every value before anything is allocated.

# %%
from labkit.train.settings import Settings
from labkit.train.texts import Texts
from labkit.train.trainer import Trainer, bytes_needed

settings = Settings.of({
    "model": {"model_type": "llama", "vocab_size": 448, "hidden_size": 64, "intermediate_size": 128,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
              "max_position_embeddings": 128, "tie_word_embeddings": True},
    "data": {"text": ["text.txt"], "held_out": 0.1},
    "train": {"steps": 120, "batch": 4, "length": 32, "learning_rate": 1e-2, "least_rate": 1e-4, "warm_up": 10,
              "held_out_every": 20},
}, folder)
texts = Texts.read(settings)
print(f"{settings.model.parameters:,} parameters, {len(texts.tokens):,} tokens, {bytes_needed(settings) / 1e6:.1f} MB")

# %% [markdown]
# `Texts` trains a tokenizer on the text, keeps a tenth of the tokens for the held-out loss, and draws the windows of
# each step, here four of 32 tokens. The windows depend only on the run's seed and the number of the step. We will need
# that.
#
# ## The loop
#
# `Trainer` holds the model, the buffers and the loop. Its method `passes` computes the gradients of a step, and
# `update` is the optimiser. Each is captured in a CUDA graph (lesson 13).

# %%
from labkit import show_source

show_source(Trainer.passes)

# %%
show_source(Trainer.update)

# %%
show_source(Trainer.one_step)

# %% [markdown]
# While the device computes the passes, the host draws the next step's windows. Between the two graphs it checks the
# loss and the norm of the gradients. If either is infinite or NaN, the weights are not updated: an error names the
# first tensor that is not finite, and the last checkpoint stays.
#
# One kernel computes the loss, softmax and $-\log p$ together, and overwrites the logits with their gradient. It agrees
# with NumPy:

# %%
from labkit import agree
from labkit.kernels.ops.cross_entropy import CROSS_ENTROPY

agree(CROSS_ENTROPY)

# %% [markdown]
# We train for half of the steps, save a checkpoint, and train for the rest. Does the held-out loss reach the entropy in
# 120 steps, with as many tokens as {{ 120 * 4 * 32 / 12_159:.1f }} passes over the text?

# %%
from labkit.measure.plots.training import loss_curve
from labkit.train import checkpoint

trainer = Trainer(settings, texts)
list(trainer.run(until=60))
checkpoint.save(folder / "half", trainer)
*_, last = trainer.run()
checkpoint.save(folder / "trained", trainer)
loss_curve(trainer.log)

# %%
print(last)
print(f"entropy {lowest:.3f}")

# %% [markdown]
# It comes close. The curve has two parts. In the first steps the model learns which tokens occur at all, and the loss
# drops steeply. Then it learns which name follows which.
#
# ## Killed, and resumed
#
# A *checkpoint* is a folder in Hugging Face's format, which `labkit generate`, `labkit serve` and other libraries can
# load. Two more files are for the trainer.

# %%
from labkit import table

contents = {"config.json": "the model's shape", "model.safetensors": "the weights", "tokenizer.json": "the tokenizer",
            "optimizer.safetensors": "master, m and v", "training.json": "step, settings and losses"}
table([(name, (folder / "half" / name).stat().st_size, what) for name, what in contents.items()],
      {"file": "", "bytes": ",", "": ""})

# %% [markdown]
# A run can be killed at any moment, even while it writes a checkpoint. So the files are written to a new folder next to
# the old one. When it is complete, the old one moves aside, and the new one is renamed. `--resume` deletes what a
# killed run left half-written, and puts an old checkpoint back if it had only been moved aside. So a checkpoint is
# never half-written.
#
# The checkpoint holds no state of a random generator. Load that of step 60 and train ten steps. How many of the ten
# losses equal those of the first run, to the last bit?

# %%
resumed = Trainer(settings, texts, **checkpoint.load(folder / "half", settings))
list(resumed.run(until=70))
table([(entry["step"], entry["loss"], again["loss"], "yes" if entry["loss"] == again["loss"] else "no")
       for entry, again in zip(trainer.log[60:70], resumed.log[60:70], strict=True)],
      {"step": "", "loss": ".6f", "resumed": ".6f", "equal": ""})

# %% [markdown]
# All of them: the windows of step 61 depend only on the seed and on 61, and no kernel adds in an order that could
# change. This justifies some care in the kernels: a resumed run that differs in its last bits differs in everything a
# hundred steps later, and nobody can tell whether the checkpoint was right.
#
# ## One of your own kernels
#
# `Kernels` has a launcher for each launch of the two passes, and each can be replaced. This SwiGLU (lesson 35) is as
# simple as it gets, with one thread per output. The backward pass keeps its own kernel. Should the losses be equal to
# the last bit this time?

# %%
import math

from numba import float32

from labkit import cuda
from labkit.train.model import Kernels


@cuda.jit
def gate_kernel(x, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        gate, up = x[row, col], x[row, out.shape[1] + col]
        out[row, col] = gate / (float32(1.0) + math.exp(-gate)) * up


def my_swiglu(x, out, stream=0):
    rows, cols = out.shape
    gate_kernel[(-(-cols // 32), -(-rows // 4)), (32, 4), stream](x, out)


mine = Trainer(settings, texts, kernels=Kernels(swiglu=my_swiglu))
list(mine.run(until=20))
largest = max(abs(entry["loss"] - own["loss"]) for entry, own in zip(trainer.log[:20], mine.log, strict=True))
print(f"largest difference of a loss in 20 steps: {largest:.1e}")

# %% [markdown]
# Not to the last bit, since the course's kernel may round an exponential differently. But they must stay close. A model
# often trains even with a wrong kernel, only worse: a falling loss proves nothing. Compare with a run that is known to
# be right.
#
# `labkit train CONFIG --yours` does this with your exercises. It first checks those that training can use: among them
# LayerNorm, RMSNorm, a matrix product and the rotation in the forward pass, and the gradients of the embedding (lesson
# 48) and of attention's scores (lesson 49). Where you have not done an exercise, the course's kernel runs instead.
#
# ## It writes
#
# The folder is a model like any other. The engine of lesson 42 loads it, and processes all prompts in one batch.

# %%
from labkit.engine import LLM, SamplingParams

PROMPTS = ["Friday", "November", "Wednesday Thursday", "May June July"]
greedy = SamplingParams(temperature=0.0, max_tokens=6)


def written(model: Path) -> list[str]:
    llm = LLM(str(model), num_pages=32, max_num_seqs=4)
    return [output.outputs[0].text for output in llm.generate(PROMPTS, greedy)]


before = written(folder / "trained")
table(list(zip(PROMPTS, before, strict=True)), ["prompt", "continued"])

# %% [markdown]
# Now the linear layers in four bits (lesson 46), with one scale per 32 weights. `labkit quantize` does the same from
# the command line. Does the model still know its days and months, and what happens to the held-out loss?

# %%
from labkit.kernels.linear.quantized import INT4
from labkit.models.quantize import Scheme, round_to_nearest
from labkit.models.quantized_folder import write_folder

scheme = Scheme(INT4, group=32)
write_folder(folder / "trained", folder / "four_bits", settings.model, scheme)
table(list(zip(PROMPTS, before, written(folder / "four_bits"), strict=True)),
      ["prompt", "continued in float32", "in four bits"])

# %%
flat = trainer.buffer.master.copy_to_host()
for tensor in trainer.buffer.layout:
    if "_proj" in tensor.name:
        part = flat[tensor.offset : tensor.offset + tensor.size]
        part[:] = round_to_nearest(part.reshape(tensor.shape), scheme).dequantize().ravel()
rounded = Trainer(settings, texts)
rounded.buffer.load(flat)
sizes = [(folder / name / "model.safetensors").stat().st_size for name in ("trained", "four_bits")]
table([("float32", sizes[0], trainer.held_out()), ("four bits", sizes[1], rounded.held_out())],
      {"linear layers": "", "bytes of the file": ",", "held-out loss": ".4f"})

# %% [markdown]
# The loss barely changes: what this model knows is simple, and it is sure of it. The file shrinks less than one might
# expect, because in so small a model the embedding is nearly half of the bytes, and it stays in float32.
#
# `labkit serve FOLDER` would now serve the model over an HTTP API (lesson 44), with the same engine and the same
# kernels.
#
# ## The models of this course
#
# `data/tiny-gpt2` and `data/tiny-llama` (lessons 28 and 35) were trained with `labkit train` on an H200. Their settings
# are `data/tiny-gpt2.toml` and `data/tiny-llama.toml`, and `training.json` in each folder has the loss of every step.
# The GPT-2 read its book {{ training.step * 64 * 256 / training.tokens.train:.0f }} times. What do its two losses do?

# %%
from labkit._common.files import read_json
from labkit._common.paths import find_root
from labkit.measure.plots.training import loss_curve

loss_curve(read_json(find_root() / "data" / "tiny-gpt2" / "training.json")["log"])

# %% [markdown]
# The training loss falls to {{ training.last.loss:.2f }}: the model knows the book by heart. The held-out loss is
# lowest after {{ training.best.step }} steps, at {{ training.best.held_out:.2f }}, and then rises to
# {{ training.last.held_out:.2f }}. A model that is to handle new text would stop at the lowest point. This one is meant
# to quote, so it went on.
#
# Knowing a text by heart is not enough for the Llama, which has to answer in four bits as well (lesson 46). After a
# first run with a weight decay of a tenth, the usual one, fewer than half of its answers survived rounding to the
# nearest. With {{ llama_training.settings.train.weight_decay:.1f }} and twice the steps,
# {{ quantized['int4, rounded to nearest'].same_answers }} of {{ quantized['bfloat16'].same_answers }} do, and with GPTQ
# all{{ if gptq_keeps }}.
#
# ## On a GPU
#
# How long does a step take, beside PyTorch? The table was recorded on an H200 with GPT-2 small, 124 million parameters,
# and with the tiny GPT-2. Both sides train in bfloat16 with float32 masters, clip the norm and use AdamW. PyTorch
# appears three times: as it is called, compiled, and compiled with CUDA graphs. With which of the two models do you
# expect to gain more?

# %%
from labkit import measure

rows = measure.recorded_series("train_step", gpu="NVIDIA H200")["rows"]
table([(row["run"], f"{row['batch']} x {row['length']:,}", row["ms"]["p50"], *row["torch"].values()) for row in rows],
      {"model": "", "windows": "", "labkit, ms": ".2f", "PyTorch, ms": ".2f", "compiled": ".2f", "in graphs": ".2f"})

# %% [markdown]
# With the tiny one: {{ gain['tiny GPT-2']:.1f }} times as fast as the fastest of PyTorch's, and
# {{ gain['GPT-2 small']:.2f }} times for GPT-2 small. A step of the tiny model is more than two hundred launches of a
# few microseconds each. Here they are two graphs, with nothing of Python between the kernels. PyTorch's graphs hold the
# passes only, and clipping and the optimiser are launched one by one. GPT-2 small spends more than half of its step in
# matrix products, which cuBLAS computes as fast. There is something to gain in the other kernels: cross entropy (lesson
# 48), the norms (lesson 49), and residuals that are added in the epilogue of a product (lesson 27). Attention's
# backward pass, a sixth of the step, computes seven products where five would do (lesson 49).
#
# ## More GPUs
#
# With *data parallelism* every GPU has the whole model, and computes the gradients for its own windows. Then the
# gradients of all GPUs are averaged, and each GPU makes the same update. The trainer has one hook for this:
# `all_reduce`, a function that replaces the flat array of gradients with its mean over all processes, between the
# passes and the clipping. With PyTorch's process groups it is a few lines.

# %%
from labkit.train.trainer import mean_over_processes

show_source(mean_over_processes)

# %% [markdown]
# A test runs it in two processes where PyTorch is installed, and is skipped elsewhere. The gradients pass through the
# host, which is simple and slow. Each process also needs its own windows: `Texts.read(settings, process=1,
# processes=8)` draws those of the second of eight.
#
# An *all-reduce* in a ring sends each part of the buffer around twice: once to add it up, once to distribute the sum.
# Each of $n$ GPUs sends $2\,(n - 1)/n$ times the bytes of the buffer. The two passes cost about 6 flops per parameter
# and token (2 forward, 4 backward). Take eight GPUs that reach 400 TFLOP/s{{ example }}, and three networks: NVLink
# with 450 GB/s{{ hardware }}, a fast network with 50 GB/s{{ hardware }}, and an ordinary one with 1.25
# GB/s{{ hardware }}. Nothing overlaps. How many tokens must each GPU process in a step to spend half of its time
# computing, and does that number depend on the size of the model?

# %%
from labkit import plots

RATE, GPUS = 400e12, 8
LINKS = {"450 GB/s": 450e9, "50 GB/s": 50e9, "1.25 GB/s": 1.25e9}


def efficiency(tokens, bandwidth, parameters=1.2e9):
    """The share of a step that is spent computing."""
    compute = 6 * parameters * tokens / RATE
    exchange = 2 * (GPUS - 1) / GPUS * 4 * parameters / bandwidth  # gradients are float32
    return compute / (compute + exchange)


tokens = 2.0 ** np.arange(7, 21)
plots.curves(tokens, {name: 100 * efficiency(tokens, bandwidth) for name, bandwidth in LINKS.items()},
             "More tokens for each exchange pay for a slower network", "tokens of a GPU in a step",
             "% of the time spent computing", log_x=True, place="A model of the cost: 8 GPUs, nothing overlaps")

# %%
half = {name: 8 * (GPUS - 1) / GPUS * RATE / (6 * bandwidth) for name, bandwidth in LINKS.items()}
table([(name, count, 100 * efficiency(count, LINKS[name], 1e8), 100 * efficiency(count, LINKS[name], 1e11))
       for name, count in half.items()],
      {"network": "", "tokens": ",.0f", "% computing, 0.1 billion": ".0f", "100 billion": ".0f"})

# %% [markdown]
# The size of the model does not matter: computing and exchanging are both proportional to it. Only the tokens count.
# NVLink needs about a thousand per GPU, one long window. The ordinary network needs hundreds of thousands: gradient
# accumulation can reach that, with one exchange for many small batches, at the price of a very large batch. Real
# systems also overlap the two: the gradients of the last layers are complete first, and are sent while the others are
# computed.
#
# ## What was implemented
#
# - `labkit train`: a GPT-2 or a Llama trained by the course's own kernels, from a TOML file
# - checkpoints that are never half-written, and resume a run with the same bits
# - `Kernels`, through which every launch of the two passes can be replaced
#
# ## What I learned
#
# - The entropy of the data is a lower bound for the loss. If you know it, you can tell a finished model from one that
#   is stuck.
# - A run can be resumed exactly if its windows depend on the step alone and every sum has a fixed order.
# - A falling loss does not show that the gradients are right. Losses that match those of an independent implementation
#   do.
# - Whether data parallelism pays off depends on the tokens per exchange, not on the size of the model.
#
# ## Resources
#
# - [A. Karpathy: llm.c](https://github.com/karpathy/llm.c), a GPT-2 trained in C and CUDA
# - [A. Gibiansky: Bringing HPC Techniques to Deep Learning
#   (2017)](https://andrew.gibiansky.com/blog/machine-learning/baidu-allreduce/), the all-reduce in a ring
# - [S. Li et al.: PyTorch Distributed (2020)](https://arxiv.org/abs/2006.15704), how gradients are exchanged while the
#   backward pass runs
#
# ## Try it
#
# - `labkit train data/minute.toml --out build/minute`, kill it with `kill -9`, and continue it with `--resume`.
# - Then `labkit quantize build/minute --out build/minute-int4` and `labkit serve build/minute-int4`.
# - Leave out the last factor in `gate_kernel`, `* up`. After how many steps does the loss show it?
# - Let lines jump by two days at random. What is the entropy now, and does the model reach it?
#
# In the exercises for this lesson you predict the memory and the traffic of a training run, write a schedule of
# learning rates from a blank page, and average the gradients of several workers.

# %% [numbers]
# gain = {one.run: min([one.torch[way] for way in ('eager', 'compiled', 'compiled, in CUDA graphs')]) / one.ms.p50
#         for one in series.train_step.rows}
# gptq_keeps = quantized['int4, GPTQ'].same_answers == quantized['bfloat16'].same_answers
