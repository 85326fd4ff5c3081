"""The types of a kernel's variables and of what its collectives take and give."""

import ast
import copy

from numba.core import types

from labkit.simt import ptx
from labkit.simt.codegen.checks import HIDDEN_IDS, TWO_ARRAYS, _touches_memory
from labkit.simt.stubs import SHUFFLES

VOTES = {"all_sync", "any_sync", "eq_sync", "ballot_sync"}


def full_name(op):
    """What an error calls a barrier or a collective."""
    return op if op.startswith("ptx.") else f"cuda.{op}"


def _is_integer(ty):
    return isinstance(ty, types.Integer)


_MASK = ("mask", _is_integer, "an integer is needed")
_SHUFFLED = ("value", lambda ty: ty in (types.int32, types.int64, types.float32, types.float64),
             "int32, int64, float32 and float64 are allowed")  # fmt: skip
_COUNTED = ("predicate", _is_integer, "an integer is needed: wrap the condition, int32(...)")
_VOTED = ("predicate", lambda ty: isinstance(ty, (types.Integer, types.Boolean)), "an integer or a bool is needed")
_FRAGMENT = ("register of a fragment", _is_integer, "a uint32 is needed")
_ACCUMULATOR = ("accumulator", lambda ty: isinstance(ty, types.Float), "a float32 is needed")
MMA = {  # the kind of A and B as ptx_compiled has it
    "ptx.mma_m16n8k16_f32_f16": 0, "ptx.mma_m16n8k16_f32_bf16": 1, "ptx.mma_m16n8k8_f32_tf32": 2,
}  # fmt: skip
_HALF_MMA = "ptx.mma_m16n8k16_f16_f16"
_COLLECTIVE_TYPES = {
    **dict.fromkeys(MMA, (_FRAGMENT,) * 6 + (_ACCUMULATOR,) * 4),
    _HALF_MMA: (_FRAGMENT,) * 8,
    **{f"syncthreads_{name}": (_COUNTED,) for name in ("count", "and", "or")},
    **dict.fromkeys(SHUFFLES, (_MASK, _SHUFFLED, ("lane", _is_integer, "an integer is needed"))),
    **dict.fromkeys(VOTES, (_MASK, _VOTED)),
    "syncwarp": (_MASK,),
}


def _matrices(sync):
    """How many matrices an ldmatrix loads."""
    return 4 if "_x4" in sync.op else 2


def _contributed(sync):
    """The expressions that a thread evaluates before it waits."""
    if not sync.op.startswith("ptx.ldmatrix"):
        return sync.args
    count = ast.Constant(_matrices(sync))
    call = ast.Call(ast.Name("_ptx_row_address", ast.Load()), [*sync.args, count], [])
    call.intrinsic, call.lineno, call.filename = ptx.INTRINSICS[sync.op[4:]], sync.lineno, sync.filename
    return [call]


def _collective_type(sync):
    op, names = sync.op, sync.names
    if op in MMA:
        return "(_np.float32(0), _np.float32(0), _np.float32(0), _np.float32(0))"
    if op.startswith("ptx."):
        words = ["_np.uint32(0)"] * (2 if op == _HALF_MMA else _matrices(sync))
        return f"({', '.join(words)})"
    if op in SHUFFLES:
        return names[1]
    if op in ("all_sync", "any_sync", "eq_sync"):
        return "_go"  # a bool that Numba cannot prove: it would leave a branch without types
    if op == "match_all_sync":
        return "(_np.int32(0), _go)"
    return "_np.uint32(0)" if op == "activemask" else "_np.int32(0)"


class _TypedCalls(ast.NodeTransformer):
    """Atomics and device functions with their hidden arguments, as in the code that will run."""

    def visit_Call(self, node):
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name.startswith("_atomic"):
            node.args += [ast.Name(n, ast.Load()) for n in ("_E", "_t", "_b", "_b")]
        elif _touches_memory(node):
            sites = ["_b"] * (2 if node.intrinsic.name in TWO_ARRAYS else 1)
            node.args += [ast.Name(n, ast.Load()) for n in ("_E", "_t", "_b", *sites)]
        elif getattr(node, "device", False):
            node.args += [ast.Name(n, ast.Load()) for n in HIDDEN_IDS]
        elif name in ("_poison", "_assertion"):
            return ast.Constant(None)
        return node


def _typed(node):
    return ast.unparse(_TypedCalls().visit(copy.deepcopy(node)))
