"""Time and workspace."""
