"""Attention, from three passes over the keys to flash attention on tensor cores; one file for each way."""
