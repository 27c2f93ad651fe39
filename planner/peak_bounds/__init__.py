"""Proven floors of the peak."""
