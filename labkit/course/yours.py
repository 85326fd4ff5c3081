"""Your own kernels in the model: what you wrote in the exercises does the work of a block, or of a whole GPT-2.

    from labkit import yours

    mine = yours.answers()                    # reads exercises/*.ipynb: which have a place in the model, which are done
    yours.one_by_one(mine)                    # each alone in a block, then all together, every step against float64
    yours.block_parity(mine)                  # one run, step by step; .first is the first step that differs
    yours.one_by_one(mine, model, ids)        # the same in a GPT-2
    yours.with_kernels(model, mine)           # that GPT-2, to write text with

An exercise that is not done, or not right yet, leaves its place to the model's own kernel, and the table says so.
yours.answers(add_row=my_kernel) takes a kernel at hand instead of the notebook's, yours.answers(solutions=True) the
course's answers.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numba import float32

from labkit import cuda
from labkit._common.errors import UserError
from labkit._common.tables import ResultTable
from labkit.course import answer_cells, exercises
from labkit.course import registry as courses
from labkit.course import workbooks as workbook
from labkit.course.check import examine
from labkit.kernels.attention.three_pass import attention as models_attention
from labkit.kernels.gelu import gelu_sigmoid_form
from labkit.kernels.linear.projection import add_bias_kernel
from labkit.kernels.residual_add import residual_add_vectorized
from labkit.models import gpt2_block as block
from labkit.models.gpt2 import GPT2, Kernels
from labkit.models.gpt2_block import FUSED, Shape
from labkit.models.gpt2_reference import Difference, Parity, parity

SMALL = Shape(width=128, heads=2, inner=512)  # a sixth of GPT-2 small, with heads of the same size

# --- Where an exercise has its place ---------------------------------------------------------------------------------

LINEAR = ("attn.c_attn", "attn.added", "mlp.gelu", "out")  # the steps that end a linear layer


@dataclass(frozen=True)
class Place:
    """The part of the model that an exercise's kernel can do.

    part: its name in PARTS, which says what it is called with. size: from these arguments the exercise's size, which
    its launch configuration depends on. arguments: from the same those of the exercise's kernel. head: the only size
    of a head that it can do; None for any.
    """

    exercise: str
    part: str
    size: Callable
    arguments: Callable = lambda *arguments: arguments
    head: int | None = None


# part -> (in words, the steps that it writes; the names are those that labkit.models watches). Called with:
#   embedding(ids, tokens, positions, start, out)   layernorm(x, weight, bias, out)
#   product(x, weights, out)   bias(x, bias, out)   bias_gelu(x, bias, out)   gelu(x, out)   add(x, residual, out)
#   softmax(scores, out)   one_head(queries, keys, values, out)   attention(qkv, heads, out, cache=, start=, causal=)
#   append_to_cache(qkv, start, cache)
#   logits(x, table, out)   argmax(x, out)          and stream= each. Elementwise parts: out may be x
PARTS = {
    "embedding": ("tokens to rows", ("embedding",)),
    "layernorm": ("LayerNorm", ("ln_1", "ln_2", "ln_f")),
    "product": ("the products", LINEAR),
    "bias": ("the biases", LINEAR),
    "bias_gelu": ("bias and GELU", ("mlp.gelu",)),
    "gelu": ("GELU", ("mlp.gelu",)),
    "add": ("the residuals", ("attn.added", "out")),
    "softmax": ("attention's softmax", ("attn",)),
    "one_head": ("attention, head by head", ("attn",)),
    "attention": ("attention", ("attn",)),
    "append_to_cache": ("keys and values to the cache", ("attn",)),
    "logits": ("rows to logits", ("logits",)),
    "argmax": ("the likeliest token", ()),
}


def _rows(x, *_):
    return {"R": x.shape[0], "C": x.shape[1]}


def _transposed_product(x, table, out):
    return {"M": x.shape[0], "N": table.shape[0], "K": x.shape[1]}


def _flat(array):
    return array.reshape(array.size)


# In the order of the lessons. Where two do the same part, the later one does it when all are put in.
PLACES = [
    Place("saxpy", "add", lambda x, residual, out: {"n": out.size},
          lambda x, residual, out: (np.float32(1), _flat(residual), _flat(out))),  # y = 1 * residual + y
    Place("add_row", "bias", _rows),
    Place("matmul_bt", "logits", _transposed_product),
    Place("matmul_ahead", "product", lambda x, w, out: {"M": x.shape[0], "N": w.shape[1], "K": x.shape[1]}),
    Place("linear_patch", "logits", _transposed_product),
    Place("largest_seen", "softmax", lambda scores, out: {"B": scores.shape[0], "S": scores.shape[1]}),
    Place("layernorm_two_sums", "layernorm", _rows),
    Place("attend_warp", "one_head", lambda queries, keys, *_: {"Q": queries.shape[0], "N": keys.shape[0]}, head=64),
    Place("bias_gelu_tanh", "bias_gelu", _rows),
    Place("embed_tokens", "embedding", lambda *arrays: {"T": arrays[4].shape[0], "C": arrays[4].shape[1]}),
    Place("append_rows", "append_to_cache", lambda qkv, start, cache: {"S": qkv.shape[0], "C": cache.shape[1] // 2,
                                                                       "N": cache.shape[0], "before": 0}),
    Place("first_largest", "argmax", _rows),
]


def place_of(exercise: str) -> Place:
    for place in PLACES:
        if place.exercise == exercise:
            return place
    raise ValueError(f"{exercise!r} has no place in the model; these have: "
                     f"{', '.join(place.exercise for place in PLACES)}")


# --- What was written in the exercises -------------------------------------------------------------------------------

YOURS, GIVEN_ANSWER = "your kernel", "the course's answer"
TO_DO, WRONG, BROKEN = "not done yet", "not right yet", "cannot be used"


@dataclass(frozen=True)
class Answer:
    """An exercise that has a place in the model, and its answer. kernel is None unless it can be used."""

    place: Place
    lesson: str  # "04"
    state: str
    told: str = ""  # why it is not used, in a sentence
    kernel: object = field(default=None, repr=False)

    @property
    def exercise(self) -> str:
        return self.place.exercise

    @property
    def usable(self) -> bool:
        return self.kernel is not None

    def launcher(self) -> Callable:
        """Called as PARTS says: launches the kernel as check launches it."""
        place, exercise, kernel = self.place, exercises.find(self.exercise), self.kernel
        if exercise.kind == "function":
            takes_stream = "stream" in inspect.signature(kernel).parameters

            def call(*arguments, stream=0, **options):
                more = {"stream": stream} if takes_stream else {}
                kernel(*place.arguments(*arguments), **options, **more)

            return call

        def launch(*arguments, stream=0):
            grid, blocks, *_, shared = *exercise.launch(**place.size(*arguments)), 0
            kernel[grid, blocks, stream, shared](*place.arguments(*arguments))

        return launch


@dataclass(frozen=True, repr=False)
class Answers(ResultTable):
    """Every exercise that has a place in the model, in the order of the lessons."""

    rows: tuple[Answer, ...]

    @property
    def usable(self) -> tuple[Answer, ...]:
        return tuple(row for row in self.rows if row.usable)

    def only(self, *names: str) -> Answers:
        """These alone; all others leave their place to the model's own kernel."""
        for name in names:
            place_of(name)
        return Answers(tuple(row for row in self.rows if row.exercise in names))

    def fitting(self, shape: Shape) -> Answers:
        """Without those that are for heads of another size."""
        size = shape.width // shape.heads
        return Answers(tuple(row for row in self.rows if row.place.head in (None, size)))

    def _last(self) -> dict[str, Answer]:
        """part -> the answer that does it when all are put in: the latest, and of softmax and heads the larger part."""
        last = {row.place.part: row for row in self.usable}
        if "one_head" in last:
            last.pop("softmax", None)
        return last

    @property
    def parts(self) -> dict[str, Callable]:
        return {part: row.launcher() for part, row in self._last().items()}

    def kernels(self) -> Kernels:
        """The launchers of a model, these among them."""
        return kernels(self.parts)

    def told(self) -> list[str]:
        """In sentences: which kernels are used, which are not and why."""
        used = ", ".join(f"{row.exercise} ({PARTS[row.place.part][0]})" for row in self.usable)
        return [f"Your kernels: {used}." if used else "Your kernels: none yet.", *self.notes()]

    def notes(self) -> list[str]:
        return [row.told for row in self.rows if row.told and row.state != TO_DO] + _to_do(self.rows)

    def by(self) -> dict[str, str]:
        """Step -> the exercises whose kernels have a part in it."""
        found: dict[str, list[str]] = {}
        for row in self._last().values():
            for step in PARTS[row.place.part][1]:
                found.setdefault(step, []).append(row.exercise)
        return {step: ", ".join(names) for step, names in found.items()}

    def table(self) -> dict:
        return {
            "title": "Exercises with a place in the model",
            "columns": ["lesson", "exercise", "does", "computed by"],
            "rows": [[row.lesson, row.exercise, PARTS[row.place.part][0],
                      row.state if row.usable else f"the model's own ({row.state})"] for row in self.rows],
            "notes": self.notes(),
        }

    def result(self) -> dict:
        return {"kind": "answers", "usable": [row.exercise for row in self.usable]}


