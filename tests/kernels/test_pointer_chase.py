import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.pointer_chase import SHARED, chase, random_cycle
from labkit.measure.series.softmax import latencies


@pytest.mark.parametrize(("count", "spacing"), [(4096, 32), (96, 32), (7, 1), (32, 32)])
def test_a_chain_is_one_cycle_from_element_0(count, spacing):
    chain = random_cycle(count, spacing)
    visited, place = [], 0
    for _ in range(count // spacing):
        visited.append(int(place))
        place = chain[place]
    assert place == 0
    assert sorted(visited) == list(range(0, count - spacing + 1, spacing))


@pytest.mark.parametrize("shared", [False, True])
def test_the_chase_ends_where_the_chain_leads(shared):
    chain = random_cycle(SHARED)
    place = 0
    for _ in range(45):
        place = chain[place]
    out = cuda.to_device(np.zeros(1, np.uint32))
    chase(cuda.to_device(chain), 45, out, shared=shared)
    assert out.copy_to_host()[0] == place


def test_latencies_are_given_for_each_place():
    found = latencies({"shared memory": (4 * SHARED, 64), "memory": (2**14, 64)})
    assert list(found) == ["shared memory", "memory"]


def test_errors_name_the_argument():
    out = cuda.to_device(np.zeros(1, np.uint32))
    with pytest.raises(ValueError, match="in shared memory it must have 4,096"):
        chase(cuda.to_device(random_cycle(64)), 1, out, shared=True)
