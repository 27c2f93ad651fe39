"""Public snapshots of PyTorch's CUDA allocator, replayed on the model of it that plans are made with."""
