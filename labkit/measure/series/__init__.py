"""Measurements other than the ladders: what a lesson shows over sizes, or for one part of a program."""
