"""Whole models, one file each; read them from top to bottom."""

from labkit.simt import unsigned

unsigned.applies_to(__name__)
