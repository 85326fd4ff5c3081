"""Steps of a Llama beside PyTorch's, in the shape of Llama 3.2 1B with random weights in bfloat16.

    llama_decode()      one token of 1 to 256 sequences with 1,024 tokens each, drawn greedily: the engine's graph
    llama_prefill()     prompts of 1,024 and 4,096 tokens

`labkit bench` records them on a GPU. Without one they run with a tiny model and without PyTorch, and show that it
works.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from labkit import cuda, device, measure
from labkit.device import compile_ahead, launches
from labkit.engine.block_manager import BlockManager
from labkit.engine.model_runner import ModelRunner
from labkit.engine.outputs import Sampled
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler, Step
from labkit.engine.sequence import Request
from labkit.kernels.attention.pages import cache_shape, pages_for
from labkit.kernels.dtypes import bfloat16_of
from labkit.kernels.elements import ELEMENTS
from labkit.measure import roofline, time_graph, time_host
from labkit.measure.series.torch_llama import TorchLlama
from labkit.measure.timing import time_replay
from labkit.models.configs import HEAD, LLAMA_3_2_1B, LlamaConfig, shapes
from labkit.models.dtypes import DTYPES
from labkit.models.llama import Cache, Config, Llama, Workspace
from labkit.models.llama_reference import activations, weights_of
from labkit.models.minilm_reference import cosines
from labkit.models.safetensors import Entry, Named
from labkit.models.step import Inputs, Piece

TINY = Config(vocab_size=61, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
              num_key_value_heads=1, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=True)
SEQUENCES, TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256), 1024
COMPARED = (1, 32, 256)  # sequences at which PyTorch runs, too
PROMPTS = (1024, 4096)
WORST = 4  # sequences that are computed in float32 as well: those in which our logits and PyTorch's differ most
COMPILING_S = 60.0  # for torch.compile, of a whole series; what it cannot begin in that time is left out
BLOCK = 1_000_003  # normal numbers that all weights are made of: a prime, so that no two rows of a matrix are alike


def say(line: str) -> None:
    """A line of progress: these series are taken on machines without a terminal."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


# --- A model of random weights ---------------------------------------------------------------------------------------


