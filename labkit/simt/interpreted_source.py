"""The tree of a kernel -> a Python generator that stops where its thread waits."""

import ast
import copy

from labkit.simt import unsigned
from labkit.simt.errors import file_label
from labkit.simt.ir import ID_NAMES, BinOp, Inline, Lowering, assign, copied, integer_literal, load
from labkit.simt.spins import is_counted, is_spin
from labkit.simt.typed_tree import Convert

MARK = "at"  # what a thread yields before a statement, where statements are marked
SPIN = "spin"  # and at each pass of a loop in which it may wait for another thread, after the first few
PATIENCE = 4  # these few


class ToPython(Lowering):
    """The tree -> Python: a Sync is a yield, an Exit an exception or a return, an operator one with Numba's types.

    With `branches`, each outcome of a test is passed to `_branch`. With `marks`, the thread stops before each
    statement, and wherever a loop comes back to its header.
    """

    def __init__(self, branches, marks=False, stops=True):
        """stops: False for a device function, which is no generator."""
        self.labels, self.branches, self.marks, self.statement_id = set(), branches, marks, 0
        self.stops, self.spins = stops and not marks, 0

    def visit(self, node):
        new = super().visit(node)
        for statement in new if isinstance(new, list) else [new]:  # a list where one statement becomes several
            if isinstance(statement, ast.AST) and not hasattr(statement, "lineno") and hasattr(node, "lineno"):
                statement.lineno, statement.col_offset = node.lineno, getattr(node, "col_offset", 0)
        return new

    def block(self, statements):
        out = []
        for s in statements:
            mark = self._numbered(s)
            if mark is not None and not isinstance(s, ast.While):
                out.append(ast.copy_location(ast.Expr(mark), s))
            result = self.visit(s)
            out += result if isinstance(result, list) else [result]
        return out

    def _numbered(self, statement):
        """The mark of a statement, which gets the next number: numbers follow the source. None where none is asked."""
        self.statement_id += 1
        statement.statement_id = self.statement_id
        is_marked = self.marks and hasattr(statement, "lineno") and not isinstance(
            statement, (Inline, ast.Pass, Convert))  # fmt: skip
        return self._mark(statement, False) if is_marked else None

    def _mark(self, statement, again):
        """(MARK, the statement's number, its line, whether a loop has come back to it), where the thread stops."""
        parts = [MARK, statement.statement_id, statement.lineno, again]
        return ast.Yield(ast.Tuple([ast.Constant(part) for part in parts], ast.Load()))

    def visit_Sync(self, node):
        parts = [
            ast.Constant(node.op),
            ast.Constant(node.lineno),
            ast.Tuple([self.visit(a) for a in node.args], ast.Load()),
        ]
        request = ast.Yield(ast.Tuple(parts, ast.Load()))
        return ast.Expr(request) if node.target is None else ast.Assign([node.target], request)

    def visit_Convert(self, node):
        value = self._conversion(ast.Name(node.name, ast.Load()), node.to)
        unset = ast.ExceptHandler(ast.Name("UnboundLocalError", ast.Load()), None, [ast.Pass()])
        return ast.Try([ast.Assign([ast.Name(node.name, ast.Store())], value)], [unset], [], [])

    def visit_Converted(self, node):
        return self._conversion(self.visit(node.value), node.to)

    @staticmethod
    def _conversion(value, to):
        name = "bool_" if str(to) == "bool" else str(to)
        return ast.Call(ast.Attribute(ast.Name("_np", ast.Load()), name, ast.Load()), [value], [])

    def visit_Inline(self, node):
        self.labels.add(node.label)
        handler = ast.ExceptHandler(ast.Name(f"_Leave{node.label}", ast.Load()), None, [ast.Pass()])
        return ast.Try(self.block(node.body) or [ast.Pass()], [handler], [], [])

    def visit_Exit(self, node):
        if node.label == "kernel":
            return ast.Return(None)
        return ast.Raise(ast.Call(ast.Name(f"_Leave{node.label}", ast.Load()), [], []), None)

    def visit_If(self, node):
        test = self._test(node.test)
        return ast.If(test, self.block(node.body) or [ast.Pass()], self.block(node.orelse))

    def visit_While(self, node):
        setup, start = self._start_of_pass(node)  # before its test and body are lowered
        test = self._test(node.test)
        if self.marks:  # a mark gives None
            test = ast.BoolOp(ast.Or(), [self._mark(node, False), test])
        return [*setup, ast.While(test, [*start, *self.block(node.body)], [])]

    def visit_For(self, node):
        setup, start = self._start_of_pass(node)
        if self.marks:
            start.append(ast.copy_location(ast.Expr(self._mark(node, True)), node))
        target, values = self.visit(node.target), self.visit(node.iter)
        return [*setup, ast.For(target, values, [*start, *self.block(node.body)], [])]

    def _start_of_pass(self, node):
        """(statements before a loop, those at the start of each pass): the thread stops there if it may wait."""
        tick = ast.Expr(ast.Call(ast.Name("_tick", ast.Load()), [], []))
        if not self.stops or not is_spin(node):
            return [], [tick]
        self.spins += 1
        count = f"_spun{self.spins}"
        more = assign(count, ast.BinOp(load(count), ast.Add(), ast.Constant(1)), node)
        passes = ast.Tuple([load(count), ast.Constant(is_counted(node))], ast.Load())
        parts = [ast.Constant(SPIN), ast.Constant(node.lineno), passes]
        is_late = ast.Compare(load(count), [ast.Gt()], [ast.Constant(PATIENCE)])
        stop = ast.If(is_late, [ast.Expr(ast.Yield(ast.Tuple(parts, ast.Load())))], [])
        return [assign(count, ast.Constant(0), node)], [tick, more, stop]

    def _test(self, node):
        """Lower the test of an if or a while, which decides the branch."""
        return self._branch(self.visit(node))

    def _branch(self, test):
        if isinstance(test, ast.Constant) or not self.branches:
            return test
        return ast.Call(ast.Name("_branch", ast.Load()), [test], [])

    def visit_Name(self, node):
        return ast.Name("_unsigned_range", ast.Load()) if getattr(node, "is_unsigned", False) else node

    def visit_IfExp(self, node):
        return ast.IfExp(self._branch(self.visit(node.test)), self.visit(node.body), self.visit(node.orelse))

    def visit_BinOp(self, node):
        if _is_small(node):
            return node
        if isinstance(node, BinOp):
            arguments = [self.visit(node.left), self.visit(node.right)]
            return ast.Call(ast.Name(unsigned.runtime_name(node), ast.Load()), arguments, [])
        return self._operation(node.op, self.visit(node.left), self.visit(node.right))

    def visit_AugAssign(self, node):
        self.generic_visit(node)
        value = copy.deepcopy(node.target)
        value.ctx = ast.Load()
        return ast.Assign([node.target], self._operation(node.op, value, node.value))

    @staticmethod
    def _operation(op, left, right):
        """An operator with Numba's types: a function of typed_numbers.py."""
        is_constant = isinstance(op, ast.Pow) and integer_literal(right) is not None
        name = "_constant_power" if is_constant else f"_{type(op).__name__}"
        return ast.Call(ast.Name(name, ast.Load()), [left, right], [])

    def visit_Compare(self, node):
        """`is`, of numbers, is `==`: compiled code has no objects. That of None and of an enum's members stays."""
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            same = ast.Call(ast.Name("_is", ast.Load()), [node.left, *node.comparators], [])
            return same if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), same)
        return node

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Not) or integer_literal(node) is not None:
            return self.generic_visit(node)
        return ast.Call(ast.Name(f"_{type(node.op).__name__}", ast.Load()), [self.visit(node.operand)], [])

    def visit_Constant(self, node):
        """A number with a point is a float64, also beside a float32: NumPy would let Python's own give way."""
        name = {float: "_float64", complex: "_complex128"}.get(type(node.value))
        if type(node.value) is int and node.value >= 1 << 63:
            name = "_uint64"
        return ast.Call(ast.Name(name, ast.Load()), [ast.Constant(node.value)], []) if name else node


