"""Ancestors and competitors: one strategy, one file, one signature."""
