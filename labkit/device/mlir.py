"""numba-cuda-mlir as the course uses it: its module `cuda` with what the course needs of it put in place.

    cuda()                                   # numba_cuda_mlir.cuda
    numba_type(numba.float32)                # its type for one of Numba's; types of its own stay as they are
    with as_if_on((9, 0)): ...               # compile without a GPU

Kernels say `from numba import float32`, whatever compiles them. numba-cuda-mlir has types of its own and refuses
Numba's, so a pass over a function's IR puts its own in their place; the same pass applies the rule of 32 bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import sys

import numba
from cuda.bindings import nvjitlink
from numba_cuda_mlir import decorators, lowering_utilities, tools
from numba_cuda_mlir._mlir import ir as mlir
from numba_cuda_mlir._mlir.dialects import arith, builtin, llvm, memref, nvvm
from numba_cuda_mlir.cuda import libdevice
from numba_cuda_mlir.extending import lower_builtin, overload, typing_registry
from numba_cuda_mlir.lowering import cuda as lowering
from numba_cuda_mlir.lowering import math
from numba_cuda_mlir.lowering_utilities import get_type_size_bytes, index_of, int_of
from numba_cuda_mlir.mlir_lowering import MLIRLower
from numba_cuda_mlir.numba_cuda import compiler, stubs, types
from numba_cuda_mlir.numba_cuda.core import ir
from numba_cuda_mlir.numba_cuda.core.compiler_machinery import FunctionPass, register_pass
from numba_cuda_mlir.numba_cuda.core.untyped_passes import IRProcessing

from labkit.device.unsigned_mlir import NARROWING
from labkit.simt import unsigned

# --- Types ------------------------------------------------------------------------------------------------------------


@functools.cache
def numba_type(value):
    """numba-cuda-mlir's type for one of Numba's; any other value as it is."""
    if not isinstance(value, numba.types.Type):
        return value
    if isinstance(value, numba.types.Array):
        return types.Array(numba_type(value.dtype), value.ndim, value.layout, not value.mutable)
    if isinstance(value, numba.types.UniTuple):
        return types.UniTuple(numba_type(value.dtype), value.count)
    found = getattr(types, str(value), None)
    if found is None:
        raise TypeError(f"numba-cuda-mlir has no type for Numba's {value}")
    return found


def signature_of(signature) -> tuple:
    """The argument types of a signature, or those of a tuple of types."""
    return tuple(map(numba_type, getattr(signature, "args", signature)))


# --- Passes over IR ---------------------------------------------------------------------------------------------------


@register_pass(mutates_CFG=False, analysis_only=False)
class CoursePass(FunctionPass):
    """Numba's types become this compiler's; functions with the rule of labkit.simt.unsigned get its operators."""

    _name = "labkit_course"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        for block in state.func_ir.blocks.values():
            for statement in block.find_insts(ir.Assign):
                value = statement.value
                if isinstance(value, (ir.Global, ir.FreeVar)) and isinstance(value.value, numba.types.Type):
                    value.value = numba_type(value.value)
        if unsigned.follows(state.func_id.func):
            NARROWING.change(state.func_ir.blocks)
        return True


def _with_pass(define_untyped_pipeline):
    @functools.wraps(define_untyped_pipeline)
    def define(state, name="untyped"):
        pipeline = define_untyped_pipeline(state, name)
        pipeline.add_pass_after(CoursePass, IRProcessing)
        pipeline.finalize()
        return pipeline

    return staticmethod(define)


# --- The module -------------------------------------------------------------------------------------------------------


def _aligned(static_shared_memory):
    """A shared array begins at a multiple of 16 bytes, for accesses of 128 bits; as it comes, of 8."""

    @functools.wraps(static_shared_memory)
    def allocated(builder, target, shape, dtype, alignment):
        return static_shared_memory(builder, target, shape, dtype, max(alignment, 16))

    return allocated


def _contiguous(lower_argument):
    """Let the compiler know of a C-contiguous argument that it begins at its address, and that its last axis has no
    gaps: as it comes, an index is multiplied by a stride, which the launch passes, and an offset is added."""

    @functools.wraps(lower_argument)
    def lowered(builder, target, argument):
        lower_argument(builder, target, argument)
        kind, value = builder.get_numba_type(target.name), builder.varmap.get(target.name)
        is_stored = builder.var_assign_count.get(target.name, 0) > 1  # it is assigned to again: a slot has its values
        if isinstance(kind, types.Array) and kind.layout == "C" and kind.ndim and not is_stored:
            builder.varmap[target.name] = _without_gaps(value, kind.ndim)

    return lowered


def _without_gaps(array, ndim: int):
    unknown, of_stride = mlir.ShapedType.get_dynamic_size(), mlir.ShapedType.get_dynamic_stride_or_offset()
    extents, strides = [unknown] * ndim, [of_stride] * (ndim - 1) + [1]
    kind = mlir.MemRefType.get(extents, array.type.element_type, mlir.StridedLayoutAttr.get(0, strides))
    given = memref.extract_strided_metadata(array)[2 + ndim:]
    sizes = [memref.dim(array, index_of(axis)) for axis in range(ndim)]
    same = memref.reinterpret_cast(kind, array, [], sizes, list(given)[:-1], [0], extents, strides)
    return memref.cast(array.type, same)


NVJITLINK = (13, 1)  # the oldest that works
DYNAMIC = "labkit_dynamic_shared"  # the name in the PTX


def _dynamic_shared_memory(builder, kind):
    """The dynamic shared memory of a launch, for `cuda.shared.array(0, ...)`: each such array of a kernel is all of it.
    As numba-cuda-mlir comes, it is a variable of no size, which ptxas may place before a static array, so that the two
    overlap."""
    pointer, module = llvm.PointerType.get(3), builder.mlir_gpu_module.bodyRegion.blocks[0]
    if not any(isinstance(op, llvm.GlobalOp) and op.sym_name.value == DYNAMIC for op in module):
        with mlir.InsertionPoint.at_block_begin(module):
            llvm.GlobalOp(mlir.Type.parse("!llvm.array<0 x i8>"), DYNAMIC,
                          mlir.Attribute.parse("#llvm.linkage<external>"), addr_space=3, alignment=_alignment(builder))
    i32, i64 = (mlir.IntegerType.get_signless(bits) for bits in (32, 64))
    nbytes = llvm.inline_asm(i32, [], "mov.u32 $0, %dynamic_smem_size;", "=r", has_side_effects=False)
    length = arith.divui(arith.extui(i64, nbytes), arith.constant(i64, get_type_size_bytes(kind.element_type)))
    start = llvm.mlir_addressof(pointer, DYNAMIC)
    fields = "ptr<3>, ptr<3>, i64, array<1 x i64>, array<1 x i64>"
    described = llvm.UndefOp(mlir.Type.parse(f"!llvm.struct<({fields})>")).result
    zero, one = arith.constant(i64, 0), arith.constant(i64, 1)
    for place, value in (([0], start), ([1], start), ([2], zero), ([3, 0], length), ([4, 0], one)):
        described = llvm.insertvalue(container=described, value=value, position=mlir.DenseI64ArrayAttr.get(place))
    view = builtin.unrealized_conversion_cast([kind], [described])
    builder._dynamic_shared_memory_values.append(view)
    return view


def _address_space(space_of):
    """Where an array is that may be anywhere: one of a tuple or of a variable that is assigned to twice is not said to
    be in shared memory. As it comes, atomics take it for global."""

    @functools.wraps(space_of)
    def space(kind):
        return 0 if kind.memory_space is None else space_of(kind)

    return space


def _with_itemsize(lower_attribute):
    """Give an array's itemsize; as it comes, it is typed and then not lowered."""

    @functools.wraps(lower_attribute)
    def lowered(builder, target, value, name):
        if name != "itemsize" or not isinstance(builder.get_numba_type(value.name), types.Array):
            return lower_attribute(builder, target, value, name)
        nbytes = get_type_size_bytes(builder.load_var(value).type.element_type)
        builder.store_var(target, arith.constant(mlir.IntegerType.get_signless(64), nbytes))

    return lowered


