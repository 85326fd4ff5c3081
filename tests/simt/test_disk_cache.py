"""Compiled kernels are kept on disk. What happens to files may not break a launch or bring back an old kernel."""

import ast
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from labkit import cuda, simt
from labkit.simt import cache, compiled_kernel, runtime, store
from labkit.simt.errors import OutOfBoundsError
from labkit.simt.runtime import collectives, ptx_copies, ptx_matrices, shared_function
from tests.simt.helpers import run_python

pytestmark = pytest.mark.cpu_device

PROGRAM = """\
import numpy as np
from labkit import cuda
import sys

FACTOR = int(sys.argv[1])
TABLE = np.arange(4) * FACTOR

def make(k):
    @cuda.jit
    def add(out):
        t = cuda.threadIdx.x
        out[t] = t * FACTOR + k + TABLE[t % 4]
    return add

for k in range(int(sys.argv[2])):
    out = np.zeros(32, np.int64)
    t = np.arange(32)
    make(k)[1, 32](out)
    assert (out == t * FACTOR + k + t % 4 * FACTOR).all(), (k, out)
print("right")
"""


WITH_BARRIER = """\
import numpy as np
from labkit import cuda

@cuda.jit
def reverse(out):
    s = cuda.shared.array(64, np.int64)
    t = cuda.threadIdx.x
    if t < 64:
        s[t] = t
    cuda.syncthreads()
    if t % 2 == 0:
        cuda.syncwarp(cuda.activemask())
    out[t] = s[63 - t]

out = np.zeros(64, np.int64)
reverse[1, 64](out)
assert (out == np.arange(64)[::-1]).all(), out
print("right")
"""

# Numba fills in the address of the first function after it has compiled the second.
MUTUAL = """\
import numpy as np
from labkit import cuda

@cuda.jit(device=True)
def is_even(n):
    return True if n == 0 else is_odd(n - 1)

@cuda.jit(device=True)
def is_odd(n):
    return False if n == 0 else is_even(n - 1)

@cuda.jit
def parities(out):
    t = cuda.threadIdx.x
    out[t] = is_even(t)

out = np.zeros(8, np.int64)
parities[1, 8](out)
assert out.tolist() == [1, 0] * 4, out
print("right")
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    cache = tmp_path / "cache"

    def start(factor=1, kernels=1, directory=cache, **settings):
        environment = {**os.environ, "LABKIT_DEVICE": "cpu", "LABKIT_CACHE_DIR": str(directory), **settings}
        environment = {name: value for name, value in environment.items() if value is not None}
        return subprocess.Popen(
            [sys.executable, tmp_path / "program.py", str(factor), str(kernels)], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(*args, **settings):
        return finish(start(*args, **settings))

    run.start, run.cache = start, cache
    return run


def finish(process, warnings=False):
    """What the program printed. warnings: warnings may come before the result."""
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and (text.strip().split("\n")[-1] if warnings else text.strip()) == "right", text
    return text


@pytest.mark.sweep(every=True)
def test_two_processes_at_once(program):
    for process in [program.start(), program.start()]:
        finish(process)
    program()
    assert not list(program.cache.glob("*.tmp"))


def flipped(content, where):
    position = int(where * (len(content) - 1))
    return content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :]


DAMAGES = {
    "gone": None, "empty": lambda content: b"", "garbage": lambda content: b"garbage(",
    "half": lambda content: content[: len(content) // 2], "longer": lambda content: content + b"\0",
    **{f"a bit at {where}": lambda content, where=where: flipped(content, where) for where in (0, 0.6, 1)},
}


@pytest.mark.sweep
def test_damaged_files(program):
    """A process killed while it wrote, a cleaner, a bad disk: each kernel has another damage, in both of its files."""
    program(1, len(DAMAGES))
    for kind in ("*.py.kernel", "*.add.*.kernel"):
        files = sorted(program.cache.glob(kind))
        assert len(files) == len(DAMAGES)
        for file, damage in zip(files, DAMAGES.values(), strict=True):
            content = file.read_bytes()
            file.unlink()
            if damage is not None:
                file.write_bytes(damage(content))
        text = finish(program.start(1, len(DAMAGES)), warnings=True)
        assert text.count("a compiled kernel on disk was damaged and is being recompiled: ") == 1  # for all
    program(1, len(DAMAGES))


@pytest.mark.sweep(every=True)
def test_whole_files_that_hold_something_else(program):
    """Written by another version under the same name: the checksum is right, and nothing in it is of use."""
    contents = b"", b"no pickle", pickle.dumps((1, 2))
    program(1, len(contents))
    kept = store.Store(program.cache)
    for file, content in zip(program.cache.glob("*.add.*.kernel"), contents, strict=True):
        assert kept.save(file.name.removesuffix(store.SUFFIX), content)
    program(1, len(contents))


@pytest.mark.sweep
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limit")
@pytest.mark.parametrize("room", [0, 7_500])  # bytes: none; enough for the compiled kernel, but not its source
def test_a_disk_that_fills(program, room):
    """The process may write files of so many bytes, and no larger ones."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room})); "
    path = program.cache.parent / "program.py"
    path.write_text(limit + PROGRAM)
    text = finish(program.start(1, 2), warnings=True)
    assert text.count("compiled kernels are not kept: ") == 1 and "LABKIT_CACHE_DIR names another directory" in text
    assert not list(program.cache.glob("*.tmp"))
    assert len(list(program.cache.glob("*.kernel"))) == (2 if room else 0)
    path.write_text(PROGRAM)  # room again
    program(1, 2)
    assert len(list(program.cache.glob("*.kernel"))) == 4


