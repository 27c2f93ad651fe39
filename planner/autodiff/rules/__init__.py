"""Training semantics by family of ops; rule_table.py puts the tables together."""
