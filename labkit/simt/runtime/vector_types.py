"""CUDA's vector types on the CPU: named tuples, `v.x`, made from numbers and from shorter vectors of their type.

float32x4(a, b) takes as many numbers as it has, in vectors or one by one. CLASSES has the named tuple of each type.
"""

from collections import namedtuple

import numpy as np
from numba import types
from numba.core.errors import NumbaTypeError
from numba.extending import overload

SCALARS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
CLASSES = {
    f"{scalar}x{count}": namedtuple(f"{scalar}x{count}", tuple("xyzw")[:count])
    for scalar in SCALARS for count in (1, 2, 3, 4)
}  # fmt: skip


def is_vector(ty):
    made = getattr(ty, "instance_class", None)
    return isinstance(ty, types.BaseTuple) and made is not None and CLASSES.get(made.__name__) is made


def _constructor(name, cls):
    scalar, count = getattr(np, name.split("x")[0]), len(cls._fields)

    def make(*parts):
        components = [n for part in parts for n in (part if isinstance(part, tuple) else (part,))]
        if len(components) != count:
            raise TypeError(f"cuda.{name} takes {count} numbers, {len(components)} given")
        return cls(*(scalar(n) for n in components))

    make.__name__ = name

    @overload(make, strict=False)
    def typed(*parts):
        parts = parts[0] if len(parts) == 1 and isinstance(parts[0], types.StarArgTuple) else parts
        components = []
        for k, part in enumerate(parts):
            if is_vector(part):
                if part.instance_class.__name__.split("x")[0] != name.split("x")[0]:
                    raise NumbaTypeError(f"cuda.{name} is not made from {part.instance_class.__name__}")
                components += [f"parts[{k}].{field}" for field in part.instance_class._fields]
            elif isinstance(part, (types.Number, types.Boolean)):
                components.append(f"parts[{k}]")
            else:
                raise NumbaTypeError(f"cuda.{name} takes numbers and vectors, not {part}")
        if len(components) != count:
            raise NumbaTypeError(f"cuda.{name} takes {count} numbers, {len(components)} given")
        code = f"lambda *parts: cls({', '.join(f'scalar({n})' for n in components)})"
        return eval(code, {"cls": cls, "scalar": scalar})

    return make


for _name, _cls in CLASSES.items():
    globals()[_name] = _constructor(_name, _cls)
