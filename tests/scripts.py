"""A module of scripts/, which is no package, for the tests of it."""

import contextlib
import importlib.util
import sys

from labkit._common.paths import REPOSITORY


@contextlib.contextmanager
def loaded(name: str):
    """scripts/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]