class RandomTensors(Named):
    """The weights of a Llama as a file would hold them, in bfloat16: one block of normal numbers over and over, which
    takes as long to multiply as trained ones, and seconds to make instead of minutes. Norms are ones."""

    def __init__(self, config: Config, seed: int = 0):
        values = np.random.default_rng(seed).standard_normal(BLOCK, np.float32)
        self._block = bfloat16_of(values / np.float32(math.sqrt(config.hidden_size)))
        self.entries, end = {}, 0
        for name, shape in shapes(config).items():
            begin, end = end, end + 2 * math.prod(shape)
            name = name if name == HEAD else LlamaConfig.prefix + name
            self.entries[name] = Entry(name, "BF16", tuple(shape), begin, end)

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        if len(entry.shape) == 1:
            return np.full(entry.shape, bfloat16_of(np.ones(1))[0])
        return repeated(self._block, entry.begin // 2, entry.shape)


def repeated(block: np.ndarray, begin: int, shape: tuple) -> np.ndarray:
    """Fill an array with a block over and over, from its element `begin` on, which may lie in a later repetition."""
    begin %= block.size
    return np.resize(np.concatenate([block[begin:], block[:begin]]), shape)


def config_here() -> Config:
    return device.pick(gpu=LLAMA_3_2_1B, cpu=TINY)


@functools.lru_cache(maxsize=1)
def random_model() -> Llama:
    """The one to measure here: of the shape of Llama 3.2 1B, or tiny without a GPU."""
    began, config = time.perf_counter(), config_here()
    model = Llama(config, RandomTensors(config), "bfloat16", positions=min(8192, config.max_position_embeddings))
    cuda.synchronize()
    say(f"random weights, {model.weights.nbytes / 1e9:.2f} GB on the device in {time.perf_counter() - began:.1f} s")
    return model


@functools.lru_cache(maxsize=1)
def torch_model() -> TorchLlama | None:
    """PyTorch's model on the same weights; None without a GPU or PyTorch."""
    torch = measure.torch_on_gpu()
    if torch is None:
        return None
    torch.set_grad_enabled(False)
    return TorchLlama(torch, config_here(), random_model().tensors)


def weight_bytes(config: Config) -> int:
    """What a step reads of the weights: all layers and the head; of the embedding's table only some rows."""
    layers = config.num_hidden_layers * sum(map(math.prod, config.layer_parameters.values()))
    return 2 * (layers + config.hidden_size + config.vocab_size * config.hidden_size)


def cache_bytes(config: Config, tokens: int) -> int:
    """Keys and values of so many tokens, in all layers."""
    return 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * tokens


def random_cache(config: Config, pages: int) -> np.ndarray:
    """Keys or values of a layer, (pages, K, PAGE, D) bfloat16."""
    values = np.random.default_rng(3).standard_normal(BLOCK, np.float32)
    return np.resize(bfloat16_of(values), cache_shape(pages, config.num_key_value_heads, config.head_dim))


def roundings_from_float64(model: Llama, contexts: Sequence[int] = (40, 1, 17)) -> float:
    """The largest error of a logit against NumPy in float64, for one more token of sequences of such lengths: as a part
    of the largest logit, in units of the rounding of the model's type. A right model is a few units away."""
    config, width, pages = model.config, pages_for(max(contexts)), sum(map(pages_for, contexts))
    cache, inputs = Cache(config, pages, model.dtype), Inputs(sum(contexts), len(contexts), width)
    workspace = Workspace(config, sum(contexts), len(contexts), model.dtype)
    rng, order = np.random.default_rng(0), np.random.default_rng(1).permutation(pages).tolist()
    prompts = [rng.integers(0, config.vocab_size, count) for count in contexts]
    owned = [[order.pop() for _ in range(pages_for(count))] for count in contexts]
    for prompt, own in zip(prompts, owned, strict=True):
        if len(prompt) > 1:
            model.forward(inputs.step([Piece(prompt[:-1], 0, own)]), cache, workspace)
    pieces = [Piece(prompt[-1:], len(prompt) - 1, own) for prompt, own in zip(prompts, owned, strict=True)]
    logits = model.forward(inputs.step(pieces), cache, workspace).copy_to_host()
    weights = weights_of(model.tensors, config, model.dtype)
    truth = np.array([activations(config, weights, prompt)["logits"][-1] for prompt in prompts])
    eps = ELEMENTS[np.dtype(DTYPES[model.dtype])].eps
    return float(np.abs(logits - truth).max() / np.abs(truth).max() / eps)


# --- Decoding --------------------------------------------------------------------------------------------------------


def decoding(runner: ModelRunner, sequences: int, tokens: int) -> Step:
    """A step in which each sequence computes its token number `tokens`; its pages lie anywhere."""
    scheduler = Scheduler(BlockManager(runner.num_pages, prefix_caching=False), max_num_seqs=sequences,
                          max_num_batched_tokens=sequences * tokens)
    rng = np.random.default_rng(sequences)
    for i in range(sequences):
        prompt = rng.integers(0, runner.model.config.vocab_size, tokens - 1)
        scheduler.add(Request(str(i), prompt, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True),
                              max_length=tokens + 1))
    scheduled = scheduler.schedule()  # is not run: the cache holds other numbers, which take as long
    scheduler.receive(scheduled, [Sampled(int(token)) for token in
                                  rng.integers(0, runner.model.config.vocab_size, sequences)])
    step, order = scheduler.schedule(), rng.permutation(runner.num_pages)
    for chunk in step.chunks:
        chunk.sequence.pages = order[chunk.sequence.pages].tolist()
    return step


