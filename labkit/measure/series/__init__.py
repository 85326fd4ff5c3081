"""Measurements beside the ladders: what a lesson shows over sizes, or of one part of a program."""
