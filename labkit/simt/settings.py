"""What can be set from outside: environment variables, the order of threads, the time limit; and the device's limits.

LABKIT_CACHE_DIR      where compiled kernels are kept
LABKIT_WORKERS        how many threads run blocks; the number of cores unless set
LABKIT_TIME_LIMIT     seconds that one block may run; 60 unless set, 0 is no limit
LABKIT_BOUNDS_CHECK   0: array indices are not checked

Each is read when it is needed. One that is empty counts as not set; nonsense raises SettingError.
"""

import contextlib
import contextvars
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numba

from labkit.simt.errors import SettingError


@dataclass(frozen=True)
class DeviceLimits:
    """What a launch may ask for: compute capability 9.0, and 48 KB of shared memory as every CUDA device grants.

    shared_per_block_optin: what a kernel gets that was allowed more, on an H200.
    """

    max_threads_per_block: int = 1024
    max_block_dim: tuple[int, int, int] = (1024, 1024, 64)
    max_grid_dim: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    shared_per_block: int = 48 * 1024
    shared_per_block_optin: int = 232_448
    local_per_thread: int = 512 * 1024
    warp_size: int = 32


LIMITS = DeviceLimits()
MAX_WORKERS = 1024
MAX_COOPERATIVE_THREADS = 1 << 18  # a large GPU holds about as many at once
ORDERS = ("forward", "reverse", "scattered")
_ORDER = contextvars.ContextVar("labkit_simt_order", default="forward")
_returned_are_awaited = True
_STRICT = contextvars.ContextVar("labkit_simt_strict", default=False)
_IN_TURN = contextvars.ContextVar("labkit_simt_in_turn", default=False)
_TIME_LIMIT = contextvars.ContextVar("labkit_simt_time_limit", default=None)
_STEP_LIMIT = contextvars.ContextVar("labkit_simt_step_limit", default=None)


def check_numba():
    """Raises SettingError where Numba is set to compile nothing: the CPU device runs compiled code."""
    if numba.config.DISABLE_JIT:
        raise SettingError(
            "NUMBA_DISABLE_JIT is set, and the CPU device compiles kernels with Numba: unset it. observe(kernel[grid, "
            "block], ...) runs a kernel in plain Python"
        )


def cache_directory():
    """Where compiled kernels are kept: $LABKIT_CACHE_DIR, or labkit-simt in the user's cache directory."""
    directory = os.environ.get("LABKIT_CACHE_DIR")
    return Path(os.path.expanduser(directory)) if directory else user_cache() / "labkit-simt"


def user_cache():
    """The directory in which this user's programs keep what they can make again."""
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():  # a user without a home, as in some containers
        home = Path(tempfile.gettempdir())
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")


@contextlib.contextmanager
def _within(variable, value):
    """The variable has this value in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def thread_order(order):
    """Launches below this run the threads of a block, and the blocks, in another order: one of ORDERS.

    A kernel whose result depends on it has a race.
    """
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; it must be one of {', '.join(ORDERS)}")
    return _within(_ORDER, order)


def current_order():
    """The order in which launches run their threads now: one of ORDERS."""
    return _ORDER.get()


def blocks_in_turn():
    """Launches below this run one block after another, on one core: what a race between blocks leaves in an array is
    then the same in every run."""
    return _within(_IN_TURN, True)


def is_in_turn():
    return _IN_TURN.get()


def strict_barriers():
    """Launches below this refuse a barrier that some threads never reach, also where a GPU lets it pass.

    CUDA leaves undefined what happens there. Otherwise a BarrierWarning names the line.
    """
    return _within(_STRICT, True)


def await_no_returned_threads():
    """From now on a block's barrier is passed without the threads that have returned, as on GPUs since Volta, with a
    BarrierWarning that names the line; not below `strict_barriers()`."""
    global _returned_are_awaited
    _returned_are_awaited = False


def barrier_rule():
    """1 if all threads must reach a barrier; -1 if those that have returned need not; 0 if that holds of a grid's
    barrier alone."""
    return 1 if _STRICT.get() else 0 if _returned_are_awaited else -1


def time_limit(seconds):
    """Launches below this are stopped after this many seconds in which no block ended; 0 is no limit."""
    return _within(_TIME_LIMIT, float(seconds))


def step_limit(steps):
    """Launches below this that are interpreted or observed are stopped after this many turns of loops, of all their
    threads together, however long that takes; a time limit does not hold then."""
    return _within(_STEP_LIMIT, int(steps))


def step_limit_now():
    return _STEP_LIMIT.get()


def time_limit_s():
    """Seconds that one block may run before the launch is stopped: $LABKIT_TIME_LIMIT, 60 unless set; 0 is no limit."""
    limit = _TIME_LIMIT.get()
    if limit is not None:
        return limit
    return _env_number("LABKIT_TIME_LIMIT", float, 60.0, "a number of seconds, or 0 for no limit")


def worker_count():
    """How many threads run blocks: $LABKIT_WORKERS, or one for each core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = f"a number of threads, or 0 for one on each core; at most {MAX_WORKERS:,} are allowed"
    return _env_number("LABKIT_WORKERS", int, 0, allowed, MAX_WORKERS) or cores


def _env_number(variable, convert, default, allowed, maximum=math.inf):
    """The value of an environment variable, 0 to `maximum`; the default where it is not set, or empty."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        value = convert(text)
    except ValueError:
        value = -1
    if not 0 <= value <= maximum:  # NaN included
        raise SettingError(f"{variable} is {text!r}; it must be {allowed}")
    return value


def is_checked():
    """False where $LABKIT_BOUNDS_CHECK is 0: array indices are then not checked, as on a GPU."""
    value = os.environ.get("LABKIT_BOUNDS_CHECK") or "1"
    if value not in ("0", "1"):
        raise SettingError(f"LABKIT_BOUNDS_CHECK is {value!r}; it must be 0, for unchecked array indices, or 1")
    return value == "1"
