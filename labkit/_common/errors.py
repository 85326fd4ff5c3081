"""What the `labkit` command shows as a sentence instead of a traceback, and what such sentences hold.
"""

import errno
import re
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """Something that the user can fix. The message says what was wrong and what to do."""


# What a machine refuses, whatever the command: errno -> what to say.
REFUSED = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "your disk quota is used up",
    errno.EFBIG: "the file would be larger than is allowed",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EIO: "the device reports an error",
    errno.EMFILE: "too many files are open",
    errno.ENFILE: "too many files are open",
}


def refusal(error: OSError) -> str | None:
    """The sentence for an error that is the machine's; None for one that may be a bug."""
    reason = REFUSED.get(error.errno)
    return reason and f"{error.filename or 'the output'} cannot be written or read: {reason}"


def names_like(name: str, names: Iterable[str]) -> list[str]:
    """The three names most similar to `name`, best first: by shared words and by spelling."""
    import difflib

    query = name.lower()
    words = [word for word in re.split(r"[\W_]+", query) if len(word) > 2]

    def similarity(other: str) -> float:
        shared = sum(len(word) for word in words if word in other.lower())
        return shared / max(1, len(query)) + difflib.SequenceMatcher(None, query, other.lower()).ratio()

    return sorted(dict.fromkeys(names), key=similarity, reverse=True)[:3]


def did_you_mean(names: Sequence[str]) -> str:
    """ "did you mean softmax, scan or argmax?"; "" of none."""
    return f"did you mean {', '.join([*names[:-2], ' or '.join(names[-2:])])}?" if names else ""


def short(value, max_len: int = 80) -> str:
    """A value from a file, for a message: its repr, cut off where it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; a number of more digits than Python writes
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= max_len else text[: max_len - 3] + "..."
