"""The encoder's kernels with their sizes as constants and as arguments: both right, both timed, one recorded."""

import json

import numpy as np
import pytest

from labkit.device import compiling
from labkit.measure.series import encoder_sizes as series


@pytest.mark.sweep
def test_every_kernel_is_right_in_both_forms():
    launches = series.launches_of(series.SMALL)
    assert [one.form for one in launches] == ["arguments"] * 3 + ["constants"] * 3
    for one in launches:
        one()
        expected = one.expected().reshape(-1)
        found = series.output_of(one).copy_to_host()
        if one.name == "heads apart":
            np.testing.assert_array_equal(found, expected)
        else:  # float16 has 11 bits
            np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3, err_msg=f"{one.name}, {one.form}")


def test_each_has_a_time():
    found = series.encoder_sizes(series.SMALL)
    assert json.loads(json.dumps(found)) == found and found["sizes"]["heads"] == 2
    assert len(found["rows"]) == 6 and min(row["us"] for row in found["rows"]) > 0
    assert max(row["error"] for row in found["rows"]) < 2e-3


def test_instructions_are_counted_by_kind():
    text = "\n".join((".visible .entry k(", ")", "{", "\t.reg .b32 \t%r<9>;", "$L__1:", "\tdiv.u32 \t%r1, %r2, %r3;",
                      "\t@%p1 bra \t$L__1;", "\tld.global.b16 \t%rs1, [%rd1];", "\tfma.rn.f32 \t%f1, %f2, %f3, %f4;",
                      "\tret;", "}"))
    assert series.counted(text) == {"instructions": 5, "branches": 1, "divisions": 1, "loads": 1, "multiply-adds": 1}


def test_what_is_recorded_is_of_these_kernels():
    recorded = series.recorded_compiled()
    assert recorded["sizes"] == series.MINILM._asdict()
    rows = {(row["name"], row["form"]): row for row in recorded["rows"]}
    assert len(rows) == 6 and all(row["registers"] > 0 and row["spill_bytes"] == 0 for row in rows.values())
    apart = {form: rows["heads apart", form] for form in series.FORMS}
    assert apart["constants"]["divisions"] == 0 < apart["arguments"]["divisions"]


@pytest.mark.sweep
def test_constants_leave_no_division():
    try:
        found = series.compiled()
    except compiling.NoCompiler as error:
        pytest.skip(str(error))
    assert [row["divisions"] for row in found["rows"] if row["form"] == "constants"] == [0, 0, 0]
