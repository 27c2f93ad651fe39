"""Whole training runs, plain and within a budget."""
