"""`labkit report minilm`: the sentence encoder beside PyTorch as one page, measured here and recorded on a GPU.

    loaded = load()                                     # the published weights, or random ones where they are missing
    page.write(path, lambda: page_of(loaded))           # parity, times of every form, launches, time over length
    page.write(path, lambda: page_of(loaded, pairs))    # and Spearman's correlation on pairs of sts.read
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit import device, measure
from labkit._common.paths import REPOSITORY
from labkit._common.tables import PlainTable, number
from labkit.measure import comparisons, sts, targets
from labkit.measure import ncu as counters
from labkit.measure.page import Badge, Folded, Page, Section, written_badge
from labkit.measure.plots import minilm as pictures
from labkit.measure.series import minilm as experiment
from labkit.models import weights
from labkit.models.minilm import Config, MiniLM
from labkit.models.minilm_reference import cosines, embeddings, weights_of

SERIES = ("minilm", "minilm_corpus", "minilm_ladder", "minilm_profile", "minilm_lengths")
TYPES = {"float32": (np.float32, 0.99999), "float16": (np.float16, 0.9999)}  # and the cosine that is asked for
FORMS = {"packed": "packed", "padded": "padded", "padded to 128": "padded_to_128"}
GOLDEN = REPOSITORY / "tests" / "golden" / "minilm"
MADE_UP = Config()  # the shape of a model without weights
SHORT, FEW = 16, 12  # for parity on the CPU device: tokens of the longest sentence, and about how many sentences
# The write-up's ladder: milliseconds a sentence on an RTX 3090, 64 sentences, of 128 tokens but for the last step.
THEIR_LADDER = {"simple": 0.225, "cp.async": 0.140, "one product": 0.118, "warp LayerNorm": 0.109, "GELU fused": 0.102,
                "scores in registers": 0.101, "float16 accumulators": 0.091, "no padding to 128": 0.015}
NOT_GPU = "These are times of the CPU device: they show that it works, and say nothing about a GPU's speed."


@dataclass(frozen=True)
class Loaded:
    """A model's files. encoder: with `encode`, None where the weights are made up, which have no tokenizer.
    published: its weights are those of all-MiniLM-L6-v2, to the byte."""

    name: str
    config: Config
    tensors: Mapping[str, np.ndarray]
    encoder: object | None = None
    published: bool = False
    seconds: float = 0.0
    models: dict[str, MiniLM] = field(default_factory=dict)  # those made so far, by type

    @property
    def weights(self) -> str:
        return "real" if self.encoder is not None else "random"

    def model(self, type_name: str) -> MiniLM:
        if type_name not in self.models:
            dtype = TYPES[type_name][0]
            ready = self.encoder is not None and self.encoder.model.dtype == dtype
            self.models[type_name] = self.encoder.model if ready else MiniLM(self.config, self.tensors, dtype)
        return self.models[type_name]


def load(name: str | None = None) -> Loaded:
    """`name`: "minilm", a folder, or a name on the hub. Left out, the published weights if they are in the user's
    cache, else random ones of the same shape."""
    began = time.perf_counter()
    if name is None and not weights.is_there(weights.MINILM):
        return Loaded("made up here", MADE_UP, experiment.random_tensors(MADE_UP),
                      seconds=time.perf_counter() - began)
    from labkit.models.sentences import Encoder, folder_of

    folder = folder_of(name or weights.MINILM.name)
    encoder = Encoder.from_pretrained(folder)
    seconds = time.perf_counter() - began
    published = "model.safetensors" not in weights.wrong_files(weights.MINILM, folder)
    return Loaded(name or weights.MINILM.repository, encoder.model.config, encoder.model.tensors, encoder, published,
                  seconds)


# --- Measured here ---------------------------------------------------------------------------------------------------


def work_here(config: Config) -> list[tuple[int, int]]:
    """(sentences, tokens) of the batches that are timed on this device."""
    work = device.pick(gpu=experiment.WORK, cpu=((1, 16), (2, 16), (1, 64)))
    return [(count, tokens) for count, tokens in work if tokens <= config.max_position_embeddings]


def times_here(loaded: Loaded) -> list[dict]:
    """Microseconds a sentence of every form in both types: in a graph (the CPU device: called), and from Python."""
    rows = []
    for type_name in TYPES:
        model = loaded.model(type_name)
        for count, tokens in measure.steps(f"times, {type_name}", work_here(loaded.config)):
            sentences = experiment.sentences_of([tokens] * count, loaded.config.vocab_size)
            for name, form in FORMS.items():
                if form == "padded_to_128" and loaded.config.max_position_embeddings < 128:
                    continue
                forward, shape = experiment.ready(model, sentences, form)
                us = experiment.in_graph_us(forward) / count
                called = experiment.called_us(forward) / count if device.on_gpu() else us
                rows.append({"sentences": count, "tokens": tokens, "work": f"{count} × {tokens}", "form": name,
                             "type": type_name, "us": us, "called_us": called, "rows": shape.rows})
    return rows


def torch_here(loaded: Loaded) -> list[dict]:
    """PyTorch on the same weights and inputs in every way to run it; empty without a GPU or PyTorch."""
    bert = experiment.torch_bert(loaded.model("float16"))
    compile_until = time.monotonic() + experiment.COMPILING_S
    rows = []
    for count, tokens in measure.steps("PyTorch", work_here(loaded.config) if bert is not None else []):
        sentences = experiment.sentences_of([tokens] * count, loaded.config.vocab_size)
        rows.append({"sentences": count, "tokens": tokens,
                     "ways": experiment.torch_rows(bert, sentences, tokens, compile_until)})
    return rows


def measure_here(loaded: Loaded) -> dict:
    type_name = device.pick(gpu="float16", cpu="float32")
    using = loaded.model(type_name), loaded.weights
    longest = loaded.config.max_position_embeddings
    lengths = [n for n in device.pick(gpu=(16, 32, 48, 64, 96, 128, 192, 256), cpu=(16, 32, 64, 96)) if n <= longest]
    return {"times": times_here(loaded), "torch": torch_here(loaded),
            "profile": experiment.minilm_profile(work_here(loaded.config)[:2], using=using),
            "lengths": experiment.minilm_lengths(lengths, using=using), "type": type_name}


# --- Parity ----------------------------------------------------------------------------------------------------------


def transformers_embeddings(loaded: Loaded, sentences: Sequence[Sequence[int]]) -> np.ndarray | str:
    """What transformers' BertModel computes in float64, each sentence alone; or why it does not."""
    try:
        import torch
        import transformers

        fields = {name: getattr(loaded.config, name) for name in Config.__dataclass_fields__}
        reference = transformers.BertModel(transformers.BertConfig(**fields), add_pooling_layer=False).double().eval()
        state = {name: torch.as_tensor(np.array(value, np.float64))
                 for name, value in weights_of(loaded.tensors, loaded.config).items()}
        missing = reference.load_state_dict(state, strict=False).missing_keys
        if missing:
            return f"transformers wants other parameters: {', '.join(missing[:3])}"
        with torch.no_grad():
            means = [reference(torch.as_tensor(np.array([one], np.int64))).last_hidden_state[0].mean(0).numpy()
                     for one in sentences]
    except ImportError as error:
        return f"not here: {error.name or error} is not installed"
    except Exception as error:  # another version of the library: the page is worth having
        return f"not here: {type(error).__name__}: {error}"[:160]
    return np.array([mean / np.linalg.norm(mean) for mean in means])


