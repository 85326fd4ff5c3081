"""Compiled kernels on disk: a Python module for each, with Numba's compiled code beside it.

A module's name carries a digest of everything that it was made from: labkit.simt's own sources, the versions of Numba
and NumPy, the kernel's source, the types of its arguments and the settings. So nothing stale is ever loaded.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import numba
import numpy as np

from labkit.simt.settings import cache_directory


@functools.cache
def own_version():
    """A digest of labkit.simt's own sources, in all its folders, and of the versions of Numba and NumPy."""
    digest = hashlib.sha256(f"{numba.__version__} {np.__version__}".encode())
    folder = Path(__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()


def forget(name):
    """Delete what the cache holds of a generated module."""
    for file in [*cache_directory().glob(f"{name}.*"), *cache_directory().glob(f"__pycache__/{name}.*")]:
        with contextlib.suppress(OSError):
            file.unlink()
    importlib.invalidate_caches()


def load_module(name, make_source):
    """Import the generated module from the cache directory, writing it first if it is not there."""
    directory = cache_directory()
    path = directory / f"{name}.py"
    if not path.exists():
        source = make_source()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=directory, suffix=".tmp", delete=False, encoding="utf-8") as f:
                f.write(source)
            os.chmod(f.name, 0o644)  # the temporary file is private; a cache may be shared
            os.replace(f.name, path)
        except OSError:  # no place to cache: compile from a directory that ends with the process
            directory = Path(tempfile.mkdtemp(prefix="labkit-simt-"))
            path = directory / f"{name}.py"
            path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"labkit_simt_cache.{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
