"""Tensors in files and on the device: the safetensors format, and a file's tensors as one device buffer."""
