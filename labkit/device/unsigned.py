"""labkit.simt.unsigned on a GPU: a pass over Numba's IR that gives the functions with the rule other operators.

labkit.device.narrowing changes the functions; here are the operators that they get, typed and lowered by numba-cuda.
Sums, differences, products and bits are instructions of 32 bits; the rest is computed as Numba computes it, in 64 bits,
and truncated. Sums that were computed in 64 bits and truncated, too, took up to 16% more instructions
(matmul_pipelined), and so did an llvm.assume that they fit.
"""

from __future__ import annotations

import operator

from numba.cuda import types
from numba.cuda.compiler import CUDACompiler
from numba.cuda.core import ir
from numba.cuda.core.compiler_machinery import FunctionPass, register_pass
from numba.cuda.core.untyped_passes import IRProcessing
from numba.cuda.cudadecl import registry as typing
from numba.cuda.cudaimpl import registry as lowering
from numba.cuda.typing.templates import AbstractTemplate, signature

from labkit.device.narrowing import Narrowing
from labkit.simt import unsigned
from labkit.simt.runtime.operators import narrows

U32, U64 = types.uint32, types.uint64
IN_32_BITS = {operator.add: "add", operator.sub: "sub", operator.mul: "mul",
              operator.and_: "and_", operator.or_: "or_", operator.xor: "xor"}  # fmt: skip


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

    typing.register_global(narrow, types.Function(Typing))

    @lowering.lower(narrow, types.Any, types.Any)
    def as_numba(context, builder, sig, args):
        return context.get_function(context.typing_context.resolve_value_type(function), sig)(builder, args)

    @lowering.lower(narrow, U32, U32)
    def in_32_bits(context, builder, sig, args):
        if function in IN_32_BITS:
            return getattr(builder, IN_32_BITS[function])(*args)
        resolved = context.typing_context.resolve_value_type(function)
        wide = resolved.get_call_type(context.typing_context, (U64, U64), {})
        args = [context.cast(builder, arg, U32, target) for arg, target in zip(args, wide.args, strict=True)]
        result = context.get_function(resolved, wide)(builder, args)
        return context.cast(builder, result, wide.return_type, U32)

    return narrow


NARROW = {(function, with_constant): _operator(function, with_constant)
          for function in unsigned.OPERATORS.values() for with_constant in (False, True)}
NARROWING = Narrowing(ir, NARROW)


@register_pass(mutates_CFG=False, analysis_only=False)
class NarrowOperators(FunctionPass):
    _name = "labkit_narrow_operators"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        if not unsigned.follows(state.func_id.func):
            return False
        NARROWING.change(state.func_ir.blocks)
        return True


def install():
    """Let Numba run the pass in every kernel that it compiles; only functions with the rule are changed by it."""
    if getattr(CUDACompiler, "narrows", False):
        return
    original = CUDACompiler.define_pipelines

    def define_pipelines(self):
        pipelines = original(self)
        for pipeline in pipelines:
            pipeline.add_pass_after(NarrowOperators, IRProcessing)
            pipeline.finalize()
        return pipelines

    CUDACompiler.define_pipelines, CUDACompiler.narrows = define_pipelines, True
