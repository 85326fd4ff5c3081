"""Which loops of a kernel may wait for another thread: those that read one place again and again until it changes.

On a GPU every thread goes on while others spin. Compiled code runs one thread after the other, so a thread that waits
for a later one of its block would spin for ever: it counts its passes instead, and the launch is interpreted from the
beginning when there were too many. An interpreted thread lets the others go on after each pass.
"""

import ast

from labkit.simt.ir import AtomicCall, Exit, Sync

_LEAVES = (ast.Break, ast.Return, Exit)


def is_spin(loop):
    """True for a while loop that ends when a place in memory changes, and looks at the same place in each pass.

    Takes a loop of the tree, or of a device function's source. A place that moves with each pass, as in a search, does
    not count; one that some passes move, as in a look-back, does. A barrier of the block in the loop excludes it.
    """
    if not isinstance(loop, ast.While):
        return False
    nodes = list(ast.walk(loop))
    if any(isinstance(node, Sync) and node.kind != "warp" for node in nodes):
        return False
    sources = _sources(nodes)
    tests = [loop.test, *(n.test for n in nodes if isinstance(n, ast.If) and _leaves(n))]
    seen = _names_behind(tests, sources)
    deciding = [*tests, *(value for name in seen for value in sources.get(name, ()))]
    moving = _written_in_each_pass(loop)
    for node in (n for value in deciding for n in ast.walk(value)):
        index = _read_index(node)
        if index is not None:
            behind = _names_behind([index], sources)
            if not any(name in moving and name in _names_behind(sources[name], sources) for name in behind):
                return True
    return False


def is_counted(loop):
    """True if such a loop also ends by itself, after some passes: `while flag[0] == 0 and tries < 100`."""
    sources, moving = _sources(list(ast.walk(loop))), _written_in_each_pass(loop)
    tests = [loop.test, *(n.test for n in ast.walk(loop) if isinstance(n, ast.If) and _leaves(n))]
    return any(name in moving and name in _names_behind(sources[name], sources)
               for name in _names_behind(tests, sources))  # fmt: skip


def spins(statements):
    """True if a loop among these statements, or below them, is such a loop."""
    return any(is_spin(node) for s in statements for node in ast.walk(s))


def _read_index(node):
    """The index of a node that reads memory, else None."""
    if isinstance(node, AtomicCall):
        return node.args[1]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # of a source, before names are resolved
        is_atomic = isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "atomic"
        return node.args[1] if is_atomic and len(node.args) > 1 else None
    is_load = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    return node.slice if is_load and not isinstance(node.value, ast.Attribute) else None


def _leaves(branch):
    return any(isinstance(node, _LEAVES) for node in ast.walk(branch))


def _sources(nodes):
    """{name: the expressions that are assigned to it}; an update reads the name itself."""
    found = {}
    for node in nodes:
        for target, values in _assignments(node):
            for name in (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)):
                found.setdefault(name.id, []).extend(values)
    return found


def _assignments(node):
    if isinstance(node, ast.Assign):
        return [(target, [node.value]) for target in node.targets]
    if isinstance(node, ast.AugAssign):
        itself = [ast.Name(node.target.id, ast.Load())] if isinstance(node.target, ast.Name) else []
        return [(node.target, [node.value, *itself])]
    if isinstance(node, ast.For):
        return [(node.target, [node.iter])]
    if isinstance(node, Sync) and node.target is not None:
        return [(node.target, node.args)]
    return []


def _written_in_each_pass(loop):
    return set(_sources(loop.body))


def _names_behind(values, sources):
    """The names that these expressions read, and those that they are made from within the loop."""
    found, todo = set(), list(values)
    while todo:
        names = {n.id for n in ast.walk(todo.pop()) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - found
        found |= names
        todo += [value for name in names for value in sources.get(name, ())]
    return found
