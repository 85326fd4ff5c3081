"""labkit.simt.unsigned in numba-cuda-mlir: the operators that labkit.device.narrowing gives to functions with the rule,
typed and lowered there.

Sums, differences, products and bits are instructions of 32 bits; so are quotients, remainders and shifts by less than
32, which are the same for unsigned numbers. A shift by 32 or more gives what it gives in 64 bits, truncated.
"""

from __future__ import annotations

import operator

from numba_cuda_mlir._mlir import ir as mlir
from numba_cuda_mlir._mlir.dialects import arith
from numba_cuda_mlir.extending import lower_builtin, refresh_registries, typing_registry
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.core import ir
from numba_cuda_mlir.numba_cuda.typing.templates import AbstractTemplate, signature

from labkit.device.narrowing import Narrowing
from labkit.simt import unsigned
from labkit.simt.runtime.operators import narrows

U32 = types.uint32
IN_32_BITS = {operator.add: arith.addi, operator.sub: arith.subi, operator.mul: arith.muli, operator.and_: arith.andi,
              operator.or_: arith.ori, operator.xor: arith.xori, operator.floordiv: arith.divui,
              operator.mod: arith.remui}  # fmt: skip
SHIFTS = {operator.lshift: arith.shli, operator.rshift: arith.shrui}


def _in_32_bits(function, left, right):
    if function in IN_32_BITS:
        return IN_32_BITS[function](left, right)
    kind = mlir.IntegerType.get_signless(32)
    fits = arith.cmpi(arith.CmpIPredicate.ult, right, arith.constant(kind, 32))
    return arith.select(fits, SHIFTS[function](left, right), arith.constant(kind, 0))


def _operator(function, with_constant):
    """An operator for two uint32, or for a uint32 and a constant, as Numba sees it."""

    def narrow(left, right):
        raise TypeError(f"{function.__name__} of 32 bits is used only inside a kernel")

    class Typing(AbstractTemplate):
        key = narrow
        prefer_literal = False

        def generic(self, args, kws):
            if narrows(*(types.unliteral(arg) == U32 for arg in args), with_constant):
                return signature(U32, U32, U32)
            return self.context.resolve_function_type(self.context.resolve_value_type(function), args, kws)

    typing_registry.register_global(narrow, types.Function(Typing))

    @lower_builtin(narrow, types.Any, types.Any)
    def lowered(builder, target, args, kwargs):
        kinds = [types.unliteral(builder.get_numba_type(arg.name)) for arg in args]
        if not narrows(*(kind == U32 for kind in kinds), with_constant):
            returned = builder.get_numba_type(target.name)
            builder.get_registered_builder(function, returned(*kinds))(builder, target, args, kwargs)
            return
        operands = [builder.lower_cast(kind, U32, builder.load_var(arg))
                    for kind, arg in zip(kinds, args, strict=True)]
        builder.store_var(target, _in_32_bits(function, *operands))

    return narrow


NARROWING = Narrowing(ir, {(function, with_constant): _operator(function, with_constant)
                           for function in unsigned.OPERATORS.values() for with_constant in (False, True)})
refresh_registries(include_uninitialized_cuda=False)  # the compiler may have read them already
