"""What functions launch is done and observed on the grader's device: demands are judged as check judges them, and no
function can say that it launched what it did not."""

import numpy as np
import pytest

from labkit.course.grade import sandbox
from labkit.course.grade.answers import Program, Refused, vetted_tiles
from labkit.course.grade.device_server import DeviceServer, _library_source
from labkit.course.grade.judge import Judge, Settings
from tests.course.grade.made_up import FIRST
from tests.course.grade.test_attacks import judged

pytestmark = pytest.mark.cpu_device
ABOVE = FIRST + "\nimport numpy as np\n\n@cuda.jit\ndef row_starts_kernel(tokens, out):\n" \
    "    i = cuda.grid(1)\n    if i < tokens.size:\n        out[i] = tokens[i] * 8\n"
LAUNCHED = (
    "def row_starts(tokens):\n"
    "    out = cuda.device_array(len(tokens), dtype=np.int32)\n"
    "    row_starts_kernel[-(-len(tokens) // 64), 64](cuda.to_device(np.array(tokens, np.int32)), out)\n"
    "    return out.copy_to_host()\n")
ON_THE_HOST = "def row_starts(tokens):\n    return np.array(tokens, dtype=np.int32) * 8\n"
FORGED = {
    "NumPy computes it on the host": ON_THE_HOST,
    "a launch whose result is not used": LAUNCHED.replace(
        "return out.copy_to_host()", "return np.array(tokens, dtype=np.int32) * 8"),
    "what asks the grader is replaced": (
        "from labkit.course.grade import device_proxy\n"
        "from labkit.simt.launch import ConfiguredKernel\n"
        "device_proxy.Proxy.ask = lambda self, *a, **k: ({'buffer': 0}, {'array': np.zeros(1, np.int32)})\n"
        "ConfiguredKernel.run = lambda *a: None\n"
        + LAUNCHED.replace("return out", "return np.array(tokens, dtype=np.int32) * 8; return out")),
    "the checker's list of launches is filled": (
        "try:\n    from labkit.course.check import host_runs\nexcept ImportError: host_runs = None\n"
        "import gc\n" + ON_THE_HOST.replace(
            "    return", "    for o in gc.get_objects():\n        if type(o).__name__ == 'HostRun':\n"
            "            o.launches.append(1); o.right_without = False\n    return")),
    "memory that only stands for the device's is written": LAUNCHED.replace(
        "    row_starts_kernel[",
        "    out._array[:] = np.array(tokens, dtype=np.int32) * 8\n    0 and row_starts_kernel["),
    "a launch is asked for by hand, of a kernel that is not there": ON_THE_HOST.replace(
        "    return", "    import gc\n    p = next(o for o in gc.get_objects() if type(o).__name__ == 'Proxy')\n"
        "    try: p.ask('launch', kernel={'name': 'nothing'}, grid=[1, 1, 1], block=[64, 1, 1], arguments=[], shared=0,"
        " stream=0, recorded=False)\n    except Exception: pass\n    return"),
}
REFUSED = {
    "a kernel that only its function knows": (LAUNCHED.replace(
        "    out =", "    @cuda.jit\n    def row_starts_kernel(tokens, out):\n        i = cuda.grid(1)\n"
        "        if i < tokens.size:\n            out[i] = tokens[i] * 8\n    out =", 1), "define it at the top"),
    "memory that both sides see": (LAUNCHED.replace("cuda.device_array(", "cuda.mapped_array("), "cuda.mapped_array"),
    "a kernel's cell that runs more": (
        "cuda = __import__('labkit').cuda\n" + LAUNCHED, "means something else|cannot be used"),
}


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    if not sandbox.works("namespaces"):
        pytest.skip("this system offers no namespaces")
    made = Judge(Settings(tmp_path_factory.mktemp("grade"), b"a secret of the tests", "namespaces"))
    yield made
    made.close()


@pytest.mark.sweep(every=True)
def test_a_function_that_launches_passes(judge):
    result = judged(judge, "row_starts", LAUNCHED, ABOVE)
    assert result["passed"], result


@pytest.mark.sampled(0, sweep=5, quick="the checker's list of launches is filled")
@pytest.mark.parametrize("forged", FORGED)
def test_what_was_not_launched_was_not_launched(forged, judge):
    result = judged(judge, "row_starts", FORGED[forged], ABOVE)
    assert not result["passed"], result
    verdicts = {"memory": "wrong_result", "by hand": "refused"}
    assert result["verdict"] == next((v for word, v in verdicts.items() if word in forged), "demand"), result


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_observed_is_refused_with_the_reason(case, judge):
    import re

    answer, reason = REFUSED[case]
    result = judged(judge, "row_starts", answer, ABOVE)
    assert result["verdict"] == "refused" and re.search(reason, result["details"][0]), result