def checked_sentences(loaded: Loaded) -> tuple[list[list[int]], np.ndarray | None]:
    """Token ids, and the golden embeddings of them where there are any. On the CPU device the short ones."""
    if loaded.published and (GOLDEN / "sentences.json").is_file():
        known = json.loads((GOLDEN / "sentences.json").read_text(encoding="utf-8"))["sentences"]
        ids, golden = [one["ids"] for one in known], np.load(GOLDEN / "embeddings.npy")
        chosen = [i for i, one in enumerate(ids) if device.on_gpu() or len(one) <= SHORT]
        chosen = chosen if device.on_gpu() else chosen[:: max(1, len(chosen) // FEW)]
        return [ids[i] for i in chosen], golden[chosen]
    lengths = [n for n in (2, 3, 5, 7, 11, 14, 16) if n <= loaded.config.max_position_embeddings]
    return [one.tolist() for one in experiment.sentences_of(lengths, loaded.config.vocab_size)], None


@dataclass(frozen=True)
class Agreement:
    """The smallest cosine of ours with each truth, by type; None where that truth is not here, and why."""

    sentences: int
    tokens: tuple[int, int]
    rows: tuple[tuple[str, dict[str, float] | None, str], ...]
    same_bits: dict[str, bool]  # padded and packed
    met: bool


def agreement_of(loaded: Loaded) -> Agreement:
    ids, golden = checked_sentences(loaded)
    truths: list[tuple[str, np.ndarray | str]] = [
        ("NumPy, in float64", embeddings(loaded.config, weights_of(loaded.tensors, loaded.config), ids)),
        ("transformers, in float64", transformers_embeddings(loaded, ids))]
    if golden is not None:
        truths.append(("transformers, as kept with the tests", golden))
    packed_out, same = {}, {}
    for type_name in measure.steps("parity", list(TYPES)):
        model = loaded.model(type_name)
        packed_out[type_name] = model.embed(ids, "packed")
        same[type_name] = bool(np.array_equal(model.embed(ids, "padded"), packed_out[type_name]))
    rows = tuple((name, None, truth) if isinstance(truth, str) else
                 (name, {one: float(cosines(values, truth).min()) for one, values in packed_out.items()}, "")
                 for name, truth in truths)
    met = all(values[one] >= TYPES[one][1] for _, values, _ in rows if values for one in TYPES)
    lengths = [len(one) for one in ids]
    return Agreement(len(ids), (min(lengths), max(lengths)), rows, same, met)


# --- The sections ----------------------------------------------------------------------------------------------------


def page_of(loaded: Loaded, pairs: sts.Pairs | None = None, encode: Callable | None = None,
            on_judged: Callable[[sts.Judged], None] | None = None) -> Page:
    """encode: texts -> embeddings of `pairs`; judged: given their result as soon as it is there."""
    result = None
    if pairs is not None:
        result = sts.judged(pairs, encode or loaded.encoder.encode)
        if on_judged:
            on_judged(result)
    agreement, local = agreement_of(loaded), measure_here(loaded)
    recorded = {name: measure.recorded_series(name) for name in SERIES}
    badges = (Badge("Real weights" if loaded.encoder is not None else "Made-up weights", loaded.published),
              Badge(f"Recorded: {recorded['minilm']['where']}, {recorded['minilm']['date']}", True)
              if recorded["minilm"] else Badge("H200: not recorded yet"), written_badge())
    sections = [summary(loaded, agreement, local, result), model_section(loaded), parity(agreement), times(local),
                beside_torch(local), launched(local), over_length(local, recorded["minilm_lengths"])]
    if result is not None:
        sections.append(similarity(result, loaded))
    return Page("A sentence encoder by hand", "MiniLM made of this course's kernels beside PyTorch: the same numbers, "
                "the times of every form of a batch, and where they go.", badges,
                (*sections, *on_a_gpu(recorded)))


def summary(loaded: Loaded, agreement: Agreement, local: dict, result: sts.Judged | None) -> Section:
    base = local["times"][0]
    same = [row for row in local["times"] if (row["work"], row["type"]) == (base["work"], base["type"])]
    fastest = min(same, key=lambda row: row["us"])
    cosine = min(cosine_of[one] for _, cosine_of, _ in agreement.rows if cosine_of for one in cosine_of)
    verdict = "as close as is asked" if agreement.met else "not as close as is asked"
    parts: list = [
        f"{_weights(loaded)} The smallest cosine of an embedding with its reference is {cosine:.7f}, which is "
        f"{verdict}. "
        f"{_batch(fastest)} takes {pictures.duration(fastest['us'] * fastest['sentences'])} on this device, "
        f"{fastest['form']}, in {fastest['type']}."
        + (f" On pairs of sentences that people have scored, Spearman's correlation is {_correlation(result)}."
           if result is not None else "")]
    if not device.on_gpu():
        parts.append(NOT_GPU)
    rows = [row for row in local["times"] if row["type"] == local["type"]]
    return Section("In short", "MiniLM", (*parts, pictures.forms(rows, _place())))


def _place() -> str:
    return f"{measure.where()}, forward passes" + (", in a graph" if device.on_gpu() else "")


def _batch(row: dict) -> str:
    count = row["sentences"]
    return f"{'A sentence' if count == 1 else f'A batch of {count:,} sentences'} of {row['tokens']} tokens"


def _weights(loaded: Loaded) -> str:
    if loaded.encoder is None:
        return ("No weights are on this machine, so these are random ones, of all-MiniLM-L6-v2's shape: they take as "
                f"long, and mean nothing. `labkit weights {weights.MINILM.name}` fetches the real ones."
                if loaded.config == Config() else "The weights are random ones: they take as long, and mean nothing.")
    return (f"The model is {weights.MINILM.repository} with its published weights." if loaded.published else
            f"The model is {loaded.name}.")


def _correlation(result: sts.Judged) -> str:
    return "not defined, for all scores or all cosines are equal" if result.spearman is None else \
        f"{result.spearman:.4f}"


def model_section(loaded: Loaded) -> Section:
    c = loaded.config
    count = sum(int(np.prod(shape)) for shape in experiment.shapes(c).values())
    kind = "random" if loaded.encoder is None else "as published" if loaded.published else "of its folder"
    rows = [("name", loaded.name.rpartition("/")[2]), ("weights", kind),
            ("parameters", f"{count:,}"), ("layers", str(c.num_hidden_layers)),
            ("width", f"{c.hidden_size}, of a feed-forward {c.intermediate_size:,}"),
            ("heads", f"{c.num_attention_heads} of {c.hidden_size // c.num_attention_heads}"),
            ("words", f"{c.vocab_size:,}"), ("read and copied in", f"{loaded.seconds:.2f} s")]
    if loaded.encoder is not None:
        rows.insert(6, ("tokens of a sentence", f"at most {loaded.encoder.max_seq_length}"))
    return Section("The model", "What is run", (PlainTable("", ("", ""), tuple(rows)),))


def parity(agreement: Agreement) -> Section:
    rows = tuple((name, *(("-",) * len(TYPES) if cosine_of is None else (f"{cosine_of[one]:.8f}" for one in TYPES)))
                 for name, cosine_of, _ in agreement.rows)
    required = ", ".join(f"{minimum:g} in {name}" for name, (_, minimum) in TYPES.items())
    bits = "; ".join(f"in {name} {'they are' if same else 'they are not'}"
                     for name, same in agreement.same_bits.items())
    low, high = agreement.tokens
    return Section("The same numbers", "Parity", (
        PlainTable("The smallest cosine of ours with", ("", *TYPES), rows,
                   (f"{agreement.sentences} sentences of {low} to {high} tokens, {measure.where()}. Asked: at least "
                    f"{required}.", *(f"{name}: {why}." for name, _, why in agreement.rows if why))),
        f"Are the embeddings of a padded and of a packed batch the same, bit for bit? {bits[0].upper()}{bits[1:]}."))


def times(local: dict) -> Section:
    cells: dict[tuple, dict] = {}
    for row in local["times"]:
        cells.setdefault((row["work"], row["form"]), {})[row["type"]] = row
    rows = tuple((f"{work}, {form}", f"{of['float32']['rows']:,}",
                  *(pictures.duration(of[one]["us"]) for one in TYPES),
                  *(pictures.duration(of[one]["called_us"]) for one in TYPES if device.on_gpu()))
                 for (work, form), of in cells.items())
    called = tuple(f"{one}, called" for one in TYPES if device.on_gpu())
    parts: list = [PlainTable(
        "Time of a sentence on this device", ("batch", "rows", *TYPES, *called), rows,
        (f"{_place()}; medians. Batch: sentences × tokens."
         + (" Called: launched from Python, one kernel after the other." if called else ""),))]
    if not device.on_gpu():
        parts.append(NOT_GPU + " The batches are small for the same reason.")
    return Section("Padded to 128, padded, packed", "Every form of a batch", tuple(parts))


def beside_torch(local: dict) -> Section:
    if not local["torch"]:
        why = "there is no GPU here" if not device.on_gpu() else "PyTorch is not installed, or sees no GPU"
        return Section("PyTorch on the same inputs", "Beside it", (f"Not measured: {why}.",))
    best = {(row["sentences"], row["tokens"]): row for row in sorted(local["times"], key=lambda row: -row["us"])
            if row["type"] == "float16"}
    tables = []
    for one in local["torch"]:
        count, best_row = one["sentences"], best[one["sentences"], one["tokens"]]
        tables.append(torch_table(f"{count} × {one['tokens']}", f"ours, {best_row['form']}, in a graph", best_row["us"],
                                  {way: us if us is None or isinstance(us, str) else us / count
                                   for way, us in one["ways"].items()}, _place()))
    return Section("PyTorch on the same inputs", "Beside it", tuple(tables))


def torch_table(work: str, name: str, labkit_us: float, ways: Mapping, note: str) -> PlainTable:
    """ways: of PyTorch, way -> microseconds a sentence, None for one that has no time, "...: why not"."""
    rows = [(name, number(labkit_us), "1.00")]
    rows += [(f"PyTorch, {way}", number(us), "-" if us is None else f"{us / labkit_us:.2f}")
             for way, us in ways.items() if not isinstance(us, str)]
    return PlainTable(f"{work}, float16: microseconds a sentence", ("", "us", "times ours"), tuple(rows),
                      (note, *(f"{way.removesuffix(': why not')} was not timed: {why}"
                               for way, why in ways.items() if isinstance(why, str))))


def launched(local: dict) -> Section:
    series, parts = local["profile"], []
    for which, one in enumerate(series["passes"]):
        parts.append(pictures.shares(series, which))
        parts += [Folded(f"PyTorch's kernels, {one['sentences']} × {one['tokens']}", (torch_kernels(one, series),))] \
            if one["torch"] else []
    rows = []
    for one in series["passes"]:
        work = f"{one['sentences']} × {one['tokens']}"
        rows.append((work, "ours", f"{one['launches']:,}", number(one["us"]), number(one["us_a_launch"]),
                     number(one["called_us"]), number(one["called_us_a_launch"])))
        if one["torch"]:
            t = one["torch"]
            rows.append(("", "PyTorch", f"{t['launches']:,}", "-", "-", number(t["called_us"]),
                         number(t["called_us_a_launch"])))
    parts.append(PlainTable("Launches of a pass, and microseconds of each",
                            ("batch", "", "launches", "us", "us a launch", "called, us", "called, a launch"),
                            tuple(rows),
                            (f"{series['where']}, {series['date']}, {local['type']}.",)))
    return Section("Where the time goes", "Launches", tuple(parts))


def torch_kernels(one: dict, series: dict) -> PlainTable:
    total = sum(row["us"] for row in one["torch"]["rows"])
    rows = tuple((counters.function_name(row["name"]), str(row["count"]), number(row["us"]), f"{row['us'] / total:.0%}")
                 for row in one["torch"]["rows"][:12])
    return PlainTable(f"PyTorch, {one['sentences']} × {one['tokens']}", ("kernel", "launches", "us", "share"), rows,
                      (f"{series['where']}, {series['date']}, by its profiler; the twelve that take longest.",))


def over_length(local: dict, recorded: dict | None) -> Section:
    return Section("Time over length", "Longer sentences", (
        pictures.lengths(local["lengths"], recorded),
        f"{local['lengths']['sentences']} sentence{'s' if local['lengths']['sentences'] != 1 else ''} a batch, "
        f"{local['type']}. Products grow with the number of tokens, attention with its square."))


def similarity(result: sts.Judged, loaded: Loaded) -> Section:
    pairs = result.pairs
    rows = [("pairs", f"{len(pairs.sentences):,}"), ("Spearman's correlation", _correlation(result)),
            ("lines left out", f"{len(pairs.problems):,}")]
    parts: list = [pictures.agreement(result), PlainTable("", ("", ""), tuple(rows))]
    if pairs.problems:
        listed = PlainTable("Lines left out", ("line",), tuple((one,) for one in pairs.problems[:200]),
                            (f"{len(pairs.problems) - 200:,} more." if len(pairs.problems) > 200 else "",))
        parts.append(Folded(f"{len(pairs.problems):,} lines that were left out", (listed,)))
    parts.append("Equal scores share the mean of their ranks. The correlation says whether the cosines put the pairs "
                 f"in the order in which people put them, on the embeddings of {loaded.name}.")
    return Section("Sentences that people have compared", "STS", tuple(parts))


# --- What a GPU recorded ---------------------------------------------------------------------------------------------


def on_a_gpu(recorded: Mapping[str, dict | None]) -> list[Section]:
    """The goals, and the recorded series; a line where there is none."""
    known = {name: series for name, series in recorded.items() if series}
    measured = {"series": known}
    where = next((f"{one['where']}, {one['date']}" for one in known.values()), "")
    parts: list = [comparisons.table(comparisons.compare(measured), "Beside PyTorch", where)] if known else []
    parts.append(targets.table(targets.evaluate(measured, [one for one in targets.GOALS if one.source in SERIES])))
    missing = [name for name in SERIES if name not in known]
    if missing:
        parts.append(f"Not recorded on a GPU yet: {', '.join(missing)}. `labkit bench NAME` takes each.")
    if series := known.get("minilm"):
        note = f"{series['where']}, {series['date']}; {series['weights']} weights"
        for row in series["rows"]:
            form, best = min(row["ours"].items(), key=lambda one: one[1]["us_a_sentence"])
            parts.append(torch_table(f"{row['sentences']} × {row['tokens']}", f"ours, {form}, in a graph",
                                     best["us_a_sentence"], row["torch"] or {}, note))
    sections = [Section("Recorded on a GPU", "The goals", tuple(parts))]
    if series := known.get("minilm_corpus"):
        sections.append(corpus(series))
    if series := known.get("minilm_ladder"):
        sections.append(steps(series))
    if series := known.get("minilm_profile"):
        sections.append(Section("Where a GPU's time goes", "Launches", tuple(
            pictures.shares(series, which) for which in range(len(series["passes"])))))
    return sections


def corpus(series: dict) -> Section:
    rows = [(row["form"].replace("_", " "), f"{row['batch']:,}", f"{row['rows']:,}",
             f"{row['sentences_per_second']:,.0f}", f"{row['embed_sentences_per_second']:,.0f}")
            for row in series["ours"]]
    for row in series["torch"]:
        form, batch = row.get("form", "padded"), f"{row['batch']:,}"
        rows.append((f"PyTorch, {form}", batch, "-", number(row["graph_sentences_per_second"]),
                     number(row["called_sentences_per_second"])))
        rows += [(f"PyTorch, {form}, {way}", batch, "-", number(rate), "-")
                 for way, rate in row.get("compiled_ways", {}).items() if not isinstance(rate, str)]
    texts = series["text"]
    tail = (f"From texts, not measured: {texts['why_not']}." if "why_not" in texts else "From texts, in seconds: "
            + "; ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in texts.items()
                        if not isinstance(value, str)) + ".")
    return Section("A corpus", "By length", (PlainTable(
        f"{series['sentences']:,} sentences of {series['mean_tokens']:.0f} tokens in the mean, sentences a second",
        ("form", "a batch", "rows", "in graphs", "called, with copies"), tuple(rows),
        (f"{series['where']}, {series['date']}.",)), tail))


def steps(series: dict) -> Section:
    sizes = list(series["steps"][0]["us"])
    rows = tuple((row["name"], *(number(row["us"][size]) for size in sizes), f"{row['launches']}",
                  number(1000 * THEIR_LADDER[row["name"]]) if row["name"] in THEIR_LADDER else "-")
                 for row in series["steps"])
    parts: list = [pictures.ladder(series, sizes[0]), PlainTable(
        "Microseconds a sentence", ("step", *sizes, "launches", "theirs"), rows,
        (f"{series['where']}, {series['date']}. Theirs: 64 sentences on an RTX 3090, of 128 tokens but for the last "
         "step, which is of 16.",)), Folded("What each step changes", tuple(
             f"{row['name']}: {row['changes']}." for row in series["steps"]))]
    if series["attention"]:
        parts.append(PlainTable("Attention, microseconds a layer", ("form", "sentences × tokens", "us"), tuple(
            (row["form"], f"{row['sentences']} × {row['tokens']}", number(row["us_a_layer"]))
            for row in series["attention"])))
    parts.append(PlainTable("What did not work for them", ("", "M × K -> N", "us", "beside", "us", "slower"), tuple(
        (row["name"], f"{row['M']:,} × {row['K']:,} -> {row['N']:,}", number(row["us"]), row["beside"],
         number(row["beside_us"]), f"{row['us'] / row['beside_us']:.2f}") for row in series["failures"])))
    counters_recorded = counters.recorded()
    parts += [counters.profile(name, counters_recorded) for name in ("minilm_products", "attention_sentences_half")
              if counters_recorded and name in counters_recorded["ops"]]
    return Section("Step by step", "The ladder", tuple(parts))
