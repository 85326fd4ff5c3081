"""The one exception that the `labkit` command shows as a sentence instead of a traceback."""


class UserError(Exception):
    """Something that the user can fix. The message says what was wrong and what to do."""
