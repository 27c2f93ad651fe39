"""Meters of memory and time."""
