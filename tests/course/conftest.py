"""Shared by the tests of the course."""

import zlib
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def seeded_checks(monkeypatch, request):
    """A check draws new inputs each time; in a test they are the same each time."""
    from labkit.course import check

    seed = zlib.crc32(request.node.name.encode()) >> 1
    monkeypatch.setattr(check, "secrets", SimpleNamespace(randbelow=lambda most: seed % most))
