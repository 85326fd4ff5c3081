"""Four exercises for tests: a kernel, a host function, a prediction, a bug to find. Never shown to a reader."""

FIRST_CELL = """
from labkit import check, cuda
"""
