"""data/cpu-device.md is what labkit.simt.supported makes, and says what is true."""

import re

import pytest

from labkit._common.paths import REPOSITORY
from labkit.simt import api, stubs, supported

PAGE = REPOSITORY / "data" / "cpu-device.md"


def test_the_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == supported.page(), "stale: run labkit build --readme"


def test_what_is_listed_is_there():
    text = supported.page()
    _, _, host = text.partition("**Names of `cuda`**")
    for name in re.findall(r"`(\w+)`", host.partition("**Types**")[0]):
        assert hasattr(api, name), name
    for name in re.findall(r"`(\w+)`", text.partition("**Refused, since")[2].partition("##")[0]):
        with pytest.raises(AttributeError, match=rf"cuda\.{name} needs a GPU: it is not supported by the CPU device"):
            getattr(api, name)


def test_what_stubs_hold_is_listed():
    text = supported.page()
    for name, value in vars(stubs).items():
        if isinstance(value, stubs.Function) and not name.startswith("_"):
            assert f"`{name}`" in text, name


def test_what_is_not_there_is_named():
    with pytest.raises(AttributeError, match=r"cuda\.no_such_name is not supported by the CPU device"):
        _ = api.no_such_name
