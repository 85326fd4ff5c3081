"""cuda.vectorize and cuda.guvectorize: values, where results are, refusals."""

import numba
import numpy as np
import pytest

from labkit import cuda
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.errors import KernelTypeError, UnsupportedError

pytestmark = pytest.mark.cpu_device


@cuda.jit(device=True)
def half_of(x):
    return x / 2


@cuda.vectorize(["float32(float32, float32)", "float64(float64, float64)"])
def mixed(a, b):
    return half_of(a) + b


@cuda.guvectorize(["void(float64[:], float64[:], float64[:])"], "(n),(n)->()")
def inner(a, b, out):
    total = 0.0
    for k in range(a.shape[0]):
        total += a[k] * b[k]
    out[0] = total


def test_vectorize():
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(1)
    on_host = mixed(a, b)
    assert on_host.dtype == np.float32 and np.array_equal(on_host, a / 2 + 1)
    on_device = mixed(cuda.to_device(a), b)
    assert isinstance(on_device, DeviceNDArray) and np.array_equal(on_device.copy_to_host(), on_host)
    target = cuda.device_array((2, 3), np.float32)
    assert mixed(a, b, out=target) is target and np.array_equal(target.copy_to_host(), on_host)
    assert mixed(np.float64(3), 0.25) == 1.75
    assert mixed.reduce(np.array([8.0, 4.0, 2.0])) == (8 / 2 + 4) / 2 + 2
    assert np.isinf(mixed(np.float32(np.inf), b))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16])
@pytest.mark.parametrize("name", ["add", "multiply", "mine"])
def test_small_integers_are_reduced_in_their_type_whatever_the_function_is_called(name, dtype):
    def sums(a, b):
        return a + b

    sums.__name__ = name
    ufunc = cuda.vectorize([f"{np.dtype(dtype)}({np.dtype(dtype)}, {np.dtype(dtype)})"])(sums)
    total = ufunc.reduce(np.arange(6, dtype=dtype))
    assert (total, total.dtype, ufunc.__name__) == (15, dtype, name)


def test_guvectorize():
    a = np.arange(12.0).reshape(4, 3)
    assert np.array_equal(inner(a, a), (a * a).sum(axis=1))
    result = inner(cuda.to_device(a), a)
    assert isinstance(result, DeviceNDArray) and np.array_equal(result.copy_to_host(), (a * a).sum(axis=1))
    out = np.zeros(4)
    inner(a, a, out)
    assert np.array_equal(out, (a * a).sum(axis=1))


def test_guvectorize_of_wider_arguments():
    """numba-cuda casts float64 to a signature of float32 alone; text has no signature."""

    def sums(vector, out):
        out[0] = 0
        for value in vector:
            out[0] += value

    ufunc = cuda.guvectorize(["(float32[:], float32[:])"], "(n)->()")(sums)
    result = ufunc(np.array([[0.1, 0.2], [1, 2]]))
    assert result.dtype == np.float32 and np.array_equal(result, np.array([[0.1, 0.2], [1, 2]], np.float32).sum(axis=1))
    with pytest.raises(TypeError, match="no matching signature"):
        ufunc(np.array(["text"]))


def test_numbers_take_the_declared_type():
    """As with numba-cuda, where the arrays have exactly theirs."""

    def above(value, threshold):
        return value if value > threshold else 0

    ufunc = cuda.vectorize(["int16(int16, int16)"])(above)
    result = ufunc(np.array([1, 20], np.int16), 15.0)
    assert result.dtype == np.int16 and result.tolist() == [0, 20]
    with pytest.raises(TypeError, match="No matching version"):
        ufunc(np.array([1, 20]), 15)


def test_types_of_arguments_are_those_of_a_signature():
    """As numba-cuda has it: a ufunc converts numbers alone; a gufunc converts host arrays, not device arrays."""
    whole = np.arange(3)
    with pytest.raises(TypeError, match=r"mixed\(int64, float32\): No matching version"):
        mixed(whole, np.ones(3, np.float32))
    with pytest.raises(TypeError, match="ambiguous signature"):
        mixed(1, 2)
    assert mixed(np.ones(3, np.float32), 2).dtype == np.float32

    @cuda.guvectorize(["void(int32, int32[:], int32[:])"], "(),(t)->(t)")
    def scaled(factor, a, out):
        for k in range(a.size):
            out[k] = factor * a[k]

    assert np.array_equal(scaled(np.int64(2), whole), [0, 2, 4])
    with pytest.raises(TypeError, match=r"does not support .astype\(\)"):
        scaled(cuda.to_device(np.array(2)), whole)
    with pytest.raises(TypeError, match="no matching signature"):
        scaled(np.int8(2), whole)


def test_refusals():
    with pytest.raises(UnsupportedError, match="needs the signatures"):
        cuda.vectorize(lambda x: x)
    with pytest.raises(KeyError, match="does not support option: 'nonsense'"):
        cuda.vectorize(["f8(f8)"], nonsense=1)
    with pytest.raises(TypeError, match="mixed takes 2 arguments, 1 given"):
        mixed(1.0)

    with pytest.raises(TypeError, match=r"accepts 2 positional arguments .* or 3 .* Got 1 positional argument\."):
        inner(np.ones(3))
    with pytest.raises(ValueError, match="'out' as both positional and keyword"):
        inner(np.ones(3), np.ones(3), np.ones(1), out=np.ones(1))
    with pytest.raises(UnsupportedError, match="not supported: 'nonsense'"):
        cuda.guvectorize(["void(f8[:], f8[:])"], "(n)->(n)", nonsense=1)
    with pytest.raises(TypeError, match="guvectorized functions cannot return values: .* specifies float64"):
        cuda.guvectorize(["f8(f8[:], f8[:])"], "(n)->(n)")
    with pytest.raises(TypeError, match="nopython flag must be True"):
        cuda.guvectorize(["void(f8[:], f8[:])"], "(n)->(n)", nopython=False)
    with pytest.raises(UnsupportedError, match=r"cuda\.vectorize for datetime64\[D\] is not supported"):
        cuda.vectorize([(numba.types.NPDatetime("D"),)])
    with pytest.raises(AttributeError, match=r"half_of\.inspect_asm describes GPU code"):
        half_of.inspect_asm()
    with pytest.raises(TypeError, match="caching is not supported"):
        cuda.vectorize(["f8(f8)"], cache=True)
    with pytest.warns(RuntimeWarning, match="redundant"):
        cuda.vectorize(["f8(f8)"], nopython=True)

    def by_thread(x):
        return x + cuda.grid(1)

    def wrong(x):
        return x.nothing

    with pytest.raises((UnsupportedError, KernelTypeError), match="by_thread"):
        cuda.vectorize(["float64(float64)"])(by_thread)
    with pytest.raises(KernelTypeError, match=r"cuda\.vectorize of wrong: does not compile"):
        cuda.vectorize(["float64(float64)"])(wrong)
