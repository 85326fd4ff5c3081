"""A kernel's source -> a normal form that the compiled and the observed run share.

In the normal form
- every name that is not a local of the kernel is resolved: constants are literals, special registers are `_tx`, `_bx`,
  `_bdx`, `_gdx` (threadIdx.x, blockIdx.x, blockDim.x, gridDim.x) and so on, global arrays are hidden arguments;
- shared and local arrays are declarations, apart from the code;
- a barrier or warp collective stands alone, as a `Sync` statement, never inside an expression;
- a device function that contains one (or a shared array) is inlined: an `Inline` statement that `Exit` leaves;
- other device functions stay functions.
What a GPU does not have is refused here, with the line.
"""

import ast
import copy
import itertools

from labkit.simt import live_ranges, stubs
from labkit.simt.errors import UnsupportedError
from labkit.simt.ir import (
    ID_NAMES,
    DeviceSource,
    Exit,
    Inline,
    Program,
    Sync,
    _assign,
    _at,
    contains,
    sync_kind,
)
from labkit.simt.resolve import _Resolver
from labkit.simt.scope import _is_device_function, _own_names, _Scope, _waits


def rewrite(function):
    """The normal form of a kernel, as a Program.

    Takes the Python function. Raises UnsupportedError, naming the line, for what a kernel may not contain.
    """
    return _Rewriter(function).program()


