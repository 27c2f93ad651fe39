"""KEEP/DROP/TEMPORARY labels: annealing and checkpoint grids."""
