"""numba-cuda's warnings, and the text of kernels made by exec(), where the CPU device stands in for numba.cuda."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu_device

PROGRAM = '''
import warnings
from labkit.simt import stand_in
stand_in.install()
import numpy as np
from numba import cuda

def told(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [(w.category.__name__, str(w.message).split()[0], w.filename.endswith("program.py")) for w in found]

@cuda.jit
def store(a):
    a[0] = 1

small, large, host = store[1, 1], store[128, 1], np.zeros(1)
print(told(lambda: store[127, 1]), told(lambda: store[128, 1]))
print(told(lambda: large(host)), told(lambda: large(cuda.to_device(host))), told(lambda: large(cuda.mapped_array(1))))
print(told(lambda: cuda.jit(debug=True)), told(lambda: cuda.jit(debug=True, opt=False)), told(lambda: cuda.jit()))
cuda.config.CUDA_LOW_OCCUPANCY_WARNINGS = cuda.config.CUDA_WARN_ON_IMPLICIT_COPY = 0
print(told(lambda: store[1, 1](host)))

names = {"np": np}
exec("""def written(a, out):
    np.sin(a, out)
    out[5]
""", names)
written = names["written"]
written.__name__ = "sines"
a, out = np.arange(3.0), np.zeros(3)
try:
    cuda.jit(written)[1, 1](a, out)
except IndexError as error:
    print(error.line, np.array_equal(out, np.sin(a)))

class Refused(Exception):
    pass

@cuda.jit(opt=False, debug=True)
def refuse(a):
    raise Refused("all")

try:
    refuse[1, 1](host)
except Refused as error:
    print("In function" in str(error), str(error).partition("tid=")[2])

def here():
    inside = 2
    exec("found.append(inside)", {"found": found, "inside": 3})
    exec("found.append(inside)")
    exec("def f(): return later", found_names := {"later": 4})
    found.append(found_names["f"]())

found = []
here()
print(found)
'''


def test_a_program_is_warned_as_by_numba_cuda_and_its_texts_are_kept(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    settings = os.environ | {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "1", "NUMBA_CUDA_WARN_ON_IMPLICIT_COPY": "1"}
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100, env=settings)
    assert ran.returncode == 0, ran.stderr
    grid = "[('NumbaPerformanceWarning', 'Grid', True)]"
    copy = "[('NumbaPerformanceWarning', 'Host', True)]"
    debug = "[('NumbaInvalidConfigWarning', 'debug=True', True)]"
    assert ran.stdout.splitlines() == [
        f"{grid} []", f"{copy} [] []", f"{debug} [] []", "[]", "3 True",
        "True [0, 0, 0] ctaid=[0, 0, 0]: all", "[3, 2, 4]",
    ]  # fmt: skip


def test_labkits_own_programs_are_not_warned(recwarn):
    import numpy as np

    from labkit import cuda

    @cuda.jit(debug=True)
    def store(a):
        a[0] = 1

    store[1, 1](np.zeros(1))
    assert not recwarn.list


def test_settings_of_a_program_outlast_a_later_import():
    program = ("from labkit.simt import stand_in; stand_in.install()\n"
               "from numba import config, cuda\n"
               "before = config.CUDA_WARN_ON_IMPLICIT_COPY\n"
               "config.CUDA_WARN_ON_IMPLICIT_COPY = 1\n"
               "import numba.cuda.random\n"
               "print(before, config.CUDA_WARN_ON_IMPLICIT_COPY)")
    settings = {name: value for name, value in os.environ.items() if name != "NUMBA_CUDA_WARN_ON_IMPLICIT_COPY"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=settings)
    assert (ran.stdout, ran.returncode) == ("0 1\n", 0), ran.stderr
