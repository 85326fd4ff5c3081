"""Compiled GPU kernels on disk, so that a second process loads in milliseconds what the first one compiled in seconds.

    stats()                    # Stats(hits=17, misses=0, ...)
    directory()                # where they are

Every kernel that `from labkit import cuda` compiles for a GPU is kept, a learner's own as well as labkit's:
labkit.device installs the cache when it imports numba.cuda. A kernel is found again by labkit.device.kernel_key, which
changes with whatever the kernel refers to. Nothing is kept of kernels that are compiled for a debugger or linked with
files.

LABKIT_KERNEL_CACHE is the directory, or `off`. Without it: `gpu` in $LABKIT_CACHE_DIR if that is set, else labkit-gpu
in the user's cache directory. The least recently used files go when there is more than a gigabyte.

A file is a checksum and Numba's own state of a compiled kernel. One that was damaged is deleted and compiled anew;
several processes may write at once, for a file appears only when it is whole.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from labkit.device import compile_target, compiler, gpu_kernels
from labkit.device.kernel_key import Fingerprint, Uncacheable, compiler_files, key_of, own_files
from labkit.simt.settings import user_cache
from labkit.simt.store import Store


def directory() -> Path | None:
    """Where compiled kernels are kept; None if LABKIT_KERNEL_CACHE turns that off."""
    setting = os.environ.get("LABKIT_KERNEL_CACHE", "").strip()
    if setting.lower() in ("off", "0", "no", "false"):
        return None
    if setting:
        return Path(setting).expanduser()
    if cache_dir := os.environ.get("LABKIT_CACHE_DIR"):
        return Path(cache_dir).expanduser() / "gpu"
    return user_cache() / "labkit-gpu"


# --- Files ----------------------------------------------------------------------------------------------------------


@functools.cache
def _store_in(path: Path) -> Store:
    return Store(path)


def store() -> Store | None:
    path = directory()
    return None if path is None else _store_in(path)


# --- Between Numba and the files --------------------------------------------------------------------------------------


@dataclass
class Stats:
    """What the cache did in this process. uncacheable: a kernel's name -> why it is not kept."""

    hits: int = 0
    misses: int = 0
    saved: int = 0
    uncacheable: dict[str, str] = field(default_factory=dict)


_stats = Stats()


def stats() -> Stats:
    return replace(_stats, uncacheable=dict(_stats.uncacheable))


