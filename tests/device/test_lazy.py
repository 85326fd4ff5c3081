"""Kernels of a factory are built when they are first used, and importing every operation builds none."""

import json
import subprocess
import sys

import numpy as np
import pytest

from labkit import cuda
from labkit.device.lazy import LazyKernel, built, kernel_factory

built_for = []


@kernel_factory
def make_scale(factor):
    built_for.append(factor)

    @cuda.jit
    def scale_kernel(x):
        x[cuda.grid(1)] *= factor

    scale_kernel.threads = 4
    return scale_kernel


@kernel_factory
def make_two():
    @cuda.jit
    def first_kernel(x):
        x[cuda.grid(1)] += 1

    @cuda.jit
    def second_kernel(x):
        x[cuda.grid(1)] += 2

    return first_kernel, second_kernel


def test_a_kernel_is_built_at_its_first_use_and_once():
    scale = make_scale(3)
    assert scale is make_scale(3) and scale is not make_scale(5)
    assert (scale.__name__, repr(scale), built_for) == ("scale_kernel", "<kernel scale_kernel, not built yet>", [])
    x = cuda.to_device(np.ones(4, np.float32))
    scale[1, 4](x)
    scale[1, 4](x)
    np.testing.assert_array_equal(x.copy_to_host(), 9)
    assert built_for == [3] and scale.threads == 4
    assert built(scale) is built(make_scale(3)) and built(built(scale)) is built(scale)


def test_a_factory_of_two_kernels_gives_two():
    first, second = make_two()
    assert (first.__name__, second.__name__) == ("first_kernel", "second_kernel")
    x = cuda.to_device(np.zeros(4, np.float32))
    first[1, 4](x)
    second[1, 4](x)
    np.testing.assert_array_equal(x.copy_to_host(), 3)


def test_a_factory_without_a_kernel_is_refused():
    with pytest.raises(TypeError, match="make_nothing defines no function whose name ends with _kernel"):
        @kernel_factory
        def make_nothing():
            return None


def test_an_attribute_that_no_kernel_has():
    with pytest.raises(AttributeError):
        make_scale(7).no_such_thing  # noqa: B018


IMPORTS = """
import builtins, gc, importlib, json, pkgutil, sys

compiled, plain = [], builtins.compile

def watch(source, filename="", mode="", *args, **kwargs):
    if mode == "exec" and not isinstance(source, bytes) and "labkit" in str(filename) and "cache" in str(filename):
        compiled.append(str(filename))
    return plain(source, filename, mode, *args, **kwargs)

builtins.compile = watch
from labkit import kernels
from labkit.device.lazy import LazyKernel
from labkit.measure.ops import all_ops

for module in pkgutil.walk_packages(kernels.__path__, "labkit.kernels."):
    if module.name != "labkit.kernels.softmax.torch_op":  # which is an operation of PyTorch
        importlib.import_module(module.name)
all_ops()
lazy = [one for one in gc.get_objects() if isinstance(one, LazyKernel)]
jitted = [one for one in gc.get_objects() if hasattr(type(one), "overloads") and hasattr(one, "py_func")
          and type(one).__module__.startswith(("labkit.simt", "numba.cuda", "numba_cuda"))]
ours = [one for one in jitted if (one.py_func.__module__ or "").startswith("labkit.kernels")]
print(json.dumps({
    "lazy": len(lazy), "built": [one.__name__ for one in lazy if one._kernel is not None], "kernels": len(ours),
    "specialised": [one.py_func.__name__ for one in ours if one.overloads], "compiled": compiled,
    "generated": [name for name in sys.modules if name.startswith("labkit_simt_cache")],
    "foreign": [name for name in ("torch", "cupy", "matplotlib", "triton", "transformers") if name in sys.modules],
}))
"""


@pytest.fixture(scope="module")
def after_imports():
    """What a new process holds once it has imported every kernel and every operation."""
    run = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.sweep(every=True)
@pytest.mark.cpu_device
def test_importing_every_operation_builds_and_compiles_nothing(after_imports):
    assert after_imports["lazy"] > 60 and after_imports["kernels"] > 30  # the count sees something
    assert after_imports["built"] == []
    assert after_imports["specialised"] == []
    assert after_imports["compiled"] == [] and after_imports["generated"] == []


@pytest.mark.sweep(every=True)
def test_importing_every_operation_makes_few_kernels(after_imports):
    """Each kernel that is made while a module is imported is read and checked then. Factories make theirs later."""
    assert after_imports["kernels"] <= 140


@pytest.mark.sweep(every=True)
@pytest.mark.cpu_device  # on a GPU Numba itself looks for what else is installed
def test_importing_every_operation_loads_no_library_to_compare_with(after_imports):
    assert after_imports["foreign"] == []


def test_a_lazy_kernel_that_is_copied_half_made_does_not_recurse():
    with pytest.raises(AttributeError):
        LazyKernel.__new__(LazyKernel)._kernel  # noqa: B018
