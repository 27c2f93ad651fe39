"""The gradient of each op, by family."""
