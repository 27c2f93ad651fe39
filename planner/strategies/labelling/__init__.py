"""Plans of one label for each tensor: annealing, and grids of checkpoints."""
