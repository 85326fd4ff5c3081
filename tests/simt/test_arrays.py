"""Memory, streams and events of the CPU device: numba.cuda's rules, and what a learner's mistake is answered with."""

import asyncio
import gc
import weakref

import numpy as np
import pytest

from labkit.simt import api as cuda
from labkit.simt.settings import LIMITS

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 3)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i8", "c8", "c16", "?", "M8[ns]"])
def test_round_trip(shape, dtype):
    host = (RNG.random(shape) * 100).astype(dtype)
    device = cuda.to_device(host)
    assert (device.shape, device.dtype, device.ndim, device.size) == (host.shape, host.dtype, host.ndim, host.size)
    assert (device.nbytes, device.itemsize) == (host.nbytes, host.itemsize)
    assert device.strides == host.strides or not host.size
    back = device.copy_to_host()
    assert type(back) is np.ndarray and back.dtype == host.dtype
    np.testing.assert_array_equal(back, host)


def test_the_device_holds_a_copy():
    host = np.arange(6.0)
    device = cuda.to_device(host)
    host[0] = 99
    assert device[0] == 0
    back = device.copy_to_host()
    back[1] = 99
    assert device[1] == 1


def test_orders_are_kept():
    host = np.asfortranarray(RNG.random((3, 5)))
    device = cuda.to_device(host)
    assert device.is_f_contiguous() and not device.is_c_contiguous()
    assert device.flags == {"C_CONTIGUOUS": False, "F_CONTIGUOUS": True}
    assert device.strides == host.strides == device.copy_to_host().strides
    np.testing.assert_array_equal(device.copy_to_host(), host)
    assert cuda.device_array_like(host).strides == host.strides == cuda.device_array_like(device).strides
    assert cuda.device_array((4, 6), np.float32, order="F").strides == (4, 16)
    assert cuda.device_array((4, 6), np.float32, strides=(32, 4)).strides == (32, 4)
    assert cuda.device_array(6, np.int16, strides=4).strides == (4,)


def test_like_permuted_axes_is_contiguous_in_that_order():
    host = RNG.random((4, 5, 6)).transpose(1, 0, 2)
    like = cuda.device_array_like(host)
    assert like.shape == host.shape and like.alloc_size == host.nbytes
    assert like.strides == host.strides


def test_other_things_to_copy():
    np.testing.assert_array_equal(cuda.to_device([1, 2, 3]).copy_to_host(), [1, 2, 3])
    assert cuda.to_device(2.5).copy_to_host() == 2.5
    device = cuda.to_device(np.arange(3))
    assert cuda.to_device(device) is device
    again = cuda.to_device(np.arange(3) * 2, to=device)
    assert again is device and device[2] == 4
    cuda.to_device(np.arange(3), to=device, copy=False)
    assert device[2] == 4
    assert np.isnan(cuda.to_device(np.zeros(3), copy=False).copy_to_host()).all()


def test_a_broadcast_array_keeps_its_zero_strides():
    host = np.broadcast_to(np.arange(4.0), (3, 4))
    device = cuda.to_device(host)
    assert device.strides == (0, 8)
    np.testing.assert_array_equal(device.copy_to_host(), host)


def test_gaps_in_host_memory_are_refused():
    host = np.arange(12.0).reshape(3, 4)[:, 1:3]
    with pytest.raises(ValueError, match="ascontiguousarray"):
        cuda.to_device(host)
    with pytest.raises(ValueError, match="non-contiguous buffer"):
        cuda.to_device(np.arange(6.0)[::2])


