"""Who shares memory with whom; what kernels take."""
