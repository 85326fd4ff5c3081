"""MiniLM beside PyTorch: forward passes of batches, a corpus, the ladder of its steps, and where the time goes.

    minilm()            the work of the table, in every form of a batch, and PyTorch on the same weights and inputs
    minilm_corpus()     2,000 sentences of the lessons: how many a second, padded, packed, padded to 128; texts
    minilm_ladder()     the steps of labkit.models.minilm_steps, attention in each form, what did not work
    minilm_profile()    what each launch takes, ours and PyTorch's; launches, and what one costs

Times are median forward passes of inputs on the device, in float16: in a CUDA graph, and called from Python.
The weights are those of the user's cache, or random ones of the same shape, which take as long. Without a GPU all runs
with a tiny model, without PyTorch, and shows that it works.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from labkit import cuda, device, measure
from labkit._common.errors import UserError
from labkit.device import compile_ahead, graphs, launches
from labkit.kernels.linear import layers
from labkit.kernels.matmul import half
from labkit.kernels.ops.linear import layer
from labkit.measure import corpus, time_graph, time_host
from labkit.measure.series.beside_torch import why_not
from labkit.measure.series.torch_bert import (
    TorchBert,
    called_us,
    corpus_rows,
    median_seconds,
    rust_tokenizer,
    smallest_cosine,
    torch_bert,
    torch_rows,
    torch_texts,
    truth_of,
)
from labkit.measure.timing import graph_launches
from labkit.models.configs import shapes
from labkit.models.minilm import FEW_ROWS, FORMS, HALF, Config, Kernels, MiniLM, Shape, Workspace, lay_out
from labkit.models.minilm_reference import cosines
from labkit.models.minilm_steps import ATTENTIONS, CONTROL, STEPS

TINY = Config(vocab_size=61, max_position_embeddings=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
              intermediate_size=64)
WORK = ((64, 16), (64, 128), (512, 16), (1, 16), (1, 128))  # sentences, tokens of each
OURS = {"packed": ("packed", HALF), "padded": ("padded", HALF), "few rows": ("packed", FEW_ROWS)}
CORPUS, MEAN_TOKENS = 2000, 15
COMPILING_S = 120.0  # for torch.compile, of a whole table; what it cannot do in that time is left out

# --- The model and its batches ---------------------------------------------------------------------------------------


def random_tensors(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights about as large as trained ones. They take as long to multiply as any others."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes(config).items():
        values = rng.standard_normal(shape, np.float32) * np.float32(0.05)
        tensors[name] = values + np.float32(name.endswith("LayerNorm.weight"))
    return tensors


Using = tuple[MiniLM, str]  # a model, and what its weights are


@functools.lru_cache(maxsize=1)
def _model() -> Using:
    """The model to measure where none is given."""
    if not device.on_gpu():
        return MiniLM(TINY, random_tensors(TINY), np.float16, HALF), "random, tiny"
    try:
        from labkit.models import weights
        from labkit.models.safetensors import read

        folder = weights.folder(weights.MINILM)
        return MiniLM(Config.read(folder / "config.json"), read(folder / "model.safetensors"), np.float16, HALF), "real"
    except (ImportError, UserError):
        return MiniLM(Config(), random_tensors(Config()), np.float16, HALF), "random"


def sentences_of(lengths: Iterable[int], vocabulary: int, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocabulary, count).astype(np.int32) for count in lengths]


def corpus_lengths(count: int, longest: int) -> np.ndarray:
    """Tokens of `count` sentences, sorted: about 15 on average, most of them 8 to 25, a few long ones."""
    lengths = np.random.default_rng(2).lognormal(np.log(MEAN_TOKENS) - 0.08, 0.4, count)
    return np.sort(np.clip(np.rint(lengths), 3, longest).astype(int))


def ready(model: MiniLM, sentences, form: str) -> tuple[Callable, Shape]:
    """(launch(stream) of a forward pass, its shape): the inputs are on the device, in memory of their own."""
    shape, host = lay_out(sentences, form)
    ws = Workspace(model.config, shape, model.dtype, model.kernels)
    b = ws.batch(shape)
    b.inputs.copy_to_device(host)

    def forward(stream=0):
        model.forward(b, True, stream)

    compile_ahead.prepare(launches.needed(forward))
    forward.workspace, forward.batch = ws, b  # alive as long as `forward`, which launches with them
    return forward, shape


def in_graph_us(forward: Callable) -> float:
    """Microseconds of one pass in a graph; on the CPU device, called."""
    if not device.on_gpu():
        return 1000 * time_host(forward, after=cuda.synchronize, budget_s=0.02, min_runs=1, max_runs=3).p50
    forward()
    cuda.synchronize()
    once = time_host(forward, after=cuda.synchronize, budget_s=0.05, min_runs=3).p50
    timing = time_graph(forward, launches=min(20, graph_launches(once)))
    if timing is None:
        raise RuntimeError("the pass could not be captured in a graph")
    return 1000 * timing.p50


# --- The table -------------------------------------------------------------------------------------------------------


def minilm(work=None, using: Using | None = None) -> dict:
    """Microseconds a sentence, ours in each form and PyTorch in each way; the smallest cosine between the two."""
    model, weights = using or _model()
    bert, compile_until = torch_bert(model), time.monotonic() + COMPILING_S
    rows = []
    for count, tokens in measure.steps("MiniLM", list(work or device.pick(gpu=WORK, cpu=((2, 16), (1, 16))))):
        sentences = sentences_of([tokens] * count, model.config.vocab_size)
        result = {"sentences": count, "tokens": tokens, "ours": {}, "torch": None, "cosine": None}
        for name, (form, kernels) in OURS.items():
            one = model.with_kernels(kernels)
            forward, shape = ready(one, sentences, form)
            result["ours"][name] = {"us_a_sentence": in_graph_us(forward) / count, "rows": shape.rows,
                                    "called_us_a_sentence": called_us(forward) / count}
        one = model.with_kernels(HALF)
        result["copies_too_us_a_sentence"] = called_us(lambda one=one, s=sentences: one.embed(s)) / count
        if bert is not None:
            result["torch"] = {name: value if value is None or isinstance(value, str) else value / count
                               for name, value in torch_rows(bert, sentences, tokens, compile_until).items()}
            result["cosine"] = smallest_cosine(one.embed(sentences), bert.forward(*bert.inputs(sentences, tokens)))
        rows.append(result)
    return measure.stamped({"weights": weights, "rows": rows})


# --- A corpus --------------------------------------------------------------------------------------------------------


def minilm_corpus(count: int | None = None, batches=None, using: Using | None = None,
                  compiling_s: float = COMPILING_S) -> dict:
    """Sentences a second over a corpus sorted by length, for each form and size of a batch: forward passes in graphs
    (forward), and with laying out, copies there and back from Python (embed); PyTorch padded and packed, called, in
    graphs and compiled, for at most compiling_s seconds. Beside each rate its smallest cosine with float64.

    The sentences are those of the lessons, as MiniLM's tokenizer cuts them; random ones of such lengths without it.
    """
    model, weights = using or _model()
    model = model.with_kernels(HALF)
    count = count or device.pick(gpu=CORPUS, cpu=6)
    batches = batches or device.pick(gpu=(64, 256, 1024, 2000), cpu=(4,))
    texts, sentences, source = corpus_of(model, weights, count)
    truth = truth_of(model, sentences)
    rows = []
    for form in device.pick(gpu=tuple(FORMS), cpu=("packed", "padded")):
        for size in measure.steps(f"corpus, {form}", list(batches)):
            if form == "padded_to_128" and size > 1024:
                continue
            parts = [sentences[begin : begin + size] for begin in range(0, count, size)]
            passes = [ready(model, part, form) for part in parts]

            def forward(stream=0, passes=passes):
                for one, _ in passes:
                    one(stream)

            def embed(parts=parts, form=form):
                for part in parts:
                    model.embed(part, form)

            seconds = in_graph_us(forward) / 1e6
            embeddings = np.concatenate([one.batch.pooled.copy_to_host()[: len(part)]
                                         for (one, _), part in zip(passes, parts, strict=True)])
            rows.append({"form": form, "batch": size, "rows": sum(shape.rows for _, shape in passes),
                         "sentences_per_second": count / seconds,
                         "embed_sentences_per_second": count / (called_us(embed) / 1e6),
                         "cosine": float(cosines(embeddings, truth).min())})
    bert, compile_until = torch_bert(model), time.monotonic() + compiling_s
    bert_rows = [] if bert is None else corpus_rows(bert, sentences, batches, truth, compile_until)
    mean = float(np.mean([len(one) for one in sentences]))
    return measure.stamped({"weights": weights, "corpus": source, "sentences": count, "mean_tokens": mean, "ours": rows,
                            "torch": bert_rows, "text": text_in(texts)})


def corpus_of(model: MiniLM, weights: str, count: int) -> tuple[list[str], list[np.ndarray], str]:
    """(texts, token ids of each, sorted by their length, what they are). Without MiniLM's weights its tokenizer is not
    there either: then the ids are random, and the texts those that would have been cut."""
    texts = corpus.sentences(count)
    if weights == "real":
        from labkit.models import weights as known
        from labkit.models.tokenizer import SentenceTokenizer

        ids = SentenceTokenizer.of(known.folder(known.MINILM), 128).encode(texts)
        order = np.argsort([len(one) for one in ids], kind="stable")
        return texts, [ids[i] for i in order], f"sentences of the lessons, {corpus.digest(texts)}"
    lengths = corpus_lengths(count, min(128, model.config.max_position_embeddings))
    return texts, sentences_of(lengths, model.config.vocab_size), "random tokens"


def text_in(texts: list[str]) -> dict:
    """Texts to embeddings, tokenization and all: ours, PyTorch's packed passes behind the same kind of tokenizer, and
    sentence-transformers', with its smallest cosine with ours; and our tokenization alone. Or why it was not measured.
    """
    try:
        from labkit.models import weights
        from labkit.models.sentences import Encoder

        folder = weights.folder(weights.MINILM)
        encoder = Encoder.from_pretrained("minilm")
    except Exception as error:  # no weights, no tokenizer, no library
        return {"why_not": why_not(error)}
    result = {f"ours_seconds_{size}": median_seconds(lambda size=size: encoder.encode(texts, batch_size=size))
              for size in (256, 2000)}
    result["tokenizing_seconds"] = median_seconds(lambda: encoder.tokenizer.encode(texts))
    embeddings = encoder.encode(texts, batch_size=256)
    result |= torch_texts(encoder.model, rust_tokenizer(folder, encoder.max_seq_length), texts, embeddings)
    try:
        from sentence_transformers import SentenceTransformer

        library = SentenceTransformer(str(folder), device=device.pick(gpu="cuda", cpu="cpu")).half()
        for size in (32, 256):
            result[f"library_seconds_{size}"] = median_seconds(
                lambda size=size: library.encode(texts, batch_size=size, normalize_embeddings=True,
                                                 show_progress_bar=False))
        library_embeddings = library.encode(texts, batch_size=256, normalize_embeddings=True, show_progress_bar=False)
        result["library_cosine"] = float(cosines(embeddings, np.asarray(library_embeddings)).min())
    except Exception as error:
        result["why_no_library"] = why_not(error)
    return result


# --- The ladder ------------------------------------------------------------------------------------------------------


def minilm_ladder(work=None, using: Using | None = None) -> dict:
    """Every step, and attention in each form beside the same kernels, in microseconds a sentence; what did not work."""
    model, weights = using or _model()
    work = list(work or device.pick(gpu=((64, 128), (64, 16)), cpu=((2, 16),)))
    steps = device.pick(gpu=STEPS, cpu=(STEPS[0], STEPS[-1]))
    rows, attention = [], []
    sentences = {key: sentences_of([key[1]] * key[0], model.config.vocab_size) for key in work}
    for one in measure.steps("steps of MiniLM", list(steps)):
        row = {"name": one.name, "changes": one.changes, "form": one.form, "control": CONTROL.get(one.name), "us": {}}
        form = one.form if device.on_gpu() else one.form.replace("_to_128", "")
        for (count, tokens), batch in sentences.items():
            forward, _ = ready(model.with_kernels(one.kernels), batch, form)
            row["us"][f"{count} x {tokens}"] = in_graph_us(forward) / count
            row["launches"] = graphs.capture(forward, warm_up=False).nodes
        rows.append(row)
    for name, kernels in device.pick(gpu=ATTENTIONS, cpu={"tiles": HALF}).items():
        for (count, tokens), batch in sentences.items():
            alone = _only_attention(model.with_kernels(kernels), batch, "packed")
            attention.append({"form": name, "sentences": count, "tokens": tokens, "us_a_layer": in_graph_us(alone)})
    return measure.stamped({"weights": weights, "steps": rows, "attention": attention, "failures": failures()})


def _only_attention(model: MiniLM, sentences, form: str) -> Callable:
    forward, _ = ready(model, sentences, form)
    forward()
    launches = [launch for name, launch in launches_of(model, forward.batch) if name == "attended"][:1]

    def run(stream=0):
        for launch in launches:
            launch(stream)

    run.keeps = forward
    return run


def failures() -> list[dict]:
    """The products that the write-up found slower, at MiniLM's sizes, beside what they are compared with: time and
    occupancy. (The third, the whole matrix of scores, stands among ATTENTIONS.) The hit rate of L2 is ncu's:
    python -m labkit.measure.ncu --profile minilm_products attention_sentences_half."""
    pairs = (("hand-blocked", half.matmul_half_hand_blocked, "a tile a warp", half.matmul_half_tensor_core),
             ("three stages", half.matmul_half_three_stage, "two stages", half.matmul_half_double_buffered))
    rng, rows = np.random.default_rng(0), []
    sizes = device.pick(gpu=((8192, 384, 384), (8192, 1536, 384), (8192, 384, 1536)), cpu=((16, 16, 16),))
    for M, N, K in sizes:
        a, b = (cuda.to_device(half.random_float16(rng, *shape)) for shape in ((M, K), (K, N)))
        out = cuda.device_array((M, N), np.float16)
        for name, failed, other_name, other in pairs[: device.pick(gpu=2, cpu=1)]:
            one = {"name": name, "beside": other_name, "M": M, "N": N, "K": K}
            for key, launcher in (("us", failed), ("beside_us", other)):
                one[key] = in_graph_us(lambda stream=0, f=launcher: f(a, b, out, stream=stream))  # noqa: B023
                if device.on_gpu():
                    one[key.replace("us", "resources")] = [launches.resources(each) for each in
                                                           launches.of(launcher, a, b, out)]
            rows.append(one)
    if device.on_gpu():
        x, w, bias = (cuda.to_device(array) for array in layer(rng, 8192, 1536, 384))
        out = cuda.device_array((8192, 1536), np.float16)
        rows.append({"name": "float16 accumulators", "beside": "float32 accumulators", "M": 8192, "N": 1536, "K": 384,
                     **{key: in_graph_us(lambda stream=0, f=f: f(x, w, bias, out, stream=stream)) for key, f in
                        (("us", layers.linear_f16_accumulators), ("beside_us", layers.linear_double_buffered))}})
    return rows


# --- Where the time goes ---------------------------------------------------------------------------------------------


def launches_of(model: MiniLM, b) -> list[tuple[str, Callable]]:
    """(name, launch(stream)) of every launcher's call in a forward pass, without running any; names are the same in
    each layer."""
    pending, launches = [], []

    def later(launcher):
        def record(*args, stream=0, **named):
            pending.append(lambda stream: launcher(*args, **named, stream=stream))

        return record

    def watch(name, _):
        name = ".".join(name.split(".")[2:]) if name.startswith("layer.") else name
        launches.extend((name, launch) for launch in pending)
        pending.clear()

    run: Kernels = model.kernels
    recorded = replace(run, **{name: later(getattr(run, name)) for name in
                               ("linear", "attention", "add_layernorm", "embed", "pool", "pool_normalized")})
    model.with_kernels(recorded).forward(b, watch=watch)
    return launches


def minilm_profile(work=None, using: Using | None = None) -> dict:
    """By how much a pass in a graph is shorter without each kind of launch (the CPU device: their own time); PyTorch's
    kernels by its profiler; launches, and microseconds a launch."""
    model, weights = using or _model()
    bert, passes = torch_bert(model), []
    for count, tokens in measure.steps("profile", list(work or device.pick(gpu=((64, 128), (64, 16)), cpu=((1, 16),)))):
        sentences = sentences_of([tokens] * count, model.config.vocab_size)
        forward, _ = ready(model, sentences, "packed")
        launches = launches_of(model, forward.batch)

        def together(subset):
            def run(stream=0):
                for _, launch in subset:
                    launch(stream)

            return in_graph_us(run)

        total = together(launches)
        rows = []
        for kind in dict.fromkeys(name for name, _ in launches):
            if device.on_gpu():
                us = total - together([one for one in launches if one[0] != kind])
            else:
                us = together([one for one in launches if one[0] == kind])
            rows.append({"name": kind, "count": sum(name == kind for name, _ in launches), "us_saved": us})
        nodes = graphs.capture(forward, warm_up=False).nodes
        called = called_us(forward)
        one = {"sentences": count, "tokens": tokens, "us": total, "rows": rows, "launches": nodes, "called_us": called,
               "us_a_launch": total / nodes, "called_us_a_launch": called / nodes, "torch": None}
        if bert is not None:
            one["torch"] = torch_profile(bert, sentences, tokens)
        passes.append(one)
    return measure.stamped({"weights": weights, "passes": passes})


def torch_profile(bert: TorchBert, sentences, tokens: int) -> dict:
    """PyTorch's kernels in one pass: count and microseconds of each."""
    torch = bert.torch
    ids, mask = bert.inputs(sentences, tokens)
    for _ in range(3):
        bert.forward(ids, mask)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        bert.forward(ids, mask)
        torch.cuda.synchronize()
    rows = [{"name": event.key[:80], "count": event.count, "us": float(event.self_device_time_total)}
            for event in profiler.key_averages() if getattr(event, "self_device_time_total", 0) > 0]
    rows.sort(key=lambda row: -row["us"])
    launched = sum(row["count"] for row in rows)
    called = called_us(lambda: bert.forward(ids, mask), torch.cuda.synchronize)
    return {"rows": rows, "launches": launched, "called_us": called,
            "called_us_a_launch": called / launched if launched else None}
