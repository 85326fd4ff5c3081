"""What the lessons on libraries show, measured: products by cuBLAS, softmax row by row, one job in three languages.

Each function returns a dictionary for JSON, with where and when it was measured. `labkit bench` records them.
"""

import re
import sys

import numpy as np
from numba import uint32

from labkit import cuda, device, measure
from labkit.kernels.agree import Sample, poison_of
from labkit.kernels.arguments import blocks_for
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.libraries import blas, blas_softmax
from labkit.kernels.libraries import cutile as tile_kernels
from labkit.kernels.op import uniform

SAMPLE = 64  # rows of a large product that are compared with float64


@cuda.jit
def convert_kernel(x, out):
    i = uint32(cuda.grid(1))
    if i < x.size:
        out[i] = x[i]


def convert(x, out) -> None:
    """out = x in out's type, element by element: float32 to float16 or back."""
    convert_kernel[blocks_for((x.size,), (256,)), 256](x.reshape(x.size), out.reshape(x.size))


def library_products(size: int | None = None, budget_s: float = 0.3) -> dict:
    """A product of square matrices by cuBLAS in four precisions, and by PyTorch: time, rate, relative error.

    The error is ||out - truth|| / ||truth|| over the first rows; the truth is of the float32 inputs, in float64.
    """
    size = size or device.pick(gpu=4096, cpu=192)
    rng = np.random.default_rng(0)
    host_a, host_b = uniform(rng, size, size), uniform(rng, size, size)
    sample = min(size, SAMPLE)
    truth = host_a[:sample].astype(np.float64) @ host_b.astype(np.float64)
    a, b = cuda.to_device(host_a), cuda.to_device(host_b)
    float16_arrays = [cuda.to_device(x.astype(np.float16)) for x in (host_a, host_b)]
    brains = [cuda.to_device(bfloat16_of(x)) for x in (host_a, host_b)]
    out, half_out, brain_out = (cuda.device_array((size, size), dtype) for dtype in (np.float32, np.float16, np.uint16))

    def with_conversion():
        convert(a, float16_arrays[0])
        convert(b, float16_arrays[1])
        blas.matmul(*float16_arrays, half_out)
        convert(half_out, out)

    library = "cuBLAS" if device.on_gpu() else "model"
    rows = []

    def add(name, call, fetch):
        call()
        cuda.synchronize()
        result = fetch()[:sample]
        error = float(np.linalg.norm(result - truth) / np.linalg.norm(truth))
        ms = measure.time_kernel(call, budget_s=budget_s, max_runs=50).p50
        rows.append({"name": name, "ms": ms, "tflops": 2 * size**3 / ms / 1e9 if device.on_gpu() else None,
                     "relative_error": error})

    add(f"{library} SGEMM", lambda: blas.matmul(a, b, out), lambda: out.copy_to_host().astype(np.float64))
    add(f"{library} GEMM f16, sums f32", lambda: blas.matmul(*float16_arrays, half_out),
        lambda: half_out.copy_to_host().astype(np.float64))
    add("the same, and the conversions", with_conversion, lambda: out.copy_to_host().astype(np.float64))
    if device.on_gpu():  # the model adds float16 values one product after another
        add(f"{library} GEMM f16, sums f16", lambda: blas.matmul(*float16_arrays, half_out, accumulate="f16"),
            lambda: half_out.copy_to_host().astype(np.float64))
    add(f"{library} GEMM bf16, sums f32", lambda: blas.matmul(*brains, brain_out),
        lambda: float32_of(brain_out.copy_to_host()).astype(np.float64))
    if device.on_gpu() and (cupy := measure.import_library("cupy")) is not None:
        x, y, z = (cupy.asarray(array) for array in (a, b, out))
        add("cupy.matmul, float32", lambda: cupy.matmul(x, y, out=z), lambda: out.copy_to_host().astype(np.float64))
    if device.on_gpu() and (torch := measure.import_library("torch")) is not None:
        for name, dtype in (("float32", torch.float32), ("float16", torch.float16), ("bfloat16", torch.bfloat16)):
            x, y = (torch.as_tensor(array, device="cuda").to(dtype) for array in (a, b))
            z = torch.empty_like(x)
            add(f"torch.matmul, {name}", lambda x=x, y=y, z=z: torch.matmul(x, y, out=z),
                lambda z=z: z.double().cpu().numpy())
    return measure.stamped({"size": size, "rows": rows, "source": blas.source()})


