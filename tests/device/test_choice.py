"""While a compiler is imported: no garbage collection, and threads that start the driver and the context."""

import gc
import threading
import types

import pytest

from labkit import device


def test_no_garbage_is_collected_while_a_compiler_is_imported():
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), device._no_collections():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > frozen
        gc.disable()
        with device._no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_context_is_created_in_a_thread_which_reports_no_error(monkeypatch):
    done, errors, before = threading.Event(), [], set(threading.enumerate())

    def current_context():
        done.set()
        raise RuntimeError("no memory")

    monkeypatch.setattr(threading, "excepthook", errors.append)
    monkeypatch.setattr(device, "gpu_cuda", lambda: types.SimpleNamespace(current_context=current_context))
    monkeypatch.setattr(device, "on_gpu", lambda: False)
    device.begin_context()
    assert not done.wait(0.05)
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    device.begin_context()
    assert done.wait(20)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert not errors