def _to_do(rows) -> list[str]:
    waiting = [row for row in rows if row.state == TO_DO]
    if not waiting:
        return []
    names = ", ".join(row.exercise for row in waiting)
    return [f"Not done yet: {names}. Do one in its notebook under exercises/, save the notebook, and run this again."]


def answers(*names: str, solutions: bool = False, checked: bool = True, **given) -> Answers:
    """The answers to these exercises (left out: to all that have a place in the model), each checked.

    solutions=True takes the course's own answers, unchecked. add_row=kernel takes this kernel. checked=False uses what
    is there, right or wrong: parity then shows at which step it is wrong.
    """
    for name in (*names, *given):
        place_of(name)
    wanted = [place for place in PLACES if not names and not given or place.exercise in (*names, *given)]
    course = courses.load()
    return Answers(tuple(_answer(course, place, solutions, checked and not solutions, given) for place in wanted))


def _answer(course, place: Place, solutions: bool, checked: bool, given: Mapping) -> Answer:
    entry = course.exercise(place.exercise)
    lesson, name = entry.chapter.number, entry.name
    about = f"{name} (exercises/{entry.chapter.workbook.name})"

    def unused(state: str, why: str) -> Answer:
        return Answer(place, lesson, state, f"{about} {why}")

    if name in given:
        kernel = given[name]
    else:
        try:
            kernel = read(course, name, solutions=solutions)
        except Exception as error:  # whatever stands in a learner's notebook
            return unused(BROKEN, f"cannot be used: {_in_a_line(error)}")
    if kernel is None:
        return unused(TO_DO, "is not done yet")
    if checked:
        verdict = examine(exercises.find(name), kernel)
        if verdict.kind == "unchanged":
            return unused(TO_DO, "is not done yet")
        if not verdict.passed:
            why = verdict.headline
            if verdict.kind in ("unsupported", "wrong_types", "raised") and verdict.details:
                why = f"{why} {verdict.details[0]}"
            return unused(WRONG, f"is not right yet, so the model's own kernel is used: {why}")
    return Answer(place, lesson, GIVEN_ANSWER if solutions and name not in given else YOURS, kernel=kernel)


