"""The types of a kernel's variables and of what its collectives take and give."""

import ast
import copy

from numba.core import types
from numba.core.errors import NumbaError

from labkit.simt.codegen.checks import HIDDEN_IDS, TWO_ARRAYS, names, narrow_call, touches_memory
from labkit.simt.codegen.inference import infer_types, type_error
from labkit.simt.errors import KernelTypeError
from labkit.simt.ir import (
    BUILTINS,
    AtomicCall,
    BinOp,
    DeviceCall,
    Exit,
    Inline,
    IntrinsicCall,
    Lowering,
    Sync,
    at_line,
    full_name,
)
from labkit.simt.stubs import SHUFFLES

VOTES = {"all_sync", "any_sync", "eq_sync", "ballot_sync"}


def _is_integer(ty):
    return isinstance(ty, types.Integer)


_MASK = ("mask", _is_integer, "an integer is needed")
_SHUFFLED = ("value", lambda ty: ty in (types.int32, types.int64, types.float32, types.float64),
             "int32, int64, float32 and float64 are allowed")  # fmt: skip
_COUNTED = ("predicate", _is_integer, "an integer is needed: wrap the condition, int32(...)")
_VOTED = ("predicate", lambda ty: isinstance(ty, (types.Integer, types.Boolean)), "an integer or a bool is needed")
_FRAGMENT = ("register of a fragment", _is_integer, "a uint32 is needed")
_ACCUMULATOR = ("accumulator", lambda ty: isinstance(ty, types.Float), "a float32 is needed")
MMA = {  # the kind of A and B as runtime/ptx_matrices.py has it
    "ptx.mma_m16n8k16_f32_f16": 0, "ptx.mma_m16n8k16_f32_bf16": 1, "ptx.mma_m16n8k8_f32_tf32": 2,
    "ptx.mma_m16n8k8_f32_f16": 3,
}  # fmt: skip
SHORT_MMA = "ptx.mma_m16n8k8_f32_f16"  # with two registers of A and one of B
HALF_MMA = "ptx.mma_m16n8k16_f16_f16"
_COLLECTIVE_TYPES = {
    **dict.fromkeys(MMA, (_FRAGMENT,) * 6 + (_ACCUMULATOR,) * 4),
    SHORT_MMA: (_FRAGMENT,) * 3 + (_ACCUMULATOR,) * 4,
    HALF_MMA: (_FRAGMENT,) * 8,
    **{f"syncthreads_{name}": (_COUNTED,) for name in ("count", "and", "or")},
    **dict.fromkeys(SHUFFLES, (_MASK, _SHUFFLED, ("lane", _is_integer, "an integer is needed"))),
    **dict.fromkeys(VOTES, (_MASK, _VOTED)),
    "syncwarp": (_MASK,),
}


def matrices(sync):
    """How many matrices an ldmatrix loads."""
    return 4 if "_x4" in sync.op else 2


def collective_arguments(sync):
    """The expressions that a thread evaluates before it waits."""
    if not sync.op.startswith("ptx.ldmatrix"):
        return sync.args
    address = IntrinsicCall(sync.op.removeprefix("ptx."), [*sync.args, ast.Constant(matrices(sync))], sync.filename)
    return [at_line(address, sync)]


def collective_type(op, argument_types):
    """The type of what a collective gives, for arguments of these types; None if it is not a number."""
    if op in SHUFFLES:
        return argument_types[1]
    if op in ("all_sync", "any_sync", "eq_sync"):
        return types.boolean
    if op == "match_all_sync":
        return types.Tuple([types.int32, types.boolean])
    if op == "activemask":
        return types.uint32
    return None if op.startswith("ptx.") else types.int32


def _collective_value(wait):
    """An expression of the type of what a collective gives."""
    sync, op = wait.sync, wait.sync.op
    if op in MMA:
        return "(_np.float32(0), _np.float32(0), _np.float32(0), _np.float32(0))"
    if op.startswith("ptx."):
        words = ["_np.uint32(0)"] * (2 if op == HALF_MMA else matrices(sync))
        return f"({', '.join(words)})"
    if op in SHUFFLES:
        return wait.names[1]
    return _value_of(collective_type(op, ()))


def _value_of(ty):
    if isinstance(ty, types.BaseTuple):
        return f"({', '.join(map(_value_of, ty.types))})"
    return "_go" if ty == types.boolean else f"_np.{ty}(0)"  # a bool that Numba can prove leaves a branch without types


