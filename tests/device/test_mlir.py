"""numba-cuda-mlir compiles the course's kernels: its types, the rule of 32 bits, the instructions of labkit.ptx, the
cache; and what the course puts in place of what it lacks. No GPU is needed, but the compiler is."""

import functools
import itertools
import os
import re
import subprocess
import sys

import numba
import numpy as np
import pytest
from numba import float32, types, uint32

pytest.importorskip("numba_cuda_mlir", reason="numba-cuda-mlir is not installed")

from labkit import cuda, ptx, u32
from labkit.device import compile_target, compiler, compiling, gpu_kernels, launches, ptx_lines
from labkit.kernels.agree import to_device
from labkit.measure.ops import all_ops, op
from labkit.simt import unsigned
from labkit.simt.ptx import INTRINSICS
from tests.device import index_kernels

FLOATS, WORDS, MATRIX = types.float32[::1], types.uint32[::1], types.float32[:, ::1]
CACHED = (compiling._gpu_cuda, compiling._for_gpu, gpu_kernels.dispatcher_type, gpu_kernels.array_type,
          gpu_kernels.types)


@pytest.fixture(autouse=True)
def mlir(monkeypatch):
    """Compile with numba-cuda-mlir, whatever this process would take."""
    monkeypatch.setattr(compiler, "name", lambda: "mlir")
    for function in CACHED:
        function.cache_clear()
    yield
    for function in CACHED:
        function.cache_clear()


def ptx_of(kernel, *arguments, cc=(9, 0), **options) -> str:
    try:
        return compiling.ptx(kernel, types.void(*arguments), cc=cc, **options)
    except compiling.NoCompiler as error:
        pytest.skip(str(error))
    except Exception as error:
        if "libnvvm" in str(error) or "nvJitLink" in str(error) or type(error).__name__ == "DynamicLibNotFoundError":
            pytest.skip("the CUDA toolkit's compiler is not installed")
        raise


# --- Every kernel -----------------------------------------------------------------------------------------------------


@functools.cache
def planned(name: str) -> list:
    """The launches of an operation's rungs at its size for the CPU device."""
    operation, size = op(name), op(name).work.timed_cpu
    arrays = to_device(operation.inputs(np.random.default_rng(0), **size))
    out = cuda.to_device(np.zeros(operation.shape(**size), operation.dtype))
    found = {}
    for rung in operation.rungs:
        for one in launches.planned(lambda rung=rung: rung(*arrays, out)) if rung.kernel else ():
            found.setdefault((id(one.kernel), str(one.signature)), one)
    return list(found.values())


@pytest.mark.sampled(3, sweep=6, quick="residual_add")
@pytest.mark.parametrize("name", [each.name for each in all_ops()])
def test_every_kernel_compiles_and_is_assembled(name):
    for one in planned(name):
        text = ptx_of(one.kernel, *one.signature.args)
        assert ".visible .entry" in text and ".target sm_90a" in text


# --- Types and the rule -----------------------------------------------------------------------------------------------


def test_numbas_types_become_the_compilers():
    from labkit.device.mlir import numba_type

    assert str(numba_type(numba.float32)) == "float32" and type(numba_type(numba.float32)) is not type(numba.float32)
    array = numba_type(MATRIX)
    assert (str(array.dtype), array.ndim, array.layout, array.mutable) == ("float32", 2, "C", True)
    assert numba_type(array) is array and numba_type(3) == 3
    with pytest.raises(TypeError, match="numba-cuda-mlir has no type for Numba's a thing"):
        numba_type(types.Opaque("a thing"))


SYMBOLS = {"Add": "+", "Sub": "-", "Mult": "*", "FloorDiv": "//", "Mod": "%", "LShift": "<<", "RShift": ">>",
           "BitAnd": "&", "BitOr": "|", "BitXor": "^"}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SYMBOLS)
