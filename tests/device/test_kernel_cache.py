"""Compiled kernels on disk: found again, never wrongly, whatever happens to the files. Compiled without a GPU, for
compute capability 9.0, where the CUDA toolkit's compiler is installed."""

import subprocess
import sys
import textwrap
import types as python_types

import pytest

from labkit import device
from labkit.device import compile_ahead, compiling, kernel_cache
from labkit.simt.store import SUFFIX

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")


def test_where_kernels_are_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("LABKIT_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    assert kernel_cache.directory() == tmp_path / "gpu"
    monkeypatch.delenv("LABKIT_CACHE_DIR")
    assert kernel_cache.directory().name == "labkit-gpu"
    monkeypatch.setenv("LABKIT_KERNEL_CACHE", str(tmp_path / "mine"))
    assert kernel_cache.directory() == tmp_path / "mine"
    for off in ("off", "0", "OFF"):
        monkeypatch.setenv("LABKIT_KERNEL_CACHE", off)
        assert kernel_cache.directory() is None and kernel_cache.store() is None


# --- Kernels ----------------------------------------------------------------------------------------------------------

CAPABILITY = tuple(device.numba_cuda().get_current_device().compute_capability) if device.on_gpu() else (9, 0)


def compiler_is_missing() -> str:
    from numba import types

    def nothing(a):
        a[0] = a[0]

    try:
        compiling.ptx(nothing, types.void(types.Array(types.float32, 1, "C")))
    except compiling.NoCompiler as error:
        return str(error)
    return ""


@pytest.fixture
def cuda(tmp_path, monkeypatch):
    """numba.cuda with the cache in a directory of its own, compiling for 9.0 as if there were such a GPU."""
    if missing := compiler_is_missing():
        pytest.skip(missing)
    from numba.cuda import codegen, dispatcher

    monkeypatch.setenv("LABKIT_KERNEL_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setattr(kernel_cache, "_stats", kernel_cache.Stats())
    if not device.on_gpu():
        gpu = python_types.SimpleNamespace(compute_capability=CAPABILITY)
        monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)
        monkeypatch.setattr(codegen.CUDACodeLibrary, "_ensure_cc", lambda self, cc: (9, 0, "a") if cc is None else cc)
        monkeypatch.setattr(dispatcher._Kernel, "bind", lambda self: self._codelibrary.get_cubin())
    return device.numba_cuda()


def scale_by(cuda, factor):
    @cuda.jit(device=True)
    def scaled(x):
        return x * factor

    @cuda.jit
    def scale_kernel(a):
        i = cuda.grid(1)
        if i < a.size:
            a[i] = scaled(a[i])

    return scale_kernel


def vector(cuda):
    from numba.cuda import types

    return (types.Array(types.float32, 1, "C"),)


def cubin_of(kernel):
    return bytes(kernel._codelibrary.get_cubin().code)


def test_a_kernel_is_compiled_once(cuda):
    first = scale_by(cuda, 2).compile(vector(cuda))
    assert (kernel_cache.stats().hits, kernel_cache.stats().saved) == (0, 1)
    second = scale_by(cuda, 2).compile(vector(cuda))
    assert (kernel_cache.stats().hits, kernel_cache.stats().misses) == (1, 1)
    assert cubin_of(first) == cubin_of(second) and first.entry_name == second.entry_name
    assert second.signature == first.signature and not second.cooperative
    scale_by(cuda, 3).compile(vector(cuda))
    assert (kernel_cache.stats().hits, kernel_cache.stats().misses) == (1, 2)


def test_options_of_a_device_function_are_part_of_the_key(cuda):
    def key_with(**options):
        scaled = cuda.jit(device=True, **options)(lambda x: x * 2)

        @cuda.jit
        def scale_kernel(a):
            a[0] = scaled(a[0])

        return kernel_cache.key_for(scale_kernel, vector(cuda), CAPABILITY)

    assert key_with() == key_with(fastmath=False)
    assert len({key_with(), key_with(fastmath=True), key_with(inline="always"), key_with(forceinline=True)}) == 4


def test_keys_computed_at_once_are_the_same_and_visit_what_kernels_share_once(cuda, monkeypatch):
    @cuda.jit(device=True)
    def shared(x):
        return x * 2

    def kernel_with(add):
        @cuda.jit
        def add_kernel(a):
            a[0] = shared(a[0]) + add

        return add_kernel

    def keys():
        return [kernel_cache.key_for(kernel, vector(cuda), CAPABILITY) for kernel in kernels]

    kernels, visited, original = [kernel_with(add) for add in (1, 2)], [], kernel_cache.Fingerprint.function
    monkeypatch.setattr(kernel_cache.Fingerprint, "function",
                        lambda self, function: visited.append(function) or original(self, function))
    apart = keys()
    assert visited.count(shared.py_func) == 2
    visited.clear()
    with kernel_cache.at_once():
        assert keys() == keys() == apart
    assert visited.count(shared.py_func) == visited.count(kernels[0].py_func) == 1
    assert keys() == apart and visited.count(shared.py_func) == 3


def test_a_damaged_kernel_is_compiled_anew(cuda, tmp_path):
    scale_by(cuda, 2).compile(vector(cuda))
    (file,) = (tmp_path / "kernels").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    scale_by(cuda, 2).compile(vector(cuda))
    assert (kernel_cache.stats().hits, kernel_cache.stats().saved) == (0, 2)
    assert len(file.read_bytes()) > len(whole) // 2
    (key,) = (file.name.removesuffix(SUFFIX) for file in (tmp_path / "kernels").iterdir())
    kernel_cache.store().save(key, b"not what Numba wrote")  # with a checksum that is right
    scale_by(cuda, 2).compile(vector(cuda))
    assert kernel_cache.stats().hits == 0


def test_nothing_is_kept_when_it_is_off(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_KERNEL_CACHE", "off")
    scale_by(cuda, 2).compile(vector(cuda))
    assert not (tmp_path / "kernels").exists() and kernel_cache.stats() == kernel_cache.Stats()


def test_a_kernel_for_a_debugger_is_not_kept(cuda, tmp_path):
    @cuda.jit(lineinfo=True)
    def traced(a):
        a[0] = 1

    traced.compile(vector(cuda))
    assert not (tmp_path / "kernels").exists()
    assert "traced" in kernel_cache.stats().uncacheable


def test_a_kernel_that_refers_to_what_cannot_be_compared_is_compiled(cuda, tmp_path):
    from numba.cuda.extending import intrinsic

    @intrinsic
    def plus_one(typingctx, x):
        return x(x), lambda context, builder, sig, args: builder.fadd(args[0], args[0].type(1.0))

    @cuda.jit
    def with_intrinsic(a):
        a[0] = plus_one(a[0])

    with_intrinsic.compile(vector(cuda))
    assert not (tmp_path / "kernels").exists()
    assert "plus_one" in kernel_cache.stats().uncacheable["with_intrinsic"]


FACTOR = 2.0


def test_a_device_function_that_was_compiled_before_its_global_changed(cuda, monkeypatch, tmp_path):
    """It keeps what it was compiled to: a kernel made of it now is not the kernel of the new global."""
    monkeypatch.setitem(globals(), "FACTOR", 2.0)

    @cuda.jit(device=True)
    def scaled(x):
        return x * FACTOR

    def make():
        @cuda.jit
        def scale_kernel(a):
            a[0] = scaled(a[0])

        return scale_kernel

    make().compile(vector(cuda))
    assert len(list((tmp_path / "kernels").iterdir())) == 1
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    make().compile(vector(cuda))
    assert len(list((tmp_path / "kernels").iterdir())) == 1
    assert "compiled before" in kernel_cache.stats().uncacheable["scale_kernel"]


def test_tensor_core_kernels_of_factories_are_kept(cuda):
    """The kernels that take longest: wgmma, made for a tile, with instructions and device functions in closures."""
    from numba.cuda import types

    from labkit.kernels.matmul.wgmma import make_wgmma

    maps, half = types.Array(types.uint64, 1, "C"), types.Array(types.float16, 2, "C")
    arguments = (maps, maps, maps, half, types.uint32, types.uint32, types.uint32)

    def make():
        lazy = make_wgmma(weights=False, bias=False)
        if device.on_gpu():
            return cuda.jit(launch_bounds=(256, 2))(lazy.py_func)
        return cuda.jit(launch_bounds=(256, 2))(compiling._for_gpu.__wrapped__(lazy.py_func, CAPABILITY))

    first = make().compile(arguments)
    second = make().compile(arguments)
    assert (kernel_cache.stats().hits, kernel_cache.stats().misses) == (1, 1), kernel_cache.stats()
    assert cubin_of(first) == cubin_of(second)
    assert b"wgmma_kernel" in second.entry_name.encode()


# --- Several processes ------------------------------------------------------------------------------------------------


@pytest.mark.sweep(every=True)
def test_workers_compile_what_is_needed_side_by_side(cuda, tmp_path):
    from numba.cuda import types

    kernels = [scale_by(cuda, factor) for factor in (2, 3, 4)]
    matrix = (types.Array(types.float32, 1, "C"),)
    seen = []
    needed = [(kernel, matrix) for kernel in [*kernels, kernels[0]]]
    compiled = compile_ahead.prepare(needed, workers=2, capability=CAPABILITY,
                                    progress=lambda done, of: seen.append((done, of)))
    assert compiled == 3 and seen[0] == (0, 3) and seen[-1] == (3, 3)
    for kernel in kernels:
        kernel.compile(matrix)
    assert (kernel_cache.stats().hits, kernel_cache.stats().misses) == (3, 0)
    assert compile_ahead.prepare(needed, workers=2, capability=CAPABILITY) == 0


@pytest.mark.sweep(every=True)
def test_workers_compile_kernels_with_instructions_of_their_own(cuda):
    from numba.cuda import types

    from labkit.device import ptx_gpu as ptx

    load = ptx.load_nc4

    @cuda.jit
    def first_of_four(a, out):
        x, y, z, w = load(a, types.uint32(0))
        out[0] = ptx.exp2_approx(x)

    arguments = (types.Array(types.float32, 1, "C"),) * 2
    assert compile_ahead.prepare([(first_of_four, arguments)], workers=1, capability=CAPABILITY) == 1
    first_of_four.compile(arguments)
    assert kernel_cache.stats().hits == 1, kernel_cache.stats()


@pytest.mark.sweep(every=True)
def test_a_kernel_that_does_not_compile_leaves_the_others(cuda):
    @cuda.jit
    def wrong(a):
        a[0] = a.no_such_attribute

    needed = [(wrong, vector(cuda)), (scale_by(cuda, 5), vector(cuda))]
    assert compile_ahead.prepare(needed, workers=1, capability=CAPABILITY) == 1


@pytest.mark.sweep(every=True)
def test_a_worker_that_is_killed_leaves_the_rest_to_the_others(cuda):
    needed = [(scale_by(cuda, factor), vector(cuda)) for factor in range(4)]
    plain, started = compile_ahead._start_worker, []

    def start():
        started.append(plain())
        if len(started) == 1:
            started[0].kill()
        return started[-1]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(compile_ahead, "_start_worker", start)
        assert compile_ahead.prepare(needed, workers=2, capability=CAPABILITY) == 3  # one went with its worker
    assert kernel_cache.stats().hits == 3 and kernel_cache.stats().misses == 1


@pytest.mark.sweep(every=True)
def test_an_interrupt_stops_the_workers(cuda, tmp_path):
    def interrupt(done, of):
        if done:
            raise KeyboardInterrupt

    needed = [(scale_by(cuda, factor), vector(cuda)) for factor in range(20)]
    with pytest.raises(KeyboardInterrupt):
        compile_ahead.prepare(needed, workers=1, capability=CAPABILITY, progress=interrupt)
    kept = list((tmp_path / "kernels").glob(f"*{SUFFIX}"))
    assert 1 <= len(kept) < 20
    assert all(kernel_cache.store().load(file.name.removesuffix(SUFFIX)) for file in kept)


PROCESS = """
import sys
from labkit import device
from labkit.device import compile_target, kernel_cache
cuda = device.numba_cuda()
from numba.cuda import dispatcher, types
dispatcher._Kernel.bind = lambda self: self._codelibrary.get_cubin()
FACTOR = float(sys.argv[1])

@cuda.jit(device=True)
def scaled(x):
    return x * FACTOR

@cuda.jit
def scale(a):
    a[0] = scaled(a[0])

with compile_target.as_if_on((9, 0)):
    kernel = scale.compile((types.Array(types.float32, 1, "C"),))
    cubin = kernel._codelibrary.get_cubin()
import hashlib
print(hashlib.sha256(cubin.code).hexdigest(), kernel_cache.stats().hits)
"""


@pytest.mark.sweep(every=True)
def test_processes_that_compile_the_same_at_once(cuda, tmp_path):
    script = tmp_path / "scale.py"
    script.write_text(textwrap.dedent(PROCESS))

    def start(factor):
        return subprocess.Popen([sys.executable, str(script), factor], stdout=subprocess.PIPE, text=True)

    def answers(*factors):
        started = [start(factor) for factor in factors]
        return [process.communicate(timeout=120)[0].split() for process in started]

    first, again = answers("2", "2", "3"), answers("2", "3")
    assert first[0][0] == first[1][0] != first[2][0]
    assert [hits for _, hits in again] == ["1", "1"]
    assert [cubin for cubin, _ in again] == [first[0][0], first[2][0]]
    assert len(list((tmp_path / "kernels").iterdir())) == 2


# --- What is needed ---------------------------------------------------------------------------------------------------


def test_what_would_be_launched_is_found_without_a_launch(cuda, monkeypatch):
    import numpy as np

    from labkit.device import launches
    from labkit.kernels.arguments import _allow_on_gpu

    monkeypatch.setattr(launches.device, "on_gpu", lambda: True)
    scale, other = scale_by(cuda, 2), scale_by(cuda, 3)

    def work():
        assert launches.imagined()
        scale[1, 32](np.ones(4, np.float32))
        scale[2, 64, 0, 8](np.ones(8, np.float32))
        _allow_on_gpu(other, 100_000, ())  # would compile it
        other[1, 32](np.ones(4))
        raise ValueError("what it read back makes no sense")

    found = launches.needed(work)
    assert [kernel for kernel, _ in found] == [scale, other] and not launches.imagined()
    assert [str(types[0]) for _, types in found] == ["array(float32, 1d, C)", "array(float64, 1d, C)"]
    assert not scale.overloads and kernel_cache.stats() == kernel_cache.Stats()
    assert found[0][1] in (scale.compile(found[0][1]) and scale.overloads)


@pytest.mark.cpu_device
def test_what_fails_at_once_needs_nothing():
    from labkit.device import launches

    assert launches.needed(lambda: 1 / 0) == []
    assert compile_ahead.prepare([]) == 0


@pytest.mark.gpu
def test_a_kernel_from_disk_computes_the_same(cuda):
    import numpy as np

    for hits in (0, 1):
        x = cuda.to_device(np.arange(100, dtype=np.float32))
        scale_by(cuda, 7)[1, 128](x)
        np.testing.assert_array_equal(x.copy_to_host(), 7 * np.arange(100))
        assert kernel_cache.stats().hits == hits


@pytest.mark.gpu
def test_a_model_is_prepared_by_workers(cuda, tmp_path):
    import numpy as np

    from labkit.models.configs import shapes
    from labkit.models.gpt2 import GPT2, Config, Workspace

    config = Config(vocab_size=64, n_positions=32, n_embd=48, n_layer=1, n_head=3)
    rng = np.random.default_rng(0)
    model = GPT2(config, {name: rng.random(shape, np.float32) for name, shape in shapes(config).items()})
    workspace = Workspace(config)
    needed = model.needed(workspace, 5)
    assert len(needed) > 5
    compile_ahead.prepare(needed)
    before = kernel_cache.stats().misses
    model.prefill([1, 2, 3, 4, 5], workspace)
    model.step(workspace)
    cuda.synchronize()
    assert kernel_cache.stats().misses == before, "a kernel was launched that was not foreseen"
