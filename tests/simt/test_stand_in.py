"""labkit.simt.stand_in: the CPU device in the place of numba.cuda and numba_cuda_mlir.cuda; labkit.simt on its own."""

import os
import shutil
import subprocess
import sys

import pytest

from labkit._common.paths import PACKAGE
from labkit.simt.stand_in import environment, submodule

pytestmark = pytest.mark.cpu_device
INSTALL = "from labkit.simt import stand_in\nstand_in.install()\n"


def run(text, tmp_path, install=True, **variables):
    """What a program prints that is in a file of its own; it fails where the program does."""
    path = tmp_path / "program.py"
    path.write_text((INSTALL if install else "") + text, encoding="utf-8")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=os.environ | variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_installing_imports_neither_numba_nor_numpy(tmp_path):
    assert run("import sys\nprint([m for m in ('numba', 'numpy') if m in sys.modules])", tmp_path) == "[]\n"


def test_every_way_to_import_it_gives_the_same_module(tmp_path):
    text = """
from numba import cuda
import numba, numba.cuda as b, numba_cuda_mlir.cuda as c, numba_cuda_mlir
from numba_cuda_mlir import cuda as d, numba_cuda
from labkit.simt import api
assert cuda is b is c is d is numba.cuda is numba_cuda_mlir.cuda is numba_cuda
assert cuda.jit is api.jit and "threadIdx" in dir(cuda)
"""
    run(text, tmp_path)


def test_what_programs_import_works(tmp_path):
    text = """
import numpy as np, numba, unittest
from numba import cuda
from numba.cuda import cg, config, float32, libdevice, types
from numba.cuda.args import In, InOut, Out
from numba.cuda.core import config as of_core
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadrv.devicearray import DeviceNDArray, is_cuda_ndarray
from numba.cuda.cudadrv.driver import CudaAPIError, driver
from numba.cuda.cudadrv.error import CudaSupportError, NvvmError
from numba.cuda.cudadrv import devices, nvvm
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.errors import KernelRuntimeError
from numba.cuda.kernels.reduction import Reduce
from numba.cuda.np.numpy_support import from_dtype
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32
from numba.cuda.stubs import threadIdx
from numba.cuda.testing import CUDATestCase, skip_on_cudasim
from numba.cuda.typing.typeof import typeof
from numba_cuda_mlir.numba_cuda.types import int32

@cuda.jit
def k(a, states):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = numba.cuda.libdevice.sqrtf(float32(i)) + (xoroshiro128p_uniform_float32(states, i) < 1)

a = np.zeros(8, np.float32)
k[1, 8](InOut(a), create_xoroshiro128p_states(8, 1))
assert np.allclose(a, np.sqrt(np.arange(8)) + 1)
assert isinstance(cuda.to_device(a), DeviceNDArray) and isinstance(k, CUDADispatcher)
assert types is numba.core.types and config is numba.config and int32 is numba.int32 and not nvvm.is_available()
assert driver.get_device_count() == 1 and devices.get_context().device.id == 0
assert all(issubclass(e, Exception) for e in (CudaAPIError, CudaSupportError, NvvmError, KernelRuntimeError))

class Tests(CUDATestCase):
    @skip_on_cudasim("runs on a GPU")
    def test(self):
        self.assertPreciseEqual(1, 1)

assert unittest.TextTestRunner(verbosity=0).run(unittest.defaultTestLoader.loadTestsFromTestCase(Tests)).testsRun == 1

@numba.vectorize(["float32(float32, float32)"], target="cuda")
def add(x, y):
    return x + y

@numba.guvectorize(["void(float32[:], float32[:])"], "(n)->(n)", target="cuda")
def twice(x, y):
    for i in range(x.size):
        y[i] = 2 * x[i]

assert (add(a, a) == twice(a)).all()
"""
    run(text.replace(", is_cuda_ndarray", ""), tmp_path)


def test_what_needs_a_gpu_says_so_when_it_is_used(tmp_path):
    text = """
from numba import cuda
from numba.cuda import compile_ptx
from numba.cuda.cudadrv.driver import Linker, LinkerError, driver
assert issubclass(LinkerError, Exception) and not isinstance(3, Linker)
for use in (lambda: compile_ptx(None, ()), lambda: Linker.new(), lambda: driver.cuMemAlloc(4), lambda: cuda.grud,
            lambda: __import__("numba.cuda.grud"), lambda: cuda.cudadrv.nvvm.NVVM()):
    try:
        use()
    except Exception as error:
        print(type(error).__name__, error)
"""
    rest = "needs a GPU: the CPU device, which is in its place, does not have it"
    assert run(text, tmp_path).splitlines() == [
        f"UnsupportedError numba.cuda.compile_ptx {rest}", f"UnsupportedError numba.cuda.cudadrv.driver.Linker {rest}",
        f"UnsupportedError numba.cuda.cudadrv.driver.driver.cuMemAlloc {rest}",
        "AttributeError cuda.grud is not supported by the CPU device",
        "ModuleNotFoundError numba.cuda.grud does not exist on the CPU device, which is in its place",
        f"UnsupportedError numba.cuda.cudadrv.nvvm.NVVM {rest}",
    ]  # fmt: skip


