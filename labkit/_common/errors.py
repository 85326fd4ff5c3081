"""The one exception that the `labkit` command shows as a sentence instead of a traceback."""


class UserError(Exception):
    """Something the person at the keyboard can mend. The message says what was wrong and what to do."""
