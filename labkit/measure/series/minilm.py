"""MiniLM beside PyTorch: forward passes of batches, a corpus, the ladder of its steps, and where the time goes.

    minilm()            the work of the table, in every form of a batch, and PyTorch on the same weights and inputs
    minilm_corpus()     2,000 sentences sorted by length: sentences a second, padded, packed, padded to 128
    minilm_ladder()     the steps of labkit.models.minilm_steps, attention in each form, what did not work
    minilm_profile()    what each launch takes, ours and PyTorch's; launches, and what one costs
    minilm_lengths()    time over the length that sentences are padded to

Times are forward passes of inputs that lie on the device, medians, in float16: in a CUDA graph, and called from Python.
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
from labkit.device import graphs, launches
from labkit.kernels.linear import layers
from labkit.kernels.matmul import half
from labkit.measure import time_graph, time_host
from labkit.measure.timing import graph_launches, time_torch_graph
from labkit.models.minilm import (
    FEW_ROWS,
    FORMS,
    HALF,
    Config,
    Kernels,
    MiniLM,
    Shape,
    Workspace,
    lay_out,
    names_in,
    shapes,
)
from labkit.models.minilm_reference import cosines
from labkit.models.minilm_steps import ATTENTIONS, CONTROL, STEPS

TINY = Config(vocab_size=61, max_position_embeddings=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
              intermediate_size=64)
WORK = ((64, 16), (64, 128), (512, 16), (1, 16), (1, 128))  # sentences, tokens of each
OURS = {"packed": ("packed", HALF), "padded": ("padded", HALF), "few rows": ("packed", FEW_ROWS)}
CORPUS, MEAN_TOKENS = 2000, 15

# --- The model and its batches ---------------------------------------------------------------------------------------


def random_tensors(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights about as large as trained ones. They take as long to multiply as any others."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes(config).items():
        values = rng.standard_normal(shape, np.float32) * np.float32(0.05)
        found[name] = values + np.float32(name.endswith("LayerNorm.weight"))
    return found


@functools.lru_cache(maxsize=1)
def _model() -> tuple[MiniLM, str]:
    """The model to measure, and what its weights are."""
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
    drawn = np.random.default_rng(2).lognormal(np.log(MEAN_TOKENS) - 0.08, 0.4, count)
    return np.sort(np.clip(np.rint(drawn), 3, longest).astype(int))


def ready(model: MiniLM, sentences, form: str) -> tuple[Callable, Shape]:
    """(launch(stream) of a forward pass, its shape): the inputs are on the device, in memory of their own."""
    shape, host = lay_out(sentences, form)
    ws = Workspace(model.config, shape, model.dtype, model.kernels)
    b = ws.batch(shape)
    b.inputs.copy_to_device(host)

    def forward(stream=0):
        model.forward(b, True, stream)

    forward.workspace, forward.batch = ws, b  # alive as long as what is launched with them
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


def called_us(call: Callable, after: Callable = cuda.synchronize) -> float:
    """Microseconds of one call from Python until the device is done."""
    limits = device.pick(gpu={"budget_s": 0.4, "min_runs": 10, "max_runs": 200},
                         cpu={"budget_s": 0.02, "min_runs": 1, "max_runs": 2})
    return 1000 * time_host(call, after=after, **limits).p50


# --- PyTorch on the same weights and inputs --------------------------------------------------------------------------


class TorchBert:
    """The same model of PyTorch's functions: weights and inputs are ours, padded, with a mask."""

    def __init__(self, torch, model: MiniLM, place: str = "cuda"):
        self.torch, self.config, self.place = torch, model.config, place
        self.w = {ours: torch.as_tensor(np.array(model.tensors[theirs], np.float32)).to(place, torch.float16)
                  for ours, theirs in names_in(model.tensors, model.config).items()}
        for layer in range(model.config.num_hidden_layers):
            at = f"encoder.layer.{layer}.attention.self."
            for kind in ("weight", "bias"):
                self.w[f"{at}qkv.{kind}"] = torch.cat([self.w[f"{at}{part}.{kind}"] for part in
                                                       ("query", "key", "value")])

    def inputs(self, sentences, seq: int) -> tuple:
        """(ids, mask), each (B, seq)."""
        ids, mask = (np.zeros((len(sentences), seq), np.int64) for _ in range(2))
        for row, one in enumerate(sentences):
            ids[row, : len(one)], mask[row, : len(one)] = one, 1
        return self.torch.as_tensor(ids, device=self.place), self.torch.as_tensor(mask, device=self.place).bool()

    def forward(self, ids, mask, sdpa: bool = True):
        torch, w, c = self.torch, self.w, self.config
        F = torch.nn.functional
        C, (B, S) = c.hidden_size, ids.shape

        def linear(x, name):
            return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

        def norm(x, name):
            return F.layer_norm(x, (C,), w[f"{name}.weight"], w[f"{name}.bias"], c.layer_norm_eps)

        x = F.embedding(ids, w["embeddings.word_embeddings.weight"])
        x = norm(x + w["embeddings.position_embeddings.weight"][:S] + w["embeddings.token_type_embeddings.weight"][0],
                 "embeddings.LayerNorm")
        seen = mask[:, None, None, :]
        for layer in range(c.num_hidden_layers):
            at = f"encoder.layer.{layer}."
            parts = linear(x, f"{at}attention.self.qkv").view(B, S, 3, c.num_attention_heads, -1)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            if sdpa:
                context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            else:
                scores = q @ k.transpose(-1, -2) * (C // c.num_attention_heads) ** -0.5
                context = scores.masked_fill(~seen, -65504.0).softmax(-1) @ v
            x = norm(linear(context.transpose(1, 2).reshape(B, S, C), f"{at}attention.output.dense") + x,
                     f"{at}attention.output.LayerNorm")
            x = norm(linear(F.gelu(linear(x, f"{at}intermediate.dense")), f"{at}output.dense") + x,
                     f"{at}output.LayerNorm")
        weights = mask[..., None].to(x.dtype)
        mean = (x * weights).sum(1).float() / weights.sum(1).float().clamp(min=1)
        return F.normalize(mean, dim=1)


def torch_bert() -> TorchBert | None:
    torch = measure.import_library("torch") if device.on_gpu() else None
    if torch is None:
        return None
    torch.set_grad_enabled(False)
    return TorchBert(torch, _model()[0])


def torch_rows(bert: TorchBert, sentences, seq: int) -> dict[str, float | None]:
    """Microseconds of a pass, each way called from Python and in a CUDA graph."""
    torch = bert.torch
    ids, mask = bert.inputs(sentences, seq)
    found: dict[str, float | None] = {}

    def both(name, call):
        try:
            call()
            found[name] = called_us(call, torch.cuda.synchronize)
            timing = time_torch_graph(call, launches=4)
            found[f"{name}, in a graph"] = None if timing is None else 1000 * timing.p50
        except Exception as error:  # what cannot be compiled here must not cost the other rows
            found[name] = None
            found[f"{name}: why not"] = f"{type(error).__name__}: {error}"[:200]

    both("eager", lambda: bert.forward(ids, mask, sdpa=False))
    both("SDPA", lambda: bert.forward(ids, mask))
    torch._dynamo.reset()
    compiled = torch.compile(bert.forward, dynamic=False)
    both("compiled", lambda: compiled(ids, mask))
    both("three lines", transformers_call(bert, ids, mask))
    return found


def transformers_call(bert: TorchBert, ids, mask, compiled: bool = True) -> Callable:
    """What a user writes: the library's model in half precision on the GPU, compiled, and a mean."""
    torch = bert.torch

    @functools.cache
    def model():
        import transformers

        fields = {name: getattr(bert.config, name) for name in Config.__dataclass_fields__}
        with torch.device(bert.place):
            made = transformers.BertModel(transformers.BertConfig(**fields), add_pooling_layer=False).half().eval()
        made.load_state_dict({name: bert.w[name] for name in shapes(bert.config)}, strict=False)
        return torch.compile(made) if compiled else made

    def call():
        hidden = model()(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return torch.nn.functional.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1)

    return call


def smallest_cosine(ours: np.ndarray, theirs) -> float:
    return float(cosines(ours, theirs.double().cpu().numpy()).min())


# --- The table -------------------------------------------------------------------------------------------------------


def minilm(work=None) -> dict:
    """Microseconds a sentence, ours in each form and PyTorch in each way; the smallest cosine between the two."""
    model, weights = _model()
    bert = torch_bert()
    rows = []
    for count, tokens in measure.steps("MiniLM", list(work or device.pick(gpu=WORK, cpu=((2, 16), (1, 16))))):
        sentences = sentences_of([tokens] * count, model.config.vocab_size)
        found = {"sentences": count, "tokens": tokens, "ours": {}, "torch": None, "cosine": None}
        for name, (form, kernels) in OURS.items():
            one = model.with_kernels(kernels)
            forward, shape = ready(one, sentences, form)
            found["ours"][name] = {"us_a_sentence": in_graph_us(forward) / count, "rows": shape.rows,
                                   "called_us_a_sentence": called_us(forward) / count}
        one = model.with_kernels(HALF)
        found["copies_too_us_a_sentence"] = called_us(lambda one=one, s=sentences: one.embed(s)) / count
        if bert is not None:
            found["torch"] = {name: value if value is None or isinstance(value, str) else value / count
                              for name, value in torch_rows(bert, sentences, tokens).items()}
            found["cosine"] = smallest_cosine(one.embed(sentences), bert.forward(*bert.inputs(sentences, tokens)))
        rows.append(found)
    return measure.stamped({"weights": weights, "rows": rows})


# --- A corpus --------------------------------------------------------------------------------------------------------


def minilm_corpus(count: int | None = None, batches=None) -> dict:
    """Sentences a second over a corpus sorted by length, for each form and size of a batch: forward passes in graphs
    (forward), and with laying out, copies there and back from Python (embed); PyTorch called and in graphs."""
    model, weights = _model()
    model = model.with_kernels(HALF)
    count = count or device.pick(gpu=CORPUS, cpu=6)
    batches = batches or device.pick(gpu=(64, 256, 1024, 2000), cpu=(4,))
    sentences = sentences_of(corpus_lengths(count, min(128, model.config.max_position_embeddings)),
                             model.config.vocab_size)
    rows = []
    for form in device.pick(gpu=tuple(FORMS), cpu=("packed", "padded")):
        for size in measure.steps(f"corpus, {form}", list(batches)):
            if form == "padded_to_128" and size > 1024:
                continue
            parts = [sentences[first : first + size] for first in range(0, count, size)]
            passes = [ready(model, part, form) for part in parts]

            def forward(stream=0, passes=passes):
                for one, _ in passes:
                    one(stream)

            def embed(parts=parts, form=form):
                for part in parts:
                    model.embed(part, form)

            seconds = in_graph_us(forward) / 1e6
            rows.append({"form": form, "batch": size, "rows": sum(shape.rows for _, shape in passes),
                         "sentences_per_second": count / seconds,
                         "embed_sentences_per_second": count / (called_us(embed) / 1e6)})
    bert, theirs = torch_bert(), []
    for size in batches if bert is not None else ():
        parts = [bert.inputs(part, -(-max(map(len, part)) // 8) * 8)
                 for part in (sentences[first : first + size] for first in range(0, count, size))]

        def run(parts=parts):
            for ids, mask in parts:
                bert.forward(ids, mask)

        timing = time_torch_graph(run, launches=1)
        called = called_us(run, bert.torch.cuda.synchronize)
        theirs.append({"batch": size, "called_sentences_per_second": 1e6 * count / called,
                       "graph_sentences_per_second": None if timing is None else 1000 * count / timing.p50})
    mean = float(np.mean([len(one) for one in sentences]))
    return measure.stamped({"weights": weights, "sentences": count, "mean_tokens": mean, "ours": rows, "torch": theirs,
                            "text": text_in(count)})


def text_in(count: int) -> dict:
    """Texts to embeddings, tokenization and all, ours and sentence-transformers'; or why it was not measured."""
    try:
        from labkit.models import weights
        from labkit.models.sentences import Encoder

        folder = weights.folder(weights.MINILM)
        encoder = Encoder.from_pretrained("minilm")
    except Exception as error:  # no weights, no tokenizer, no library
        return {"why_not": f"{type(error).__name__}: {error}"[:200]}
    words = ("kernel", "reads", "each", "row", "of", "the", "matrix", "and", "writes", "one", "number", "a", "warp")
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(words, count)) for count in corpus_lengths(count, 100)]
    found = {"ours_seconds": _best_seconds(lambda: encoder.encode(texts, batch_size=256))}
    try:
        from sentence_transformers import SentenceTransformer

        library = SentenceTransformer(str(folder), device=device.pick(gpu="cuda", cpu="cpu")).half()
        for size in (32, 256):
            found[f"library_seconds_{size}"] = _best_seconds(
                lambda size=size: library.encode(texts, batch_size=size, normalize_embeddings=True))
    except Exception as error:
        found["why_no_library"] = f"{type(error).__name__}: {error}"[:200]
    return found


def _best_seconds(call: Callable, runs: int = 3) -> float:
    call()
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


# --- The ladder ------------------------------------------------------------------------------------------------------


def minilm_ladder(work=None) -> dict:
    """Every step, and attention in each form beside the same kernels, in microseconds a sentence; what did not work."""
    model, weights = _model()
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
    found = [launch for name, launch in launches_of(model, forward.batch) if name == "attended"][:1]

    def run(stream=0):
        for launch in found:
            launch(stream)

    run.keeps = forward
    return run


def failures() -> list[dict]:
    """What the write-up found slower, at MiniLM's sizes, beside what it is compared with: time, occupancy. The hit rate
    of L2 is ncu's: python -m labkit.measure.ncu --profile matmul_half attention_sentences_half."""
    pairs = (("hand-blocked", half.matmul_half_hand_blocked, "a tile a warp", half.matmul_half_tensor_core),
             ("three stages", half.matmul_half_three_stage, "two stages", half.matmul_half_double_buffered))
    rng, found = np.random.default_rng(0), []
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
            found.append(one)
    if device.on_gpu():
        x, w, bias = (cuda.to_device(array) for array in layers.layer(rng, 8192, 1536, 384))
        out = cuda.device_array((8192, 1536), np.float16)
        found.append({"name": "float16 accumulators", "beside": "float32 accumulators", "M": 8192, "N": 1536, "K": 384,
                      **{key: in_graph_us(lambda stream=0, f=f: f(x, w, bias, out, stream=stream)) for key, f in
                         (("us", layers.linear_f16_accumulators), ("beside_us", layers.linear_double_buffered))}})
    return found


# --- Where the time goes ---------------------------------------------------------------------------------------------


def launches_of(model: MiniLM, b) -> list[tuple[str, Callable]]:
    """(name, launch(stream)) of every launcher's call in a forward pass, without running any; names are the same in
    each layer."""
    pending, found = [], []

    def later(launcher):
        def record(*args, stream=0, **named):
            pending.append(lambda stream: launcher(*args, **named, stream=stream))

        return record

    def watch(name, _):
        name = ".".join(name.split(".")[2:]) if name.startswith("layer.") else name
        found.extend((name, launch) for launch in pending)
        pending.clear()

    run: Kernels = model.kernels
    recorded = replace(run, **{name: later(getattr(run, name)) for name in
                               ("linear", "attention", "add_layernorm", "embed", "pool", "pool_normalized")})
    model.with_kernels(recorded).forward(b, watch=watch)
    return found


def minilm_profile(work=None) -> dict:
    """By how much a pass in a graph is shorter without each kind of launch (the CPU device: their own time); PyTorch's
    kernels by its profiler; launches, and microseconds a launch."""
    model, weights = _model()
    bert, found = torch_bert(), []
    for count, tokens in measure.steps("profile", list(work or device.pick(gpu=((64, 128), (64, 16)), cpu=((1, 16),)))):
        sentences = sentences_of([tokens] * count, model.config.vocab_size)
        forward, _ = ready(model, sentences, "packed")
        all_of_it = launches_of(model, forward.batch)

        def together(some):
            def run(stream=0):
                for _, launch in some:
                    launch(stream)

            return in_graph_us(run)

        whole = together(all_of_it)
        rows = []
        for kind in dict.fromkeys(name for name, _ in all_of_it):
            if device.on_gpu():
                us = whole - together([one for one in all_of_it if one[0] != kind])
            else:
                us = together([one for one in all_of_it if one[0] == kind])
            rows.append({"name": kind, "count": sum(name == kind for name, _ in all_of_it), "us_saved": us})
        nodes = graphs.capture(forward, warm_up=False).nodes
        called = called_us(forward)
        one = {"sentences": count, "tokens": tokens, "us": whole, "rows": rows, "launches": nodes, "called_us": called,
               "us_a_launch": whole / nodes, "called_us_a_launch": called / nodes, "torch": None}
        if bert is not None:
            one["torch"] = torch_profile(bert, sentences, tokens)
        found.append(one)
    return measure.stamped({"weights": weights, "passes": found})


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


def minilm_lengths(lengths=None, count: int | None = None) -> dict:
    """Microseconds a sentence over the length that all are padded to, ours and PyTorch's, in graphs."""
    model, weights = _model()
    bert, count = torch_bert(), count or device.pick(gpu=64, cpu=1)
    lengths = list(lengths or device.pick(gpu=(16, 32, 48, 64, 96, 128, 192, 256), cpu=(16, 32)))
    series = {"weights": weights, "sentences": count, "tokens": lengths, "ours_us": [],
                    "torch_us": [] if bert is not None else None}
    for tokens in measure.steps("lengths", lengths):
        sentences = sentences_of([tokens] * count, model.config.vocab_size)
        series["ours_us"].append(in_graph_us(ready(model, sentences, "padded")[0]) / count)
        if bert is not None:
            inputs = bert.inputs(sentences, tokens)
            timing = time_torch_graph(lambda inputs=inputs: bert.forward(*inputs), launches=4)
            series["torch_us"].append(None if timing is None else 1000 * timing.p50 / count)
    return measure.stamped(series)