def _alignment(builder) -> int:
    """The largest alignment that a shared array of the function asks for, in bytes."""
    asked = [variable for block in builder.func_ir.blocks.values() for statement in block.find_insts(ir.Assign)
             if isinstance(statement.value, ir.Expr) and statement.value.op == "call"
             for name, variable in statement.value.kws if name in ("alignment", "alignas")]
    return max((builder.get_numba_type(variable.name).literal_value for variable in asked), default=16)


@functools.cache
def cuda():
    """The module numba_cuda_mlir.cuda, with what the course needs put in place. Raises ImportError where it is not
    installed, or where nvJitLink, which it links kernels with, is too old."""
    from numba_cuda_mlir import cuda

    _check_linker()
    builder = compiler.DefaultPassBuilder
    builder.define_untyped_pipeline = _with_pass(builder.define_untyped_pipeline)
    MLIRLower._request_dynamic_shared_memory = _dynamic_shared_memory
    lowering_utilities.memref_llvm_address_space = _address_space(lowering_utilities.memref_llvm_address_space)
    MLIRLower.lower_getattr_assign = _with_itemsize(MLIRLower.lower_getattr_assign)
    # As it comes, NaN != NaN is false: the comparison is one of numbers that are ordered.
    operators = math._operator_mapping()
    unequal = functools.partial(arith.cmpf, arith.CmpFPredicate.UNE)
    operators[operator.ne] = dataclasses.replace(operators[operator.ne], float=unequal)
    MLIRLower.lower_arg_assign = _contiguous(MLIRLower.lower_arg_assign)
    lowering.cuda_static_shared_memory = _aligned(lowering.cuda_static_shared_memory)
    tools.resolve_gpu_target = _with_all_features(tools.resolve_gpu_target)
    decorators._DEFAULT_INLINE_MAX_STATEMENTS = sys.maxsize  # what it leaves as a call loses its shared arrays
    cuda.rsqrt = rsqrt
    return cuda


