"""What numba-cuda-mlir 0.6.0 lacks, each with the smallest program that shows it, as it comes: without what
labkit.device.mlir puts in its place. A test that begins to pass says that a release has mended it: remove the test, and
what labkit.device.mlir does about it.

No GPU is needed: each program is compiled in a process of its own, and its PTX read.
"""

import os
import re
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("numba_cuda_mlir", reason="numba-cuda-mlir is not installed")

HEAD = """\
from numba_cuda_mlir import cuda, tools, types
from numba_cuda_mlir.types import float32, int64, uint32
tools._cached_cc = (9, 0)  # in place of a GPU's
floats, words = types.Array(float32, 1, "C"), types.Array(uint32, 1, "C")


def show(kernel, *arguments):
    print(cuda.compile_ptx(getattr(kernel, "py_func", kernel), types.void(*arguments), cc=None)[0])


"""


def ptx_of(program: str) -> str:
    done = subprocess.run([sys.executable, "-"], input=HEAD + textwrap.dedent(program), capture_output=True, text=True,
                          env={**os.environ, "NUMBA_CUDA_MLIR_ICE_FULL_TB": "0"})
    if "libnvvm" in done.stderr or "nvJitLink" in done.stderr or "DynamicLibNotFoundError" in done.stderr:
        pytest.skip("the CUDA toolkit's compiler is not installed")
    assert done.returncode == 0, done.stderr.splitlines()[-1]
    return done.stdout


def test_a_kernel_compiles():
    """The tests below fail for their own reasons."""
    assert ".visible .entry" in ptx_of("""
        @cuda.jit
        def add(a, b):
            i = cuda.grid(1)
            if i < a.size:
                b[i] += a[i]
        show(add, floats, floats)""")


lacks = pytest.mark.xfail(strict=True, raises=AssertionError)


@lacks
def test_dynamic_shared_memory_lies_behind_static_arrays():
    """The array of size 0 is a variable of one byte, which ptxas may place before a static array: they overlap."""
    assert ".extern .shared" in ptx_of("""
        @cuda.jit
        def both(a):
            fixed, dynamic = cuda.shared.array(33, float32), cuda.shared.array(0, float32)
            i = cuda.threadIdx.x
            fixed[i], dynamic[i] = a[i], a[i + 1]
            cuda.syncthreads()
            a[i] = fixed[31 - i] + dynamic[31 - i]
        show(both, floats)""")


@lacks
def test_a_dynamic_array_knows_its_size():
    """It is the size of that variable, 0."""
    assert "%dynamic_smem_size" in ptx_of("""
        @cuda.jit
        def kernel(a):
            dynamic = cuda.shared.array(0, float32)
            a[0] = float32(dynamic.size)
        show(kernel, floats)""")


@lacks
def test_a_device_function_that_is_not_inlined_may_have_a_shared_array():
    """Its array does not go along into the kernel: "does not reference a valid global memref"."""
    assert "st.shared" in ptx_of("""
        @cuda.jit(device=True, inline="never")
        def shared(x):
            array = cuda.shared.array(32, float32)
            array[cuda.threadIdx.x] = x
            cuda.syncthreads()
            return array[0]
        @cuda.jit
        def kernel(a):
            a[0] = shared(a[1])
        show(kernel, floats)""")


@lacks
def test_threadfence():
    assert re.search("membar|fence", ptx_of("""
        @cuda.jit
        def fence(a):
            a[0] = a[1]
            cuda.threadfence()
        show(fence, floats)"""))


@lacks
def test_hopper_is_compiled_for_with_all_its_features():
    """wgmma and setmaxnreg need sm_90a, which numba-cuda chooses by itself."""
    assert ".target sm_90a" in ptx_of("""
        @cuda.jit
        def kernel(a):
            a[0] = a[1]
        show(kernel, floats)""")


@lacks
def test_the_last_axis_of_a_contiguous_array_has_no_stride():
    """The launch passes one, and each index is multiplied by it."""
    assert "mul.lo.s64" not in ptx_of("""
        @cuda.jit
        def kernel(a, i):
            a[i] = a[i + 1]
        show(kernel, floats, types.uint64)""")


@lacks
def test_a_range_counts_without_a_division():
    """It counts how many rounds there are, even for a step that is known to be above 0 only at run time."""
    assert not re.search(r"\tdiv\.", ptx_of("""
        @cuda.jit
        def kernel(a, n, step):
            for i in range(uint32(0), n, step):
                a[i] = a[i] + float32(1)
        show(kernel, floats, uint32, uint32)"""))


@lacks
def test_extremes_of_unsigned_numbers_are_unsigned():
    """min(2**31, 1) is 2**31."""
    assert "min.u32" in ptx_of("""
        @cuda.jit
        def kernel(a, x, y):
            a[0] = min(x, y)
        show(kernel, words, uint32, uint32)""")


@lacks
def test_nan_differs_from_itself():
    """`!=` compares numbers that are ordered, so that it is false of NaN: `x != x` becomes nothing."""
    assert re.search(r"setp\.(num|nan|neu)", ptx_of("""
        @cuda.jit
        def kernel(a):
            if a[0] != a[0]:
                a[1] = float32(1)
        show(kernel, floats)"""))


