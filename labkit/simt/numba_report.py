"""What Numba's report of a typing failure says, as a sentence and as data: the one place that knows its texts."""

import re
import textwrap

_FORMS = (  # how Numba says it -> how we do; the last match in its report is the most specific
    (r"NumbaTypeError: (.+)", "{0}"),
    (r"Cannot unify (.+?) and (.+?) for '(\w+?)(?:\.\d+)?'", "{2} is {0} on one path and {1} on another"),
    (r"(?:NameError: name|Undefined variable|Variable) '(\w+?)(?:\.\d+)?'", "{0} is read before it is set"),
    (r"No implementation of function Function\((.+?)\) found for signature:\s+>>> \w+\((.+?)\)\n",
     "{0} does not take the types ({1})"),
    (r"Unknown attribute '(\w+)' of type (.+)", "{1} has no attribute {0}"),
    (r"Invalid use of (.+)", "invalid use of {0}"),
)  # fmt: skip
_PROBLEMS = (  # in such a sentence -> (problem, names of the facts in it)
    (r"(\w+) is read before it is set", "unset", ("name",)),
    (r"(\w+) is (.+) on one path and (.+) on another", "several types", ("name", "type", "other")),
    (r"(\w+) does not take the types \((.*)\)$", "operands", ("name", "types")),
    (r"(.+) has no attribute (\w+)$", "unknown attribute", ("type", "name")),
    (r"cannot index array of \S+ \((\d)D\) with (\d+) ind", "indices", ("axes", "count")),
    (r".*failed to unpack", "unpacked number", ()),
    (r".*wrong tuple length.*?expected \d+, got (\d+)", "unpacked", ("count",)),
    (r".*(?:index must be an integer|float\d* .*index|indices must be integers)", "index type", ()),
    (r"whole arrays cannot be", "whole array", ()),
    (r"cannot store a value of type (array|.*tuple)", "stored", ("type",)),
)


def read_report(report, names=None):
    """(sentence, problem, facts) of a report; problem is "" where none is known. names: {name in the generated source:
    name in the kernel}."""
    message = None
    for pattern, form in _FORMS:
        matches = re.findall(pattern, report)
        if matches:
            last = matches[-1]
            message = form.format(*(last if isinstance(last, tuple) else (last,)))
            break
    if message is None:
        lines = [part.strip() for part in report.split("\n") if part.strip()]
        message = next((t for t in lines if not t.startswith("Failed in nopython")), "unknown reason")
    for name, in_source in (names or {}).items():
        message = re.sub(rf"\b{re.escape(name)}\b", in_source, message)
    message = re.sub(r"<built-in function (\w+)>", r"\1", message)
    message = re.sub(r"array\((\w+), (\d)d, \w\)", r"array of \1 (\2D)", message)
    message = re.sub(r"Literal\[\w+\]\((.+?)\)", r"\1", message)
    return textwrap.shorten(message, 300, placeholder=" ..."), *problem_of(message)


def problem_of(message):
    """(problem, facts) of a sentence: numbers as int, types as a tuple of texts."""
    for pattern, problem, names in _PROBLEMS:
        if match := re.match(pattern, message, re.IGNORECASE):
            facts = dict(zip(names, match.groups(), strict=True))
            facts |= {name: int(facts[name]) for name in ("axes", "count") if name in facts}
            if "types" in facts:
                facts["types"] = tuple(_split(facts["types"]))
            return problem, facts
    return "", {}


def _split(types):
    """The types of a signature: "float32, UniTuple(int64 x 2)" has two."""
    parts, depth = [""], 0
    for sign in types:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]
