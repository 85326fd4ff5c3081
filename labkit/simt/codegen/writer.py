"""Lines of generated code: statements without barriers, device functions, the sites where faults can happen."""

import ast
import contextlib
import copy

from numba.core import types
from numba.np import numpy_support

from labkit.simt import libraries, runtime
from labkit.simt.codegen.checks import HIDDEN_IDS, Checker
from labkit.simt.runtime.fault_record import FEW_SPINS, MAX_SPINS
from labkit.simt.scope import type_code
from labkit.simt.spins import gives_up, is_spin

IMPORTS = (
    "import math as _math",
    "import operator as _operator",
    "import numpy as _np",
    "from numba import njit as _njit",
    "from labkit.simt.codegen.inference import DeviceCompiler as _DeviceCompiler",
    *runtime.IMPORTS,
)


class Writer:
    """Lines of Python, their indentation, and `sites`: (kernel, file, line, text) of each site that can fault.

    checked: indexing is checked. pretty: for people to read, without checks and what serves them.
    """

    def __init__(self, program, checked=True, pretty=False):
        self.kernel, self.filename = program.name, program.filename
        self.checked, self.pretty = checked, pretty
        self.lines, self.indent = [], 0
        self.per_block = False  # True where the code runs once for a block, and has no thread
        self.sites, self.site_index, self.spins = [], {}, 0
        self.dtypes = {}  # source of a dtype -> its name in the module

    def line(self, text, source_line=None):
        comment = f"  # {source_line}" if source_line is not None and not text.endswith(":") else ""
        for part in text.split("\n"):
            self.lines.append("    " * self.indent + part + comment)
            comment = ""

    @contextlib.contextmanager
    def below(self, head, source_line=None):
        """The lines within stand below this one, further in."""
        self.line(head, source_line)
        self.indent += 1
        yield
        self.indent -= 1

    def site(self, line, text="", filename=None):
        key = (self.kernel, filename or self.filename, line, text)
        if key not in self.site_index:
            self.site_index[key] = len(self.sites)
            self.sites.append(key)
        return self.site_index[key]

    def type_code(self, ty):
        """The source of the type of an array's elements; that of records, dates and texts is a name of the module."""
        if isinstance(ty, (types.Number, types.Boolean)):
            return type_code(ty)
        return self.dtypes.setdefault(f"_np.dtype({_dtype_source(numpy_support.as_dtype(ty))})",
                                      f"_dtype{len(self.dtypes)}")  # fmt: skip

    def header(self, program):
        """The lines that the others need before them."""
        return [*imports(program), *(f"{name} = {source}" for source, name in self.dtypes.items())]

    # ---------------- functions

    def device(self, source):
        """A device function that stays a function."""
        filename, hidden = self.filename, [] if self.pretty else list(HIDDEN_IDS)
        if not self.pretty:
            options = 'nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True'
            self.lines += ["@_without_literals", f"@_njit({options}, pipeline_class=_DeviceCompiler)"]
        self.filename = source.filename
        with self.below(f"def {source.name}({', '.join([*source.params, *hidden])}):"):
            for array in source.local:
                self.line(f"{array.name} = _np.empty({shape_code(array.shape)}, {self.type_code(array.dtype)})")
            for s in source.body or [ast.Pass()]:
                self.plain(copy.deepcopy(s))
        self.line("")
        self.filename = filename

    # ---------------- statements and expressions

    def plain(self, s):
        """A statement of a device function, or below a region's loops: no exits to care for."""
        if isinstance(s, ast.If):
            self.line(f"if {self.expression(s.test)}:")
            self.plain_block(s.body)
            if s.orelse:
                self.line("else:")
                self.plain_block(s.orelse)
        elif isinstance(s, (ast.For, ast.While)):
            count = self.start_spin(s)
            with self.below(self.loop_head(s)):
                self.poll(s.lineno)
                self.spin(count, s)
            self.plain_block(s.body)
        elif isinstance(s, ast.Return):
            self.line("return" if s.value is None else f"return {self.expression(s.value)}", s.lineno)
        elif isinstance(s, ast.Pass):
            self.line("pass")
        elif isinstance(s, (ast.Break, ast.Continue)):
            self.line("break" if isinstance(s, ast.Break) else "continue", s.lineno)
        else:
            self._simple(s)

    def plain_block(self, statements):
        self.indent += 1
        for s in statements:
            self.plain(s)
        self.indent -= 1

    def loop_head(self, s):
        if isinstance(s, ast.For):
            return f"for {ast.unparse(s.target)} in {self.expression(s.iter)}:"
        always = isinstance(s.test, ast.Constant) and s.test.value and not self.pretty
        # Numba cannot compile a loop that it can prove endless; a block has threads, always
        return "while _bdx > 0:" if always else f"while {self.expression(s.test)}:"

    def poll(self, line):
        if not self.pretty:
            self.line(f"_poll(_E, _t, _b, {self.site(line, 'loop')})")

    def start_spin(self, loop):
        """Before a loop that may wait for another thread: the count of its passes. Returns its name, else None."""
        if self.pretty or not is_spin(loop):
            return None
        self.spins += 1
        self.line(f"_spun{self.spins} = 0")
        return f"_spun{self.spins}"

    def spin(self, count, loop):
        """In such a loop: one more pass."""
        if count is not None:
            thread = "0" if self.per_block else "_t"
            limit, site = FEW_SPINS if gives_up(loop) else MAX_SPINS, self.site(loop.lineno, "loop")
            self.line(f"{count} = _spin({count}, {limit}, _E, {thread}, _b, {site})")

    def _simple(self, s):
        for part in Checker(self, s.lineno).statement(s):
            self.line(ast.unparse(part), s.lineno)

    def expression(self, node):
        checker = Checker(self, getattr(node, "lineno", 0))
        return ast.unparse(checker.visit(copy.deepcopy(node)))


def device_functions(program, checked):
    """The source of a module with a kernel's device functions, for Numba to infer types from."""
    out = Writer(program, checked)
    for device in program.devices.values():
        out.device(device)
    return "\n".join([*out.header(program), *out.lines])


def imports(program):
    """The lines that import what a kernel's code calls."""
    bodies = [program.body, *(device.body for device in program.devices.values())]
    names = {n.id for body in bodies for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}
    return [*IMPORTS, *(line for name, line in libraries.IMPORTS.items() if name in names)]


def _dtype_source(dtype):
    """The source of what np.dtype makes this of."""
    if dtype.subdtype:
        return f"({_dtype_source(dtype.base)}, {dtype.shape})"
    if dtype.names is None:
        return repr(dtype.str)
    formats = ", ".join(_dtype_source(dtype.fields[name][0]) for name in dtype.names)
    offsets = [dtype.fields[name][1] for name in dtype.names]
    return (f"{{'names': {list(dtype.names)}, 'formats': [{formats}], 'offsets': {offsets}, "
            f"'itemsize': {dtype.itemsize}, 'aligned': {dtype.isalignedstruct}}}")


def shape_code(shape):
    return f"({', '.join(map(str, shape))},)"
