"""Numba's analysis of which variables are live, with an integer for each set of them: one bit for each variable.

Numba keeps a set of names for each block of code and unites each with its neighbours', in time that grows with the
square of a function's length. Unions of integers take a thousandth of that; the result is the same.
"""

import contextlib

from numba.core import analysis


def live_variables(cfg, blocks, used, assigned):
    """{block: the names that are live at its beginning}, as `numba.core.analysis.compute_live_map` has it.

    used, assigned: {block: names}; used names are those that the block reads before it assigns them.
    """
    names = list(dict.fromkeys(name for sets in (used, assigned) for block in sets.values() for name in block))
    bit = {name: 1 << k for k, name in enumerate(names)}
    used_bits, assigned_bits = ({block: _union(bit[name] for name in sets[block]) for block in blocks}
                                for sets in (used, assigned))  # fmt: skip
    order = cfg.topo_order()
    successors = {block: [other for other, _ in cfg.successors(block)] for block in order}
    reaching = {block: used_bits[block] | assigned_bits[block] for block in order}  # on some path to the block's end
    changed = True
    while changed:
        changed = False
        for block in order:
            for other in successors[block]:
                new = reaching[other] | reaching[block]
                changed |= new != reaching[other]
                reaching[other] = new
    live, changed = dict(used_bits), True
    while changed:
        changed = False
        for block in reversed(order):
            new = live[block]
            for other in successors[block]:
                new |= live[other] & reaching[block] & ~assigned_bits[block]
            changed |= new != live[block]
            live[block] = new
    return {block: {names[k] for k in _bit_positions(bits)} for block, bits in live.items()}


def _union(bits):
    union = 0
    for bit in bits:
        union |= bit
    return union


def _bit_positions(bits):
    """The positions of the set bits."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


@contextlib.contextmanager
def replaced(owner, name, value):
    """A name of Numba's has this value within the context."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def quick_liveness():
    """Make Numba use `live_variables` within the context."""
    return replaced(analysis, "compute_live_map", live_variables)
