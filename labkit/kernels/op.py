"""An operation: its reference (NumPy, float64), the rungs that compute it on the device, and what computing it costs.

    agree(MATMUL)          every rung, at awkward sizes, against the reference; raises if one is wrong
    MATMUL.work.flops(M=37, N=23, K=19)

A size is a dictionary of axis lengths, {"M": 37, "N": 23, "K": 19}: the same names that flops and bytes take. An array
of uint16 holds bfloat16 numbers: NumPy has no type for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from labkit import device
from labkit._common.chunks import CHUNK, in_chunks
from labkit._common.tables import ResultTable
from labkit.device import gpus, launches, needs
from labkit.kernels.baselines import Baseline

PEAKS = ("fp32", "tf32", "f16", "fp8")
UNITS = ("GB/s", "TFLOP/s")


# --- Rungs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Rung:
    """A launcher with its kernel and its idea. Called like the launcher, with its name, signature and source.

    kernel: the kernel that it launches, or a tuple of all that it may launch. idea: one line.
    failed: why it is not faster, with a measurement; empty if it is.
    tolerance(*inputs): this rung's own, in place of the op's, when it computes less exactly on purpose.
    picks: it launches one of its kernels, whichever suits the GPU, not all.
    sizes: which sizes the launcher allows, "N and K multiples of 8", if not all; it raises ValueError for others.
    """

    launcher: Callable
    kernel: object
    idea: str
    failed: str = ""
    tolerance: Callable | None = None
    picks: bool = False
    sizes: str = ""

    def __post_init__(self):
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):  # what functools.wraps copies
            object.__setattr__(self, name, getattr(self.launcher, name))
        object.__setattr__(self, "__wrapped__", self.launcher)  # for inspect's signature and source

    def __call__(self, *args, **kwargs):
        return self.launcher(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<rung {self.__name__}: {self.idea}>"

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return tuple(kernel.__name__ for kernel in launches.kernels_of(self))

    @functools.cached_property
    def needs(self) -> tuple | None:
        """The least compute capability that runs it, from the instructions of its kernels; None: every GPU does."""
        each = [needs.of(kernel) or () for kernel in launches.kernels_of(self)]
        return (min if self.picks else max)(each, default=()) or None

    @property
    def missing(self) -> str:
        """Why the GPU that kernels are chosen for cannot run it; empty if it can."""
        if not gpus.limited():
            return ""
        # A launcher with kernels for several tiles picks one that fits.
        shared = min((kernel.shared_bytes for kernel in launches.kernels_of(self) if hasattr(kernel, "shared_bytes")),
                     default=0)
        return needs.lacks(gpus.target().capability, self.needs) or gpus.lacks_shared(shared)

    def called(self, name: str, launcher: Callable, **fields) -> Rung:
        """This rung under another name and called in another way, as an Op needs it: with its inputs, then out."""
        return replace(self, launcher=named(name, self.__doc__)(launcher), **fields)


def rung(*, kernel, idea: str, failed: str = "", tolerance: Callable | None = None, picks: bool = False,
         sizes: str = "") -> Callable[[Callable], Rung]:
    """Decorate a launcher as a Rung with these fields."""
    return lambda launcher: Rung(launcher, kernel, idea, failed, tolerance, picks, sizes)


def named(name: str, doc: str | None = None) -> Callable[[Callable], Callable]:
    """Decorate a launcher that a function makes: give it this name, and a docstring."""
    def rename(launcher):
        launcher.__name__ = launcher.__qualname__ = name
        launcher.__doc__ = doc or launcher.__doc__
        return launcher

    return rename


def renamed(launch: Callable, name: str, **fields) -> Rung:
    """A plain launcher as a rung of this name. fields: as `rung` takes them."""
    @rung(**fields)
    @named(name)
    @functools.wraps(launch)
    def launcher(*args, **kwargs):
        launch(*args, **kwargs)

    return launcher


def rungs_of(module, prefix: str = "") -> tuple[Rung, ...]:
    """The rungs that a module defines, in its order. prefix: those of one operation, whose names begin so."""
    return tuple(value for name, value in vars(module).items() if isinstance(value, Rung)
                 and value.__module__ == module.__name__ and name.startswith(prefix and f"{prefix}_"))


def missing(*kernels) -> str:
    """Why the GPU that kernels are chosen for cannot run these, by their instructions and the shared memory that their
    factories say they take (shared_bytes); empty if it can. The CPU device has everything, unless LABKIT_PRETEND says
    otherwise."""
    if not gpus.limited():
        return ""
    gpu = gpus.target()
    return _missing(gpu.capability, gpu.shared_per_block, kernels)


@functools.cache  # launchers ask at each launch
def _missing(capability: tuple[int, int], shared_per_block: int, kernels: tuple) -> str:
    shared = max(getattr(launches.built(kernel), "shared_bytes", 0) for kernel in kernels)
    needed = None if needs.has_all(capability) else needs.of(*kernels)
    return needs.lacks(capability, needed) or gpus.lacks_shared(shared)


# --- Operations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What an operation costs at a size, and the sizes that it is timed at.

    flops(**size) and bytes(**size) are the minimum that any program must compute and move. unit is that of its reported
    speed. peak says which units of the GPU bound the flops: "fp32", or the tensor cores in "tf32", "f16" or "fp8".
    also_gpu holds sizes that `labkit bench` times beside timed_gpu. many_launches: a rung is a sequence of kernels,
    whose time from Python is Python's.
    """

    flops: Callable
    bytes: Callable
    timed_gpu: dict
    timed_cpu: dict
    also_gpu: tuple[dict, ...] = ()
    unit: str = "GB/s"
    peak: str = "fp32"
    many_launches: bool = False

    def __post_init__(self):
        if self.peak not in PEAKS:
            raise ValueError(f"peak is {self.peak!r}; {', '.join(map(repr, PEAKS))} are allowed")
        if self.unit not in UNITS:
            raise ValueError(f"unit is {self.unit!r}; {' and '.join(map(repr, UNITS))} are allowed")

    @property
    def timed(self) -> dict:
        """The size to time on the present device."""
        return device.pick(gpu=self.timed_gpu, cpu=self.timed_cpu)


