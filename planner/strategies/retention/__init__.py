"""Checkmate's retention matrix as bits, and annealing on it."""
