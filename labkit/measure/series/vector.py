"""Vectors and volumes added: over sizes, and over shapes of a block. The series of lessons 01 and 03.

    vector_add_sizes()           the kernel alone, called from Python, with its copies, and NumPy, over sizes
    volume_add_block_shapes()    the 3D volume addition over shapes of its block
"""

from __future__ import annotations

import numpy as np

from labkit import cuda, device, measure
from labkit.measure import roofline, time_host, time_kernel
from labkit.measure.ops import op

BLOCK_SHAPES = ((1024, 1, 1), (256, 4, 1), (128, 8, 1), (64, 16, 1), (32, 32, 1), (32, 8, 4), (16, 8, 8), (8, 8, 16),
                (4, 16, 16), (2, 16, 32), (1, 16, 64), (1, 1024, 1), (256, 1, 1), (64, 4, 1), (32, 8, 1), (8, 8, 4),
                (4, 4, 4))


def vector_add_sizes(exponents=None, budget_s: float = 0.08) -> dict:
    """Vector addition over n = 2^10 ... : the kernel alone, called from Python, with its three copies, and NumPy.

    kernel_ms: CUDA events (the CPU device: wall clock). call_ms: wall clock of launch and synchronise. with_copies_ms:
    a and b to the device, the kernel, the result back, pageable memory, buffers allocated before.
    """
    from labkit.kernels.elementwise import vector_add_per_thread

    exponents = exponents or device.pick(gpu=range(10, 29), cpu=range(10, 21, 2))
    series = {"n": [], "kernel_ms": [], "call_ms": [], "with_copies_ms": [], "numpy_ms": []}
    rng = np.random.default_rng(0)
    limits = {"budget_s": budget_s, "min_runs": 3, "max_runs": 50}
    for n in measure.steps("vector_add over sizes", [2**e for e in exponents]):
        a, b = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32)
        out = np.empty_like(a)
        d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(b), cuda.device_array(n, np.float32)

        def call(d_a=d_a, d_b=d_b, d_out=d_out):
            vector_add_per_thread(d_a, d_b, d_out)

        def with_copies(a=a, b=b, out=out, d_a=d_a, d_b=d_b, d_out=d_out, call=call):
            d_a.copy_to_device(a)
            d_b.copy_to_device(b)
            call()
            d_out.copy_to_host(out)

        series["n"].append(n)
        series["kernel_ms"].append(time_kernel(call, **limits).p50)
        series["call_ms"].append(time_host(call, after=cuda.synchronize, **limits).p50)
        series["with_copies_ms"].append(time_host(with_copies, after=cuda.synchronize, **limits).p50)
        series["numpy_ms"].append(time_host(lambda a=a, b=b, out=out: np.add(a, b, out=out), **limits).p50)
    return measure.stamped(series)


def volume_add_block_shapes(size: dict | None = None, shapes=BLOCK_SHAPES, budget_s: float = 0.1) -> dict:
    """The 3D volume addition over shapes of its block."""
    volume_add = op("volume_add")
    launcher = volume_add.rung("volume_add_3d")
    size = size or device.pick(gpu=volume_add.work.timed_gpu, cpu={"nx": 64, "ny": 64, "nz": 64})
    arrays = [cuda.to_device(array) for array in volume_add.inputs(np.random.default_rng(0), **size)]
    out = cuda.device_array(volume_add.shape(**size), np.float32)
    times = []
    for block in measure.steps("volume_add over block shapes", list(shapes)):
        timing = time_kernel(lambda block=block: launcher(*arrays, out, block=block), budget_s=budget_s, max_runs=50)
        times.append(timing.p50)
    return measure.stamped({
        "blocks": [list(block) for block in shapes], "ms": times, "size": size,
        "gbs": [volume_add.work.bytes(**size) / ms / 1e6 for ms in times] if device.on_gpu() else None,
        "limit": roofline.limits().bandwidth_gbs,
    })
