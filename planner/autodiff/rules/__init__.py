"""Training semantics by family of ops; rule_table.py joins the tables."""
