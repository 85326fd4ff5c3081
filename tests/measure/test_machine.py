"""What a measurement depends on."""

import json

import numpy as np

from labkit import device, measure


def test_machine_says_what_a_time_depends_on():
    facts = measure.machine()
    assert facts["device"] == device.name()
    assert facts["kind"] == device.kind()
    assert facts["numpy"] == np.__version__
    assert len(facts["date"]) == 10
    if device.on_gpu():
        assert facts["compute_capability"]
        assert facts["sms"] > 0
    json.dumps(facts)


def test_slug():
    assert measure.slug("NVIDIA H200") == "nvidia-h200"
    assert measure.slug("Tesla T4 (16 GB)") == "tesla-t4-16-gb"
