"""Launches that take the short way to the driver: the same bytes as Numba passes, and Numba wherever anything is
unusual. The driver is replaced, so that no GPU is needed."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from labkit import device
from labkit.device import quick_launch
from labkit.kernels.arguments import check_array

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
cuda = device.numba_cuda()

from cuda.bindings import driver  # noqa: E402
from numba.cuda import types  # noqa: E402
from numba.cuda.cudadrv import devices  # noqa: E402
from numba.cuda.cudadrv.devicearray import DeviceNDArray  # noqa: E402
from numba.cuda.dispatcher import _Kernel, _LaunchConfiguration  # noqa: E402

SCALARS = (7, -3, 2.5, True, False, np.float32(1.5), np.float64(-2.5), np.int8(-5), np.uint8(200), np.int16(-300),
           np.uint16(60000), np.int32(-70000), np.uint32(4_000_000_000), np.int64(-1), np.uint64(2**64 - 1),
           np.bool_(True), -(2**63), 2**63 - 1)


def array(shape, dtype=np.float32, address=0x7F00_0000_1000, strides=None):
    """A device array at an address that is never used."""
    memory = SimpleNamespace(device_ctypes_pointer=ctypes.c_void_p(address), view=lambda *extent: memory)
    strides = strides or np.empty(shape, dtype).strides
    return DeviceNDArray(shape, strides, dtype, gpu_data=memory)


def arrays():
    return (array(5), array((3, 4), np.uint16, 0x7F00_0000_2002), array((2, 3, 4), np.int64), array((1,), np.float64),
            array((3, 4), strides=(64, 8)), array((4, 3), strides=(4, 16)), array((2, 2), np.uint8, 2**63 + 16))


@pytest.fixture
def launch(monkeypatch):
    """A configured kernel, whose driver and whose Numba only note what they are asked for."""
    asked, by_numba = [], []
    quick_launch._configuration_type()  # the one that all launches share keeps the real driver

    def launched(function, *numbers):
        *shape, table, extra = numbers
        addresses = (ctypes.c_void_p * quick_launch.SLOTS).from_address(table)
        content = b"".join(ctypes.string_at(address, 8) for address in addresses[:40])
        asked.append((int(function), shape, content))
        return (launched.answer,)

    launched.answer = driver.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(driver, "cuLaunchKernel", launched)
    monkeypatch.setattr(_LaunchConfiguration, "__call__", lambda self, *args: by_numba.append(args))

    @cuda.jit
    def nothing(*args):
        pass

    ready = quick_launch._configuration_type.__wrapped__()(nothing, (3, 2, 1), (64, 1, 1), 0, 128)
    return SimpleNamespace(ready=ready, kernel=nothing, asked=asked, by_numba=by_numba, driver=launched)


def compiled(kernel, *args, **unusual):
    """As if the kernel had been compiled for these arguments."""
    of_types = tuple(kernel.typeof_pyval(value) for value in args)
    library = SimpleNamespace(get_cufunc=lambda: SimpleNamespace(handle=1234))
    facts = {"argument_types": of_types, "debug": False, "cooperative": False, "extensions": [],
             "launch_config_sensitive": False} | unusual
    kernel.overloads[of_types] = SimpleNamespace(_codelibrary=library, entry_point=None, **facts)


def by_numba(value) -> bytes:
    """What Numba passes for an argument, each number in eight bytes."""
    numbers = []
    of_type = value._numba_type_ if isinstance(value, DeviceNDArray) else cuda.jit(lambda: None).typeof_pyval(value)
    _Kernel._prepare_args(SimpleNamespace(extensions=[]), of_type, value, 0, [], numbers)
    if isinstance(value, DeviceNDArray):
        return b"".join((number % 2**64).to_bytes(8, "little") for number in numbers)
    (number,) = numbers
    number = ctypes.c_bool(number) if isinstance(number, (bool, np.bool_)) else number
    return bytes(number).ljust(8, b"\0")


@pytest.mark.parametrize("value", [*SCALARS, *arrays()], ids=lambda value: f"{type(value).__name__}-{value!s:.20}")
def test_an_argument_is_passed_as_numba_passes_it(value):
    (number,), (content,) = quick_launch.packed((value,))
    assert content == by_numba(value)
    assert quick_launch.packed((value,)) == ((number,), [content])


def test_keys_are_equal_where_types_are():
    values = [*SCALARS, *arrays(), array((7, 9)), array(6)]
    kernel = cuda.jit(lambda: None)
    for one in values:
        for other in values:
            alike = kernel.typeof_pyval(one) == kernel.typeof_pyval(other)
            assert (quick_launch.types_key((one,)) == quick_launch.types_key((other,))) == alike
    for unusual in (np.zeros(3), (1, 2), None, np.float16(1), 1j, 2**64):
        assert quick_launch.types_key((array(3), unusual)) is None


def test_numba_launches_first_and_the_driver_from_then_on(launch):
    args = *arrays(), np.float32(2), True, 3
    compiled(launch.kernel, *args)
    launch.ready(*args)
    assert launch.by_numba == [args] and not launch.asked
    launch.ready(*args)
    (function, shape, content), expected = launch.asked.pop(), b"".join(map(by_numba, args))
    assert len(launch.by_numba) == 1 and function == 1234 and shape == [3, 2, 1, 64, 1, 1, 128, 0]
    assert content == expected[:320] and len(expected) > 320
    other = array(9, address=0x100), *args[1:]  # of the same types: other numbers
    launch.ready(*other)
    assert launch.asked[0][2][:40] == by_numba(other[0])[:40]
    launch.ready(array(9, np.int32), *args[1:])  # of other types: by Numba, which compiles
    assert len(launch.by_numba) == 2 and len(launch.asked) == 1


@pytest.mark.parametrize("unusual", [{"debug": True}, {"cooperative": True}, {"extensions": [1]},
                                     {"launch_config_sensitive": True}])
def test_kernels_of_other_kinds_are_left_to_numba(launch, unusual):
    compiled(launch.kernel, 1, **unusual)
    for count in (1, 2, 3):
        launch.ready(1)
        assert len(launch.by_numba) == count and not launch.asked


def test_a_kernel_that_numba_converts_arguments_for_is_left_to_it(launch):
    compiled(launch.kernel, 1, argument_types=(types.int32,))
    for count in (1, 2):
        launch.ready(1)
        assert len(launch.by_numba) == count and not launch.asked


def test_what_only_numba_can_pass_and_what_the_driver_refuses_is_numbas(launch):
    compiled(launch.kernel, 1)
    for args in ((np.zeros(2),), (2**70,), ((1, 2),)):
        launch.ready(*args)
        assert launch.by_numba.pop() is not None and not launch.asked
    launch.ready(1)
    launch.driver.answer = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    launch.ready(1)
    assert launch.by_numba == [(1,), (1,)] and len(launch.asked) == 1
    launch.driver.answer = driver.CUresult.CUDA_SUCCESS
    launch.ready.pre_launch_callbacks.append(print)
    launch.ready(1)
    assert len(launch.by_numba) == 3 and len(launch.asked) == 1


def test_more_numbers_than_a_cell_has_are_numbas(launch):
    args = tuple(array((2,) * 8) for _ in range(25))
    compiled(launch.kernel, *args)
    for _ in range(2):
        launch.ready(*args)
    assert len(launch.by_numba) == 2 and not launch.asked


def test_a_kernel_that_is_compiled_anew_is_launched_by_numba_first(launch):
    compiled(launch.kernel, 1)
    launch.ready(1)
    launch.kernel._reset_overloads()
    launch.ready(1)
    assert len(launch.by_numba) == 2 and not launch.asked


def test_threads_do_not_share_a_cell(launch):
    """A thread that launches while another one is in the driver, which runs without Python's lock."""
    compiled(launch.kernel, 1)
    launch.ready(1)
    inner, driven = launch.driver, []

    def slow(function, *numbers):
        if len(driven) < 3:
            driven.append(numbers[-2])
            ready(2)
        return inner(function, *numbers)

    driver.cuLaunchKernel = slow  # the fixture puts it back
    ready = quick_launch._configuration_type.__wrapped__()(launch.kernel, (1, 1, 1), (1, 1, 1), 0, 0)
    ready(5)
    assert len(set(driven)) == 3
    assert [int.from_bytes(content[:8], "little") for _, _, content in launch.asked] == [2, 2, 2, 5]


