"""The options of LLM and its engine: each that is wrong is named, with what it may be, before anything is loaded."""

import inspect
import re

import numpy as np
import pytest

from labkit.engine import LLM, options
from labkit.engine.llm_engine import LLMEngine
from labkit.measure.static_batching import StaticScheduler
from tests.engine.fake_model import FakeRunner

WHOLE, SWITCH = "it must be a whole number", "it must be True or False"
WRONG = [
    *(("model", value, TypeError, "it must be a model's name or folder, or a runner") for value in (
        5, None, b"tiny-llama", ["tiny-llama"])),
    *(("tokenizer", value, TypeError, "it must be a tokenizer") for value in (5, "gpt2", b"gpt2", [])),
    ("dtype", 5, TypeError, "for a Llama it must be 'auto', 'bfloat16', 'float16' or 'float32'"),
    ("dtype", "float8", ValueError, "for a Llama it must be 'auto', 'bfloat16', 'float16' or 'float32'"),
    *((name, value, TypeError, WHOLE) for name in ("max_num_seqs", "max_num_batched_tokens")
      for value in ("4", None, 4.0, True)),
    *(("max_num_seqs", value, ValueError, "it must be from 1 to 16,384") for value in (0, -1, 10**9)),
    *(("max_num_batched_tokens", value, ValueError, "it must be from 1 to 1,048,576") for value in (0, -1, 10**9)),
    *(("max_model_len", value, TypeError, WHOLE) for value in ("64", 64.0, True)),
    *(("max_model_len", value, ValueError, "it must be 2 or more") for value in (0, 1, -5)),
    *(("gpu_memory_utilization", value, TypeError, "it must be a number, more than 0 and at most 1") for value in (
        "0.9", True, None)),
    *(("gpu_memory_utilization", value, ValueError, "it must be more than 0 and at most 1") for value in (
        0, 1.1, -0.5, float("nan"))),
    *(("num_pages", value, TypeError, WHOLE) for value in ("8", 8.0, True)),
    ("num_pages", 0, ValueError, "it must be from 1 to"), ("num_pages", 2**31, ValueError, "it must be from 1 to"),
    *((name, value, TypeError, SWITCH) for name in ("enforce_eager", "one_kernel", "enable_prefix_caching", "overlap")
      for value in ("no", 1, 0, [])),
    *(("seed", value, TypeError, WHOLE) for value in ("x", 1.5, True)),
    *((name, value, TypeError, "it must be a function, or a class") for name in ("compiling", "blocks")
      for value in (5, "x")),
    *(("scheduler", value, TypeError, "it must be Scheduler or a class derived from it") for value in (5, None, int)),
]
OF_ENGINE = [each for each in WRONG if each[0] in inspect.signature(LLMEngine).parameters]


@pytest.mark.parametrize(("name", "value", "kind", "allowed"), WRONG)
def test_what_cannot_be_is_named_before_anything_is_loaded(name, value, kind, allowed):
    with pytest.raises(kind, match=f"^{name} is {re.escape(repr(value))}; {re.escape(allowed)}"):
        LLM(**{"model": "no/such/folder", name: value})


@pytest.mark.parametrize(("name", "value", "kind", "allowed"), OF_ENGINE)
def test_and_by_the_engine_itself(name, value, kind, allowed):
    with pytest.raises(kind, match=f"^{name} is {re.escape(repr(value))}; {re.escape(allowed)}"):
        LLMEngine(FakeRunner(30), **{name: value})


def test_no_option_is_forgotten():
    assert set(options.CHECKS) - {"pad_prompts"} == set(inspect.signature(LLM).parameters) == {
        name for name, *_ in WRONG}


def test_numbers_of_numpy_and_vllms_defaults_are_taken():
    llm = LLM(FakeRunner(30), max_num_seqs=np.int64(4), max_num_batched_tokens=np.uint16(16), seed=None,
              enable_prefix_caching=None, overlap=np.False_, scheduler=StaticScheduler)
    assert type(llm.engine.scheduler.max_num_seqs) is int and llm.engine.seed == 0
    assert llm.engine.blocks.prefix_caching is True and llm.engine.overlap is False
    assert options.checked(num_pages=None, max_model_len=None, compiling=None, tokenizer=None) == {
        "num_pages": None, "max_model_len": None, "compiling": None, "tokenizer": None}
