"""The text of functions that a program makes with exec(): kernels that are written by code, from templates.

Numba compiles such functions from their bytecode; the CPU device needs their text, for its rewriting and for the lines
that its reports name. `keep_texts()` makes exec() leave the text of definitions in linecache, under a name that is the
same in every process, so that compiled kernels are found again.
"""

import builtins
import hashlib
import linecache
import sys

_FUTURE = 0x1FE0000  # the flags of `from __future__` that a text inherits from the code around it
_exec = builtins.exec


def keep_texts():
    """Replace the built-in exec by one that keeps the text of definitions."""
    builtins.exec = _exec_with_text


def _exec_with_text(source, globals=None, locals=None, /, **closure):
    """exec(): execute a text or a code object, in the names of its caller unless others are given."""
    caller = sys._getframe(1)
    if globals is None:
        globals, locals = caller.f_globals, caller.f_locals if locals is None else locals
    if isinstance(source, str) and "def " in source:
        filename = f"<exec {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
        linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
        source = compile(source, filename, "exec", flags=caller.f_code.co_flags & _FUTURE, dont_inherit=True)
    return _exec(source, globals, locals, **closure)
