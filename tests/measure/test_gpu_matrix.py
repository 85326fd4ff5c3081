"""What runs on which GPU: a sample is compiled and assembled here, the sweep does it for everything, and the record
that the site shows is what both find."""

import re

import numpy as np
import pytest
from numba import types

from labkit import cuda
from labkit.device import compiling, gpus
from labkit.device.launches import kernels_of
from labkit.measure import gpu_matrix, gpu_plans, gpu_survey, model_plans, ops
from labkit.measure.gpu_matrix import HOME
from labkit.measure.gpu_plans import TARGETS, Form, Plan, Use
from labkit.measure.gpu_survey import Outcome, Survey
from tests import spills


@pytest.fixture(scope="module")
def compiler():
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    if compiling.ptxas() is None:
        pytest.skip("ptxas is not installed")


def check(found: Survey):
    """Everything that a launcher picks is assembled, fits, and spills nothing but what tests/spills.py allows, with the
    compiler that the record names; what a GPU lacks by labkit.device.needs is refused, and nothing else."""
    counted = gpu_survey.read().toolchain == found.toolchain
    rungs = [rung for op in ops.all_ops() for rung in op.rungs]
    failed = {kernel for rung in rungs if rung.failed for kernel in kernels_of(rung)}  # these may show it
    for form in found.forms:
        taken, name = found.kernels[form.key], form.kernel.__name__
        refused = {target for target in TARGETS if isinstance(taken.get(target), str)}
        assert refused == set(gpu_matrix.forbidden(form)), (name, taken)
        for target in taken.keys() - refused - {"kernel"} if form.kernel not in failed else ():
            most = spills.allowed(name, TARGETS[target].capability)
            assert taken[target][1] <= most or not counted, f"{name} for {target} spills {taken[target][1]} bytes"
    rows = {rung: targets for rungs in found.rungs.values() for rung, targets in rungs.items()} | found.models
    for name, targets in rows.items():
        assert targets[HOME].runs, name
        for target, outcome in targets.items():
            assert outcome.runs or outcome.why.startswith("needs compute capability"), f"{name}, {target}: {outcome}"
            assert not outcome.except_at, f"{name}, {target}: {outcome}"


def check_record(found: Survey):
    """The record says the same. Another version of the compiler may spill other amounts."""
    record = gpu_survey.read()

    def said(targets):
        if record.toolchain == found.toolchain:
            return targets
        return {target: each.why for target, each in targets.items()}

    for name, rungs in found.rungs.items():
        for rung, targets in rungs.items():
            assert said(record.rungs[name][rung]) == said(targets), f"{rung}: run labkit build --gpus"
    for name, targets in found.models.items():
        assert said(record.models[name]) == said(targets), f"{name}: run labkit build --gpus"


@pytest.mark.sweep(every=True)
def test_a_sample_is_assembled_for_every_gpu(compiler):
    found = gpu_matrix.survey(None, ["broadcast_add", "matmul_bf16"], [])
    assert len(found.forms) == len(found.kernels) >= 4
    check(found)
    check_record(found)
    assert found.of("matmul_bf16", "matmul_bf16_pipelined", "7.5").why == "needs compute capability 8.0"
    assert all(outcome.runs for outcome in found.rungs["broadcast_add"]["broadcast_add_strided"].values())


@pytest.mark.parametrize("step", [pytest.param(2, marks=pytest.mark.sweep), pytest.param(1, marks=pytest.mark.slow)])
def test_every_kernel_that_is_picked_is_assembled_for_every_gpu(compiler, step):
    """All whose code or compiler the record does not have, and every second of the others; or really all."""
    record = gpu_survey.read()
    for key in sorted(record.kernels)[::step]:
        del record.kernels[key]
    found = gpu_matrix.survey(record)
    check(found)
    check_record(found)


def test_the_record_has_every_rung_and_model():
    record = gpu_survey.read()
    assert {name: list(rungs) for name, rungs in record.rungs.items()} == {
        op.name: [rung.__name__ for rung in op.rungs] for op in ops.all_ops()}, "run labkit build --gpus"
    assert list(record.models) == list(model_plans.MODELS)
    for targets in (*record.models.values(), *(each for rungs in record.rungs.values() for each in rungs.values())):
        assert list(targets) == list(TARGETS)
    assert [gpu.capability for gpu in TARGETS.values()] == list(gpus.SUPPORTED)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(("operation", "rung"), [("softmax", "softmax_naive"), ("rmsnorm_bf16", "rmsnorm_registers")])
