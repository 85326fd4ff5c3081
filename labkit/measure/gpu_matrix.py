"""Which GPU runs what, found without owning one: every kernel is compiled and assembled for every supported GPU.

    found = survey(gpu_survey.read())    # compiles what has changed since the record was made; minutes for all
    gpu_survey.write(found)              # data/fits.json

Each rung is planned at all its sizes as on each GPU, and so is each model; what the launchers pick there is compiled,
assembled by ptxas, and held against what the GPU has. A kernel whose code and compiler are those of the record is not
compiled again.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import importlib.metadata
import multiprocessing
import re
import warnings
from collections.abc import Callable, Iterable

from labkit._common.cores import cores
from labkit.device import compiling, needs
from labkit.measure.gpu_plans import TARGETS, Form, Plan, plans_of
from labkit.measure.gpu_survey import Outcome, Survey

HOME = "9.0"  # a size that a rung refuses here is none of its sizes
PACKAGES = ("numba", "numba-cuda", "nvidia-nvvm")


def toolchain() -> dict[str, str]:
    """The versions of what compiles and assembles."""
    found = {"ptxas": compiling.ptxas_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


# --- Compiling and assembling -----------------------------------------------------------------------------------------


def texts(form: Form, targets: Iterable[str]) -> dict[str, str]:
    """The PTX for these targets. Where labkit.ptx writes the same for two up to 9.0, so does the compiler, but for the
    line that names the target: one text then serves for both. tests/measure/test_gpu_matrix.py compares."""
    changes = sorted({(0, 0), *compiling.changes(form.kernel)})
    alike: dict[tuple, list[str]] = {}  # targets that share a text
    for target in targets:
        capability = TARGETS[target].capability
        since = max(change for change in changes if change <= capability)
        alike.setdefault(capability if capability >= (10, 0) else since, []).append(target)
    written = compiling.ptx_for(form.kernel, form.signature, [TARGETS[group[0]].arch for group in alike.values()])
    return {target: _named(written[TARGETS[group[0]].arch], target) for group in alike.values() for target in group}


def _named(text: str, target: str) -> str:
    """PTX with this target's name in it."""
    return re.sub(r"(?m)^\.target .*$", f".target sm_{''.join(map(str, TARGETS[target].arch))}", text)


def forbidden(form: Form) -> list[str]:
    """The targets that lack an instruction of the form's kernel, by labkit.device.needs."""
    return [target for target, gpu in TARGETS.items() if needs.lacks(gpu.capability, needs.of(form.kernel))]


def assembled(form: Form, targets: Iterable[str]) -> dict:
    """{"kernel": its name, "7.5": [registers, bytes spilled, bytes of shared memory], or why ptxas refuses it, ...} for
    these targets, in their order; and for those that lack an instruction, which ptxas has to refuse, too."""
    ptx = texts(form, [target for target in TARGETS if target in targets])
    ptx |= {target: _named(next(iter(ptx.values())), target) for target in forbidden(form) if target not in ptx}
    found = {"kernel": form.kernel.__name__}
    for target in filter(ptx.get, TARGETS):
        try:
            taken = compiling.resources(ptx[target])
        except compiling.Refused as error:
            found[target] = error.problems[0][1] if error.problems else str(error)
        else:
            if taken is None:
                raise compiling.NoCompiler(f"ptxas is not installed ({compiling.INSTALL})")
            found[target] = [taken["registers"], taken["spill_bytes"], taken["shared_bytes"]]
    return found


_jobs: list[tuple[Form, frozenset[str]]] = []  # of the processes that compile, which are forks and pickle no kernel


def _assemble(index: int) -> tuple[str, dict]:
    form, targets = _jobs[index]
    return form.key, assembled(form, targets)


