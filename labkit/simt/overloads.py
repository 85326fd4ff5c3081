"""Functions that kernels call by their overloads, as `numba.extending.overload` registers them, and intrinsics.

An overload is chosen by the types of a call's arguments, which the tree of a kernel does not have: rewrite.py follows
the types through the tree, chooses, and rewrites the kernel again with what it chose.
"""

import functools
import inspect
import sys
from dataclasses import dataclass

import llvmlite.ir
import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError
from numba.core.typing.templates import builtin_registry
from numba.np import numpy_support

from labkit.simt.errors import UnsupportedError
from labkit.simt.typed_arrays import typed_scalar
from labkit.simt.typed_numbers import as_numpy
from labkit.simt.typed_tree import with_types

_OF_NUMBA = ("numba.core.", "numba.cpython.", "numba.np.", "numba.typed.", "numba.misc.", "numba.experimental.",
             "numba.cuda.", "labkit.simt.runtime.")  # fmt: skip
_TARGETS = ("cuda", "gpu", "generic")  # the most specific first


def _templates_of(function):
    """Numba's types of a function's calls, those that it has and those that programs have registered."""
    numba_cuda = sys.modules.get("numba.cuda.typing.templates")
    registries = {id(each): each for each in (builtin_registry, getattr(numba_cuda, "builtin_registry", None)) if each}
    return [template for each in registries.values() for key, ty in each.globals if key is function
            for template in getattr(ty, "templates", ())]  # fmt: skip


def is_typed(function):
    """Whether a program has registered types for calls of this, with `numba.extending.type_callable`, say."""
    of = getattr(function, "__module__", None) or "builtins"
    if of.partition(".")[0] in ("numpy", "numba", "math", "cmath", "builtins", "operator"):
        return False
    return any(not hasattr(template, "_overload_func") for template in _templates_of(function))


@dataclass(frozen=True)
class Member:
    """A method or an attribute that a program has added to a type."""

    name: str
    is_method: bool

    @property
    def __name__(self):
        return self.name


@functools.lru_cache(1)
def _members(_):
    """{Member: its templates}, for so many templates of attributes as are registered; without those of Numba itself."""
    found = {}
    for template in builtin_registry.attributes:
        of = getattr(template, "_overload_func", None)
        if of is not None and not of.__module__.startswith(_OF_NUMBA):
            found.setdefault(Member(template._attr, template.is_method), []).append(template)
    return found


def overloads_of(function):
    """The overloads of a function, or of a Member, for numba.cuda's target and for all targets, in the order of their
    choice."""
    if isinstance(function, Member):
        templates = _members(len(builtin_registry.attributes)).get(function, [])
    else:
        templates = [each for each in _templates_of(function) if hasattr(each, "_overload_func")
                     and not _registrar(each, function).startswith(_OF_NUMBA)]  # fmt: skip
    ranks = {id(each): _TARGETS.index(target) for each in templates
             if (target := each.metadata.get("target", "generic")) in _TARGETS}  # fmt: skip
    return sorted((each for each in templates if id(each) in ranks), key=lambda each: ranks[id(each)])


def _registrar(template, function):
    """The module that registered an overload. register_jitable makes its overload in a module of Numba."""
    module = template._overload_func.__module__
    return module if module != "numba.core.extending" else getattr(function, "__module__", None) or module


def is_intrinsic(function):
    """Whether this is what `numba.extending.intrinsic` or numba.cuda's makes."""
    return callable(function) and hasattr(function, "_defn") and hasattr(function, "_prefer_literal")


def implementation(function, argument_types, keywords):
    """The implementation of a function for these types; None if no overload has one. keywords: names of the last."""
    plain = tuple(map(types.unliteral, argument_types))
    for template in overloads_of(function):
        if isinstance(function, Member) and not _is_of(argument_types[0], template.key):
            continue
        for given in (argument_types, plain) if template.prefer_literal else (plain, argument_types):
            split = len(given) - len(keywords)
            try:
                chosen = template._overload_func(*given[:split], **dict(zip(keywords, given[split:], strict=True)))
            except (NumbaError, TypeError):  # it is for other arguments
                continue
            chosen = chosen[1] if isinstance(chosen, tuple) else chosen
            if chosen is not None:
                return chosen
    return None