def test_a_view_is_made_once_and_an_array_is_checked_once(monkeypatch):
    monkeypatch.setattr(devices._runtime, "ensure_context", nullcontext)
    x = array((4, 6))
    assert x.reshape(24) is x.reshape(24) and x.reshape((2, 12)) is x.reshape((2, 12)) is not x.reshape(2, 12)
    assert x.reshape([3, 8]).shape == (3, 8) and x.reshape(24, order="C").shape == (24,)
    assert x[:3] is x[:3] is not x[0:3] and x[1:3] is not x[:3]
    assert x[:3].shape == (3, 6) and x[1:3].shape == (2, 6) and x[::2].strides == (48, 4)
    assert x[:3].reshape(18) is x[:3].reshape(18)
    long = array((200,))
    for n in range(1, 2 * quick_launch.MAX_VIEWS):  # more than are kept
        assert long[:n].shape == (n,)
    for _ in range(2):
        check_array("x", x, ndim=2)
        check_array("x", x, shape=(4, 6), dtype=np.float32)
        for wrong in ({"ndim": 1}, {"shape": (6, 4)}):
            with pytest.raises(ValueError, match="x has "):
                check_array("x", x, **wrong)
        with pytest.raises(TypeError, match="x has dtype float32; only int32"):
            check_array("x", x, dtype=np.int32)


def test_every_launch_has_a_configuration_that_is_kept(launch):
    ready = launch.kernel[(3, 2), 64]
    assert ready is launch.kernel[(3, 2), 64] and isinstance(ready, _LaunchConfiguration)
    assert (ready.griddim, ready.blockdim, ready.sharedmem) == ((3, 2, 1), (64, 1, 1), 0)
    assert types.float32 in quick_launch._type_ids
    with pytest.raises(ValueError, match="griddim"):
        launch.kernel[(1, 2, 3, 4), 1]
