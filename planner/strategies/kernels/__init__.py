"""What compiled code stands on: the door to numba, bit sets and random numbers."""
