"""A kernel's source -> its typed tree (ir.py), which the compiled and the interpreted run share.

scope.py says what the names of a function mean, resolve.py resolves them and refuses what a GPU does not have,
flatten.py takes barriers out of expressions and inlines device functions, live_ranges.py splits variables.
"""

import ast
import itertools

from labkit.simt import live_ranges, overloads, stubs
from labkit.simt.flatten import Flattener, finish_returns
from labkit.simt.ir import DeviceCall, DeviceSource, Program, at_line, check_local_bytes, copied, load
from labkit.simt.resolve import Resolver
from labkit.simt.scope import Scope, bind, is_device_function, own_names, waits
from labkit.simt.spins import spins

MAX_DEPTH = 300  # of recursion; the interpreted run uses Python's own stack


def rewrite(function, argument_types=None, checks_division=False):
    """The typed tree of a kernel, as a Program.

    Takes the Python function; the types of its arguments, which choose between overloads; and whether a division by
    zero is a fault, as with cuda.jit(debug=True). Raises UnsupportedError, naming the line, for what a kernel may not
    contain.
    """
    choices = {}
    program = Rewriter(function, choices, checks_division).program()
    while program.overloads and argument_types is not None:
        overloads.choose(program, argument_types, choices)
        program = Rewriter(function, choices, checks_division).program()
    return program


class Rewriter:
    """The rewrite of one kernel: its Program so far, and state shared by its functions."""

    def __init__(self, function, choices, checks_division):
        """choices: the site of a call -> the implementation that overloads gave for it."""
        self.function, self.choices, self.checks_division = function, choices, checks_division
        self.counter = itertools.count(1)
        self.needs_inline_cache = {}
        self.shared_keys = {}
        self.device_names = {}
        self.inlining = []

    def program(self):
        scope = Scope(self.function)
        if scope.definition.args.vararg:
            scope.refuse(scope.definition, "a kernel cannot have *args")
        self.result = Program(self.function.__name__, scope.filename, scope.definition.lineno, scope.params)
        names = own_names(scope)
        self.result.params = [names[p] for p in scope.params]
        body = self.resolve(scope, names)
        self.result.body = finish_returns(Flattener(self, scope).block(body), "kernel", None, scope)
        self._pass_global_arrays()
        self._count_depth()
        check_local_bytes(self.result)
        live_ranges.split(self.result.body, self.result.params)
        self.result.spins = spins(self.result.body)
        return self.result

    def resolve(self, scope, names, device=None):
        """The statements of a function with their names resolved. names: the tree's name for each local."""
        resolver = Resolver(self, scope, names, device)
        return [statement for node in scope.definition.body for statement in resolver.statement(node)]

    def refuse_recursion(self, scope):
        if scope.key in self.inlining:
            name = scope.function.__name__
            message = f"device function {name} calls itself and holds a barrier, a collective or a shared array"
            scope.refuse(scope.definition, message, "write it as a loop")

    def _pass_global_arrays(self):
        """A device function takes the global arrays that it uses, itself or through others, as further parameters."""
        devices = self.result.devices
        calls = {name: _nodes(device.body, DeviceCall) for name, device in devices.items()}
        used = {name: {n.id for n in _nodes(device.body, ast.Name)} for name, device in devices.items()}
        for _ in devices:  # the longest chain of calls has no more links
            for name in devices:
                used[name] = used[name].union(*(used[call.function] for call in calls[name]))
        captured = {name: [array for array in self.result.constants if array in used[name]] for name in devices}
        for call in [*_nodes(self.result.body, DeviceCall), *(c for inner in calls.values() for c in inner)]:
            call.args = [*call.args, *map(load, captured[call.function])]
        for name, device in devices.items():
            device.params = [*device.params, *captured[name]]

    def _count_depth(self):
        """A function that calls itself, also through others, counts how deep it is: a thread's stack has an end."""
        devices = self.result.devices
        calls = {name: _nodes(device.body, DeviceCall) for name, device in devices.items()}
        reached = {name: {call.function for call in inner} for name, inner in calls.items()}
        for _ in devices:
            for name in devices:
                reached[name] = reached[name].union(*(reached[other] for other in reached[name]))
        recursive = {name for name in devices if name in reached[name]}
        if not recursive:
            return
        deeper = ast.BinOp(load("_depth"), ast.Add(), ast.Constant(1))
        for caller, inner in [(None, _nodes(self.result.body, DeviceCall)), *calls.items()]:
            for call in inner:
                if call.function in recursive:
                    depth = copied(deeper) if caller in recursive else ast.Constant(0)
                    call.args = [*call.args, at_line(depth, call)]
        for name in recursive:
            device = devices[name]
            device.params = [*device.params, "_depth"]
            test = ast.Compare(load("_depth"), [ast.GtE()], [ast.Constant(MAX_DEPTH)])
            text = f"{name.rpartition('_d')[0]} calls itself {MAX_DEPTH} deep: a GPU's stack holds no more"
            details = [ast.Constant("RecursionError"), ast.Constant(text)]
            stop = ast.Expr(ast.Call(ast.Name("_assertion", ast.Load()), details, []))
            device.body = [at_line(ast.If(test, [stop], []), device.body[0]), *device.body]

    def fresh(self, stem):
        return f"_{stem}{next(self.counter)}"

    def needs_inline(self, callee):
        """True for device functions that hold a barrier, a collective, a shared array or a loop that waits for another
        thread, also through others."""
        scope = Scope(callee)
        key = scope.key
        if key in self.needs_inline_cache:
            return self.needs_inline_cache[key]
        self.needs_inline_cache[key] = False  # a recursive call does not make it so
        needed = spins(scope.definition.body)
        for node in ast.walk(scope.definition):
            if not isinstance(node, ast.Call):
                continue
            known, target = scope.static(node.func)
            if not known:
                needed |= isinstance(node.func, ast.Attribute) and node.func.attr == "sync"
            elif isinstance(target, stubs.Function):
                needed |= waits(target) or target.name == "shared.array"
            elif is_device_function(target):
                needed |= self.needs_inline(bind(scope, target.py_func, node)[0])
            elif self.choices.get(scope.site(node)):
                needed |= self.needs_inline(bind(scope, self.choices[scope.site(node)], node)[0])
        self.needs_inline_cache[key] = needed
        return needed

    def device_function(self, callee):
        """Register a device function that stays a function; returns its name in the generated module."""
        scope = Scope(callee)
        if scope.key in self.device_names:
            return self.device_names[scope.key]
        name = f"{scope.function.__name__}_d{next(self.counter)}"
        self.device_names[scope.key] = name
        names = own_names(scope)
        source = DeviceSource(name, [names[p] for p in scope.params], [], [], scope.filename)
        self.result.devices[name] = source
        source.body = self.resolve(scope, names, device=source)
        return name


def _nodes(statements, kind):
    return [node for s in statements for node in ast.walk(s) if isinstance(node, kind)]