@pytest.mark.sweep(every=True)
def test_types_are_numbas_own(tmp_path):
    """Where the rule of labkit.simt.unsigned holds, the sum wraps around."""
    text = """
import numpy as np
from labkit.simt import unsigned
unsigned.applies_to("__main__")
from CUDA import cuda

@cuda.jit
def add(a, n):
    a[0] = n + np.uint32(cuda.blockDim.x)

a = np.zeros(1, np.int64)
add[1, 32](a, np.uint32(2**32 - 1))
print(a[0])
"""
    assert run(text.replace("from CUDA import cuda", "from numba import cuda"), tmp_path) == f"{2**32 + 31}\n"
    assert run(text.replace("from CUDA import cuda", "from labkit.simt import api as cuda"), tmp_path, False) == "31\n"


def test_it_refuses_to_come_too_late(tmp_path):
    text = """
import sys, types
sys.modules["numba.cuda"] = real = types.ModuleType("numba.cuda")
sys.modules["early"] = early = types.ModuleType("early")
early.cuda = real
del real
from labkit.simt import stand_in
try:
    stand_in.install()
except ImportError as error:
    print(error)
"""
    said = "has imported numba.cuda already: labkit.simt.stand_in.install() must come before its import"
    assert run(text, tmp_path, install=False) == f"early {said}\n"


@pytest.mark.parametrize("name, part", [
    ("numba.cuda", ""), ("numba.cuda.cudadrv.driver", "cudadrv.driver"), ("numba_cuda_mlir", ""),
    ("numba_cuda_mlir.cuda.random", "random"), ("numba_cuda_mlir.numba_cuda.types", "types"), ("numba", None),
    ("numba.cudart", None), ("numba_cuda", None),
])  # fmt: skip
def test_the_names_of_both_packages(name, part):
    assert submodule(name) == part


# ---------------------------------------------------------------- LABKIT_SIMT


@pytest.mark.skipif(sys.platform == "win32", reason="a virtual environment has other folders")
def test_labkit_simt_1_in_a_virtual_environment(tmp_path):
    import site

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    (folder,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (folder / "a.pth").write_text("\n".join([str(PACKAGE.parent), *site.getsitepackages()]), encoding="utf-8")
    plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LABKIT_SIMT")}
    program = ["-c", "from numba import cuda; print(cuda.get_current_device().name)"]
    loaded = ["-c", "import sys; print([m for m in sys.modules if m in ('labkit', 'numba', 'numpy', 'runpy')])"]

    def output(*args, **variables):
        done = subprocess.run([python, *args], capture_output=True, text=True, env=plain | variables, cwd=tmp_path)
        return done.stdout + done.stderr

    pth = folder / "labkit_simt.pth"
    assert output("-m", "labkit.simt", "--enable").startswith(f"Wrote {pth}\n")
    assert output(*program, LABKIT_SIMT="1") == "labkit CPU device\n"
    assert output(*loaded) == output(*loaded, LABKIT_SIMT="0") == "[]\n"
    assert output("-m", "labkit.simt", "--disable") == f"Removed {pth}\n"
    assert output("-m", "labkit.simt", "--disable") == f"There is no {pth}\n"
    assert "labkit" not in output(*program, LABKIT_SIMT="1")


def test_where_site_packages_cannot_be_written(tmp_path, monkeypatch, capsys):
    from labkit.simt.__main__ import main

    monkeypatch.setattr(environment, "pth", lambda: tmp_path / "missing" / "labkit_simt.pth")
    assert main(["--enable"]) == 2
    assert "labkit_simt.pth cannot be written (No such file or directory): use a virtual environment, or" in (
        capsys.readouterr().err)  # fmt: skip


def test_a_sitecustomize_that_ours_hides_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs')", encoding="utf-8")
    path = os.pathsep.join([str(environment.STARTUP), str(tmp_path), str(PACKAGE.parent)])
    text = "from numba import cuda\nprint(cuda.get_current_device().name)"
    out = run(text, tmp_path, install=False, PYTHONPATH=path, LABKIT_SIMT="1")
    assert out == "theirs\nlabkit CPU device\n"


# ---------------------------------------------------------------- on its own

ALONE = '''
import sys
ALLOWED = {"labkit", "numba", "numpy", "llvmlite", "labkit_simt_cache", *sys.stdlib_module_names}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from labkit.simt import stand_in
stand_in.install()
import numpy as np
from numba import cuda, float32
from labkit.simt import observe

@cuda.jit
def reverse(a):
    part = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    part[i] = a[i]
    cuda.syncthreads()
    a[i] = part[63 - i]

@cuda.jit
def wrong(a):
    a[0] += cuda.threadIdx.x

a = np.arange(64, dtype=np.float32)
reverse[1, 64](a)
assert (a == np.arange(64)[::-1]).all()
(race,) = {finding.kind for finding in observe(wrong[1, 64], a).findings}
print(race)
loaded = [m for m in sys.modules.values() if getattr(m, "__file__", None)]
print(sorted(m.__name__ for m in loaded if m.__name__.partition(".")[0] == "labkit" and
             not m.__file__.startswith(sys.argv[1])))
'''


def test_the_folder_alone_with_numba_and_numpy(tmp_path):
    """A copy of labkit/simt, in a labkit that holds nothing else; other packages cannot be imported."""
    shutil.copytree(PACKAGE / "simt", tmp_path / "labkit" / "simt", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "labkit" / "__init__.py").touch()
    (tmp_path / "program.py").write_text(ALONE, encoding="utf-8")
    variables = {"PYTHONPATH": str(tmp_path), "LABKIT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "program.py", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path,
                          env=os.environ | variables)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["race", "[]"]
    assert (tmp_path / "cache").is_dir()
