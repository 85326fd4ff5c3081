"""Matrix multiplication in each number format, and the tensor-core kernels that linear layers share."""
