"""Invented measurements, for tests of plots and tables. Never shown to a reader."""

from dataclasses import asdict

from labkit.measure import CPU_DEVICE, Ladder, LadderRow, Timing, roofline
from labkit.measure.ops import op
from labkit.measure.timing import HOST_CPU

GPU = "NVIDIA Imaginary"
MACHINE = {"device": GPU, "kind": "gpu", "date": "2026-01-02", "gpu": GPU, "driver": "1.2", "cuda_runtime": "13.0",
           "numba-cuda": "0.30.4", "numpy": "2.4.6", "torch": None, "cupy": None}
LIMITS = {"gpu": GPU, "bandwidth_gbs": 1000.0, "fp32_tflops": 10.0, "source": "measured"}


def timing(ms, where=GPU):
    return Timing(0.98 * ms, ms, 1.05 * ms, 20, where)


def ladder(op="vector_add", unit="GB/s", on_gpu=True, flops=10**9, nbytes=12 * 10**9):
    """Two rungs and a baseline at 40 %, 80 % and 90 % of the limit, and NumPy."""
    bytes_ms, flops_ms = nbytes / 1e9, flops / 1e10
    bound = max(bytes_ms, flops_ms)
    where = GPU if on_gpu else CPU_DEVICE
    rows = []
    shares = ((f"{op}_slow", "rung", 0.4), (f"{op}_fast", "rung", 0.8), ("NumPy, on the host", "host", 0.01),
              ("PyTorch", "baseline", 0.9))
    for name, kind, share in shares:
        if kind == "baseline" and not on_gpu:
            continue
        ms = bound / share
        rows.append(LadderRow(
            name, "an idea", kind, timing(ms, where if kind != "host" else "host CPU"),
            gbs=nbytes / ms / 1e6 if on_gpu else None, tflops=flops / ms / 1e9 if on_gpu else None,
            fraction=share if on_gpu and kind != "host" else None, error=1e-7, error_units=0.3,
            kernels=(f"{name}_kernel",) if kind == "rung" else ()))
    limit = nbytes / bound / 1e6 if unit == "GB/s" else flops / bound / 1e9
    return Ladder(op, "Vector addition" if op == "vector_add" else "Matrix multiplication", {"n": 10**9}, unit, where,
                  flops, nbytes, bound, "bytes" if bytes_ms >= flops_ms else "flops", limit, "copy bandwidth",
                  tuple(rows), LIMITS, MACHINE)


def recording(**series) -> dict:
    """A recording of these series alone."""
    return {"machine": {"device": "x", "date": "2026-01-02"}, "limits": {}, "ops": {}, "series": series}


def crossover(on_gpu=True):
    ns = [2**e for e in range(10, 21, 2)]
    return {"n": ns, "kernel_ms": [0.002 + n / 1e8 for n in ns], "call_ms": [0.05 + n / 1e8 for n in ns],
            "with_copies_ms": [0.2 + n / 1e6 for n in ns], "numpy_ms": [0.0005 + n / 2e6 for n in ns],
            "where": GPU if on_gpu else CPU_DEVICE, "date": "2026-01-02"}


def block_shapes(on_gpu=True):
    return {"blocks": [[16, 8, 8], [4, 4, 4], [256, 1, 1]], "ms": [2.0, 4.0, 1.0],
            "gbs": [500.0, 250.0, 900.0] if on_gpu else None, "limit": 1000.0, "size": {"nx": 8, "ny": 8, "nz": 8},
            "where": GPU if on_gpu else CPU_DEVICE, "date": "2026-01-02"}


def matmul_sizes(on_gpu=True):
    lines = [{"name": "matmul_naive", "kind": "rung", "ms": [4.0, 9.0], "rate": [1.0, 2.0]},
             {"name": "NumPy, on the host", "kind": "host", "ms": [1.0, 2.0], "rate": [0.1, 0.2]},
             {"name": "PyTorch (cuBLAS)", "kind": "baseline", "ms": [0.5, 1.0], "rate": [6.0, 8.0]}]
    return {"op": "matmul", "title": "Matrix multiplication", "x": [256, 512], "x_label": "M = N = K", "lines": lines,
            "unit": "TFLOP/s", "limit": 10.0, "limit_name": "float32 peak", "where": GPU if on_gpu else CPU_DEVICE,
            "date": "2026-01-02"}


def measurements():
    return {"schema": 1, "machine": MACHINE, "limits": LIMITS,
            "ops": {"vector_add": [ladder().to_json()],
                    "matmul": [ladder("matmul", "TFLOP/s", flops=10**12, nbytes=10**7).to_json()]},
            "series": {"vector_add_sizes": crossover(), "volume_add_block_shapes": block_shapes(),
                       "matmul_sizes": matmul_sizes()}}


CARD = "NVIDIA GeForce RTX 4060"
CARD_MACHINE = {"device": CARD, "kind": "gpu", "gpu": CARD, "compute_capability": "8.9", "sms": 24, "l2_mb": 24,
                "driver": "580.65.06", "cuda_driver": "13.0", "cuda_runtime": "13.0", "date": "2026-01-02",
                "python": "3.12.3", "labkit": "0.1.0", "numba": "0.68.0", "numba-cuda": "0.30.4", "numpy": "2.5.2",
                "torch": "2.11.0+cu130", "cupy": None, "triton": None, "host": "x86_64, 16 cores"}
CARD_LIMITS = roofline.Limits(CARD, 251.0, 14.5, "measured", 14.0, 28.0)


def card(*ops, gpu=CARD, machine=CARD_MACHINE, limits=CARD_LIMITS):
    """A second GPU's recording of real operations at the sizes that they are timed at, as `labkit bench` writes it."""
    machine = {**machine, "device": gpu, "gpu": gpu}
    return {"schema": 1, "machine": machine, "limits": {**asdict(limits), "gpu": gpu}, "series": {},
            "ops": {name: [_ladder_of(op(name), machine, limits).to_json()]
                    for name in ops or ("vector_add", "matmul")}}


def _ladder_of(operation, machine, limits):
    gpu, size = machine["device"], operation.work.timed_gpu
    bound = roofline.bound(operation, size, roofline.Limits(**{**asdict(limits), "gpu": gpu}))
    names = [(rung.__name__, "rung") for rung in operation.rungs]
    names += [(baseline.title, "host") for baseline in operation.baselines if baseline.library == "numpy"]
    rows = []
    for i, (name, kind) in enumerate(names):
        ms = bound.time_ms * (len(names) + 1) / (i + 2) if kind == "rung" else 1000 * bound.time_ms
        rows.append(LadderRow(name, "an idea", kind, timing(ms, gpu if kind == "rung" else HOST_CPU),
                              graph=timing(ms, f"{gpu}, in a CUDA graph") if kind == "rung" and ms < 1 else None,
                              gbs=bound.bytes / ms / 1e6, tflops=bound.flops / ms / 1e9,
                              fraction=bound.time_ms / ms if kind == "rung" else None, error=1e-7, error_units=0.3,
                              kernels=(f"{name}_kernel",)))
    unit = operation.work.unit
    return Ladder(operation.name, operation.title, size, unit, gpu, bound.flops, bound.bytes, bound.time_ms,
                  bound.binds, bound.rate(unit), bound.label, tuple(rows), asdict(bound.limits), machine,
                  operation.work.peak)