def test_fresh_memory_is_poisoned_and_aligned():
    floats = cuda.device_array((3, 5), np.float32)
    assert np.isnan(floats.copy_to_host()).all()
    assert (cuda.device_array(5, np.int32).copy_to_host() == -1).all()
    assert np.isnan(cuda.pinned_array(5)).all() and np.isnan(cuda.mapped_array(5)).all()
    for shape in (1, 3, 1000):
        assert cuda.device_array(shape, np.int8)._array.ctypes.data % 256 == 0
        assert cuda.to_device(np.zeros(shape, np.int8))._array.ctypes.data % 256 == 0


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ((2.0,), TypeError, "shape must be an int or a tuple of ints"),
        (((2, 2.0),), TypeError, "shape must be"),
        ((-1,), ValueError, "negative"),
        ((3, "float33"), TypeError, "dtype must be a NumPy dtype"),
        ((3, object), TypeError, "Python objects"),
        ((3, np.float32, None, "A"), ValueError, "order must be 'C' or 'F', not 'A'"),
        (((3, 3), np.float32, (4,)), ValueError, "strides"),
        ((2**52,), MemoryError, "out of memory: 36,028,797.02 GB requested"),
        (((2**40, 2**40),), MemoryError, "out of memory"),
    ],
)
def test_bad_requests_are_named(arguments, error, says):
    with pytest.raises(error, match=says.replace("(", r"\(")):
        cuda.device_array(*arguments)


def test_numba_types_are_no_dtypes():
    numba = pytest.importorskip("numba")
    with pytest.raises(TypeError, match="NumPy dtype such as np.float32"):
        cuda.device_array(3, numba.float32)


def test_copy_to_host_into():
    device = cuda.to_device(np.arange(6.0).reshape(2, 3))
    host = np.zeros((2, 3))
    assert device.copy_to_host(host) is host and host[1, 2] == 5
    flat_row = np.zeros((1, 6))
    cuda.to_device(np.arange(6.0)).copy_to_host(flat_row)  # axes of length one do not matter
    assert flat_row[0, 5] == 5
    with pytest.raises(TypeError, match="dtype: float64 vs. float32"):
        device.copy_to_host(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"shape: \(2, 3\) vs. \(3, 2\)"):
        device.copy_to_host(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="strides"):
        device.copy_to_host(np.zeros((2, 3), order="F"))
    with pytest.raises(TypeError, match="NumPy array"):
        device.copy_to_host([0.0] * 6)
    with pytest.raises(NotImplementedError, match="negative strides"):
        device[::-1].copy_to_host()


def test_copy_to_device():
    device = cuda.device_array((2, 3), np.float32)
    host = RNG.random((2, 3)).astype(np.float32)
    device.copy_to_device(host)
    np.testing.assert_array_equal(device.copy_to_host(), host)
    device.copy_to_device(np.asfortranarray(host * 2))  # a host array of another order is rearranged
    np.testing.assert_array_equal(device.copy_to_host(), host * 2)
    other = cuda.to_device(host * 3)
    device.copy_to_device(other)
    np.testing.assert_array_equal(device.copy_to_host(), host * 3)
    device.copy_to_device(np.zeros((0,), np.float32))
    with pytest.raises(TypeError, match="dtype: float32 vs. float64"):
        device.copy_to_device(host.astype(np.float64))
    with pytest.raises(ValueError, match="shape"):
        device.copy_to_device(host[:, :2])
    with pytest.raises(ValueError, match="strides"):
        device.copy_to_device(cuda.to_device(np.asfortranarray(host)))
    with pytest.raises(TypeError, match="ary must be an array, not list"):
        device.copy_to_device([1.0] * 6)
    with pytest.raises(ValueError, match="non-contiguous buffer"):
        device[:, 1:].copy_to_device(host[:, 1:])


