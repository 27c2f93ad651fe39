"""Backward orders: proposals, search, an order for a plan."""