def _is_of(ty, key):
    return isinstance(ty, key) if isinstance(key, type) else ty == key


def choose(program, argument_types, choices):
    """Choose the overloads of a program's calls for these types of its arguments. Adds to choices: a call's site -> its
    implementation."""
    constants = {name: numba.typeof(np.asarray(getattr(array, "_array", array)))
                 for name, array in program.constants.items()}  # fmt: skip
    found = {}

    def chosen(call, arg_types):
        found.setdefault(call.site, set()).add(arg_types)

    with_types(program, {**constants, **dict(zip(program.params, argument_types, strict=True))}, chosen)
    for call in program.overloads:
        name, sets = call.function.__name__, found.get(call.site, set())
        made = []
        for arg_types in sets:
            key = call.function, arg_types, tuple(call.keywords)
            if key not in choices:
                choices[key] = implementation(*key)
            if choices[key] is None:
                shown = ", ".join(map(str, arg_types))
                raise _refused(program, call, f"{name} has no overload for ({shown}) on the CPU device")
            made.append(choices[key])
        if len({each.__code__ for each in made}) > 1:
            raise _refused(program, call, f"{name} is called here with types that have different overloads")
        if made:
            choices[call.site] = made[0]
    if not any(call.site in choices for call in program.overloads):
        call = program.overloads[0]
        if isinstance(call.function, Member):  # left to Numba, which has those for all targets
            choices[call.site] = None
            return
        raise _refused(program, call, f"the types of the arguments of {call.function.__name__}, which choose its "
                       "overload, are not known on the CPU device")  # fmt: skip


def _refused(program, call, sentence):
    return UnsupportedError.at(program.name, call.filename, call.lineno, sentence)


# ---------------------------------------------------------------- intrinsics


class _NoAssembly:
    def __init__(self, *_, **__):
        raise UnsupportedError("an intrinsic with inline PTX needs a GPU: it is not supported by the CPU device")


@functools.cache
def on_cpu(intrinsic):
    """The intrinsic for Numba's CPU target. LLVM would end the process for PTX: it is refused before."""

    def definition(typing_context, *args):
        made = intrinsic._defn(typing_context, *args)
        if made is None:
            return None
        signature, generate = made

        def codegen(*inner):
            kept, llvmlite.ir.InlineAsm = llvmlite.ir.InlineAsm, _NoAssembly
            try:
                return generate(*inner)
            finally:
                llvmlite.ir.InlineAsm = kept

        return signature, codegen

    names = list(inspect.signature(intrinsic._defn).parameters)
    source = f"lambda {', '.join(names)}: definition({', '.join(names)})"
    made = numba.extending.intrinsic(eval(source, {"definition": definition}))
    made._name = intrinsic.__name__
    return made


class InterpretedIntrinsic:
    """An intrinsic as an interpreted kernel calls it, with numbers alone: compiled, for their types."""

    def __init__(self, intrinsic):
        self.intrinsic, self.compiled = intrinsic, None

    def __call__(self, *args):
        if self.compiled is None:
            names = ", ".join(f"a{k}" for k in range(len(args)))
            self.compiled = numba.njit(eval(f"lambda {names}: intrinsic({names})", {"intrinsic": self.intrinsic}))
        result = self.compiled(*map(as_numpy, args))
        returned = self.compiled.overloads[tuple(numba.typeof(as_numpy(a)) for a in args)].signature.return_type
        if isinstance(returned, (types.Number, types.Boolean)):
            result = numpy_support.as_dtype(returned).type(result)
        return typed_scalar(result)
