"""What each operation is checked and timed with: inputs, sizes, tolerance, work and baselines."""