def _is_small(node, depth=3):
    """True for sums and products of indices and small constants: they cannot overflow, and need no types."""
    if isinstance(node, ast.Name):
        return node.id in ID_NAMES
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)) and depth:
        return _is_small(node.left, depth - 1) and _is_small(node.right, depth - 1)
    value = integer_literal(node)
    return value is not None and abs(value) < 256


def _locate(node, line):
    """Give every node the line it came from, or its parent's; the frame of an access then has the kernel's line."""
    line = getattr(node, "lineno", line)
    if "lineno" in node._attributes:
        node.lineno = node.end_lineno = line
        node.col_offset = node.end_col_offset = 0
    for child in ast.iter_child_nodes(node):
        _locate(child, line)


def _define(name, arguments, body):
    return ast.FunctionDef(name=name, args=arguments, body=body, decorator_list=[], returns=None, type_params=[])


class _DeviceIds(ast.NodeTransformer):
    """Device functions are called without hidden arguments here; they ask for the current thread's indices."""

    def visit_Name(self, node):
        if node.id in ID_NAMES and isinstance(node.ctx, ast.Load):
            return ast.Call(ast.Name("_id", ast.Load()), [ast.Constant(node.id)], [])
        return node


def python_module(program, branches, marks=False, lowering=ToPython):
    """(the kernel's generator and its device functions as a Python module, labels that inlined functions leave).

    marks: a thread stops before each statement of the kernel, too. lowering: the class that makes Python of the tree.
    """
    transformer = lowering(branches, marks)
    body = transformer.block(copied(program.body)) or [ast.Pass()]
    body = [s for s in body if s is not None]
    locals_ = [
        ast.Assign(
            [ast.Name(a.name, ast.Store())], ast.Call(ast.Name("_local", ast.Load()), [ast.Constant(a.name)], [])
        )
        for a in program.local.values()
    ]
    # the unreachable yield makes a generator of a kernel without barriers
    unreachable = ast.If(ast.Constant(False), [ast.Expr(ast.Yield(ast.Constant(None)))], [])
    params = [*ID_NAMES, "_t", "_b", *program.shared, *program.params]
    arguments = ast.arguments([], [ast.arg(n) for n in params], None, [], [], None, [])
    functions = [_define(program.name, arguments, [unreachable, *locals_, *body])]
    for device in program.devices.values():
        inner = lowering(branches, stops=False)
        inner_body = []
        for a in device.local:
            call = ast.Call(
                ast.Name("_local_of_device", ast.Load()), [ast.Constant(device.name), ast.Constant(a.name)], []
            )
            inner_body.append(ast.Assign([ast.Name(a.name, ast.Store())], call))
        inner_body += inner.block(copied(device.body)) or [ast.Pass()]
        inner_params = ast.arguments([], [ast.arg(n) for n in device.params], None, [], [], None, [])
        functions.append(_DeviceIds().visit(_define(device.name, inner_params, inner_body)))
    module = ast.Module(functions, [])
    _locate(module, program.line)
    return module, transformer.labels


def source(program):
    """The Python source of an interpreted kernel, as text: a yield is where a thread waits."""
    heading = f"# {program.name} ({file_label(program.filename)}:{program.line}), as the CPU device interprets it\n\n"
    return heading + ast.unparse(ast.fix_missing_locations(python_module(program, False)[0])) + "\n"
