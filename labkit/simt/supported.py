"""A page on what the CPU device supports, generated from the tables that the device itself uses.

    python -m labkit.simt.supported
"""

import builtins
import sys
import textwrap

from numba.core import types

from labkit.simt import api, libraries, resolve, stubs
from labkit.simt.errors import UnsupportedError
from labkit.simt.ir import BUILTINS
from labkit.simt.jit import JIT_OPTIONS
from labkit.simt.rewrite import MAX_DEPTH
from labkit.simt.settings import LIMITS

WIDTH = 116


def page() -> str:
    """Return the page, as Markdown."""
    host = {name: getattr(api, name) for name in api.__all__}
    device = (stubs.Function, stubs.Module, stubs.Dim3, stubs.Value)
    scalars = [name for name, value in host.items() if isinstance(value, types.Type)]
    calls = [name for name, value in host.items()
             if not isinstance(value, (*device, types.Type)) and name not in _of_modules()]  # fmt: skip
    vectors = sorted(name for name in libraries.VECTOR_TYPES if "x" in name)
    others = sorted(name for name in libraries.VECTOR_TYPES if "x" not in name)
    limits = LIMITS
    parts = [
        "# What the CPU device supports",
        "Made by `labkit build --readme` from `labkit/simt`. Anything not listed here is refused with an error that "
        "names the kernel and the line: `K, line N: cuda.foo is not supported by the CPU device`.",
        "## In kernels and device functions",
        *_listed("Special registers", [f"{name}.{axis}" for name in _named(stubs.Dim3) for axis in "xyz"]
                 + _named(stubs.Value)),
        *_listed("Functions of `cuda`", _named(stubs.Function)),
        *(line for name in _named(stubs.Module) for line in _listed(f"`cuda.{name}`", _members(getattr(stubs, name)))),
        *_listed("`cuda.libdevice`", _members(libraries.libdevice)),
        *_listed("`cuda.fp16`", _members(libraries.fp16)),
        *_listed("Vector types, with the components `.x .y .z .w`", vectors),
        *_listed("The same types by their names in C", others),
        *_listed("`math`", resolve.MATH),
        *_listed("`cmath`", resolve.CMATH),
        *_listed("NumPy's functions, applied to scalars", resolve.UFUNCS),
        "numba-cuda 0.30 declares types for others, including np.sqrt and np.exp, but has no code for them: a "
        "kernel that uses one fails to compile on a GPU, so it is refused here too.",
        *_listed("Methods", resolve.METHODS),
        *_listed("Python's functions", [name for name in BUILTINS if hasattr(builtins, name)]),
        "**Intrinsics**: those of `labkit.ptx`; its documentation lists them.",
        "**Arguments of device functions** can also be functions, types, and the shapes of their shared and local "
        "arrays.",
        "**Grid barriers** that some threads never reach pass where a GPU lets them pass, with a BarrierWarning "
        "that names the line; under `labkit.simt.strict_barriers()`, and in `check`, they are errors.",
        "**Block barriers** do not wait for threads that have already returned when `labkit.simt` replaces "
        "`numba.cuda`. GPUs since Volta do not wait for them either. A BarrierWarning names the line. In the course, "
        "in an observed launch and under `labkit.simt.strict_barriers()`, such a barrier is an error.",
        "**Threads that wait for one another in a loop**, for a flag or a lock in memory, make progress in any "
        "order, whether they are blocks, warps of a block or lanes of a warp. If one waits for a thread that "
        "compiled code has yet to run, the launch starts again in the interpreter, at about a microsecond per "
        "operation and thread. A block that waits for an earlier one, as in a look-back, runs compiled. If no "
        "thread is left that could end the wait, a DeadlockError names the lines. A for loop, and any loop that "
        "contains a block barrier, must read the flag with an atomic, such as `cuda.atomic.add(flag, 0, 0)`.",
        "## Refused in kernels",
        *_listed("Expressions", resolve.REFUSED_EXPRESSIONS.values()),
        *_listed("Statements", resolve.REFUSED_STATEMENTS.values()),
        "**Also**: recursion in device functions that contain a barrier, a collective or a shared array; arrays that a "
        "kernel allocates, copies or computes with as a whole, which a GPU runs only with `NUMBA_CUDA_ENABLE_NRT`; "
        "intrinsics with inline PTX; functions created by `exec` before `labkit.simt` was imported, whose source "
        "cannot be read; shared and local arrays of vectors; and, although a GPU accepts them, `isinstance()`, `match` "
        "and `.flat`.",
        "## What differs from a GPU",
        "**Faults.** Every access is checked, and a failed assert or an exception in a kernel stops the launch, with "
        "or without `debug=True`; on a GPU, only with it. A division by zero is a fault with `debug=True` and without "
        "`fastmath=True`, as on a GPU.",
        f"**Recursion** ends with a RecursionError at {MAX_DEPTH} calls. A GPU's stack may hold fewer, and "
        "does not report an overflow.",
        "**Uninitialised memory** is filled with 0xFF, which reads as NaN or -1. On a GPU it holds what was there "
        "before.",
        "**Atomics**: in a kernel that uses them, blocks run one after another, so that float sums are reproducible.",
        "**Signatures**: an array whose dtype differs from the one in the kernel's signature is refused. A GPU "
        "reinterprets its bytes as that dtype.",
        "**Overloads** are chosen by the types that a kernel's syntax tree shows; a call with arguments whose types "
        "only Numba knows is refused. Their signatures are not compared with the function's.",
        "**`nanosleep` and the fences** take no time, and loads and stores take effect at once and in order.",
        "## On the host",
        *_listed("Names of `cuda`", calls),
        *_listed("Types", scalars),
        *_listed("Options of `cuda.jit`", JIT_OPTIONS),
        *_listed("Refused, because they need a GPU", api.NEEDS_GPU),
        "## Limits",
        f"A block can have at most {limits.max_threads_per_block:,} threads, with at most {limits.max_block_dim} "
        f"along its axes. A grid can have at most {limits.max_grid_dim} blocks along its axes. A block can use "
        f"{limits.shared_per_block:,} bytes of shared memory, or up to {limits.shared_per_block_optin:,} if a kernel "
        "was allowed more.",
    ]
    filled = (part if "\n" in part else textwrap.fill(part, WIDTH, break_on_hyphens=False) for part in parts)
    return "\n\n".join(filled) + "\n"


def _of_modules():
    return {"api", "errors", "random", "types", "stubs"}


def _named(kind) -> list[str]:
    return [name for name, value in vars(stubs).items() if type(value) is kind and not name.startswith("_")]


def _members(module) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]


def _listed(title: str, names) -> list[str]:
    """A paragraph: the title, and the names in order, in lines of WIDTH."""
    names = sorted(set(names))
    if not names:
        raise UnsupportedError(f"{title}: nothing is listed")
    lines, line = [f"**{title}**", ""], ""
    for k, name in enumerate(names):
        shown = f"{name if ' ' in name else f'`{name}`'}{',' if k + 1 < len(names) else ''}"
        if line and len(line) + 1 + len(shown) > WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {shown}".strip()
    return ["\n".join([*lines, line])]


if __name__ == "__main__":
    sys.stdout.write(page())
