"""Checks of every number in the prose against a recording. data/claims.toml says where each of them is.

    problems()      what prose says and no recording does, and what no entry covers: a list of sentences
    unrecorded()    what still has to be recorded

data/claims.toml has a table for each lesson, for README ("README"), data/README.md ("data"), data/teaching.md
("teaching") and the summaries in course.toml ("course"). Its keys are the kinds, and each holds fragments of prose,
quoted verbatim (a line break is a space):

    recorded     with {expressions} over the recording in place of numbers: "the swap is worth {naive / tiled:.1f}"
    arithmetic   the same, where nothing was measured: "{8191 // 256 + 8} steps"
    quoted       somebody else's numbers: the title of what they are from, and the fragments; the prose says whose
    compiled     read from machine code that was compiled offline; the prose says by what
    hardware     a fact of a data sheet, a standard or NVIDIA's documentation
    example      a number that was chosen, or a guess that the lesson takes back
    to_record    as recorded, for a value that no recording has yet: unrecorded() lists those
    let          names for expressions, used by the fragments of this lesson

A fragment of `recorded` is filled in from the recording, and then must occur in the prose exactly once. So a new
recording names the sentences that are no longer true, and gives the correct ones. In an expression:

    row("softmax", "naive", R=8192, C=8192)   a row of a ladder: .ms .us .graph_us .gbs .tflops .fraction .registers ...
    series.copies.h2d_pinned.gbs              a series, by attributes and indices
    ncu("matmul", "tiled")                    a profiled kernel: .dram_read .occupancy_percent ...
    stall("matmul", "tiled", "barrier")       how many of its warps waited for that
    report("L1/TEX Cache Throughput")         a line of the profiler's report on the tiled product
    limits.bandwidth_gbs, machine.sms         of the machine; training.last.loss of data/tiny-gpt2/training.json,
                                              llama_training of tiny-llama
    words(7.06)                               "seven"; words(0.5) "half"
    about("two thirds", value, 2 / 3)         the words if the value is within a tenth, else the value
    so("more than half", value > 0.5)         the words if it is so
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from labkit import measure
from labkit._common import paths
from labkit.measure import ncu as counters

TINY = paths.REPOSITORY / "data" / "tiny-gpt2"
CLAIMS = paths.REPOSITORY / "data" / "claims.toml"
FILLED = ("recorded", "arithmetic", "to_record")
LITERAL = ("hardware", "example", "quoted", "compiled")
WHOSE = re.compile(r"\b([Tt]he source|[Rr]eport|[Tt]heirs?|[Aa]uthor|port of|write-up|article|said to be|"
                   r"Sentences such as|notebook that this course|that notebook)\b")
COMPILED = re.compile(r"\b(compiled|ptxas|machine code|assembler)\b")
GPU = "NVIDIA H200"
NEARBY = {"quoted": WHOSE, "compiled": COMPILED}  # what the prose has to say within a few lines
ADVICE = ("Print it in a cell, or give the fragment an entry in data/claims.toml: recorded (with the expression), "
          "arithmetic, quoted, hardware or example.")

# --- What counts as a number in prose --------------------------------------------------------------------------------

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
          "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
_TENS = {30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy", 80: "eighty", 90: "ninety",
         100: "a hundred"}
_PARTS = {1 / 2: "half", 1 / 3: "a third", 2 / 3: "two thirds", 1 / 4: "a quarter", 3 / 4: "three quarters",
          1 / 5: "a fifth", 4 / 5: "four fifths", 1 / 10: "a tenth", 9 / 10: "nine tenths"}
_NUMBER = rf"(?:\d[\d,]*(?:\.\d+)?|\b(?:{'|'.join([*_WORDS[1:], *_TENS.values()])})\b)"
_UNIT = (r"(?:[uµmn]s|(?:micro|milli|nano)?seconds?|[GM]B|[GT]FLOP|GHz|percent|registers|instructions|clocks|"
         r"tokens a second)\b| ?%")
_PART = (r"(?:third|quarter|fifth|sixth|seventh|eighth|tenth|hundredth|thousandth)s? "
         r"(?:of|as|more|less|fewer|slower|faster|longer|apart)\b")
NUMBERS = re.compile("|".join((
    rf"{_NUMBER}[ -]?(?:{_UNIT})",  # 12 us, forty instructions
    rf"{_NUMBER} times (?:as|the|that|slower|faster|larger|smaller|longer|shorter|PyTorch|its|less|more)\b",
    rf"factors? of (?:about |some |nearly )?{_NUMBER}",
    r"\b(?:twice|(?<!first )(?<!second )(?<!upper )(?<!other )(?<!right )half) (?:as|the|of|that|its)\b",
    r"\b(?:doubles?|triples?|halves) (?:the|its)\b",
    rf"\b(?:an?|one|two|three|four|five|nine) {_PART}",
    r"(?<![\w.])(?<!CUDA )(?<!Llama )(?<!tileiras )(?<!ptxas )\d+\.\d+(?!\.?\w)",  # any decimal but a version: 0.96
)), re.IGNORECASE)


def prose_of(source: str) -> str:
    """The markdown cells of a lesson's source without code blocks, formulas, links' addresses; on one line a cell."""
    cells = re.split(r"^# %%", source, flags=re.M)
    parts = []
    for cell in cells:
        if not cell.startswith(" [markdown]"):
            continue
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in cell.splitlines()[1:])
        parts.append(plain(text))
    return "\n".join(parts)


def plain(text: str) -> str:
    """Markdown as running text on one line."""
    text = re.sub(r"```.*?```", " ", text, flags=re.S)
    text = re.sub(r"\$\$.*?\$\$", " ", text, flags=re.S)
    text = re.sub(r"<!-- (\w+): made by.*?<!-- end of \1 -->", " ", text, flags=re.S)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return " ".join(text.split())


def texts() -> dict[str, str]:
    """Return name -> prose of every lesson, the two READMEs, the teacher's page and the summaries of course.toml."""
    result = {path.stem: prose_of(path.read_text(encoding="utf-8"))
              for path in sorted((paths.REPOSITORY / "notebooks").glob("[0-9]*.py"))}
    result["README"] = plain((paths.REPOSITORY / "README.md").read_text(encoding="utf-8"))
    course = tomllib.loads((paths.REPOSITORY / "course.toml").read_text(encoding="utf-8"))
    result["data"] = plain((paths.REPOSITORY / "data" / "README.md").read_text(encoding="utf-8"))
    result["teaching"] = plain((paths.REPOSITORY / "data" / "teaching.md").read_text(encoding="utf-8"))
    result["course"] = " ".join(chapter["summary"] for chapter in course["chapter"])
    return result


