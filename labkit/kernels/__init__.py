"""The kernels of the course, one file or one folder for each operation, slowest rung first."""
