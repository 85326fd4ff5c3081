"""Writes the Python source of a kernel for one set of argument types."""

import ast
from dataclasses import replace

from numba.core import types

from labkit.simt.codegen.checks import Checker, slot
from labkit.simt.codegen.collectives import write_read, write_wait
from labkit.simt.codegen.memory import Memory, itemsize
from labkit.simt.codegen.plan import (
    Branch,
    Call,
    Flow,
    Loop,
    Plan,
    Read,
    Region,
    Wait,
    is_range,
    jumps,
    owns,
    reads,
)
from labkit.simt.codegen.types import code_name, variable_types
from labkit.simt.codegen.writer import Writer, device_functions
from labkit.simt.errors import UnsupportedError, file_label
from labkit.simt.ir import Exit, contains
from labkit.simt.live_ranges import split_before_joins


def _planned(program, argument_types, checked):
    """The kernel's plan. What it keeps across a barrier has one type each: as few variables of several types as can."""
    plan = Plan(program, argument_types)
    if not plan.needs_types:
        return plan
    functions = device_functions(plan.program, checked)
    inferred, mixed = variable_types(plan, functions)
    if mixed & plan.exposed:
        program = replace(program, body=split_before_joins(program.body, program.params, mixed & plan.exposed))
        plan = Plan(program, argument_types)
        inferred, _ = variable_types(plan, functions)
    plan.carry(inferred)
    return plan


