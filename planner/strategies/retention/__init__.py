"""Checkmate's retention matrix as bit rows; incremental simulated annealing on it."""
