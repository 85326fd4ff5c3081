"""The statements of the normal form that Python does not have."""

import ast


class Sync(ast.stmt):
    """target = op(*args), where threads wait for one another. target may be None. `kind`: "block", "warp" or "grid"."""

    _fields = ("target", "args")


class Inline(ast.stmt):
    """The body of an inlined device function; `Exit(label)` leaves it."""

    _fields = ("body",)


class Exit(ast.stmt):
    """Return from the kernel (label "kernel") or from the Inline with this label."""

    _fields = ()
