"""The types that operations on numbers take and give: one table for compiled kernels, interpreted ones and variables.

It is Numba's. numba.cuda gives some functions of math other types than Numba's CPU target: those are in ON_A_GPU.
"""

import functools
import math

from numba.core import registry, types
from numba.core.errors import NumbaError
from numba.core.typing.templates import ConcreteTemplate, signature

_F32, _F64, _I32, _I64, _U64 = types.float32, types.float64, types.int32, types.int64, types.uint64
_OF_TWO = (signature(_F32, _F32, _F32), signature(_F64, _F64, _F64))
_TO_A_FLOAT = (signature(_F64, _I64), signature(_F64, _U64), signature(_F32, _F32), signature(_F64, _F64))
_WITH_AN_EXPONENT = (signature(_F32, _F32, _I32), signature(_F64, _F64, _I32))
ON_A_GPU = {
    math.fmod: _OF_TWO, math.remainder: _OF_TWO,
    math.floor: _TO_A_FLOAT, math.ceil: _TO_A_FLOAT, math.trunc: _TO_A_FLOAT,
    math.pow: _OF_TWO + _WITH_AN_EXPONENT, math.ldexp: _WITH_AN_EXPONENT,
    math.frexp: (signature(types.Tuple([_F32, _I32]), _F32), signature(types.Tuple([_F64, _I32]), _F64)),
    math.modf: (signature(types.UniTuple(_F64, 2), _F64), signature(types.UniTuple(_F32, 2), _F32)),
}  # fmt: skip


@functools.cache
def _gpu_template(function):
    return type(f"{function.__name__}_on_a_gpu", (ConcreteTemplate,), {"key": function, "cases": ON_A_GPU[function]})


@functools.cache
def signature_of(function, *argument_types):
    """Numba's signature of a function for these types: what they are converted to, and what it gives; None if it takes
    none such."""
    context = registry.cpu_target.typing_context
    context.refresh()
    try:
        if function in ON_A_GPU:
            wide = [_F32 if ty == types.float16 else types.unliteral(ty) for ty in argument_types]
            return _gpu_template(function)(context).apply(tuple(wide), {})
        return context.resolve_function_type(context.resolve_value_type(function), argument_types, {})
    except (NumbaError, AttributeError, ValueError):
        return None


def unified(*operand_types):
    """The type that holds values of all these types, where paths of a kernel meet; None if there is none."""
    if len(set(operand_types)) == 1:
        return operand_types[0]
    return None if None in operand_types else registry.cpu_target.typing_context.unify_types(*operand_types)
