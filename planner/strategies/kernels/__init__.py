"""What compiled code stands on: the door to numba and its cache, bit sets, sorting and random numbers."""