def test_views_share_memory():
    host = np.arange(24.0).reshape(4, 6)
    device = cuda.to_device(host)
    assert type(device[1, 2]) is np.float64 and device[1, 2] == 8 and device[-1, -1] == 23
    for index in [0, -1, slice(1, 3), (slice(None), 2), (slice(1, None, 2), slice(0, 5, 2)), (2, slice(3))]:
        part = device[index]
        np.testing.assert_array_equal(part.copy_to_host(), host[index])
        assert part.strides == host[index].strides
    device[1][2:4][0] = -5
    assert device[1, 2] == -5
    with pytest.raises(IndexError):
        device[4]
    assert [row[0] for row in device] == [0, 6, 12, 18] and len(device) == 4
    for index in [None, ..., [0, 1], np.array([True, False, True, True]), 1.0]:
        with pytest.raises(TypeError, match="integers and slices"):
            device[index]
    assert cuda.to_device(5.0)[()] == 5


def test_assignment():
    host = np.arange(24.0).reshape(4, 6)
    device = cuda.to_device(host)
    device[0, 0] = host[0, 0] = 7
    device[1] = host[1] = 8
    device[:, 2] = host[:, 2] = np.arange(4)
    device[2:, 3:] = host[2:, 3:] = np.arange(3)
    device[3, :2] = cuda.to_device(np.array([1.0, 2.0]))
    host[3, :2] = [1, 2]
    np.testing.assert_array_equal(device.copy_to_host(), host)
    device[:] = 0
    assert not device.copy_to_host().any()
    with pytest.raises(ValueError, match="2-D array to 1-D"):
        device[0] = np.zeros((1, 6))
    with pytest.raises(ValueError, match="size 5 to array axis 0 with dimension 6"):
        device[0] = np.zeros(5)
    scalar = cuda.to_device(1)
    scalar[()] = 3
    assert scalar[()] == 3


def test_shapes():
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    device = cuda.to_device(host)
    np.testing.assert_array_equal(device.T.copy_to_host(), host.T)
    device.T[0, 1] = -1
    assert device[1, 0] == 6  # transposing makes a copy, as in numba.cuda
    assert device.transpose((0, 1)) is device and device.transpose((1, 0)).shape == (6, 4)
    np.testing.assert_array_equal(device.reshape(3, 8).copy_to_host(), host.reshape(3, 8))
    np.testing.assert_array_equal(device.reshape((2, -1)).copy_to_host(), host.reshape(2, -1))
    np.testing.assert_array_equal(device.ravel().copy_to_host(), host.ravel())
    device.ravel()[5] = 50
    assert device[0, 5] == 50
    assert device.reshape(1, 4, 1, 6).squeeze().shape == (4, 6) and device.reshape(1, 4, 6).squeeze(0).shape == (4, 6)
    assert device.view(np.int32).copy_to_host()[0, 1] == 0x3F800000
    assert device.view(np.uint8).shape == (4, 24) and device.view(np.float64).shape == (4, 3)
    parts = list(device.ravel().split(7))
    assert [part.size for part in parts] == [7, 7, 7, 3] and parts[1][0] == 7
    for call, error in [
        (lambda: device[:, ::2].ravel(), NotImplementedError),
        (lambda: device[:, :3].reshape(12), NotImplementedError),
        (lambda: device.reshape(5, 5), ValueError),
        (lambda: device.reshape(2, 2, 6).T, NotImplementedError),
        (lambda: device.transpose((0, 0)), ValueError),
        (lambda: device[:, ::2].view(np.float64), ValueError),
        (lambda: list(device.split(2)), ValueError),
    ]:
        with pytest.raises(error):
            call()


def test_records():
    dtype = np.dtype([("x", np.float32), ("hits", np.int32, 3)], align=True)
    host = np.zeros(4, dtype)
    host["x"] = np.arange(4)
    device = cuda.to_device(host)
    record = device[2]
    assert isinstance(record, cuda.DeviceRecord) and record["x"] == 2
    record["x"] = 9
    assert device.copy_to_host()["x"][2] == 9
    record["hits"][1] = 5
    assert device.copy_to_host()["hits"].tolist()[2] == [0, 5, 0]
    assert isinstance(cuda.to_device(host[1]), cuda.DeviceRecord)


HINT = "copy_to_host"


