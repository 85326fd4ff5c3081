"""Submissions that try to change a grade, to see what they must not, or to stop the grader. Each is a tiny program:
none may pass, none may touch anything outside its process, and the next student's right answer must pass after it."""

import os
import socket
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit._common.paths import REPOSITORY
from labkit.course.grade import sandbox
from labkit.course.grade.answers import answers_in, read_cells
from labkit.course.grade.isolate import Limits
from labkit.course.grade.judge import Judge, Settings
from tests.course.grade.made_up import FIRST, RIGHT_FUNCTION, RIGHT_KERNEL, UNGUARDED, notebook

pytestmark = pytest.mark.cpu_device
WRONG = "def blocks_needed(n, each, threads):\n    return 0\n"
BEGIN = "def blocks_needed(n, each, threads):\n"


def body(*lines: str) -> str:
    """The function of the exercise with these lines, and a wrong result."""
    return BEGIN + "".join(f"    {line}\n" for line in lines) + "    return 0\n"


# Functions: any Python runs, in its process. CANARY stands for the path of a file of the teacher's.
FUNCTIONS = {
    "check is defined anew": WRONG + "def check(*a, **k):\n    class V: passed = True\n    return V()\n",
    "check is replaced in labkit": "import labkit\nlabkit.check = lambda *a, **k: True\n" + WRONG,
    "examine is patched": "import labkit.course.check as c\nc.examine = lambda *a, **k: None\n" + WRONG,
    "Verdict is patched": "from labkit.course.check.verdict import Verdict\nVerdict.passed = True\n" + WRONG,
    "the tolerance is patched": "from labkit.course import exercises\nfor e in exercises.load().values():\n"
                                "    object.__setattr__(e, 'tolerance', lambda *a: 1e9)\n" + WRONG,
    "NumPy's comparisons are patched": "import numpy as np\nnp.allclose = lambda *a, **k: True\n"
                                       "np.array_equal = np.isclose = np.allclose\n" + WRONG,
    "the differences are patched": "import labkit.kernels.agree as g\ng.differences = lambda *a: None\n" + WRONG,
    "the reference is imported": "from labkit.course.exercises.start_here.blocks_needed import EXERCISE\n"
                                 "blocks_needed = EXERCISE.reference\n",
    "the answer is imported": "from labkit.course.exercises.start_here.blocks_needed import blocks_needed\n",
    "the reference is found in the frames": body(
        "import sys", "f = sys._getframe()", "while f:",
        "    for v in list(f.f_locals.values()) + list(f.f_globals.values()):",
        "        r = getattr(v, 'reference', None) or getattr(v, 'expected', None)",
        "        if callable(r): return r(n, each, threads)", "        if r is not None: return r", "    f = f.f_back"),
    "the reference is found by the collector": body(
        "import gc", "for o in gc.get_objects():", "    try: r = getattr(o, 'reference', None)",
        "    except Exception: continue", "    if callable(r): return r(n, each, threads)"),
    "the solutions are read": body(
        "import glob, re", "for p in glob.glob('SOLUTIONS/00*.py'):",
        "    return eval(re.search(r'return (-\\(-n.*)', open(p).read())[1].replace('in_a_block', '(each*threads)'))"),
    "tracing": "import sys, threading\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\n" + WRONG,
    "numba is patched": "import numba\nnumba.njit = lambda *a, **k: None\nnumba.core = None\n" + WRONG,
    "the environment is changed": "import os\nos.environ.update(LABKIT_PROGRESS='1', NBGRADER_EXECUTION='',"
                                  " LABKIT_BOUNDS_CHECK='0', LD_PRELOAD='/tmp/x.so')\n" + WRONG,
    "modules that shadow others": "open('numpy.py', 'w').write('1/0'); open('sitecustomize.py', 'w').write('1/0')\n"
                                  "import os; os.makedirs('labkit'); open('labkit/__init__.py', 'w').write('1/0')\n"
                                  "import sys; sys.path.insert(0, '.')\n" + WRONG,
    "the progress is written": "import os\nfor p in ('.labkit', '/work', os.path.dirname('CANARY')):\n    try:\n"
                               "        os.makedirs(p, exist_ok=True); open(p + '/progress.json', 'w').write('{}')\n"
                               "    except OSError: pass\n" + WRONG,
    "the teacher's file is written": "try: open('CANARY', 'w').write('100')\nexcept OSError: pass\n" + WRONG,
    "another student is read": body("return len(open('CANARY').read()) and -(-n // (each * threads))"),
    "a link to the teacher's file": body("import os", "os.symlink('CANARY', '/tmp/link')", "open('/tmp/link').read()",
                                         "return -(-n // (each * threads))"),
    "processes are listed": body("import os", "return -(-n // (each * threads)) if len([d for d in os.listdir('/proc')"
                                 " if d.isdigit()]) > 3 else 0"),
    "the parent is killed": "import os, signal\nfor p in (0, 1, os.getppid()):\n    try:\n"
                            "        p and p != os.getpid() and os.kill(p, signal.SIGKILL)\n"
                            "    except OSError: pass\n" + WRONG,
    "everything is killed": "import os, signal\nsignal.signal(15, signal.SIG_IGN)\n"
                            "try: os.kill(-1, 15); os.kill(GRADER, 9)\nexcept OSError: pass\n" + WRONG,
    "the network": body("import socket", "try:", "    s = socket.create_connection(('127.0.0.1', PORT), 1)",
                        "    return -(-n // (each * threads))", "except OSError: pass"),
    "os._exit(0)": "import os\nos._exit(0)\n" + WRONG,
    "os._exit in the call": body("import os", "os._exit(0)"),
    "sys.exit": "import sys\nsys.exit(0)\n" + WRONG,
    "sys.exit in the call": body("raise SystemExit(0)"),
    "stdout is closed": "import os, sys\nsys.stdout.close(); os.close(1); os.close(2)\n" + WRONG,
    "every descriptor is closed": "import os\nos.closerange(0, 60)\n" + WRONG,
    "a verdict in every descriptor": body(
        "import json, os, struct", "m = json.dumps({'head': {'passed': True, 'verdict': 'passed'}, 'values': {},"
        " 'bytes': 0}).encode()", "for fd in range(60):", "    try: os.write(fd, struct.pack('<I', len(m)) + m)",
        "    except OSError: pass"),
    "garbage in every descriptor": body("import os", "for fd in range(60):", "    try: os.write(fd, b'\\xff' * 4096)",
                                        "    except OSError: pass"),
    "a deep message": body("import os, struct", "m = b'[' * 900000", "for fd in range(60):",
                           "    try: os.write(fd, struct.pack('<I', len(m)) + m)", "    except OSError: pass"),
    "a fork bomb": "import os\ntry:\n    while True: os.fork() or os.setsid()\nexcept OSError: pass\n" + WRONG,
    "a thread bomb": "import threading, time\ntry:\n    while True: threading.Thread(target=time.sleep, args=(99,),"
                     " daemon=True).start()\nexcept RuntimeError: pass\n" + WRONG,
    "the disk is filled": "try:\n    for k in range(9999): open(f'/tmp/{k}', 'wb').write(b'x' * 10**6)\n"
                          "except OSError: pass\n" + WRONG,
    "inodes run out": "try:\n    for k in range(10**5): open(f'/tmp/{k}', 'w').close()\nexcept OSError: pass\n" + WRONG,
    "memory": body("x = [bytearray(10**8) for _ in range(1000)]"),
    "a recursion without end": body("return blocks_needed(n, each, threads)"),
    "a crash": body("import ctypes", "ctypes.string_at(0)"),
    "ctypes writes over Python": body("import ctypes", "ctypes.memset(id(0), 0, 64)"),
    "output without end": "for _ in range(20_000): print('x' * 1000)\n" + WRONG,
    "atexit": "import atexit, os\natexit.register(lambda: open('CANARY', 'w').write('1'))\n" + WRONG,
    "a thread that waits": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.2),"
                           " open('CANARY', 'w'))).start()\n" + WRONG,
    "a daemon is left behind": "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60); os._exit(0)\n"
                               + WRONG,
    "__reduce__": body("class R:", "    def __reduce__(self): return (eval, ('1/0',))", "return R()"),
    "a pickle": body("import pickle", "return pickle.dumps(print)"),
    "a giant array": body("import numpy as np", "return np.zeros(1 << 29, np.int8)"),
    "a giant number": body("return 10 ** 5000"),
    "a giant text": body("return 'x' * 50_000_000"),
    "NaN": body("return float('nan')"),
    "an array of objects": body("import numpy as np", "return np.array([eval], dtype=object)"),
    "a structured array": body("import numpy as np", "return np.zeros(1, 'i4,i4')"),
    "a subclass that is equal to all": body("class E(int):", "    def __eq__(self, other): return True",
                                            "    __hash__ = int.__hash__", "return E(7)"),
    "an array of another shape": body("import numpy as np", "return np.zeros((3, 3))"),
    "an exception named as a pass": body("E = type('passed', (Exception,), {'line': 'x', 'index': ()})", "raise E"),
    "a fault with false facts": body("class OutOfBoundsError(Exception): pass", "e = OutOfBoundsError('x')",
                                     "e.array, e.index, e.shape, e.thread, e.block, e.line = 'a', (), (), (), (), 0",
                                     "raise e"),
    "an exception whose text raises": body("class E(Exception):", "    def __str__(self): raise SystemExit",
                                           "raise E"),
    "hostile HTML": body("raise ValueError('<script>alert(1)</script>' * 10)"),
    "the cache is poisoned": "import os\nfor d, _, names in os.walk(os.environ['LABKIT_CACHE_DIR']):\n"
                             "    for name in names: open(f'{d}/{name}', 'wb').write(b'\\x80garbage')\n" + WRONG,
    "a namespace of its own": body("import ctypes, os", "ctypes.CDLL(None).unshare(0x10020000)",
                                   "ctypes.CDLL(None).umount2(b'/', 2)", "open('CANARY').read()"),
}
SLOW = {
    "a loop without end": body("while True: pass"),
    "a loop that catches everything": body("while True:", "    try:", "        while True: pass",
                                           "    except BaseException: pass"),
    "a loop above the answer": "while True: pass\n" + WRONG,
    "a kernel that never ends": RIGHT_KERNEL.replace("if i < y.size:", "while i < y.size:"),
    "a process that stops itself": body("import os, signal", "os.kill(os.getpid(), signal.SIGSTOP)",
                                        "import time; time.sleep(99)"),
}

