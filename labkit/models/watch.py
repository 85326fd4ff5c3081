"""watch(name, array): a function that a model calls after each launch, with what it wrote, to inspect it."""

from __future__ import annotations

from collections.abc import Callable


def reporter(watch: Callable | None, prefix: str = "") -> Callable:
    """Return report(name, array), which passes on to `watch`, if there is one, with the prefix before the name."""
    return (lambda name, array: watch(prefix + name, array)) if watch else (lambda name, array: None)
