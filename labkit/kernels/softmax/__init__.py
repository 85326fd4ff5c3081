"""Softmax of rows, and fused with scale and mask."""
