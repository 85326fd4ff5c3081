"""Writes the source of a kernel for one set of argument types."""

import ast
import copy
from dataclasses import replace

from numba.core import types
from numba.core.errors import NumbaError
from numba.np import numpy_support

from labkit.simt import ptx_compiled
from labkit.simt.codegen.checks import HIDDEN_IDS, _Checker, _slot
from labkit.simt.codegen.inference import infer_types, type_error
from labkit.simt.codegen.plan import (
    _PURE_CALLS,
    Branch,
    Call,
    Loop,
    Read,
    Region,
    Wait,
    _Flow,
    _Folder,
    _is_range,
    _own,
    _reads,
    _targets,
    _writes,
)
from labkit.simt.codegen.types import (
    _COLLECTIVE_TYPES,
    _HALF_MMA,
    MMA,
    VOTES,
    _collective_type,
    _contributed,
    _matrices,
    _typed,
    full_name,
)
from labkit.simt.errors import KernelTypeError, UnsupportedError, place
from labkit.simt.ir import BUILTINS, DtypeOf, Exit, Inline, Sync, contains
from labkit.simt.scope import type_code
from labkit.simt.stubs import SHUFFLES

HELPERS = (
    "load", "store", "view_parts", "view_of", "axis", "fail", "poll", "carve", "row", "poison",
    "atomic_add", "atomic_sub", "atomic_max", "atomic_min", "atomic_nanmax", "atomic_nanmin", "atomic_and_",
    "atomic_or_", "atomic_xor", "atomic_exch", "atomic_inc", "atomic_dec", "atomic_cas",
    "popc", "clz", "ffs", "brev", "fma", "cbrt", "rsqrt", "remainder", "modf", "selp",
    "barrier", "grid_barrier", "lanes", "warps", "check_mask", "shuffle", "match_any", "match_all", "fill", "copy",
    "clear_padding", "any_set", "count_set", "value_bits", "coprime", "without_literals",
)  # fmt: skip
IMPORTS = (
    "import math as _math",
    "import operator as _operator",
    "import numpy as _np",
    "from numba import njit as _njit",
    "from labkit.simt.codegen.inference import KernelCompiler as _KernelCompiler",
    *(f"from labkit.simt.lowlevel import {helper} as _{helper}" for helper in HELPERS),
    *(f"from labkit.simt.ptx_compiled import {helper} as _ptx_{helper}" for helper in ptx_compiled.HELPERS),
)
_ALIGN = 64


