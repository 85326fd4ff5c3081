"""Type inference with Numba: the types of variables, refusals as in numba.cuda, readable errors."""

import ast
import re

from numba.core import compiler, ir, registry, types
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.errors import NumbaTypeError
from numba.core.typed_passes import (
    AnnotateTypes,
    IRLegalization,
    NoPythonBackend,
    NoPythonSupportedFeatureValidation,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)

from labkit.simt.codegen.liveness import quick_liveness
from labkit.simt.codegen.lowering import LowerDevice, LowerKernel
from labkit.simt.codegen.native import run_compiler
from labkit.simt.codegen.ssa import quick_ssa
from labkit.simt.errors import KernelTypeError, file_label
from labkit.simt.ir import shown
from labkit.simt.numba_report import read_report


@register_pass(mutates_CFG=False, analysis_only=True)
class _RefuseWholeArrays(FunctionPass):
    """Arithmetic on whole arrays allocates, and a kernel cannot: numba.cuda refuses it, so the CPU device does."""

    _name = "labkit_refuse_whole_arrays"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                if isinstance(statement, ir.Assign):
                    op = getattr(statement.value, "op", "")
                    if op in ("binop", "inplace_binop", "unary", "arrayexpr"):
                        self._check(state, statement.target, statement.loc)
                elif isinstance(statement, (ir.SetItem, ir.StaticSetItem)) and not isinstance(
                    state.typemap[statement.target.name], types.Record  # a field may be an array
                ):
                    self._check(state, statement.value, statement.loc)
        return False

    @staticmethod
    def _check(state, variable, loc):
        if isinstance(state.typemap[variable.name], types.Array):
            raise NumbaTypeError(
                "whole arrays cannot be computed with or copied in device code: write it for one element", loc
            )


# Of Numba's passes those that a kernel needs. The others serve closures, `with`, overloads and expressions of whole
# arrays, which the generated code has none of, and take a fifth of the time.
_UNTYPED = (TranslateByteCode, FixupArgs, IRProcessing, RewriteSemanticConstants, GenericRewrites, ReconstructSSA)
_TYPED = (NopythonTypeInference, _RefuseWholeArrays, PreLowerStripPhis, NoPythonSupportedFeatureValidation,
          IRLegalization)  # fmt: skip


def _pipelines(*passes):
    manager = PassManager("nopython")
    for each in passes:
        manager.add_pass(each, each.__name__)
    manager.finalize()
    return [manager]


class _Compiler(compiler.CompilerBase):
    def compile_extra(self, func):
        with quick_liveness(), quick_ssa():
            return super().compile_extra(func)


class KernelCompiler(_Compiler):
    """Compiles generated code, and refuses what numba.cuda would."""

    last = (LowerKernel,)

    def define_pipelines(self):
        position = _UNTYPED.index(GenericRewrites)
        untyped = *_UNTYPED[:position], DeadBranchPrune, *_UNTYPED[position:], DeadBranchPrune
        return _pipelines(*untyped, *_TYPED, *self.last)


class DeviceCompiler(KernelCompiler):
    """The same for a device function."""

    last = AnnotateTypes, LowerDevice, NoPythonBackend


class _Inferred(Exception):
    def __init__(self, typemap):
        super().__init__()
        self.typemap = typemap


@register_pass(mutates_CFG=False, analysis_only=True)
class _StopAfterInference(FunctionPass):
    _name = "labkit_stop_after_inference"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        raise _Inferred(dict(state.typemap))


class _InferenceOnly(_Compiler):
    """The same up to type inference: no code is made. Every branch of the generated code needs types, also one that
    Numba could prove dead."""

    def define_pipelines(self):
        return _pipelines(*_UNTYPED, NopythonTypeInference, _StopAfterInference)


def infer_types(function, arguments):
    """({variable: Numba type}, the variables that have several types) of a Python function for these argument types.
    Raises NumbaError where they do not fit.

    A variable that Numba splits into versions of several types gets one that holds them all, None if there is none.
    """
    try:
        run_compiler(function, arguments, _InferenceOnly)
    except _Inferred as result:
        typemap = result.typemap
    types_by_name = {}
    for variable, ty in typemap.items():
        if variable.startswith("$"):  # Numba's own: of one name, and of many types
            continue
        types_by_name.setdefault(variable.split(".")[0], []).append(types.unliteral(ty))
    unify = registry.cpu_target.typing_context.unify_types
    mixed = {name for name, versions in types_by_name.items() if len(set(versions)) > 1}
    return {name: unify(*versions) if name in mixed else versions[0] for name, versions in types_by_name.items()}, mixed


def type_error(program, error, source):
    """Numba's report of a typing failure, cut down to what it says about the kernel, with the kernel's line."""
    report = str(error)
    sentence, problem, facts = read_report(report, _names(program))
    line = _kernel_line(report, source)
    return KernelTypeError(
        f"{program.name}{f', line {line}' if line else ''}: does not compile for these argument types: {sentence} "
        f"({file_label(program.filename)}:{program.line})",
        kernel=program.name, line=line, sentence=sentence, problem=problem, **facts,
    )  # fmt: skip


def _names(program):
    """{name in the tree: name in the source} of the variables that were renamed."""
    bodies = [program.body, *(device.body for device in program.devices.values())]
    nodes = (node for body in bodies for s in body for node in ast.walk(s) if isinstance(node, ast.Name))
    return {node.id: shown(node) for node in nodes if shown(node) != node.id and shown(node).isidentifier()}


def _kernel_line(report, source):
    """The kernel's line that Numba's report points to, through the comments of the generated source; 0 where none."""
    lines = source.split("\n")
    for line_number in re.findall(r"(?:line |\()(\d+)\)?", report)[::-1]:
        if 1 <= int(line_number) <= len(lines):
            match = re.search(r"# (\d+)$", lines[int(line_number) - 1])
            if match:
                return int(match[1])
    return 0
