"""The registry of operations: whatever labkit/kernels/ops defines is in it, tested, and recorded or waiting."""

import importlib
import re

import pytest

from labkit._common import paths
from labkit._common.files import read_json, read_text
from labkit.kernels.op import Op
from labkit.measure import ops, sanitizer
from labkit.measure.ops import HOMES, UNRECORDED, op

MODULES = sorted(f"kernels.ops.{path.stem}" for path in (paths.PACKAGE / "kernels" / "ops").glob("[a-z]*.py"))
GPU = "nvidia-h200"


@pytest.mark.parametrize("module", MODULES)
def test_every_operation_is_in_homes(module):
    defined = {one.name for one in vars(importlib.import_module(f"labkit.{module}")).values() if isinstance(one, Op)}
    missing = sorted(defined - HOMES.keys())
    assert not missing, f'enter in HOMES in labkit/measure/ops.py: "{missing[0]}": "{module}"'


@pytest.mark.parametrize("name", HOMES)
def test_every_entry_of_homes_is_the_operation_of_its_name(name):
    assert op(name).name == name


@pytest.mark.parametrize("module", sorted(set(HOMES.values())))
def test_every_operation_has_a_test(module):
    package, stem = module.rsplit(".", 1)
    imported = re.compile(rf"labkit\.{re.escape(module)}\b|from labkit\.{re.escape(package)} import .*\b{stem}\b")
    tests = [path for folder in ("kernels", "models") for path in (paths.REPOSITORY / "tests" / folder).rglob("*.py")]
    assert any(imported.search(read_text(path)) for path in tests), (
        f"write tests/kernels/test_{stem}.py: no test in tests/kernels or tests/models imports labkit.{module}")


def test_every_operation_was_recorded_or_waits_for_a_gpu():
    timed = read_json(paths.MEASUREMENTS / f"{GPU}.json")["ops"]
    watched = read_json(sanitizer.RECORDED / f"{GPU}.json")
    missing = {name for name in HOMES if not timed.get(name) or any(name not in watched[tool]
                                                                   for tool in sanitizer.TOOLS)}
    assert not missing - set(UNRECORDED), (
        f"not recorded on a GPU: enter in UNRECORDED in labkit/measure/ops.py {sorted(missing - set(UNRECORDED))}")
    assert not set(UNRECORDED) - missing, (
        f"recorded by now: take out of UNRECORDED in labkit/measure/ops.py {sorted(set(UNRECORDED) - missing)}")


def test_an_unknown_operation_is_named():
    with pytest.raises(ValueError, match=r"no operation is called 'sofmax'; did you mean softmax, .*\?"):
        op("sofmax")


def test_an_operation_that_is_not_entered_is_named_with_the_table(monkeypatch):
    monkeypatch.delitem(HOMES, "transpose")
    with pytest.raises(ValueError, match=r"enter it in HOMES in labkit/measure/ops.py, since .*/transpose.py"):
        op("transpose")
    assert ops.hint("elementwise", HOMES).startswith("did you mean"), "a module of operations of other names"


@pytest.mark.parametrize("home", ["kernels.ops.softmax", "kernels.transpose"])
def test_an_entry_that_leads_to_no_operation_of_its_name_is_refused(monkeypatch, home):
    monkeypatch.setitem(HOMES, "transpose", home)
    with pytest.raises(ValueError, match=f"HOMES in labkit/measure/ops.py says that 'transpose' is in labkit.{home}; "
                                         "there TRANSPOSE must be the Op that is named 'transpose'"):
        op("transpose")
    monkeypatch.setattr("labkit.kernels.ops.softmax.TRANSPOSE", op("softmax"), raising=False)
    with pytest.raises(ValueError, match="must be the Op that is named 'transpose'"):
        op("transpose")