def prepared(model: Llama, sequences: Sequence[int], tokens: int) -> tuple[ModelRunner, np.ndarray, dict[int, Step]]:
    """A runner for steps of these numbers of sequences, its kernels compiled; what its cache is filled with; steps."""
    pages = max(sequences) * (pages_for(tokens) + 1)  # the scheduler wants one to be free for each that runs
    runner = ModelRunner(model, num_pages=pages, max_num_seqs=max(sequences), max_num_batched_tokens=max(sequences),
                         max_model_len=tokens + 1)
    pool = random_cache(model.config, pages)
    runner.fill_cache(pool)
    steps = {count: decoding(runner, count, tokens) for count in sequences}
    needed = [one for step in steps.values() for one in launches.needed(lambda step=step: runner.launch(step))]
    say(f"{pages:,} pages filled; {compile_ahead.prepare(needed)} kernels compiled")
    return runner, pool, steps


def llama_decode(sequences: Sequence[int] | None = None, tokens: int | None = None,
                 compared: Sequence[int] = COMPARED) -> dict:
    """Milliseconds of a step: its graph, and from Python with the copies there and back; PyTorch in graphs; bytes."""
    config, model = config_here(), random_model()
    sequences = list(sequences or device.pick(gpu=SEQUENCES, cpu=(1, 3)))
    tokens = tokens or device.pick(gpu=TOKENS, cpu=20)
    runner, pool, steps = prepared(model, sequences, tokens)
    rows, compile_until = [], time.monotonic() + COMPILING_S
    for count, step in steps.items():
        if torch_model() is not None and count in compared:  # steps before have written their tokens into these pages
            runner.fill_cache(pool)
        sampled_tokens = [sampled.token for sampled in runner.launch(step).tokens()]
        graph, logits = runner.captured(count)
        ms = _replayed_ms(graph)
        limits = device.pick(gpu={"budget_s": 0.3, "max_runs": 100}, cpu={"budget_s": 0.02, "min_runs": 1,
                                                                          "max_runs": 2})
        called = time_host(lambda step=step: runner.launch(step).tokens(), **limits)
        nbytes = weight_bytes(config) + cache_bytes(config, count * tokens)
        row = {"sequences": count, "ms": ms, "called_ms": called.p50, "launches": graph.nodes, "bytes": nbytes,
               "torch": None, "cosine": None}
        if device.on_gpu():
            row |= {"gbs": nbytes / ms["p50"] / 1e6, "bound_ms": nbytes / roofline.limits().bandwidth_gbs / 1e6}
        if torch_model() is not None and count in compared:
            row |= _beside_torch(torch_model(), step, pool, tokens, logits, sampled_tokens, compile_until)
        say(f"llama_decode: {count} sequences, {ms['p50']:.3f} ms in a graph, {called.p50:.3f} called, "
            f"{row.get('bound_ms', 0):.3f} by its bytes; PyTorch {row['torch']}, cosine {row['cosine']}")
        rows.append(row)
    return measure.stamped({"weights": "random", "shape": config.size, "tokens": tokens, "rows": rows})


def _replayed_ms(graph) -> dict:
    if device.on_gpu():
        timing = time_replay(graph.launch, 1, 30)
    else:
        timing = time_host(graph.launch, after=cuda.synchronize, budget_s=0.02, min_runs=1, max_runs=3)
    return asdict(timing)


def contiguous(pool: np.ndarray, step: Step, tokens: int) -> np.ndarray:
    """(B, K, tokens, D): what the pages of each of the step's sequences hold, end to end."""
    pages = np.array([chunk.sequence.pages for chunk in step.chunks])
    B, _, (_, K, _, D) = *pages.shape, pool.shape
    return np.ascontiguousarray(pool[pages].transpose(0, 2, 1, 3, 4).reshape(B, K, -1, D)[:, :, :tokens])


