"""The first ten minutes on a GPU."""
