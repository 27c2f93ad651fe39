"""Which tensors share memory, what kernels allocate inside a call, and which calls may run in place."""
