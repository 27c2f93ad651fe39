"""What compiled code stands on (numba door, 64-bit sets, RNG)."""