class Generator:
    """Writes the Python source of a kernel for one set of argument types."""

    def __init__(self, program, argument_types, checked=True, pretty=False, order="forward", flat=False):
        self.program = program = self._with_dtypes(program, argument_types)
        self.types = argument_types  # one for each constant and each parameter
        self.checked, self.pretty, self.order = checked, pretty, order
        self.flat = flat and order != "scattered"  # blocks have one dimension
        self.lines, self.indent = [], 0
        self.sites, self.site_index = [], {}
        self.count = 0
        self.masks = []
        self.body = self._prepare(program.body)
        self.has_waits = contains(self.body, Sync, Inline)
        self.has_exit = any(isinstance(n, Exit) and n.label == "kernel" for s in self.body for n in ast.walk(s))
        self.tree = self._build(self.body)
        self._classify()

    @staticmethod
    def _with_dtypes(program, argument_types):
        """The program, with the dtype of each array that takes it from an argument."""

        def known(array):
            if not isinstance(array.dtype, DtypeOf):
                return array
            ty = argument_types[len(program.constants) + program.params.index(array.dtype.param)]
            if isinstance(ty, types.Array):
                return replace(array, dtype=ty.dtype)
            raise UnsupportedError(
                f"{program.name}, line {array.line}: {array.dtype.param} is {ty}, and has no dtype "
                f"({place(program.filename)})"
            )

        shared = {name: known(array) for name, array in program.shared.items()}
        return replace(program, shared=shared, local={name: known(array) for name, array in program.local.items()})

    # ------------------------------------------------ analysis

    def _prepare(self, body):
        """Parameters that the kernel assigns become locals."""
        arrays = zip(self.program.params, self.types[len(self.program.constants) :], strict=True)
        ndims = {name: ty.ndim for name, ty in arrays if isinstance(ty, types.Array)}
        body = _Folder(ndims).block(copy.deepcopy(body))
        written = {name for s in body for n in ast.walk(s) for name in _writes(n)}
        self.renamed_params = [p for p in self.program.params if p in written]
        first = []
        for p in self.renamed_params:
            node = ast.Assign([ast.Name(p, ast.Store())], ast.Name(f"_given_{p}", ast.Load()))
            node.lineno = self.program.line
            first.append(node)
        return first + body

    @property
    def code_name(self):
        return code_name(self.program)

    @property
    def param_names(self):
        return [f"_given_{p}" if p in self.renamed_params else p for p in self.program.params]

    def _fresh(self, stem):
        self.count += 1
        return f"_{stem}{self.count}"

    def _build(self, statements):
        items = []

        def region():
            if not items or not isinstance(items[-1], Region):
                items.append(Region())
            return items[-1].statements

        for s in statements:
            if isinstance(s, Sync):
                args = []
                for k, argument in enumerate(_contributed(s)):
                    if s.op in SHUFFLES and k != 1 and type(getattr(argument, "value", None)) is int:
                        args.append(None)  # a mask or a distance, the same for all: nothing to keep
                        continue
                    name = self._fresh("a")
                    target = ast.Assign([ast.Name(name, ast.Store())], argument)
                    target.lineno = s.lineno
                    region().append(target)
                    args.append(name)
                s.names = args
                items.append(Wait(s, [name for name in args if name]))
                if s.op not in ("syncthreads", "grid_sync"):
                    read = Read()
                    read.sync, read.lineno, read.target = s, s.lineno, s.target.id if s.target else None
                    items.append(Region([read]))
            elif not contains(s, Sync, Inline):
                region().append(s)
            elif isinstance(s, ast.If):
                items.append(Branch(s.test, self._build(s.body), self._build(s.orelse), s.lineno))
            elif isinstance(s, ast.While):
                items.append(Loop(s, self._build(s.body), {}))
            elif isinstance(s, ast.For):
                names = {k: self._fresh(k) for k in ("next", "stop", "step")}
                items.append(Loop(s, self._build(s.body), names))
            elif isinstance(s, Inline):
                items.append(Call(s.label, s.function, self._build(s.body)))
        return items

    def _regions(self, items):
        for item in items:
            if isinstance(item, Region):
                yield item.statements
            elif isinstance(item, Branch):
                yield [ast.Expr(item.test)]
                yield from self._regions(item.body)
                yield from self._regions(item.orelse)
            elif isinstance(item, Loop):
                if isinstance(item.node, ast.While):
                    yield [ast.Expr(item.node.test)]
                elif not item.uniform:
                    yield [ast.Expr(item.node.iter)]
                yield from self._regions(item.body)
            elif isinstance(item, Call):
                yield from self._regions(item.body)

    def _classify(self):
        """Which variables are kept for each thread, which are computed anew in each region, which once for a block."""
        self.uniform, self.rematerialised, self.kept, self.kept_views = {}, {}, {}, {}
        self.shared_names = set(self.program.shared)
        self.variables = {name for s in self.body for name in _writes(s)}
        if not self.has_waits:
            self.local_per_thread = set()
            return
        self._find_pure()
        exposed = {name for wait in self._waits(self.tree) for name in wait.args}
        used_in = {}
        for k, statements in enumerate(self._regions(self.tree)):
            flow = _Flow(statements)
            exposed |= flow.exposed & self.variables
            for name in self._with_sources({n for s in statements for n in _reads(s)}) & set(self.program.local):
                used_in.setdefault(name, set()).add(k)
        self.local_per_thread = {name for name, regions in used_in.items() if len(regions) > 1}
        for loop in self._loops(self.tree):
            if isinstance(loop.node, ast.For) and not loop.uniform:
                exposed |= {loop.node.target.id} if isinstance(loop.node.target, ast.Name) else set()
        exposed -= set(self.uniform) | set(self.rematerialised)
        uniform_loop_targets = {x.node.target.id for x in self._loops(self.tree) if x.uniform}
        exposed -= uniform_loop_targets
        names_of_loops = [n for x in self._loops(self.tree) if not x.uniform for n in x.names.values()]
        if exposed or names_of_loops:
            found = self._infer()
            self._check_collectives(found)
            for name in sorted(exposed):
                self._keep(name, found)
            for view in self.kept_views:  # a view of a local array may be of any thread's
                for assignment in self._assignments(view):
                    self.local_per_thread |= _reads(assignment.value) & set(self.program.local)
            for loop in self._loops(self.tree):
                if not loop.uniform and isinstance(loop.node, ast.For):
                    for name in loop.names.values():
                        self.kept[name] = [(f"_v{name}", types.int64)]
            for wait in self._waits(self.tree):
                if wait.sync.op.startswith("ptx.ldmatrix"):  # what the lanes get; mma leaves its result in c
                    name = wait.sync.result = f"{wait.args[0]}_r"
                    self.kept[name] = [(f"_v{name}{k}", types.uint32) for k in range(_matrices(wait.sync))]

    def _check_collectives(self, found):
        """The types that numba.cuda's collectives take: no more than on a GPU, lest a kernel runs only here."""
        for wait in self._waits(self.tree):
            sync = wait.sync
            allowed = _COLLECTIVE_TYPES.get(sync.op.rstrip("_"), ())
            for name, (what, fits, advice) in zip(sync.names, allowed, strict=False):
                ty = found.get(name)
                if ty is not None and not fits(ty):
                    raise KernelTypeError(
                        f"{self.program.name}, line {sync.lineno}: the {what} of {full_name(sync.op)} is {ty}; "
                        f"{advice} ({place(self.program.filename)})"
                    )

    def _keep(self, name, found):
        ty = found.get(name)
        if ty is None:
            return  # read, never written: Numba will say so
        line = next((s.lineno for s in self._assignments(name)), self.program.line)
        if isinstance(ty, types.Array):  # a view: its address, shape and strides
            self.kept[name] = [(f"_v{name}_{k}", types.int64) for k in range(1 + 2 * ty.ndim)]
            self.kept_views[name] = ty
            return
        parts = list(ty.types) if isinstance(ty, types.BaseTuple) else [ty]
        if not all(isinstance(p, (types.Number, types.Boolean)) for p in parts):
            raise UnsupportedError(
                f"{self.program.name}, line {line}: {name} ({ty}) is kept across a barrier; the CPU device can keep "
                f"numbers and tuples of numbers ({place(self.program.filename)})"
            )
        if isinstance(ty, types.BaseTuple):
            self.kept[name] = [(f"_v{name}_{k}", p) for k, p in enumerate(parts)]
        else:
            self.kept[name] = [(f"_v{name}", ty)]

    def _waits(self, items):
        for item in items:
            if isinstance(item, Wait):
                yield item
            for part in ("body", "orelse"):
                yield from self._waits(getattr(item, part, []))

    def _loops(self, items):
        for item in items:
            if isinstance(item, Loop):
                yield item
            for part in ("body", "orelse"):
                yield from self._loops(getattr(item, part, []))

    def _assignments(self, name):
        return [
            n for s in self.body for n in ast.walk(s)
            if isinstance(n, (ast.Assign, ast.AugAssign, ast.For, ast.NamedExpr, Sync)) and name in _targets(n)
        ]  # fmt: skip

    def _find_pure(self):
        """Variables set once, from indices, sizes and constants alone: cheaper to compute again than to keep."""
        counts, candidates = {}, []
        for s in self.body:
            for n in ast.walk(s):
                if isinstance(n, (ast.Assign, ast.AugAssign, ast.For, ast.NamedExpr, Sync)):
                    for name in _targets(n):
                        counts[name] = counts.get(name, 0) + 1
                        if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name):
                            candidates.append((name, n))
        self.pure = {}  # name -> atoms
        for name, node in candidates:
            if counts[name] == 1:
                atoms = self._atoms(node.value)
                if atoms is not None:
                    self.pure[name] = atoms
                    (self.rematerialised if self._is_thread(atoms) else self.uniform)[name] = node
        if not self.program.cooperative:
            self._find_uniform_loops(self.tree, counts)
        else:  # the block index differs within a region
            self.rematerialised = {**self.uniform, **self.rematerialised}
            order = [name for name, _ in candidates if name in self.rematerialised]
            self.rematerialised = {name: self.rematerialised[name] for name in order}
            self.uniform = {}

    @staticmethod
    def _is_thread(atoms):
        return bool(atoms & {"_tx", "_ty", "_tz", "_t"})

    def _find_uniform_loops(self, items, counts):
        """A range over block-wide values that contains a barrier is a loop of the block, not of each thread."""
        for loop in self._loops(items):
            node = loop.node
            if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name) or counts[node.target.id] != 1:
                continue
            if _is_range(node.iter):
                atoms = [self._atoms(a) for a in node.iter.args]
                loop.uniform = all(a is not None and not self._is_thread(a) for a in atoms) and (
                    not self._jumps(node) or not self._is_read_outside(node)
                )

    @staticmethod
    def _jumps(loop):
        return _own(loop.body, ast.Break) or _own(loop.body, ast.Continue) or contains(loop.body, Exit)

    def _is_read_outside(self, loop):
        """True if the loop's variable is used after it, where threads that left early have another value."""
        name = loop.target.id
        inside = sum(1 for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == name)
        everywhere = sum(1 for s in self.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == name)
        return everywhere > inside + 1

    def _atoms(self, node):
        """The indices and parameters that an expression is made of, through variables; None if it is not pure."""
        if isinstance(node, ast.Constant):
            return set()
        if isinstance(node, ast.Name):
            if node.id in self.pure:
                return self.pure[node.id]
            if node.id in self.variables:
                return None
            if node.id in self.program.local:
                return {"_t"}  # an array of each thread's own
            return {node.id}
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("_np", "_math"):
                return set()
            if node.attr not in ("shape", "size", "ndim"):
                return None
            return self._atoms(node.value)
        if isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
                return self._union([node.value, node.slice])
            return None
        if isinstance(node, ast.Call):
            func = node.func
            is_cast = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "_np"
            if not is_cast and not (isinstance(func, ast.Name) and func.id in _PURE_CALLS):
                return None
            return self._union(node.args)
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.Slice)):
            return self._union([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])
        return None

    def _union(self, nodes):
        parts = [self._atoms(node) for node in nodes]
        return None if None in parts else set().union(*parts)

    # ------------------------------------------------ writing

    def line(self, text, where=None):
        comment = f"  # {where}" if where is not None and not text.endswith(":") else ""
        for part in text.split("\n"):
            self.lines.append("    " * self.indent + part + comment)
            comment = ""

    def site(self, line, text="", filename=None):
        key = (self.program.name, filename or self.filename, line, text)
        if key not in self.site_index:
            self.site_index[key] = len(self.sites)
            self.sites.append(key)
        return self.site_index[key]

    def generate(self):
        """The module's source. It ends with SITES, where faults can happen, and SIZES, the bytes of memory it needs."""
        p = self.program
        self.filename = p.filename
        self._plan_memory()
        consts = list(p.constants)
        arguments = ["_first", "_last", "_grid", "_block", "_dynamic", "_scratch", "_E", *consts, *self.param_names]
        for device in p.devices.values():
            self._device(device)
        self._decorator()
        self.line(f"def {self.code_name}({', '.join(arguments)}):")
        self.indent += 1
        self.line("_gdx, _gdy, _gdz = _grid")
        self.line("_bdx, _bdy, _bdz = _block")
        self.line("_T = _bdx * _bdy * _bdz")
        self.line("_P = (_T + 31) // 32 * 32")
        if self.order == "scattered":
            self.line("_stride = _coprime(_T)")
        if self.flat:
            self.line("_ty = _tz = 0")
        self.line("_B = _last - _first" if p.cooperative else "_B = 1")
        self._carve_memory()
        body_start = len(self.lines)
        if p.cooperative:
            self.line("_b = 0")
            self._begin_block()
            self._block(self.tree, "_m0" if self.has_exit else None, [("kernel", ["_m0"])])
        else:
            self.line("for _b in range(_first, _last):" if self.order == "forward" else
                      "for _b in range(_last - 1, _first - 1, -1):")  # fmt: skip
            self.indent += 1
            self._block_index()
            self._begin_block()
            self._block(self.tree, "_m0" if self.has_exit and self.has_waits else None, [("kernel", ["_m0"])])
            if not self.pretty:
                self.line(f"_E[{_slot('DONE')}] += 1")
            self.indent -= 1
        self.indent -= 1
        masks = []
        for mask in self.masks:
            masks.append(f"    {mask} = _carve(_scratch, _base + {self.thread_bytes} * _P * _B, (_P * _B,), _np.uint8)")
            self.thread_bytes += 1
        self.lines[body_start:body_start] = masks
        header = [
            f'"""{p.name} ({place(p.filename)}:{p.line}), as the CPU device runs it. Written by labkit.simt."""',
            *IMPORTS,
        ]
        static = sum(_count(a.shape) * _itemsize(a.dtype) for a in p.shared.values())
        sizes = static, self.shared_bytes, self.fixed_bytes, self.thread_bytes
        tail = [f"SITES = {self.sites!r}", f"SIZES = {sizes!r}"]
        if self.pretty:
            header, tail = header[:1], []
        source = "\n".join([*header, "", *self.lines, "", *tail, ""])
        return source

    def _decorator(self, device=False):
        """No wrapper is made that nobody calls: Python calls the kernel, the kernel its device functions."""
        if not self.pretty:
            wrappers = ["no_cfunc_wrapper=True", *(["no_cpython_wrapper=True"] if device else [])]
            options = ["nogil=True", 'error_model="numpy"', "pipeline_class=_KernelCompiler", *wrappers, "cache=True"]
            self.lines += ["@_without_literals"] if device else []
            self.line(f"@_njit({', '.join(options)})")

    def _device(self, source):
        hidden = [] if self.pretty else list(HIDDEN_IDS)
        self._decorator(device=True)
        self.filename = source.filename
        self.line(f"def {source.name}({', '.join([*source.params, *hidden])}):")
        self.indent += 1
        for array in source.local:
            self.line(f"{array.name} = _np.empty({_shape(array.shape)}, {type_code(array.dtype)})")
        for s in source.body or [ast.Pass()]:
            self._plain(copy.deepcopy(s))
        self.indent -= 1
        self.line("")
        self.filename = self.program.filename

    def _plain(self, s):
        """A statement of a device function, or below a region's loops: no exits to care for."""
        if isinstance(s, ast.If):
            self.line(f"if {self._expression(s.test)}:")
            self._plain_block(s.body)
            if s.orelse:
                self.line("else:")
                self._plain_block(s.orelse)
        elif isinstance(s, (ast.For, ast.While)):
            self._loop_head(s)
            self._plain_block(s.body, poll=s)
        elif isinstance(s, ast.Return):
            self.line("return" if s.value is None else f"return {self._expression(s.value)}", s.lineno)
        elif isinstance(s, ast.Pass):
            self.line("pass")
        elif isinstance(s, (ast.Break, ast.Continue)):
            self.line("break" if isinstance(s, ast.Break) else "continue", s.lineno)
        else:
            self._simple(s)

    def _plain_block(self, statements, poll=None):
        self.indent += 1
        if poll is not None:
            self._poll(poll.lineno)
        for s in statements:
            self._plain(s)
        self.indent -= 1

    def _loop_head(self, s):
        if isinstance(s, ast.While):
            always = isinstance(s.test, ast.Constant) and s.test.value and not self.pretty
            # Numba cannot compile a loop that it can prove endless; a block has threads, always
            self.line("while _bdx > 0:" if always else f"while {self._expression(s.test)}:")
        else:
            self.line(f"for {ast.unparse(s.target)} in {self._expression(s.iter)}:")

    def _poll(self, line):
        if not self.pretty:
            self.line(f"_poll(_E, _t, _b, {self.site(line, 'loop')})")

    def _simple(self, s):
        for part in _Checker(self, s.lineno).statement(s):
            self.line(ast.unparse(part), s.lineno)

    def _expression(self, node):
        checker = _Checker(self, getattr(node, "lineno", 0))
        return ast.unparse(checker.visit(copy.deepcopy(node)))

    # ---------------- memory

    def _plan_memory(self):
        """Shared arrays one after the other; then arrays of one thread at a time; then what is kept for each thread."""
        self.shared_bytes, self.offsets = 0, {}
        for array in self.program.shared.values():
            self.offsets[array.name] = self.shared_bytes
            if array.shape != (0,):
                self.shared_bytes += _round_up(_count(array.shape) * _itemsize(array.dtype), 16)
        self.fixed_bytes = 0
        for array in self.program.local.values():
            if array.name not in self.local_per_thread:
                self.offsets[array.name] = self.fixed_bytes
                self.fixed_bytes += _round_up(_count(array.shape) * _itemsize(array.dtype), _ALIGN)
        self.shared_bytes = _round_up(self.shared_bytes, _ALIGN)
        self.thread_bytes = 0

    def _carve_memory(self):
        p, shared = self.program, self.shared_bytes
        if self.has_waits or p.shared or p.local or p.has_copies:
            self.line(f"_fixed = ({shared} + (_dynamic + {_ALIGN - 1}) // {_ALIGN} * {_ALIGN}) * _B")
            self.line(f"_base = _fixed + {self.fixed_bytes}")
        for array in p.shared.values():
            offset = shared if array.shape == (0,) else self.offsets[array.name]
            shape = f"(_dynamic // {_itemsize(array.dtype)},)" if array.shape == (0,) else _shape(array.shape)
            name = array.name
            if p.cooperative:
                if array.shape == (0,):  # blocks stand at multiples of the alignment, whatever the dtype
                    shape = f"((_dynamic + {_ALIGN - 1}) // {_ALIGN} * {_ALIGN} // {_itemsize(array.dtype)},)"
                shape, name = f"(_B, {shape[1:]}", f"_all_{name}"
            self.line(f"{name} = _carve(_scratch, {offset} * _B, {shape}, {type_code(array.dtype)})", array.line)
        for array in p.local.values():
            code = type_code(array.dtype)
            if array.name in self.local_per_thread:
                offset = f"_base + {self.thread_bytes} * _P * _B"
                shape = f"(_P * _B, {_shape(array.shape)[1:]}"
                self.thread_bytes += _round_up(_count(array.shape) * _itemsize(array.dtype), 16)
                self.line(f"_all_{array.name} = _carve(_scratch, {offset}, {shape}, {code})", array.line)
            else:
                offset = f"_fixed + {self.offsets[array.name]}"
                self.line(f"{array.name} = _carve(_scratch, {offset}, {_shape(array.shape)}, {code})", array.line)
        for arrays in self.kept.values():
            for name, ty in arrays:
                offset = f"_base + {self.thread_bytes} * _P * _B"
                self.line(f"{name} = _carve(_scratch, {offset}, (_P * _B,), {type_code(ty)})")
                self.thread_bytes += _round_up(_itemsize(ty), 8) if _itemsize(ty) > 8 else 8
        if any(wait.sync.kind == "warp" for wait in self._waits(self.tree)):
            for name in ("_active", "_alive", "_bits"):
                offset = f"_base + {self.thread_bytes} * _P * _B"
                self.line(f"{name} = _carve(_scratch, {offset}, (_P * _B // 32,), _np.uint32)")
                self.thread_bytes += 1
        if p.has_copies:
            self.copies_offset = f"_base + {self.thread_bytes} * _P * _B"
            self.thread_bytes += ptx_compiled.QUEUE_BYTES
        if self.has_waits:
            self.masks.append("_m0")

    def _begin_block(self):
        if self.program.has_copies and not self.pretty:
            self.line(f"_E[{_slot('ASYNC')}] = _ptx_address_in(_scratch, {self.copies_offset})")
            self.line("_ptx_clear_queues(_E, _P * _B)")
        if self.program.shared and not self.pretty:
            self.line("_poison(_scratch[:_fixed])")
        if self.has_waits:
            self.line("_fill(_m0, 1)")
            if not self.pretty:
                self.line("_clear_padding(_m0, _T, _P, _B)")
        for name, node in self.uniform.items():
            self.line(f"{name} = {ast.unparse(node.value)}", node.lineno)

    def _block_index(self):
        self.line("_bx = _b % _gdx")
        self.line("_by = _b // _gdx % _gdy")
        self.line("_bz = _b // (_gdx * _gdy)")
        if not self.pretty:
            self.line(f"_poll(_E, 0, _b, {self.site(self.program.line)})")

    # ---------------- the tree

    def _mask(self):
        name = f"_m{len(self.masks)}"
        self.masks.append(name)
        return name

    def _block(self, items, mask, frames):
        if not items:
            self.line("pass")
        for item in items:
            if isinstance(item, Region):
                self._region(item.statements, mask, frames)
            elif isinstance(item, Wait):
                self._wait(item.sync, mask)
            elif isinstance(item, Branch):
                self._branch(item, mask, frames)
            elif isinstance(item, Loop):
                self._loop(item, mask, frames)
            elif isinstance(item, Call):
                inner = self._mask()
                self.line(f"_copy({inner}, {mask or '_m0'})  # {item.name}()")
                self._block(item.body, inner, [*frames, (item.label, [inner])])

    def _open_threads(self, mask, statements):
        """The loops over the threads of a block, up to the region's own code. Returns the depth to close."""
        depth = self.indent
        if self.program.cooperative:
            self.line("for _k in range(_B):")
            self.indent += 1
            self.line("_b = _first + _k")
            self.line("_bx = _b % _gdx")
            self.line("_by = _b // _gdx % _gdy")
            self.line("_bz = _b // (_gdx * _gdy)")
            for name in sorted(self.shared_names & self._with_sources({n for s in statements for n in _reads(s)})):
                array = self.program.shared[name]
                part = f"[: _dynamic // {_itemsize(array.dtype)}]" if array.shape == (0,) else ""
                self.line(f"{name} = _row(_all_{name}, _k){part}")
        base = "_k * _P + " if self.program.cooperative else ""
        if self.order == "scattered":
            self.line("for _n in range(_T):")
            self.indent += 1
            self.line("_linear = _n * _stride % _T")
            self.line("_tx = _linear % _bdx")
            self.line("_ty = _linear // _bdx % _bdy")
            self.line("_tz = _linear // (_bdx * _bdy)")
            self.line(f"_t = {base}_linear")
        else:
            for axis in "x" if self.flat else "zyx":
                bounds = f"_bd{axis}" if self.order == "forward" else f"_bd{axis} - 1, -1, -1"
                self.line(f"for _t{axis} in range({bounds}):")
                self.indent += 1
            self.line(f"_t = {base}_tx" if self.flat else f"_t = {base}(_tz * _bdy + _ty) * _bdx + _tx")
        if mask:
            self.line(f"if not {mask}[_t]:")
            self.line("    continue")
        return depth

    def _region(self, statements, mask, frames):
        flow = _Flow(statements)
        names = {n for s in statements for n in _reads(s)}
        read_names = names | {s.target for s in statements if isinstance(s, Read)}
        depth = self._open_threads(mask, statements)
        loads = flow.exposed | (flow.assigned if flow.leaves else flow.assigned - flow.surely)
        self._prelude(read_names | flow.assigned)
        self._load(loads)
        self.stores = sorted(flow.assigned & set(self.kept))
        self.frames = frames
        if any(contains(s.body, Exit) for t in statements for s in ast.walk(t) if isinstance(s, (ast.For, ast.While))):
            self.line("_left = False")
        for s in statements:
            self._statement(s, 0)
        self._store()
        if self.lines[-1].lstrip().startswith("_t = ") or self.lines[-1].endswith("continue"):
            self.line("pass")
        self.indent = depth

    def _with_sources(self, names):
        """The names, and those that the rematerialised ones among them are made from."""
        found, todo = set(), list(names)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                node = self.rematerialised.get(name)
                todo += _reads(node.value) if node is not None else ()
        return found

    def _prelude(self, names):
        """Make again what is cheaper to compute than to keep, in the order of the source."""
        needed = self._with_sources(names)
        for name in sorted(self.local_per_thread & needed):
            self.line(f"{name} = _row(_all_{name}, _t)")
        for name, node in self.rematerialised.items():
            if name in needed:
                self.line(f"{name} = {self._expression(node.value)}", node.lineno)

    def _load(self, names):
        for name in sorted(set(names) & set(self.kept)):
            parts = [f"{array}[_t]" for array, _ in self.kept[name]]
            is_tuple = self.kept[name][0][0] != f"_v{name}"
            value = f"({', '.join(parts)},)" if is_tuple else parts[0]
            view = self.kept_views.get(name)
            if view is not None:
                value = f"_view_of({value}, {type_code(view.dtype)}, {view.layout!r}, {view.mutable})"
            self.line(f"{name} = {value}")

    def _store(self):
        for name in self.stores:
            arrays = self.kept[name]
            if arrays[0][0] == f"_v{name}":
                self.line(f"_v{name}[_t] = {name}")
            else:
                value = name
                if name in self.kept_views:
                    value = "_parts"
                    self.line(f"_parts = _view_parts({name})")
                for k, (array, _) in enumerate(arrays):
                    self.line(f"{array}[_t] = {value}[{k}]")

    def _statement(self, s, depth):
        """A statement of a region, below `depth` loops of its own."""
        if isinstance(s, Read):
            self._read(s)
        elif isinstance(s, Exit) or (depth == 0 and isinstance(s, (ast.Break, ast.Continue))):
            self._leave(s, depth)
        elif isinstance(s, ast.Assign) and self._is_elsewhere(s):
            self.line("pass") if self.lines[-1].endswith(":") else None
        elif isinstance(s, ast.If):
            self.line(f"if {self._expression(s.test)}:")
            self._statements(s.body, depth)
            if s.orelse:
                self.line("else:")
                self._statements(s.orelse, depth)
        elif isinstance(s, (ast.For, ast.While)):
            self._loop_head(s)
            self.indent += 1
            self._poll(s.lineno)
            self.indent -= 1
            self._statements(s.body, depth + 1)
            if contains(s.body, Exit):
                self.line("if _left:")
                self.line("    break" if depth else "    continue")
        else:
            self._plain(s)

    def _statements(self, statements, depth):
        self.indent += 1
        start = len(self.lines)
        for s in statements:
            self._statement(s, depth)
        if len(self.lines) == start:
            self.line("pass")
        self.indent -= 1

    def _is_elsewhere(self, s):
        name = s.targets[0].id if isinstance(s.targets[0], ast.Name) else None
        return self.uniform.get(name) is s or self.rematerialised.get(name) is s

    def _leave(self, s, depth):
        """return, break or continue: this thread takes no further part, up to where it goes."""
        label = s.label if isinstance(s, Exit) else "loop"
        for name, masks in reversed(self.frames):
            cleared = masks[:1] if name == "loop" and isinstance(s, ast.Continue) else masks
            if self.has_waits:
                for mask in cleared:
                    self.line(f"{mask}[_t] = 0", s.lineno)
            if name == label:
                break
        if label != "kernel":
            self._store()
        if depth:
            self.line("_left = True")
            self.line("break", s.lineno)
        else:
            self.line("continue", s.lineno)

    def _branch(self, item, mask, frames):
        yes = self._mask()
        no = self._mask() if item.orelse else None
        for m in filter(None, (yes, no)):
            self.line(f"_fill({m}, 0)")
        self.line("_some = False")
        test = ast.Expr(item.test)
        test.lineno = item.line
        depth = self._open_threads(mask, [test])
        self._prelude(_reads(item.test))
        self._load(_reads(item.test))
        self.line(f"if {self._expression(item.test)}:")
        self.line(f"    {yes}[_t] = 1", item.line)
        self.line("    _some = True")
        if no:
            self.line("else:")
            self.line(f"    {no}[_t] = 1")
        self.indent = depth
        self.line("if _some:")
        self.indent += 1
        self._block(item.body, yes, [*frames, ("if", [yes])])
        self.indent -= 1
        if no:
            self.line(f"if _any_set({no}):")
            self.indent += 1
            self._block(item.orelse, no, [*frames, ("if", [no])])
            self.indent -= 1

    def _loop(self, item, mask, frames):
        s = item.node
        if item.uniform and not self._jumps(s):
            self.line(f"for {s.target.id} in {self._expression(s.iter)}:", s.lineno)
            self.indent += 1
            self._poll_block(s.lineno)
            self._block(item.body, mask, frames)
            self.indent -= 1
            return
        looping = self._mask()
        self.line(f"_copy({looping}, {mask or '_m0'})")
        if item.uniform:
            self.line(f"for {s.target.id} in {self._expression(s.iter)}:", s.lineno)
            self.indent += 1
            self.line(f"if not _any_set({looping}):")
            self.line("    break")
        else:
            self._start_counter(item, mask)
            self.line("while True:")
            self.indent += 1
            self._step(item, looping)
        self._poll_block(s.lineno)
        masks = [looping]
        if _own(s.body, ast.Continue):
            masks.insert(0, self._mask())
            self.line(f"_copy({masks[0]}, {looping})")
        self._block(item.body, masks[0], [*frames, ("loop", masks)])
        self.indent -= 1

    def _poll_block(self, line):
        if not self.pretty:
            self.line(f"_poll(_E, 0, _b, {self.site(line, 'loop')})")

    def _start_counter(self, item, mask):
        s = item.node
        if not isinstance(s, ast.For):
            return
        iterable = s.iter
        if not _is_range(iterable) or not isinstance(s.target, ast.Name):
            raise UnsupportedError(
                f"{self.program.name}, line {s.lineno}: a for loop that contains a barrier must run over a range "
                f"({place(self.program.filename)})"
            )
        parts = [ast.Constant(0), *iterable.args, ast.Constant(1)] if len(iterable.args) == 1 else list(iterable.args)
        parts = parts if len(parts) == 3 else [*parts, ast.Constant(1)]
        depth = self._open_threads(mask, [iterable])
        self._prelude(_reads(iterable))
        self._load(_reads(iterable))
        for key, value in zip(("next", "stop", "step"), parts, strict=True):
            self.line(f"_v{item.names[key]}[_t] = {self._expression(value)}", s.lineno)
        self.indent = depth

    def _step(self, item, looping):
        """Evaluate the loop's test for each thread; leave when no thread goes on."""
        s = item.node
        if isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and s.test.value:
            self.line(f"if not _any_set({looping}):")
            self.line("    break")
            return
        self.line("_some = False")
        depth = self._open_threads(looping, [ast.Expr(s.test if isinstance(s, ast.While) else s.iter)])
        if isinstance(s, ast.While):
            self._prelude(_reads(s.test))
            self._load(_reads(s.test))
            self.line(f"if {self._expression(s.test)}:")
            self.line("    _some = True")
        else:
            counter, stop, step = (f"_v{item.names[k]}[_t]" for k in ("next", "stop", "step"))
            self.line(f"if ({step} > 0 and {counter} < {stop}) or ({step} < 0 and {counter} > {stop}):")
            self.line("    _some = True")
            if s.target.id in self.kept:
                self.line(f"    _v{s.target.id}[_t] = {counter}", s.lineno)
            self.line(f"    {counter} += {step}")
        self.line("else:")
        self.line(f"    {looping}[_t] = 0")
        self.indent = depth
        self.line("if not _some:")
        self.line("    break")

    # ---------------- barriers and collectives

    def _wait(self, sync, mask):
        op, here = sync.op, mask or "_m0"
        site = self.site(sync.lineno, op, sync.filename)
        if sync.kind in ("block", "grid"):
            if mask:
                first = "_first" if self.program.cooperative else "_b"
                which = "_barrier" if sync.kind == "block" else "_grid_barrier"
                self.line(f"{which}({here}, _m0, _T, _P, _B, {first}, _E, {site})")
            self.line(f"# ---- cuda.{op if sync.kind == 'block' else 'cg.this_grid().sync'}(), line {sync.lineno}")
            if op.startswith("syncthreads_") and not self.program.cooperative:
                self.line(f"_count = _count_set(_v{sync.names[0]}, {here}, 0, _T)")
            return
        self.line(f"# ---- {full_name(op)}(), line {sync.lineno}")
        if op.startswith("ptx."):
            self.line(f"_lanes({here}, _active)")
            self._intrinsic(sync, site)
            return
        self.line(f"_warps({here}, _m0, _active, _alive)")
        if op in VOTES:
            self.line(f"_value_bits(_v{sync.names[1]}, {here}, _bits)")

    def _intrinsic(self, sync, site):
        """An intrinsic of whole warps, for all of the block."""
        op, values = sync.op, ", ".join(f"_v{name}" for name in sync.names)
        first = "_first" if self.program.cooperative else "_b"
        self.line(f"_ptx_whole_warps(_active, _P, {first}, _E, {site})")
        if op in MMA:
            self.line(f"_ptx_mma_f32({MMA[op]}, _active, {values})")
        elif op == _HALF_MMA:
            self.line(f"_ptx_mma_f16(_active, {values})")
        else:
            registers = [name for name, _ in self.kept[sync.result]]
            registers = ", ".join((registers * 2)[:4])
            self.line(f"_ptx_ldmatrix({values}, _active, {registers}, {_matrices(sync)}, {op.endswith('_trans')})")

    def _read_intrinsic(self, s):
        op, names = s.sync.op, s.sync.names
        if op in MMA:
            values = [f"_np.float32(_v{name}[_t])" for name in names[-4:]]
        elif op == _HALF_MMA:
            values = [f"_np.uint32(_v{name}[_t])" for name in names[-2:]]
        else:
            values = [f"{name}[_t]" for name, _ in self.kept[s.sync.result]]
        self.line(f"{s.target} = ({', '.join(values)})" if s.target else "pass", s.lineno)

    def _read(self, s):
        sync, op = s.sync, s.sync.op
        if op.startswith("ptx."):
            self._read_intrinsic(s)
            return
        args = [name and f"_v{name}" for name in sync.names]
        values = [f"{kept}[_t]" if kept else given.value for kept, given in zip(args, sync.args, strict=False)]
        site = self.site(sync.lineno, op, sync.filename)
        where = f"_E, _t, _b, {site}"
        if op.startswith("syncthreads_"):
            count = "_count"
            if self.program.cooperative:
                count = f"_count_set({args[0]}, {args[0]}, _k * _P, _T)"
            value = {"count": count, "and": f"{count} == _T", "or": f"{count} > 0"}[op.split("_")[1]]
            if s.target:
                self.line(f"{s.target} = _np.int32({value})", s.lineno)
            return
        if op == "activemask":
            self.line(f"{s.target or '_'} = _active[_t >> 5]", s.lineno)
            return
        member = values[0] if values else "4294967295"
        if op in SHUFFLES and s.target:
            lane, delta = "(_t & 31)", f"_np.int64({values[2]})"
            source = {"shfl_sync": f"{delta} & 31", "shfl_up_sync": f"{lane} - {delta}",
                      "shfl_down_sync": f"{lane} + {delta}", "shfl_xor_sync": f"{lane} ^ {delta}"}[op]  # fmt: skip
            value = f"_shuffle({args[1]}, {member}, {source}, _t, _active, _alive, {where})"
            self.line(f"{s.target} = {value}", s.lineno)
            return
        self.line(f"_lanes_here = _check_mask({member}, _t, _active, _alive, {where})")
        if not s.target:
            return
        bits = "_bits[_t >> 5] & _lanes_here"
        if op == "match_any_sync":
            value = f"_match_any({args[1]}, _t, _lanes_here)"
        elif op == "match_all_sync":
            value = f"_match_all({args[1]}, _t, _lanes_here)"
        else:
            value = {
                "all_sync": f"({bits}) == _lanes_here",
                "any_sync": f"({bits}) != 0",
                "eq_sync": f"({bits}) == 0 or ({bits}) == _lanes_here",
                "ballot_sync": f"_np.int32({bits})",
            }[op]
        self.line(f"{s.target} = {value}", s.lineno)

    def _infer(self):
        """The types of the kernel's variables. Raises KernelTypeError as a GPU compile would."""
        name, source, arrays = self.typing_source()
        namespace, devices = {}, copy.copy(self)
        devices.lines, devices.indent, devices.sites, devices.site_index = [], 0, [], {}
        devices.pretty = False
        for device in self.program.devices.values():
            devices._device(device)
        text = "\n".join([*IMPORTS, *devices.lines]).replace(", cache=True", "")
        exec(compile(text, f"<device functions of {name}>", "exec"), namespace)
        exec(compile(source, f"<types of {name}>", "exec"), namespace)
        record = types.Array(types.int64, 1, "C")
        array_types = [types.Array(a.dtype, len(a.shape), "C") for a in arrays]
        ids = [types.int64] * len(HIDDEN_IDS[1:])
        arguments = (types.boolean, types.int64, types.int64, record, *ids, *array_types, *self.types)
        try:
            return infer_types(namespace[name], arguments)
        except NumbaError as error:
            raise type_error(self.program, error, source) from error

    # ---------------- a plain function with the same types, for Numba to infer them

    def typing_source(self):
        """(name, source, argument names): control flow and collectives simplified, types as in the kernel."""
        p = self.program
        arrays = [*p.shared.values(), *p.local.values()]
        arguments = ["_go", "_T", "_P", *HIDDEN_IDS, *(a.name for a in arrays), *p.constants, *self.param_names]
        lines = []

        def block(statements, depth):
            pad = "    " * depth
            start = len(lines)
            for s in statements:
                if isinstance(s, Sync):
                    for name, argument in zip(s.names, _contributed(s), strict=True):
                        if name is not None:
                            lines.append(f"{pad}{name} = {_typed(argument)}  # {s.lineno}")
                    if s.target is not None:
                        lines.append(f"{pad}{s.target.id} = {_collective_type(s)}")
                elif isinstance(s, Inline):
                    block(s.body, depth)
                elif isinstance(s, (Exit, ast.Pass, Read)):
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

        block(self.body, 1)
        return self.code_name, "\n".join([f"def {self.code_name}({', '.join(arguments)}):", *lines, ""]), arrays


def code_name(program):
    """The name of the generated function: the kernel's, unless the generated code needs that for something else."""
    return f"kernel_{program.name}" if program.name.startswith("_") or program.name in BUILTINS else program.name


def _round_up(n, unit):
    return -(-n // unit) * unit


def _count(shape):
    total = 1
    for n in shape:
        total *= n
    return total


def _itemsize(ty):
    return numpy_support.as_dtype(ty).itemsize


def _shape(shape):
    return f"({', '.join(map(str, shape))},)"
