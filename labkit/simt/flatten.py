"""Barriers and collectives out of expressions, into statements of their own; device functions with them inlined."""

import ast
import copy

from labkit.simt.ir import (
    ID_NAMES,
    Exit,
    Inline,
    InlineCall,
    Subscript,
    Sync,
    SyncCall,
    assign,
    at_line,
    contains,
    load,
    store,
)
from labkit.simt.scope import Scope


class Flattener:
    """Flattens the statements of one function."""

    def __init__(self, rewriter, scope):
        self.rewriter, self.scope = rewriter, scope

    def block(self, statements):
        return [flat for statement in statements for flat in self._statement(statement)]

    def _statement(self, s):
        if not _has_sync(s):
            return [s]
        if isinstance(s, ast.If):
            hoisted, s.test = self._hoist(s.test)
            s.body, s.orelse = self.block(s.body), self.block(s.orelse)
            return [*hoisted, s]
        if isinstance(s, ast.While):
            if _has_sync(s.test):
                hoisted, test = self._hoist(s.test)
                leave = ast.If(ast.UnaryOp(ast.Not(), test), [at_line(ast.Break(), s)], [])
                s.body = [*hoisted, at_line(leave, s), *self.block(s.body)]
                s.test = at_line(ast.Constant(True), s)
            else:
                s.body = self.block(s.body)
            return [s]
        if isinstance(s, ast.For):
            hoisted, s.iter = self._hoist(s.iter)
            s.body = self.block(s.body)
            if isinstance(s.iter, (ast.Tuple, ast.Name)):  # of a tuple or an array: by position
                position = self.rewriter.fresh("c")
                item = Subscript(s.iter, load(position), ast.Load(), self.scope.filename)
                s.body.insert(0, at_line(ast.Assign([s.target], item), s))
                length = ast.Call(ast.Name("len", ast.Load()), [copy.deepcopy(s.iter)], [])
                s.target = store(position)
                s.iter = at_line(ast.Call(ast.Name("range", ast.Load()), [length], []), s)
                at_line(s, s)
            return [*hoisted, s]
        if isinstance(s, ast.Expr) and _is_sync(s.value):
            hoisted = self._hoist_children(s.value)
            return [*hoisted, *self._synchronise(s.value, None)]
        if isinstance(s, ast.Assign) and _is_sync(s.value) and len(s.targets) == 1:
            target = s.targets[0]
            if isinstance(target, ast.Name):
                hoisted = self._hoist_children(s.value)
                return [*hoisted, *self._synchronise(s.value, target)]
        if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Subscript) and _has_sync(s.value):
            return self._update(s)
        hoisted = self._hoist_children(s)
        return [*hoisted, s]

    def _update(self, s):
        """a[i] += f(), where f waits: a[i] is read before."""
        hoisted, index = self._hoist(s.target.slice)
        position, old = self.rewriter.fresh("c"), self.rewriter.fresh("c")
        element = at_line(Subscript(s.target.value, load(position), ast.Store(), self.scope.filename), s)
        read = at_line(Subscript(copy.deepcopy(s.target.value), load(position), ast.Load(), self.scope.filename), s)
        inner, value = self._hoist(s.value)
        result = at_line(ast.BinOp(load(old), s.op, value), s)
        update = at_line(ast.Assign([element], result), s)
        return [*hoisted, assign(position, index, s), assign(old, read, s), *inner, update]

    def _hoist(self, node):
        """(statements, expression): the expression without barriers, after the statements."""
        if not _has_sync(node):
            return [], node
        if _is_sync(node):
            hoisted = self._hoist_children(node)
            target = at_line(store(self.rewriter.fresh("c")), node)
            return [*hoisted, *self._synchronise(node, target)], at_line(load(target.id), node)
        if isinstance(node, ast.BoolOp) and any(_has_sync(v) for v in node.values[1:]):
            name = self.rewriter.fresh("c")
            hoisted, first = self._hoist(node.values[0])
            statements = [*hoisted, assign(name, first, node)]
            for value in node.values[1:]:
                inner, last = self._hoist(value)
                test = load(name)
                if isinstance(node.op, ast.Or):
                    test = ast.UnaryOp(ast.Not(), test)
                statements.append(at_line(ast.If(test, [*inner, assign(name, last, node)], []), node))
            return statements, at_line(load(name), node)
        if isinstance(node, ast.Compare) and len(node.ops) > 1 and any(_has_sync(c) for c in node.comparators[1:]):
            return self._hoist_chain(node)
        if isinstance(node, ast.IfExp) and (_has_sync(node.body) or _has_sync(node.orelse)):
            name = self.rewriter.fresh("c")
            hoisted, test = self._hoist(node.test)
            yes_hoisted, yes = self._hoist(node.body)
            no_hoisted, no = self._hoist(node.orelse)
            branch = ast.If(test, [*yes_hoisted, assign(name, yes, node)], [*no_hoisted, assign(name, no, node)])
            return [*hoisted, at_line(branch, node)], at_line(load(name), node)
        return self._hoist_children(node), node

    def _hoist_chain(self, node):
        """a < b < f(), where f waits: b is evaluated once, f only where a < b."""
        result, temp = self.rewriter.fresh("c"), self.rewriter.fresh("c")
        statements, left = self._hoist(node.left)
        for k, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            step, right = self._hoist(right)
            next_temp = self.rewriter.fresh("c")
            step = [assign(temp, left, node)] * (k == 0) + [
                *step,
                assign(next_temp, right, node),
                assign(result, ast.Compare(load(temp), [op], [load(next_temp)]), node),
            ]
            temp = next_temp
            statements += step if k == 0 else [at_line(ast.If(load(result), step, []), node)]
        return statements, at_line(load(result), node)

    def _hoist_children(self, node):
        """Hoist from the expressions below node, left to right; values computed before a barrier are kept in a name."""
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
        last = max((k for k, slot in enumerate(slots) if _has_sync(slot[3])), default=-1)
        statements = []
        for k, (holder, name, position, value) in enumerate(slots[: last + 1]):
            if isinstance(getattr(value, "ctx", None), ast.Store):
                statements += self._hoist_children(value)
                continue
            hoisted, new = self._hoist(value)
            statements += hoisted
            if k < last and _reads_memory(new):
                temp = self.rewriter.fresh("c")
                statements.append(assign(temp, new, value))
                new = at_line(load(temp), value)
            if name is not None:
                setattr(holder, name, new)
            else:
                holder[position] = new
        return statements

    def _synchronise(self, call, target):
        """The statements for a barrier, a collective, or an inlined device function whose arguments are plain."""
        if isinstance(call, SyncCall):
            return [at_line(Sync(call.op, target, call.args, self.scope.filename), call)]
        return self._inline(call, target)

    def _inline(self, call, target):
        rewriter, scope = self.rewriter, Scope(call.function)
        function = scope.function
        rewriter.refuse_recursion(scope)
        stem = f"_{function.__name__}{next(rewriter.counter)}"
        names = {name: f"{stem}_{name}" for name in scope.locals}
        statements = []
        for param, argument in zip(scope.params, call.args, strict=True):
            # the callee cannot assign the caller's names, so a plain argument may replace the parameter
            if isinstance(argument, ast.Tuple) and param not in scope.assigned:  # may hold arrays
                for k, element in enumerate(argument.elts):
                    if not isinstance(element, (ast.Name, ast.Constant)):
                        temp = rewriter.fresh("c")
                        statements.append(assign(temp, element, call))
                        argument.elts[k] = at_line(load(temp), call)
                names[param] = argument
            elif isinstance(argument, (ast.Name, ast.Constant)) and param not in scope.assigned:
                names[param] = argument
            else:
                statements.append(assign(names[param], argument, call))
        rewriter.inlining.append(scope.key)
        body = Flattener(rewriter, scope).block(rewriter.resolve(scope, names))
        rewriter.inlining.pop()
        label = rewriter.fresh("inline")
        result = f"{stem}_return"  # a keyword: no local has this name
        body = finish_returns(body, label, result, scope)
        if contains(body, Exit):
            statements.append(at_line(Inline(label, function.__name__, body), call))
        else:
            statements += body
        if target is not None:
            statements.append(at_line(ast.Assign([target], load(result)), call))
        return statements


