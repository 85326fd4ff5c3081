"""Numba's lowering to LLVM, with a value where Numba makes a stack slot.

Numba keeps a variable that two of its blocks use in memory, and each use of an array loads all of its fields. LLVM
makes values of them again, in time that grows with the square of the slots. Here a variable that is assigned once, in
a block that dominates every use of it, is a value from the start.
"""

from numba import _dynfunc
from numba.core import funcdesc, ir
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs, must_use_alloca
from numba.core.compiler import _LowerResult
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.lowering import Lower

from labkit.simt.codegen.native import DeviceLibrary, NativeKernel, own_codegen, write_entry


class _LowerToValues(Lower):
    def _find_singly_assigned_variable(self):
        super()._find_singly_assigned_variable()
        if not self.func_ir.func_id.is_generator:
            blocks = self.func_ir.blocks
            candidates = dominating_variables(blocks)
            counted = {name for name in candidates if self._is_counted(name)}
            self._singly_assigned_vars |= candidates - deleted_again(blocks, counted)

    def _is_counted(self, name):
        """Whether references to its memory are counted, so that each deletion of it counts one less."""
        return self.context.data_model_manager[self.typeof(name)].contains_nrt_meminfo()


class _LowerUncounted(_LowerToValues):
    """For a kernel that owns no memory: nothing needs to be counted."""

    def incref(self, ty, value):
        pass

    decref = incref

    def _is_counted(self, name):
        return False


def _lowered(state, library, lowering_class):
    """(descriptor, environment, call helper) of a function whose code is now in the library."""
    flags, context = state.flags, state.targetctx
    fndesc = funcdesc.PythonFunctionDescriptor.from_specialized_function(
        state.func_ir, state.typemap, state.return_type, state.calltypes, mangler=context.mangler, inline=False,
        noalias=flags.noalias, abi_tags=[flags.get_mangle_string()],
    )  # fmt: skip
    with context.push_code_library(library):
        lower = lowering_class(context, library, fndesc, state.func_ir, metadata=state.metadata)
        lower.lower()
    return fndesc, lower.env, lower.call_helper


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerKernel(LoweringPass):
    """A kernel: its code, and what Python calls."""

    _name = "labkit_lower_kernel"

    def __init__(self):
        LoweringPass.__init__(self)

    def run_pass(self, state):
        library = state.library
        lowering_class = _LowerToValues if library.counts_references else _LowerUncounted
        fndesc, *_ = _lowered(state, library, lowering_class)
        write_entry(state.targetctx, library, fndesc)
        state["cr"] = NativeKernel.made(library, fndesc)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerDevice(LoweringPass):
    """A device function: kernels are compiled with it, nothing else calls it."""

    _name = "labkit_lower_device"

    def __init__(self):
        LoweringPass.__init__(self)

    def run_pass(self, state):
        library = state.library = DeviceLibrary(own_codegen(), state.func_id.func_qualname)
        fndesc, environment, call_helper = _lowered(state, library, _LowerToValues)
        name = fndesc.qualname.split(".")[-1]
        function = _dynfunc.make_function(fndesc.lookup_module(), name, "", 0, environment, (library,))
        state.targetctx.insert_user_function(function, fndesc, [library])
        state["cr"] = _LowerResult(fndesc, call_helper, cfunc=function, env=environment)
        return True


def dominating_variables(blocks):
    """The names of the variables that are assigned once, in a block that dominates all others where they stand.

    blocks: those of Numba's IR, by offset. Numba lowers them in ascending order: the assignment must come first there.
    """
    home, rejected = {}, set(must_use_alloca(blocks))
    for offset, block in blocks.items():
        for statement in block.find_insts(ir.Assign):
            name = statement.target.name
            if name in home:
                rejected.add(name)
            home[name] = offset
    spans = _spans(compute_cfg_from_blocks(blocks))
    uses = compute_use_defs(blocks).usemap  # in each block, without the names that it has assigned before
    for offset, block in blocks.items():
        deleted = {statement.value for statement in block.find_insts(ir.Del) if home.get(statement.value) != offset}
        for name in uses[offset] | deleted:
            definition = home.get(name)
            if definition is None or not (definition < offset and _encloses(spans, definition, offset)):
                rejected.add(name)
    return home.keys() - rejected


def deleted_again(blocks, names):
    """Those of the names that may be deleted twice, with no assignment between. Numba clears a slot when it is deleted,
    so that the second time does nothing; a value cannot be cleared."""
    homes, deletions = {}, {}
    for offset, block in blocks.items():
        homes.update((each.target.name, offset) for each in block.find_insts(ir.Assign) if each.target.name in names)
        for each in block.find_insts(ir.Del):
            if each.value in names:
                deletions.setdefault(each.value, []).append(offset)
    cfg = compute_cfg_from_blocks(blocks)
    return {name for name, positions in deletions.items() if len(positions) != len(set(positions))
            or any(_reached(cfg, position, homes[name]) & set(positions) for position in positions)}


def _reached(cfg, start, without):
    """The blocks that may run after `start`, on paths that do not enter `without`."""
    reached, todo = set(), [start]
    while todo:
        for block, _ in cfg.successors(todo.pop()):
            if block != without and block not in reached:
                reached.add(block)
                todo.append(block)
    return reached


def _spans(cfg):
    """{block: (preorder index, end of its subtree)} in the dominator tree."""
    tree, spans, index = cfg.dominator_tree(), {}, 0
    todo = [(cfg.entry_point(), False)]
    while todo:
        block, is_done = todo.pop()
        if is_done:
            spans[block] = spans[block][0], index
            continue
        spans[block] = index, None
        index += 1
        todo.append((block, True))
        todo += [(below, False) for below in tree[block]]
    return spans


def _encloses(spans, outer, inner):
    if outer not in spans or inner not in spans:  # code that is never reached
        return False
    start, end = spans[outer]
    return start <= spans[inner][0] < end
