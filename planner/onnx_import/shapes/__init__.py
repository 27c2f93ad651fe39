"""Shapes: inferred, declared, bound by the user, and re-batched."""