@pytest.mark.sweep(every=True)
def test_places_that_cannot_be_written(program, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("not a directory")
    nowhere = {"LABKIT_CACHE_DIR": None, "HOME": "/dev/null", "XDG_CACHE_HOME": None}
    for place in ({"directory": occupied}, nowhere):
        text = finish(program.start(**place), warnings=True)
        assert text.count("compiled kernels are not kept: ") == 1, text


@pytest.mark.sweep(every=True)
def test_values_from_outside_are_part_of_the_key(program):
    program(1)
    program(5)


# Within one process ---------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path / "cache"))

    def load(source, name="kernel.py", **names):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source))
        os.utime(path, (fresh_time[0], fresh_time[0]))
        fresh_time[0] += 10
        exec(compile(path.read_text(), str(path), "exec"), names)
        return names

    return load


fresh_time = [1_700_000_000]

SMALL = """\
from labkit import cuda

@cuda.jit
def kernel(out):
    out[cuda.grid(1)] = {0}
"""


def value(kernel, size=4):
    out = np.zeros(size)
    kernel[1, 4](out)
    return out[0]


def test_same_name_and_line_in_different_files(fresh):
    first, second = fresh(SMALL.format(1), "one.py"), fresh(SMALL.format(2), "two.py")
    third = fresh(SMALL.format(1), "three.py")
    assert [value(x["kernel"]) for x in (first, second, third, first)] == [1, 2, 1, 1]
    with pytest.raises(OutOfBoundsError) as caught:
        value(third["kernel"], 3)
    assert caught.value.filename.endswith("three.py")


def test_redefined_in_a_notebook(fresh):
    assert value(fresh(SMALL.format("5"))["kernel"]) == 5
    assert value(fresh(SMALL.format("6"))["kernel"]) == 6
    shifted = fresh("# one more line\n" + SMALL.format("6"))["kernel"]
    assert value(shifted) == 6
    with pytest.raises(OutOfBoundsError) as caught:
        value(shifted, 3)
    assert caught.value.line == 6


def test_a_file_edited_after_its_import(fresh, tmp_path):
    """The kernel is what Python imported, not what the file says at its first launch."""
    kernel = fresh(SMALL.format(7))["kernel"]
    (tmp_path / "kernel.py").write_text("# added\n# added\n" + SMALL.format(8) + "\n# added\n")
    assert value(kernel) == 7


def test_globals_and_closures(fresh):
    names = fresh(
        """
        import numpy as np
        from labkit import cuda
        SCALE, TABLE = 2, np.arange(4)

        def make(k, dtype):
            @cuda.jit
            def kernel(out):
                out[cuda.grid(1)] = dtype(SCALE * 1000 + k) + TABLE[3] * 100
            return kernel
        """
    )
    make = names["make"]
    first, second, rounded = make(1, np.float64), make(2.5, np.float64), make(2.5, np.int64)
    assert [value(first), value(second), value(rounded)] == [2301, 2302.5, 2302]
    names["SCALE"] = 3
    names["TABLE"] = np.arange(4) * 2
    later = make(1, np.float64)
    assert value(later) == 3601
    assert value(first) == 2301  # compiled for these types before: as in Numba, globals are constants


def test_device_functions_are_part_of_the_key(fresh):
    helper = """
        from labkit import cuda
        @cuda.jit(device=True)
        def helper(v):
            return v + {0}
        """
    kernel = """
        from labkit import cuda
        @cuda.jit
        def kernel(out):
            out[cuda.grid(1)] = helper(1)
        """
    for k in (1, 2):
        helpers = fresh(helper.format(k), "helper.py")
        assert value(fresh(kernel, helper=helpers["helper"])["kernel"]) == 1 + k


# What makes a file of the cache stale ---------------------------------------------------------------------------------


