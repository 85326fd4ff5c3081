"""A block, a whole GPT-2, an encoder or a Llama with learners' kernels in it, compared step by step with NumPy in
float64."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from labkit import cuda
from labkit._common.errors import UserError
from labkit._common.tables import ResultTable
from labkit.course.yours import places
from labkit.course.yours.places import PARTS, Place
from labkit.course.yours.written import Answers, _one_line
from labkit.kernels.op import uniform
from labkit.models import gpt2_block as block
from labkit.models import llama, llama_reference, minilm, minilm_reference
from labkit.models.configs import shapes
from labkit.models.gpt2 import GPT2, Kernels
from labkit.models.gpt2_block import Shape
from labkit.models.gpt2_reference import Difference, Parity, parity
from labkit.models.llama import Llama
from labkit.models.minilm import MiniLM

SMALL = Shape(width=128, heads=2, inner=512)  # a sixth of GPT-2 small, with heads of the same size
SMALL_ENCODER = minilm.Config(vocab_size=61, max_position_embeddings=32, hidden_size=64, num_hidden_layers=2,
                              num_attention_heads=2, intermediate_size=96)
SMALL_LLAMA = llama.Config(vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                           num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=64,
                           rms_norm_eps=1e-5, tie_word_embeddings=True)


def small_encoder(config: minilm.Config = SMALL_ENCODER, seed: int = 0) -> MiniLM:
    """A sentence encoder of this shape, in float32, with random weights."""
    rng = np.random.default_rng(seed)
    tensors = {name: (name.endswith("Norm.weight") + uniform(rng, *shape) / np.float32(np.sqrt(shape[-1])))
               for name, shape in shapes(config).items()}
    return MiniLM(config, tensors, np.float32)


def small_llama(config: llama.Config = SMALL_LLAMA, seed: int = 0) -> Llama:
    """A Llama of this shape, in float32, with random weights."""
    rng = np.random.default_rng(seed)
    tensors = {name: ("norm" in name) + uniform(rng, *shape) / np.float32(np.sqrt(shape[-1]))
               for name, shape in shapes(config).items()}
    return Llama(config, tensors, "float32")


Model = GPT2 | MiniLM | Llama
AnyKernels = Kernels | minilm.Kernels | llama.Kernels


def with_kernels(model: Model, mine: Answers | AnyKernels) -> Model:
    """The model, on the same weights, with other kernels. Raises UserError for answers to be put into a Llama that does
    not compute in float32."""
    if isinstance(mine, Answers):
        fitting = mine.fitting(*_kind_of(model))
        if isinstance(model, MiniLM):
            mine = fitting.encoder_kernels(model.kernels)
        elif isinstance(model, Llama):
            if model.dtype != "float32":
                raise UserError(f"the exercises' kernels compute in float32, and this model in {model.dtype}: load it "
                                f'with dtype="float32"')
            mine = fitting.llama_kernels(model.kernels)
        else:
            mine = fitting.kernels()
    if isinstance(model, MiniLM | Llama):
        return model.with_kernels(mine)
    other = copy.copy(model)
    other.kernels = mine
    return other


def _kind_of(model: Model | Shape) -> tuple[str, int]:
    """The model as places.py names it, and how many numbers a head of it has. A shape is a GPT-2's block."""
    if isinstance(model, Llama):
        return places.LLAMA, model.config.head_dim
    if isinstance(model, MiniLM):
        return places.ENCODER, model.config.hidden_size // model.config.num_attention_heads
    shape = model if isinstance(model, Shape) else model.config.block
    return places.GPT2, shape.width // shape.heads


