"""What operations on numbers take and give is what numba.cuda says, compiled and observed: one table, asked of both."""

import builtins
import itertools
import math
import operator

import numpy as np
import pytest
from numba import njit
from numba.core import registry, types

from labkit.simt import resolve, typed_arrays, typed_numbers
from labkit.simt.interpreted_values import FUNCTIONS
from labkit.simt.runtime import arithmetic
from labkit.simt.runtime.signatures import signature_of, unified

pytestmark = pytest.mark.cpu_device
NAMES = ("boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
UNARY = [operator.neg, operator.invert, operator.pos, abs, int, float, bool, round,
         *(getattr(math, name) for name in sorted(resolve.MATH) if hasattr(math, name)),
         *(getattr(np, name) for name in sorted(resolve.UFUNCS))]  # fmt: skip
BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
          operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor, operator.lt, operator.eq, min,
          max, divmod, math.atan2, math.copysign, math.fmod, math.hypot, math.ldexp, math.pow, math.remainder, np.hypot,
          np.maximum, np.bitwise_and]  # fmt: skip


@pytest.fixture(scope="module")
def gpu():
    """numba.cuda's own typing, which needs no GPU."""
    descriptor = pytest.importorskip("numba.cuda.descriptor", reason="numba-cuda is not installed")
    context = descriptor.cuda_target.typing_context
    context.refresh()
    from numba.cuda import types as gpu_types

    def result(function, *names):
        given = tuple(getattr(gpu_types, name) for name in names)
        try:
            found = context.resolve_function_type(context.resolve_value_type(function), given, {})
        except Exception:  # a type that it does not take, by whatever error
            return None
        return None if found is None else str(found.return_type)

    result.unified = lambda *names: str(context.unify_types(*(getattr(gpu_types, name) for name in names)))
    return result


def ours(function, *names):
    found = signature_of(function, *(getattr(types, name) for name in names))
    return None if found is None else str(found.return_type)


@pytest.mark.sweep
def test_functions_of_one_number_give_what_they_give_on_a_gpu(gpu):
    wrong = [(f.__name__, name, ours(f, name), gpu(f, name)) for f in UNARY for name in NAMES
             if gpu(f, name) is not None and ours(f, name) != gpu(f, name)]  # fmt: skip
    assert not wrong


@pytest.mark.sweep
def test_functions_of_two_numbers_give_what_they_give_on_a_gpu(gpu):
    pairs = list(itertools.product(NAMES, NAMES))
    wrong = [(f.__name__, pair, ours(f, *pair), gpu(f, *pair)) for f in BINARY for pair in pairs
             if gpu(f, *pair) is not None and ours(f, *pair) != gpu(f, *pair)]  # fmt: skip
    assert not wrong


def test_paths_meet_in_the_type_in_which_they_meet_on_a_gpu(gpu):
    for pair in itertools.product(NAMES, NAMES):
        assert str(unified(*(getattr(types, name) for name in pair))) == gpu.unified(*pair)


EXACT = {"neg": operator.neg, "invert": operator.invert, "pos": operator.pos, "abs": abs, "int": int, "bool": bool}
OURS = {"neg": typed_numbers.negate, "invert": typed_numbers.invert, "pos": typed_numbers.positive,
        **{name: FUNCTIONS[name] for name in ("abs", "int", "bool")}}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_an_observed_number_has_the_type_and_the_value_of_a_compiled_one(name):
    """At the ends of each type, too."""
    function = EXACT[name]
    compiled = njit(eval(f"lambda x: {name}(x)" if name in vars(builtins) else {
        "neg": "lambda x: -x", "invert": "lambda x: ~x", "pos": "lambda x: +x"}[name]))  # fmt: skip
    for given in NAMES:
        ty = getattr(types, given)
        if signature_of(function, ty) is None or (isinstance(ty, types.Float) and name == "int"):
            continue
        dtype = np.dtype("bool" if given == "boolean" else given)
        ends = [np.iinfo(dtype).min, np.iinfo(dtype).max] if dtype.kind in "iu" else []
        for value in [0, 1, *ends]:
            x = dtype.type(value)
            if name in ("neg", "abs") and x == np.iinfo(np.int64).min:
                continue  # undefined in compiled code
            found, expected = OURS[name](typed_arrays.typed_scalar(x)), compiled(x)
            assert found == expected, (given, value)
            assert typed_numbers.numba_type(type(found)) == signature_of(function, ty).return_type, (given, value)


def test_what_compiled_kernels_call_gives_those_types_too():
    context = registry.cpu_target.typing_context
    context.refresh()
    for name in ("fmod", "remainder", "ldexp", "floor", "ceil", "trunc", "modf", "frexp"):
        ours_, count = getattr(arithmetic, name), 2 if name in ("fmod", "remainder", "ldexp") else 1
        for given in (("int8", "int8"), ("int32", "int16"), ("float32", "int8"), ("float32", "int32")):
            given = tuple(getattr(types, n) for n in given[:count])
            found = context.resolve_function_type(context.resolve_value_type(ours_), given, {})
            assert found.return_type == signature_of(getattr(math, name), *given).return_type, (name, given)