@dataclass(frozen=True, repr=False, eq=False)
class Op(ResultTable):
    """A reference and its rungs, slowest first. Prints as a table of its rungs' ideas.

    inputs(rng, **size) makes host arrays; shape(**size) is the shape of the output; reference(*inputs) the truth.
    tolerance(*inputs) gives the largest error allowed for each element, from inputs in float64.
    by_row names the inputs whose first axis is the output's first axis: a sample of rows is then checked on its own.
    dtype is the output's.
    """

    name: str
    title: str
    reference: Callable
    rungs: tuple[Rung, ...]
    inputs: Callable
    shape: Callable
    awkward: tuple[dict, ...]
    tolerance: Callable
    by_row: tuple[int, ...]
    work: Work
    baselines: tuple[Baseline, ...] = ()
    formula: str = ""
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))

    def __post_init__(self):
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        for candidate in self.rungs:
            if not isinstance(candidate, Rung):
                raise ValueError(f"{candidate.__name__} names no kernel; decorate it with @rung(kernel=..., idea=...)")

    def rung(self, name: str) -> Rung:
        for candidate in self.rungs:
            if candidate.__name__ == name:
                return candidate
        raise ValueError(f"{self.name} has no rung {name!r}; it has {', '.join(r.__name__ for r in self.rungs)}")

    def table(self) -> dict:
        return {
            "title": self.title, "columns": ["rung", "idea"],
            "rows": [[r.__name__, r.idea + (" (failed)" if r.failed else "")] for r in self.rungs],
            "notes": [self.formula, *(f"{r.__name__} failed: {r.failed}" for r in self.rungs if r.failed)],
        }

    def result(self) -> dict:
        return {"kind": "op", "op": self.name, "kernels": [name for r in self.rungs for name in r.kernel_names]}

    def with_rungs(self, *rungs: Rung) -> Op:
        """The same operation with other rungs: your own kernel beside the ones here."""
        return replace(self, rungs=rungs)


def sizes(axes: str, *lengths: tuple[int, ...]) -> tuple[dict, ...]:
    """Sizes by the lengths of their axes: sizes("R C", (1, 3), (2, 5)) is ({"R": 1, "C": 3}, {"R": 2, "C": 5})."""
    return tuple(dict(zip(axes.split(), each, strict=True)) for each in lengths)


def uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """float32 in [-1.5, 1.5). The factor 3 fills all 24 bits, so that sums round as in real use."""
    if hasattr(rng, "zeros"):  # labkit.measure.unfilled: launches are only planned, and no value matters
        return rng.zeros(shape)
    values = np.empty(shape, np.float32)
    flat = values.reshape(-1)
    chunks = -(-flat.size // CHUNK)  # several threads fill a large array, each with its own generator
    generators = rng.spawn(chunks) if chunks > 1 else [rng]

    def fill(begin: int, end: int) -> None:
        chunk = flat[begin:end]
        generators[begin // CHUNK].random(out=chunk, dtype=np.float32)
        chunk *= np.float32(3.0)
        chunk -= np.float32(1.5)

    in_chunks(flat.size, fill)
    return values