def read(course, name: str, *, solutions: bool = False):
    """The answer to an exercise: what its cell defines under its name, with what the cells above it define. None if it
    is as it was given.

    From the learner's notebook, as saved; with solutions=True from solutions/. Test cells are not run, nor anything
    that the answer does not need.
    """
    chapter = course.exercise(name).chapter
    notebook = workbook.to_notebook(course, chapter, answers=True) if solutions else workbook.learners(chapter)
    cell, above = _cell(notebook, name)
    if not solutions and cell == _cell(workbook.to_notebook(course, chapter), name)[0]:
        return None
    file = "solutions" if solutions else chapter.workbook.name
    return answer_cells.run(answer_cells.program(above, cell), name, f"<{file}: {name}>")


def _cell(notebook, name: str) -> tuple[str, list[str]]:
    """The cell of an exercise's answer, and the code above it without tests."""
    above: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        about = cell.metadata.get("labkit", {})
        if about.get("exercise") == name and about.get("role") == "answer":
            return cell.source, above
        if answer_cells.checked_name(cell.source) is None:
            above.append(cell.source)
    raise courses.CourseError(f"its cell is not in the notebook; labkit reset {name} puts it back")


# --- The model's kernels, with some of them replaced -----------------------------------------------------------------


def kernels(parts: Mapping[str, Callable]) -> Kernels:
    """The launchers of a model with these in their places, called as PARTS says; the rest is the model's own."""
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"{part!r} is no part of the model; the parts are {', '.join(PARTS)}")
    whole = ("embedding", "layernorm", "attention", "append_to_cache", "logits", "argmax")
    chosen = {part: parts[part] for part in whole if part in parts}
    if "one_head" in parts and "attention" not in parts:
        chosen["attention"] = attention_of_heads(parts["one_head"])
    elif "softmax" in parts and "attention" not in parts:
        chosen["attention"] = attention_around(parts["softmax"])
    if parts.keys() & {"product", "bias", "bias_gelu", "gelu", "add"}:
        chosen["linear"] = linear_of(parts)
    return Kernels(**chosen)


