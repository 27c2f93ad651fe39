"""Backward orders: proposed, searched, and made for a plan."""
