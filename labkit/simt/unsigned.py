"""32-bit unsigned index arithmetic, as CUDA C++'s `unsigned` has it, in the packages that ask for it.

Numba types uint32 + uint32 as uint64, and uint32 + 1 as int64. In a function that is defined in a package of `HOMES`
the operators below keep uint32 with uint32, and uint32 with a constant from 0 to 2**32 - 1, a uint32, modulo 2**32.
All other pairs have Numba's types, and so has every function that is defined elsewhere. A constant is a number in the
source, a global or a variable of the enclosing function, or a local that is set once, to one of those; arithmetic of
constants is a constant.

Where a constant from 0 to 2**32 - 1 is one of several values, it is a uint32: `stage = 0` of a variable that is set
again, `16 if inside else 0`, `min(width, 32)`, `return 0`, and an argument for a device function with the rule, or an
item of a tuple that is such an argument.

Both devices go by this table: the CPU device in resolve.py, a GPU in a pass over Numba's IR.
"""

from labkit.simt.runtime.operators import OPERATORS

LARGEST = 2**32 - 1
CHOOSING = (min, max)
HOMES = set()
is_on = True


def switch_off():
    """Give every function Numba's own types, in the packages of HOMES as well."""
    global is_on
    is_on = False


def applies_to(package):
    """Let the functions of this package, and of those inside it, have the rule."""
    HOMES.add(package)


def follows(function):
    """True for a Python function that is defined in a package with the rule."""
    module = getattr(function, "__module__", None) or ""
    return is_on and any(module == home or module.startswith(f"{home}.") for home in HOMES)


def runtime_name(node):
    """The function that an ir.BinOp of either run calls, by the name that it has there."""
    return f"_narrow_{type(node.op).__name__}{'_constant' if node.with_constant else ''}"


def is_constant(value):
    """True for a number that can be combined with a uint32 without widening the result."""
    return type(value) is int and 0 <= value <= LARGEST


def folded(name, left, right):
    """The value of an operator of two integer constants; None where it has none, or is no int64."""
    if type(left) is not int or type(right) is not int or name in ("LShift", "RShift") and not 0 <= right < 64:
        return None
    if name in ("FloorDiv", "Mod") and right == 0:
        return None
    value = OPERATORS[name](left, right)
    return value if -(2**63) <= value < 2**63 else None
