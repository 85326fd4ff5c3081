"""Vector addition and softmax in Triton: programs over blocks of elements, in Python.

Shapes  vector_add: a, b, out (n,).  softmax: x, out (rows, cols), a row at most 65,536 long; float32, C-contiguous
Source  Triton's tutorials, "Vector Addition" and "Fused Softmax"

On a GPU Triton takes PyTorch's tensors, and here device arrays, too. Without a GPU its interpreter runs the same
programs through NumPy, on NumPy arrays or device arrays; TRITON_INTERPRET=1 has to be set before Triton is imported,
which this module does. Where Triton is not installed, the module can be imported and its source shown; why_not() says
so, and a launch raises ImportError.
"""

import os
import sys

import numpy as np

from labkit import device
from labkit.kernels.op import rung

LONGEST_ROW = 65_536


class _Absent:
    """Stands in for triton and triton.language if they are missing, so that the kernels below can be shown."""

    constexpr = None

    @staticmethod
    def jit(kernel):
        return kernel


def _import_triton():
    if not device.on_gpu() and "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    try:
        import triton
        import triton.language

        return triton, triton.language, ""
    except Exception as error:  # a broken install of a baseline must not stop a lesson
        reason = "is not installed" if isinstance(error, ImportError) else f"does not import: {error}"
        return _Absent, _Absent, f"Triton {reason}. On Linux: pip install triton."


triton, tl, _missing = _import_triton()


@triton.jit
def add_kernel(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(a_ptr + offsets, mask=mask)
    b = tl.load(b_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, a + b, mask=mask)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, row_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * row_stride + offsets, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * row_stride + offsets, e / tl.sum(e, axis=0), mask=mask)


@rung(kernel=add_kernel, idea="a program for 1,024 elements")
def vector_add_triton(a, b, out, block: int = 1024) -> None:
    """out = a + b. One program for `block` elements."""
    (n,) = a.shape
    _launch(lambda *tensors: add_kernel[(-(-n // block),)](*tensors, n, BLOCK=block), a, b, out)


@rung(kernel=softmax_kernel, idea="a program for a row")
def softmax_triton(x, out) -> None:
    """Softmax of each row. One program for a row, which it holds in registers: a power of two of elements."""
    rows, cols = x.shape
    if cols > LONGEST_ROW:
        raise ValueError(f"x has {cols:,} columns; a program holds a row, and at most {LONGEST_ROW:,} are allowed")
    block = next_power_of_2(cols)
    warps = min(16, max(4, block // 512))
    _launch(lambda *tensors: softmax_kernel[(rows,)](*tensors, cols, cols, BLOCK=block, num_warps=warps), x, out)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def why_not() -> str:
    """Why Triton's programs cannot run here, as a sentence; "" if they can."""
    if _missing:
        return _missing
    if not device.on_gpu() and not _interpreted():
        return "Triton was imported before TRITON_INTERPRET=1 was set, and there is no GPU."
    return ""


def where() -> str:
    """What runs the programs: the GPU's name, or Triton's interpreter."""
    return "Triton's interpreter, on the CPU" if _interpreted() else device.name()


def _interpreted() -> bool:
    return type(add_kernel).__name__ == "InterpretedFunction"


def _launch(launch, *arrays) -> None:
    """Call `launch` with the arrays as Triton's tensors; the last one is the output."""
    if why_not():
        raise ImportError(why_not())
    tensors = [_tensor(array) for array in arrays]
    launch(*tensors)
    out = arrays[-1]
    if isinstance(tensors[-1], _HostTensor) and not isinstance(out, np.ndarray):
        out.copy_to_device(tensors[-1].array)


def _tensor(array):
    """A PyTorch tensor as it is; on a GPU a device array as a tensor; for the interpreter NumPy in a wrapper."""
    if not _interpreted():
        if isinstance(array, np.ndarray):
            raise TypeError("a NumPy array lies on the host; on a GPU Triton takes device arrays or PyTorch's tensors")
        if hasattr(array, "data_ptr"):
            return array
        import torch

        return torch.as_tensor(array, device="cuda")
    host = array if isinstance(array, np.ndarray) else array.copy_to_host()
    if not host.flags.c_contiguous:
        raise ValueError("the array is not C-contiguous")
    return _HostTensor(host)


class _HostTensor:
    """The part of a tensor that Triton's interpreter uses, so that it needs no PyTorch. Updated in place."""

    def __init__(self, array: np.ndarray):
        self.array = array
        self.dtype = array.dtype.name

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self, axis: int | None = None):
        steps = tuple(step // self.array.itemsize for step in self.array.strides)
        return steps if axis is None else steps[axis]

    def size(self):
        return self.array.shape

    def storage_offset(self) -> int:
        return 0

    # The interpreter copies storages to the host and back; these are on the host.

    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def copy_(self, other):
        return self

    def new_empty(self, *args, **kwargs):
        return _HostTensor(self.array)

    def set_(self, *args):
        return self