def _beside_torch(one: TorchLlama, step: Step, pool: np.ndarray, tokens: int, logits, sampled: list[int],
                  compile_until: float) -> dict:
    """The times of PyTorch's step, on a cache of the same numbers; the smallest cosine of its logits and ours, and the
    part of the sequences for which both took the same token. For the sequences in which the two differ most the same
    step in float32 as well: "to_float32" has its smallest cosine with each."""
    ids = np.array([[chunk.sequence.tokens[-1]] for chunk in step.chunks])
    keys, pos = contiguous(pool, step, tokens), np.array([tokens - 1])
    cache = one.cache(keys)
    torch_logits, likeliest = one.call(ids, pos, cache)()
    labkit_logits, torch_logits = logits.copy_to_host()[: len(ids)], torch_logits.double().cpu().numpy()
    similarity = cosines(labkit_logits, torch_logits)
    result = {"torch": one.rows(ids, pos, cache, compile_until), "cosine": float(similarity.min()),
              "same_tokens": float(np.mean(likeliest.cpu().numpy() == np.array(sampled)))}
    del cache
    worst, wide = np.argsort(similarity)[:WORST], one.widened()
    exact, _ = wide.call(ids[worst], pos, [tuple(part.float() for part in layer) for layer in one.cache(keys[worst])])()
    exact = exact.double().cpu().numpy()
    result["to_float32"] = {"ours": float(cosines(labkit_logits[worst], exact).min()),
                            "torch": float(cosines(torch_logits[worst], exact).min())}
    del wide
    one.torch.cuda.empty_cache()
    return result


# --- Prompts ---------------------------------------------------------------------------------------------------------


def prefill_flops(config: Config, tokens: int) -> int:
    """Return the flops of all products of a prompt, with the logits of its last token; of attention, unmasked ones."""
    weights = sum(math.prod(shape) for shape in config.layer_parameters.values() if len(shape) == 2)
    attention = 2 * tokens * (tokens + 1) * config.num_attention_heads * config.head_dim
    return (config.num_hidden_layers * (2 * tokens * weights + attention)
            + 2 * config.vocab_size * config.hidden_size)


def llama_prefill(prompts: Sequence[int] | None = None) -> dict:
    """Milliseconds from a prompt's ids to the logits after its last token, in one step: in a graph, and called launch
    by launch, as the engine does; PyTorch in graphs."""
    config, model = config_here(), random_model()
    prompts = list(prompts or device.pick(gpu=PROMPTS, cpu=(5, 20)))
    pages, rng = pages_for(max(prompts)), np.random.default_rng(5)
    cache, inputs = Cache(config, pages, model.dtype), Inputs(max(prompts), 1, pages)
    workspace = Workspace(config, max(prompts), 1, model.dtype)
    rows, compile_until = [], time.monotonic() + COMPILING_S
    for count in prompts:
        ids = rng.integers(0, config.vocab_size, count)
        step = inputs.step([Piece(ids, 0, rng.permutation(pages)[: pages_for(count)].tolist())])
        compiled = compile_ahead.prepare(model.needed(step, cache, workspace))

        def forward(stream=0, step=step):
            return model.forward(step, cache, workspace, stream=stream)

        logits = forward().copy_to_host()
        limits = device.pick(gpu={"budget_s": 0.5, "max_runs": 50}, cpu={"budget_s": 0.02, "min_runs": 1,
                                                                         "max_runs": 2})
        called = time_host(forward, after=cuda.synchronize, **limits)
        timing = time_graph(forward, launches=2) if device.on_gpu() else called
        if timing is None:
            raise RuntimeError("the step could not be captured in a graph")
        flops = prefill_flops(config, count)
        row = {"tokens": count, "ms": asdict(timing), "called_ms": called.p50, "flops": flops, "torch": None,
               "cosine": None}
        if device.on_gpu():
            row["tflops"] = flops / timing.p50 / 1e9
        one = torch_model()
        if one is not None:
            zeros_cache = np.zeros((1, config.num_key_value_heads, count, config.head_dim), np.uint16)
            torch_cache = one.cache(zeros_cache)
            torch_logits, _ = one.call(ids[None], np.arange(count), torch_cache)()
            row["torch"] = one.rows(ids[None], np.arange(count), torch_cache, compile_until)
            row["cosine"] = float(cosines(logits, torch_logits.double().cpu().numpy()).min())
        say(f"llama_prefill: {count:,} tokens, {compiled} kernels compiled; {timing.p50:.2f} ms in a graph, "
            f"{called.p50:.2f} called; PyTorch {row['torch']}, cosine {row['cosine']}")
        rows.append(row)
    return measure.stamped({"weights": "random", "shape": config.size, "rows": rows})
