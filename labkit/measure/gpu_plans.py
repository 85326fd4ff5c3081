"""What launchers pick on each GPU that is supported, found without one: for labkit.measure.gpu_matrix.

    plans_of(op("matmul_half"))["matmul_half_pipelined"]["7.5"].uses     # kernels, types, threads, shared memory
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.device import gpus, kernel_key, launches
from labkit.measure import unfilled

TARGETS = {".".join(map(str, capability)): gpus.GPUS[gpus.OF_CAPABILITY[capability]] for capability in gpus.SUPPORTED}


@dataclass(frozen=True)
class Form:
    """A kernel for certain types of arguments. key: equal where the compiled code is."""

    kernel: object = field(compare=False)
    signature: object = field(compare=False)
    key: str


@dataclass(frozen=True)
class Use:
    """A form as it is launched. shared_bytes is the dynamic part."""

    form: Form
    threads: int
    shared_bytes: int


@dataclass
class Plan:
    """What a rung or a model launches on a GPU. missing: why the GPU cannot run it at all. refused: the launcher's
    words, by size."""

    missing: str = ""
    uses: set[Use] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)

    def add(self, size: str, work: Callable) -> None:
        """Plan work() at a size; a ValueError of it says that the size is refused."""
        launched = []
        try:
            launches.planned(work, launched)
        except ValueError as error:
            self.refused[size] = str(error)
        else:
            self.uses |= {Use(form_of(one.kernel, one.signature), one.threads, one.shared_bytes) for one in launched}


def form_of(kernel, signature) -> Form:
    return Form(kernel, signature, _key(kernel, tuple(map(kernel_key.type_text, signature.args))))


@functools.cache
def _key(kernel, arguments: tuple[str, ...]) -> str:
    parts = (kernel_key.own_files(), kernel_key.Fingerprint().of(kernel), *arguments)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def plans_of(op) -> dict[str, dict[str, Plan]]:
    """{rung: {target: Plan}} of an operation, at its awkward and its timed sizes."""
    plans = {rung.__name__: {target: Plan() for target in TARGETS} for rung in op.rungs}
    for size in (*op.awkward, op.work.timed_gpu, *op.work.also_gpu):
        arguments = unfilled.arguments(op, size)
        words = " ".join(f"{axis}={length}" for axis, length in size.items())
        for target, gpu in TARGETS.items():
            with gpus.plan_for(gpu):
                for rung in op.rungs:
                    plan = plans[rung.__name__][target]
                    plan.missing = rung.missing
                    if not plan.missing:
                        plan.add(words, lambda rung=rung, arguments=arguments: rung(*arguments))
    return plans
