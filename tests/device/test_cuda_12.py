"""Which compiler is loaded where the wheels of CUDA 12 and CUDA 13 are both installed."""

import types

import pytest

from labkit.device import cuda_12


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder `nvidia` as pip leaves it, with both; returns what was loaded."""
    (tmp_path / "cu13").mkdir()
    for name in cuda_12.LIBRARIES:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    loaded = []
    monkeypatch.setattr(cuda_12.sys, "platform", "linux")
    monkeypatch.setattr(cuda_12.importlib.util, "find_spec",
                        lambda name: types.SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    monkeypatch.setattr(cuda_12.ctypes, "CDLL", loaded.append)
    cuda_12.prefer_on_old_driver.cache_clear()
    yield tmp_path, loaded
    cuda_12.prefer_on_old_driver.cache_clear()


@pytest.mark.parametrize(("driver", "count"), [(12_040, 3), (13_000, 0), (None, 0)])
def test_a_driver_of_cuda_12_gets_its_compiler(wheels, monkeypatch, driver, count):
    folder, loaded = wheels
    monkeypatch.setattr(cuda_12, "_driver_version", lambda: driver)
    cuda_12.prefer_on_old_driver()
    assert loaded == [str(folder / name) for name in cuda_12.LIBRARIES][:count]


def test_nothing_is_loaded_where_only_one_is_installed(wheels):
    folder, _ = wheels
    (folder / "cu13").rmdir()
    assert cuda_12.libraries() == []