class _Rewriter:
    def __init__(self, function):
        self.function = function
        self.counter = itertools.count(1)
        self.needs_inline_cache = {}
        self.shared_keys = {}
        self.device_names = {}
        self.inlining = []

    def program(self):
        scope = _Scope(self.function)
        arguments = scope.definition.args
        if arguments.defaults or any(arguments.kw_defaults):
            scope.refuse(scope.definition, "default values of a kernel's parameters are not supported")
        self.result = Program(self.function.__name__, scope.filename, scope.definition.lineno, scope.params)
        names = _own_names(scope)
        self.result.params = [names[p] for p in scope.params]
        body = self._resolve(scope, names)
        self.result.body = self._finish_returns(self._flatten(body, scope), "kernel", None, scope)
        names_in_use = {n.id for s in self.result.body for n in ast.walk(s) if isinstance(n, ast.Name)}
        live_ranges.split(self.result.body, self.result.params, names_in_use)
        return self.result

    # ------------------------------------------------ names

    def _resolve(self, scope, names, device=None):
        resolver = _Resolver(self, scope, names, device)
        body = [statement for node in scope.definition.body for statement in resolver.statement(node)]
        for node in (n for statement in body for n in ast.walk(statement)):
            node.filename = scope.filename  # an inlined function may stand in another file than the kernel
        return body

    def fresh(self, stem):
        return f"_{stem}{next(self.counter)}"

    def needs_inline(self, function):
        """True for device functions that hold a barrier, a collective or a shared array, also through others."""
        scope = _Scope(function)
        key = scope.key
        if key in self.needs_inline_cache:
            return self.needs_inline_cache[key]
        self.needs_inline_cache[key] = False  # a recursive call does not make it so
        found = False
        for node in ast.walk(scope.definition):
            if not isinstance(node, ast.Call):
                continue
            known, target = scope.static(node.func)
            if not known:
                found |= isinstance(node.func, ast.Attribute) and node.func.attr == "sync"
            elif isinstance(target, stubs.Function):
                found |= _waits(target) or target.name == "shared.array"
            elif _is_device_function(target):
                found |= self.needs_inline(target.py_func)
        self.needs_inline_cache[key] = found
        return found

    def device_function(self, function):
        """Register a device function that stays a function; returns its name in the generated module."""
        scope = _Scope(function)
        if scope.key in self.inlining:
            raise UnsupportedError(f"device function {function.__name__} calls itself: recursion is not supported")
        if scope.key in self.device_names:
            return self.device_names[scope.key]
        name = f"{function.__name__}_d{next(self.counter)}"
        self.device_names[scope.key] = name
        names = _own_names(scope)
        source = DeviceSource(name, [names[p] for p in scope.params], [], [], scope.filename)
        self.result.devices[name] = source
        self.inlining.append(scope.key)
        source.body = self._resolve(scope, names, device=source)
        self.inlining.pop()
        return name

    # ------------------------------------------------ barriers out of expressions, device functions inlined

    def _is_sync(self, node):
        return isinstance(node, ast.Call) and (getattr(node, "sync_op", None) or getattr(node, "inline", None))

    def _has_sync(self, node):
        return node is not None and any(self._is_sync(n) for n in ast.walk(node))

    def _flatten(self, statements, scope):
        return [flat for statement in statements for flat in self._flatten_one(statement, scope)]

    def _flatten_one(self, s, scope):
        if not self._has_sync(s):
            return [s]
        if isinstance(s, ast.If):
            before, s.test = self._hoist(s.test, scope)
            s.body, s.orelse = self._flatten(s.body, scope), self._flatten(s.orelse, scope)
            return [*before, s]
        if isinstance(s, ast.While):
            if self._has_sync(s.test):
                before, test = self._hoist(s.test, scope)
                leave = ast.If(ast.UnaryOp(ast.Not(), test), [_at(ast.Break(), s)], [])
                s.body = [*before, _at(leave, s), *self._flatten(s.body, scope)]
                s.test = _at(ast.Constant(True), s)
            else:
                s.body = self._flatten(s.body, scope)
            return [s]
        if isinstance(s, ast.For):
            before, s.iter = self._hoist(s.iter, scope)
            s.body = self._flatten(s.body, scope)
            if isinstance(s.iter, (ast.Tuple, ast.Name)):  # of a tuple or an array: by position
                position = self.fresh("c")
                item = ast.Subscript(s.iter, ast.Name(position, ast.Load()), ast.Load())
                s.body.insert(0, _at(ast.Assign([s.target], item), s))
                length = ast.Call(ast.Name("len", ast.Load()), [copy.deepcopy(s.iter)], [])
                s.target = ast.Name(position, ast.Store())
                s.iter = _at(ast.Call(ast.Name("range", ast.Load()), [length], []), s)
                _at(s, s)
            return [*before, s]
        if isinstance(s, ast.Expr) and self._is_sync(s.value):
            before = self._hoist_children(s.value, scope)
            return [*before, *self._place(s.value, None, scope)]
        if isinstance(s, ast.Assign) and self._is_sync(s.value) and len(s.targets) == 1:
            target = s.targets[0]
            if isinstance(target, ast.Name):
                before = self._hoist_children(s.value, scope)
                return [*before, *self._place(s.value, target, scope)]
        if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Subscript) and self._has_sync(s.value):
            return self._flatten_update(s, scope)
        before = self._hoist_children(s, scope)
        return [*before, s]

    def _flatten_update(self, s, scope):
        """a[i] += f(), where f waits: a[i] is read before."""
        before, index = self._hoist(s.target.slice, scope)
        position, old = self.fresh("c"), self.fresh("c")
        place = _at(ast.Subscript(s.target.value, ast.Name(position, ast.Load()), ast.Store()), s)
        read = _at(ast.Subscript(copy.deepcopy(s.target.value), ast.Name(position, ast.Load()), ast.Load()), s)
        inner, value = self._hoist(s.value, scope)
        result = _at(ast.BinOp(ast.Name(old, ast.Load()), s.op, value), s)
        update = _at(ast.Assign([place], result), s)
        return [*before, _assign(position, index, s), _assign(old, read, s), *inner, update]

    def _hoist(self, node, scope):
        """(statements, expression): the expression without barriers, after the statements."""
        if not self._has_sync(node):
            return [], node
        if self._is_sync(node):
            before = self._hoist_children(node, scope)
            target = _at(ast.Name(self.fresh("c"), ast.Store()), node)
            return [*before, *self._place(node, target, scope)], _at(ast.Name(target.id, ast.Load()), node)
        if isinstance(node, ast.BoolOp) and any(self._has_sync(v) for v in node.values[1:]):
            name = self.fresh("c")
            before, first = self._hoist(node.values[0], scope)
            statements = [*before, _assign(name, first, node)]
            for value in node.values[1:]:
                inner, last = self._hoist(value, scope)
                test = ast.Name(name, ast.Load())
                if isinstance(node.op, ast.Or):
                    test = ast.UnaryOp(ast.Not(), test)
                statements.append(_at(ast.If(test, [*inner, _assign(name, last, node)], []), node))
            return statements, _at(ast.Name(name, ast.Load()), node)
        if isinstance(node, ast.Compare) and len(node.ops) > 1 and any(self._has_sync(c) for c in node.comparators[1:]):
            return self._hoist_chain(node, scope)
        if isinstance(node, ast.IfExp) and (self._has_sync(node.body) or self._has_sync(node.orelse)):
            name = self.fresh("c")
            before, test = self._hoist(node.test, scope)
            yes_before, yes = self._hoist(node.body, scope)
            no_before, no = self._hoist(node.orelse, scope)
            branch = ast.If(test, [*yes_before, _assign(name, yes, node)], [*no_before, _assign(name, no, node)])
            return [*before, _at(branch, node)], _at(ast.Name(name, ast.Load()), node)
        return self._hoist_children(node, scope), node

    def _hoist_chain(self, node, scope):
        """a < b < f(), where f waits: b is evaluated once, f only where a < b."""
        result, kept = self.fresh("c"), self.fresh("c")
        statements, left = self._hoist(node.left, scope)
        for k, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            step, right = self._hoist(right, scope)
            next_kept = self.fresh("c")
            step = [_assign(kept, left, node)] * (k == 0) + [
                *step,
                _assign(next_kept, right, node),
                _assign(result, ast.Compare(ast.Name(kept, ast.Load()), [op], [ast.Name(next_kept, ast.Load())]), node),
            ]
            kept = next_kept
            statements += step if k == 0 else [_at(ast.If(ast.Name(result, ast.Load()), step, []), node)]
        return statements, _at(ast.Name(result, ast.Load()), node)

    def _hoist_children(self, node, scope):
        """Hoist from the expressions below node, left to right; what comes before a barrier is kept in a name."""
        slots = []
        fields = list(ast.iter_fields(node))
        if isinstance(node, ast.Assign):  # the value is evaluated before the targets
            fields.sort(key=lambda item: item[0] != "value")
        for name, value in fields:
            if isinstance(node, ast.Call) and name == "func":
                continue
            if isinstance(value, ast.expr):
                slots.append((node, name, None, value))
            elif isinstance(value, list):
                items = ((k, item) for k, item in enumerate(value) if isinstance(item, (ast.expr, ast.keyword)))
                slots += [(value, None, k, item) for k, item in items]
        last = max((k for k, slot in enumerate(slots) if self._has_sync(slot[3])), default=-1)
        statements = []
        for k, (holder, name, position, value) in enumerate(slots[: last + 1]):
            if isinstance(getattr(value, "ctx", None), ast.Store):
                statements += self._hoist_children(value, scope)
                continue
            before, new = self._hoist(value, scope)
            statements += before
            if k < last and _reads_memory(new):
                kept = self.fresh("c")
                statements.append(_assign(kept, new, value))
                new = _at(ast.Name(kept, ast.Load()), value)
            if name is not None:
                setattr(holder, name, new)
            else:
                holder[position] = new
        return statements

    def _place(self, call, target, scope):
        """The statements for a barrier, a collective, or an inlined device function whose arguments are plain."""
        op = getattr(call, "sync_op", None)
        if op:
            sync = _at(Sync(target=target, args=call.args), call)
            sync.op, sync.kind, sync.filename = op, sync_kind(op), getattr(call, "filename", None)
            return [sync]
        return self._inline(call, target)

    def _inline(self, call, target):
        function = call.inline
        scope = _Scope(function)
        if scope.key in self.inlining:
            raise UnsupportedError(f"device function {function.__name__} calls itself: recursion is not supported")
        stem = f"_{function.__name__}{next(self.counter)}"
        names = {name: f"{stem}_{name}" for name in scope.locals}
        statements = []
        for param, argument in zip(scope.params, call.args, strict=True):
            # the callee cannot assign the caller's names, so a plain argument may stand for the parameter
            if isinstance(argument, (ast.Name, ast.Constant)) and param not in scope.assigned:
                names[param] = argument
            else:
                statements.append(_assign(names[param], argument, call))
        self.inlining.append(scope.key)
        body = self._flatten(self._resolve(scope, names), scope)
        self.inlining.pop()
        label = self.fresh("inline")
        result = f"{stem}_result"
        body = self._finish_returns(body, label, result, scope)
        if contains(body, Exit):
            inline = _at(Inline(body=body), call)
            inline.label = label
            inline.function = function.__name__
            statements.append(inline)
        else:
            statements += body
        if target is not None:
            statements.append(_at(ast.Assign([target], ast.Name(result, ast.Load())), call))
        return statements

    def _finish_returns(self, body, label, result, scope):
        """Return -> Exit, dropped where it is the last thing that happens."""

        def replace(statements, tail):
            out = []
            for k, s in enumerate(statements):
                is_tail = tail and k == len(statements) - 1
                if isinstance(s, ast.Return):
                    if s.value is not None and result is None and not _is_none(s.value):
                        scope.refuse(s, "a kernel cannot return a value", "write it into an array")
                    if result is not None and s.value is not None:
                        out.append(_assign(result, s.value, s))
                    if not is_tail:
                        leave = _at(Exit(), s)
                        leave.label = label
                        out.append(leave)
                    return out  # what follows a return in one block never runs
                if isinstance(s, ast.If):
                    s.body, s.orelse = replace(s.body, is_tail), replace(s.orelse, is_tail)
                    s.body = s.body or [_at(ast.Pass(), s)]
                elif isinstance(s, (ast.For, ast.While)):
                    s.body = replace(s.body, False) or [_at(ast.Pass(), s)]
                out.append(s)
            return out

        return replace(body, True)


def _is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def _reads_memory(node):
    """True if evaluating it later could give something else: it loads, calls, or names a variable."""
    if isinstance(node, ast.Constant):
        return False
    return not (isinstance(node, ast.Name) and node.id in ID_NAMES)