@lacks
def test_shuffles_of_64_bits():
    """They exchange the lower 32 bits of an integer, and a float64 as a float32."""
    assert ptx_of("""
        @cuda.jit
        def kernel(a):
            a[0] = cuda.shfl_xor_sync(0xFFFFFFFF, a[0], 1)
        show(kernel, types.Array(int64, 1, "C"))""").count("shfl.sync") == 2


@lacks
def test_atomics_on_a_shared_array_of_a_tuple_are_of_shared_memory():
    """They are of global memory, at address 0."""
    assert "atom.global" not in ptx_of("""
        @cuda.jit
        def kernel(a):
            bins = cuda.shared.array(32, uint32), cuda.shared.array(64, uint32)
            cuda.atomic.add(bins[0], 3, uint32(1))
            cuda.syncthreads()
            a[0] = bins[0][3]
        show(kernel, words)""")


@lacks
def test_an_array_has_an_itemsize():
    """"getattr(array(float32, 1d, C), attr='itemsize')": it is typed and not lowered."""
    assert "st.global" in ptx_of("""
        @cuda.jit
        def kernel(a):
            a[0] = float32(a.itemsize)
        show(kernel, floats)""")


@lacks
def test_a_loop_over_a_tuple_of_constants_needs_no_memory():
    """It reads them from local memory, one a round: as in a reduction by shuffles. Nothing is done about it."""
    assert ".local" not in ptx_of("""
        @cuda.jit
        def kernel(a):
            x = a[cuda.threadIdx.x]
            for distance in (16, 8, 4, 2, 1):
                x += cuda.shfl_xor_sync(0xFFFFFFFF, x, distance)
            a[cuda.threadIdx.x] = x
        show(kernel, floats)""")


@lacks
def test_an_unsigned_index_reaches_the_second_half_of_its_range():
    """a[uint32(2**31)] is read before the array: the index is extended as a signed number."""
    assert "mul.wide.s32" not in (text := ptx_of("""
        @cuda.jit
        def kernel(a, i, out):
            out[0] = a[i]
        show(kernel, floats, uint32, floats)""")) and "cvt.s64.s32" not in text and "ld.param.s32" not in text


@lacks
def test_shared_arrays_begin_where_accesses_of_128_bits_may():
    assert ".shared .align 16" in ptx_of("""
        @cuda.jit
        def kernel(a):
            array = cuda.shared.array(64, float32)
            array[cuda.threadIdx.x] = a[0]
            cuda.syncthreads()
            a[1] = array[3]
        show(kernel, floats)""")


@lacks
def test_a_barrier_is_convergent():
    """It is inline assembly that LLVM may copy into both arms of a branch."""
    assert "begin inline asm\n\tbar.sync" not in ptx_of("""
        @cuda.jit
        def kernel(a):
            cuda.syncthreads()
            a[0] = a[1]
        show(kernel, floats)""")


@lacks
def test_inline_ptx_may_name_a_special_register():
    """The percent sign becomes a dollar: "Bad $ operand number"."""
    assert "%laneid" in ptx_of("""
        from numba_cuda_mlir.cuda import experimental
        @cuda.jit
        def kernel(a):
            a[0] = experimental.inline_ptx("mov.u32 %0, %laneid;", "=r", uint32)
        show(kernel, words)""")


@lacks
def test_inline_ptx_may_be_imported_by_name():
    """"Untyped global name 'inline_ptx'"."""
    assert "lg2.approx" in ptx_of("""
        from numba_cuda_mlir.cuda.experimental import inline_ptx
        @cuda.jit
        def kernel(a):
            a[0] = inline_ptx("lg2.approx.f32 %0, %1;", "=f", float32, "f", a[1])
        show(kernel, floats)""")


@lacks
def test_numbas_own_types_are_taken():
    """"Untyped global name 'float32'": every kernel of the course says `from numba import float32`."""
    assert "cvt.rn.f32" in ptx_of("""
        import numba
        number = numba.float32
        @cuda.jit
        def kernel(a, n):
            a[0] = number(n)
        show(kernel, floats, int64)""")


@lacks
def test_rsqrt_is_a_function_of_cuda():
    assert "rsqrt.approx" in ptx_of("""
        @cuda.jit
        def kernel(a):
            a[0] = cuda.rsqrt(a[1])
        show(kernel, floats)""")


@lacks
def test_kernels_on_disk_stay_cooperative(tmp_path):
    """`cache=True` leaves out of a file that the kernel synchronises its whole grid."""
    assert "True" in ptx_of("""
        from numba_cuda_mlir.caching import MLIRCacheImpl
        from types import SimpleNamespace
        from numba_cuda_mlir.numba_cuda import typing
        made = SimpleNamespace(signature=typing.signature(types.void, floats), metadata={"use_cooperative": True})
        impl = MLIRCacheImpl.__new__(MLIRCacheImpl)
        print(impl.rebuild(None, impl.reduce(made)).metadata.get("use_cooperative"))""")
