"""What transformers' continuous batching brought in its time, counted with stand-ins for its manager."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from labkit.measure.series import transformers_batching
from labkit.measure.series.engine import Work
from labkit.measure.series.llama import TINY

WORK = [Work(np.arange(3), 2), Work(np.arange(5), 4)]


class Manager:
    """Hands out each request's tokens one by one, request after request; `silent` ones never."""

    def __init__(self, silent=(), error=None):
        self.silent, self.error, self.waiting, self.stopped = silent, error, [], False

    def start(self):
        pass

    def add_request(self, ids, request_id="first", max_new_tokens=1, streaming=False):
        assert isinstance(ids, list) and all(type(each) is int for each in ids)
        if request_id in self.silent:
            return
        for count in range(1, max_new_tokens + 1) if streaming else (max_new_tokens,):
            done = count == max_new_tokens
            self.waiting.append(SimpleNamespace(request_id=request_id, generated_tokens=[7] * count, error=self.error,
                                                is_finished=lambda done=done: done))

    def get_result(self, timeout):
        return self.waiting.pop(0) if self.waiting else None

    def stop(self, **_):
        self.stopped = True


@pytest.fixture
def served(monkeypatch):
    def run(manager, seconds):
        model = SimpleNamespace(eval=lambda: model, init_continuous_batching=lambda generation_config: manager)
        torch = SimpleNamespace(get_default_dtype=lambda: "float32", set_default_dtype=lambda dtype: None,
                                bfloat16="bfloat16", device=contextlib.nullcontext,
                                cuda=SimpleNamespace(empty_cache=lambda: None))
        transformers = SimpleNamespace(__version__="5", LlamaConfig=lambda **entries: entries,
                                       LlamaForCausalLM=lambda config: model,
                                       GenerationConfig=lambda **options: options)
        monkeypatch.setattr(transformers_batching.measure, "import_library",
                            {"torch": torch, "transformers": transformers}.get)
        found = transformers_batching.served_by_transformers(TINY, WORK, seconds)
        assert manager.stopped
        return found

    return run


@pytest.mark.sweep(every=True)
def test_all_tokens_of_requests_that_end_are_counted_once(served):
    found = served(Manager(), 10.0)
    assert (found["tokens"], found["ended"]) == (6, 2)
    assert found["tokens_per_second"] == pytest.approx(6 / found["seconds"])


@pytest.mark.sweep
def test_the_time_is_over_before_a_request_ends(served):
    found = served(Manager(silent=("1",)), 0.05)
    assert (found["tokens"], found["ended"]) == (2, 1) and 0.05 <= found["seconds"] < 5


@pytest.mark.sweep
def test_a_baseline_that_fails_says_why(served):
    assert "no memory" in served(Manager(error="no memory"), 1.0)["why not"]


def test_without_the_libraries_there_is_no_rate(monkeypatch):
    monkeypatch.setattr(transformers_batching.measure, "import_library", lambda name: None)
    assert "torch and transformers" in transformers_batching.served_by_transformers(TINY, WORK, 1.0)["why not"]
