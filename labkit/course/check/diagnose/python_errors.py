"""Explanations of exceptions that Python or NumPy raised in a learner's function, and of the allowed alternatives."""

from __future__ import annotations

import re
import sysconfig
import traceback

from labkit._common import paths
from labkit.course.check.diagnose.compile_errors import meant, meant_name


def learners_frame(error: BaseException, own_file: str) -> tuple[str, int]:
    """(file, line) of the innermost frame that is the learner's: of the answer's file, else of no library. ("", 0) if
    there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    of_answer = [frame for frame in frames if frame.filename == own_file]
    others = [frame for frame in frames if not _of_library(frame.filename)]
    chosen = of_answer or others
    return (chosen[-1].filename, chosen[-1].lineno or 0) if chosen else ("", 0)


def _of_library(filename: str) -> bool:
    if filename.startswith("<frozen"):
        return True
    roots = (str(paths.PACKAGE), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    return filename.startswith(tuple(root for root in roots if root))


def raised_by_labkit(error: BaseException) -> bool:
    """Whether the message is labkit's own, which is written to be read."""
    frames = traceback.extract_tb(error.__traceback__)
    filename = frames[-1].filename if frames else ""
    return filename.startswith(str(paths.PACKAGE)) and not filename.startswith(str(paths.PACKAGE / "course" / "check"))


def in_words(error: BaseException) -> str:
    """Explain an exception in a sentence or two; quote its own message if no rule matches."""
    message = " ".join(str(error).split())
    for kind, pattern, words in RULES:
        if isinstance(error, kind) and (match := re.search(pattern, message)):
            return words(error, match) if callable(words) else words.format(*match.groups())
    name = type(error).__name__
    return f"{name}: “{message}”" if message else f"{name}, without a message."


def _unknown_name(error, match) -> str:
    frame = _innermost(error)
    known = {*frame.f_locals, *frame.f_globals} if frame else ()
    return f"There is no `{match.group(1)}` here.{meant_name(match.group(1), known)}"


def _unknown_attribute(error, match) -> str:
    value, name = getattr(error, "obj", None), match.group(match.lastindex)
    suggestion = meant(name, [one for one in dir(value) if not one.startswith("_")], ".") if value is not None else ""
    owner = f"The module {match.group(1)}" if match.re.pattern.startswith("module") else _a_kind(match.group(1))
    return f"{owner} has no `.{name}`.{suggestion}"


def _innermost(error):
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame if trace else None


_KINDS = {"int": "An integer", "float": "A number", "NoneType": "None", "list": "A list", "tuple": "A tuple",
          "numpy.ndarray": "A NumPy array", "ndarray": "A NumPy array", "dict": "A dictionary", "str": "A string",
          "function": "A function", "builtin_function_or_method": "A function", "Kernel": "A kernel",
          "DeviceNDArray": "A device array", "module": "A module"}  # fmt: skip


def _a_kind(name: str) -> str:
    return _KINDS.get(name, f"A {name}")


def _arguments(error, match) -> str:
    return (f"`{match.group(1)}` takes {match.group(2)} {'argument' if match.group(2) == '1' else 'arguments'}, but is "
            f"called with {match.group(3)}.")


def _missing(error, match) -> str:
    return f"`{match.group(1)}` is called without {match.group(3).replace(chr(39), '`')}."


def _operands(error, match) -> str:
    left, right = (kind if kind == "None" else kind[:1].lower() + kind[1:] for kind in map(_a_kind, match.groups()[1:]))
    none = " Where does the None come from: a function that returns nothing?" if "NoneType" in match.groups() else ""
    return f"`{match.group(1).split(' ')[0]}` is not defined for {left} and {right}.{none}"


def _shapes(error, match) -> str:
    return (f"Arrays of the shapes {match.group(1).replace(') (', ') and (')} cannot be broadcast together: counted "
            "from the last axis, lengths must be equal, or one of them must be 1.")