def _check_linker() -> None:
    """nvJitLink 13.0 makes the alignment of dynamic shared memory that of the static arrays; TMA would fault."""
    try:
        version = nvjitlink.version()
    except (RuntimeError, nvjitlink.nvJitLinkError):  # not installed: the driver links
        return
    if version < NVJITLINK:
        present, least = (".".join(map(str, numbers)) for numbers in (version, NVJITLINK))
        raise ImportError(f"numba-cuda-mlir links kernels with nvJitLink {present}, which ignores the alignment that "
                          f"kernels request for dynamic shared memory; {least} fixes this: "
                          f"pip install 'nvidia-nvjitlink>={least}'")


def rsqrt(x):
    """1 / sqrt(x) inside a kernel, in the type of x."""
    raise TypeError("cuda.rsqrt() can be called only inside a kernel or a device function")


def _fence(instruction):
    def lowered(builder, target, args, kwargs):
        llvm.inline_asm(None, [], instruction, "~{memory}", has_side_effects=True)
        builder.store_var(target, None)

    return lowered


for _name, _scope in (("threadfence", "gl"), ("threadfence_block", "cta"), ("threadfence_system", "sys")):
    lower_builtin(getattr(stubs, _name))(_fence(f"membar.{_scope};"))


def _unsigned(operation):
    """min or max of two unsigned numbers; as it comes, they are compared as signed ones."""

    def lowered(builder, target, args, kwargs):
        builder.store_var(target, operation(*builder.load_vars(args)))

    return lowered


for _kind in (types.uint8, types.uint16, types.uint32, types.uint64):
    lower_builtin(min, _kind, _kind)(_unsigned(arith.minui))
    lower_builtin(max, _kind, _kind)(_unsigned(arith.maxui))


def _shuffled_by_halves(shuffle):
    """A shuffle of 64 bits as two of 32; as it comes, an integer loses its upper half and a float64 its precision."""

    def lowered(builder, target, args, kwargs):
        mask, value, lanes = builder.load_vars(args)
        i32, i64 = (mlir.IntegerType.get_signless(bits) for bits in (32, 64))
        bits = arith.bitcast(i64, value) if value.type != i64 else value
        clamp = arith.constant(i32, 0 if shuffle == nvvm.ShflKind.up else 31)
        low, high = (nvvm.shfl_sync(int_of(mask, i32), half, int_of(lanes, i32), clamp, shuffle) for half in
                     (arith.trunci(i32, bits), arith.trunci(i32, arith.shrui(bits, arith.constant(i64, 32)))))
        upper = arith.shli(arith.extui(i64, high), arith.constant(i64, 32))
        together = arith.ori(upper, arith.extui(i64, low))
        builder.store_var(target, together if value.type == i64 else arith.bitcast(value.type, together))

    return lowered


for _name, _shuffle in (("shfl_sync", "idx"), ("shfl_up_sync", "up"), ("shfl_down_sync", "down"),
                        ("shfl_xor_sync", "bfly")):
    for _kind in (types.int64, types.uint64, types.float64):
        lower_builtin(getattr(lowering.cuda, _name), types.Integer, _kind, types.Integer)(
            _shuffled_by_halves(getattr(nvvm.ShflKind, _shuffle)))


@overload(rsqrt, typing_registry=typing_registry, inline="always")
def _rsqrt(x):
    return (lambda x: libdevice.rsqrtf(x)) if x == types.float32 else (lambda x: libdevice.rsqrt(x))


# --- What to compile for ----------------------------------------------------------------------------------------------

_answer: tuple | None = None  # the compute capability to compile for in place of the present GPU's


def _with_all_features(resolve):
    """Compile for sm_90a where numba-cuda-mlir would for sm_90: wgmma and setmaxnreg need it."""

    @functools.wraps(resolve)
    def resolved(targetoptions=None):
        options = dict(targetoptions or {})
        if not options.get("chip"):
            major, minor = _answer or tools.get_gpu_compute_capability(tuple)
            options["chip"] = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
        return resolve(options)

    return resolved


def answer_with(cc: tuple) -> None:
    """Compile for this compute capability from now on. Four numbers, (7, 5, 9, 0): code for the first one, assembled
    for the second."""
    global _answer
    cuda()
    _answer, tools._cached_cc = tuple(cc[:2]), tuple(cc[2:] if len(cc) == 4 else cc[:2])


def compiled_for() -> tuple:
    """What labkit.device.compile_target.here returns."""
    present = tuple(tools.get_gpu_compute_capability(tuple))
    return (_answer or present) if _answer in (None, present) else (*_answer, *present)


@contextlib.contextmanager
def as_if_on(cc: tuple):
    """As `answer_with` within the block, without a CUDA context."""
    global _answer
    before = _answer, tools._cached_cc
    answer_with(cc)
    try:
        yield
    finally:
        _answer, tools._cached_cc = before


def ptx(function, signature, options: dict) -> str:
    """The PTX of a Python function."""
    return cuda().compile_ptx(function, types.void(*signature_of(signature)), **options)[0]
