"""The field's words: one table of words that labkit/ does not use, what it says instead, and where a word of the table
is the right one. Every identifier, docstring and comment is read; so are strings, except those of the exercises, which
quote what learners write."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from labkit._common.paths import PACKAGE


@dataclass(frozen=True)
class Word:
    """`word`: a regular expression for a whole word, or for a part of an identifier between underscores. `where`: the
    beginnings of the paths in labkit/ that it is about. `allowed`: expressions for a true use, each with its reason; it
    is matched against the identifier or, in prose, against the text around the word."""

    word: str
    use: str
    where: tuple[str, ...] = ("",)
    allowed: tuple[tuple[str, str], ...] = ()


WORDS = (
    Word("halves", "float16, half precision"),
    Word("sums", "accumulators", where=("kernels/matmul/", "kernels/linear/")),
    Word("mixed", "output"),
    Word("powers", "exponentials"),
    Word("readings|visits", "passes"),
    Word("largest", "row_max", where=("kernels/softmax/", "kernels/attention/")),
    Word("total", "row_sum", where=("kernels/softmax/", "kernels/attention/")),
    Word("patch|patches", "thread tile"),
    Word("room|rooms", "capacity"),
    Word("turned", "transposed"),
    Word("finish", "epilogue"),
    Word("told|said", "message"),
    Word("nobody", "none, or what does not do it"),
    Word("rivals?", "baseline"),
    Word("processors?", "SMs"),
    Word("dear|dearer|dearest", "expensive"),
    Word("(take|takes|took|taken) place", "run"),
)
FILES = sorted(PACKAGE.rglob("*.py"))


@dataclass(frozen=True)
class Text:
    """An identifier or a piece of prose, and the line on which it begins."""

    line: int
    text: str
    is_name: bool = False


def names(tree: ast.Module) -> Iterator[Text]:
    """What the file names itself: functions, classes, arguments, what is assigned, and what an import is called."""
    for node in ast.walk(tree):
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


def prose(source: str, tree: ast.Module, strings: bool) -> Iterator[Text]:
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
    documented = {id(node.body[0].value) for node in ast.walk(tree)
                  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                  and node.body and isinstance(node.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (strings or id(node) in documented):
            yield Text(node.lineno, node.value)


def spread(pattern: str) -> str:
    """The pattern, with a space also matching the end of a line and the next line's #."""
    return pattern.replace(" ", r"[\s#]+")


def problems_in(path: str, source: str, words: tuple[Word, ...] = WORDS) -> list[str]:
    """path: of the file, from labkit/ on, such as kernels/matmul/half.py."""
    tree = ast.parse(source)
    texts = [Text(1, part, True) for part in path.removesuffix(".py").split("/")]
    texts += [*names(tree), *prose(source, tree, strings=not path.startswith("course/exercises/"))]
    found = []
    for word in words:
        if not path.startswith(word.where):
            continue
        as_name = re.compile(rf"(?<![^_])(?:{word.word})(?![^_\d])", re.IGNORECASE)
        in_prose = re.compile(rf"(?<![^\W_])(?:{spread(word.word)})(?![^\W_])", re.IGNORECASE)
        for each in texts:
            excused = [match.span() for pattern, _ in word.allowed
                       for match in re.finditer(spread(pattern), each.text, re.IGNORECASE)]
            for match in (as_name if each.is_name else in_prose).finditer(each.text):
                if not any(begin <= match.start() and match.end() <= end for begin, end in excused):
                    line = each.line + each.text.count("\n", 0, match.start())
                    found.append((line, f"labkit/{path}:{line}: {match[0]!r}: say {word.use!r}"))
    return [message for _, message in sorted(set(found))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_words_are_the_fields(path):
    assert not problems_in(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8"))