# --- What expressions may use ----------------------------------------------------------------------------------------


class Record:
    """A part of a recording, by attributes and indices; a list of named things also by name."""

    def __init__(self, value):
        self._value = value

    def __getattr__(self, name: str):
        if name.startswith("_") or not isinstance(self._value, Mapping) or name not in self._value:
            raise KeyError(name)
        if self._value[name] is None:  # there, and not measured
            raise KeyError(name)
        return _wrapped(self._value[name])

    def __getitem__(self, key):
        if isinstance(key, str) and isinstance(self._value, list):
            return _wrapped(next(one for one in self._value if key in (one["name"], one.get("kind"))))
        return _wrapped(self._value[key])

    def __len__(self) -> int:
        return len(self._value)

    def __iter__(self):
        return (_wrapped(one) for one in self._value)


def _wrapped(value):
    return Record(value) if isinstance(value, Mapping | list) else value


def row(op: str, name: str, **size: int) -> SimpleNamespace:
    """Return a recorded row. `name`: with or without the operation's prefix; of a library, a prefix is enough."""
    ladder = measure.recorded_ladder(op, size or None, gpu=GPU)
    if ladder is None:
        raise KeyError(f"{op} {size}")
    matches = [one for one in ladder.rows if one.name in (name, f"{op}_{name}")]
    matches = matches or [one for one in ladder.rows if one.name.startswith(name)]
    if not matches:
        raise KeyError(f"{op}: {name}")
    one = matches[0]
    resources = one.resources[0] if one.resources else {}
    return SimpleNamespace(ms=one.timing.p50, us=1000 * one.timing.p50, gbs=one.gbs, tflops=one.tflops,
                           graph_us=one.graph and 1000 * one.graph.p50, fraction=one.fraction, error=one.error,
                           bytes=ladder.bytes, bound_ms=ladder.bound_ms, **resources)


