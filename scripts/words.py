"""Advice on words: those that the field has another word for, where a word is the right one, and each place in the
repository that should be looked at.

    python scripts/words.py

Every identifier, docstring and comment of labkit/, solutions/, tests/ and scripts/ is read; of labkit/ so are the other
strings, except those of the exercises, which quote what learners write.
"""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Word:
    """`word`: a regular expression for a whole word, or for a part of an identifier between underscores. `where`: the
    beginnings of the paths that it is about. names_only: the word is right in a sentence. `allowed`:
    expressions for true uses, each with its reason; what they match is left out of the search."""

    word: str
    use: str
    where: tuple[str, ...] = ("",)
    names_only: bool = False
    allowed: tuple[tuple[str, str], ...] = ()


KERNELS = "labkit/kernels/"
PRODUCTS = (f"{KERNELS}matmul/", f"{KERNELS}linear/")
SOFTMAX = (f"{KERNELS}softmax/", f"{KERNELS}attention/")
PASSES = (*SOFTMAX, f"{KERNELS}norm/", f"{KERNELS}reduce.py")
MODEL = (KERNELS, "labkit/models/", "labkit/engine/", "labkit/measure/series/")
WORDS = (
    Word("halves", "float16 or half precision", allowed=(
        ("(both|its two|the two) halves", "of a whole: of a word of 64 bits, a barrier, a save"),
        ("halves the threads", "the verb"))),
    Word("sums", "accumulators (acc)", where=PRODUCTS, names_only=True),
    Word("mixed", "accumulators (acc), or the output", where=(*MODEL, "labkit/course/exercises/", "solutions/")),
    Word("powers", "exponentials", allowed=(("powers.of.two", "they are"),)),
    Word("readings|visits", "passes", where=PASSES),
    Word("largest", "row_max, in a sentence the maximum", where=SOFTMAX),
    Word("total", "row_sum, in a sentence the sum", where=SOFTMAX),
    Word("patch|patches", "thread tile", allowed=(
        ("(predict|linear)_patch", "names of exercises: learners' progress is kept under them"),)),
    Word("room", "capacity", where=MODEL),
    Word("turned", "transposed"),
    Word("finish", "epilogue", where=(KERNELS,), names_only=True),
    Word("told|said", "message, or the name of what is given"),
    Word("nobody", "none, or no thread"),
    Word("rivals?", "baseline", allowed=(("^rival$", "the word of old recordings, which the ladder still reads"),)),
    Word("processors?", "SMs or CPU", allowed=(
        ("^post_processor$", "the tokenizers library's name for it"), ("^logits_processors$", "vLLM's name"))),
    Word("dear|dearer|dearest", "expensive"),
    Word("(take|takes|took|taken) place", "run"),
)
FILES = sorted(path for folder in ("labkit", "solutions", "tests", "scripts")
               for path in (REPOSITORY / folder).rglob("*.py"))


@dataclass(frozen=True)
class Text:
    """An identifier or a piece of prose, and the line on which it begins."""

    line: int
    text: str
    is_name: bool = False


def names(nodes: list[ast.AST]) -> Iterator[Text]:
    """What the file names itself: functions, classes, arguments, what is assigned, and what an import is called."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Text(node.lineno, node.name, True)
        elif isinstance(node, ast.arg):
            yield Text(node.lineno, node.arg, True)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Text(node.lineno, node.id, True)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield Text(node.lineno, node.attr, True)
        elif isinstance(node, ast.alias) and node.asname:
            yield Text(node.lineno, node.asname, True)


def prose(source: str, nodes: list[ast.AST], strings: bool) -> Iterator[Text]:
    """Comments, with neighbouring lines joined so that a phrase is found across their ends; docstrings; with `strings`
    all other strings too."""
    block: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != block[-1].start[0] + 1:
                yield Text(block[0].start[0], "\n".join(each.string for each in block))
                block = []
            block.append(token)
    if block:
        yield Text(block[0].start[0], "\n".join(each.string for each in block))
    documented = {id(node.body[0].value) for node in nodes
                  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                  and node.body and isinstance(node.body[0], ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (strings or id(node) in documented):
            yield Text(node.lineno, node.value)


@functools.cache
def texts_in(path: str, source: str) -> tuple[Text, ...]:
    """What is read of a file. A string of a test or of an exercise may be what a learner or a library wrote."""
    nodes = list(ast.walk(ast.parse(source)))  # once: it takes most of the time
    strings = path.startswith("labkit/") and not path.startswith("labkit/course/exercises/")
    path_names = (Text(1, part, True) for part in path.removesuffix(".py").split("/"))
    return (*path_names, *names(nodes), *prose(source, nodes, strings))


def spread(pattern: str) -> str:
    """The pattern, with a space also matching the end of a line and the next line's #."""
    return pattern.replace(" ", r"[\s#]+")


def problems_in(path: str, source: str, words: tuple[Word, ...] = WORDS) -> list[str]:
    """path: of the file in the repository, such as labkit/kernels/matmul/half.py."""
    texts = texts_in(path, source)
    found = []
    for word in words:
        if not path.startswith(word.where):
            continue
        as_name = re.compile(rf"(?<![^_])(?:{word.word})(?![^_\d])", re.IGNORECASE)
        in_prose = re.compile(rf"(?<![^\W_])(?:{spread(word.word)})(?![^\W_])", re.IGNORECASE)
        for each in texts:
            if word.names_only and not each.is_name:
                continue
            matches = list((as_name if each.is_name else in_prose).finditer(each.text))
            excused = [match.span() for pattern, _ in word.allowed if matches
                       for match in re.finditer(spread(pattern), each.text, re.IGNORECASE)]
            for match in matches:
                if not any(begin <= match.start() and match.end() <= end for begin, end in excused):
                    line = each.line + each.text.count("\n", 0, match.start())
                    seen = re.sub(spread(" "), " ", match[0])
                    found.append((line, f"{path}:{line}: {seen!r}: say {word.use!r}"))
    return [message for _, message in sorted(set(found))]


def left_over() -> list[str]:
    """Expressions for true uses that match nothing any more."""
    texts = [text.text for path in FILES
             for text in texts_in(path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8"))]
    return [f"scripts/words.py: no text has {pattern!r} any more" for word in WORDS for pattern, _ in word.allowed
            if not any(re.search(spread(pattern), text, re.IGNORECASE) for text in texts)]


def main() -> None:
    advice = [message for path in FILES
              for message in problems_in(path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8"))]
    print("\n".join([*advice, *left_over()]) or "no word to look at")


if __name__ == "__main__":
    main()