def finish_returns(body, label, result, scope):
    """Return -> Exit, dropped where it is the last thing that happens."""

    def replace(statements, tail):
        out = []
        for k, s in enumerate(statements):
            is_tail = tail and k == len(statements) - 1
            if isinstance(s, ast.Return):
                if s.value is not None and result is None and not _is_none(s.value):
                    scope.refuse(s, "a kernel cannot return a value", "write it into an array")
                if result is not None and s.value is not None:
                    out.append(assign(result, s.value, s))
                if not is_tail:
                    out.append(at_line(Exit(label), s))
                return out  # what follows a return in one block never runs
            if isinstance(s, ast.If):
                s.body, s.orelse = replace(s.body, is_tail), replace(s.orelse, is_tail)
                s.body = s.body or [at_line(ast.Pass(), s)]
            elif isinstance(s, (ast.For, ast.While)):
                s.body = replace(s.body, False) or [at_line(ast.Pass(), s)]
            out.append(s)
        return out

    return replace(body, True)


def _is_sync(node):
    return isinstance(node, (SyncCall, InlineCall))


def _has_sync(node):
    return node is not None and any(_is_sync(n) for n in ast.walk(node))


def _is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def _reads_memory(node):
    """True if evaluating it later could give something else: it loads, calls, or names a variable."""
    if isinstance(node, ast.Constant):
        return False
    return not (isinstance(node, ast.Name) and node.id in ID_NAMES)