@dataclass(frozen=True, repr=False)
class Steps(Parity):
    """Parity, with the exercises whose kernels computed each step, and where it stopped if one of them failed.
    alone: each step was compared with the reference computed from the model's own inputs to it."""

    by: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""
    alone: bool = False

    def table(self) -> dict:
        spec = super().table()
        spec["title"] = "Step by step against NumPy in float64"
        spec["columns"][0] = "step"
        if self.by:
            spec["columns"].insert(1, "computed with")
            spec["rows"] = [[name, self.by.get(_step(name), "the model's own"), *row] for name, *row in spec["rows"]]
        spec["notes"] = ([f"{self.first.name} could not be computed: {self.stopped}"] if self.stopped else
                         [] if self.passed else list(filter(None, (
                             f"The first that differs is {self.first.name}. {self._after}", self.first.element))))
        return spec

    @property
    def _after(self) -> str:
        if self.alone:
            return "Each step is computed from what the model wrote before it, so that those after it may be right."
        return "What comes after it is computed from it, and has to differ, too."


def _step(name: str) -> str:
    """ "h.3.mlp.gelu" -> "mlp.gelu", "layer.0.out" -> "out", "layers.2.q" -> "q"."""
    return name.split(".", 2)[2] if name.startswith(("h.", "layer.", "layers.")) else name


def block_parity(mine: Answers | Kernels | None = None, *, shape: Shape = SMALL, tokens: int = 9, causal: bool = True,
                 post_ln: bool = False, seed: int = 0) -> Steps:
    """Run one block with these kernels on random weights and compare the output of each launch with float64."""
    mine = mine.fitting(*_kind_of(shape)) if isinstance(mine, Answers) else mine
    rng = np.random.default_rng(seed)
    x, weights = rng.standard_normal((tokens, shape.width), np.float32), shape.random(rng)
    truth = block.block_steps(x, {name: part.astype(np.float64) for name, part in shape.split(weights).items()},
                              shape.heads, causal=causal, post_ln=post_ln)
    rows: list[Difference] = []

    def compare(name, got):
        expected = truth[name]
        allowed = block.allowed_error(shape, expected, len(rows) + 1)
        rows.append(Difference(name, np.inf, allowed) if got is None else
                    Difference.between(name, got, expected, allowed))

    out = cuda.to_device(np.full(x.shape, np.nan, np.float32))
    stopped = ""
    try:
        block.solve(cuda.to_device(x), out, cuda.to_device(weights), tokens, shape=shape, causal=causal,
                    post_ln=post_ln, kernels=mine.kernels() if isinstance(mine, Answers) else mine,
                    watch=lambda name, array: compare(name, array.copy_to_host()))
    except Exception as error:  # a learner's kernel may do anything
        stopped = _one_line(error)
        compare(list(truth)[len(rows)], None)
    return Steps(tuple(rows), mine.by() if isinstance(mine, Answers) else {}, stopped)


def model_parity(model: Model, ids: Sequence, mine: Answers | AnyKernels | None = None) -> Steps:
    """The same for a whole GPT-2: a prompt, all layers, to the logits. For an encoder `ids` are sentences: all layers,
    the means of the sentences, and these scaled to length 1. For a Llama they are prompts, each of which is computed at
    once and, beside that, with its last token in a step of its own."""
    mine = mine.fitting(*_kind_of(model)) if isinstance(mine, Answers) else mine
    other = model if mine is None else with_kernels(model, mine)
    by = mine.by() if isinstance(mine, Answers) else {}
    rows_of = _encoder_rows if isinstance(model, MiniLM) else _llama_rows if isinstance(model, Llama) else _gpt2_rows
    try:
        return Steps(rows_of(other, ids), by, alone=isinstance(model, Llama))
    except Exception as error:
        return Steps((Difference("the model", np.inf, 0.0),), by, _one_line(error))


def _gpt2_rows(model: GPT2, ids: Sequence) -> tuple[Difference, ...]:
    return parity(model, ids).rows


def _llama_rows(model: Llama, prompts: Sequence) -> tuple[Difference, ...]:
    """Prompts with one token left come first, as a step requires."""
    longer = [prompt for prompt in prompts if len(prompt) > 1]
    num_cached = [len(prompt) - 1 for prompt in prompts] + [0] * len(longer)
    return llama_reference.parity(model, [*prompts, *longer], num_cached).rows