def test_the_rule_is_numba_cudas(name, monkeypatch):
    from labkit.device import mlir

    monkeypatch.setattr(unsigned, "HOMES", {"home_of_the_rule"})
    found = {}
    for home in ("home_of_the_rule", "elsewhere"):
        for kinds in itertools.product(("uint32", "int64"), repeat=2):
            scope = {"__name__": home}
            exec(f"def both(a, b):\n    return a {SYMBOLS[name]} b\n", scope)
            signature = tuple(mlir.numba_type(getattr(types, kind)) for kind in kinds)
            with compile_target.as_if_on((9, 0)):
                returned = mlir.cuda().compile_ptx(scope["both"], signature, device=True)[1]
            found[home, kinds] = str(returned)
    assert found["home_of_the_rule", ("uint32", "uint32")] == "uint32"
    assert found["elsewhere", ("uint32", "uint32")] == ("uint32" if name.startswith("Bit") else "uint64")
    for kinds in (("uint32", "int64"), ("int64", "uint32"), ("int64", "int64")):
        assert found["home_of_the_rule", kinds] == found["elsewhere", kinds]


@pytest.mark.parametrize("kernel, most", [
    (index_kernels.row_maximum, 23), (index_kernels.row_maximum_range, 22), (index_kernels.tiled_product, 39),
    (index_kernels.block_indices, 69)])
def test_indices_stay_in_32_bits(kernel, most, monkeypatch):
    monkeypatch.setattr(unsigned, "HOMES", {index_kernels.__name__})
    arguments = [MATRIX] * len(kernel.py_func.__code__.co_varnames[: kernel.py_func.__code__.co_argcount])
    text = ptx_of(kernel, *arguments)
    instructions = re.findall(r"^\t(?:@!?%p\d+ )?([a-z][\w.]+)", text, re.MULTILINE)
    assert sum("64" in each for each in instructions) <= most
    assert not any(each.startswith(("div", "rem")) for each in instructions)


# --- labkit.ptx -------------------------------------------------------------------------------------------------------


def test_every_instruction_is_there_with_its_meaning():
    from labkit.device import ptx_mlir

    for name, meaning in INTRINSICS.items():
        assert getattr(ptx_mlir, name).cpu_device is meaning
        assert getattr(ptx_mlir, name).__doc__ == meaning.__doc__


@cuda.jit
def several_instructions(a, half, out):
    shared = cuda.shared.array(64, uint32)
    i = u32.grid(1)
    x, y, z, w = ptx.load_global4(a, i)
    shared[i] = ptx.pack_half2(x, y)
    ptx.store_shared4(shared, i, ptx.float_bits(z), ptx.float_bits(w), shared[i], uint32(3))
    cuda.syncthreads()
    low, high = ptx.unpack_half2(shared[0])
    a0, a1 = ptx.ldmatrix_x2(shared, i)
    ptx.cp_async_16(shared, i, half, i, uint32(16))
    ptx.cp_async_commit()
    ptx.cp_async_wait(0)
    out[i] = low + high + ptx.bits_float(a0 + a1)


def test_lines_of_ptx_are_those_of_the_table():
    halves = types.float16[::1]
    text = ptx_of(several_instructions, FLOATS, halves, FLOATS)
    for line in ("ld.global.v4.f32 {", "cvt.rn.f16x2.f32 ", "st.shared.v4.b32 [", "ldmatrix.sync.aligned.m8n8.x2.sh",
                 "cp.async.cg.shared.global [", "cp.async.commit_group;", "cp.async.wait_group 0;"):
        assert line in text, line
    older = ptx_of(several_instructions, FLOATS, halves, FLOATS, cc=(7, 5))
    assert "cp.async" not in older and "cvt.rn.f16.f32 lo" in older and ".target sm_75" in older


@cuda.jit
def an_array_that_is_none(a, out):
    x, y, z, w = ptx.load_global4(a, 0)
    out[0] = x


def test_wrong_arguments_are_refused_with_the_argument():
    with pytest.raises(Exception, match="ptx.load_global4: array is float32; it must be an array"):
        ptx_of(an_array_that_is_none, types.float32, FLOATS)
    checks = ptx_lines.Checks(types, ValueError)
    with pytest.raises(ValueError, match="ptx.tanh_approx takes 1 argument"):
        checks.arity("tanh_approx", (1, 2))