RULES = (
    # exception, pattern in its message, the sentence or what makes it
    (NameError, r"local variable '(\w+)'", "`{0}` is used before it has a value. Set it first, on every path."),
    (NameError, r"free variable '(\w+)'", "`{0}` is used before it has a value."),
    (NameError, r"name '(\w+)' is not defined", _unknown_name),
    (AttributeError, r"module '([\w.]+)' has no attribute '(\w+)'", _unknown_attribute),
    (AttributeError, r"'([\w.]+)' object has no attribute '(\w+)'", _unknown_attribute),
    (IndexError, r"index (-?\d+) is out of bounds for axis (\d+) with size (\d+)",
     "The index {0} is outside axis {1}, which has {2} elements: indices go from 0 to one less than that."),
    (IndexError, r"(\w+) index out of range", "The index is outside the {0}: indices go from 0 to its length - 1."),
    (IndexError, r"too many indices for array: array is (\d+)-dimensional, but (\d+) were indexed",
     "The array has {0} axes, but is given {1} indices."),
    (IndexError, r"only integers", "An index must be an integer (or a slice). `/` always gives a float: use `//`."),
    (KeyError, r"(.+)", "The dictionary has no key {0}."),
    (ZeroDivisionError, r"", "This divides by 0."),
    (RecursionError, r"", "The function calls itself forever: which case should stop it?"),
    (TypeError, r"unsupported operand type\(s\) for (\S+(?: or pow\(\))?): '([\w.]+)' and '([\w.]+)'", _operands),
    (TypeError, r"can only concatenate (\w+) \(not \"(\w+)\"\)", "`+` is not defined for {0} and {1}."),
    (TypeError, r"'(\S+)' not supported between instances of '([\w.]+)' and '([\w.]+)'", _operands),
    (TypeError, r"'([\w.]+)' object is not callable", lambda _, match: f"{_a_kind(match.group(1))} is followed by ( ) "
     "as if it were a function. Use [ ] for an element, and `*` for a product."),
    (TypeError, r"'function' object is not subscriptable",
     "A plain Python function is followed by [ ]. If it is a kernel, put `@cuda.jit` on the line above its `def`; to "
     "call it, use ( )."),
    (TypeError, r"'([\w.]+)' object is not subscriptable",
     lambda _, match: f"{_a_kind(match.group(1))} cannot be indexed with [ ]: it has no elements."),
    (TypeError, r"'([\w.]+)' object is not iterable",
     lambda _, match: f"{_a_kind(match.group(1))} has no elements to loop over. Is `range(...)` missing?"),
    (TypeError, r"cannot unpack non-iterable ([\w.]+) object",
     lambda _, match: f"{_a_kind(match.group(1))} cannot be unpacked into several names."),
    (TypeError, r"'float' object cannot be interpreted as an integer",
     "An integer is needed here, not a float. `/` always gives a float: use `//`."),
    (TypeError, r"'([\w.]+)' object cannot be interpreted as an integer", "An integer is needed here, not a {0}."),
    (TypeError, r"(<lambda>|\w+)\(\) takes (\d+) positional arguments? but (\d+) (?:was|were) given", _arguments),
    (TypeError, r"(<lambda>|\w+)\(\) missing (\d+) required positional arguments?: (.+)", _missing),
    (TypeError, r"(\w+)\(\) got an unexpected keyword argument '(\w+)'", "`{0}` has no argument `{1}`."),
    (ValueError, r"operands could not be broadcast together with (?:remapped )?shapes (.+?)\s*$", _shapes),
    (ValueError, r"matmul: .*\(size (\d+) is different from (\d+)\)",
     "`@` needs as many columns on the left as there are rows on the right: here {1} and {0}."),
    (ValueError, r"shapes (.+) and (.+) not aligned: (\d+) .*!= (\d+)",
     "Arrays of the shapes {0} and {1} cannot be multiplied as matrices: {2} is not {3}."),
    (ValueError, r"cannot reshape array of size (\d+) into shape (.+)",
     "{0} elements do not fill the shape {1}: the product of its lengths must equal the number of elements."),
    (ValueError, r"could not broadcast input array from shape (.+) into shape (.+)",
     "An array of the shape {0} is stored where one of the shape {1} belongs."),
    (ValueError, r"too many values to unpack \(expected (\d+)",
     "There are more values than the {0} names on the left."),
    (ValueError, r"not enough values to unpack \(expected (?:at least )?(\d+), got (\d+)",
     "There are too few values for the {0} names on the left: only {1}."),
    (ValueError, r"\b(max|min)\(\) (?:arg|iterable argument) is (?:an )?empty",
     "`{0}` has no values to compare here. What should the result be then? Pass that as `{0}(..., default=...)`."),
    (UnicodeError, r"", "These bytes are not text: is it the right range of bytes?"),
    (ValueError, r"^(Expecting|Extra data|Unterminated|Invalid)\b.*line \d+ column \d+",
     "This text is not JSON: does it begin and end at the right places?"),
    (ValueError, r"truth value of an array",
     "`if` and `while` need a single truth value, but this is a whole array: compare one element."),
    (ImportError, r"No module named '([\w.]+)'", "There is no module `{0}` here. The exercises need only NumPy and "
     "labkit."),
    (ImportError, r"cannot import name '(\w+)' from '([\w.]+)'", "`{1}` has no `{0}` to import."),
    (AssertionError, r"^(.*)$", lambda _, match: f"An `assert` failed{': ' if match.group(1) else ''}"
     f"{match.group(1)}."),
    (NotImplementedError, r"", "It raises NotImplementedError: replace this line with your answer."),
    (MemoryError, r"", "There is not enough memory for an array of that size: is a shape much too large?"),
    (OverflowError, r"", "A number is too large for its type."),
)
