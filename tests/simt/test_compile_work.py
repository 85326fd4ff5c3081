"""The work of compiling grows with a kernel's length, not with its square: counted, never timed."""

import ast
import contextlib
import re

import numba
import numpy as np
import pytest
from numba.core import analysis, codegen, ssa

from labkit.measure.series.simt import long_kernel
from labkit.simt.codegen import inference, liveness, native
from labkit.simt.codegen.emit import Generator
from labkit.simt.compiled_kernel import CompiledKernel
from labkit.simt.rewrite import rewrite

pytestmark = pytest.mark.cpu_device
FLOATS = numba.typeof(np.zeros(1, np.float32))
TYPES = (FLOATS, FLOATS, FLOATS, numba.int64)


@pytest.mark.parametrize("shape", ["stores", "loops", "branches with barriers", "shuffles"])
def test_the_steps_from_source_to_code_grow_with_the_length(shape, tmp_path, monkeypatch):
    """Counted are the nodes of the tree that are looked at, each time. (sys.setprofile would count all steps; Python
    3.11.7 has hung in it.) Numba's own inference is left out: its types are those of a short kernel of the same shape.
    """
    monkeypatch.setattr("labkit.simt.codegen.emit.variable_types",
                        lambda *_: ({"x": numba.float32, "y": numba.float32}, set()))
    looked_at, fields = [0], ast.iter_fields

    def counted(node):
        looked_at[0] += 1
        return fields(node)

    monkeypatch.setattr(ast, "iter_fields", counted)
    counts = []
    for lines in (15, 60):
        kernel, looked_at[0] = long_kernel(shape, lines, tmp_path), 0
        Generator(rewrite(kernel.py_func), TYPES).generate()
        counts.append(looked_at[0])
    few, many = counts
    assert 1000 < many < 4.6 * few, counts


def llvm_of(shape, lines, folder, monkeypatch):
    """What Numba hands to LLVM for a kernel, as text."""
    modules, add = [], codegen.CPUCodeLibrary.add_ir_module
    monkeypatch.setattr(codegen.CPUCodeLibrary, "add_ir_module",
                        lambda library, module: (modules.append(str(module)), add(library, module)))
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(folder))  # nothing is compiled yet
    CompiledKernel(rewrite(long_kernel(shape, lines, folder).py_func), TYPES, False, True)
    monkeypatch.undo()
    return max(modules, key=len)


@pytest.mark.parametrize("shape", ["loops", "branches with barriers"])
def test_live_variables_are_those_that_numba_finds(shape, tmp_path, monkeypatch):
    """Numba's own analysis takes a time that grows with the square of a kernel's length, so no kernel is left to it."""
    of_numba, ours, left, blocks_of_kernels = analysis.compute_live_map, liveness.live_variables, [], []

    def compared(cfg, blocks, *names):
        blocks_of_kernels.append(len(blocks))
        found = ours(cfg, blocks, *names)
        assert found == of_numba(cfg, blocks, *names)
        return found

    monkeypatch.setattr(liveness, "live_variables", compared)
    monkeypatch.setattr(analysis, "compute_live_map", lambda *a: (left.append(len(a[1])), of_numba(*a))[1])
    llvm_of(shape, 20, tmp_path, monkeypatch)
    assert max(blocks_of_kernels) > 20 > max(left, default=0)


@pytest.mark.sampled(1, sweep=99, quick="loops")
@pytest.mark.parametrize("shape", ["stores", "loops"])
def test_what_llvm_is_given_grows_with_the_length(shape, tmp_path, monkeypatch):
    short, long = (llvm_of(shape, lines, tmp_path, monkeypatch) for lines in (10, 20))
    assert long.count("\n") < 2 * short.count("\n")
    if shape == "stores":  # LLVM's time grows with the square of stack slots, and of arrays in them
        assert long.count(" alloca ") == short.count(" alloca ")
        assert long.count(" = load {") == short.count(" = load {")
    assert long.count("\nstopped:") == short.count("\nstopped:")  # one way out of the loops, for all faults


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("shape", ["loops", "branches with barriers"])
def test_versions_of_variables_are_those_that_numba_makes(shape, tmp_path, monkeypatch):
    """And no statement is visited that does not name the variable."""
    run, rewrites, visited = ssa._run_ssa, [], []

    def dumped(blocks):
        after = run(blocks)
        rewrites.append([re.sub(r"<.*?>", "", str(statement))
                         for label in sorted(after) for statement in after[label].body])
        return after

    def compiled(folder):
        folder.mkdir()
        rewrites.clear()
        visited.clear()
        monkeypatch.setattr(ssa, "_run_ssa", dumped)
        for name in ("on_assign", "on_other"):
            visit = getattr(ssa._FixSSAVars, name)
            monkeypatch.setattr(ssa._FixSSAVars, name, lambda *a, visit=visit: (visited.append(1), visit(*a))[1])
        llvm_of(shape, 20, folder, monkeypatch)
        return max(rewrites, key=len), len(visited)

    ours, few = compiled(tmp_path / "ours")
    monkeypatch.setattr(inference, "quick_ssa", contextlib.nullcontext)
    of_numba, many = compiled(tmp_path / "of_numba")
    assert ours == of_numba and any("phi" in line for line in ours) and 8 * few < many


@pytest.mark.parametrize(("shape", "pipelines"), [("stores", 1), ("branches with barriers", 2)])
def test_a_kernel_is_compiled_once(shape, pipelines, tmp_path, monkeypatch):
    """One run of Numba's compiler, and one for types alone where values are kept across a barrier; none for a second
    launch."""
    runs, compile_extra = [], native.compiler.compile_extra
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    kernel = long_kernel(shape, 4, tmp_path)
    arrays = [np.ones(256, np.float32) for _ in range(3)]
    long_kernel(shape, 5, tmp_path)[2, 64](*arrays, 256)  # what the runtime shares
    monkeypatch.setattr(native.compiler, "compile_extra",
                        lambda *given, **more: (runs.append(1), compile_extra(*given, **more))[1])
    kernel[2, 64](*arrays, 256)
    assert len(runs) == pipelines
    kernel[2, 64](*arrays, 256)
    assert len(runs) == pipelines


def test_shared_functions_are_called_where_they_are(tmp_path, monkeypatch):
    """No kernel holds a copy of them, for LLVM to optimise again, and none of Numba's wrappers."""
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    kernel = CompiledKernel(rewrite(long_kernel("branches with barriers", 4, tmp_path).py_func), TYPES, False, True)
    library = kernel.native.library
    assert {name for _, name, *_ in library.calls.values()} >= {"barrier", "fill", "clear_padding"}
    defined = [function.name for function in library.get_defined_functions()]
    assert defined and not library.calls.keys() & {*defined}
    assert len([name for name in defined if "kernel" in name]) == 2  # the kernel, and what Python calls
