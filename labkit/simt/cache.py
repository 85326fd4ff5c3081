"""Compiled kernels on disk: for each the generated Python module, and what Numba compiled it to.

A key is a digest of everything that a kernel was made from: labkit.simt's own sources, the versions of Python, Numba
and NumPy, the kernel's source, the types of its arguments, the settings and the CPU. So nothing stale is ever
loaded; and nothing damaged, for the store checks each file before it gives it out.
"""

import contextlib
import enum
import functools
import hashlib
import linecache
import os
import pickle
import sys
import types
from pathlib import Path

import numba
import numpy as np
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from labkit.simt.codegen.native import NativeKernel
from labkit.simt.settings import cache_directory
from labkit.simt.store import Store

VERSIONS = f"{sys.implementation.cache_tag} {numba.__version__} {np.__version__}"


@functools.cache
def own_version():
    """A digest of labkit.simt's own sources, in all its folders, and of the versions of Python, Numba and NumPy."""
    digest = hashlib.sha256(VERSIONS.encode())
    folder = Path(__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()


@functools.cache
def _store_in(directory):
    return Store(directory, named_by="LABKIT_CACHE_DIR")


def _store():
    return _store_in(cache_directory())


def load_module(name, make_source, objects):
    """The generated module of this name, from the store, or made and put there. SOURCE is its text.

    objects: what it finds under names that it does not define. What these are compiled to may change, and the name
    does not say so: modules with other objects than named tuples and enums are not kept (IS_KEPT).
    """
    is_kept = all(isinstance(each, type) and issubclass(each, (tuple, enum.Enum)) for each in objects.values())
    cached = _store().load(f"{name}.py") if is_kept else None
    source = make_source() if cached is None else cached.decode()
    if cached is None and is_kept:
        _store().save(f"{name}.py", source.encode())
    module = types.ModuleType(f"labkit_simt_cache.{name}")
    module.__file__, module.SOURCE, module.IS_KEPT = f"<labkit.simt {name}>", source, is_kept
    linecache.cache[module.__file__] = len(source), None, source.splitlines(keepends=True), module.__file__
    sys.modules[module.__name__] = module
    vars(module).update(objects)
    exec(compile(source, module.__file__, "exec"), vars(module))
    return module


def kept_kernel(name, function, signature, make):
    """The NativeKernel of the generated function of this name, from the store, or made and put there."""
    key = KeptCode(_store, f"{name}.{function}").key(signature, cpu_target.target_context.codegen())
    content = _store().load(key)
    if content is not None:
        try:
            return NativeKernel.from_state(pickle.loads(content))
        except Exception:  # whole, but written by something else under the same name: pickle raises anything then
            _store().forget(key)
    kernel = make()
    state = kernel.state()
    if state is not None:
        with contextlib.suppress(Exception):  # what cannot be pickled is compiled again in the next process
            _store().save(key, dumps(state))
    return kernel


def is_code_cached(name, function, signature):
    """Whether load_module would find the module, and what Numba compiled of this function of it."""
    cached = KeptCode(_store, f"{name}.{function}")
    return all(_store().path(key).exists()
               for key in (f"{name}.py", cached.key(signature, cpu_target.target_context.codegen())))


def keep_beside(dispatcher, stamp):
    """What Numba compiles of this function is kept in the __pycache__ beside its file, or in the cache directory where
    that cannot be written. stamp: changes with whatever the function is made from."""
    function = dispatcher.py_func
    folder = Path(function.__code__.co_filename).parent
    digest = hashlib.sha256(f"{function.__module__} {function.__code__.co_firstlineno} {stamp}".encode()).hexdigest()

    def store():
        return _store_in(folder / "__pycache__" if os.access(folder, os.W_OK) else cache_directory())

    dispatcher._cache = KeptCode(store, f"{function.__qualname__}_{digest[:20]}")
    return dispatcher


class KeptCode:
    """Where a dispatcher of Numba's keeps what it compiled, as its _Cache, over a store of files.

    Numba's own cache writes an index and a file for each compiled signature, one after the other: a disk that fills in
    between leaves an index of nothing. And it checks neither, so a flipped bit is run as it is.
    """

    cache_path = None

    def __init__(self, store, name):
        self._store, self.name = store, name  # store: a function, for $LABKIT_CACHE_DIR may change

    def key(self, signature, codegen):
        made_for = f"{VERSIONS} {signature} {codegen.magic_tuple()} -O{int(numba.core.config.OPT)}"
        return f"{self.name}.{hashlib.sha256(made_for.encode()).hexdigest()[:20]}"

    def load_overload(self, signature, target_context):
        target_context.refresh()
        key = self.key(signature, target_context.codegen())
        content = self._store().load(key)
        if content is None:
            return None
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(content))
        except Exception:  # whole, but written by something else under the same name: pickle raises anything then
            self._store().forget(key)
            return None

    def save_overload(self, signature, result):
        if result.library.has_dynamic_globals or not all(lifted.can_cache for lifted in result.lifted):
            return  # addresses of this process
        try:
            content = dumps(result._reduce())
        except Exception:  # what cannot be pickled is compiled again in the next process
            return
        self._store().save(self.key(signature, result.codegen), content)

    def enable(self):
        pass

    disable = flush = enable
