"""Training semantics by family of ops; backward_rules.py puts the tables together."""