@pytest.mark.parametrize(
    "use",
    [
        lambda d: d + 1, lambda d: 1 + d, lambda d: d + d, lambda d: np.ones(4) * d, lambda d: d * np.float32(2),
        lambda d: d / 2, lambda d: d // 2, lambda d: d % 2, lambda d: d**2, lambda d: d @ d, lambda d: -d, lambda d: ~d,
        lambda d: abs(d), lambda d: d < 1, lambda d: d >= 1, lambda d: np.add(d, d), lambda d: np.sin(d),
        lambda d: np.sum(d), lambda d: np.ones(4) == d, lambda d: np.add.reduce(d),
        lambda d: np.add(np.ones(4), 1, out=d),
    ],
)  # fmt: skip
def test_arithmetic_says_what_to_do(use):
    with pytest.raises(TypeError, match=HINT):
        use(cuda.to_device(np.arange(4)))


def test_arithmetic_in_place_says_what_to_do():
    device, host = cuda.to_device(np.arange(4.0)), np.ones(4)
    with pytest.raises(TypeError, match=r"\+= does not work on a device array"):
        device += 1
    with pytest.raises(TypeError, match=HINT):
        host += device
    assert (host == 1).all()


def test_missing_attributes():
    device = cuda.to_device(np.arange(4.0))
    for name in ("sum", "mean", "max", "astype", "fill", "tolist"):
        with pytest.raises(AttributeError, match=rf"no \.{name}.*copy_to_host"):
            getattr(device, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = device.nonsense


def test_numpy_can_read_a_device_array():
    device = cuda.to_device(np.arange(4.0))
    np.testing.assert_array_equal(np.asarray(device), np.arange(4))
    assert np.array(device, dtype=np.float32).dtype == np.float32
    np.testing.assert_allclose(device, np.arange(4))
    assert np.mean(device) == 1.5
    with pytest.raises(ValueError, match="copy=False"):
        device.__array__(copy=False)
    assert "copy_to_host" in repr(device) and "float64" in repr(device)


def test_equality_is_identity():
    device = cuda.to_device(np.arange(4.0))
    assert device == device and device != cuda.to_device(np.arange(4.0)) and len({device, device}) == 1
    with pytest.raises(TypeError, match="0-dimensional"):
        len(cuda.to_device(1.0))


@pytest.mark.sweep(every=True)
def test_memory_is_given_back():
    device = cuda.device_array(10)
    ref = weakref.ref(device)
    del device
    gc.collect()
    assert ref() is None


def test_host_visible_memory():
    for make in (cuda.mapped_array, cuda.managed_array):
        array = make((3, 4), np.float32)
        assert isinstance(array, np.ndarray) and cuda.is_cuda_array(array)
        array[:] = 2
        assert (array + 1).sum() == 36
        assert np.shares_memory(array._array, array) and type(array._array) is np.ndarray
        array._array[0, 0] = 5
        assert array[0, 0] == 5 and array.copy_to_host()[0, 0] == 5
        assert cuda.to_device(array) is array
    pinned = cuda.pinned_array_like(np.zeros((2, 3), np.int16))
    assert type(pinned) is np.ndarray and pinned.dtype == np.int16 and not cuda.is_cuda_array(pinned)
    assert isinstance(cuda.mapped_array_like(pinned), cuda.MappedNDArray)


def test_pinned_and_mapped_blocks():
    first, second = np.arange(4.0), np.arange(3.0)
    with cuda.pinned(first, second), cuda.defer_cleanup():
        assert cuda.to_device(first)[3] == 3
    with cuda.mapped(first) as device:
        device[0] = 9
    assert first[0] == 9
    with cuda.mapped(first, second, stream=cuda.stream()) as (a, b):
        assert (a.size, b.size) == (4, 3)
    with pytest.raises(ValueError, match="non-contiguous buffer"), cuda.pinned(first[::2]):
        pass


def test_cuda_arrays():
    device = cuda.to_device(np.arange(3))
    assert cuda.is_cuda_array(device) and not cuda.is_cuda_array(np.arange(3))
    assert cuda.as_cuda_array(device) is device
    with pytest.raises(TypeError, match="not ndarray; use to_device"):
        cuda.as_cuda_array(np.arange(3))

    class OnAGpu:
        __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (64, False), "version": 3}

    with pytest.raises(TypeError, match="LABKIT_DEVICE=gpu"):
        cuda.as_cuda_array(OnAGpu())
    with pytest.raises(TypeError, match="cannot reach memory of a GPU"):
        cuda.from_cuda_array_interface(OnAGpu.__cuda_array_interface__)