class Generator:
    """Writes the Python source of a kernel for one set of argument types.

    ordered: its threads run in the order that the launch asks for, rather than in ascending order.
    """

    def __init__(self, program, argument_types, checked=True, pretty=False, ordered=False, flat=False):
        self.plan = _planned(program, argument_types, checked)
        self.ordered = ordered
        self.flat = flat and not ordered  # blocks have one dimension
        self.out = Writer(program, checked, pretty)
        self.memory = Memory(self.plan)
        self.masks = ["_m0"] if self.plan.has_waits else []

    def generate(self):
        """The module's source. It ends with SITES, where faults can happen, and SIZES, the bytes of memory it needs."""
        p = self.plan.program
        arguments = ["_first", "_last", "_grid", "_block", "_dynamic", "_scratch", "_E"]
        arguments += [*p.constants, *self.plan.param_names]
        for device in p.devices.values():
            self.out.device(device)
        with self.out.below(f"def {code_name(p)}({', '.join(arguments)}):"):
            self.out.line("_gdx, _gdy, _gdz = _grid")
            self.out.line("_bdx, _bdy, _bdz = _block")
            self.out.line("_T = _bdx * _bdy * _bdz")
            self.out.line("_P = (_T + 31) // 32 * 32")
            if self.ordered:
                self.out.line(f"_stride, _offset = _visits(_E[{slot('ORDER')}], _T)")
            if self.flat:
                self.out.line("_ty = _tz = 0")
            self.out.line("_B = _last - _first" if p.cooperative else "_B = 1")
            self.memory.carve(self.out)
            body_start = len(self.out.lines)
            self._blocks()
        self.out.lines[body_start:body_start] = self.memory.carve_masks(self.masks)
        header = [
            f'"""{p.name} ({file_label(p.filename)}:{p.line}), as the CPU device runs it. Written by labkit.simt."""',
            *self.out.header(p),
        ]
        tail = [f"SITES = {self.out.sites!r}", f"SIZES = {self.memory.sizes!r}"]
        if self.out.pretty:
            header, tail = header[:1], []
        source = "\n".join([*header, "", *self.out.lines, "", *tail, ""])
        return source

    def _blocks(self):
        masked = self.plan.has_exit and (self.plan.has_waits or self.plan.program.cooperative)
        tree = self.plan.tree, "_m0" if masked else None, [("kernel", ["_m0"])]
        if self.plan.program.cooperative:
            self.out.line("_b = 0")
            self._begin_block()
            self._block(*tree)
            return
        order = "_last - 1, _first - 1, -1" if self.ordered else "_first, _last"
        with self.out.below(f"for _b in range({order}):"):
            self._block_index()
            if not self.out.pretty:
                self.out.line(f"_poll(_E, 0, _b, {self.out.site(self.plan.program.line)})")
            self._begin_block()
            self._block(*tree)
            if not self.out.pretty:
                self.out.line(f"_E[{slot('DONE')}] += 1")

    def _begin_block(self):
        if self.plan.program.has_copies and not self.out.pretty:
            self.out.line(f"_E[{slot('ASYNC')}] = _ptx_address_in(_scratch, {self.memory.copies_offset})")
            self.out.line("_ptx_clear_queues(_E, _P * _B)")
        if self.plan.program.shared and not self.out.pretty:
            self.out.line("_poison(_scratch[:_fixed])")
        if self.plan.has_waits:
            self.out.line("_fill(_m0, 1)")
            if not self.out.pretty:
                self.out.line("_clear_padding(_m0, _T, _P, _B)")
        for name, node in self.plan.uniform.items():
            self.out.line(f"{name} = {self.out.expression(node.value)}", node.lineno)

    def _block_index(self):
        self.out.line("_bx = _b % _gdx")
        self.out.line("_by = _b // _gdx % _gdy")
        self.out.line("_bz = _b // (_gdx * _gdy)")

    def _mask(self):
        name = f"_m{len(self.masks)}"
        self.masks.append(name)
        return name

    def _block(self, items, mask, frames):
        if not items:
            self.out.line("pass")
        for item in items:
            if isinstance(item, Region):
                self._region(item.statements, mask, frames)
            elif isinstance(item, Wait):
                write_wait(self.out, self.plan, item, mask)
            elif isinstance(item, Branch):
                self._branch(item, mask, frames)
            elif isinstance(item, Loop):
                self._loop(item, mask, frames)
            elif isinstance(item, Call):
                inner = self._mask()
                self.out.line(f"_copy({inner}, {mask or '_m0'})  # {item.name}()")
                self._block(item.body, inner, [*frames, (item.label, [inner])])

    def _open_threads(self, mask, statements):
        """The loops over the threads of a block, up to the region's own code. Returns the depth to close."""
        depth = self.out.indent
        if self.plan.program.cooperative:
            self.out.line("for _k in range(_B):")
            self.out.indent += 1
            self.out.line("_b = _first + _k")
            self._block_index()
            used = self.plan.with_sources({n for s in statements for n in reads(s)})
            for name in sorted(used & set(self.plan.program.shared)):
                array = self.plan.program.shared[name]
                part = f"[: _dynamic // {itemsize(array.dtype)}]" if array.shape == (0,) else ""
                self.out.line(f"{name} = _row(_all_{name}, _k){part}")
        base = "_k * _P + " if self.plan.program.cooperative else ""
        if self.ordered:
            self.out.line("for _n in range(_T):")
            self.out.indent += 1
            self.out.line("_linear = (_n * _stride + _offset) % _T")
            self.out.line("_tx = _linear % _bdx")
            self.out.line("_ty = _linear // _bdx % _bdy")
            self.out.line("_tz = _linear // (_bdx * _bdy)")
            self.out.line(f"_t = {base}_linear")
        else:
            for axis in "x" if self.flat else "zyx":
                self.out.line(f"for _t{axis} in range(_bd{axis}):")
                self.out.indent += 1
            self.out.line(f"_t = {base}_tx" if self.flat else f"_t = {base}(_tz * _bdy + _ty) * _bdx + _tx")
        if mask:
            self.out.line(f"if not {mask}[_t]:")
            self.out.line("    continue")
        return depth

    def _region(self, statements, mask, frames):
        flow = Flow(statements)
        names = {n for s in statements for n in reads(s)}
        read_names = names | {s.target for s in statements if isinstance(s, Read)}
        depth = self._open_threads(mask, statements)
        loads = flow.exposed | (flow.assigned if flow.leaves else flow.assigned - flow.surely)
        self._prelude(read_names | flow.assigned)
        self._load(loads)
        self.stores = sorted(flow.assigned & set(self.plan.kept))
        self.frames = frames
        if any(contains(s.body, Exit) for t in statements for s in ast.walk(t) if isinstance(s, (ast.For, ast.While))):
            self.out.line("_left = False")
        for s in statements:
            self._statement(s, 0)
        self._store()
        if self.out.lines[-1].lstrip().startswith("_t = ") or self.out.lines[-1].endswith("continue"):
            self.out.line("pass")
        self.out.indent = depth

    def _prelude(self, names):
        """Rematerialise values that are cheaper to recompute than to keep, in source order."""
        needed = self.plan.with_sources(names)
        for name in sorted(self.plan.local_per_thread & needed):
            self.out.line(f"{name} = _row(_all_{name}, _t)")
        for name, node in self.plan.rematerialised.items():
            if name in needed:
                self.out.line(f"{name} = {self.out.expression(node.value)}", node.lineno)

    def _load(self, names):
        for name in sorted(set(names) & set(self.plan.kept)):
            parts = [f"{array}[_t]" for array, _ in self.plan.kept[name]]
            is_tuple = self.plan.kept[name][0][0] != f"_v{name}"
            value = f"({', '.join(parts)},)" if is_tuple else parts[0]
            if name in self.plan.kept_classes:
                value = f"{self.plan.kept_classes[name]}({', '.join(parts)})"
            view = self.plan.kept_views.get(name)
            if view is not None:
                is_record = isinstance(view, types.Record)
                of = self.out.type_code(view if is_record else view.dtype)
                value = f"_record_of({value}, {of})" if is_record else (
                    f"_view_of({value}, {of}, {view.layout!r}, {view.mutable})"
                )
            self.out.line(f"{name} = {value}")

    def _store(self):
        for name in self.stores:
            arrays = self.plan.kept[name]
            if arrays[0][0] == f"_v{name}":
                self.out.line(f"_v{name}[_t] = {name}")
            else:
                value = name
                if name in self.plan.kept_views:
                    value = "_parts"
                    self.out.line(f"_parts = _view_parts({name})")
                is_vector = self.plan.kept_classes.get(name, "").startswith("_vector.")
                for k, (array, _) in enumerate(arrays):
                    part = f".{'xyzw'[k]}" if is_vector else f"[{k}]"
                    self.out.line(f"{array}[_t] = {value}{part}")

    def _statement(self, s, depth):
        """A statement of a region, below `depth` loops of its own."""
        if isinstance(s, Read):
            write_read(self.out, self.plan, s)
        elif isinstance(s, Exit) or (depth == 0 and isinstance(s, (ast.Break, ast.Continue))):
            self._leave(s, depth)
        elif isinstance(s, ast.Assign) and self._is_elsewhere(s):
            self.out.line("pass") if self.out.lines[-1].endswith(":") else None
        elif isinstance(s, ast.If):
            self.out.line(f"if {self.out.expression(s.test)}:")
            self._statements(s.body, depth)
            if s.orelse:
                self.out.line("else:")
                self._statements(s.orelse, depth)
        elif isinstance(s, (ast.For, ast.While)):
            count = self.out.start_spin(s)
            with self.out.below(self.out.loop_head(s)):
                self.out.poll(s.lineno)
                self.out.spin(count, s)
            self._statements(s.body, depth + 1)
            if contains(s.body, Exit):
                self.out.line("if _left:")
                self.out.line("    break" if depth else "    continue")
        else:
            self.out.plain(s)

    def _statements(self, statements, depth):
        self.out.indent += 1
        start = len(self.out.lines)
        for s in statements:
            self._statement(s, depth)
        if len(self.out.lines) == start:
            self.out.line("pass")
        self.out.indent -= 1

    def _is_elsewhere(self, s):
        name = s.targets[0].id if isinstance(s.targets[0], ast.Name) else None
        return self.plan.uniform.get(name) is s or self.plan.rematerialised.get(name) is s

    def _leave(self, s, depth):
        """return, break or continue: this thread takes no further part, up to where it goes."""
        label = s.label if isinstance(s, Exit) else "loop"
        for name, masks in reversed(self.frames):
            cleared = masks[:1] if name == "loop" and isinstance(s, ast.Continue) else masks
            if self.plan.has_waits:
                for mask in cleared:
                    self.out.line(f"{mask}[_t] = 0", s.lineno)
            if name == label:
                break
        if label != "kernel":
            self._store()
        if depth:
            self.out.line("_left = True")
            self.out.line("break", s.lineno)
        else:
            self.out.line("continue", s.lineno)

    def _branch(self, item, mask, frames):
        yes = self._mask()
        no = self._mask() if item.orelse else None
        for m in filter(None, (yes, no)):
            self.out.line(f"_fill({m}, 0)")
        self.out.line("_some = False")
        test = ast.Expr(item.test)
        test.lineno = item.line
        depth = self._open_threads(mask, [test])
        self._prelude(reads(item.test))
        self._load(reads(item.test))
        self.out.line(f"if {self.out.expression(item.test)}:")
        self.out.line(f"    {yes}[_t] = 1", item.line)
        self.out.line("    _some = True")
        if no:
            self.out.line("else:")
            self.out.line(f"    {no}[_t] = 1")
        self.out.indent = depth
        with self.out.below("if _some:"):
            self._block(item.body, yes, [*frames, ("if", [yes])])
        if no:
            with self.out.below(f"if _any_set({no}):"):
                self._block(item.orelse, no, [*frames, ("if", [no])])

    def _loop(self, item, mask, frames):
        s = item.node
        if item.uniform and not jumps(s):
            with self.out.below(f"for {s.target.id} in {self._per_block(s.iter)}:", s.lineno):
                self._poll_block(s.lineno)
                self._block(item.body, mask, frames)
            return
        looping, count = self._mask(), self.out.start_spin(s)
        self.out.line(f"_copy({looping}, {mask or '_m0'})")
        if not item.uniform:
            self._start_counter(item, mask)
        head = f"for {s.target.id} in {self._per_block(s.iter)}:" if item.uniform else "while True:"
        with self.out.below(head, s.lineno if item.uniform else None):
            if item.uniform:
                self._leave_if_empty(looping)
            else:
                self._step(item, looping)
            self.out.per_block = True
            self.out.spin(count, s)
            self.out.per_block = False
            self._poll_block(s.lineno)
            masks = [looping]
            if owns(s.body, ast.Continue):
                masks.insert(0, self._mask())
                self.out.line(f"_copy({masks[0]}, {looping})")
            self._block(item.body, masks[0], [*frames, ("loop", masks)])

    def _leave_if_empty(self, looping):
        self.out.line(f"if not _any_set({looping}):")
        self.out.line("    break")

    def _per_block(self, node):
        """An expression that is evaluated once for a block."""
        self.out.per_block = True
        text = self.out.expression(node)
        self.out.per_block = False
        return text

    def _poll_block(self, line):
        if not self.out.pretty:
            self.out.line(f"_poll(_E, 0, _b, {self.out.site(line, 'loop')})")

    def _start_counter(self, item, mask):
        s = item.node
        if not isinstance(s, ast.For):
            return
        iterable = s.iter
        if not is_range(iterable) or not isinstance(s.target, ast.Name):
            raise UnsupportedError.at(self.plan.program.name, self.plan.program.filename, s.lineno,
                                      "a for loop that contains a barrier must run over a range")
        parts = [ast.Constant(0), *iterable.args, ast.Constant(1)] if len(iterable.args) == 1 else list(iterable.args)
        parts = parts if len(parts) == 3 else [*parts, ast.Constant(1)]
        depth = self._open_threads(mask, [iterable])
        self._prelude(reads(iterable))
        self._load(reads(iterable))
        for key, value in zip(("next", "stop", "step"), parts, strict=True):
            value = Checker(self.out, s.lineno).step(value) if key == "step" else value
            self.out.line(f"_v{item.names[key]}[_t] = {self.out.expression(value)}", s.lineno)
        self.out.indent = depth

    def _step(self, item, looping):
        """Evaluate the loop's test for each thread; leave when no thread goes on."""
        s = item.node
        if isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and s.test.value:
            return self._leave_if_empty(looping)
        self.out.line("_some = False")
        depth = self._open_threads(looping, [ast.Expr(s.test if isinstance(s, ast.While) else s.iter)])
        if isinstance(s, ast.While):
            self._prelude(reads(s.test))
            self._load(reads(s.test))
            self.out.line(f"if {self.out.expression(s.test)}:")
            self.out.line("    _some = True")
        else:
            counter, stop, step = (f"_v{item.names[k]}[_t]" for k in ("next", "stop", "step"))
            self.out.line(f"if ({step} > 0 and {counter} < {stop}) or ({step} < 0 and {counter} > {stop}):")
            self.out.line("    _some = True")
            if s.target.id in self.plan.kept:
                self.out.line(f"    _v{s.target.id}[_t] = {counter}", s.lineno)
            self.out.line(f"    {counter} += {step}")
        self.out.line("else:")
        self.out.line(f"    {looping}[_t] = 0")
        self.out.indent = depth
        self.out.line("if not _some:")
        self.out.line("    break")