# Kernels: only vetted statements run.
HEAD = FIRST + "\n"
KERNELS = {
    "a kernel that is none": "class Fake:\n    def __getitem__(self, c): return lambda *a: None\nsaxpy = Fake()",
    "a real kernel behind a false one": RIGHT_KERNEL.replace("saxpy", "real") + (
        "\nclass K:\n    py_func = real.py_func\n    def __getitem__(self, c): return real[c]\nsaxpy = K()"),
    "a decorator of its own": "def mine(f): return f\n@mine\n" + UNGUARDED,
    "a decorator with a call": UNGUARDED.replace("@cuda.jit", "@cuda.jit(exec('1/0'))"),
    "a default that runs": UNGUARDED.replace("x, y", "x, y=open('/etc/passwd').read()"),
    "a kernel without its guard": UNGUARDED,
    "cuda is replaced": "cuda = __import__('labkit').cuda\n" + UNGUARDED,
    "an import within": UNGUARDED.replace("    i =", "    import os\n    i ="),
    "exec within": UNGUARDED.replace("    i =", "    exec('1')\n    i ="),
    "a way up by dunders": "K = ().__class__.__base__.__subclasses__()\n" + UNGUARDED.replace("True", "len(K) > 0"),
    "a file of arrays": "import numpy as np\nA = np.load('/tmp/a.npy')\n" + UNGUARDED.replace("True", "A[0] > 0"),
    "a name that two imports give": "import numpy as np\nA = np.fromfile('/etc/passwd')\nimport math as np\n"
                                    + UNGUARDED.replace("True", "A[0] > 0"),
    "the exercise is imported": "from labkit.course.exercises.vector_add.saxpy import EXERCISE\n"
                                + UNGUARDED.replace("True", "EXERCISE is not None"),
    "the answer is imported": "from labkit.course.exercises.vector_add.saxpy import saxpy",
    "a kernel of the library": "from labkit.kernels.residual_add import residual_add_per_thread_kernel as saxpy",
    "a comprehension that runs": "A = [print(k) for k in range(3)]\n" + UNGUARDED.replace("True", "len(A) > 0"),
    "a constant that takes all memory": "A = (1,) * 10**10\n" + UNGUARDED.replace("True", "len(A) > 0"),
    "nested too deeply": "A = " + "(" * 5000 + ")" * 5000 + "\n" + RIGHT_KERNEL.replace("y.size:", "y.size + A:"),
    "a sum too deep": "A = 0" + " + 1" * 10_000 + "\n" + RIGHT_KERNEL.replace("y.size:", "y.size + A - A:"),
    "a null byte": "A = 1\0\n" + RIGHT_KERNEL,
    "a huge cell": RIGHT_KERNEL + "\n#" + "x" * 100_000,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A judge, and a file of the teacher's beside it."""
    if not sandbox.works("namespaces"):
        pytest.skip("this system offers no namespaces")
    folder = tmp_path_factory.mktemp("grade")
    canary = folder / "class" / "gradebook.txt"
    canary.parent.mkdir()
    canary.write_text("untouched")
    os.chmod(canary, 0o666)
    judge = Judge(Settings(folder / "work", b"a secret of the tests", "namespaces", (canary.parent,),
                           limits=Limits(memory=512 << 20)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield SimpleNamespace(judge=judge, canary=canary, port=listener.getsockname()[1])
    judge.close()


def judged(judge, exercise: str, answer: str, above: str = FIRST) -> dict:
    cells = read_cells(notebook(above, answer, f'check("{exercise}", {exercise})').encode(), ".ipynb")
    return judge.judge(exercise, answers_in(cells)[exercise])


def changes_nothing(place, answer: str, exercise: str = "blocks_needed") -> dict:
    """The verdict on an attack; everything else is as it was before it."""
    judge, canary = place.judge, place.canary
    text = answer.replace("CANARY", str(canary)).replace("GRADER", str(os.getpid())).replace("PORT", str(place.port))
    text = text.replace("SOLUTIONS", str(REPOSITORY / "solutions"))
    result = judged(judge, exercise, text)
    assert not result["passed"], result
    assert result["headline"] and isinstance(result["details"], list)
    assert judged(judge, "blocks_needed", RIGHT_FUNCTION)["passed"]
    assert canary.read_text() == "untouched" and list(canary.parent.iterdir()) == [canary]
    return result


@pytest.mark.sampled(1, sweep=19, quick="an array of objects")
@pytest.mark.parametrize("attack", FUNCTIONS)
def test_a_function_changes_no_grade(attack, place):
    begin = time.monotonic()
    changes_nothing(place, FUNCTIONS[attack])
    assert time.monotonic() - begin < 60


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("attack", SLOW)
def test_what_never_ends_is_ended(attack, place):
    judge = place.judge
    patient, judge.settings = judge.settings, Settings(judge.settings.folder, b"another secret", "namespaces",
                                                       wall_s=2.5)
    try:
        result = judged(judge, "saxpy" if "kernel" in attack else "blocks_needed", SLOW[attack])
        assert not result["passed"] and "ends" in result["headline"], result
    finally:
        judge.settings = patient
    assert judged(judge, "blocks_needed", RIGHT_FUNCTION)["passed"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("attack", KERNELS)
def test_a_kernel_changes_no_grade(attack, place):
    changes_nothing(place, KERNELS[attack], "saxpy")


@pytest.mark.sweep(every=True)
def test_a_fault_of_a_kernel_is_observed_by_the_grader(place):
    result = judged(place.judge, "saxpy", UNGUARDED)
    assert result["verdict"] == "out_of_bounds" and result["mistake"] == "there is no guard"
    assert "`x[1]`" in " ".join(result["details"]) or "`y[1]`" in " ".join(result["details"])


def test_an_honest_kernel_passes_after_all_of_them(place):
    for above in (FIRST, FIRST + "\nprint('cells above need not be clean')\n%matplotlib inline",
                  "from numba import cuda"):
        result = judged(place.judge, "saxpy", RIGHT_KERNEL, above)
        assert result["passed"], result


def test_what_a_function_leaves_behind_ends_with_it(place):
    judge = place.judge
    for _ in range(3):
        judged(judge, "blocks_needed", FUNCTIONS["a daemon is left behind"])
    assert judge.sandbox.process.poll() is None
    uid = 61_000_000
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and _uid(pid) in (uid, uid + 1)]
    assert left == []


def _uid(pid: str) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def test_one_answer_never_quotes_another(place):
    judged(place.judge, "blocks_needed", "secret_of_alice = 1\n" * 3 + RIGHT_FUNCTION)
    result = judged(place.judge, "blocks_needed", "x = 1\nimport nothing_of_that_name\n" + WRONG)
    assert "alice" not in str(result) and "nothing_of_that_name" in str(result)


def test_a_fault_cannot_have_a_file_of_the_teachers_quoted(place):
    attack = body("class OutOfBoundsError(Exception): pass", "e = OutOfBoundsError('x')",
                  "e.array, e.index, e.shape, e.thread, e.block = 'a', (1,), (1,), (0, 0, 0), (0, 0, 0)",
                  f"e.line, e.filename = 1, {str(place.canary)!r}", "raise e")
    result = judged(place.judge, "blocks_needed", attack)
    assert result["verdict"] == "out_of_bounds" and "untouched" not in str(result)


def test_a_process_that_ends_is_named_as_such(place):
    result = judged(place.judge, "blocks_needed", FUNCTIONS["a crash"])
    assert result["headline"] == "Its process ended." and "signal 11" in result["details"][0]


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("isolation", ["namespaces", pytest.param("bwrap", marks=pytest.mark.sweep)])
def test_what_stands_below_tmp_is_shown_there_too(isolation, tmp_path, monkeypatch):
    """A virtual environment may stand below /tmp, of which an answer gets an empty one."""
    if not sandbox.works(isolation):
        pytest.skip(f"this system offers no {isolation}")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        library = Path(folder, "deep", "library")
        library.mkdir(parents=True)
        (library / "one.txt").write_text("x" * 7)
        Path(folder, "other.txt").write_text("x")
        shown = [*sandbox.shown_paths(), str(library)]
        monkeypatch.setattr(sandbox, "shown_paths", lambda: shown)
        judge = Judge(Settings(tmp_path / "work", b"a secret of the tests", isolation))
        right = "return -(-n // (each * threads))"
        try:
            read = body(f"if len(open('{library}/one.txt').read()) == 7: {right}")
            assert judged(judge, "blocks_needed", read)["passed"]
            for path in (f"{folder}/other.txt", f"{library}/one.txt"):
                mode = "r" if "other" in path else "a"
                assert not judged(judge, "blocks_needed", body(f"open({path!r}, {mode!r})", right))["passed"]
        finally:
            judge.close()
        assert (library / "one.txt").read_text() == "x" * 7


@pytest.mark.sweep
@pytest.mark.parametrize("isolation", ["bwrap", "limits"])
def test_other_isolations_judge_too(isolation, tmp_path):
    if not sandbox.works(isolation):
        pytest.skip(f"this system offers no {isolation}")
    tmp_path.chmod(0o755)
    canary = tmp_path / "canary.txt"
    canary.write_text("untouched")
    judge = Judge(Settings(tmp_path / "work", b"a secret of the tests", isolation))
    try:
        assert judged(judge, "blocks_needed", RIGHT_FUNCTION)["passed"]
        read = judged(judge, "blocks_needed", FUNCTIONS["another student is read"].replace("CANARY", str(canary)))
        imported = judged(judge, "blocks_needed", FUNCTIONS["the reference is imported"])
        if isolation == "bwrap":  # limits are weak, and say so
            assert not read["passed"] and not imported["passed"]
        assert not judged(judge, "blocks_needed", FUNCTIONS["os._exit(0)"])["passed"]
        assert judged(judge, "blocks_needed", RIGHT_FUNCTION)["passed"]
    finally:
        judge.close()
