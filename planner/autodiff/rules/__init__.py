"""Gradient rules by family of ops; rule_table.py joins their tables."""