def test_types_and_settings_are_part_of_the_key(tmp_path, monkeypatch):
    """x is kept over the barrier, in an array of its type: a module made for float32 would round a float64."""
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))

    @cuda.jit
    def keeps(a, out):
        t = cuda.threadIdx.x
        x = a[t]
        cuda.syncthreads()
        out[t] = x

    for dtype in (np.float32, np.float64, np.int64, np.complex128):
        a, out = (np.arange(1, 33) / 7 * 1e9).astype(dtype), np.zeros(32, dtype)
        keeps[1, 32](a, out)
        np.testing.assert_array_equal(out, a)
    assert len([*tmp_path.glob("keeps_*.py.kernel")]) == 4

    a, short = np.arange(32, dtype=np.int16), np.zeros(31, np.int16)
    monkeypatch.setenv("LABKIT_BOUNDS_CHECK", "0")
    keeps[1, 31](a, short)
    monkeypatch.delenv("LABKIT_BOUNDS_CHECK")
    with pytest.raises(OutOfBoundsError):
        keeps[1, 32](a, short)


def test_how_far_llvm_optimises_is_part_of_the_key(tmp_path, monkeypatch):
    """What a test compiled in a hurry is not what a lesson runs."""
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    for level in (0, 1):
        monkeypatch.setattr(compiled_kernel, "HIGHEST_OPT", level)

        @cuda.jit
        def one(out):
            out[cuda.threadIdx.x] = 1

        one[1, 32](np.zeros(32, np.int64))
        assert len([*tmp_path.glob("one_*.one.*.kernel")]) == level + 1


def test_what_a_test_compiles_is_kept_for_the_next_process(tmp_path, monkeypatch):
    """At LLVM's -O0 it would not be: the addresses of the functions it calls stay in the code."""
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))

    @cuda.jit
    def broadcast(out):
        out[cuda.threadIdx.x] = cuda.shfl_sync(0xFFFFFFFF, cuda.threadIdx.x, 0)

    broadcast[1, 32](np.zeros(32, np.int64))
    assert len([*tmp_path.glob("broadcast_*.broadcast.*.kernel")]) == 1


@pytest.mark.sweep(every=True)
def test_a_kernel_that_is_kept_finds_the_shared_functions_it_calls(tmp_path):
    """Also where they are compiled anew, and have other names then."""
    (tmp_path / "program.py").write_text(WITH_BARRIER)
    cache = tmp_path / "cache"
    folder = Path(__file__).parents[2] / "labkit"
    shutil.copytree(folder, tmp_path / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    settings = {**os.environ, "LABKIT_DEVICE": "cpu", "LABKIT_CACHE_DIR": str(cache), "PYTHONPATH": str(tmp_path)}
    kept = None
    for _ in range(3):
        done = subprocess.run([sys.executable, tmp_path / "program.py"], env=settings, capture_output=True, text=True,
                              timeout=120, check=False)
        assert done.stdout.strip() == "right", done.stderr
        files = {path: path.stat().st_ino for path in cache.glob("*.kernel")}
        assert kept is None or files == kept  # nothing was compiled again
        kept = files
        for path in tmp_path.glob("labkit/simt/runtime/__pycache__/*.kernel"):
            path.unlink()


def test_functions_that_call_each_other_are_right_in_a_second_process(tmp_path):
    for _ in range(2):
        assert run_python(MUTUAL, cache=tmp_path / "cache").stdout.strip() == "right"


def test_the_version_covers_every_source_of_the_cpu_device(monkeypatch):
    """A change in any file, in a folder too, compiles the kernels anew."""
    read = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or b"")
    cache.own_version.__wrapped__()
    folder = Path(simt.__file__).parent
    assert sorted(read) == sorted(folder.rglob("*.py"))
    assert folder / "runtime" / "memory.py" in read


def test_shared_functions_use_nothing_of_labkit_outside_their_folder():
    """Their copies on disk are discarded when a file of labkit/simt/runtime changes, and for no other file."""
    used = set()
    for path in Path(runtime.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                used.add(node.module)
            elif isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
    of_labkit = {name for name in used if name.startswith("labkit")}
    outside = {name for name in of_labkit if not name.startswith("labkit.simt.runtime.")}
    assert outside == {"labkit.simt.cache", "labkit.simt.settings"}  # where they are kept; Numba's version


def test_shared_functions_are_kept_beside_their_file_under_the_stamp_of_their_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    beside = Path(runtime.__file__).parent / "__pycache__"

    def kept(stamp, writable=True):
        monkeypatch.setattr(os, "access", lambda *_: writable)
        made = cache.keep_beside(njit(collectives.barrier.py_func), stamp)._cache
        return made.name, made._store().where

    for function in (collectives.barrier, ptx_copies.start_copy, ptx_matrices.mma_f32):
        assert isinstance(function._cache, cache.KeptCode)
    own = shared_function._own_files()
    assert kept(own) == (collectives.barrier._cache.name, beside)
    assert kept("other")[0] != collectives.barrier._cache.name
    assert kept(own, writable=False)[1] == tmp_path
