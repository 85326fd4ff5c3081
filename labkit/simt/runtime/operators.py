"""The operators that stay in 32 bits, for labkit.simt.unsigned, and for which operands they do."""

import operator

OPERATORS = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "FloorDiv": operator.floordiv,
    "Mod": operator.mod, "LShift": operator.lshift, "RShift": operator.rshift, "BitAnd": operator.and_,
    "BitOr": operator.or_, "BitXor": operator.xor,
}  # fmt: skip


def narrows(left, right, with_constant):
    """Whether an operator has the rule: left and right say which operands are uint32."""
    return left or right if with_constant else left and right