def assemble_all(wanted: dict[Form, set[str]], progress: Callable[[int, int], None] | None = None) -> dict[str, dict]:
    """{key: what `assembled` says} of forms and their targets, in as many processes as there are cores."""
    global _jobs
    _jobs, found = list(wanted.items()), {}
    if len(_jobs) < 3 or cores() < 2:
        results = contextlib.nullcontext(map(_assemble, range(len(_jobs))))
    else:
        results = _in_processes(_assemble, len(_jobs))
    with results as finished:
        for key, one in finished:
            found[key] = one
            if progress:
                progress(len(found), len(_jobs))
    return found


@contextlib.contextmanager
def _in_processes(work: Callable, count: int):
    gc.freeze()  # else collections in each process go through, and copy, the kernels of all plans
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: a fork uses none of their locks
            with multiprocessing.get_context("fork").Pool(cores()) as pool:
                yield pool.imap_unordered(work, range(count))
    finally:
        gc.unfreeze()


# --- The survey -------------------------------------------------------------------------------------------------------


def outcome(plans: dict[str, Plan], kernels: dict, target: str) -> Outcome:
    """What this target makes of a rung or a model with these plans."""
    plan, gpu = plans[target], TARGETS[target]
    if plan.missing:
        return Outcome(plan.missing.partition(";")[0])
    spills = 0
    for use in sorted(plan.uses, key=lambda use: (use.form.key, use.threads, use.shared_bytes)):
        taken, name = kernels[use.form.key][target], use.form.kernel.__name__
        if isinstance(taken, str):
            return Outcome(f"{name}: {taken}")
        registers, spilled, static = taken
        if static + use.shared_bytes > gpu.shared_per_block:
            return Outcome(f"{name} needs {static + use.shared_bytes:,} bytes of shared memory; a block can have "
                           f"{gpu.shared_per_block:,}")
        if -(-registers // 8) * 8 * (-(-use.threads // 32) * 32) > gpu.registers:
            return Outcome(f"{name} needs {registers} registers for each of {use.threads} threads")
        spills = max(spills, spilled)
    refused = [f"{size}: {why}" for size, why in plan.refused.items() if size not in plans[HOME].refused]
    if refused and not plan.uses:
        return Outcome(refused[0])
    return Outcome("", spills, refused[0] if refused else "")


def _only(names: set[str], taken: dict) -> dict:
    """Without the targets of a record for which the form is no longer picked."""
    return {name: value for name, value in taken.items() if name in names}


def survey(record: Survey | None = None, operations: Iterable[str] | None = None, models: Iterable[str] | None = None,
           *, progress: Callable[[str, int, int], None] | None = None) -> Survey:
    """Plan these operations and models (all of them if left out), compile what the record has not, and say what each
    GPU makes of each rung. progress(what, done, of). Raises compiling.NoCompiler where no compiler is installed."""
    from labkit.measure import model_plans, ops

    operations = list(ops.HOMES if operations is None else operations)
    models = list(model_plans.MODELS if models is None else models)
    plans = {}
    for done, name in enumerate([*operations, *models]):
        if progress:
            progress(f"Planning {name}", done, len(operations) + len(models))
        plans[name] = plans_of(ops.op(name)) if name in operations else {"": model_plans.plans_of(name)}
    wanted: dict[Form, set[str]] = {}
    for rows in plans.values():
        for each in rows.values():
            for target, plan in each.items():
                for use in plan.uses:
                    wanted.setdefault(use.form, set()).add(target)
    known = record.kernels if record and record.toolchain == toolchain() else {}
    missing = {form: targets for form, targets in sorted(wanted.items(), key=lambda item: item[0].key)
               if not targets <= known.get(form.key, {}).keys()}
    compiled = assemble_all(missing, progress and (lambda done, of: progress("Compiling", done, of)))
    kernels = {form.key: _only(wanted[form] | {"kernel", *forbidden(form)}, compiled.get(form.key) or known[form.key])
               for form in wanted}

    def outcomes(each):
        return {target: outcome(each, kernels, target) for target in TARGETS}

    return Survey(toolchain(), datetime.date.today().isoformat(), kernels,
                  {name: {rung: outcomes(each) for rung, each in plans[name].items()} for name in operations},
                  {name: outcomes(plans[name][""]) for name in models}, list(wanted))
