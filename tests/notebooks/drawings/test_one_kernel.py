"""The figures of the lesson "One kernel for a token", and its calculation: what a ring covers."""

import numpy as np
import pytest
from labkit.course.drawings.one_kernel import Phase, simulate, tiles_of

from labkit.course.drawings import one_kernel as pictures
from labkit.kernels.persistent.decoder import JOINS, Decoder

PNG = b"\x89PNG"
ASSUMED = {"kb_per_us": 10.0, "join_us": 2.0, "start_us": 1.0, "speed": 5.0}
DECODER = Decoder(hidden=2048, heads=32, kv_heads=8, head_dim=64, mlp=8192, vocab=128_256, eps=1e-5, scale=0.125)


def weights(*kb):
    return Phase("o", np.array(kb, float))


def test_blocks_take_tiles_in_turn():
    assert tiles_of(7, 3).tolist() == [3, 2, 2] and tiles_of(2, 3).tolist() == [1, 1, 0]


def test_the_bytes_of_a_layer():
    phases = pictures.decode_phases(DECODER, 132, attention_us=4.0)
    kb = sum(phase.kb.sum() for phase in phases)
    assert len(phases) == JOINS and kb == 2 * 2048 * (3072 + 2048 + 2 * 8192 + 8192) / 1e3


def test_without_a_ring_every_phase_starts_and_every_join_is_paid():
    first, second = simulate([weights(100, 50), weights(100, 50)], 0, **ASSUMED)
    assert first.end.tolist() == [11, 6] and second.begin.tolist() == [13, 13] and second.end.tolist() == [24, 19]


@pytest.mark.parametrize(("ring_kb", "covered"), [(20, 2), (15, 1.5), (1000, 2)])
def test_a_ring_covers_a_join_up_to_its_size(ring_kb, covered):
    _, second = simulate([weights(100), weights(100)], ring_kb, **ASSUMED)
    assert second.end[0] - second.begin[0] == pytest.approx(10 - covered)


def test_an_sm_that_finishes_early_copies_for_longer():
    _, second = simulate([weights(100, 50), weights(100, 100)], 1000, **ASSUMED)
    assert second.level[:, 0].tolist() == [20, 70]
    assert second.end[1] - second.begin[1] == pytest.approx(3)  # 70 of 100 KB were there


def test_weights_that_are_there_are_multiplied_at_the_sms_own_speed():
    attention = Phase("attention", np.zeros(1), 10.0)
    _, second = simulate([attention, weights(50)], 1000, **ASSUMED)
    assert second.end[0] - second.begin[0] == pytest.approx(50 / (5 * 10))
    assert second.level[0].tolist() == [120, 80]


def test_the_calculated_layer_as_a_figure():
    phases = pictures.decode_phases(DECODER, 132, attention_us=4.0)
    figure = pictures.with_and_without(phases, 200.0, shown=(0, 131), **ASSUMED | {"kb_per_us": 32.0})
    without, with_ring = (float(part.split(": ")[1].removesuffix(".").removesuffix(" us"))
                          for part in figure.summary.split("layer. ")[1].split("; "))
    assert with_ring < without and figure.png().startswith(PNG)


def test_a_recorded_layer():
    marks = np.cumsum(np.full((3, 2 * JOINS + 1), 1000), axis=1).tolist()
    figure = pictures.recorded_layer({"where": "NVIDIA H200", "date": "2026-11-29", "timelines": [
        {"sequences": 1, "middle_layer_ns": marks}, {"sequences": 8, "middle_layer_ns": marks}]})
    assert figure.summary == "Measured on NVIDIA H200, 2026-11-29: 1 sequence: 10.0 us; 8 sequences: 10.0 us."
    assert figure.png().startswith(PNG)
