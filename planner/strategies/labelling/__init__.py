"""KEEP/DROP/TEMPORARY labels: annealing."""
