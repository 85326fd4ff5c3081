"""Every launch of a program observed, and what was found as text: `python -m labkit.simt --observe`, and pytest's
--cuda-observe.

Launches that are too large to be run in plain Python run compiled, and are counted.
"""

import linecache
from collections import Counter
from types import SimpleNamespace

import numpy as np

from labkit.simt import launch, settings
from labkit.simt.arguments import ArgHint
from labkit.simt.arrays import DeviceNDArray, as_cuda_array, is_cuda_array
from labkit.simt.errors import KernelTimeout, file_label
from labkit.simt.observer.observation import Observation
from labkit.simt.observer.observe import as_passed

MOST_THREADS = 8192  # of a launch that is observed
MOST_LAUNCHES = 50  # of one kernel
MOST_STEPS = 200_000  # turns of loops in one launch, of all its threads together
KINDS = {
    "race": "race",
    "out_of_bounds": "access out of bounds",
    "divergent_barrier": "barrier that some threads do not reach",
    "uninitialized_read": "read of memory that nothing wrote",
}
ADVICE = {
    "race": "",  # each race has its own
    "out_of_bounds": "Guard it, so that only threads with an element do it: `if i < {array}.size:`.",
    "divergent_barrier": "Move the barrier out of the branch or the loop that only some threads run.",
    "uninitialized_read": "Write the element first; if another thread writes it, put a barrier between the two.",
}


class Found:
    """One finding, in how many launches it was made, and the first of them."""

    def __init__(self, report, finding):
        self.filename, self.grid, self.block, self.finding = report.filename, report.grid, report.block, finding
        self.kind, self.kernel, self.lines = finding.kind, finding.kernel, finding.lines
        self.launches = 0

    def __str__(self):
        finding = self.finding
        fact = finding.sentence.removesuffix(finding.one_warp).rstrip().removesuffix(finding.advice).rstrip()
        fact = fact.removeprefix("race: ").removeprefix(f"line {finding.lines[0]}: ")
        advice = finding.advice or ADVICE[self.kind].format(array=finding.array)
        times = f"{finding.times:,} times in this launch" if finding.times > 1 else "once in this launch"
        more = f", and in {self.launches - 1:,} more" if self.launches > 1 else ""
        source = [f"  {line:>5} | {linecache.getline(self.filename, line).strip()}" for line in self.lines]
        return "\n".join([
            f"{file_label(self.filename)}:{self.lines[0]}: {KINDS[self.kind]} in {self.kernel}", *source,
            f"  What happens: {fact[0].upper()}{fact[1:]}",
            f"  What to do:   {' '.join(filter(None, (advice, finding.one_warp)))}",
            f"  Seen:         {self.kernel}[{_short(self.grid)}, {_short(self.block)}], {times}{more}",
        ])  # fmt: skip


class Watch:
    """Observe each launch inside `with`. found: a list of Found; unobserved: {kernel: launches that ran compiled}."""

    def __init__(self, most_threads=MOST_THREADS, most_launches=MOST_LAUNCHES, most_steps=MOST_STEPS):
        self.most_threads, self.most_launches, self.most_steps = most_threads, most_launches, most_steps
        self.found, self.unobserved, self.launches = [], Counter(), Counter()
        self._by_key, self._too_long = {}, set()

    def __enter__(self):
        self._before, launch.watcher = launch.watcher, self
        return self

    def __exit__(self, *_):
        launch.watcher = self._before

    def __call__(self, configured, args):
        kernel = configured.kernel
        threads = int(np.prod(configured.grid)) * int(np.prod(configured.block))
        too_many = threads > self.most_threads or self.launches[kernel] >= self.most_launches
        if too_many or kernel in self._too_long:
            self.unobserved[kernel.__name__] += 1
            return configured.run(*args)
        afterwards = []
        args = [a.to_device(afterwards, configured.stream) if isinstance(a, ArgHint) else a for a in args]
        args = [as_cuda_array(a) if is_cuda_array(a) and not isinstance(a, np.ndarray) else a for a in args]
        arrays = list(_arrays(args))
        before = [array.copy() for array in arrays]
        observation = Observation(kernel.py_func, configured.grid, configured.block, configured.sharedmem,
                                  as_passed(kernel, args), kernel.checks_division)  # fmt: skip
        configured._check_shared(SimpleNamespace(static_bytes=observation.dynamic_offset))
        try:
            with settings.step_limit(self.most_steps):
                observation.run()
            self.launches[kernel] += 1
        except KernelTimeout:  # too long for plain Python: from its beginning, compiled
            self.unobserved[kernel.__name__] += 1
            self._too_long.add(kernel)
            for array, values in zip(arrays, before, strict=True):
                array[...] = values
            configured.run(*args)
        finally:
            self._note(observation.report)
        for copy_back in afterwards:
            copy_back()

    def _note(self, report):
        new = {}
        for finding in report.findings:
            key = (report.filename, report.kernel, finding.kind, tuple(finding.lines), finding.array)
            new.setdefault(key, finding)
        for key, finding in new.items():
            if key not in self._by_key:
                self._by_key[key] = Found(report, finding)
                self.found.append(self._by_key[key])
            self._by_key[key].launches += 1

    def summary(self):
        """A sentence on how many launches were observed, and which were not."""
        count = sum(self.launches.values())
        return summary(count, self.unobserved)


def summary(observed, unobserved):
    """A sentence on how many launches were observed, and which were not. unobserved: {kernel: launches}."""
    text = f"{observed:,} launch{'' if observed == 1 else 'es'} observed"
    if unobserved:
        kernels = ", ".join(f"{name} ({count:,})" for name, count in sorted(unobserved.items()))
        text += f"; too large or too many to observe, so run compiled: {kernels}"
    return text


def _arrays(args):
    for value in args:
        if isinstance(value, tuple):
            yield from _arrays(value)
        elif isinstance(value, DeviceNDArray):
            yield value._array
        elif isinstance(value, np.ndarray) and value.flags.writeable:
            yield value


def _short(shape):
    """(256, 1, 1) -> 256."""
    parts = shape if shape[2] != 1 else shape[:2] if shape[1] != 1 else shape[:1]
    return str(parts[0]) if len(parts) == 1 else str(tuple(parts))
