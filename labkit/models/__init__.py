"""Whole models, one file each; read them from top to bottom."""