def _encoder_rows(model: MiniLM, sentences: Sequence) -> tuple[Difference, ...]:
    """Compare the mean as a step of its own: the scaling would hide a mean that is wrong by a factor."""
    *rows, pooled = minilm_reference.parity(model, sentences).rows
    *_, mean = minilm_reference.parity(model, sentences, normalize=False).rows
    return *rows, replace(mean, name="mean"), pooled


@dataclass(frozen=True, repr=False)
class OneByOne(ResultTable):
    """Each answer alone in the model, and all of them together: (exercise, its place or None, Steps)."""

    runs: tuple[tuple[str, Place | None, Steps], ...]
    answers: Answers
    model: str
    left_out: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(steps.passed for _, _, steps in self.runs)

    def first(self, exercise: str) -> Difference | None:
        """The first step that differs with this exercise's kernel alone in the model; None if none does."""
        return next(steps.first for name, _, steps in self.runs if name == exercise)

    def table(self) -> dict:
        rows = []
        for name, place, steps in self.runs:
            worst = max(row.error / row.allowed if row.allowed else np.inf for row in steps.rows)
            rows.append([name, PARTS[place.part][0] if place else "all their parts", f"{worst:.2f}",
                         "none" if steps.passed else steps.first.name])
        stopped = [f"{name}: {steps.first.name} could not be computed: {steps.stopped}"
                   for name, _, steps in self.runs if steps.stopped]
        return {"title": f"One by one in {self.model}, against float64",
                "columns": ["exercise", "does", "largest error, of the allowed", "first step that differs"],
                "rows": rows or [["none yet", "", "", ""]],
                "notes": [*stopped, *self.left_out, *self.answers.notes()]}

    def result(self) -> dict:
        return {"kind": "one_by_one", "passed": self.passed,
                "first": {name: None if steps.passed else steps.first.name for name, _, steps in self.runs}}


def one_by_one(mine: Answers, model: Model | None = None, ids: Sequence = (), **options) -> OneByOne:
    """Put each answer into the model alone, then all together. model: left out, it is one block (options as for
    block_parity); else a GPT-2 that gets the prompt `ids`, an encoder that gets these sentences, or a Llama that gets
    these prompts."""

    def run(subset: Answers) -> Steps:
        return block_parity(subset, **options) if model is None else model_parity(model, ids, subset)

    excluded = {"argmax"} if model is not None else {"embedding", "append_to_cache", "logits", "argmax"}
    kind, head = _kind_of(options.get("shape", SMALL) if model is None else model)
    matching = mine.fitting(kind, head)
    fitting = [row for row in matching.usable if row.place.part not in excluded]
    runs = [(row.exercise, row.place, run(Answers((row,)))) for row in fitting]
    if len(fitting) > 1:
        runs.append(("all together", None, run(Answers(tuple(fitting)))))
    left_out = [f"{row.exercise} is left out: it is for heads of {row.place.head} numbers, and here a head has {head}."
                for row in mine.usable if row.place.model == kind and row not in matching.rows]
    outside_block = [row for row in matching.usable if model is None and row.place.part in excluded]
    left_out += [_belongs(outside_block, "outside a block, in a whole model")] if outside_block else []
    for other in (places.GPT2, places.ENCODER, places.LLAMA, places.TRAINING):
        of_others = [row for row in mine.usable if row.place.model == other != kind]
        left_out += [_belongs(of_others, f"in {other}")] if of_others else []
    return OneByOne(tuple(runs), mine, NAMES[kind] if model is not None else "a block", tuple(left_out))


NAMES = {places.GPT2: "the model", places.ENCODER: "the encoder", places.LLAMA: "the Llama"}


def _belongs(rows: Sequence, location: str) -> str:
    verb = "has its place" if len(rows) == 1 else "have their places"
    return f"{', '.join(row.exercise for row in rows)} {verb} {location}."
