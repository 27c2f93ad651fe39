"""What compiled code stands on: the door to numba and its cache, bit sets and random numbers."""