class _TypedCalls(Lowering):
    """Atomics and device functions with their hidden arguments, as in the code that will run."""

    def hidden_arguments(self, call):
        if isinstance(call, AtomicCall):
            return names("_E", "_t", "_b", "_b")
        if isinstance(call, DeviceCall):
            return names(*HIDDEN_IDS)
        if not touches_memory(call):
            return []
        return names("_E", "_t", "_b", *["_b"] * (2 if call.intrinsic in TWO_ARRAYS else 1))

    def visit_BinOp(self, node):
        self.generic_visit(node)
        return narrow_call(node) if isinstance(node, BinOp) else node

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "_divisor":
            return node.args[0]
        is_note = isinstance(node.func, ast.Name) and node.func.id in ("_poison", "_assertion", "_fence")
        return ast.Constant(None) if is_note else node


def _typed(node):
    return ast.unparse(_TypedCalls().visit(copy.deepcopy(node)))


def variable_types(plan, device_functions):
    """({variable: Numba type}, the variables that have several types) of a kernel. Raises KernelTypeError as a GPU
    compile would.

    device_functions: the source of a module with the kernel's device functions.
    """
    name, source, arrays = typing_source(plan)
    namespace = dict(plan.program.objects)
    exec(compile(device_functions, f"<device functions of {name}>", "exec"), namespace)
    exec(compile(source, f"<types of {name}>", "exec"), namespace)
    record = types.Array(types.int64, 1, "C")
    array_types = [types.Array(a.dtype, len(a.shape), "C") for a in arrays]
    ids = [types.int64] * len(HIDDEN_IDS[1:])
    arguments = (types.boolean, types.int64, types.int64, record, *ids, *array_types, *plan.types)
    try:
        inferred, mixed = infer_types(namespace[name], arguments)
    except NumbaError as error:
        raise type_error(plan.program, error, source) from error
    _check_collectives(plan, inferred)
    return inferred, mixed


def _check_collectives(plan, inferred):
    """The types that numba.cuda's collectives take: no more than on a GPU, so that no kernel runs only here."""
    for wait in plan.waits():
        sync = wait.sync
        allowed = _COLLECTIVE_TYPES.get(sync.op.rstrip("_"), ())
        for name, (role, fits, advice) in zip(wait.names, allowed, strict=False):
            ty = inferred.get(name)
            if ty is not None and not fits(ty):
                sentence = f"the {role} of {full_name(sync.op)} is {ty}; {advice}"
                raise KernelTypeError.at(plan.program.name, plan.program.filename, sync.lineno, sentence)


# ---------------- a plain function with the same types, for Numba to infer them


def typing_source(plan):
    """(name, source, argument names): control flow and collectives simplified, types as in the kernel."""
    p, name = plan.program, code_name(plan.program)
    arrays = [*p.shared.values(), *p.local.values()]
    arguments = ["_go", "_T", "_P", *HIDDEN_IDS, *(a.name for a in arrays), *p.constants, *plan.param_names]
    lines = []

    def block(statements, depth):
        pad = "    " * depth
        start = len(lines)
        for s in statements:
            if isinstance(s, Sync):
                for slot, argument in zip(plan.wait_of[s].names, collective_arguments(s), strict=True):
                    if slot is not None:
                        lines.append(f"{pad}{slot} = {_typed(argument)}  # {s.lineno}")
                if s.target is not None:
                    lines.append(f"{pad}{s.target.id} = {_collective_value(plan.wait_of[s])}")
            elif isinstance(s, Inline):
                block(s.body, depth)
            elif isinstance(s, (Exit, ast.Pass)):
                lines.append(f"{pad}pass")
            elif isinstance(s, ast.If):
                lines.append(f"{pad}if {_typed(s.test)}:")
                block(s.body, depth + 1)
                if s.orelse:
                    lines.append(f"{pad}else:")
                    block(s.orelse, depth + 1)
            elif isinstance(s, ast.While):
                lines.append(f"{pad}while _go and {_typed(s.test)}:")
                block(s.body, depth + 1)
            elif isinstance(s, ast.For):
                lines.append(f"{pad}for {ast.unparse(s.target)} in {_typed(s.iter)}:")
                block(s.body, depth + 1)
            elif isinstance(s, (ast.Break, ast.Continue)):
                lines.append(f"{pad}if _go:")
                lines.append(f"{pad}    {'break' if isinstance(s, ast.Break) else 'continue'}")
            else:
                lines.append(f"{pad}{_typed(s)}  # {s.lineno}")
        if len(lines) == start:
            lines.append(f"{pad}pass")

    block(plan.body, 1)
    return name, "\n".join([f"def {name}({', '.join(arguments)}):", *lines, ""]), arrays


def code_name(program):
    """The name of the generated function: the kernel's, unless the generated code needs that for something else."""
    return f"kernel_{program.name}" if program.name.startswith("_") or program.name in BUILTINS else program.name