def rates_of(op: str, names: tuple[str, ...]) -> dict[str, float]:
    """name -> TFLOP/s."""
    return {name: row(op, name).tflops for name in names}


def times_of(op: str, names: tuple[str, ...], prefix: str = "") -> dict[str, float]:
    """name -> ms of each row, which is called `prefix` + the name."""
    return {name: row(op, prefix + name).ms for name in names}


def profiled(op: str) -> list[dict]:
    """Every kernel of an operation that Nsight Compute counted."""
    return counters.recorded()["ops"][op]["rows"]


def ncu(op: str, name: str) -> Record:
    """What Nsight Compute counted for a row's first kernel."""
    rows = counters.recorded()["ops"][op]["rows"]
    matches = [one for one in rows if one["name"] in (name, f"{op}_{name}") or one["name"].startswith(name)]
    if not matches:
        raise KeyError(f"ncu.{op}.{name}")
    return Record(matches[0])


def stall(op: str, name: str, reason: str) -> float:
    """How many warps of a scheduler waited for this when one of them issued an instruction; what ncu left out is 0."""
    return ncu(op, name).stalls._value.get(reason, 0.0)


def report(metric: str) -> float:
    """A number from Nsight Compute's own report on the tiled product."""
    text = counters.recorded()["report"]
    return float(re.search(rf"{re.escape(metric)} +[^ ]+ +([\d,.]+)", text)[1].replace(",", ""))


def block_bytes(tokens: int, fused: bool = True) -> int:
    """Return what the launches of a GPT-2 block read and write, as lesson 19 counts it."""
    from labkit.models.gpt2_block import GPT2_SMALL, traffic

    return sum(traffic(GPT2_SMALL, tokens, fused=fused).values())


def mean_rate(model: Record, how: str, attention: str = "unfused") -> float:
    """Tokens a second of a recorded model, over its prompts; by default with softmax in three launches."""
    rates = [one["tokens_per_second"] for prompt in model._value["prompts"] for one in prompt["rows"]
             if (one["attention"], one["how"]) == (attention, how)]
    return sum(rates) / len(rates)


def file_mb(name: str) -> float:
    """The size of a file of data/tiny-gpt2."""
    return (TINY / name).stat().st_size / 1e6


def words(value: float) -> str:
    """7.06 -> "seven", 0.5 -> "half"; a number without a word of its own stays a number."""
    for part, name in _PARTS.items():
        if abs(value / part - 1) < 0.1 and value < 0.95:
            return name
    rounded = round(value)
    if rounded > 20:
        rounded = round(value, -1)
        return _TENS.get(int(rounded), f"{value:.3g}")
    return _WORDS[rounded - 1] if 0 < rounded <= len(_WORDS) else f"{value:.3g}"


def about(phrase: str, value: float, expected: float, within: float = 0.1) -> str:
    """`phrase`, if the value is as near to what that means as `within`."""
    return phrase if abs(value / expected - 1) <= within else f"({phrase}: {value:.4g})"


def so(phrase: str, holds: bool) -> str:
    """`phrase`, if it is so."""
    return phrase if holds else f"(not {phrase})"


def _training(model: Path) -> Record:
    return Record(json.loads((model / "training.json").read_text(encoding="utf-8")))


def namespace(let: Mapping[str, str] | None = None) -> dict:
    """Return every name that an expression may use."""
    data = measure.recorded(gpu=GPU)
    functions = (row, rates_of, times_of, ncu, profiled, stall, report, block_bytes, mean_rate, file_mb, words, about,
                 so, min, max, abs, all, sum, round, len)
    names = {function.__name__: function for function in functions}
    names |= {"series": Record(data["series"]), "limits": Record(data["limits"]), "machine": Record(data["machine"]),
              "training": _training(TINY), "llama_training": _training(TINY.with_name("tiny-llama")),
              "__builtins__": {}}
    for name, expression in (let or {}).items():
        names[name] = eval(expression, names)  # data/claims.toml is ours
    return names


# --- The check -------------------------------------------------------------------------------------------------------

_HOLE = re.compile(r"\{([^{}]+?)(?::(,|[,.\d]*[defg%]))?\}")


