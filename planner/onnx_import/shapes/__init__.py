"""Shapes and element types: inferred, declared, bound by the user, and re-batched."""
