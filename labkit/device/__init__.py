"""Which device kernels run on: a GPU through numba.cuda, or the CPU device (labkit.simt). Decided once.

LABKIT_DEVICE=auto|gpu|cpu chooses; auto takes a GPU that works, else the CPU device. LABKIT_COMPILER=mlir takes
numba_cuda_mlir.cuda in the place of numba.cuda (labkit.device.compiler).
"""

import contextlib
import ctypes
import functools
import gc
import math
import os
import threading
from dataclasses import dataclass

REQUESTS = ("auto", "gpu", "cpu")
CPU_DEVICE = "CPU device: shows work, not GPU speed"


@dataclass(frozen=True)
class Choice:
    """The device in use. kind: "gpu" or "cpu"; requested: the value of LABKIT_DEVICE; reason: one sentence."""

    kind: str
    requested: str
    reason: str


def numba_cuda():
    """The module numba.cuda, with what numba-cuda 0.30 needs from NumPy >= 2.5 put back first, with a place on disk
    where compiled kernels are kept (labkit.device.kernel_cache), and with launches that cost less
    (labkit.device.quick_launch).

    Raises ImportError where it is not installed or does not import.
    """
    import numpy as np

    from labkit.device import cuda_12

    cuda_12.prefer_on_old_driver()
    if not hasattr(np, "row_stack"):  # removed in NumPy 2.5; numba-cuda 0.30.4 names it at the first launch
        np.row_stack = np.vstack
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # the course launches small grids on purpose
    import numba.cuda.random  # noqa: F401  (cuda.random is there only once it is imported)
    from numba import cuda

    if not hasattr(cuda, "rsqrt"):
        _add_rsqrt(cuda)
        _align_shared_arrays()
    from labkit.device import kernel_cache, quick_launch, unsigned

    kernel_cache.install()
    quick_launch.install()
    unsigned.install()
    return cuda


def gpu_cuda():
    """The module `cuda` of the compiler in use (labkit.device.compiler), ready for the course. Raises ImportError where
    it is not installed, ValueError for an unknown LABKIT_COMPILER."""
    from labkit.device import compiler

    if not compiler.is_mlir():
        return numba_cuda()
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # as above
    from labkit.device import kernel_cache, mlir, quick_launch

    cuda = mlir.cuda()
    kernel_cache.install_for_mlir()
    quick_launch.install_for_mlir()
    return cuda


def _align_shared_arrays():
    """Let shared arrays of 16 bytes and more begin at multiples of 16 bytes, as 128-bit accesses, cp.async and ldmatrix
    need. numba-cuda gives an array of float32 four, and whether it begins at sixteen is chance."""
    from numba.cuda import cudaimpl
    from numba.cuda.cudadrv import nvvm

    original = cudaimpl._generic_array

    @functools.wraps(original)
    def generic_array(context, builder, shape, dtype, symbol_name, addrspace, can_dynsized=False, alignment=None):
        nbytes = math.prod(shape) * context.get_abi_sizeof(context.get_data_type(dtype))
        if addrspace == nvvm.ADDRSPACE_SHARED and alignment is None and not 0 < nbytes < 16:  # 0: dynamic
            alignment = 16
        return original(context, builder, shape, dtype, symbol_name, addrspace, can_dynsized, alignment)

    cudaimpl._generic_array = generic_array


def _add_rsqrt(cuda):
    """cuda.rsqrt, which numba.cuda has in libdevice only, with one name for each type."""
    from numba.cuda import libdevice
    from numba.cuda.extending import overload

    def rsqrt(x):
        """1 / sqrt(x) inside a kernel, in the type of x."""
        raise TypeError("cuda.rsqrt() can be called only inside a kernel or a device function")

    @overload(rsqrt, target="cuda")
    def _(x):
        single = "float32" in str(x)
        return (lambda x: libdevice.rsqrtf(x)) if single else (lambda x: libdevice.rsqrt(x))

    cuda.rsqrt = rsqrt


def init_driver():
    """Initialize the CUDA driver, if there is one. That takes a while, in which another thread can import the
    compiler."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuInit(0)


@contextlib.contextmanager
def _no_collections():
    """Collect no garbage in the block, and never traverse what it leaves. A compiler makes so many objects as it is
    imported that collections take 0.1 s and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def _gpu_problem():
    """Why no compiler's cuda can run here, as a sentence; None if one can. Raises ValueError for an unknown
    LABKIT_COMPILER."""
    from labkit.device import compiler

    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return "NUMBA_ENABLE_CUDASIM is set, so numba.cuda is Numba's simulator"
    try:
        if not compiler.installed(compiler.name()):
            return "numba-cuda is not installed"
    except ImportError as error:
        return str(error)
    threading.Thread(target=init_driver, daemon=True).start()  # is_available waits for it
    try:
        with _no_collections():
            cuda = gpu_cuda()
        if cuda.is_available():
            return None
        reason = cuda.cuda_error()
    except Exception as error:  # a broken driver or toolkit raises many kinds; the course goes on without a GPU
        reason = f"{type(error).__name__}: {error}"
    lines = [line.strip(" .:") for line in str(reason or "no CUDA driver or no GPU was found").splitlines()]
    return f"no usable GPU was found: {next(line for line in lines if line)}"


@functools.cache
def choice() -> Choice:
    """The device in use, and why. Raises ValueError for an unknown LABKIT_DEVICE, RuntimeError for gpu without one."""
    requested = os.environ.get("LABKIT_DEVICE", "auto").strip().lower() or "auto"
    if requested not in REQUESTS:
        raise ValueError(f"LABKIT_DEVICE is {requested!r}; it must be one of {', '.join(REQUESTS)}")
    if requested == "cpu":
        return Choice("cpu", requested, "LABKIT_DEVICE=cpu asks for the CPU device.")
    problem = _gpu_problem()
    if problem is None:
        return Choice("gpu", requested, f"{gpu_cuda().__name__} found a GPU that works.")
    if requested == "gpu":
        raise RuntimeError(f"LABKIT_DEVICE=gpu, but {problem}. Run `labkit doctor` to see what is missing.")
    return Choice("cpu", requested, f"{problem[0].upper()}{problem[1:]}.")


def kind() -> str:
    """ "gpu" or "cpu"."""
    return choice().kind


def on_gpu() -> bool:
    """True if kernels run on a GPU."""
    return kind() == "gpu"


def begin_context():
    """Create the GPU's context in a thread, while this one goes on importing. The first to use it waits for it, and
    gets the error if there is one."""

    def create():
        with contextlib.suppress(Exception):
            gpu_cuda().current_context()

    if on_gpu():
        threading.Thread(target=create, daemon=True).start()


def name() -> str:
    """The device's name: "NVIDIA H200", or "labkit CPU device"; with LABKIT_PRETEND, that too: times taken then are no
    GPU's."""
    pretended = os.environ.get("LABKIT_PRETEND", "").strip()
    return (gpu_name() if on_gpu() else "labkit CPU device") + (f" (LABKIT_PRETEND={pretended})" if pretended else "")


def gpu_name() -> str:
    """What the driver calls the GPU."""
    raw = gpu_cuda().get_current_device().name
    return raw.decode() if isinstance(raw, bytes) else str(raw)


def where() -> str:
    """Where a time taken now is taken: the GPU's name, or that it is no GPU."""
    return name() if on_gpu() else CPU_DEVICE


def pick(*, gpu, cpu):
    """`gpu` on a GPU, `cpu` on the CPU device: the one way in which the course's sizes depend on the device."""
    return gpu if on_gpu() else cpu