def bf16_projection(M: int = 5, N: int = 512, K: int = 2048) -> dict:
    """x (M, K) times w (N, K) transposed, in bfloat16 with accumulators in float32, as a language model's layers need
    it."""
    rng = np.random.default_rng(1)
    x, w = bfloat16_of(uniform(rng, M, K)), bfloat16_of(uniform(rng, N, K))
    truth = float32_of(x).astype(np.float64) @ float32_of(w).astype(np.float64).T
    d_x, d_w, out = cuda.to_device(x), cuda.to_device(w), cuda.device_array((M, N), np.uint16)
    blas.linear(d_x, d_w, out)
    result = float32_of(out.copy_to_host()).astype(np.float64)
    series = {"M": M, "N": N, "K": K, "max_error": float(np.abs(result - truth).max()),
              "relative_error": float(np.linalg.norm(result - truth) / np.linalg.norm(truth)), "source": blas.source()}
    torch = measure.torch_on_gpu()
    if torch is not None:
        t_x, t_w = (torch.as_tensor(array, device="cuda").view(torch.bfloat16) for array in (d_x, d_w))
        torch_out = (t_x @ t_w.T).double().cpu().numpy()
        series |= {"torch_max_difference": float(np.abs(result - torch_out).max()),
                   "torch_equal": float((result == torch_out).mean())}
    return measure.stamped(series)


def softmax_check(rows: int = 128, cols: int = 128) -> dict:
    """The article's own test: numbers in [-10, 10], every element within 1e-5, and the sum of the first row."""
    x = np.random.default_rng(2).uniform(-10, 10, (rows, cols)).astype(np.float32)
    truth = blas_softmax.SOFTMAX.reference(x)
    rungs = []
    for launcher in blas_softmax.BLAS_SOFTMAX.rungs:
        out = cuda.device_array(x.shape, np.float32)
        launcher(cuda.to_device(x), out)
        result = out.copy_to_host()
        rungs.append({"name": launcher.__name__, "max_difference": float(np.abs(result - truth).max()),
                      "first_row_sum": float(result[0].sum())})
    return measure.stamped({"rows": rows, "cols": cols, "found": rungs, "source": blas.source()})


def softmax_rows(counts=None, cols: int = 1024, budget_s: float = 0.2) -> dict:
    """Milliseconds over the number of rows, wall clock with a synchronise: the loops over rows, and one launch."""
    counts = list(counts or device.pick(gpu=(1, 4, 16, 64, 256, 1024), cpu=(1, 2, 4, 8, 16)))
    one_launch = blas_softmax.SOFTMAX.rung("softmax_warp")
    launchers = [*blas_softmax.BLAS_SOFTMAX.rungs, one_launch]
    lines = {launcher.__name__: [] for launcher in launchers}
    torch = measure.torch_on_gpu()
    if torch is not None:
        lines["torch.softmax"] = []
    rng = np.random.default_rng(3)
    for count in measure.steps("softmax by BLAS over rows", counts):
        x = cuda.to_device(8 * uniform(rng, count, cols))
        out = cuda.device_array((count, cols), np.float32)
        calls = {launcher.__name__: (lambda f=launcher: f(x, out)) for launcher in launchers}  # noqa: B023
        if torch is not None:
            t_x = torch.as_tensor(x, device="cuda")
            calls["torch.softmax"] = lambda t_x=t_x: torch.softmax(t_x, dim=1)
        for name, call in calls.items():
            timing = measure.time_host(call, after=cuda.synchronize, budget_s=budget_s, min_runs=3, max_runs=30)
            lines[name].append(timing.p50)
    return measure.stamped({"rows": counts, "cols": cols, "source": blas.source(),
                            "lines": [{"name": name, "ms": ms} for name, ms in lines.items()]})


def three_languages(budget_s: float = 0.3) -> dict | None:
    """Vector addition and softmax by the course's kernel, by Triton, by cuTile and by PyTorch. None without a GPU."""
    torch = measure.torch_on_gpu()
    if torch is None:
        return None
    from labkit.kernels.libraries import triton as triton_kernels
    from labkit.kernels.ops.elementwise import VECTOR_ADD

    add, softmax = VECTOR_ADD, blas_softmax.SOFTMAX
    plain, best = add.rungs[0], add.rungs[-1]
    jobs = [
        _language(add, {"n": 2**28}, [
            (f"Numba, {plain.__name__}", plain, "numba"), (f"Numba, {best.__name__}", best, "numba"),
            ("Triton", triton_kernels.vector_add_triton, "torch"), ("cuTile", tile_kernels.vector_add_cutile, "torch"),
            ("PyTorch", lambda a, b, out: torch.add(a, b, out=out), "torch")], budget_s),
        _language(softmax, {"R": 8192, "C": 8192}, [
            (f"Numba, {softmax.rungs[-1].__name__}", softmax.rungs[-1], "numba"),
            ("Triton", triton_kernels.softmax_triton, "torch"), ("cuTile", tile_kernels.softmax_cutile, "torch"),
            ("PyTorch", lambda x, out: torch.softmax(x, dim=1, out=out), "torch"),
            ("torch.compile", torch.compile(lambda x, out: torch.softmax(x, dim=1)), "torch")], budget_s),
    ]
    return measure.stamped({"jobs": jobs, "cutile": tile_kernels.why_not(), "triton": triton_kernels.why_not(),
                            "versions": _versions(), "triton_code": _triton_code()})