@pytest.mark.parametrize("hint, kernel_sees, host_sees", [(cuda.In, 3, 3), (cuda.InOut, 3, 8), (cuda.Out, None, 8)])
def test_argument_hints(hint, kernel_sees, host_sees):
    host = np.full(5, 3.0)
    after = []
    device = hint(host).to_device(after)
    assert np.isnan(device[0]) if kernel_sees is None else device[0] == kernel_sees
    device[:] = 8  # the kernel
    for call in after:
        call()
    assert (host == host_sees).all()


def test_an_argument_that_is_on_the_device_is_not_copied():
    device, after = cuda.to_device(np.zeros(3)), []
    assert cuda.InOut(device).to_device(after) is device and not after


def test_streams():
    stream, other = cuda.stream(), cuda.stream()
    assert int(stream) != int(other) and repr(stream) != repr(other)
    device = cuda.to_device(np.arange(4.0), stream=stream)
    assert device.copy_to_host(stream=stream)[3] == 3
    assert device.bind(stream).stream is stream and device.bind(stream)[1:].stream is stream
    with stream.auto_synchronize() as inner:
        assert inner is stream
    stream.synchronize()
    assert int(cuda.default_stream()) == 0 and "efault" in repr(cuda.default_stream())
    defaults = cuda.default_stream(), cuda.legacy_default_stream(), cuda.per_thread_default_stream()
    assert len({int(default) for default in defaults}) == 3
    foreign = cuda.external_stream(1234)
    assert foreign.external and not stream.external and int(foreign) == 1234 and foreign.__cuda_stream__() == (0, 1234)
    with pytest.raises(TypeError, match="external_stream: ptr must be the handle of a stream, an int, not str"):
        cuda.external_stream("1234")


def test_assignment_waits_for_the_default_stream_alone(monkeypatch):
    waited = []
    monkeypatch.setattr(type(cuda.default_stream()), "synchronize", lambda stream: waited.append(stream))
    cuda.to_device(np.arange(3))[0] = 1
    assert waited == [cuda.default_stream()]
    cuda.to_device(np.arange(3), stream=cuda.stream())[0] = 1
    cuda.to_device(np.arange(3)).setitem(0, 1, stream=cuda.default_stream())
    assert len(waited) == 1


def test_the_memory_of_an_array():
    """gpu_data is untyped memory, which other device arrays can be made of."""
    device = cuda.to_device(np.arange(6, dtype=np.float32))
    memory = device.gpu_data
    assert (memory.size, memory.device_pointer) == (24, device.device_ctypes_pointer.value)
    second = cuda.DeviceNDArray((2, 2), (8, 4), np.float32, gpu_data=memory.view(8))
    second[0, 0] = 9
    assert device[2] == 9 and memory.refct == 2
    with pytest.raises(ValueError, match=r"gpu_data has 24 bytes, and an array of shape \(7,\) needs 28"):
        cuda.DeviceNDArray((7,), (4,), np.float32, gpu_data=memory)
    mapped = cuda.mapped_array(4, np.int32)
    mapped[:] = 5
    assert mapped.gpu_data.size == 16 and [len(part) for part in mapped.split(3)] == [3, 1]
    stream = cuda.stream()
    assert mapped.bind(stream).stream is stream and mapped.bind(stream)[3] == 5


