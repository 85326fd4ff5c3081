"""The article's end-to-end experiment: does a faster softmax make GPT-2 generate faster? And where a step's time goes.

    generation()        three prompts, greedy, with attention in steps (softmax in three launches, or in one) and as a
                        single kernel: tokens a second; and the softmax's share of a step, for Amdahl's law
    cache_curve()       the time of a token with the KV cache, and without it, over the length of the text
    step_launches()     what each launch of a step takes of its time
    gpt2_one_kernel()   a step in five launches a layer, and in one kernel
    token_times()       a greedy step with a launch for each operation, and as gpt2_step.py has it, in two types; the
                        same step in PyTorch

`labkit bench` records these on a GPU, in the shapes of distilgpt2 and GPT-2 small with random weights. Without one
they run with the tiny model that is in the repository, and show work, not speed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from labkit import cuda, device, measure
from labkit._common.errors import UserError
from labkit._common.files import read_text
from labkit.kernels.attention.three_pass import attention
from labkit.kernels.attention.unfused import attention_fused_softmax, attention_unfused
from labkit.measure import Timing, time_graph, time_host, time_launch
from labkit.measure.series.llama import say
from labkit.measure.series.one_kernel import phase_times
from labkit.measure.series.torch_gpt2 import WAYS, TorchGPT2
from labkit.models import gpt2_one_kernel as gpt2_one_kernel_of
from labkit.models import gpt2_step
from labkit.models.configs import shapes
from labkit.models.gpt2 import GPT2, Config, Decoder, Kernels, Workspace, advance_kernel
from labkit.models.gpt2_block import traffic

LENGTH = 100  # tokens of a text, prompt and all: the article's max_length
ATTENTIONS = {"unfused": attention_unfused, "fused": attention_fused_softmax, "one kernel": attention}
SOFTMAX = ("attn.scale", "attn.mask", "attn.softmax")

# The article's prompts, with the numbers that GPT-2's tokenizer gives their tokens.
PROMPTS = {
    "The future of artificial intelligence": (464, 2003, 286, 11666, 4430),
    "In a world where technology": (818, 257, 995, 810, 3037),
    "The quick brown fox": (464, 2068, 7586, 21831),
}

# Models that are made here, of random weights.
RANDOM = {"distilgpt2's shape": Config(n_layer=6), "GPT-2 small's shape": Config()}


# --- Models and prompts ----------------------------------------------------------------------------------------------


def random_tensors(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights about as large as trained ones. They take as long to multiply as any others; the text is meaningless."""
    shape_of = shapes(config)

    def made(name: str, shape: tuple, rng: np.random.Generator) -> np.ndarray:
        values = rng.standard_normal(shape, np.float32)
        values *= np.float32(0.02 if name.startswith("w") else 0.6 / np.sqrt(shape[0]) if len(shape) == 2 else 0.1)
        if name.rsplit(".", 2)[-2].startswith("ln") and name.endswith("weight"):
            values += np.float32(1)
        return values

    with ThreadPoolExecutor() as threads:  # 124 million normal numbers take one core two seconds
        arrays = threads.map(made, shape_of, shape_of.values(), np.random.default_rng(seed).spawn(len(shape_of)))
        return dict(zip(shape_of, arrays, strict=True))


@functools.lru_cache(maxsize=1)
def random_model(name: str) -> tuple[GPT2, str]:
    """One of RANDOM, and a line for the log."""
    config, began = RANDOM[name], time.perf_counter()
    model = GPT2(config, random_tensors(config))
    cuda.synchronize()
    return model, (f"{name}: {config.parameters / 1e6:.1f} M parameters, {config.n_layer} layers, {config.n_embd} "
                   f"wide, {model.weights.nbytes / 1e6:.0f} MB on the device, random, made in "
                   f"{time.perf_counter() - began:.1f} s")


def prompts_from(path, count: int = 3, words: int = 8) -> list[str]:
    """The first words of the first paragraphs of a text file, such as WikiText-2's validation text: lines that are
    empty or headings (= Title =) are passed over."""
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    texts = [" ".join(line.split()[:words]) for line in lines if line.strip() and not line.strip().startswith("=")]
    if not texts:
        raise UserError(f"{path} has no line to take a prompt from")
    return texts[:count]


