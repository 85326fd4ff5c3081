import pytest

from labkit import device
from labkit.device import occupancy
from labkit.device.occupancy import H200, L4


def test_the_table_of_the_source():
    """58 multiprocessors, 1,536 threads each; 8 warps and 256 bytes a block: 6 blocks, every thread taken."""
    assert occupancy.blocks(L4, threads=256, registers=32, shared_bytes=256) == 6
    assert occupancy.occupancy(L4, threads=256, registers=32, shared_bytes=256) == 1.0


@pytest.mark.parametrize(("threads", "registers", "shared_bytes", "blocks", "scarce"), [
    (256, 32, 0, 8, "threads"), (256, 33, 0, 6, "registers"), (256, 64, 0, 4, "registers"), (32, 16, 0, 32, "blocks"),
    (1024, 32, 0, 2, "threads"), (256, 32, 100_000, 2, "shared memory"), (128, 48, 0, 10, "registers"),
    (128, 32, 45_568, 5, "shared memory"), (128, 32, 45_569, 4, "shared memory"),  # and 1,024 for itself, by 128s
    (96, 33, 0, 16, "registers"),  # registers for 51 warps, of which four schedulers hold 12 each: 48
])
def test_the_scarcest_resource_sets_the_limit(threads, registers, shared_bytes, blocks, scarce):
    assert occupancy.blocks(H200, threads, registers, shared_bytes) == blocks
    allowed = occupancy.limits(H200, threads, registers, shared_bytes)
    assert allowed[scarce] == blocks


@pytest.mark.skipif(not device.on_gpu(), reason="needs a GPU: its driver counts for itself")
def test_the_driver_counts_the_same():
    import numpy as np

    from labkit import cuda
    from labkit.device import launches
    from labkit.kernels.ops.masked_softmax import LAUNCHERS

    scores, out = cuda.to_device(np.ones((1, 1024, 1024), np.float32)), cuda.device_array((1, 1024, 1024), np.float32)
    for launch in LAUNCHERS:
        for one in launches.of(launch, scores, out):
            taken = launches.resources(one)
            assert occupancy.blocks(occupancy.of_device(), one.threads, taken["registers"],
                                    taken["shared_bytes"]) == taken["blocks_per_sm"]
