"""State outside the graph: watched, guarded, rolled back."""
