"""Rewrites of the joint graph, each a function Joint -> Joint; pipeline.py has their order."""
