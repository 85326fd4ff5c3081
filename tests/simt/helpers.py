"""What tests of the CPU device share: a kernel's lines by their marks, a launch in both runs, kernels from text,
programs in processes of their own."""

import inspect
import linecache
import os
import subprocess
import sys
import textwrap
import zlib

import numpy as np
import pytest

from labkit import cuda, observe

WAYS = pytest.mark.parametrize("way", ["compiled", "observed"])


def lines_of(kernel, *marks):
    """The file's lines that end with the comments `# mark`."""
    source, first = inspect.getsourcelines(kernel.py_func)
    found = {m: first + k for k, text in enumerate(source) for m in marks if text.rstrip().endswith(f"# {m}")}
    return [found[m] for m in marks]


def line_of(kernel, mark):
    return lines_of(kernel, mark)[0]


def run(way, configured, *args):
    """Launch, or observe and expect nothing found."""
    if way == "compiled":
        configured(*args)
    else:
        report = observe(configured, *args)
        assert report.ok and not report.findings, str(report)


def both(launch, *args):
    """The arrays among the arguments as a launch leaves them, and as an observation does: they must be equal."""
    compiled, observed = ([np.array(a) if isinstance(a, np.ndarray) else a for a in args] for _ in range(2))
    launch(*compiled)
    report = observe(launch, *observed)
    assert report.ok, report.findings
    for one, other in zip(compiled, observed, strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(other, one)
    return compiled


def run_python(code, *args, env=None, cache, timeout=120, check=True, **options):
    """Run code in a new process, with its own cache directory. It is a file, so that kernels have source."""
    path = cache.parent / f"program_{abs(hash(code))}.py"
    path.write_text(textwrap.dedent(code))
    settings = {**os.environ, "LABKIT_CACHE_DIR": str(cache), "LABKIT_DEVICE": "cpu", **(env or {})}
    done = subprocess.run(
        [sys.executable, path, *args], env=settings, capture_output=True, text=True, timeout=timeout, check=False,
        **options,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def kernel_of(body, arguments="x, y", name="kernel", **names):
    """A kernel from the text of its body, which may use `names`. Its source is where inspect looks for it."""
    source = f"@cuda.jit\ndef {name}({arguments}):\n{textwrap.indent(body, '    ')}\n"
    filename = f"<kernel {zlib.crc32(source.encode()):08x}>"  # the same in each run: compiled kernels are kept by it
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    surroundings = {"cuda": cuda, **names}
    exec(compile(source, filename, "exec"), surroundings)
    return surroundings[name]