def test_stream_callbacks():
    calls = []
    stream = cuda.stream()
    stream.add_callback(lambda *arguments: calls.append(arguments), "note")
    stream.synchronize()
    assert calls == [(stream, 0, "note")]
    with pytest.warns(UserWarning, match="callback: boom"):
        stream.add_callback(lambda *_: (_ for _ in ()).throw(ValueError("boom")))

    async def wait():
        return await stream.async_done()

    assert asyncio.run(wait()) is stream


def test_events():
    import time

    start, end = cuda.event(), cuda.event()
    start.record()
    time.sleep(0.02)
    end.record(stream=cuda.stream())
    end.synchronize()
    end.wait()
    assert end.query()
    assert 20 <= start.elapsed_time(end) == cuda.event_elapsed_time(start, end) < 2000
    with pytest.raises(RuntimeError, match="the end event was never recorded"):
        cuda.event_elapsed_time(start, cuda.event())
    silent = cuda.event(timing=False)
    silent.record()
    with pytest.raises(RuntimeError, match="the start event was made with timing=False"):
        cuda.event_elapsed_time(silent, end)


def test_the_device():
    device = cuda.get_current_device()
    assert device.name == "labkit CPU device" and device.id == 0 and device.compute_capability == (9, 0)
    assert (device.WARP_SIZE, device.MAX_THREADS_PER_BLOCK, device.MAX_SHARED_MEMORY_PER_BLOCK) == (32, 1024, 49152)
    assert (device.MAX_BLOCK_DIM_X, device.MAX_BLOCK_DIM_Y, device.MAX_BLOCK_DIM_Z) == (1024, 1024, 64)
    assert (device.MAX_GRID_DIM_X, device.MAX_GRID_DIM_Y, device.MAX_GRID_DIM_Z) == (2**31 - 1, 65535, 65535)
    assert device.MULTIPROCESSOR_COUNT >= 1 and device.ASYNC_ENGINE_COUNT == 1 and device.CONCURRENT_KERNELS == 0
    assert device.compute_capability == (device.COMPUTE_CAPABILITY_MAJOR, device.COMPUTE_CAPABILITY_MINOR)
    with pytest.raises(AttributeError, match="no attribute 'CLOCK_RATE'; it has .*WARP_SIZE"):
        _ = device.CLOCK_RATE
    with pytest.raises(AttributeError):
        LIMITS.warp_size = 64
    assert cuda.select_device(0) is device and cuda.gpus.current is device
    assert list(cuda.list_devices()) == [device] and len(cuda.gpus) == 1
    for call in (cuda.select_device, cuda.gpus.__getitem__, cuda.current_context):
        with pytest.raises(IndexError, match="device 1 does not exist"):
            call(1)
    with cuda.gpus[0]:
        assert cuda.to_device(np.ones(2))[0] == 1


def test_context():
    context = cuda.current_context()
    info = context.get_memory_info()
    assert 0 < info.free <= info.total and info[1] == info.total and info.total > 2**27
    assert context.device is cuda.get_current_device()
    with context.deallocations.disable():
        context.deallocations.clear()
    assert len(context.deallocations) == 0 and not context.deallocations.is_disabled
    with context.defer_cleanup(), cuda.profiling():
        context.synchronize()
    context.reset()
    cuda.synchronize()
    cuda.close()
    assert cuda.is_available() and cuda.is_supported_version() and cuda.cuda_error() is None
    assert cuda.is_float16_supported() and not cuda.is_bfloat16_supported()
    assert cuda.runtime.get_version() == (0, 0)


def test_detect_is_honest(capsys):
    assert cuda.detect() is True
    out = capsys.readouterr().out
    assert "labkit CPU device" in out and "no GPU, kernels run on the CPU" in out