def tile_sizes(n: int = 2**27, budget_s: float = 0.2) -> dict | None:
    """Vector addition by cuTile and Triton over the size of a tile, 16 and up. None where neither runs.

    A grid of cuTile has fewer than 2^24 blocks along an axis: 2^28 elements would be too many for tiles of 16.
    """
    torch = measure.torch_on_gpu()
    if torch is None:
        return None
    from labkit.kernels.libraries import triton as triton_kernels

    sizes = [2**e for e in (4, 5, 6, 7, 8, 9, 10, 11, 12)]
    a, b, out = (torch.ones(n, device="cuda") for _ in range(3))
    lines = []
    for name, launch, absent in (("cuTile", tile_kernels.vector_add_cutile, tile_kernels.why_not()),
                                 ("Triton", triton_kernels.vector_add_triton, triton_kernels.why_not())):
        if absent:
            continue
        ms = [measure.time_kernel(lambda s=size, f=launch: f(a, b, out, s), budget_s=budget_s,
                                  max_runs=20).p50 for size in sizes]
        lines.append({"name": name, "ms": ms, "gbs": [12 * n / t / 1e6 for t in ms]})
    return measure.stamped({"n": n, "tiles": sizes, "lines": lines}) if lines else None


HINTS = ({}, {"occupancy": 2}, {"occupancy": 4}, {"occupancy": 8}, {"num_worker_warps": 8},
         {"num_worker_warps": 8, "occupancy": 2})


def tile_hints(rows: int = 8192, cols: int = 8192, budget_s: float = 0.2) -> dict | None:
    """cuTile's softmax with hints for its compiler: blocks to a multiprocessor, warps that compute. None without it."""
    if tile_kernels.why_not():
        return None
    x = cuda.to_device(8 * uniform(np.random.default_rng(4), rows, cols))
    truth, out = cuda.device_array((rows, cols), np.float32), cuda.device_array((rows, cols), np.float32)
    tile_kernels.softmax_cutile(x, truth)
    results = []
    for hints in HINTS:
        ms = measure.time_kernel(lambda hints=hints: tile_kernels.softmax_cutile(x, out, **hints), budget_s=budget_s,
                                 max_runs=30).p50
        same = float(np.abs(out.copy_to_host() - truth.copy_to_host()).max())
        results.append({"hints": hints, "ms": ms, "gbs": 8 * rows * cols / ms / 1e6, "max_difference": same})
    return measure.stamped({"rows": rows, "cols": cols, "found": results})


def _language(op, size: dict, ways: list, budget_s: float) -> dict:
    """Each way checked and timed with cold caches, on the same arrays. A library that cannot run here is left out."""
    import torch

    from labkit.kernels.libraries import triton as triton_kernels

    absent = {"Triton": triton_kernels.why_not(), "cuTile": tile_kernels.why_not()}
    inputs = op.inputs(np.random.default_rng(0), **size)
    arrays = [cuda.to_device(array) for array in inputs]
    out = cuda.device_array(op.shape(**size), np.float32)
    tensors = [torch.as_tensor(array, device="cuda") for array in (*arrays, out)]
    host = cuda.pinned_array(op.shape(**size), np.float32)
    host[...] = poison_of(np.float32)
    poison = cuda.to_device(host)
    sample = Sample(op, inputs, shape=host.shape)
    rows = []
    for name, call, kind in ways:
        if absent.get(name):
            continue
        args = (*arrays, out) if kind == "numba" else tensors
        out.copy_to_device(poison)
        try:
            returned = call(*args)
            torch.cuda.synchronize()
        except Exception as error:  # a library that fails is left out, and named
            print(f"{name} was not measured: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        wrote = returned is None or returned is tensors[-1]
        verdict = sample.check(out.copy_to_host(host) if wrote else returned.cpu().numpy())
        if verdict.problem:
            raise AssertionError(f"{name}: {verdict.problem}")
        ms = measure.time_kernel(lambda call=call, args=args: call(*args), budget_s=budget_s, max_runs=50).p50
        rows.append({"name": name, "ms": ms, "gbs": op.work.bytes(**size) / ms / 1e6, "error_units": verdict.units})
    return {"op": op.name, "size": size, "rows": rows}


def _versions() -> dict:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in ("triton", "cuda-tile", "nvidia-cuda-tileiras", "torch", "numba-cuda"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _triton_code() -> dict:
    """What Triton's compiler made of the additions: registers, and the loads in its PTX."""
    from labkit.kernels.libraries import triton as triton_kernels

    kernels = {}
    if triton_kernels.why_not():
        return kernels
    for name in ("add_kernel", "softmax_kernel"):
        try:
            caches = getattr(triton_kernels, name).device_caches
            (compiled, *_) = [c for cache in caches.values() for c in cache[0].values()]
            ptx = compiled.asm["ptx"]
            kernels[name] = {"registers": compiled.n_regs, "spills": compiled.n_spills,
                             "warps": compiled.metadata.num_warps, "shared_bytes": compiled.metadata.shared,
                             "vector_loads": len(re.findall(r"ld\.global[.\w:]*\.v4", ptx)),
                             "loads": len(re.findall(r"ld\.global", ptx))}
        except Exception as error:  # Triton's insides move from version to version
            kernels[name] = {"problem": f"{type(error).__name__}: {error}"}
    return kernels