def linear_of(parts: Mapping[str, Callable]) -> Callable:
    """A linear layer and what follows it, a launch for each where one of these parts is in it, else the model's own."""

    def linear(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
        both = gelu and "bias_gelu" in mine
        here = {"product", "bias", *(["bias_gelu", "gelu"] if gelu else []), *(["add"] if residual is not None else [])}
        if not here & mine.keys():
            FUSED.linear(x, weights, bias, out, residual=residual, gelu=gelu, parts=parts, stream=stream)
            return
        if "product" in mine:
            mine["product"](x, weights, out, stream=stream)
        else:
            FUSED.linear(x, weights, _zeros(out.shape[1]), out, parts=parts, stream=stream)
        if both:
            mine["bias_gelu"](out, bias, out, stream=stream)
        else:
            mine.get("bias", _add_bias)(out, bias, out, stream=stream)
        if gelu and not both:
            mine.get("gelu", gelu_sigmoid_form)(out, out, stream=stream)
        if residual is not None:
            mine.get("add", residual_add_vectorized)(out, residual, out, stream=stream)

    mine = dict(parts)
    return linear


@functools.cache
def _zeros(count: int):
    return cuda.to_device(np.zeros(count, np.float32))


def _add_bias(x, bias, out, stream=0):
    rows, cols = out.shape
    add_bias_kernel[(-(-cols // 256), min(rows, 65_535)), 256, stream](bias, out)


@cuda.jit
def scores_kernel(qkv, scores, scale):
    key, query, head = cuda.grid(3)
    if key < scores.shape[2] and query < scores.shape[1]:
        width = qkv.shape[1] // 3
        size = width // scores.shape[0]
        total = float32(0.0)
        for i in range(size):
            total += qkv[query, head * size + i] * qkv[key, width + head * size + i]
        scores[head, query, key] = total * scale


@cuda.jit
def mix_kernel(weights, qkv, out):
    col, query = cuda.grid(2)
    if col < out.shape[1] and query < out.shape[0]:
        head = col // (out.shape[1] // weights.shape[0])
        total = float32(0.0)
        for key in range(weights.shape[2]):
            total += weights[head, query, key] * qkv[key, 2 * out.shape[1] + col]
        out[query, col] = total


def _looks_back(out, cache, start) -> bool:
    """Whether there may be keys of earlier tokens, in the cache. One row with a cache is a step of decoding, which may
    be about to be recorded in a graph: there the host cannot look at start."""
    return cache is not None and (out.shape[0] == 1 or int(start.copy_to_host()[0]) > 0)


def attention_of_heads(one_head: Callable) -> Callable:
    """Attention from a kernel for one head without a mask: with one, a launch for each query and the keys it sees. It
    sees the rows of qkv only: where there are keys of earlier tokens, the model's own attention is used."""

    def attention(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
        if _looks_back(out, cache, start):
            models_attention(qkv, heads, out, cache=cache, start=start, causal=causal, stream=stream)
            return
        tokens, width = out.shape
        size = width // heads
        rows = [(t, t + 1, t + 1) for t in range(tokens)] if causal else [(0, tokens, tokens)]
        for left in range(0, width, size):
            queries, keys, values = (qkv[:, part + left : part + left + size] for part in (0, width, 2 * width))
            for first, end, seen in rows:
                one_head(queries[first:end], keys[:seen], values[:seen], out[first:end, left : left + size],
                         stream=stream)

    return attention


def attention_around(softmax: Callable) -> Callable:
    """Attention in three launches, the causal softmax of (heads, S, S) scores between two products. It, too, sees the
    rows of qkv only."""

    @functools.cache
    def matrices(heads, tokens):
        return tuple(cuda.device_array((heads, tokens, tokens), np.float32) for _ in range(2))

    def attention(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
        tokens, width = out.shape
        if not causal or _looks_back(out, cache, start):
            models_attention(qkv, heads, out, cache=cache, start=start, causal=causal, stream=stream)
            return
        scores, weights = matrices(heads, tokens)
        across = -(-tokens // 32)
        scores_kernel[(across, -(-tokens // 8), heads), (32, 8, 1), stream](
            qkv, scores, np.float32((width // heads) ** -0.5))
        softmax(scores, weights, stream=stream)
        mix_kernel[(-(-width // 32), -(-tokens // 8)), (32, 8), stream](weights, qkv, out)

    return attention


def with_kernels(model: GPT2, mine: Answers | Kernels) -> GPT2:
    """The model, on the same weights, with other kernels."""
    other = copy.copy(model)
    other.kernels = mine.fitting(model.config.block).kernels() if isinstance(mine, Answers) else mine
    return other


# --- Step by step ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Steps(Parity):
    """Parity, with whose kernels computed what, and where it stopped if one of them failed."""

    by: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""

    def table(self) -> dict:
        spec = super().table()
        spec["title"] = "Step by step against NumPy in float64"
        spec["columns"][0] = "step"
        if self.by:
            spec["columns"].insert(1, "computed with")
            spec["rows"] = [[name, self.by.get(_step(name), "the model's own"), *rest] for name, *rest in spec["rows"]]
        spec["notes"] = ([f"{self.first.name} could not be computed: {self.stopped}"] if self.stopped else
                         [] if self.passed else [f"The first that differs is {self.first.name}. What comes after it is "
                                                 "computed from it, and has to differ, too."])
        return spec


def _step(name: str) -> str:
    """ "h.3.mlp.gelu" -> "mlp.gelu"."""
    return name.split(".", 2)[2] if name.startswith("h.") else name


def block_parity(mine: Answers | Kernels | None = None, *, shape: Shape = SMALL, tokens: int = 9, causal: bool = True,
                 post_ln: bool = False, seed: int = 0) -> Steps:
    """Runs one block with these kernels on random weights and compares what each launch wrote with float64."""
    mine = mine.fitting(shape) if isinstance(mine, Answers) else mine
    rng = np.random.default_rng(seed)
    x, weights = rng.standard_normal((tokens, shape.width), np.float32), shape.random(rng)
    truth = block.block_steps(x, {name: part.astype(np.float64) for name, part in shape.split(weights).items()},
                              shape.heads, causal=causal, post_ln=post_ln)
    rows: list[Difference] = []

    def compare(name, got):
        expected = truth[name]
        error = np.inf if got is None else np.nan_to_num(np.abs(got - expected).max(), nan=np.inf)
        rows.append(Difference(name, float(error), block.allowed_error(shape, expected, len(rows) + 1)))

    out = cuda.to_device(np.full(x.shape, np.nan, np.float32))
    stopped = ""
    try:
        block.solve(cuda.to_device(x), out, cuda.to_device(weights), tokens, shape=shape, causal=causal,
                    post_ln=post_ln, kernels=mine.kernels() if isinstance(mine, Answers) else mine,
                    watch=lambda name, array: compare(name, array.copy_to_host()))
    except Exception as error:  # a learner's kernel may do anything
        stopped = _in_a_line(error)
        compare(list(truth)[len(rows)], None)
    return Steps(tuple(rows), mine.by() if isinstance(mine, Answers) else {}, stopped)


def model_parity(model: GPT2, ids: Sequence[int], mine: Answers | Kernels | None = None) -> Steps:
    """The same for a whole GPT-2: a prompt, all layers, to the logits."""
    mine = mine.fitting(model.config.block) if isinstance(mine, Answers) else mine
    other = model if mine is None else with_kernels(model, mine)
    by = mine.by() if isinstance(mine, Answers) else {}
    try:
        return Steps(parity(other, ids).rows, by)
    except Exception as error:
        return Steps((Difference("the model", np.inf, 0.0),), by, _in_a_line(error))


def _in_a_line(error: Exception) -> str:
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return f"{kind}{error}".split("\n")[0].replace("(<unknown>, line", "(line")  # of a cell, which has no file


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


def one_by_one(mine: Answers, model: GPT2 | None = None, ids: Sequence[int] = (), **options) -> OneByOne:
    """Puts each answer into the model alone, then all together. model: left out, it is one block (options as for
    block_parity); else a GPT-2 that gets the prompt `ids`."""

    def run(these: Answers) -> Steps:
        return block_parity(these, **options) if model is None else model_parity(model, ids, these)

    elsewhere = {"argmax"} if model is not None else {"embedding", "append_to_cache", "logits", "argmax"}
    shape = options.get("shape", SMALL) if model is None else model.config.block
    fitting = [row for row in mine.fitting(shape).usable if row.place.part not in elsewhere]
    runs = [(row.exercise, row.place, run(Answers((row,)))) for row in fitting]
    if len(fitting) > 1:
        runs.append(("all together", None, run(Answers(tuple(fitting)))))
    left_out = [f"{row.exercise} is left out: it is for heads of {row.place.head} numbers, and here a head has "
                f"{shape.width // shape.heads}." for row in mine.usable if row not in mine.fitting(shape).rows]
    outside = [row.exercise for row in mine.usable if model is None and row.place.part in elsewhere]
    if outside:
        verb = "has its place" if len(outside) == 1 else "have their places"
        left_out.append(f"{', '.join(outside)} {verb} outside a block, in a whole model.")
    return OneByOne(tuple(runs), mine, "a block" if model is None else "the model", tuple(left_out))
