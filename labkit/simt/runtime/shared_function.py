"""Numba functions that kernels share: compiled once, cached on disk, called by the kernels rather than inlined.

And functions whose code depends on the types of their arguments.
"""

import functools
import hashlib
from pathlib import Path

from numba import njit, types
from numba.extending import overload

from labkit.simt.cache import keep_beside


def shared_function(function):
    """A Numba function that kernels share: compiled once, and kept on disk beside its file."""
    options = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    # Their callees are in several files of this folder.
    return without_literals(keep_beside(njit(**options)(function), _own_files()))


@functools.cache
def _own_files():
    """A digest of the files that shared functions are made from: those of this folder."""
    sources = [file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"".join(sources)).hexdigest()


def called_function(function):
    """A shared function that is never copied into a kernel: its machine code is called where it is."""
    dispatcher = shared_function(function)
    template = dispatcher.get_call_template

    def get_call_template(args, kws):
        found = template(args, kws)
        result = dispatcher.overloads[tuple(found[2])]
        symbol = result.fndesc.llvm_func_name
        result.library.shared_call = function.__module__, function.__name__, tuple(found[2]), symbol
        return found

    dispatcher.get_call_template = get_call_template
    return dispatcher


def overloaded(typed):
    """A function for compiled code alone: `typed` takes the types of its arguments and returns the code for them."""
    def function(*args):
        raise NotImplementedError(f"{typed.__name__} has a meaning in compiled code only")

    overload(function, strict=False)(typed)
    return function


def without_literals(dispatcher):
    """Call the function with its argument types, without literals: no specialisation for each constant."""
    template = dispatcher.get_call_template

    def get_call_template(args, kws):
        return template(tuple(map(types.unliteral, args)), {name: types.unliteral(ty) for name, ty in kws.items()})

    dispatcher.get_call_template = get_call_template
    return dispatcher
