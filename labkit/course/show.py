"""show_source(kernel): the source as it is in the repository, so that a lesson never pastes a kernel.

Of a long kernel a lesson may show a part: show_source(kernel, "for k in range(", "cuda.syncthreads()").
Works on numba.cuda kernels, kernels of the CPU device, launchers, plain functions and classes.
"""

import inspect
import textwrap
from html import escape
from pathlib import Path

from labkit._common import paths


class Source:
    """A piece of source. Highlighted in a notebook, plain text in a terminal."""

    def __init__(self, obj, first: str = "", last: str = ""):
        if callable(obj):  # a cached function, a rung: it is the one inside that has a source
            obj = inspect.unwrap(obj)
        function = getattr(obj, "py_func", getattr(obj, "fn", obj))  # Triton calls it fn
        self.name = getattr(function, "__name__", type(obj).__name__)
        try:
            lines, self.line = inspect.getsourcelines(function)
            path = inspect.getsourcefile(function)
        except TypeError:
            raise TypeError(
                f"show_source: obj must be a kernel, a function or a class written in Python, not {obj!r}"
            ) from None
        except OSError:
            raise ValueError(f"show_source: the source of {self.name} is not on disk; was it typed in?") from None
        if first or last:
            lines = self._part(lines, first, last)
        self.code = textwrap.dedent("".join(lines)).rstrip() + "\n"
        self.path = _short(path)

    def _part(self, lines: list[str], first: str, last: str) -> list[str]:
        """From the first line that contains `first` to the next that contains `last`."""
        begin = next((n for n, line in enumerate(lines) if first in line), None)
        if begin is None:
            raise ValueError(f"show_source: no line of {self.name} contains {first!r}")
        end = next((n for n, line in enumerate(lines[begin:], begin) if last in line), None) if last else len(lines) - 1
        if end is None:
            raise ValueError(f"show_source: no line of {self.name} from {first!r} on contains {last!r}")
        self.line += begin
        return lines[begin : end + 1]

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}" if self.path else ""

    def __str__(self) -> str:
        return f"# {self.where}\n{self.code}" if self.where else self.code

    __repr__ = __str__

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        body = highlight(self.code, PythonLexer(), HtmlFormatter(nowrap=True, classprefix="lk-"))
        caption = f'<div class="labkit-source-where">{escape(self.where)}</div>' if self.where else ""
        return f'<style>{_style()}</style><div class="labkit-source">{caption}<pre>{body}</pre></div>'


def show_source(obj, first: str = "", last: str = "") -> Source:
    """The source of a kernel, a launcher, a function or a class, ready to be displayed.

    first, last: show only the lines from the first that contains `first` to the next that contains `last`.
    """
    return Source(obj, first, last)


def _short(path: str | None) -> str:
    """The path relative to the repository; a notebook cell has none worth showing."""
    if path is None or "ipykernel_" in path or path.startswith("<"):
        return ""
    package = paths.PACKAGE
    resolved = Path(path).resolve()
    for base in (package.parent, Path.cwd()):
        if resolved.is_relative_to(base):
            return resolved.relative_to(base).as_posix()
    return resolved.name


def _style() -> str:
    """The colours. The site sets --lk-*, JupyterLab has its own names; the fallbacks read on white and on black."""
    groups = (  # pygments' classes, the site's variable, JupyterLab's variable, fallback
        ("k kn kd kc ow", "k", "keyword", "#8b5cf6"),
        ("s1 s2 sd sa si se", "s", "string", "#16a34a"),
        ("c1 cm ch", "c", "comment", "#808890"),
        ("mi mf mh mb", "n", "number", "#3b82f6"),
        ("nf nd nc fm", "f", "def", "#d97706"),
    )
    rules = [
        ".labkit-source{border:1px solid #8884;border-radius:6px;overflow:hidden}",
        ".labkit-source-where{font:12px/1 ui-monospace,monospace;opacity:.7;padding:8px 12px;",
        "border-bottom:1px solid #8884}",
        ".labkit-source pre{margin:0;padding:10px 12px;overflow-x:auto;font-size:13px;line-height:1.5}",
    ]
    for names, variable, jupyter, fallback in groups:
        selector = ",".join(f".labkit-source .lk-{name}" for name in names.split())
        rules.append(f"{selector}{{color:var(--lk-{variable},var(--jp-mirror-editor-{jupyter}-color,{fallback}))}}")
    return "".join(rules)