def fill(template: str, names: Mapping) -> str:
    """The template with its {expressions} evaluated; {expression:.1f} is formatted."""
    def value(match: re.Match) -> str:
        result = eval(match[1], dict(names))
        return format(result, match[2]) if match[2] else str(result)

    return _HOLE.sub(value, template)


def problems(prose: Mapping[str, str] | None = None, claims: Mapping | None = None) -> list[str]:
    """Sentences that are no longer true, fragments that are not there, and numbers that nothing covers."""
    prose = texts() if prose is None else prose
    claims = read() if claims is None else claims
    errors = [f"{name}: data/claims.toml has entries for it, and there is no such text" for name in claims
              if name not in prose]
    for name, text in prose.items():
        covered, wrong = _covered(name, text, claims.get(name, {}))
        covered += [match.span() for match in re.finditer(r"`[^`]*`", text)]  # code
        errors += [f"{name}: {problem}" for problem in wrong]
        errors += [f"{name}: nothing says where {match.group()!r} comes from: ...{_around(text, match)}... {ADVICE}"
                   for match in NUMBERS.finditer(text)
                   if not any(begin <= match.start() and match.end() <= end for begin, end in covered)]
    return errors


def read(path: Path = CLAIMS) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _covered(name: str, text: str, kinds: Mapping) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the spans of the text that the entries cover, and the faults of the entries."""
    covered, errors = [], []
    names = namespace(kinds.get("let"))
    for kind, fragments in kinds.items():
        if kind == "let":
            continue
        if kind not in FILLED + LITERAL:
            errors.append(f"{kind!r} is no kind of claim")
            continue
        if kind == "quoted":
            fragments = [fragment for one in fragments.values() for fragment in one]
        for fragment in fragments:
            phrase = " ".join(fragment.split())
            if kind in FILLED:
                try:
                    phrase = fill(phrase, names)
                except KeyError as error:
                    errors += [f"no recording has {error}: {fragment!r}"] if kind != "to_record" else []
                    covered += _like(fragment, text) or _literal(fragment, text)
                    continue
                except Exception as error:  # whatever an expression may raise
                    errors.append(f"{fragment!r} cannot be worked out: {type(error).__name__}: {error}")
                    continue
            spans = [match.span() for match in re.finditer(re.escape(phrase), text)]
            if len(spans) != 1:
                errors.append(_misplaced(kind, fragment, phrase, text, len(spans)))
            elif kind in NEARBY and not NEARBY[kind].search(text, max(0, spans[0][0] - 400), spans[0][1] + 60):
                errors.append(f"{phrase!r} is {kind}, and the prose does not say from where")
            covered += spans or _like(fragment, text)
    return covered, errors


def _literal(template: str, text: str) -> list[tuple[int, int]]:
    """Where the prose has a template that holds words in its expressions, as in {so('half as much', ...)}."""
    phrase = " ".join(re.sub(r"\{(?:so|about)\('([^']*)'.*?\}", r"\1", template).split())
    return [match.span() for match in re.finditer(re.escape(phrase), text)]


def unrecorded(claims: Mapping | None = None) -> list[str]:
    """The entries of `to_record` whose value no recording has yet."""
    errors = []
    for name, kinds in (read() if claims is None else claims).items():
        names = namespace(kinds.get("let"))
        for fragment in kinds.get("to_record", ()):
            try:
                fill(fragment, names)
            except KeyError as error:
                errors.append(f"{name}: no recording has {error}: {fragment!r}")
    return errors


def _like(template: str, text: str) -> list[tuple[int, int]]:
    """Where the prose has the words of a template with anything at all in its holes."""
    parts = _HOLE.sub("\0", " ".join(template.split())).split("\0")
    return [match.span() for match in re.finditer(".{1,40}?".join(map(re.escape, parts)), text)]


def _misplaced(kind: str, fragment: str, phrase: str, text: str, count: int) -> str:
    if count > 1:
        return f"{phrase!r} stands there {count} times; take a longer fragment"
    similar = _like(fragment, text)
    instead = f"it says {text[slice(*similar[0])]!r}" if similar else "nothing like it is there"
    return f"the prose should say {phrase!r} ({kind}), and {instead}"


def _around(text: str, match: re.Match) -> str:
    return text[max(0, match.start() - 50) : match.end() + 40].replace("\n", " ")


if __name__ == "__main__":
    print(*problems(), *unrecorded(), sep="\n")
