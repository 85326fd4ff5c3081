"""The CPU device beside Numba's simulator and beside loops written by hand: what is drawn, compared and recorded. The
times are this machine's, and none is looked at."""

import json

import numpy as np
import pytest

from labkit.measure.series import simt_kernels, simt_speed
from labkit.simt import api as cuda

pytestmark = pytest.mark.cpu_device


def test_two_hundred_kernels_are_different_and_repeat():
    drawn = [simt_kernels.program(k) for k in range(200)]
    assert len(set(drawn)) == 200 and drawn == [simt_kernels.program(k) for k in range(200)]
    assert {simt_kernels.kind(k) for k in range(200)} == set(simt_kernels.KINDS)


@pytest.mark.sampled(1, sweep=99, quick="reduction")
@pytest.mark.parametrize("name", simt_kernels.PAIRS)
def test_a_kernel_computes_what_its_loop_does(name, tmp_path):
    """beside_loop compares them."""
    taken = simt_speed.beside_loop(cuda, tmp_path, name, 0)
    assert len(taken["kernel"]) == len(taken["loop"]) == 2


@pytest.mark.parametrize("k", range(10))
def test_a_kernel_of_each_kind_writes_its_output(k, tmp_path):
    taken = simt_speed.drawn(cuda, simt_kernels.OURS, tmp_path, k, 128, 1)
    out = np.array(taken["out"])
    assert out.shape == (128,) and np.isfinite(out).all() and out.any()


def row(threads, ours, simulator):
    return {"threads": threads, **{name: {how: [seconds, seconds / 2] for how in ("cold", "warm")}
                                   for name, seconds in (("ours", ours), ("simulator", simulator))}}


def test_ratios_are_medians_over_the_kernels_at_each_number_of_threads():
    rows = [row(64, 1.0, 2.0), row(64, 1.0, 4.0), row(64, 1.0, 9.0), row(1024, 0.5, 3.0)]
    found = {(each["how"], each["threads"]): each for each in simt_speed.ratios(rows)}
    assert found.keys() == {(how, threads) for how in ("cold", "warm") for threads in (64, 1024)}
    assert found["cold", 64]["wall"]["median"] == 4 and found["cold", 64]["cpu"]["median"] == 4
    assert found["cold", 64]["kernels"] == 3 and found["warm", 1024]["wall"]["median"] == 6
    assert found["cold", 64]["wall"]["least"] == 2 and found["cold", 64]["wall"]["most"] == 9


@pytest.mark.parametrize(("text", "counts"), [("7", (7, 7, 7)), ("9,3,1", (9, 3, 1))])
def test_numbers_of_kernels(text, counts):
    assert simt_speed.counts_of(text) == counts


@pytest.mark.parametrize("text", ["", "0", "1,2", "many", "1,2,3,4"])
def test_other_numbers_are_refused(text):
    with pytest.raises(ValueError, match="64, 1,024, 4,096 threads"):
        simt_speed.counts_of(text)


@pytest.mark.slow
def test_what_is_recorded(tmp_path):
    """Both devices, in processes of their own."""
    path = tmp_path / "simt" / "speed.json"
    assert simt_speed.main("2,1,1", record=path) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [each["kernels"] for each in found["ratios"]] == [2, 2, 1, 1, 1, 1]
    assert not found["differ"] and all(each["agree"] for each in found["rows"])
    assert [each["name"] for each in found["loops"]] == [*simt_kernels.PAIRS] and found["machine"]["numba-cuda"]