# --- Writing ---------------------------------------------------------------------------------------------------------


def write_called(model: GPT2, ws: Workspace, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens, with every launch made from Python, as the article's program did."""
    ws.reset()
    token = ws.rows(1).ids
    model.prefill(prompt, ws)
    generated = []
    while True:
        model.kernels.argmax(ws.logits, token)
        generated.append(int(token.copy_to_host()[0]))
        if len(generated) == count:
            return generated
        model.decode(generated[-1], ws)


def write_graphed(model: GPT2, ws: Workspace, prompt: Sequence[int], count: int, decoder: Decoder) -> list[int]:
    """The same, with a step captured in a graph before."""
    ws.reset()
    model.prefill(prompt, ws)
    model.kernels.argmax(ws.logits, ws.rows(1).ids)
    generated = [decoder.likeliest()]
    while len(generated) < count:
        decoder()
        generated.append(decoder.likeliest())
    return generated


def race(model: GPT2, prompt: Sequence[int], count: int, *, runs: int, attentions: Iterable[str] = ATTENTIONS,
         hows: Iterable[str] = ("called", "graph")) -> list[dict]:
    """Each attention writes `count` tokens, in turn, `runs` times after a first one that does not count."""
    rows = []
    for how in hows:
        contestants, tokens, seconds = {}, {}, {name: [] for name in attentions}
        for name in attentions:
            one = model.with_kernels(Kernels(attention=ATTENTIONS[name]))
            ws = Workspace(model.config, context=min(model.config.n_positions, LENGTH + 28))
            write = write_called
            if how == "graph":
                write = functools.partial(write_graphed, decoder=Decoder(one, ws))
            contestants[name] = functools.partial(write, one, ws, prompt, count)
            tokens[name] = contestants[name]()
        for _ in range(runs if how == "graph" else (runs + 1) // 2):  # a call takes ten times as long
            for name, write in contestants.items():
                began = time.perf_counter()
                again = write()
                seconds[name].append(time.perf_counter() - began)
                if again != tokens[name]:
                    raise AssertionError(f"{name}, {how}: another text from the same prompt")
        expected = next(iter(tokens.values()))
        for name in contestants:
            p5, p50, p95 = np.percentile(seconds[name], (5, 50, 95)).tolist()
            rows.append({"attention": name, "how": how, "seconds": {"p5": p5, "p50": p50, "p95": p95},
                         "tokens_per_second": count / p50, "ms_per_token": 1000 * p50 / count,
                         "runs": len(seconds[name]), "same_tokens": tokens[name] == expected})
    return rows


def experiment(model: GPT2, prompts: Mapping[str, Sequence[int]], *, name: str, log: str, weights: str,
               length: int = LENGTH, runs: int = 5, attentions: Iterable[str] = ATTENTIONS,
               hows: Iterable[str] = ("called", "graph")) -> dict:
    """Every prompt written on until the text has `length` tokens, and the shares of a step in the middle."""
    attentions, hows = list(attentions), list(hows)
    raced = []
    for text, ids in measure.steps(f"{name}: prompt", list(prompts.items())):
        raced.append({"text": text, "prompt_tokens": len(ids), "new_tokens": length - len(ids),
                      "rows": race(model, ids, length - len(ids), runs=runs, attentions=attentions, hows=hows)})
    return {"name": name, "weights": weights, "log": log, "layers": model.config.n_layer, "width": model.config.n_embd,
            "length": length, "prompts": raced, "step": softmax_share(model, length // 2)}


def generation(models: Iterable[str] | None = None, prompts: Iterable[str] | None = None, *, length: int | None = None,
               runs: int | None = None) -> dict:
    """The experiment with each of these models: "distilgpt2's shape" and "GPT-2 small's shape", with random weights, or
    whatever labkit.models.load takes. prompts: texts; left out, the article's."""
    prompts_too = models is None  # of the whole experiment, the softmax's share of a prompt as well
    models = list(models or device.pick(gpu=("tiny", *RANDOM), cpu=("tiny",)))
    length = length or device.pick(gpu=LENGTH, cpu=32)
    runs = runs or device.pick(gpu=5, cpu=1)
    experiments = []
    for name in models:
        if name in RANDOM:
            model, log = random_model(name)
            ids, weights = PROMPTS, "random"
            if prompts is not None:
                raise UserError(f"{name} has random weights and no tokenizer; texts need a model that has one")
        else:
            from labkit.models.load import load

            loaded = load(name)
            model, log, weights = loaded.model, loaded.log, "trained"
            ids = {text: loaded.tokenizer.encode(text) for text in prompts or PROMPTS}
            for text, tokens in ids.items():
                if not 0 < len(tokens) < length:
                    raise UserError(f"the prompt {text[:40]!r} has {len(tokens)} tokens; it must have 1 to "
                                    f"{length - 1}")
        hows = device.pick(gpu=("called", "graph"), cpu=("called",))  # without a GPU a graph is a list of calls
        experiments.append(experiment(model, ids, name=name, log=log, weights=weights, runs=runs, hows=hows,
                                      length=min(length, model.config.n_positions)))
    result = {"models": experiments}
    if device.on_gpu() and prompts_too:
        model, _ = random_model("GPT-2 small's shape")
        result["prefill"] = prefill_shares(model)
    return measure.stamped(result)


# --- A step, launch by launch ----------------------------------------------------------------------------------------


def launches_of(model: GPT2, ws: Workspace, count: int = 1) -> list[tuple[str, Callable]]:
    """(name, launch(stream)) of every launch of a forward pass over `count` tokens, without running any. Names are the
    same in each layer: attn.scores, mlp.gelu, ..."""
    pending, launches = [], []

    def later(launcher, part=""):
        def record(*args, stream=0, **named):
            if hasattr(launcher, "launches"):  # of several steps
                pending.extend(launcher.launches(*args, **named))
            else:
                pending.append((part, lambda stream: launcher(*args, **named, stream=stream)))

        return record

    def watch(name, _):
        name = ".".join(name.split(".")[2:]) if name.startswith("h.") else name
        launches.extend((f"{name}.{part}" if part else name, launch) for part, launch in pending)
        pending.clear()

    run = model.kernels
    model.with_kernels(Kernels(
        layernorm=later(run.layernorm), linear=later(run.linear), attention=later(run.attention),
        append_to_cache=later(run.append_to_cache, "cache"), embedding=later(run.embedding), logits=later(run.logits),
    )).forward(ws, count, watch=watch)
    return launches


def _at(model: GPT2, position: int, count: int = 1) -> Workspace:
    """A workspace with `position` tokens in its cache (zeros), ready for `count` more."""
    ws = Workspace(model.config, context=min(model.config.n_positions, -(-(position + count) // 128) * 128),
                   tokens=count, dtype=model.dtype)
    ws.ids.copy_to_device(np.zeros(count, np.int32))
    ws.length = position
    ws.start.copy_to_device(np.array([position], np.int32))
    return ws


def _together(launches: Sequence[tuple[str, Callable]], budget_s: float = 0.1) -> Timing:
    """All of them, one after the other: in a graph, or on the CPU device as calls."""
    def run(stream=0):
        for _, launch in launches:
            launch(stream)

    if device.on_gpu():
        return time_graph(run, launches=4)
    return time_host(run, where=measure.where(), after=cuda.synchronize, budget_s=budget_s, min_runs=2, max_runs=20)


def softmax_share(model: GPT2, position: int, count: int = 1) -> dict:
    """The time of a pass over `count` tokens at this position with softmax in three launches and in one, and that of
    the softmax alone, of all layers: in a graph (the CPU device: called), and called from Python. In us."""
    result = {"position": position, "count": count}
    for name in ("unfused", "fused"):
        ws = _at(model, position, count)
        launches = launches_of(model.with_kernels(Kernels(attention=ATTENTIONS[name])), ws, count)
        softmax = [one for one in launches if one[0] in SOFTMAX]
        result[name] = {"us": 1000 * _together(launches).p50, "softmax_us": 1000 * _together(softmax).p50,
                        "launches": len(launches), "softmax_launches": len(softmax)}
        if device.on_gpu() and count == 1:
            for key, subset in (("called_us", launches), ("called_softmax_us", softmax)):
                def run(subset=subset):
                    for _, launch in subset:
                        launch(0)

                result[name][key] = 1000 * time_launch(run, launches=5).p50
    ws = _at(model, position, count)
    result["one kernel"] = {"us": 1000 * _together(launches_of(model, ws, count)).p50}
    return result


def prefill_shares(model: GPT2, lengths=(128, 512, 1024)) -> list[dict]:
    """softmax_share for prompts, where the matrix of scores is square."""
    return [softmax_share(model, 0, n) for n in measure.steps("prefill", list(lengths))]


# --- With and without the cache --------------------------------------------------------------------------------------


def cache_curve(name: str | None = None, positions=None) -> dict:
    """The time of one more token after so many: with_us from the cache; without_us by going through the
    whole text again, which is also the time of a prompt of that length."""
    model, name = _model(name)
    positions = positions or device.pick(gpu=(16, 32, 64, 128, 256, 512, 768, 1023), cpu=(4, 16, 48))
    series = {"model": name, "position": [], "with_us": [], "without_us": []}
    for position in measure.steps("with and without the cache", list(positions)):
        series["position"].append(position)
        series["with_us"].append(1000 * _together(launches_of(model, _at(model, position))).p50)
        ws = _at(model, 0, position + 1)
        series["without_us"].append(1000 * _together(launches_of(model, ws, position + 1)).p50)
    return measure.stamped(series)


def _model(name: str | None) -> tuple[GPT2, str]:
    from labkit.models.load import load

    name = name or device.pick(gpu="GPT-2 small's shape", cpu="tiny")
    return (random_model(name)[0] if name in RANDOM else load(name).model), name


# --- What each launch takes ------------------------------------------------------------------------------------------


def step_launches(name: str | None = None, positions=None) -> dict:
    """A decoding step by its launches, of all layers together. us: by how much a step in a graph is shorter without
    them (the CPU device: their own time). bytes: what they have to read and write."""
    model, name = _model(name)
    positions = positions or device.pick(gpu=(52, 1023), cpu=(52,))
    steps = []
    for position in measure.steps("launches of a step", list(positions)):
        launches = _greedy_step(model, position)
        total = _together(launches).p50
        moved = _bytes(model.config, position + 1)
        rows = []
        for kind in dict.fromkeys(one[0] for one in launches):
            if device.on_gpu():
                ms = total - _together([one for one in launches if one[0] != kind]).p50
            else:
                ms = _together([one for one in launches if one[0] == kind], budget_s=0.03).p50
            rows.append({"name": kind, "count": sum(one[0] == kind for one in launches), "us": 1000 * ms,
                         "bytes": moved.get(kind)})
        steps.append({"position": position, "us": 1000 * total, "rows": rows, "bytes": sum(moved.values())})
    return measure.stamped({"model": name, "steps": steps})


def _greedy_step(model: GPT2, position: int) -> list[tuple[str, Callable]]:
    """The launches of GPT2.step; the position stays where it is, however often they run."""
    ws = _at(model, position)
    return [*launches_of(model, ws),
            ("argmax", lambda stream: model.kernels.argmax(ws.logits, ws.rows(1).ids, stream=stream)),
            ("advance", lambda stream: advance_kernel[1, 1, stream](ws.start, np.int32(0)))]


def _bytes(config: Config, keys: int) -> dict[str, int]:
    """Of all layers together, for one token that looks at so many keys."""
    C, V = config.n_embd, config.vocab_size
    each = traffic(config.block, 1) | {"attn": 8 * C * keys + 8 * C, "attn.cache": 16 * C}
    return ({name: config.n_layer * nbytes for name, nbytes in each.items()}
            | {"embedding": 12 * C, "ln_f": 16 * C, "logits": 4 * (V * C + C + V), "argmax": 4 * V})


# --- A token in few launches -----------------------------------------------------------------------------------------

FORMS = {"a launch for each operation, float32": {"one_row": False}, "five a layer, float32": {"one_row": True},
         "five a layer, float16": {"dtype": np.float16, "one_kernel": False}}
COMPILING_S = 120.0  # for torch.compile, in the whole series; what it cannot begin in that time is left out
TOKEN = 1  # that PyTorch and we decode, to compare the logits


def token_times(model: GPT2 | None = None, positions=None) -> dict:
    """A greedy step in a graph (the CPU device: called) after so many tokens, in each of FORMS. rows: its time, its
    launches, and the bytes that it has to read; steps: what each launch takes at the last position, as step_launches
    has it. same_tokens: whether both forms in float32 write the same text. torch, torch_check: as beside_torch has
    them."""
    model, name = _model(None) if model is None else (model, "given")
    positions = tuple(positions or device.pick(gpu=(16, 128, 512, 1023), cpu=(52,)))
    tensors = {one: model.weights[one].copy_to_host() for one in model.weights}
    rows, steps, texts, models = [], [], {}, {}
    for form, options in measure.steps("forms of a step", list(FORMS.items())):
        one = GPT2(model.config, tensors, **options)
        models[one.dtype.name] = one
        for position in positions:
            launches = _fused_step(one, position) if one.one_row else _greedy_step(one, position)
            total = _together(launches).p50
            rows.append({"form": form, "position": position, "us": 1000 * total, "launches": len(launches),
                         "bytes": _token_bytes(one, position + 1)})
        if device.on_gpu():
            kinds = list(dict.fromkeys(name for name, _ in launches))
            steps.append({"form": form, "position": position, "us": 1000 * total, "rows": [
                {"name": kind, "count": sum(name == kind for name, _ in launches), "us": 1000 * (
                    total - _together([launch for launch in launches if launch[0] != kind]).p50)} for kind in kinds]})
        ws = Workspace(one.config, dtype=one.dtype)
        texts[form] = write_graphed(one, ws, [1, 2, 3], min(48, one.config.n_positions - 4), Decoder(one, ws))
    each, few = list(texts.values())[:2]
    return measure.stamped({"model": name, "rows": rows, "steps": steps, "same_tokens": each == few,
                            **beside_torch(models, torch_models(model.config, tensors), (max(positions),))})


def torch_models(config: Config, tensors: Mapping[str, np.ndarray]) -> dict[str, TorchGPT2]:
    """Make PyTorch's models, by the name of their type: none without a GPU or PyTorch."""
    torch = measure.torch_on_gpu()
    if torch is None:
        return {}
    return {dtype: TorchGPT2(torch, config, tensors, dtype) for dtype in ("float32", "float16")}


def beside_torch(models: Mapping[str, GPT2], torch_models: Mapping[str, TorchGPT2], positions: Sequence[int]) -> dict:
    """Time PyTorch's greedy step, in each of its WAYS. torch: a row for each type, position and way; torch_check: for
    each type the smallest cosine of its logits and ours. The highest position comes first, as compiling may take longer
    than COMPILING_S."""
    if not torch_models:
        return {"torch": None, "torch_check": None}
    rows, compile_until = [], time.monotonic() + COMPILING_S
    for position in measure.steps("PyTorch at position", sorted(positions, reverse=True)):
        shape = (position + 1, 2 * models["float32"].config.n_embd)
        cached = np.random.default_rng(position).standard_normal(shape, np.float32)
        logits = {dtype: _logits_after(TOKEN, one, cached) for dtype, one in models.items()}
        caches = {dtype: one.cache(cached) for dtype, one in torch_models.items()}
        for way in WAYS:
            rows += [{"dtype": dtype, "position": position,
                      **one.row(way, caches[dtype], TOKEN, logits[dtype], compile_until)}
                     for dtype, one in torch_models.items()]
    check = {dtype: min((row["cosine"] for row in rows if row["dtype"] == dtype and row["cosine"] is not None),
                        default=None) for dtype in torch_models}
    return {"torch": rows, "torch_check": check}


def _logits_after(token: int, model: GPT2, cached: np.ndarray) -> np.ndarray:
    """Decode one token with these keys and values in the cache of each layer; the last row is the token's own."""
    ws = _at(model, len(cached) - 1)
    for cache in ws.caches:
        cache[: len(cached)].copy_to_device(cached.astype(model.dtype))
    ws.ids.copy_to_device(np.array([token], np.int32))
    model.forward(ws, 1)
    return ws.logits.copy_to_host()


PHASES = ("norm_qkv", "attention", "o", "norm_mlp", "sum")  # of a layer in one kernel
ROUNDS = 3  # in each, one form after the other


def gpt2_one_kernel(positions=None, model: GPT2 | None = None) -> dict | None:
    """A step in five launches a layer and in one kernel, in graphs, in turns (the CPU device: called), in two types.
    rows: the least median of three rounds of each, the bytes that it has to read, and the largest difference of their
    logits, as a part of the largest. phases: those of the kernel at the last position, by type; attention's time
    contains the waits before and in it. None where the kernel cannot run."""
    model, name = _model(None) if model is None else (model, "given")
    positions = tuple(positions or device.pick(gpu=(16, 1023), cpu=(5,)))
    if problem := gpt2_one_kernel_of.problem(model):
        say(f"gpt2_one_kernel: {problem}")
        return None
    tensors = {one: model.weights[one].copy_to_host() for one in model.weights}
    rows, phases = [], {}
    for dtype in measure.steps("types", ["float32", "float16"]):
        forms = {form: GPT2(model.config, tensors, dtype=dtype, one_row=True, one_kernel=form == "one_kernel")
                 for form in ("launches", "one_kernel")}
        for position in positions:
            cached = np.random.default_rng(position).standard_normal((position + 1, 2 * model.config.n_embd),
                                                                     np.float32)
            theirs, ours = (_logits_after(TOKEN, one, cached) for one in forms.values())
            steps = {form: _fused_step(one, position) for form, one in forms.items()}
            medians = [{form: 1000 * _together(launches).p50 for form, launches in steps.items()}
                       for _ in range(device.pick(gpu=ROUNDS, cpu=1))]
            difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
            if not difference < 1e-3:
                raise AssertionError(f"gpt2_one_kernel: {dtype}, position {position}: logits differ by {difference}")
            rows.append({"dtype": dtype, "position": position, "largest_difference": difference,
                         "us": {form: min(one[form] for one in medians) for form in forms},
                         "launches": {form: len(launches) for form, launches in steps.items()},
                         "bytes": _token_bytes(forms["one_kernel"], position + 1)})
        phases[dtype] = _phases(forms["one_kernel"], position)
    return measure.stamped({"model": name, "rows": rows, "phases": phases})


def _phases(model: GPT2, position: int) -> dict:
    """Run a token in a kernel that records its phases; the third run is taken."""
    timed, ws = gpt2_one_kernel_of.OneKernel(model, timed=True), _at(model, position)
    for _ in range(device.pick(gpu=3, cpu=1)):
        timed.forward(ws)
    times = timed.buffers.times.copy_to_host().reshape(timed.buffers.blocks, -1)
    found = phase_times(times, model.config.n_layer, PHASES)
    del found["phases"][0]["wait_us"]  # is a part of attention
    return {key: found[key] for key in ("phases", "head_us")}


def _fused_step(model: GPT2, position: int) -> list[tuple[str, Callable]]:
    """As _greedy_step."""
    ws = _at(model, position)
    if model.one_kernel:
        return [("one kernel", lambda stream: model.one_kernel.forward(ws, stream=stream))]
    return [*((name, lambda stream, launch=launch: launch(stream=stream))
              for name, launch in gpt2_step.launches(model, ws)),
            ("argmax", lambda stream: gpt2_step.pick(ws, 0, stream=stream))]


def _token_bytes(model: GPT2, keys: int) -> int:
    """The least that a token has to read: the parameters of the layers, the table, and the keys and values so far."""
    config, C = model.config, model.config.n_embd
    return model.dtype.itemsize * (config.n_layer * (config.block.size + 2 * C * keys) + config.vocab_size * C)
