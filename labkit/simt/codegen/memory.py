"""Layout of a block's arrays and per-thread data in the scratch memory of a launch."""

import math

from numba.np import numpy_support

from labkit.simt.codegen.writer import shape_code
from labkit.simt.runtime.ptx_copies import QUEUE_BYTES

_ALIGN = 64


class Memory:
    """Offsets into the scratch memory. After `carve` and `carve_masks`, `sizes` says how much of it there is."""

    def __init__(self, plan):
        """Lay out shared arrays one after the other; then arrays of one thread at a time; then data kept per thread."""
        self.plan = plan
        self.shared_bytes, self.offsets = 0, {}
        for array in plan.program.shared.values():
            self.offsets[array.name] = self.shared_bytes
            if array.shape != (0,):
                self.shared_bytes += _round_up(math.prod(array.shape) * itemsize(array.dtype), 16)
        self.fixed_bytes = 0
        for array in plan.program.local.values():
            if array.name not in plan.local_per_thread:
                self.offsets[array.name] = self.fixed_bytes
                self.fixed_bytes += _round_up(math.prod(array.shape) * itemsize(array.dtype), _ALIGN)
        self.shared_bytes = _round_up(self.shared_bytes, _ALIGN)
        self.thread_bytes = 0

    def carve(self, out):
        """Write the lines that make arrays of the scratch memory."""
        plan, p, shared = self.plan, self.plan.program, self.shared_bytes
        if plan.has_waits or p.shared or p.local or p.has_copies:
            out.line(f"_fixed = ({shared} + (_dynamic + {_ALIGN - 1}) // {_ALIGN} * {_ALIGN}) * _B")
            out.line(f"_base = _fixed + {self.fixed_bytes}")
        for array in p.shared.values():
            offset = shared if array.shape == (0,) else self.offsets[array.name]
            shape = f"(_dynamic // {itemsize(array.dtype)},)" if array.shape == (0,) else shape_code(array.shape)
            name = array.name
            if p.cooperative:
                if array.shape == (0,):  # blocks stand at multiples of the alignment, whatever the dtype
                    shape = f"((_dynamic + {_ALIGN - 1}) // {_ALIGN} * {_ALIGN} // {itemsize(array.dtype)},)"
                shape, name = f"(_B, {shape[1:]}", f"_all_{name}"
            out.line(f"{name} = _carve(_scratch, {offset} * _B, {shape}, {out.type_code(array.dtype)})", array.line)
        for array in p.local.values():
            code = out.type_code(array.dtype)
            if array.name in plan.local_per_thread:
                offset = f"_base + {self.thread_bytes} * _P * _B"
                shape = f"(_P * _B, {shape_code(array.shape)[1:]}"
                self.thread_bytes += _round_up(math.prod(array.shape) * itemsize(array.dtype), 16)
                out.line(f"_all_{array.name} = _carve(_scratch, {offset}, {shape}, {code})", array.line)
            else:
                offset = f"_fixed + {self.offsets[array.name]}"
                out.line(f"{array.name} = _carve(_scratch, {offset}, {shape_code(array.shape)}, {code})", array.line)
        for arrays in plan.kept.values():
            for name, ty in arrays:
                offset = f"_base + {self.thread_bytes} * _P * _B"
                out.line(f"{name} = _carve(_scratch, {offset}, (_P * _B,), {out.type_code(ty)})")
                self.thread_bytes += _round_up(itemsize(ty), 8) if itemsize(ty) > 8 else 8
        if any(wait.sync.kind == "warp" for wait in plan.waits()):
            for name in ("_active", "_alive", "_bits"):
                offset = f"_base + {self.thread_bytes} * _P * _B"
                out.line(f"{name} = _carve(_scratch, {offset}, (_P * _B // 32,), _np.uint32)")
                self.thread_bytes += 1
        if p.has_copies:
            self.copies_offset = f"_base + {self.thread_bytes} * _P * _B"
            self.thread_bytes += QUEUE_BYTES

    def carve_masks(self, masks):
        """The lines that make the masks, a byte for each thread."""
        lines = []
        for mask in masks:
            lines.append(f"    {mask} = _carve(_scratch, _base + {self.thread_bytes} * _P * _B, (_P * _B,), _np.uint8)")
            self.thread_bytes += 1
        return lines

    @property
    def sizes(self):
        """Bytes of the kernel's static shared arrays; of all that is shared, with padding; fixed; for each thread."""
        static = sum(math.prod(a.shape) * itemsize(a.dtype) for a in self.plan.program.shared.values())
        return static, self.shared_bytes, self.fixed_bytes, self.thread_bytes


def _round_up(n, unit):
    return -(-n // unit) * unit


def itemsize(ty):
    return numpy_support.as_dtype(ty).itemsize