# A device function keeps what it was first compiled to, whatever becomes of the globals it refers to: these are the
# fingerprints from then. A kernel that calls one that has changed since is not what its key says.
_first_fingerprints: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_of_thread = threading.local()  # fingerprint: that of all its keys, within at_once


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Compute the keys in the block from one fingerprint, which visits what several kernels refer to once. None of that
    may change in the block."""
    _of_thread.fingerprint = Fingerprint()
    try:
        yield
    finally:
        _of_thread.fingerprint = None


def key_for(kernel, argument_types: tuple, capability: tuple) -> str:
    """The key of a kernel for these argument types. Raises Uncacheable, also where a device function's globals have
    changed since it was compiled."""
    missing = [name for name, file in compiler_files().items() if not file]
    if missing:
        raise Uncacheable(f"what compiles is not known: {missing[0]} was not found")
    fingerprint = getattr(_of_thread, "fingerprint", None) or Fingerprint()
    key = key_of(kernel, argument_types, capability, fingerprint)
    for function in fingerprint.device_functions:
        if function in _first_fingerprints and _first_fingerprints[function] != fingerprint.of(function):
            raise Uncacheable(f"{function.__name__}, which was compiled before what it refers to changed")
    fingerprint.device_functions.clear()  # those of other keys need no second look
    return key


class DiskCache:
    """Where a dispatcher loads and saves compiled kernels: what either compiler calls its cache, over a Store."""

    cache_path = None

    def __init__(self, dispatcher):
        self._dispatcher = weakref.ref(dispatcher)
        self._keys: dict[tuple, str] = {}  # of kernels being compiled: taken when that began

    def load_overload(self, signature, target_context):
        files, argument_types = store(), _argument_types(signature)
        self._keys.pop(argument_types, None)
        if files is None:
            return None
        dispatcher = self._dispatcher()
        try:
            key = key_for(dispatcher, argument_types, compile_target.here())
        except Uncacheable as error:
            _stats.uncacheable[dispatcher.__name__] = str(error)
            return None
        except Exception as error:  # a kernel that cannot be cached can be compiled all the same
            _stats.uncacheable[dispatcher.__name__] = f"{type(error).__name__}: {error}"
            return None
        self._keys[argument_types] = key
        kernel = restore(files, key)
        if kernel is None:
            _stats.misses += 1
        else:
            _stats.hits += 1
        return kernel

    def save_overload(self, signature, kernel):
        files, key = store(), self._keys.pop(_argument_types(signature), None)
        if files is not None and key is not None:
            _stats.saved += keep(files, key, kernel)

    def enable(self):
        pass

    disable = flush = enable


def _argument_types(signature) -> tuple:
    if compiler.is_mlir():
        from numba_cuda_mlir.numba_cuda.core import sigutils
    else:
        from numba.cuda.core import sigutils

    return tuple(sigutils.normalize_signature(signature)[0])


def restore(files: Store, key: str):
    """The kernel that is kept under this key; None if there is none that can be used."""
    content = files.load(key)
    if content is None:
        return None
    try:
        kernel = _rebuilt_by_mlir(content) if compiler.is_mlir() else _rebuilt(content)
        if kernel is not None:
            return kernel
    except Exception:  # written by something else under the same name; what pickle raises then is anything
        pass
    files.forget(key)
    return None


def _rebuilt(content: bytes):
    from numba.cuda import serialize
    from numba.cuda.dispatcher import _Kernel

    kernel = _Kernel._rebuild(**serialize.loads(content))
    kernel.objectmode = False  # as _Kernel's own constructor has it: a dispatcher with signatures asks for it
    return kernel if kernel._codelibrary._cubin_cache else None


def _rebuilt_by_mlir(content: bytes):
    from numba_cuda_mlir.caching import CachedCompileResult
    from numba_cuda_mlir.numba_cuda import serialize

    signature, metadata = serialize.loads(content)
    return CachedCompileResult(signature, metadata) if metadata["cubin"] else None


def keep(files: Store, key: str, kernel) -> bool:
    """Save a compiled kernel. False if kernels of its kind cannot be saved, or the disk cannot be written."""
    try:
        content = _state_by_mlir(kernel) if compiler.is_mlir() else _state(kernel)
    except Exception:  # Numba refuses some; and whatever else cannot be pickled
        return False
    return content is not None and files.save(key, content)


def _state(kernel) -> bytes | None:
    from numba.cuda import serialize

    if getattr(kernel, "launch_config_sensitive", False) or kernel._codelibrary._linking_files:
        return None
    return serialize.dumps(kernel._reduce_states())


# Of what numba-cuda-mlir knows of a compiled kernel: what launches it. Its own cache leaves use_cooperative out.
METADATA = ("cubin", "ptx", "func_name", "use_cooperative", "needs_nrt", "gpu_target")


def _state_by_mlir(kernel) -> bytes | None:
    from numba_cuda_mlir.numba_cuda import serialize

    metadata = kernel.metadata
    if metadata["targetoptions"].get("link") or metadata.get("setup_callbacks") or metadata.get("teardown_callbacks"):
        return None
    kept = {name: metadata.get(name) for name in METADATA}
    return serialize.dumps((kernel.signature, kept | {"targetoptions": {}}))


def install() -> None:
    """Give every dispatcher that numba-cuda makes from now on this cache, unless it was asked for Numba's own. Where
    another version of numba-cuda has no place for it, nothing changes."""
    try:
        from numba.cuda.core.caching import NullCache
        from numba.cuda.dispatcher import CUDADispatcher, _Kernel

        _Kernel._rebuild, _Kernel._reduce_states  # noqa: B018
        original = CUDADispatcher.__init__, CUDADispatcher.compile_device
    except (ImportError, AttributeError):
        return
    if not getattr(CUDADispatcher, "_labkit_cache", False):
        _give_cache(CUDADispatcher, NullCache, *original)


def install_for_mlir() -> None:
    """As `install`, for numba-cuda-mlir."""
    from numba_cuda_mlir.caching import NullCache

    kind = gpu_kernels.dispatcher_type()
    if not getattr(kind, "_labkit_cache", False):
        _give_cache(kind, NullCache, kind.__init__, kind._compile_as_device_callee, "_compile_as_device_callee")


def _give_cache(kind: type, no_cache: type, original_init, compile_device, method: str = "compile_device") -> None:
    own_files()

    @functools.wraps(original_init)
    def init_with_cache(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        if isinstance(getattr(self, "_cache", None), no_cache):
            self._cache = DiskCache(self)

    @functools.wraps(compile_device)
    def with_fingerprint(self, args, *rest, **options):
        if args not in self.overloads and self not in _first_fingerprints:
            try:
                _first_fingerprints[self] = Fingerprint().of(self)
            except Exception:  # what cannot be compared cannot have a kernel that is kept, either
                _first_fingerprints[self] = ""
        return compile_device(self, args, *rest, **options)

    kind.__init__, kind._labkit_cache = init_with_cache, True
    setattr(kind, method, with_fingerprint)