def test_demands_see_the_type_of_what_is_returned(judge):
    result = judged(judge, "row_starts", LAUNCHED.replace("copy_to_host()", "copy_to_host().tolist()"), ABOVE)
    assert result["verdict"] == "demand" and "returns a list" in result["details"][0], result
    result = judged(judge, "row_starts", LAUNCHED.replace("out.copy_to_host()", "out"), ABOVE)
    assert result["verdict"] == "demand" and "still on the device" in result["details"][0], result
    rounded = "def blocks_needed(n, each, threads):\n    return float(-(-n // (each * threads)))\n"
    assert judged(judge, "blocks_needed", rounded)["verdict"] == "demand"


def test_a_fault_of_a_launch_is_named_at_its_line(judge):
    result = judged(judge, "row_starts", LAUNCHED, ABOVE.replace("if i < tokens.size:", "if True:"))
    assert result["verdict"] == "out_of_bounds" and "`tokens" in str(result["details"]), result


# --- What is asked of the device -----------------------------------------------------------------------------------


def device_server():
    return DeviceServer(Program("f", "", "def f(): pass"), lambda *asked: pytest.fail("a kernel was started"))


@pytest.mark.parametrize("change", [
    {"offset": -4}, {"offset": 4}, {"shape": [9]}, {"shape": [1 << 39, 1 << 39]}, {"strides": [-4]},
    {"strides": [1 << 39]}, {"shape": [8, 8]}, {"dtype": "|O"}, {"buffer": 99}, {"shape": "8"}, {"offset": 1.5},
    {"shape": [-1]}, {"offset": 1 << 70}])
def test_no_part_of_a_buffer_reaches_beyond_it(change):
    made = device_server()
    reply, _ = made.reply({"ask": "allocate", "freed": [], "shape": [8], "strides": [4], "dtype": "<f4"}, {})
    good = {"buffer": reply["buffer"], "offset": 0, "shape": [8], "strides": [4], "dtype": "<f4"}
    head = {"ask": "copy to host", "freed": [], "stream": 0}
    assert "fault" not in made.reply({**head, "source": good}, {})[0]
    assert "fault" in made.reply({**head, "source": good | change}, {})[0]


@pytest.mark.parametrize("head", [
    {"ask": "nothing"}, {"ask": "allocate", "shape": [1 << 30], "strides": [4], "dtype": "<f4"},
    {"ask": "launch", "kernel": {"module": "os", "name": "system"}}, {"ask": "replay", "graph": 0, "stream": 0},
    {"ask": "launch", "kernel": {"module": "labkit.kernels.op", "name": "x; import os"}},
    {"ask": "launch", "kernel": {"name": "../../etc/passwd"}}, {"ask": "captured"}, {"ask": "product", "name": "exec"}])
def test_what_makes_no_sense_is_a_fault_and_no_more(head):
    assert "fault" in device_server().reply({"freed": [], **head}, {})[0]


def test_a_factory_of_the_library_gets_plain_values():
    asked = {"module": "labkit.kernels.op", "name": "make_it", "arguments": [1, "a'b"], "keywords": {"exact": True},
             "number": 0}
    assert "kernel('" not in _library_source(asked) and "kernel(1, \"a'b\", exact=True)" in _library_source(asked)
    for bad in ({"arguments": [[1]]}, {"name": "observe"}, {"keywords": {"a=1, b": 1}}):
        with pytest.raises(Refused):
            _library_source(asked | bad)


@pytest.mark.parametrize("line", [
    "out.tofile('/tmp/x')", "ct.sys.exit()", "open('/etc/passwd')", "ct.store(out, 0, out.__class__)",
    "[x for x in ct.load(a, 0, 1)]", "np.load('x')"])
def test_a_tile_program_calls_nothing_but_what_tiles_have(line):
    above = "import numpy as np\nfrom labkit.kernels.libraries import cutile_model as ct\n"
    good = "@ct.kernel\ndef product(a, out, n: ct.Constant[int]):\n    ct.store(out, (0,), ct.load(a, (0,), (n,)))\n"
    vetted_tiles(Program("product", above, good))
    with pytest.raises(Refused):
        vetted_tiles(Program("product", above, good + f"    {line}\n"))


def test_arrays_that_overlap_do_so_in_the_kernels_process_too():
    from labkit import cuda
    from labkit.course.grade.child import _launch_on
    from labkit.course.grade.remote import with_memory

    memory = cuda.to_device(np.arange(10, dtype=np.float32))
    described, buffers, begins = with_memory((memory[2:], memory[:8], (memory[::2],)))
    assert len(buffers) == 1 and begins[0] == buffers[0].ctypes.data % 256

    def shift(a, b, strided):
        a._array[...] = b._array + 1
        assert strided[0].strides == (8,)

    kernel = type("K", (), {"__getitem__": lambda self, configuration: shift})()
    _, changed = _launch_on(kernel, {"order": "forward"}, {"arguments": tuple(described), "buffers": tuple(buffers),
                                                           "begins": tuple(begins), "configuration": (1, 1)})
    (name, value), = changed.items()
    assert name == "buffer 0" and value.size == buffers[0].size