def test_two_targets_share_a_text_only_where_the_compiler_writes_the_same(compiler, operation, rung):
    plan = gpu_plans.plans_of(ops.op(operation))[rung]["12.0"]
    form = min((use.form for use in plan.uses), key=lambda form: form.key)

    def unnamed(text):
        return re.sub(r"_Z\w+|_cudapy_smem_\d+", "f", text)  # these names count what was compiled

    for target, text in gpu_matrix.texts(form, TARGETS).items():
        own = compiling.ptx(form.kernel, form.signature, TARGETS[target].arch)
        assert unnamed(text) == unnamed(own), target


def test_code_for_an_older_gpu_does_not_depend_on_what_was_compiled_before(compiler):
    from labkit.device import ptx

    @cuda.jit
    def packs(a, out):
        ptx.store_global_half2(out, 0, a[0], a[1])

    signature = types.void(types.float32[::1], types.float16[::1])
    for order in ([(9, 0, "a"), (7, 5)], [(7, 5), (9, 0, "a")]):
        texts = compiling.ptx_for(packs, signature, order)
        assert "cvt.rn.f16x2.f32" in texts[9, 0, "a"] and "cvt.rn.f16x2.f32" not in texts[7, 5]


# --- What is made of it -----------------------------------------------------------------------------------------------


@cuda.jit
def made_up(out):
    out[0] = 1


FORM = Form(made_up, None, "key")


def plans(threads=128, shared=0, missing="", refused=None, at_home=None) -> dict[str, Plan]:
    found = {target: Plan(uses={Use(FORM, threads, shared)}) for target in TARGETS}
    found["7.5"] = Plan(missing, set() if missing else {Use(FORM, threads, shared)}, refused or {})
    found[HOME].refused = at_home or {}
    return found


@pytest.mark.parametrize(("taken", "how", "expected"), [
    ([40, 0, 0], {}, Outcome()),
    ([40, 16, 0], {}, Outcome(spills=16)),
    ([40, 0, 1024], {"shared": 64_512}, Outcome()),
    ([40, 0, 1024], {"shared": 64_513},
     Outcome("made_up needs 65,537 bytes of shared memory; a block can have 65,536")),
    ([64, 0, 0], {"threads": 1024}, Outcome()),
    ([65, 0, 0], {"threads": 1024}, Outcome("made_up needs 65 registers for each of 1024 threads")),
    ("Feature 'x' requires sm_80", {}, Outcome("made_up: Feature 'x' requires sm_80")),
    (None, {"missing": "needs compute capability 8.0; this GPU has 7.5"}, Outcome("needs compute capability 8.0")),
    ([40, 0, 0], {"refused": {"M=1": "too long"}}, Outcome(except_at="M=1: too long")),
    ([40, 0, 0], {"refused": {"M=1": "too long"}, "at_home": {"M=1": "too long"}}, Outcome()),
])
def test_what_a_gpu_makes_of_a_rung(taken, how, expected):
    assert gpu_matrix.outcome(plans(**how), {"key": {"kernel": "made_up", "7.5": taken}}, "7.5") == expected


def test_what_has_not_changed_is_not_compiled_again(compiler, monkeypatch):
    first = gpu_matrix.survey(None, ["volume_add"], [])
    monkeypatch.setattr(gpu_matrix, "assembled", lambda *_: pytest.fail("compiled again"))
    assert gpu_matrix.survey(first, ["volume_add"], []).kernels == first.kernels
    first.toolchain["numba"] = "0.1"
    with pytest.raises(BaseException, match="compiled again"):
        gpu_matrix.survey(first, ["volume_add"], [])


def test_a_plan_keeps_what_a_launcher_refuses():
    plan = Plan()

    def work():
        made_up[1, 32](cuda.device_array(1, np.float32))
        raise ValueError("too long")

    plan.add("M=1", work)
    assert plan.refused == {"M=1": "too long"} and not plan.uses


def test_a_record_reads_back_as_it_was_written(tmp_path):
    path = tmp_path / "fits.json"
    assert gpu_survey.read(path) == Survey()
    outcomes = {"7.5": Outcome("needs more"), "8.0": Outcome(spills=8), "9.0": Outcome(except_at="M=1: no")}
    survey = Survey({"numba": "1"}, "2026-11-28", {"k": {"kernel": "made_up", "7.5": [1, 0, 0], "8.0": "refused"}},
                    {"op": {"op_naive": outcomes}}, {"GPT-2": outcomes})
    gpu_survey.write(survey, path)
    assert gpu_survey.read(path) == survey
