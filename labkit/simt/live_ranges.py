"""Splits a variable into its independent uses, so that each can have a type, and a place, of its own.

    x = a[t] % 64           # one web: an int, an index
    y = k[x]
    cuda.syncthreads()
    x = f[t] * float32(.5)  # another: a float. It becomes x_2

Two assignments belong together if some read can see both. Numba does the same within one function (SSA); here it is
done before a kernel is cut into regions. Works on the tree of a kernel, in place.
"""

import ast

from labkit.simt.ir import Exit, Inline, Sync, shown


class _Webs:
    def __init__(self, params):
        self.parent = {}  # union-find over definitions; a definition is a (name, id of the node) pair
        self.uses = {}  # id of a node -> (the node, definitions that reach it)
        self.jumps = []  # one dictionary for each enclosing loop or Inline
        self.start = {name: frozenset({(name, "parameter")}) for name in params}

    def find(self, definition):
        self.parent.setdefault(definition, definition)
        while self.parent[definition] != definition:
            definition = self.parent[definition]
        return definition

    def union(self, definitions):
        roots = [self.find(d) for d in definitions]
        for root in roots[1:]:
            self.parent[self.find(root)] = self.find(roots[0])

    # ---- reads and writes

    def read(self, node, state):
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and name.id in state:
                self._see(name, state[name.id])

    def _see(self, node, definitions):
        known = self.uses.get(id(node), (node, frozenset()))[1] | definitions
        self.uses[id(node)] = (node, known)
        self.union(list(known))

    def write(self, target, state):
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                definition = (name.id, id(name))
                self._see(name, frozenset({definition}))
                state[name.id] = frozenset({definition})

    # ---- control flow; a state maps a name to the definitions that reach here, None where nothing does

    def block(self, statements, state):
        for s in statements:
            if state is None:
                state = {}  # code that never runs still needs names
            state = self.statement(s, state)
        return state

    def statement(self, s, state):
        if isinstance(s, ast.Assign):
            self.read(s.value, state)
            for target in s.targets:
                self.read(target, state)
            for target in s.targets:
                self.write(target, state)
        elif isinstance(s, ast.AugAssign):
            self.read(s.value, state)
            self.read(s.target, state)
            if isinstance(s.target, ast.Name):  # one name is both read and written
                before = state.get(s.target.id, frozenset())
                self.write(s.target, state)
                self._see(s.target, before)
        elif isinstance(s, Sync):
            for argument in s.args:
                self.read(argument, state)
            if s.target is not None:
                self.write(s.target, state)
        elif isinstance(s, ast.If):
            self.read(s.test, state)
            return _merge(self.block(s.body, dict(state)), self.block(s.orelse, dict(state)))
        elif isinstance(s, (ast.While, ast.For)):
            return self.loop(s, state)
        elif isinstance(s, Inline):
            self.jumps.append({"label": s.label, "out": None})
            end = self.block(s.body, state)
            return _merge(end, self.jumps.pop()["out"])
        elif isinstance(s, (ast.Break, ast.Continue, Exit)):
            self.jump(s, state)
            return None
        else:
            self.read(s, state)
        return state

    def loop(self, s, state):
        head = state
        if isinstance(s, ast.For):
            self.read(s.iter, state)
        while True:
            self.jumps.append({"label": "loop", "out": None, "again": None})
            inner = dict(head)
            if isinstance(s, ast.While):
                self.read(s.test, inner)
            else:
                self.write(s.target, inner)
            end = self.block(s.body, inner)
            jumps = self.jumps.pop()
            new = _merge(_merge(head, end), jumps["again"])
            if new == head:
                return _merge(head, jumps["out"])
            head = new

    def jump(self, s, state):
        if isinstance(s, Exit) and s.label == "kernel":
            return
        label = s.label if isinstance(s, Exit) else "loop"
        target = next(j for j in reversed(self.jumps) if j["label"] == label)
        key = "again" if isinstance(s, ast.Continue) else "out"
        target[key] = _merge(target[key], state)


def _merge(a, b):
    if a is None or b is None:
        return dict(b) if a is None and b is not None else a
    return {name: a.get(name, frozenset()) | b.get(name, frozenset()) for name in {*a, *b}}


def split(body, params, taken):
    """Rename, in place, the variables of a tree's body that are several at once. `taken`: names in use."""
    webs = _Webs(params)
    webs.block(body, dict(webs.start))
    names, taken = {}, set(taken)
    for node, definitions in list(webs.uses.values()):
        if not definitions:
            continue
        root = webs.find(next(iter(definitions)))
        names.setdefault(node.id, {}).setdefault(root, []).append(node)
    for name, groups in names.items():
        parameter = webs.find((name, "parameter")) if name in params else None
        ordered = sorted(groups, key=lambda root: (root != parameter, min(n.lineno for n in groups[root])))
        for position, root in enumerate(ordered[1:], start=2):
            new = f"{name}_{position}"
            while new in taken:
                new += "_"
            taken.add(new)
            for node in groups[root]:
                node.shown = shown(node)
                node.id = new