# --- What the course puts in place ------------------------------------------------------------------------------------


@cuda.jit
def two_dynamic_arrays(a, out):
    words, fixed, floats = cuda.shared.array(0, uint32), cuda.shared.array(33, float32), cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    words[i], fixed[i] = uint32(3), a[i]
    cuda.syncthreads()
    out[i] = floats[i] + fixed[0]


def test_dynamic_shared_memory_is_one_and_lies_behind_the_static():
    text = ptx_of(two_dynamic_arrays, FLOATS, FLOATS)
    assert len(re.findall(r"\.extern \.shared \.align 16 \.b8 \w+\[\];", text)) == 1
    assert "__dynamic_shmem__" not in text and len(re.findall(r"\.shared \.align 16 \.b8", text)) == 2


@cuda.jit
def aligned(out):
    words = cuda.shared.array(0, uint32, alignment=1024)
    out[0] = words[0]


def test_dynamic_shared_memory_is_aligned_as_asked():
    assert ".extern .shared .align 1024 .b8" in ptx_of(aligned, WORDS)


@cuda.jit(device=True, inline="never")
def shared_sum(a):
    shared = cuda.shared.array(32, float32)
    shared[cuda.threadIdx.x] = a[cuda.threadIdx.x]
    cuda.syncthreads()
    return shared[0] + shared[31]


@cuda.jit
def fenced(a, out):
    out[0] = shared_sum(a)
    cuda.threadfence()
    out[1] = cuda.rsqrt(a[0])


def test_fences_rsqrt_and_shared_arrays_of_device_functions():
    text = ptx_of(fenced, FLOATS, FLOATS)
    assert "membar.gl;" in text and "rsqrt.approx" in text and "st.shared.f32" in text


@cuda.jit
def loops(a, n, step, out):
    total = float32(0.0)
    for i in range(n, 0, -1):
        total += a[i]
    for i in range(0, n, step):
        total += a[i]
    for i in range(max(n, 3)):
        total += a[i]
    out[0] = total


def test_ranges_have_no_division_and_no_memory_of_their_own():
    for kind in (types.int64, types.uint32):
        text = ptx_of(loops, FLOATS, kind, kind, FLOATS)
        assert not re.search(r"\t(div|rem)\.", text) and ".local" not in text


@cuda.jit
def unsigned_extremes(a, b, out):
    out[0] = min(a, b)
    out[1] = max(a, b)


def test_extremes_of_unsigned_numbers_are_unsigned():
    text = ptx_of(unsigned_extremes, types.uint32, types.uint32, WORDS)
    assert "min.u32" in text and "max.u32" in text


@cuda.jit
def comparisons_and_sizes(x, out):
    if x[0] != x[0]:
        out[0] = uint32(x.itemsize)


def test_nan_differs_from_itself_and_arrays_have_an_itemsize():
    text = ptx_of(comparisons_and_sizes, FLOATS, WORDS)
    assert re.search(r"setp\.(num|nan|neu)\.f32", text) and re.search(r"\b4;", text)


@cuda.jit
def shuffled(x, out):
    out[0] = cuda.shfl_xor_sync(0xFFFFFFFF, x[0], 1)
    out[1] = cuda.shfl_up_sync(0xFFFFFFFF, x[0], 1)
    out[2] = cuda.shfl_down_sync(0xFFFFFFFF, x[0], 1)
    out[3] = cuda.shfl_sync(0xFFFFFFFF, x[0], 1)


@pytest.mark.parametrize("kind", [types.int64, types.uint64, types.float64], ids=str)
def test_shuffles_move_all_64_bits(kind):
    text = ptx_of(shuffled, kind[::1], kind[::1])
    modes = re.findall(r"shfl\.sync\.(\w+)\.b32 %r\d+, %r\d+, 1, (\d+), -1;", text)
    assert modes == [(mode, clamp) for mode, clamp in (("bfly", "31"), ("up", "0"), ("down", "31"), ("idx", "31"))
                     for _ in range(2)] and "cvt.rn.f32" not in text


