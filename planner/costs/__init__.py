"""Costs of ops: time and workspace."""
