"""Which loops of a kernel may wait for another thread: those that read one location repeatedly until it changes.

On a GPU every thread goes on while others spin. Compiled code runs one thread after the other, so a thread that waits
for a later one of its block would spin forever: it counts its passes instead, and the launch is interpreted from the
beginning when there were too many. An interpreted thread lets the others go on after each pass.
"""

import ast

from labkit.simt.ir import AtomicCall, Exit, Inline, IntrinsicCall, Sync

_LEAVES = (ast.Break, ast.Return, Exit)
_LOOPS = (ast.For, ast.While)
_LOOKS = {"add", "sub", "or_", "xor", "max"}  # atomics that read a location, with the value 0
ACQUIRE = "load_acquire"  # of labkit.ptx: a read that is meant for such loops
RELAXED = "load_relaxed2"  # another, of several words in one pass
_TRIES = {"cas", "exch"}  # atomics that try to take it


def is_spin(loop):
    """True for a loop that ends when a memory location changes, and reads the same location in each pass.

    Takes a loop of the tree, or of a device function's source. A location that moves with each pass, as in a search,
    does not count; one that some passes move, as in a look-back, does. A for loop must read with an atomic, or every
    loop over a row would count; so must a loop with a barrier of its block, but there any thread may read. A while loop
    with ptx.load_relaxed2 always counts: it may wait for several words at once.
    """
    if not isinstance(loop, _LOOPS):
        return False
    nodes = list(ast.walk(loop))
    if isinstance(loop, ast.While) and _reads_words(loop):
        return True
    barriers = {node.kind for node in nodes if isinstance(node, Sync)} - {"warp"}
    if barriers:
        return barriers == {"block"} and _tests(loop) != [] and _looks(loop)
    reads = [node for value in _deciding(loop) for node in ast.walk(value)]
    return _stays(loop, filter(_is_look, reads) if isinstance(loop, ast.For) else reads)


def is_counted(loop):
    """True if such a loop also ends by itself, after some passes: `while flag[0] == 0 and tries < 100`."""
    if isinstance(loop, ast.For):
        return True
    moving = _moving(loop)
    return any(name in moving for name in _names_behind(_tests(loop), _sources(list(ast.walk(loop)))))


def gives_up(loop):
    """True if what such a loop waits for may well come, on a GPU, after it has ended by itself in compiled code."""
    return is_counted(loop) and _looks(loop)


def spins(statements):
    """True if a loop among these statements, or below them, is such a loop."""
    return any(is_spin(node) for s in statements for node in ast.walk(s))


def _looks(loop):
    """True if an atomic reads one location in each pass. Those of nested loops do not count."""
    own, todo = [], list(ast.iter_child_nodes(loop))
    while todo:
        own.append(todo.pop())
        todo += [] if isinstance(own[-1], _LOOPS) else ast.iter_child_nodes(own[-1])
    return _stays(loop, filter(_is_look, own))


def _stays(loop, reads):
    """True if one of these nodes reads memory at a location that not every pass moves."""
    sources, moving = _sources(list(ast.walk(loop))), _moving(loop)
    indices = [index for index in map(_read_index, reads) if index is not None]
    return any(moving.isdisjoint(_names_behind([index], sources)) for index in indices)


def _read_index(node):
    """The index of a node that reads memory, else None."""
    atomic = _atomic(node)
    if atomic is not None:
        return atomic[1][1]
    is_load = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    return node.slice if is_load and not isinstance(node.value, ast.Attribute) else None


def _atomic(node):
    """(operation, arguments) of an atomic, and of ptx.load_acquire, else None."""
    if isinstance(node, AtomicCall):
        return node.op, node.args
    if isinstance(node, IntrinsicCall) and node.intrinsic == ACQUIRE:
        return ACQUIRE, node.args
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    if node.func.attr == ACQUIRE:
        return ACQUIRE, node.args
    owner = node.func.value  # of a source, before names are resolved
    is_atomic = isinstance(owner, ast.Attribute) and owner.attr == "atomic" and len(node.args) > 1
    return (node.func.attr, node.args) if is_atomic else None


def _reads_words(loop):
    """True if a pass of a while loop, but not of another one in it, reads words."""
    todo = list(ast.iter_child_nodes(loop))
    while todo:
        node = todo.pop()
        if _is_relaxed(node):
            return True
        todo += [] if isinstance(node, ast.While) else ast.iter_child_nodes(node)
    return False


def _is_relaxed(node):
    return (isinstance(node, IntrinsicCall) and node.intrinsic == RELAXED) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == RELAXED)


def _is_look(node):
    """True for an atomic that may leave its location unchanged. One that adds to it changes it, and does not wait."""
    op, arguments = _atomic(node) or ("", ())
    value = arguments[2] if len(arguments) > 2 else None
    if isinstance(value, ast.Call) and len(value.args) == 1:  # int32(0)
        value = value.args[0]
    return op in _TRIES or op == ACQUIRE or (op in _LOOKS and isinstance(value, ast.Constant) and value.value == 0)


def _tests(loop):
    """What decides whether a loop goes on."""
    tests = [loop.test] if isinstance(loop, ast.While) else []
    inlined = {node.label for node in ast.walk(loop) if isinstance(node, Inline)}

    def leaves(node, kinds):
        if isinstance(node, kinds):
            return getattr(node, "label", None) not in inlined
        kinds = (ast.Return, Exit) if isinstance(node, _LOOPS) else kinds
        exits = [leaves(child, kinds) for child in ast.iter_child_nodes(node)]  # all of them, for their tests
        if any(exits) and isinstance(node, ast.If):
            tests.append(node.test)
        return any(exits)

    for statement in loop.body:
        leaves(statement, _LEAVES)
    return tests


def _deciding(loop):
    """The expressions behind what decides whether a loop goes on."""
    sources, tests = _sources(list(ast.walk(loop))), _tests(loop)
    return [*tests, *(value for name in _names_behind(tests, sources) for value in sources.get(name, ()))]


def _sources(nodes):
    """{name: the expressions that are assigned to it}; an update reads the name itself."""
    sources = {}
    for node in nodes:
        for target, values in _assignments(node):
            for name in (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)):
                sources.setdefault(name.id, []).extend(values)
    return sources


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


def _moving(loop):
    """Return the names that each iteration advances: a for loop's counters, and names computed from themselves."""
    sources = _sources(list(ast.walk(loop)))
    moved = {name for name in _sources(_in_each_pass(loop.body)) if name in _names_behind(sources[name], sources)}
    counters = ast.walk(loop.target) if isinstance(loop, ast.For) else ()
    return moved | {node.id for node in counters if isinstance(node, ast.Name)}


def _in_each_pass(statements):
    """The statements that each pass executes which does not leave the loop."""
    executed = []
    for s in statements:
        executed.append(s)
        if isinstance(s, ast.If):
            branches = [branch for branch in (s.body, s.orelse) if not (branch and isinstance(branch[-1], _LEAVES))]
            executed += _in_each_pass(branches[0]) if len(branches) == 1 else []
    return executed


def _names_behind(values, sources):
    """The names that these expressions read, and those that they are made from within the loop."""
    result, todo = set(), list(values)
    while todo:
        names = {n.id for n in ast.walk(todo.pop()) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - result
        result |= names
        todo += [value for name in names for value in sources.get(name, ())]
    return result