@cuda.jit
def counted_in_a_tuple(out):
    bins = cuda.shared.array(32, uint32), cuda.shared.array(64, uint32)
    cuda.atomic.add(bins[0], 3, uint32(1))
    cuda.syncthreads()
    cuda.atomic.add(out, 0, bins[0][3])


def test_atomics_go_where_the_array_is():
    text = ptx_of(counted_in_a_tuple, WORDS)
    assert text.count("atom.shared.add.u32") == 1 and text.count("atom.global.add.u32") == 1


# --- The cache, and launches without a GPU ----------------------------------------------------------------------------


PROCESS = """
from labkit import device
from labkit.device import compile_target, gpu_kernels, kernel_cache
cuda = device.gpu_cuda()
from numba import float32
FACTOR = {factor}

@cuda.jit(device=True)
def scaled(x):
    return x * float32(FACTOR)

@cuda.jit
def scale(a, n):
    if n > 3:
        a[0] = scaled(a[0])

types = gpu_kernels.types()
with compile_target.as_if_on((9, 0)):
    scale.compile((types.Array(types.float32, 1, "C"), types.uint32))
stats = kernel_cache.stats()
print(stats.hits, stats.misses, stats.saved, stats.uncacheable)
"""


def test_a_second_process_loads_what_the_first_compiled(tmp_path):
    def run(factor):
        done = subprocess.run([sys.executable, "-c", PROCESS.format(factor=factor)], capture_output=True, text=True,
                              env={**os.environ, "LABKIT_COMPILER": "mlir", "LABKIT_DEVICE": "cpu",
                                   "LABKIT_KERNEL_CACHE": str(tmp_path)})
        if "libnvvm" in done.stderr or "nvJitLink" in done.stderr:
            pytest.skip("the CUDA toolkit's compiler is not installed")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run(2) == "0 1 1 {}"
    assert run(2) == "1 0 0 {}"
    assert run(3) == "0 1 1 {}"


def test_keys_tell_the_compilers_apart(monkeypatch):
    from labkit.device import kernel_key

    kernel_key.toolchain.cache_clear()
    ours = kernel_key.toolchain()
    monkeypatch.setattr(compiler, "name", lambda: "numba-cuda")
    kernel_key.toolchain.cache_clear()
    assert kernel_key.toolchain() != ours
    kernel_key.toolchain.cache_clear()


ORDER = """
from labkit import device
cuda = device.gpu_cuda()
from labkit.device import compile_target, mlir, u32_mlir as u32
from labkit.device import ptx_mlir as ptx
unpack, types = ptx.unpack_half2, mlir.types

def kernel(a, out):
    x, y, z, w = ptx.load_global4(a, u32.grid(1))
    low, high = unpack(ptx.pack_half2(x, y))
    out[0] = low + high

floats = types.Array(types.float32, 1, "C")
with compile_target.as_if_on((9, 0)):
    print(cuda.compile_ptx(kernel, types.void(floats, floats))[0].count("ld.global.v4"))
"""


def test_instructions_may_be_imported_after_the_compiler_has_read_its_registries():
    done = subprocess.run([sys.executable, "-c", ORDER], capture_output=True, text=True,
                          env={**os.environ, "LABKIT_COMPILER": "mlir", "LABKIT_DEVICE": "cpu"})
    if "libnvvm" in done.stderr or "nvJitLink" in done.stderr:
        pytest.skip("the CUDA toolkit's compiler is not installed")
    assert done.stdout.strip() == "1", done.stderr


def test_a_launch_configuration_says_what_observe_reads(monkeypatch):
    from labkit.device.quick_launch import MlirLaunch, stream_handle

    ready = MlirLaunch(type("Dispatcher", (), {})(), None, (3, 2, 1), (64, 1, 1), 7, 128)
    assert (ready.griddim, ready.blockdim, ready.stream, ready.sharedmem) == ((3, 2, 1), (64, 1, 1), 7, 128)
    assert ready._shape == (3, 2, 1, 64, 1, 1, 128, 7)
    stream = type("Stream", (), {"__cuda_stream__": lambda self: (0, 9)})()
    assert [stream_handle(each) for each in (None, 0, 5, stream)] == [0, 0, 5, 9]
