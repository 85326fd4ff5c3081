"""Shared by the tests of the course."""

import random
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def seeded_checks(monkeypatch, request):
    """Every check draws new inputs; in a test they are the same in each run."""
    from labkit.course import check

    monkeypatch.setattr(check, "secrets", SimpleNamespace(randbelow=random.Random(request.node.name).randrange))
