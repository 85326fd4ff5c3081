"""The kernels of the machine compute what their docstrings say, whatever the warps, loads and registers."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.kernels import machine


def out_of(count: int, dtype=np.float32):
    return cuda.to_device(np.full(count, 7, dtype))


def test_two_branches_count_up_and_down():
    side = (np.arange(128) % 3 == 1).astype(np.uint32)
    out = out_of(128)
    machine.two_branches(cuda.to_device(side), 5, out, block=64)
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(128) % 64 + np.where(side, -5, 5))


@pytest.mark.parametrize("ways", [1, 3, 32])
def test_each_thread_has_its_turn(ways):
    out = out_of(64)
    machine.many_branches(cuda.to_device((np.arange(64) % ways).astype(np.uint32)), ways, 6, out, block=32)
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(64) % 32 + 6)


@pytest.mark.parametrize(("name", "side", "divergent"), [("lanes", np.arange(128) % 2, 4),
                                                         ("warps", np.arange(128) // 32 % 2, 0)])
@pytest.mark.cpu_device
def test_lanes_that_differ_split_every_warp_and_warps_that_differ_none(name, side, divergent):
    report = observe(machine.two_branches_kernel[2, 64], cuda.to_device(side.astype(np.uint32)), np.uint32(0),
                     machine.ONE, machine.ONE, -machine.ONE, out_of(128))
    assert report.counts["divergent_branches"] == divergent


@pytest.mark.parametrize("chains", [1, 4])
def test_chains_add_up(chains):
    out = out_of(96)
    machine.run_chains(chains, 32, out, block=32, shared_bytes=60_000)
    np.testing.assert_array_equal(out.copy_to_host(), chains * (np.arange(96) % 32 + 32))


@pytest.mark.parametrize("case", [
    {"window": 256, "rounds": 3}, {"window": 1024, "rounds": 2, "loads": 4}, {"window": 128, "rounds": 5, "loads": 8},
    {"window": 512, "rounds": 2, "loads": 4, "wide": True}, {"window": 64, "rounds": 3, "loads": 2, "apart": False},
], ids=str)
def test_reading_adds_what_the_reference_adds(case):
    x, out = cuda.to_device(np.zeros(1024, np.uint32)), out_of(128, np.uint32)
    machine.fill_hash(x)
    machine.read(x, case["window"], case["rounds"], out, block=32, **{key: case[key] for key in case
                                                                     if key not in ("window", "rounds")})
    rows = x.copy_to_host()
    assert rows[3] == 3 * machine.HASH % 2**32
    expected = machine.read_reference(np.arange(128), block=32, **case)
    np.testing.assert_array_equal(out.copy_to_host(), expected)
    threads, each = 5, 4 if case.get("wide") else 1  # the reference itself, element by element
    loads, rounds = case.get("loads", 1), case["rounds"]
    at = threads * each + 32 * each * np.arange(rounds * loads)[:, None] + np.arange(each)
    assert expected[threads] == rows[at % case["window"]].sum(dtype=np.uint32)


def test_reading_shared_memory_is_reading_the_same_window():
    out = out_of(64, np.uint32)
    machine.read_shared(3, out, block=32)
    expected = machine.read_reference(np.arange(64), machine.SHARED_WORDS, 3, loads=machine.SHARED_LOADS, wide=True,
                                      block=32, apart=False)
    np.testing.assert_array_equal(out.copy_to_host(), expected)


@pytest.mark.parametrize("registers", [None, 32])
def test_many_values_are_the_same_with_fewer_registers(registers):
    out = out_of(64)
    machine.many_values(5, out, registers=registers, block=32)
    np.testing.assert_array_equal(out.copy_to_host(), 64 * (np.arange(64) % 32 + 5) + 2016)


def test_errors_name_the_argument():
    x, out = cuda.to_device(np.zeros(64, np.uint32)), out_of(64, np.uint32)
    with pytest.raises(ValueError, match="window is 48; it must be a power of 2"):
        machine.read(x, 48, 1, out, block=32)
    with pytest.raises(ValueError, match="window is 128"):
        machine.read(x, 128, 1, out, block=32)
    with pytest.raises(ValueError, match="window is 64; it must be a multiple of the 128 elements"):
        machine.read(x, 64, 1, out, block=32, wide=True)
    with pytest.raises(ValueError, match="block is 96; 256 must be a multiple of it"):
        machine.read_shared(1, out, block=96)
    with pytest.raises(ValueError, match="steps is 9; it must be a multiple of 16"):
        machine.run_chains(1, 9, out_of(32), block=32)
    with pytest.raises(ValueError, match="side has 64 elements; it must have a multiple of the block's 48"):
        machine.two_branches(x, 1, out_of(64), block=48)
