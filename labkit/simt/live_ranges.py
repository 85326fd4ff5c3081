"""Split a variable into its independent uses, so that each can have its own type and storage.

    x = a[t] % 64           # one web: an int, an index
    y = k[x]
    cuda.syncthreads()
    x = f[t] * float32(.5)  # another: a float. It becomes x_2

Two assignments belong together if some read can see both. Numba does the same within one function (SSA); here it is
done before a kernel is cut into regions. Works on the tree of a kernel, in place.
"""

import ast

from labkit.simt.ir import Exit, Inline, Sync, assign, at_line, copied, load, shown


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
                self._record(name, state[name.id])

    def _record(self, node, definitions):
        known = self.uses.get(id(node), (node, frozenset()))[1] | definitions
        self.uses[id(node)] = (node, known)
        self.union(list(known))

    def write(self, target, state):
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                definition = (name.id, id(name))
                self._record(name, frozenset({definition}))
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
                previous = state.get(s.target.id, frozenset())
                self.write(s.target, state)
                self._record(s.target, previous)
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


def _webs_of(body, params):
    webs = _Webs(params)
    webs.block(body, dict(webs.start))
    return webs


def split(body, params):
    """Rename, in place, the variables of a tree's body that are several at once."""
    webs = _webs_of(body, params)
    names, used = {}, _names(body)
    for node, definitions in list(webs.uses.values()):
        if not definitions:
            continue
        root = webs.find(next(iter(definitions)))
        names.setdefault(node.id, {}).setdefault(root, []).append(node)
    for name, groups in names.items():
        parameter = webs.find((name, "parameter")) if name in params else None
        ordered = sorted(groups, key=lambda root: (root != parameter, min(n.lineno for n in groups[root])))
        for position, root in enumerate(ordered[1:], start=2):
            _rename(groups[root], _unused(f"{name}_{position}", used))


def split_before_joins(body, params, mixed):
    """A copy of the body, in which an assignment to one of the variables `mixed` has a variable of its own up to where
    the paths of several assignments join.

        x = a[t]            # int64; it becomes x_alone = a[t]; x = x_alone
        cuda.syncthreads()
        y = x // 2          # of int64: y = x_alone // 2
        while x > 1:        # float64: here both assignments are read
            x = x * 0.5
    """
    body = [_Plain(mixed).visit(s) for s in copied(body)]
    split(body, params)
    alone, joined, stores = {}, set(), {}
    for node, definitions in _webs_of(body, params).uses.values():
        if isinstance(node.ctx, ast.Store):
            stores[node.id, id(node)] = node
        elif len(definitions) > 1:
            joined |= definitions
        elif shown(node) in mixed or node.id in mixed:
            alone.setdefault(*definitions, []).append(node)
    used, copies = _names(body), {}  # id of the node that is assigned, or a parameter -> (joined variable, its own)
    for definition in joined.intersection(alone):
        name, node_id = definition
        target = stores.get(definition)
        own = _unused(f"{name}_alone", used)
        copies[node_id if target else name] = (name, own)
        _rename(alone[definition] + ([target] if target else []), own)
    prologue = [assign(own, load(name), body[0]) for node_id, (name, own) in copies.items() if node_id == name]
    return prologue + [new for s in body for new in _Copies(copies).statements(s)]


class _Plain(ast.NodeTransformer):
    """`x += y` as `x = x + y`: the variable that is read may be another one than that which is written."""

    def __init__(self, names):
        self.names = names

    def visit_AugAssign(self, node):
        if not isinstance(node.target, ast.Name) or node.target.id not in self.names:
            return node
        read = copied(node.target)
        read.ctx = ast.Load()
        return at_line(ast.Assign([node.target], ast.BinOp(read, node.op, node.value)), node)


class _Copies(ast.NodeTransformer):
    """Copies each separate variable to the joined variable right after it is assigned."""

    def __init__(self, copies):
        self.copies = copies

    def statements(self, s):
        new = self.visit(s)
        return new if isinstance(new, list) else [new]

    def _copies_after(self, node, targets):
        pairs = [self.copies[id(name)] for target in targets for name in ast.walk(target) if id(name) in self.copies]
        return [assign(joined, load(own), node) for joined, own in pairs]

    def visit_Assign(self, node):
        return [node, *self._copies_after(node, node.targets)]

    def visit_Sync(self, node):
        return [node, *self._copies_after(node, [node.target] if node.target is not None else [])]

    def visit_For(self, node):
        self.generic_visit(node)
        node.body = [*self._copies_after(node, [node.target]), *node.body]
        return node


def _names(body):
    return {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}


def _unused(name, used):
    while name in used:
        name += "_"
    used.add(name)
    return name


def _rename(nodes, name):
    for node in nodes:
        node.shown = shown(node)
        node.id = name
