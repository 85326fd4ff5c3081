"""The one exception that the `labkit` command shows as a sentence instead of a traceback, and values in its messages.
"""


class UserError(Exception):
    """Something that the user can fix. The message says what was wrong and what to do."""


def short(value, most: int = 80) -> str:
    """A value from a file, for a message: its repr, cut off where it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; a number of more digits than Python writes
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= most else text[: most - 3] + "..."
